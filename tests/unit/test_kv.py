"""The KV cache under the engine: what is shared, kept, given up, and by whom."""

from __future__ import annotations

import pytest

from ponytail.engine.kv import KV
from ponytail.errors import DecodeError, OutOfCells
from ponytail.types import Failed, Finished
from tests.engine_driver import Driver
from tests.fakes import FakeBackend, continuation

LAYOUTS = ("split", "shared")


def words(first: int, n: int) -> list[int]:
    return [100 + (first * 131 + i * 7) % 800 for i in range(n)]


def driver(
    layout: str,
    n_parallel: int = 4,
    n_cells: int = 512,
    n_idle: int = 12,
    kv: dict[str, object] | None = None,
    **backend: object,
) -> Driver:
    is_shared = layout == "shared"
    fake = FakeBackend(
        n_seq=n_parallel + n_idle if is_shared else n_parallel,
        n_cells=n_cells,
        is_shared=is_shared,
        **backend,  # type: ignore[arg-type]
    )
    return Driver(fake, kv=KV(fake, **(kv or {})), n_parallel=n_parallel)  # type: ignore[arg-type]


def assert_right(run: Driver, asked: list[tuple[object, list[int], int]]) -> None:
    for ticket, prompt, n_max in asked:
        end = run.recorder.end(ticket)  # type: ignore[arg-type]
        assert isinstance(end, Finished), end
        assert run.recorder.tokens(ticket) == continuation(prompt, n_max)  # type: ignore[arg-type]


def cached(run: Driver, ticket: object) -> int:
    end = run.recorder.end(ticket)  # type: ignore[arg-type]
    assert isinstance(end, Finished)
    return end.usage.n_cached


# -- sharing -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_common_prefix_is_computed_once_however_many_ask_at_once(layout):
    run = driver(layout, n_parallel=16, n_cells=8000)
    stem = words(1, 300)
    asked = []
    for i in range(16):
        prompt = [*stem, *words(50 + i, 10)]
        asked.append((run.submit(prompt, 6), prompt, 6))
    run.run()
    assert_right(run, asked)
    n_prompts = run.engine.counters.n_prompt_computed
    assert n_prompts <= 300 + 16 * 10 + 8
    assert sum(cached(run, ticket) for ticket, _, _ in asked) >= 15 * 295


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_shares_a_prefix_goes_on_from_it_together(layout):
    run = driver(layout, n_parallel=8, n_cells=4000, n_batch=512)
    stem = words(1, 500)
    tickets = [run.submit([*stem, *words(60 + i, 20)], 10) for i in range(8)]
    while not any(run.recorder.tokens(ticket) for ticket in tickets):
        run.step()
    # Else the first would be answering, under a bound of time, while the others still read.
    assert run.engine.counters.n_prompt_computed >= 500 + 3 * 20


def test_shared_sequences_hold_their_prefix_once():
    run = driver("shared", n_parallel=8, n_cells=600)
    stem = words(1, 400)
    tickets = [run.submit([*stem, *words(60 + i, 4)], 8) for i in range(8)]
    run.run()
    assert all(isinstance(run.recorder.end(t), Finished) for t in tickets)
    assert run.engine.kv.counters.preemptions == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_when_the_owner_of_a_prefix_dies_its_heirs_go_on_from_there(layout):
    run = driver(layout, n_parallel=3, n_cells=2000)
    stem = words(1, 600)
    owner = run.submit([*stem, 5], 4)
    run.step()
    heirs = [(run.submit([*stem, 20 + i], 4), [*stem, 20 + i], 4) for i in range(2)]
    for _ in range(4):
        run.step()
    n_before = run.engine.counters.n_prompt_computed
    assert 100 < n_before < 600
    owner.cancel()
    run.run()
    assert_right(run, heirs)
    assert run.engine.counters.n_prompt_computed <= 600 + 2 * 2 + 16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_newcomer_takes_the_prefix_of_a_running_stream(layout):
    run = driver(layout, n_cells=4000)
    stem = words(1, 500)
    run.submit([*stem, 3], 60)
    for _ in range(15):
        run.step()
    late = run.submit([*stem, 4], 3)
    run.run()
    assert cached(run, late) >= 0.95 * 500


@pytest.mark.parametrize("layout", LAYOUTS)
def test_side_requests_do_not_evict_a_long_prefix(layout):
    run = driver(layout, n_parallel=4, n_cells=4000, kv={"ram_bytes": 1 << 20})
    stem = words(1, 1000)
    run.submit([*stem, 3], 4)
    run.run()
    for i in range(9):
        run.submit(words(30 + i, 40), 4)
        run.run()
    again = run.submit([*stem, 4], 4)
    run.run()
    assert cached(run, again) >= 0.95 * 1000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_alternating_agents_keep_their_prefixes(layout):
    run = driver(layout, n_parallel=4, n_cells=2600, kv={"ram_bytes": 1 << 20})
    stems = [words(40 + i, 500) for i in range(8)]
    for turn in range(3):
        for stem in stems:
            ticket = run.submit([*stem, 10 + turn], 4)
            run.run()
            if turn:
                assert cached(run, ticket) >= 0.95 * 500


