"""A backend without a C library, strict about the rules of `engine.backend`.

Its "model" is a hash: the next token depends on every token before it, so a row
computed at a wrong position, in a wrong sequence or over wrong cells gives another
text.  Faults can be injected at each stage.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ponytail.engine.backend import SCORE_CHUNK, Guide, Row, Scores, Span
from ponytail.errors import ConstraintFailed, DecodeError, OutOfCells
from ponytail.types import Sampling

Cell: TypeAlias = int
"""A number that is never used again; sequences that have the same one share the cell."""

N_VOCAB = 1000
EOG = 2


def next_token(tokens: Sequence[int], n_vocab: int = N_VOCAB) -> int:
    """The fake model's only answer to these tokens; never an id below 10."""
    state = 0
    for token in tokens:
        state = (state * 31 + token + 7) % 1_000_003
    return 10 + state % (n_vocab - 10)


def fake_scores(tokens: Sequence[int], target: int, n_top: int) -> Scores:
    """The score of `target` after these tokens: it tells which tokens were seen."""
    best = next_token(tokens)
    own = 0.0 if target == best else -float(1 + (target + best) % 50)
    return own, ((best, 0.0),)[:n_top]


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
    guide: Guide | None = None
    n_scores: int | None = None
    scores: Scores | None = None

    def close(self) -> None:
        self.n_closed += 1


