"""The replies of the OpenAI dialect: events in, the bytes of a stream or one object out.

Owns the shapes of chat and completion replies, streamed and plain, and of errors.  Must
not know HTTP or how events come about.  One encoder serves one request and is fed by
one thread.

A stream's text chunks are the hot path: the bytes around the text never change, so they
are made once per choice and a chunk is two joins and one JSON string.  With `echo` the
prompt arrives as the first Text event; nothing here treats it differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from ponytail.api.dialect import Encoder, Reply
from ponytail.errors import PonytailError
from ponytail.types import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Reasoning,
    Started,
    Text,
    ToolCallArgs,
    ToolCallStart,
    Usage,
)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def encode_error(error: PonytailError) -> bytes:
    """{"error": {message, type, param, code}}, for a body or one stream event."""
    return _encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


class _Tally:
    """The token counts of all choices; a prompt counts once, however many choices it has."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_index: dict[int, Usage] = {}

    def add(self, index: int, usage: Usage) -> None:
        self._by_index[index] = usage

    def usage(self) -> dict[str, Any]:
        """The `usage` object; the cached tokens are those of each prompt's first choice."""
        firsts = [usage for index, usage in self._by_index.items() if index % self._n == 0]
        n_prompt = sum(usage.n_prompt for usage in firsts)
        n_completion = sum(usage.n_completion for usage in self._by_index.values())
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "prompt_tokens_details": {"cached_tokens": sum(usage.n_cached for usage in firsts)},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    head: dict[str, Any] = {
        "id": reply.id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": reply.fingerprint or None,
    }
    if reply.truncation is not None:
        head["truncation"] = {
            "type": "auto",
            "dropped_messages": reply.truncation.n_messages,
            "dropped_turns": reply.truncation.n_turns,
        }
    return head


class _Frame:
    """The bytes that are the same in every chunk of one stream."""

    def __init__(self, reply: Reply, kind: str, include_usage: bool) -> None:
        # A chunk is this object with its closing brace taken off, then choices and usage.
        self._head = b"data: " + _encode(_head(reply, kind))[:-1]
        self._include_usage = include_usage
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def before(self, index: int, opening: bytes) -> bytes:
        """Everything up to the value that `opening` introduces."""
        return self._head + b',"choices":[{"index":%d,' % index + opening

    def after(self, closing: bytes, finish_reason: str | None = None) -> bytes:
        """`closing` ends what `opening` began; the rest of the choice and chunk follow."""
        reason = _encode(finish_reason)
        return closing + b',"logprobs":null,"finish_reason":' + reason + b"}]" + self._end

    def last(self, tally: _Tally) -> bytes:
        """The usage chunk, if it was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        usage = _encode(tally.usage())
        return self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + DONE


class ChatStream:
    """A chat completion as server-sent events."""

    media_type: str = "text/event-stream"
    keep_alive: bytes = KEEP_ALIVE

    def __init__(self, reply: Reply, request: GenerateRequest) -> None:
        frame = _Frame(reply, "chat.completion.chunk", request.include_usage)
        self._frame = frame
        self._tally = _Tally(request.n)
        n_choices = request.n * len(request.prompts)
        self._text = [frame.before(i, b'"delta":{"content":') for i in range(n_choices)]
        self._after = frame.after(b"}")

    def feed(self, index: int, event: Event) -> bytes:
        match event:
            case Text(text):
                return self._text[index] + _encode(text) + self._after
            case Started():
                return self._delta(index, {"role": "assistant", "content": ""})
            case Reasoning(text):
                return self._delta(index, {"reasoning_content": text})
            case ToolCallStart():
                return self._delta(index, {"tool_calls": [_call_start(event)]})
            case ToolCallArgs():
                return self._delta(index, {"tool_calls": [_call_args(event)]})
            case Finished():
                return self._finished(index, event)
            case Failed():
                return b""  # fail() says it
            case _:
                assert_never(event)

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        before = self._frame.before(index, b'"delta":')
        return before + _encode(delta) + self._frame.after(b"")

    def _finished(self, index: int, event: Finished) -> bytes:
        self._tally.add(index, event.usage)
        before = self._frame.before(index, b'"delta":{')
        return before + self._frame.after(b"}", event.reason)

    def finish(self) -> bytes:
        return self._frame.last(self._tally)

    def fail(self, error: PonytailError) -> bytes:
        """One error event; no finish_reason and no [DONE], so that clients raise."""
        return b"data: " + encode_error(error) + b"\n\n"


def _call_start(event: ToolCallStart) -> dict[str, Any]:
    return {
        "index": event.index,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": ""},
    }


def _call_args(event: ToolCallArgs) -> dict[str, Any]:
    return {"index": event.index, "function": {"arguments": event.fragment}}


class CompletionStream:
    """A raw completion as server-sent events."""

    media_type: str = "text/event-stream"
    keep_alive: bytes = KEEP_ALIVE

    def __init__(self, reply: Reply, request: GenerateRequest) -> None:
        frame = _Frame(reply, "text_completion", request.include_usage)
        self._frame = frame
        self._tally = _Tally(request.n)
        n_choices = request.n * len(request.prompts)
        self._text = [frame.before(i, b'"text":') for i in range(n_choices)]
        self._after = frame.after(b"")

    def feed(self, index: int, event: Event) -> bytes:
        match event:
            case Text(text) | Reasoning(text):
                return self._text[index] + _encode(text) + self._after
            case Started() | Failed():
                return b""
            case ToolCallStart() | ToolCallArgs():
                raise _no_tools()
            case Finished():
                self._tally.add(index, event.usage)
                return self._text[index] + self._frame.after(b'""', event.reason)
            case _:
                assert_never(event)

    def finish(self) -> bytes:
        return self._frame.last(self._tally)

    def fail(self, error: PonytailError) -> bytes:
        """One error event; no finish_reason and no [DONE], so that clients raise."""
        return b"data: " + encode_error(error) + b"\n\n"


def _no_tools() -> ValueError:
    return ValueError("a raw completion has no tools, so no tool call can come out of it")


class _Answer:
    """What one choice of a plain reply has gathered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[ToolCallStart, list[str]]] = []
        self.finish_reason: str | None = None

    def message(self) -> dict[str, Any]:
        content = "".join(self.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self.calls else None,
            "refusal": None,
        }
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [_call(start, parts) for start, parts in self.calls]
        return message


