"""/v1/embeddings and /v1/rerank: what may be asked, and the replies.

Owns both routes' rows, parsers and encoders.  Must not know HTTP, the engine or the model.
Pure; any thread.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ponytail.api.dialect import Limits
from ponytail.api.fields import (
    Boolean,
    Fields,
    Integer,
    OneOf,
    Schema,
    String,
    accepted,
    honoured,
    must,
    refused,
    wrong,
)
from ponytail.api.openai_messages import TokenIds, read_ids
from ponytail.types import EmbedRequest, RankRequest

N_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class Inputs:
    """A text, texts, token ids, or lists of token ids; none of them empty."""

    @property
    def words(self) -> str:
        return (
            "a non-empty string, a list of token ids, or a list of either "
            f"(at most {N_INPUTS}, none empty)"
        )

    def read(self, value: object, path: str, limits: Limits) -> tuple[str | tuple[int, ...], ...]:
        if isinstance(value, str):
            return (self._one(value, path, limits),)
        if not isinstance(value, list) or not value:
            raise wrong(self, value, path)
        if type(value[0]) is int:
            return (read_ids(value, path, limits),)
        if len(value) > N_INPUTS:
            raise wrong(self, value, path)
        return tuple(self._one(item, f"{path}[{i}]", limits) for i, item in enumerate(value))

    def _one(self, item: object, path: str, limits: Limits) -> str | tuple[int, ...]:
        if isinstance(item, str) and item:
            return item
        if isinstance(item, list) and item:
            return read_ids(item, path, limits)
        raise must(path, "a non-empty string or list of token ids", item)

    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1}
        ids = TokenIds(n_min=1).schema()
        one = {"anyOf": [text, ids]}
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": N_INPUTS}
        return {"anyOf": [text, ids, many]}


@dataclass(frozen=True, slots=True)
class Documents:
    """Texts, plain or in objects."""

    @property
    def words(self) -> str:
        return f'a list of 1 to {N_INPUTS} non-empty strings or objects {{"text": "..."}}'

    def read(self, value: object, path: str, limits: Limits) -> tuple[str, ...]:
        if not isinstance(value, list) or not 0 < len(value) <= N_INPUTS:
            raise wrong(self, value, path)
        return tuple(self._one(item, f"{path}[{i}]") for i, item in enumerate(value))

    def _one(self, item: object, path: str) -> str:
        if isinstance(item, dict):
            item, path = item.get("text"), f"{path}.text"
        if not isinstance(item, str) or not item:
            raise must(path, "a non-empty string", item)
        return item

    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1}
        record = {"type": "object", "properties": {"text": text}, "required": ["text"]}
        items = {"anyOf": [text, record]}
        return {"type": "array", "items": items, "minItems": 1, "maxItems": N_INPUTS}


_MODEL = accepted("model", String(), "One model is served, whatever this says.")
_USER = accepted("user", String(), "Not used.")
_WHOLE = "A text beyond the window is a 400: texts are never cut."

EMBEDDINGS = Fields(
    honoured(
        "input",
        Inputs(),
        "What to embed; a 400 names the item that is wrong or too long.",
        required=True,
        aliases=("content",),
    ),
    honoured(
        "encoding_format",
        OneOf(("float", "base64")),
        "A list of numbers, or the base64 text of little-endian float32.",
        default="float",
    ),
    honoured(
        "dimensions",
        Integer(1, 1 << 20),
        "The first numbers of each vector alone, scaled to length 1 again; at most what the "
        "model has.",
    ),
    _MODEL,
    _USER,
    refused("truncate", _WHOLE, False),
    refused("truncate_prompt_tokens", _WHOLE),
    refused("embd_normalize", "Vectors have length 1.", 2),
)

RERANK = Fields(
    honoured("query", String(1), "What the documents are compared with.", required=True),
    honoured("documents", Documents(), "The texts to rank.", required=True, aliases=("texts",)),
    honoured("top_n", Integer(1, 1 << 31), "Only so many of the best."),
    honoured(
        "return_documents", Boolean(), "Give each document's text with its score.", default=False
    ),
    _MODEL,
    _USER,
    refused("truncate", _WHOLE, False),
    refused("max_chunks_per_doc", _WHOLE),
    refused("max_tokens_per_doc", _WHOLE),
)

TABLES: dict[str, Fields] = {"/v1/embeddings": EMBEDDINGS, "/v1/rerank": RERANK}


def parse_embeddings(body: dict[str, Any], limits: Limits) -> EmbedRequest:
    """Raises InvalidRequest."""
    values = EMBEDDINGS.read_members(body, limits)
    return EmbedRequest(
        inputs=values["input"],
        dimensions=values.get("dimensions"),
        is_base64=values.get("encoding_format") == "base64",
        param="content" if "content" in body else "input",
    )


def parse_rerank(body: dict[str, Any], limits: Limits) -> RankRequest:
    """Raises InvalidRequest."""
    values = RERANK.read_members(body, limits)
    return RankRequest(
        query=values["query"],
        documents=values["documents"],
        n_top=values.get("top_n"),
        shows_documents=values.get("return_documents", False),
        param="texts" if "texts" in body else "documents",
    )


def encode_embeddings(
    request: EmbedRequest, vectors: Sequence[array[float]], n_tokens: int, model: str
) -> bytes:
    """The reply of /v1/embeddings."""
    shown = _base64 if request.is_base64 else array.tolist
    data = [
        {"object": "embedding", "index": i, "embedding": shown(vector)}
        for i, vector in enumerate(vectors)
    ]
    return msgspec.json.encode(
        {"object": "list", "data": data, "model": model, "usage": _usage(n_tokens)}
    )


def encode_ranks(request: RankRequest, scores: Sequence[float], n_tokens: int, model: str) -> bytes:
    """The reply of /v1/rerank: the best first."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.n_top]
    results = []
    for i in order:
        shown = {"document": {"text": request.documents[i]}} if request.shows_documents else {}
        results.append({"index": i, "relevance_score": scores[i], **shown})
    return msgspec.json.encode(
        {"object": "list", "model": model, "results": results, "usage": _usage(n_tokens)}
    )


def _base64(vector: array[float]) -> str:
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
