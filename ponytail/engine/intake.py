"""The way into the engine: requests from any thread, at most so many at once.

Owns the inbox, the count of requests and the end of taking them.  Must not know what is
done with them.  `submit`, `wake` and `close` are safe from any thread; the rest is the
engine thread's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from queue import Empty, SimpleQueue

from ponytail.engine.sequence import Group, Job
from ponytail.errors import Overloaded, ShuttingDown

_SMOOTHING = 0.2


class Intake:
    """`n_parallel` requests run and `max_queue` more may wait."""

    def __init__(self, n_parallel: int, max_queue: int, clock: Callable[[], float]) -> None:
        self._n_parallel = n_parallel
        self.max_requests = n_parallel + max_queue
        self._clock = clock
        self._inbox: SimpleQueue[Group | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._request_s = 0.0
        self._closing_at: float | None = None
        self.n_requests = 0

    def submit(self, jobs: Seq[Job]) -> None:
        """Queue the choices of one request.  Raises Overloaded or ShuttingDown at once."""
        group = Group(jobs, self._clock())
        with self._lock:
            if self._closing_at is not None:
                raise ShuttingDown("the server is shutting down and takes no new requests")
            if self.n_requests >= self.max_requests:
                raise self._overloaded()
            self.n_requests += 1
            for job in jobs:
                job.ticket.bind(self.wake)
            # Inside the lock: a closing engine must find it in the inbox or not at all.
            self._inbox.put(group)

    def _overloaded(self) -> Overloaded:
        n_waiting = self.n_requests - self._n_parallel
        wait_s = max(1.0, self._request_s * (n_waiting + 1) / self._n_parallel)
        return Overloaded(
            f"the queue is full: {self._n_parallel} requests run and {n_waiting} wait "
            "(--max-queue); try again later",
            retry_after_s=wait_s,
        )

    def wake(self) -> None:
        """Let the engine look around."""
        self._inbox.put(None)

    def close(self, grace_s: float) -> None:
        """Take nothing more; what is here has grace_s seconds."""
        with self._lock:
            at = self._clock() + grace_s
            self._closing_at = at if self._closing_at is None else min(self._closing_at, at)
        self.wake()

    @property
    def is_overdue(self) -> bool:
        """Closing, and the grace is over."""
        return self._closing_at is not None and self._clock() >= self._closing_at

    @property
    def is_empty(self) -> bool:
        return self._inbox.empty()

    def is_done(self) -> bool:
        """Closing and empty: nothing can come any more."""
        with self._lock:
            return self._closing_at is not None and self._inbox.empty()

    def take(self, wait_s: float | None) -> list[Group]:
        """What was submitted; waits so long for the first, None is for ever."""
        groups: list[Group] = []
        try:
            group = self._inbox.get(block=wait_s != 0.0, timeout=wait_s)
            while True:
                if group is not None:
                    groups.append(group)
                group = self._inbox.get(block=False)
        except Empty:
            return groups

    def finished(self, seconds: float) -> None:
        """A request is over; it ran that long."""
        with self._lock:
            self.n_requests -= 1
            self._request_s += _SMOOTHING * (seconds - self._request_s)
