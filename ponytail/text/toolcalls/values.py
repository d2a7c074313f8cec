"""Values that a model wrote without JSON, as JSON of the type the tool's schema asks for.

Owns what a schema says of a parameter's type.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ponytail.text.toolcalls.json_text import encode
from ponytail.types import Tool

Schema: TypeAlias = Any
"""A JSON Schema: a dict or a bool."""

_ALL_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_REFERENCES = 8


class Parameters:
    """The parameters of one tool by name, in the schema's order."""

    def __init__(self, tool: Tool | None) -> None:
        root = tool.parameters if tool is not None else {}
        properties = root.get("properties")
        self._root = root
        self.schemas: Mapping[str, Schema] = properties if isinstance(properties, dict) else {}
        required = root.get("required")
        self.required = frozenset(r for r in _list_of(required) if isinstance(r, str))
        self.is_closed = root.get("additionalProperties") is False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schemas)

    def types(self, name: str) -> frozenset[str]:
        """The JSON types the parameter may have; all where the schema does not say."""
        return _types(self.schemas.get(name, {}), self._root, _MAX_REFERENCES)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """The only texts the parameter may be, if it is one of some."""
        schema = _resolved(self.schemas.get(name), self._root, _MAX_REFERENCES)
        if not isinstance(schema, dict):
            return None
        allowed = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(allowed, list) or not allowed:
            return None
        return tuple(allowed) if all(isinstance(one, str) for one in allowed) else None

    def whole_schema(self, name: str) -> Schema:
        """The parameter's schema with what it may refer to in the tool's."""
        schema = self.schemas.get(name, {})
        if not isinstance(schema, dict):
            return schema
        shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return {**shared, **schema}

    def json_of_text(self, name: str, text: str) -> str:
        """Bare text -> JSON: a string where that is the type, else what it reads as."""
        types = self.types(name)
        stripped = text.strip()
        word = _WORDS.get(stripped, stripped)
        if types != {"string"} and _type_of(word) in types - {"string"}:
            return word
        return encode(text)

    def json_of_value(self, name: str, value: Any, text: str) -> str:
        """A value that was written with its type, and its own text -> JSON."""
        types = self.types(name)
        if isinstance(value, str):
            return encode(value) if "string" in types else self.json_of_text(name, value)
        return encode(text if types == {"string"} else value)


def parameters_by_tool(tools: Sequence[Tool]) -> dict[str, Parameters]:
    """Of every tool, by its name."""
    return {tool.name: Parameters(tool) for tool in tools}


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _types(schema: Schema, root: Mapping[str, Any], n_left: int) -> frozenset[str]:
    schema = _resolved(schema, root, n_left)
    if not isinstance(schema, dict) or n_left == 0:
        return _ALL_TYPES
    found = _ALL_TYPES
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found = frozenset(one for one in named if isinstance(one, str)) & _ALL_TYPES
        found |= {"integer"} if "number" in found else set()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        found &= {_type_of(encode(value)) or "" for value in values}
    for key in ("anyOf", "oneOf"):
        options = [_types(one, root, n_left - 1) for one in _list_of(schema.get(key))]
        found &= frozenset[str]().union(*options) if options else _ALL_TYPES
    for one in _list_of(schema.get("allOf")):
        found &= _types(one, root, n_left - 1)
    return found or _ALL_TYPES


def _resolved(schema: Schema, root: Mapping[str, Any], n_left: int) -> Schema:
    """The schema a reference within the tool's schema leads to."""
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        target: Any = root
        for word in schema["$ref"].removeprefix("#").strip("/").split("/"):
            key = word.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if key and isinstance(target, dict) else target
        if target is None or n_left == 0:
            return {}
        schema, n_left = target, n_left - 1
    return schema


def _type_of(text: str) -> str | None:
    """The type of a JSON text, None if it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _refuse(word: str) -> None:
    raise ValueError(word)


NO_PARAMETERS = Parameters(None)
"""Of a tool that is not known: any name, any type."""
