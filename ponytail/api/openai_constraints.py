"""What an answer must look like: `response_format`, grammars and other servers' spellings.

Owns how each field becomes a `types.Constraint` that knows its own path, and the rule
that a request has at most one.  Must not know whether a schema or grammar can be
built: the model's vocabulary decides that later.  Pure; any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ponytail.api.bounded import ensure_bounded
from ponytail.api.dialect import Limits
from ponytail.api.fields import (
    Boolean,
    Fields,
    OneOf,
    Schema,
    String,
    Strings,
    accepted,
    honoured,
    must,
    refused,
    wrong,
)
from ponytail.errors import InvalidRequest
from ponytail.types import Constraint, Grammar, JsonSchema, OneOfTexts, Regex

N_PATTERN = 1 << 14
N_GRAMMAR = 1 << 18
N_TEXTS = 4096
# In Lark a rule is `name: ...`, in GBNF `name ::= ...`.
_LARK_START = re.compile(r"^[ \t]*[?!]?start(\.\d+)?[ \t]*:(?!:)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SchemaOfAnswer:
    """A JSON Schema; `or_text` also takes it written as a string."""

    or_text: bool = False

    @property
    def words(self) -> str:
        return "a JSON Schema" + (" as an object or as text" if self.or_text else " (an object)")

    def read(self, value: object, path: str, limits: Limits) -> JsonSchema:
        if self.or_text and isinstance(value, str):
            value = self._parsed(value, path)
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        ensure_bounded(value, path)
        return JsonSchema(value, path)

    def _parsed(self, text: str, path: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise wrong(self, text, path) from None

    def schema(self) -> Schema:
        return {"type": ["object", "string"] if self.or_text else "object"}


@dataclass(frozen=True, slots=True)
class Pattern:
    @property
    def words(self) -> str:
        return f"a regular expression of at most {N_PATTERN} characters"

    def read(self, value: object, path: str, limits: Limits) -> Regex:
        if not isinstance(value, str) or not 0 < len(value) <= N_PATTERN:
            raise wrong(self, value, path)
        return Regex(value, path)

    def schema(self) -> Schema:
        return String(1, N_PATTERN).schema()


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts to choose from."""

    @property
    def words(self) -> str:
        return f"a non-empty list of at most {N_TEXTS} non-empty strings"

    def read(self, value: object, path: str, limits: Limits) -> OneOfTexts:
        if not isinstance(value, list) or not value:
            raise wrong(self, value, path)
        texts = Strings(N_TEXTS).read(value, path, limits)
        if sum(map(len, texts)) > N_GRAMMAR:
            raise must(path, f"of at most {N_GRAMMAR} characters together", value)
        return OneOfTexts(texts, path)

    def schema(self) -> Schema:
        return {**Strings(N_TEXTS).schema(), "minItems": 1}


@dataclass(frozen=True, slots=True)
class GrammarOfAnswer:
    """A grammar as text, or as an object that says its notation; "" asks for nothing."""

    @property
    def words(self) -> str:
        return (
            f"a grammar of at most {N_GRAMMAR} characters, "
            'or an object with type "lark" or "gbnf" and text'
        )

    def read(self, value: object, path: str, limits: Limits) -> Grammar | None:
        match value:
            case str() if len(value) <= N_GRAMMAR:
                return _grammar(value, path) if value else None
            case dict():
                members = GRAMMAR.read(value, path, limits)
                said_in = "text" if value.get("text") is not None else "grammar"
                return Grammar(members["text"], members["type"], f"{path}.{said_in}")
            case _:
                raise wrong(self, value, path)

    def schema(self) -> Schema:
        either = [{"required": ["text"]}, {"required": ["grammar"]}]
        typed = {**GRAMMAR.schema(), "required": ["type"], "anyOf": either}
        return {"anyOf": [String(0, N_GRAMMAR).schema(), typed]}


GRAMMAR = Fields(
    honoured("type", OneOf(("lark", "gbnf")), "The notation of `text`.", required=True),
    honoured(
        "text", String(1, N_GRAMMAR), "The grammar itself.", aliases=("grammar",), required=True
    ),
)


def _grammar(text: str, path: str) -> Grammar:
    is_lark = text.lstrip().startswith("%llguidance") or _LARK_START.search(text)
    return Grammar(text, "lark" if is_lark else "gbnf", path)


@dataclass(frozen=True, slots=True)
class AnyJson:
    """`true` asks for any JSON object."""

    @property
    def words(self) -> str:
        return Boolean().words

    def read(self, value: object, path: str, limits: Limits) -> JsonSchema | None:
        return _any_object(path) if Boolean().read(value, path, limits) else None

    def schema(self) -> Schema:
        return Boolean().schema()


def _any_object(path: str) -> JsonSchema:
    return JsonSchema({"type": "object"}, path)


