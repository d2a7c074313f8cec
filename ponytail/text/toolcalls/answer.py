"""What a parser has read, as events; and the loop that drives a reading.

Owns the numbering of calls and the white space beside them, which only separates:
before the first text, and after the last, it is dropped where a call stands beside
it; between texts it stays.  An answer without calls is not changed at all.
Knows no format.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from ponytail.text.toolcalls.seam import NewId
from ponytail.text.toolcalls.source import SPACE, Source, Steps
from ponytail.types import Event, Reasoning, Text, ToolCallArgs, ToolCallStart


class Answer:
    """Collects events; neighbours of one kind are joined."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._events: list[Event] = []
        self._space = ""
        self._has_text = False
        self._ends_in_call = False
        self._n_calls = 0

    def text(self, text: str) -> None:
        """A piece of the answer."""
        whole = self._space + text
        body = whole.rstrip(SPACE)
        self._space = whole[len(body) :]
        if body:
            self._send_text(body)

    def reasoning(self, text: str) -> None:
        """A piece of thinking."""
        last = self._events[-1] if self._events else None
        if isinstance(last, Reasoning):
            self._events[-1] = Reasoning(last.text + text)
        elif text:
            self._events.append(Reasoning(text))

    def begin_call(self, name: str) -> None:
        """A call of this tool begins; its arguments follow."""
        self._ends_in_call = True
        self._events.append(ToolCallStart(self._n_calls, self._new_id(), name))
        self._n_calls += 1

    def arguments(self, fragment: str) -> None:
        """A piece of the JSON arguments of the call begun last."""
        index = self._n_calls - 1
        last = self._events[-1] if self._events else None
        if isinstance(last, ToolCallArgs) and last.index == index:
            self._events[-1] = ToolCallArgs(index, last.fragment + fragment)
        elif fragment:
            self._events.append(ToolCallArgs(index, fragment))

    def end(self) -> None:
        """Nothing more follows: white space is told unless there were calls beside it."""
        if self._space and not self._ends_in_call:
            self._send_text(self._space)
        self._space = ""

    def drain(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def _send_text(self, text: str) -> None:
        if self._n_calls and not self._has_text:
            text = text.lstrip(SPACE)
        self._has_text = True
        self._ends_in_call = False
        last = self._events[-1] if self._events else None
        if isinstance(last, Text):
            self._events[-1] = Text(last.text + text)
        elif text:
            self._events.append(Text(text))


Reading: TypeAlias = Callable[[Source, Answer], Steps[None]]
"""Reads a whole answer, whatever is in it, up to its end."""


class StreamParser:
    """Runs a reading over text that arrives in pieces; fits `CallParser`."""

    def __init__(self, reading: Reading, new_id: NewId) -> None:
        self._source = Source()
        self._answer = Answer(new_id)
        self._steps = reading(self._source, self._answer)

    def feed(self, text: str) -> list[Event]:
        self._source.append(text)
        next(self._steps, None)
        return self._answer.drain()

    def flush(self) -> list[Event]:
        self._source.has_ended = True
        next(self._steps, None)
        self._answer.end()
        return self._answer.drain()


def pass_text(source: Source, stops: Collection[str], send: Callable[[str], None]) -> Steps[str]:
    """Send text as it comes up to the next stop, which is read and returned; "" at the end."""
    while True:
        piece, stop = source.cut(stops)
        send(piece)
        if stop or source.has_ended:
            return stop
        yield
