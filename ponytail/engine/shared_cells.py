"""The shared layout: one pool of cells, which sequences hold together.

Owns the count of cells in use, and which slot a newcomer gets.  A prefix is held once
however many slots have it: that is kept true by sharing all that matches before anything
is computed, and by giving up double cells when a sequence ends.  So two slots share the
path they have in common in the tree, as far as both hold it.  Must not know tiers,
scheduling or time.  Engine thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from ponytail.engine.backend import Span
from ponytail.engine.sequence import Sequence
from ponytail.engine.slots import Kind, Slot, Slots, TreeNode


class SharedCells:
    """`on_evict(slot)` is called before a cached prefix leaves the cells."""

    # Sharing costs nothing, and nothing must be held twice.
    min_prefix = 1

    def __init__(self, slots: Slots, on_evict: Callable[[Slot], None]) -> None:
        self.slots = slots
        self._backend = slots.backend
        self._on_evict = on_evict
        self.n_used = 0

    # -- room ----------------------------------------------------------------------------

    @property
    def n_cells(self) -> int:
        """Cells there are now, of all sequences together."""
        return self._backend.n_cells

    def limit_of(self, sequence: Sequence) -> int:
        """Tokens the sequence can hold before there must be more cells."""
        return self._backend.n_cells

    def free(self) -> int:
        """Cells that nothing holds."""
        return self._backend.n_cells - self.n_used

    def make_room(self, n: int) -> int:
        """Evict cold prefixes until n cells are free or nothing cold is left; the free ones."""
        while self.free() < n:
            node = self.slots.tree.coldest(Kind.IDLE, unlocked=True)
            if node is None:
                break
            for slot in node.at(Kind.IDLE):
                self._evict(slot, node)
        return self.free()

    def n_live(self) -> int:
        """Cells that running sequences hold."""
        return self._union(self.slots.owned())

    def _evict(self, slot: Slot, node: TreeNode) -> None:
        """Give up the last run of tokens of a cached prefix; the rest stays cached."""
        self._on_evict(slot)
        parent = node.parent
        assert parent is not None
        if parent.parent is None or self._is_held_by_others(parent, slot):
            self.empty(slot)
            return
        self.n_used -= self._n_unique(slot, parent.end)
        self._backend.cut(slot.seq_id, parent.end)
        # Locked, or the parent would be merged away meanwhile.
        self.slots.tree.lock(parent)
        self.slots.withdraw(slot)
        self.slots.hold(slot, parent)
        self.slots.tree.unlock(parent)

    def _is_held_by_others(self, node: TreeNode, slot: Slot) -> bool:
        return any(
            other is not slot and other.n_held >= node.end
            for kind in (Kind.IDLE, Kind.LIVE)
            for other in node.below(kind)
        )

    # -- slots ---------------------------------------------------------------------------

    def pick(self, source: Slot | None, n_tokens: int) -> Slot:
        """An empty slot for a newcomer that will share n_tokens of `source`."""
        for slot in self.slots.all:
            if slot.is_empty:
                return slot
        others = [slot for slot in self.slots.all if slot.is_idle and slot is not source]
        coldest = min(others, key=lambda slot: slot.used_at)
        self._on_evict(coldest)
        self.empty(coldest)
        return coldest

    def give(self, src: Slot, dst: Slot, n_tokens: int) -> None:
        """The live slot dst shares the first n_tokens of src and holds nothing else."""
        self.n_used -= self._n_unique(dst)
        self._backend.fork(src.seq_id, [dst.seq_id], n_tokens)

    def added(self, n_tokens: int) -> None:
        """That many cells were filled."""
        self.n_used += n_tokens

    def empty(self, slot: Slot) -> None:
        """Give up an idle slot's cells and its place in the tree."""
        self.n_used -= self._n_unique(slot)
        self.slots.withdraw(slot)
        self._backend.cut(slot.seq_id, 0)

    def lost(self, slot: Slot) -> None:
        """A live slot's cells are gone: the backend emptied it."""
        self.n_used -= self._n_unique(slot)

    def fit(self, n_cells: int) -> None:
        """Evict until what is cached fits into fewer cells."""
        self.make_room(self._backend.n_cells - n_cells)

    def discard(self, slot: Slot) -> None:
        """Give up a live slot and its cells."""
        self.n_used -= self._n_unique(slot)
        self.slots.unbind(slot)
        self._backend.cut(slot.seq_id, 0)

    def keep(self, slot: Slot, tokens: array[int]) -> None:
        """A live slot that holds `tokens` becomes a cached prefix, unless others hold it all."""
        own = min(slot.node.end if slot.node is not None else 0, len(tokens))
        self.slots.unbind(slot)
        src, n_held, n_pending = self._others_on(tokens)
        if src is not None and n_held > own:
            self._backend.adopt(src.seq_id, slot.seq_id, own, n_held)
            self.n_used -= n_held - own
            own = n_held
        if min(n_pending, len(tokens)) > own:
            # Somebody is computing what comes next: one copy will do.
            self._backend.cut(slot.seq_id, own)
            self.n_used -= len(tokens) - own
            tokens = tokens[:own]
        if len(tokens) <= n_held:
            self._backend.cut(slot.seq_id, 0)
            return
        node = self.slots.tree.insert(tokens)
        self.slots.hold(slot, node)
        for covered in self.slots.withdraw_covered(node):
            self._backend.cut(covered.seq_id, 0)

    def compact(self) -> None:
        """Nothing: a hole in the ids costs nothing here."""

    # -- who shares what -----------------------------------------------------------------

    def _others_on(self, tokens: array[int]) -> tuple[Slot | None, int, int]:
        """(slot that holds most of these tokens, how many, how many somebody will hold)."""
        n_at = dict(self.slots.tree.match(tokens))
        best, n_best, n_pending = None, 0, 0
        for slot in self.slots.all:
            n = _n_common(slot, n_at)
            n_held = min(n, slot.n_held)
            if n_held > n_best:
                best, n_best = slot, n_held
            if not slot.is_idle:
                n_pending = max(n_pending, n)
        return best, n_best, n_pending

    def n_in_common(self, slot: Slot) -> int:
        """Tokens of a slot that another slot holds too: they are the same cells."""
        return _n_shared(slot, (other for other in self.slots.all if other is not slot))

    def _n_unique(self, slot: Slot, n_kept: int = 0) -> int:
        """Cells of a slot, beyond the first n_kept, that no other slot holds."""
        return max(0, slot.n_held - max(n_kept, self.n_in_common(slot)))

    def _union(self, slots: Iterable[Slot]) -> int:
        """Cells that these slots hold, each counted once."""
        n, before = 0, list[Slot]()
        for slot in slots:
            n += slot.n_held - _n_shared(slot, before)
            before.append(slot)
        return n

    def spans(self) -> list[Span]:
        """What the cells hold, run by run, in order of position."""
        holders: dict[TreeNode, list[Slot]] = {}
        spans: list[Span] = []
        for slot in self.slots.all:
            end = 0 if slot.node is None else slot.node.end
            if slot.n_held > end:
                spans.append((end, slot.n_held, [slot.seq_id]))
            for node in slot.node.path() if slot.node is not None else ():
                if slot.n_held > node.start:
                    holders.setdefault(node, []).append(slot)
        for node, slots in holders.items():
            spans += _spans_of(node, slots)
        return sorted(spans, key=lambda span: span[0])

    def recount(self) -> None:
        """Count the cells in use anew."""
        self.n_used = self._union(self.slots.all)

    def check_integrity(self) -> None:
        """Raise AssertionError when the count of cells is wrong."""
        n = self._union(self.slots.all)
        assert self.n_used == n, f"{self.n_used} cells counted, {n} held"
        assert n <= self._backend.n_cells, f"{n} cells held of {self._backend.n_cells}"


def _n_shared(slot: Slot, others: Iterable[Slot]) -> int:
    """Tokens of a slot that one of the others holds too."""
    if slot.node is None:
        return 0
    n_at = {node: node.end for node in slot.node.path()}
    most = max((min(_n_common(other, n_at), other.n_held) for other in others), default=0)
    return min(slot.n_held, most)


def _n_common(slot: Slot, n_at: dict[TreeNode, int]) -> int:
    """Tokens that the slot's path has in common with a path given by its nodes' matches."""
    if slot.node is not None:
        for node in slot.node.path():
            n = n_at.get(node)
            if n is not None:
                return n
    return 0


def _spans_of(node: TreeNode, slots: list[Slot]) -> list[Span]:
    """A node's run of cells; cut where some of its holders have not got further."""
    spans: list[Span] = []
    start = node.start
    for end in sorted({min(node.end, slot.n_held) for slot in slots}):
        spans.append((start, end, [s.seq_id for s in slots if s.n_held >= end]))
        start = end
    return spans
