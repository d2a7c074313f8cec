"""Texts read beside the choices: all of them, in bounded pieces, fair between requests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponytail.engine.engine import Engine
from ponytail.engine.side_work import Part, SideWork, Vector, Work
from ponytail.engine.stats import Counters
from ponytail.errors import EngineFailed, Overloaded, ShuttingDown
from tests.engine_driver import Driver
from tests.fakes import FakeBackend


class FakeReader:
    """A text's vector is (sum of its tokens); keeps to the rules of `Reader`."""

    def __init__(self, *, can_split: bool = True, n_batch: int = 16, n_texts: int = 4) -> None:
        self.can_split, self.n_batch, self.n_texts = can_split, n_batch, n_texts
        self.calls: list[list[Part]] = []
        self.total = self.n_read = 0
        self.fails_on: int | None = None

    def read(self, parts: Sequence[Part]) -> list[Vector | Exception | None]:
        assert 0 < len(parts) <= self.n_texts
        assert sum(end - start for _, start, end in parts) <= max(
            self.n_batch, 0 if self.can_split else len(parts[0][0])
        )
        is_whole = [start == 0 and end == len(tokens) for tokens, start, end in parts]
        assert all(is_whole) or (len(parts) == 1 and self.can_split)
        self.calls.append(list(parts))
        if any(self.fails_on in tokens for tokens, _, _ in parts):
            raise RuntimeError("broken")
        if all(is_whole):
            return [
                EngineFailed("no vector") if 8 in tokens else array("f", [sum(tokens)])
                for tokens, _, _ in parts
            ]
        ((tokens, start, end),) = parts
        assert start in (0, self.n_read), "a long text goes on where it was left"
        self.n_read = end
        self.total = sum(tokens[start:end]) + (self.total if start else 0)
        return [array("f", [self.total]) if end == len(tokens) else None]


def side(reader: FakeReader, *, max_requests: int = 8) -> SideWork:
    ticks = iter(range(10**6))
    return SideWork(reader, Counters(), 2.0, max_requests, lambda: float(next(ticks)), lambda: None)


def run_all(work: SideWork, *, is_busy: bool = False) -> None:
    while not work.is_empty:
        work.run(is_busy=is_busy)


def values(work: Work) -> list[float]:
    return [vector[0] for vector in work.future.result(timeout=0)]


TEXTS = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=40), min_size=1, max_size=8)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_every_text_gets_its_own_vector(
    requests: list[list[list[int]]], can_split: bool, is_busy: bool
) -> None:
    """Whatever is packed together or parted: each vector is that of its text alone."""
    queue = side(FakeReader(can_split=can_split, n_batch=16 if can_split else 40))
    works = [Work(texts) for texts in requests]
    for work in works:
        queue.submit(work)
    run_all(queue, is_busy=is_busy)
    for work, texts in zip(works, requests, strict=True):
        assert values(work) == [sum(tokens) for tokens in texts]


def test_short_texts_share_a_call_and_long_ones_are_parted() -> None:
    reader = FakeReader()
    queue = side(reader)
    queue.submit(Work([[1] * 4] * 3 + [[1] * 40]))
    run_all(queue)
    assert [len(parts) for parts in reader.calls] == [3, 1, 1, 1]
    assert [(start, end) for parts in reader.calls[1:] for _, start, end in parts] == [
        (0, 16),
        (16, 32),
        (32, 40),
    ]


def test_a_step_takes_less_while_choices_run() -> None:
    reader = FakeReader(n_batch=512)
    queue = side(reader)
    queue.submit(Work([[1] * 2000]))
    # The clock says one second a call: 64 tokens, then what half of a step of 2 s has room for.
    queue.run(is_busy=True)
    queue.run(is_busy=True)
    queue.run(is_busy=False)
    sizes = [end - start for parts in reader.calls for _, start, end in parts]
    assert sizes == [64, 64, 512]


