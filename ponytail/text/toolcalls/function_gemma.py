"""FunctionGemma: a notation of its own, strings between `<escape>` tags.

    <start_function_call>call:f{text:<escape>one<escape>,n:1}<end_function_call>

Source: Google's guide to formatting for FunctionGemma.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_text import encode, pass_value
from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.source import NAME, SPACE, Source, Steps
from ponytail.text.toolcalls.values import NO_PARAMETERS, Parameters, parameters_by_tool
from ponytail.text.toolcalls.written_arguments import WrittenArguments
from ponytail.types import Tool

_OPEN, _CLOSE, _ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"
_DEPTH_MAX = 32


def _read(tools: Sequence[Tool]) -> Reading:
    known = parameters_by_tool(tools)

    def read(source: Source, answer: Answer) -> Steps[None]:
        while (yield from pass_text(source, (_OPEN, _CLOSE), answer.text)):
            if (yield from source.skip("call:")):
                name = yield from source.take_while(NAME)
                yield from _read_members(source, answer, name, known)

    return read


def _read_members(
    source: Source, answer: Answer, name: str, known: Mapping[str, Parameters]
) -> Steps[None]:
    if not (yield from source.skip("{")):
        answer.text(name)
        return
    answer.begin_call(name)
    arguments = WrittenArguments(answer)
    parameters = known.get(name, NO_PARAMETERS)
    while True:
        key, stop = yield from source.take_until((":", "}", _CLOSE))
        if stop != ":":
            break
        pieces: list[str] = []
        if not (yield from _read_value(source, pieces, _DEPTH_MAX)):
            return
        text = "".join(pieces)
        is_text = text.startswith('"')
        key = key.strip(SPACE + ",")
        arguments.member(key, text if is_text else parameters.json_of_text(key, text.strip()))
    if stop:
        arguments.close()


def _read_value(source: Source, pieces: list[str], n_left: int) -> Steps[bool]:
    """One value as JSON; whether it was complete."""
    c = yield from source.peek()
    if (yield from source.skip(_ESCAPE)):
        text, end = yield from source.take_until((_ESCAPE,))
        pieces.append(encode(text))
        return end != ""
    if c not in ("{", "[") or n_left == 0:
        return (yield from pass_value(source, pieces.append, (_CLOSE,)))
    pieces.append(source.take())
    close = "}" if c == "{" else "]"
    while (c := (yield from source.peek())) and c != close:
        if c in SPACE + ",":
            pieces.append(source.take())
            continue
        if close == "}":
            key, _ = yield from source.take_until((":",))
            pieces.append(encode(key.strip(SPACE + '"')) + ":")
        if not (yield from _read_value(source, pieces, n_left - 1)):
            return False
    if c:
        pieces.append(source.take())
    return c == close


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    call = rules.rule(either([_call(rules, tool) for tool in tools]))
    return f"{rules.marker(_OPEN)} {call} {rules.marker(_CLOSE)}"


def _call(rules: Rules, tool: Tool) -> str:
    known = Parameters(tool)
    members = rules.members(
        known, lambda name: f"{literal(name + ':')} {_value(rules, known, name)}", ","
    )
    return rules.rule(f"{literal(f'call:{tool.name}{{')} {members} {literal('}')}")


def _value(rules: Rules, known: Parameters, name: str) -> str:
    escape = rules.marker(_ESCAPE)
    texts = known.texts(name)
    if texts is not None:
        return f"{escape} {either([literal(text) for text in texts])} {escape}"
    if "string" in known.types(name):
        return f"{escape} {rules.text_until(_ESCAPE)}"
    return rules.json(known.whole_schema(name))


FUNCTION_GEMMA = Family(
    name="function-gemma",
    example=f"{_OPEN}call:NAME{{PARAMETER:{_ESCAPE}TEXT{_ESCAPE}}}{_CLOSE}",
    reading=_read,
    block=_block,
    shows=lambda template: _OPEN in template,
    openings=opened_by(_OPEN),
    markers=frozenset({_OPEN, _CLOSE, _ESCAPE}),
)