# -- running out ---------------------------------------------------------------------------


@pytest.mark.parametrize("ram_bytes", [0, 1 << 20])
def test_streams_of_four_times_the_cells_all_end_with_their_own_text(ram_bytes):
    run = driver("shared", n_parallel=16, n_cells=1024, kv={"ram_bytes": ram_bytes})
    asked = []
    for i in range(16):
        prompt = words(10 + i, 100)
        asked.append((run.submit(prompt, 156), prompt, 156))
    run.run(20_000)
    assert_right(run, asked)
    counters = run.engine.kv.counters
    assert counters.preemptions > 0
    assert (counters.recomputed > 0) == (ram_bytes == 0)
    assert all(cached(run, ticket) == 0 for ticket, _, _ in asked)


def test_the_oldest_never_gives_way():
    run = driver("shared", n_parallel=6, n_cells=400)
    tickets = [run.submit(words(10 + i, 60), 200) for i in range(6)]
    order: list[int] = []
    while len(order) < 6:
        run.step()
        for i, ticket in enumerate(tickets):
            if i not in order and run.recorder.ends(ticket):
                order.append(i)
    assert order == sorted(order)


def test_a_cold_prefix_goes_before_a_running_request_gives_way():
    run = driver("shared", n_parallel=2, n_cells=512)
    run.submit(words(1, 300), 4)
    run.run()
    assert run.engine.kv.cells.n_used > 300
    prompt = words(2, 200)
    ticket = run.submit(prompt, 250)
    run.run()
    assert_right(run, [(ticket, prompt, 250)])
    assert run.engine.kv.counters.preemptions == 0
    assert run.engine.kv.counters.evictions > 0


def test_eviction_takes_the_cold_end_of_a_prefix_and_leaves_the_stem():
    run = driver("shared", n_parallel=1, n_cells=400)
    stem = words(1, 100)
    for i in range(3):
        run.submit([*stem, *words(20 + i, 80)], 2)
        run.run()
    run.submit(words(9, 200), 2)
    run.run()
    again = run.submit([*stem, *words(33, 20)], 2)
    run.run()
    assert cached(run, again) == 100


def test_a_backend_that_finds_fewer_cells_than_counted_harms_nobody():
    run = driver("shared", n_parallel=3, n_cells=2000)
    asked = []
    for i in range(3):
        prompt = words(10 + i, 50)
        asked.append((run.submit(prompt, 40), prompt, 40))
    refusals = iter([True] * 5)

    def refuse(rows):
        if len(rows) > 1 and next(refusals, False):
            raise OutOfCells("injected")

    for _ in range(6):
        run.step()
    run.backend.on_decode = refuse
    run.run()
    assert_right(run, asked)
    assert run.engine.kv.counters.preemptions > 0


def test_a_state_that_cannot_be_read_costs_time_and_no_request():
    def fault(seq_id):
        raise DecodeError("injected")

    run = driver("shared", n_parallel=8, n_cells=512, kv={"ram_bytes": 1 << 20}, state_fault=fault)
    asked = []
    for i in range(8):
        prompt = words(10 + i, 60)
        asked.append((run.submit(prompt, 100), prompt, 100))
    run.run(20_000)
    assert_right(run, asked)
    assert run.engine.kv.counters.recomputed > 0
    assert run.engine.kv.tiers.n_parked_bytes == 0


def test_a_cancelled_request_that_had_given_way_leaves_nothing():
    run = driver("shared", n_parallel=4, n_cells=300, kv={"ram_bytes": 1 << 20})
    tickets = [run.submit(words(10 + i, 60), 200) for i in range(4)]
    while not run.engine.kv.tiers.n_parked_bytes:
        run.step()
    for ticket in tickets[1:]:
        ticket.cancel()
    run.step()
    assert run.engine.kv.tiers.n_parked_bytes == 0
    run.run()
    assert [type(run.recorder.end(t)) for t in tickets] == [Finished, Failed, Failed, Failed]


# -- host RAM ------------------------------------------------------------------------------


def test_ram_holds_its_budget_and_skips_what_is_larger_than_all_of_it():
    reads: list[int] = []
    run = driver(
        "split", n_parallel=1, n_cells=2000, kv={"ram_bytes": 4 * 500}, state_fault=reads.append
    )
    run.submit(words(1, 900), 2)
    run.run()
    run.submit(words(2, 200), 2)
    run.run()
    # 900 tokens were not even read.
    assert (reads, run.engine.kv.tiers.n_bytes) == ([], 0)
    for i in range(6):
        run.submit(words(3 + i, 200), 2)
        run.run()
        assert run.engine.kv.tiers.n_bytes <= 4 * 500
    assert len(reads) == 6
    newest_in_ram = run.submit([*words(7, 200), 5], 2)
    run.run()
    assert cached(run, newest_in_ram) == 200


