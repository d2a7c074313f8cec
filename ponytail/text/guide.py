"""What the next token of one choice may be: free, by a grammar, or already decided.

Owns the stages of an answer: thinking (free, up to a budget), then the answer itself, which is
bound by a grammar from its first token on, or free until a tool call begins.  Must not
know llama.cpp; the grammar's matcher writes its mask where it is told.  Engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ponytail.errors import ConstraintFailed
from ponytail.text.thinking import Tags
from ponytail.text.toolcalls.seam import Trigger


class Matcher(Protocol):
    """A grammar with how far one answer has come in it."""

    @property
    def is_complete(self) -> bool:
        """Nothing but the end can follow."""
        ...

    @property
    def error(self) -> str:
        """A sentence once it can go no further, else ""."""
        ...

    def fill(self, pointer: int, n_bytes: int) -> None:
        """Write one bit per token, 1 where it may come next."""
        ...

    def consume(self, token_id: int) -> bool: ...

    def consume_text(self, text: str) -> bool: ...


class Thinking(msgspec.Struct, frozen=True):
    """How the model thinks.  `is_open`: the prompt ended within; after `n_max` tokens thinking is
    ended with `closing`.  `open_id` is the open tag where it is one token."""

    tags: Tags
    is_open: bool
    closing: tuple[int, ...] = ()
    n_max: int | None = None
    open_id: int | None = None


class Calls(msgspec.Struct, frozen=True):
    """Tool calls in a free answer: what begins one, and its grammar from there on.

    With `repeats` the answer is free again after a call, otherwise it is over.
    """

    triggers: tuple[Trigger, ...]
    matcher: Callable[[], Matcher]
    repeats: bool


class Guide:
    """One choice's.  `matcher` binds the whole answer after thinking; `calls` parts of it."""

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        thinking: Thinking | None = None,
        matcher: Matcher | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._thinking = thinking
        self._matcher = matcher
        self._calls = calls
        self._is_thinking = thinking is not None and thinking.is_open
        self._may_think = thinking is not None
        self._n_thought = 0
        self._forced: list[int] = []
        self._head = b""
        self._tail = b""
        self._n_tail = max(
            [len(t.text.encode()) for t in (calls.triggers if calls else ())]
            + (
                [len(thinking.tags.close.encode()), len(thinking.tags.open.encode())]
                if thinking
                else []
            )
            + [1]
        )
        self._is_start = True
        self.is_complete = False
        self._limit_thinking()

    # -- before a pick ---------------------------------------------------------------------

    @property
    def forced(self) -> int | None:
        """The next token, where it is decided."""
        return self._forced[0] if self._forced else None

    @property
    def extra(self) -> int | None:
        """A token that may come although the mask has it not: the tag that opens thinking."""
        if self._may_think and self._thinking is not None:
            return self._thinking.open_id
        return None

    def fill(self, pointer: int, n_bytes: int) -> bool:
        """Write the mask, one bit per token; False, and nothing written, when all may come.

        Raises ConstraintFailed when the grammar can go no further.
        """
        if self._is_thinking or self._matcher is None:
            return False
        self._matcher.fill(pointer, n_bytes)
        if self._matcher.error:
            raise ConstraintFailed(f"the grammar cannot go on: {self._matcher.error}")
        return True

    # -- after it --------------------------------------------------------------------------

    def accept(self, token_id: int) -> None:
        """The pick.  Raises ConstraintFailed when the grammar does not take it."""
        if self._forced:
            self._forced.pop(0)
            if not self._forced:
                self._begin_answer()
        elif self._is_thinking:
            self._think(token_id)
        elif self._may_think and self._opens_thinking(token_id):
            self._is_thinking, self._tail = True, b""
            self._limit_thinking()
        elif self._matcher is not None:
            self._is_start = False
            self._advance(self._matcher, token_id)
        elif self._calls is not None:
            self._look_for_call(self._calls, token_id)

    def _opens_thinking(self, token_id: int) -> bool:
        thinking = self._thinking
        assert thinking is not None, "without it nothing may be thought"
        if token_id == thinking.open_id:
            return True
        self._head += self._token_bytes(token_id)
        begun = self._head.lstrip()
        open_tag = thinking.tags.open.encode()
        # Under a grammar only a tag that is one token may come before it.
        self._may_think = self._matcher is None and open_tag.startswith(begun)
        return self._matcher is None and begun.startswith(open_tag)

    def _think(self, token_id: int) -> None:
        assert self._thinking is not None
        self._n_thought += 1
        self._tail = self._tail[-self._n_tail :] + self._token_bytes(token_id)
        if self._thinking.tags.close.encode() in self._tail:
            self._begin_answer()
        else:
            self._limit_thinking()

    def _limit_thinking(self) -> None:
        thinking = self._thinking
        if thinking is None or thinking.n_max is None or not self._is_thinking:
            return
        if self._n_thought >= thinking.n_max:
            self._forced = list(thinking.closing)

    def _begin_answer(self) -> None:
        self._is_thinking, self._may_think, self._is_start = False, False, True
        self._tail = b""

    def _advance(self, matcher: Matcher, token_id: int) -> None:
        if not matcher.consume(token_id):
            raise ConstraintFailed(f"the grammar does not take the token: {matcher.error}")
        if not matcher.is_complete:
            return
        if self._calls is not None and self._calls.repeats:
            self._matcher, self._tail = None, b""
        else:
            self.is_complete = True

    def _look_for_call(self, calls: Calls, token_id: int) -> None:
        """Begin the grammar once a trigger is complete, with all that came from its start on."""
        self._tail += self._token_bytes(token_id)
        found = [at for t in calls.triggers if (at := self._start_of(t)) >= 0]
        if found:
            text = self._tail[min(found) :].decode("utf-8", "ignore")
            matcher = calls.matcher()
            # A call that began in a way of its own is left to the parser.
            if matcher.consume_text(text):
                self._matcher = matcher
            self._tail, self._is_start = b"", False
        elif self._tail.strip() and not self._can_start(calls.triggers):
            self._is_start = False
            self._tail = self._tail[-self._n_tail :]

    def _start_of(self, trigger: Trigger) -> int:
        text = trigger.text.encode()
        if not trigger.at_start:
            return self._tail.find(text)
        n_white = len(self._tail) - len(self._tail.lstrip())
        return n_white if self._is_start and self._tail.startswith(text, n_white) else -1

    def _can_start(self, triggers: Sequence[Trigger]) -> bool:
        begun = self._tail.lstrip()
        return self._is_start and any(
            t.at_start and t.text.encode().startswith(begun) for t in triggers
        )
