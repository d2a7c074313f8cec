"""Phi-4-mini: a JSON list between `<|tool_call|>` tags, or behind the word `functools`.

    <|tool_call|>[{"name": "f", "arguments": {"x": 1}}]<|/tool_call|>
    functools[{"name": "f", "arguments": {"x": 1}}]

Source: the model card and chat template of Phi-4-mini-instruct.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_blocks import Ends, JsonBlock
from ponytail.text.toolcalls.lark import Rules
from ponytail.text.toolcalls.source import Source, Steps
from ponytail.types import Tool

_OPEN, _CLOSE = "<|tool_call|>", "<|/tool_call|>"
_WORD = "functools["
_BLOCKS: dict[str, Ends] = {_OPEN: (_CLOSE,)}
_LISTS: dict[str, Ends] = {"functools": ()}


def _read(tools: Sequence[Tool]) -> Reading:
    def read(source: Source, answer: Answer) -> Steps[None]:
        awaited: Ends = ()
        while stop := (yield from pass_text(source, (_OPEN, _WORD, *awaited), answer.text)):
            awaited = ()
            if stop == _OPEN:
                awaited = yield from JsonBlock(source, answer, _OPEN, _BLOCKS).read()
            elif stop == _WORD:
                source.unread("[")
                yield from JsonBlock(source, answer, "functools", _LISTS).read()

    return read


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    calls = rules.rule(rules.listed(rules.calls(tools, "arguments"), is_parallel=is_parallel))
    space = rules.space()
    tagged = f"{rules.marker(_OPEN)} {space} {calls} {space} {rules.marker(_CLOSE)}"
    return f'{tagged} | "functools" {calls}'


def _shows(template: str) -> bool:
    return "<|tool|>" in template or "<|/tool_call|>" in template or _WORD in template


PHI = Family(
    name="phi",
    example='<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]<|/tool_call|>',
    reading=_read,
    block=_block,
    shows=_shows,
    openings=opened_by(_OPEN, _WORD),
    markers=frozenset({_OPEN, _CLOSE}),
    repeats=False,
)
