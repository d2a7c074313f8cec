"""Llama 3.2 and 4, and others: the answer is a Python list of calls.

    [f(x="a"), g(n=1)]
    <|python_start|>[f(x="a")]<|python_end|>

Without the marker only a list that begins with a known tool is one of calls.
Source: Meta's prompt format pages for Llama 3.2 and Llama 4.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family
from ponytail.text.toolcalls.lark import Rules
from ponytail.text.toolcalls.python_call import call_terms, read_calls, read_name
from ponytail.text.toolcalls.seam import Trigger
from ponytail.text.toolcalls.source import Source, Steps
from ponytail.text.toolcalls.values import Parameters, parameters_by_tool
from ponytail.types import Tool

_OPEN, _CLOSE = "<|python_start|>", "<|python_end|>"


def _read(tools: Sequence[Tool]) -> Reading:
    known = parameters_by_tool(tools)

    def read(source: Source, answer: Answer) -> Steps[None]:
        answer.text((yield from source.skip_space()))
        if (yield from source.peek()) == "[":
            yield from _read_list(source, answer, known, is_marked=False)
        awaited: tuple[str, ...] = ()
        while stop := (yield from pass_text(source, (_OPEN, *awaited), answer.text)):
            awaited = ()
            if stop == _OPEN:
                yield from source.skip_space()
                yield from _read_list(source, answer, known, is_marked=True)
                awaited = (_CLOSE,)

    return read


def _read_list(
    source: Source, answer: Answer, known: Mapping[str, Parameters], *, is_marked: bool
) -> Steps[None]:
    """Calls up to the bracket; what does not begin as a list of calls is text."""
    unsaid = "[" if (yield from source.skip("[")) else ""
    unsaid += yield from source.skip_space()
    name = yield from read_name(source)
    if not name or not (is_marked or name in known):
        answer.text(unsaid + (name + "(" if name else ""))
        return
    if (yield from read_calls(source, answer, known, name, between=",")):
        yield from source.skip("]")


def _triggers(tools: Sequence[Tool]) -> tuple[Trigger, ...]:
    starts = [Trigger(f"[{tool.name}(", at_start=True) for tool in tools]
    return (Trigger(_OPEN), *starts)


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    call = call_terms(rules, tools)
    more = f'(", " {call})*' if is_parallel else ""
    calls = rules.rule(f'"[" {call} {more} "]"')
    return f"{calls} | {rules.marker(_OPEN)} {calls} {rules.marker(_CLOSE)}"


def _shows(template: str) -> bool:
    return _OPEN in template or "[func_name1(" in template or "func_name(" in template


PYTHONIC = Family(
    name="pythonic",
    example="[NAME(PARAMETER=VALUE)]",
    reading=_read,
    block=_block,
    shows=_shows,
    openings=_triggers,
    markers=frozenset({_OPEN, _CLOSE}),
    repeats=False,
)
