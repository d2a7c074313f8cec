"""/openapi.json: every route, made from the parameter rows.

Owns the OpenAPI 3.1 document.  Request bodies come from `tables`, the schemas of replies
from `openapi_replies`.  Must not know how routes are served.  Pure; any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from ponytail import __version__
from ponytail.api.fields import Fields, Schema
from ponytail.api.openai_messages import MEDIA_PARTS, TEXT_PARTS
from ponytail.api.openai_sampling import DEFAULTS
from ponytail.api.openapi_replies import (
    NULL,
    OBJECT,
    TEXT,
    TEXT_OR_NULL,
    array,
    or_null,
    record,
    ref,
    reply_schemas,
)
from ponytail.api.tables import TABLES
from ponytail.types import Sampling

JSON = "application/json"
PLAIN = "text/plain"


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
            "schemas": {**_requests(defaults), **reply_schemas(), "Object": OBJECT},
            "responses": _errors(),
        },
    }


def encode_openapi(version: str = __version__, defaults: Sampling = DEFAULTS) -> bytes:
    """The reply of /openapi.json."""
    return msgspec.json.encode(openapi(version, defaults))


@dataclass(frozen=True, slots=True)
class _Post:
    """A route with a body; `reply` names a schema, and `{reply}Chunk` that of its stream."""

    operation: str
    summary: str
    reply: str
    can_stream: bool = False


GENERATE = "Generate, streamed or as one object."
POSTS = {
    "/v1/chat/completions": _Post("createChatCompletion", GENERATE, "ChatCompletion", True),
    "/v1/completions": _Post("createCompletion", GENERATE, "Completion", True),
    "/v1/embeddings": _Post("createEmbedding", "Vectors of texts.", "Embeddings"),
    "/v1/rerank": _Post("rerank", "Documents, the best for a query first.", "Ranks"),
    "/v1/tokenize": _Post("tokenize", "The token ids of a text.", "Tokens"),
    "/v1/detokenize": _Post("detokenize", "The text of token ids.", "Content"),
    "/v1/apply-template": _Post("applyTemplate", "The prompt of a conversation.", "Prompt"),
}


def _post_of(path: str) -> _Post:
    """A route that POSTS does not know is told of by its path alone."""
    operation = "post" + re.sub(r"[^a-zA-Z0-9]+", " ", path).title().replace(" ", "")
    return POSTS.get(path, _Post(operation, f"POST {path}.", "Object"))


def _paths() -> dict[str, Any]:
    model_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The model's name; it may hold slashes.",
        "schema": TEXT,
    }
    return {
        **{path: _post(_post_of(path)) for path in TABLES},
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
        "/openapi.json": _get("getOpenapi", "This document.", "Object"),
    }


def _get(
    operation: str, summary: str, reply: str, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    responses = {"200": _content("OK", reply), **(more or {})}
    return {"get": {"operationId": operation, "summary": summary, "responses": responses}}


def _post(route: _Post) -> dict[str, Any]:
    ok = _content("OK", route.reply)
    if route.can_stream:
        chunk = ref(f"{route.reply}Chunk")
        ok["content"]["text/event-stream"] = {"schema": TEXT, "x-ponytail-event": chunk}
    body = {JSON: {"schema": ref(_request_name(route.operation))}}
    return {
        "post": {
            "operationId": route.operation,
            "summary": route.summary,
            "requestBody": {"required": True, "content": body},
            "responses": {"200": ok, **_error_responses()},
        }
    }


def _content(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": ref(schema)}}}


def _ref_error(name: str) -> Schema:
    return {"$ref": f"#/components/responses/{name}"}


ERRORS = {
    "400": ("BadRequest", "A field is wrong, unknown or not supported; `param` names it."),
    "404": ("NotFound", "No such model or route."),
    "405": ("MethodNotAllowed", "The route has no such method."),
    "408": ("DeadlineExceeded", "deadline_s passed while the request waited."),
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


def _request_name(operation: str) -> str:
    return operation[0].upper() + operation[1:] + "Request"


def _requests(defaults: Sampling) -> dict[str, Schema]:
    bodies = {
        _request_name(_post_of(path).operation): _body(table, defaults)
        for path, table in TABLES.items()
    }
    return {**bodies, **_messages()}


def _body(table: Fields, defaults: Sampling) -> Schema:
    """The table's schema, with this server's own sampling defaults."""
    schema = table.schema()
    for name in Sampling.__struct_fields__:
        value = getattr(defaults, name)
        if name in schema["properties"] and value is not None:
            schema["properties"][name]["default"] = value
    return schema


def _messages() -> dict[str, Schema]:
    """A turn by its role; other members of it are ignored."""
    parts = array(ref("ContentPart"))
    content = {"anyOf": [TEXT, NULL, parts]}
    names = {"name": TEXT_OR_NULL}
    told = _turn(("system", "developer", "user"), {"content": content, **names})
    result = {"content": {"anyOf": [TEXT, NULL, parts, OBJECT]}, "tool_call_id": TEXT_OR_NULL}
    return {
        "Message": {"anyOf": [told, ref("AssistantMessage"), ref("ToolMessage")]},
        "AssistantMessage": _turn(("assistant",), {"content": content, **names, **_said()}),
        "ToolMessage": _turn(("tool", "function"), {**result, **names}),
        "ContentPart": _part(),
    }


def _turn(roles: tuple[str, ...], members: dict[str, Schema]) -> Schema:
    # Only the assistant's turn may be gone on with.  Any audio but null is media.
    always = {"role": {"enum": [*roles]}, "prefix": {"enum": [False, None]}, "audio": NULL}
    return record({**always, **members}, ["role"])


def _said() -> dict[str, Schema]:
    """What an assistant's earlier turn may hold besides its content."""
    arguments = {"type": ["string", "object", "null"]}
    function = record(
        {"name": {"type": "string", "minLength": 1}, "arguments": arguments}, ["name"]
    )
    members = {"id": TEXT, "type": {"const": "function"}, "function": function}
    call = record(members, ["id", "function"])
    return {
        "tool_calls": or_null(array(call)),
        "function_call": or_null(function),
        "reasoning_content": TEXT_OR_NULL,
        "reasoning": TEXT_OR_NULL,
        "refusal": TEXT_OR_NULL,
        "prefix": {
            "type": ["boolean", "null"],
            "description": "true, in the last message only: the answer goes on with it.",
        },
    }


def _part() -> Schema:
    """Media parts are refused, or with `unsupported_content` told of in the text."""
    shapes: list[Schema] = [
        record({"type": {"const": kind}, member: TEXT}, ["type", member])
        for kind, member in TEXT_PARTS.items()
    ]
    media = record({"type": {"enum": list(MEDIA_PARTS)}}, ["type"])
    return {"anyOf": [*shapes, {**media, "description": "Refused by default."}]}
