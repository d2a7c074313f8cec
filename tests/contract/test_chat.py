"""The official openai package against the real server."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.contract.replies import HI, NO_END, strict
from tests.real.server import Server

pytestmark = pytest.mark.real


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(server.url + path, timeout=10) as reply:
        return json.load(reply)


def test_models_list_tells_the_enforced_window(client, server):
    (model,) = client.models.list().data
    strict(Model, model)
    assert model.id == "smol"
    assert model.context_length == model.max_model_len == 2048
    assert client.models.retrieve("smol").id == "smol"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert "smol" in str(error.value)


def test_chat_plain_and_stream_give_the_same_text_and_usage(client):
    options: Any = {"model": "smol", "messages": HI, "temperature": 0, "max_tokens": 24}
    client.chat.completions.create(**options)
    plain = client.chat.completions.create(**options)
    strict(ChatCompletion, plain)
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    for chunk in chunks:
        strict(ChatCompletionChunk, chunk)
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] == plain.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert plain.usage is not None
    assert chunks[-1].usage.total_tokens == plain.usage.total_tokens
    assert plain.usage.prompt_tokens_details is not None
    assert plain.usage.prompt_tokens_details.cached_tokens == plain.usage.prompt_tokens - 1


def test_any_model_name_is_answered_by_the_one_there_is(client):
    reply = client.chat.completions.create(model="gpt-4o", messages=HI, max_tokens=1)
    assert reply.model == "smol"


@pytest.mark.parametrize("cap", ["max_tokens", "max_completion_tokens"])
def test_caps_are_exact_and_reported(client, cap):
    reply = client.chat.completions.create(model="smol", messages=HI, logit_bias=NO_END, **{cap: 7})
    assert reply.usage.completion_tokens == 7
    assert reply.choices[0].finish_reason == "length"


def test_completions_take_text_texts_and_ids(client, server):
    ids = post(server, "/v1/tokenize", {"content": "Once upon a time"})["tokens"]
    options: Any = {"model": "smol", "max_tokens": 8, "temperature": 0, "logit_bias": NO_END}
    one = client.completions.create(prompt="Once upon a time", **options)
    strict(Completion, one)
    same = client.completions.create(prompt=ids, **options)
    assert one.choices[0].text == same.choices[0].text
    many = client.completions.create(prompt=["Once upon a time", "1, 2, 3,"], n=2, **options)
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == one.choices[0].text
    assert many.usage.completion_tokens == 32
    lists = client.completions.create(prompt=[ids, ids], **options)
    assert lists.choices[0].text == lists.choices[1].text
    echoed = client.completions.create(prompt="Once upon a time", echo=True, **options)
    assert echoed.choices[0].text == "Once upon a time" + one.choices[0].text


def test_n_choices_differ_and_come_again_with_the_seed(client):
    options: Any = {"model": "smol", "messages": HI, "n": 3, "max_tokens": 16, "seed": 5}
    options |= {"temperature": 1.5, "logit_bias": NO_END}
    client.chat.completions.create(**options)
    first = [c.message.content for c in client.chat.completions.create(**options).choices]
    again = [c.message.content for c in client.chat.completions.create(**options).choices]
    assert len(set(first)) == 3
    assert first == again


def test_a_missing_seed_gives_another_text_each_time(client):
    options: Any = {"model": "smol", "messages": HI, "max_tokens": 16, "temperature": 2}
    texts = {
        client.chat.completions.create(**options, logit_bias=NO_END).choices[0].message.content
        for _ in range(4)
    }
    assert len(texts) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_before_them(client, stream):
    options: Any = {"model": "smol", "messages": HI, "temperature": 0, "max_tokens": 30}
    text = client.chat.completions.create(**options).choices[0].message.content
    stop = text[5:9]
    reply = client.chat.completions.create(**options, stop=[stop, "zzz"], stream=stream)
    if stream:
        got = "".join(c.choices[0].delta.content or "" for c in reply)
    else:
        got = reply.choices[0].message.content
        assert reply.choices[0].finish_reason == "stop"
    assert got == text[: text.index(stop)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_window_is_refused_before_anything_is_generated(client, stream):
    words: Any = [
        {"role": "system", "content": "The code word is ZEBRA."},
        {"role": "user", "content": " word" * 2100},
    ]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="smol", messages=words, stream=stream)
    assert error.value.code == "context_length_exceeded"
    assert error.value.type == "invalid_request_error"
    assert "2048" in str(error.value)
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="smol", prompt=" word" * 2048, stream=stream)
    assert error.value.code == "context_length_exceeded"


def test_a_prompt_that_fits_is_capped_at_the_window(client):
    reply = client.completions.create(
        model="smol", prompt=" word" * 2040, max_tokens=10**9, logit_bias=NO_END
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens == 2048


def test_control_tokens_in_content_are_plain_text(client):
    def n_prompt(content: str) -> int:
        message: Any = [{"role": "user", "content": content}]
        reply = client.chat.completions.create(model="smol", messages=message, max_tokens=1)
        return int(reply.usage.prompt_tokens)

    base = n_prompt("x")
    assert n_prompt("x" + "<|im_end|>" * 50) >= base + 5 * 50


def test_errors_raise_the_packages_own_types(client):
    bad: list[tuple[dict[str, Any], str]] = [
        ({"temperature": "hot"}, "temperature"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"n": 0}, "n"),
        ({"nonsense": 1}, "nonsense"),
    ]
    for change, param in bad:
        body = {"messages": HI, **change}
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="smol", messages=HI, extra_body=body)
        assert error.value.param == param
    image: Any = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="smol", messages=[{"role": "user", "content": image}])
    assert error.value.code == "unsupported_content"


def test_random_bytes_are_sent_as_whole_characters(client):
    options: Any = {"model": "smol", "messages": HI, "temperature": 4, "max_tokens": 200}
    options |= {"seed": 11, "logit_bias": NO_END}
    options["extra_body"] = {"top_k": 0, "top_p": 1, "min_p": 0}
    client.chat.completions.create(**options)
    text = client.chat.completions.create(**options).choices[0].message.content
    chunks = client.chat.completions.create(**options, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
    assert len(text) > 100


def post(server: Server, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def test_tokenize_detokenize_and_template(server):
    ids = post(server, "/v1/tokenize", {"content": "Hello 🦙"})["tokens"]
    assert post(server, "/v1/detokenize", {"tokens": ids})["content"] == "Hello 🦙"
    prompt = post(server, "/v1/apply-template", {"messages": HI})["prompt"]
    assert prompt.endswith("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n")


def test_cancel_frees_the_engine(server):
    """A reader that leaves, streaming or not, running or queued, leaves nothing behind."""

    async def one(client: openai.AsyncOpenAI, stream: bool) -> None:
        reply = await client.chat.completions.create(
            model="smol", messages=HI, max_tokens=1900, logit_bias=NO_END, stream=stream
        )
        if stream:
            async for _ in reply:
                pass

    async def main() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        tasks = [asyncio.create_task(one(client, i % 2 == 0)) for i in range(8)]
        await wait_for(server, lambda h: h["running"] == 4 and h["queued"] == 4)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wait_for(server, lambda h: h["running"] == 0 and h["queued"] == 0)

    asyncio.run(main())


async def wait_for(server: Server, holds: Any) -> None:
    """Poll /health until it says so; fails after 20 s."""
    for _ in range(400):
        health = await asyncio.to_thread(get, server, "/health")
        if holds(health):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never came: {health}")


def test_deterministic_requests_give_the_same_text_under_load(server):
    async def main() -> tuple[set[str], set[str]]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        async def text(**options: Any) -> str:
            reply = await client.chat.completions.create(
                model="smol", messages=HI, max_tokens=40, logit_bias=NO_END, **options
            )
            return reply.choices[0].message.content or ""

        options: Any = {"seed": 42, "temperature": 0.8, "extra_body": {"deterministic": True}}
        alone = {await text(**options) for _ in range(3)}
        loaded = await asyncio.gather(*(text(**options) if i % 2 else text() for i in range(8)))
        return alone, set(loaded[1::2])

    alone, loaded = asyncio.run(main())
    assert len(alone) == 1
    assert loaded == alone
