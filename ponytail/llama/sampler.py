"""One sampler chain per sequence, built from Sampling.

Owns the `llama_sampler` pointers.  The order of a chain is llama.cpp's default
order (common/sampling): penalties, dry, top-k, typical, top-p, min-p, xtc,
temperature, draw.  Used by the engine thread only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from ponytail.errors import ConstraintFailed
from ponytail.llama.capi import lib
from ponytail.llama.model import Model
from ponytail.types import Sampling

SamplerPointer: TypeAlias = Any
Logits: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
Scores: TypeAlias = tuple[float | None, tuple[tuple[int, float], ...]]

_MIROSTAT_M = 100
_FOREVER = 1 << 62


def is_plain_greedy(sampling: Sampling) -> bool:
    """True when the pick is the largest logit and nothing looks at earlier tokens."""
    return sampling.temperature <= 0 and not has_history(sampling)


def has_history(sampling: Sampling) -> bool:
    """True when earlier tokens change the pick."""
    return _has_penalties(sampling) or sampling.dry_multiplier > 0


def _has_penalties(s: Sampling) -> bool:
    changes = s.repeat_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
    return s.repeat_last_n != 0 and changes


class SamplerChain:
    """A chain for one sequence; `seed` fixes its draws.  `close` frees it.

    `history` are the tokens that penalties count at the start: the prompt.
    """

    def __init__(
        self, model: Model, sampling: Sampling, seed: int, n_ctx: int, history: Sequence[int]
    ) -> None:
        self.pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for part in _parts(model, sampling, _seed32(seed), n_ctx):
            lib.llama_sampler_chain_add(self.pointer, part)
        if has_history(sampling):
            for token_id in history:
                lib.llama_sampler_accept(self.pointer, token_id)

    def close(self) -> None:
        if self.pointer:
            lib.llama_sampler_free(self.pointer)
            self.pointer = None


def _seed32(seed: int) -> int:
    """The seed's low 32 bits; all ones would mean "draw one" to libllama."""
    low = seed & 0xFFFFFFFF
    return low if low != 0xFFFFFFFF else low - 1


def _window(n_tokens: int, n_ctx: int) -> int:
    """Never more than the context: libllama allocates what it is told."""
    return n_ctx if n_tokens < 0 else min(n_tokens, n_ctx)


def _parts(model: Model, s: Sampling, seed: int, n_ctx: int) -> list[SamplerPointer]:
    parts: list[SamplerPointer] = []
    if _has_penalties(s):
        window = _window(s.repeat_last_n, n_ctx)
        parts.append(
            lib.llama_sampler_init_penalties(
                model.n_vocab, window, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
            )
        )
    if s.dry_multiplier > 0:
        parts.append(_dry(model, s, n_ctx))
    if s.temperature <= 0:
        return [*parts, lib.llama_sampler_init_greedy()]
    if s.mirostat:
        return [*parts, lib.llama_sampler_init_temp(s.temperature), _mirostat(model, s, seed)]
    return [*parts, *_truncation(s, seed), lib.llama_sampler_init_dist(seed)]


def _truncation(s: Sampling, seed: int) -> list[SamplerPointer]:
    parts: list[SamplerPointer] = []
    if s.top_k > 0:
        parts.append(lib.llama_sampler_init_top_k(s.top_k))
    if s.typical_p < 1:
        parts.append(lib.llama_sampler_init_typical(s.typical_p, 1))
    if s.top_p < 1:
        parts.append(lib.llama_sampler_init_top_p(s.top_p, 1))
    if s.min_p > 0:
        parts.append(lib.llama_sampler_init_min_p(s.min_p, 1))
    if s.xtc_probability > 0:
        parts.append(lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 1, seed))
    if s.temperature != 1:
        parts.append(lib.llama_sampler_init_temp(s.temperature))
    return parts


def _mirostat(model: Model, s: Sampling, seed: int) -> SamplerPointer:
    if s.mirostat == 1:
        return lib.llama_sampler_init_mirostat(
            model.n_vocab, seed, s.mirostat_tau, s.mirostat_eta, _MIROSTAT_M
        )
    return lib.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta)


