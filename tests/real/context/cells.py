"""What the tests of the context write into cells, and how they look at them."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ponytail.llama.context import Context
from ponytail.llama.model import Model

Fill: TypeAlias = Callable[[Context, int, int], None]
HasRoom: TypeAlias = Callable[[Context, int], bool]

TEXTS = [
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a king who had three sons, and the youngest of them was called",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
]
# Batch shape, and which cells a sequence has, change the order of additions, and activations of
# 8 bits make much of a last bit: measured up to 1.3.  Another text's logits are 18 away, and
# keys turned to a wrong position 12.
TOLERANCE = 2.5


def opened(model: Model, n_cells: int, *, is_shared: bool) -> Context:
    """One thread: two that wait for each other take minutes where others keep a core busy."""
    return Context(model, n_seq=4, n_cells=n_cells, max_cells=2048, is_shared=is_shared)


def words(n: int, first: int = 1000) -> array[int]:
    """n tokens, other ones for another `first`."""
    return array("i", range(first, first + n))


def next_logits(context: Context, seq_id: int) -> np.ndarray:
    """Logits after one more token, which is taken back."""
    n = context.n_tokens(seq_id)
    context.decode([(seq_id, n, words(1, 500), True)])
    row = logits(context)[0]
    context.cut(seq_id, n)
    return row


def resize(context: Context, n_cells: int, spans) -> None:
    context.begin_resize(n_cells)
    context._opening.take()  # waits
    assert context.is_resized()
    context.finish_resize(spans)


def resizing_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "ponytail-cells"]


def ids(model: Model, text: str) -> array[int]:
    return array("i", model.tokenize(text, add_special=False, parse_special=True))


def logits(context: Context) -> np.ndarray:
    return np.array(context._rows_of_logits())


def alone(context: Context, seq_id: int, tokens: array[int]) -> np.ndarray:
    context.cut(seq_id, 0)
    context.decode([(seq_id, 0, tokens, True)])
    return logits(context)[0]
