"""The radix tree against a list of token lists, under random attach, detach, lock and match."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from ponytail.engine.prefix_tree import PrefixTree, common_prefix

KINDS = 3
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


class Item:
    """An entry; hashed by identity."""


def naive_common(a: list[int], b: list[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class Model:
    """Attached entries as (entry, kind, tokens), and what the tree must then say."""

    def __init__(self) -> None:
        self.tree: PrefixTree[Item] = PrefixTree(KINDS)
        self.held: list[tuple[Item, int, list[int]]] = []
        self.locks: list[tuple[object, list[int]]] = []

    def attach(self, tokens: list[int], kind: int) -> None:
        entry = Item()
        self.tree.attach(self.tree.insert(array("i", tokens)), entry, kind)
        self.held.append((entry, kind, tokens))

    def detach(self, i: int) -> None:
        if self.held:
            entry, kind, _ = self.held.pop(i % len(self.held))
            self.tree.detach(entry, kind)

    def lock(self, i: int) -> None:
        if self.held:
            entry, kind, tokens = self.held[i % len(self.held)]
            node = self.tree.entries(kind)[entry]
            self.tree.lock(node)
            self.locks.append((node, tokens))

    def unlock(self, i: int) -> None:
        if self.locks:
            node, _ = self.locks.pop(i % len(self.locks))
            self.tree.unlock(node)  # type: ignore[arg-type]

    def check(self, query: list[int]) -> None:
        self.tree.check_integrity()
        found = self.tree.match(array("i", query))
        for kind in range(KINDS):
            expected = max(
                (naive_common(query, t) for _, k, t in self.held if k == kind), default=0
            )
            deepest = next((n for node, n in found if node.counts[kind]), 0)
            assert deepest == expected
        for node, tokens in self.locks:
            assert list(self.tree.tokens_to(node)) == tokens  # type: ignore[arg-type]
        for entry, kind, tokens in self.held:
            assert list(self.tree.tokens_to(self.tree.entries(kind)[entry])) == tokens


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("attach"), TOKENS, st.integers(0, KINDS - 1)),
        st.tuples(st.sampled_from(["detach", "lock", "unlock"]), st.integers(0, 100)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(OPERATIONS, TOKENS)
def test_it_says_what_a_list_of_token_lists_says(operations, query):
    model = Model()
    for name, *arguments in operations:
        getattr(model, name)(*arguments)
        model.check(query)
    while model.held:
        model.detach(0)
    while model.locks:
        model.unlock(0)
    assert model.tree.n_nodes == 0


def tree_of(*prefixes: str) -> tuple[PrefixTree[Item], dict[str, Item]]:
    tree: PrefixTree[Item] = PrefixTree(1)
    entries = {prefix: Item() for prefix in prefixes}
    for prefix, entry in entries.items():
        tree.attach(tree.insert(array("i", map(ord, prefix))), entry, 0)
    return tree, entries


def test_the_coldest_is_a_leaf_and_the_least_recently_used():
    tree, entries = tree_of("ab", "abcd", "abxy", "q")
    for at, prefix in enumerate(["q", "abxy", "abcd"], start=1):
        tree.touch(tree.entries(0)[entries[prefix]], at)
    order = []
    while (node := tree.coldest(0)) is not None:
        (entry,) = node.entries
        order.append(next(p for p, e in entries.items() if e is entry))
        tree.detach(entry, 0)
    # "ab" was used whenever what is below it was; it goes after its leaves all the same.
    assert order == ["q", "abxy", "abcd", "ab"]


def test_a_locked_path_is_not_offered():
    tree, entries = tree_of("ab", "cd")
    node = tree.entries(0)[entries["ab"]]
    tree.touch(tree.entries(0)[entries["cd"]], 9.0)
    tree.lock(node)
    coldest = tree.coldest(0, unlocked=True)
    assert coldest is tree.entries(0)[entries["cd"]]
    tree.unlock(node)
    assert tree.coldest(0, unlocked=True) is node


def test_a_match_in_the_middle_of_a_run_counts():
    tree, _ = tree_of("abcdef")
    ((node, n),) = tree.match(array("i", map(ord, "abcx")))
    assert (n, node.end) == (3, 6)


@given(st.lists(st.integers(0, 1), max_size=600), st.integers(0, 600))
def test_common_prefix_over_blocks(tokens, cut):
    a = array("i", [7] * 300 + tokens)
    b = a[:]
    if cut < len(b):
        b[cut] = 99
    assert common_prefix(a, b) == min(cut, len(a))
