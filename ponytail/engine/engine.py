"""The engine: one thread that alone touches the backend.

Owns the inbox, the step and the delivery of events.  A step: drop what was
cancelled, admit, plan, decode, sample, deliver.  Must not know HTTP, JSON, asyncio
or llama.cpp.  Whatever stage breaks, every choice gets exactly one terminal event
and the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from queue import Empty, SimpleQueue

from ponytail.engine.backend import Backend, Row
from ponytail.engine.cost import StepCost
from ponytail.engine.kv import KV
from ponytail.engine.scheduler import FIRST_STEP_TOKENS, Chunk, Plan, plan
from ponytail.engine.sequence import Group, Job, Mail, Sequence, Sink, Ticket
from ponytail.engine.stats import Counters, Gauges
from ponytail.engine.threads import ThreadTuner
from ponytail.errors import (
    EngineFailed,
    Overloaded,
    PonytailError,
    RequestCancelled,
    SampleError,
    ShuttingDown,
)
from ponytail.types import Event, Failed, Finished, FinishReason, Started, Text

_log = logging.getLogger("ponytail.engine")
_CANCELLED = Failed(RequestCancelled("the request was cancelled"))


class Engine:
    """Runs jobs on a backend.  `submit` and `close` are safe from any thread.

    `step_s` bounds a step while a stream is running.  At most `max_queue` requests wait
    beyond those that run.  `eog_ids` end a choice.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        eog_ids: Seq[int] = (),
        step_s: float = 0.25,
        max_queue: int = 64,
        n_threads: int = 1,
        tunes_threads: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.kv = KV(backend)
        self.cost = StepCost(backend.tile)
        self.counters = Counters()
        self._eog = frozenset(eog_ids)
        self._step_s = step_s
        self._max_requests = backend.n_seq + max_queue
        self._n_threads = n_threads
        self._tuner = ThreadTuner(n_threads, is_fixed=not tunes_threads)
        self._clock = clock
        self._inbox: SimpleQueue[Group | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._n_requests = 0
        self._request_s = 0.0
        self._closing_at: float | None = None
        self._was_idle = True
        self._groups: list[Group] = []
        self._outbox: dict[int, tuple[Sink, Mail]] = {}
        self._thread: threading.Thread | None = None

    # -- from any thread -----------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread."""
        self._thread = threading.Thread(target=self._run, name="ponytail-engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Seq[Job]) -> None:
        """Queue the choices of one request.  Raises Overloaded or ShuttingDown at once."""
        group = Group(jobs, self._clock())
        with self._lock:
            if self._closing_at is not None:
                raise ShuttingDown("the server is shutting down and takes no new requests")
            if self._n_requests >= self._max_requests:
                raise self._overloaded()
            self._n_requests += 1
            for job in jobs:
                job.ticket.bind(self._wake)
            # Inside the lock: a closing engine must find it in the inbox or not at all.
            self._inbox.put(group)

    def _overloaded(self) -> Overloaded:
        n_waiting = self._n_requests - self.backend.n_seq
        wait_s = max(1.0, self._request_s * (n_waiting + 1) / self.backend.n_seq)
        return Overloaded(
            f"the queue is full: {self.backend.n_seq} requests run and {n_waiting} wait "
            "(--max-queue); try again later",
            retry_after_s=wait_s,
        )

    def _wake(self) -> None:
        self._inbox.put(None)

    def gauges(self) -> Gauges:
        """A consistent enough view for display; nothing is locked."""
        n_running = sum(1 for g in list(self._groups) if g.n_running)
        return Gauges(n_running, self._n_requests - n_running, self.kv.n_active, self.backend.n_seq)

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is in the inbox."""
        return not self._groups and self._inbox.empty()

    def close(self, grace_s: float = 0.0) -> None:
        """Refuse new work, give what is here grace_s seconds, fail the rest, end the thread."""
        with self._lock:
            if self._closing_at is None:
                self._closing_at = self._clock() + grace_s
            else:
                self._closing_at = min(self._closing_at, self._clock() + grace_s)
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # -- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_done():
            self.take_inbox(block=not self._groups)
            try:
                self.step()
            except Exception:
                _log.exception("a step broke; its requests are failed and the engine goes on")
                self._fail_all(EngineFailed("the engine broke while running this request"))
                self.kv.forget_idle()
            self.deliver()

    def _is_done(self) -> bool:
        if self._closing_at is None:
            return False
        if self._groups and self._clock() >= self._closing_at:
            self._fail_all(ShuttingDown("the server shut down before this request was finished"))
            self.deliver()
        with self._lock:
            return self.is_idle

    def take_inbox(self, *, block: bool) -> None:
        """Move submitted groups to the waiting list; wait for the first if there is no work."""
        try:
            group = self._inbox.get(block=block)
            while True:
                if group is not None:
                    self._groups.append(group)
                group = self._inbox.get(block=False)
        except Empty:
            pass

    def step(self) -> None:
        """One step over everything live; `deliver` then sends what is in the outbox."""
        started = self._clock()
        self._drop_cancelled()
        self._admit(started)
        live, n_batch = self.kv.live(), self.backend.n_batch
        if live:
            for sequence in live:
                if sequence.source is not None:
                    self._guarded(sequence, self.kv.resolve)
            self.kv.compact()
            n_prefill = min(FIRST_STEP_TOKENS, n_batch) if self._was_idle else n_batch
            self._run_plan(plan(self.kv.live(), n_prefill, self.cost, self._step_s))
            self.counters.n_steps += 1
        self._was_idle = not self._groups
        self.counters.step_s += self._clock() - started

    def _drop_cancelled(self) -> None:
        for group in self._groups[:]:
            for sequence in [s for s in group.waiting if s.job.ticket.is_cancelled]:
                group.waiting.remove(sequence)
                self._close_choice(sequence, _CANCELLED)
        for sequence in self.kv.live():
            if sequence.job.ticket.is_cancelled:
                self._end(sequence, _CANCELLED)

    def _admit(self, now: float) -> None:
        while self.kv.has_room:
            waiting = [g for g in self._groups if g.waiting]
            if not waiting:
                return
            # A request with many choices must not keep the others out.
            group = min(waiting, key=lambda g: g.n_running)
            sequence = group.waiting.pop()
            group.n_running += 1
            sequence.admitted_at = now
            self._guarded(sequence, self._open)

    def _open(self, sequence: Sequence) -> None:
        job = sequence.job
        sequence.sampler = self.backend.open_sampler(job.sampling, job.seed, job.prompt)
        self.kv.admit(sequence)

    def _guarded(self, sequence: Sequence, action: Callable[[Sequence], object]) -> None:
        """Run one sequence's part of a stage; what it raises ends that sequence only."""
        try:
            action(sequence)
        except Exception as error:
            self._fail(sequence, error)

    # -- computing -----------------------------------------------------------------------

    def _run_plan(self, steps: Plan) -> None:
        """Decoding rows first, then prefill, then solo sequences, one batch each.

        Decoding and prefill apart: in one batch libllama would cut the first token off
        every prompt chunk, which puts it on the slow path.
        """
        if steps.decoding:
            self._compute(steps.decoding)
        if steps.decoding and (steps.prefilling or steps.solo):
            # What is known must not wait for the prompts.
            self.deliver()
        if steps.prefilling:
            self._compute(steps.prefilling)
        if steps.solo:
            self.backend.set_threads(self._n_threads)
            for chunk in steps.solo:
                self._compute([chunk])
            self.backend.set_threads(self._tuner.n_threads)

    def _compute(self, chunks: Seq[Chunk]) -> None:
        """Decode and sample the chunks; on failure find the culprit and go on without it."""
        rows, asking = self._rows(chunks)
        started = self._clock()
        try:
            self.backend.decode(rows)
            samplers = [s.sampler for s in asking if s.sampler is not None]
            picks = self.backend.sample(samplers) if samplers else []
        except Exception as error:
            self._isolate(chunks, error)
            return
        now = self._clock()
        self.counters.backend_s += now - started
        self._learn(chunks, now - started)
        for sequence, n in chunks:
            sequence.n_computed += n
        for sequence, pick in zip(asking, picks, strict=True):
            # As _guarded, written out: a call for every token costs a sixth of the engine's time.
            try:
                self._accept(sequence, pick, now)
            except Exception as error:
                self._fail(sequence, error)

    def _rows(self, chunks: Seq[Chunk]) -> tuple[list[Row], list[Sequence]]:
        """The batch, and the sequences whose last token's logits it asks for."""
        rows: list[Row] = []
        asking: list[Sequence] = []
        for sequence, n in chunks:
            at = sequence.n_computed
            tokens = sequence.tokens[at : at + n]
            is_last = at + n == len(sequence.tokens)
            if is_last:
                asking.append(sequence)
            rows.append((self.kv.seq_id(sequence), at, tokens, is_last))
        return rows, asking

    def _isolate(self, chunks: Seq[Chunk], error: Exception) -> None:
        """Undo a failed batch and run its halves; a chunk that fails alone is the culprit."""
        self.counters.n_decode_failures += 1
        for sequence, _ in chunks:
            self._guarded(sequence, self.kv.cut_back)
        alive = [(s, min(n, s.n_todo)) for s, n in chunks if not s.is_ended]
        if len(chunks) == 1:
            for sequence, _ in alive:
                self._fail(sequence, error)
            return
        middle = (len(alive) + 1) // 2
        for half in (alive[:middle], alive[middle:]):
            if half:
                self._compute(half)

    def _learn(self, chunks: Seq[Chunk], seconds: float) -> None:
        first = chunks[0][0]
        if first.is_decoding:
            self.cost.observe_decode(len(chunks), seconds)
            if len(chunks) == 1 and not first.job.is_solo and not self._tuner.is_settled:
                self._tuner.observe(seconds)
                self.backend.set_threads(self._tuner.n_threads)
            return
        n_tokens = sum(n for _, n in chunks)
        self.counters.n_prompt_computed += n_tokens
        context = sum((s.n_computed + n / 2) * n for s, n in chunks) / n_tokens
        is_tiled = all(n >= self.cost.tile for _, n in chunks)
        self.cost.observe_prefill(n_tokens, context, seconds, is_tiled=is_tiled)

    def _accept(self, sequence: Sequence, pick: int | SampleError, now: float) -> None:
        """One new token of one choice: its text, its end, or its place in the next step."""
        if isinstance(pick, SampleError):
            raise pick
        if sequence.n_generated == 0:
            self._begin(sequence, now)
        sequence.n_generated += 1
        self.counters.n_generated += 1
        if pick in self._eog:
            self._finish(sequence, "stop", now)
            return
        job = sequence.job
        text = job.output.feed(pick)
        if text:
            self._post(job.ticket, Text(text))
        if job.output.stop is not None:
            self._finish(sequence, "stop", now)
        elif sequence.n_generated >= job.n_max:
            self._finish(sequence, "length", now)
        else:
            sequence.tokens.append(pick)

    def _begin(self, sequence: Sequence, now: float) -> None:
        sequence.first_at = now
        self.counters.n_prompt_cached += sequence.n_cached
        self._post(sequence.job.ticket, Started(sequence.n_prompt, sequence.n_cached))
        if sequence.job.prefix:
            self._post(sequence.job.ticket, Text(sequence.job.prefix))

    # -- ending --------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        output = sequence.job.output
        tail = output.flush()
        if tail:
            self._post(sequence.job.ticket, Text(tail))
        if output.stop is not None:
            reason = "stop"
        finished = Finished(reason, sequence.usage(), sequence.timings(now), output.stop)
        self._end(sequence, finished)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        if not isinstance(error, PonytailError):
            _log.error("a request failed", exc_info=error)
            error = EngineFailed("the engine could not go on with this request")
        if not sequence.is_ended:
            self._end(sequence, Failed(error))

    def _end(self, sequence: Sequence, event: Finished | Failed) -> None:
        """Give back the slot and the sampler, then say so."""
        sequence.group.n_running -= 1
        if self.kv.holds(sequence):
            self.kv.release(sequence, self._clock())
        if sequence.sampler is not None:
            sequence.sampler.close()
            sequence.sampler = None
        self._close_choice(sequence, event)

    def _close_choice(self, sequence: Sequence, event: Finished | Failed) -> None:
        sequence.is_ended = True
        self._post(sequence.job.ticket, event)
        group = sequence.group
        group.n_open -= 1
        if group.n_open == 0:
            self._groups.remove(group)
            spent = self._clock() - sequence.admitted_at
            with self._lock:
                self._n_requests -= 1
                self._request_s += 0.2 * (spent - self._request_s)

    def _fail_all(self, error: PonytailError) -> None:
        self.take_inbox(block=False)
        for group in self._groups[:]:
            for sequence in group.waiting:
                self._close_choice(sequence, Failed(error))
            group.waiting.clear()
        for sequence in self.kv.live():
            self._end(sequence, Failed(error))

    # -- delivery ------------------------------------------------------------------------

    def _post(self, ticket: Ticket, event: Event) -> None:
        sink = ticket.sink
        entry = self._outbox.get(id(sink))
        if entry is None:
            entry = self._outbox[id(sink)] = (sink, [])
        entry[1].append((ticket, event))

    def deliver(self) -> None:
        """All events of a step, one call per sink."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for sink, mail in outbox.values():
            try:
                sink.deliver(mail)
            except Exception:
                _log.exception("a reader is gone; its requests are cancelled")
                for ticket, _ in mail:
                    ticket.cancel()
