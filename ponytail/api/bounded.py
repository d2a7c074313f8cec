"""JSON of a client's own (a schema, a document) that is passed on as it is, within bounds.

Owns how large and how deep it may be, so that what reads it later need not ask again.
Must not know what it means.  Pure; any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ponytail.api.dialect import Limits
from ponytail.api.fields import Schema, wrong
from ponytail.errors import InvalidRequest

N_LEVELS = 100
N_JSON_CHARS = 1 << 20


def encode_json(value: Any, path: str) -> str:
    """`value` as JSON text; InvalidRequest names `path` if it cannot be written."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError, TypeError) as error:
        raise InvalidRequest(f"{path} cannot be written as JSON: {error}.", param=path) from error


def ensure_bounded(value: Any, path: str) -> None:
    """Raises InvalidRequest when `value` is too deep, too long or no JSON."""
    if not _is_shallow(value):
        raise InvalidRequest(f"{path} is nested too deeply: at most {N_LEVELS} levels.", param=path)
    n_chars = len(encode_json(value, path))
    if n_chars > N_JSON_CHARS:
        raise InvalidRequest(
            f"{path} must be at most {N_JSON_CHARS} characters of JSON, got {n_chars}.",
            param=path,
        )


def _is_shallow(value: Any) -> bool:
    """Level by level, not by recursion: the value may be deeper than the stack."""
    level = [value]
    for _ in range(N_LEVELS):
        level = [child for one in level for child in _children(one)]
        if not level:
            return True
    return False


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object of whatever members, bounded."""

    what: str = "an object"

    @property
    def words(self) -> str:
        return self.what

    def read(self, value: object, path: str, limits: Limits) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        ensure_bounded(value, path)
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class JsonObjects:
    """A list of objects of whatever members, bounded together."""

    n_max: int

    @property
    def words(self) -> str:
        return f"a list of at most {self.n_max} objects"

    def read(self, value: object, path: str, limits: Limits) -> list[dict[str, Any]]:
        if not isinstance(value, list) or len(value) > self.n_max:
            raise wrong(self, value, path)
        for i, one in enumerate(value):
            JsonObject().read(one, f"{path}[{i}]", limits)
        ensure_bounded(value, path)
        return value

    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "object"}, "maxItems": self.n_max}