@dataclass
class FakeBackend:
    """See the module; `decode_fault(rows)` and friends may raise to inject a fault.

    A sequence is a list of cell numbers, and `store` has the token of each; in the shared
    layout a cell may be in several sequences, and the distinct ones are counted.
    """

    n_seq: int = 4
    n_cells: int = 512
    n_batch: int = 64
    is_shared: bool = False
    can_cut: bool = True
    can_shift: bool = True
    tile: int = 1
    cell_bytes: int = 4
    decode_fault: Callable[[Sequence[Row]], None] = lambda rows: None
    sample_fault: Callable[[Sequence[FakeSampler]], None] = lambda samplers: None
    open_fault: Callable[[Sampling], None] = lambda sampling: None
    fork_fault: Callable[[int, Sequence[int]], None] = lambda src, dsts: None
    state_fault: Callable[[int], None] = lambda seq_id: None
    resize_fault: Callable[[int], None] = lambda n_cells: None
    on_decode: Callable[[Sequence[Row]], None] = lambda rows: None
    script: Callable[[Sequence[int]], list[int] | None] = lambda history: None
    sequences: list[list[Cell]] = field(default_factory=list)
    samplers: list[FakeSampler] = field(default_factory=list)
    batches: list[list[tuple[int, int, int]]] = field(default_factory=list)
    n_computed: int = 0
    n_threads: int = 0
    keeps_batches: bool = True
    resize_polls: int = 0
    """How often `is_resized` says no before it says yes."""

    def __post_init__(self) -> None:
        self.sequences = [[] for _ in range(self.n_seq)]
        self.store = array("i")
        self._outputs: list[int] = []
        self._resize: tuple[int, int] | None = None

    @property
    def n_used(self) -> int:
        """Cells in use, each counted once."""
        return len({cell for sequence in self.sequences for cell in sequence})

    def tokens(self, seq_id: int) -> list[int]:
        return [self.store[cell] for cell in self.sequences[seq_id]]

    def _fill(self, tokens: Iterable[int]) -> Sequence[Cell]:
        """New cells with these tokens."""
        first = len(self.store)
        self.store.extend(tokens)
        return range(first, len(self.store))

    def open_sampler(
        self,
        sampling: Sampling,
        seed: int,
        history: Sequence[int],
        guide: Guide | None = None,
        n_scores: int | None = None,
    ) -> FakeSampler:
        self.open_fault(sampling)
        sampler = FakeSampler(
            sampling, tuple(history), self.script(history), guide=guide, n_scores=n_scores
        )
        self.samplers.append(sampler)
        return sampler

    def decode(self, rows: Sequence[Row]) -> None:
        self.on_decode(rows)
        ids = [row[0] for row in rows]
        assert ids == sorted(set(ids)), f"rows out of order or doubled: {ids}"
        n_tokens = sum(len(row[2]) for row in rows)
        assert 0 < n_tokens <= self.n_batch, "batch empty or too large"
        self._outputs = []
        self._ensure_room(rows, n_tokens)
        for seq_id, position, tokens, wants in rows:
            cells = self.sequences[seq_id]
            assert position == len(cells), f"sequence {seq_id}: {position} != {len(cells)}"
            assert len(tokens) > 0, "empty row"
            cells.extend(self._fill(tokens))
            if wants:
                self._outputs.append(seq_id)
        # After the cells were written: a failed batch leaves its traces, as the real one does.
        self.decode_fault(rows)
        self.n_computed += n_tokens
        if self.keeps_batches:
            self.batches.append([(r[0], r[1], len(r[2])) for r in rows])

    def _ensure_room(self, rows: Sequence[Row], n_tokens: int) -> None:
        if self.is_shared:
            if self.n_used + n_tokens > self.n_cells:
                raise OutOfCells(f"{self.n_used} of {self.n_cells} cells used, {n_tokens} more")
            return
        for seq_id, position, tokens, _ in rows:
            assert position + len(tokens) <= self.n_cells, f"sequence {seq_id} is over its cells"

    def score(self, row: Row, targets: Sequence[int], n_top: int) -> list[Scores]:
        assert len(row[2]) <= SCORE_CHUNK, "more than one score takes"
        assert len(row[2]) - len(targets) in (0, 1), "a target for each token but the last"
        self.decode([row])
        tokens = self.tokens(row[0])
        return [fake_scores(tokens[: row[1] + i + 1], t, n_top) for i, t in enumerate(targets)]

    def sample(self, samplers: Sequence[FakeSampler]) -> list[int | Exception]:
        assert len(samplers) == len(self._outputs), "as many samplers as output rows"
        self.sample_fault(samplers)
        return [self._try_pick(s, i) for s, i in zip(samplers, self._outputs, strict=True)]

    def _try_pick(self, sampler: FakeSampler, seq_id: int) -> int | Exception:
        pick = self._pick(sampler, seq_id)
        if sampler.n_scores is not None:
            sampler.scores = fake_scores(self.tokens(seq_id), pick, sampler.n_scores)
        if sampler.guide is not None:
            try:
                if sampler.guide.forced is not None:
                    pick = sampler.guide.forced
                sampler.guide.accept(pick)
            except ConstraintFailed as error:
                return error
        return pick

    def _pick(self, sampler: FakeSampler, seq_id: int) -> int:
        assert sampler.n_closed == 0, "sampling with a closed sampler"
        sampler.n_drawn += 1
        if sampler.script is not None and sampler.n_drawn <= len(sampler.script):
            return sampler.script[sampler.n_drawn - 1]
        return next_token(self.tokens(seq_id))

    def set_threads(self, n_threads: int) -> None:
        self.n_threads = n_threads

    # -- sequences -----------------------------------------------------------------------

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        cells = self.sequences[seq_id]
        if 0 < n_tokens < len(cells) and not self.can_cut:
            del cells[:]
            return False
        del cells[n_tokens:]
        return True

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        self.fork_fault(src, dsts)
        assert len(self.sequences[src]) >= n_tokens, "fork of more than there is"
        assert self.can_cut or len(self.sequences[src]) == n_tokens, "fork of a part"
        for dst in dsts:
            assert dst != src, "fork onto itself"
            cells = self.sequences[src][:n_tokens]
            self.sequences[dst] = cells if self.is_shared else self._copy(cells)

    def _copy(self, cells: Sequence[Cell]) -> list[Cell]:
        return [*self._fill([self.store[cell] for cell in cells])]

    def adopt(self, src: int, dst: int, start: int, end: int) -> None:
        assert self.is_shared, "adopt in the split layout"
        assert self.tokens(src)[:end] == self.tokens(dst)[:end], "adopts what differs"
        self.sequences[dst][start:end] = self.sequences[src][start:end]

    def swap(self, a: int, b: int) -> None:
        assert not self.is_shared, "swap in the shared layout"
        self.sequences[a], self.sequences[b] = self.sequences[b], self.sequences[a]

    def shift(self, seq_id: int, start: int, n_tokens: int) -> None:
        others = {c for i, s in enumerate(self.sequences) if i != seq_id for c in s}
        assert not others & set(self.sequences[seq_id][start:]), "shifts others"
        del self.sequences[seq_id][start : start + n_tokens]

    # -- states --------------------------------------------------------------------------

    def state_bytes(self, seq_id: int) -> int:
        return self.cell_bytes * len(self.sequences[seq_id])

    def read_state(self, seq_id: int) -> bytes:
        self.state_fault(seq_id)
        return array("i", self.tokens(seq_id)).tobytes()

    def write_state(self, seq_id: int, state: bytes, keep: int = 0) -> None:
        self.state_fault(seq_id)
        tokens = array("i", state)
        kept = self.sequences[seq_id][:keep]
        assert keep == 0 or self.is_shared, "keeps cells in the split layout"
        assert self.tokens(seq_id)[:keep] == list(tokens[:keep]), "the state does not continue"
        self.sequences[seq_id] = []
        n_used = self.n_used if self.is_shared else 0
        if n_used + len(tokens) > self.n_cells:
            raise OutOfCells(f"{n_used} of {self.n_cells} cells used, {len(tokens)} more")
        self.sequences[seq_id] = [*kept, *self._fill(tokens[keep:])]

    # -- size ----------------------------------------------------------------------------

    def begin_resize(self, n_cells: int) -> None:
        assert self._resize is None, "two resizes at once"
        self._resize = (n_cells, self.resize_polls)

    def is_resized(self) -> bool:
        assert self._resize is not None, "no resize was begun"
        n_cells, n_polls = self._resize
        try:
            self.resize_fault(n_cells)
        except DecodeError:
            self._resize = None
            raise
        self._resize = (n_cells, n_polls - 1)
        return n_polls <= 0

    def finish_resize(self, spans: Sequence[Span]) -> None:
        assert self._resize is not None, "no resize was begun"
        self.n_cells, self._resize = self._resize[0], None
        moved: list[list[Cell]] = [[] for _ in range(self.n_seq)]
        for start, end, seq_ids in spans:
            assert len(seq_ids) == 1 or self.is_shared, "a shared span in the split layout"
            cells = self._copy(self.sequences[seq_ids[0]][start:end])
            for seq_id in seq_ids:
                assert len(moved[seq_id]) == start, "spans do not join"
                moved[seq_id] += cells
        self.sequences = moved
        n_max = self.n_used if self.is_shared else max(map(len, moved))
        assert n_max <= self.n_cells, "does not fit into the new cells"

    def cancel_resize(self) -> None:
        self._resize = None


def no_fault(*_: object) -> None:
    """The default of every injected fault."""


def decode_fault_for(first_token: int) -> Callable[[Sequence[Row]], None]:
    """Every batch fails that holds a row starting with this token."""

    def fault(rows: Sequence[Row]) -> None:
        if any(row[2][0] == first_token for row in rows):
            raise DecodeError("injected")

    return fault
