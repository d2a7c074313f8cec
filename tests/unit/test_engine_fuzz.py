"""Random work against the naive model: whatever happens, every survivor's text is right.

PONYTAIL_FUZZ multiplies the operations (`make soak`).
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from ponytail.engine.kv import KV
from ponytail.errors import DecodeError, Overloaded
from ponytail.types import Failed, Finished
from tests.engine_driver import Driver
from tests.fakes import FakeBackend, continuation

N_OPERATIONS = 500 * int(os.environ.get("PONYTAIL_FUZZ", "1"))
N_CTX = 120


class Fuzz:
    """Submits, cancels, forks, preempts, grows, evicts and breaks at random.

    Prompts share prefixes often; in the shared layout the cells hold a fraction of what the
    requests need.
    """

    def __init__(self, seed: int, layout: str) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        n_parallel = self.random.choice([1, 3, 6])
        is_shared = layout == "shared"
        self.backend = FakeBackend(
            n_seq=n_parallel + 4 if is_shared else n_parallel,
            n_batch=self.random.choice([48, 128]),
            n_cells=self.random.choice([32, 64, 140]),
            is_shared=is_shared,
            can_cut=layout != "uncuttable",
            resize_polls=self.random.choice([0, 3]),
            keeps_batches=False,
        )
        self.backend.decode_fault = self.break_sometimes
        self.backend.state_fault = self.break_rarely
        self.backend.resize_fault = self.break_rarely
        self.max_cells = self.random.choice([N_CTX + 30, 400]) if is_shared else N_CTX
        kv = KV(
            self.backend,
            n_max_cells=self.max_cells,
            ram_bytes=self.random.choice([0, 800, 100_000]),
            clock=self.clock,
        )
        self.driver = Driver(
            self.backend, kv=kv, n_parallel=n_parallel, max_queue=8, clock=self.clock
        )
        self.stems = [[self.random.randrange(100, 900) for _ in range(90)] for _ in range(3)]
        self.asked: list[tuple[Any, list[int], int]] = []
        self.is_breaking = True

    def clock(self) -> float:
        self.now += 0.01
        return self.now

    def break_sometimes(self, rows: object) -> None:
        if self.is_breaking and self.random.random() < 0.02:
            raise DecodeError("injected")

    def break_rarely(self, _: object) -> None:
        if self.is_breaking and self.random.random() < 0.01:
            raise DecodeError("injected")

    def submit(self) -> None:
        stem = self.random.choice(self.stems)[: self.random.randrange(1, 80)]
        tail = [self.random.randrange(100, 900) for _ in range(self.random.randrange(1, 16))]
        prompt = stem + tail
        n_max = self.random.randrange(1, N_CTX - len(prompt))
        marks = tuple(sorted({len(stem), len(prompt)})) if not self.backend.can_cut else ()
        n = self.random.choice([1, 1, 1, 3])
        is_solo = self.backend.n_batch >= 128 and self.random.random() < 0.05
        jobs = [self.driver.job(prompt, n_max, marks=marks, is_solo=is_solo) for _ in range(n)]
        try:
            self.driver.engine.submit(jobs)
        except Overloaded:
            return
        self.asked += [(job.ticket, prompt, n_max) for job in jobs]

    def act(self) -> None:
        engine = self.driver.engine
        roll = self.random.random()
        if roll < 0.12:
            self.submit()
        elif roll < 0.14 and self.asked:
            self.random.choice(self.asked)[0].cancel()
        elif roll < 0.16 and engine.kv.n_active:
            engine.give_way()
        elif roll < 0.17:
            engine.kv.elastic.want(self.random.randrange(32, self.max_cells + 1))
        elif roll < 0.18:
            engine.kv.cells.make_room(self.random.randrange(self.max_cells))
        elif roll < 0.19 and not engine.kv.n_active:
            engine.kv.shrink()
            engine.kv.elastic.poll()
        else:
            self.driver.step()
            return
        self.driver.check()

    def check(self) -> None:
        self.is_breaking = False
        self.driver.run()
        n_finished = 0
        for ticket, prompt, n_max in self.asked:
            end = self.driver.recorder.end(ticket)
            tokens = self.driver.recorder.tokens(ticket)
            expected = continuation(prompt, n_max)
            assert tokens == expected[: len(tokens)]
            if isinstance(end, Finished):
                n_finished += 1
                assert tokens == expected
                assert end.usage.n_cached < end.usage.n_prompt == len(prompt)
            else:
                assert isinstance(end, Failed)
        assert n_finished > 0.4 * len(self.asked)
        assert all(s.n_closed == 1 for s in self.backend.samplers)
        assert self.driver.engine.gauges().n_queued == 0
        assert self.driver.engine.kv.tiers.n_parked_bytes == 0


@pytest.mark.parametrize("layout", ["split", "shared", "uncuttable"])
@pytest.mark.parametrize("seed", range(7))
def test_random_operations(seed, layout):
    fuzz = Fuzz(seed, layout)
    for _ in range(N_OPERATIONS):
        fuzz.act()
    fuzz.check()
