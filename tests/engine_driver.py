"""Drives an engine step by step in the test's own thread, and records what readers get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ponytail.engine.engine import Engine
from ponytail.engine.sequence import Job, Mail, Ticket
from ponytail.text.output import Output, PieceTable
from ponytail.types import Event, Failed, Finished, Sampling, Text
from tests.fakes import EOG, FakeBackend

PIECES = PieceTable(lambda token_id: f"{token_id} ".encode())


class Recorder:
    """A sink that keeps all events by ticket."""

    def __init__(self) -> None:
        self.events: dict[int, list[Event]] = {}

    def deliver(self, mail: Mail) -> None:
        for ticket, event in mail:
            self.events.setdefault(ticket.index, []).append(event)

    def of(self, ticket: Ticket) -> list[Event]:
        return self.events.get(ticket.index, [])

    def ends(self, ticket: Ticket) -> list[Event]:
        return [e for e in self.of(ticket) if isinstance(e, Finished | Failed)]

    def end(self, ticket: Ticket) -> Any:
        (end,) = self.ends(ticket)
        assert self.of(ticket)[-1] is end, "nothing follows the terminal event"
        return end

    def tokens(self, ticket: Ticket) -> list[int]:
        text = "".join(e.text for e in self.of(ticket) if isinstance(e, Text))
        return [int(word) for word in text.split()]


class Driver:
    """An engine on a fake backend, without its thread."""

    def __init__(self, backend: FakeBackend | None = None, **options: Any) -> None:
        self.backend = backend or FakeBackend()
        self.engine = Engine(self.backend, eog_ids=(EOG,), **options)
        self.recorder = Recorder()
        self.tickets: list[Ticket] = []

    def job(self, prompt: Sequence[int], n_max: int = 8, **more: Any) -> Job:
        ticket = Ticket(self.recorder, len(self.tickets))
        self.tickets.append(ticket)
        values: dict[str, Any] = {"output": Output(PIECES), "sampling": Sampling(), "seed": 1}
        return Job(ticket=ticket, prompt=prompt, n_max=n_max, **{**values, **more})

    def submit(self, prompt: Sequence[int], n_max: int = 8, **more: Any) -> Ticket:
        job = self.job(prompt, n_max, **more)
        self.engine.submit([job])
        return job.ticket

    def step(self) -> None:
        self.engine.take_inbox(0.0)
        self.engine.step()
        self.check()
        self.engine.deliver()

    def check(self) -> None:
        """The records agree with themselves and with what the backend really holds."""
        kv, backend = self.engine.kv, self.backend
        kv.check_integrity()
        for slot in kv.slots.all:
            assert slot.n_held == len(backend.sequences[slot.seq_id]), f"slot {slot.seq_id}"
            if slot.node is not None and slot.is_idle:
                assert list(kv.tree.tokens_to(slot.node)) == backend.tokens(slot.seq_id)
        if backend.is_shared:
            assert kv.cells.n_used == backend.n_used

    def run(self, max_steps: int = 3000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            self.step()
            if self.engine.is_idle:
                return
        raise AssertionError(f"still busy after {max_steps} steps")


def prompt(first: int, n: int = 5) -> list[int]:
    """n tokens; prompts of another `first` have no beginning in common."""
    return [first, *range(100, 100 + n - 1)]
