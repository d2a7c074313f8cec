"""Granite 3: a JSON list behind `<|tool_call|>`.  (Granite 4 writes as Hermes does.)

    <|tool_call|>[{"name": "f", "arguments": {"x": 1}}]

Source: the chat templates of ibm-granite models.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponytail.text.toolcalls import hermes
from ponytail.text.toolcalls.answer import Reading
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_blocks import json_blocks
from ponytail.text.toolcalls.lark import Rules
from ponytail.types import Tool

_OPEN = "<|tool_call|>"


def _read(tools: Sequence[Tool]) -> Reading:
    return json_blocks({_OPEN: (), hermes.OPEN: (hermes.CLOSE,)})


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    calls = rules.listed(rules.calls(tools, "arguments"), is_parallel=is_parallel)
    return f"{rules.marker(_OPEN)} {rules.space()} {calls}"


def _shows(template: str) -> bool:
    has_roles = "<|start_of_role|>" in template and "tool" in template
    return has_roles and hermes.OPEN not in template


GRANITE = Family(
    name="granite",
    example='<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]',
    reading=_read,
    block=_block,
    shows=_shows,
    openings=opened_by(_OPEN),
    markers=frozenset({_OPEN, hermes.OPEN, hermes.CLOSE}),
    repeats=False,
)
