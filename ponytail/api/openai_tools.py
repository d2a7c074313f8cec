"""The `tools` of a chat, which of them may be called, and the API's first form of both.

Owns how these fields become one `types.ToolUse`.  Must not know templates, the formats
models write calls in, or whether a schema can be built.  Pure; any thread.

Members of a tool that the docs do not name are ignored, as those of a message are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from ponytail.api.bounded import ensure_bounded
from ponytail.api.dialect import Limits
from ponytail.api.fields import Schema, must, wrong
from ponytail.errors import InvalidRequest, UnsupportedParameter
from ponytail.types import Tool, ToolUse

N_TOOLS = 512
N_NAME = 128
N_DESCRIPTION = 1 << 16
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}}
Mode: TypeAlias = Literal["none", "auto", "required"]
_PLAIN = r"[^\x00-\x1f\x7f-\x9f]+"  # no control characters
NAME: Schema = {"type": "string", "maxLength": N_NAME, "pattern": f"^{_PLAIN}$"}


class ToolChoice(msgspec.Struct, frozen=True):
    """What a request says of calling: `names` are the tools that may be called, empty: all.

    `is_single`: one call and no more.
    """

    mode: Mode
    names: tuple[str, ...] = ()
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """A list of {"type": "function", "function": {name, description, parameters, strict}}."""

    @property
    def words(self) -> str:
        return f"a list of at most {N_TOOLS} tools"

    def read(self, value: object, path: str, limits: Limits) -> tuple[Tool, ...]:
        if not isinstance(value, list) or len(value) > N_TOOLS:
            raise wrong(self, value, path)
        tools = tuple(_tool(one, f"{path}[{i}]") for i, one in enumerate(value))
        return _ensure_distinct(tools)

    def schema(self) -> Schema:
        tool = {
            "type": "object",
            "properties": {"type": {"const": "function"}, "function": _FUNCTION},
            "required": ["function"],
        }
        return {"type": "array", "items": tool, "maxItems": N_TOOLS}


@dataclass(frozen=True, slots=True)
class Functions:
    """A list of {name, description, parameters}."""

    @property
    def words(self) -> str:
        return f"a list of at most {N_TOOLS} functions"

    def read(self, value: object, path: str, limits: Limits) -> tuple[Tool, ...]:
        if not isinstance(value, list) or len(value) > N_TOOLS:
            raise wrong(self, value, path)
        return _ensure_distinct(
            tuple(_function(one, f"{path}[{i}]") for i, one in enumerate(value))
        )

    def schema(self) -> Schema:
        return {"type": "array", "items": _FUNCTION, "maxItems": N_TOOLS}


_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "name": NAME,
        "description": {"type": ["string", "null"], "maxLength": N_DESCRIPTION},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name"],
}


def _tool(value: object, path: str) -> Tool:
    if not isinstance(value, dict):
        raise must(path, "an object with type and function", value)
    kind = value.get("type", "function")
    if not isinstance(kind, str):
        raise must(f"{path}.type", "'function'", kind)
    if kind != "function":
        raise UnsupportedParameter(
            f"{path}.type must be 'function', the only kind of tool there is here, "
            f"got '{kind[:N_NAME]}'.",
            param=f"{path}.type",
        )
    return _function(value.get("function"), f"{path}.function")


def _function(value: object, path: str) -> Tool:
    if not isinstance(value, dict):
        raise must(path, "an object with name, description and parameters", value)
    description = value.get("description")
    if description is not None and not (
        isinstance(description, str) and len(description) <= N_DESCRIPTION
    ):
        raise must(
            f"{path}.description", f"a string of at most {N_DESCRIPTION} characters", description
        )
    is_strict = value.get("strict")
    if is_strict is not None and not isinstance(is_strict, bool):
        raise must(f"{path}.strict", "true or false", is_strict)
    return Tool(
        name=_name(value.get("name"), f"{path}.name"),
        description=description or "",
        parameters=_parameters(value.get("parameters"), f"{path}.parameters"),
        is_strict=bool(is_strict),
        path=path,
    )


def _name(value: object, path: str) -> str:
    if not isinstance(value, str) or len(value) > N_NAME or not re.fullmatch(_PLAIN, value):
        raise must(path, f"a name of 1 to {N_NAME} characters, none of them control", value)
    return value


def _parameters(value: object, path: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise must(path, "a JSON Schema (an object)", value)
    ensure_bounded(value, path)
    # Without a schema the function takes no arguments; they are an object all the same.
    return value or NO_ARGUMENTS


def _ensure_distinct(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequest(
                f"{tool.path}.name is the name of an earlier tool too: {tool.name}.",
                param=f"{tool.path}.name",
            )
        seen.add(tool.name)
    return tools


@dataclass(frozen=True, slots=True)
class ToolChoices:
    """none, auto, required, one function, or some of the tools."""

    @property
    def words(self) -> str:
        return (
            '"none", "auto", "required", {"type": "function", "function": {"name"}} or '
            '{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}'
        )

    def read(self, value: object, path: str, limits: Limits) -> ToolChoice:
        match value:
            case "none" | "auto" | "required":
                return ToolChoice(value)
            case {"type": "function"}:
                return ToolChoice("required", (_chosen(value, path),), is_single=True)
            case {"type": "allowed_tools", "allowed_tools": allowed}:
                return self._allowed(allowed, f"{path}.allowed_tools")
            case _:
                raise wrong(self, value, path)

    def _allowed(self, value: object, path: str) -> ToolChoice:
        if not isinstance(value, dict):
            raise must(path, "an object with mode and tools", value)
        mode, tools = value.get("mode"), value.get("tools")
        if mode not in ("auto", "required"):
            raise must(f"{path}.mode", '"auto" or "required"', mode)
        if not isinstance(tools, list) or not 0 < len(tools) <= N_TOOLS:
            raise must(f"{path}.tools", f"a non-empty list of at most {N_TOOLS} tools", tools)
        names = [_chosen(tool, f"{path}.tools[{i}]") for i, tool in enumerate(tools)]
        return ToolChoice(mode, tuple(dict.fromkeys(names)))

    def schema(self) -> Schema:
        allowed = {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {
                    "type": "array",
                    "items": _CHOSEN,
                    "minItems": 1,
                    "maxItems": N_TOOLS,
                },
            },
            "required": ["mode", "tools"],
        }
        some = {
            "type": "object",
            "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": allowed},
            "required": ["type", "allowed_tools"],
        }
        return {"anyOf": [{"enum": ["none", "auto", "required"]}, _CHOSEN, some]}


_CHOSEN: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": NAME}, "required": ["name"]},
        "name": NAME,
    },
    "required": ["type"],
    "anyOf": [{"required": ["function"]}, {"required": ["name"]}],
}


def _chosen(value: object, path: str) -> str:
    """The name in {"type": "function", "function": {"name"}} or in {"type": ..., "name"}."""
    if not isinstance(value, dict) or value.get("type") != "function":
        raise must(path, 'an object with type "function" and a name', value)
    function = value.get("function")
    if function is None:
        return _name(value.get("name"), f"{path}.name")
    if not isinstance(function, dict):
        raise must(f"{path}.function", "an object with a name", function)
    return _name(function.get("name"), f"{path}.function.name")


@dataclass(frozen=True, slots=True)
class FunctionChoices:
    """The first form of tool_choice."""

    @property
    def words(self) -> str:
        return '"none", "auto" or an object with a name'

    def read(self, value: object, path: str, limits: Limits) -> ToolChoice:
        match value:
            case "none" | "auto":
                return ToolChoice(value, is_single=True)
            case dict():
                name = _name(value.get("name"), f"{path}.name")
                return ToolChoice("required", (name,), is_single=True)
            case _:
                raise wrong(self, value, path)

    def schema(self) -> Schema:
        named = {"type": "object", "properties": {"name": NAME}, "required": ["name"]}
        return {"anyOf": [{"enum": ["none", "auto"]}, named]}


def is_first_form(values: dict[str, Any]) -> bool:
    """Whether the request says `functions`, so that the reply has to answer in kind."""
    return bool(values.get("functions"))


def tool_use(values: dict[str, Any]) -> ToolUse | None:
    """The rows `tools`, `tool_choice`, `parallel_tool_calls`, or the first form's, together.

    None when there are no tools.  InvalidRequest when a choice names none of them.
    """
    if values.get("tools") and values.get("functions"):
        raise InvalidRequest(
            "functions is the first form of tools; send tools alone.", param="functions"
        )
    if is_first_form(values):
        _ensure_no_choice(values, "tool_choice", "tools")
        return _use(values["functions"], values, "function_call", ToolChoice("auto", (), True))
    _ensure_no_choice(values, "function_call", "functions")
    tools = values.get("tools", ())
    if not tools:
        _ensure_no_choice(values, "tool_choice", "tools")
        return None
    return _use(tools, values, "tool_choice", ToolChoice("auto"))


def _use(
    tools: tuple[Tool, ...], values: dict[str, Any], param: str, default: ToolChoice
) -> ToolUse:
    choice: ToolChoice = values.get(param, default)
    known = {tool.name for tool in tools}
    for name in choice.names:
        if name not in known:
            raise InvalidRequest(f"{param} names {name}, which is none of the tools.", param=param)
    is_parallel = values.get("parallel_tool_calls", True) and not choice.is_single
    return ToolUse(tools, choice.mode, choice.names, is_parallel)


def _ensure_no_choice(values: dict[str, Any], param: str, needed: str) -> None:
    choice: ToolChoice | None = values.get(param)
    if choice is not None and (choice.mode == "required" or choice.names):
        raise InvalidRequest(f"{param} asks for a call, but {needed} has none.", param=param)
