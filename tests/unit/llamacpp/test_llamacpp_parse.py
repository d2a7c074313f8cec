"""What each parameter of llama.cpp's routes does, and how a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ponytail.api.fields import Field, Integer, Number, Only
from ponytail.api.llamacpp import Completion, Infill, PluralCompletion
from ponytail.api.llamacpp_fields import COMPLETION, INFILL, TABLES
from ponytail.api.llamacpp_stream import LlamaCppRequest
from ponytail.errors import InvalidRequest, UnsupportedParameter
from ponytail.types import (
    GenerateRequest,
    Grammar,
    InfillPrompt,
    JsonSchema,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from tests.unit.llamacpp.bodies import LIMITS, completion, infill, refusal

INF = float("inf")
Effects = dict[str, list[tuple[Any, Callable[[Any], Any], Any]]]


def sampled(name: str, value: Any, arrives: Any = ...) -> tuple[Any, Callable[[Any], Any], Any]:
    expected = value if arrives is ... else arrives
    return (value, lambda r: getattr(r.sampling, name), expected)


# One row per honoured parameter: value sent, where it must arrive, as what.
EFFECTS: Effects = {
    "n_predict": [
        (7, lambda r: r.max_tokens, 7),
        (7.0, lambda r: r.max_tokens, 7),
        (-1, lambda r: r.max_tokens, None),
        (0, lambda r: (r.max_tokens, r.echo), (0, True)),
    ],
    "stop": [
        (["a", "🦙"], lambda r: r.stop, ("a", "🦙")),
        ("a", lambda r: r.stop, ("a",)),
        ([], lambda r: r.stop, ()),
    ],
    "n_cmpl": [(3, lambda r: r.n, 3)],
    "stream": [(True, lambda r: r.stream, True)],
    "n_probs": [(5, lambda r: r.n_logprobs, 5), (0, lambda r: r.n_logprobs, None)],
    "return_tokens": [(True, lambda r: (r.returns_tokens, r.n_logprobs), (True, 0))],
    "response_fields": [(["a", "b/c", ""], lambda r: r.response_fields, ("a", "b/c", ""))],
    "grammar": [
        (
            'root ::= "a"',
            lambda r: r.constraint,
            Grammar('root ::= "a"', "gbnf", "grammar"),
        ),
        # Lark by its look, but llama.cpp has one notation.
        ("start: x", lambda r: r.constraint, Grammar("start: x", "gbnf", "grammar")),
        ("", lambda r: r.constraint, None),
    ],
    "json_schema": [
        ({}, lambda r: r.constraint, JsonSchema({}, "json_schema")),
        ({"type": "string"}, lambda r: r.constraint.schema, {"type": "string"}),
    ],
    "priority": [(-3, lambda r: r.priority, -3)],
    "deadline_s": [(1.5, lambda r: r.deadline_s, 1.5)],
    "cache_salt": [("s", lambda r: r.cache_salt, "s")],
    "samplers": [
        (
            ["top_k", "top_p"],
            lambda r: r.sampling,
            Sampling(min_p=0.0, temperature=1.0),
        ),
        ("kpt", lambda r: r.sampling, Sampling(min_p=0.0)),
    ],
    "temperature": [sampled("temperature", 0, 0.0)],
    "top_k": [sampled("top_k", 5), sampled("top_k", -1, 0)],
    "top_p": [sampled("top_p", 0.5)],
    "min_p": [sampled("min_p", 0.5)],
    "typical_p": [sampled("typical_p", 0.5)],
    "repeat_penalty": [sampled("repeat_penalty", 1.5)],
    "repeat_last_n": [sampled("repeat_last_n", -1)],
    "presence_penalty": [sampled("presence_penalty", -2, -2.0)],
    "frequency_penalty": [sampled("frequency_penalty", 2, 2.0)],
    "dry_multiplier": [sampled("dry_multiplier", 0.8)],
    "dry_base": [sampled("dry_base", 2, 2.0)],
    "dry_allowed_length": [sampled("dry_allowed_length", 3)],
    "dry_penalty_last_n": [sampled("dry_penalty_last_n", 99)],
    "dry_sequence_breakers": [sampled("dry_sequence_breakers", ["."], (".",))],
    "xtc_probability": [sampled("xtc_probability", 0.5)],
    "xtc_threshold": [sampled("xtc_threshold", 0.2)],
    "mirostat": [sampled("mirostat", 2)],
    "mirostat_tau": [sampled("mirostat_tau", 3, 3.0)],
    "mirostat_eta": [sampled("mirostat_eta", 0.2)],
    "logit_bias": [
        sampled("logit_bias", [[5, 1], [6, False]], ((5, 1.0), (6, -INF))),
        sampled("logit_bias", {"2": 1.5}, ((2, 1.5),)),
    ],
    "seed": [sampled("seed", 42), sampled("seed", -1, None), sampled("seed", 2**32 - 1, None)],
    "ignore_eos": [sampled("ignore_eos", True)],
    "min_tokens": [sampled("min_tokens", 4)],
    "deterministic": [(True, lambda r: r.deterministic, True)],
}
COMPLETION_EFFECTS: Effects = {
    **EFFECTS,
    "prompt": [
        ("a", lambda r: r.prompts, (TextPrompt("a"),)),
        ([1, 2], lambda r: r.prompts, (TokenPrompt((1, 2)),)),
        ({"prompt_string": "a"}, lambda r: r.prompts, (TextPrompt("a"),)),
        (
            {"prompt_string": "a", "multimodal_data": []},
            lambda r: r.prompts,
            (TextPrompt("a"),),
        ),
        (
            ["a", [1, 2], {"prompt_string": "b"}],
            lambda r: r.prompts,
            (TextPrompt("a"), TokenPrompt((1, 2)), TextPrompt("b")),
        ),
        (["a"], lambda r: r.prompts, (TextPrompt("a"),)),
        ([[1]], lambda r: r.prompts, (TokenPrompt((1,)),)),
    ],
}
INFILL_EFFECTS: Effects = {
    **EFFECTS,
    "input_prefix": [("", lambda r: r.prompts, (InfillPrompt("", "b"),))],
    "input_suffix": [("x", lambda r: r.prompts, (InfillPrompt("a", "x"),))],
    "prompt": [("p", lambda r: r.prompts, (InfillPrompt("a", "b", prompt="p"),))],
    "input_extra": [
        (
            [{"filename": "f.py", "text": "x", "time": [1, 2]}, {"text": ""}],
            lambda r: r.prompts[0].extra,
            (("f.py", "x"), ("tmp", "")),
        )
    ],
}
ACCEPTED: dict[str, Any] = {
    "model": "any/name:latest",
    "cache_prompt": False,
    "n_cache_reuse": 256,
    "t_max_prompt_ms": 500,
    "sse_ping_interval": -1,
    "dynatemp_exponent": 1.0,
    "speculative.n_max": 16,
    "speculative.n_min": 0,
    "speculative.p_min": 0.75,
}
INFILL_ACCEPTED = {**ACCEPTED, "n_indent": 4, "t_max_predict_ms": 1000}
Route = tuple[Callable[..., GenerateRequest], Field, Effects, dict[str, Any]]
ROUTES: list[Route] = [
    *((completion, row, COMPLETION_EFFECTS, ACCEPTED) for row in COMPLETION),
    *((infill, row, INFILL_EFFECTS, INFILL_ACCEPTED) for row in INFILL),
]


def rows(*effects: str) -> list[Any]:
    picked = [route for route in ROUTES if route[1].effect in effects]
    return [pytest.param(*route, id=f"{route[0].__name__}-{route[1].name}") for route in picked]


def names(parse: Callable[..., Any], effect: str) -> set[str]:
    return {row.name for route, row, _, _ in ROUTES if route is parse and row.effect == effect}


def test_every_row_has_a_check() -> None:
    assert names(completion, "honoured") == set(COMPLETION_EFFECTS)
    assert names(infill, "honoured") == set(INFILL_EFFECTS)
    assert names(completion, "accepted") == set(ACCEPTED)
    assert names(infill, "accepted") == set(INFILL_ACCEPTED)
    assert all(row.doc for table in TABLES.values() for row in table)


@pytest.mark.parametrize(("parse", "row", "effects", "_"), rows("honoured"))
def test_an_honoured_parameter_arrives(
    parse: Callable[..., GenerateRequest], row: Field, effects: Effects, _: Any
) -> None:
    for value, where, expected in effects[row.name]:
        for name in (row.name, *row.aliases):
            assert where(parse(**{name: value})) == expected, name
    assert any(parse(**{row.name: value}) != parse() for value, _, _ in effects[row.name])


@pytest.mark.parametrize(("parse", "row", "_", "values"), rows("accepted"))
def test_an_accepted_parameter_changes_nothing(
    parse: Callable[..., GenerateRequest], row: Field, _: Any, values: dict[str, Any]
) -> None:
    assert parse(**{row.name: values[row.name]}) == parse()
    error = refusal(parse, **{row.name: [7]})
    assert error.param == row.name
    assert row.kind.words in error.message


@pytest.mark.parametrize(("parse", "row", "_", "__"), rows("refused"))
def test_a_refused_parameter_is_named(
    parse: Callable[..., GenerateRequest], row: Field, _: Any, __: Any
) -> None:
    error = refusal(parse, **{row.name: [{"id": 5}]})
    assert isinstance(error, UnsupportedParameter)
    assert (error.status, error.param) == (400, row.name)
    assert error.message.startswith(f"{row.name} is not supported here")
    assert isinstance(row.kind, Only)
    harmless: tuple[Any, ...] = (None, *row.kind.harmless)
    for value in harmless:
        assert parse(**{row.name: value}) == parse()


@pytest.mark.parametrize(("parse", "table"), [(completion, COMPLETION), (infill, INFILL)])
def test_null_is_the_same_as_absent(parse: Callable[..., Any], table: Any) -> None:
    assert parse(**{row.name: None for row in table if not row.required}) == parse()


@pytest.mark.parametrize(("parse", "row", "_", "__"), rows("honoured", "accepted"))
def test_numbers_are_numbers_in_range(
    parse: Callable[..., GenerateRequest], row: Field, _: Any, __: Any
) -> None:
    if not isinstance(row.kind, Number | Integer):
        return
    wrong: list[Any] = [row.kind.high + 1, -(10**5000), True, "1", [1], {}, float("nan"), INF]
    for value in wrong:
        error = refusal(parse, **{row.name: value})
        assert isinstance(error, InvalidRequest)
        assert error.param == row.name
        assert error.message.startswith(f"{row.name} must be {row.kind.words}, got ")


def test_the_first_prompt_words_of_llama_cpp_are_the_defaults() -> None:
    assert completion() == LlamaCppRequest(prompts=(TextPrompt("hi"),), splits_reasoning=False)


def test_the_models_own_defaults_hold_where_the_request_is_silent() -> None:
    defaults = Sampling(temperature=0.2, top_k=7)
    for dialect in (Completion(defaults), PluralCompletion(defaults), Infill(defaults)):
        text = {"input_prefix": "", "input_suffix": ""}
        body = text if isinstance(dialect, Infill) else {"prompt": "x"}
        got = dialect.parse({**body, "top_k": 3}, LIMITS).sampling
        assert got == Sampling(temperature=0.2, top_k=3)


def test_the_routes_have_llama_cpps_paths() -> None:
    paths = [dialect.path for dialect in (Completion(), PluralCompletion(), Infill())]
    assert paths == [*TABLES]


def test_only_the_prompt_is_computed_with_n_predict_0_whatever_else_is_asked() -> None:
    request = completion(n_predict=0, n_probs=5, return_tokens=True)
    assert (request.max_tokens, request.echo, request.n_logprobs) == (0, True, None)
    assert not completion(n_predict=1).echo


def test_tokens_come_with_as_many_of_the_likeliest_as_n_probs_says() -> None:
    assert completion(n_probs=3, return_tokens=True).n_logprobs == 3
    assert completion(n_probs=0, return_tokens=False).n_logprobs is None


@pytest.mark.parametrize(
    "samplers",
    [
        [
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature",
        ],
        "edskypmxt",
    ],
)
def test_the_default_order_of_samplers_changes_nothing(samplers: Any) -> None:
    assert completion(samplers=samplers) == completion()


def test_samplers_left_out_are_off_whatever_their_fields_say() -> None:
    loud: dict[str, Any] = {
        "repeat_penalty": 1.3,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "dry_multiplier": 1,
        "top_k": 3,
        "typical_p": 0.5,
        "top_p": 0.5,
        "min_p": 0.5,
        "xtc_probability": 0.5,
        "temperature": 0.1,
    }
    plain = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert completion(**loud, samplers=[]).sampling == plain
    kept = completion(**loud, samplers=["min_p", "temperature"]).sampling
    assert kept == Sampling(temperature=0.1, top_k=0, top_p=1.0, min_p=0.5)
    # Mirostat's chain is fixed in llama.cpp as well.
    assert completion(temperature=0.1, mirostat=1, samplers=[]).sampling.temperature == 0.1


def test_what_code_editors_send_is_taken() -> None:
    """The fields of the plug-ins llama.vim and llama.vscode."""
    request = infill(
        input_extra=[{"text": "x", "time": 17, "filename": "f"}],
        prompt="",
        n_predict=128,
        n_indent=4,
        top_k=40,
        top_p=0.99,
        stream=False,
        stop=[],
        samplers=["top_k", "top_p", "infill"],
        cache_prompt=True,
        t_max_prompt_ms=500,
        t_max_predict_ms=1000,
        response_fields=["content", "timings/prompt_n"],
    )
    assert request.sampling == Sampling(top_p=0.99, min_p=0.0, temperature=1.0)
    assert infill(n_predict=0, samplers=[], t_max_predict_ms=1).max_tokens == 0