JSON_SCHEMA_FORMAT = Fields(
    accepted("name", String(), "Not used."),
    honoured(
        "schema", SchemaOfAnswer(), "The schema that the answer is made to fit.", required=True
    ),
    accepted("strict", Boolean(), "The answer always fits, strict or not."),
    accepted("description", String(), "Not used; say it in the prompt."),
)
FORMATS = ("text", "json_object", "json_schema")
RESPONSE_FORMAT = Fields(
    honoured("type", OneOf(FORMATS), "text: no constraint.", required=True),
    honoured("json_schema", JSON_SCHEMA_FORMAT, "Only with type json_schema; see the members."),
    honoured(
        "schema",
        SchemaOfAnswer(),
        "A schema in llama.cpp's place, for type json_object or json_schema.",
    ),
)


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    members: Fields = RESPONSE_FORMAT

    @property
    def words(self) -> str:
        return 'an object with type "text", "json_object" or "json_schema"'

    def read(self, value: object, path: str, limits: Limits) -> JsonSchema | None:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        values = self.members.read(value, path, limits)
        kind = values["type"]
        misplaced = {"text": ("json_schema", "schema"), "json_object": ("json_schema",)}
        for name in misplaced.get(kind, ()):
            if name in values:
                raise InvalidRequest(
                    f'{path}.{name} does not go with type "{kind}".', param=f"{path}.{name}"
                )
        schema = self._schema_of(values, path)
        if kind == "json_schema" and schema is None:
            raise InvalidRequest(
                f"{path}.json_schema is required: an object with the schema.",
                param=f"{path}.json_schema",
            )
        return _any_object(path) if kind == "json_object" and schema is None else schema

    def _schema_of(self, values: dict[str, Any], path: str) -> JsonSchema | None:
        places = (values.get("schema"), values.get("json_schema", {}).get("schema"))
        schema = only_one(places)
        assert schema is None or isinstance(schema, JsonSchema)
        return schema

    def schema(self) -> Schema:
        none, some = {"type": "null"}, {"type": "object"}
        shapes = [
            _shape("text", json_schema=none, schema=none),
            _shape("json_object", json_schema=none),
            {**_shape("json_schema", json_schema=some, schema=none), "required": ["json_schema"]},
            {**_shape("json_schema", json_schema=none, schema=some), "required": ["schema"]},
        ]
        return {**self.members.schema(), "anyOf": shapes}


def _shape(kind: str, **members: Schema) -> Schema:
    return {"properties": {"type": {"const": kind}, **members}}


WHITE_SPACE = "White space in JSON is always bounded."
STRUCTURED_OUTPUTS = Fields(
    honoured("json", SchemaOfAnswer(or_text=True), "As `json_schema`."),
    honoured("regex", Pattern(), "As `regex`."),
    honoured("choice", Texts(), "As `choice`."),
    honoured("grammar", GrammarOfAnswer(), "As `grammar`."),
    honoured("json_object", AnyJson(), "true: any JSON object."),
    refused("structural_tag", "A grammar can say the same."),
    refused("disable_any_whitespace", WHITE_SPACE, False),
    refused("disable_additional_properties", "Say additionalProperties in the schema.", False),
    refused("whitespace_pattern", WHITE_SPACE),
)


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    members: Fields = STRUCTURED_OUTPUTS

    @property
    def words(self) -> str:
        return "an object with one of json, regex, choice, grammar, json_object"

    def read(self, value: object, path: str, limits: Limits) -> Constraint | None:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        return only_one(self.members.read(value, path, limits).values())

    def schema(self) -> Schema:
        return self.members.schema()


def only_one(values: Iterable[Any]) -> Constraint | None:
    """The one constraint among `values`; InvalidRequest names the first two of several."""
    found = [value for value in values if isinstance(value, Constraint)]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[0].param} and {found[1].param} both say what the answer must look like; "
            "send one of them.",
            param=found[1].param,
        )
    return found[0] if found else None


CONSTRAINTS = (
    honoured("json_schema", SchemaOfAnswer(), "The answer is JSON that fits this schema."),
    honoured("regex", Pattern(), "The whole answer matches this pattern."),
    honoured("choice", Texts(), "The answer is one of these texts."),
    honoured(
        "grammar",
        GrammarOfAnswer(),
        "The answer is a sentence of this grammar; a text is Lark if it starts with "
        "%llguidance or has a rule `start:`, else GBNF.",
    ),
    honoured("guided_json", SchemaOfAnswer(or_text=True), "As `json_schema`."),
    honoured("guided_regex", Pattern(), "As `regex`."),
    honoured("guided_choice", Texts(), "As `choice`."),
    honoured("guided_grammar", GrammarOfAnswer(), "As `grammar`."),
    honoured(
        "structured_outputs", StructuredOutputs(), "Holds one of these; see the members below."
    ),
)
