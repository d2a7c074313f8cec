"""The replies of the OpenAI dialect, read back with the official client and its strict models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from ponytail.api.dialect import Encoder, Limits, Reply
from ponytail.api.openai import (
    ChatCompletions,
    Completions,
    ModelCard,
    encode_error,
    encode_model,
    encode_models,
)
from ponytail.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
    ModelLoading,
    Overloaded,
)
from ponytail.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Started,
    Text,
    Timings,
    ToolCallStart,
    Truncation,
    Usage,
)

LIMITS = Limits(n_vocab=1000, n_ctx=512)
REPLY = Reply("id-1", 1700000000, 'Llama "3" 🦙', "fp_b1")
HI = {"messages": [{"role": "user", "content": "hi"}]}
TIMINGS = Timings(0.0, 0.0, 0.0)
Events = list[tuple[int, Event]]


def finished(
    reason: FinishReason = "stop", n_prompt: int = 10, n_cached: int = 4, n_completion: int = 3
) -> Finished:
    return Finished(reason, Usage(n_prompt, n_cached, n_completion), TIMINGS)


def chat(**fields: Any) -> Encoder:
    dialect = ChatCompletions()
    return dialect.encoder(REPLY, dialect.parse({**HI, **fields}, LIMITS))


def completion(**fields: Any) -> Encoder:
    dialect = Completions()
    return dialect.encoder(REPLY, dialect.parse({"prompt": "x", **fields}, LIMITS))


def run(encoder: Encoder, events: Iterable[tuple[int, Event]]) -> list[bytes]:
    return [*(encoder.feed(index, event) for index, event in events), encoder.finish()]


def chunks(sent: list[bytes]) -> list[dict[str, Any]]:
    """The objects of a stream as the official client frames them; [DONE] must be the end."""
    data = [event.data for event in SSEDecoder().iter_bytes(iter(sent))]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(line) for line in data[:-1]]


def strict(model: type[BaseModel], value: dict[str, Any], *extensions: str) -> Any:
    """`value` as the client's own type; a member the client does not know is a fault."""
    parsed = model.model_validate(value, strict=True)
    assert unknown_members(parsed) <= set(extensions)
    return parsed


def unknown_members(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(unknown_members, value))
    if not isinstance(value, BaseModel):
        return set()
    inner = [unknown_members(getattr(value, name)) for name in type(value).model_fields]
    return set(value.model_extra or {}).union(*inner)


STREAMED: Events = [
    (0, Started(10, 4)),
    (0, Text("Hel")),
    (1, Started(10, 10)),
    (1, Text("é🦙")),
    (0, Text("lo\n\n\r\u2028data: x")),
    (0, finished()),
    (1, Text("b")),
    (1, finished("length", n_cached=10, n_completion=5)),
]
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 8,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def test_every_chat_chunk_is_what_the_client_expects() -> None:
    got = chunks(run(chat(stream=True, n=2), STREAMED))
    for value in got:
        chunk = strict(ChatCompletionChunk, value)
        assert (chunk.id, chunk.created, chunk.model) == (REPLY.id, REPLY.created, REPLY.model)
        assert chunk.system_fingerprint == "fp_b1"
        assert "usage" not in value
        assert value["choices"][0].keys() == {"index", "delta", "logprobs", "finish_reason"}
    for index, reason in ((0, "stop"), (1, "length")):
        choices = [c["choices"][0] for c in got if c["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all(choice["delta"].keys() == {"content"} for choice in choices[1:-1])
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, reason)


def test_every_completion_chunk_is_what_the_client_expects() -> None:
    got = chunks(run(completion(stream=True, n=2), STREAMED))
    assert len(got) == len(STREAMED) - 2  # Started says nothing here
    for value in got:
        # The client's type wants a finish_reason even where the API sends null.
        (choice,) = value["choices"]
        shown = {**choice, "finish_reason": choice["finish_reason"] or "stop"}
        strict(Completion, {**value, "choices": [shown]})
        assert (value["id"], value["object"]) == (REPLY.id, "text_completion")
        assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    reasons = [c["choices"][0]["finish_reason"] for c in got]
    assert reasons == [None, None, None, "stop", None, "length"]
    assert got[3]["choices"][0]["text"] == ""


@pytest.mark.parametrize("make", [chat, completion])
def test_usage_comes_once_and_only_when_asked(make: Any) -> None:
    options = {"stream_options": {"include_usage": True}}
    got = chunks(run(make(stream=True, n=2, **options), STREAMED))
    assert [chunk["usage"] for chunk in got] == [None] * (len(got) - 1) + [USAGE]
    assert got[-1]["choices"] == []
    strict(ChatCompletionChunk if make is chat else Completion, got[-1])
    for off in ({}, {"stream_options": {"include_usage": False}}):
        assert all("usage" not in c for c in chunks(run(make(stream=True, n=2, **off), STREAMED)))
    (*_, plain) = run(make(n=2), STREAMED)
    assert json.loads(plain)["usage"] == USAGE


def test_usage_counts_each_prompt_once() -> None:
    events = [
        (index, finished(n_prompt=n_prompt, n_cached=n_cached, n_completion=1))
        for index, n_prompt, n_cached in [(3, 20, 20), (1, 5, 5), (0, 5, 0), (2, 20, 8)]
    ]
    (*_, plain) = run(completion(prompt=["a", "b"], n=2), events)
    usage = json.loads(plain)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        25,
        4,
        29,
    )
    assert usage["prompt_tokens_details"] == {"cached_tokens": 8}


