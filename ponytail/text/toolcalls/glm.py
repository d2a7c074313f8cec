"""GLM-4.5 and later: the name alone, then keys and values in tags.

    <tool_call>f
    <arg_key>x</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

Source: the chat template of GLM-4.5.  Pure.
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

_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"


def _read(tools: Sequence[Tool]) -> Reading:
    known = parameters_by_tool(tools)

    def read(source: Source, answer: Answer) -> Steps[None]:
        while (yield from pass_text(source, (OPEN,), answer.text)):
            yield from _read_call(source, answer, known)

    return read


def _read_call(source: Source, answer: Answer, known: Mapping[str, Parameters]) -> Steps[None]:
    head = yield from source.skip_space()
    name = yield from source.take_while(NAME)
    space = yield from source.skip_space()
    tag = yield from source.skip_any((_KEY, CLOSE))
    if not name or not tag:
        has_more = (yield from source.peek()) != ""
        answer.text(OPEN + head + name + space if has_more else name)
        return
    answer.begin_call(name)
    arguments = WrittenArguments(answer)
    parameters = known.get(name, NO_PARAMETERS)
    while tag == _KEY:
        key, _ = yield from source.take_until((_END_KEY,))
        yield from source.take_until((_VALUE,))
        text, end = yield from source.take_until((_END_VALUE,))
        if end:
            arguments.member(key.strip(), parameters.json_of_text(key.strip(), text))
        _, tag = yield from source.take_until((_KEY, CLOSE))
    if tag:
        arguments.close()


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    call = rules.rule(either([_call(rules, tool) for tool in tools]))
    return f"{rules.marker(OPEN)} {call} {rules.space()} {rules.marker(CLOSE)}"


def _call(rules: Rules, tool: Tool) -> str:
    between = f'{rules.marker(_END_KEY)} "\\n" {rules.marker(_VALUE)}'
    members = tagged_members(
        rules, tool, before=rules.marker(_KEY), between=between, close=_END_VALUE, pad=""
    )
    return rules.rule(f"{literal(tool.name)} {rules.space()} {members}")


GLM = Family(
    name="glm",
    example="<tool_call>NAME\n<arg_key>PARAMETER</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>",
    reading=_read,
    block=_block,
    shows=lambda template: _KEY in template and _VALUE in template,
    openings=opened_by(OPEN),
    markers=frozenset({OPEN, CLOSE, _KEY, _END_KEY, _VALUE, _END_VALUE}),
)
