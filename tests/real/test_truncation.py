"""Conversations that are too long, through the real tokeniser: refused, or cut where asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponytail import LLM
from ponytail.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from ponytail.types import GenerateRequest
from tests.synthetic import write_gguf

pytestmark = pytest.mark.real

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("long") / "tiny.gguf", template=TEMPLATE)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, ctx_size=256, parallel=2, threads=1, threads_batch=1) as llm:
        yield llm


def conversation(n_turns: int) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(n_turns):
        turns.append({"role": "user", "content": f"question {i} " * 8})
        turns.append({"role": "assistant", "content": f"answer {i} " * 8})
    return [*turns, {"role": "user", "content": "and now?"}]


def test_too_long_is_refused_unless_asked_otherwise(llm):
    with pytest.raises(ContextLengthExceeded):
        llm.chat(conversation(20), max_tokens=4)
    with pytest.raises(ContextLengthExceeded):
        llm.chat(conversation(20), max_tokens=4, truncation="disabled")


def test_the_oldest_turns_go_and_the_reply_says_how_many(llm):
    answer = llm.chat(conversation(20), max_tokens=60, truncation="auto", **GREEDY)
    assert answer.truncation is not None
    assert answer.truncation.n_messages == 2 * answer.truncation.n_turns > 0
    assert answer.usage.n_completion == 60
    assert 256 - 60 - 60 < answer.usage.n_prompt <= 256 - 60
    rest = conversation(20)
    del rest[1 : 1 + answer.truncation.n_messages]
    assert llm.chat(rest, max_tokens=60, **GREEDY).text == answer.text


def test_what_fits_is_left_alone_and_that_is_said_too(llm):
    answer = llm.chat(conversation(1), max_tokens=4, truncation="auto", **GREEDY)
    assert answer.truncation is not None
    assert (answer.truncation.n_messages, answer.truncation.n_turns) == (0, 0)
    assert llm.chat(conversation(1), max_tokens=4, **GREEDY).truncation is None


def test_a_last_turn_that_does_not_fit_is_still_refused(llm):
    turns = [*conversation(2)[:-1], {"role": "user", "content": "long " * 400}]
    with pytest.raises(ContextLengthExceeded):
        llm.chat(turns, truncation="auto")


def test_raw_prompts_have_no_turns_and_other_words_are_refused(llm):
    with pytest.raises(UnsupportedParameter, match="truncation"):
        llm.complete("x", truncation="auto")
    with pytest.raises(InvalidRequest, match='truncation must be "auto" or "disabled"'):
        llm.chat(conversation(1), truncation="middle")


@pytest.mark.parametrize("stream", [False, True])
def test_the_json_of_a_reply_says_it(llm, stream):
    from ponytail.api.dialect import Reply
    from ponytail.api.openai import ChatCompletions
    from ponytail.types import Truncation

    request = GenerateRequest(prompts=(None,), stream=stream)  # type: ignore[arg-type]
    reply = Reply("id", 1, "tiny", "", Truncation(4, 2))
    sent = ChatCompletions().encoder(reply, request)
    data = sent.finish() if not stream else sent.feed(0, _started())
    body = json.loads(data.removeprefix(b"data: "))
    assert body["truncation"] == {"type": "auto", "dropped_messages": 4, "dropped_turns": 2}


def _started():
    from ponytail.types import Started

    return Started(3, 0)
