"""A vocabulary of bytes, some longer pieces and three control tokens."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping

from ponytail.text.grammar import Compiled

WORDS = [b'{"', b'":', b'", "', b"true", b"null", b" the", "é".encode(), b"  ", b"\n\n", b"12"]
CONTROLS = ("<|end|>", "<tool_call>", "</tool_call>")


def byte_ids(text: str, control_ids: Mapping[str, int]) -> list[int]:
    """One id for each control token, and for each byte of the rest."""
    for control, token_id in control_ids.items():
        before, found, after = text.partition(control)
        if found:
            return [*byte_ids(before, control_ids), token_id, *byte_ids(after, control_ids)]
    return list(text.encode())


class SmallVocabulary:
    """Fits `grammar.Vocabulary`; ids below 256 are bytes."""

    n_vocab = 256 + len(WORDS) + len(CONTROLS)
    control_ids = {text: 256 + len(WORDS) + i for i, text in enumerate(CONTROLS)}  # noqa: RUF012
    eog_ids = (control_ids["<|end|>"],)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return WORDS[token_id - 256] if token_id < 256 + len(WORDS) else b""

    def tokenize_inside(self, text: str) -> list[int]:
        return byte_ids(text, self.control_ids)


_CONTROL_TEXTS = {token_id: text for text, token_id in SmallVocabulary.control_ids.items()}


def allowed(compiled: Compiled, text: str) -> bool:
    """Whether the grammar takes the text and may end there."""
    matcher = compiled.matcher()
    return matcher.consume_text(text) and matcher.is_accepting


def walk(compiled: Compiled, seed: int, n_max: int = 4000) -> str | None:
    """A text written by a model that picks any allowed token alike; None if it is not done."""
    vocabulary, chance = SmallVocabulary(), random.Random(seed)
    matcher, data = compiled.matcher(), b""
    words = array("I", [0] * -(-vocabulary.n_vocab // 32))
    for _ in range(n_max):
        if matcher.is_complete:
            return data.decode()
        matcher.fill(words.buffer_info()[0], len(words) * 4)
        assert not matcher.error
        ids = [i for i in range(vocabulary.n_vocab) if words[i // 32] >> i % 32 & 1]
        # An end that is allowed is taken often, as models do.
        ends = [i for i in ids if i in vocabulary.eog_ids or i in (ord('"'), ord("}"), ord("]"))]
        pick = chance.choice(ends if ends and chance.random() < 0.3 else ids)
        if pick in vocabulary.eog_ids:
            return data.decode()
        assert matcher.consume(pick), "what the mask allows is taken"
        data += _CONTROL_TEXTS.get(pick, "").encode() or vocabulary.token_bytes(pick)
    return None
