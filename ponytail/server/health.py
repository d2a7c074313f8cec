"""What the server says of itself: ready or not, how busy, with which settings.

Owns the JSON of /health and the service's JSON keys.  Must not know HTTP.  Pure
reads of the service's state; any thread.
"""

from __future__ import annotations

from typing import Any, assert_never

from ponytail.server.service import Broken, Closing, Generator, Loading, Ready, Service


def readiness(service: Service) -> tuple[int, dict[str, Any]]:
    """HTTP status and body of /health: 200 only when a request would be answered."""
    match service.state:
        case Ready(llm):
            return 200, {"status": "ok", **_settings(llm), **_load(llm)}
        case Loading(progress):
            model = service.about.name
            return 503, {"status": "loading", "progress": round(progress, 2), "model": model}
        case Closing(llm):
            return 503, {"status": "closing", "model": service.about.name, **_load(llm)}
        case Broken(error):
            return 503, {"status": "failed", "model": service.about.name, "error": error.message}
        case _ as never:
            assert_never(never)


def _settings(llm: Generator) -> dict[str, Any]:
    settings = {key: value for key, value in llm.info().items() if key != "startup"}
    return {"model": llm.name, "fingerprint": llm.fingerprint, **settings}


def _load(llm: Generator | None) -> dict[str, int]:
    if llm is None:
        return {}
    gauges = llm.gauges()
    return {"running": gauges.n_running, "queued": gauges.n_queued}
