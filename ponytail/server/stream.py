"""ASGI replies: one whole body, or a stream of events, and the watch for hang-ups.

Owns what goes over `send` for a request and the rule that work stops when the
client is gone: a framework cancels at best a streaming handler, so every wait
here runs beside a watch on `receive`.  Must not know any dialect's JSON.  Runs
in the event loop; the code per chunk makes no tasks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from starlette.types import Receive, Send

from ponytail.api.dialect import Encoder
from ponytail.errors import EngineFailed, PonytailError
from ponytail.server.service import EventStream
from ponytail.types import Event, Failed

log = logging.getLogger("ponytail.server")

T = TypeVar("T")
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

NO_BUFFERING: Headers = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class ClientGone(Exception):
    """The client hung up: nobody is left to answer."""


class _ChoiceFailed(Exception):
    """A choice ended in `Failed`; `sendable` came before it in the same batch."""

    def __init__(self, error: PonytailError, sendable: bytes) -> None:
        self.error = error
        self.sendable = sendable


async def until_hang_up(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; when the client hangs up first, cancel it and raise ClientGone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            # The work's own clean-up (the cancel of its stream) must have run before we return.
            await asyncio.wait((task,))


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(
    send: Send, status: int, body: bytes, media_type: str, headers: Headers = ()
) -> None:
    """Send one complete reply."""
    all_headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await _send_part(send, body, is_last=True)


async def send_error(
    send: Send,
    error: PonytailError,
    encode: Callable[[PonytailError], bytes],
    headers: Headers = (),
) -> None:
    """Send `error` with its status, in the shape `encode` gives it."""
    extra = list(headers)
    if error.retry_after_s is not None:
        # Whole seconds (RFC 9110); never 0, which clients read as "at once".
        extra.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    await send_whole(send, error.status, encode(error), "application/json", extra)


async def collect(stream: EventStream, encoder: Encoder) -> bytes:
    """The whole reply; raises the error of the first choice that failed."""
    parts = []
    while not stream.done:
        try:
            parts.append(_encode(encoder, await stream.receive()))
        except _ChoiceFailed as failure:
            raise failure.error from None
    parts.append(encoder.finish())
    return b"".join(parts)


async def send_stream(
    send: Send, stream: EventStream, encoder: Encoder, keep_alive_s: float
) -> None:
    """Send the headers now and the events as they come; an error becomes the last event.

    `keep_alive_s` is the longest silence before the encoder's keep-alive bytes
    are sent; 0 never sends them.
    """
    media_type = encoder.media_type
    if media_type.startswith("text/"):
        # Without it some clients read text as Latin-1.
        media_type += "; charset=utf-8"
    headers = [(b"content-type", media_type.encode()), *NO_BUFFERING]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        await _pump(send, stream, encoder, keep_alive_s)
    except _ChoiceFailed as failure:
        last = failure.sendable + encoder.fail(failure.error)
    except OSError as error:
        raise ClientGone from error
    except Exception:
        log.exception("a stream broke")
        last = encoder.fail(EngineFailed("The server failed while it answered this request."))
    else:
        return
    await _send_part(send, last, is_last=True)


async def _pump(send: Send, stream: EventStream, encoder: Encoder, keep_alive_s: float) -> None:
    clock = asyncio.get_running_loop().time
    silence_s = keep_alive_s if keep_alive_s > 0 and encoder.keep_alive else math.inf
    sent_at = clock()
    is_last = False
    while not is_last:
        # Events may come and yet give no bytes (text held back for a stop string), so the
        # silence is measured from the last send, not from the last event.
        wait_s = None if silence_s == math.inf else max(0.0, sent_at + silence_s - clock())
        chunk = _encode(encoder, await stream.receive(wait_s))
        is_last = stream.done
        if is_last:
            chunk += encoder.finish()
        elif not chunk and clock() - sent_at >= silence_s:
            chunk = encoder.keep_alive
        if chunk or is_last:
            await _send_part(send, chunk, is_last=is_last)
            sent_at = clock()


def _encode(encoder: Encoder, events: list[tuple[int, Event]]) -> bytes:
    parts: list[bytes] = []
    for index, event in events:
        if isinstance(event, Failed):
            raise _ChoiceFailed(event.error, b"".join(parts))
        parts.append(encoder.feed(index, event))
    return b"".join(parts)


async def _send_part(send: Send, body: bytes, *, is_last: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})
