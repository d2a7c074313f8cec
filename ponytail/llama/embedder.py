"""A second llama.cpp context over the same weights: texts in, vectors or scores out.

Owns the context and what is made of the vectors of a text's tokens (pooling).  A decoder reads
a long text in several calls, and its tokens' vectors are summed up here, so that a text may be
as long as the window; an encoder, in which every token sees all others, and a ranker take a
text whole.  Fits `engine.side_work.Reader`.  Engine thread only.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from ponytail.errors import BadConfig, DecodeError, EngineFailed
from ponytail.llama.capi import captured_log, lib, logged_mib
from ponytail.llama.context import FLASH_ATTN
from ponytail.llama.model import Model

Pooling: TypeAlias = Literal["mean", "cls", "last", "rank"]
"""What one vector is made of: all tokens, the first, the last, or the model's head that ranks."""

Part: TypeAlias = tuple[Sequence[int], int, int]
"""(tokens of a text, the first and the last but one of those that are read now)."""

POOLINGS: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""By the value of a file's `*.pooling_type`."""

_NONE, _RANK = 0, 4  # llama_pooling_type
_N_SEQ = 64
# Sequences of their own: the text that is read in parts, and padding.
_LONG, _PADDING = _N_SEQ, _N_SEQ + 1
_PAD = 256
_TILE = 64
# What attention scores may take in memory so that no flash attention is needed.
_SCORES_BYTES = 256 << 20
_N_BATCH = 512


