"""llama.cpp's own dialect: /completion, /infill, /props, /slots, for its existing clients.

Owns which request each JSON body asks for.  The rows it checks by are in
`llamacpp_fields`, the replies in `llamacpp_stream` and `llamacpp_state`.  Must not know
HTTP, the engine or the model.  Pure; any thread.

`n_predict` 0 is "compute the prompt and no more", which a request says with `echo`; the
echoed prompt is left out of the reply.  `return_tokens` asks for the tokens of the answer
with none of the likeliest beside them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ponytail.api.dialect import Encoder, Limits, Reply
from ponytail.api.llamacpp_fields import COMPLETION, INFILL, SAMPLERS
from ponytail.api.llamacpp_state import PropsFacts, SlotFacts, encode_props, encode_slots
from ponytail.api.llamacpp_stream import (
    RANDOM_SEED,
    LlamaCppRequest,
    completion_encoder,
    encode_error,
)
from ponytail.api.openai_constraints import only_one
from ponytail.api.openai_messages import N_PROMPTS
from ponytail.api.openai_sampling import DEFAULTS
from ponytail.errors import InvalidRequest, PonytailError
from ponytail.types import GenerateRequest, InfillPrompt, Prompt, Sampling

__all__ = [
    "Completion",
    "Infill",
    "PluralCompletion",
    "PropsFacts",
    "SlotFacts",
    "encode_error",
    "encode_props",
    "encode_slots",
]


class Completion:
    """`/completion`; `defaults` hold for what a request does not say."""

    path: str = "/completion"
    id_prefix: str = "cmpl-"

    def __init__(self, defaults: Sampling = DEFAULTS) -> None:
        self.defaults = defaults

    def parse(self, body: dict[str, Any], limits: Limits) -> GenerateRequest:
        """Raises InvalidRequest, with `param` the path of the field."""
        values = COMPLETION.read_members(body, limits)
        return _request(values["prompt"], values, self.defaults)

    def encoder(self, reply: Reply, request: GenerateRequest) -> Encoder:
        return _encoder(reply, request)

    def encode_error(self, error: PonytailError) -> bytes:
        return encode_error(error)


class PluralCompletion(Completion):
    """The same under its other name; /v1/completions is OpenAI's."""

    path: str = "/completions"


class Infill:
    """`/infill`; `defaults` hold for what a request does not say."""

    path: str = "/infill"
    id_prefix: str = "infill-"

    def __init__(self, defaults: Sampling = DEFAULTS) -> None:
        self.defaults = defaults

    def parse(self, body: dict[str, Any], limits: Limits) -> GenerateRequest:
        """Raises InvalidRequest, with `param` the path of the field."""
        values = INFILL.read_members(body, limits)
        prompt = InfillPrompt(
            prefix=values["input_prefix"],
            suffix=values["input_suffix"],
            extra=values.get("input_extra", ()),
            prompt=values.get("prompt", ""),
        )
        return _request((prompt,), values, self.defaults)

    def encoder(self, reply: Reply, request: GenerateRequest) -> Encoder:
        return _encoder(reply, request)

    def encode_error(self, error: PonytailError) -> bytes:
        return encode_error(error)


def _encoder(reply: Reply, request: GenerateRequest) -> Encoder:
    if not isinstance(request, LlamaCppRequest):
        raise TypeError("the request comes from another dialect's parser")
    return completion_encoder(reply, request)


def _request(
    prompts: tuple[Prompt, ...], values: dict[str, Any], defaults: Sampling
) -> LlamaCppRequest:
    n_predict = values.get("n_predict")
    _ensure_consistent(len(prompts), values)
    return LlamaCppRequest(
        prompts=prompts,
        sampling=_sampling(values, defaults),
        max_tokens=n_predict,
        stop=values.get("stop", ()),
        n=values.get("n_cmpl", 1),
        stream=values.get("stream", False),
        echo=n_predict == 0,
        constraint=only_one(values.values()),
        n_logprobs=None if n_predict == 0 else _n_logprobs(values),
        splits_reasoning=False,
        priority=values.get("priority", 0),
        deadline_s=values.get("deadline_s"),
        cache_salt=values.get("cache_salt", ""),
        deterministic=values.get("deterministic", False),
        returns_tokens=values.get("return_tokens", False),
        response_fields=values.get("response_fields", ()),
    )


def _ensure_consistent(n_prompts: int, values: dict[str, Any]) -> None:
    """The rules that need two fields."""
    n_predict = values.get("n_predict")
    if n_predict is not None and values.get("min_tokens", 0) > n_predict:
        raise InvalidRequest(
            f"min_tokens must not be above n_predict ({n_predict}), got {values['min_tokens']}.",
            param="min_tokens",
        )
    n_total = n_prompts * values.get("n_cmpl", 1)
    if n_total > N_PROMPTS:
        raise InvalidRequest(
            f"n_cmpl times the number of prompts must be at most {N_PROMPTS}, got {n_total}.",
            param="n_cmpl",
        )


def _n_logprobs(values: dict[str, Any]) -> int | None:
    n_probs: int = values.get("n_probs", 0)
    return n_probs if n_probs or values.get("return_tokens") else None


def _sampling(values: dict[str, Any], defaults: Sampling) -> Sampling:
    picked = {name: values[name] for name in Sampling.__struct_fields__ if name in values}
    if picked.get("seed") == RANDOM_SEED:
        picked["seed"] = None
    sampling = msgspec.structs.replace(defaults, **picked)
    if "samplers" not in values or sampling.mirostat:
        return sampling  # Mirostat has a chain of its own
    left_out = [off for name, off in SAMPLERS.items() if name not in values["samplers"]]
    return msgspec.structs.replace(sampling, **{k: v for off in left_out for k, v in off.items()})
