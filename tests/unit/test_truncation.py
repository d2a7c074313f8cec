"""Which turns go: whole ones, oldest first, and no more than must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ponytail.text.truncation import drop_oldest_turns
from ponytail.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(ROLES), st.text("ab", max_size=30)), min_size=1, max_size=14
).map(tuple)


def count(messages: tuple[Message, ...]) -> int:
    return sum(3 + len(m.content) for m in messages)


def n_leading_system(messages: tuple[Message, ...]) -> int:
    n = 0
    while n < len(messages) and messages[n].role in ("system", "developer"):
        n += 1
    return n


@given(MESSAGES, st.integers(0, 250))
def test_only_whole_oldest_turns_go_and_no_more_than_must(messages, limit):
    kept, n_turns = drop_oldest_turns(messages, limit, count)
    n_head = n_leading_system(messages)
    assert kept[:n_head] == messages[:n_head]
    n_gone = len(messages) - len(kept)
    assert kept[n_head:] == messages[n_head + n_gone :]
    starts = [
        i for i, m in enumerate(messages) if i >= n_head and (m.role == "user" or i == n_head)
    ]
    assert n_turns == 0 or messages[n_head + n_gone].role == "user"
    assert n_turns == sum(i < n_head + n_gone for i in starts)
    if len(starts) > n_turns + 1:
        assert count(kept) <= limit, "more could have been dropped"
    if n_turns:
        one_fewer = messages[:n_head] + messages[starts[n_turns - 1] :]
        assert count(one_fewer) > limit, "a turn was dropped for nothing"


def test_it_counts_a_long_conversation_a_few_times_only():
    messages = tuple(Message("user", "x" * 10) for _ in range(1000))
    n_calls = 0

    def counting(kept: tuple[Message, ...]) -> int:
        nonlocal n_calls
        n_calls += 1
        return count(kept)

    kept, n_turns = drop_oldest_turns(messages, 1300, counting)
    assert (len(kept), n_turns, count(kept)) == (100, 900, 1300)
    assert n_calls <= 10
