"""The KV cache: what is held, for whom, and where a newcomer's prefix comes from.

Owns admission to the cells, release and preemption, and what is done with what is cached.
The cells themselves are SharedCells' or SplitCells', the way to a prefix is Filler's.  Must not
know scheduling, sampling or text.  Engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ponytail.engine.backend import Backend, State
from ponytail.engine.disk_tier import DiskTier
from ponytail.engine.elastic import Elastic
from ponytail.engine.filler import Filler
from ponytail.engine.prefix_tree import PrefixTree
from ponytail.engine.sequence import Sequence
from ponytail.engine.shared_cells import SharedCells
from ponytail.engine.slots import Kind, Slot, Slots, Tree, TreeNode
from ponytail.engine.split_cells import SplitCells
from ponytail.engine.stats import CacheCounters
from ponytail.engine.tiers import MIN_TOKENS, Tiers
from ponytail.engine.waits import ForLoad, ForPrefix
from ponytail.errors import DecodeError

_log = logging.getLogger("ponytail.engine")


class KV:
    """The cache over one backend.  `n_max_cells` bounds growth, in the sense of `n_cells`.

    Of `ram_bytes` an idle server keeps `idle_ram_bytes`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        n_max_cells: int = 0,
        ram_bytes: int = 0,
        idle_ram_bytes: int | None = None,
        disk: DiskTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = self._backend = backend
        self.tree: Tree = PrefixTree(len(Kind))
        self.slots = Slots(backend, self.tree)
        self.cells: SharedCells | SplitCells = (
            SharedCells(self.slots, self._demote)
            if backend.is_shared
            else SplitCells(self.slots, self._demote)
        )
        self.tiers = Tiers(self.tree, ram_bytes, disk, backend.can_cut)
        self.elastic = Elastic(backend, n_max_cells, self.cells.spans, clock)
        self.counters = CacheCounters()
        self._filler = Filler(
            backend, self.slots, self.cells, self.tiers, self.elastic, self.counters
        )
        self._idle_ram_bytes = ram_bytes if idle_ram_bytes is None else idle_ram_bytes
        self._n_admitted = 0
        self._offered: set[TreeNode] = set()

    @property
    def n_active(self) -> int:
        return len(self.slots)

    def live(self) -> list[Sequence]:
        """Sequences with cells, in ascending order of sequence id."""
        return self.slots.live()

    def seq_id(self, sequence: Sequence) -> int:
        return self.slots.of(sequence).seq_id

    # -- admission -----------------------------------------------------------------------

    def admit(self, sequence: Sequence, now: float) -> None:
        """Give the sequence a slot, with the longest prefix that is or will be held somewhere.

        A preempted one gets the cells back that it had, if they were kept.
        """
        if not sequence.order:
            self._n_admitted += 1
            sequence.order = self._n_admitted
        self.tiers.refresh()
        found = self._filler.find(sequence, now)
        source = found.entry if found.kind is Kind.IDLE else None
        slot = self.cells.pick(source, found.n_tokens)
        self.slots.bind(slot, sequence)
        is_in_place = slot is source and self._backend.cut(slot.seq_id, found.n_tokens)
        if not is_in_place:
            self._backend.cut(slot.seq_id, 0)
        if not sequence.is_private:
            # Without the last token: everybody computes that for its logits, so none share it.
            self.slots.announce(slot, len(sequence.tokens) - 1)
        if is_in_place:
            sequence.n_computed = found.n_tokens
            self._filler.count_hit(sequence, found.n_tokens, Kind.IDLE)
        else:
            self._filler.fill(sequence, now)

    def settle(self, sequence: Sequence, now: float) -> None:
        """Look again for a prefix if what the sequence waits for is over."""
        wait = sequence.waits_for
        if wait is None or not wait.is_over:
            return
        sequence.waits_for = None
        if isinstance(wait, ForLoad):
            self._filler.take_loaded(sequence, wait, now)
        self._filler.fill(sequence, now)

    # -- leaving -------------------------------------------------------------------------

    def release(self, sequence: Sequence, now: float) -> None:
        """Take the slot back; what was computed stays as a cached prefix."""
        slot = self.slots.of(sequence)
        if sequence.n_shifted or not sequence.n_computed:
            self.cells.discard(slot)
            return
        self.cells.keep(slot, sequence.tokens[: sequence.n_computed])
        if slot.node is not None:
            self.tree.touch(slot.node, now)

    def preempt(self, sequence: Sequence) -> None:
        """Take the slot from a sequence that will go on later; its state is kept where it fits."""
        slot = self.slots.of(sequence)
        sequence.n_preempted += 1
        sequence.waits_for = None
        self.counters.preemptions += 1
        if sequence.parked is None and sequence.n_computed >= MIN_TOKENS:
            sequence.parked, sequence.n_parked = self._park(slot), sequence.n_computed
        if sequence.parked is None:
            self.counters.recomputed += 1
        self.cells.discard(slot)
        sequence.n_computed = 0

    def _park(self, slot: Slot) -> State | None:
        n_bytes = self._backend.state_bytes(slot.seq_id)
        if not self.tiers.park(n_bytes):
            return None
        state = self._read_state(slot)
        if state is None:
            self.tiers.unpark(n_bytes)
        return state

    def _read_state(self, slot: Slot) -> State | None:
        """None when it cannot be had: a cache that is lost costs time, not a request."""
        try:
            return self._backend.read_state(slot.seq_id)
        except (DecodeError, MemoryError) as error:
            _log.warning("a cached prefix could not be read: %s", error)
            return None

    def forget_idle(self) -> None:
        """Empty all idle slots: after a broken step nobody knows what their cells hold."""
        for slot in self.slots.all:
            if slot.is_idle:
                self.cells.empty(slot)

    def cut_back(self, sequence: Sequence) -> None:
        """Drop cells beyond what counts as computed, after a failed batch."""
        slot = self.slots.of(sequence)
        if not self._backend.cut(slot.seq_id, sequence.n_computed):
            self._filler.lose(sequence, slot)

    def mark(self, sequence: Sequence) -> None:
        """Keep the state at this point of a prompt, where a prefix cannot be cut later."""
        node = self.tree.insert(sequence.tokens[: sequence.n_computed])
        self.tree.lock(node)
        self._store(self.slots.of(sequence), node)
        self.tree.unlock(node)

    def _demote(self, slot: Slot) -> None:
        """A cached prefix is about to leave the cells: keep it in RAM where that is worth it."""
        node = slot.node
        self.counters.evictions += 1
        if node is not None and not self.tiers.is_off:
            self._store(slot, node)

    def _store(self, slot: Slot, node: TreeNode) -> None:
        if self.tiers.wants(node, self._backend.state_bytes(slot.seq_id)):
            state = self._read_state(slot)
            if state is not None:
                self.tiers.put(node, state)

    def shift(self, sequence: Sequence, n_keep: int, n_tokens: int) -> bool:
        """Drop about n_tokens behind the first n_keep; False when there is no room to do it."""
        slot = self.slots.of(sequence)
        start = max(n_keep, self.cells.n_in_common(slot))
        if 4 * start > 3 * sequence.n_computed:
            # Others hold nearly all of it too, and what is shared cannot be moved.
            if not self._own(sequence, slot):
                return False
            start = n_keep
        n_tokens = min(n_tokens, (sequence.n_computed - start) // 2)
        self._backend.shift(slot.seq_id, start, n_tokens)
        self.cells.added(-n_tokens)
        is_alone = slot.node is None
        self.slots.withdraw(slot)
        del sequence.tokens[start : start + n_tokens]
        sequence.n_computed -= n_tokens
        sequence.n_shifted += n_tokens
        if not is_alone:
            # What comes after was computed in other places: only this much is what it seems.
            self.slots.announce(slot, start)
        return True

    def _own(self, sequence: Sequence, slot: Slot) -> bool:
        """Give a sequence cells of its own for what it shares; it is out of the tree then."""
        n_shared = self.cells.n_in_common(slot)
        state = self._read_state(slot) if self.cells.make_room(n_shared) >= n_shared else None
        if state is None:
            return False
        self.slots.withdraw(slot)
        self._backend.write_state(slot.seq_id, state)
        self.cells.added(n_shared)
        return True

    def compact(self) -> None:
        """Keep live sequences on ids side by side, where that matters."""
        self.cells.compact()

    # -- while nothing runs --------------------------------------------------------------

    def save_one(self) -> bool:
        """Have one prefix written to disk that is not there; False when none can be now.

        The latest used first, each once until there is work again: a folder that is too small
        for all would be written for ever.
        """
        self.tiers.refresh()
        if not self.tiers.can_save:
            return False
        held = [*self.tree.entries(Kind.IDLE).items(), *self.tree.entries(Kind.RAM).items()]
        for entry, node in sorted(held, key=lambda item: -item[1].used_at):
            if node in self._offered or not self.tiers.is_unsaved(node):
                continue
            self._offered.add(node)
            state = self._read_state(entry) if isinstance(entry, Slot) else entry.state
            if state is not None and self.tiers.save(node, state):
                return True
        return False

    def resume_work(self) -> None:
        """There is work: what is cached will be other prefixes than were offered to the disk."""
        self._offered.clear()
        self.elastic.stop_shrinking()

    @property
    def can_shrink(self) -> bool:
        """There is more memory in use than at the start, and nobody needs it."""
        has_more = self._backend.n_cells > self.elastic.n_start
        return not len(self.slots) and (has_more or self.tiers.n_bytes > self._idle_ram_bytes)

    def shrink(self) -> None:
        """Begin to go back to the memory of the start; what does not fit goes to RAM, or goes."""
        if not self.can_shrink or self.elastic.is_resizing:
            return
        if self._backend.n_cells > self.elastic.n_start:
            self.cells.fit(self.elastic.n_start)
            self.elastic.shrink()
        self.tiers.trim(self._idle_ram_bytes)

    def reset(self) -> None:
        """Forget all that is in the cells, and count anew."""
        self.forget_idle()
        self.cells.recount()

    def close(self, timeout_s: float) -> None:
        """Write what is cached to disk, as far as the time goes, and end all threads."""
        self.elastic.close()
        deadline = time.monotonic() + timeout_s
        while self.tiers.has_disk and time.monotonic() < deadline:
            if not self.save_one() and not self.tiers.is_writing:
                break
            self.tiers.flush(max(0.0, deadline - time.monotonic()))
        self.tiers.close(max(0.0, deadline - time.monotonic()))

    @property
    def _n_capacity(self) -> int:
        n_max = self.elastic.n_max
        return n_max if self._backend.is_shared else n_max * self._backend.n_seq

    # -- display and proof ---------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What is held where, for display; engine thread."""
        cells = self.cells
        n_held = sum(slot.n_held for slot in self.slots.all)
        n_live = cells.n_live()
        return {
            "layout": "shared" if self._backend.is_shared else "split",
            "cells": {
                "capacity": self._n_capacity,
                "now": cells.n_cells,
                "used": cells.n_used,
                "free": cells.free(),
                "running": n_live,
                "cached": cells.n_used - n_live,
                "saved_by_sharing": n_held - cells.n_used,
            },
            "tree": {
                "nodes": self.tree.n_nodes,
                "running": len(self.tree.entries(Kind.LIVE)),
                "cached": len(self.tree.entries(Kind.IDLE)),
            },
            "tiers": self.tiers.facts(),
            "counters": {
                **msgspec.to_builtins(self.counters),
                "ram_evictions": self.tiers.n_evicted,
                "growths": self.elastic.n_growths,
                "shrinks": self.elastic.n_shrinks,
            },
        }

    def check_integrity(self) -> None:
        """Raise AssertionError when the records contradict themselves or one another."""
        self.tree.check_integrity()
        self.slots.check_integrity()
        self.cells.check_integrity()
        self.tiers.check_integrity()
        for sequence in self.live():
            wait = sequence.waits_for
            if isinstance(wait, ForPrefix):
                assert wait.owner.order < sequence.order, "waits for a later sequence"