class Embedder:
    """Texts of up to `n_ctx` tokens.  Raises BadConfig when libllama refuses.

    `n_dims` numbers make a vector, or one a score.  At most `n_batch` tokens and `n_texts` texts
    are read in one call; `can_split`: a text may be read in several.  `mib` is the memory it takes.
    """

    def __init__(
        self,
        model: Model,
        *,
        pooling: Pooling,
        is_causal: bool,
        n_ctx: int,
        n_threads: int,
        flash_attn: str = "auto",
    ) -> None:
        self.pooling, self.n_ctx = pooling, n_ctx
        self._model = model
        params = lib.llama_context_default_params()
        params.embeddings = True
        params.pooling_type = _RANK if pooling == "rank" else _NONE
        params.n_threads = params.n_threads_batch = n_threads
        n_heads = lib.llama_model_n_head(model.pointer)
        params.kv_unified = True
        self.can_split = is_causal and pooling != "rank"
        n_cells = -(-n_ctx // _PAD) * _PAD
        self.n_batch = max(_N_BATCH if self.can_split else n_cells, _N_SEQ)
        self.n_texts = _N_SEQ
        # Whole texts are read while a long one is under way; and padding.
        params.n_ctx = max(n_cells, self.n_batch) + self.n_batch * self.can_split + _PAD
        if flash_attn == "auto" and n_heads * params.n_ctx * self.n_batch * 4 <= _SCORES_BYTES:
            flash_attn = "off"
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        # ggml's flash attention on CPUs is less exact below 64 rows, and a text's vector would
        # change with what else is read in the same call (measured: cosine 0.999 against 1.000000).
        self._n_least = 1 if flash_attn == "off" else _TILE
        params.n_batch = params.n_ubatch = params.n_outputs_max = self.n_batch
        params.n_seq_max = _N_SEQ + 2
        with captured_log() as lines:
            self._pointer: Any = lib.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise BadConfig(
                f"llama.cpp could not create a context for embeddings of {n_ctx} tokens "
                f"(pooling {pooling}); see --verbose for its words"
            )
        self.mib = logged_mib("\n".join(lines), "compute", "KV", "RS")
        self.n_dims: int = 1 if pooling == "rank" else lib.llama_model_n_embd_out(model.pointer)
        self._sum: Any = None
        self._n_held = 0
        self._batch = lib.llama_batch_init(self.n_batch, 0, 1)

    def close(self) -> None:
        """Free the context; the object must not be used afterwards."""
        if self._pointer:
            lib.llama_batch_free(self._batch)
            lib.llama_free(self._pointer)
            self._pointer = None

    def read(self, parts: Sequence[Part]) -> list[array[float] | Exception | None]:
        """A vector of length 1, or a score, for each part that ends its text; else None.

        An exception in place of a vector that came out as none.
        A part that is not a whole text comes alone; it begins, or goes on where the last such
        call ended.  Raises DecodeError.
        """
        tokens, start, end = parts[0]
        is_part = end - start < len(tokens)
        self._forget(_LONG if is_part and start == 0 else None)
        self._fill(parts, _LONG if is_part else 0)
        result = lib.llama_decode(self._pointer, self._batch)
        if result != 0:
            raise DecodeError(f"llama_decode returned {result} for {len(parts)} texts to embed")
        if self.pooling == "rank":
            return [*map(self._score, range(len(parts)))]
        rows = self._rows(self._batch.n_tokens)
        found: list[array[float] | Exception | None] = []
        at = 0
        for tokens, start, end in parts:
            pooled = self._pooled(rows[at : at + end - start], start, end, len(tokens))
            found.append(None if pooled is None else _unit(pooled))
            at += end - start
        return found

    def _forget(self, seq_id: int | None) -> None:
        """Free the cells of whole texts, and those of this sequence."""
        memory = lib.llama_get_memory(self._pointer)
        if not memory:
            return
        for one in (*range(self._n_held), *((seq_id,) if seq_id is not None else ())):
            lib.llama_memory_seq_rm(memory, one, -1, -1)
        if self._n_least > 1:
            lib.llama_memory_seq_rm(memory, _PADDING, -1, -1)
        self._n_held = 0

    def _fill(self, parts: Sequence[Part], first_seq_id: int) -> None:
        batch, at = self._batch, 0
        if first_seq_id == 0:
            self._n_held = len(parts)
        for seq_id, (tokens, start, end) in enumerate(parts, first_seq_id):
            for position in range(start, end):
                batch.token[at] = tokens[position]
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = seq_id
                batch.logits[at] = 1
                at += 1
        for position in range(self._n_least - at):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = 0, position, 1
            batch.seq_id[at][0], batch.logits[at] = _PADDING, 1
            at += 1
        batch.n_tokens = at

    def _rows(self, n: int) -> Any:
        """Vectors of the last call's tokens, shape (n, n_dims)."""
        # Asking for one row first makes libllama put the rows into batch order.
        lib.llama_get_embeddings_ith(self._pointer, n - 1)
        address = ctypes.cast(lib.llama_get_embeddings(self._pointer), ctypes.c_void_p).value
        buffer: Any = (ctypes.c_float * (n * self.n_dims)).from_address(address or 0)
        return np.frombuffer(buffer, dtype=np.float32).reshape(n, self.n_dims)

    def _pooled(self, rows: Any, start: int, end: int, n_tokens: int) -> Any:
        """The text's vector, float64, once its last token was read."""
        so_far = self._sum if start else None
        if self.pooling == "mean":
            total = rows.sum(axis=0, dtype=np.float64)
            pooled = total if so_far is None else so_far + total
        elif self.pooling == "last":
            pooled = rows[-1].astype(np.float64)
        else:
            pooled = rows[0].astype(np.float64) if so_far is None else so_far
        if end == n_tokens:
            return pooled
        self._sum = pooled
        return None

    def _score(self, seq_id: int) -> array[float]:
        return array("f", [lib.llama_get_embeddings_seq(self._pointer, seq_id)[0]])


def _unit(vector: Any) -> array[float] | Exception:
    """The same direction with length 1, float32."""
    length = float(np.sqrt(np.square(vector).sum()))
    if not 0 < length < np.inf:
        return EngineFailed("the model made no vector of this text")
    return array("f", (vector / length).astype(np.float32).tobytes())
