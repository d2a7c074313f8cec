"""uvicorn, arranged: fast parts only, and an orderly end.

Owns how the HTTP server is set up and in which order it goes down.  Must not know
routes.  Runs in the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from ponytail.server.service import Service

GRACE_S = 10.0
FLUSH_S = 2  # for the last bytes of clients that read slowly, once nothing is generated any more


class HttpServer(uvicorn.Server):
    """Serves `app` on a listening socket until `is_stop_asked()` is true.

    Going down: the listener closes, the service takes no new work and lets what
    runs finish within `grace_s` (kept-alive connections are told 503 meanwhile),
    what is left gets an error, then the connections close.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        is_stop_asked: Callable[[], bool],
        grace_s: float = GRACE_S,
    ) -> None:
        super().__init__(_settings(app))
        self._service = service
        self._is_stop_asked = is_stop_asked
        self._grace_s = grace_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: server.run owns them, from before uvicorn is imported."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; true ends the main loop."""
        return await super().on_tick(counter) or self._is_stop_asked()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listener first, then the work, then the connections."""
        self._service.begin_close()
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        await asyncio.to_thread(self._service.close, self._grace_s)
        await super().shutdown(sockets)


def _settings(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=FLUSH_S,
    )
