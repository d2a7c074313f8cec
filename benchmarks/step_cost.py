"""Python cost of one engine step, without a model.

Runs the real engine, scheduler, KV records and text output on a backend whose decode
and sample do nothing, and prints one JSON line: milliseconds per step by number of
rows, with delivery to an event loop's sink included.

    python benchmarks/step_cost.py [--rows 1,16,64] [--steps 2000] [--model model.gguf]

With --model it also runs 16 streams on that model and tells Python's share of a step:
everything but the time inside libllama, numpy's argmax included.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

from processes import describe_commit

from ponytail.engine.engine import Engine
from ponytail.engine.sequence import Job, Mail, Ticket
from ponytail.text.output import Output, PieceTable
from ponytail.types import Sampling


class NullSampler:
    def close(self) -> None:
        pass


class NullBackend:
    """Takes every batch and picks token 100 for every row."""

    def __init__(self, n_seq: int, n_cells: int, is_shared: bool) -> None:
        self.n_seq, self.n_batch, self.is_shared = n_seq, 4096, is_shared
        self.n_cells = n_cells * n_seq if is_shared else n_cells
        self.can_cut = self.can_shift = True
        self.tile, self.cell_bytes = 64, 0

    def open_sampler(self, sampling: Sampling, seed: int, history: Sequence[int]) -> NullSampler:
        return NullSampler()

    def decode(self, rows: Sequence[Any]) -> None:
        pass

    def sample(self, samplers: Sequence[Any]) -> list[Any]:
        return [100] * len(samplers)

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        return True

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        pass

    def swap(self, a: int, b: int) -> None:
        pass

    def set_threads(self, n_threads: int) -> None:
        pass


class CountingSink:
    """Takes the mail of a step, as an event loop's sink does, and counts it."""

    def __init__(self) -> None:
        self.n_events = 0

    def deliver(self, mail: Mail) -> None:
        self.n_events += len(mail)


def measure(
    n_rows: int, n_steps: int, stops: tuple[str, ...] = (), is_shared: bool = False
) -> dict[str, float]:
    """Milliseconds per step of n_rows decoding rows: median and mean."""
    engine = Engine(NullBackend(n_rows, n_steps + 200, is_shared), max_queue=n_rows)
    pieces = PieceTable(lambda token_id: b" word")
    sink = CountingSink()
    for i in range(n_rows):
        job = Job(
            ticket=Ticket(sink, i),
            prompt=[1000 + i, *range(20)],
            output=Output(pieces, stops),
            sampling=Sampling(),
            seed=1,
            n_max=n_steps + 50,
            is_streaming=True,
        )
        engine.submit([job])
    engine.take_inbox(0.0)
    engine.step()
    engine.deliver()
    seconds = []
    for _ in range(n_steps):
        started = time.perf_counter()
        engine.take_inbox(0.0)
        engine.step()
        engine.deliver()
        seconds.append(time.perf_counter() - started)
    assert sink.n_events >= n_rows * n_steps, "every row gives an event every step"
    return {
        "median_ms": round(1000 * statistics.median(seconds), 4),
        "mean_ms": round(1000 * statistics.fmean(seconds), 4),
    }


class NativeClock:
    """Sums the time spent inside the libllama functions that a step calls."""

    NAMES = ("llama_decode", "llama_get_logits_ith", "llama_sampler_sample")

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, lib: Any) -> None:
        for name in self.NAMES:
            setattr(lib, name, self._timed(getattr(lib, name)))

    def _timed(self, function: Any) -> Any:
        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def share_on_model(model: str, n_rows: int = 16, n_tokens: int = 100) -> dict[str, float]:
    """Python's part of a step with n_rows rows on a real model."""
    from ponytail import LLM
    from ponytail.llama import context

    clock = NativeClock()
    clock.wrap(context.lib)
    result = {}
    with LLM(model, parallel=n_rows, ctx_size=512) as llm:
        for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
            before, native = llm.counters(), clock.seconds
            llm.complete(
                [1000, *range(2000, 2200)],
                n=n_rows,
                max_tokens=n_tokens,
                temperature=temperature,
                ignore_eos=True,
            )
            after = llm.counters()
            n_steps = after["n_steps"] - before["n_steps"]
            step_s = after["step_s"] - before["step_s"]
            python_s = step_s - (clock.seconds - native)
            result[f"{name}_step_ms"] = round(1000 * step_s / n_steps, 2)
            result[f"{name}_python_ms"] = round(1000 * python_s / n_steps, 2)
            result[f"{name}_python_share"] = round(python_s / step_s, 4)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--model")
    args = parser.parse_args()
    rows = [int(n) for n in args.rows.split(",")]
    result = {
        "benchmark": "step_cost",
        "steps": args.steps,
        "rows": {n: measure(n, args.steps) for n in rows},
        "rows_shared": {n: measure(n, args.steps, is_shared=True) for n in rows},
        "rows_with_stops": {n: measure(n, args.steps, ("\n\nUser:", "###")) for n in rows},
        "on_model": share_on_model(args.model) if args.model else None,
        "python": platform.python_version(),
        "commit": describe_commit(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
