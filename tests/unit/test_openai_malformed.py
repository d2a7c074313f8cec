"""Every malformed OpenAI body gets a 400 that names the field; none breaks the parser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ponytail.api.dialect import Limits
from ponytail.api.openai import (
    ChatCompletions,
    Completions,
    encode_error,
)
from ponytail.api.openai_fields import INT64_MAX
from ponytail.errors import PonytailError, UnknownParameter, UnsupportedContent

LIMITS = Limits(n_vocab=1000, n_ctx=512)
HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Any:
    return ChatCompletions().parse({"messages": HI, **fields}, LIMITS)


def refusal(parse: Callable[..., Any], *args: Any, **fields: Any) -> PonytailError:
    with pytest.raises(PonytailError) as caught:
        parse(*args, **fields)
    return caught.value


def refused_messages(*turns: Any) -> PonytailError:
    return refusal(chat, messages=list(turns))


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file", "video_url"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_media_is_refused_by_its_place(kind: str, role: str) -> None:
    parts = [{"type": "text", "text": "look"}, {**IMAGE, "type": kind}]
    error = refused_messages(*HI, {"role": role, "content": parts})
    assert isinstance(error, UnsupportedContent)
    assert (error.status, error.code) == (400, "unsupported_content")
    assert error.param == "messages[1].content[1]"
    assert error.message.startswith("messages[1].content[1] is ")
    assert kind in error.message


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


def call(**fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    made = {"id": "a", "type": "function", "function": function, **fields}
    return {"messages": [{"role": "assistant", "tool_calls": [made]}]}


def part(**fields: Any) -> dict[str, Any]:
    return turn(content=[{"type": "text", "text": "x"}, fields])


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, **fields}


ASSISTANT = {"role": "assistant", "content": "x"}
CALLS = [{"id": "a", "type": "function", "function": {"name": "f"}}]


def ends(**fields: Any) -> dict[str, Any]:
    turns = [*HI, {"role": "assistant", **fields}]
    return {"messages": turns, "continue_final_message": True}


# Body, the field an error must name, words its message must hold.
MALFORMED_CHAT: list[tuple[Any, str | None, str]] = [
    ([], None, "JSON object"),
    ("x", None, "JSON object"),
    ({}, "messages", "required"),
    ({"messages": None}, "messages", "required"),
    ({"messages": []}, "messages", "non-empty list"),
    ({"messages": {"role": "user"}}, "messages", "non-empty list"),
    ({"messages": "hi"}, "messages", 'the string "hi"'),
    ({"messages": ["hi"]}, "messages[0]", "object"),
    ({"messages": [*HI, None]}, "messages[1]", "null"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "one of system"),
    (turn(role="banana"), "messages[0].role", "banana"),
    (turn(role=5), "messages[0].role", "5"),
    (turn(role=["user"]), "messages[0].role", "list"),
    (turn(content=5), "messages[0].content", "string, null or a list of parts"),
    (turn(content={"a": 1}), "messages[0].content", "an object"),
    (turn(content=["x"]), "messages[0].content[0]", "object"),
    (turn(content=True), "messages[0].content", "true"),
    (turn(name=5), "messages[0].name", "string or null"),
    (turn(prefix=True), "messages[0].prefix", "only in one of the assistant"),
    (turn(prefix="yes"), "messages[0].prefix", "true or false"),
    (part(), "messages[0].content[1].type", "null"),
    (part(type="hologram"), "messages[0].content[1].type", "hologram"),
    (part(type=["text"]), "messages[0].content[1].type", "list"),
    (part(type="text"), "messages[0].content[1].text", "null"),
    (part(type="text", text=7), "messages[0].content[1].text", "7"),
    (part(**IMAGE), "messages[0].content[1]", "image"),
    (turn(role="tool", content=5), "messages[0].content", "an object"),
    (turn(role="tool", tool_call_id=5), "messages[0].tool_call_id", "5"),
    (turn(role="assistant", tool_calls={}), "messages[0].tool_calls", "list"),
    (turn(role="assistant", tool_calls=["f"]), "messages[0].tool_calls[0]", "object"),
    (turn(role="assistant", reasoning_content=[]), "messages[0].reasoning_content", "string"),
    (turn(role="assistant", audio={"id": "a"}), "messages[0].audio", "audio"),
    (turn(role="assistant", function_call="f"), "messages[0].function_call", "object"),
    (call(id=None), "messages[0].tool_calls[0].id", "string"),
    (call(type="custom"), "messages[0].tool_calls[0].type", "custom"),
    (call(function="f"), "messages[0].tool_calls[0].function", "object"),
    (call(function={}), "messages[0].tool_calls[0].function.name", "non-empty"),
    (
        call(function={"name": "f", "arguments": 5}),
        "messages[0].tool_calls[0].function.arguments",
        "5",
    ),
    (asked(temperature="hot"), "temperature", 'from 0 to 5, got the string "hot"'),
    (asked(temperature=-0.1), "temperature", "from 0 to 5, got -0.1"),
    (asked(temperature=True), "temperature", "got true"),
    (asked(top_p=7), "top_p", "up to 1, got 7"),
    (asked(top_p=0), "top_p", "above 0"),
    (asked(n=0), "n", "from 1 to 128, got 0"),
    (asked(n=-1), "n", "got -1"),
    (asked(n=1.5), "n", "got 1.5"),
    (asked(n=129), "n", "got 129"),
    (asked(n=True), "n", "got true"),
    (asked(max_tokens=0), "max_tokens", "from 1"),
    (asked(max_tokens=-1), "max_tokens", "got -1"),
    (asked(max_tokens="7"), "max_tokens", 'the string "7"'),
    (asked(max_tokens=1.5), "max_tokens", "got 1.5"),
    (asked(max_completion_tokens=True), "max_completion_tokens", "got true"),
    (asked(max_tokens=INT64_MAX + 1), "max_tokens", str(INT64_MAX)),
    (asked(max_tokens=3, min_tokens=4), "min_tokens", "3"),
    (asked(stop=5), "stop", "string"),
    (asked(stop=""), "stop", "non-empty"),
    (asked(stop=["a", ""]), "stop[1]", "non-empty"),
    (asked(stop=["a", 5]), "stop[1]", "got 5"),
    (asked(stop=["a"] * 17), "stop", "at most 16"),
    (asked(stream="yes"), "stream", "true or false"),
    (asked(stream=1), "stream", "got 1"),
    (asked(stream_options={"include_usage": True}), "stream_options", "stream is true"),
    (asked(stream=True, stream_options=True), "stream_options", "object"),
    (asked(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage", "1"),
    (asked(stream=True, stream_options={"usage": True}), "stream_options.usage", "not a parameter"),
    (
        asked(stream=True, stream_options={"continuous_usage_stats": True}),
        "stream_options.continuous_usage_stats",
        "not supported",
    ),
    (asked(seed="x"), "seed", "integer"),
    (asked(seed=2**64), "seed", "integer"),
    (asked(logit_bias=5), "logit_bias", "object"),
    (asked(logit_bias={"x": 1}), "logit_bias.x", "0 to 999"),
    (asked(logit_bias={"1000": 1}), "logit_bias.1000", "0 to 999"),
    (asked(logit_bias={"-1": 1}), "logit_bias.-1", "0 to 999"),
    (asked(logit_bias={"²": 1}), "logit_bias.²", "0 to 999"),
    (asked(logit_bias={"1": 101}), "logit_bias.1", "-100 to 100"),
    (asked(logit_bias={"1": True}), "logit_bias.1", "got true"),
    (asked(logit_bias={"1": "x"}), "logit_bias.1", "-100 to 100"),
    (asked(logit_bias={"1": None}), "logit_bias.1", "null"),
    (asked(logit_bias=[[1]]), "logit_bias", "list of [id, number]"),
    (asked(logit_bias=[[1, 2], [True, 2]]), "logit_bias[1]", "0 to 999"),
    (asked(dry_sequence_breakers="x"), "dry_sequence_breakers", "list"),
    (asked(chat_template_kwargs=[]), "chat_template_kwargs", "object"),
    (asked(chat_template_kwargs={"messages": []}), "chat_template_kwargs.messages", "server"),
    (asked(add_generation_prompt="no"), "add_generation_prompt", "true or false"),
    (asked(reasoning_effort=5), "reasoning_effort", "string"),
    (asked(truncation="middle"), "truncation", '"auto" or "disabled", got the string "middle"'),
    (asked(truncation=True), "truncation", "got true"),
    (asked(truncation=["auto"]), "truncation", "got a list of 1"),
    (asked(truncation={"type": "auto"}), "truncation", "got an object"),
    (asked(echo=True), "echo", "not supported here"),
    (asked(logprobs=1), "logprobs", "true or false"),
    (asked(logprobs=True, top_logprobs=21), "top_logprobs", "from 0 to 20, got 21"),
    (asked(top_logprobs=0), "top_logprobs", "only allowed when logprobs is true"),
    (asked(top_logprobs=2, logprobs=False), "top_logprobs", "only allowed"),
    (asked(reasoning_format="tags"), "reasoning_format", '"auto" or "deepseek" or "none"'),
    (asked(thinking_budget=-2), "thinking_budget", "(-1: no limit), got -2"),
    (asked(thinking_budget=1, reasoning_budget=2), "reasoning_budget", "thinking_budget"),
    (asked(stop_token_ids=[1000]), "stop_token_ids[0]", "0 to 999"),
    (asked(stop_token_ids=[1] * 257), "stop_token_ids", "at most 256"),
    (asked(priority=2**31), "priority", "got 2147483648"),
    (asked(deadline_s=0), "deadline_s", "above 0"),
    (asked(deadline_s=86401), "deadline_s", "up to 86400"),
    (asked(cache_salt=""), "cache_salt", "non-empty"),
    (asked(cache_salt="x" * 257), "cache_salt", "at most 256"),
    (asked(unsupported_content="drop"), "unsupported_content", '"placeholder"'),
    (asked(documents={"a": 1}), "documents", "a list of at most 1024 objects"),
    (asked(documents=["a"]), "documents[0]", "object"),
    (asked(continue_final_message=True), "continue_final_message", "of the assistant"),
    (ends(tool_calls=CALLS, content="x"), "continue_final_message", "without tool calls"),
    (ends(content=None), "continue_final_message", "some text"),
    (
        {**ends(content="x"), "add_generation_prompt": True},
        "continue_final_message",
        "add_generation_prompt",
    ),
    (
        asked(messages=[{**ASSISTANT, "prefix": True}, *HI]),
        "messages[0].prefix",
        "only in the last message",
    ),
    (
        asked(messages=[*HI, {**ASSISTANT, "prefix": True}], add_generation_prompt=True),
        "messages[1].prefix",
        "add_generation_prompt",
    ),
    (asked(modalities=["text", "audio"]), "modalities", "not supported"),
    (asked(temprature=1), "temprature", "Did you mean temperature?"),
    (asked(prompt="hi"), "prompt", "not a parameter"),
    (asked(**{"x" * 5000: 1}), "x" * 40 + "…", "not a parameter"),
]
MALFORMED_COMPLETION: list[tuple[Any, str | None, str]] = [
    ({}, "prompt", "required"),
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": ""}, "prompt", "non-empty"),
    ({"prompt": []}, "prompt", "an empty list"),
    ({"prompt": ["a", ""]}, "prompt[1]", "non-empty"),
    ({"prompt": ["a", 5]}, "prompt[1]", "got 5"),
    ({"prompt": [1, "a"]}, "prompt[1]", "token id"),
    ({"prompt": [1, 1000]}, "prompt[1]", "from 0 to 999, got 1000"),
    ({"prompt": [-1]}, "prompt[0]", "got -1"),
    ({"prompt": [True]}, "prompt[0]", "got true"),
    ({"prompt": [1.0]}, "prompt[0]", "got 1.0"),
    ({"prompt": [[1], []]}, "prompt[1]", "empty list"),
    ({"prompt": [[1], [2, 1000]]}, "prompt[1][1]", "got 1000"),
    ({"prompt": [[1], "a"]}, "prompt[1]", "token ids"),
    ({"prompt": [None]}, "prompt[0]", "null"),
    ({"prompt": {"a": 1}}, "prompt", "an object"),
    ({"prompt": 5}, "prompt", "got 5"),
    ({"prompt": ["a"] * 2049}, "prompt", "at most 2048"),
    ({"prompt": ["a"] * 17, "n": 128}, "n", "at most 2048"),
    ({"prompt": "a", "echo": 1}, "echo", "true or false"),
    ({"prompt": "a", "truncation": "auto"}, "truncation", "A raw prompt has no turns to drop."),
    ({"prompt": "a", "truncation": True}, "truncation", "not supported here"),
    ({"prompt": "a", "suffix": 5}, "suffix", "a string"),
    ({"prompt": [1], "suffix": "b"}, "suffix", "needs a prompt of text"),
    ({"prompt": "a", "suffix": "b", "echo": True}, "suffix", "echo"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "only when echo is true"),
    ({"prompt": "a", "n_predict": 0}, "max_tokens", "only when echo is true"),
    ({"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens", "got -1"),
    ({"prompt": "a", "logprobs": True}, "logprobs", "an integer from 0 to 20, or false, got true"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
    ({"prompt": "a", "best_of": 2}, "best_of", "ask for n and choose"),
    ({"prompt": "a", "top_logprobs": 2}, "top_logprobs", "not a parameter"),
    ({"prompt": "a", "tools": []}, "tools", "not a parameter"),
    ({"prompt": "a", "messages": HI}, "messages", "not a parameter"),
]


@pytest.mark.parametrize(("body", "param", "words"), MALFORMED_CHAT)
def test_a_malformed_chat_names_its_fault(body: Any, param: str | None, words: str) -> None:
    assert_refused(refusal(ChatCompletions().parse, body, LIMITS), param, words)


@pytest.mark.parametrize(("body", "param", "words"), MALFORMED_COMPLETION)
def test_a_malformed_completion_names_its_fault(body: Any, param: str | None, words: str) -> None:
    assert_refused(refusal(Completions().parse, body, LIMITS), param, words)


def assert_refused(error: PonytailError, param: str | None, words: str) -> None:
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.param == param
    assert words in error.message
    assert len(error.message) < 400
    if param is not None:
        assert param in error.message
    body = json.loads(encode_error(error))
    assert body == {
        "error": {
            "message": error.message,
            "type": "invalid_request_error",
            "param": param,
            "code": error.code,
        }
    }


def test_an_unknown_parameter_has_its_own_code() -> None:
    error = refusal(chat, frobnicate=1)
    assert isinstance(error, UnknownParameter)
    assert error.code == "unknown_parameter"


def test_nesting_and_size_break_nothing() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for fields in ({"metadata": deep}, {"chat_template_kwargs": deep}):
        assert chat(**fields)
    deep_list: Any = []
    for _ in range(100_000):
        deep_list = [deep_list]
    for fields in ({"tools": deep_list}, {"stop": deep_list}, {"logit_bias": deep_list}):
        assert refusal(chat, **fields).status == 400
    function = {"name": "f", "parameters": deep}
    for fields, param in (
        ({"json_schema": deep}, "json_schema"),
        ({"functions": [function]}, "functions[0].parameters"),
        ({"tools": [{"function": function}]}, "tools[0].function.parameters"),
        ({"documents": [deep]}, "documents[0]"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"json_schema": {"minimum": 10**5000}}, "json_schema"),
        ({"json_schema": {"enum": ["x" * (1 << 20)]}}, "json_schema"),
    ):
        assert refusal(chat, **fields).param == param
    error = refused_messages({"role": "tool", "content": deep})
    assert error.param == "messages[0].content"
    error = refused_messages({"role": "tool", "content": {"n": 10**5000}})
    assert error.param == "messages[0].content"
    assert refusal(Completions().parse, {"prompt": deep_list}, LIMITS).param == "prompt[0][0]"
    assert refusal(chat, logit_bias={"9" * 5000: 1}).status == 400
