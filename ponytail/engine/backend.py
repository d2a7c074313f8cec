"""What the engine needs from whatever runs a batch.

Owns the Backend protocol; the errors a backend raises are DecodeError and
SampleError.  The real one is `ponytail.llama.context.Context`; tests use
`tests.fakes.FakeBackend`, which enforces the rules below.  Engine thread only.

Rules, for every call:
- rows of one decode are sorted by sequence id, one row per sequence;
- positions of a sequence are continuous: a row starts where its sequence ends;
- 0 <= seq_id < n_seq and position + tokens <= n_cells per sequence;
- the tokens of one decode number at most n_batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from ponytail.errors import SampleError
from ponytail.types import Sampling

Row: TypeAlias = "tuple[int, int, array[int], bool]"
"""(sequence id, first position, tokens, whether the last token's logits are wanted)."""


class Sampler(Protocol):
    """Picks tokens for one sequence."""

    def close(self) -> None: ...


class Backend(Protocol):
    """Runs batches over n_seq sequences of up to n_cells tokens each."""

    n_seq: int
    n_cells: int
    n_batch: int
    can_cut: bool
    tile: int
    """Tokens of one sequence from which a batch is on the kernels' fast path."""

    def open_sampler(self, sampling: Sampling, seed: int, history: Sequence[int]) -> Sampler: ...

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute all rows.  Raises DecodeError."""
        ...

    def sample(self, samplers: Sequence[Any]) -> list[int | SampleError]:
        """One pick per row that wanted logits, in row order; samplers from `open_sampler`."""
        ...

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        """Keep a sequence's first n_tokens; False, and empty, when its memory cannot."""
        ...

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        """Replace each dst by a copy of the first n_tokens of src."""
        ...

    def swap(self, a: int, b: int) -> None:
        """Exchange two sequences."""
        ...

    def set_threads(self, n_threads: int) -> None:
        """Threads for one-token rows from the next decode on."""
        ...