def test_the_plain_reply_says_the_same_as_the_stream() -> None:
    encoder = chat(n=2)
    assert [encoder.feed(index, event) for index, event in STREAMED] == [b""] * len(STREAMED)
    reply = strict(ChatCompletion, json.loads(encoder.finish()))
    assert (reply.id, reply.model, reply.object) == (REPLY.id, REPLY.model, "chat.completion")
    streamed = chunks(run(chat(stream=True, n=2), STREAMED))
    for choice in reply.choices:
        own = [c["choices"][0] for c in streamed if c["choices"][0]["index"] == choice.index]
        assert choice.message.content == "".join(c["delta"].get("content", "") for c in own)
        assert choice.finish_reason == own[-1]["finish_reason"]
    raw = strict(Completion, json.loads(run(completion(n=2), STREAMED)[-1]))
    assert [c.text for c in raw.choices] == [c.message.content for c in reply.choices]
    assert [c.index for c in raw.choices] == [0, 1]


def test_what_was_dropped_is_in_the_reply_and_in_every_chunk() -> None:
    said = {"type": "auto", "dropped_messages": 4, "dropped_turns": 2}
    reply = msgspec.structs.replace(REPLY, truncation=Truncation(4, 2))
    dialect = ChatCompletions()

    def encoder(**fields: Any) -> Encoder:
        return dialect.encoder(reply, dialect.parse({**HI, **fields}, LIMITS))

    plain = strict(ChatCompletion, json.loads(run(encoder(n=2), STREAMED)[-1]), "truncation")
    assert plain.truncation == said
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in chunks(run(encoder(n=2, **options), STREAMED)):
        assert strict(ChatCompletionChunk, chunk, "truncation").truncation == said
    unasked = chunks(run(chat(stream=True, n=2), STREAMED))
    assert all("truncation" not in chunk for chunk in unasked)


def test_warnings_are_in_the_reply_and_in_every_chunk() -> None:
    reply = msgspec.structs.replace(REPLY, warnings=("maxItems 10000 is not held",))
    for dialect, body, whole in (
        (ChatCompletions(), HI, ChatCompletion),
        (Completions(), {"prompt": "x"}, Completion),
    ):
        plain = dialect.encoder(reply, dialect.parse(body, LIMITS))
        value = json.loads(run(plain, [(0, finished())])[-1])
        assert strict(whole, value, "warnings").warnings == ["maxItems 10000 is not held"]
        stream = dialect.encoder(reply, dialect.parse({**body, "stream": True}, LIMITS))
        got = chunks(run(stream, [(0, Text("a")), (0, finished())]))
        assert [chunk["warnings"] for chunk in got] == [["maxItems 10000 is not held"]] * 2
    assert b"warnings" not in run(chat(), [(0, finished())])[-1]


