"""Every spelling of what an answer must look like becomes one constraint with its own path."""

from __future__ import annotations

from typing import Any

import pytest

from ponytail.api.dialect import Limits
from ponytail.api.openai import ChatCompletions, Completions
from ponytail.errors import InvalidRequest, PonytailError, UnknownParameter, UnsupportedParameter
from ponytail.types import Constraint, Grammar, JsonSchema, OneOfTexts, Regex

LIMITS = Limits(n_vocab=1000, n_ctx=512)
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}
ANY = {"type": "object"}
GBNF = 'root ::= "start: " [a-z]+\nstart ::= root'
LARK = '// of a date\n\nstart: /[0-9]+/ "." unit\nunit: "km"'


def constraint(**fields: Any) -> Constraint | None:
    chat = ChatCompletions().parse({"messages": HI, **fields}, LIMITS).constraint
    assert Completions().parse({"prompt": "x", **fields}, LIMITS).constraint == chat
    return chat


def refusal(**fields: Any) -> PonytailError:
    with pytest.raises(InvalidRequest) as caught:
        constraint(**fields)
    return caught.value


def in_format(**members: Any) -> dict[str, Any]:
    return {"response_format": members}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (in_format(type="text"), None),
        (in_format(type="text", json_schema=None), None),
        (in_format(type="json_object"), JsonSchema(ANY, "response_format")),
        (
            in_format(type="json_object", schema=SCHEMA),
            JsonSchema(SCHEMA, "response_format.schema"),
        ),
        (
            in_format(type="json_schema", schema=SCHEMA),
            JsonSchema(SCHEMA, "response_format.schema"),
        ),
        (
            in_format(
                type="json_schema",
                json_schema={"name": "n", "strict": True, "description": "d", "schema": SCHEMA},
            ),
            JsonSchema(SCHEMA, "response_format.json_schema.schema"),
        ),
        (
            in_format(type="json_schema", json_schema={"schema": {}, "strict": None}),
            JsonSchema({}, "response_format.json_schema.schema"),
        ),
        ({"guided_json": '{"type": "object"}'}, JsonSchema(ANY, "guided_json")),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": None, "regex": None}}, None),
        ({"structured_outputs": {"json_object": False}}, None),
        (
            {"structured_outputs": {"json_object": True}},
            JsonSchema(ANY, "structured_outputs.json_object"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
            JsonSchema(SCHEMA, "structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            OneOfTexts(("a", "b"), "structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": {"type": "lark", "text": LARK}}},
            Grammar(LARK, "lark", "structured_outputs.grammar.text"),
        ),
        ({"regex": "a", "response_format": {"type": "text"}}, Regex("a", "regex")),
        ({"grammar": ""}, None),
        ({"grammar": "", "choice": ["é"]}, OneOfTexts(("é",), "choice")),
    ],
)
def test_it_arrives_with_its_path(fields: dict[str, Any], expected: Constraint | None) -> None:
    assert constraint(**fields) == expected


@pytest.mark.parametrize(
    ("text", "notation"),
    [
        (GBNF, "gbnf"),
        ("", None),
        (LARK, "lark"),
        ('  ?start: "a"', "lark"),
        ('start.2 : "a"', "lark"),
        ('restart: "a"', "gbnf"),
        ('\n \n%llguidance {"no_forcing": true}\nthing: "a"', "lark"),
        ("root ::= [^\\n]* # start: here", "gbnf"),
    ],
)
def test_the_notation_of_a_grammar_is_seen(text: str, notation: str | None) -> None:
    found = constraint(grammar=text)
    assert (found.notation if isinstance(found, Grammar) else found) == notation


@pytest.mark.parametrize("member", ["text", "grammar"])
@pytest.mark.parametrize("notation", ["lark", "gbnf"])
def test_a_grammar_may_say_its_notation(notation: Any, member: str) -> None:
    found = constraint(grammar={"type": notation, member: GBNF})
    assert found == Grammar(GBNF, notation, f"grammar.{member}")


