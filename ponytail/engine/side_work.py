"""Texts that are read beside the choices that run: for their vectors, or for a rank.

Owns the queue of such work and how much of it one step takes: no more than keeps the step
within its time while somebody waits for tokens.  Must not know llama.cpp, nor what the vectors
are for.  `submit` and `close` are safe from any thread; the rest is the engine thread's.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Protocol, TypeAlias

from ponytail.engine.stats import Counters
from ponytail.errors import EngineFailed, Overloaded, PonytailError, ShuttingDown

_log = logging.getLogger("ponytail.engine")

Part: TypeAlias = tuple[Sequence[int], int, int]
"""(tokens of a text, the first and the last but one of those that are read now)."""

Vector: TypeAlias = "array[float]"

# Of a step's time while others run: they come first.
_SHARE = 0.5
_N_FIRST = 64
_SMOOTHING = 0.3


class Reader(Protocol):
    """Makes vectors of texts; `ponytail.llama.embedder.Embedder` fits it."""

    n_batch: int
    n_texts: int
    can_split: bool

    def read(self, parts: Sequence[Part]) -> list[Vector | Exception | None]:
        """A vector for each part that ends its text, an exception where none came out.

        A part that is not a whole text comes alone; it begins, or goes on where the last such
        call ended, whatever whole texts were read in between.
        """
        ...


class Work:
    """One request: its texts in tokens, none empty.  `future` gets a vector for each, in order."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.future: Future[list[Vector]] = Future()
        self.texts = texts
        self.vectors: list[Vector | None] = [None] * len(texts)
        self.n_left = len(texts)
        self.n_tokens = sum(map(len, texts))
        self.n_begun = 0
        self.has_long = False

    @property
    def is_over(self) -> bool:
        """Cancelled, failed or done."""
        return self.future.done()

    def fail(self, error: Exception) -> None:
        """What is asked for does not come; no effect on work that is over."""
        # It may be cancelled at this very moment.
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def put(self, index: int, vector: Vector) -> None:
        """The vector of one text; the last one completes the work."""
        self.vectors[index] = vector
        self.n_left -= 1
        if self.n_left == 0:
            with suppress(InvalidStateError):
                self.future.set_result([one for one in self.vectors if one is not None])


class _Text:
    """One text of a request, and how far it was read."""

    __slots__ = ("index", "n_read", "tokens", "work")

    def __init__(self, work: Work) -> None:
        """The next text of this work."""
        self.work = work
        self.index = work.n_begun
        self.tokens = work.texts[self.index]
        self.n_read = 0
        work.n_begun += 1


