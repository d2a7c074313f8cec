"""Who may have cells: admission, the room of a step, and who gives way.

Owns the policy, which is optimistic: a request is let in when its prompt fits, not when
all it may generate would; when cells run out, cached prefixes go first, then the youngest
sequence gives way and comes back later.  The oldest always goes on.  Engine thread only.
"""

from __future__ import annotations

import msgspec

from ponytail.engine.kv import KV
from ponytail.engine.scheduler import MIN_CHUNK
from ponytail.engine.sequence import Sequence
from ponytail.engine.slots import Kind
from ponytail.engine.waits import ForPrefix

# Cells that a sequence should find beyond its prompt when it is let in, and that there
# should be for each while it runs: fewer, and it would soon have to wait or give way.
HEADROOM = 32


class Room(msgspec.Struct, frozen=True):
    """Cells for the next step: `n_free` in all, each sequence up to `n_limit` tokens.

    With fewer than `n_least` not everybody can move on.
    """

    n_free: int
    n_least: int
    n_limit: int

    @property
    def is_short(self) -> bool:
        return self.n_free < self.n_least


class Budget:
    """The policy over one KV; at most `n_parallel` sequences at once."""

    def __init__(self, kv: KV, n_parallel: int) -> None:
        self._kv = kv
        self._backend = kv.backend
        self._n_parallel = n_parallel

    def can_admit(self, sequence: Sequence) -> bool:
        """Whether there is a slot, and cells for the sequence's tokens and a little more."""
        kv = self._kv
        if kv.n_active >= self._n_parallel:
            return False
        if not self._backend.is_shared or kv.n_active == 0:
            return True
        n_new = len(sequence.tokens) - self._n_shareable(sequence)
        n_new += min(HEADROOM, sequence.job.n_max - sequence.n_generated)
        n_cells = kv.elastic.n_max if kv.elastic.can_grow else self._backend.n_cells
        return kv.cells.n_live() + sum(map(_n_outstanding, kv.live())) + n_new <= n_cells

    def _n_shareable(self, sequence: Sequence) -> int:
        if sequence.is_private:
            return 0
        found = self._kv.tree.match(sequence.tokens)
        return next((n for node, n in found if node.counts[Kind.LIVE]), 0)

    def room(self, live: list[Sequence]) -> Room:
        """Find cells for the next step of `live`.

        More cells are asked for in time.  While they are made, cached prefixes are evicted only
        for what is needed at least, otherwise for as much as a full batch of prompts can use.
        """
        todo = [s.n_todo for s in live if s.waits_for is None]
        n_rows = todo.count(1)
        n_prompts = sum(todo) - n_rows
        n_least = n_rows + min(MIN_CHUNK, n_prompts)
        n_cells = self._backend.n_cells
        if not self._backend.is_shared:
            longest = max(len(s.tokens) for s in live)
            self._kv.elastic.want(min(longest + HEADROOM, self._kv.elastic.n_max))
            return Room(n_cells * len(live), n_least, n_cells)
        n_free = self._make_room(live, n_least, n_rows, n_prompts)
        return Room(n_free, n_least, n_cells)

    def _make_room(self, live: list[Sequence], n_least: int, n_rows: int, n_prompts: int) -> int:
        cells, elastic = self._kv.cells, self._kv.elastic
        n_free = cells.free()
        n_step = n_rows + min(self._backend.n_batch, n_prompts)
        if n_free < n_step + HEADROOM * len(live):
            elastic.want(min(cells.n_used + n_prompts + HEADROOM * len(live), elastic.n_max))
        if n_free < n_step:
            n_free = cells.make_room(n_least if elastic.is_resizing else n_step)
        return n_free

    def youngest(self, live: list[Sequence]) -> Sequence | None:
        """Who gives way: never the oldest, solo sequences last.  None when there is but one."""
        if len(live) < 2:
            return None
        oldest = min(s.order for s in live)
        others = [s for s in live if s.order != oldest]
        return max(others, key=lambda s: (not s.job.is_solo, s.order))


def _n_outstanding(sequence: Sequence) -> int:
    """Cells that a live sequence needs for the tokens it has."""
    wait = sequence.waits_for
    n_awaited = wait.n_tokens - sequence.n_computed if isinstance(wait, ForPrefix) else 0
    return sequence.n_todo - n_awaited
