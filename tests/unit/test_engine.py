"""The engine on the fake backend: correct text, isolation, cancellation, ends."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

import pytest

from ponytail.engine.engine import Engine
from ponytail.engine.sequence import Mail
from ponytail.errors import DecodeError, Overloaded, SampleError, ShuttingDown
from ponytail.text.output import Output
from ponytail.types import Failed, Finished, Sampling, Started, Text
from tests.engine_driver import PIECES, Driver, Recorder
from tests.fakes import EOG, FakeBackend, continuation, decode_fault_for


def prompt(first: int, n: int = 5) -> list[int]:
    return [first, *range(100, 100 + n - 1)]


def test_alone_gives_the_models_text():
    driver = Driver()
    ticket = driver.submit(prompt(1), n_max=6)
    driver.run()
    assert driver.recorder.tokens(ticket) == continuation(prompt(1), 6)
    end = driver.recorder.end(ticket)
    assert (end.reason, end.usage.n_prompt, end.usage.n_completion) == ("length", 5, 6)
    assert driver.recorder.of(ticket)[0] == Started(n_prompt=5, n_cached=0)


@pytest.mark.parametrize("lengths", [(5, 5, 5, 5), (1, 40, 7, 130, 64, 65, 3, 200)])
def test_batched_equals_alone(lengths):
    driver = Driver(FakeBackend(n_seq=3))
    prompts = [[i + 20, *range(100, 100 + n - 1)] for i, n in enumerate(lengths)]
    tickets = [driver.submit(p, n_max=10 + i) for i, p in enumerate(prompts)]
    driver.run()
    for i, (p, ticket) in enumerate(zip(prompts, tickets, strict=True)):
        assert driver.recorder.tokens(ticket) == continuation(p, 10 + i)


def test_end_token_ends_with_stop_and_without_its_text():
    driver = Driver(FakeBackend(script=lambda history: [50, 51, EOG]))
    ticket = driver.submit(prompt(1), n_max=10)
    driver.run()
    assert driver.recorder.tokens(ticket) == [50, 51]
    assert driver.recorder.end(ticket).reason == "stop"


def test_stop_string_over_tokens_ends_the_choice_at_once():
    driver = Driver(FakeBackend(script=lambda history: [50, 51, 52, 53]))
    ticket = driver.submit(prompt(1), n_max=10, output=Output(PIECES, ["1 52"]))
    driver.run()
    text = "".join(e.text for e in driver.recorder.of(ticket) if isinstance(e, Text))
    end = driver.recorder.end(ticket)
    assert text == "50 5"
    assert (end.reason, end.stop, end.usage.n_completion) == ("stop", "1 52", 3)


def test_more_requests_than_slots_all_finish_in_order_of_arrival():
    driver = Driver(FakeBackend(n_seq=2), max_queue=50)
    tickets = [driver.submit(prompt(i + 1), n_max=3) for i in range(9)]
    ended: list[int] = []
    while not driver.engine.is_idle:
        driver.step()
        ended += [t.index for t in tickets if driver.recorder.ends(t) and t.index not in ended]
    assert ended == sorted(ended)


# -- sharing ---------------------------------------------------------------------------------


def test_second_turn_computes_only_what_is_new():
    driver = Driver()
    first = list(range(100, 160))
    driver.submit(first, n_max=5)
    driver.run()
    second = [*first, *continuation(first, 5), 7, 8, 9]
    before = driver.backend.n_computed
    ticket = driver.submit(second, n_max=1)
    driver.run()
    # The last generated token was never computed.
    assert driver.recorder.end(ticket).usage.n_cached == len(first) + 4
    assert driver.backend.n_computed - before == len(second) - (len(first) + 4)
    assert driver.recorder.tokens(ticket) == continuation(second, 1)


def test_prefix_of_a_running_request_is_reused_while_it_runs():
    driver = Driver()
    common = list(range(100, 150))
    running = driver.submit([*common, 1], n_max=40)
    for _ in range(5):
        driver.step()
    newcomer = driver.submit([*common, 2], n_max=3)
    driver.run()
    assert driver.recorder.end(newcomer).usage.n_cached == len(common)
    assert driver.recorder.tokens(newcomer) == continuation([*common, 2], 3)
    assert driver.recorder.tokens(running) == continuation([*common, 1], 40)


def test_requests_that_arrive_together_pay_for_their_prefix_once():
    driver = Driver(FakeBackend(n_seq=8))
    common = list(range(100, 400))
    tickets = [driver.submit([*common, i], n_max=4) for i in range(8)]
    driver.run()
    n_prompt_computed = driver.backend.n_computed - 8 * 3
    assert n_prompt_computed <= 1.05 * len(common) + 8
    for i, ticket in enumerate(tickets):
        assert driver.recorder.tokens(ticket) == continuation([*common, i], 4)


@pytest.mark.parametrize("death", ["cancel", "fault"])
def test_waiters_go_on_when_the_one_they_wait_for_dies(death):
    backend = FakeBackend(n_seq=4)
    driver = Driver(backend)
    common = list(range(100, 400))
    tickets = [driver.submit([*common, i], n_max=4) for i in range(4)]
    driver.step()
    driver.step()
    if death == "cancel":
        tickets[0].cancel()
    else:
        owner = driver.engine.kv.live()[0]
        backend.decode_fault = decode_fault_for(owner.tokens[owner.n_computed])
        driver.step()
        backend.decode_fault = lambda rows: None
    driver.run()
    assert isinstance(driver.recorder.end(tickets[0]), Failed)
    for i in (1, 2, 3):
        assert driver.recorder.tokens(tickets[i]) == continuation([*common, i], 4)


def test_choices_of_one_request_share_their_prompt():
    driver = Driver(FakeBackend(n_seq=4))
    ids = list(range(100, 300))
    jobs = [driver.job(ids, n_max=3) for _ in range(8)]
    driver.engine.submit(jobs)
    driver.run()
    assert driver.backend.n_computed <= len(ids) + 8 * 3 + 8
    for job in jobs:
        assert driver.recorder.tokens(job.ticket) == continuation(ids, 3)


def test_a_short_request_does_not_evict_a_long_cached_prefix():
    driver = Driver(FakeBackend(n_seq=3))
    long = list(range(100, 300))
    driver.submit(long, n_max=2)
    driver.run()
    for i in range(5):
        driver.submit([*list(range(100, 120)), i, 5, 6], n_max=2)
        driver.run()
    again = driver.submit([*long, 3], n_max=2)
    driver.run()
    assert driver.recorder.end(again).usage.n_cached >= len(long)


def test_memory_that_cannot_be_cut_stays_correct():
    driver = Driver(FakeBackend(n_seq=3, can_cut=False))
    first = list(range(100, 150))
    prompts = [first, [*first, 3], [*first, *continuation(first, 5)[:4], 9], [*first, 4], first]
    for p in prompts:
        ticket = driver.submit(p, n_max=5)
        driver.run()
        assert driver.recorder.tokens(ticket) == continuation(p, 5)


# -- order of rows ---------------------------------------------------------------------------


def test_active_rows_lie_side_by_side_after_others_ended():
    driver = Driver(FakeBackend(n_seq=6))
    tickets = [driver.submit(prompt(i + 1), n_max=4 if i in (1, 3) else 30) for i in range(6)]
    while not all(driver.recorder.ends(tickets[i]) for i in (1, 3)):
        driver.step()
    driver.step()
    ids = [row[0] for row in driver.backend.batches[-1]]
    assert ids == list(range(ids[0], ids[0] + 4))
    driver.run()
    for i in (0, 2, 4, 5):
        assert driver.recorder.tokens(tickets[i]) == continuation(prompt(i + 1), 30)


# -- cancel ----------------------------------------------------------------------------------


def test_cancel_takes_effect_within_one_step_at_every_stage():
    driver = Driver(FakeBackend(n_seq=2, n_batch=16))
    decoding = driver.submit(prompt(1), n_max=100)
    driver.step()
    driver.step()
    prefilling = driver.submit(list(range(200, 500)), n_max=5)
    queued = driver.submit(prompt(3), n_max=5)
    driver.step()
    for ticket in (decoding, prefilling, queued):
        assert not driver.recorder.ends(ticket)
        ticket.cancel()
        ticket.cancel()
    n_before = driver.backend.n_computed
    driver.step()
    for ticket in (decoding, prefilling, queued):
        assert driver.recorder.end(ticket).error.code == "cancelled"
    assert driver.backend.n_computed == n_before
    assert driver.engine.is_idle
    assert driver.engine.gauges().n_running == driver.engine.gauges().n_queued == 0


def test_cancel_of_one_does_not_touch_another():
    driver = Driver()
    a, b = driver.submit(prompt(1), n_max=20), driver.submit(prompt(2), n_max=20)
    for _ in range(4):
        driver.step()
    a.cancel()
    driver.run()
    assert driver.recorder.tokens(b) == continuation(prompt(2), 20)


# -- queue -----------------------------------------------------------------------------------


def test_queue_bound_refuses_at_once_with_a_wait():
    driver = Driver(FakeBackend(n_seq=1), max_queue=2)
    tickets = [driver.submit(prompt(i), n_max=3) for i in range(1, 4)]
    with pytest.raises(Overloaded) as refused:
        driver.submit(prompt(9))
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s >= 1
    driver.run()
    assert all(isinstance(driver.recorder.end(t), Finished) for t in tickets)
    driver.submit(prompt(9))
    driver.run()


def test_a_request_with_many_choices_counts_once_and_keeps_nobody_out():
    driver = Driver(FakeBackend(n_seq=2), max_queue=1)
    jobs = [driver.job([1, 2, 3 + i], n_max=6) for i in range(20)]
    driver.engine.submit(jobs)
    driver.step()
    single = driver.submit(prompt(50), n_max=2)
    ended_before = 0
    while not driver.recorder.ends(single):
        driver.step()
        ended_before = sum(bool(driver.recorder.ends(j.ticket)) for j in jobs)
    assert ended_before < 6
    driver.run()


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


# -- deterministic requests ------------------------------------------------------------------


def test_a_solo_request_is_computed_in_the_same_batches_whatever_else_runs():
    def batches_of_solo(n_others: int) -> list[list[tuple[int, int]]]:
        driver = Driver(FakeBackend(n_seq=4, n_batch=512))
        ids = list(range(100, 400))
        for i in range(n_others):
            driver.submit([*ids[: 50 + i], i], n_max=40, is_streaming=True)
        for _ in range(3 * n_others):
            driver.step()
        solo = driver.submit(ids, n_max=5, is_solo=True)
        driver.step()
        seq_id = next(driver.engine.kv.seq_id(s) for s in driver.engine.kv.live() if s.job.is_solo)
        driver.run()
        assert driver.recorder.tokens(solo) == continuation(ids, 5)
        return [
            [(at, n) for _, at, n in batch]
            for batch in driver.backend.batches
            if any(row[0] == seq_id for row in batch)
        ]

    alone = batches_of_solo(0)
    assert [n for ((_, n),) in alone] == [128, 128, 44, 1, 1, 1, 1]
    assert batches_of_solo(1) == alone
    assert batches_of_solo(3) == alone


def test_a_solo_request_takes_no_cached_prefix():
    driver = Driver()
    ids = list(range(100, 160))
    for _ in range(2):
        ticket = driver.submit(ids, n_max=2, is_solo=True)
        driver.run()
        assert driver.recorder.end(ticket).usage.n_cached == 0


def test_a_burst_that_arrives_in_drops_starts_in_lockstep():
    """The first one's prompt must not be finished before the rest is there."""
    driver = Driver(FakeBackend(n_seq=8, n_batch=512))
    tickets = [driver.submit([1, *range(100, 299)], n_max=30, is_streaming=True)]
    driver.step()
    tickets += [
        driver.submit([i, *range(100, 299)], n_max=30, is_streaming=True) for i in range(2, 9)
    ]
    starts: dict[int, int] = {}
    for n_step in range(60):
        driver.step()
        for ticket in tickets:
            if driver.recorder.of(ticket):
                starts.setdefault(ticket.index, n_step)
    assert max(starts.values()) - min(starts.values()) <= 1


def test_tokens_do_not_wait_for_the_prompt_computed_after_them():
    backend = FakeBackend(n_seq=2, n_batch=64)
    driver = Driver(backend)
    stream = driver.submit(prompt(1), n_max=50, is_streaming=True)
    for _ in range(3):
        driver.step()
    driver.submit(range(200, 320), n_max=2)
    driver.engine.take_inbox(0.0)
    n_seen: list[int] = []
    backend.on_decode = lambda rows: n_seen.append(len(driver.recorder.of(stream)))
    driver.engine.step()
    decoding, prefilling = n_seen
    assert prefilling == decoding + 1
