"""What the engine needs from whatever runs a batch.

Owns the Backend protocol; the errors a backend raises are DecodeError, OutOfCells and
SampleError.  The real one is `ponytail.llama.context.Context`; tests use
`tests.fakes.FakeBackend`, which enforces the rules below.  Engine thread only.

Two layouts of the cells: *split*, where each sequence has a stream of `n_cells` of its own
and sharing copies; and *shared*, where all sequences live in one pool of `n_cells` and a
cell may belong to several of them.

Rules, for every call:
- rows of one decode are sorted by sequence id, one row per sequence;
- positions of a sequence are continuous: a row starts where its sequence ends;
- 0 <= seq_id < n_seq;
- the tokens of one decode number at most n_batch;
- split: position + tokens <= n_cells in each sequence; shared: the cells in use, each
  counted once however many sequences it belongs to, are at most n_cells.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from ponytail.types import Sampling

Row: TypeAlias = "tuple[int, int, array[int], bool]"
"""(sequence id, first position, tokens, whether the last token's logits are wanted)."""

SCORE_CHUNK = 64
"""Tokens of one `score` at most: as many rows of logits are held at once."""

Span: TypeAlias = tuple[int, int, Sequence[int]]
"""(first position, position after the last, ids of the sequences that hold these cells)."""

State: TypeAlias = Any
"""The cells of one sequence as a contiguous buffer of bytes, owned by whoever holds it."""


class Guide(Protocol):
    """What the next token of one sequence may be; the backend asks it before each pick."""

    @property
    def is_complete(self) -> bool:
        """The answer is over, although no end token was picked."""
        ...

    @property
    def forced(self) -> int | None:
        """The next token, where it is decided."""
        ...

    @property
    def extra(self) -> int | None:
        """A token that may come besides those of the mask."""
        ...

    def fill(self, pointer: int, n_bytes: int) -> bool:
        """Write the mask, one bit per token; False when all may come.  Raises ConstraintFailed."""
        ...

    def accept(self, token_id: int) -> None:
        """This token was picked.  Raises ConstraintFailed."""
        ...


Scores: TypeAlias = tuple[float | None, tuple[tuple[int, float], ...]]
"""(log-probability of a token, (id, log-probability) of the likeliest at its place)."""


class Sampler(Protocol):
    """Picks tokens for one sequence; `scores` are of its last pick, where they were asked for."""

    scores: Scores | None

    def close(self) -> None: ...


class Backend(Protocol):
    """Runs batches over sequences 0 .. n_seq-1."""

    n_seq: int
    n_cells: int
    """Cells there are now: of each sequence in split, of all together in shared."""
    n_batch: int
    is_shared: bool
    can_cut: bool
    """A sequence can be cut back to any earlier position."""
    can_shift: bool
    """Tokens can be taken out of the middle of a sequence."""
    cell_bytes: int
    """Bytes of state that one more token costs."""
    tile: int
    """Tokens from which a batch is on the kernels' fast path: of each sequence in split, of all
    together in shared."""

    def open_sampler(
        self,
        sampling: Sampling,
        seed: int,
        history: Sequence[int],
        guide: Guide | None = None,
        n_scores: int | None = None,
    ) -> Sampler:
        """`n_scores`: each pick comes with its score and those of so many of the likeliest."""
        ...

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute all rows.  Raises OutOfCells when they find no room, else DecodeError."""
        ...

    def sample(self, samplers: Sequence[Any]) -> list[int | Exception]:
        """One pick per row that wanted logits, in row order; samplers from `open_sampler`.

        SampleError or ConstraintFailed in place of one that failed.
        """
        ...

    def score(self, row: Row, targets: Sequence[int], n_top: int) -> list[Scores]:
        """Compute one row of at most SCORE_CHUNK tokens, and the score of what follows each.

        `targets` are the tokens that follow: as many as the row has, or one fewer when its
        last token is the last there is; that one's logits are then there for `sample`.
        """
        ...

    def set_threads(self, n_threads: int) -> None:
        """Threads for one-token rows from the next decode on."""
        ...

    # -- sequences -----------------------------------------------------------------------

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        """Keep a sequence's first n_tokens; False, and empty, when its memory cannot."""
        ...

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        """Replace each dst by the first n_tokens of src: copied in split, shared in shared."""
        ...

    def adopt(self, src: int, dst: int, start: int, end: int) -> None:
        """Shared only: dst gives up its own cells of [start, end) and shares src's instead."""
        ...

    def swap(self, a: int, b: int) -> None:
        """Split only: exchange two sequences."""
        ...

    def shift(self, seq_id: int, start: int, n_tokens: int) -> None:
        """Take [start, start + n_tokens) out of a sequence that shares nothing after `start`."""
        ...

    # -- states --------------------------------------------------------------------------

    def state_bytes(self, seq_id: int) -> int:
        """Size of what `read_state` would return."""
        ...

    def read_state(self, seq_id: int) -> State:
        """All cells of a sequence, as a copy."""
        ...

    def write_state(self, seq_id: int, state: State, keep: int = 0) -> None:
        """Replace a sequence by a state; its first `keep` tokens stay the cells it has.

        `keep` > 0 in shared only, where those cells are other sequences' too.  Raises
        OutOfCells when there is no room, DecodeError when the state is refused; the sequence
        is then empty.
        """
        ...

    # -- size ----------------------------------------------------------------------------

    def begin_resize(self, n_cells: int) -> None:
        """Start to make cells of another number, in the background."""
        ...

    def is_resized(self) -> bool:
        """The new cells are ready for `finish_resize`.  Raises DecodeError if there are none."""
        ...

    def finish_resize(self, spans: Sequence[Span]) -> None:
        """Move these cells into the new ones and go on there; sequences in no span are empty.

        The spans of a sequence come in order and cover it from 0; a span of several
        sequences (shared only) stays shared.
        """
        ...

    def cancel_resize(self) -> None:
        """Give up a resize that was begun; waits for it to be over."""
        ...
