"""Events reach their readers whole, in order, and a reader that leaves cancels its work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ponytail.delivery import AsyncStream, LoopSink, ThreadStream
from ponytail.engine.engine import Engine
from ponytail.engine.sequence import Job, Ticket
from ponytail.text.output import Output
from ponytail.types import Finished, Sampling, Started, Text
from tests.engine_driver import PIECES
from tests.fakes import FakeBackend, continuation


def job(ticket: Ticket, n_max: int, first: int = 1) -> Job:
    return Job(ticket, [first, 2, 3], Output(PIECES), Sampling(), 1, n_max)


def engine(**options: int) -> Engine:
    made = Engine(FakeBackend(keeps_batches=False, **options))
    made.start()
    return made


def words(events: list[object]) -> list[int]:
    return [int(e.text) for e in events if isinstance(e, Text)]


def test_streams_of_one_loop_get_their_own_events_in_order():
    running = engine()

    async def read(first: int) -> list[object]:
        stream = AsyncStream(1)
        running.submit([job(stream.tickets[0], 20, first)])
        events: list[object] = []
        while not stream.done:
            events += [event for _, event in await stream.receive()]
        assert await stream.receive() == []
        return events

    async def main() -> list[list[object]]:
        return await asyncio.gather(*(read(i) for i in range(1, 7)))

    for i, events in enumerate(asyncio.run(main()), start=1):
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        assert words(events) == continuation([i, 2, 3], 20)
    running.close()


def test_receive_gives_nothing_at_the_time_limit_and_loses_nothing():
    async def main() -> None:
        stream = AsyncStream(1)
        assert await stream.receive(0.001) == []
        stream.put(0, Text("a"))
        assert await stream.receive(0.001) == [(0, Text("a"))]

    asyncio.run(main())


def test_an_engine_quicker_than_the_loop_wakes_it_once_and_loses_nothing():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        calls: list[object] = []
        loop.call_soon_threadsafe = lambda *call: calls.append(call)  # type: ignore[method-assign]
        stream = AsyncStream(1)
        sink, ticket = LoopSink(loop), stream.tickets[0]
        for round_number in (1, 2):
            for n in range(100):
                sink.deliver([(ticket, Text(str(n)))])
            assert len(calls) == round_number
            calls[-1][0]()
            assert words([event for _, event in await stream.receive()]) == list(range(100))

    asyncio.run(main())


def test_a_closed_loop_is_noticed_also_when_a_call_is_on_its_way():
    loop = asyncio.new_event_loop()
    sink = LoopSink(loop)
    sink.deliver([])
    loop.close()
    with pytest.raises(RuntimeError):
        sink.deliver([])


def test_a_stream_of_a_closed_loop_is_cancelled_and_the_engine_goes_on():
    running = engine(n_cells=200_000)

    async def leave() -> None:
        stream = AsyncStream(1)
        running.submit([job(stream.tickets[0], 150_000)])
        await stream.receive()

    asyncio.run(leave())
    stream = ThreadStream(1)
    running.submit([job(stream.tickets[0], 5)])
    assert words([event for _, event in stream]) == continuation([1, 2, 3], 5)
    running.close()
    assert running.gauges().n_running == 0


def test_leaving_a_thread_stream_early_cancels_its_work():
    running = engine(n_cells=200_000)
    stream = ThreadStream(1)
    running.submit([job(stream.tickets[0], 150_000)])
    for _, event in stream:
        if isinstance(event, Text):
            break
    assert stream.tickets[0].is_cancelled
    running.close()


def test_threads_read_at_the_same_time():
    running = engine(n_seq=8)
    results: dict[int, list[int]] = {}

    def read(first: int) -> None:
        stream = ThreadStream(1)
        running.submit([job(stream.tickets[0], 30, first)])
        results[first] = words([event for _, event in stream])

    threads = [threading.Thread(target=read, args=(i,)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {i: continuation([i, 2, 3], 30) for i in range(1, 9)}
    running.close()
