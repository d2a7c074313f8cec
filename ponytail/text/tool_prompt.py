"""How a prompt tells the model which tools there are.

Owns the form in which templates are given tools (OpenAI's, as Hugging Face passes it),
and where instructions go when a template knows none.  Must not know Jinja, nor what the
instructions say.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace as changed

from ponytail.types import Message, Tool, ToolUse

ToolDict: TypeAlias = dict[str, Any]

_INSTRUCTIONS = frozenset({"system", "developer"})


def shown_tools(tool_use: ToolUse | None) -> tuple[Tool, ...]:
    """The tools the model is told of: all, whichever may be called; none in mode none."""
    return () if tool_use is None or tool_use.mode == "none" else tool_use.tools


def tool_dict(tool: Tool) -> ToolDict:
    """The tool as a template's `tools` has it: description and parameters are always there."""
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _object_schema(tool.parameters),
    }
    if tool.is_strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _object_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """With what templates look up without asking; it changes nothing of what fits the schema."""
    first: dict[str, Any] = {} if "type" in parameters else {"type": "object"}
    last: dict[str, Any] = {} if "properties" in parameters else {"properties": {}}
    return {**first, **parameters, **last}


def tools_as_text(tools: Sequence[ToolDict]) -> str:
    """The functions as JSON, for templates that look for it in the system message."""
    return json.dumps([tool["function"] for tool in tools], ensure_ascii=False)


def with_instructions(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The messages with `text` at the end of the leading system text, or as that."""
    n_leading = 0
    while n_leading < len(messages) and messages[n_leading].role in _INSTRUCTIONS:
        n_leading += 1
    if n_leading == 0:
        return (Message(role="system", content=text), *messages)
    last = messages[n_leading - 1]
    told = changed(last, content="\n\n".join(filter(None, (last.content, text))))
    return (*messages[: n_leading - 1], told, *messages[n_leading:])
