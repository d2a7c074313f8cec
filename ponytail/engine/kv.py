"""What is in the KV cells: which sequence id holds which tokens, and for whom.

Owns the slots (one per sequence id of the backend), prefix reuse between them and
the rule that active slots lie side by side.  Must not know scheduling, sampling or
text.  Engine thread only.

A slot without an owner keeps the tokens it computed last: that is the prefix cache.
Active slots must have consecutive ids because libllama cuts a batch into one more
micro-batch at every hole (16 rows: 34 ms in order, 49 ms with one hole).
"""

from __future__ import annotations

from array import array

from ponytail.engine.backend import Backend
from ponytail.engine.sequence import Sequence

# A shorter common prefix is computed as fast as it is copied.
MIN_FORK = 16
# Cells moved per step by `compact`: about 80 ms at the measured 5 us a token.
MAX_MOVED_TOKENS = 16_384
_COMPARE_BLOCK = 256


class Slot:
    """One sequence id.  `tokens` is what an idle slot has in its cells."""

    __slots__ = ("owner", "seq_id", "tokens", "used_at")

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.tokens = array("i")
        self.owner: Sequence | None = None
        self.used_at = 0.0


class KV:
    """Slots over one backend.  `slots[i]` is sequence id i, always."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.slots = [Slot(i) for i in range(backend.n_seq)]
        self._slot_of: dict[int, Slot] = {}
        self._n_admitted = 0
        self._is_scattered = False

    @property
    def n_active(self) -> int:
        return len(self._slot_of)

    @property
    def has_room(self) -> bool:
        return len(self._slot_of) < len(self.slots)

    def live(self) -> list[Sequence]:
        """Owners in ascending order of sequence id."""
        return [slot.owner for slot in self.slots if slot.owner is not None]

    def holds(self, sequence: Sequence) -> bool:
        return id(sequence) in self._slot_of

    def seq_id(self, sequence: Sequence) -> int:
        return self._slot_of[id(sequence)].seq_id

    # -- admission and release -----------------------------------------------------------

    def admit(self, sequence: Sequence) -> None:
        """Give the sequence a slot, with the longest prefix that some slot has or will have."""
        self._n_admitted += 1
        sequence.order = self._n_admitted
        if sequence.job.is_solo:
            self._take(self._spare_slot(None), sequence)
            self._start_at(sequence, 0)
            return
        idle, n_idle = self._best_idle(sequence)
        source, n_source = self._best_live(sequence)
        if idle is not None and n_idle >= n_source and self._may_take(idle, n_idle):
            self._take(idle, sequence)
            self._start_at(sequence, n_idle)
            return
        target = self._spare_slot(idle)
        if idle is not None and n_idle > n_source and target is not idle:
            self._take(target, sequence)
            self._fork(idle.seq_id, sequence, n_idle)
            return
        self._take(target, sequence)
        self._start_at(sequence, 0)
        if source is not None:
            sequence.source, sequence.n_awaited = source, n_source
            self.resolve(sequence)

    def resolve(self, sequence: Sequence) -> None:
        """Copy the awaited prefix if it is computed by now; look again if its owner is gone."""
        source = sequence.source
        if source is None:
            return
        if source.is_ended:
            self._look_again(sequence)
        elif source.n_computed >= sequence.n_awaited:
            sequence.source = None
            self._fork(self.seq_id(source), sequence, sequence.n_awaited)

    def _look_again(self, sequence: Sequence) -> None:
        sequence.source = None
        idle, n_idle = self._best_idle(sequence)
        source, n_source = self._best_live(sequence)
        if source is not None and n_source > n_idle:
            sequence.source, sequence.n_awaited = source, n_source
            self.resolve(sequence)
        elif idle is not None and self._backend.can_cut:
            self._fork(idle.seq_id, sequence, n_idle)

    def release(self, sequence: Sequence, now: float) -> None:
        """Take the slot back; its computed tokens stay as a cached prefix."""
        slot = self._slot_of.pop(id(sequence))
        slot.owner = None
        slot.tokens = sequence.tokens[: sequence.n_computed]
        slot.used_at = now
        self._is_scattered = True

    def forget_idle(self) -> None:
        """Empty all idle slots: after a broken step nobody knows what their cells hold."""
        for slot in self.slots:
            if slot.owner is None:
                self._backend.cut(slot.seq_id, 0)
                slot.tokens = array("i")

    def cut_back(self, sequence: Sequence) -> None:
        """Drop cells beyond what counts as computed, after a failed batch."""
        if not self._backend.cut(self.seq_id(sequence), sequence.n_computed):
            sequence.n_computed = 0

    # -- choosing a slot -----------------------------------------------------------------

    def _best_idle(self, sequence: Sequence) -> tuple[Slot | None, int]:
        best: Slot | None = None
        n_best = MIN_FORK - 1
        for slot in self.slots:
            if slot.owner is None and slot.tokens:
                n = self._usable(slot.tokens, sequence)
                # On a tie the slot with less to lose.
                if n > n_best or (best and n == n_best and len(slot.tokens) < len(best.tokens)):
                    best, n_best = slot, n
        return best, n_best if best else 0

    def _best_live(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        best: Sequence | None = None
        n_best = MIN_FORK - 1
        if not self._backend.can_cut:
            return None, 0
        for slot in self.slots:
            owner = slot.owner
            # Only on earlier ones, so that nobody waits in a circle.
            if owner is not None and owner.order < sequence.order:
                n = self._usable(owner.tokens, sequence)
                if n > n_best:
                    best, n_best = owner, n
        return best, n_best if best else 0

    def _usable(self, tokens: array[int], sequence: Sequence) -> int:
        """Common tokens; the last of the sequence is always computed, for its logits."""
        n = min(common_prefix(tokens, sequence.tokens), len(sequence.tokens) - 1)
        return n if self._backend.can_cut or n == len(tokens) else 0

    def _may_take(self, slot: Slot, n_common: int) -> bool:
        """In place, unless that throws a long cached prefix away while another slot is spare."""
        if not self._backend.can_cut:
            return True
        return 2 * n_common >= len(slot.tokens) or self._spare_slot(slot) is slot

    def _spare_slot(self, keep: Slot | None) -> Slot:
        """The idle slot that is cheapest to lose; `keep` only if it is the last."""
        idle = [s for s in self.slots if s.owner is None]
        others = [s for s in idle if s is not keep] or idle
        low, high = self._active_range()
        return min(
            others,
            key=lambda s: (
                len(s.tokens) > 0,
                s.used_at,
                not low - 1 <= s.seq_id <= high + 1,
                s.seq_id,
            ),
        )

    def _active_range(self) -> tuple[int, int]:
        ids = [slot.seq_id for slot in self._slot_of.values()]
        return (min(ids), max(ids)) if ids else (0, 0)

    # -- cells ---------------------------------------------------------------------------

    def _take(self, slot: Slot, sequence: Sequence) -> None:
        slot.owner = sequence
        self._slot_of[id(sequence)] = slot
        self._is_scattered = True

    def _start_at(self, sequence: Sequence, n_tokens: int) -> None:
        if not self._backend.cut(self.seq_id(sequence), n_tokens):
            n_tokens = 0
        sequence.n_computed = sequence.n_cached = n_tokens

    def _fork(self, src: int, sequence: Sequence, n_tokens: int) -> None:
        self._backend.fork(src, [self.seq_id(sequence)], n_tokens)
        sequence.n_computed = sequence.n_cached = n_tokens

    def compact(self) -> None:
        """Move active sequences side by side; a bounded number of cells per call."""
        if not self._is_scattered:
            return
        n_moved = 0
        for src, dst in self._moves():
            if n_moved > MAX_MOVED_TOKENS:
                return
            n_moved += self._exchange(self.slots[src], self.slots[dst])
        self._is_scattered = False

    def _moves(self) -> list[tuple[int, int]]:
        """(active outside, idle inside) of the window of ids that needs the fewest moves."""
        active = sorted(slot.seq_id for slot in self._slot_of.values())
        k = len(active)
        if k == 0 or active[-1] - active[0] + 1 == k:
            return []
        starts = range(len(self.slots) - k + 1)
        start = max(starts, key=lambda w: sum(w <= i < w + k for i in active))
        outside = [i for i in active if not start <= i < start + k]
        inside = [i for i in range(start, start + k) if self.slots[i].owner is None]
        return list(zip(outside, inside, strict=True))

    def _exchange(self, a: Slot, b: Slot) -> int:
        """Swap two slots' contents; the number of tokens moved."""
        n_a = a.owner.n_computed if a.owner else len(a.tokens)
        n_b = b.owner.n_computed if b.owner else len(b.tokens)
        self._backend.swap(a.seq_id, b.seq_id)
        a.owner, b.owner = b.owner, a.owner
        a.tokens, b.tokens = b.tokens, a.tokens
        a.used_at, b.used_at = b.used_at, a.used_at
        for slot in (a, b):
            if slot.owner is not None:
                self._slot_of[id(slot.owner)] = slot
        return n_a + n_b

    # -- proof ---------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError when the records contradict themselves."""
        owners = [s for s in self.slots if s.owner is not None]
        assert len(owners) == len(self._slot_of), "owners and index differ"
        for slot in owners:
            owner = slot.owner
            assert owner is not None
            assert self._slot_of[id(owner)] is slot, f"slot {slot.seq_id} is indexed elsewhere"
            assert not owner.is_ended, f"slot {slot.seq_id} belongs to an ended sequence"
            assert 0 <= owner.n_computed <= len(owner.tokens), "computed more than there is"
            assert owner.n_computed <= self._backend.n_cells, "more tokens than cells"
            if owner.source is not None:
                assert owner.source.order < owner.order, "waits for a later sequence"


def common_prefix(a: array[int], b: array[int]) -> int:
    """Number of leading tokens that are equal."""
    n = min(len(a), len(b))
    i = 0
    while i < n and a[i : i + _COMPARE_BLOCK] == b[i : i + _COMPARE_BLOCK]:
        i += _COMPARE_BLOCK
    i = min(i, n)
    while i < n and a[i] == b[i]:
        i += 1
    return i
