"""From what a client asked to token ids: template, tokeniser, window.

Owns the check that a prompt fits its window and what is done when it does not.  Must not
know HTTP or the engine.  Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ponytail.errors import ContextLengthExceeded, InvalidRequest, RequestError
from ponytail.llama.model import Model
from ponytail.text.template import ChatTemplate, Segment
from ponytail.text.thinking import Tags, is_left_open, is_open_at_end
from ponytail.text.truncation import drop_oldest_turns, n_system_messages
from ponytail.types import (
    ChatPrompt,
    GenerateRequest,
    InfillPrompt,
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
)

# A prompt longer than this is rendered and tokenised in a thread, not in the event loop.
LONG_CHARS = 20_000
# A shorter beginning is computed as fast as it is fetched.
_MIN_MARK = 64
_NEVER_DROPPED = (
    " These are the leading system messages and the last turn alone, "
    'which "truncation": "auto" never drops.'
)


class Encoded(msgspec.Struct, frozen=True):
    """A prompt in token ids.

    `marks` are the lengths at which messages end.  The first `n_keep` are what comes before
    the conversation proper: the start token, the system message.  `opens_thinking`: it ends
    within the model's thinking.
    """

    ids: list[int]
    marks: tuple[int, ...] = ()
    n_keep: int = 1
    truncation: Truncation | None = None
    opens_thinking: bool = False


class Prompts:
    """Encodes for one model and a window of n_ctx tokens; `tags` are what the model thinks in.

    `needs_marks`: somebody wants to know where messages end, which takes two more renderings.
    """

    def __init__(
        self,
        model: Model,
        template: ChatTemplate,
        n_ctx: int,
        *,
        tags: Tags | None = None,
        needs_marks: bool = False,
    ) -> None:
        self._tags = tags
        self._needs_marks = needs_marks
        self._model = model
        self._template = template
        self._n_ctx = n_ctx

    def encode(self, request: GenerateRequest) -> list[Encoded]:
        """All prompts of a request.  Raises ContextLengthExceeded or TemplateError."""
        encoded = [self._encode(prompt, request) for prompt in request.prompts]
        for prompt, one in zip(request.prompts, encoded, strict=True):
            if len(one.ids) >= self._n_ctx:
                is_chat = isinstance(prompt, ChatPrompt)
                raise ContextLengthExceeded(
                    len(one.ids),
                    self._n_ctx,
                    param="messages" if is_chat else "prompt",
                    # The count is of what could not be dropped, not of all that was sent.
                    note=_NEVER_DROPPED if is_chat and request.truncates else "",
                )
        return encoded

    def _encode(self, prompt: Prompt, request: GenerateRequest) -> Encoded:
        match prompt:
            case ChatPrompt():
                return self._truncated(prompt, request) if request.truncates else self._chat(prompt)
            case TextPrompt(text):
                return Encoded(self._model.tokenize_segments([(text, True)]))
            case TokenPrompt(ids):
                return Encoded(list(ids))
            case InfillPrompt():
                return Encoded(self._infill(prompt))

    def _infill(self, prompt: InfillPrompt) -> list[int]:
        """Other files, what is before the gap, what is after it, and where it is filled."""
        fim, tokenize = self._model.fim, self._plain
        if fim is None:
            raise InvalidRequest(
                "this model cannot fill gaps: its vocabulary has no tokens for it", param="suffix"
            )
        ids = [self._model.bos_id] if self._model.add_bos and self._model.bos_id >= 0 else []
        for name, text in prompt.extra:
            head = tokenize(f"\n\n--- {name} ---\n\n") if fim.file is None else [fim.file]
            ids += head + ([] if fim.file is None else tokenize(f"{name}\n")) + tokenize(text)
        if prompt.extra and fim.file is not None:
            ids += [fim.file, *tokenize("filename\n")]
        ids += [fim.before, *tokenize(prompt.prefix + prompt.prompt)]
        return [*ids, fim.after, *tokenize(prompt.suffix), fim.gap]

    def _plain(self, text: str) -> list[int]:
        return self._model.tokenize(text, add_special=False, parse_special=False)

    def _chat(self, prompt: ChatPrompt) -> Encoded:
        segments = self._template.render(prompt)
        ids = self._model.tokenize_segments((s.text, s.is_scaffold) for s in segments)
        is_open = self._opens_thinking(prompt, segments)
        if not self._needs_marks:
            return Encoded(ids, opens_thinking=is_open)
        n_system = self._n_common(prompt, n_system_messages(prompt.messages), ids)
        n_before = self._n_common(prompt, len(prompt.messages) - 1, ids)
        marks = sorted({n for n in (n_system, n_before) if n >= _MIN_MARK} | {len(ids)})
        return Encoded(ids, tuple(marks), max(1, n_system), opens_thinking=is_open)

    def _opens_thinking(self, prompt: ChatPrompt, segments: Sequence[Segment]) -> bool:
        if self._tags is None:
            return False
        if prompt.continues:
            return is_left_open(prompt.messages[-1].content, self._tags)
        last = segments[-1] if segments else None
        is_scaffold = last is not None and last.is_scaffold and prompt.add_generation_prompt
        return is_scaffold and last is not None and is_open_at_end(last.text, self._tags)

    def _ids(self, prompt: ChatPrompt) -> list[int]:
        segments = self._template.render(prompt)
        return self._model.tokenize_segments((s.text, s.is_scaffold) for s in segments)

    def _n_common(self, prompt: ChatPrompt, n_messages: int, ids: list[int]) -> int:
        """Tokens that the first n_messages alone have in common with the whole.

        That is where they end, whatever the template writes around them.
        """
        if n_messages == 0:
            return 0
        head = msgspec.structs.replace(
            prompt, messages=prompt.messages[:n_messages], add_generation_prompt=False
        )
        try:
            alone = self._ids(head)
        except RequestError:
            # A template may want a user message, or turns in order.
            return 0
        same = (i for i, (a, b) in enumerate(zip(alone, ids, strict=False)) if a != b)
        return next(same, min(len(alone), len(ids)))

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
            case InfillPrompt(prefix, suffix, extra, begun):
                return len(prefix) + len(suffix) + len(begun) + sum(len(t) for _, t in extra)

    def is_long(self, request: GenerateRequest) -> bool:
        """Whether encoding takes long enough to be noticed by others."""
        return sum(map(self.n_chars, request.prompts)) > LONG_CHARS
