"""Cohere: a JSON list, between action tags (Command R7B, Command A) or in a fenced block (R, R+).

    <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}]<|END_ACTION|>

    Action:
    ```json
    [{"tool_name": "f", "parameters": {"x": 1}}]
    ```

Command R calls `directly_answer` to say that it calls nothing.
Source: Cohere's guides to tool use and the models' chat templates.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family, opened_by
from ponytail.text.toolcalls.json_blocks import Ends, JsonBlock
from ponytail.text.toolcalls.lark import Rules, literal
from ponytail.text.toolcalls.source import Source, Steps
from ponytail.types import Tool

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
_RESPONSE = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
_TAGGED: dict[str, Ends] = {_OPEN: (_CLOSE,)}

_WORD = "Action:"
_FENCES = ("```json", "```")
_SILENT = ("directly_answer", "directly-answer")
_CALL_ID = {"type": "string", "pattern": "^[0-9]{1,3}$"}


def _read_tagged(tools: Sequence[Tool]) -> Reading:
    def read(source: Source, answer: Answer) -> Steps[None]:
        awaited: Ends = ()
        while stop := (yield from pass_text(source, (_OPEN, *_RESPONSE, *awaited), answer.text)):
            if stop == _OPEN:
                awaited = yield from JsonBlock(source, answer, _OPEN, _TAGGED).read()
            elif stop == _CLOSE:
                awaited = ()

    return read


def _tagged_block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    call = rules.calls(tools, "parameters", name_key="tool_name", first=("tool_call_id", _CALL_ID))
    space = rules.space()
    calls = rules.listed(call, is_parallel=is_parallel)
    return f"{rules.marker(_OPEN)} {space} {calls} {space} {rules.marker(_CLOSE)}"


def _read_fenced(tools: Sequence[Tool]) -> Reading:
    def read(source: Source, answer: Answer) -> Steps[None]:
        awaited: Ends = ()
        while stop := (yield from pass_text(source, (_WORD, *awaited), answer.text)):
            awaited = ()
            if stop == _WORD:
                awaited = yield from _read_action(source, answer)

    return read


def _read_action(source: Source, answer: Answer) -> Steps[Ends]:
    """Behind the word; without a fenced list it was no action."""
    unsaid = _WORD + (yield from source.skip_space())
    fence = yield from source.skip_any(_FENCES)
    unsaid += fence
    if not fence:
        answer.text(unsaid)
        return ()
    return (yield from JsonBlock(source, answer, unsaid, {unsaid: ("```",)}, _SILENT).read())


def _fenced_block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    calls = rules.listed(
        rules.calls(tools, "parameters", name_key="tool_name"), is_parallel=is_parallel
    )
    space = rules.space()
    return f'"{_WORD}" {space} "```json" {space} {calls} {space} {literal("```")}'


COHERE = Family(
    name="command-r7b",
    example=f'{_OPEN}[{{"tool_call_id": "0", "tool_name": "NAME", "parameters": ARGUMENTS}}]'
    f"{_CLOSE}",
    reading=_read_tagged,
    block=_tagged_block,
    shows=lambda template: _OPEN in template,
    openings=opened_by(_OPEN),
    markers=frozenset({_OPEN, _CLOSE, *_RESPONSE}),
    repeats=False,
)
COMMAND_R = Family(
    name="command-r",
    example='Action:\n```json\n[{"tool_name": "NAME", "parameters": ARGUMENTS}]\n```',
    reading=_read_fenced,
    block=_fenced_block,
    shows=lambda template: _WORD in template and "tool_name" in template,
    openings=opened_by(*(f"{_WORD}{space}```json" for space in ("", " ", "\n"))),
    repeats=False,
)
