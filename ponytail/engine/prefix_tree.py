"""A radix tree over token ids: which prefixes are held, and by what.

Owns matching, insertion, splitting and merging of nodes, locks and the order of
eviction.  Pure: what is attached to a node (an *entry*) is opaque; the tree knows only
its kind, a small integer.  Must not know cells, backends or requests.  Engine thread.

A node is a run of tokens behind its parent's; it ends at `end` tokens from the root.
Children differ in their first token, so a walk down costs the length of what matches.
Whoever will compute a prefix attaches an entry before it has done so, and others can
find it and wait: how far an entry has come is the entry's own business.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

_COMPARE_BLOCK = 256


class Node(Generic[Entry]):
    """One run of tokens.  `counts[kind]` are the entries of a kind at or below this node.

    `n_locks` counts locks at or below; a locked node keeps its place and what it stands for.
    """

    __slots__ = ("children", "counts", "end", "entries", "n_locks", "parent", "tokens", "used_at")

    def __init__(self, tokens: array[int], parent: Node[Entry] | None, n_kinds: int) -> None:
        self.tokens = tokens
        self.parent = parent
        self.end: int = (parent.end if parent else 0) + len(tokens)
        self.children: dict[int, Node[Entry]] = {}
        self.entries: dict[Entry, int] = {}
        self.counts = [0] * n_kinds
        self.n_locks = 0
        self.used_at = 0.0

    @property
    def start(self) -> int:
        """Tokens before this node's first."""
        return self.end - len(self.tokens)

    def path(self) -> Iterator[Node[Entry]]:
        """This node, its parent and so on; the root is left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def at(self, kind: int) -> list[Entry]:
        """The entries of a kind at this very node."""
        return [entry for entry, entry_kind in self.entries.items() if entry_kind == kind]

    def above(self, kind: int) -> list[Entry]:
        """Entries of a kind whose prefix is a beginning of this node's."""
        return [entry for node in list(self.path())[1:] for entry in node.at(kind)]

    def below(self, kind: int) -> Iterator[Entry]:
        """All entries of a kind at or below this node."""
        if self.counts[kind] == 0:
            return
        stack = [self]
        while stack:
            node = stack.pop()
            yield from node.at(kind)
            stack += [child for child in node.children.values() if child.counts[kind]]


