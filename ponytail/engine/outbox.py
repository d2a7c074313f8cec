"""Events on their way to readers: collected during a step, delivered in one call per sink.

Owns nothing else.  Engine thread only.
"""

from __future__ import annotations

import logging

from ponytail.engine.sequence import Mail, Sequence, Sink, Ticket
from ponytail.types import Event, Started, Text

_log = logging.getLogger("ponytail.engine")


class Outbox:
    """`post` while a step runs, `deliver` when it is done."""

    def __init__(self) -> None:
        self._mail: dict[int, tuple[Sink, Mail]] = {}

    def post(self, ticket: Ticket, event: Event) -> None:
        """One more event for the ticket's sink."""
        sink = ticket.sink
        entry = self._mail.get(id(sink))
        if entry is None:
            entry = self._mail[id(sink)] = (sink, [])
        entry[1].append((ticket, event))

    def begin(self, sequence: Sequence) -> None:
        """The first token is there: what was computed, and the prompt where it is echoed."""
        job = sequence.job
        self.post(job.ticket, Started(sequence.n_prompt, sequence.n_cached))
        if job.on_scored is not None:
            self.post(job.ticket, job.on_scored(sequence.scores))
        elif job.prefix:
            self.post(job.ticket, Text(job.prefix))

    def deliver(self) -> None:
        """All events since the last call.  A sink that fails has its requests cancelled."""
        if not self._mail:
            return
        outbox, self._mail = self._mail, {}
        for sink, mail in outbox.values():
            try:
                sink.deliver(mail)
            except Exception:
                _log.exception("a reader is gone; its requests are cancelled")
                for ticket, _ in mail:
                    ticket.cancel()
