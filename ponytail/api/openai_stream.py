"""The streams of the OpenAI dialect: each event one chunk, as server-sent events.

Owns the framing of chunks and the end of a stream.  What a choice holds is its shape's
to say.  Must not know HTTP or how events come about.  One encoder serves one request and
is fed by one thread.

A text chunk without log-probabilities is the hot path: the bytes around the text never
change, so they are made once per choice and a chunk is two joins and one JSON string.
With `echo` the prompt arrives as the first Text event; nothing here treats it differently.
"""

from __future__ import annotations

from typing import Any

from ponytail.api.dialect import Encoder, Reply
from ponytail.api.openai_choices import Shape
from ponytail.api.openai_replies import PlainReply, Tally, encode, encode_error, head
from ponytail.errors import PonytailError
from ponytail.types import Event, Finished, GenerateRequest, Text

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
# Stands for the text while the bytes around it are made.
_HOLE = "\0"


class _Frame:
    """The bytes that are the same in every chunk of one stream."""

    def __init__(self, reply: Reply, kind: str, include_usage: bool) -> None:
        # A chunk is this object with its closing brace taken off, then choices and usage.
        self._head = b"data: " + encode(head(reply, kind))[:-1]
        self._include_usage = include_usage
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def chunk(self, choice: dict[str, Any]) -> bytes:
        return self._head + b',"choices":[' + encode(choice) + b"]" + self._end

    def last(self, tally: Tally) -> bytes:
        """The usage chunk, if it was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        usage = encode(tally.usage())
        return self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + DONE


class EventStream:
    """One request's choices as server-sent events, interleaved as they come."""

    media_type: str = "text/event-stream"
    keep_alive: bytes = KEEP_ALIVE

    def __init__(self, reply: Reply, request: GenerateRequest, shape: Shape) -> None:
        self._frame = _Frame(reply, shape.chunk_kind, request.include_usage)
        self._shape = shape
        self._tally = Tally(request.n)
        n_choices = request.n * len(request.prompts)
        self._tokens = [shape.tokens() for _ in range(n_choices)]
        self._is_plain = request.n_logprobs is None
        plain = range(n_choices) if self._is_plain else ()
        self._around = [self._around_text(index) for index in plain]

    def _around_text(self, index: int) -> tuple[bytes, bytes]:
        before, _, after = self._chunk(index, Text(_HOLE)).rpartition(encode(_HOLE))
        return before, after

    def feed(self, index: int, event: Event) -> bytes:
        if self._is_plain and isinstance(event, Text):
            before, after = self._around[index]
            return before + encode(event.text) + after
        self._tally.add(index, event)
        return self._chunk(index, event)

    def _chunk(self, index: int, event: Event) -> bytes:
        members = self._shape.delta(event)
        if members is None:
            return b""
        reason = event.reason if isinstance(event, Finished) else None
        return self._frame.chunk(
            {
                "index": index,
                **members,
                "logprobs": self._logprobs(index, event),
                "finish_reason": self._shape.finish_reason(reason),
            }
        )

    def _logprobs(self, index: int, event: Event) -> dict[str, Any] | None:
        tokens = self._tokens[index]
        if tokens is None:
            return None
        tokens.add(event)
        return tokens.take()

    def finish(self) -> bytes:
        return self._frame.last(self._tally)

    def fail(self, error: PonytailError) -> bytes:
        """One error event; no finish_reason and no [DONE], so that clients raise."""
        return b"data: " + encode_error(error) + b"\n\n"


def encoder(reply: Reply, request: GenerateRequest, shape: Shape) -> Encoder:
    """The stream or the plain reply, whichever was asked for."""
    return (EventStream if request.stream else PlainReply)(reply, request, shape)
