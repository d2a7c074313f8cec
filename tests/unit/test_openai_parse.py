"""What each OpenAI parameter does, and how a wrong one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from ponytail.api.dialect import Limits
from ponytail.api.fields import Field, Integer, Number, Only
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
from ponytail.api.openai_fields import CHAT, COMPLETION, STREAM_OPTIONS, TABLES
from ponytail.errors import (
    InvalidRequest,
    PonytailError,
    UnsupportedParameter,
)
from ponytail.types import (
    ChatPrompt,
    GenerateRequest,
    Message,
    Sampling,
    TextPrompt,
    TokenPrompt,
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


# One row per honoured parameter: value sent, where it must arrive, as what.
EFFECTS: dict[str, list[tuple[Any, Callable[[GenerateRequest], Any], Any]]] = {
    "messages": [
        (HI, lambda r: r.prompts[0].messages, (Message("user", "hi"),)),
    ],
    "prompt": [
        ("a", lambda r: r.prompts, (TextPrompt("a"),)),
        (["a", "b"], lambda r: r.prompts, (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], lambda r: r.prompts, (TokenPrompt((1, 2)),)),
        ([[1], [2, 3]], lambda r: r.prompts, (TokenPrompt((1,)), TokenPrompt((2, 3)))),
    ],
    "max_tokens": [(7, lambda r: r.max_tokens, 7), (10**9, lambda r: r.max_tokens, 10**9)],
    "max_completion_tokens": [(7, lambda r: r.max_tokens, 7)],
    "stop": [
        ("a", lambda r: r.stop, ("a",)),
        (["a", "🦙"], lambda r: r.stop, ("a", "🦙")),
        ([], lambda r: r.stop, ()),
    ],
    "n": [(3, lambda r: r.n, 3)],
    "stream": [(True, lambda r: r.stream, True)],
    "stream_options": [({}, lambda r: r.include_usage, False)],
    "temperature": [(0, lambda r: r.sampling.temperature, 0.0)],
    "top_k": [(5, lambda r: r.sampling.top_k, 5), (-1, lambda r: r.sampling.top_k, 0)],
    "top_p": [(0.5, lambda r: r.sampling.top_p, 0.5)],
    "min_p": [(0.5, lambda r: r.sampling.min_p, 0.5)],
    "typical_p": [(0.5, lambda r: r.sampling.typical_p, 0.5)],
    "repeat_penalty": [(1.5, lambda r: r.sampling.repeat_penalty, 1.5)],
    "repeat_last_n": [(-1, lambda r: r.sampling.repeat_last_n, -1)],
    "presence_penalty": [(-2, lambda r: r.sampling.presence_penalty, -2.0)],
    "frequency_penalty": [(2, lambda r: r.sampling.frequency_penalty, 2.0)],
    "dry_multiplier": [(0.8, lambda r: r.sampling.dry_multiplier, 0.8)],
    "dry_base": [(2, lambda r: r.sampling.dry_base, 2.0)],
    "dry_allowed_length": [(3, lambda r: r.sampling.dry_allowed_length, 3)],
    "dry_penalty_last_n": [(99, lambda r: r.sampling.dry_penalty_last_n, 99)],
    "dry_sequence_breakers": [(["."], lambda r: r.sampling.dry_sequence_breakers, (".",))],
    "xtc_probability": [(0.5, lambda r: r.sampling.xtc_probability, 0.5)],
    "xtc_threshold": [(0.2, lambda r: r.sampling.xtc_threshold, 0.2)],
    "mirostat": [(2, lambda r: r.sampling.mirostat, 2)],
    "mirostat_tau": [(3, lambda r: r.sampling.mirostat_tau, 3.0)],
    "mirostat_eta": [(0.2, lambda r: r.sampling.mirostat_eta, 0.2)],
    "logit_bias": [
        ({"0": -100, "2": 1.5}, lambda r: r.sampling.logit_bias, ((0, -100.0), (2, 1.5))),
        ([[5, 1], ["6", False]], lambda r: r.sampling.logit_bias, ((5, 1.0), (6, -INF))),
    ],
    "seed": [
        (42, lambda r: r.sampling.seed, 42),
        (2**64 - 1, lambda r: r.sampling.seed, 2**64 - 1),
        (-(2**63), lambda r: r.sampling.seed, -(2**63)),
        (-1, lambda r: r.sampling.seed, None),
    ],
    "truncation": [
        ("auto", lambda r: r.truncates, True),
        ("disabled", lambda r: r.truncates, False),
    ],
    "deterministic": [(True, lambda r: r.deterministic, True)],
    "ignore_eos": [(True, lambda r: r.sampling.ignore_eos, True)],
    "min_tokens": [(4, lambda r: r.sampling.min_tokens, 4)],
    "chat_template_kwargs": [
        ({"enable_thinking": False}, lambda r: r.prompts[0].template_kwargs, None),
    ],
    "add_generation_prompt": [(False, lambda r: r.prompts[0].add_generation_prompt, False)],
    "reasoning_effort": [
        ("low", lambda r: r.prompts[0].template_kwargs, {"reasoning_effort": "low"}),
    ],
    "echo": [(True, lambda r: r.echo, True)],
}
EFFECTS["chat_template_kwargs"] = [
    (value, where, value) for value, where, _ in EFFECTS["chat_template_kwargs"]
]
ACCEPTED: dict[str, Any] = {
    "model": "any/name:latest",
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "x"},
    "verbosity": "low",
    "cache_prompt": False,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
}
ROUTES = [(chat, row) for row in CHAT] + [(completion, row) for row in COMPLETION]


def rows(effect: str) -> list[Any]:
    picked = [(parse, row) for parse, row in ROUTES if row.effect == effect]
    return [pytest.param(parse, row, id=f"{parse.__name__}-{row.name}") for parse, row in picked]


def test_every_row_has_a_check() -> None:
    by_effect = {e: {r.name for _, r in ROUTES if r.effect == e} for e in ("honoured", "accepted")}
    assert by_effect == {"honoured": set(EFFECTS), "accepted": set(ACCEPTED)}
    assert all(row.doc for table in TABLES.values() for row in table)


@pytest.mark.parametrize(("parse", "row"), rows("honoured"))
def test_an_honoured_parameter_arrives(parse: Callable[..., GenerateRequest], row: Field) -> None:
    for value, where, expected in EFFECTS[row.name]:
        extra = {"stream": True} if row.name == "stream_options" else {}
        for name in (row.name, *row.aliases):
            assert where(parse(**{name: value}, **extra)) == expected, name


@pytest.mark.parametrize(("parse", "row"), rows("accepted"))
def test_an_accepted_parameter_changes_nothing(
    parse: Callable[..., GenerateRequest], row: Field
) -> None:
    assert parse(**{row.name: ACCEPTED[row.name]}) == parse()
    wrong: Any = 7
    error = refusal(parse, **{row.name: wrong})
    assert error.param == row.name
    assert row.kind.words in error.message


@pytest.mark.parametrize(("parse", "row"), rows("refused"))
def test_a_refused_parameter_is_named(parse: Callable[..., GenerateRequest], row: Field) -> None:
    wanted: Any = 5 if row.name == "best_of" else [{"type": "function"}]
    error = refusal(parse, **{row.name: wanted})
    assert isinstance(error, UnsupportedParameter)
    assert (error.status, error.param, error.code) == (400, row.name, "unsupported_parameter")
    assert error.message.startswith(f"{row.name} is not supported")
    harmless = row.kind.harmless if isinstance(row.kind, Only) else (1,)
    for value in (None, *harmless):
        assert parse(**{row.name: value}) == parse()


@pytest.mark.parametrize("parse", [chat, completion])
def test_null_is_the_same_as_absent(parse: Callable[..., GenerateRequest]) -> None:
    table = CHAT if parse is chat else COMPLETION
    optional = [row for row in table if not row.required]
    assert parse(**{row.name: None for row in optional}) == parse()


@pytest.mark.parametrize(
    ("parse", "row"),
    [
        pytest.param(parse, row, id=f"{parse.__name__}-{row.name}")
        for parse, row in ROUTES
        if isinstance(row.kind, Number | Integer)
    ],
)
def test_numbers_are_numbers_in_range(parse: Callable[..., GenerateRequest], row: Field) -> None:
    kind = row.kind
    assert isinstance(kind, Number | Integer)
    below = kind.low - 2 if row.name in ("top_k", "seed") else kind.low - 1
    outside = [below, kind.high + 1, kind.high + 0.5, 10**5000, -(10**5000)]
    if isinstance(kind, Number) and kind.above_low:
        outside.append(kind.low)
    for value in [*outside, True, False, "1", [1], {}, float("nan"), INF, -INF]:
        error = refusal(parse, **{row.name: value})
        assert isinstance(error, InvalidRequest)
        assert error.param == row.name
        assert error.message.startswith(f"{row.name} must be {kind.words}, got ")


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
