"""JSON Schemas made fit for a mask, and the place in one that cannot be.

Owns which keywords can be kept to, and the paths in messages.  Must not know tokens.  Pure.

Numbers of an integer without bounds are bounded to 18 digits: no mask else ends a run of
digits, and few readers take longer ones.  White space between the parts of a value is bounded
by WHITESPACE for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import unquote

from ponytail.errors import InvalidRequest

Schema: TypeAlias = dict[str, Any]
Notes: TypeAlias = list[str]

# Nothing, a blank, or one or two line breaks with indentation.
WHITESPACE = r"( |\n{1,2}[ \t]{0,20})"
_MAX_DEPTH = 100
_INTEGER_BOUND = 10**18
# Bounds beyond these make masks slow or impossible; tools do without them.
_MAX_LENGTH, _MAX_ITEMS = 20_000, 1_000
_UNKEPT = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "uniqueItems",
    "$dynamicRef",
    "$recursiveRef",
)
_FORMATS = frozenset(
    (
        "date",
        "date-time",
        "time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    )
)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "additionalItems")
# What `$ref` reaches; kept at hand when a part of a schema is tried alone.
_DEFINITIONS = ("$defs", "definitions")


def wrong(path: str, words: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: {words}", param=path)


def prepared(schema: Any, path: str, notes: Notes | None = None) -> Any:
    """The schema in a form a mask can be made of.

    Raises InvalidRequest naming the path of what cannot be kept to.  With `notes` (for tools)
    it is left out instead, and a sentence about it is added there.
    """
    return _Preparation(schema, notes).of(schema, path, 0)


class _Preparation:
    def __init__(self, root: Any, notes: Notes | None) -> None:
        self._root = root
        self._notes = notes

    def of(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise wrong(path, "a schema must be an object, true or false.")
        if depth > _MAX_DEPTH:
            raise wrong(path, f"the schema is nested deeper than {_MAX_DEPTH} levels.")
        kept = {k: v for k, v in schema.items() if self._keeps(k, v, schema, path)}
        for name, at, part in children(kept):
            _put(kept, name, at, self.of(part, f"{path}.{name}{_step(at)}", depth + 1))
        return _nullable(_bounded(kept))

    def _keeps(self, name: str, value: Any, schema: Schema, path: str) -> bool:
        why = _unkept(name, value, schema)
        if name == "$ref" and why is None and not _leads(self._root, value):
            why = "it leads nowhere in this schema."
        if why is not None and self._notes is None:
            raise wrong(f"{path}.{name}", why)
        if why is None and self._notes is not None:
            why = _too_large(name, value)
        if why is None:
            return not (name == "uniqueItems" or (name == "format" and not _is_text(schema)))
        assert self._notes is not None, "raised otherwise"
        self._notes.append(f"{path}.{name} is not kept to: {why}")
        return False


def _unkept(name: str, value: Any, schema: Schema) -> str | None:
    """Why a keyword cannot be kept to; None where it can, or asks for nothing."""
    if name in _UNKEPT and not (name == "uniqueItems" and value is False):
        return f"{name} cannot be kept to while the answer is written."
    if name == "format" and _is_text(schema) and value not in _FORMATS:
        return (
            f"the format {str(value)[:40]!r} is unknown; known are {', '.join(sorted(_FORMATS))}."
        )
    if name == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        return "only references within the schema (#/…) are followed."
    if name == "enum" and (not isinstance(value, list) or not value):
        return "must be a non-empty list."
    if name == "required" and not (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    ):
        return "must be a list of strings."
    return _wrong_form(name, value)


def _leads(root: Any, reference: str) -> bool:
    """Whether there is something at the JSON pointer behind the `#`."""
    place = root
    for word in unquote(reference[1:]).split("/")[1:]:
        key = word.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        elif isinstance(place, dict) and key in place:
            place = place[key]
        else:
            return False
    return reference == "#" or reference.startswith("#/")


def _wrong_form(name: str, value: Any) -> str | None:
    if name in _MAPS and not isinstance(value, dict):
        return "must be an object."
    if name in _LISTS and not (isinstance(value, list) and value):
        return "must be a non-empty list of schemas."
    return None


def _too_large(name: str, value: Any) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    limit = {"maxLength": _MAX_LENGTH, "minLength": _MAX_LENGTH}.get(name)
    limit = {"maxItems": _MAX_ITEMS, "minItems": _MAX_ITEMS}.get(name, limit)
    return None if limit is None or value <= limit else f"{value} is more than {limit}."


def _is_text(schema: Schema) -> bool:
    kind = schema.get("type")
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)


def _bounded(schema: Schema) -> Schema:
    bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    if schema.get("type") != "integer" or any(
        name in schema for name in (*bounds, "enum", "const")
    ):
        return schema
    return {**schema, "minimum": -_INTEGER_BOUND, "maximum": _INTEGER_BOUND}


def _nullable(schema: Schema) -> Schema:
    """OpenAPI's way to say that null is allowed too."""
    if schema.get("nullable") is not True:
        return schema
    rest = {name: value for name, value in schema.items() if name != "nullable"}
    return {"anyOf": [rest, {"type": "null"}]}


def children(schema: Schema) -> Iterator[tuple[str, str | int | None, Any]]:
    """(keyword, key or index within it, subschema) of all subschemas."""
    for name in _MAPS:
        for key, part in list(schema.get(name, {}).items()):
            yield name, key, part
    for name in _LISTS:
        for i, part in enumerate(schema.get(name, ())):
            yield name, i, part
    for name in _SINGLES:
        if isinstance(schema.get(name), dict):
            yield name, None, schema[name]
        elif isinstance(schema.get(name), list):
            for i, part in enumerate(schema[name]):
                yield name, i, part


def _step(at: str | int | None) -> str:
    return "" if at is None else f"[{at}]" if isinstance(at, int) else f".{at}"


def _put(schema: Schema, name: str, at: str | int | None, part: Any) -> None:
    """Put a part back; the container is copied, the client's schema stays as it was."""
    if at is None:
        schema[name] = part
        return
    copy: Any = dict(schema[name]) if isinstance(schema[name], dict) else list(schema[name])
    copy[at] = part
    schema[name] = copy


def locate(
    schema: Any, path: str, try_build: Callable[[Any], str], root: Any = None
) -> tuple[str, str]:
    """(path, words) of the deepest part that cannot be built, `schema` being one that cannot.

    `try_build` gives an error or "".
    """
    root = schema if root is None else root
    shared = {n: root[n] for n in _DEFINITIONS if isinstance(root, dict) and n in root}
    for name, at, part in children(schema) if isinstance(schema, dict) else ():
        alone = {**shared, **part} if isinstance(part, dict) else part
        if try_build(alone):
            return locate(part, f"{path}.{name}{_step(at)}", try_build, root)
    alone = {**shared, **schema} if isinstance(schema, dict) else schema
    words = try_build(alone) or try_build(root)
    keys = schema if isinstance(schema, dict) else {}
    if "pattern" in keys and "regex" in words:
        return f"{path}.pattern", words
    named = (name for name in ("type", "properties", "items") if name in keys)
    return next((f"{path}.{name}" for name in named if name in words.lower()), path), words
