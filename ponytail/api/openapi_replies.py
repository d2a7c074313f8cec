"""The schemas of replies in /openapi.json.

Owns what each route sends, in JSON Schema 2020-12.  Must not know request bodies or how
routes are served.  Pure; any thread.
"""

from __future__ import annotations

from typing import Any

from ponytail.api.fields import Schema

INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: dict[str, Any], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def full(properties: dict[str, Any]) -> Schema:
    """An object all of whose members are always there."""
    return record(properties, list(properties))


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def reply_schemas() -> dict[str, Schema]:
    """By name, for `components.schemas`."""
    return {
        "ChatCompletion": _reply("chat.completion", _chat_choice(), ["usage"]),
        "ChatCompletionChunk": _reply("chat.completion.chunk", _chat_delta()),
        "Completion": _reply("text_completion", _raw_choice(), ["usage"]),
        "CompletionChunk": _reply("text_completion", _raw_choice()),
        "ChatLogprobs": _chat_logprobs(),
        "TokenLogprob": _token_logprob(),
        "Logprobs": _logprobs(),
        "Usage": _usage(),
        "Truncation": _truncation(),
        "Error": _error(),
        **_small_replies(),
    }


def _reply(kind: str, choice: Schema, always: list[str] | None = None) -> Schema:
    properties = {
        "id": TEXT,
        "object": {"const": kind},
        "created": INTEGER,
        "model": TEXT,
        "system_fingerprint": TEXT_OR_NULL,
        "choices": array(choice),
    }
    more = {
        "usage": or_null(ref("Usage")),
        "truncation": ref("Truncation"),
        "warnings": {
            **array(TEXT),
            "description": "What of the request could not be done to the letter.",
        },
    }
    return record({**properties, **more}, [*properties, *(always or [])])


def _choice(logprobs: Schema, *reasons: str, **members: Schema) -> Schema:
    ending = {"logprobs": or_null(logprobs), "finish_reason": {"enum": [*reasons, None]}}
    return full({"index": INTEGER, **members, **ending})


CHAT_REASONS = ("stop", "length", "tool_calls", "function_call")
FUNCTION = full({"name": TEXT, "arguments": TEXT})


def _chat_choice() -> Schema:
    call = full({"id": TEXT, "type": {"const": "function"}, "function": FUNCTION})
    message = record(
        {
            "role": {"const": "assistant"},
            "content": TEXT_OR_NULL,
            "refusal": NULL,
            "reasoning_content": TEXT,
            "tool_calls": array(call),
            "function_call": FUNCTION,
        },
        ["role", "content", "refusal"],
    )
    return _choice(ref("ChatLogprobs"), *CHAT_REASONS, message=message)


def _chat_delta() -> Schema:
    function = record({"name": TEXT, "arguments": TEXT}, ["arguments"])
    start = {"id": TEXT, "type": {"const": "function"}}
    call = record({"index": INTEGER, **start, "function": function}, ["index", "function"])
    delta = {
        "role": {"const": "assistant"},
        "content": TEXT_OR_NULL,
        "reasoning_content": TEXT,
        "tool_calls": array(call),
        "function_call": function,
    }
    return _choice(ref("ChatLogprobs"), *CHAT_REASONS, delta=record(delta, []))


def _raw_choice() -> Schema:
    return _choice(ref("Logprobs"), "stop", "length", text=TEXT)


def _token() -> dict[str, Schema]:
    byte = {"type": "integer", "minimum": 0, "maximum": 255}
    return {"token": TEXT, "logprob": NUMBER, "bytes": array(byte)}


def _token_logprob() -> Schema:
    return full({**_token(), "top_logprobs": array(full(_token()))})


def _chat_logprobs() -> Schema:
    tokens = array(ref("TokenLogprob"))
    beside = {"reasoning_content": tokens, "tool_calls": tokens}
    return record({"content": tokens, "refusal": NULL, **beside}, ["content", "refusal"])


def _logprobs() -> Schema:
    top = {"type": "object", "additionalProperties": NUMBER}
    return full(
        {
            "tokens": array(TEXT),
            "token_logprobs": array({"type": ["number", "null"]}),
            "top_logprobs": array(or_null(top)),
            "text_offset": array(INTEGER),
        }
    )


def _usage() -> Schema:
    counts = ["prompt_tokens", "completion_tokens", "total_tokens"]
    details = {
        "prompt_tokens_details": full({"cached_tokens": INTEGER}),
        "completion_tokens_details": full({"reasoning_tokens": INTEGER}),
    }
    return full({**dict.fromkeys(counts, INTEGER), **details})


def _truncation() -> Schema:
    schema = full(
        {"type": {"const": "auto"}, "dropped_messages": INTEGER, "dropped_turns": INTEGER}
    )
    return {**schema, "description": 'Only in replies to requests with truncation "auto".'}


def _error() -> Schema:
    return full(
        {"error": full({"message": TEXT, "type": TEXT, "param": TEXT_OR_NULL, "code": TEXT})}
    )


def _small_replies() -> dict[str, Schema]:
    model = {
        "id": TEXT,
        "object": {"const": "model"},
        "created": INTEGER,
        "owned_by": TEXT,
        "context_length": {**INTEGER, "description": "Tokens one request may use, enforced."},
        "max_model_len": {**INTEGER, "description": "The same."},
        "capabilities": array(TEXT),
        "meta": OBJECT,
    }
    piece = record({"id": INTEGER, "piece": {"anyOf": [TEXT, array(INTEGER)]}}, ["id", "piece"])
    tokens = {
        "tokens": array({"anyOf": [INTEGER, piece]}),
        "count": INTEGER,
        "max_model_len": INTEGER,
    }
    vector = {"anyOf": [array(NUMBER), TEXT]}
    models = {"object": {"const": "list"}, "data": array(ref("Model"))}
    return {
        "Model": record(model, list(model)),
        "ModelList": record(models, list(models)),
        "Health": record({"status": TEXT}, ["status"]),
        "Cache": record(
            {"layout": TEXT, "cells": OBJECT, "tree": OBJECT, "tiers": OBJECT}, ["layout"]
        ),
        "Tokens": record(tokens, list(tokens)),
        "Embeddings": _listed(
            "data",
            {"object": {"const": "embedding"}, "index": INTEGER, "embedding": vector},
        ),
        "Ranks": _listed(
            "results", {"index": INTEGER, "relevance_score": NUMBER}, {"document": OBJECT}
        ),
        "Content": record({"content": TEXT}, ["content"]),
        "Prompt": record({"prompt": TEXT}, ["prompt"]),
    }


def _listed(name: str, item: Schema, more: Schema | None = None) -> Schema:
    items = record({**item, **(more or {})}, list(item))
    counts = {"prompt_tokens": INTEGER, "total_tokens": INTEGER}
    parts = {"object": {"const": "list"}, name: array(items), "model": TEXT, "usage": full(counts)}
    return full(parts)
