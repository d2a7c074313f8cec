"""Runs a plan on the backend: decode, sample, and what to do when a batch fails.

Owns the three batches of a step, what is learnt from their times, and the search for the
culprit in a failed one.  Must not know text, events or admission: picks and failures go to
the engine.  Engine thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from ponytail.engine.backend import Row, Scores
from ponytail.engine.cost import StepCost
from ponytail.engine.kv import KV
from ponytail.engine.scheduler import Chunk, Plan
from ponytail.engine.sequence import Sequence
from ponytail.engine.stats import Counters
from ponytail.engine.threads import ThreadTuner
from ponytail.errors import OutOfCells


class Outcome(Protocol):
    """Where results go."""

    def accept(self, sequence: Sequence, pick: int | Exception, now: float) -> None:
        """One pick; what this raises is the sequence's failure."""
        ...

    def end_prompt(self, sequence: Sequence, now: float) -> None:
        """The prompt is computed, and no more was asked for."""
        ...

    def fail(self, sequence: Sequence, error: Exception) -> None: ...

    def deliver(self) -> None: ...

    def give_way(self) -> bool:
        """Free some cells; False when there is nobody to take them from."""
        ...


class Batches:
    """Over one backend.  `n_threads` is for solo sequences, which must not vary."""

    def __init__(
        self,
        kv: KV,
        counters: Counters,
        *,
        n_threads: int,
        tunes_threads: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kv = kv
        self._backend = kv.backend
        self._counters = counters
        self._n_threads = n_threads
        self._tuner = ThreadTuner(n_threads, is_fixed=not tunes_threads)
        self._clock = clock
        self.cost = StepCost(kv.backend.tile, is_whole=kv.backend.is_shared)

    def run(self, steps: Plan, to: Outcome) -> None:
        """Decoding rows first, then prefill, then solo sequences, one batch each.

        Decoding and prefill apart: in one batch libllama would cut the first token off
        every prompt chunk, which puts it on the slow path.
        """
        if steps.decoding:
            self._compute(steps.decoding, to)
        if steps.decoding and (steps.prefilling or steps.solo):
            # What is known must not wait for the prompts.
            to.deliver()
        if steps.prefilling:
            self._compute(_living(steps.prefilling), to)
        if steps.solo:
            self._backend.set_threads(self._n_threads)
            for chunk in steps.solo:
                self._compute(_living([chunk]), to)
            self._backend.set_threads(self._tuner.n_threads)

    def _compute(self, chunks: Seq[Chunk], to: Outcome) -> None:
        """Decode and sample the chunks; on failure find the culprit and go on without it."""
        if not chunks:
            return
        rows, asking = self._rows(chunks)
        started = self._clock()
        try:
            scores = self._decode(chunks, rows)
            samplers = [s.sampler for s in asking if s.sampler is not None]
            picks = self._backend.sample(samplers) if samplers else []
        except OutOfCells as error:
            # Fewer than were counted.  Nothing was computed, so nothing is lost.
            if not to.give_way():
                self._isolate(chunks, error, to)
            return
        except Exception as error:
            self._isolate(chunks, error, to)
            return
        now = self._clock()
        self._counters.backend_s += now - started
        is_decoding = chunks[0][0].is_decoding
        self._learn(chunks, now - started, is_decoding)
        chunks[0][0].scores[chunks[0][0].n_computed :] = scores
        n_tokens = 0
        for sequence, n in chunks:
            sequence.n_computed += n
            n_tokens += n
        self._kv.cells.added(n_tokens)
        if not is_decoding:
            self._mark(chunks, to)
        for sequence, pick in zip(asking, picks, strict=True):
            # Written out: a guarding call for every token costs a sixth of the engine's time.
            try:
                to.accept(sequence, pick, now)
            except Exception as error:
                to.fail(sequence, error)
        for sequence, _ in chunks:
            if sequence.job.n_max == 0 and sequence.has_slot and not sequence.n_todo:
                to.end_prompt(sequence, now)

    def _decode(self, chunks: Seq[Chunk], rows: list[Row]) -> list[Scores]:
        """Compute; the scores of the next tokens where the one chunk there is asks for them."""
        sequence, n = chunks[0]
        if not sequence.is_scoring:
            self._backend.decode(rows)
            return sequence.scores[sequence.n_computed :]
        targets = sequence.tokens[sequence.n_computed + 1 : sequence.n_computed + n + 1]
        return self._backend.score(rows[0], targets, sequence.job.n_logprobs or 0)

    def _rows(self, chunks: Seq[Chunk]) -> tuple[list[Row], list[Sequence]]:
        """The batch, and the sequences whose last token's logits it asks for."""
        rows: list[Row] = []
        asking: list[Sequence] = []
        for sequence, n in chunks:
            at = sequence.n_computed
            wants_logits = at + n == len(sequence.tokens) and sequence.job.n_max > 0
            if wants_logits:
                asking.append(sequence)
            rows.append((self._kv.seq_id(sequence), at, sequence.row(n), wants_logits))
        return rows, asking

    def _isolate(self, chunks: Seq[Chunk], error: Exception, to: Outcome) -> None:
        """Undo a failed batch and run its halves; a chunk that fails alone is the culprit."""
        self._counters.n_decode_failures += 1
        for sequence, _ in chunks:
            try:
                self._kv.cut_back(sequence)
            except Exception as cut_error:
                to.fail(sequence, cut_error)
        alive = [(s, min(n, s.n_next)) for s, n in _living(chunks)]
        if len(chunks) == 1:
            for sequence, _ in alive:
                to.fail(sequence, error)
            return
        middle = (len(alive) + 1) // 2
        for half in (alive[:middle], alive[middle:]):
            self._compute(half, to)

    def _learn(self, chunks: Seq[Chunk], seconds: float, is_decoding: bool) -> None:
        """What this batch says about the cost of the next."""
        if is_decoding:
            self.cost.observe_decode(len(chunks), seconds)
            if len(chunks) == 1 and not chunks[0][0].job.is_solo and not self._tuner.is_settled:
                self._tuner.observe(seconds)
                self._backend.set_threads(self._tuner.n_threads)
            return
        n_tokens = sum(n for _, n in chunks)
        self._counters.n_prompt_computed += n_tokens
        context = sum((s.n_computed + n / 2) * n for s, n in chunks) / n_tokens
        tile = self.cost.tile
        is_tiled = n_tokens >= tile if self.cost.is_whole else all(n >= tile for _, n in chunks)
        self.cost.observe_prefill(n_tokens, context, seconds, is_tiled=is_tiled)

    def _mark(self, chunks: Seq[Chunk], to: Outcome) -> None:
        """Keep the states of prompts that have come to a mark."""
        for sequence, _ in chunks:
            if sequence.n_computed in sequence.job.marks and not sequence.is_private:
                try:
                    self._kv.mark(sequence)
                except Exception as error:
                    to.fail(sequence, error)


def _living(chunks: Seq[Chunk]) -> list[Chunk]:
    """Those whose sequences still have their cells: an earlier batch may have ended some."""
    return [chunk for chunk in chunks if chunk[0].has_slot]
