"""How far one answer has come in its grammar.

Owns llguidance's matcher of one choice.  Engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Matcher:
    """One choice's; fresh from `Compiled.matcher()`."""

    __slots__ = ("_inner", "_tokenize")

    def __init__(self, inner: Any, tokenize: Callable[[str], list[int]]) -> None:
        self._inner = inner
        self._tokenize = tokenize

    @property
    def is_complete(self) -> bool:
        """Nothing but the end can follow."""
        return bool(self._inner.is_stopped()) and not self._inner.is_error()

    @property
    def is_accepting(self) -> bool:
        """The answer may end here."""
        return bool(self._inner.is_accepting())

    @property
    def error(self) -> str:
        """A sentence once it can go no further, else ""."""
        return str(self._inner.get_error()).partition("\n")[0]

    def fill(self, pointer: int, n_bytes: int) -> None:
        """Write one bit per token at `pointer`, 1 where it may come next; whole 32-bit words."""
        self._inner.unsafe_compute_mask_ptr(pointer, n_bytes)

    def consume(self, token_id: int) -> bool:
        """Go on by one token; False when it does not fit, and then `error` says why."""
        return bool(self._inner.consume_token(token_id))

    def consume_text(self, text: str) -> bool:
        """Go on by a text, whatever tokens it was written in."""
        return bool(self._inner.consume_tokens(self._tokenize(text)))
