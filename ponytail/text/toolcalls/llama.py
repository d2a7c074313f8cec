"""Llama 3.x: the answer is a call as JSON, several parted by `;`, maybe behind a marker.

    {"name": "f", "parameters": {"x": 1}}
    <|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}

Without the marker only an answer that begins with the object of a known tool is a call;
other JSON is text.  Behind the marker may also stand `f.call(x=1)`.
Source: Meta's prompt format page for Llama 3.1 and the models' chat templates.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family
from ponytail.text.toolcalls.json_call import JsonCall
from ponytail.text.toolcalls.json_text import encode
from ponytail.text.toolcalls.lark import Rules
from ponytail.text.toolcalls.python_call import read_arguments, read_name
from ponytail.text.toolcalls.seam import Trigger
from ponytail.text.toolcalls.source import SPACE, Source, Steps
from ponytail.text.toolcalls.values import Parameters, parameters_by_tool
from ponytail.types import Tool

_TAG = "<|python_tag|>"
_BEGINNINGS = (
    '{"name": %s',
    '{"name":%s',
    '{"type": "function", "name": %s',
    '{"type":"function","name":%s',
)


def _read(tools: Sequence[Tool]) -> Reading:
    known = parameters_by_tool(tools)

    def read(source: Source, answer: Answer) -> Steps[None]:
        answer.text((yield from source.skip_space()))
        yield from _read_objects(source, answer, known)
        while (yield from pass_text(source, (_TAG,), answer.text)):
            yield from source.skip_space()
            name = yield from read_name(source)
            if name:
                yield from read_arguments(source, answer, name.removesuffix(".call"), known)
            else:
                yield from _read_objects(source, answer, None)

    return read


def _read_objects(
    source: Source, answer: Answer, only: Mapping[str, Parameters] | None
) -> Steps[None]:
    """Calls one after another, up to something else."""
    between = ""
    while (yield from source.peek()) == "{":
        text = yield from JsonCall(source, answer, (_TAG,), only).read()
        if text is not None:
            answer.text(between + text)
            return
        # Small models close one brace too many.
        between = yield from source.take_while(SPACE + ";}")
    is_last = not (yield from source.peek())
    answer.text(between.strip(";}") if is_last or not between.strip(SPACE + "}") else between)


def _triggers(tools: Sequence[Tool]) -> tuple[Trigger, ...]:
    starts = [start % encode(tool.name) for tool in tools for start in _BEGINNINGS]
    return (Trigger(_TAG), *(Trigger(start, at_start=True) for start in starts))


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    call = rules.calls(tools, "parameters", first=("type", {"const": "function"}))
    space = rules.space()
    more = f'(";" {space} {call})*' if is_parallel else ""
    return f"{rules.marker(_TAG)}? {call} {more}"


def _shows(template: str) -> bool:
    is_llama = "<|start_header_id|>" in template or _TAG in template
    return is_llama and '"parameters"' in template and '"name"' in template


LLAMA_JSON = Family(
    name="llama3-json",
    example='{"name": "NAME", "parameters": ARGUMENTS}',
    reading=_read,
    block=_block,
    shows=_shows,
    openings=_triggers,
    markers=frozenset({_TAG}),
    repeats=False,
)
