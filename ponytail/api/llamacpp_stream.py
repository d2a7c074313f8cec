"""The replies of llama.cpp's native routes: events in, the bytes of a stream or one object out.

Owns the shapes of /completion and /infill replies (llama.cpp's tools/server/server-task.cpp)
and what of them has no meaning here: `id_slot` is -1, `truncated` is false (an answer that
meets the end of the window has stop_type limit), `prompt` is the text as it was sent, or ""
for ids and gaps.  Must not know HTTP or how events come about.  One encoder serves one
request and is fed by one thread.

A stream's chunks count tokens exactly where they carry them (`n_probs`, `return_tokens`) and
by pieces of text otherwise; the last chunk is exact.  No [DONE] ends it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any, assert_never

import msgspec

from ponytail.api.dialect import Encoder, Reply
from ponytail.api.llamacpp_fields import SAMPLERS
from ponytail.errors import (
    ContextLengthExceeded,
    Forbidden,
    ModelLoading,
    NotFound,
    PonytailError,
    ShuttingDown,
)
from ponytail.types import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Grammar,
    Reasoning,
    Started,
    Text,
    TextPrompt,
    TokenLogprob,
    ToolCallArgs,
    ToolCallStart,
)

RANDOM_SEED = 2**32 - 1  # llama.cpp's way to say that a fresh seed is drawn
_FLOOR = -3.4028234663852886e38  # JSON has no infinity; llama.cpp writes the lowest float
_encode = msgspec.json.Encoder().encode
_new_decoder = codecs.getincrementaldecoder("utf-8")


class LlamaCppRequest(GenerateRequest, frozen=True):
    """A request with what only the reply's shape needs.

    `returns_tokens`: ids are wanted.  `response_fields`: the paths to reduce the reply to,
    empty: all of it.
    """

    returns_tokens: bool = False
    response_fields: tuple[str, ...] = ()


def encode_error(error: PonytailError) -> bytes:
    """{"error": {code, message, type}}, for a body or one stream event; code is the status."""
    members = {"code": error.status, "message": error.message, "type": _error_type(error)}
    if isinstance(error, ContextLengthExceeded):
        members |= {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
    return _encode({"error": members})


def _error_type(error: PonytailError) -> str:
    match error:
        case ContextLengthExceeded():
            return "exceed_context_size_error"
        case Forbidden():
            return "permission_error"
        case NotFound():
            return "not_found_error"
        case ModelLoading() | ShuttingDown():
            return "unavailable_error"
        case _:
            return error.type


def generation_settings(request: GenerateRequest) -> dict[str, Any]:
    """What was asked, in llama.cpp's names; also the `params` of /props."""
    values: dict[str, Any] = msgspec.structs.asdict(request.sampling)
    seed = RANDOM_SEED if values["seed"] is None else values["seed"]
    n_predict = -1 if request.max_tokens is None else request.max_tokens
    constraint = request.constraint
    biases = [{"bias": bias, "token": token} for token, bias in request.sampling.logit_bias]
    return {
        **values,
        "seed": seed,
        "logit_bias": biases,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_n_sigma": -1.0,
        "stop": request.stop,
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": 0,
        "n_discard": 0,
        "stream": request.stream,
        "n_probs": request.n_logprobs or 0,
        "min_keep": 0,
        "grammar": constraint.text if isinstance(constraint, Grammar) else "",
        "samplers": [*SAMPLERS],
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": [],
    }


def _timings(event: Finished) -> dict[str, Any]:
    usage, seconds = event.usage, event.timings
    return {
        "cache_n": usage.n_cached,
        **_pace("prompt", usage.n_prompt - usage.n_cached, seconds.prompt_s),
        **_pace("predicted", usage.n_completion, seconds.generate_s),
    }


def _pace(what: str, n_tokens: int, seconds: float) -> dict[str, float]:
    ms = seconds * 1000
    return {
        f"{what}_n": n_tokens,
        f"{what}_ms": ms,
        f"{what}_per_token_ms": ms / n_tokens if n_tokens else 0.0,
        f"{what}_per_second": n_tokens / seconds if seconds > 0 else 0.0,
    }


def _stop_type(event: Finished) -> str:
    match event.reason:
        case "length":
            return "limit"
        case "stop":
            return "eos" if event.stop is None else "word"
        case "tool_calls":
            raise _no_tools()
        case _:
            assert_never(event.reason)


def _no_tools() -> ValueError:
    return ValueError("a raw completion has no tools, so no tool call can come out of it")


def _probabilities(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            **_token(token.id, token.data, token.logprob),
            "top_logprobs": [_token(*likely) for likely in token.top],
        }
        for token in tokens
    ]


def _token(token_id: int, data: bytes, logprob: float | None) -> dict[str, Any]:
    """`token` holds the whole characters only, `bytes` all of it."""
    return {
        "id": token_id,
        "token": _new_decoder("replace").decode(data),
        "bytes": list(data),
        "logprob": None if logprob is None else max(logprob, _FLOOR),
    }


class _Choice:
    """What one answer has come to; text and tokens are kept only where the end needs them."""

    def __init__(self, is_kept: bool) -> None:
        self.texts: list[str] = []
        self.tokens: list[TokenLogprob] = []
        self.has_new_line = False
        self.n_prompt = 0
        self.n_tokens = 0
        self.n_pieces = 0
        self._is_kept = is_kept

    def add(self, text: str, tokens: tuple[TokenLogprob, ...]) -> None:
        self.has_new_line = self.has_new_line or "\n" in text
        self.n_tokens += len(tokens)
        self.n_pieces += 1
        if self._is_kept:
            self.texts.append(text)
            self.tokens += tokens


