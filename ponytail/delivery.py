"""Events from the engine thread to whoever reads them: an event loop or a thread.

Owns the two sinks and the two streams.  Must not know HTTP, text or llama.cpp.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TypeAlias
from weakref import WeakKeyDictionary

from ponytail.engine.sequence import Mail, Ticket
from ponytail.types import Event, Failed, Finished, Truncation

Indexed: TypeAlias = tuple[int, Event]
"""(choice index, event)."""


class _LoopTicket(Ticket):
    """A ticket that knows which stream reads it."""

    __slots__ = ("stream",)

    def __init__(self, sink: LoopSink, index: int, stream: AsyncStream) -> None:
        super().__init__(sink, index)
        self.stream = stream


class LoopSink:
    """One per event loop: mail of whole steps crosses into the loop.

    One call at a time is on its way.  With one for every step an engine that is quicker
    than the loop keeps the loop reading wake-ups and nothing else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: deque[Mail] = deque()
        self._is_called = False

    def deliver(self, mail: Mail) -> None:
        """Engine thread.  Raises RuntimeError when the loop is closed."""
        if self._loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._steps.append(mail)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        # First of all: what comes while this runs must call again.
        self._is_called = False
        for _ in range(len(self._steps)):
            for ticket, event in self._steps.popleft():
                if isinstance(ticket, _LoopTicket):
                    ticket.stream.put(ticket.index, event)


_sinks: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopSink] = WeakKeyDictionary()


def _sink_of(loop: asyncio.AbstractEventLoop) -> LoopSink:
    sink = _sinks.get(loop)
    if sink is None:
        sink = _sinks[loop] = LoopSink(loop)
    return sink


class AsyncStream:
    """The events of one request in an event loop; create it inside the loop.

    `done` turns true once every choice's terminal event was received.  `truncation` says
    what was dropped from the prompt, if the request allowed it; `warnings` are sentences
    on what the answer will not keep to.
    """

    def __init__(
        self,
        n_choices: int,
        truncation: Truncation | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.truncation = truncation
        self.warnings = warnings
        self._loop = asyncio.get_running_loop()
        sink = _sink_of(self._loop)
        self.tickets: tuple[Ticket, ...] = tuple(
            _LoopTicket(sink, i, self) for i in range(n_choices)
        )
        self._n_open = n_choices
        self._mail: list[Indexed] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self._n_open == 0 and not self._mail

    def put(self, index: int, event: Event) -> None:
        """Loop thread: one event has arrived."""
        self._mail.append((index, event))
        if isinstance(event, Finished | Failed):
            self._n_open -= 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self, timeout_s: float | None = None) -> list[Indexed]:
        """Everything that has arrived, at least one event; [] on time-out or at the end."""
        if not self._mail and self._n_open:
            await self._wait(timeout_s)
        mail, self._mail = self._mail, []
        return mail

    async def _wait(self, timeout_s: float | None) -> None:
        waiter = self._waiter = self._loop.create_future()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def cancel(self) -> None:
        """Stop all choices; idempotent, from any thread, effective within one step."""
        for ticket in self.tickets:
            ticket.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class ThreadStream:
    """The events of one request for a reading thread; itself the sink of its tickets."""

    def __init__(self, n_choices: int, truncation: Truncation | None = None) -> None:
        self.truncation = truncation
        self.tickets: tuple[Ticket, ...] = tuple(Ticket(self, i) for i in range(n_choices))
        self._queue: SimpleQueue[Mail] = SimpleQueue()

    def deliver(self, mail: Mail) -> None:
        """Engine thread."""
        self._queue.put(mail)

    def __iter__(self) -> Iterator[Indexed]:
        """Blocks for events until every choice has ended; leaving early cancels."""
        n_open = len(self.tickets)
        try:
            while n_open:
                for ticket, event in self._queue.get():
                    if isinstance(event, Finished | Failed):
                        n_open -= 1
                    yield ticket.index, event
        finally:
            if n_open:
                self.cancel()

    def cancel(self) -> None:
        for ticket in self.tickets:
            ticket.cancel()
