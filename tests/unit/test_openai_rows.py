"""Every row of every OpenAI table: honoured has its effect, accepted has none, refused is a 400."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ponytail.api.dialect import Limits
from ponytail.api.fields import Field, Integer, Number, Only
from ponytail.api.openai import (
    ChatCompletions,
    Completions,
    parse_apply_template,
    parse_detokenize,
    parse_tokenize,
)
from ponytail.api.openai_fields import TABLES
from ponytail.errors import InvalidRequest, PonytailError, UnsupportedParameter
from ponytail.types import (
    GenerateRequest,
    Grammar,
    InfillPrompt,
    JsonSchema,
    Message,
    OneOfTexts,
    Regex,
    TextPrompt,
    TokenPrompt,
    Tool,
)

LIMITS = Limits(n_vocab=1000, n_ctx=512)
HI = [{"role": "user", "content": "hi"}]
OPEN = [*HI, {"role": "assistant", "content": "he"}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}, {"function": {"name": "g"}}]
PLAIN = {"type": "object", "properties": {}}
SCHEMA = {"type": "integer"}
INF = float("inf")
Parse = Callable[..., Any]


def chat(**fields: Any) -> GenerateRequest:
    return ChatCompletions().parse({"messages": HI, **fields}, LIMITS)


def completion(**fields: Any) -> GenerateRequest:
    return Completions().parse({"prompt": "hi", **fields}, LIMITS)


def apply_template(**fields: Any) -> GenerateRequest:
    return GenerateRequest((parse_apply_template({"messages": HI, **fields}, LIMITS),))


def tokenize(**fields: Any) -> Any:
    spelled = {"content", "prompt", "text"} & fields.keys()
    return parse_tokenize({**({} if spelled else {"content": "hi"}), **fields}, LIMITS)


def detokenize(**fields: Any) -> Any:
    return parse_detokenize({"tokens": [1], **fields}, LIMITS)


ROUTES: dict[str, Parse] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completion,
    "/v1/tokenize": tokenize,
    "/v1/detokenize": detokenize,
    "/v1/apply-template": apply_template,
}


@dataclass(frozen=True)
class Effect:
    """`value` arrives as `expected` where `where` looks; `beside` is what it needs to have one."""

    value: Any
    where: Callable[[Any], Any]
    expected: Any
    beside: dict[str, Any] = field(default_factory=dict)


def sampling(name: str, value: Any, expected: Any) -> Effect:
    return Effect(value, lambda r: getattr(r.sampling, name), expected)


def constraint(value: Any, expected: Any) -> Effect:
    return Effect(value, lambda r: r.constraint, expected)


def template(name: str, value: Any, expected: Any) -> Effect:
    return Effect(value, lambda r: r.prompts[0].template_kwargs, {name: expected})


def tools(value: Any, beside: dict[str, Any], **expected: Any) -> Effect:
    def where(request: Any) -> dict[str, Any]:
        return {name: getattr(request.prompts[0].tool_use, name) for name in expected}

    return Effect(value, where, expected, beside)


F = Tool("f", "d", {"type": "object"}, path="tools[0].function")
G = Tool("g", "", PLAIN, path="tools[1].function")
NAMED = {"type": "function", "function": {"name": "g"}}
ALLOWED = {"mode": "required", "tools": [NAMED, {"type": "function", "name": "f"}]}
EFFECTS: dict[str, list[Effect]] = {
    "messages": [
        Effect(
            [{"role": "user", "content": "é"}],
            lambda r: r.prompts[0].messages,
            (Message("user", "é"),),
        )
    ],
    "prompt": [
        Effect("a", lambda r: r.prompts, (TextPrompt("a"),)),
        Effect(["a", "b"], lambda r: r.prompts, (TextPrompt("a"), TextPrompt("b"))),
        Effect([1, 2], lambda r: r.prompts, (TokenPrompt((1, 2)),)),
        Effect([[1], [2, 3]], lambda r: r.prompts, (TokenPrompt((1,)), TokenPrompt((2, 3)))),
    ],
    "suffix": [Effect("b", lambda r: r.prompts, (InfillPrompt("hi", "b"),))],
    "max_tokens": [
        Effect(7, lambda r: r.max_tokens, 7),
        Effect(10**9, lambda r: r.max_tokens, 10**9),
    ],
    "max_completion_tokens": [Effect(7, lambda r: r.max_tokens, 7)],
    "stop": [
        Effect("a", lambda r: r.stop, ("a",)),
        Effect(["a", "🦙"], lambda r: r.stop, ("a", "🦙")),
    ],
    "stop_token_ids": [Effect([5, 6], lambda r: r.stop_ids, (5, 6))],
    "n": [Effect(3, lambda r: r.n, 3)],
    "stream": [Effect(True, lambda r: r.stream, True)],
    "stream_options": [
        Effect({"include_usage": True}, lambda r: r.include_usage, True, {"stream": True})
    ],
    "priority": [Effect(-3, lambda r: r.priority, -3)],
    "deadline_s": [Effect(1.5, lambda r: r.deadline_s, 1.5)],
    "cache_salt": [Effect("tenant", lambda r: r.cache_salt, "tenant")],
    "temperature": [sampling("temperature", 0, 0.0)],
    "top_k": [sampling("top_k", 5, 5), sampling("top_k", -1, 0)],
    "top_p": [sampling("top_p", 0.5, 0.5)],
    "min_p": [sampling("min_p", 0.5, 0.5)],
    "typical_p": [sampling("typical_p", 0.5, 0.5)],
    "repeat_penalty": [sampling("repeat_penalty", 1.5, 1.5)],
    "repeat_last_n": [sampling("repeat_last_n", -1, -1)],
    "presence_penalty": [sampling("presence_penalty", -2, -2.0)],
    "frequency_penalty": [sampling("frequency_penalty", 2, 2.0)],
    "dry_multiplier": [sampling("dry_multiplier", 0.8, 0.8)],
    "dry_base": [sampling("dry_base", 2, 2.0)],
    "dry_allowed_length": [sampling("dry_allowed_length", 3, 3)],
    "dry_penalty_last_n": [sampling("dry_penalty_last_n", 99, 99)],
    "dry_sequence_breakers": [sampling("dry_sequence_breakers", ["."], (".",))],
    "xtc_probability": [sampling("xtc_probability", 0.5, 0.5)],
    "xtc_threshold": [sampling("xtc_threshold", 0.2, 0.2)],
    "mirostat": [sampling("mirostat", 2, 2)],
    "mirostat_tau": [sampling("mirostat_tau", 3, 3.0)],
    "mirostat_eta": [sampling("mirostat_eta", 0.2, 0.2)],
    "logit_bias": [
        sampling("logit_bias", {"0": -100, "2": 1.5}, ((0, -100.0), (2, 1.5))),
        sampling("logit_bias", [[5, 1], ["6", False]], ((5, 1.0), (6, -INF))),
    ],
    "seed": [
        sampling("seed", 42, 42),
        sampling("seed", 2**64 - 1, 2**64 - 1),
        sampling("seed", -(2**63), -(2**63)),
    ],
    "ignore_eos": [sampling("ignore_eos", True, True)],
    "min_tokens": [sampling("min_tokens", 4, 4)],
    "deterministic": [Effect(True, lambda r: r.deterministic, True)],
    "truncation": [Effect("auto", lambda r: r.truncates, True)],
    "chat_template_kwargs": [template("enable_thinking", {"enable_thinking": False}, False)],
    "documents": [template("documents", [{"title": "t"}], [{"title": "t"}])],
    "reasoning_effort": [template("reasoning_effort", "low", "low")],
    "add_generation_prompt": [Effect(False, lambda r: r.prompts[0].add_generation_prompt, False)],
    "continue_final_message": [
        Effect(
            True,
            lambda r: (r.prompts[0].continues, r.prompts[0].add_generation_prompt),
            (True, False),
            {"messages": OPEN},
        )
    ],
    "unsupported_content": [
        Effect(
            "placeholder",
            lambda r: r.prompts[0].messages[0].content,
            "[image omitted: this model reads text only]",
            {"messages": IMAGE},
        )
    ],
    "reasoning_format": [Effect("none", lambda r: r.splits_reasoning, False)],
    "thinking_budget": [
        Effect(0, lambda r: r.n_thinking_max, 0),
        Effect(100, lambda r: r.n_thinking_max, 100),
    ],
    "tools": [tools(TOOLS, {}, tools=(F, G), mode="auto", allowed=(), is_parallel=True)],
    "tool_choice": [
        tools("none", {"tools": TOOLS}, mode="none", callable_tools=()),
        tools("required", {"tools": TOOLS}, mode="required", allowed=()),
        tools(NAMED, {"tools": TOOLS}, mode="required", allowed=("g",), is_parallel=False),
        tools({"type": "function", "name": "f"}, {"tools": TOOLS}, mode="required", allowed=("f",)),
        tools(
            {"type": "allowed_tools", "allowed_tools": ALLOWED},
            {"tools": TOOLS},
            mode="required",
            allowed=("g", "f"),
            is_parallel=True,
        ),
    ],
    "parallel_tool_calls": [tools(False, {"tools": TOOLS}, is_parallel=False)],
    "functions": [
        tools([FUNCTION], {}, tools=(Tool("f", "d", {"type": "object"}, path="functions[0]"),)),
    ],
    "function_call": [
        tools("none", {"functions": [FUNCTION]}, mode="none"),
        tools({"name": "f"}, {"functions": [FUNCTION]}, mode="required", allowed=("f",)),
    ],
    "response_format": [
        constraint({"type": "json_object"}, JsonSchema({"type": "object"}, "response_format")),
        constraint(
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            JsonSchema(SCHEMA, "response_format.json_schema.schema"),
        ),
    ],
    "json_schema": [constraint(SCHEMA, JsonSchema(SCHEMA, "json_schema"))],
    "regex": [constraint("a+", Regex("a+", "regex"))],
    "choice": [constraint(["a", "b"], OneOfTexts(("a", "b"), "choice"))],
    "grammar": [constraint('root ::= "a"', Grammar('root ::= "a"', "gbnf", "grammar"))],
    "guided_json": [constraint(SCHEMA, JsonSchema(SCHEMA, "guided_json"))],
    "guided_regex": [constraint("a+", Regex("a+", "guided_regex"))],
    "guided_choice": [constraint(["a"], OneOfTexts(("a",), "guided_choice"))],
    "guided_grammar": [constraint('start: "a"', Grammar('start: "a"', "lark", "guided_grammar"))],
    "structured_outputs": [
        constraint({"regex": "a"}, Regex("a", "structured_outputs.regex")),
    ],
    "top_logprobs": [Effect(20, lambda r: r.n_logprobs, 20, {"logprobs": True})],
    "echo": [Effect(True, lambda r: r.echo, True)],
    "content": [Effect("a", lambda r: r.text, "a")],
    "add_special": [Effect(True, lambda r: r.add_special, True)],
    "parse_special": [Effect(False, lambda r: r.parse_special, False)],
    "with_pieces": [Effect(True, lambda r: r.with_pieces, True)],
    "tokens": [Effect([4, 5], lambda ids: ids, (4, 5))],
}
LOGPROBS = {
    "/v1/chat/completions": [Effect(True, lambda r: r.n_logprobs, 0)],
    "/v1/completions": [
        Effect(0, lambda r: r.n_logprobs, 0),
        Effect(20, lambda r: r.n_logprobs, 20),
    ],
}
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
    "prediction": {"type": "content", "content": "x"},
}
ROWS = [(path, row) for path, table in TABLES.items() for row in table]


def rows(effect: str) -> list[Any]:
    picked = [(path, row) for path, row in ROWS if row.effect == effect]
    return [pytest.param(path, row, id=f"{path}-{row.name}") for path, row in picked]


def refusal(parse: Parse, **fields: Any) -> PonytailError:
    with pytest.raises(PonytailError) as caught:
        parse(**fields)
    return caught.value


def test_every_row_has_a_check() -> None:
    assert ROUTES.keys() == TABLES.keys()
    by_effect = {e: {r.name for _, r in ROWS if r.effect == e} for e in ("honoured", "accepted")}
    assert by_effect == {"honoured": {*EFFECTS, "logprobs"}, "accepted": set(ACCEPTED)}
    assert all(row.doc for _, row in ROWS)
    assert all(row.kind.why for _, row in ROWS if isinstance(row.kind, Only))


@pytest.mark.parametrize(("path", "row"), rows("honoured"))
def test_an_honoured_parameter_changes_the_request(path: str, row: Field) -> None:
    parse = ROUTES[path]
    effects = LOGPROBS[path] if row.name == "logprobs" else EFFECTS[row.name]
    for effect in effects:
        for name in (row.name, *row.aliases):
            if row.name == "unsupported_content":
                assert refusal(parse, **effect.beside).code == "unsupported_content"
            else:
                assert parse(**effect.beside) != parse(**effect.beside, **{name: effect.value})
            assert effect.where(parse(**effect.beside, **{name: effect.value})) == effect.expected


@pytest.mark.parametrize(("path", "row"), rows("accepted"))
def test_an_accepted_parameter_changes_nothing(path: str, row: Field) -> None:
    parse = ROUTES[path]
    assert parse(**{row.name: ACCEPTED[row.name]}) == parse()
    error = refusal(parse, **{row.name: 7})
    assert error.param == row.name
    assert row.kind.words in error.message


@pytest.mark.parametrize(("path", "row"), rows("refused"))
def test_a_refused_parameter_is_named_with_the_reason(path: str, row: Field) -> None:
    parse = ROUTES[path]
    wanted: Any = 5 if row.name == "best_of" else [{"type": "function"}]
    error = refusal(parse, **{row.name: wanted})
    assert isinstance(error, UnsupportedParameter)
    assert (error.status, error.param, error.code) == (400, row.name, "unsupported_parameter")
    assert error.message.startswith(f"{row.name} is not supported here")
    assert row.doc in error.message
    harmless = row.kind.harmless if isinstance(row.kind, Only) else (1,)
    for value in (None, *harmless):
        assert parse(**{row.name: value}) == parse()


@pytest.mark.parametrize("path", TABLES)
def test_null_is_the_same_as_absent(path: str) -> None:
    optional = [row for row in TABLES[path] if not row.required]
    assert ROUTES[path](**{row.name: None for row in optional}) == ROUTES[path]()


@pytest.mark.parametrize(
    ("path", "row"),
    [
        pytest.param(path, row, id=f"{path}-{row.name}")
        for path, row in ROWS
        if isinstance(row.kind, Number | Integer)
    ],
)
def test_numbers_are_numbers_in_range(path: str, row: Field) -> None:
    kind = row.kind
    assert isinstance(kind, Number | Integer)
    below = kind.low - 2 if isinstance(kind, Integer) and kind.also else kind.low - 1
    outside = [below, kind.high + 1, kind.high + 0.5, 10**5000, -(10**5000)]
    if isinstance(kind, Number) and kind.above_low:
        outside.append(kind.low)
    for value in [*outside, True, False, "1", [1], {}, float("nan"), INF, -INF]:
        error = refusal(ROUTES[path], **{row.name: value})
        assert isinstance(error, InvalidRequest)
        assert error.param == row.name
        assert error.message.startswith(f"{row.name} must be {kind.words}, got ")
