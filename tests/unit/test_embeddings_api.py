"""Every row of /v1/embeddings and /v1/rerank: honoured, accepted or refused; and the replies."""

from __future__ import annotations

import base64
import json
import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from ponytail.api.dialect import Limits
from ponytail.api.embeddings import (
    TABLES,
    encode_embeddings,
    encode_ranks,
    parse_embeddings,
    parse_rerank,
)
from ponytail.api.fields import Field
from ponytail.errors import InvalidRequest
from ponytail.types import EmbedRequest, RankRequest

LIMITS = Limits(n_vocab=1000, n_ctx=512)
EMBED, RANK = TABLES
BODIES: dict[str, dict[str, Any]] = {
    EMBED: {"input": "a"},
    RANK: {"query": "q", "documents": ["a"]},
}
PARSERS: dict[str, Callable[[dict[str, Any], Limits], Any]] = {
    EMBED: parse_embeddings,
    RANK: parse_rerank,
}
EFFECTS: dict[tuple[str, str], tuple[Any, Any]] = {
    (EMBED, "input"): (["a", [1, 2]], EmbedRequest(("a", (1, 2)))),
    (EMBED, "content"): ("a", EmbedRequest(("a",), param="content")),
    (EMBED, "encoding_format"): ("base64", EmbedRequest(("a",), is_base64=True)),
    (EMBED, "dimensions"): (64, EmbedRequest(("a",), dimensions=64)),
    (RANK, "query"): ("other", RankRequest("other", ("a",))),
    (RANK, "documents"): (["a", {"text": "b"}], RankRequest("q", ("a", "b"))),
    (RANK, "texts"): (["b"], RankRequest("q", ("b",), param="texts")),
    (RANK, "top_n"): (1, RankRequest("q", ("a",), n_top=1)),
    (RANK, "return_documents"): (True, RankRequest("q", ("a",), shows_documents=True)),
}
ROWS = [(path, row) for path, table in TABLES.items() for row in table]


def parsed(path: str, row: Field, name: str, value: Any) -> Any:
    body = {key: v for key, v in BODIES[path].items() if key != row.name}
    return PARSERS[path]({**body, name: value}, LIMITS)


@pytest.mark.parametrize(("path", "row"), ROWS, ids=lambda one: getattr(one, "name", one))
def test_every_row_does_what_it_says(path: str, row: Field) -> None:
    if row.effect == "refused":
        with pytest.raises(InvalidRequest) as caught:
            parsed(path, row, row.name, 7)
        assert caught.value.param == row.name
        return
    for name in (row.name, *row.aliases):
        if row.effect == "accepted":
            plain = PARSERS[path](BODIES[path], LIMITS)
            assert parsed(path, row, name, "x") == plain
        else:
            value, expected = EFFECTS[path, name]
            assert parsed(path, row, name, value) == expected


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (EMBED, {"input": None}, "input"),
        (EMBED, {"input": {}}, "input"),
        (EMBED, {"input": [["a"]]}, "input[0][0]"),
        (EMBED, {"input": [1, "a"]}, "input[1]"),
        (EMBED, {"input": [[1], [1000]]}, "input[1][0]"),
        (EMBED, {"input": [True]}, "input[0]"),
        (EMBED, {"encoding_format": "int8"}, "encoding_format"),
        (EMBED, {"dimensions": 0}, "dimensions"),
        (EMBED, {"inputs": "a"}, "inputs"),
        (RANK, {"documents": []}, "documents"),
        (RANK, {"documents": ["a", {"title": "b"}]}, "documents[1].text"),
        (RANK, {"query": ""}, "query"),
        (RANK, {"top_n": 0}, "top_n"),
    ],
)
def test_what_is_wrong_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PARSERS[path]({**BODIES[path], **fields}, LIMITS)
    assert caught.value.param == param


def test_base64_is_little_endian_float32_of_the_same_numbers() -> None:
    vectors = [array("f", [0.5, -0.25, 0.1])]
    plain = json.loads(encode_embeddings(EmbedRequest(("a",)), vectors, 3, "m"))
    packed = json.loads(encode_embeddings(EmbedRequest(("a",), is_base64=True), vectors, 3, "m"))
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack("<3f", data)) == plain["data"][0]["embedding"]
    assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert (plain["object"], plain["model"], plain["data"][0]["index"]) == ("list", "m", 0)


def test_ranks_come_best_first_and_only_as_many_as_asked() -> None:
    request = RankRequest("q", ("a", "b", "c"), n_top=2, shows_documents=True)
    told = json.loads(encode_ranks(request, [0.5, 2.0, -1.0], 9, "m"))
    assert told["results"] == [
        {"index": 1, "relevance_score": 2.0, "document": {"text": "b"}},
        {"index": 0, "relevance_score": 0.5, "document": {"text": "a"}},
    ]
