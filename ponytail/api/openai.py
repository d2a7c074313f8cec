"""The OpenAI dialect: chat completions, completions, models, tokens.

Owns which request each JSON body asks for, and the small replies that are no stream.
The rows it checks by are in `openai_fields`, the streams in `openai_stream`.  Must not
know HTTP, the engine or the model.  Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ponytail.api import openai_fields as tables
from ponytail.api.dialect import Encoder, Limits, Reply
from ponytail.api.openai_choices import ChatShape, RawShape
from ponytail.api.openai_replies import encode_error
from ponytail.api.openai_request import chat_prompt, chat_request, completion_request
from ponytail.api.openai_sampling import DEFAULTS
from ponytail.api.openai_stream import encoder
from ponytail.api.openapi import encode_openapi
from ponytail.errors import PonytailError
from ponytail.types import ChatPrompt, GenerateRequest, Sampling

__all__ = [
    "ChatCompletions",
    "Completions",
    "ModelCard",
    "TokenizeRequest",
    "encode_content",
    "encode_error",
    "encode_model",
    "encode_models",
    "encode_openapi",
    "encode_prompt",
    "encode_tokens",
    "parse_apply_template",
    "parse_detokenize",
    "parse_tokenize",
]


class ChatCompletions:
    """`/v1/chat/completions`; `defaults` hold for what a request does not say."""

    path: str = "/v1/chat/completions"
    id_prefix: str = "chatcmpl-"

    def __init__(self, defaults: Sampling = DEFAULTS) -> None:
        self.defaults = defaults

    def parse(self, body: dict[str, Any], limits: Limits) -> GenerateRequest:
        """Raises InvalidRequest or UnsupportedContent, with `param` the path of the field."""
        values = tables.CHAT.read_members(body, limits)
        return chat_request(values, self.defaults)

    def encoder(self, reply: Reply, request: GenerateRequest) -> Encoder:
        return encoder(reply, request, ChatShape(request))

    def encode_error(self, error: PonytailError) -> bytes:
        return encode_error(error)


class Completions:
    """`/v1/completions`; `defaults` hold for what a request does not say."""

    path: str = "/v1/completions"
    id_prefix: str = "cmpl-"

    def __init__(self, defaults: Sampling = DEFAULTS) -> None:
        self.defaults = defaults

    def parse(self, body: dict[str, Any], limits: Limits) -> GenerateRequest:
        """Raises InvalidRequest, with `param` the path of the field."""
        values = tables.COMPLETION.read_members(body, limits)
        return completion_request(values, self.defaults)

    def encoder(self, reply: Reply, request: GenerateRequest) -> Encoder:
        return encoder(reply, request, RawShape(request))

    def encode_error(self, error: PonytailError) -> bytes:
        return encode_error(error)


class TokenizeRequest(msgspec.Struct, frozen=True):
    """What /v1/tokenize is to do with `text`."""

    text: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


def parse_tokenize(body: dict[str, Any], limits: Limits) -> TokenizeRequest:
    values = tables.TOKENIZE.read_members(body, limits)
    return TokenizeRequest(
        text=values["content"],
        add_special=values.get("add_special", False),
        parse_special=values.get("parse_special", True),
        with_pieces=values.get("with_pieces", False),
    )


def encode_tokens(
    ids: Sequence[int], max_model_len: int, pieces: Sequence[bytes] | None = None
) -> bytes:
    """The reply of /v1/tokenize; `pieces` are the bytes of each token, where asked for.

    A piece that is part of a character is a list of bytes, as llama.cpp's server does.
    """
    tokens: list[Any] = list(ids)
    if pieces is not None:
        pairs = zip(ids, pieces, strict=True)
        tokens = [{"id": token, "piece": _piece(piece)} for token, piece in pairs]
    return msgspec.json.encode(
        {"tokens": tokens, "count": len(tokens), "max_model_len": max_model_len}
    )


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def parse_detokenize(body: dict[str, Any], limits: Limits) -> tuple[int, ...]:
    values = tables.DETOKENIZE.read_members(body, limits)
    ids: tuple[int, ...] = values["tokens"]
    return ids


def encode_content(content: str) -> bytes:
    """The reply of /v1/detokenize."""
    return msgspec.json.encode({"content": content})


def parse_apply_template(body: dict[str, Any], limits: Limits) -> ChatPrompt:
    return chat_prompt(tables.APPLY_TEMPLATE.read_members(body, limits))


def encode_prompt(prompt: str) -> bytes:
    """The reply of /v1/apply-template."""
    return msgspec.json.encode({"prompt": prompt})


class ModelCard(msgspec.Struct, frozen=True):
    """One model as /v1/models shows it; `context_length` is the limit that is enforced."""

    id: str
    created: int
    context_length: int
    capabilities: tuple[str, ...] = ("completion", "chat")
    meta: dict[str, Any] = msgspec.field(default_factory=dict)


def encode_model(card: ModelCard) -> bytes:
    return msgspec.json.encode(_model(card))


def encode_models(cards: Sequence[ModelCard]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_model(card) for card in cards]})


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "ponytail",
        "context_length": card.context_length,
        "max_model_len": card.context_length,
        "capabilities": card.capabilities,
        "meta": card.meta,
    }
