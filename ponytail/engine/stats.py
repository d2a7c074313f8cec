"""What the engine says about itself.

Owns records that the engine fills and anyone may read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ponytail.engine.sequence import Sequence

# How old a view may be while the engine works.
_FACTS_S = 0.25


class Gauges(msgspec.Struct, frozen=True):
    """What the engine is doing now; requests for running and queued, choices for sequences."""

    n_running: int
    n_queued: int
    n_sequences: int
    n_parallel: int


class SequenceFacts(msgspec.Struct, frozen=True):
    """How far one running choice has come; `n_max` tokens may be generated."""

    n_prompt: int
    n_computed: int
    n_generated: int
    n_max: int


class View:
    """What the cache holds and what runs, as of a moment ago; other threads read it."""

    def __init__(self, read: Callable[[], dict[str, Any]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._at = -math.inf
        self.cache: dict[str, Any] = read()
        self.sequences: tuple[SequenceFacts, ...] = ()

    def refresh(self, live: Iterable[Sequence], *, is_idle: bool) -> None:
        """Engine thread: look again, if it is time or nothing is going on."""
        now = self._clock()
        if now >= self._at + _FACTS_S or is_idle:
            self.cache, self._at = self._read(), now
            self.sequences = tuple(_facts(sequence) for sequence in live)


def _facts(sequence: Sequence) -> SequenceFacts:
    n_computed = min(sequence.n_computed, sequence.n_prompt)
    return SequenceFacts(sequence.n_prompt, n_computed, sequence.n_generated, sequence.job.n_max)


class Counters(msgspec.Struct):
    """Totals since start; seconds of steps, and of those the backend's share."""

    n_steps: int = 0
    n_prompt_computed: int = 0
    n_prompt_cached: int = 0
    n_generated: int = 0
    n_embedded: int = 0
    n_decode_failures: int = 0
    step_s: float = 0.0
    backend_s: float = 0.0


class CacheCounters(msgspec.Struct):
    """Totals of the KV cache: prompt tokens by where they were found, and what was moved."""

    hit_cells_tokens: int = 0
    hit_ram_tokens: int = 0
    hit_disk_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    recomputed: int = 0
