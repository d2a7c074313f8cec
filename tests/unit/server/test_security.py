"""Who may ask: host names and pages."""

from __future__ import annotations

import socket

import httpx
import pytest

from ponytail.errors import (
    Forbidden,
)
from ponytail.server.security import Guard, guard_for
from tests.unit.fake_llm import FakeLLM, listening
from tests.unit.server.served import CHAT, HELLO, STREAM, error_of


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1].evil.example", 403),
        ("", 403),
    ],
)
def test_host_header_on_loopback(http: httpx.Client, host: str, status: int) -> None:
    reply = http.get("/v1/models", headers={"host": host})
    assert reply.status_code == status
    if status == 403:
        assert "--host" in error_of(reply)["message"]


def test_host_header_of_other_bindings() -> None:
    foreign = {b"host": b"evil.example"}
    with socket.create_server(("0.0.0.0", 0)) as sock:
        guard_for(sock, "0.0.0.0").check_host(foreign)
    with socket.socket(socket.AF_UNIX) as sock:
        guard_for(sock, "127.0.0.1").check_host(foreign)
    with listening() as sock:
        guard_for(sock, "My-Machine").check_host({b"host": b"my-machine:80"})
        with pytest.raises(Forbidden):
            guard_for(sock, "my-machine").check_host(foreign)
    Guard(frozenset()).check_host({})  # HTTP/1.0 has no Host


LOCAL = ["http://localhost:3000", "http://127.0.0.1", "https://localhost:5173", "http://[::1]:1"]
FOREIGN = [
    "https://evil.example",
    "null",
    "http://localhost.evil.example",
    "http://localhost:1@evil.example",
    "http://localhost:80x",
    "file://localhost",
]


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_may_read(http: httpx.Client, llm: FakeLLM, origin: str) -> None:
    llm.answer = ("Hi",)
    headers = {"origin": origin}
    for body in (HELLO, STREAM, {"messages": 5}):
        reply = http.post(CHAT, json=body, headers=headers)
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in reply.headers
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a, y"}
    reply = http.options(CHAT, headers={**headers, **asked})
    assert (reply.status_code, reply.content) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == origin
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "x-a, y"


@pytest.mark.parametrize("origin", FOREIGN)
def test_other_pages_get_no_permission(http: httpx.Client, llm: FakeLLM, origin: str) -> None:
    llm.answer = ("Hi",)
    headers = {"origin": origin, "access-control-request-method": "POST"}
    for reply in (
        http.post(CHAT, json=HELLO, headers=headers),
        http.options(CHAT, headers=headers),
    ):
        assert not [name for name in reply.headers if name.startswith("access-control")]
