"""From what a client asked to token ids: template, tokeniser, window.

Owns the check that a prompt fits its window and what is done when it does not.  Must not
know HTTP or the engine.  Any thread.
"""

from __future__ import annotations

import msgspec

from ponytail.errors import ContextLengthExceeded
from ponytail.llama.model import Model
from ponytail.text.template import ChatTemplate
from ponytail.text.truncation import drop_oldest_turns
from ponytail.types import (
    ChatPrompt,
    GenerateRequest,
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
)

# A prompt longer than this is rendered and tokenised in a thread, not in the event loop.
LONG_CHARS = 20_000
# Marks closer to each other than this save less than they cost.
_MIN_MARK = 64
_MAX_MARKS = 6


class Encoded(msgspec.Struct, frozen=True):
    """A prompt in token ids.

    `marks` are the lengths at which messages end.  The first `n_keep` are what comes before
    the conversation proper: the start token, the system message.
    """

    ids: list[int]
    marks: tuple[int, ...] = ()
    n_keep: int = 1
    truncation: Truncation | None = None


class Prompts:
    """Encodes for one model and a window of n_ctx tokens."""

    def __init__(self, model: Model, template: ChatTemplate, n_ctx: int) -> None:
        self._model = model
        self._template = template
        self._n_ctx = n_ctx

    def encode(self, request: GenerateRequest) -> list[Encoded]:
        """All prompts of a request.  Raises ContextLengthExceeded or TemplateError."""
        encoded = [self._encode(prompt, request) for prompt in request.prompts]
        for prompt, one in zip(request.prompts, encoded, strict=True):
            if len(one.ids) >= self._n_ctx:
                name = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
                raise ContextLengthExceeded(len(one.ids), self._n_ctx, param=name)
        return encoded

    def _encode(self, prompt: Prompt, request: GenerateRequest) -> Encoded:
        match prompt:
            case ChatPrompt():
                return self._truncated(prompt, request) if request.truncates else self._chat(prompt)
            case TextPrompt(text):
                return Encoded(self._model.tokenize_segments([(text, True)]))
            case TokenPrompt(ids):
                return Encoded(list(ids))

    def _chat(self, prompt: ChatPrompt) -> Encoded:
        segments = self._template.render(prompt)
        ends: list[int] = []
        ids = self._model.tokenize_segments(((s.text, s.is_scaffold) for s in segments), ends)
        contents = [
            end for end, segment in zip(ends, segments, strict=True) if not segment.is_scaffold
        ]
        has_system = prompt.messages and prompt.messages[0].role in ("system", "developer")
        n_keep = contents[0] if has_system and contents else 1
        return Encoded(ids, _marks(contents, len(ids)), n_keep)

    def _truncated(self, prompt: ChatPrompt, request: GenerateRequest) -> Encoded:
        """Without the oldest turns, if that is what it takes to leave room for the answer.

        Room for max_tokens, or a quarter of the window when it is not said; half of the window
        at most.
        """
        n_room = min(request.max_tokens or self._n_ctx // 4, self._n_ctx // 2)
        tried: dict[int, Encoded] = {}

        def encode(messages: tuple[Message, ...]) -> Encoded:
            if len(messages) not in tried:
                tried[len(messages)] = self._chat(
                    msgspec.structs.replace(prompt, messages=messages)
                )
            return tried[len(messages)]

        kept, n_turns = drop_oldest_turns(
            prompt.messages, self._n_ctx - max(1, n_room), lambda m: len(encode(m).ids)
        )
        dropped = Truncation(len(prompt.messages) - len(kept), n_turns)
        return msgspec.structs.replace(encode(kept), truncation=dropped)

    def n_chars(self, prompt: Prompt) -> int:
        """How much text there is to read."""
        match prompt:
            case ChatPrompt(messages=messages):
                return sum(len(m.content) for m in messages)
            case TextPrompt(text):
                return len(text)
            case TokenPrompt():
                return 0

    def is_long(self, request: GenerateRequest) -> bool:
        """Whether encoding takes long enough to be noticed by others."""
        return sum(map(self.n_chars, request.prompts)) > LONG_CHARS


def _marks(ends: list[int], n_ids: int) -> tuple[int, ...]:
    """The first message's end (a system message is what conversations share) and the last."""
    chosen: list[int] = []
    for end in [*ends, n_ids]:
        if end - (chosen[-1] if chosen else 0) >= _MIN_MARK or end == n_ids:
            chosen.append(end)
    return tuple(chosen[:1] + chosen[1:][-_MAX_MARKS + 1 :])
