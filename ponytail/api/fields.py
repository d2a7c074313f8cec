"""What a JSON field may hold: one table row per field, from which all else follows.

Owns the kinds of value (number, integer, text, ...), their checks, their words in
error messages and their JSON schema.  The parser, the table in docs/api.md and
/openapi.json all read the same rows, so they cannot disagree.  Must not know which
fields a dialect has.  Pure; any thread.

Rules for every kind: `true` is never a number, a string is never a number, NaN and
infinity are refused, a whole float (7.0) is an integer as JSON Schema says.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from ponytail.api.dialect import Limits
from ponytail.errors import InvalidRequest, UnknownParameter, UnsupportedParameter

Effect: TypeAlias = Literal["honoured", "accepted", "refused"]
Schema: TypeAlias = dict[str, Any]

N_SHOWN = 40  # characters of a client's own text that an error message repeats


def describe(value: object) -> str:
    """A few words for a JSON value, however large it is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'the string "{clip(value)}"'
        case int():
            # str() of an int with thousands of digits raises.
            return str(value) if abs(value) < 10**20 else "an integer of over 20 digits"
        case float():
            return str(value)
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case dict():
            return "an object"
        case _:
            return f"a value of type {type(value).__name__}"


def clip(text: str) -> str:
    """`text` short enough to stand in a sentence."""
    return text if len(text) <= N_SHOWN else text[:N_SHOWN] + "…"


class Kind(Protocol):
    """The values one field may hold."""

    @property
    def words(self) -> str:
        """What the value must be: 'a number from 0 to 5'."""

    def read(self, value: object, path: str, limits: Limits) -> Any:
        """The value as the request types want it; InvalidRequest names `path` if it is wrong."""

    def schema(self) -> Schema:
        """JSON Schema 2020-12 of the value."""


