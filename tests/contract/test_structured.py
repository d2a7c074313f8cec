"""Answers that must have a form have it, whatever the model would rather say (P11)."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.contract.replies import HI, POEM, Streamed, checked

pytestmark = pytest.mark.real

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}},
    "required": ["n", "s"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
LOOSE: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
RICH = {
    "$defs": {"tag": {"type": "string", "pattern": "^[a-z]{2,6}$"}},
    "type": "object",
    "properties": {
        "when": {"type": "string", "format": "date"},
        "size": {"anyOf": [{"const": "small"}, {"type": "number", "minimum": 0, "maximum": 9}]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 2},
        "note": {"type": ["string", "null"], "maxLength": 12},
    },
    "required": ["when", "size", "tags", "note"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("form", [FORM, LOOSE], ids=["strict", "not strict"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("tools", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=["", "tools"])
def test_every_answer_fits_the_schema_at_temperature_2(client, form, stream, tools):
    options = {"response_format": form, "temperature": 2.0, "max_tokens": 200, **tools}
    texts = []
    for seed in range(2):
        if stream:
            chunks = client.chat.completions.create(
                model="m", messages=POEM, seed=seed, stream=True, **options
            )
            texts.append(Streamed(chunks).content)
        else:
            reply = client.chat.completions.create(
                model="m", messages=POEM, seed=seed, n=6, **options
            )
            texts += [choice.message.content for choice in reply.choices]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_a_hundred_of_a_hundred_fit(client):
    reply = client.chat.completions.create(
        model="m", messages=POEM, response_format=FORM, temperature=2.0, max_tokens=200, n=100
    )
    assert len(reply.choices) == 100
    for choice in reply.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_references_bounds_formats_and_patterns_hold(client):
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": RICH}}
    reply = client.chat.completions.create(
        model="m", messages=POEM, response_format=form, temperature=1.5, n=8, max_tokens=300
    )
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), RICH)


def test_json_object_is_an_object(client):
    reply = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Give me JSON with one key."}],
        response_format={"type": "json_object"},
        max_tokens=400,
    )
    choice = checked(reply)
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.lstrip().startswith("{")


def test_text_is_text(client):
    options = {"model": "m", "messages": HI, "temperature": 0, "max_tokens": 8}
    plain = client.chat.completions.create(**options)
    text = client.chat.completions.create(**options, response_format={"type": "text"})
    assert text.choices[0].message.content == plain.choices[0].message.content


def test_the_clients_own_parser_gets_its_model(client):
    class City(BaseModel):
        name: str
        is_big: bool

    reply = client.beta.chat.completions.parse(
        model="m",
        messages=[{"role": "user", "content": "Paris"}],
        response_format=City,
        temperature=0,
    )
    assert isinstance(reply.choices[0].message.parsed, City)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": r"[A-Z]{3}-\d{4}"}, r"[A-Z]{3}-\d{4}"),
        ({"guided_regex": r"(ja|nein)"}, r"(ja|nein)"),
        ({"choice": ["left", "right"]}, r"left|right"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, r"left|right"),
        ({"grammar": 'root ::= "x" [0-9]+ "!"'}, r"x[0-9]+!"),
        ({"grammar": "start: /a{2}/ NUMBER\nNUMBER: /[0-9]{3}/"}, r"aa[0-9]{3}"),
        ({"guided_json": {"enum": [1, 2]}}, r"[12]"),
    ],
)
def test_other_forms_hold_in_chat_and_in_raw_completions(client, fields, pattern):
    chat = client.chat.completions.create(
        model="m", messages=POEM, temperature=1.5, n=3, max_tokens=100, extra_body=fields
    )
    raw = client.completions.create(
        model="m", prompt="Hello", temperature=1.5, n=3, max_tokens=100, extra_body=fields
    )
    texts = [c.message.content for c in chat.choices] + [c.text for c in raw.choices]
    ends = [c.finish_reason for c in (*chat.choices, *raw.choices)]
    for text, end in zip(texts, ends, strict=True):
        assert end == "length" or re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": r"^a(?=b)$"}, "pattern"),
        ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, "properties.a.not"),
        ({"type": "array", "items": {"type": "strin"}}, "items.type"),
        ({"$ref": "#/$defs/none"}, "$ref"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_kept_to_is_a_400_with_its_path(client, schema, path, stream):
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=HI, response_format=form, stream=stream)
    assert caught.value.param == f"response_format.json_schema.schema.{path}"


def test_two_forms_at_once_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="regex"):
        client.chat.completions.create(
            model="m", messages=HI, response_format=FORM, extra_body={"regex": "a"}
        )


def test_an_answer_that_max_tokens_cuts_says_so(client):
    reply = client.chat.completions.create(
        model="m", messages=POEM, response_format=FORM, max_tokens=3
    )
    assert checked(reply).finish_reason == "length"
