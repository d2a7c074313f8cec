"""Tool calls in replies: as agents gather them from a stream, plain, and in the first form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ponytail.api.openai import ChatCompletions
from ponytail.types import ChatPrompt, Reasoning, Started, Text, ToolCallArgs, ToolCallStart
from tests.unit.test_openai_encode import LIMITS, Events, chat, chunks, finished, run, strict

FUNCTIONS = [{"name": "get_time"}]
CALLS: Events = [
    (0, Started(10, 0)),
    (0, Reasoning("two ")),
    (0, Reasoning("calls")),
    (0, ToolCallStart(0, "call_a", "get_time")),
    (0, ToolCallArgs(0, '{"zone":')),
    (0, ToolCallArgs(0, ' "é"}')),
    (0, ToolCallStart(1, "call_b", "get_weather")),
    (0, ToolCallArgs(1, "{}")),
    (0, finished("tool_calls")),
]


def test_tool_calls_stream_as_agents_gather_them() -> None:
    got = chunks(run(chat(stream=True), CALLS))
    deltas = [strict(ChatCompletionChunk, c, "reasoning_content").choices[0].delta for c in got]
    raw = [c["choices"][0]["delta"] for c in got]
    assert raw[3] == {
        "tool_calls": [
            {
                "index": 0,
                "id": "call_a",
                "type": "function",
                "function": {"name": "get_time", "arguments": ""},
            }
        ]
    }
    assert raw[4] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"zone":'}}]}
    gathered: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or []:
            gathered.setdefault(call.index, []).append(call.function.arguments)
    assert {k: "".join(v) for k, v in gathered.items()} == {0: '{"zone": "é"}', 1: "{}"}
    assert "".join(d.get("reasoning_content", "") for d in raw) == "two calls"
    assert got[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_reply_with_calls_can_be_sent_back_as_it_came() -> None:
    value = json.loads(run(chat(), CALLS)[-1])
    reply = strict(ChatCompletion, value, "reasoning_content")
    message = reply.choices[0].message
    assert message.content is None
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("call_a", "get_time", '{"zone": "é"}'),
        ("call_b", "get_weather", "{}"),
    ]
    sent_back = [value["choices"][0]["message"], message.model_dump()]
    request = ChatCompletions().parse({"messages": sent_back}, LIMITS)
    first, second = request.prompts[0].messages
    assert first == second
    assert (first.content, first.reasoning) == ("", "two calls")
    assert [call.name for call in first.tool_calls] == ["get_time", "get_weather"]


def test_a_streams_calls_are_those_of_the_plain_reply() -> None:
    plain = strict(ChatCompletion, json.loads(run(chat(), CALLS)[-1]), "reasoning_content")
    state = ChatCompletionStreamState()
    for value in chunks(run(chat(stream=True), CALLS)):
        state.handle_chunk(ChatCompletionChunk.model_validate(value))
    (choice,) = state.get_final_completion().choices
    assert choice.finish_reason == plain.choices[0].finish_reason == "tool_calls"
    streamed = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    assert streamed == [
        (c.id, c.function.name, c.function.arguments) for c in plain.choices[0].message.tool_calls
    ]


def test_text_beside_a_call_stays() -> None:
    events: Events = [(0, Text("Let me look.")), *CALLS[3:]]
    message = json.loads(run(chat(), events)[-1])["choices"][0]["message"]
    assert message["content"] == "Let me look."
    assert len(message["tool_calls"]) == 2


ONE: Events = [(0, Started(10, 0)), *CALLS[3:6], (0, finished("tool_calls"))]


def test_the_first_form_is_one_function_call() -> None:
    value = json.loads(run(chat(functions=FUNCTIONS), ONE)[-1])
    (choice,) = strict(ChatCompletion, value).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.content is None
    assert choice.message.tool_calls is None
    assert choice.message.function_call.model_dump() == {
        "name": "get_time",
        "arguments": '{"zone": "é"}',
    }
    prompt = (
        ChatCompletions().parse({"messages": [value["choices"][0]["message"]]}, LIMITS).prompts[0]
    )
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[0].tool_calls[0].name == "get_time"


def test_the_first_form_streams() -> None:
    got = chunks(run(chat(functions=FUNCTIONS, stream=True), ONE))
    for value in got:
        strict(ChatCompletionChunk, value)
    assert [value["choices"][0]["delta"] for value in got] == [
        {"role": "assistant", "content": None},
        {"function_call": {"name": "get_time", "arguments": ""}},
        {"function_call": {"arguments": '{"zone":'}},
        {"function_call": {"arguments": ' "é"}'}},
        {},
    ]
    assert got[-1]["choices"][0]["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    "fields", [{"tools": [{"function": FUNCTIONS[0]}]}, {"functions": FUNCTIONS}]
)
def test_an_answer_without_a_call_is_as_ever(fields: dict[str, Any]) -> None:
    events: Events = [(0, Started(10, 0)), (0, Text("no")), (0, finished())]
    (choice,) = strict(ChatCompletion, json.loads(run(chat(**fields), events)[-1])).choices
    assert (choice.message.content, choice.finish_reason) == ("no", "stop")
    assert (choice.message.tool_calls, choice.message.function_call) == (None, None)
