"""What /openapi.json says of bodies and replies holds of the parser and the encoders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ponytail.api.openapi import openapi
from ponytail.errors import PonytailError
from ponytail.types import Event, Started, Text
from tests.unit import test_openai_malformed as malformed
from tests.unit.test_openai_encode import STREAMED, Events, chat, chunks, completion, finished, run
from tests.unit.test_openai_logprobs import ANSWER
from tests.unit.test_openai_rows import ACCEPTED, EFFECTS, LOGPROBS, ROUTES, ROWS

jsonschema = pytest.importorskip("jsonschema")
DOCUMENT = openapi()
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
REQUIRED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": malformed.HI},
    COMPLETION: {"prompt": "hi"},
    "/v1/tokenize": {"content": "hi"},
    "/v1/detokenize": {"tokens": [1]},
    "/v1/apply-template": {"messages": malformed.HI},
}


def validator(schema: dict[str, Any]) -> Any:
    return jsonschema.Draft202012Validator({**DOCUMENT, **schema})


def of_body(path: str) -> Any:
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
    return validator(content["application/json"]["schema"])


def of_reply(name: str) -> Any:
    return validator({"$ref": f"#/components/schemas/{name}"})


BODIES = {path: of_body(path) for path in ROUTES}


@pytest.mark.parametrize("path", ROUTES)
def test_what_the_parser_takes_is_described(path: str) -> None:
    for route, row in ROWS:
        if route != path or row.effect == "refused":
            continue
        effects = LOGPROBS[path] if row.name == "logprobs" else EFFECTS.get(row.name, [])
        said = [{**effect.beside, row.name: effect.value} for effect in effects]
        if row.effect == "accepted":
            said = [{row.name: ACCEPTED[row.name]}]
        for fields in said:
            body = {**REQUIRED[path], **fields}
            errors = [error.message for error in BODIES[path].iter_errors(body)]
            assert not errors, body


# Words of what no schema tells of: two fields together, the model's vocabulary, a path.
UNTOLD = (
    "is true",
    "only allowed",
    "only in the last message",
    "of the assistant",
    "without tool calls",
    "some text",
    "add_generation_prompt",
    "thinking_budget",
    "needs a prompt of text",
    "0 to 999",
    "got 1000",
    "got 1.0",
    "ask for n",
    "image",
)
UNTOLD_BODIES = (
    {"max_tokens": 3, "min_tokens": 4},
    {"suffix": "b", "echo": True},
    {"prompt": ["a"] * 17, "n": 128},
    {"chat_template_kwargs": {"messages": []}},
)


def is_untold(body: Any, words: str) -> bool:
    if any(untold in words for untold in UNTOLD):
        return True
    return isinstance(body, dict) and any(one.items() <= body.items() for one in UNTOLD_BODIES)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        *((CHAT, body, words) for body, _, words in malformed.MALFORMED_CHAT),
        *((COMPLETION, body, words) for body, _, words in malformed.MALFORMED_COMPLETION),
    ],
)
def test_what_the_parser_refuses_is_not_described(path: str, body: Any, words: str) -> None:
    if not is_untold(body, words):
        assert not BODIES[path].is_valid(body)


def plain(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"function": {"name": "f"}}], **fields}


CALLING: Events = [(0, event) for event in ANSWER]
SAID: list[Event] = [Started(3, 1), Text("é"), finished("length")]
RAW: Events = [(0, event) for event in [*ANSWER[:4], finished()]]


@pytest.mark.parametrize(
    ("make", "fields", "events"),
    [
        (chat, {"n": 2}, STREAMED),
        (chat, plain(), CALLING),
        (chat, plain(logprobs=True, top_logprobs=2), CALLING),
        (chat, {"functions": [{"name": "f"}]}, CALLING),
        (completion, {"n": 2}, STREAMED),
        (completion, {"logprobs": 2}, RAW),
        (completion, {"logprobs": 2, "echo": True}, [(0, event) for event in SAID]),
    ],
)
def test_replies_are_as_described(make: Any, fields: dict[str, Any], events: Events) -> None:
    name = "ChatCompletion" if make is chat else "Completion"
    of_reply(name).validate(json.loads(run(make(**fields), events)[-1]))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in chunks(run(make(**fields, **options), events)):
        of_reply(f"{name}Chunk").validate(chunk)


def test_the_described_replies_are_no_blank_cheque() -> None:
    value = json.loads(run(chat(n=2), STREAMED)[-1])
    del value["choices"][1]["finish_reason"]
    assert not of_reply("ChatCompletion").is_valid(value)


def test_errors_are_as_described() -> None:
    for body, _, _ in malformed.MALFORMED_CHAT:
        with pytest.raises(PonytailError) as caught:
            malformed.ChatCompletions().parse(body, malformed.LIMITS)
        of_reply("Error").validate(json.loads(malformed.encode_error(caught.value)))
