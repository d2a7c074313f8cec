"""JSON in an answer: read as it was written, passed on as it comes.

Owns where a value ends, nothing of what it means: the text of the arguments reaches
the client unchanged, even when it is no good JSON.  Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from ponytail.text.toolcalls.source import SPACE, Source, Steps

Sink: TypeAlias = Callable[[str], None]

# Characters that decide nothing, outside and inside of strings.
_PLAIN = re.compile(r"[\w\s:,.+-]+")
_IN_STRING = re.compile(r'[^"\\]+')
_SCALAR_ENDS = frozenset(SPACE + ",:;{}[]()\"'")


def pass_value(source: Source, sink: Sink, ends: Collection[str] = ()) -> Steps[bool]:
    """Pass one JSON value on as it comes; whether it was complete.

    Outside of strings the value is also over where one of `ends` comes; that is not read.
    """
    c = yield from source.peek()
    if c == '"':
        return (yield from _pass_string(source, sink))
    if c in ("{", "["):
        return (yield from _pass_nested(source, sink, ends))
    return (yield from _pass_scalar(source, sink, ends))


def read_string(source: Source) -> Steps[str | None]:
    """The text of the JSON string that comes next; None if it does not end."""
    pieces: list[str] = []
    if (yield from _pass_string(source, pieces.append)):
        return decode_string("".join(pieces))
    return None


def decode_string(raw: str) -> str:
    """The text of a JSON string; where an escape is wrong, as it is written."""
    try:
        return whole_characters(str(json.loads(raw, strict=False)))
    except ValueError:
        return raw[1:-1]


def whole_characters(text: str) -> str:
    """The same with escaped UTF-16 pairs joined and lone halves replaced: it can be encoded."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode(value: Any) -> str:
    """JSON text of a value."""
    return whole_characters(json.dumps(value, ensure_ascii=False))


def pass_arguments(source: Source, sink: Sink, ends: Collection[str] = ()) -> Steps[bool]:
    """Pass the arguments of a call on; whether they were complete.

    Some models write the object as a string of JSON, or null for none: what comes out is
    the object in both cases.
    """
    yield from source.skip_space()
    if (yield from source.peek()) in ("{", "["):
        return (yield from pass_value(source, sink, ends))
    pieces: list[str] = []
    is_complete = yield from pass_value(source, pieces.append, ends)
    raw = "".join(pieces)
    if is_complete and raw.startswith('"'):
        inner = decode_string(raw).strip()
        raw = inner if inner.startswith("{") else raw
    sink("{}" if is_complete and raw in ("null", '""') else raw)
    return is_complete


def _pass_string(source: Source, sink: Sink) -> Steps[bool]:
    sink(source.take())
    while True:
        sink(source.take_run(_IN_STRING))
        c = yield from source.peek()
        if not c:
            return False
        sink(source.take())
        if c == '"':
            return True
        if c == "\\":
            if not (yield from source.peek()):
                return False
            sink(source.take())


def _pass_nested(source: Source, sink: Sink, ends: Collection[str]) -> Steps[bool]:
    depth = 0
    while True:
        sink(source.take_run(_PLAIN))
        c = yield from source.peek()
        if not c or (c not in '"{}[]' and (yield from source.next_of(ends))):
            return False
        if c == '"':
            if not (yield from _pass_string(source, sink)):
                return False
            continue
        sink(source.take())
        depth += (c in "{[") - (c in "}]")
        if depth == 0:
            return True


def _pass_scalar(source: Source, sink: Sink, ends: Collection[str]) -> Steps[bool]:
    """A number or a word; nothing at all is not complete."""
    n_read = 0
    while (c := (yield from source.peek())) and c not in _SCALAR_ENDS:
        if (yield from source.next_of(ends)):
            break
        sink(source.take())
        n_read += 1
    return n_read > 0 and c != ""
