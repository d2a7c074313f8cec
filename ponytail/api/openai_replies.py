"""What surrounds the choices of an OpenAI reply: head, usage, errors; and the plain reply.

Owns the shapes that chat and raw completions share.  Must not know HTTP or how events
come about.  One encoder serves one request and is fed by one thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ponytail.api.dialect import Reply
from ponytail.api.openai_choices import Answer, Shape
from ponytail.errors import PonytailError
from ponytail.types import Event, Finished, GenerateRequest, Usage

encode = msgspec.json.Encoder().encode


def encode_error(error: PonytailError) -> bytes:
    """{"error": {message, type, param, code}}, for a body or one stream event."""
    return encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def head(reply: Reply, kind: str) -> dict[str, Any]:
    """The members that a plain reply and every chunk of a stream begin with."""
    members: dict[str, Any] = {
        "id": reply.id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": reply.fingerprint or None,
    }
    if reply.truncation is not None:
        members["truncation"] = {
            "type": "auto",
            "dropped_messages": reply.truncation.n_messages,
            "dropped_turns": reply.truncation.n_turns,
        }
    if reply.warnings:
        members["warnings"] = reply.warnings
    return members


class Tally:
    """The token counts of all choices; a prompt counts once, however many choices it has."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_index: dict[int, Usage] = {}

    def add(self, index: int, event: Event) -> None:
        if isinstance(event, Finished):
            self._by_index[index] = event.usage

    def usage(self) -> dict[str, Any]:
        """The `usage` object; the cached tokens are those of each prompt's first choice."""
        every = self._by_index.values()
        firsts = [usage for index, usage in self._by_index.items() if index % self._n == 0]
        n_prompt = sum(usage.n_prompt for usage in firsts)
        n_completion = sum(usage.n_completion for usage in every)
        n_reasoning = sum(usage.n_reasoning for usage in every)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "prompt_tokens_details": {"cached_tokens": sum(usage.n_cached for usage in firsts)},
            "completion_tokens_details": {"reasoning_tokens": n_reasoning},
        }


class PlainReply:
    """All choices gathered into one object, whose bytes come from `finish`."""

    media_type: str = "application/json"
    keep_alive: bytes = b""

    def __init__(self, reply: Reply, request: GenerateRequest, shape: Shape) -> None:
        self._head = head(reply, shape.kind)
        self._shape = shape
        self._tally = Tally(request.n)
        n_choices = request.n * len(request.prompts)
        self._answers = [Answer(shape.tokens()) for _ in range(n_choices)]

    def feed(self, index: int, event: Event) -> bytes:
        self._answers[index].add(event)
        self._tally.add(index, event)
        return b""

    def finish(self) -> bytes:
        choices = [self._choice(index, answer) for index, answer in enumerate(self._answers)]
        return encode({**self._head, "choices": choices, "usage": self._tally.usage()})

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            **self._shape.whole(answer),
            "logprobs": None if answer.tokens is None else answer.tokens.take(),
            "finish_reason": self._shape.finish_reason(answer.reason),
        }

    def fail(self, error: PonytailError) -> bytes:
        return encode_error(error)
