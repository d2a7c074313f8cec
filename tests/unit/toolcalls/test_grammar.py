"""Every family's grammar takes what its models write, and its parser reads what that allows."""

from __future__ import annotations

import json

import jsonschema
import pytest

from ponytail.text.grammar import Compiled, Grammars, tool_schema
from ponytail.text.toolcalls import FORMATS, CallFormat, by_name
from ponytail.types import Tool
from tests.unit.grammar.vocabulary import SmallVocabulary, allowed, walk
from tests.unit.toolcalls.answers import CASES, TOOLS, Case
from tests.unit.toolcalls.test_reading import NAMES, decoded, title, told

GRAMMARS = Grammars(SmallVocabulary())
STRICT = Tool(
    "book",
    "Books.",
    {
        "type": "object",
        "properties": {
            "who": {"type": "string", "maxLength": 12, "pattern": "^[a-z]+$"},
            "seat": {"enum": ["aisle", "window"]},
            "n": {"type": "integer", "minimum": 1, "maximum": 9},
            "is_paid": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["seat", "n"],
        "additionalProperties": False,
    },
)
# Strings between tags are any text up to the tag: patterns of strings are not kept to there.
LOOSE = {"glm", "qwen3-coder", "function-gemma"}


def block(family: CallFormat, tools: tuple[Tool, ...] = TOOLS, *, many: bool = True) -> Compiled:
    fit = tuple(Tool(t.name, t.description, tool_schema(t)[0]) for t in tools)
    return GRAMMARS.lark(family.grammar(fit, GRAMMARS.spell, is_parallel=many), "tools")


def blocks(family: CallFormat, text: str) -> list[str]:
    """The parts of an answer that one grammar covers each."""
    starts = sorted(
        at
        for trigger in family.triggers_for(TOOLS)
        for at in range(len(text))
        if text.startswith(trigger.text, at) and (not trigger.at_start or not text[:at].strip())
    )
    # A trigger may stand within a block that a longer one has begun.
    starts = [at for at in starts if not text[:at].endswith("<tool_call>\n")]
    if not family.repeats:
        starts = starts[:1]
    return [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


WRITTEN = [case for case in CASES if case.is_written]


@pytest.mark.parametrize("case", WRITTEN, ids=title)
def test_grammar_takes_what_models_write(case: Case) -> None:
    family = by_name(case.family)
    grammar = block(family)
    found = blocks(family, case.text)
    assert found, "a trigger begins each block"
    for text in found:
        assert allowed(grammar, text), text


def test_every_family_is_written_once() -> None:
    assert {case.family for case in WRITTEN} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_the_grammar_allows_is_read_as_a_call_that_fits(name: str) -> None:
    """A model that picks among all allowed tokens at random: its calls are valid all the same."""
    family = by_name(name)
    grammar = block(family, (STRICT,))
    n_done = 0
    for seed in range(20):
        text = walk(grammar, seed)
        if text is None:
            continue
        n_done += 1
        found = told(family, [text], (STRICT,))
        assert found.calls, text
        assert not found.content.strip(), text
        for called, arguments in decoded(found.calls):
            assert called == "book"
            if name in LOOSE:
                arguments.pop("who", None)
            jsonschema.validate(arguments, STRICT.parameters)
    assert n_done >= 5


@pytest.mark.parametrize("name", NAMES)
def test_one_call_only_where_several_are_not_wanted(name: str) -> None:
    family = by_name(name)
    grammar = block(family, (STRICT,), many=False)
    texts = [text for seed in range(20) if (text := walk(grammar, seed)) is not None]
    assert texts
    for text in texts:
        assert len(told(family, [text], (STRICT,)).calls) == 1


@pytest.mark.parametrize("family", FORMATS, ids=lambda one: one.name)
def test_example_is_a_call(family: CallFormat) -> None:
    """What a model is shown where its template shows no tools is what the parser reads."""
    words = {"NAME": "get_weather", "ARGUMENTS": '{"city": "x"}', "PARAMETER": "city"}
    is_python = family.name in ("pythonic", "gemma")
    text = family.example
    for word, said in {**words, "VALUE": '"x"' if is_python else "x", "TEXT": "x"}.items():
        text = text.replace(word, said)
    assert [(n, json.loads(a)) for n, a in told(family, [text]).calls] == [
        ("get_weather", {"city": "x"})
    ]
