"""Plans, costs and thread trials: pure, so checked with plain numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponytail.engine.cost import StepCost
from ponytail.engine.scheduler import MIN_CHUNK, plan
from ponytail.engine.sequence import Group, Job, Sequence, Ticket
from ponytail.engine.threads import ThreadTuner
from ponytail.text.output import Output
from ponytail.types import Sampling
from tests.engine_driver import PIECES, Driver, Recorder
from tests.fakes import FakeBackend


def sequence(n_prompt: int, n_computed: int = 0, n_generated: int = 0, streaming: bool = True):
    job = Job(Ticket(Recorder(), 0), range(n_prompt), Output(PIECES), Sampling(), 1, 9, streaming)
    made: Sequence = Group([job], 0.0).waiting[0]
    made.n_computed, made.n_generated = n_computed, n_generated
    sequence.count = getattr(sequence, "count", 0) + 1  # type: ignore[attr-defined]
    made.order = sequence.count  # type: ignore[attr-defined]
    return made


def decoding(streaming: bool = True) -> Sequence:
    return sequence(50, n_computed=49, n_generated=1, streaming=streaming)


def learnt(
    per_token_s: float, per_kilo_context_s: float = 0.0, tile: int = 1, decode_s: float = 0.01
) -> StepCost:
    cost = StepCost(tile)
    for n in range(1, 9):
        cost.observe_decode(n, decode_s)
    for i in range(60):
        n, context = 64 + 32 * (i % 8), 512.0 * (i % 5)
        each = per_token_s + per_kilo_context_s * context / 1024
        cost.observe_prefill(n, context, 0.005 + n * each)
    return cost


def prefilled(live: list[Sequence], cost: StepCost, n_batch: int = 512) -> list[int]:
    """Tokens each prompt computes, in the order of `live`, 0 for those left out."""
    shares = {id(s): n for s, n in plan(live, n_batch, cost, 0.25).prefilling}
    return [shares.get(id(s), 0) for s in live if not s.is_decoding]


def test_decoding_rows_always_go_in_a_batch_of_their_own():
    live = [decoding(), sequence(1000), decoding(), decoding()]
    steps = plan(live, 512, learnt(0.01), 0.25)
    assert [(s, n) for s, n in steps.decoding] == [(live[0], 1), (live[2], 1), (live[3], 1)]
    assert [s for s, _ in steps.prefilling] == [live[1]]


def test_rows_stay_in_the_order_of_their_ids():
    live = [sequence(100), decoding(), sequence(30), sequence(300), decoding()]
    steps = plan(live, 512, learnt(0.0001), 0.25)
    assert [s for s, _ in steps.prefilling] == [live[0], live[2], live[3]]


def test_prefill_beside_a_stream_is_bounded_in_time():
    (n,) = prefilled([decoding(), sequence(5000)], learnt(0.001))
    assert 0.7 * 235 <= n <= 235


def test_the_budget_follows_the_context():
    cost = learnt(0.001, per_kilo_context_s=0.001)
    (shallow,) = prefilled([decoding(), sequence(9000)], cost)
    (deep,) = prefilled([decoding(), sequence(9000, n_computed=4096)], cost)
    assert deep < 0.35 * shallow


def test_without_a_stream_prompts_share_the_whole_batch():
    cost = learnt(0.01)
    assert prefilled([sequence(200) for _ in range(16)], cost) == [32] * 16
    assert prefilled([decoding(streaming=False), sequence(5000)], cost) == [512]


def test_chunks_are_whole_tiles_so_that_they_stay_on_the_fast_path():
    cost = learnt(0.001, tile=64)
    assert prefilled([decoding(), sequence(5000)], cost) == [192]
    shares = prefilled([sequence(200) for _ in range(16)], cost)
    assert sorted(shares) == [0] * 8 + [64] * 8


def test_prompts_that_take_turns_advance_together():
    cost = learnt(0.001, tile=64)
    live = [sequence(200) for _ in range(16)]
    while max(s.n_todo for s in live):
        for s, n in plan([s for s in live if s.n_todo], 512, cost, 0.25).prefilling:
            s.n_computed += n
        # One may be one share ahead of another, never more.
        assert max(s.n_computed for s in live) - min(s.n_computed for s in live) <= 136


def test_a_step_stretches_for_a_tile_but_not_far():
    assert prefilled([decoding(), sequence(900)], learnt(0.006, tile=64)) == [64]
    (n,) = prefilled([decoding(), sequence(900)], learnt(0.009, tile=64))
    assert MIN_CHUNK <= n <= 26


def test_a_step_stretches_for_the_rest_of_a_prompt_but_not_far():
    cost = learnt(0.001, tile=64)
    assert prefilled([decoding(), sequence(240)], cost) == [240]
    assert prefilled([decoding(), sequence(270)], cost) == [192]
    # The next tile would do, the rest of the prompt would not.
    assert prefilled([decoding(), sequence(90)], learnt(0.0055, tile=64)) == [64]
    # So little is slow anyway.
    (n,) = prefilled([decoding(), sequence(60)], learnt(0.006, tile=64))
    assert n <= 40


def test_a_prompt_always_moves():
    assert prefilled([decoding(), sequence(5000)], learnt(10.0)) == [MIN_CHUNK]


def test_what_short_prompts_leave_goes_to_the_long_ones():
    live = [sequence(10), sequence(1000), sequence(1000)]
    assert prefilled(live, StepCost(), n_batch=510) == [10, 250, 250]


def test_in_a_burst_those_behind_go_first_and_of_equals_the_oldest():
    live = [sequence(400) for _ in range(8)]
    live[0].n_computed = 300
    live.reverse()
    shares = prefilled(live, learnt(0.007), n_batch=40)
    assert sum(shares) == 40
    assert shares[-1] == 0
    assert shares[-2] > 0


def test_beside_a_stream_the_shortest_rest_goes_first_and_of_equals_the_oldest():
    cost = learnt(0.001)
    long, short, nearly_done = sequence(2000), sequence(150), sequence(2000, n_computed=1950)
    assert prefilled([decoding(), long, short, nearly_done], cost)[1:] == [150, 50]
    assert prefilled([decoding(), *[sequence(400) for _ in range(3)]], cost)[1:] == [0, 0]


def test_beside_a_stream_prompts_answer_one_by_one_not_all_at_the_end():
    cost = learnt(0.001, tile=64)
    live = [sequence(256) for _ in range(4)]
    ended_in = []
    for step in range(1, 99):
        for s, n in plan([decoding(), *[s for s in live if s.n_todo]], 512, cost, 0.25).prefilling:
            s.n_computed += n
            if not s.n_todo:
                ended_in.append(step)
        if len(ended_in) == 4:
            break
    assert ended_in == [2, 3, 4, 6]


def test_newcomers_do_not_starve_an_older_prompt():
    """New 64-token prompts keep arriving; the long one must still get its turns."""
    cost = learnt(0.002, tile=64)
    old = sequence(3000)
    for _ in range(600):
        live = [decoding(), old, sequence(64), sequence(64)]
        for s, n in plan(live, 512, cost, 0.25).prefilling:
            s.n_computed += n
        if not old.n_todo:
            return
    raise AssertionError(f"the old prompt still lacks {old.n_todo} tokens")


@given(
    st.lists(st.integers(2, 3000), min_size=1, max_size=20),
    st.integers(0, 8),
    st.sampled_from([1, 64]),
)
def test_a_plan_keeps_its_bounds(lengths, n_decoding, tile):
    live = [decoding() for _ in range(n_decoding)] + [sequence(n) for n in lengths]
    steps = plan(live, 512, learnt(0.001, tile=tile), 0.25)
    assert len(steps.decoding) == n_decoding
    assert 0 < sum(n for _, n in steps.prefilling) <= 512
    assert all(1 <= n <= s.n_todo for s, n in steps.prefilling)


def test_cost_learns_a_changed_machine():
    cost = learnt(0.001)
    for _ in range(40):
        for n in (64, 128, 256):
            cost.observe_prefill(n, 500.0, n * 0.004)
    assert cost.prefill_s(128, 500) == pytest.approx(0.512, rel=0.1)


def test_cost_keeps_the_context_apart_when_all_batches_were_of_one_size():
    """A long prompt alone comes in full batches; its chunks beside a stream need the slope."""
    cost = StepCost(64)
    for i in range(9):
        context = 256.0 + 512 * i
        # Convex, as measured: a straight line through it has a negative intercept.
        cost.observe_prefill(512, context, 0.7 + 0.0005 * context + 4e-8 * context**2)
    assert cost.prefill_s(64, 0) < 0.5 * cost.prefill_s(64, 4096)
    assert cost.prefill_s(64, 4096) == pytest.approx(3.5 / 8, rel=0.3)


def test_a_cost_that_was_far_too_high_is_mended_by_slow_batches_too():
    cost = learnt(0.05, tile=64)
    for _ in range(30):
        cost.observe_prefill(16, 100.0, 0.016, is_tiled=False)
    assert cost.tokens_within(0.25, 100) >= 64


def test_cost_learns_how_slow_the_slow_path_is():
    cost = learnt(0.001, tile=64)
    for _ in range(40):
        cost.observe_prefill(20, 4000.0, 3 * cost.prefill_s(20, 4000), is_tiled=False)
    assert cost.tokens_within(0.05, 4000) == pytest.approx(45 / 3, abs=2)


@given(st.lists(st.tuples(st.integers(1, 512), st.floats(0, 8000), st.floats(0, 5)), max_size=40))
def test_cost_never_predicts_nonsense(steps):
    cost = StepCost(64)
    for n, context, seconds in steps:
        cost.observe_prefill(n, context, seconds, is_tiled=n >= 64)
        assert cost.prefill_s(100, 1000) >= 0
        assert cost.tokens_within(0.25, 1000) >= 0


def test_a_running_stream_is_not_held_up_by_a_long_prompt():
    """On a clock that charges 1 ms a token, no step beside a stream passes the budget much."""
    now = [0.0]
    backend = FakeBackend(n_seq=4, n_batch=512, n_cells=9000)

    def charge(rows):
        now[0] += 0.005 + 0.001 * sum(len(r[2]) for r in rows)

    backend.on_decode = charge
    driver = Driver(backend, clock=lambda: now[0], step_s=0.1)
    driver.submit(range(400), n_max=200, is_streaming=True)
    for _ in range(20):
        driver.step()
    driver.submit(range(1000, 5600), n_max=2, is_streaming=True)
    longest = 0.0
    while not driver.engine.is_idle:
        before = now[0]
        driver.step()
        longest = max(longest, now[0] - before)
    assert longest <= 0.15


def trial(tuner: ThreadTuner, seconds: dict[int, float]) -> int:
    for _ in range(100):
        tuner.observe(seconds[tuner.n_threads])
    assert tuner.is_settled
    return tuner.n_threads


def test_one_thread_fewer_is_kept_when_it_costs_nothing():
    assert trial(ThreadTuner(2), {2: 0.0070, 1: 0.0069}) == 1
    assert trial(ThreadTuner(2), {2: 0.0070, 1: 0.0110}) == 2
    assert trial(ThreadTuner(8), {8: 0.050, 7: 0.049}) == 7
    assert ThreadTuner(1).n_threads == 1
