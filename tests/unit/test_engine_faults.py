"""The engine when something breaks or ends: one request's failure stays its own."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

import pytest

from ponytail.engine.engine import Engine
from ponytail.engine.sequence import Mail
from ponytail.errors import DecodeError, SampleError, ShuttingDown
from ponytail.text.output import Output
from ponytail.types import Failed, Finished, Sampling
from tests.engine_driver import PIECES, Driver, Recorder, prompt
from tests.fakes import FakeBackend, continuation, decode_fault_for

# -- faults ----------------------------------------------------------------------------------


def test_a_row_that_breaks_the_batch_fails_alone():
    driver = Driver(FakeBackend(decode_fault=decode_fault_for(13)))
    good = [driver.submit(prompt(i), n_max=9) for i in (1, 2, 3)]
    bad = driver.submit(prompt(13), n_max=9)
    driver.run()
    assert driver.recorder.end(bad).error.code == "engine_failed"
    for i, ticket in zip((1, 2, 3), good, strict=True):
        assert driver.recorder.tokens(ticket) == continuation(prompt(i), 9)


def test_a_passing_decode_failure_harms_nobody():
    n_calls = 0

    def fail_once(rows: Sequence[object]) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:
            raise DecodeError("injected")

    driver = Driver(FakeBackend(decode_fault=fail_once))
    tickets = [driver.submit(prompt(i), n_max=9) for i in (1, 2, 3)]
    driver.run()
    for i, ticket in zip((1, 2, 3), tickets, strict=True):
        assert driver.recorder.tokens(ticket) == continuation(prompt(i), 9)


def test_decode_failure_on_memory_that_cannot_be_cut_recomputes():
    n_calls = 0

    def fail_once(rows: Sequence[object]) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 6:
            raise DecodeError("injected")

    driver = Driver(FakeBackend(decode_fault=fail_once, can_cut=False))
    tickets = [driver.submit(prompt(i), n_max=9) for i in (1, 2)]
    driver.run()
    for i, ticket in zip((1, 2), tickets, strict=True):
        assert driver.recorder.tokens(ticket) == continuation(prompt(i), 9)


def break_open(driver: Driver) -> None:
    def fault(sampling: Sampling) -> None:
        if sampling.top_k == 13:
            raise RuntimeError("injected")

    driver.backend.open_fault = fault


def break_sample(driver: Driver) -> None:
    def fault(samplers: Sequence[object]) -> None:
        if any(s.sampling.top_k == 13 for s in samplers):  # type: ignore[attr-defined]
            raise RuntimeError("injected")

    driver.backend.sample_fault = fault


def break_pick(driver: Driver) -> None:
    plain = driver.backend._pick

    def pick(sampler: object, seq_id: int) -> object:
        if sampler.sampling.top_k == 13:  # type: ignore[attr-defined]
            return SampleError("injected")
        return plain(sampler, seq_id)  # type: ignore[arg-type]

    driver.backend._pick = pick  # type: ignore[method-assign,assignment]


class BrokenOutput(Output):
    def feed(self, token_id: int) -> str:
        raise RuntimeError("injected")


@pytest.mark.parametrize("stage", [break_open, break_sample, break_pick, None])
def test_whatever_stage_breaks_one_request_ends_once_and_the_others_go_on(stage):
    driver = Driver()
    if stage is not None:
        stage(driver)
    good = [driver.submit(prompt(i), n_max=7) for i in (1, 2)]
    output = Output(PIECES) if stage else BrokenOutput(PIECES)
    bad = driver.submit(prompt(3), n_max=7, sampling=Sampling(top_k=13), output=output)
    driver.run()
    error = driver.recorder.end(bad).error
    assert error.code == "engine_failed"
    assert "injected" not in error.message
    for i, ticket in zip((1, 2), good, strict=True):
        assert driver.recorder.tokens(ticket) == continuation(prompt(i), 7)
    assert all(s.n_closed == 1 for s in driver.backend.samplers)


def test_a_failing_fork_ends_the_one_that_needed_it():
    def fault(src: int, dsts: Sequence[int]) -> None:
        raise DecodeError("injected")

    driver = Driver(FakeBackend(fork_fault=fault))
    common = list(range(100, 150))
    first = driver.submit([*common, 1], n_max=30)
    driver.step()
    second = driver.submit([*common, 2], n_max=3)
    driver.run()
    assert isinstance(driver.recorder.end(second), Failed)
    assert driver.recorder.tokens(first) == continuation([*common, 1], 30)


def test_a_broken_step_fails_what_is_live_and_the_engine_serves_on():
    driver = Driver()
    engine = driver.engine
    engine.start()
    ended = threading.Event()

    class Waiter(Recorder):
        def deliver(self, mail: Mail) -> None:
            super().deliver(mail)
            if any(isinstance(e, Finished | Failed) for _, e in mail):
                ended.set()

    driver.recorder = Waiter()
    learn, engine.cost.observe_decode = engine.cost.observe_decode, None  # type: ignore[method-assign,assignment]
    long = list(range(100, 160))
    broken = driver.submit(long)
    assert ended.wait(10)
    assert driver.recorder.end(broken).error.code == "engine_failed"
    engine.cost.observe_decode = learn  # type: ignore[method-assign]
    # Whatever the broken step left in the cells must not be taken for a prefix.
    driver.backend.store[:] = array("i", [7] * len(driver.backend.store))
    ended.clear()
    again = driver.submit(long, n_max=4)
    assert ended.wait(10)
    assert driver.recorder.tokens(again) == continuation(long, 4)
    ended.clear()
    good = driver.submit(prompt(2), n_max=4)
    assert ended.wait(10)
    assert driver.recorder.tokens(good) == continuation(prompt(2), 4)
    engine.close()


def test_a_reader_that_throws_is_cancelled_and_harms_nobody():
    class Gone:
        def deliver(self, mail: Mail) -> None:
            raise RuntimeError("loop is closed")

    driver = Driver()
    good = driver.submit(prompt(1), n_max=20)
    lost = driver.submit(prompt(2), n_max=2000)
    lost.sink = Gone()
    driver.run(max_steps=60)
    assert driver.recorder.tokens(good) == continuation(prompt(1), 20)


# -- closing ---------------------------------------------------------------------------------


def test_close_with_grace_lets_requests_finish_and_refuses_new_ones():
    backend = FakeBackend()
    started = threading.Event()
    backend.on_decode = lambda rows: started.set()
    driver = Driver(backend)
    driver.engine.start()
    ticket = driver.submit(prompt(1), n_max=50)
    assert started.wait(10)
    driver.engine.close(grace_s=30)
    assert driver.recorder.end(ticket).reason == "length"
    with pytest.raises(ShuttingDown):
        driver.submit(prompt(2))


def test_close_without_grace_ends_running_and_queued_with_an_error():
    backend = FakeBackend(n_seq=1, n_cells=100_000, keeps_batches=False)
    started = threading.Event()
    backend.on_decode = lambda rows: started.set()
    driver = Driver(backend)
    driver.engine.start()
    tickets = [driver.submit(prompt(i), n_max=90_000) for i in (1, 2)]
    assert started.wait(10)
    driver.engine.close()
    for ticket in tickets:
        assert driver.recorder.end(ticket).error.code == "shutting_down"


def test_idle_engine_closes_at_once():
    engine = Engine(FakeBackend())
    engine.start()
    engine.close()
    engine.close()