def _dry(model: Model, s: Sampling, n_ctx: int) -> SamplerPointer:
    breakers = [b.encode() for b in s.dry_sequence_breakers]
    array = (ctypes.c_char_p * max(1, len(breakers)))(*breakers)
    window = _window(s.dry_penalty_last_n, n_ctx)
    return lib.llama_sampler_init_dry(
        model.vocab,
        s.dry_multiplier,
        s.dry_base,
        s.dry_allowed_length,
        window,
        array,
        len(breakers),
    )


class Guide(Protocol):
    """As in engine.backend."""

    @property
    def forced(self) -> int | None: ...

    @property
    def extra(self) -> int | None: ...

    def fill(self, pointer: int, n_bytes: int) -> bool: ...

    def accept(self, token_id: int) -> None: ...


def scores_of(logits: Logits, token_id: int | None, n_top: int) -> Scores:
    """Log-probability of a token, and the n_top likeliest, of a row of raw logits."""
    top = float(logits.max())
    log_sum = top + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    own = None if token_id is None else float(logits[token_id]) - log_sum
    if not n_top:
        return own, ()
    best = np.argpartition(logits, -n_top)[-n_top:]
    # Equal ones by id, so that the order is always the same.
    best = best[np.lexsort((best, -logits[best]))]
    return own, tuple((int(i), float(logits[i]) - log_sum) for i in best)


class RowSampler:
    """Everything one sequence needs to pick tokens from its row of logits.

    Logit bias, banned end tokens and the guide's mask are written into the row first, so that
    they hold for the greedy pick and for the chain alike.  `scores` are the last pick's in the
    row as it was before.
    """

    __slots__ = (
        "_banned_until",
        "_bias_ids",
        "_bias_values",
        "_eog",
        "_guide",
        "_mask",
        "_n_drawn",
        "_n_scores",
        "_raw",
        "chain",
        "scores",
    )

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        seed: int,
        n_ctx: int,
        history: Sequence[int],
        guide: Guide | None = None,
        n_scores: int | None = None,
    ) -> None:
        plain = is_plain_greedy(sampling)
        self.chain = None if plain else SamplerChain(model, sampling, seed, n_ctx, history)
        self._bias_ids = np.array([i for i, _ in sampling.logit_bias], dtype=np.int64)
        self._bias_values = np.array([b for _, b in sampling.logit_bias], dtype=np.float32)
        self._eog = np.array(model.eog_ids, dtype=np.int64)
        self._banned_until = _FOREVER if sampling.ignore_eos else sampling.min_tokens
        self._n_drawn = 0
        self._guide = guide
        self._mask = None if guide is None else np.zeros(-(-model.n_vocab // 32), dtype=np.int32)
        self._n_scores = None if n_scores is None else min(n_scores, model.n_vocab)
        self._raw: Logits | None = None
        self.scores: Scores | None = None

    def prepare(self, logits: Logits) -> None:
        """Write bias, bans and the mask into this row, shape (n_vocab,), in place.

        Raises ConstraintFailed when nothing is left.
        """
        if self._n_scores is not None:
            self._raw = logits.copy()
        if self._guide is not None and self._guide.forced is not None:
            forced = self._guide.forced
            logits[:] = -np.inf
            logits[forced] = 0.0
            return
        if self._bias_ids.size:
            logits[self._bias_ids] += self._bias_values
        if self._n_drawn < self._banned_until:
            logits[self._eog] = -np.inf
        self._n_drawn += 1
        if self._guide is not None:
            self._apply(self._guide, logits)

    def _apply(self, guide: Guide, logits: Logits) -> None:
        mask = self._mask
        if mask is None or not guide.fill(mask.ctypes.data, mask.nbytes):
            return
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(logits)]
        extra = guide.extra
        if extra is not None:
            bits[extra] = 1
        logits[bits == 0] = -np.inf
        if logits.max() == -np.inf:
            raise ConstraintFailed(
                "the grammar of the answer and logit_bias (or ignore_eos) leave no token"
            )

    def accept(self, token_id: int) -> None:
        """This token was picked.  Raises ConstraintFailed when the guide does not take it."""
        if self._n_scores is not None and self._raw is not None:
            self.scores = scores_of(self._raw, token_id, self._n_scores)
        if self._guide is not None:
            self._guide.accept(token_id)

    def close(self) -> None:
        if self.chain is not None:
            self.chain.close()
            self.chain = None