def test_a_small_request_need_not_wait_for_a_large_one() -> None:
    reader = FakeReader(n_texts=2)
    queue = side(reader)
    large, small = Work([[1]] * 100), Work([[5]])
    queue.submit(large)
    queue.submit(small)
    queue.run(is_busy=False)
    assert values(small) == [5]
    assert not large.future.done()


def test_short_texts_are_read_between_the_parts_of_long_ones() -> None:
    reader = FakeReader()
    queue = side(reader)
    queue.submit(Work([[1] * 160] * 3))
    queue.run(is_busy=False)
    for _ in range(3):
        short = Work([[7]])
        queue.submit(short)
        queue.run(is_busy=False)
        queue.run(is_busy=False)
        assert values(short) == [7]
    run_all(queue)


def test_a_call_that_fails_ends_its_requests_and_no_others() -> None:
    reader = FakeReader(n_texts=1)
    reader.fails_on = 7
    queue = side(reader)
    bad, good = Work([[1], [7], [2]]), Work([[3], [4]])
    queue.submit(bad)
    queue.submit(good)
    run_all(queue)
    assert values(good) == [3, 4]
    with pytest.raises(EngineFailed):
        bad.future.result(timeout=0)


def test_a_text_without_a_vector_fails_its_own_request_alone() -> None:
    queue = side(FakeReader())
    bad, good = Work([[8]]), Work([[3]])
    queue.submit(bad)
    queue.submit(good)
    queue.run(is_busy=False)
    assert values(good) == [3]
    with pytest.raises(EngineFailed):
        bad.future.result(timeout=0)


def test_a_cancelled_request_is_not_read_on() -> None:
    reader = FakeReader()
    queue = side(reader)
    gone, stays = Work([[1] * 100]), Work([[2] * 20])
    queue.submit(gone)
    queue.submit(stays)
    queue.run(is_busy=False)
    gone.future.cancel()
    run_all(queue)
    assert values(stays) == [40]
    assert sum(end - start for parts in reader.calls for _, start, end in parts) == 16 + 20


def test_queue_is_bounded_and_frees_its_places() -> None:
    queue = side(FakeReader(), max_requests=2)
    for _ in range(2):
        queue.submit(Work([[1]]))
    with pytest.raises(Overloaded, match="--max-queue"):
        queue.submit(Work([[1]]))
    run_all(queue)
    queue.submit(Work([[1]]))


def test_closing_refuses_and_fails_what_is_left() -> None:
    queue = side(FakeReader())
    left = Work([[1] * 100])
    queue.submit(left)
    queue.run(is_busy=False)
    queue.close()
    with pytest.raises(ShuttingDown):
        queue.submit(Work([[1]]))
    queue.fail_all(ShuttingDown("now"))
    assert queue.is_empty
    with pytest.raises(ShuttingDown):
        left.future.result(timeout=0)


def test_engine_reads_beside_a_running_choice_and_both_are_right() -> None:
    driver = Driver(reader=FakeReader())
    ticket = driver.submit([1, 2, 3], 20)
    work = Work([[1] * 50, [2] * 5])
    driver.engine.side.submit(work)
    driver.run()
    assert values(work) == [50, 10]
    assert len(driver.recorder.tokens(ticket)) == driver.recorder.end(ticket).usage.n_completion


def test_engine_thread_wakes_for_side_work_alone_and_finishes_it_before_it_closes() -> None:
    engine = Engine(FakeBackend(), reader=FakeReader())
    engine.start()
    work = Work([[1] * 500])
    engine.side.submit(work)
    engine.close(grace_s=5)
    assert values(work) == [500]


def test_engine_that_must_close_at_once_fails_it() -> None:
    engine = Engine(FakeBackend(), reader=FakeReader())
    work = Work([[1] * 500])
    engine.side.submit(work)
    engine.close(grace_s=0)
    engine.start()
    with pytest.raises(ShuttingDown):
        work.future.result(timeout=5)