def test_no_ram_means_no_ram():
    reads: list[int] = []
    run = driver("split", n_parallel=1, state_fault=reads.append)
    for i in range(3):
        run.submit(words(1 + i, 200), 2)
        run.run()
    assert reads == []


# -- after the load ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_server_that_has_nothing_to_do_goes_back_to_the_memory_of_its_start(layout):
    kv = {"n_max_cells": 4000, "ram_bytes": 1 << 20, "idle_ram_bytes": 4 * 1000}
    run = driver(layout, n_parallel=4, n_cells=256, kv=kv)
    stems = [words(10 + i, 600) for i in range(4)]
    for stem in stems:
        run.submit(stem, 4)
    run.run()
    assert run.backend.n_cells > 256
    assert run.engine.kv.elastic.n_growths > 0
    while run.engine.kv.can_shrink:
        run.engine.kv.shrink()
        run.engine.kv.elastic.poll()
        run.check()
    assert run.backend.n_cells == 256
    assert 0 < run.engine.kv.tiers.n_bytes <= 4 * 1000
    hits = []
    for stem in stems:
        ticket = run.submit([*stem, 5], 4)
        run.run()
        hits.append(cached(run, ticket))
    assert max(hits) == 600


def test_work_that_comes_while_cells_shrink_keeps_the_larger_ones():
    run = driver("split", n_cells=256, kv={"n_max_cells": 4000}, resize_polls=5)
    run.submit(words(1, 600), 4)
    run.run()
    n_cells = run.backend.n_cells
    run.engine.kv.shrink()
    prompt = words(2, 500)
    ticket = run.submit(prompt, 4)
    run.run()
    assert run.backend.n_cells == n_cells
    assert_right(run, [(ticket, prompt, 4)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_memory_for_more_cells_ends_who_needs_them_and_nobody_else(layout):
    def refuse(n_cells):
        raise DecodeError("no memory")

    run = driver(layout, n_parallel=2, n_cells=256, kv={"n_max_cells": 4000}, resize_fault=refuse)
    small = words(1, 40)
    fine = run.submit(small, 20)
    large = run.submit(words(2, 900), 4)
    run.run()
    assert_right(run, [(fine, small, 20)])
    assert "no memory for more KV cells" in str(run.recorder.end(large).error)


# -- memory that cannot be cut -------------------------------------------------------------


def test_uncuttable_memory_reuses_marks_and_whole_conversations():
    run = driver("split", n_parallel=1, n_cells=2000, can_cut=False, kv={"ram_bytes": 1 << 20})
    system, user = words(1, 300), words(2, 50)
    first = [*system, *user]
    marks = (300, 350)
    ticket = run.submit(first, 5, marks=marks)
    run.run()
    answer = run.recorder.tokens(ticket)
    second = [*first, *answer, *words(3, 40)]
    follow = run.submit(second, 5, marks=(300, 350, len(second)))
    run.run()
    assert cached(run, follow) == len(first) + 4
    other = [*system, *words(8, 60)]
    sibling = run.submit(other, 5, marks=(300, 360))
    run.run()
    assert cached(run, sibling) == 300
    assert_right(run, [(follow, second, 5), (sibling, other, 5)])


def test_uncuttable_memory_computes_a_common_start_once():
    run = driver("split", n_parallel=4, n_cells=2000, can_cut=False, kv={"ram_bytes": 1 << 20})
    asked = []
    for i in range(4):
        prompt = [*words(1, 400), *words(9 + i, 20)]
        asked.append((run.submit(prompt, 4, marks=(400, 420)), prompt, 4))
    run.run()
    assert_right(run, asked)
    assert run.engine.counters.n_prompt_computed == 400 + 4 * 20


# -- past the window -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_a_shift_an_answer_outgrows_the_window_and_still_obeys_its_limit(layout):
    fake = FakeBackend(n_seq=4, n_cells=200, is_shared=layout == "shared")
    run = Driver(fake, kv=KV(fake), n_parallel=2, n_ctx=100)
    prompt = words(1, 40)
    long = run.submit(prompt, 300, n_keep=10)
    short = words(2, 30)
    beside = run.submit(short, 60)
    run.run()
    end = run.recorder.end(long)
    assert (end.reason, end.usage.n_completion) == ("length", 300)
    assert end.usage.n_prompt == 40
    tokens = run.recorder.tokens(long)
    assert tokens[:60] == continuation(prompt, 60)
    assert_right(run, [(beside, short, 60)])
    again = run.submit([*prompt, 7], 3)
    run.run()
    assert_right(run, [(again, [*prompt, 7], 3)])


def test_what_others_share_is_not_shifted_away_from_them():
    fake = FakeBackend(n_seq=8, n_cells=300, is_shared=True)
    run = Driver(fake, kv=KV(fake), n_parallel=2, n_ctx=100)
    stem = words(1, 60)
    long = run.submit([*stem, 3], 200, n_keep=1)
    late = [*stem, 4]
    beside = run.submit(late, 30)
    run.run()
    assert run.recorder.end(long).usage.n_completion == 200
    assert_right(run, [(beside, late, 30)])
