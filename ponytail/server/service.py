"""The model's life as the server sees it: loading, ready, failed, closing.

Owns the state and the load thread, and defines the protocols the HTTP layer
needs of the engine (`Generator`, `EventStream`).  Must not know HTTP, JSON, the
HTTP stack (it is imported while the model already loads) or llama.cpp.  State
is replaced under a lock by the load thread and the main thread; any thread may
read it.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, assert_never

from ponytail.api.llamacpp_state import PropsFacts, SlotFacts
from ponytail.errors import EngineFailed, ModelLoading, ShuttingDown, StartError
from ponytail.types import (
    ChatPrompt,
    EmbedRequest,
    Event,
    GenerateRequest,
    RankRequest,
    Sampling,
    Truncation,
)

log = logging.getLogger("ponytail.server")


class Load(Protocol):
    """How busy the engine is."""

    @property
    def n_running(self) -> int: ...

    @property
    def n_queued(self) -> int: ...


class EventStream(Protocol):
    """The events of one request, all its choices; `cancel` is idempotent and never blocks."""

    @property
    def done(self) -> bool: ...

    @property
    def truncation(self) -> Truncation | None: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    async def receive(self, timeout_s: float | None = None) -> list[tuple[int, Event]]: ...

    def cancel(self) -> None: ...


class Generator(Protocol):
    """What answers requests; `ponytail.llm.LLM` fits it."""

    @property
    def name(self) -> str: ...

    @property
    def created(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def defaults(self) -> Sampling: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...

    def info(self) -> dict[str, Any]: ...

    def gauges(self) -> Load: ...

    def counters(self) -> dict[str, Any]: ...

    def cache(self) -> dict[str, Any]: ...

    def props(self) -> PropsFacts: ...

    def slots(self) -> list[SlotFacts]: ...

    async def open(self, request: GenerateRequest) -> EventStream: ...

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    async def pieces(self, ids: Sequence[int]) -> list[bytes]: ...

    def embeddings(
        self, request: EmbedRequest
    ) -> Coroutine[Any, Any, tuple[list[array[float]], int]]: ...

    def ranks(self, request: RankRequest) -> Coroutine[Any, Any, tuple[list[float], int]]: ...

    async def apply_template(self, prompt: ChatPrompt) -> str: ...

    def close(self, grace_s: float) -> None: ...


OnProgress: TypeAlias = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Loading:
    """`progress` runs from 0 to 1."""

    progress: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Requests are answered."""

    llm: Generator


@dataclass(frozen=True, slots=True)
class Broken:
    """The load failed; the process is about to end."""

    error: StartError


@dataclass(frozen=True, slots=True)
class Closing:
    """No new work; `llm` is None when the load had not ended."""

    llm: Generator | None


State: TypeAlias = Loading | Ready | Broken | Closing


@dataclass(frozen=True, slots=True)
class About:
    """What is known of the model before it is loaded.

    `n_ctx` is the window of the model's header or of the settings, whichever is smaller;
    memory may yet allow less.  `created` is the file's time, unix seconds.
    """

    name: str
    n_ctx: int
    created: int


class Service:
    """One model from its load to its end.

    `load(on_progress)` blocks and returns the generator; `start` runs it in a
    thread.  `on_progress`, `on_ready` and `on_failure` are called in that thread.
    """

    def __init__(
        self,
        about: About,
        load: Callable[[OnProgress], Generator],
        *,
        on_progress: OnProgress = lambda progress: None,
        on_ready: Callable[[Generator], None] = lambda llm: None,
        on_failure: Callable[[StartError], None] = lambda error: None,
    ) -> None:
        self.about = about
        self.state: State = Loading(0.0)
        self._load = load
        self._on_progress = on_progress
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._lock = threading.Lock()
        # A daemon: a load that outlives the server must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="model-load", daemon=True)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._thread.start()

    @property
    def is_load_running(self) -> bool:
        """Whether the load thread still works."""
        return self._thread.is_alive()

    def generator(self) -> Generator:
        """The loaded model; raises ModelLoading, ShuttingDown or EngineFailed."""
        match self.state:
            case Ready(llm):
                return llm
            case Loading(progress):
                message = f"The model is loading ({progress:.0%}); try again in a moment."
                raise ModelLoading(message, retry_after_s=1)
            case Closing():
                raise ShuttingDown("The server is shutting down.")
            case Broken():
                raise EngineFailed("The model could not be loaded.")
            case _ as never:
                assert_never(never)

    def loaded(self) -> Generator | None:
        """The model if it has been loaded, also while closing."""
        match self.state:
            case Ready(llm):
                return llm
            case Closing(llm):
                return llm
            case _:
                return None

    def begin_close(self) -> None:
        """Take no new requests from now on; those running go on."""
        with self._lock:
            match self.state:
                case Ready(llm):
                    self.state = Closing(llm)
                case Loading():
                    self.state = Closing(None)
                case Broken() | Closing():
                    pass

    def close(self, grace_s: float) -> None:
        """Blocking: let running requests finish for `grace_s` seconds, then fail them."""
        self.begin_close()
        if isinstance(self.state, Closing) and self.state.llm is not None:
            self.state.llm.close(grace_s)

    def _run(self) -> None:
        try:
            llm = self._load(self._progress)
        except StartError as error:
            self._fail(error)
        except Exception as error:
            log.debug("loading failed", exc_info=True)
            self._fail(StartError(f"cannot load the model: {type(error).__name__}: {error}"))
        else:
            self._finish(llm)

    def _progress(self, progress: float) -> None:
        with self._lock:
            if isinstance(self.state, Loading):
                self.state = Loading(progress)
        self._on_progress(progress)

    def _fail(self, error: StartError) -> None:
        with self._lock:
            if isinstance(self.state, Closing):
                return
            self.state = Broken(error)
        self._on_failure(error)

    def _finish(self, llm: Generator) -> None:
        with self._lock:
            is_wanted = isinstance(self.state, Loading)
            if is_wanted:
                self.state = Ready(llm)
        if is_wanted:
            self._on_ready(llm)
        else:
            llm.close(0.0)
