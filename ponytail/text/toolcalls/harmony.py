"""gpt-oss (harmony): every message has a header that says its channel and whom it is for.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>answer
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>

The prompt ends with `<|start|>assistant`, so the answer begins within a header.  `analysis` is
thinking, a recipient makes a call, everything else is the answer.
Source: OpenAI's description of the harmony response format.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ponytail.text.thinking import Tags
from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.family import Family
from ponytail.text.toolcalls.json_text import pass_arguments
from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.seam import Trigger
from ponytail.text.toolcalls.source import Source, Steps
from ponytail.types import Tool

_START, _CHANNEL, _CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
_MESSAGE, _END, _CALL, _RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
_MARKERS = frozenset({_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN})
_OVER = (_END, _CALL, _RETURN, _START)
_TO = "to=functions."

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_NAMED_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _read(tools: Sequence[Tool]) -> Reading:
    return _read_messages


def _read_messages(source: Source, answer: Answer) -> Steps[None]:
    space = yield from source.skip_space()
    is_header = yield from source.next_of((_CHANNEL, _MESSAGE, _START, "to="))
    if not is_header:
        # The prompt ended within a message, which is continued.
        answer.text(space)
        yield from pass_text(source, _OVER, answer.text)
    while (yield from source.peek()):
        yield from _read_message(source, answer)


def _read_message(source: Source, answer: Answer) -> Steps[None]:
    header, stop = yield from source.take_until((_MESSAGE, *_OVER))
    if stop != _MESSAGE:
        # A header that breaks off; words that are none are part of the answer.
        is_header = stop == _START or _CHANNEL in header or header.startswith("assistant")
        answer.text("" if is_header or _RECIPIENT.search(header) else header)
        return
    recipient = _RECIPIENT.search(header)
    channel = _NAMED_CHANNEL.search(header)
    if recipient and recipient[1] not in ("assistant", "all"):
        yield from _read_call(source, answer, recipient[1].removeprefix("functions."))
    elif channel and channel[1] == "analysis":
        yield from pass_text(source, _OVER, answer.reasoning)
    else:
        yield from pass_text(source, _OVER, answer.text)


def _read_call(source: Source, answer: Answer, name: str) -> Steps[None]:
    answer.begin_call(name)
    yield from source.skip_space()
    if (yield from source.next_of(_OVER)):
        answer.arguments("{}")
    elif (yield from source.peek()):
        yield from pass_arguments(source, answer.arguments, _OVER)
    yield from source.take_until(_OVER)


def _block(rules: Rules, tools: Sequence[Tool], is_parallel: bool) -> str:
    """From the header on: the recipient may come before or behind the channel."""
    channel, message = rules.marker(_CHANNEL), rules.marker(_MESSAGE)
    kind = f'(" " {rules.marker(_CONSTRAIN)}? | {rules.marker(_CONSTRAIN)}) "json"'
    tail = rules.rule(f'({channel} "commentary")? ({kind})? {message}')
    calls = [f"{literal(tool.name)} {tail} {rules.arguments(tool)}" for tool in tools]
    call = rules.rule(either(calls))
    before = f'" "? | {channel} "commentary" " " | {rules.marker(_START)} "assistant" " "'
    return f"({before}) {literal(_TO)} {call}"


def _triggers(tools: Sequence[Tool]) -> tuple[Trigger, ...]:
    """Only in headers: an answer may speak of `to=functions.f`."""
    return (
        Trigger(_TO, at_start=True),
        Trigger(f"{_CHANNEL}commentary {_TO}"),
        Trigger(f"{_START}assistant {_TO}"),
    )


HARMONY = Family(
    name="harmony",
    example=f"{_CHANNEL}commentary {_TO}NAME {_CONSTRAIN}json{_MESSAGE}ARGUMENTS",
    reading=_read,
    block=_block,
    shows=lambda template: _CHANNEL in template and _MESSAGE in template,
    openings=_triggers,
    markers=_MARKERS,
    repeats=False,
    thinking=Tags(f"{_CHANNEL}analysis{_MESSAGE}", f"{_END}{_START}assistant"),
    before_answer=f"{_CHANNEL}final{_MESSAGE}",
)
