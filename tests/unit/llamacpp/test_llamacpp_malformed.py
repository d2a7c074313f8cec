"""Every malformed body gets a 400 in llama.cpp's shape that names the field."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponytail.api.llamacpp import Completion, Infill, encode_error
from ponytail.api.llamacpp_fields import COMPLETION, INFILL
from ponytail.errors import (
    ContextLengthExceeded,
    EngineFailed,
    Forbidden,
    MethodNotAllowed,
    ModelLoading,
    ModelNotFound,
    Overloaded,
    PonytailError,
    ShuttingDown,
    UnsupportedParameter,
)
from tests.unit.llamacpp.bodies import LIMITS, completion, infill, refusal

MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": ""}, "prompt", "non-empty"),
    ({"prompt": []}, "prompt", "an empty list"),
    ({"prompt": 5}, "prompt", "got 5"),
    ({"prompt": {}}, "prompt.prompt_string", "required"),
    ({"prompt": {"prompt_string": ""}}, "prompt.prompt_string", "non-empty"),
    ({"prompt": {"prompt_string": "a", "x": 1}}, "prompt.x", "not a parameter"),
    (
        {"prompt": {"prompt_string": "a", "multimodal_data": ["AAAA"]}},
        "prompt.multimodal_data",
        "read text only",
    ),
    (
        {"prompt": ["a", {"prompt_string": "a", "multimodal_data": ["AAAA"]}]},
        "prompt[1].multimodal_data",
        "read text only",
    ),
    ({"prompt": ["a", ""]}, "prompt[1]", "non-empty"),
    ({"prompt": ["a", None]}, "prompt[1]", "got null"),
    ({"prompt": [1, 1000]}, "prompt[1]", "from 0 to 999"),
    ({"prompt": [-1]}, "prompt[0]", "got -1"),
    ({"prompt": [True]}, "prompt[0]", "got true"),
    ({"prompt": [[]]}, "prompt[0]", "an empty list"),
    ({"prompt": [[1], [2, 1000]]}, "prompt[1][1]", "got 1000"),
    ({"prompt": ["a"] * 2049}, "prompt", "at most 2048"),
    ({"prompt": [1, "a"]}, "prompt[1]", "/tokenize"),
    ({"prompt": ["a", 1]}, "prompt[1]", "/tokenize"),
    ({"prompt": ["x", [1, "a"]]}, "prompt[1][1]", "/tokenize"),
    ({"prompt": ["a"] * 17, "n_cmpl": 128}, "n_cmpl", "at most 2048"),
    ({"n_predict": -2}, "n_predict", "-1: to the end"),
    ({"n_predict": 5, "max_tokens": 6}, "max_tokens", "different value"),
    ({"n_predict": 5, "min_tokens": 6}, "min_tokens", "n_predict (5)"),
    ({"stop": ["a", ""]}, "stop[1]", "non-empty"),
    ({"stop": ["a"] * 65}, "stop", "at most 64"),
    ({"logit_bias": [["Hello", 1]]}, "logit_bias[0]", "token id"),
    ({"logit_bias": {"Hello": 1}}, "logit_bias.Hello", "token id"),
    ({"n_probs": 101}, "n_probs", "from 0 to 100"),
    ({"grammar": 5}, "grammar", "GBNF"),
    ({"grammar": "a" * (2**18 + 1)}, "grammar", "at most"),
    ({"json_schema": "x"}, "json_schema", "JSON Schema"),
    ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema", "one of them"),
    ({"response_fields": "content"}, "response_fields", "paths"),
    ({"response_fields": ["a", 1]}, "response_fields[1]", "a string"),
    ({"samplers": 5}, "samplers", "a list of some of"),
    ({"samplers": ["top_k", 5]}, "samplers[1]", "name of a sampler"),
    ({"samplers": ["top_k", "mirage"]}, "samplers[1]", '"mirage"'),
    ({"samplers": ["infill"]}, "samplers[0]", '"infill"'),
    ({"samplers": "kz"}, "samplers[1]", '"z"'),
    ({"samplers": ["top_p", "top_k"]}, "samplers", "this order"),
    ({"samplers": ["top_p", "top_p"]}, "samplers", "this order"),
    ({"samplers": ["top_p"] * 100_000}, "samplers", "a list of 100000"),
    ({"id_slot": 0}, "id_slot", "not supported"),
    ({"lora": [{"id": 0, "scale": 0.5}]}, "lora", "not supported"),
    ({"n_indent": 4}, "n_indent", "not supported"),
    ({"t_max_predict_ms": 500}, "t_max_predict_ms", "deadline_s"),
    ({"temprature": 1}, "temprature", "Did you mean temperature?"),
    ({"messages": []}, "messages", "not a parameter"),
    ({"input_prefix": "x"}, "input_prefix", "not a parameter"),
]
MALFORMED_INFILL: list[tuple[dict[str, Any], str, str]] = [
    ({"input_prefix": None}, "input_prefix", "required"),
    ({"input_suffix": None}, "input_suffix", "required"),
    ({"input_suffix": [1]}, "input_suffix", "a string"),
    ({"prompt": [1, 2]}, "prompt", "a string"),
    ({"input_extra": {}}, "input_extra", "a list"),
    ({"input_extra": [{"text": "a"}] * 1025}, "input_extra", "at most 1024"),
    ({"input_extra": ["a"]}, "input_extra[0]", "an object"),
    ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text", "required"),
    ({"input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0].filename", "a string"),
    ({"input_extra": [{"text": "a"}, {"txt": "a"}]}, "input_extra[1].txt", "mean"),
    ({"samplers": ["adaptive_p"]}, "samplers[0]", "adaptive_p"),
    ({"n_indent": -1}, "n_indent", "an integer"),
]


@pytest.mark.parametrize(("fields", "param", "words"), MALFORMED)
def test_a_malformed_completion_names_its_fault(
    fields: dict[str, Any], param: str, words: str
) -> None:
    assert_refused(refusal(completion, **fields), param, words)


@pytest.mark.parametrize(("fields", "param", "words"), MALFORMED_INFILL)
def test_a_malformed_infill_names_its_fault(fields: dict[str, Any], param: str, words: str) -> None:
    assert_refused(refusal(infill, **fields), param, words)


@pytest.mark.parametrize("body", [None, [], "x", 5])
def test_a_body_must_be_an_object(body: Any) -> None:
    for dialect in (Completion(), Infill()):
        assert refusal(dialect.parse, body, LIMITS).message == "The body must be a JSON object."


def assert_refused(error: PonytailError, param: str, words: str) -> None:
    assert error.param == param
    assert param in error.message
    assert words in error.message
    assert len(error.message) < 400
    assert json.loads(Completion().encode_error(error)) == {
        "error": {"code": 400, "message": error.message, "type": "invalid_request_error"}
    }


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (UnsupportedParameter("m"), 400, "invalid_request_error"),
        (Forbidden("m"), 403, "permission_error"),
        (ModelNotFound("m"), 404, "not_found_error"),
        (MethodNotAllowed("m"), 405, "invalid_request_error"),
        (Overloaded("m"), 429, "rate_limit_error"),
        (EngineFailed("m"), 500, "server_error"),
        (ModelLoading("m"), 503, "unavailable_error"),
        (ShuttingDown("m"), 503, "unavailable_error"),
    ],
)
def test_errors_have_llama_cpps_types(error: PonytailError, code: int, kind: str) -> None:
    shown = {"error": {"code": code, "message": "m", "type": kind}}
    assert json.loads(encode_error(error)) == shown
    assert json.loads(Infill().encode_error(error)) == shown


def test_a_prompt_that_does_not_fit_tells_the_counts() -> None:
    shown = json.loads(encode_error(ContextLengthExceeded(600, 512)))["error"]
    assert (shown["code"], shown["type"]) == (400, "exceed_context_size_error")
    assert (shown["n_prompt_tokens"], shown["n_ctx"]) == (600, 512)


def test_depth_breaks_nothing() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    schema: Any = {}
    for _ in range(100_000):
        schema = {"a": schema}
    assert refusal(completion, prompt=deep).param == "prompt[0][0]"
    assert refusal(completion, json_schema=schema).param == "json_schema"
    for name in ("stop", "logit_bias", "samplers", "response_fields", "lora"):
        assert refusal(completion, **{name: deep}).status == 400
    assert infill(input_extra=[{"text": "", "time": deep}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["prompt_string", "text", "filename"]) | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_body_raises_anything_but_our_errors(data: st.DataObject) -> None:
    parse, table, required = data.draw(
        st.sampled_from(
            [
                (Completion().parse, COMPLETION, {"prompt": "x"}),
                (Infill().parse, INFILL, {"input_prefix": "", "input_suffix": ""}),
            ]
        )
    )
    names = st.sampled_from([row.name for row in table]) | st.text(max_size=8)
    drawn = data.draw(st.dictionaries(names, JSON, max_size=3))
    for body in (data.draw(JSON), {**required, **drawn}):
        with contextlib.suppress(PonytailError):
            parse(body, LIMITS)
