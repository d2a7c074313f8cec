"""Thinking told apart from the answer (P56), plain and streamed alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.replies import HI, Streamed, checked

pytestmark = pytest.mark.real

# The template has opened the thought; these make the model write what a case is about.
CASES = [
    ("abc</think>def", "abc", "def"),
    ("<think>a</think>b", "a", "b"),
    ("abc</think>\\n\\nx <think> y", "abc", "x <think> y"),
    ("abc</think>d</think>e", "abc", "d</think>e"),
    ("</think>b", None, "b"),
]


def told(client: Any, *, stream: bool, **options: Any) -> tuple[str | None, str | None, str | None]:
    values = {"model": "m", "messages": HI, "temperature": 0, "max_tokens": 60, **options}
    if stream:
        answer = Streamed(client.chat.completions.create(stream=True, **values))
        return answer.reasoning or None, answer.content, answer.finish_reason
    choice = checked(client.chat.completions.create(**values))
    reasoning = getattr(choice.message, "reasoning_content", None)
    return reasoning, choice.message.content, choice.finish_reason


def written(text: str) -> dict[str, Any]:
    """Makes the model write this; a pattern with the tag in it is for the thinking too."""
    return {"extra_body": {"grammar": f'root ::= "{text}"'}}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("text", "reasoning", "content"), CASES)
def test_thinking_is_told_apart(thinking_client, text, reasoning, content, stream):
    found = told(thinking_client, stream=stream, **written(text))
    assert found == (reasoning, content, "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_thinking_that_does_not_end_is_all_thinking(thinking_client, stream):
    reasoning, content, reason = told(thinking_client, stream=stream, max_tokens=5)
    assert reasoning
    assert not content
    assert reason == "length"


def test_thinking_can_be_turned_off_and_left_in(thinking_client):
    off: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    reasoning, content, _ = told(thinking_client, stream=False, extra_body=off)
    assert reasoning is None
    assert content
    raw: Any = {"reasoning_format": "none", "grammar": 'root ::= "abc</think>def"'}
    assert told(thinking_client, stream=False, extra_body=raw) == (None, "abc</think>def", "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_thinking_and_the_answer_begins(thinking_client, budget, stream):
    reasoning, content, _ = told(
        thinking_client, stream=stream, extra_body={"thinking_budget": budget}
    )
    assert content
    assert "think>" not in content + (reasoning or "")
    reply = thinking_client.chat.completions.create(
        model="m", messages=HI, max_tokens=60, temperature=0, extra_body={"thinking_budget": budget}
    )
    n = reply.usage.completion_tokens_details.reasoning_tokens
    # The tokens that end it are counted as thinking too.
    assert budget <= n <= budget + 8


def test_a_schema_holds_after_thinking(thinking_client):
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    reasoning, content, reason = told(
        thinking_client,
        stream=True,
        response_format=form,
        temperature=1.5,
        extra_body={"thinking_budget": 10},
    )
    assert reasoning
    assert content in ("1", "2")
    assert reason == "stop"


def test_a_closing_tag_in_the_question_ends_nothing(thinking_client):
    messages: Any = [{"role": "user", "content": "What does </think> mean? <think>"}]
    reasoning, content, _ = told(
        thinking_client, stream=False, messages=messages, **written("abc</think>def")
    )
    assert (reasoning, content) == ("abc", "def")


def test_a_model_without_thinking_has_none(client):
    choice = checked(client.chat.completions.create(model="m", messages=HI, max_tokens=8))
    assert not hasattr(choice.message, "reasoning_content")
