"""The HTTP layer through a real uvicorn on a loopback socket, with a fake model behind it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ponytail.errors import (
    ContextLengthExceeded,
    EngineFailed,
    Forbidden,
    ModelLoading,
    Overloaded,
    ShuttingDown,
)
from ponytail.server.app import build_app
from ponytail.server.listener import HttpServer
from ponytail.server.security import Guard, guard_for
from ponytail.server.service import About, Generator, Ready, Service
from ponytail.types import Failed, Started, Text
from tests.unit.fake_llm import WAIT_S, FakeLLM, listening, refuse

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


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served(FakeLLM()) as it:
        yield it


@pytest.fixture
def llm() -> FakeLLM:
    return FakeLLM()


@pytest.fixture
def server(shared: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture) -> Served:
    """One server for all tests that do not stop it, with a model of the test's own."""
    shared.service.state = Ready(llm)
    return shared


@pytest.fixture
def http(server: Served) -> httpx.Client:
    return server.http


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error object; the shape itself is part of what is tested."""
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]  # type: ignore[no-any-return]


# --- replies ---------------------------------------------------------------------------------


def test_plain_reply_names_the_model_that_answers(http: httpx.Client, llm: FakeLLM) -> None:
    llm.answer = ("Hel", "lo")
    reply = http.post(CHAT, json={**HELLO, "model": "gpt-4o"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["choices"][0]["message"]["content"] == "Hello"
    assert reply.json()["model"] == "org/tiny"
    assert reply.json()["system_fingerprint"] == "fp_1"


def test_the_models_own_sampling_defaults_hold(http: httpx.Client, llm: FakeLLM) -> None:
    llm.answer = ("x",)
    http.post(CHAT, json=HELLO)
    assert llm.next_stream().request.sampling.temperature == 0.5


def test_stream_headers_come_before_the_first_event(server: Served, llm: FakeLLM) -> None:
    raw = server.raw(STREAM)
    head = raw.read_until(b"\r\n\r\n").lower()
    assert head.startswith(b"http/1.1 200")
    for line in (
        b"content-type: text/event-stream; charset=utf-8",
        b"cache-control: no-cache",
        b"x-accel-buffering: no",
    ):
        assert line in head
    assert b"server:" not in head
    stream = llm.next_stream()
    stream.push(Started(3, 1))
    stream.say("Hi")
    assert b'"content":"Hi"' in raw.read_until(b'"content":"Hi"')
    stream.finish()
    assert raw.read_all().count(b"data: [DONE]") == 1
    raw.hang_up()


def test_events_that_come_together_are_one_chunk(server: Served, llm: FakeLLM) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    raw.read_until(b"\r\n\r\n")
    raw.seen = b""
    stream.say("a", "b", "c")
    first = raw.read_until(b'"content":"c"')
    size, _, body = first.partition(b"\r\n")
    assert len(body.removesuffix(b"\r\n")) == int(size, 16)
    stream.finish()
    raw.read_all()
    raw.hang_up()


def test_both_completion_routes_and_a_trailing_slash(http: httpx.Client, llm: FakeLLM) -> None:
    llm.answer = ("Hi",)
    assert http.post("/v1/completions", json={"prompt": "a"}).json()["choices"][0]["text"] == "Hi"
    reply = http.post(CHAT + "/", json=HELLO)
    assert (reply.status_code, reply.history) == (200, [])


def test_a_request_parsed_in_a_thread(http: httpx.Client, llm: FakeLLM) -> None:
    llm.answer = ("Hi",)
    reply = http.post("/v1/completions", json={"prompt": [7] * 200_000})
    assert reply.status_code == 200
    (prompt,) = llm.next_stream().request.prompts
    assert len(prompt.ids) == 200_000  # type: ignore[union-attr]


# --- hang-ups --------------------------------------------------------------------------------


def test_hang_up_while_streaming_cancels(
    server: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    stream.say("one")
    raw.read_until(b"one")
    raw.hang_up()
    # Nothing flows any more: the watch alone must notice.
    assert stream.was_cancelled.wait(WAIT_S)
    llm.answer = ("next",)
    assert server.http.post(CHAT, json=HELLO).status_code == 200
    assert caplog.records == []


def test_hang_up_while_a_plain_reply_is_made_cancels(
    server: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    raw = server.raw(HELLO)
    stream = llm.next_stream()
    assert stream.was_read.wait(WAIT_S)
    raw.hang_up()
    assert stream.was_cancelled.wait(WAIT_S)
    assert caplog.records == []


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["plain", "stream"])
def test_hang_up_before_the_request_is_admitted(
    server: Served, llm: FakeLLM, body: dict[str, Any]
) -> None:
    llm.holds_open = True
    raw = server.raw(body)
    assert llm.open_was_entered.wait(WAIT_S)
    raw.hang_up()
    assert llm.open_was_cancelled.wait(WAIT_S)


def test_a_client_that_stops_reading_can_still_hang_up(server: Served, llm: FakeLLM) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    stream.push(*(Text("x" * 1_000_000) for _ in range(40)))  # more than the sockets hold
    stream.say("more")
    raw.hang_up()
    assert stream.was_cancelled.wait(WAIT_S)


def test_a_finished_stream_was_not_cancelled(server: Served, llm: FakeLLM) -> None:
    llm.answer = ("Hi",)
    raw = server.raw(STREAM)
    raw.read_all()
    assert not llm.next_stream().was_cancelled.is_set()
    raw.hang_up()


# --- keep-alive ------------------------------------------------------------------------------


def test_keep_alive_flows_while_nothing_else_does() -> None:
    llm = FakeLLM()
    with served(llm, keep_alive_s=0.02) as server:
        raw = server.raw(STREAM)
        raw.read_until(b": keep-alive\n\n")
        stream = llm.next_stream()
        stream.say("Hi")
        raw.read_until(b'"content":"Hi"')
        raw.seen = b""
        raw.read_until(b": keep-alive\n\n")
        stream.finish()
        raw.read_all()
        raw.hang_up()


def test_keep_alive_flows_while_events_give_no_bytes() -> None:
    llm = FakeLLM()
    with served(llm, keep_alive_s=0.05) as server:
        raw = server.raw({"prompt": "x", "stream": True}, "/v1/completions")
        stream = llm.next_stream()
        done = threading.Event()

        def push_silence() -> None:
            while not done.wait(0.005):
                stream.push(Started(3, 1))  # no bytes in this dialect

        pusher = threading.Thread(target=push_silence)
        pusher.start()
        raw.read_until(b": keep-alive\n\n")
        done.set()
        pusher.join()
        stream.finish()
        raw.read_all()
        raw.hang_up()


def test_an_active_stream_has_no_keep_alive_and_a_plain_reply_never(llm: FakeLLM) -> None:
    with served(llm, keep_alive_s=0.01) as server:
        llm.answer = ("a", "b")
        raw = server.raw(STREAM)
        assert b"keep-alive\n" not in raw.read_all()
        raw.hang_up()
        llm.answer = None
        llm.next_stream()
        raw = server.raw(HELLO)
        stream = llm.next_stream()
        assert stream.was_read.wait(WAIT_S)
        stream.finish()
        assert b"keep-alive\n" not in raw.read_until(b"usage")
        raw.hang_up()


# --- errors ----------------------------------------------------------------------------------

DEEP = b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
BAD_BODIES = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "not json": (b"hello", "byte 0"),
    "cut off": (b'{"messages": [', "byte 14"),
    "rest": (b'{"a":1}x', "trailing"),
    "array": (b"[1]", "an array"),
    "string": (b'"hi"', "a string"),
    "number": (b"17", "a number"),
    "true": (b"true", "true or false"),
    "null": (b"null", "null"),
    "nan": (b'{"temperature": NaN}', "byte 16"),
    "huge number": (b'{"temperature": 1e999}', "range"),
    "not utf-8": (b'{"a": "\xff"}', "byte 7"),
    "utf-16": ("{}".encode("utf-16"), "byte 0"),
    "lone surrogate": (b'{"a": "\\ud800 and more"}', "JSON"),
    "deep": (DEEP, "nested"),
    "large and cut off": (b'{"prompt": "' + b"x" * 300_000, "byte 300012"),
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/tokenize", "/apply-template"])
def test_bad_bodies_are_400_and_say_where(
    http: httpx.Client, llm: FakeLLM, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (body, word) in BAD_BODIES.items():
        reply = http.post(path, content=body)
        assert reply.status_code == 400, name
        error = error_of(reply)
        assert error["type"] == "invalid_request_error", name
        assert word in error["message"], name
    llm.answer = ("fine",)
    assert http.post(CHAT, json=HELLO).status_code == 200
    assert caplog.records == []


def test_a_wrong_field_is_named(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**HELLO, "temperature": "hot"})
    assert (reply.status_code, error_of(reply)["param"]) == (400, "temperature")


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/problem+json", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
def test_media_types(http: httpx.Client, llm: FakeLLM, media_type: str | None, status: int) -> None:
    llm.answer = ("Hi",)
    headers = {} if media_type is None else {"content-type": media_type}
    reply = http.post(CHAT, content=json.dumps(HELLO), headers=headers)
    assert reply.status_code == status
    if status != 200:
        assert "application/json" in error_of(reply)["message"]


def test_a_page_cannot_post_without_naming_json(http: httpx.Client, llm: FakeLLM) -> None:
    llm.answer = ("Hi",)
    headers = {"origin": "https://evil.example"}
    assert http.post(CHAT, content=json.dumps(HELLO), headers=headers).status_code == 415


def test_compressed_bodies_are_refused(http: httpx.Client) -> None:
    reply = http.post(CHAT, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert reply.status_code == 415
    assert "gzip" in error_of(reply)["message"]


def test_a_body_declared_too_large_is_refused_before_it_is_sent(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as sock:
        sock.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n".encode())
        sock.sendall(b"content-length: 99999999\r\nexpect: 100-continue\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_too_large_is_refused(http: httpx.Client) -> None:
    reply = http.post(CHAT, content=(b"x" * 65536 for _ in range(17)))
    assert reply.status_code == 413
    assert error_of(reply)["code"] == "payload_too_large"


def test_unknown_routes_and_wrong_methods(http: httpx.Client) -> None:
    reply = http.get("/v1/nothing")
    assert (reply.status_code, error_of(reply)["code"]) == (404, "not_found")
    reply = http.get(CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert error_of(reply)["code"] == "method_not_allowed"
    reply = http.delete("/v1/models")
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")


def test_refusals_of_the_engine_keep_their_status_when_streaming(
    http: httpx.Client, llm: FakeLLM
) -> None:
    llm.refusal = ContextLengthExceeded(9000, 512)
    reply = http.post(CHAT, json=STREAM)
    assert (reply.status_code, error_of(reply)["code"]) == (400, "context_length_exceeded")
    llm.refusal = refuse("no")
    assert error_of(http.post(CHAT, json=STREAM))["param"] == "messages"


@pytest.mark.parametrize(("estimate", "said"), [(0.2, "1"), (2.1, "3"), (7.0, "7")])
def test_retry_after_is_whole_seconds_rounded_up(
    http: httpx.Client, llm: FakeLLM, estimate: float, said: str
) -> None:
    llm.refusal = Overloaded("The queue is full.", retry_after_s=estimate)
    reply = http.post(CHAT, json=HELLO)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, said)
    assert error_of(reply)["code"] == "overloaded"


def test_an_unforeseen_error_is_a_logged_500_without_traceback(
    http: httpx.Client, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    llm.refusal = ZeroDivisionError("secret detail")
    reply = http.post(CHAT, json=HELLO)
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert error_of(reply)["type"] == "server_error"
    (record,) = caplog.records
    assert record.exc_info
    llm.refusal, llm.answer = None, ("fine",)
    assert http.post(CHAT, json=HELLO).status_code == 200


def test_a_failure_after_chunks_is_the_streams_last_event(server: Served, llm: FakeLLM) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    stream.say("one")
    raw.read_until(b"one")
    stream.push(Text("two"), Failed(EngineFailed("it broke")))
    seen = raw.read_all()
    assert seen.index(b"two") < seen.index(b"it broke")
    assert b"[DONE]" not in seen
    assert b'"finish_reason":"' not in seen
    raw.hang_up()


def test_one_failed_choice_ends_the_others(server: Served, llm: FakeLLM) -> None:
    raw = server.raw({**STREAM, "n": 2})
    stream = llm.next_stream()
    stream.fail(EngineFailed("it broke"))
    assert b"it broke" in raw.read_all()
    assert stream.was_cancelled.wait(WAIT_S)
    raw.hang_up()


def test_a_failure_of_a_plain_reply_has_its_status(server: Served, llm: FakeLLM) -> None:
    raw = server.raw(HELLO)
    stream = llm.next_stream()
    stream.say("half")
    stream.fail(EngineFailed("it broke"))
    seen = raw.read_until(b"it broke")
    assert seen.startswith(b"HTTP/1.1 500")
    assert b"half" not in seen
    raw.hang_up()


def test_a_broken_encoder_ends_its_stream_with_an_error_event(
    server: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    stream.push(Text("fine"))
    raw.read_until(b"fine")
    stream.push(Text("x"), index=99)  # no such choice
    seen = raw.read_all()
    assert b'"type":"server_error"' in seen
    assert b"Traceback" not in seen
    assert stream.was_cancelled.wait(WAIT_S)
    assert len(caplog.records) == 1
    raw.hang_up()


# --- small routes ----------------------------------------------------------------------------


def test_models_by_name_with_slash(http: httpx.Client) -> None:
    (card,) = http.get("/v1/models").json()["data"]
    assert card["id"] == "org/tiny"
    assert card["context_length"] == card["max_model_len"] == 512
    assert card["meta"] == {"status": "loaded"}
    assert http.get("/v1/models/org/tiny").json() == card
    assert http.get("/v1/models/org%2Ftiny").json() == card
    reply = http.get("/v1/models/nope")
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")
    assert "org/tiny" in error_of(reply)["message"]


def test_health_shows_settings_and_load(server: Served, llm: FakeLLM) -> None:
    body = server.http.get("/health").json()
    assert body["status"] == "ok"
    assert (body["model"], body["ctx_size"]) == ("org/tiny", 512)
    assert (body["running"], body["queued"]) == (0, 0)
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    assert server.http.get("/health").json()["running"] == 1
    raw.hang_up()
    assert stream.was_cancelled.wait(WAIT_S)
    assert server.http.get("/health").json()["running"] == 0


def test_head_has_the_headers_and_no_body(http: httpx.Client) -> None:
    for path in ("/health", "/livez", "/v1/models", "/"):
        reply = http.head(path)
        assert reply.status_code == 200
        assert int(reply.headers["content-length"]) > 0
        assert reply.content == b""


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_tokens_and_templates(http: httpx.Client, prefix: str) -> None:
    reply = http.post(prefix + "/tokenize", json={"content": "é", "add_special": True}).json()
    assert reply["tokens"] == [1, 0xC3, 0xA9]
    reply = http.post(prefix + "/tokenize", json={"content": "hi", "with_pieces": True}).json()
    assert reply["tokens"][0] == {"id": 104, "piece": "h"}
    reply = http.post(prefix + "/detokenize", json={"tokens": [104, 105]}).json()
    assert reply["content"] == "hi"
    reply = http.post(prefix + "/apply-template", json=HELLO).json()
    assert reply["prompt"] == "<user>hi"


def test_openapi_and_index_name_the_routes(http: httpx.Client) -> None:
    described = set(http.get("/openapi.json").json()["paths"])
    assert {CHAT, "/v1/completions", "/v1/models", "/health", "/v1/tokenize"} <= described
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/plain")
    assert CHAT in page.text
    # Nothing is described that is not there.
    for path in described:
        assert http.options(path).status_code == 204
        assert http.get(path.replace("{id}", "org/tiny")).status_code in (200, 405)


# --- loading and closing ---------------------------------------------------------------------


def test_answers_while_the_model_loads() -> None:
    llm = FakeLLM(answer=("Hi",))
    reached, may_end = threading.Event(), threading.Event()

    def load(on_progress: Callable[[float], None]) -> FakeLLM:
        on_progress(0.42)
        reached.set()
        assert may_end.wait(WAIT_S)
        return llm

    with served(load=load) as server:
        http = server.http
        assert reached.wait(WAIT_S)
        reply = http.get("/health")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json() == {"status": "loading", "progress": 0.42, "model": "org/tiny"}
        assert http.get("/livez").status_code == 200
        card = http.get("/v1/models/org/tiny").json()
        assert (card["context_length"], card["meta"]) == (2048, {"status": "loading"})
        for body in (HELLO, STREAM):
            reply = http.post(CHAT, json=body)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert error_of(reply)["code"] == "model_loading"
        may_end.set()
        assert server.ready.wait(WAIT_S)
        assert http.get("/health").status_code == 200
        assert http.post(CHAT, json=HELLO).status_code == 200


def test_going_down_lets_running_streams_finish() -> None:
    llm = FakeLLM()
    with served(llm, grace_s=WAIT_S) as server:
        assert server.http.get("/health").status_code == 200  # a kept-alive connection
        raw = server.raw(STREAM)
        stream = llm.next_stream()
        server.ask_to_stop()
        wait_for_refusal(("127.0.0.1", server.port))
        reply = server.http.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (503, "closing")
        assert reply.json()["running"] == 1
        reply = server.http.post(CHAT, json=HELLO)
        assert (reply.status_code, error_of(reply)["code"]) == (503, "shutting_down")
        stream.say("last words")
        stream.finish()
        seen = raw.read_all()
        assert b"last words" in seen
        assert b"[DONE]" in seen
        server.thread.join(WAIT_S)
        assert llm.closed.is_set()
        raw.hang_up()


def wait_for_refusal(address: tuple[str, int] | str, family: int = socket.AF_INET) -> None:
    """Return once the listener is closed: the one event of a server a client can only try."""
    for _ in range(int(WAIT_S / 0.01)):
        with socket.socket(family) as probe:
            if probe.connect_ex(address) != 0:
                return
        time.sleep(0.01)
    pytest.fail("the listener stayed open")


def test_going_down_ends_streams_with_an_error_after_the_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = FakeLLM()
    with served(llm, grace_s=0.05) as server:
        raw = server.raw(STREAM)
        stream = llm.next_stream()
        stream.say("begun")
        raw.read_until(b"begun")
        server.ask_to_stop()
        assert b"shutting_down" in raw.read_all()
        server.thread.join(WAIT_S)
        raw.hang_up()
    assert caplog.records == []


def test_a_load_that_ends_after_the_stop_is_closed_at_once() -> None:
    llm = FakeLLM()
    may_end = threading.Event()
    service = Service(ABOUT, lambda on_progress: may_end.wait(WAIT_S) and llm)
    service.start()
    with pytest.raises(ModelLoading):
        service.generator()
    service.close(0.0)
    may_end.set()
    assert llm.closed.wait(WAIT_S)
    with pytest.raises(ShuttingDown):
        service.generator()


# --- security --------------------------------------------------------------------------------


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


# --- the process -----------------------------------------------------------------------------


class Program:
    """The fake model served by a process of its own."""

    def __init__(self, mode: str, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.fake_llm", mode, address],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def stop(self, *signals: int) -> tuple[int, str]:
        """Exit code and stderr after `signals`."""
        for number in signals:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, err


def free_port() -> int:
    with listening() as sock:
        return int(sock.getsockname()[1])


def test_the_printed_curl_line_works_and_sigterm_ends_cleanly() -> None:
    port = free_port()
    program = Program("answer", str(port))
    assert program.line() == "tiny: 1 MB\n"
    ready = program.line()
    assert ready.startswith(f"ponytail is ready: http://127.0.0.1:{port}  (model org/tiny")
    curl = program.line()
    out = subprocess.run(shlex.split(curl), capture_output=True, timeout=WAIT_S, check=True).stdout
    assert json.loads(out)["choices"][0]["message"]["content"] == "Hi"
    asked_at = time.monotonic()
    assert program.stop(signal.SIGTERM) == (0, "")
    assert time.monotonic() - asked_at < 2.0  # 1 s is the promise; the machine may be busy
    socket.create_server(("127.0.0.1", port)).close()


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "pony tail.sock"
    program = Program("answer", str(path))
    program.line()
    assert f"unix:{path}" in program.line()
    out = subprocess.run(
        shlex.split(program.line()), capture_output=True, timeout=WAIT_S, check=True
    ).stdout
    assert json.loads(out)["choices"][0]["message"]["content"] == "Hi"
    assert program.stop(signal.SIGINT) == (0, "")
    assert not path.exists()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    program = Program("silent", str(path))
    program.line()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    body = json.dumps(STREAM).encode()
    sock.sendall(f"POST {CHAT} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    program.process.send_signal(signal.SIGTERM)
    wait_for_refusal(str(path), socket.AF_UNIX)  # the listener is closed, the stream goes on
    assert program.stop(signal.SIGTERM)[0] == 128 + signal.SIGTERM
    assert not path.exists()
    sock.close()


@pytest.mark.parametrize(
    ("mode", "words"), [("bad", "the file is truncated"), ("bug", "ZeroDivisionError: oops")]
)
def test_a_failed_load_is_one_line_and_exit_code_2(mode: str, words: str) -> None:
    code, err = Program(mode, "0").stop()
    assert code == 2
    assert len(err.splitlines()) == 1
    assert words in err


def test_a_stop_while_loading_does_not_wait_for_the_load() -> None:
    program = Program("loading", "0")
    assert program.line() == "loading\n"
    assert program.stop(signal.SIGTERM) == (0, "")


def test_run_stays_light_until_the_load_has_begun() -> None:
    code = (
        "import sys, ponytail.server.run\n"
        "print([m for m in ('starlette', 'uvicorn', 'numpy', 'llama_cpp') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_logging_is_captured_by_these_tests(caplog: pytest.LogCaptureFixture) -> None:
    """The tests above that expect no record would see one."""
    for name in ("ponytail.server", "uvicorn.error", "asyncio"):
        logging.getLogger(name).error(os.sep)
    assert len(caplog.records) == 3
