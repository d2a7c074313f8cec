"""Which turns of a conversation go when it is too long.

Owns the rule: whole turns, oldest first; the leading system messages and the last turn
stay.  A turn is a user message and all that follows up to the next one, so that a tool
result is never left without its call.  Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ponytail.types import Message

_SYSTEM = ("system", "developer")


def drop_oldest_turns(
    messages: tuple[Message, ...],
    n_limit: int,
    count: Callable[[tuple[Message, ...]], int],
) -> tuple[tuple[Message, ...], int]:
    """(messages that are left, how many turns were dropped), so that `count` is at most n_limit.

    As few turns as possible are dropped; when even the last one is too much, all others.
    `count` is called about log2(turns) times, and must not grow when a turn is dropped.
    """
    n_head, turns = _split(messages)
    head = messages[:n_head]

    def without(n_dropped: int) -> tuple[Message, ...]:
        return head + tuple(m for turn in turns[n_dropped:] for m in turn)

    low, high = 0, len(turns) - 1
    while low < high:
        middle = (low + high) // 2
        if count(without(middle)) <= n_limit:
            high = middle
        else:
            low = middle + 1
    return without(max(0, low)), max(0, low)


def _split(messages: tuple[Message, ...]) -> tuple[int, list[list[Message]]]:
    """(leading system messages, turns); what comes before the first user message is a turn."""
    n_head = 0
    while n_head < len(messages) and messages[n_head].role in _SYSTEM:
        n_head += 1
    turns: list[list[Message]] = []
    for message in messages[n_head:]:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return n_head, turns
