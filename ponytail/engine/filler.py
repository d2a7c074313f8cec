"""Gives a live sequence its prefix: shared, copied, restored, or waited for.

Owns the way from what the search found to cells that hold it.  Must not know who gets a
slot, or when.  Engine thread only.
"""

from __future__ import annotations

import logging
from typing import Any, assert_never

from ponytail.engine.backend import Backend
from ponytail.engine.elastic import Elastic
from ponytail.engine.prefix_search import NOTHING, Found, PrefixSearch
from ponytail.engine.prefix_tree import common_prefix
from ponytail.engine.sequence import Sequence
from ponytail.engine.shared_cells import SharedCells
from ponytail.engine.slots import Kind, Slot, Slots, Tree
from ponytail.engine.split_cells import SplitCells
from ponytail.engine.stats import CacheCounters
from ponytail.engine.tiers import RamEntry, Tiers
from ponytail.engine.waits import ForCells, ForLoad, ForPrefix
from ponytail.errors import DecodeError

_log = logging.getLogger("ponytail.engine")


class Filler:
    """Over the parts of one KV."""

    def __init__(
        self,
        backend: Backend,
        slots: Slots,
        cells: SharedCells | SplitCells,
        tiers: Tiers,
        elastic: Elastic,
        counters: CacheCounters,
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._tree: Tree = slots.tree
        self._cells = cells
        self._tiers = tiers
        self._elastic = elastic
        self._counters = counters
        self._search = PrefixSearch(
            slots.tree,
            can_cut=backend.can_cut,
            is_shared=backend.is_shared,
            min_prefix=cells.min_prefix,
        )

    def find(self, sequence: Sequence, now: float) -> Found:
        """Where the sequence's longest prefix is."""
        return NOTHING if self.is_alone(sequence) else self._search.find(sequence, now)

    def is_alone(self, sequence: Sequence) -> bool:
        """Takes nothing from others; where nothing is shared, also what comes back whole."""
        is_whole = sequence.parked is not None and not self._backend.is_shared
        return sequence.is_private or is_whole

    def fill(self, sequence: Sequence, now: float) -> None:
        """Take the longest prefix there is, or wait for one that is about to be."""
        if not self.is_alone(sequence):
            while sequence.waits_for is None and self._take(sequence, now):
                pass
        if sequence.waits_for is None and sequence.parked is not None:
            self._take_parked(sequence, now)

    def _take(self, sequence: Sequence, now: float) -> bool:
        """One step towards the longest prefix; False when there is nothing more to take."""
        found = self._search.find(sequence, now)
        entry = found.entry
        if found.n_tokens <= sequence.n_computed:
            return False
        match found.kind:
            case Kind.IDLE | Kind.LIVE:
                owner = entry.owner
                if owner is not None and owner.n_computed < found.n_tokens:
                    sequence.waits_for = ForPrefix(owner, found.n_tokens)
                    if not owner.n_computed < owner.pause_at < found.n_tokens:
                        owner.pause_at = found.n_tokens
                    return False
                self._cells.give(entry, self._slots.of(sequence), found.n_tokens)
                sequence.n_computed = found.n_tokens
                self.count_hit(sequence, found.n_tokens, found.kind)
                return True
            case Kind.RAM:
                if sequence.parked is None:
                    return self._take_from_ram(sequence, entry, found.n_tokens)
            case Kind.DISK:
                load = None if sequence.parked is not None else self._tiers.load(entry)
                if load is not None:
                    sequence.waits_for = ForLoad(load, entry)
            case _ as never:
                assert_never(never)
        return False

    def _take_parked(self, sequence: Sequence, now: float) -> None:
        """The cells that a preempted sequence had."""
        state, n_state = sequence.parked, sequence.n_parked
        self._tiers.release(sequence)
        if n_state > sequence.n_computed and not self._restore(sequence, state, n_state):
            self.fill(sequence, now)

    def _take_from_ram(self, sequence: Sequence, entry: RamEntry, n_tokens: int) -> bool:
        n_state = self._tree.entries(Kind.RAM)[entry].end
        n_wanted = n_state if not self._backend.is_shared else self._cells.n_used + n_state
        if n_state > self._backend.n_cells and self._elastic.can_grow:
            self._elastic.want(n_wanted)
            sequence.waits_for = ForCells(self._backend, self._elastic, n_state)
            return False
        if self._backend.is_shared and self._cells.make_room(n_state) < n_state:
            return False
        if self._restore(sequence, entry.state, n_state, n_tokens):
            self.count_hit(sequence, n_tokens, Kind.DISK if entry.is_from_disk else Kind.RAM)
            entry.is_from_disk = False
            return False
        # Not found again: what does not work once would be tried for ever.
        self._tiers.drop(entry)
        return True

    def _restore(
        self, sequence: Sequence, state: Any, n_state: int, n_tokens: int | None = None
    ) -> bool:
        """Write a state of n_state tokens behind what the sequence shares; keep n_tokens of it.

        False when that fails; the sequence may then have lost what it shared, too.
        """
        slot = self._slots.of(sequence)
        n_tokens = n_state if n_tokens is None else n_tokens
        keep = sequence.n_computed if self._backend.is_shared else 0
        if self._backend.is_shared and self._cells.make_room(n_state) < n_state:
            return False
        try:
            self._backend.write_state(slot.seq_id, state, keep)
        except DecodeError as error:
            # Nothing is there now, the shared part neither.
            _log.info("a kept prefix is computed again: %s", error)
            self.lose(sequence, slot)
            return False
        if n_tokens < n_state and not self._backend.cut(slot.seq_id, n_tokens):
            self.lose(sequence, slot)
            return False
        self._cells.added(n_tokens - keep)
        sequence.n_computed = n_tokens
        return True

    def lose(self, sequence: Sequence, slot: Slot) -> None:
        """The slot is empty in fact: the sequence starts from nothing."""
        self._cells.lost(slot)
        self._backend.cut(slot.seq_id, 0)
        sequence.n_computed = 0

    def take_loaded(self, sequence: Sequence, wait: ForLoad, now: float) -> None:
        """Put what was read from disk into RAM, where the search finds it, or into the cells."""
        node = self._tree.entries(Kind.DISK).get(wait.entry)
        state = wait.load.state
        if state is None:
            self._tiers.forget(wait.entry)
        elif node is not None and self._tiers.wants(node, memoryview(state).nbytes):
            self._tree.touch(node, now)
            self._tiers.put(node, state, is_from_disk=True)
        else:
            n_state = len(wait.entry.tokens)
            n = min(common_prefix(wait.entry.tokens, sequence.tokens), len(sequence.tokens) - 1)
            is_usable = n == n_state or self._backend.can_cut
            is_usable = is_usable and n_state <= self._backend.n_cells
            if is_usable and self._restore(sequence, state, n_state, n):
                self.count_hit(sequence, n, Kind.DISK)

    def count_hit(self, sequence: Sequence, n_tokens: int, kind: Kind) -> None:
        """A client is told of prefixes it did not pay for, not of its own cells coming back."""
        if sequence.n_preempted:
            return
        n_more, sequence.n_cached = n_tokens - sequence.n_cached, n_tokens
        match kind:
            case Kind.IDLE | Kind.LIVE:
                self._counters.hit_cells_tokens += n_more
            case Kind.RAM:
                self._counters.hit_ram_tokens += n_more
            case Kind.DISK:
                self._counters.hit_disk_tokens += n_more
            case _ as never:
                assert_never(never)
