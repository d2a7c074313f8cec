"""llama.cpp's GET /props and GET /slots, from plain facts.

Owns their shapes (llama.cpp's tools/server/README.md) and what is never shown: a path of the
file system, the text of a prompt or an answer, the settings of another user's request.
Must not know where the facts come from.  Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ponytail.api.llamacpp_stream import generation_settings
from ponytail.types import GenerateRequest, Sampling


class PropsFacts(msgspec.Struct, frozen=True):
    """What /props tells.  `model` is the name the model is served under.

    `n_ctx` is the window of one request in tokens, `n_parallel` how many run at once.
    `chat_template` is the template's source, "" without one; `build` names the version.
    """

    model: str
    n_ctx: int
    n_parallel: int
    defaults: Sampling = Sampling()
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    build: str = ""
    is_sleeping: bool = False


def encode_props(facts: PropsFacts) -> bytes:
    """The reply of GET /props; `model_path` is the model's name."""
    params = generation_settings(GenerateRequest((), sampling=facts.defaults))
    return msgspec.json.encode(
        {
            "default_generation_settings": {"n_ctx": facts.n_ctx, "params": params},
            "total_slots": facts.n_parallel,
            "model_alias": facts.model,
            "model_path": facts.model,
            "modalities": {"vision": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": facts.chat_template,
            "bos_token": facts.bos_token,
            "eos_token": facts.eos_token,
            "build_info": facts.build,
            "is_sleeping": facts.is_sleeping,
        }
    )


class SlotFacts(msgspec.Struct, frozen=True):
    """One running choice, in tokens.

    `n_computed` of the `n_prompt` are done, found in the cache or computed.  `n_max` is the
    most it may generate, None when there is no such limit.
    """

    n_prompt: int
    n_computed: int
    n_generated: int
    n_max: int | None = None
    is_processing: bool = True


def encode_slots(running: Sequence[SlotFacts], *, n_parallel: int, n_ctx: int) -> bytes:
    """The reply of GET /slots: those that run, then idle ones up to `n_parallel`.

    Slots are numbered as they stand here; a number means nothing between two calls.
    """
    idle = SlotFacts(0, 0, 0, None, is_processing=False)
    facts = [*running, *(idle for _ in range(n_parallel - len(running)))]
    return msgspec.json.encode([_slot(i, fact, n_ctx) for i, fact in enumerate(facts)])


def _slot(slot_id: int, facts: SlotFacts, n_ctx: int) -> dict[str, Any]:
    n_remain = -1 if facts.n_max is None else max(0, facts.n_max - facts.n_generated)
    return {
        "id": slot_id,
        "id_task": -1,
        "n_ctx": n_ctx,
        "speculative": False,
        "is_processing": facts.is_processing,
        "n_prompt_tokens": facts.n_prompt,
        "n_prompt_tokens_processed": facts.n_computed,
        "params": {},
        "next_token": [
            {
                "has_next_token": facts.is_processing,
                "n_remain": n_remain,
                "n_decoded": facts.n_generated,
            }
        ],
        "prompt": "",
    }
