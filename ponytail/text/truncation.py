"""Which turns of a conversation go when it is too long.

Owns the rule: whole turns, oldest first; the leading system messages and the last turn
stay.  A turn is a user message and all that follows up to the next one, so that a tool
result is never left without its call.  Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ponytail.types import Message

_SYSTEM = ("system", "developer")
# Text with more characters in a token is rare.  This only chooses where the search begins.
_CHARS_PER_TOKEN = 8


def drop_oldest_turns(
    messages: tuple[Message, ...],
    n_limit: int,
    count: Callable[[tuple[Message, ...]], int],
) -> tuple[tuple[Message, ...], int]:
    """(messages that are left, how many turns were dropped), so that `count` is at most n_limit.

    As few turns as will do: with one more, it was counted and too much.  When even the last
    turn alone is too much, it is what is left, and the caller sees that by its count.

    The whole is counted first, as most conversations fit, unless it looks far too long.
    Then the search doubles what it keeps, from the newest turn on: it counts about
    2 * log2(turns kept) times, and work grows with the limit, not with the conversation.
    """
    n_head, turns = _split(messages)

    def newest(n_kept: int) -> tuple[Message, ...]:
        kept = turns[len(turns) - n_kept :]
        return messages[:n_head] + tuple(message for turn in kept for message in turn)

    n_turns = len(turns)
    may_fit = n_turns > 1 and _n_chars(messages) <= _CHARS_PER_TOKEN * n_limit
    if n_turns < 2 or (may_fit and count(messages) <= n_limit):
        return messages, 0
    n_fits, n_too_many = 1, n_turns if may_fit else n_turns + 1
    while n_too_many - n_fits > 1:
        n_kept = min(2 * n_fits, (n_fits + n_too_many) // 2)
        if count(newest(n_kept)) <= n_limit:
            n_fits = n_kept
        else:
            n_too_many = n_kept
    return newest(n_fits), n_turns - n_fits


def n_system_messages(messages: tuple[Message, ...]) -> int:
    """How many system or developer messages a conversation begins with."""
    n = 0
    while n < len(messages) and messages[n].role in _SYSTEM:
        n += 1
    return n


def _n_chars(messages: tuple[Message, ...]) -> int:
    return sum(len(message.content) for message in messages)


def _split(messages: tuple[Message, ...]) -> tuple[int, list[list[Message]]]:
    """(leading system messages, turns); what comes before the first user message is a turn."""
    n_head = n_system_messages(messages)
    turns: list[list[Message]] = []
    for message in messages[n_head:]:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return n_head, turns
