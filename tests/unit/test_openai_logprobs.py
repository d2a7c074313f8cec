"""Log-probabilities in both shapes, streamed and plain, read with the official client's types."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ponytail.types import (
    Event,
    Reasoning,
    Started,
    Text,
    TokenLogprob,
    ToolCallArgs,
    ToolCallStart,
)
from tests.unit.test_openai_encode import (
    Events,
    chat,
    chunks,
    completion,
    finished,
    run,
    strict,
)

LLAMA = "🦙".encode()
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def token(data: bytes, logprob: float | None = -0.5, *top: tuple[bytes, float]) -> TokenLogprob:
    return TokenLogprob(7, data, logprob, tuple((i, text, lp) for i, (text, lp) in enumerate(top)))


HI = token(b"Hi", -0.25, (b"Hi", -0.25), (b"Ho", -1.5))
HEAD = token(b" " + LLAMA[:2], -2.0, (b" " + LLAMA[:2], -2.0), (b"\\\xff", -3.0))
TAIL = token(LLAMA[2:], -0.125, (LLAMA[2:], -0.125))
THOUGHT = token(b"hm")
MARKUP, ARGS = token(b"<call>"), token(b'{"a":1}')
ANSWER: list[Event] = [
    Started(10, 0),
    Reasoning("hm", (THOUGHT,)),
    Text("Hi", (HI,)),
    Text(" 🦙", (HEAD, TAIL)),
    ToolCallStart(0, "call_a", "f"),
    ToolCallArgs(0, '{"a"', (MARKUP,)),
    ToolCallArgs(0, ":1}", (ARGS,)),
    finished("tool_calls"),
]
CHAT: Events = [(0, event) for event in ANSWER]
RAW: Events = [(0, event) for event in [*ANSWER[:4], finished()]]


def one(data: bytes, logprob: float = -0.5) -> dict[str, Any]:
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}


EXPECTED = {
    "content": [
        {**one(b"Hi", -0.25), "top_logprobs": [one(b"Hi", -0.25), one(b"Ho", -1.5)]},
        {
            **one(HEAD.data, -2.0),
            "top_logprobs": [one(HEAD.data, -2.0), one(b"\\\xff", -3.0)],
        },
        {**one(TAIL.data, -0.125), "top_logprobs": [one(TAIL.data, -0.125)]},
    ],
    "refusal": None,
    "reasoning_content": [{**one(b"hm"), "top_logprobs": []}],
    "tool_calls": [{**one(t.data), "top_logprobs": []} for t in (MARKUP, ARGS)],
}
BESIDE = ("reasoning_content", "tool_calls")
ASKED = {"logprobs": True, "top_logprobs": 2, "tools": TOOLS}


def gathered(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {"content": [], "refusal": None}
    for piece in pieces:
        assert piece["refusal"] is None
        for place in ("content", *BESIDE):
            assert piece.get(place, [...]) or place == "content"  # absent, not empty
            if place in piece:
                whole[place] = whole.get(place, []) + piece[place]
    return whole


def test_a_chat_tells_content_thinking_and_calls_apart() -> None:
    plain = json.loads(run(chat(**ASKED), CHAT)[-1])
    reply = strict(ChatCompletion, plain, *BESIDE)
    assert plain["choices"][0]["logprobs"] == EXPECTED
    data = b"".join(bytes(t.bytes) for t in reply.choices[0].logprobs.content)
    assert data.decode() == reply.choices[0].message.content
    assert all(token.logprob <= 0 for token in reply.choices[0].logprobs.content)


def test_each_chunk_of_a_chat_has_its_own_tokens() -> None:
    got = chunks(run(chat(stream=True, **ASKED), CHAT))
    for value in got:
        strict(ChatCompletionChunk, value, *BESIDE)
    pieces = [value["choices"][0]["logprobs"] for value in got]
    assert [len(piece["content"]) for piece in pieces] == [0, 0, 1, 2, 0, 0, 0, 0]
    assert gathered(pieces) == EXPECTED


def test_the_official_client_gathers_a_streams_logprobs() -> None:
    state = ChatCompletionStreamState()
    for value in chunks(run(chat(stream=True, **ASKED), CHAT)):
        state.handle_chunk(ChatCompletionChunk.model_validate(value))
    (choice,) = state.get_final_completion().choices
    assert choice.logprobs is not None
    assert [t.token for t in choice.logprobs.content or []] == ["Hi", " \ufffd", "\ufffd\ufffd"]
    assert choice.message.content == "Hi 🦙"
    assert [c.function.arguments for c in choice.message.tool_calls or []] == ['{"a":1}']


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_no_logprobs_are_null(make: Any, is_streamed: bool) -> None:
    events = CHAT if make is chat else RAW
    asked = {"tools": TOOLS} if make is chat else {}
    sent = run(make(stream=is_streamed, **asked), events)
    values = chunks(sent) if is_streamed else [json.loads(sent[-1])]
    assert all(choice["logprobs"] is None for value in values for choice in value["choices"])


def test_no_content_is_an_empty_list() -> None:
    events: Events = [(0, Started(1, 0)), (0, finished("length"))]
    empty = {"content": [], "refusal": None}
    assert json.loads(run(chat(logprobs=True), events)[-1])["choices"][0]["logprobs"] == empty
    for value in chunks(run(chat(logprobs=True, stream=True), events)):
        assert value["choices"][0]["logprobs"] == empty


LEGACY = {
    "tokens": ["hm", "Hi", "bytes: \\xf0\\x9f", "bytes:\\xa6\\x99"],
    "token_logprobs": [-0.5, -0.25, -2.0, -0.125],
    "top_logprobs": [
        {"hm": -0.5},
        {"Hi": -0.25, "Ho": -1.5},
        {"bytes: \\xf0\\x9f": -2.0, "bytes:\\x5c\\xff": -3.0},
        {"bytes:\\xa6\\x99": -0.125},
    ],
    "text_offset": [0, 2, 4, 5],
}


def test_a_completion_has_four_lists() -> None:
    plain = strict(Completion, json.loads(run(completion(logprobs=2), RAW)[-1]))
    assert plain.choices[0].logprobs.model_dump() == LEGACY
    streamed: dict[str, list[Any]] = {name: [] for name in LEGACY}
    for value in chunks(run(completion(logprobs=2, stream=True), RAW)):
        for name, part in value["choices"][0]["logprobs"].items():
            streamed[name] += part
    assert streamed == LEGACY


def test_the_likeliest_are_joined_by_the_token_itself() -> None:
    rare = token(b"x", -7.0, (b"a", -0.5), (b"b", -1.0), (b"a", -0.25))
    events: Events = [(0, Text("x", (rare,))), (0, finished())]
    value = json.loads(run(completion(logprobs=3), events)[-1])
    (top,) = value["choices"][0]["logprobs"]["top_logprobs"]
    # Two tokens may be spelled alike: the better one is shown.
    assert top == {"a": -0.25, "b": -1.0, "x": -7.0}


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_echoed_prompt_comes_first(is_streamed: bool) -> None:
    prompt = (token(b"", None), token(b"<s>x", -1.0), token("é".encode(), -2.0))
    events: Events = [
        (0, Started(3, 0)),
        # The prompt's own text is longer than what its tokens spell.
        (0, Text("<bos><s>xé", prompt)),
        (0, Text("y", (token(b"y", -3.0),))),
        (0, finished("length")),
    ]
    sent = run(completion(echo=True, logprobs=0, stream=is_streamed), events)
    values = chunks(sent) if is_streamed else [json.loads(sent[-1])]
    parts = [value["choices"][0]["logprobs"] for value in values]
    whole = {name: [one for part in parts for one in part[name]] for name in parts[0]}
    assert whole == {
        "tokens": ["", "<s>x", "é", "y"],
        "token_logprobs": [None, -1.0, -2.0, -3.0],
        "top_logprobs": [None, {"<s>x": -1.0}, {"é": -2.0}, {"y": -3.0}],
        "text_offset": [0, 0, 4, 10],
    }


def test_minus_infinity_is_a_number() -> None:
    never = token(b"x", -math.inf, (b"y", -math.inf))
    events: Events = [(0, Text("x", (never,))), (0, finished())]
    (got,) = json.loads(run(chat(logprobs=True), events)[-1])["choices"][0]["logprobs"]["content"]
    assert (got["logprob"], got["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    value = json.loads(run(completion(logprobs=1), events)[-1])["choices"][0]["logprobs"]
    assert value["token_logprobs"] == [-9999.0]
    assert value["top_logprobs"] == [{"x": -9999.0, "y": -9999.0}]


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=12), st.lists(st.integers(0, 48), max_size=6))
def test_offsets_and_bytes_point_into_the_text(text: str, cuts: list[int]) -> None:
    data = text.encode()
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    tokens = [token(data[a:b]) for a, b in pairwise(ends)]
    events: Events = [(0, Text(text, tuple(tokens))), (0, finished())]
    got = json.loads(run(completion(logprobs=0), events)[-1])["choices"][0]["logprobs"]
    for offset, end in zip(got["text_offset"], ends, strict=False):
        assert len(text[:offset].encode()) <= end < len(text[: offset + 1].encode())
    content = json.loads(run(chat(logprobs=True), events)[-1])["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in content for byte in one["bytes"]) == data
