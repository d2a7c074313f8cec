"""A request's body: its size, its media type, its JSON.

Owns the limits and the words of the refusals.  Must not know what the JSON means.
Runs in the event loop; large bodies are decoded and parsed in a worker thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive

from ponytail.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from ponytail.server.stream import ClientGone

T = TypeVar("T")

MAX_BODY_BYTES = 32 << 20
LARGE_BODY_BYTES = 256 << 10


async def parse_body(body: bytes, parse: Callable[[dict[str, Any]], T]) -> T:
    """What `parse` makes of the JSON object in `body`; raises a RequestError.

    A large body goes to a thread, so that the checks of a hundred thousand messages
    or token ids do not hold up the streams of others.
    """
    if len(body) > LARGE_BODY_BYTES:
        return await asyncio.to_thread(_parse, body, parse)
    return _parse(body, parse)


def _parse(body: bytes, parse: Callable[[dict[str, Any]], T]) -> T:
    try:
        return parse(decode_object(body))
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The whole body, `limit` bytes at most.

    Raises UnsupportedMediaType, PayloadTooLarge (from the declared length before
    anything is read) or ClientGone.
    """
    _check_media_type(headers)
    _check_declared_length(headers, limit)
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; raises InvalidRequest that says where it breaks.

    RecursionError passes through.
    """
    if not body.strip():
        raise InvalidRequest("The body is empty; send a JSON object.")
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {_place(error, body)}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {_KINDS[type(value)]}.")
    return value


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _place(error: msgspec.DecodeError, body: bytes) -> str:
    message = str(error).removeprefix("JSON is malformed: ")
    if "truncated" in message:
        return f"it ends too early, at byte {len(body)}"
    if "UTF-8" in message:
        try:
            body.decode()
        except UnicodeDecodeError as wrong:
            return f"invalid UTF-8 (byte {wrong.start})"
    return message


def _check_media_type(headers: Mapping[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"Content-Encoding {encoding!r} is not supported.")
    declared = headers.get(b"content-type")
    if declared is None and b"origin" not in headers:
        return
    # A web page may post any other type, or none, to any site without asking the site first
    # (a "simple" request): JSON alone makes the browser ask, and server.security then answers.
    kind = (declared or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType(
            f"Content-Type must be application/json, not {kind or 'absent'}; "
            "with curl add -H 'Content-Type: application/json'."
        )


def _check_declared_length(headers: Mapping[bytes, bytes], limit: int) -> None:
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {limit} bytes, the most this server takes.")
