"""What the synthetic models are made of: metadata and tensors of each architecture.

`ARCHS` has one of each kind of memory at least: full attention, a sliding window in every
other layer, a recurrent state, and recurrent and attention layers by turns (with one layer
they have only the first of the two).  `ENCODERS` have no memory at all: they only embed, and
rank with the head that comes with them if `*.pooling_type` says so.  Names and shapes are
libllama's (`src/models`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAD_DIM = 32  # a whole block of every quantised KV type
N_SWA = 16
"""The sliding window of gemma3, in tokens."""
D_STATE, D_CONV = 16, 4  # of mamba
L_CACHE = 3  # of lfm2's short convolutions

N_POSITIONS = 2048
"""Rows of bert's table of positions; its context length must be the same."""
MEAN, CLS, LAST, RANK = 1, 2, 3, 4
"""Values of `*.pooling_type`."""

Tensors = dict[str, NDArray[Any]]


def _n_kv_heads(n_embd: int) -> int:
    return max(n_embd // HEAD_DIM // 2, 1)


def arch_metadata(arch: str, n_layers: int, n_embd: int) -> dict[str, Any]:
    """The keys of `{arch}.*` that differ between architectures."""
    if arch == "mamba":
        return {
            f"{arch}.feed_forward_length": 0,
            f"{arch}.ssm.conv_kernel": D_CONV,
            f"{arch}.ssm.inner_size": 2 * n_embd,
            f"{arch}.ssm.state_size": D_STATE,
            f"{arch}.ssm.time_step_rank": n_embd // 16,
        }
    if arch in ENCODERS:
        return {
            f"{arch}.feed_forward_length": 2 * n_embd,
            f"{arch}.attention.head_count": n_embd // HEAD_DIM,
            f"{arch}.attention.layer_norm_epsilon": 1e-5,
            f"{arch}.attention.causal": False,
            f"{arch}.pooling_type": MEAN,
            "tokenizer.ggml.token_type_count": 1,
        }
    n_kv: int | list[int] = _n_kv_heads(n_embd)
    extra: dict[str, Any] = {}
    if arch == "gemma3":
        extra[f"{arch}.attention.sliding_window"] = N_SWA
        extra[f"{arch}.attention.sliding_window_pattern"] = [i % 2 == 0 for i in range(n_layers)]
    if arch == "lfm2":
        extra[f"{arch}.shortconv.l_cache"] = L_CACHE
        n_kv = [_n_kv_heads(n_embd) * (i % 2) for i in range(n_layers)]
    if arch in ("qwen3", "gemma3"):
        extra[f"{arch}.attention.key_length"] = HEAD_DIM
        extra[f"{arch}.attention.value_length"] = HEAD_DIM
    return {
        f"{arch}.feed_forward_length": 2 * n_embd,
        f"{arch}.attention.head_count": n_embd // HEAD_DIM,
        f"{arch}.attention.head_count_kv": n_kv,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.rope.dimension_count": HEAD_DIM,
        **extra,
    }


@functools.lru_cache(maxsize=4)
def arch_tensors(arch: str, n_vocab: int, n_layers: int, n_embd: int, seed: int) -> Tensors:
    """Random weights; the embeddings in Q8_0, the rest in F32."""
    rng = np.random.default_rng(seed)
    found: Tensors = {"token_embd.weight": _q8_rows(rng, n_vocab, n_embd)}
    for layer in range(n_layers):
        for name, data in (ARCHS | ENCODERS)[arch](rng, n_embd, layer).items():
            found[f"blk.{layer}.{name}"] = data
    if arch in ENCODERS:
        return {**found, **_bert_ends(rng, n_embd)}
    output_norm = "token_embd_norm" if arch == "lfm2" else "output_norm"
    found[f"{output_norm}.weight"] = _ones(n_embd)
    found["output.weight"] = _q8_rows(rng, n_vocab, n_embd)
    return found


def _llama(rng: np.random.Generator, n_embd: int, _layer: int) -> Tensors:
    return {**_norms(n_embd), **_attention(rng, n_embd), **_feed_forward(rng, n_embd)}


def _qwen2(rng: np.random.Generator, n_embd: int, layer: int) -> Tensors:
    found = _llama(rng, n_embd, layer)
    for name in ("attn_q", "attn_k", "attn_v"):
        found[f"{name}.bias"] = np.zeros(len(found[f"{name}.weight"]), np.float32)
    return found


def _qwen3(rng: np.random.Generator, n_embd: int, layer: int) -> Tensors:
    return {**_llama(rng, n_embd, layer), **_head_norms()}


def _gemma3(rng: np.random.Generator, n_embd: int, layer: int) -> Tensors:
    return {
        **_qwen3(rng, n_embd, layer),
        "post_attention_norm.weight": _ones(n_embd),
        "post_ffw_norm.weight": _ones(n_embd),
    }


def _mamba(rng: np.random.Generator, n_embd: int, _layer: int) -> Tensors:
    d_inner, dt_rank = 2 * n_embd, n_embd // 16
    return {
        "attn_norm.weight": _ones(n_embd),
        "ssm_in.weight": _floats(rng, 2 * d_inner, n_embd),
        "ssm_conv1d.weight": _floats(rng, d_inner, D_CONV),
        "ssm_conv1d.bias": np.zeros(d_inner, np.float32),
        "ssm_x.weight": _floats(rng, dt_rank + 2 * D_STATE, d_inner),
        "ssm_dt.weight": _floats(rng, d_inner, dt_rank),
        "ssm_dt.bias": np.zeros(d_inner, np.float32),
        # Negative: the state decays.  Slowly, so that early tokens are seen in late logits.
        "ssm_a": -np.tile(np.geomspace(0.01, 1, D_STATE, dtype=np.float32), (d_inner, 1)),
        "ssm_d": _ones(d_inner),
        "ssm_out.weight": _floats(rng, n_embd, d_inner),
    }


def _lfm2(rng: np.random.Generator, n_embd: int, layer: int) -> Tensors:
    common = {**_norms(n_embd), **_feed_forward(rng, n_embd)}
    if layer % 2:
        return {**common, **_attention(rng, n_embd), **_head_norms()}
    return {
        **common,
        "shortconv.conv.weight": _floats(rng, n_embd, L_CACHE),
        "shortconv.in_proj.weight": _floats(rng, 3 * n_embd, n_embd),
        "shortconv.out_proj.weight": _floats(rng, n_embd, n_embd),
    }


def _bert(rng: np.random.Generator, n_embd: int, _layer: int) -> Tensors:
    rows = ("q", "k", "v", "output")
    return {
        **{f"attn_{name}.weight": 3 * _floats(rng, n_embd, n_embd) for name in rows},
        **_layer_norm("attn_output_norm", n_embd),
        "ffn_up.weight": _floats(rng, 2 * n_embd, n_embd),
        "ffn_down.weight": _floats(rng, n_embd, 2 * n_embd),
        **_layer_norm("layer_output_norm", n_embd),
    }


def _bert_ends(rng: np.random.Generator, n_embd: int) -> Tensors:
    """What comes before the layers, and the rank head after them."""
    return {
        "token_types.weight": np.zeros((1, n_embd), np.float32),
        "position_embd.weight": _floats(rng, N_POSITIONS, n_embd),
        **_layer_norm("token_embd_norm", n_embd),
        "cls.output.weight": _floats(rng, 1, n_embd),
        "cls.output.bias": np.zeros(1, np.float32),
    }


def _layer_norm(name: str, n: int) -> Tensors:
    return {f"{name}.weight": _ones(n), f"{name}.bias": np.zeros(n, np.float32)}


ARCHS: dict[str, Callable[[np.random.Generator, int, int], Tensors]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "mamba": _mamba,
    "lfm2": _lfm2,
}
ENCODERS: dict[str, Callable[[np.random.Generator, int, int], Tensors]] = {"bert": _bert}


def _ones(n: int) -> NDArray[np.float32]:
    return np.ones(n, np.float32)


def _norms(n_embd: int) -> Tensors:
    return {"attn_norm.weight": _ones(n_embd), "ffn_norm.weight": _ones(n_embd)}


def _head_norms() -> Tensors:
    return {"attn_q_norm.weight": _ones(HEAD_DIM), "attn_k_norm.weight": _ones(HEAD_DIM)}


def _attention(rng: np.random.Generator, n_embd: int) -> Tensors:
    n_kv = _n_kv_heads(n_embd) * HEAD_DIM
    rows = (("q", n_embd), ("k", n_kv), ("v", n_kv), ("output", n_embd))
    return {f"attn_{name}.weight": 3 * _floats(rng, n, n_embd) for name, n in rows}


def _feed_forward(rng: np.random.Generator, n_embd: int) -> Tensors:
    return {
        "ffn_gate.weight": _floats(rng, 2 * n_embd, n_embd),
        "ffn_up.weight": _floats(rng, 2 * n_embd, n_embd),
        "ffn_down.weight": _floats(rng, n_embd, 2 * n_embd),
    }


def _q8_rows(rng: np.random.Generator, n_rows: int, n_columns: int) -> NDArray[np.uint8]:
    """Random Q8_0 blocks: a half-precision scale and 32 signed bytes; variance 1/n_columns."""
    blocks = rng.integers(0, 256, (n_rows * n_columns // 32, 34), dtype=np.uint8)
    scale = np.float16(1 / (74 * n_columns**0.5))
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(n_rows, -1)


def _floats(rng: np.random.Generator, n_rows: int, n_columns: int) -> NDArray[np.float32]:
    weights = rng.standard_normal((n_rows, n_columns), dtype=np.float32)
    return weights / np.float32(n_columns**0.5)
