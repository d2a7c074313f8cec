"""The engine: one thread that alone touches the backend.

Owns the inbox and the step.  A step: drop what was cancelled, admit, find cells, plan,
decode, sample, deliver.  Must not know HTTP, JSON, asyncio or llama.cpp.
Whatever stage breaks, every choice gets exactly one terminal event
and the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from ponytail.engine.backend import Backend
from ponytail.engine.batches import Batches
from ponytail.engine.budget import Budget, Room
from ponytail.engine.chores import POLL_S, Chores
from ponytail.engine.intake import Intake
from ponytail.engine.kv import KV
from ponytail.engine.outbox import Outbox
from ponytail.engine.scheduler import FIRST_STEP_TOKENS, Plan, plan
from ponytail.engine.sequence import Group, Job, Sequence
from ponytail.engine.side_work import Reader, SideWork
from ponytail.engine.stats import Counters, Gauges, View
from ponytail.errors import (
    DeadlineExceeded,
    EngineFailed,
    PonytailError,
    RequestCancelled,
    ShuttingDown,
)
from ponytail.types import Failed, Finished, FinishReason

_log = logging.getLogger("ponytail.engine")
# How long a closing engine may go on to write its cache to disk.
_SAVE_S = 10.0
_CANCELLED = Failed(RequestCancelled("the request was cancelled"))
_OVERDUE = Failed(DeadlineExceeded("deadline_s passed before the first token"))


class Engine:
    """Runs jobs on a backend.  `submit` and `close` are safe from any thread.

    `step_s` bounds a step while a stream is running.  At most `n_parallel` sequences run at
    once, and `max_queue` requests wait beyond as many.  `eog_ids` end a choice.  With
    `n_ctx` a sequence that has filled it drops its oldest tokens and goes on.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        kv: KV | None = None,
        n_parallel: int | None = None,
        n_ctx: int | None = None,
        eog_ids: Seq[int] = (),
        step_s: float = 0.25,
        max_queue: int = 64,
        n_threads: int = 1,
        tunes_threads: bool = False,
        reader: Reader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.kv = KV(backend) if kv is None else kv
        self.counters = Counters()
        self._batches = Batches(
            self.kv,
            self.counters,
            n_threads=n_threads,
            tunes_threads=tunes_threads,
            clock=clock,
        )
        self.cost = self._batches.cost
        self._n_parallel = backend.n_seq if n_parallel is None else n_parallel
        self._budget = Budget(self.kv, self._n_parallel)
        self._intake = Intake(self._n_parallel, max_queue, clock)
        self._chores = Chores(self.kv)
        self._outbox = Outbox()
        self.kv.tiers.listen(self.wake)
        n_max = self._intake.max_requests
        self.side = SideWork(reader, self.counters, step_s, n_max, clock, self.wake)
        self._n_ctx = n_ctx
        self._eog = frozenset(eog_ids)
        self._step_s = step_s
        self._clock = clock
        self._was_idle = True
        self._is_stalled = False
        self._groups: list[Group] = []
        self._preempted: list[Sequence] = []
        self.view = View(self.kv.facts, clock)
        self._thread: threading.Thread | None = None

    # -- from any thread -----------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread."""
        self._thread = threading.Thread(target=self._run, name="ponytail-engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Seq[Job]) -> None:
        """Queue the choices of one request.  Raises Overloaded or ShuttingDown at once."""
        self._intake.submit(jobs)

    def wake(self) -> None:
        """Let the engine thread look around: something outside has changed."""
        self._intake.wake()

    def gauges(self) -> Gauges:
        """A consistent enough view for display; nothing is locked."""
        n_running = sum(1 for g in list(self._groups) if g.n_running)
        n_queued = self._intake.n_requests - n_running
        return Gauges(n_running, n_queued, self.kv.n_active, self._n_parallel)

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is in the inbox."""
        return not self._groups and self._intake.is_empty and self.side.is_empty

    def close(self, grace_s: float = 0.0) -> None:
        """Refuse new work, give what is here grace_s seconds, fail the rest, end the thread."""
        self.side.close()
        self._intake.close(grace_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # -- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        self.view.refresh(self.kv.live(), is_idle=not self._groups)
        while not self._is_done():
            self.take_inbox(self._wait_s())
            try:
                self.step()
            except Exception:
                _log.exception("a step broke; its requests are failed and the engine goes on")
                self._fail_all(EngineFailed("the engine broke while running this request"))
                self.kv.forget_idle()
            self.deliver()
            self.view.refresh(self.kv.live(), is_idle=not self._groups)
        self.kv.close(_SAVE_S)

    def _wait_s(self) -> float | None:
        """How long the inbox may be waited for: None is for ever."""
        if self._groups and self.side.is_empty:
            return POLL_S if self._is_stalled else 0.0
        return self._chores.wait_s(self._clock()) if self.side.is_empty else 0.0

    def _is_done(self) -> bool:
        if self._intake.is_overdue and (self._groups or not self.side.is_empty):
            self._fail_all(ShuttingDown("the server shut down before this request was finished"))
            self.deliver()
        return not self._groups and self.side.is_empty and self._intake.is_done()

    def take_inbox(self, wait_s: float | None) -> None:
        """Move submitted requests to the waiting list; wait so long for the first."""
        self._groups += self._intake.take(wait_s)

    def step(self) -> None:
        """One step over everything live; `deliver` then sends what is in the outbox."""
        started = self._clock()
        if self._groups or not self.side.is_empty:
            self._chores.stop()
            self.kv.elastic.poll()
        else:
            self._chores.run(started)
        self._drop_cancelled()
        self._drop_overdue(started)
        self._admit(started)
        live = self.kv.live()
        if live:
            for sequence in live:
                if sequence.waits_for is not None:
                    self._guarded(sequence, lambda s: self.kv.settle(s, started))
            self._shift()
            self.kv.compact()
            self._batches.run(self._plan(*self._find_room()), self)
            self.counters.n_steps += 1
        self._was_idle = not self._groups
        self.side.run(is_busy=bool(live))
        self.counters.step_s += self._clock() - started

    def _plan(self, live: Seq[Sequence], room: Room) -> Plan:
        n_prefill = self.backend.n_batch
        if self._was_idle:
            n_prefill = min(FIRST_STEP_TOKENS, n_prefill)
        n_others = sum(1 for s in live if s.is_decoding or s.job.is_solo)
        n_prefill = min(n_prefill, room.n_free - n_others)
        steps = plan(live, n_prefill, self.cost, self._step_s, room.n_limit)
        if len(steps.decoding) > room.n_free:
            # More cells are on their way; until then the oldest go on.
            steps.decoding.sort(key=lambda chunk: chunk[0].order)
            steps.decoding = sorted(
                steps.decoding[: room.n_free], key=lambda chunk: self.kv.seq_id(chunk[0])
            )
        self._is_stalled = not (steps.decoding or steps.prefilling or steps.solo)
        return steps

    def _find_room(self) -> tuple[list[Sequence], Room]:
        """Cells for a step; whoever is youngest gives way when there are none."""
        while True:
            live = self.kv.live()
            room = self._budget.room(live)
            if self.kv.elastic.is_resizing:
                return live, room
            if not room.is_short:
                self._fail_stuck([s for s in live if s.n_computed >= room.n_limit], room)
                return self.kv.live(), room
            if not self.give_way():
                self._fail_stuck(live, room)
                return self.kv.live(), room

    def _fail_stuck(self, live: Seq[Sequence], room: Room) -> None:
        """End what has filled its cells when there is no memory for more."""
        if self.kv.elastic.can_grow:
            return
        for sequence in live:
            if room.n_free <= 0 or sequence.n_computed >= room.n_limit:
                self.fail(sequence, EngineFailed("the machine has no memory for more KV cells"))

    def give_way(self) -> bool:
        """Take the cells of the youngest; False when there is but one."""
        youngest = self._budget.youngest(self.kv.live())
        if youngest is not None:
            self._preempt(youngest)
        return youngest is not None

    def _preempt(self, sequence: Sequence) -> None:
        _log.info(
            "KV cells ran out: a request of %d tokens gives way and comes back",
            len(sequence.tokens),
        )
        self._guarded(sequence, self.kv.preempt)
        if not sequence.is_ended:
            self._preempted.append(sequence)
            self._preempted.sort(key=lambda s: s.order)

    def _shift(self) -> None:
        """Where asked for, sequences that have filled their window drop their oldest tokens."""
        if self._n_ctx is None:
            return
        for sequence in self.kv.live():
            if sequence.is_decoding and len(sequence.tokens) > self._n_ctx:
                self._guarded(sequence, self._shift_one)

    def _shift_one(self, sequence: Sequence) -> None:
        assert self._n_ctx is not None
        n_keep = min(sequence.job.n_keep, self._n_ctx // 2)
        if not self.kv.shift(sequence, n_keep, (self._n_ctx - n_keep) // 2):
            self._finish(sequence, "length", self._clock())

    def _drop_cancelled(self) -> None:
        for group in self._groups[:]:
            for sequence in [s for s in group.waiting if s.job.ticket.is_cancelled]:
                group.waiting.remove(sequence)
                self._close_choice(sequence, _CANCELLED)
        for sequence in (*self.kv.live(), *self._preempted):
            if sequence.job.ticket.is_cancelled:
                self._end(sequence, _CANCELLED)

    def _drop_overdue(self, now: float) -> None:
        """End what has reached its deadline: with what there is, or as an error."""
        for group in self._groups[:]:
            if not group.is_overdue(now):
                continue
            for sequence in group.waiting:
                self._close_choice(sequence, _OVERDUE)
            group.waiting.clear()
            for sequence in (*self.kv.live(), *self._preempted):
                if sequence.group is not group:
                    continue
                if sequence.n_generated:
                    self._finish(sequence, "length", now)
                else:
                    self._end(sequence, _OVERDUE)

    def _admit(self, now: float) -> None:
        """Let in who was preempted, oldest first; then who waits, unless somebody still is."""
        while self._preempted and self._budget.can_admit(self._preempted[0]):
            self._guarded(self._preempted.pop(0), lambda s: self.kv.admit(s, now))
        while not self._preempted:
            waiting = [g for g in self._groups if g.waiting]
            if not waiting:
                return
            # A request with many choices must not keep the others out.
            group = min(waiting, key=lambda g: (g.rank(now), g.n_running))
            if not self._budget.can_admit(group.waiting[-1]):
                return
            sequence = group.waiting.pop()
            group.n_running += 1
            sequence.admitted_at = now
            self._guarded(sequence, self._open)

    def _open(self, sequence: Sequence) -> None:
        job, opened = sequence.job, self.backend.open_sampler
        sequence.sampler = opened(job.sampling, job.seed, job.prompt, job.guide, job.n_logprobs)
        self.kv.admit(sequence, sequence.admitted_at)

    def _guarded(self, sequence: Sequence, action: Callable[[Sequence], object]) -> None:
        """Run one sequence's part of a stage; what it raises ends that sequence only."""
        try:
            action(sequence)
        except Exception as error:
            self.fail(sequence, error)

    # -- what batches bring (batches.Outcome) --------------------------------------------

    def accept(self, sequence: Sequence, pick: int | Exception, now: float) -> None:
        """One new token of one choice: its text, its end, or its place in the next step."""
        if isinstance(pick, Exception):
            raise pick
        if sequence.n_generated == 0:
            self._begin(sequence, now)
        sequence.n_generated += 1
        self.counters.n_generated += 1
        job = sequence.job
        if pick in self._eog or pick in job.stop_ids:
            self._finish(sequence, "stop", now)
            return
        output = job.output
        scores = None if sequence.sampler is None else sequence.sampler.scores
        scored = None if scores is None else output.scored(pick, scores)
        for event in output.feed(pick, scored):
            self._outbox.post(job.ticket, event)
        if output.stop is not None or (job.guide is not None and job.guide.is_complete):
            self._finish(sequence, "stop", now)
        elif sequence.n_generated >= job.n_max:
            self._finish(sequence, "length", now)
        else:
            sequence.tokens.append(pick)

    def _begin(self, sequence: Sequence, now: float) -> None:
        sequence.first_at = now
        self.counters.n_prompt_cached += sequence.n_cached
        self._outbox.begin(sequence)

    def end_prompt(self, sequence: Sequence, now: float) -> None:
        """All that was asked for is the prompt."""
        self._begin(sequence, now)
        self._finish(sequence, "length", now)

    def deliver(self) -> None:
        """All events so far, one call per sink."""
        self._outbox.deliver()

    # -- ending --------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        output = sequence.job.output
        for event in output.flush():
            self._outbox.post(sequence.job.ticket, event)
        if output.stop is not None:
            reason = "stop"
        elif output.has_calls and reason == "stop":
            reason = "tool_calls"
        finished = Finished(reason, sequence.usage(), sequence.timings(now), output.stop)
        self._end(sequence, finished)

    def fail(self, sequence: Sequence, error: Exception) -> None:
        if not isinstance(error, PonytailError):
            _log.error("a request failed", exc_info=error)
            error = EngineFailed("the engine could not go on with this request")
        if not sequence.is_ended:
            self._end(sequence, Failed(error))

    def _end(self, sequence: Sequence, event: Finished | Failed) -> None:
        """Give back the slot and the sampler, then say so."""
        sequence.group.n_running -= 1
        if sequence.has_slot:
            self.kv.release(sequence, self._clock())
        elif sequence in self._preempted:
            self._preempted.remove(sequence)
        self.kv.tiers.release(sequence)
        if sequence.sampler is not None:
            sequence.sampler.close()
            sequence.sampler = None
        self._close_choice(sequence, event)

    def _close_choice(self, sequence: Sequence, event: Finished | Failed) -> None:
        sequence.is_ended = True
        self._outbox.post(sequence.job.ticket, event)
        group = sequence.group
        group.n_open -= 1
        if group.n_open == 0:
            self._groups.remove(group)
            self._intake.finished(self._clock() - sequence.admitted_at)

    def _fail_all(self, error: PonytailError) -> None:
        self.take_inbox(0.0)
        self.side.fail_all(error)
        for group in self._groups[:]:
            for sequence in group.waiting:
                self._close_choice(sequence, Failed(error))
            group.waiting.clear()
        for sequence in (*self.kv.live(), *self._preempted):
            self._end(sequence, Failed(error))