def must(path: str, words: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{path} must be {words}, got {describe(value)}.", param=path)


def wrong(kind: Kind, value: object, path: str) -> InvalidRequest:
    return must(path, kind.words, value)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number; `above_low` leaves the lower bound itself out."""

    low: float
    high: float
    above_low: bool = False

    @property
    def words(self) -> str:
        if self.above_low:
            return f"a number above {self.low:g} and up to {self.high:g}"
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: object, path: str, limits: Limits) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(self, value, path)
        # NaN fails every comparison, so it is refused here too.
        if not self.low <= value <= self.high or (self.above_low and value == self.low):
            raise wrong(self, value, path)
        return float(value)

    def schema(self) -> Schema:
        low = "exclusiveMinimum" if self.above_low else "minimum"
        return {"type": "number", low: self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number; `also` maps values outside the range to what they mean."""

    low: int
    high: int
    also: tuple[tuple[int, int | None], ...] = ()
    also_words: str = ""

    @property
    def words(self) -> str:
        return f"an integer from {self.low} to {self.high}{self.also_words}"

    def read(self, value: object, path: str, limits: Limits) -> int | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(self, value, path)
        for special, meaning in self.also:
            if value == special:
                return meaning
        if not self.low <= value <= self.high:
            raise wrong(self, value, path)
        return value

    def schema(self) -> Schema:
        low = min([self.low, *(special for special, _ in self.also)])
        return {"type": "integer", "minimum": low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Boolean:
    @property
    def words(self) -> str:
        return "true or false"

    def read(self, value: object, path: str, limits: Limits) -> bool:
        if not isinstance(value, bool):
            raise wrong(self, value, path)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class String:
    """Text of `n_min` to `n_max` characters; `n_min` 1 refuses the empty string."""

    n_min: int = 0
    n_max: int | None = None

    @property
    def words(self) -> str:
        most = "" if self.n_max is None else f" of at most {self.n_max} characters"
        return ("a non-empty string" if self.n_min else "a string") + most

    def read(self, value: object, path: str, limits: Limits) -> str:
        if not isinstance(value, str) or len(value) < self.n_min:
            raise wrong(self, value, path)
        if self.n_max is not None and len(value) > self.n_max:
            raise wrong(self, value, path)
        return value

    def schema(self) -> Schema:
        low = {"minLength": self.n_min} if self.n_min else {}
        high = {} if self.n_max is None else {"maxLength": self.n_max}
        return {"type": "string", **low, **high}


@dataclass(frozen=True, slots=True)
class Strings:
    """A list of non-empty strings; `or_one` also takes a single one."""

    n_max: int
    or_one: bool = False

    @property
    def words(self) -> str:
        one = "a non-empty string or " if self.or_one else ""
        return f"{one}a list of at most {self.n_max} non-empty strings"

    def read(self, value: object, path: str, limits: Limits) -> tuple[str, ...]:
        if self.or_one and isinstance(value, str):
            return (String(1).read(value, path, limits),)
        if not isinstance(value, list) or len(value) > self.n_max:
            raise wrong(self, value, path)
        return tuple(String(1).read(v, f"{path}[{i}]", limits) for i, v in enumerate(value))

    def schema(self) -> Schema:
        one = String(1).schema()
        many = {"type": "array", "items": one, "maxItems": self.n_max}
        return {"anyOf": [one, many]} if self.or_one else many


@dataclass(frozen=True, slots=True)
class Object:
    """Any object; names in `reserved` may not be set through it."""

    reserved: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return "an object"

    def read(self, value: object, path: str, limits: Limits) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        for name in self.reserved:
            if name in value:
                raise InvalidRequest(
                    f"{path}.{name} cannot be set here: the server fills it.",
                    param=f"{path}.{name}",
                )
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return " or ".join(f'"{choice}"' for choice in self.choices)

    def read(self, value: object, path: str, limits: Limits) -> str:
        if value not in self.choices:
            raise wrong(self, value, path)
        return str(value)

    def schema(self) -> Schema:
        return {"type": "string", "enum": [*self.choices]}


@dataclass(frozen=True, slots=True)
class Only:
    """A field this server does not honour: only values that ask for nothing pass.

    `why` is a sentence: the reason, or what to send instead.
    """

    harmless: tuple[Any, ...] = ()
    why: str = ""

    @property
    def words(self) -> str:
        shown = ["null", *(msgspec.json.encode(value).decode() for value in self.harmless)]
        return " or ".join(shown)

    def read(self, value: object, path: str, limits: Limits) -> Any:
        # 0 and 0.0 are the same to a client, 0 and false are not.
        if any(
            isinstance(value, bool) == isinstance(ok, bool) and value == ok for ok in self.harmless
        ):
            return value
        raise UnsupportedParameter(
            f"{path} is not supported here: leave it out or set it to {self.words}, "
            f"got {describe(value)}. {self.why}".rstrip(),
            param=path,
        )

    def schema(self) -> Schema:
        return {"enum": [*self.harmless, None]}


@dataclass(frozen=True, slots=True)
class Field:
    """One row: a field's name, what it may hold, what it does, and a sentence for people.

    `default` is shown, not applied: an absent or null field is simply not there.
    """

    name: str
    kind: Kind
    effect: Effect
    doc: str
    default: Any = None
    aliases: tuple[str, ...] = ()
    required: bool = False


def honoured(
    name: str,
    kind: Kind,
    doc: str,
    *,
    default: Any = None,
    aliases: tuple[str, ...] = (),
    required: bool = False,
) -> Field:
    """A row that does what `doc` says."""
    return Field(name, kind, "honoured", doc, default, aliases, required)


def accepted(name: str, kind: Kind, doc: str) -> Field:
    """A row that is checked and changes nothing; `doc` says why."""
    return Field(name, kind, "accepted", doc)


def refused(name: str, why: str, *harmless: Any) -> Field:
    """A row that is a 400 for all but null and the `harmless` values."""
    return Field(name, Only(harmless, why), "refused", why)


class Fields:
    """The rows of one object, in the order people read them; itself a kind of value."""

    def __init__(self, *rows: Field) -> None:
        self.rows = rows
        self._by_name = {name: row for row in rows for name in (row.name, *row.aliases)}
        if len(self._by_name) != sum(1 + len(row.aliases) for row in rows):
            raise ValueError("two rows share a name")

    @property
    def words(self) -> str:
        return "an object with " + ", ".join(row.name for row in self.rows)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.rows)

    def read(self, value: object, path: str, limits: Limits) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        return self.read_members(value, limits, path + ".")

    def read_members(
        self, body: Mapping[str, Any], limits: Limits, prefix: str = ""
    ) -> dict[str, Any]:
        """Values by row name, of what is there and not null; the first fault raises."""
        if not isinstance(body, dict):
            raise InvalidRequest("The body must be a JSON object.")
        values: dict[str, Any] = {}
        for name, raw in body.items():
            row = self._by_name.get(name)
            if row is None:
                raise self._unknown(name, prefix)
            if raw is None:
                continue
            value = row.kind.read(raw, prefix + name, limits)
            if row.name in values and values[row.name] != value:
                raise InvalidRequest(
                    f"{prefix}{name} says the same as another field, with a different value; "
                    f"send only {prefix}{row.name}.",
                    param=prefix + name,
                )
            values[row.name] = value
        self._ensure_required(values, prefix)
        return values

    def _ensure_required(self, values: Mapping[str, Any], prefix: str) -> None:
        for row in self.rows:
            if row.required and row.name not in values:
                raise InvalidRequest(
                    f"{prefix}{row.name} is required: {row.kind.words}.", param=prefix + row.name
                )

    def _unknown(self, name: str, prefix: str) -> UnknownParameter:
        shown = clip(str(name))
        near = difflib.get_close_matches(shown, self._by_name, n=1)
        hint = f" Did you mean {prefix}{near[0]}?" if near else ""
        return UnknownParameter(
            f"{prefix}{shown} is not a parameter of this route.{hint}", param=prefix + shown
        )

    def schema(self) -> Schema:
        required = [row.name for row in self.rows if row.required]
        return {
            "type": "object",
            "properties": dict(_properties(self.rows)),
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }


def _properties(rows: tuple[Field, ...]) -> Iterator[tuple[str, Schema]]:
    for row in rows:
        yield row.name, _property(row)
        for alias in row.aliases:
            yield alias, {**_property(row), "description": f"Another name for `{row.name}`."}


def _property(row: Field) -> Schema:
    """The row's schema; null means absent everywhere but in required fields."""
    schema = row.kind.schema()
    if not row.required and "enum" not in schema:
        schema = {"anyOf": [schema, {"type": "null"}]}
    default = {"default": row.default} if row.default is not None else {}
    return {**schema, "description": row.doc, "x-ponytail-effect": row.effect, **default}
