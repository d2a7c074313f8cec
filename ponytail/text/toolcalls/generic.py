"""Tool calls for models whose template knows none: Hermes' form, explained in the system turn.

Owns the words that tell a model of its tools.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from ponytail.text.toolcalls.hermes import HERMES
from ponytail.types import Tool

GENERIC = replace(HERMES, name="generic", shows=lambda template: False)


def instructions(
    tools: Sequence[Tool], *, example: str, is_required: bool, is_parallel: bool
) -> str:
    """The system text: the tools, one JSON object a line, and how to call one."""
    when = "Call a tool to answer." if is_required else "Call a tool when it helps to answer."
    many = "You may call several, one after another." if is_parallel else "Call at most one."
    return "\n".join(
        [
            "You can call these tools:",
            *(json.dumps(_told(tool), ensure_ascii=False) for tool in tools),
            f"{when} {many} To call one, write nothing but:",
            _explained(example),
            "The result comes in <tool_response> tags.",
        ]
    )


def _explained(example: str) -> str:
    """The example in words that a model takes for what they stand for."""
    words = {
        "ARGUMENTS": "{<its arguments>}",
        "NAME": "<its name>",
        "PARAMETER": "<a parameter>",
        "VALUE": "<its value>",
    }
    for word, meaning in words.items():
        example = example.replace(word, meaning)
    return example


def _told(tool: Tool) -> dict[str, object]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
