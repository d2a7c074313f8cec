"""A loaded model file: its vocabulary, its metadata, what its memory can do.

Owns the `llama_model` pointer.  Must not know contexts, requests or templates.
After loading everything here is read-only in libllama and safe from any thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ponytail.errors import BadModelFile
from ponytail.llama.capi import ensure_backend, lib

_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_MMAP, _NO_MMAP, _MLOCK, _MMAP_MLOCK = 1, 0, 2, 3


@dataclass(frozen=True, slots=True)
class FIM:
    """Token ids for filling a gap: before it, after it, where it is filled; and, where the
    vocabulary has them, what parts files (`repo`, `file`)."""

    before: int
    after: int
    gap: int
    repo: int | None = None
    file: int | None = None


class Model:
    """Weights and vocabulary of one GGUF file.

    `on_progress` is called with 0.0-1.0 from the loading thread.  Raises
    BadModelFile when libllama refuses the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = 0,
        use_mmap: bool = True,
        use_mlock: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        ensure_backend()
        self.path = path
        self.n_gpu_layers = n_gpu_layers
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = (
            (_MMAP_MLOCK if use_mlock else _MMAP)
            if use_mmap
            else (_MLOCK if use_mlock else _NO_MMAP)
        )
        callback = lib.llama_progress_callback(_progress(on_progress))
        params.progress_callback = callback
        self.pointer = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            raise BadModelFile(f"{path}: llama.cpp could not load this file (see --verbose)")
        self._read_facts()
        self._pieces: dict[int, bytes] = {}

    def _read_facts(self) -> None:
        self.vocab = lib.llama_model_get_vocab(self.pointer)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self.pointer)
        self.n_bytes: int = lib.llama_model_size(self.pointer)
        self.add_bos: bool = lib.llama_vocab_get_add_bos(self.vocab)
        self.bos_id: int = lib.llama_vocab_bos(self.vocab)
        self.eos_id: int = lib.llama_vocab_eos(self.vocab)
        self.is_spm: bool = lib.llama_vocab_type(self.vocab) == lib.LLAMA_VOCAB_TYPE_SPM
        self.has_encoder: bool = lib.llama_model_has_encoder(self.pointer)
        self._read_memory_facts()
        self.eog_ids, self.control_ids = self._special_tokens()
        self.control_texts = frozenset(self.control_ids)
        self.fim = self._read_fim()

    def _read_memory_facts(self) -> None:
        is_recurrent: bool = lib.llama_model_is_recurrent(
            self.pointer
        ) or lib.llama_model_is_hybrid(self.pointer)
        self.n_swa: int = 0 if is_recurrent else lib.llama_model_n_swa(self.pointer)
        # A recurrent state cannot be cut back to an earlier position.  A sliding window can
        # only as long as its older cells are there, and states do not hold them.
        self.can_cut: bool = not (is_recurrent or self.n_swa)
        # In a pool a sliding window's older cells are taken for other sequences' tokens, and a
        # recurrent state is one cell that nobody can hold a part of.
        self.can_share: bool = self.can_cut

    def _read_fim(self) -> FIM | None:
        before: int = lib.llama_vocab_fim_pre(self.vocab)
        after: int = lib.llama_vocab_fim_suf(self.vocab)
        gap: int = lib.llama_vocab_fim_mid(self.vocab)
        if min(before, after, gap) < 0:
            return None
        file, part = lib.llama_vocab_fim_rep(self.vocab), lib.llama_vocab_fim_sep(self.vocab)
        return FIM(before, after, gap, file if file >= 0 else None, part if part >= 0 else None)

    def _special_tokens(self) -> tuple[tuple[int, ...], dict[str, int]]:
        """End-of-generation ids, and the literals the tokenizer would parse as control tokens."""
        eog: list[int] = []
        texts: dict[str, int] = {}
        for token_id in range(self.n_vocab):
            if lib.llama_vocab_get_attr(self.vocab, token_id) & _CONTROL:
                texts[self.token_text(token_id)] = token_id
            if lib.llama_vocab_is_eog(self.vocab, token_id):
                eog.append(token_id)
        texts.pop("", None)
        return tuple(eog), texts

    def close(self) -> None:
        """Free the weights; the object must not be used afterwards."""
        if self.pointer:
            lib.llama_model_free(self.pointer)
            self.pointer = None

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it (`<|im_end|>`), not as it reads."""
        if token_id < 0:
            return ""
        text = lib.llama_vocab_get_text(self.vocab, token_id)
        return text.decode("utf-8", "replace") if text else ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; b"" for control tokens.  May be part of a character."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._piece(token_id)
        return piece

    def _piece(self, token_id: int, n_bytes: int = 256) -> bytes:
        buffer = ctypes.create_string_buffer(n_bytes)
        n = lib.llama_token_to_piece(self.vocab, token_id, buffer, n_bytes, 0, False)
        return self._piece(token_id, -n) if n < 0 else buffer.raw[:n]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`; `add_special` adds BOS/EOS where the vocabulary wants them."""
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        ids = (lib.llama_token * capacity)()
        n = lib.llama_tokenize(
            self.vocab, data, len(data), ids, capacity, add_special, parse_special
        )
        if n < 0:
            raise ValueError(f"llama_tokenize returned {n} for {len(data)} bytes")
        return list(ids[:n])

    def tokenize_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Token ids of (text, parse_special) pieces that form one text; BOS exactly once."""
        ids: list[int] = []
        for i, (text, parse_special) in enumerate(segments):
            if i == 0:
                starts = self.bos_id >= 0 and text.startswith(self.token_text(self.bos_id))
                ids += self.tokenize(
                    text, add_special=not (starts and parse_special), parse_special=parse_special
                )
            else:
                ids += self.tokenize_inside(text, parse_special=parse_special)
        return ids

    def tokenize_pair(self, first: str, second: str) -> list[int]:
        """Two texts as encoders take them together, parted as the vocabulary wants it."""
        add_eos: bool = lib.llama_vocab_get_add_eos(self.vocab)
        sep: int = lib.llama_vocab_sep(self.vocab)
        end = [self.eos_id if self.eos_id >= 0 else sep] if add_eos else []
        between = [sep] if lib.llama_vocab_get_add_sep(self.vocab) else []
        start = [self.bos_id] if self.add_bos else []
        a, b = (self.tokenize(t, add_special=False, parse_special=False) for t in (first, second))
        return [*start, *a, *end, *between, *b, *end]

    def tokenize_inside(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Like tokenize, for text that continues: SentencePiece must add no leading space."""
        if not self.is_spm:
            return self.tokenize(text, add_special=False, parse_special=parse_special)
        guard = self.tokenize("\n", add_special=False, parse_special=False)
        ids = self.tokenize("\n" + text, add_special=False, parse_special=parse_special)
        return ids[len(guard) :] if ids[: len(guard)] == guard else ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


def _progress(on_progress: Callable[[float], None] | None) -> Callable[[float, object], bool]:
    def report(fraction: float, _user_data: object) -> bool:
        if on_progress is not None:
            on_progress(fraction)
        return True

    return report
