"""Random work against the naive model: whatever happens, every survivor's text is right."""

from __future__ import annotations

import random

import pytest

from ponytail.errors import DecodeError, Overloaded
from ponytail.types import Failed, Finished
from tests.engine_driver import Driver
from tests.fakes import FakeBackend, continuation


class Fuzz:
    """Submits, cancels and breaks at random; prompts share prefixes often."""

    def __init__(self, seed: int, *, can_cut: bool) -> None:
        self.random = random.Random(seed)
        self.backend = FakeBackend(
            n_seq=self.random.choice([1, 3, 6]),
            n_batch=48,
            n_cells=400,
            can_cut=can_cut,
            keeps_batches=False,
        )
        self.backend.decode_fault = self.break_sometimes
        self.driver = Driver(self.backend, max_queue=8)
        self.stems = [[self.random.randrange(100, 900) for _ in range(90)] for _ in range(3)]
        self.asked: list[tuple[object, list[int], int]] = []

    def break_sometimes(self, rows: object) -> None:
        if self.random.random() < 0.02:
            raise DecodeError("injected")

    def submit(self) -> None:
        stem = self.random.choice(self.stems)[: self.random.randrange(1, 90)]
        tail = [self.random.randrange(100, 900) for _ in range(self.random.randrange(1, 30))]
        prompt, n_max = stem + tail, self.random.randrange(1, 25)
        jobs = [self.driver.job(prompt, n_max) for _ in range(self.random.choice([1, 1, 1, 3]))]
        try:
            self.driver.engine.submit(jobs)
        except Overloaded:
            return
        self.asked += [(job.ticket, prompt, n_max) for job in jobs]

    def act(self) -> None:
        roll = self.random.random()
        if roll < 0.25:
            self.submit()
        elif roll < 0.30 and self.asked:
            self.random.choice(self.asked)[0].cancel()  # type: ignore[attr-defined]
        else:
            self.driver.step()

    def check(self) -> None:
        self.driver.run()
        n_finished = 0
        for ticket, prompt, n_max in self.asked:
            end = self.driver.recorder.end(ticket)  # type: ignore[arg-type]
            tokens = self.driver.recorder.tokens(ticket)  # type: ignore[arg-type]
            expected = continuation(prompt, n_max)
            assert tokens == expected[: len(tokens)]
            if isinstance(end, Finished):
                n_finished += 1
                assert tokens == expected
            else:
                assert isinstance(end, Failed)
        assert n_finished > 0.5 * len(self.asked)
        assert all(s.n_closed == 1 for s in self.backend.samplers)
        assert self.driver.engine.gauges().n_queued == 0


@pytest.mark.parametrize("can_cut", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_random_operations(seed, can_cut):
    fuzz = Fuzz(seed, can_cut=can_cut)
    for _ in range(400):
        fuzz.act()
    fuzz.check()
