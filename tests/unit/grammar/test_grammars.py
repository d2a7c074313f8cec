"""Schemas, patterns, grammars and choices: what they let through, and how they are refused."""

from __future__ import annotations

import json

import jsonschema
import pytest

from ponytail.errors import InvalidRequest
from ponytail.text.grammar import Grammars
from ponytail.types import Grammar, JsonSchema, OneOfTexts, Regex
from tests.unit.grammar.vocabulary import SmallVocabulary, allowed, walk

PARAM = "response_format.json_schema.schema"


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(SmallVocabulary())


def schema(value: object) -> JsonSchema:
    return JsonSchema(value, PARAM)  # type: ignore[arg-type]


NODE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
STRICT = {"type": "object", "additionalProperties": False}
SCHEMAS = {
    "strict object": {
        **STRICT,
        "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}},
        "required": ["n", "s"],
    },
    "references": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "null"}, {"const": "x"}]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "additionalProperties": True,
    },
    "type list": {"type": ["string", "null"], "maxLength": 5},
    "bounds": {"type": "integer", "minimum": -3, "maximum": 40},
    "open bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multiple": {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
        "items": False,
        "minItems": 2,
    },
    "map": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "annotations": {
        "title": "T",
        "description": "d",
        "default": 1,
        "type": "boolean",
        "examples": [True],
    },
    "format date": {"type": "string", "format": "date"},
    "format uuid": {"type": "string", "format": "uuid"},
    "format ipv4": {"type": "string", "format": "ipv4"},
    "const object": {"const": {"a": [1, None, "é"]}},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_picked_fits_the_schema(grammars, name):
    compiled = grammars.constraint(schema(SCHEMAS[name]))
    check = jsonschema.Draft202012Validator(
        SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    texts = [text for seed in range(30) if (text := walk(compiled, seed)) is not None]
    assert len(texts) >= 10
    for text in texts:
        check.validate(json.loads(text))


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ({"properties": {"s": {"type": "string", "pattern": "(?=a)b"}}}, ".properties.s.pattern"),
        ({"items": {"properties": {"s": {"pattern": "["}}}}, ".items.properties.s.pattern"),
        ({"properties": {"s": {"not": {"type": "null"}}}}, ".properties.s.not"),
        ({"if": {}, "then": {}}, ".if"),
        ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
        ({"type": "array", "contains": {}}, ".contains"),
        ({"type": "string", "format": "made-up"}, ".format"),
        ({"properties": {"a": {"type": "foo"}}}, ".properties.a.type"),
        ({"properties": 5}, ".properties"),
        ({"enum": []}, ".enum"),
        ({"required": "a"}, ".required"),
        ({"anyOf": []}, ".anyOf"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, ".properties.a.$ref"),
        ({"properties": {"a": {"$ref": "https://example.com/s"}}}, ".properties.a.$ref"),
        ({"anyOf": [{"type": "null"}, {"propertyNames": {}}]}, ".anyOf[1].propertyNames"),
        ({"properties": {"a": 3}}, ".properties.a"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_with_its_path(grammars, bad, path):
    with pytest.raises(InvalidRequest) as caught:
        grammars.constraint(schema(bad))
    assert (caught.value.param or "").startswith(PARAM + path)
    assert "\n" not in caught.value.message


def test_a_pattern_with_a_needless_escape_is_kept_to_or_refused(grammars):
    compiled = grammars.constraint(schema({"type": "string", "pattern": "^a\\!$"}))
    assert allowed(compiled, '"a!"')
    assert not allowed(compiled, '"a"')


def test_a_model_cannot_loop_in_white_space_or_digits(grammars):
    compiled = grammars.constraint(schema(SCHEMAS["strict object"]))
    assert allowed(compiled, '{ "n": 1,\n  "s": "a"\n}')
    assert not allowed(compiled, "{" + " " * 40 + '"n":1,"s":"a"}')
    assert not allowed(compiled, "{" + "\n" * 9 + '"n":1,"s":"a"}')
    assert not allowed(compiled, '{"n":' + "7" * 40 + ',"s":"a"}')


def test_choices_are_exact(grammars):
    texts = ("yes", "yes!", 'no\n"é\\')
    compiled = grammars.constraint(OneOfTexts(texts, "choice"))
    assert all(allowed(compiled, text) for text in texts)
    assert not any(allowed(compiled, text) for text in ("ye", "yes!!", "", "no"))


def test_a_pattern_covers_the_whole_answer(grammars):
    compiled = grammars.constraint(Regex(r"a/b\d{2}(é|\n)?", "regex"))
    assert allowed(compiled, "a/b12\n")
    assert not allowed(compiled, "xa/b12")
    assert not allowed(compiled, "a/b1")


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('root ::= "a" [0-9]{1,2} ("x" | "y")*  # end\n', "a12xy", "a123"),
        ('root ::= item ("," item)*\nitem ::= [a-z]+ | "\\"" [^"]* "\\""\n', 'ab,"C,"', "ab,"),
        ('root ::= "\\x41\\u00e9" [^\\n]?\n', "Aéz", "Aé\n"),
        ("root ::= ws [+-]? [0-9]+ ws\nws ::= [ \\t]*\n", " -12 ", "- 1"),
    ],
)
def test_gbnf(grammars, source, good, bad):
    compiled = grammars.constraint(Grammar(source, "gbnf", "grammar"))
    assert allowed(compiled, good)
    assert not allowed(compiled, bad)


def test_lark(grammars):
    compiled = grammars.constraint(Grammar('start: "x" NUM+\nNUM: /[0-9]/\n', "lark", "grammar"))
    assert allowed(compiled, "x12")
    assert not allowed(compiled, "x")


@pytest.mark.parametrize(
    "bad",
    [
        Grammar('root ::= "abc" (', "gbnf", "grammar"),
        Grammar("root ::= nothing\n", "gbnf", "grammar"),
        Grammar('start: "x" foo', "lark", "grammar"),
        Grammar("", "lark", "grammar"),
        Regex("(", "grammar"),
        Regex("(?<=a)b", "grammar"),
    ],
)
def test_a_grammar_that_cannot_be_built_names_its_field(grammars, bad):
    with pytest.raises(InvalidRequest) as caught:
        grammars.constraint(bad)
    assert caught.value.param == "grammar"


def test_grammars_are_built_once(grammars):
    first = grammars.constraint(schema(SCHEMAS["bounds"]))
    assert grammars.constraint(schema(dict(SCHEMAS["bounds"]))) is first


def test_choices_of_one_request_do_not_share_their_place(grammars):
    compiled = grammars.constraint(Regex("ab", "regex"))
    one, two = compiled.matcher(), compiled.matcher()
    assert one.consume_text("a")
    assert not two.consume_text("b")
    assert one.consume_text("b")
    assert one.is_complete


def test_control_tokens_are_never_text(grammars):
    compiled = grammars.constraint(Regex("[^x]*", "regex"))
    matcher = compiled.matcher()
    assert not matcher.consume(SmallVocabulary.control_ids["<tool_call>"])
    assert matcher.error


def test_markers_are_spelled_as_the_vocabulary_has_them(grammars):
    assert grammars.spell("<tool_call>") == f"<[{SmallVocabulary.control_ids['<tool_call>']}]>"
    assert grammars.spell('say "x"\n') == '"say \\"x\\"\\n"'
