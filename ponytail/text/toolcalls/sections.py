"""DeepSeek and Kimi: each call in a section of its own, the name before its JSON arguments.

    <｜tool▁calls▁begin｜>
    <｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

DeepSeek V3 and R1 write the word `function` where V3.1 has the name, and behind the separator
the name and a fenced block of JSON; one reading takes both.  Kimi K2 writes `functions.f:0`.
Source: the chat templates and model cards of DeepSeek-R1, DeepSeek-V3.1 and Kimi-K2.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_text import pass_arguments
from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.source import Source, Steps
from ponytail.types import Tool

_FENCE = "```"


@dataclass(frozen=True, slots=True)
class _Marks:
    """`begin` and `end` are around all calls, `open`, `separator` and `close` in each."""

    begin: str
    open: str
    separator: str
    close: str
    end: str

    @property
    def all(self) -> frozenset[str]:
        return frozenset((self.begin, self.open, self.separator, self.close, self.end))


_DEEPSEEK = _Marks(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_KIMI = _Marks(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


# -- reading -------------------------------------------------------------------------------


def _reading(marks: _Marks) -> Callable[[Sequence[Tool]], Reading]:
    outside = (marks.begin, marks.open, marks.close, marks.end)

    def read(source: Source, answer: Answer) -> Steps[None]:
        while stop := (yield from pass_text(source, outside, answer.text)):
            if stop == marks.open:
                yield from _read_call(source, answer, marks)

    return lambda tools: read


def _read_call(source: Source, answer: Answer, marks: _Marks) -> Steps[None]:
    head, stop = yield from source.take_until((marks.separator, marks.close, marks.end))
    if stop != marks.separator:
        answer.text(head)
        return
    yield from source.skip_space()
    c = yield from source.peek()
    if c and c != "{":
        # The name comes behind the separator; the head only says that it is a function.
        head = yield from _read_fenced_name(source, marks)
    if not c or not head:
        return  # cut off before anything can be said of the call
    answer.begin_call(_plain_name(head))
    ends = (marks.close, marks.end, _FENCE)
    yield from source.skip_space()
    if (yield from source.peek()) == "{":
        yield from pass_arguments(source, answer.arguments, ends)
    else:
        raw, stop = yield from source.take_until(ends)
        answer.arguments((raw.strip() or "{}") if stop else "")
        source.unread(stop)
    yield from source.skip_space()
    yield from source.skip(_FENCE)
    yield from source.skip_space()


def _read_fenced_name(source: Source, marks: _Marks) -> Steps[str]:
    """Up to the JSON; "" where the answer breaks off."""
    name, stop = yield from source.take_until(("\n", _FENCE, marks.close))
    if stop == "\n":
        yield from source.skip_space()
        yield from source.skip_any((_FENCE + "json", _FENCE))
    elif stop == _FENCE:
        yield from source.skip("json")
    elif stop == marks.close:
        source.unread(stop)
    return name if stop else ""


def _plain_name(head: str) -> str:
    """Kimi's `functions.f:0` -> `f`; any other as it is."""
    return re.sub(r":\d+$", "", head.strip().removeprefix("functions."))


# -- writing -------------------------------------------------------------------------------


def _block(
    marks: _Marks, call: Callable[[Rules, Tool], str], between: str
) -> Callable[[Rules, Sequence[Tool], bool], str]:
    """`call` writes what stands between a call's own markers; `between` may part two calls."""

    def block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
        calls = either([rules.rule(call(rules, tool)) for tool in tools])
        one = rules.rule(f"{rules.marker(marks.open)} {calls} {rules.marker(marks.close)}")
        more = f"({between} {one})*" if is_parallel else ""
        return f"{rules.marker(marks.begin)} {one} {more} {rules.marker(marks.end)}"

    return block


def _fenced(rules: Rules, tool: Tool) -> str:
    separator = rules.marker(_DEEPSEEK.separator)
    head = literal(f"{tool.name}\n{_FENCE}json\n")
    return f'"function" {separator} {head} {rules.arguments(tool)} {literal(chr(10) + _FENCE)}'


def _named(rules: Rules, tool: Tool) -> str:
    return f"{literal(tool.name)} {rules.marker(_DEEPSEEK.separator)} {rules.arguments(tool)}"


def _numbered(rules: Rules, tool: Tool) -> str:
    head = f"{literal(f'functions.{tool.name}:')} /[0-9]{{1,3}}/"
    return f"{head} {rules.marker(_KIMI.separator)} {rules.arguments(tool)}"


# -- the families --------------------------------------------------------------------------

DEEPSEEK_V3 = Family(
    name="deepseek-v3",
    example="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n"
    "```json\nARGUMENTS\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    reading=_reading(_DEEPSEEK),
    block=_block(_DEEPSEEK, _fenced, '"\\n"?'),
    shows=lambda template: _DEEPSEEK.open in template and "```json" in template,
    openings=opened_by(_DEEPSEEK.begin),
    markers=_DEEPSEEK.all,
    repeats=False,
)
DEEPSEEK = Family(
    name="deepseek-v3.1",
    example="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    reading=_reading(_DEEPSEEK),
    block=_block(_DEEPSEEK, _named, ""),
    shows=lambda template: _DEEPSEEK.open in template,
    openings=opened_by(_DEEPSEEK.begin),
    markers=_DEEPSEEK.all,
    repeats=False,
)
KIMI = Family(
    name="kimi",
    example="<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
    "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>",
    reading=_reading(_KIMI),
    block=_block(_KIMI, _numbered, ""),
    shows=lambda template: _KIMI.open in template,
    openings=opened_by(_KIMI.begin),
    markers=_KIMI.all,
    repeats=False,
)
