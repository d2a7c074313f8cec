"""What each OpenAI parameter does, and how a wrong one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from ponytail.api.dialect import Limits
from ponytail.api.openai import (
    ChatCompletions,
    Completions,
    encode_content,
    encode_prompt,
    encode_tokens,
    parse_apply_template,
    parse_detokenize,
    parse_tokenize,
)
from ponytail.api.openai_fields import CHAT, COMPLETION, STREAM_OPTIONS
from ponytail.errors import PonytailError
from ponytail.types import (
    ChatPrompt,
    GenerateRequest,
    InfillPrompt,
    Message,
    Sampling,
    ToolCall,
)

LIMITS = Limits(n_vocab=1000, n_ctx=512)
HI = [{"role": "user", "content": "hi"}]
INF = float("inf")


def chat(**fields: Any) -> GenerateRequest:
    return ChatCompletions().parse({"messages": HI, **fields}, LIMITS)


def completion(**fields: Any) -> GenerateRequest:
    return Completions().parse({"prompt": "hi", **fields}, LIMITS)


def messages(*turns: Any) -> tuple[Message, ...]:
    (prompt,) = ChatCompletions().parse({"messages": list(turns)}, LIMITS).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def refusal(parse: Callable[..., Any], *args: Any, **fields: Any) -> PonytailError:
    with pytest.raises(PonytailError) as caught:
        parse(*args, **fields)
    return caught.value


def test_every_parameter_of_the_official_client_is_known() -> None:
    for params, table in (
        (chat_create_params.CompletionCreateParamsBase, CHAT),
        (completion_create_params.CompletionCreateParamsBase, COMPLETION),
    ):
        names = {row.name for row in table}
        assert set(params.__annotations__) - names == set()


def test_include_usage_and_the_other_stream_options() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={"include_obfuscation": True}).include_usage
    assert {row.name for row in STREAM_OPTIONS} == {
        "include_usage",
        "include_obfuscation",
        "continuous_usage_stats",
    }


def test_the_smaller_of_both_token_limits_counts() -> None:
    assert chat(max_tokens=7, max_completion_tokens=9).max_tokens == 7
    assert chat(max_tokens=9, max_completion_tokens=7).max_tokens == 7
    assert chat(max_tokens=None, max_completion_tokens=7).max_tokens == 7
    assert chat(max_tokens=7.0).max_tokens == 7
    assert chat().max_tokens is None


def test_a_kwarg_for_the_template_goes_before_reasoning_effort() -> None:
    request = chat(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == {"reasoning_effort": "high"}


def test_the_models_own_defaults_hold_where_the_request_is_silent() -> None:
    dialect = ChatCompletions(Sampling(temperature=0.2, top_k=7))
    assert dialect.parse({"messages": HI, "top_k": 3}, LIMITS).sampling == Sampling(
        temperature=0.2, top_k=3
    )
    assert Completions(Sampling(top_p=0.3)).parse({"prompt": "x"}, LIMITS).sampling.top_p == 0.3


def test_best_of_equal_to_n_asks_for_nothing() -> None:
    assert completion(best_of=3, n=3) == completion(n=3)


def test_two_names_of_one_parameter_must_agree() -> None:
    assert chat(repeat_penalty=1.2, repetition_penalty=1.2).sampling.repeat_penalty == 1.2
    error = refusal(chat, repeat_penalty=1.2, repetition_penalty=1.3)
    assert error.param == "repetition_penalty"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x", "x"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": ""}], ""),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content_of_every_role(role: str, content: Any, text: str) -> None:
    (turn,) = messages({"role": role, "content": content})
    assert (turn.role, turn.content) == (role, text)
    if content is None:
        assert messages({"role": role}) == (turn,)


def test_an_agents_history_is_taken_as_it_came() -> None:
    turns = messages(
        {"role": "user", "content": "time?", "timestamp": 1},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "b", "function": {"name": "g", "arguments": {"é": [1, None]}}},
                {"id": "c", "type": "function", "function": {"name": "h"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": {"now": "ü", "ok": True}},
        {"role": "function", "name": "g", "content": "12:00"},
    )
    assert turns[1:] == (
        Message(
            "assistant",
            "",
            (
                ToolCall("a", "f", "{}"),
                ToolCall("b", "g", '{"é": [1, null]}'),
                ToolCall("c", "h", "{}"),
            ),
            reasoning="hm",
        ),
        Message("tool", '{"now": "ü", "ok": true}', tool_call_id="a"),
        Message("tool", "12:00", name="g"),
    )


def test_the_first_form_of_a_call_is_read() -> None:
    call = {"name": "f", "arguments": "{}"}
    (turn,) = messages({"role": "assistant", "content": None, "function_call": call})
    assert turn.tool_calls == (ToolCall("", "f", "{}"),)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("image_url", "image"),
        ("input_image", "image"),
        ("input_audio", "audio"),
        ("video_url", "video"),
        ("file", "file"),
    ],
)
@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
def test_media_can_be_told_of_instead(kind: str, what: str, role: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "http://x/y.png"}}]
    body = {"messages": [{"role": role, "content": parts}], "unsupported_content": "placeholder"}
    for prompt in (
        ChatCompletions().parse(body, LIMITS).prompts[0],
        parse_apply_template(body, LIMITS),
    ):
        assert isinstance(prompt, ChatPrompt)
        content = f"look\n[{what} omitted: this model reads text only]"
        assert prompt.messages[0].content == content


def test_an_earlier_spoken_answer_can_be_told_of() -> None:
    turns = [{"role": "assistant", "content": text, "audio": {"id": "a"}} for text in (None, "x")]
    request = chat(messages=turns, unsupported_content="placeholder")
    omitted = "[audio omitted: this model reads text only]"
    assert isinstance(request.prompts[0], ChatPrompt)
    assert [m.content for m in request.prompts[0].messages] == [omitted, f"x\n{omitted}"]


def test_unknown_parts_are_never_told_of() -> None:
    turns = [{"role": "user", "content": [{"type": "hologram"}]}]
    error = refusal(chat, messages=turns, unsupported_content="placeholder")
    assert error.param == "messages[0].content[0].type"


@pytest.mark.parametrize(
    ("last", "fields"),
    [
        ({"prefix": True}, {}),
        ({}, {"continue_final_message": True}),
        ({"prefix": True}, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
def test_the_answer_goes_on_with_the_last_message(
    last: dict[str, Any], fields: dict[str, Any]
) -> None:
    turns = [*HI, {"role": "assistant", "content": "Once", **last}]
    (prompt,) = chat(messages=turns, **fields).prompts
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continues, prompt.add_generation_prompt) == (True, False)
    assert prompt.messages[-1] == Message("assistant", "Once")
    (as_ever,) = chat(
        messages=[*HI, {"role": "assistant", "content": "Once", "prefix": False}]
    ).prompts
    assert isinstance(as_ever, ChatPrompt)
    assert (as_ever.continues, as_ever.add_generation_prompt) == (False, True)


def test_a_prompt_alone_can_be_asked_for() -> None:
    request = completion(max_tokens=0, echo=True, logprobs=1)
    assert (request.max_tokens, request.echo, request.n_logprobs) == (0, True, 1)
    assert completion(logprobs=False).n_logprobs is None


def test_only_a_chat_is_split() -> None:
    assert chat().splits_reasoning
    assert chat(reasoning_format="deepseek") == chat(reasoning_format="auto") == chat()
    assert not completion().splits_reasoning


def test_every_prompt_gets_the_suffix() -> None:
    infills = (InfillPrompt("a", "c"), InfillPrompt("b", "c"))
    assert completion(prompt=["a", "b"], suffix="c").prompts == infills
    assert completion(prompt=[1], suffix="").prompts == completion(prompt=[1]).prompts


def test_documents_and_kwargs_reach_the_template_together() -> None:
    request = chat(documents=[{"text": "t"}], reasoning_effort="low", chat_template_kwargs={"a": 1})
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == {
        "reasoning_effort": "low",
        "documents": [{"text": "t"}],
        "a": 1,
    }
    assert chat(documents=[]) == chat()
    assert refusal(chat, chat_template_kwargs={"documents": []}).status == 400


def test_tokenize_reads_what_clients_send() -> None:
    for name in ("content", "prompt", "text"):
        asked_for = parse_tokenize({name: "a", "model": "m"}, LIMITS)
        assert (asked_for.text, asked_for.add_special, asked_for.parse_special) == (
            "a",
            False,
            True,
        )
    flags = {"add_special": True, "parse_special": False, "with_pieces": True}
    full = parse_tokenize({"content": "", **flags}, LIMITS)
    assert (full.add_special, full.parse_special, full.with_pieces) == (True, False, True)
    assert refusal(parse_tokenize, {}, LIMITS).param == "content"
    assert refusal(parse_tokenize, {"content": 5}, LIMITS).param == "content"
    assert (
        refusal(parse_tokenize, {"content": "a", "add_special": 1}, LIMITS).param == "add_special"
    )


def test_token_replies() -> None:
    plain = json.loads(encode_tokens([5, 6], 512))
    assert plain == {"tokens": [5, 6], "count": 2, "max_model_len": 512}
    pieces = json.loads(encode_tokens([5, 6], 512, [b"a", b"\xf0\x9f"]))
    assert pieces["tokens"] == [{"id": 5, "piece": "a"}, {"id": 6, "piece": [0xF0, 0x9F]}]
    assert json.loads(encode_content("é\n")) == {"content": "é\n"}
    assert json.loads(encode_prompt("<|im_start|>")) == {"prompt": "<|im_start|>"}


def test_detokenize_reads_ids_of_this_model() -> None:
    assert parse_detokenize({"tokens": [1, 2]}, LIMITS) == (1, 2)
    assert parse_detokenize({"tokens": []}, LIMITS) == ()
    assert refusal(parse_detokenize, {"tokens": [1, 1000]}, LIMITS).param == "tokens[1]"
    assert refusal(parse_detokenize, {"tokens": "x"}, LIMITS).param == "tokens"


def test_apply_template_reads_a_conversation() -> None:
    body = {"messages": HI, "add_generation_prompt": False, "chat_template_kwargs": {"a": 1}}
    prompt = parse_apply_template(body, LIMITS)
    assert prompt == ChatPrompt((Message("user", "hi"),), False, {"a": 1})
    assert refusal(parse_apply_template, {"messages": []}, LIMITS).param == "messages"
    assert refusal(parse_apply_template, {"messages": HI, "n": 2}, LIMITS).param == "n"
