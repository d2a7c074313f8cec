"""Every family's calls come out as OpenAI's, however the answer is cut into pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponytail.config import ToolFormat
from ponytail.text.toolcalls import FORMATS, CallFormat, by_name, detect
from ponytail.types import Event, Reasoning, Text, Tool, ToolCallArgs, ToolCallStart
from tests.unit.chat_templates import TEMPLATES
from tests.unit.toolcalls.answers import CASES, J_PARIS, TOOLS, Case

NAMES = [one.name for one in FORMATS]


class Told:
    """What a client puts together from the events of one answer."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.content = self.reasoning = ""
        self.calls: list[list[str]] = []
        for event in events:
            match event:
                case Text(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case ToolCallStart(index, _, name):
                    assert index == len(self.calls), "calls are numbered in order"
                    self.calls.append([name, ""])
                case ToolCallArgs(index, fragment):
                    assert index == len(self.calls) - 1, "one call at a time"
                    self.calls[index][1] += fragment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        return repr(self.__dict__)


def told(family: CallFormat, pieces: Sequence[str], tools: Sequence[Tool] = TOOLS) -> Told:
    parser = family.parser(tools, new_id=lambda: "call_1")
    events = [event for piece in pieces for event in parser.feed(piece)]
    return Told([*events, *parser.flush()])


def decoded(calls: list[list[str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def title(case: Case) -> str:
    return f"{case.family}: {case.text[:40]!r}"


@pytest.mark.parametrize("case", CASES, ids=title)
def test_calls_are_read_and_no_markup_is_left(case: Case) -> None:
    for pieces in ([case.text], list(case.text)):
        found = told(by_name(case.family), pieces)
        assert decoded(found.calls) == case.calls
        assert (found.content, found.reasoning) == (case.content, case.reasoning)


def test_every_family_has_a_case() -> None:
    assert {case.family for case in CASES} == set(NAMES)


MARKERS = sorted({m for one in FORMATS for m in one.markers})
WORDS = st.sampled_from(
    [
        *MARKERS,
        *('{"name": "get_weather", "arguments": ', J_PARIS, "}", "{", "[", "]", '"', "\\", ","),
        *("```", "```json", "```tool_code", "Action:", "functools[", "<function=", "<parameter="),
        *("</parameter>", "get_weather", "get_time()", "(city='x')", "call:f{a:1}", "<escape>"),
        *("to=functions.f", "commentary", "analysis", "assistant", " ", "\n", "é", "hello", ">"),
        *(case.text for case in CASES),
    ]
)
ANSWERS = st.lists(WORDS, max_size=8).map("".join)


@settings(max_examples=60)
@given(answer=ANSWERS, places=st.lists(st.integers(0, 400), max_size=12))
@pytest.mark.parametrize("name", NAMES)
def test_every_cut_of_any_answer_gives_the_same(name: str, answer: str, places: list[int]) -> None:
    """Whatever a model writes, nothing raises and the pieces do not matter."""
    family = by_name(name)
    edges = sorted({0, len(answer), *(place % (len(answer) + 1) for place in places)})
    whole = told(family, [answer])
    assert told(family, [answer[a:b] for a, b in itertools.pairwise(edges)]) == whole
    assert told(family, list(answer)) == whole


@settings(max_examples=60)
@given(st.text("abc <>{}[]()`\n\"'=:.é|", max_size=60))
@pytest.mark.parametrize("name", NAMES)
def test_answers_without_calls_are_not_changed(name: str, answer: str) -> None:
    found = told(by_name(name), [answer])
    if not found.calls:
        assert found.content == answer


@pytest.mark.parametrize("case", [case for case in CASES if case.calls], ids=title)
def test_answer_that_is_cut_off_loses_nothing_that_was_sent(case: Case) -> None:
    """max_tokens may end an answer anywhere: what came out is a beginning of the whole."""
    whole = told(by_name(case.family), [case.text])
    for end in range(len(case.text)):
        part = told(by_name(case.family), [case.text[:end]])
        assert [name for name, _ in part.calls] == [n for n, _ in whole.calls][: len(part.calls)]
        for (_, got), (_, all_of_it) in zip(part.calls, whole.calls, strict=False):
            assert all_of_it.startswith(got)


def test_arguments_stream_before_they_are_complete() -> None:
    parser = by_name("hermes").parser(TOOLS)
    events = parser.feed('<tool_call>{"name": "get_weather", "arguments": {"city": "Pa')
    assert isinstance(events[0], ToolCallStart)
    assert events[1] == ToolCallArgs(0, '{"city": "Pa')


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("qwen25", "hermes"),
        ("qwen3", "hermes"),
        ("hermes", "hermes"),
        ("qwen3coder", "qwen3-coder"),
        ("llama31", "llama3-json"),
        ("mistral", "mistral"),
        ("magistral", "mistral-args"),
        ("deepseek", "deepseek-v3"),
        ("deepseek31", "deepseek-v3.1"),
        ("kimi", "kimi"),
        ("gptoss", "harmony"),
        ("granite", "granite"),
        ("commandr7b", "command-r7b"),
        ("phi4mini", "phi"),
        ("smollm2", "generic"),
        ("gemma3", "generic"),
        ("vicuna", "generic"),
    ],
)
def test_family_is_told_from_the_template(template: str, name: str) -> None:
    assert detect(TEMPLATES[template]).name == name


def test_flag_names_every_family() -> None:
    assert list(get_args(ToolFormat)) == NAMES
