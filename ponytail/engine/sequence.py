"""One live choice: its tokens, its counters, and the handle its reader holds.

Owns Job (what is submitted), Ticket (the reader's handle), Sink (where events go)
and Sequence (the engine's own record).  Only the engine thread touches a Sequence;
a Ticket may be cancelled from any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol, TypeAlias

import msgspec

from ponytail.engine.backend import Guide, Sampler, Scores, State
from ponytail.text.output import Output
from ponytail.types import Event, Sampling, Timings, Usage

# A waiting request moves up one priority in this time, so that none waits for ever.
_AGE_S = 30.0


class Ticket:
    """The reader's handle of one choice; `index` is the choice's index in its request."""

    __slots__ = ("_wake", "index", "is_cancelled", "sink")

    def __init__(self, sink: Sink, index: int) -> None:
        self.sink = sink
        self.index = index
        self.is_cancelled = False
        self._wake: Callable[[], None] | None = None

    def bind(self, wake: Callable[[], None]) -> None:
        """Called by the engine at submission: how a cancel reaches it."""
        self._wake = wake

    def cancel(self) -> None:
        """Idempotent, from any thread; effective within one step."""
        if not self.is_cancelled:
            self.is_cancelled = True
            if self._wake is not None:
                self._wake()


Mail: TypeAlias = "list[tuple[Ticket, Event]]"


class Sink(Protocol):
    """Receives events from the engine thread, all of one step in one call."""

    def deliver(self, mail: Mail) -> None: ...


class Job(msgspec.Struct, frozen=True):
    """One choice to generate.  `n_max` fits the window with the prompt; 0 computes just that."""

    ticket: Ticket
    prompt: Seq[int]
    output: Output
    sampling: Sampling
    seed: int
    n_max: int
    is_streaming: bool = False
    is_solo: bool = False
    """Computed apart from all others and without their prefixes (`deterministic`)."""
    prefix: str = ""
    """Text sent before the first token (`echo`)."""
    n_keep: int = 1
    """Tokens at the start that are never dropped to go on past the window."""
    guide: Guide | None = None
    n_logprobs: int | None = None
    """Each token comes with its log-probability and so many of the likeliest."""
    scores_prompt: bool = False
    """The prompt's tokens too: `on_scored` makes of them what is sent before the first token."""
    on_scored: Callable[[list[Scores]], Event] | None = None
    stop_ids: tuple[int, ...] = ()
    priority: int = 0
    """Lower is let in first."""
    deadline_s: float | None = None
    """Seconds from arrival after which it is ended."""
    key: int | None = None
    """Stands for the first token wherever prefixes are looked for: who has another one shares
    none.  Negative."""
    marks: tuple[int, ...] = ()
    """Ascending lengths of the prompt that are worth keeping where a prefix cannot be cut:
    ends of messages."""


class Wait(Protocol):
    """Something a live sequence waits for; it ends by itself."""

    @property
    def is_over(self) -> bool: ...


class Group:
    """The choices of one request: they wait in one place and count as one in the queue."""

    __slots__ = ("arrived_at", "ends_at", "n_open", "n_running", "priority", "waiting")

    def __init__(self, jobs: Seq[Job], arrived_at: float) -> None:
        self.arrived_at = arrived_at
        self.priority = jobs[0].priority
        deadline_s = jobs[0].deadline_s
        self.ends_at = None if deadline_s is None else arrived_at + deadline_s
        self.waiting = [Sequence(job, self) for job in reversed(jobs)]
        self.n_open = len(self.waiting)
        self.n_running = 0

    def rank(self, now: float) -> int:
        """Its priority, the lower the sooner; whoever waits moves up."""
        return self.priority - int((now - self.arrived_at) / _AGE_S)

    def is_overdue(self, now: float) -> bool:
        return self.ends_at is not None and now >= self.ends_at


class Sequence:
    """The engine's record of one choice.

    `scores` are those of the prompt's tokens from the second on, where they are asked for.
    `tokens` are the prompt and what was generated; the first `n_computed` of them are
    in the KV cells.  While `waits_for` is set the sequence is not scheduled.  Others wait for
    its first `pause_at` tokens: it stops there, so that all go on from there together.  A preempted
    sequence has no slot; its first `n_parked` cells are in `parked`, or there is none and
    they will be computed again.
    """

    __slots__ = (
        "admitted_at",
        "first_at",
        "group",
        "has_slot",
        "is_ended",
        "job",
        "n_cached",
        "n_computed",
        "n_generated",
        "n_parked",
        "n_preempted",
        "n_prompt",
        "n_shifted",
        "order",
        "parked",
        "pause_at",
        "sampler",
        "scores",
        "tokens",
        "waits_for",
    )

    def __init__(self, job: Job, group: Group) -> None:
        self.job = job
        self.group = group
        self.tokens = array("i", job.prompt)
        if job.key is not None:
            self.tokens[0] = job.key
        self.scores: list[Scores] = []
        self.n_prompt = len(self.tokens)
        self.n_computed = 0
        self.n_cached = 0
        self.n_generated = 0
        self.n_parked = 0
        self.n_preempted = 0
        self.n_shifted = 0
        self.order = 0
        self.pause_at = 0
        self.waits_for: Wait | None = None
        self.parked: State | None = None
        self.sampler: Sampler | None = None
        self.admitted_at = group.arrived_at
        self.first_at = 0.0
        self.has_slot = False
        self.is_ended = False

    @property
    def n_todo(self) -> int:
        """Tokens not yet in the cells; 1 while decoding."""
        return len(self.tokens) - self.n_computed

    @property
    def n_next(self) -> int:
        """Tokens it may compute at once: up to the next mark, or where others wait for it."""
        end = len(self.tokens)
        if self.n_computed < self.pause_at < end:
            end = self.pause_at
        for mark in self.job.marks:
            if self.n_computed < mark < end:
                end = mark
        return end - self.n_computed

    @property
    def is_private(self) -> bool:
        """Neither gives nor takes prefixes."""
        return self.job.is_solo or self.job.scores_prompt or self.n_shifted > 0

    @property
    def is_scoring(self) -> bool:
        """In the midst of a prompt whose tokens' probabilities are asked for."""
        return self.job.scores_prompt and len(self.scores) < self.n_prompt - 1

    def row(self, n: int) -> array[int]:
        """The next n tokens to compute, as the model knows them."""
        at = self.n_computed
        tokens = self.tokens[at : at + n]
        if at == 0 and self.job.key is not None:
            tokens[0] = self.job.prompt[0]
        return tokens

    @property
    def is_decoding(self) -> bool:
        """Past its first token, with just the last pick to compute."""
        return self.n_generated > 0 and len(self.tokens) - self.n_computed == 1

    def usage(self) -> Usage:
        n_reasoning = self.job.output.n_reasoning
        return Usage(self.n_prompt, self.n_cached, self.n_generated, n_reasoning)

    def timings(self, now: float) -> Timings:
        first_at = self.first_at or now
        return Timings(
            self.admitted_at - self.group.arrived_at, first_at - self.admitted_at, now - first_at
        )
