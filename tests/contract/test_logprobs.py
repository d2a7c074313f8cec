"""Log-probabilities in both shapes (P53), and of prompts, beside an independent computation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import openai
import pytest

from ponytail.llama.capi import lib
from tests.contract.plain_llama import computed, floats
from tests.contract.replies import HI, NO_END, Streamed, checked
from tests.real.server import running
from tests.synthetic import smollm2_path

pytestmark = pytest.mark.real


def test_chat_has_them_for_every_token_plain_and_streamed(client):
    options = {"model": "m", "messages": HI, "max_tokens": 12, "temperature": 0, "seed": 1}
    plain = checked(client.chat.completions.create(**options, logprobs=True, top_logprobs=5))
    stream = client.chat.completions.create(**options, logprobs=True, top_logprobs=5, stream=True)
    streamed = Streamed(stream)
    tokens = plain.logprobs.content
    assert [t.token for t in tokens] == [t.token for t in streamed.logprobs]
    assert bytes(b for t in tokens for b in t.bytes).decode() == plain.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 5
        assert token.top_logprobs[0].token == token.token, "greedy picks the likeliest"
        assert sum(math.exp(t.logprob) for t in token.top_logprobs) <= 1 + 1e-6


@pytest.mark.parametrize("top", [None, 0, 20])
def test_how_many_of_the_likeliest(client, top):
    more = {} if top is None else {"top_logprobs": top}
    reply = client.chat.completions.create(
        model="m", messages=HI, max_tokens=3, logprobs=True, **more
    )
    assert {len(t.top_logprobs) for t in checked(reply).logprobs.content} == {top or 0}


@pytest.mark.parametrize(
    "fields", [{"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}, {"logprobs": 3}]
)
def test_what_cannot_be_is_refused(client, fields):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=HI, **fields)


def test_they_are_the_models_own_whatever_the_sampling(client):
    """Temperature, penalties, bias and grammars change the pick, not what is reported."""
    first = {}
    for name, fields in {
        "greedy": {"temperature": 0},
        "hot": {"temperature": 2, "seed": 3},
        "biased": {"temperature": 0, "logit_bias": {"100": 90}},
        "bound": {"extra_body": {"choice": ["zebra"]}},
    }.items():
        reply = client.chat.completions.create(
            model="m", messages=HI, max_tokens=1, logprobs=True, top_logprobs=20, **fields
        )
        (token,) = reply.choices[0].logprobs.content
        first[name] = {t.token: t.logprob for t in token.top_logprobs}
    for name in ("hot", "biased", "bound"):
        assert first[name] == pytest.approx(first["greedy"], abs=2e-2), name


def test_characters_of_several_tokens_have_exact_bytes(client):
    text = "🦙é日本"
    reply = client.chat.completions.create(
        model="m", messages=HI, logprobs=True, extra_body={"choice": [text]}
    )
    choice = checked(reply)
    assert choice.message.content == text
    assert bytes(b for t in choice.logprobs.content for b in t.bytes).decode() == text


def test_raw_completions_have_the_first_shape(client):
    reply = client.completions.create(
        model="m", prompt="The sky is", max_tokens=5, temperature=0, logprobs=3, logit_bias=NO_END
    )
    choice = reply.choices[0]
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == 5
    assert "".join(told.tokens) == choice.text
    assert all(len(top) >= 3 for top in told.top_logprobs)
    chunks = client.completions.create(
        model="m", prompt="The sky is", max_tokens=5, temperature=0, logprobs=3, stream=True
    )
    streamed = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert [t for one in streamed for t in one.tokens] == told.tokens
    assert [o for one in streamed for o in one.text_offset] == told.text_offset


def independent(ids: Sequence[int]) -> list[float]:
    """Log-probability of each token from the second on."""
    found = []
    with computed(ids) as (model, context):
        for i, target in enumerate(ids[1:]):
            row = floats(lib.llama_get_logits_ith(context, i), model.n_vocab)
            found.append(float(row[target] - row.max() - np.log(np.exp(row - row.max()).sum())))
    return found


@pytest.fixture(scope="module")
def exact_client() -> Iterator[openai.OpenAI]:
    """Flash attention rounds otherwise in batches of another size (up to 0.5 here)."""
    with running(smollm2_path(), "-np", "1", "-c", "2048", "--flash-attn", "off") as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_echoed_prompts_have_the_log_probabilities_of_an_independent_pass(exact_client):
    """What evaluation harnesses score choices by; within 1e-3 of computing them apart."""
    client = exact_client
    words = "The quick brown fox jumps over the lazy dog, and the sun sets over the hills. "
    prompts = [words, words * 20 + "Finally, it rains."]
    for prompt in prompts:
        reply = client.completions.create(
            model="m", prompt=prompt, max_tokens=0, echo=True, logprobs=1
        )
        choice = reply.choices[0]
        assert choice.text == prompt
        told = choice.logprobs
        assert "".join(told.tokens) == prompt
        assert told.token_logprobs[0] is None
        ids = client.post("/tokenize", body={"content": prompt}, cast_to=object)["tokens"]
        expected = independent(ids)
        assert len(told.token_logprobs) - 1 == len(expected)
        assert (
            max(abs(a - b) for a, b in zip(told.token_logprobs[1:], expected, strict=True)) < 1e-3
        )


def test_echo_of_token_ids_and_of_what_follows(client):
    ids = client.post("/tokenize", body={"content": "The sky is"}, cast_to=object)["tokens"]
    reply = client.completions.create(
        model="m", prompt=ids, max_tokens=2, echo=True, logprobs=0, temperature=0
    )
    choice = reply.choices[0]
    assert choice.text.startswith("The sky is")
    assert len(choice.logprobs.tokens) == len(ids) + 2
    assert choice.logprobs.text_offset[: len(ids)] == [0, 3, 7]
