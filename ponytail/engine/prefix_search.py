"""Where a sequence's prefix comes from: the cells, a running sequence, RAM or disk.

Owns the choice among what the tree knows; changes nothing but times of use.  Engine
thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from ponytail.engine.sequence import Sequence
from ponytail.engine.slots import Kind, Slot, Tree, TreeNode
from ponytail.engine.tiers import MIN_TOKENS

Path: TypeAlias = list[tuple[TreeNode, int]]
"""Nodes along a sequence's tokens, deepest first, each with the usable tokens up to there."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first `n_tokens` of a sequence are, or will be, held by `entry`."""

    n_tokens: int
    kind: Kind
    entry: Any


NOTHING = Found(0, Kind.IDLE, None)


class PrefixSearch:
    """Over one tree.  `min_prefix` is the shortest prefix in the cells worth taking.

    `can_cut`: a prefix serves for its beginnings too.  `is_shared`: it must not be twice in
    the cells.
    """

    def __init__(self, tree: Tree, *, can_cut: bool, is_shared: bool, min_prefix: int) -> None:
        self._tree = tree
        self._can_cut = can_cut
        self._is_shared = is_shared
        self._min_prefix = min_prefix

    def find(self, sequence: Sequence, now: float) -> Found:
        """The longest prefix, and of equals the nearest."""
        found = self._tree.match(sequence.tokens)
        if not found:
            return NOTHING
        self._tree.touch(found[0][0], now)
        # The last token is always computed, for its logits.
        limit = len(sequence.tokens) - 1
        path = [(node, min(n, limit)) for node, n in found]
        return self._find_any(sequence, path) if self._can_cut else _find_exact(sequence, path)

    def _find_any(self, sequence: Sequence, path: Path) -> Found:
        ready, pending = _find_in_cells(sequence, path)
        if self._is_shared and pending.n_tokens > ready.n_tokens:
            # Also when RAM has it: a prefix must not be twice in the cells.
            return pending
        stored = _find_stored(path)
        if stored.n_tokens >= max(ready.n_tokens, pending.n_tokens) + MIN_TOKENS:
            # What the cells have is shared before the rest is fetched behind it.
            is_first = self._is_shared and ready.n_tokens > sequence.n_computed
            return ready if is_first else stored
        if pending.n_tokens >= ready.n_tokens + self._min_prefix:
            return pending
        return ready if ready.n_tokens >= self._min_prefix else NOTHING


def _find_in_cells(sequence: Sequence, path: Path) -> tuple[Found, Found]:
    """(longest prefix in the cells, longest that a running sequence will have)."""
    ready = pending = NOTHING
    for node, n in path:
        idle = next(node.below(Kind.IDLE), None)
        if idle is not None:
            ready = Found(n, Kind.IDLE, idle)
            break
    for slot, n in _running(sequence, path):
        assert slot.owner is not None
        if n > pending.n_tokens:
            pending = Found(n, Kind.LIVE, slot)
        if min(n, slot.owner.n_computed) > ready.n_tokens:
            ready = Found(min(n, slot.owner.n_computed), Kind.LIVE, slot)
    return ready, pending


def _running(sequence: Sequence, path: Path) -> list[tuple[Slot, int]]:
    """Slots of earlier sequences on the path, with the tokens they have in common with it.

    Only earlier ones, so that nobody waits in a circle.
    """
    n_at = dict(path)
    return [
        (slot, next(n_at[node] for node in slot.node.path() if node in n_at))
        for slot in path[-1][0].below(Kind.LIVE)
        if slot.owner.order < sequence.order
    ]


def _find_stored(path: Path) -> Found:
    for node, n in path:
        for kind in (Kind.RAM, Kind.DISK):
            entry = next(node.below(kind), None)
            if entry is not None:
                return Found(n, kind, entry)
    return NOTHING


def _find_exact(sequence: Sequence, path: Path) -> Found:
    """Of memories that cannot be cut: only what ends exactly on the way, or will."""
    best = NOTHING
    for node, n in path:
        kinds = {kind: entry for entry, kind in node.entries.items() if kind != Kind.LIVE}
        if n == node.end and kinds:
            nearest = min(kinds)
            best = Found(n, Kind(nearest), kinds[nearest])
            break
    for slot, n in _running(sequence, path):
        owner = slot.owner
        assert owner is not None
        marks = [mark for mark in owner.job.marks if owner.n_computed < mark <= n]
        if marks and marks[-1] > best.n_tokens:
            best = Found(marks[-1], Kind.LIVE, slot)
    return best
