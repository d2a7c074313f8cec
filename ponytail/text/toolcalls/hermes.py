"""Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3: JSON in `<tool_call>` tags, one call in each.

    <tool_call>
    {"name": "f", "arguments": {"x": 1}}
    </tool_call>

Source: the NousResearch Hermes function calling format; the models' chat templates.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponytail.text.toolcalls.answer import Reading
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_blocks import json_blocks
from ponytail.text.toolcalls.lark import Rules
from ponytail.types import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def read_tagged(tools: Sequence[Tool]) -> Reading:
    """Reads text with calls in tags."""
    return json_blocks({OPEN: (CLOSE,)})


def tagged_block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    """One call in tags."""
    space = rules.space()
    call = rules.calls(tools, "arguments")
    return f"{rules.marker(OPEN)} {space} {call} {space} {rules.marker(CLOSE)}"


def _shows(template: str) -> bool:
    return OPEN in template and "<function=" not in template and "<arg_key>" not in template


HERMES = Family(
    name="hermes",
    example='<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
    reading=read_tagged,
    block=tagged_block,
    shows=_shows,
    openings=opened_by(OPEN),
    markers=frozenset({OPEN, CLOSE}),
)
