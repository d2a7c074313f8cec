"""A generator whose every move the test makes, and a real server around it.

`FakeLLM` fits `server.service.Generator`.  A test takes each opened stream with
`next_stream()`, then says, finishes or fails it from its own thread.  Run with
`python -m` it serves, so that tests can send real signals to a real process.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from ponytail.api.llamacpp_state import PropsFacts, SlotFacts
from ponytail.config import Config
from ponytail.engine.kv import KV
from ponytail.engine.stats import Counters
from ponytail.errors import BadModelFile, InvalidRequest, PonytailError, ShuttingDown
from ponytail.types import (
    ChatPrompt,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Sampling,
    Started,
    Text,
    Timings,
    Usage,
)
from tests.fakes import FakeBackend

WAIT_S = 5.0  # no test waits this long unless it fails
N_VOCAB = 256
N_CTX = 512
DEFAULTS = Sampling(temperature=0.5)


class Gauges(msgspec.Struct, frozen=True):
    n_running: int
    n_queued: int


class FakeStream:
    """One request's events, pushed by the test's thread."""

    def __init__(self, llm: FakeLLM, request: GenerateRequest) -> None:
        self.request = request
        self.was_cancelled = threading.Event()
        self.was_read = threading.Event()
        self.ended = threading.Event()
        self.n_receives = 0
        self.truncation = None
        self.warnings: tuple[str, ...] = ()
        self._llm = llm
        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[list[tuple[int, Event]]] = asyncio.Queue()
        self._n_open = request.n * len(request.prompts)

    @property
    def done(self) -> bool:
        return self._n_open == 0

    async def receive(self, timeout_s: float | None = None) -> list[tuple[int, Event]]:
        self.was_read.set()
        self.n_receives += 1
        try:
            # Not wait_for: before Python 3.12 it loses a cancel that comes with the batch.
            async with asyncio.timeout(timeout_s):
                batch = await self._batches.get()
        except TimeoutError:
            return []
        self._n_open -= sum(isinstance(event, Finished | Failed) for _, event in batch)
        if self.done:
            self.ended.set()
        return batch

    def cancel(self) -> None:
        if not self.done:
            self.was_cancelled.set()
        self.ended.set()
        self._llm.live.discard(self)

    def push(self, *events: Event, index: int = 0) -> None:
        """Deliver `events` together; any thread."""
        batch = [(index, event) for event in events]
        self._loop.call_soon_threadsafe(self._batches.put_nowait, batch)

    def say(self, *texts: str) -> None:
        self.push(*(Text(text) for text in texts))

    def finish(self, index: int = 0) -> None:
        self.push(Finished("stop", Usage(3, 1, 2), Timings(0, 0, 0)), index=index)

    def fail(self, error: PonytailError) -> None:
        self.push(Failed(error))


@dataclass(eq=False)
class FakeLLM:
    """`answer` set: every request gets those texts at once.  `refusal` set: `open` raises it."""

    name: str = "org/tiny"
    created: int = 1_700_000_000
    fingerprint: str = "fp_1"
    n_ctx: int = N_CTX
    n_vocab: int = N_VOCAB
    defaults: Sampling = DEFAULTS
    answer: tuple[str, ...] | None = None
    refusal: Exception | None = None
    holds_open: bool = False
    closed: threading.Event = field(default_factory=threading.Event)
    open_was_entered: threading.Event = field(default_factory=threading.Event)
    open_was_cancelled: threading.Event = field(default_factory=threading.Event)
    streams: queue.Queue[FakeStream] = field(default_factory=queue.Queue)
    live: set[FakeStream] = field(default_factory=set)

    capabilities = ("completion", "chat")

    def info(self) -> dict[str, Any]:
        return {"ctx_size": self.n_ctx, "threads": 2, "startup": "tiny: 1 MB"}

    def gauges(self) -> Gauges:
        return Gauges(n_running=len(self.live), n_queued=0)

    def counters(self) -> dict[str, Any]:
        return msgspec.to_builtins(Counters())  # type: ignore[no-any-return]

    def props(self) -> PropsFacts:
        return PropsFacts(model=self.name, n_ctx=self.n_ctx, n_parallel=2)

    def slots(self) -> list[SlotFacts]:
        return [SlotFacts(10, 4, 0, 8)]

    def cache(self) -> dict[str, Any]:
        return KV(FakeBackend()).facts()

    async def open(self, request: GenerateRequest) -> FakeStream:
        self.open_was_entered.set()
        if self.refusal is not None:
            raise self.refusal
        if self.holds_open:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.open_was_cancelled.set()
                raise
        stream = FakeStream(self, request)
        self.live.add(stream)
        if self.answer is not None:
            stream.push(Started(3, 1), *(Text(text) for text in self.answer))
            stream.finish()
        self.streams.put(stream)
        return stream

    def next_stream(self) -> FakeStream:
        """The next stream a request opened."""
        return self.streams.get(timeout=WAIT_S)

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [1] * add_special + list(text.encode())

    async def detokenize(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    async def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return [bytes([token]) for token in ids]

    async def apply_template(self, prompt: ChatPrompt) -> str:
        return "".join(f"<{m.role}>{m.content}" for m in prompt.messages)

    def close(self, grace_s: float) -> None:
        for stream in tuple(self.live):
            if not stream.ended.wait(grace_s):
                stream.fail(ShuttingDown("The server is shutting down."))
        self.closed.set()


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as sock:
        yield sock


def refuse(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="messages")


def serve_as_program(mode: str, address: str) -> int:
    """`address` is a port or a socket path; says "started" once signals are handled."""
    from ponytail.server.run import serve

    if address.isdigit():
        sock = socket.create_server(("127.0.0.1", int(address)))
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address)
        sock.listen()

    def load(config: Config, header: object, on_progress: object) -> FakeLLM:
        match mode:
            case "bad":
                raise BadModelFile("tiny.gguf: the file is\ntruncated")
            case "bug":
                raise ZeroDivisionError("oops")
            case "loading":
                print("loading", flush=True)
                threading.Event().wait()
        return FakeLLM(answer=("Hi",) if mode == "answer" else None)

    return serve(Config(model=Path(__file__)), SimpleNamespace(n_ctx_train=64), sock, load)


if __name__ == "__main__":
    sys.exit(serve_as_program(*sys.argv[1:]))
