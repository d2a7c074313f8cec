"""Replies and streams over HTTP, and what flows while nothing else does."""

from __future__ import annotations

import threading

import httpx
import pytest

from ponytail.types import Started
from tests.unit.fake_llm import WAIT_S, FakeLLM
from tests.unit.server.served import CHAT, HELLO, STREAM, Served, error_of, served

# -- replies -----------------------------------------------------------------------------


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


# -- keep-alive --------------------------------------------------------------------------


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


# -- small routes ------------------------------------------------------------------------


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
