"""The events of one request gathered into one answer.

Owns Answer and Choice.  Must not know HTTP, the engine's inner life or llama.cpp.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from ponytail.delivery import AsyncStream, Indexed
from ponytail.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
    ToolCallArgs,
    ToolCallStart,
    Truncation,
    Usage,
)


class Choice(msgspec.Struct, frozen=True):
    """One finished answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    reasoning: str = ""
    stop: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: tuple[TokenLogprob, ...] = ()
    """Those of `text`, where `logprobs` asked for them."""


class Answer(msgspec.Struct, frozen=True):
    """All choices of one request; `text`, `finish_reason` and `usage` are the first one's.

    `truncation` says what `truncation="auto"` dropped.
    """

    choices: tuple[Choice, ...]
    truncation: Truncation | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        return self.choices[0].usage


async def events(stream: AsyncStream) -> AsyncIterator[Indexed]:
    """All events; leaving early cancels."""
    try:
        while not stream.done:
            for item in await stream.receive():
                yield item
    finally:
        stream.cancel()


def checked(event: Event) -> Event:
    """The event; raises the error of a choice that failed."""
    if isinstance(event, Failed):
        raise event.error
    return event


class _Gathered:
    """What one choice has brought so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.tokens: list[TokenLogprob] = []
        self.calls: list[tuple[ToolCallStart, list[str]]] = []
        self.end: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Text(text, tokens):
                self.texts.append(text)
                self.tokens += tokens
            case Reasoning(text):
                self.thoughts.append(text)
            case ToolCallStart():
                self.calls.append((event, []))
            case ToolCallArgs(index, fragment):
                self.calls[index][1].append(fragment)
            case Finished():
                self.end = event
            case _:
                pass

    def choice(self) -> Choice:
        assert self.end is not None, "a choice that did not fail has finished"
        return Choice(
            text="".join(self.texts),
            finish_reason=self.end.reason,
            usage=self.end.usage,
            reasoning="".join(self.thoughts),
            stop=self.end.stop,
            tool_calls=tuple(ToolCall(c.id, c.name, "".join(parts)) for c, parts in self.calls),
            tokens=tuple(self.tokens),
        )


def collect(items: Iterable[Indexed], truncation: Truncation | None = None) -> Answer:
    """The whole answer; raises the error of the first choice that failed."""
    gathered: dict[int, _Gathered] = {}
    for index, event in items:
        gathered.setdefault(index, _Gathered()).add(checked(event))
    return Answer(tuple(one.choice() for _, one in sorted(gathered.items())), truncation)
