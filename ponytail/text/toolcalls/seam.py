"""What a tool call format is: the protocols between formats and those who use them.

Owns the seam and the default ids of calls.  Must not know any family.  Pure.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from ponytail.text.thinking import Tags
from ponytail.types import Event, Tool

Spell: TypeAlias = Callable[[str], str]
"""A marker's text -> the Lark term for it: a quoted string, or `<[id]>` where the vocabulary
has it as one control token."""

NewId: TypeAlias = Callable[[], str]


def new_call_id() -> str:
    """A fresh id of a call, as OpenAI's look: `call_` and 24 random hex digits."""
    return f"call_{secrets.token_hex(12)}"


class CallParser(Protocol):
    """Reads one choice; what comes out, joined, does not depend on how the text is cut.

    Neither method raises, whatever the text.
    """

    def feed(self, text: str) -> list[Event]:
        """Text | Reasoning | ToolCallStart | ToolCallArgs that are certain by now."""
        ...

    def flush(self) -> list[Event]:
        """At the end: held text, and the remains of a call that was not finished."""
        ...


class Trigger(msgspec.Struct, frozen=True):
    """A call block begins with `text`; `at_start`: only as the answer's first non-white text."""

    text: str
    at_start: bool = False


class CallFormat(Protocol):
    """How models of one family write calls."""

    @property
    def name(self) -> str:
        """The value of --tool-format."""
        ...

    @property
    def markers(self) -> frozenset[str]:
        """Texts that may be control tokens in the vocabulary and must be shown to the parser."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether a further call is a further block with its own trigger, not a member of one."""
        ...

    @property
    def example(self) -> str:
        """A call as a model is shown it: NAME and ARGUMENTS, or PARAMETER and VALUE, stand in it
        for what they say."""
        ...

    @property
    def thinking(self) -> Tags | None:
        """What the model thinks between, where the parser itself tells thinking apart."""
        ...

    @property
    def before_answer(self) -> str:
        """Markup without which an answer is none, where there is some."""
        ...

    def triggers_for(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        """What a block may begin with.  Where no marker does, the tools' names are part of it."""
        ...

    def is_written_by(self, template: str) -> bool:
        """Whether a chat template with this source shows calls in this format."""
        ...

    def parser(self, tools: Sequence[Tool], new_id: NewId = new_call_id) -> CallParser:
        """For one choice.  The tools say which names and which types of values there are."""
        ...

    def grammar(self, tools: Sequence[Tool], spell: Spell, *, is_parallel: bool) -> str:
        """Lark source for llguidance: `start` is one block from its trigger's first character on.

        Each tool is one alternative with arguments that fit its `parameters`.  At least one tool.
        With `is_parallel` and `repeats` False the block may hold several calls.
        """
        ...
