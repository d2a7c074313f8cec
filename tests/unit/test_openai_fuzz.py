"""Whatever JSON comes, the OpenAI parsers raise nothing but our own errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ponytail.api.dialect import Limits
from ponytail.api.fields import Fields
from ponytail.api.openai import (
    ChatCompletions,
    Completions,
    parse_apply_template,
    parse_detokenize,
    parse_tokenize,
)
from ponytail.api.openai_fields import CHAT, COMPLETION, TABLES
from ponytail.errors import PonytailError

LIMITS = Limits(n_vocab=1000, n_ctx=512)
HI = [{"role": "user", "content": "hi"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
MEMBERS = ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id"]
TURNS = st.recursive(
    st.sampled_from(["user", "assistant", "tool", "text", "image_url", "function"]) | JSON,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=5)
    ),
    max_leaves=12,
)


FORM_MEMBERS = [
    *("type", "function", "name", "parameters", "allowed_tools", "mode", "tools"),
    *("json_schema", "schema", "text", "json", "regex", "choice", "grammar"),
]
FORMS = st.recursive(
    st.sampled_from(
        ["function", "allowed_tools", "required", "json_schema", "json_object", "lark", "f"]
    )
    | JSON,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FORM_MEMBERS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
FORMED = [
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
    "structured_outputs",
    "grammar",
    "documents",
]


def only_pony_errors(parse: Callable[..., Any], body: Any) -> None:
    with contextlib.suppress(PonytailError):
        parse(body, LIMITS)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_body_raises_anything_but_our_errors(data: st.DataObject) -> None:
    parse, table, required = data.draw(
        st.sampled_from(
            [
                (ChatCompletions().parse, CHAT, {"messages": HI}),
                (Completions().parse, COMPLETION, {"prompt": "x"}),
                (parse_tokenize, TABLES["/v1/tokenize"], {"content": "x"}),
                (parse_detokenize, TABLES["/v1/detokenize"], {"tokens": [1]}),
                (parse_apply_template, TABLES["/v1/apply-template"], {"messages": HI}),
            ]
        )
    )
    assert isinstance(table, Fields)
    names = st.sampled_from([row.name for row in table]) | st.text(max_size=8)
    only_pony_errors(parse, data.draw(JSON))
    only_pony_errors(parse, {**required, **data.draw(st.dictionaries(names, JSON, max_size=3))})


@settings(max_examples=150, deadline=None)
@given(TURNS)
def test_no_message_raises_anything_but_our_errors(value: Any) -> None:
    only_pony_errors(ChatCompletions().parse, {"messages": value})
    only_pony_errors(ChatCompletions().parse, {"messages": [value]})
    only_pony_errors(Completions().parse, {"prompt": value})


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FORMED), FORMS, max_size=2))
def test_no_tool_or_format_raises_anything_but_our_errors(fields: dict[str, Any]) -> None:
    named = [{"type": "function", "function": {"name": "f"}}]
    only_pony_errors(ChatCompletions().parse, {"messages": HI, **fields})
    only_pony_errors(ChatCompletions().parse, {"messages": HI, "tools": named, **fields})
    only_pony_errors(Completions().parse, {"prompt": "x", **fields})