@pytest.mark.parametrize(
    ("fields", "first", "second"),
    [
        ({"regex": "a", "guided_regex": "a"}, "regex", "guided_regex"),
        ({"choice": ["a"], "grammar": LARK}, "choice", "grammar"),
        (
            {**in_format(type="json_schema", schema=ANY), "json_schema": ANY},
            "response_format.schema",
            "json_schema",
        ),
        (
            {"structured_outputs": {"regex": "a", "json_object": True}},
            "structured_outputs.regex",
            "structured_outputs.json_object",
        ),
        ({**in_format(type="json_object"), "grammar": LARK}, "response_format", "grammar"),
        (
            in_format(type="json_schema", json_schema={"schema": ANY}, schema=ANY),
            "response_format.schema",
            "response_format.json_schema.schema",
        ),
    ],
)
def test_two_constraints_are_refused_by_both_names(
    fields: dict[str, Any], first: str, second: str
) -> None:
    error = refusal(**fields)
    assert error.param == second
    assert error.message.startswith(f"{first} and {second} both say")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "json"}, "response_format", 'with type "text"'),
        (in_format(), "response_format.type", "required"),
        (in_format(type="poem"), "response_format.type", "poem"),
        (in_format(type="json_schema"), "response_format.json_schema", "required"),
        (in_format(type="json_schema", json_schema=[]), "response_format.json_schema", "object"),
        (
            in_format(type="json_schema", json_schema={"name": "n"}),
            "response_format.json_schema.schema",
            "required",
        ),
        (
            in_format(type="json_schema", json_schema={"schema": "x"}),
            "response_format.json_schema.schema",
            "JSON Schema",
        ),
        (
            in_format(type="json_schema", json_schema={"schema": {}, "strict": 1}),
            "response_format.json_schema.strict",
            "true or false",
        ),
        (in_format(type="text", schema={}), "response_format.schema", 'type "text"'),
        (
            in_format(type="json_object", json_schema={"schema": {}}),
            "response_format.json_schema",
            'type "json_object"',
        ),
        ({"json_schema": [1]}, "json_schema", "JSON Schema"),
        ({"guided_json": "{"}, "guided_json", "as text"),
        ({"guided_json": "[]"}, "guided_json", "as text"),
        ({"regex": ""}, "regex", "a regular expression"),
        ({"regex": "a" * 16385}, "regex", "16384"),
        ({"choice": []}, "choice", "non-empty list"),
        ({"choice": "yes"}, "choice", "non-empty list"),
        ({"choice": ["a", ""]}, "choice[1]", "non-empty string"),
        ({"choice": ["a" * 200_000] * 2}, "choice", "together"),
        ({"grammar": 5}, "grammar", "a grammar"),
        ({"grammar": "x" * (1 << 18) + "x"}, "grammar", "262144"),
        ({"grammar": {"text": "x"}}, "grammar.type", "required"),
        ({"grammar": {"type": "bnf", "text": "x"}}, "grammar.type", "bnf"),
        ({"grammar": {"type": "lark"}}, "grammar.text", "required"),
        ({"structured_outputs": []}, "structured_outputs", "one of json"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "expression"),
    ],
)
def test_a_malformed_one_names_its_fault(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert words in error.message
    assert len(error.message) < 400


def test_members_nobody_reads_are_refused() -> None:
    error = refusal(structured_outputs={"jason": {}})
    assert isinstance(error, UnknownParameter)
    assert "Did you mean structured_outputs.json" in error.message
    error = refusal(structured_outputs={"whitespace_pattern": " "})
    assert isinstance(error, UnsupportedParameter)
    assert error.param == "structured_outputs.whitespace_pattern"
    error = refusal(response_format={"type": "json_schema", "json_schema": {"shema": {}}})
    assert error.param == "response_format.json_schema.shema"
