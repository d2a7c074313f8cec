"""llama.cpp by itself: one decode of a text through a context of its own, none of our code."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ponytail.llama.capi import lib
from ponytail.llama.model import Model
from tests.synthetic import smollm2_path

N_CTX = 2048


@contextmanager
def computed(ids: Sequence[int], **settings: Any) -> Iterator[tuple[Model, Any]]:
    """(model, context) once all tokens are computed, without flash attention; `settings` are
    members of llama_context_params."""
    model = Model(smollm2_path())
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = N_CTX
    params.n_threads = params.n_threads_batch = 2
    params.flash_attn_type = 0
    for name, value in settings.items():
        setattr(params, name, value)
    context = lib.llama_init_from_model(model.pointer, params)
    batch = lib.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert lib.llama_decode(context, batch) == 0
    yield model, context
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    model.close()


def floats(pointer: Any, n: int) -> Any:
    """A copy of the n float32 there, as float64."""
    address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    buffer: Any = (ctypes.c_float * n).from_address(address)
    return np.frombuffer(buffer, dtype=np.float32).astype(np.float64)
