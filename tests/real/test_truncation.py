"""Conversations that are too long, through the real tokeniser: refused, or cut where asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ponytail import LLM
from ponytail.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from tests.real.server import running
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


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[openai.OpenAI]:
    with running(model, "-c", "256", "-np", "2", "-t", "1") as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def conversation(n_turns: int) -> list[Any]:
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(n_turns):
        turns.append({"role": "user", "content": f"question {i} " * 8})
        turns.append({"role": "assistant", "content": f"answer {i} " * 8})
    return [*turns, {"role": "user", "content": "and now?"}]


def test_too_long_is_refused_unless_asked_otherwise(llm):
    with pytest.raises(ContextLengthExceeded) as caught:
        llm.chat(conversation(20), max_tokens=4)
    assert "last turn" not in str(caught.value)
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


@pytest.mark.parametrize(("max_tokens", "n_room"), [(8, 8), (None, 64), (100, 100), (9999, 128)])
def test_the_prompt_leaves_the_room_that_is_promised(llm, max_tokens, n_room):
    """And no more turns go than that takes: with the youngest dropped one it is too long."""
    answer = llm.chat(conversation(20), max_tokens=max_tokens, truncation="auto", **GREEDY)
    assert answer.truncation is not None
    assert answer.usage.n_prompt <= 256 - n_room
    one_more = conversation(20)
    del one_more[1 : answer.truncation.n_messages - 1]
    try:
        n_prompt = llm.chat(one_more, max_tokens=1).usage.n_prompt
    except ContextLengthExceeded as error:
        n_prompt = error.n_prompt
    assert n_prompt > 256 - n_room


def test_what_fits_is_left_alone_and_that_is_said_too(llm):
    answer = llm.chat(conversation(1), max_tokens=4, truncation="auto", **GREEDY)
    assert answer.truncation is not None
    assert (answer.truncation.n_messages, answer.truncation.n_turns) == (0, 0)
    assert llm.chat(conversation(1), max_tokens=4, **GREEDY).truncation is None


def test_a_last_turn_that_leaves_less_room_than_asked_is_answered_in_what_there_is(llm):
    turns = [*conversation(2)[:-1], {"role": "user", "content": "long " * 200}]
    answer = llm.chat(turns, max_tokens=100, truncation="auto", **GREEDY)
    assert answer.truncation is not None
    assert answer.truncation.n_turns == 2
    assert answer.finish_reason == "length"
    assert answer.usage.n_prompt + answer.usage.n_completion == 256


def test_a_last_turn_that_does_not_fit_is_refused_with_what_it_needs(llm):
    turns = [*conversation(2)[:-1], {"role": "user", "content": "long " * 400}]
    with pytest.raises(ContextLengthExceeded) as smallest:
        llm.chat([turns[0], turns[-1]])
    with pytest.raises(ContextLengthExceeded) as caught:
        llm.chat(turns, truncation="auto")
    assert caught.value.n_prompt == smallest.value.n_prompt
    assert f"{smallest.value.n_prompt} tokens" in str(caught.value)
    assert "the last turn alone" in str(caught.value) == caught.value.message


def test_raw_prompts_have_no_turns_and_other_words_are_refused(llm):
    with pytest.raises(UnsupportedParameter, match="no turns to drop"):
        llm.complete("x", truncation="auto")
    assert llm.complete("x", truncation="disabled", max_tokens=1).truncation is None
    with pytest.raises(InvalidRequest, match='truncation must be "auto" or "disabled"'):
        llm.chat(conversation(1), truncation="middle")


def test_the_search_stays_out_of_the_event_loop(llm, monkeypatch):
    threads = set()
    encode = llm._jobs.prompts.encode

    def watched(request: Any) -> Any:
        threads.add(threading.current_thread())
        return encode(request)

    monkeypatch.setattr(llm._jobs.prompts, "encode", watched)
    asyncio.run(llm.achat(conversation(20), max_tokens=1, truncation="auto"))
    assert threads
    assert threading.current_thread() not in threads


def test_the_official_client_reads_what_was_dropped(client):
    options: Any = {
        "model": "tiny",
        "messages": conversation(20),
        "max_tokens": 12,
        "n": 2,
        "temperature": 0,
        "extra_body": {"truncation": "auto", "ignore_eos": True},
    }
    plain = client.chat.completions.create(**options)
    ChatCompletion.model_validate(plain.model_dump(mode="python"), strict=True)
    said = plain.truncation
    assert said["type"] == "auto"
    assert said["dropped_messages"] == 2 * said["dropped_turns"] > 0
    assert plain.usage.prompt_tokens <= 256 - 12
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(mode="python"), strict=True)
        assert chunk.truncation == said
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    for choice in plain.choices:
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(c.delta.content or "" for c in own) == choice.message.content


def test_the_official_client_gets_a_400_that_says_why(client):
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="tiny", messages=conversation(20))
    assert caught.value.code == "context_length_exceeded"
    long: Any = [*conversation(1), {"role": "user", "content": "long " * 400}]
    with pytest.raises(openai.BadRequestError, match="the last turn alone") as caught:
        create(model="tiny", messages=long, extra_body={"truncation": "auto"})
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="no turns") as caught:
        client.completions.create(model="tiny", prompt="x", extra_body={"truncation": "auto"})
    assert caught.value.param == "truncation"
