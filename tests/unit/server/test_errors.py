"""Whatever is wrong, the client is told in the dialect's words, with the right status."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from ponytail.errors import (
    ContextLengthExceeded,
    EngineFailed,
    Overloaded,
)
from ponytail.types import Failed, Text
from tests.unit.fake_llm import WAIT_S, FakeLLM, refuse
from tests.unit.server.served import CHAT, HELLO, STREAM, Served, error_of

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
