"""/openapi.json: every route, made from the parameter rows.

Owns the OpenAPI 3.1 document.  Request bodies come from `openai_fields`; the schemas of
replies stand here.  Must not know how routes are served.  Pure; any thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ponytail import __version__
from ponytail.api.fields import Fields, Schema
from ponytail.api.openai_fields import DEFAULTS, TABLES
from ponytail.api.openai_messages import MEDIA_PARTS, ROLES, TEXT_PARTS
from ponytail.types import Sampling

JSON = "application/json"
PLAIN = "text/plain"
INTEGER: Schema = {"type": "integer"}
TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def openapi(version: str = __version__, defaults: Sampling = DEFAULTS) -> dict[str, Any]:
    """The document; `defaults` are the sampling values this server starts from."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ponytail",
            "version": version,
            "description": "A local GGUF model behind the OpenAI API. Parameters are marked "
            "x-ponytail-effect: honoured, accepted (no effect here) or refused (a 400 unless "
            "the value asks for nothing). Unknown parameters are a 400.",
        },
        "paths": _paths(),
        "components": {
            "schemas": {**_requests(defaults), **_replies()},
            "responses": _errors(),
        },
    }


def encode_openapi(version: str = __version__, defaults: Sampling = DEFAULTS) -> bytes:
    """The reply of /openapi.json."""
    return msgspec.json.encode(openapi(version, defaults))


def _paths() -> dict[str, Any]:
    model_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The model's name; it may hold slashes.",
        "schema": TEXT,
    }
    return {
        "/v1/chat/completions": _generate("createChatCompletion", "ChatCompletion"),
        "/v1/completions": _generate("createCompletion", "Completion"),
        "/v1/models": _get("listModels", "The served models.", "ModelList"),
        "/v1/models/{id}": {
            "parameters": [model_id],
            **_get("getModel", "One model.", "Model", {"404": _ref_error("NotFound")}),
        },
        "/health": _get(
            "getHealth",
            "Whether a completion would succeed now.",
            "Health",
            {"503": _content("Still loading.", "Health")},
        ),
        "/v1/cache": _get("getCache", "What the KV cache holds.", "Cache"),
        "/metrics": {
            "get": {
                "operationId": "getMetrics",
                "summary": "Metrics for Prometheus.",
                "responses": {"200": {"description": "OK", "content": {PLAIN: {"schema": TEXT}}}},
            }
        },
        "/v1/tokenize": _post("tokenize", "The token ids of a text.", "Tokens"),
        "/v1/detokenize": _post("detokenize", "The text of token ids.", "Content"),
        "/v1/apply-template": _post("applyTemplate", "The prompt of a conversation.", "Prompt"),
        "/openapi.json": {
            "get": {
                "operationId": "getOpenapi",
                "summary": "This document.",
                "responses": {"200": {"description": "OK", "content": {JSON: {"schema": OBJECT}}}},
            }
        },
    }


def _get(
    operation: str, summary: str, reply: str, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    responses = {"200": _content("OK", reply), **(more or {})}
    return {"get": {"operationId": operation, "summary": summary, "responses": responses}}


def _post(operation: str, summary: str, reply: str) -> dict[str, Any]:
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": _ref(_request_name(operation))}},
            },
            "responses": {"200": _content("OK", reply), **_error_responses()},
        }
    }


def _generate(operation: str, reply: str) -> dict[str, Any]:
    """A route that can stream."""
    route = _post(operation, "Generate, streamed or as one object.", reply)
    route["post"]["responses"]["200"]["content"]["text/event-stream"] = {
        "schema": TEXT,
        "x-ponytail-event": _ref(f"{reply}Chunk"),
    }
    return route


def _content(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": _ref(schema)}}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _ref_error(name: str) -> Schema:
    return {"$ref": f"#/components/responses/{name}"}


ERRORS = {
    "400": ("BadRequest", "A field is wrong, unknown or not supported; `param` names it."),
    "404": ("NotFound", "No such model or route."),
    "405": ("MethodNotAllowed", "The route has no such method."),
    "413": ("PayloadTooLarge", "The body is over the limit."),
    "415": ("UnsupportedMediaType", "The body is not declared as JSON."),
    "429": ("Overloaded", "The queue is full; Retry-After is an estimate in seconds."),
    "500": ("Failed", "This one request broke."),
    "503": ("Unavailable", "The model is loading, or the server is going down."),
}


def _error_responses() -> dict[str, Any]:
    return {status: _ref_error(name) for status, (name, _) in ERRORS.items() if status != "404"}


def _errors() -> dict[str, Any]:
    responses = {name: _content(text, "Error") for name, text in ERRORS.values()}
    responses["Overloaded"]["headers"] = {
        "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
    }
    return responses


OPERATIONS = {
    "/v1/chat/completions": "createChatCompletion",
    "/v1/completions": "createCompletion",
    "/v1/tokenize": "tokenize",
    "/v1/detokenize": "detokenize",
    "/v1/apply-template": "applyTemplate",
}


def _request_name(operation: str) -> str:
    return operation[0].upper() + operation[1:] + "Request"


def _requests(defaults: Sampling) -> dict[str, Schema]:
    bodies = {_request_name(OPERATIONS[path]): _body(t, defaults) for path, t in TABLES.items()}
    return {**bodies, "Message": _message(), "ContentPart": _part()}


def _body(table: Fields, defaults: Sampling) -> Schema:
    """The table's schema, with this server's own sampling defaults."""
    schema = table.schema()
    for name in Sampling.__struct_fields__:
        value = getattr(defaults, name)
        if name in schema["properties"] and value is not None:
            schema["properties"][name]["default"] = value
    return schema


def _message() -> Schema:
    parts = {"type": "array", "items": _ref("ContentPart")}
    function = _object(
        {"name": {"type": "string", "minLength": 1}, "arguments": {"type": ["string", "object"]}},
        ["name"],
    )
    call = _object({"id": TEXT, "type": {"const": "function"}, "function": function}, ["id"])
    return _object(
        {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [TEXT, {"type": "null"}, parts, OBJECT]},
            "name": TEXT_OR_NULL,
            "tool_call_id": TEXT_OR_NULL,
            "tool_calls": {"anyOf": [{"type": "array", "items": call}, {"type": "null"}]},
            "reasoning_content": TEXT_OR_NULL,
            "refusal": TEXT_OR_NULL,
        },
        ["role"],
    )


