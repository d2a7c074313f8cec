"""Tool calls as agents expect them (P04, P05, P40), from a model that knows no tools."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.contract.replies import HI, Streamed, checked

pytestmark = pytest.mark.real

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "get_time": CLOCK}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASK: Any = [{"role": "user", "content": "What is the weather in Paris, and what time is it?"}]
GET_TIME: Any = {"type": "function", "function": {"name": "get_time"}}


def asked(client: Any, *, stream: bool = False, **options: Any) -> Any:
    """(calls as (id, name, arguments), content, finish_reason)."""
    values = {"messages": ASK, "tools": TOOLS, "temperature": 1.2, "max_tokens": 300, **options}
    if stream:
        told = Streamed(client.chat.completions.create(model="m", stream=True, **values))
        calls = [(c["id"], c["name"], c["arguments"]) for c in told.calls]
        return calls, told.content, told.finish_reason
    choice = checked(client.chat.completions.create(model="m", **values))
    found = choice.message.tool_calls or []
    calls = [(c.id, c.function.name, c.function.arguments) for c in found]
    return calls, choice.message.content, choice.finish_reason


def valid(calls: list[tuple[str, str, str]]) -> None:
    assert len({call_id for call_id, _, _ in calls}) == len(calls)
    for _, name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("seed", range(4))
def test_required_makes_valid_calls_of_a_model_that_knows_none(client, stream, seed):
    calls, content, reason = asked(client, stream=stream, tool_choice="required", seed=seed)
    assert calls
    assert content is None
    assert reason == "tool_calls"
    valid(calls)


@pytest.mark.parametrize("n", range(1, 14, 3))
def test_a_forced_call_that_is_cut_off_shows_no_markup(client, n):
    calls, content, reason = asked(client, tool_choice="required", max_tokens=n, seed=1)
    assert reason == "length"
    assert not content
    assert all(name in SCHEMAS for _, name, _ in calls)


def test_plain_and_stream_tell_the_same_calls(client):
    options = {"tool_choice": "required", "seed": 5}
    plain, _, _ = asked(client, **options)
    streamed, _, _ = asked(client, stream=True, **options)
    assert [call[1:] for call in plain] == [call[1:] for call in streamed]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_named_calls_that_function_alone(client, stream):
    for seed in range(3):
        calls, _, reason = asked(client, stream=stream, tool_choice=GET_TIME, seed=seed)
        assert {name for _, name, _ in calls} == {"get_time"}
        assert reason == "tool_calls"


def test_allowed_tools_narrow_the_choice(client):
    only: Any = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [GET_TIME]},
    }
    calls, _, _ = asked(client, tool_choice=only)
    assert {name for _, name, _ in calls} == {"get_time"}


def test_none_calls_nothing(client):
    for seed in range(3):
        calls, content, reason = asked(client, tool_choice="none", seed=seed, max_tokens=40)
        assert not calls
        assert content
        assert "<tool_call>" not in content
        assert reason in ("stop", "length")


def test_auto_answers_or_calls_and_what_it_calls_is_valid(client):
    for seed in range(4):
        calls, content, reason = asked(client, seed=seed)
        valid(calls)
        assert (reason == "tool_calls") is bool(calls)
        assert "<tool_call>" not in (content or "")


def test_auto_is_bound_once_a_call_has_begun(client):
    """The history makes the model call, in arguments that no longer fit; what it sends fits."""
    history: Any = []
    for i, place in enumerate(("Oslo", "Bern", "Kyiv", "Lima")):
        call = {"name": "get_weather", "arguments": json.dumps({"place": place})}
        history += [
            {"role": "user", "content": f"Weather in {place}?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{i}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{i}", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
        ]
    ask = [*history, {"role": "user", "content": "Weather in Cairo?"}]
    for stream in (False, True):
        calls, _, reason = asked(client, messages=ask, temperature=0, stream=stream)
        assert calls
        assert reason == "tool_calls"
        valid(calls)


@pytest.mark.parametrize("choice", ["required", GET_TIME])
def test_one_call_where_parallel_ones_are_not_wanted(client, choice):
    for seed in range(3):
        calls, _, _ = asked(client, tool_choice=choice, parallel_tool_calls=False, seed=seed)
        assert len(calls) == 1


@pytest.mark.parametrize(
    "choice", [{"type": "function", "function": {"name": "nope"}}, "sometimes", {"type": "x"}]
)
def test_a_choice_that_cannot_be_is_refused(client, choice):
    with pytest.raises(openai.BadRequestError) as caught:
        asked(client, tool_choice=choice)
    assert (caught.value.param or "").startswith("tool_choice")


def test_first_form_of_functions(client):
    reply = client.chat.completions.create(
        model="m",
        messages=ASK,
        functions=[tool["function"] for tool in TOOLS],
        function_call={"name": "get_weather"},
        max_tokens=200,
    )
    choice = checked(reply)
    assert choice.finish_reason == "function_call"
    jsonschema.validate(json.loads(choice.message.function_call.arguments), WEATHER)


def test_schemas_go_with_tools(client):
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    for seed in range(4):
        calls, content, _ = asked(client, response_format=form, seed=seed)
        valid(calls)
        assert calls or content in ("1", "2")


def test_logprobs_come_beside_tools(client):
    reply = client.chat.completions.create(
        model="m", messages=ASK, tools=TOOLS, tool_choice=GET_TIME, logprobs=True, top_logprobs=2
    )
    choice = checked(reply)
    told = choice.logprobs.model_dump()
    assert told["tool_calls"]
    assert all(len(one["top_logprobs"]) == 2 for one in told["tool_calls"])


def test_the_servers_own_reply_can_be_sent_back(client):
    first = client.chat.completions.create(
        model="m", messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=300
    )
    message = first.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls
    ]
    for sent in (message, message.model_dump()):
        reply = client.chat.completions.create(
            model="m", messages=[*ASK, sent, *results], tools=TOOLS, max_tokens=8
        )
        checked(reply)


CALL: Any = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_time", "arguments": "{}"},
}
ABSENT = object()


@pytest.mark.parametrize("content", [None, ABSENT, "", [], [{"type": "text", "text": ""}]])
@pytest.mark.parametrize(
    "result", ["12:00", None, [{"type": "text", "text": "12:00"}], {"time": "12:00"}]
)
def test_histories_with_calls_are_taken_in_every_spelling(client, server, content, result):
    turn: Any = {"role": "assistant", "tool_calls": [CALL]}
    if content is not ABSENT:
        turn["content"] = content
    messages: Any = [*HI, turn, {"role": "tool", "tool_call_id": "call_1", "content": result}]
    checked(client.chat.completions.create(model="m", messages=messages, tools=TOOLS, max_tokens=4))
    prompt = client.post(
        "/apply-template", body={"messages": messages, "tools": TOOLS}, cast_to=object
    )["prompt"]
    assert "None" not in prompt
    assert "null" not in prompt
    assert prompt.count("12:00") == (0 if result is None else 1)
