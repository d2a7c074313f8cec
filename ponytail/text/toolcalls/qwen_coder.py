"""Qwen3-Coder: each parameter in tags of its own, values without quotes.

    <tool_call>
    <function=f>
    <parameter=x>
    1
    </parameter>
    </function>
    </tool_call>

The outer tags may be missing; Seed-OSS writes `<seed:tool_call>` for them.  One line break
on either side of a value is no part of it.
Source: the chat template and tool parser of Qwen3-Coder.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.hermes import CLOSE, OPEN
from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.source import NAME, Source, Steps
from ponytail.text.toolcalls.tagged_values import tagged_members
from ponytail.text.toolcalls.values import NO_PARAMETERS, Parameters, parameters_by_tool
from ponytail.text.toolcalls.written_arguments import WrittenArguments
from ponytail.types import Tool

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_SEED, _END_SEED = "<seed:tool_call>", "</seed:tool_call>"
_OUTER, _END_OUTER = (OPEN, _SEED), (CLOSE, _END_SEED)
_INSIDE = (_PARAMETER, _END_FUNCTION, *_END_OUTER)


def _read(tools: Sequence[Tool]) -> Reading:
    known = parameters_by_tool(tools)

    def read(source: Source, answer: Answer) -> Steps[None]:
        awaited: tuple[str, ...] = ()
        while stop := (yield from pass_text(source, (*_OUTER, _FUNCTION, *awaited), answer.text)):
            awaited = ()
            markup = stop
            if stop in _OUTER:
                markup = stop + (yield from source.skip_space())
                markup += yield from source.skip_any((_FUNCTION,))
            if markup.endswith(_FUNCTION):
                awaited = yield from _read_function(source, answer, known, markup)
            elif stop not in _END_OUTER and (yield from source.peek()):
                answer.text(markup)

    return read


def _read_function(
    source: Source, answer: Answer, known: Mapping[str, Parameters], markup: str
) -> Steps[tuple[str, ...]]:
    """From the name on; the closing tags still to be expected."""
    name = yield from source.take_while(NAME)
    if not name or not (yield from source.skip(">")):
        answer.text(markup + name if (yield from source.peek()) else name)
        return ()
    answer.begin_call(name)
    arguments = WrittenArguments(answer)
    parameters = known.get(name, NO_PARAMETERS)
    while True:
        _, tag = yield from source.take_until(_INSIDE)
        if tag != _PARAMETER:
            break
        key, _ = yield from source.take_until((">",))
        text, end = yield from source.take_until((_END_PARAMETER,))
        if end:
            value = text.removeprefix("\n").removesuffix("\n")
            arguments.member(key, parameters.json_of_text(key, value))
    if tag:
        arguments.close()
    return _END_OUTER if tag == _END_FUNCTION else ()


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    function = rules.rule(either([_function(rules, tool) for tool in tools]))
    space = rules.space()
    return f"{rules.marker(OPEN)} {space} {function} {space} {rules.marker(CLOSE)} | {function}"


def _function(rules: Rules, tool: Tool) -> str:
    members = tagged_members(
        rules,
        tool,
        before=rules.marker(_PARAMETER),
        between=literal(">"),
        close=_END_PARAMETER,
        pad="\n",
    )
    space = rules.space()
    head = f"{rules.marker(_FUNCTION)} {literal(tool.name)} {literal('>')}"
    return rules.rule(f"{head} {space} {members} {space} {rules.marker(_END_FUNCTION)}")


QWEN_CODER = Family(
    name="qwen3-coder",
    example="<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>",
    reading=_read,
    block=_block,
    shows=lambda template: _FUNCTION in template and _PARAMETER in template,
    openings=opened_by(OPEN, _FUNCTION),
    markers=frozenset({*_OUTER, *_END_OUTER, _FUNCTION, _END_FUNCTION, _PARAMETER, _END_PARAMETER}),
)