class PrefixTree(Generic[Entry]):
    """Nodes from one root; entries have one of `n_kinds` kinds and are hashed by identity."""

    def __init__(self, n_kinds: int) -> None:
        self._n_kinds = n_kinds
        self.root: Node[Entry] = Node(array("i"), None, n_kinds)
        self._node_of: list[dict[Entry, Node[Entry]]] = [{} for _ in range(n_kinds)]
        self.n_nodes = 0

    # -- finding -------------------------------------------------------------------------

    def match(self, tokens: array[int]) -> list[tuple[Node[Entry], int]]:
        """The nodes along `tokens`, deepest first, each with the tokens that match up to there.

        All but the first match to their end; the first may match in part.
        """
        found: list[tuple[Node[Entry], int]] = []
        node, n = self.root, 0
        while n < len(tokens):
            child = node.children.get(tokens[n])
            if child is None:
                break
            n += common_prefix(child.tokens, tokens[n : n + len(child.tokens)])
            found.append((child, n))
            if n < child.end:
                break
            node = child
        found.reverse()
        return found

    def entries(self, kind: int) -> dict[Entry, Node[Entry]]:
        """All entries of a kind, with their nodes; not to be changed."""
        return self._node_of[kind]

    def coldest(self, kind: int, *, unlocked: bool = False) -> Node[Entry] | None:
        """The least recently used node with entries of a kind and none of that kind below it."""
        best: Node[Entry] | None = None
        for node in self._node_of[kind].values():
            if (unlocked and node.n_locks) or (best and node.used_at >= best.used_at):
                continue
            if not any(child.counts[kind] for child in node.children.values()):
                best = node
        return best

    def tokens_to(self, node: Node[Entry]) -> array[int]:
        """All tokens from the root to the node's end."""
        parts = [n.tokens for n in node.path()]
        tokens = array("i")
        for part in reversed(parts):
            tokens.extend(part)
        return tokens

    # -- changing ------------------------------------------------------------------------

    def insert(self, tokens: array[int]) -> Node[Entry]:
        """The node that ends where `tokens` end, made by splitting and adding as needed.

        It must get an entry, a lock or a child before anything else is removed.
        """
        found = self.match(tokens)
        node, n = found[0] if found else (self.root, 0)
        if n < node.end:
            node = self._split(node, n)
        if n < len(tokens):
            node = self._add(node, tokens[n:])
        return node

    def _add(self, parent: Node[Entry], tokens: array[int]) -> Node[Entry]:
        child = Node(tokens, parent, self._n_kinds)
        child.used_at = parent.used_at
        parent.children[tokens[0]] = child
        self.n_nodes += 1
        return child

    def _split(self, node: Node[Entry], end: int) -> Node[Entry]:
        """Put a new node before the lower part of `node`, which keeps its identity and entries."""
        parent = node.parent
        assert parent is not None
        n = end - node.start
        upper = Node(node.tokens[:n], parent, self._n_kinds)
        upper.counts = node.counts[:]
        upper.n_locks, upper.used_at = node.n_locks, node.used_at
        parent.children[node.tokens[0]] = upper
        node.tokens = node.tokens[n:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        self.n_nodes += 1
        return upper

    def attach(self, node: Node[Entry], entry: Entry, kind: int) -> None:
        """The entry holds the prefix up to the node's end."""
        node.entries[entry] = kind
        self._node_of[kind][entry] = node
        for above in (*node.path(), self.root):
            above.counts[kind] += 1

    def detach(self, entry: Entry, kind: int) -> None:
        """Take the entry away, and every node that nothing needs any more."""
        node = self._node_of[kind].pop(entry)
        del node.entries[entry]
        for above in (*node.path(), self.root):
            above.counts[kind] -= 1
        self._tidy(node)

    def lock(self, node: Node[Entry]) -> None:
        """Keep the path to this node as it is until `unlock`."""
        for above in (*node.path(), self.root):
            above.n_locks += 1

    def unlock(self, node: Node[Entry]) -> None:
        """Undo one `lock`."""
        for above in (*node.path(), self.root):
            above.n_locks -= 1
        self._tidy(node)

    def touch(self, node: Node[Entry], now: float) -> None:
        """The path to this node was used now."""
        for above in node.path():
            above.used_at = now

    def _tidy(self, node: Node[Entry]) -> None:
        """Remove or merge away nodes on the way up that stand for nothing."""
        while node.parent is not None and not node.entries:
            parent = node.parent
            if node.n_locks > sum(child.n_locks for child in node.children.values()):
                return
            if node.children:
                if len(node.children) == 1:
                    self._merge(node)
                return
            del parent.children[node.tokens[0]]
            self.n_nodes -= 1
            node = parent

    def _merge(self, node: Node[Entry]) -> None:
        """Give the node's tokens to its only child, which keeps its identity."""
        (child,) = node.children.values()
        parent = node.parent
        assert parent is not None
        child.tokens = node.tokens + child.tokens
        child.parent = parent
        child.used_at = max(child.used_at, node.used_at)
        parent.children[child.tokens[0]] = child
        self.n_nodes -= 1

    # -- proof ---------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError when the tree contradicts itself."""
        n_nodes = -1
        stack = [self.root]
        while stack:
            node = stack.pop()
            n_nodes += 1
            stack += node.children.values()
            self._check_node(node)
        assert n_nodes == self.n_nodes, f"{n_nodes} nodes, {self.n_nodes} counted"
        for kind, nodes in enumerate(self._node_of):
            for entry, node in nodes.items():
                assert node.entries.get(entry) == kind, "an entry is not at its node"
            assert self.root.counts[kind] == len(nodes), "entries are counted wrong"

    def _check_node(self, node: Node[Entry]) -> None:
        for first, child in node.children.items():
            assert child.parent is node, "a child has another parent"
            assert child.tokens[0] == first, "a child stands under another token"
            assert child.end == node.end + len(child.tokens), "a node ends elsewhere"
        counts = [sum(child.counts[k] for child in node.children.values()) for k in _kinds(node)]
        for kind in node.entries.values():
            counts[kind] += 1
        assert counts == node.counts, f"counts {node.counts}, found {counts}"
        n_below = sum(child.n_locks for child in node.children.values())
        assert node.n_locks >= n_below, "a lock is lost above"
        if node.parent is not None and not node.entries and node.n_locks == n_below:
            assert len(node.children) > 1, "a node stands for nothing"


def _kinds(node: Node[Entry]) -> range:
    return range(len(node.counts))


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
