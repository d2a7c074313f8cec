"""Schemas of tools: what cannot be kept to is given up and said, for strict tools refused."""

from __future__ import annotations

import pytest

from ponytail.errors import InvalidRequest
from ponytail.text.grammar import Grammars, tool_schema
from ponytail.types import Tool
from tests.unit.grammar.vocabulary import SmallVocabulary

ODD = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 10**6},
        "b": {"not": {"type": "null"}},
        "c": {
            "type": "array",
            "items": {"type": "string", "format": "made-up"},
            "uniqueItems": True,
        },
        "d": {"type": "integer", "format": "int32"},
    },
    "required": ["a"],
}


def tool(parameters: dict[str, object], *, is_strict: bool = False) -> Tool:
    return Tool("f", parameters=parameters, is_strict=is_strict, path="tools[1].function")


def test_each_thing_given_up_is_said_with_its_path():
    schema, notes = tool_schema(tool(ODD))
    said = " ".join(notes)
    for path in ("a.maxLength", "b.not", "c.items.format", "c.uniqueItems"):
        assert f"tools[1].function.parameters.properties.{path} " in said
    assert len(notes) == 4
    assert Grammars(SmallVocabulary()).fits(schema) == ""


def test_the_schema_that_was_sent_stays_as_it_was():
    before = repr(ODD)
    tool_schema(tool(ODD))
    assert repr(ODD) == before


def test_a_strict_tool_is_refused_instead():
    with pytest.raises(InvalidRequest) as caught:
        tool_schema(tool(ODD, is_strict=True))
    assert (caught.value.param or "").startswith("tools[1].function.parameters.properties.")


def test_arguments_are_an_object_whatever_the_schema_says():
    schema, notes = tool_schema(tool({"type": "string"}))
    assert schema["type"] == "object"
    assert len(notes) == 1


def test_no_schema_is_any_object():
    assert tool_schema(tool({})) == ({"type": "object"}, [])
