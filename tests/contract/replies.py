"""What the official client got, put together and checked as its own models have it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

HI: list[Any] = [{"role": "user", "content": "Say hi."}]
POEM: list[Any] = [{"role": "user", "content": "Write a poem about the sea."}]
NO_END = {"0": -100, "2": -100}


def strict(kind: Any, value: Any) -> None:
    """The reply's JSON is what the package's own model says, no field coerced."""
    kind.model_validate(value.model_dump(mode="python"), strict=True)


def checked(reply: ChatCompletion) -> Any:
    """The message of the only choice of a plain reply."""
    strict(ChatCompletion, reply)
    (choice,) = reply.choices
    return choice


class Streamed:
    """A streamed chat answer of one choice, put together as agents do it."""

    def __init__(self, chunks: Iterable[ChatCompletionChunk]) -> None:
        self.content: str | None = None
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.usage: Any = None
        self.logprobs: list[Any] = []
        self.n_content = 0
        ids = set()
        for n, chunk in enumerate(chunks):
            strict(ChatCompletionChunk, chunk)
            ids.add((chunk.id, chunk.created, chunk.model, chunk.object))
            if not chunk.choices:
                assert self.finish_reason, "usage comes after the finish"
                assert self.usage is None
                self.usage = chunk.usage
                continue
            (choice,) = chunk.choices
            assert n > 0 or choice.delta.role == "assistant"
            assert self.finish_reason is None, "nothing follows the finish"
            self._delta(choice.delta)
            if choice.logprobs and choice.logprobs.content:
                self.logprobs += choice.logprobs.content
            self.finish_reason = choice.finish_reason
        assert len(ids) == 1, "one id, time, model and object in all chunks"

    def _delta(self, delta: Any) -> None:
        if delta.content is not None:
            self.n_content += 1
            self.content = (self.content or "") + delta.content
        self.reasoning += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            if call.index == len(self.calls):
                assert call.id, "the first delta of a call names it"
                assert call.type == "function"
                assert call.function.name
                assert call.function.arguments == ""
                self.calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
            else:
                assert call.index == len(self.calls) - 1
                assert (call.id, call.type, call.function.name) == (None, None, None)
                self.calls[-1]["arguments"] += call.function.arguments