def _part() -> Schema:
    media = ", ".join(MEDIA_PARTS)
    return _object(
        {
            "type": {"enum": list(TEXT_PARTS), "description": f"Refused: {media}."},
            "text": TEXT,
            "refusal": TEXT,
        },
        ["type"],
    )


def _object(properties: dict[str, Any], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _replies() -> dict[str, Schema]:
    delta = {"role": TEXT, "content": TEXT_OR_NULL, "reasoning_content": TEXT, "refusal": {}}
    calls = {"tool_calls": _list(OBJECT)}
    message = _object({**delta, **calls}, ["role", "content"])
    chat = {"index": INTEGER, "message": message, **_ending("stop", "length", "tool_calls")}
    chunk = {**chat, "delta": _object({**delta, **calls}, [])}
    del chunk["message"]
    raw = {"index": INTEGER, "text": TEXT, **_ending("stop", "length")}
    return {
        "ChatCompletion": _reply("chat.completion", chat, truncation=_ref("Truncation")),
        "ChatCompletionChunk": _reply(
            "chat.completion.chunk", chunk, truncation=_ref("Truncation")
        ),
        "Completion": _reply("text_completion", raw),
        "CompletionChunk": _reply("text_completion", raw),
        "Usage": _usage(),
        "Truncation": _truncation(),
        "Error": _error(),
        **_small_replies(),
    }


def _ending(*reasons: str) -> dict[str, Schema]:
    return {"logprobs": {"type": "null"}, "finish_reason": {"enum": [*reasons, None]}}


def _truncation() -> Schema:
    members = {
        "type": {"const": "auto"},
        "dropped_messages": INTEGER,
        "dropped_turns": INTEGER,
    }
    schema = _object(members, list(members))
    return {**schema, "description": 'Only in replies to requests with truncation "auto".'}


def _reply(kind: str, choice: dict[str, Any], **more: Schema) -> Schema:
    properties = {
        "id": TEXT,
        "object": {"const": kind},
        "created": INTEGER,
        "model": TEXT,
        "system_fingerprint": TEXT_OR_NULL,
        "choices": _list(_object(choice, list(choice))),
        "usage": {"anyOf": [_ref("Usage"), {"type": "null"}]},
        **more,
    }
    return _object(properties, ["id", "object", "created", "model", "choices"])


def _usage() -> Schema:
    counts = ["prompt_tokens", "completion_tokens", "total_tokens"]
    details = {
        "prompt_tokens_details": _object({"cached_tokens": INTEGER}, ["cached_tokens"]),
        "completion_tokens_details": _object({"reasoning_tokens": INTEGER}, ["reasoning_tokens"]),
    }
    return _object({**dict.fromkeys(counts, INTEGER), **details}, counts)


def _error() -> Schema:
    members = {"message": TEXT, "type": TEXT, "param": TEXT_OR_NULL, "code": TEXT}
    return _object({"error": _object(members, list(members))}, ["error"])


def _small_replies() -> dict[str, Schema]:
    model = {
        "id": TEXT,
        "object": {"const": "model"},
        "created": INTEGER,
        "owned_by": TEXT,
        "context_length": {**INTEGER, "description": "Tokens one request may use, enforced."},
        "max_model_len": {**INTEGER, "description": "The same."},
        "capabilities": _list(TEXT),
        "meta": OBJECT,
    }
    piece = _object({"id": INTEGER, "piece": {"anyOf": [TEXT, _list(INTEGER)]}}, ["id", "piece"])
    tokens = {
        "tokens": _list({"anyOf": [INTEGER, piece]}),
        "count": INTEGER,
        "max_model_len": INTEGER,
    }
    models = {"object": {"const": "list"}, "data": _list(_ref("Model"))}
    return {
        "Model": _object(model, list(model)),
        "ModelList": _object(models, list(models)),
        "Health": _object({"status": TEXT}, ["status"]),
        "Cache": _object(
            {"layout": TEXT, "cells": OBJECT, "tree": OBJECT, "tiers": OBJECT}, ["layout"]
        ),
        "Tokens": _object(tokens, list(tokens)),
        "Content": _object({"content": TEXT}, ["content"]),
        "Prompt": _object({"prompt": TEXT}, ["prompt"]),
    }
