"""One choice of a reply in the words of its route: chat or raw completion.

Owns what an event is in a stream's chunk, and what all events of a choice make in a
plain reply.  Must not know what stands around a choice.  One thread feeds a request.
"""

from __future__ import annotations

from typing import Any, Protocol, assert_never

from ponytail.api.openai_logprobs import ChatTokens, RawTokens, Tokens
from ponytail.text.tool_prompt import shown_tools
from ponytail.types import (
    ChatPrompt,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Reasoning,
    Started,
    Text,
    ToolCallArgs,
    ToolCallStart,
)


class Answer:
    """What one choice of a plain reply has gathered; `tokens` where they were asked for."""

    def __init__(self, tokens: Tokens | None) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[ToolCallStart, list[str]]] = []
        self.reason: FinishReason | None = None
        self.tokens = tokens

    def add(self, event: Event) -> None:
        if self.tokens is not None:
            self.tokens.add(event)
        match event:
            case Text(text):
                self.texts.append(text)
            case Reasoning(text):
                self.reasoning.append(text)
            case ToolCallStart():
                self.calls.append((event, []))
            case ToolCallArgs(call, fragment):
                self.calls[call][1].append(fragment)
            case Finished():
                self.reason = event.reason
            case Started() | Failed():
                pass
            case _:
                assert_never(event)


class Shape(Protocol):
    """How a route writes its choices.

    `kind` and `chunk_kind` are the `object` of a plain reply and of a chunk.  `delta` gives
    a chunk's members beside index, logprobs and finish_reason, None for no chunk at all;
    `whole` gives those of a plain reply's choice.
    """

    kind: str
    chunk_kind: str

    def delta(self, event: Event) -> dict[str, Any] | None: ...

    def whole(self, answer: Answer) -> dict[str, Any]: ...

    def finish_reason(self, reason: FinishReason | None) -> str | None: ...

    def tokens(self) -> Tokens | None: ...


class ChatShape:
    """`delta` and `message`, with calls in the form that the tools came in."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, request: GenerateRequest) -> None:
        self._is_first_form = request.legacy_functions
        self._wants_tokens = request.n_logprobs is not None
        # Beside calls there may be no content at all, which is null and not the empty text.
        self._no_content = None if _may_call(request) else ""

    def delta(self, event: Event) -> dict[str, Any] | None:
        delta = self._delta(event)
        return None if delta is None else {"delta": delta}

    def _delta(self, event: Event) -> dict[str, Any] | None:
        match event:
            case Text(text):
                return {"content": text}
            case Started():
                return {"role": "assistant", "content": self._no_content}
            case Reasoning(text):
                return {"reasoning_content": text}
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                return self._call(index, function, {"id": call_id, "type": "function"})
            case ToolCallArgs(index, fragment):
                return self._call(index, {"arguments": fragment}, {})
            case Finished():
                return {}
            case Failed():
                return None
            case _:
                assert_never(event)

    def _call(
        self, index: int, function: dict[str, str], start: dict[str, str]
    ) -> dict[str, Any] | None:
        if not self._is_first_form:
            return {"tool_calls": [{"index": index, **start, "function": function}]}
        # The first form has room for one call, and the request said so.
        return {"function_call": function} if index == 0 else None

    def whole(self, answer: Answer) -> dict[str, Any]:
        content = "".join(answer.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not answer.calls else None,
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = "".join(answer.reasoning)
        calls = [_call(start, fragments) for start, fragments in answer.calls]
        if calls and self._is_first_form:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return {"message": message}

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        return "function_call" if self._is_first_form and reason == "tool_calls" else reason

    def tokens(self) -> Tokens | None:
        return ChatTokens() if self._wants_tokens else None


def _may_call(request: GenerateRequest) -> bool:
    return any(shown_tools(p.tool_use) for p in request.prompts if isinstance(p, ChatPrompt))


def _call(start: ToolCallStart, fragments: list[str]) -> dict[str, Any]:
    function = {"name": start.name, "arguments": "".join(fragments)}
    return {"id": start.id, "type": "function", "function": function}


class RawShape:
    """`text`; thinking, if any came apart, is text like the rest."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, request: GenerateRequest) -> None:
        self._wants_tokens = request.n_logprobs is not None
        self._is_echoed = request.echo

    def delta(self, event: Event) -> dict[str, Any] | None:
        match event:
            case Text(text) | Reasoning(text):
                return {"text": text}
            case Finished():
                return {"text": ""}
            case Started() | Failed():
                return None
            case ToolCallStart() | ToolCallArgs():
                raise _no_tools()
            case _:
                assert_never(event)

    def whole(self, answer: Answer) -> dict[str, Any]:
        if answer.calls:
            raise _no_tools()
        return {"text": "".join([*answer.reasoning, *answer.texts])}

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        return reason

    def tokens(self) -> Tokens | None:
        return RawTokens(self._is_echoed) if self._wants_tokens else None


def _no_tools() -> ValueError:
    return ValueError("a raw completion has no tools, so no tool call can come out of it")
