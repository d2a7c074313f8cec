"""Gemma: Python in a fenced block.

    ```tool_code
    f(x=1)
    ```

Source: Google's guide to function calling with Gemma 3.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.lark import Rules, literal
from ponytail.text.toolcalls.python_call import call_terms, read_calls, read_name
from ponytail.text.toolcalls.source import Source, Steps
from ponytail.text.toolcalls.values import Parameters, parameters_by_tool
from ponytail.types import Tool

_FENCE, _END_FENCE = "```tool_code", "```"
# Models may print what a call returns, or list several calls.
_BEFORE = ("print(", "[")


def _read(tools: Sequence[Tool]) -> Reading:
    known = parameters_by_tool(tools)

    def read(source: Source, answer: Answer) -> Steps[None]:
        while (yield from pass_text(source, (_FENCE,), answer.text)):
            yield from _read_calls(source, answer, known)

    return read


def _read_calls(source: Source, answer: Answer, known: Mapping[str, Parameters]) -> Steps[None]:
    """Up to the closing fence; what is no call is text, with its fence."""
    space = yield from source.skip_space()
    before = yield from source.skip_any(_BEFORE)
    name = yield from read_name(source)
    if not name:
        has_more = (yield from source.peek()) != ""
        answer.text(_FENCE + space + before if has_more else before)
        return
    if (yield from read_calls(source, answer, known, name, between=",;)]", before=_BEFORE)):
        yield from source.skip(_END_FENCE)


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    call = call_terms(rules, tools)
    more = f'("\\n" {call})*' if is_parallel else ""
    return f"{literal(_FENCE + chr(10))} {call} {more} {literal(chr(10) + _END_FENCE)}"


GEMMA = Family(
    name="gemma",
    example="```tool_code\nNAME(PARAMETER=VALUE)\n```",
    reading=_read,
    block=_block,
    shows=lambda template: "tool_code" in template,
    openings=opened_by(_FENCE),
    repeats=False,
)