def _call(start: ToolCallStart, fragments: list[str]) -> dict[str, Any]:
    function = {"name": start.name, "arguments": "".join(fragments)}
    return {"id": start.id, "type": "function", "function": function}


def _chat_choice(answer: _Answer) -> dict[str, Any]:
    return {"message": answer.message()}


def _completion_choice(answer: _Answer) -> dict[str, Any]:
    if answer.calls:
        raise _no_tools()
    return {"text": "".join([*answer.reasoning, *answer.texts])}


class PlainReply:
    """All choices gathered into one object, whose bytes come from `finish`.

    `shape` gives what the route puts into a choice beside index and finish_reason.
    """

    media_type: str = "application/json"
    keep_alive: bytes = b""

    def __init__(
        self,
        reply: Reply,
        request: GenerateRequest,
        kind: str,
        shape: Callable[[_Answer], dict[str, Any]],
    ) -> None:
        self._head = _head(reply, kind)
        self._shape = shape
        self._tally = _Tally(request.n)
        self._answers = [_Answer() for _ in range(request.n * len(request.prompts))]

    def feed(self, index: int, event: Event) -> bytes:
        answer = self._answers[index]
        match event:
            case Text(text):
                answer.texts.append(text)
            case Reasoning(text):
                answer.reasoning.append(text)
            case ToolCallStart():
                answer.calls.append((event, []))
            case ToolCallArgs(call, fragment):
                answer.calls[call][1].append(fragment)
            case Finished():
                answer.finish_reason = event.reason
                self._tally.add(index, event.usage)
            case Started() | Failed():
                pass
            case _:
                assert_never(event)
        return b""

    def finish(self) -> bytes:
        choices = [
            {
                "index": index,
                **self._shape(answer),
                "logprobs": None,
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(self._answers)
        ]
        return _encode({**self._head, "choices": choices, "usage": self._tally.usage()})

    def fail(self, error: PonytailError) -> bytes:
        return encode_error(error)


def chat_encoder(reply: Reply, request: GenerateRequest) -> Encoder:
    if request.stream:
        return ChatStream(reply, request)
    return PlainReply(reply, request, "chat.completion", _chat_choice)


def completion_encoder(reply: Reply, request: GenerateRequest) -> Encoder:
    if request.stream:
        return CompletionStream(reply, request)
    return PlainReply(reply, request, "text_completion", _completion_choice)
