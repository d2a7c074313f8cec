"""Prefixes outside the cells: in host RAM, and on disk.

Owns the RAM budget, what is in it, and the way between RAM and disk.  States are opaque
bytes.  Must not know cells, slots or scheduling.  Engine thread only; the disk's reading
and writing happen in threads of its own.

A prefix that leaves the cells goes to RAM, one that leaves RAM goes to disk, one that is
loaded from disk comes to RAM.  Preempted sequences keep their states in the same budget,
and come first in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ponytail.engine.backend import State
from ponytail.engine.disk_tier import DiskEntry, DiskTier, Load
from ponytail.engine.sequence import Sequence
from ponytail.engine.slots import Kind, Tree, TreeNode

_log = logging.getLogger("ponytail.engine")

# A shorter prefix is computed about as fast as it is fetched.
MIN_TOKENS = 32


class RamEntry:
    """The state of one prefix; `is_from_disk` until somebody has used it."""

    __slots__ = ("is_from_disk", "state")

    def __init__(self, state: State, is_from_disk: bool) -> None:
        self.state = state
        self.is_from_disk = is_from_disk

    @property
    def n_bytes(self) -> int:
        return memoryview(self.state).nbytes


class Tiers:
    """`max_bytes` of host RAM, 0 for none, and a disk tier if there is one.

    With `can_cut` a prefix also serves for its beginnings; without, only as it is.
    """

    def __init__(self, tree: Tree, max_bytes: int, disk: DiskTier | None, can_cut: bool) -> None:
        self._tree = tree
        self._disk = disk
        self._can_cut = can_cut
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.n_parked_bytes = 0
        self.n_evicted = 0
        if disk is not None:
            self.refresh()

    @property
    def is_off(self) -> bool:
        return self.max_bytes == 0

    def listen(self, on_change: Callable[[], None]) -> None:
        """Have on_change called, from any thread, when a read or a write is over."""
        if self._disk is not None:
            self._disk.on_change = on_change

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    @property
    def is_writing(self) -> bool:
        """The disk has not yet written all it was given."""
        return self._disk is not None and self._disk.is_writing

    # -- RAM -----------------------------------------------------------------------------

    def wants(self, node: TreeNode, n_bytes: int) -> bool:
        """Whether a prefix of that size is worth a place and gets one; makes room for it."""
        if node.end < MIN_TOKENS or self._is_held(node, Kind.RAM):
            return False
        return self._make_room(n_bytes)

    def put(self, node: TreeNode, state: State, *, is_from_disk: bool = False) -> None:
        """Hold a prefix whose place `wants` has made."""
        entry = RamEntry(state, is_from_disk)
        self.n_bytes += entry.n_bytes
        self._tree.attach(node, entry, Kind.RAM)
        if self._can_cut:
            for covered in node.above(Kind.RAM):
                self.drop(covered)

    def park(self, n_bytes: int) -> bool:
        """Take room for the state of a preempted sequence; False when there is none."""
        if not self._make_room(n_bytes):
            return False
        self.n_parked_bytes += n_bytes
        return True

    def unpark(self, n_bytes: int) -> None:
        """Give that room back."""
        self.n_parked_bytes -= n_bytes

    def release(self, sequence: Sequence) -> None:
        """What was kept of a preempted sequence is in the cells again, or not needed."""
        if sequence.parked is not None:
            self.unpark(memoryview(sequence.parked).nbytes)
            sequence.parked = None

    def _make_room(self, n_bytes: int) -> bool:
        if n_bytes > self.max_bytes - self.n_parked_bytes:
            return False
        self.trim(self.max_bytes - self.n_parked_bytes - n_bytes)
        return True

    def trim(self, max_bytes: int) -> None:
        """Give up the least recently used prefixes until the rest takes at most max_bytes."""
        while self.n_bytes > max_bytes:
            node = self._tree.coldest(Kind.RAM)
            assert node is not None, "bytes without entries"
            self._evict(node)

    def _evict(self, node: TreeNode) -> None:
        for entry in node.at(Kind.RAM):
            self.save(node, entry.state)
            self.n_evicted += 1
            self.drop(entry)

    def drop(self, entry: RamEntry) -> None:
        """Forget a prefix that is in RAM, if it still is."""
        if entry not in self._tree.entries(Kind.RAM):
            return
        self.n_bytes -= entry.n_bytes
        self._tree.detach(entry, Kind.RAM)

    def _is_held(self, node: TreeNode, kind: Kind) -> bool:
        return node.counts[kind] > 0 if self._can_cut else kind in node.entries.values()

    # -- disk ----------------------------------------------------------------------------

    def save(self, node: TreeNode, state: State) -> bool:
        """Have a prefix written to disk; False when it is there, or cannot be taken now."""
        if self._disk is None or not self.is_unsaved(node):
            return False
        return self._disk.save(self._tree.tokens_to(node), state)

    @property
    def can_save(self) -> bool:
        """The disk would take one more prefix now."""
        return self._disk is not None and not self._disk.is_busy

    def is_unsaved(self, node: TreeNode) -> bool:
        """Whether the disk lacks this prefix, and would take it."""
        return (
            self._disk is not None and node.end >= MIN_TOKENS and not self._is_held(node, Kind.DISK)
        )

    def load(self, entry: DiskEntry) -> Load | None:
        """Begin to read a prefix from disk."""
        return None if self._disk is None else self._disk.load(entry)

    def forget(self, entry: DiskEntry) -> None:
        """A prefix could not be read: do not look for it again."""
        if entry in self._tree.entries(Kind.DISK):
            self._tree.detach(entry, Kind.DISK)

    def refresh(self) -> None:
        """Take note of what was written to the disk's folder and removed from it."""
        if self._disk is None:
            return
        added, removed = self._disk.refresh()
        for entry in removed:
            self.forget(entry)
        for entry in added:
            node = self._tree.insert(entry.tokens)
            self._tree.attach(node, entry, Kind.DISK)

    def flush(self, timeout_s: float) -> bool:
        """Wait for what is being written."""
        return self._disk is None or self._disk.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for what is being written, then end the disk's threads."""
        if self._disk is not None:
            self._disk.close(timeout_s)

    def check_integrity(self) -> None:
        """Raise AssertionError when the bytes are counted wrong."""
        entries = self._tree.entries(Kind.RAM)
        n_bytes = sum(entry.n_bytes for entry in entries)
        assert self.n_bytes == n_bytes, f"{self.n_bytes} bytes counted, {n_bytes} held"
        assert self.n_bytes + self.n_parked_bytes <= self.max_bytes, "over the RAM budget"

    def facts(self) -> dict[str, Any]:
        """What is where, for display."""
        disk = self._disk
        return {
            "ram_bytes": self.n_bytes,
            "preempted_bytes": self.n_parked_bytes,
            "ram_max_bytes": self.max_bytes,
            "ram_prefixes": len(self._tree.entries(Kind.RAM)),
            "disk_bytes": 0 if disk is None else disk.n_bytes,
            "disk_prefixes": len(self._tree.entries(Kind.DISK)),
        }