def test_usage_counts_the_thinking_of_all_choices() -> None:
    events = [
        (i, Finished("stop", Usage(5, 0, 9, n_reasoning), TIMINGS))
        for i, n_reasoning in ((0, 4), (1, 3))
    ]
    usage = json.loads(run(chat(n=2), events)[-1])["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 7}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert chunks(run(chat(n=2, **options), events))[-1]["usage"] == usage


def test_an_empty_answer_is_an_empty_string() -> None:
    events: Events = [(0, Started(10, 0)), (0, finished("length", n_completion=1))]
    assert json.loads(run(chat(), events)[-1])["choices"][0]["message"]["content"] == ""
    assert json.loads(run(completion(), events)[-1])["choices"][0]["text"] == ""


def test_no_fingerprint_is_null() -> None:
    dialect = ChatCompletions()
    encoder = dialect.encoder(Reply("i", 1, "m"), dialect.parse(HI, LIMITS))
    reply = strict(ChatCompletion, json.loads(run(encoder, [(0, finished())])[-1]))
    assert reply.system_fingerprint is None


def test_a_completion_never_hides_a_tool_call() -> None:
    with pytest.raises(ValueError, match="no tool"):
        completion(stream=True).feed(0, ToolCallStart(0, "a", "f"))
    with pytest.raises(ValueError, match="no tool"):
        run(completion(), [(0, ToolCallStart(0, "a", "f")), (0, finished())])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_text_arrives_byte_for_byte(texts: list[str]) -> None:
    events: Events = [(0, Started(1, 0)), *((0, Text(text)) for text in texts), (0, finished())]
    for make in (chat, completion):
        sent = run(make(stream=True), events)
        # One event per feed, however odd the text: nothing in it may end a line early.
        assert all(part.count(b"\n") == 2 for part in sent[1:-1])
        choices = [c["choices"][0] for c in chunks(sent)]
        pieces = [c["text"] if make is completion else c["delta"].get("content") for c in choices]
        if make is chat:
            assert pieces[1:-1] == texts
        else:
            assert pieces[:-1] == texts


def client(body: bytes, media_type: str, status: int = 200) -> openai.OpenAI:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body, headers={"content-type": media_type})

    return openai.OpenAI(
        api_key="x",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
    )


def test_the_official_client_reads_a_stream_with_keep_alives() -> None:
    encoder = chat(stream=True, stream_options={"include_usage": True})
    events = [pair for pair in STREAMED if pair[0] == 0]
    body = encoder.keep_alive + encoder.keep_alive.join(run(encoder, events))
    with client(body, encoder.media_type).chat.completions.stream(
        model="m", messages=HI["messages"], stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello\n\n\r\u2028data: x"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.completion_tokens == 3


def test_keep_alive_fits_the_media_type() -> None:
    stream, plain = chat(stream=True), chat()
    assert (stream.media_type, stream.keep_alive) == ("text/event-stream", b": keep-alive\n\n")
    assert (plain.media_type, plain.keep_alive) == ("application/json", b"")


@pytest.mark.parametrize("make", [chat, completion])
def test_a_failure_in_a_stream_raises_in_the_official_client(make: Any) -> None:
    encoder = make(stream=True, n=2)
    error = EngineFailed("The engine\nbroke.")
    events: Events = [(0, Started(1, 0)), (0, Text("par")), (0, finished()), (1, Failed(error))]
    body = b"".join(encoder.feed(index, event) for index, event in events) + encoder.fail(error)
    assert b"[DONE]" not in body
    assert body.count(b'"finish_reason":"') == 1  # choice 0's own; none is made up for choice 1
    api = client(body, encoder.media_type)
    stream: Any
    if make is chat:
        stream = api.chat.completions.create(model="m", messages=HI["messages"], stream=True)
    else:
        stream = api.completions.create(model="m", prompt="x", stream=True)
    with pytest.raises(openai.APIError, match=r"The engine\nbroke\."):
        list(stream)


def test_a_failure_of_a_plain_reply_is_an_error_body() -> None:
    error = EngineFailed("broke")
    assert json.loads(chat().fail(error)) == json.loads(encode_error(error))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InvalidRequest("n must be 1", param="n"), openai.BadRequestError),
        (ContextLengthExceeded(600, 512), openai.BadRequestError),
        (Overloaded("full"), openai.RateLimitError),
        (ModelLoading("loading"), openai.InternalServerError),
    ],
)
def test_errors_raise_the_right_exception(error: Any, raised: type[openai.APIStatusError]) -> None:
    api = client(ChatCompletions().encode_error(error), "application/json", error.status)
    with pytest.raises(raised) as caught:
        api.chat.completions.create(model="m", messages=[])
    got = caught.value
    assert (got.code, got.param, got.type) == (error.code, error.param, error.type)
    assert error.message in str(got)


def test_models() -> None:
    card = ModelCard("org/name", 1700000000, 4096, meta={"n_params": 134515008})
    value = json.loads(encode_model(card))
    model = strict(Model, value, "context_length", "max_model_len", "capabilities", "meta")
    assert (model.id, model.object, model.owned_by) == ("org/name", "model", "ponytail")
    assert (value["context_length"], value["max_model_len"]) == (4096, 4096)
    assert value["meta"] == {"n_params": 134515008}
    assert json.loads(encode_models([card])) == {"object": "list", "data": [value]}
    listed = client(encode_models([card]), "application/json").models.list()
    assert [m.id for m in listed] == ["org/name"]
