"""The split layout: each sequence id has a stream of cells of its own.

Owns which slot a newcomer gets and the rule that live slots lie side by side: libllama
cuts a batch into one more micro-batch at every hole in the ids (16 rows: 34 ms in order,
49 ms with one hole).  Sharing a prefix copies it.  Must not know tiers, scheduling or
time.  Engine thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from ponytail.engine.backend import Span
from ponytail.engine.sequence import Sequence
from ponytail.engine.slots import Kind, Slot, Slots

# Cells moved per step by `compact`: about 80 ms at the measured 5 us a token.
MAX_MOVED_TOKENS = 16_384


class SplitCells:
    """`on_evict(slot)` is called before a cached prefix leaves the cells."""

    # A shorter common prefix is computed as fast as it is copied.
    min_prefix = 16

    def __init__(self, slots: Slots, on_evict: Callable[[Slot], None]) -> None:
        self.slots = slots
        self._backend = slots.backend
        self._on_evict = on_evict
        self._is_scattered = False

    # -- room ----------------------------------------------------------------------------

    @property
    def n_cells(self) -> int:
        """Cells there are now, of all sequences together."""
        return self._backend.n_cells * self._backend.n_seq

    @property
    def n_used(self) -> int:
        return sum(slot.n_held for slot in self.slots.all)

    def limit_of(self, sequence: Sequence) -> int:
        """Tokens the sequence can hold before there must be more cells."""
        return self._backend.n_cells

    def free(self) -> int:
        """Cells that nothing holds."""
        return self.n_cells - self.n_used

    def make_room(self, n: int) -> int:
        """Nothing to evict for: nobody takes cells from another's stream."""
        return self.n_cells

    def n_live(self) -> int:
        """Cells that running sequences hold."""
        return sum(slot.n_held for slot in self.slots.owned())

    # -- slots ---------------------------------------------------------------------------

    def pick(self, source: Slot | None, n_tokens: int) -> Slot:
        """The slot of a newcomer that starts with n_tokens of the idle slot `source`.

        It is `source` itself, out of the tree and with its cells, where little is lost by that.
        """
        self._is_scattered = True
        slot = self._spare(source)
        if source is not None and (slot is source or self._loses_little(source, n_tokens)):
            if n_tokens < source.n_held:
                self._on_evict(source)
            self.slots.withdraw(source)
            return source
        if not slot.is_empty:
            self._on_evict(slot)
            self.empty(slot)
        return slot

    def _loses_little(self, source: Slot, n_tokens: int) -> bool:
        return not self._backend.can_cut or 2 * n_tokens >= source.n_held

    def _spare(self, keep: Slot | None) -> Slot:
        """The idle slot that is cheapest to lose, near the live ones; `keep` only as the last."""
        idle = [slot for slot in self.slots.all if slot.is_idle]
        others = [slot for slot in idle if slot is not keep] or idle
        ids = [slot.seq_id for slot in self.slots.owned()] or [0]
        low, high = min(ids) - 1, max(ids) + 1
        return min(
            others,
            key=lambda s: (not s.is_empty, s.used_at, not low <= s.seq_id <= high, s.seq_id),
        )

    def give(self, src: Slot, dst: Slot, n_tokens: int) -> None:
        """The live slot dst gets a copy of the first n_tokens of src and holds nothing else."""
        self._backend.fork(src.seq_id, [dst.seq_id], n_tokens)

    def added(self, n_tokens: int) -> None:
        """That many cells were filled: nothing to count."""

    def empty(self, slot: Slot) -> None:
        """Give up an idle slot's cells and its place in the tree."""
        self.slots.withdraw(slot)
        self._backend.cut(slot.seq_id, 0)

    def lost(self, slot: Slot) -> None:
        """A live slot's cells are gone: nothing to count."""

    def fit(self, n_cells: int) -> None:
        """Evict what does not fit into streams of fewer cells."""
        for slot in self.slots.all:
            if slot.is_idle and slot.n_held > n_cells:
                self._on_evict(slot)
                self.empty(slot)

    def discard(self, slot: Slot) -> None:
        """Give up a live slot and its cells."""
        self._is_scattered = True
        self.slots.unbind(slot)
        self._backend.cut(slot.seq_id, 0)

    def n_in_common(self, slot: Slot) -> int:
        """None: each stream is one sequence's."""
        return 0

    def keep(self, slot: Slot, tokens: array[int]) -> None:
        """A live slot that holds `tokens` becomes a cached prefix, unless another holds it all."""
        self._is_scattered = True
        self.slots.unbind(slot)
        if not len(tokens) or self._is_held(tokens):
            self._backend.cut(slot.seq_id, 0)
            return
        node = self.slots.tree.insert(tokens)
        self.slots.hold(slot, node)
        # What cannot be cut back is worth keeping at each of its lengths.
        for covered in self.slots.withdraw_covered(node) if self._backend.can_cut else ():
            self._backend.cut(covered.seq_id, 0)

    def _is_held(self, tokens: array[int]) -> bool:
        found = self.slots.tree.match(tokens)
        if not found or found[0][1] < len(tokens):
            return False
        node = found[0][0]
        if not self._backend.can_cut:
            return node.end == len(tokens) and Kind.IDLE in node.entries.values()
        return next(node.below(Kind.IDLE), None) is not None

    # -- side by side --------------------------------------------------------------------

    def compact(self) -> None:
        """Move live sequences side by side; a bounded number of cells per call."""
        if not self._is_scattered:
            return
        n_moved = 0
        for src, dst in self._moves():
            if n_moved > MAX_MOVED_TOKENS:
                return
            a, b = self.slots.all[src], self.slots.all[dst]
            n_moved += a.n_held + b.n_held
            self._backend.swap(src, dst)
            self.slots.exchange(a, b)
        self._is_scattered = False

    def _moves(self) -> list[tuple[int, int]]:
        """(live outside, idle inside) of the window of ids that needs the fewest moves."""
        live = sorted(slot.seq_id for slot in self.slots.owned())
        k = len(live)
        if k == 0 or live[-1] - live[0] + 1 == k:
            return []
        starts = range(len(self.slots.all) - k + 1)
        start = max(starts, key=lambda w: sum(w <= i < w + k for i in live))
        outside = [i for i in live if not start <= i < start + k]
        inside = [i for i in range(start, start + k) if self.slots.all[i].is_idle]
        return list(zip(outside, inside, strict=True))

    # -- moving and proof ----------------------------------------------------------------

    def spans(self) -> list[Span]:
        """What the cells hold, stream by stream."""
        return [(0, slot.n_held, [slot.seq_id]) for slot in self.slots.all if slot.n_held]

    def recount(self) -> None:
        """Nothing is counted here."""

    def check_integrity(self) -> None:
        """Raise AssertionError when a stream holds more than its cells."""
        for slot in self.slots.all:
            assert slot.n_held <= self._backend.n_cells, f"slot {slot.seq_id} is over its cells"
