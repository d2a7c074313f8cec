"""Mistral: behind `[TOOL_CALLS]` a JSON list, or in newer models a name and its arguments.

    [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "123456789"}]
    [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}

One reading takes both; which one is asked for is told by the chat template.
Source: mistral-common's tokenizers v3 and v7 (lists), v11 and v13 (names).  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_blocks import Ends, JsonBlock
from ponytail.text.toolcalls.json_text import pass_arguments
from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.source import NAME, Source, Steps
from ponytail.types import Tool

_OPEN, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_BLOCKS: dict[str, Ends] = {_OPEN: ()}
_MARKERS = frozenset({_OPEN, _ARGS, _CALL_ID})


def _read(tools: Sequence[Tool]) -> Reading:
    def read(source: Source, answer: Answer) -> Steps[None]:
        while (yield from pass_text(source, (_OPEN,), answer.text)):
            if not (yield from _read_named(source, answer)):
                yield from JsonBlock(source, answer, _OPEN, _BLOCKS).read()

    return read


def _read_named(source: Source, answer: Answer) -> Steps[bool]:
    """A name and arguments; False, and nothing read, if something else comes."""
    source.keep()
    yield from source.skip_space()
    name = yield from source.take_while(NAME)
    yield from source.skip_space()
    if name and (yield from source.skip(_CALL_ID)):
        yield from source.take_while(NAME)
    has_arguments = yield from source.skip(_ARGS)
    c = yield from source.peek()
    if name and not c and not has_arguments:
        answer.text(source.kept().strip())  # cut off in the name
        return True
    if not name or not (has_arguments or c == "{"):
        source.rewind()
        return False
    source.kept()
    answer.begin_call(name)
    yield from pass_arguments(source, answer.arguments)
    return True


def _list_block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    calls = rules.listed(rules.calls(tools, "arguments"), is_parallel=is_parallel)
    return f"{rules.marker(_OPEN)} {rules.space()} {calls}"


def _named_block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    args = rules.marker(_ARGS)
    calls = [f"{literal(tool.name)} {args} {rules.arguments(tool)}" for tool in tools]
    return f"{rules.marker(_OPEN)} {either(calls)}"


MISTRAL = Family(
    name="mistral",
    example='[TOOL_CALLS] [{"name": "NAME", "arguments": ARGUMENTS}]',
    reading=_read,
    block=_list_block,
    shows=lambda template: _OPEN in template and _ARGS not in template,
    openings=opened_by(_OPEN),
    markers=_MARKERS,
    repeats=False,
)
MISTRAL_ARGS = Family(
    name="mistral-args",
    example="[TOOL_CALLS]NAME[ARGS]ARGUMENTS",
    reading=_read,
    block=_named_block,
    shows=lambda template: _OPEN in template and _ARGS in template,
    openings=opened_by(_OPEN),
    markers=_MARKERS,
)
