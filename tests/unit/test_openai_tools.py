"""Tools, which of them may be called, and the API's first form of both."""

from __future__ import annotations

from typing import Any

import pytest

from ponytail.api.dialect import Limits
from ponytail.api.openai import ChatCompletions
from ponytail.errors import InvalidRequest, PonytailError, UnsupportedParameter
from ponytail.types import ChatPrompt, GenerateRequest, Tool, ToolUse

LIMITS = Limits(n_vocab=1000, n_ctx=512)
HI = [{"role": "user", "content": "hi"}]
TIME = {"name": "get_time", "description": "d", "parameters": {"type": "object"}, "strict": True}
TOOLS = [{"type": "function", "function": TIME}, {"function": {"name": "get weather é"}}]


def request(**fields: Any) -> GenerateRequest:
    return ChatCompletions().parse({"messages": HI, **fields}, LIMITS)


def tool_use(**fields: Any) -> ToolUse | None:
    (prompt,) = request(**fields).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.tool_use


def refusal(**fields: Any) -> PonytailError:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)
    return caught.value


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [*TOOLS, {"type": "function", "function": fields}]}


def test_tools_arrive_with_their_place() -> None:
    used = tool_use(tools=TOOLS)
    assert used is not None
    assert used.tools == (
        Tool("get_time", "d", {"type": "object"}, True, "tools[0].function"),
        Tool("get weather é", "", {"type": "object", "properties": {}}, False, "tools[1].function"),
    )
    assert (used.mode, used.allowed, used.is_parallel) == ("auto", (), True)


@pytest.mark.parametrize("nothing", [{}, {"tools": []}, {"tools": None, "functions": []}])
def test_no_tools_ask_for_nothing(nothing: dict[str, Any]) -> None:
    for choice in ("none", "auto", None):
        assert request(**nothing, tool_choice=choice, parallel_tool_calls=False) == request()
    assert request(**nothing, function_call="auto") == request()


def test_members_that_say_nothing_are_null_or_ignored() -> None:
    tool = {"type": "function", "cache_control": {"type": "ephemeral"}, "function": {**TIME}}
    bare = {"name": "f", "description": None, "parameters": None, "strict": None}
    assert tool_use(tools=[tool]) == tool_use(tools=TOOLS[:1])
    assert tool_use(tools=[{"function": bare}]) == tool_use(tools=[{"function": {"name": "f"}}])


def test_a_named_function_is_one_call_of_it() -> None:
    for named in (
        {"type": "function", "function": {"name": "get_time"}},
        {"type": "function", "name": "get_time"},
    ):
        used = tool_use(tools=TOOLS, tool_choice=named, parallel_tool_calls=True)
        assert used is not None
        assert [t.name for t in used.callable_tools] == ["get_time"]
        assert (used.mode, used.is_parallel, len(used.tools)) == ("required", False, 2)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_leave_the_others_visible(mode: str) -> None:
    some = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    used = tool_use(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": some})
    assert used is not None
    assert (used.mode, used.allowed, len(used.tools)) == (mode, ("get_time",), 2)


def test_the_first_form_is_answered_in_kind() -> None:
    asked = request(functions=[TIME], function_call={"name": "get_time"})
    assert asked.legacy_functions
    (prompt,) = asked.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tool_use is not None
    assert (prompt.tool_use.mode, prompt.tool_use.is_parallel) == ("required", False)
    assert prompt.tool_use.tools[0].path == "functions[0]"
    assert not request(tools=TOOLS).legacy_functions
    left_open = tool_use(functions=[TIME])
    assert left_open is not None
    assert (left_open.mode, left_open.is_parallel) == ("auto", False)


NAMED = {"type": "function", "function": {"name": "get_date"}}


def allowed(value: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": value}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": "x"}, "tools", "a list of at most 512 tools"),
        ({"tools": [TOOLS[0]] * 513}, "tools", "512"),
        ({"tools": ["f"]}, "tools[0]", "object with type and function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "object with name"),
        ({"tools": [{**TOOLS[0], "type": 5}]}, "tools[0].type", "function"),
        (function(), "tools[2].function.name", "null"),
        (function(name=""), "tools[2].function.name", "1 to 128 characters"),
        (function(name="a\nb"), "tools[2].function.name", "none of them control"),
        (function(name="a" * 129), "tools[2].function.name", "128"),
        (function(name="get_time"), "tools[2].function.name", "earlier tool"),
        (function(name="f", description=5), "tools[2].function.description", "a string"),
        (function(name="f", description="x" * 65537), "tools[2].function.description", "65536"),
        (function(name="f", parameters=[]), "tools[2].function.parameters", "JSON Schema"),
        (function(name="f", parameters="{}"), "tools[2].function.parameters", "JSON Schema"),
        (function(name="f", strict="no"), "tools[2].function.strict", "true or false"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", '"required"'),
        ({"tools": TOOLS, "tool_choice": ["auto"]}, "tool_choice", "list"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice", "an object"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name", "null"),
        ({"tools": TOOLS, "tool_choice": NAMED}, "tool_choice", "get_date"),
        ({"tool_choice": "required"}, "tool_choice", "tools has none"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice", "tools has none"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        (allowed([]), "tool_choice.allowed_tools", "mode and tools"),
        (
            allowed({"mode": "none", "tools": [NAMED]}),
            "tool_choice.allowed_tools.mode",
            '"auto" or "required"',
        ),
        (allowed({"mode": "auto", "tools": []}), "tool_choice.allowed_tools.tools", "non-empty"),
        (
            allowed({"mode": "auto", "tools": ["f"]}),
            "tool_choice.allowed_tools.tools[0]",
            "type",
        ),
        (allowed({"mode": "auto", "tools": [NAMED]}), "tool_choice", "get_date"),
        ({"tools": TOOLS, "functions": [TIME]}, "functions", "send tools alone"),
        ({"functions": [TIME, TIME]}, "functions[1].name", "earlier tool"),
        ({"functions": [TIME], "tool_choice": "required"}, "tool_choice", "tools has none"),
        ({"functions": [TIME], "function_call": "required"}, "function_call", '"none", "auto"'),
        ({"functions": [TIME], "function_call": {"name": "g"}}, "function_call", "names g"),
        ({"function_call": {"name": "g"}}, "function_call", "functions has none"),
        ({"functions": [TIME], "function_call": {}}, "function_call.name", "null"),
    ],
)
def test_a_malformed_tool_names_its_fault(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param)
    assert param in error.message
    assert words in error.message
    assert len(error.message) < 400


def test_other_types_of_tool_are_named() -> None:
    error = refusal(tools=[TOOLS[0], {"type": "web_search", "web_search": {}}])
    assert isinstance(error, UnsupportedParameter)
    assert error.param == "tools[1].type"
    assert "web_search" in error.message
