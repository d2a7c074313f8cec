"""What the engine says about itself.

Owns two records; the engine fills them, anyone may read them.
"""

from __future__ import annotations

import msgspec


class Gauges(msgspec.Struct, frozen=True):
    """What the engine is doing now; requests for running and queued, choices for sequences."""

    n_running: int
    n_queued: int
    n_sequences: int
    n_parallel: int


class Counters(msgspec.Struct):
    """Totals since start; seconds of steps, and of those the backend's share."""

    n_steps: int = 0
    n_prompt_computed: int = 0
    n_prompt_cached: int = 0
    n_generated: int = 0
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
