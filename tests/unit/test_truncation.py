"""Which turns go: whole ones, oldest first, and no more than must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ponytail.text.truncation import drop_oldest_turns
from ponytail.types import Message, ToolCall

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
    assert n_calls <= 14


def test_it_counts_no_more_than_about_twice_what_fits_however_much_there_is():
    messages = tuple(Message("user", "x" * 7) for _ in range(10_000))
    counted: list[int] = []

    def counting(kept: tuple[Message, ...]) -> int:
        counted.append(count(kept))
        return counted[-1]

    _, n_turns = drop_oldest_turns(messages, 500, counting)
    assert n_turns == 9_950
    assert max(counted) <= 2 * 500 + 10


def test_text_that_only_looks_too_long_is_left_alone():
    messages = tuple(Message("user", "x" * 1000) for _ in range(5))
    assert drop_oldest_turns(messages, 5, len) == (messages, 0)
    assert drop_oldest_turns(messages, 4, len) == (messages[1:], 1)


def test_a_conversation_that_fits_is_counted_once():
    messages = tuple(Message("user", "x") for _ in range(1000))
    counted: list[int] = []
    assert drop_oldest_turns(messages, 4000, lambda m: counted.append(1) or count(m)) == (
        messages,
        0,
    )
    assert len(counted) == 1


def test_tool_results_go_with_their_calls():
    def turn(name: str) -> list[Message]:
        call = Message("assistant", "", tool_calls=(ToolCall(name, "f", "{}"),))
        result = Message("tool", name, tool_call_id=name)
        return [Message("user", name), call, result, Message("assistant", name)]

    system = Message("system", "s")
    messages = (system, *turn("a"), *turn("b"), *turn("c"), Message("user", "d"))
    for limit in range(count(messages) + 1):
        kept, _ = drop_oldest_turns(messages, limit, count)
        calls = [call.id for m in kept for call in m.tool_calls]
        assert calls == [m.tool_call_id for m in kept if m.role == "tool"]
        assert (kept[0], kept[-1]) == (system, messages[-1])


@given(MESSAGES, st.integers(0, 250), st.randoms(use_true_random=False))
def test_even_an_odd_template_gets_a_prompt_that_was_counted(messages, limit, random):
    """The size need not shrink with every turn: what is kept was seen to fit, or is the least."""
    sizes: dict[int, int] = {}

    def odd(kept: tuple[Message, ...]) -> int:
        return sizes.setdefault(len(kept), random.randint(0, 300))

    kept, n_turns = drop_oldest_turns(messages, limit, odd)
    starts = [i for i, m in enumerate(messages) if m.role == "user"]
    is_least = kept[n_leading_system(messages) :] == messages[max(starts, default=0) :]
    if n_turns and not is_least:
        assert sizes[len(kept)] <= limit
