"""A small HTTP/1.1 client over raw asyncio sockets, for measuring a server on the same machine.

Owns one exchange per connection: bytes out, bytes in with their arrival times.  While an
exchange runs it only stores what arrives; headers, chunks, events and JSON are taken apart
after the end, because the client shares its cores with the server under test.
Must not know what a workload is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"
LAST_CHUNK = b"0\r\n\r\n"
Packet = tuple[float, bytes]


class RequestFailed(Exception):
    """The server refused, hung up or sent something that is no HTTP answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One plain response; times are seconds on the `time.perf_counter` clock."""

    status: int
    body: bytes
    sent_at: float
    ended_at: float

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed completion: the arrival of every delta with text in it, and the counts."""

    sent_at: float
    ended_at: float
    delta_at: tuple[float, ...]
    text: str
    finish_reason: str | None
    n_prompt: int
    n_cached: int
    n_completion: int

    @property
    def ttft_s(self) -> float:
        return self.delta_at[0] - self.sent_at


class _Exchange(asyncio.Protocol):
    """Sends one request and collects packets until the response is complete."""

    def __init__(self, request: bytes, on_packet: Callable[[], None] | None) -> None:
        self.packets: list[Packet] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent_at = 0.0
        self._request = request
        self._on_packet = on_packet
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.sent_at = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.packets.append((time.perf_counter(), data))
        self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
        if self._on_packet is not None:
            self._on_packet()
        # Servers are asked to close; the last chunk spares the wait for one that lingers.
        if self._tail == LAST_CHUNK and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is not None and not self.packets:
            self.done.set_exception(RequestFailed(f"connection lost: {exc}"))
        else:
            self.done.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def request(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
    """One plain exchange; any status is returned, a broken connection raises RequestFailed."""
    exchange = await _exchange(port, method, path, body, None)
    status, packets = _take_apart(exchange.packets)
    ended_at = exchange.packets[-1][0]
    return Answer(status, b"".join(data for _, data in packets), exchange.sent_at, ended_at)


async def post(port: int, path: str, body: dict[str, Any]) -> Answer:
    """Like `request`, but a status other than 200 raises RequestFailed."""
    answer = await request(port, "POST", path, body)
    if answer.status != 200:
        raise RequestFailed(f"{path}: status {answer.status}: {answer.body[:300]!r}")
    return answer


async def stream(
    port: int, path: str, body: dict[str, Any], on_packet: Callable[[], None] | None = None
) -> Stream:
    """One streamed completion, read to its end.  `on_packet` runs at each arrival."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    exchange = await _exchange(port, "POST", path, body, on_packet)
    status, packets = _take_apart(exchange.packets)
    if status != 200:
        text = b"".join(data for _, data in packets)
        raise RequestFailed(f"{path}: status {status}: {text[:300]!r}")
    return _read_events(exchange.sent_at, packets)


async def _exchange(
    port: int,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    on_packet: Callable[[], None] | None,
) -> _Exchange:
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    try:
        _, exchange = await loop.create_connection(
            lambda: _Exchange(head.encode() + payload, on_packet), HOST, port
        )
    except OSError as error:
        raise RequestFailed(f"cannot connect: {error}") from error
    try:
        await exchange.done
    finally:
        exchange.close()
    return exchange


def _take_apart(packets: list[Packet]) -> tuple[int, list[Packet]]:
    """Status and the body's packets, chunk framing removed, each with its arrival time."""
    head = b""
    for index, (at, data) in enumerate(packets):
        head += data
        end = head.find(b"\r\n\r\n")
        if end >= 0:
            body = [(at, head[end + 4 :]), *packets[index + 1 :]]
            lines = head[:end].decode("latin-1").lower().split("\r\n")
            is_chunked = any(
                line.startswith("transfer-encoding:") and "chunked" in line for line in lines
            )
            return int(lines[0].split()[1]), _dechunk(body) if is_chunked else body
    raise RequestFailed(f"no complete HTTP response: {head[:200]!r}")


def _dechunk(packets: list[Packet]) -> list[Packet]:
    result: list[Packet] = []
    pending, n_left = b"", 0
    for at, data in packets:
        pending += data
        out = b""
        while pending:
            if n_left == 0:
                line, found, rest = pending.lstrip(b"\r\n").partition(b"\r\n")
                if not found:
                    break
                n_left, pending = int(line.split(b";")[0], 16), rest
                if n_left == 0:
                    break
            taken, pending = pending[:n_left], pending[n_left:]
            out += taken
            n_left -= len(taken)
        result.append((at, out))
    return result


def _read_events(sent_at: float, packets: list[Packet]) -> Stream:
    delta_at: list[float] = []
    pieces: list[str] = []
    finish_reason: str | None = None
    usage: dict[str, Any] = {}
    pending = b""
    for at, data in packets:
        *events, pending = (pending + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if not event.startswith(b"data:") or event.endswith(b"[DONE]"):
                continue
            value = json.loads(event[5:])
            if "error" in value:
                raise RequestFailed(f"error in the stream: {value['error']}")
            usage = value.get("usage") or usage
            for choice in value.get("choices", ()):
                finish_reason = choice.get("finish_reason") or finish_reason
                if piece := choice.get("text") or choice.get("delta", {}).get("content"):
                    pieces.append(piece)
                    delta_at.append(at)
    if not delta_at:
        raise RequestFailed("the stream ended without any text")
    return Stream(
        sent_at=sent_at,
        ended_at=packets[-1][0],
        delta_at=tuple(delta_at),
        text="".join(pieces),
        finish_reason=finish_reason,
        n_prompt=usage.get("prompt_tokens", 0),
        n_cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        n_completion=usage.get("completion_tokens", 0),
    )
