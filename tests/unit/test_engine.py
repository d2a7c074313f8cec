"""The engine on the fake backend: correct text, sharing, order, cancellation, queue."""

from __future__ import annotations

import pytest

from ponytail.errors import Overloaded
from ponytail.text.output import Output
from ponytail.types import Failed, Finished, Started, Text
from tests.engine_driver import PIECES, Driver, prompt
from tests.fakes import EOG, FakeBackend, continuation, decode_fault_for


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
