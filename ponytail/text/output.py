"""Token ids of one choice -> text that may be sent.

Owns what is not yet whole: bytes of an unfinished character and text that may
become a stop string.  Pure; knows no llama.cpp (token bytes come from a callable)
and no engine.  The result does not depend on how tokens are fed.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from ponytail.text.splitter import StopSplitter

_new_decoder = codecs.getincrementaldecoder("utf-8")


class PieceTable:
    """Token id -> whole text, or None where a token is part of a character; all share it."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.token_bytes = token_bytes
        self._texts: dict[int, str | None] = {}

    def whole_text(self, token_id: int) -> str | None:
        """The token's text if its bytes are whole UTF-8 characters, else None."""
        try:
            return self._texts[token_id]
        except KeyError:
            return self._learn(token_id)

    def _learn(self, token_id: int) -> str | None:
        try:
            text: str | None = self.token_bytes(token_id).decode("utf-8")
        except UnicodeDecodeError:
            text = None
        self._texts[token_id] = text
        return text


class Output:
    """One choice's text: feed tokens, flush at the end.

    `stop` is the stop string that ended the text, once one did.  Stops are not
    looked for in the first `n_unstoppable` tokens (`min_tokens`).
    """

    __slots__ = ("_decoder", "_n_unstoppable", "_pieces", "_splitter")

    def __init__(
        self, pieces: PieceTable, stops: Sequence[str] = (), n_unstoppable: int = 0
    ) -> None:
        self._pieces = pieces
        self._decoder: codecs.IncrementalDecoder | None = None
        self._splitter = StopSplitter(stops) if stops else None
        self._n_unstoppable = n_unstoppable

    @property
    def stop(self) -> str | None:
        return self._splitter.matched if self._splitter is not None else None

    def feed(self, token_id: int) -> str:
        """Text that can be sent now, "" if none."""
        text = self._pieces.whole_text(token_id) if self._decoder is None else None
        if text is None:
            text = self._decode(self._pieces.token_bytes(token_id))
        if self._splitter is None:
            return text
        if self._n_unstoppable > 0:
            self._n_unstoppable -= 1
            return text
        return self._splitter.feed(text)

    def flush(self) -> str:
        """What is left at the end: an unfinished character becomes one U+FFFD."""
        tail = self._decoder.decode(b"", final=True) if self._decoder is not None else ""
        self._decoder = None
        if self._splitter is None:
            return tail
        return self._splitter.feed(tail) + self._splitter.flush()

    def _decode(self, data: bytes) -> str:
        """Through a decoder that lives only while bytes of a character are missing."""
        if self._decoder is None:
            self._decoder = _new_decoder("replace")
        text = self._decoder.decode(data)
        if not self._decoder.getstate()[0]:
            self._decoder = None
        return text