class SideWork:
    """Runs work on a reader, the texts of all requests by turns.

    `max_requests` at most may be here; without a reader none comes.
    """

    def __init__(
        self,
        reader: Reader | None,
        counters: Counters,
        step_s: float,
        max_requests: int,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._counters = counters
        self._step_s = step_s
        self._max_requests = max_requests
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._works: deque[Work] = deque()
        self._n_open = 0
        # A text that found no more room in a call, and those that are read in parts.
        self._kept: _Text | None = None
        self._longs: deque[_Text] = deque()
        self._is_longs_turn = False
        self._is_closed = False
        self._tokens_per_s = 0.0

    def submit(self, work: Work) -> None:
        """Raises Overloaded or ShuttingDown."""
        with self._lock:
            if self._is_closed:
                raise ShuttingDown("the server is shutting down and takes no new requests")
            if self._n_open >= self._max_requests:
                raise Overloaded(
                    f"the queue is full: {self._n_open} requests for embeddings are here "
                    "(--max-queue); try again later",
                    retry_after_s=1.0,
                )
            self._n_open += 1
            self._works.append(work)
        work.future.add_done_callback(self._count_down)
        self._wake()

    def _count_down(self, _: object) -> None:
        with self._lock:
            self._n_open -= 1

    @property
    def is_empty(self) -> bool:
        return not (self._works or self._longs or self._kept)

    def close(self) -> None:
        """Take no more; what is here goes on until `fail_all`."""
        with self._lock:
            self._is_closed = True

    def fail_all(self, error: Exception) -> None:
        """End what is here."""
        texts = [*self._longs, *([self._kept] if self._kept else [])]
        self._longs.clear()
        self._kept = None
        with self._lock:
            works = [*self._works, *(text.work for text in texts)]
            self._works.clear()
        for work in works:
            work.fail(error)

    def run(self, *, is_busy: bool) -> None:
        """One call of the reader, if there is something to read; `is_busy`: choices run too."""
        reader = self._reader
        if reader is None or self.is_empty:
            return
        texts = self._next(reader, self._room(reader, is_busy=is_busy))
        if not texts:
            return
        parts = [(text.tokens, text.n_read, end) for text, end in texts]
        started = self._clock()
        try:
            vectors = reader.read(parts)
        except Exception as error:
            self._break(texts, error)
            return
        n_tokens = sum(end - start for _, start, end in parts)
        self._learn(n_tokens, self._clock() - started)
        for (text, end), vector in zip(texts, vectors, strict=True):
            text.n_read = end
            if isinstance(vector, Exception):
                text.work.fail(vector)
            elif vector is not None:
                text.work.put(text.index, vector)

    def _room(self, reader: Reader, *, is_busy: bool) -> int:
        """Tokens that may be read now."""
        if not is_busy:
            return reader.n_batch
        if not self._tokens_per_s:
            return min(_N_FIRST, reader.n_batch)
        n = int(self._tokens_per_s * self._step_s * _SHARE)
        return max(1, min(n, reader.n_batch))

    def _next(self, reader: Reader, n_room: int) -> list[tuple[_Text, int]]:
        """(text, where to stop): whole ones, or by turns a part of a long one."""
        whole = [] if self._is_longs_turn else self._whole(reader, n_room)
        if whole:
            self._is_longs_turn = bool(self._longs)
            return whole
        self._is_longs_turn = False
        while self._longs:
            text = self._longs[0]
            end = min(text.n_read + n_room, len(text.tokens))
            if end == len(text.tokens) or text.work.is_over:
                self._longs.popleft()
                text.work.has_long = False
            if not text.work.is_over:
                return [(text, end)]
        return self._whole(reader, n_room)

    def _whole(self, reader: Reader, n_room: int) -> list[tuple[_Text, int]]:
        """Whole texts that fit together; long ones are put aside on the way."""
        found: list[tuple[_Text, int]] = []
        while len(found) < reader.n_texts:
            text, self._kept = self._kept or self._take(), None
            if text is None:
                break
            n = len(text.tokens)
            if text.work.is_over:
                continue
            if n > n_room and found:
                self._kept = text  # the next call's first
                break
            if n > n_room and reader.can_split:
                text.work.has_long = True
                self._longs.append(text)
                continue
            # A text that cannot be parted is read whole, however long that takes.
            found.append((text, n))
            n_room -= n
        return found

    def _take(self) -> _Text | None:
        """The next text, of another request than the last where there are several.

        None too where all requests have a long text under way: they go on after it.
        """
        with self._lock:
            for _ in range(len(self._works)):
                work = self._works.popleft()
                if work.is_over:
                    continue
                if work.has_long:
                    self._works.append(work)
                    continue
                text = _Text(work)
                if work.n_begun < len(work.texts):
                    self._works.append(work)
                return text
        return None

    def _break(self, texts: list[tuple[_Text, int]], error: Exception) -> None:
        """A call that failed ends the requests it was for; the others go on."""
        if not isinstance(error, PonytailError):
            _log.error("reading texts failed", exc_info=error)
            error = EngineFailed("the engine could not go on with this request")
        for text, _ in texts:
            text.work.fail(error)

    def _learn(self, n_tokens: int, seconds: float) -> None:
        self._counters.n_embedded += n_tokens
        if seconds <= 0:
            return
        rate = n_tokens / seconds
        known = self._tokens_per_s or rate
        self._tokens_per_s = known + _SMOOTHING * (rate - known)
