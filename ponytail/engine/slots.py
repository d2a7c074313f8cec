"""The backend's sequence ids, who uses them, and which prefix each one holds.

Owns the slots and their entries in the prefix tree.  Must not know how cells are laid
out, tiers or scheduling.  Engine thread only.

A slot is *live* while a sequence owns it: it stands in the tree near the end of its
owner's prompt, before that is computed, and its path is locked.  Without an owner it is
*idle*: a cached prefix, or empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, TypeAlias

from ponytail.engine.backend import Backend
from ponytail.engine.prefix_tree import Node, PrefixTree
from ponytail.engine.sequence import Sequence


class Kind(IntEnum):
    """Where an entry of the tree keeps its prefix."""

    LIVE = 0
    IDLE = 1
    RAM = 2
    DISK = 3


Entry: TypeAlias = Any
"""A Slot, a RamEntry or a DiskEntry."""
Tree: TypeAlias = "PrefixTree[Entry]"
TreeNode: TypeAlias = "Node[Entry]"


class Slot:
    """One sequence id; `node` is where it stands in the tree, None when it does not."""

    __slots__ = ("node", "owner", "seq_id")

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.owner: Sequence | None = None
        self.node: TreeNode | None = None

    @property
    def n_held(self) -> int:
        """Tokens in its cells."""
        if self.owner is not None:
            return self.owner.n_computed
        return self.node.end if self.node is not None else 0

    @property
    def used_at(self) -> float:
        return self.node.used_at if self.node is not None else 0.0

    @property
    def is_idle(self) -> bool:
        return self.owner is None

    @property
    def is_empty(self) -> bool:
        return self.owner is None and self.node is None


class Slots:
    """`slots[i]` is sequence id i, always."""

    def __init__(self, backend: Backend, tree: Tree) -> None:
        self.backend = backend
        self.tree = tree
        self.all = [Slot(i) for i in range(backend.n_seq)]
        self._of: dict[int, Slot] = {}

    def __len__(self) -> int:
        return len(self._of)

    def owned(self) -> Iterator[Slot]:
        """Live slots in no particular order."""
        return iter(self._of.values())

    def live(self) -> list[Sequence]:
        """Owners in ascending order of sequence id."""
        slots = sorted(self._of.values(), key=lambda slot: slot.seq_id)
        return [slot.owner for slot in slots if slot.owner is not None]

    def of(self, sequence: Sequence) -> Slot:
        """The slot of a sequence that has one (`has_slot`)."""
        return self._of[id(sequence)]

    def bind(self, slot: Slot, sequence: Sequence) -> None:
        """The slot, which stands nowhere, is the sequence's."""
        assert slot.is_empty, "a slot is bound twice"
        slot.owner = sequence
        sequence.has_slot = True
        self._of[id(sequence)] = slot

    def announce(self, slot: Slot, n_tokens: int) -> None:
        """Put the first n_tokens of a live slot into the tree, so that others find them."""
        if n_tokens == 0:
            return
        assert slot.owner is not None
        slot.node = self.tree.insert(slot.owner.tokens[:n_tokens])
        self.tree.attach(slot.node, slot, Kind.LIVE)
        self.tree.lock(slot.node)

    def unbind(self, slot: Slot) -> None:
        """Neither owned nor in the tree any more; what its cells hold is the caller's business."""
        assert slot.owner is not None
        del self._of[id(slot.owner)]
        slot.owner.has_slot = False
        slot.owner = None
        self.withdraw(slot)

    def withdraw(self, slot: Slot) -> None:
        """Take the slot out of the tree."""
        if slot.node is None:
            return
        node, slot.node = slot.node, None
        if node.entries[slot] == Kind.LIVE:
            self.tree.detach(slot, Kind.LIVE)
            self.tree.unlock(node)
        else:
            self.tree.detach(slot, Kind.IDLE)

    def hold(self, slot: Slot, node: TreeNode) -> None:
        """An idle slot holds the prefix up to a node."""
        slot.node = node
        self.tree.attach(node, slot, Kind.IDLE)

    def exchange(self, a: Slot, b: Slot) -> None:
        """The cells of two slots were exchanged: their ids follow what they hold."""
        self.all[a.seq_id], self.all[b.seq_id] = b, a
        a.seq_id, b.seq_id = b.seq_id, a.seq_id

    def withdraw_covered(self, node: TreeNode) -> list[Slot]:
        """Take idle slots out of the tree whose prefix this node's has too; the slots."""
        covered = node.above(Kind.IDLE)
        for slot in covered:
            self.withdraw(slot)
        return covered

    # -- proof ---------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError when slots, owners and tree contradict each other."""
        assert [slot.seq_id for slot in self.all] == list(range(len(self.all))), "ids are mixed up"
        owned = [slot for slot in self.all if slot.owner is not None]
        assert len(owned) == len(self._of), "owners and index differ"
        for slot in owned:
            owner = slot.owner
            assert owner is not None
            assert self._of[id(owner)] is slot, f"slot {slot.seq_id} is indexed elsewhere"
            assert not owner.is_ended, f"slot {slot.seq_id} belongs to an ended sequence"
            assert 0 <= owner.n_computed <= len(owner.tokens), "computed more than there is"
        for slot in self.all:
            kind = Kind.IDLE if slot.owner is None else Kind.LIVE
            if slot.node is not None:
                assert slot.node.entries.get(slot) == kind, "a slot stands elsewhere in the tree"
