"""A backend without a C library, strict about the rules of `engine.backend`.

Its "model" is a hash: the next token depends on every token before it, so a row
computed at a wrong position, in a wrong sequence or over wrong cells gives another
text.  Faults can be injected at each stage.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ponytail.engine.backend import Row
from ponytail.errors import DecodeError, SampleError
from ponytail.types import Sampling

N_VOCAB = 1000
EOG = 2


def next_token(tokens: Sequence[int], n_vocab: int = N_VOCAB) -> int:
    """The fake model's only answer to these tokens; never an id below 10."""
    state = 0
    for token in tokens:
        state = (state * 31 + token + 7) % 1_000_003
    return 10 + state % (n_vocab - 10)


def continuation(prompt: Sequence[int], n: int, n_vocab: int = N_VOCAB) -> list[int]:
    """What an undisturbed run gives."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(tokens, n_vocab))
    return tokens[len(prompt) :]


@dataclass
class FakeSampler:
    """Picks the fake model's token, or what `script` says; counts being closed."""

    sampling: Sampling
    history: tuple[int, ...]
    script: list[int] | None = None
    n_closed: int = 0
    n_drawn: int = 0

    def close(self) -> None:
        self.n_closed += 1


@dataclass
class FakeBackend:
    """See the module; `decode_fault(rows)` and friends may raise to inject a fault."""

    n_seq: int = 4
    n_cells: int = 512
    n_batch: int = 64
    can_cut: bool = True
    tile: int = 1
    decode_fault: Callable[[Sequence[Row]], None] = lambda rows: None
    sample_fault: Callable[[Sequence[FakeSampler]], None] = lambda samplers: None
    open_fault: Callable[[Sampling], None] = lambda sampling: None
    fork_fault: Callable[[int, Sequence[int]], None] = lambda src, dsts: None
    on_decode: Callable[[Sequence[Row]], None] = lambda rows: None
    script: Callable[[Sequence[int]], list[int] | None] = lambda history: None
    cells: list[array[int]] = field(default_factory=list)
    samplers: list[FakeSampler] = field(default_factory=list)
    batches: list[list[tuple[int, int, int]]] = field(default_factory=list)
    n_computed: int = 0
    n_threads: int = 0
    keeps_batches: bool = True

    def __post_init__(self) -> None:
        self.cells = [array("i") for _ in range(self.n_seq)]
        self._outputs: list[int] = []

    def open_sampler(self, sampling: Sampling, seed: int, history: Sequence[int]) -> FakeSampler:
        self.open_fault(sampling)
        sampler = FakeSampler(sampling, tuple(history), self.script(history))
        self.samplers.append(sampler)
        return sampler

    def decode(self, rows: Sequence[Row]) -> None:
        self.on_decode(rows)
        ids = [row[0] for row in rows]
        assert ids == sorted(set(ids)), f"rows out of order or doubled: {ids}"
        assert 0 < sum(len(row[2]) for row in rows) <= self.n_batch, "batch empty or too large"
        self._outputs = []
        for seq_id, position, tokens, wants in rows:
            cells = self.cells[seq_id]
            assert position == len(cells), f"sequence {seq_id}: {position} != {len(cells)}"
            assert len(tokens) > 0, "empty row"
            cells.extend(tokens)
            assert len(cells) <= self.n_cells, f"sequence {seq_id} is over its cells"
            if wants:
                self._outputs.append(seq_id)
        # After the cells were written: a failed batch leaves its traces, as the real one does.
        self.decode_fault(rows)
        self.n_computed += sum(len(row[2]) for row in rows)
        if self.keeps_batches:
            self.batches.append([(r[0], r[1], len(r[2])) for r in rows])

    def sample(self, samplers: Sequence[FakeSampler]) -> list[int | SampleError]:
        assert len(samplers) == len(self._outputs), "as many samplers as output rows"
        self.sample_fault(samplers)
        return [self._pick(s, i) for s, i in zip(samplers, self._outputs, strict=True)]

    def _pick(self, sampler: FakeSampler, seq_id: int) -> int:
        assert sampler.n_closed == 0, "sampling with a closed sampler"
        sampler.n_drawn += 1
        if sampler.script is not None and sampler.n_drawn <= len(sampler.script):
            return sampler.script[sampler.n_drawn - 1]
        return next_token(self.cells[seq_id])

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        cells = self.cells[seq_id]
        if 0 < n_tokens < len(cells) and not self.can_cut:
            del cells[:]
            return False
        del cells[n_tokens:]
        return True

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        self.fork_fault(src, dsts)
        assert len(self.cells[src]) >= n_tokens, "fork of more than there is"
        for dst in dsts:
            assert dst != src, "fork onto itself"
            self.cells[dst] = self.cells[src][:n_tokens]

    def swap(self, a: int, b: int) -> None:
        self.cells[a], self.cells[b] = self.cells[b], self.cells[a]

    def set_threads(self, n_threads: int) -> None:
        self.n_threads = n_threads


def no_fault(*_: object) -> None:
    """The default of every injected fault."""


def decode_fault_for(first_token: int) -> Callable[[Sequence[Row]], None]:
    """Every batch fails that holds a row starting with this token."""

    def fault(rows: Sequence[Row]) -> None:
        if any(row[2][0] == first_token for row in rows):
            raise DecodeError("injected")

    return fault
