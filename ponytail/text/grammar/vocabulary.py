"""A model's vocabulary as llguidance needs it.

Owns the protocol and the making of llguidance's tokenizer.  Must not know grammars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from llguidance import LLTokenizer


class Vocabulary(Protocol):
    """What is asked of a model; `ponytail.llama.model.Model` fits it."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def eog_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ...

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Ids of control tokens by their text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; b"" for control tokens."""
        ...

    def tokenize_inside(self, text: str) -> list[int]:
        """Token ids of text that continues; control tokens spelled in it are read as such."""
        ...


class _Wrapped:
    """The interface that llguidance calls back."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        control = {token_id: text for text, token_id in vocabulary.control_ids.items()}
        self.eos_token_id = vocabulary.eog_ids[0] if vocabulary.eog_ids else 0
        self.bos_token_id = None
        # 0xff marks what is no text: no grammar matches it unless it names the id.
        self.tokens = [
            b"\xff" + control[i].encode() if i in control else vocabulary.token_bytes(i)
            for i in range(vocabulary.n_vocab)
        ]
        self.special_token_ids = sorted(control)
        self._vocabulary = vocabulary

    def __call__(self, text: bytes | str) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._vocabulary.tokenize_inside(plain)


def make_tokenizer(vocabulary: Vocabulary) -> Any:
    """llguidance's tokenizer; takes some tenths of a second for a large vocabulary."""
    return LLTokenizer(
        _Wrapped(vocabulary),  # type: ignore[arg-type]
        n_vocab=vocabulary.n_vocab,
        eos_token=list(vocabulary.eog_ids) or None,
    )
