"""A real uvicorn on a loopback socket, with a fake model behind it, and ways to talk to it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from ponytail.server.app import build_app
from ponytail.server.listener import HttpServer
from ponytail.server.security import guard_for
from ponytail.server.service import About, Generator, Service
from tests.unit.fake_llm import WAIT_S, FakeLLM, listening

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
STREAM = {**HELLO, "stream": True}
ABOUT = About("org/tiny", 2048, 1_600_000_000)


class Served:
    """A server in a thread, and ways to talk to it."""

    def __init__(self, load: Callable[..., Any], keep_alive_s: float, grace_s: float) -> None:
        self.ready = threading.Event()
        self.service = Service(ABOUT, load, on_ready=lambda llm: self.ready.set())
        self._stop = threading.Event()
        self._stack = contextlib.ExitStack()
        self.sock = self._stack.enter_context(listening())
        self.port = self.sock.getsockname()[1]
        guard = guard_for(self.sock, "127.0.0.1")
        app = build_app(self.service, guard, keep_alive_s, max_body_bytes=1 << 20)
        server = HttpServer(app, self.service, self._stop.is_set, grace_s)
        self.thread = threading.Thread(target=server.run, args=([self.sock],))
        self.service.start()
        self.thread.start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WAIT_S)

    def ask_to_stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self.http.close()
        self._stop.set()
        self.thread.join(WAIT_S)
        self._stack.close()
        assert not self.thread.is_alive()

    def raw(self, body: dict[str, Any], path: str = CHAT) -> Raw:
        """A request on a socket of its own, whose hang-ups the test controls."""
        return Raw(self.port, path, body)


class Raw:
    """One HTTP exchange by hand."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
        self.sock.sendall(head.encode() + data)
        self.seen = b""

    def read_until(self, part: bytes) -> bytes:
        """All bytes seen so far, once `part` is among them."""
        while part not in self.seen:
            data = self.sock.recv(65536)
            assert data, f"closed before {part!r}: {self.seen!r}"
            self.seen += data
        return self.seen

    def read_all(self) -> bytes:
        """All bytes up to the end of the chunked body."""
        return self.read_until(b"\r\n0\r\n\r\n")

    def hang_up(self) -> None:
        self.sock.close()


@contextlib.contextmanager
def served(
    llm: FakeLLM | None = None,
    *,
    load: Callable[..., Generator] | None = None,
    keep_alive_s: float = 60.0,
    grace_s: float = 0.1,
) -> Iterator[Served]:
    server = Served(load or (lambda on_progress: llm), keep_alive_s, grace_s)
    try:
        if load is None:
            assert server.ready.wait(WAIT_S)
        yield server
    finally:
        server.close()


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error object; the shape itself is part of what is tested."""
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]  # type: ignore[no-any-return]