class _Shape:
    """The objects of one request's reply."""

    def __init__(self, reply: Reply, request: LlamaCppRequest) -> None:
        self._reply = reply
        self._request = request
        self._settings = generation_settings(request)
        self.has_probabilities = bool(request.n_logprobs)
        n_choices = request.n * len(request.prompts)
        self.choices = [_Choice(is_kept=not request.stream) for _ in range(n_choices)]

    def note(self, index: int, event: Event) -> tuple[str, tuple[TokenLogprob, ...]] | None:
        """Takes in what is not the end; returns the text and tokens that came, if any did."""
        match event:
            case Started(n_prompt):
                self.choices[index].n_prompt = n_prompt
            case Text(text, tokens) | Reasoning(text, tokens):
                # What n_predict 0 echoes is the prompt, and no part of an answer.
                if not self._request.echo and (text or tokens):
                    self.choices[index].add(text, tokens)
                    return text, tokens
            case ToolCallStart() | ToolCallArgs():
                raise _no_tools()
            case Finished() | Failed():
                pass
            case _:
                assert_never(event)
        return None

    def ids(self, tokens: Iterable[TokenLogprob]) -> list[int]:
        return [token.id for token in tokens] if self._request.returns_tokens else []

    def whole(self, index: int, event: Finished) -> dict[str, Any]:
        """The object that ends a choice; in a stream text and tokens were sent before it."""
        choice = self.choices[index]
        members: dict[str, Any] = {
            "index": index,
            "content": "".join(choice.texts),
            "tokens": self.ids(choice.tokens),
            "id_slot": -1,
            "stop": True,
            "model": self._reply.model,
            "tokens_predicted": event.usage.n_completion,
            "tokens_evaluated": event.usage.n_prompt,
            "generation_settings": self._settings,
            "prompt": self._prompt(index),
            "has_new_line": choice.has_new_line,
            "truncated": False,
            "stop_type": _stop_type(event),
            "stopping_word": event.stop or "",
            "tokens_cached": event.usage.n_cached,
            "timings": _timings(event),
        }
        if self._reply.warnings:
            members["warnings"] = self._reply.warnings
        if self.has_probabilities and not self._request.stream:
            members["completion_probabilities"] = _probabilities(choice.tokens)
        return _reduced(members, self._request.response_fields)

    def _prompt(self, index: int) -> str:
        prompt = self._request.prompts[index // self._request.n]
        return prompt.text if isinstance(prompt, TextPrompt) else ""


def _reduced(members: dict[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """Only what the paths name, each under its whole path; all when there are none."""
    if not paths:
        return members
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = members
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found


class CompletionStream:
    """Answers as server-sent events; the chunk with `stop` true ends each."""

    media_type: str = "text/event-stream"
    keep_alive: bytes = b":\n\n"

    def __init__(self, reply: Reply, request: LlamaCppRequest) -> None:
        self._shape = _Shape(reply, request)
        self._heads = [b'data: {"index":%d,"content":' % i for i in range(len(self._shape.choices))]

    def feed(self, index: int, event: Event) -> bytes:
        piece = self._shape.note(index, event)
        if piece is not None:
            return self._chunk(index, *piece)
        if isinstance(event, Finished):
            return b"data: " + _encode(self._shape.whole(index, event)) + b"\n\n"
        return b""

    def _chunk(self, index: int, text: str, tokens: tuple[TokenLogprob, ...]) -> bytes:
        shape, choice = self._shape, self._shape.choices[index]
        n_predicted = choice.n_tokens or choice.n_pieces
        probabilities = b""
        if shape.has_probabilities:
            probabilities = b',"completion_probabilities":' + _encode(_probabilities(tokens))
        return b'%b%b,"tokens":%b,"stop":false,"id_slot":-1,%b%b}\n\n' % (
            self._heads[index],
            _encode(text),
            _encode(shape.ids(tokens)),
            b'"tokens_predicted":%d,"tokens_evaluated":%d' % (n_predicted, choice.n_prompt),
            probabilities,
        )

    def finish(self) -> bytes:
        return b""

    def fail(self, error: PonytailError) -> bytes:
        """One event with the error, and nothing after it."""
        return b"data: " + encode_error(error) + b"\n\n"


class PlainReply:
    """The answer as one object, or as a list of them when there are several."""

    media_type: str = "application/json"
    keep_alive: bytes = b""

    def __init__(self, reply: Reply, request: LlamaCppRequest) -> None:
        self._shape = _Shape(reply, request)
        self._done: dict[int, dict[str, Any]] = {}

    def feed(self, index: int, event: Event) -> bytes:
        self._shape.note(index, event)
        if isinstance(event, Finished):
            self._done[index] = self._shape.whole(index, event)
        return b""

    def finish(self) -> bytes:
        answers = [self._done[index] for index in sorted(self._done)]
        return _encode(answers[0] if len(answers) == 1 else answers)

    def fail(self, error: PonytailError) -> bytes:
        return encode_error(error)


def completion_encoder(reply: Reply, request: LlamaCppRequest) -> Encoder:
    return CompletionStream(reply, request) if request.stream else PlainReply(reply, request)
