"""What Prometheus reads: well-formed, complete, and there while the model loads."""

from __future__ import annotations

import threading

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ponytail.engine.kv import KV
from ponytail.engine.stats import Counters
from ponytail.server.metrics import encode_metrics
from tests.engine_driver import Driver
from tests.fakes import FakeBackend
from tests.unit.fake_llm import WAIT_S, FakeLLM
from tests.unit.server.served import served


class Measured(FakeLLM):
    """Shows the numbers of a real engine on the fake backend."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver

    def gauges(self):
        return self.driver.engine.gauges()

    def counters(self):
        return msgspec.to_builtins(self.driver.engine.counters)

    def cache(self):
        return self.driver.engine.kv.facts()


def read(llm: FakeLLM | None) -> dict[tuple[str, str], float]:
    """(name, label value) -> number."""
    found = {}
    for family in text_string_to_metric_families(encode_metrics(llm).decode()):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            found[sample.name, "".join(sample.labels.values())] = sample.value
    return found


def test_without_a_model_it_says_so():
    assert read(None) == {("ponytail_up", ""): 0.0}


def test_the_numbers_are_those_of_the_engine():
    backend = FakeBackend(n_seq=8, n_cells=300, is_shared=True)
    run = Driver(backend, kv=KV(backend, n_max_cells=512, ram_bytes=10_000), n_parallel=2)
    prompt = list(range(100, 220))
    run.submit(prompt, 10)
    run.run()
    run.submit(prompt, 10)
    run.run()
    metrics = read(Measured(run))
    assert metrics["ponytail_up", ""] == 1
    assert metrics["ponytail_requests", "running"] == 0
    assert metrics["ponytail_prompt_tokens_total", "computed"] == 121
    assert metrics["ponytail_prompt_tokens_total", "cached"] == 119
    assert metrics["ponytail_kv_hit_tokens_total", "cells"] == 119
    assert metrics["ponytail_generated_tokens_total", ""] == 20
    assert metrics["ponytail_kv_cells_capacity", ""] == 512
    states = [metrics["ponytail_kv_cells", state] for state in ("running", "cached", "free")]
    assert sum(states) == backend.n_cells
    assert states[1] == run.engine.kv.cells.n_used == backend.n_used


def test_every_counter_of_the_cache_is_there():
    names = {name for name, _ in read(FakeLLM())}
    for name in ("evictions", "ram_evictions", "preemptions", "recomputed", "growths", "shrinks"):
        assert f"ponytail_kv_{name}_total" in names
    assert {"n_steps", "n_decode_failures"} <= set(Counters.__struct_fields__)


def test_both_are_served_and_wait_for_the_model_in_their_own_way():
    loaded = threading.Event()

    def load(on_progress: object) -> FakeLLM:
        loaded.wait(WAIT_S)
        return FakeLLM()

    with served(load=load) as server:
        assert server.http.get("/v1/cache").status_code == 503
        reply = server.http.get("/metrics")
        assert (reply.status_code, "ponytail_up 0.0" in reply.text) == (200, True)
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        loaded.set()
        assert server.ready.wait(WAIT_S)
        assert "ponytail_up 1.0" in server.http.get("/metrics").text
        body = server.http.get("/v1/cache").json()
        assert set(body) == {"layout", "cells", "tree", "tiers", "counters"}
        assert body["cells"]["capacity"] > 0
