"""GET /props and GET /slots of llama.cpp, from plain facts."""

from __future__ import annotations

import json
from typing import Any

from ponytail.api.llamacpp import PropsFacts, SlotFacts, encode_props, encode_slots
from ponytail.types import Sampling


def test_props() -> None:
    facts = PropsFacts(
        model="org/model",
        n_ctx=4096,
        n_parallel=2,
        defaults=Sampling(temperature=0.3),
        chat_template="{{ x }}",
        bos_token="<s>",
        eos_token="</s>",
        build="ponytail 1",
    )
    got = json.loads(encode_props(facts))
    settings = got.pop("default_generation_settings")
    assert got == {
        "total_slots": 2,
        "model_alias": "org/model",
        "model_path": "org/model",
        "modalities": {"vision": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": "{{ x }}",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "build_info": "ponytail 1",
        "is_sleeping": False,
    }
    assert settings["n_ctx"] == 4096
    params = settings["params"]
    assert (params["temperature"], params["n_predict"], params["seed"]) == (0.3, -1, 2**32 - 1)


def slots(running: list[SlotFacts], n_parallel: int = 3) -> Any:
    return json.loads(encode_slots(running, n_parallel=n_parallel, n_ctx=512))


def test_slots_are_what_runs_and_idle_ones_up_to_the_number_of_places() -> None:
    first, second, third = slots([SlotFacts(10, 10, 5, 8), SlotFacts(20, 7, 0)])
    assert first == {
        "id": 0,
        "id_task": -1,
        "n_ctx": 512,
        "speculative": False,
        "is_processing": True,
        "n_prompt_tokens": 10,
        "n_prompt_tokens_processed": 10,
        "params": {},
        "next_token": [{"has_next_token": True, "n_remain": 3, "n_decoded": 5}],
        "prompt": "",
    }
    assert (second["n_prompt_tokens_processed"], second["next_token"][0]["n_remain"]) == (7, -1)
    assert (third["id"], third["is_processing"]) == (2, False)
    assert third["next_token"] == [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}]


def test_more_sequences_than_places_are_all_shown() -> None:
    assert [one["is_processing"] for one in slots([SlotFacts(1, 1, 1)] * 2, 1)] == [True, True]
    assert slots([], 0) == []
