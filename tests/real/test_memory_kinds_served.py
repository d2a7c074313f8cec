"""Conversations on every kind of memory: what is reused, and that it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ponytail import LLM
from tests.synthetic import write_gguf

pytestmark = pytest.mark.real

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
GREEDY = {"temperature": 0, "ignore_eos": True}
SYSTEM = {"role": "system", "content": "You keep the book of a small harbour. " * 12}
KINDS = ("llama", "qwen3", "gemma3", "mamba", "lfm2")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return write_gguf(folder / "tiny.gguf", arch=request.param, n_layers=2, template=TEMPLATE)


def settings(**more: object) -> dict[str, object]:
    return {"ctx_size": 1024, "parallel": 2, "threads": 1, "threads_batch": 1, **more}


def test_turns_and_conversations_reuse_what_they_have_in_common(model):
    with LLM(model, **settings()) as llm:
        first = [SYSTEM, user("Which ship came first?")]
        answer = llm.chat(first, max_tokens=8, **GREEDY)
        second = [*first, {"role": "assistant", "content": answer.text}, user("And then?")]
        turn = llm.chat(second, max_tokens=8, **GREEDY)
        # At least the first prompt, whatever kind of memory it is.
        assert turn.usage.n_cached >= answer.usage.n_prompt - 1
        other = llm.chat([SYSTEM, user("Who pays the pilot?")], max_tokens=8, **GREEDY)
        assert other.usage.n_cached >= 0.8 * other.usage.n_prompt
    with LLM(model, **settings(kv_ram=0)) as llm:
        fresh = llm.chat(second, max_tokens=8, deterministic=True, **GREEDY)
        assert fresh.text == turn.text
