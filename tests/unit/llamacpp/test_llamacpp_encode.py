"""The replies of llama.cpp's routes against objects written down by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ponytail.api.dialect import Encoder, Reply
from ponytail.api.llamacpp import Completion, Infill
from ponytail.errors import EngineFailed
from ponytail.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Reasoning,
    Started,
    Text,
    TextPrompt,
    Timings,
    TokenLogprob,
    ToolCallStart,
    Usage,
)
from tests.unit.llamacpp.bodies import completion, infill

REPLY = Reply("cmpl-1", 1700000000, 'Llama "3" 🦙')
Events = list[tuple[int, Event]]


def finished(reason: FinishReason = "stop", stop: str | None = None) -> Finished:
    return Finished(reason, Usage(10, 4, 3), Timings(9.0, 0.5, 0.25), stop)


def feed(request: GenerateRequest, events: Events) -> bytes:
    encoder = Completion().encoder(REPLY, request)
    return b"".join([encoder.feed(i, event) for i, event in events]) + encoder.finish()


def plain(request: GenerateRequest, events: Events) -> Any:
    return json.loads(feed(request, events))


def chunks(request: GenerateRequest, events: Events) -> list[Any]:
    parts = feed(request, events).split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: {") for part in parts)
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


TEXT: Events = [
    (0, Started(10, 4)),
    (0, Text("Hel")),
    (0, Text("lo 🦙\n\u2028data: x")),
    (0, finished()),
]
TIMINGS = {
    "cache_n": 4,
    "prompt_n": 6,
    "prompt_ms": 500.0,
    "prompt_per_token_ms": 500 / 6,
    "prompt_per_second": 12.0,
    "predicted_n": 3,
    "predicted_ms": 250.0,
    "predicted_per_token_ms": 250 / 3,
    "predicted_per_second": 12.0,
}
SETTINGS = {
    "seed": 4294967295,
    "temperature": 0.8,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "stop": [],
    "max_tokens": -1,
    "n_predict": -1,
    "n_keep": 0,
    "n_discard": 0,
    "ignore_eos": False,
    "stream": False,
    "logit_bias": [],
    "n_probs": 0,
    "min_keep": 0,
    "min_tokens": 0,
    "grammar": "",
    "samplers": [
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
    "timings_per_token": False,
    "post_sampling_probs": False,
    "lora": [],
}
WHOLE = {
    "index": 0,
    "content": "Hello 🦙\n\u2028data: x",
    "tokens": [],
    "id_slot": -1,
    "stop": True,
    "model": 'Llama "3" 🦙',
    "tokens_predicted": 3,
    "tokens_evaluated": 10,
    "generation_settings": SETTINGS,
    "prompt": "hi",
    "has_new_line": True,
    "truncated": False,
    "stop_type": "eos",
    "stopping_word": "",
    "tokens_cached": 4,
    "timings": TIMINGS,
}


def test_a_plain_reply() -> None:
    assert plain(completion(), TEXT) == WHOLE


def test_a_stream_is_chunks_and_a_last_one_without_the_text() -> None:
    first, second, last = chunks(completion(stream=True), TEXT)
    assert first == {
        "index": 0,
        "content": "Hel",
        "tokens": [],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": 1,
        "tokens_evaluated": 10,
    }
    assert (second["content"], second["tokens_predicted"]) == ("lo 🦙\n\u2028data: x", 2)
    settings = {**SETTINGS, "stream": True}
    assert last == {**WHOLE, "content": "", "generation_settings": settings}


def test_nothing_is_sent_before_there_is_text() -> None:
    encoder = Completion().encoder(REPLY, completion(stream=True))
    assert encoder.feed(0, Started(10, 4)) == b""
    assert encoder.feed(0, Text("")) == b""
    assert encoder.feed(0, Failed(EngineFailed("m"))) == b""


LLAMA = "🦙".encode()
TOKENS: Events = [
    (0, Started(10, 4)),
    (0, Text("a", (TokenLogprob(5, b"a", -0.5, ((5, b"a", -0.5), (6, b"b", -1.5))),))),
    (
        0,
        Text(
            "🦙",
            (
                TokenLogprob(7, LLAMA[:3], -1.0, ((7, LLAMA[:3], -1.0),)),
                TokenLogprob(8, LLAMA[3:], float("-inf")),
            ),
        ),
    ),
    (0, finished("length")),
]
FIRST_TOKEN = {
    "id": 5,
    "token": "a",
    "bytes": [97],
    "logprob": -0.5,
    "top_logprobs": [
        {"id": 5, "token": "a", "bytes": [97], "logprob": -0.5},
        {"id": 6, "token": "b", "bytes": [98], "logprob": -1.5},
    ],
}
# Part of a character has no text of its own; a lone end of one is shown as U+FFFD.
OTHER_TOKENS = [
    {
        "id": 7,
        "token": "",
        "bytes": [240, 159, 166],
        "logprob": -1.0,
        "top_logprobs": [{"id": 7, "token": "", "bytes": [240, 159, 166], "logprob": -1.0}],
    },
    {
        "id": 8,
        "token": "\ufffd",
        "bytes": [153],
        "logprob": -3.4028234663852886e38,
        "top_logprobs": [],
    },
]


def test_probabilities_of_a_plain_reply() -> None:
    got = plain(completion(n_probs=2), TOKENS)
    assert got["completion_probabilities"] == [FIRST_TOKEN, *OTHER_TOKENS]
    assert (got["content"], got["tokens"]) == ("a🦙", [])
    assert got["generation_settings"]["n_probs"] == 2


def test_probabilities_of_a_stream_come_with_the_text() -> None:
    first, second, last = chunks(completion(n_probs=2, stream=True), TOKENS)
    assert first["completion_probabilities"] == [FIRST_TOKEN]
    assert second["completion_probabilities"] == OTHER_TOKENS
    assert [first["tokens_predicted"], second["tokens_predicted"]] == [1, 3]
    assert "completion_probabilities" not in last


def test_token_ids_come_where_they_were_asked_for() -> None:
    got = plain(completion(return_tokens=True), TOKENS)
    assert got["tokens"] == [5, 7, 8]
    assert "completion_probabilities" not in got
    sent = chunks(completion(return_tokens=True, stream=True), TOKENS)
    assert [chunk["tokens"] for chunk in sent] == [[5], [7, 8], []]
    assert all("completion_probabilities" not in chunk for chunk in sent)
    assert [c["tokens"] for c in chunks(completion(n_probs=1, stream=True), TOKENS)] == [[], [], []]


@pytest.mark.parametrize(
    ("end", "stop_type", "stopping_word"),
    [
        (finished(), "eos", ""),
        (finished("length"), "limit", ""),
        (finished("stop", "\n\n"), "word", "\n\n"),
    ],
)
def test_why_an_answer_ended(end: Finished, stop_type: str, stopping_word: str) -> None:
    for request in (completion(), completion(stream=True)):
        sent = feed(request, [(0, Started(10, 4)), (0, end)])
        got = json.loads(sent.removeprefix(b"data: "))
        assert (got["stop_type"], got["stopping_word"]) == (stop_type, stopping_word)
        assert (got["content"], got["has_new_line"]) == ("", False)


SEVERAL: Events = [
    (2, Started(3, 0)),
    (2, Text("c")),
    (0, Started(1, 0)),
    (2, finished()),
    (1, Started(1, 1)),
    (0, Text("a")),
    (1, Text("b")),
    (3, Started(3, 3)),
    (3, Text("d")),
    (3, finished()),
    (1, finished()),
    (0, finished("length")),
]


def test_several_answers_are_a_list_in_order() -> None:
    got = plain(completion(prompt=["x", [1, 2]], n_cmpl=2), SEVERAL)
    told = [(one["index"], one["content"], one["prompt"], one["stop_type"]) for one in got]
    assert told == [
        (0, "a", "x", "limit"),
        (1, "b", "x", "eos"),
        (2, "c", "", "eos"),  # ids: the text is not known here
        (3, "d", "", "eos"),
    ]


def test_several_answers_in_one_stream_are_told_apart_by_index() -> None:
    sent = chunks(completion(prompt=["x", [1, 2]], n_cmpl=2, stream=True), SEVERAL)
    told = [(chunk["index"], chunk["content"], chunk["stop"]) for chunk in sent]
    assert told == [
        (2, "c", False),
        (2, "", True),
        (0, "a", False),
        (1, "b", False),
        (3, "d", False),
        (3, "", True),
        (1, "", True),
        (0, "", True),
    ]
    assert [chunk["tokens_evaluated"] for chunk in sent if not chunk["stop"]] == [3, 1, 1, 3]


def test_one_prompt_in_a_list_is_one_object() -> None:
    assert plain(completion(prompt=["hi"]), TEXT) == WHOLE


def test_response_fields_reduce_the_reply_to_these_paths() -> None:
    paths = ["content", "timings/prompt_n", "generation_settings/top_k", "timings/x", "", "a/b"]
    reduced = {"timings/prompt_n": 6, "generation_settings/top_k": 40}
    request = completion(response_fields=[*paths, "content/x"])
    assert plain(request, TEXT) == {"content": WHOLE["content"], **reduced}
    *_, before, last = chunks(completion(response_fields=paths, stream=True), TEXT)
    assert "tokens_predicted" in before
    assert last == {"content": "", **reduced}
    assert plain(completion(response_fields=["nothing"]), TEXT) == {}
    assert plain(completion(response_fields=[]), TEXT) == WHOLE


ECHOED: Events = [
    (0, Started(10, 4)),
    (0, Text("hi")),
    (0, Finished("length", Usage(10, 10, 0), Timings(0.0, 0.0, 0.0))),
]


def test_a_prompt_that_is_only_computed_gives_no_text_and_no_division_by_zero() -> None:
    got = plain(completion(n_predict=0), ECHOED)
    assert (got["content"], got["tokens_predicted"], got["tokens_cached"]) == ("", 0, 10)
    assert got["stop_type"] == "limit"
    assert got["timings"] == {**dict.fromkeys(TIMINGS, 0), "cache_n": 10}
    (only,) = chunks(completion(n_predict=0, stream=True), ECHOED)
    assert only["stop"]


def test_the_settings_are_those_in_force() -> None:
    request = completion(
        n_predict=9,
        seed=7,
        stop="x",
        grammar='root ::= "a"',
        logit_bias=[[5, False], [6, 1]],
        samplers=["top_k"],
    )
    got = plain(request, TEXT)["generation_settings"]
    assert got == {
        **SETTINGS,
        "n_predict": 9,
        "max_tokens": 9,
        "seed": 7,
        "stop": ["x"],
        "grammar": 'root ::= "a"',
        "logit_bias": [{"bias": None, "token": 5}, {"bias": 1.0, "token": 6}],
        "top_p": 1.0,
        "min_p": 0.0,
        "temperature": 1.0,
    }


def test_what_was_sent_back_as_settings_is_the_same_request() -> None:
    request = completion(temperature=0.3, n_predict=5, n_probs=2, seed=3)
    settings = plain(request, TEXT)["generation_settings"]
    assert completion(**settings) == request


def test_thinking_is_text_here() -> None:
    events: Events = [(0, Reasoning("<think>")), (0, Text("x")), (0, finished())]
    assert plain(completion(), events)["content"] == "<think>x"
    assert [c["content"] for c in chunks(completion(stream=True), events)] == ["<think>", "x", ""]


def test_warnings_are_told() -> None:
    encoder = Completion().encoder(Reply("i", 1, "m", warnings=("w",)), completion())
    encoder.feed(0, finished())
    assert json.loads(encoder.finish())["warnings"] == ["w"]


def test_a_gap_is_answered_in_the_same_shape() -> None:
    encoder = Infill().encoder(REPLY, infill())
    for index, event in TEXT:
        encoder.feed(index, event)
    assert json.loads(encoder.finish()) == {**WHOLE, "prompt": ""}


def encoders() -> list[Encoder]:
    return [Completion().encoder(REPLY, completion(stream=s)) for s in (False, True)]


def test_a_failure_is_an_error_object_and_in_a_stream_its_last_event() -> None:
    shown = {"error": {"code": 500, "message": "m", "type": "server_error"}}
    whole, stream = encoders()
    assert json.loads(whole.fail(EngineFailed("m"))) == shown
    stream.feed(0, Text("a"))
    sent = stream.fail(EngineFailed("m"))
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    assert json.loads(sent.removeprefix(b"data: ")) == shown


def test_what_can_only_be_a_fault_of_the_server_is_not_passed_over() -> None:
    for encoder in encoders():
        with pytest.raises(ValueError, match="no tools"):
            encoder.feed(0, ToolCallStart(0, "i", "f"))
        with pytest.raises(ValueError, match="no tools"):
            encoder.feed(0, finished("tool_calls"))
    with pytest.raises(TypeError):
        Completion().encoder(REPLY, GenerateRequest((TextPrompt("x"),)))


def test_media_types_and_keep_alive() -> None:
    whole, stream = encoders()
    assert (whole.media_type, whole.keep_alive) == ("application/json", b"")
    assert (stream.media_type, stream.keep_alive) == ("text/event-stream", b":\n\n")
