"""The Prometheus text of /metrics.

Owns the names of the metrics; the numbers are read from the model at each scrape.  Must
not know how they come about.  Event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ponytail.server.service import Generator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ModelCollector(Collector):
    """All metrics of one model."""

    def __init__(self, llm: Generator | None) -> None:
        self._llm = llm

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield _gauge("up", "Whether the model is loaded.", None, int(self._llm is not None))
        if self._llm is None:
            return
        gauges, totals, cache = self._llm.gauges(), self._llm.counters(), self._llm.cache()
        yield _gauge(
            "requests",
            "Requests by state.",
            "state",
            {"running": gauges.n_running, "queued": gauges.n_queued},
        )
        yield _counter(
            "prompt_tokens",
            "Prompt tokens, computed or taken from the cache.",
            "source",
            {"computed": totals["n_prompt_computed"], "cached": totals["n_prompt_cached"]},
        )
        yield _counter("generated_tokens", "Tokens generated.", None, totals["n_generated"])
        yield _counter(
            "embedding_tokens", "Tokens read to embed or to rank.", None, totals["n_embedded"]
        )
        yield _counter("steps", "Steps of the scheduler.", None, totals["n_steps"])
        yield _counter("decode_failures", "Batches that failed.", None, totals["n_decode_failures"])
        yield from _cache_metrics(cache)


def encode_metrics(llm: Generator | None) -> bytes:
    """The reply of /metrics; `ponytail_up` is 0 while there is no model."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ModelCollector(llm))
    return generate_latest(registry)


def _cache_metrics(cache: dict[str, Any]) -> Iterator[Metric]:
    cells, tiers, totals = cache["cells"], cache["tiers"], cache["counters"]
    yield _gauge(
        "kv_cells",
        "KV cells (tokens) there are now, by what they hold.",
        "state",
        {state: cells[state] for state in ("running", "cached", "free")},
    )
    yield _gauge("kv_cells_capacity", "KV cells there may be.", None, cells["capacity"])
    yield _gauge("kv_cells_saved", "Cells that sharing saves now.", None, cells["saved_by_sharing"])
    yield _gauge("kv_tree_nodes", "Nodes of the prefix tree.", None, cache["tree"]["nodes"])
    yield _gauge(
        "kv_tier_bytes",
        "Bytes of KV state outside the cells.",
        "tier",
        {
            "ram": tiers["ram_bytes"],
            "preempted": tiers["preempted_bytes"],
            "disk": tiers["disk_bytes"],
        },
    )
    yield _counter(
        "kv_hit_tokens",
        "Prompt tokens found in the cache, by where.",
        "tier",
        {tier: totals[f"hit_{tier}_tokens"] for tier in ("cells", "ram", "disk")},
    )
    for name, text in _CACHE_TOTALS.items():
        yield _counter(f"kv_{name}", text, None, totals[name])


_CACHE_TOTALS = {
    "evictions": "Cached prefixes that left the cells.",
    "ram_evictions": "Cached prefixes that left host RAM.",
    "preemptions": "Requests that gave way to others and came back.",
    "recomputed": "Of these, those whose cells had to be computed again.",
    "growths": "Times that cells were added.",
    "shrinks": "Times that cells were given back.",
}


def _gauge(name: str, text: str, label: str | None, value: Any) -> Metric:
    return _fill(
        GaugeMetricFamily(f"ponytail_{name}", text, labels=[label] if label else None), value
    )


def _counter(name: str, text: str, label: str | None, value: Any) -> Metric:
    return _fill(
        CounterMetricFamily(f"ponytail_{name}", text, labels=[label] if label else None), value
    )


def _fill(family: Any, value: Any) -> Metric:
    for labels, number in (
        [([key], n) for key, n in value.items()] if isinstance(value, dict) else [([], value)]
    ):
        family.add_metric(labels, number)
    metric: Metric = family
    return metric
