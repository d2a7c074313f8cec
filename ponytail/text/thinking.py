"""A model's thinking, told apart from its answer.

Owns the pairs of tags that models think in, which of them a template's model uses,
and the splitter of one answer.  Must not know tokens, templates' inner life or the
formats that tell thinking apart themselves (harmony).  Pure; a splitter belongs to one
choice, and its pieces do not depend on how the text is cut into feeds.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal, TypeAlias

Piece: TypeAlias = tuple[bool, str]
"""(is it thinking, text); the text is never empty."""

_State: TypeAlias = Literal["start", "opening", "thinking", "closed", "answer"]


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts that begin and end a model's thinking."""

    open: str
    close: str


DEFAULT = Tags("<think>", "</think>")
KNOWN = (
    DEFAULT,
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<thinking>", "</thinking>"),
    Tags("<thought>", "</thought>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("◁think▷", "◁/think▷"),
)
_HARMONY = ("<|channel|>", "<|message|>")


def find_tags(
    template_source: str | None, special_tokens: Container[str] = frozenset()
) -> Tags | None:
    """The tags of the model that the template was written for.

    Those the template has both of; else has one of; else those the vocabulary has as
    tokens; else `<think>`.  None for harmony, whose channels are no tags.
    """
    source = template_source or ""
    if all(mark in source for mark in _HARMONY):
        return None
    for tags in KNOWN:
        if tags.open in source and tags.close in source:
            return tags
    for tags in KNOWN:
        if tags.open in source or tags.close in source:
            return tags
    for tags in KNOWN:
        if tags.open in special_tokens and tags.close in special_tokens:
            return tags
    return DEFAULT


def is_open_at_end(rendered_prompt_text: str, tags: Tags) -> bool:
    """Whether the prompt ends just after an open tag, so that the answer begins as thinking."""
    return rendered_prompt_text.rstrip().endswith(tags.open)


def is_left_open(content: str, tags: Tags) -> bool:
    """Whether an answer that began with `content` is still thinking where that ends."""
    return content.lstrip().startswith(tags.open) and tags.close not in content


class ReasoningSplitter:
    """Splits one answer into thinking and the rest.

    Tags count only where an answer begins: the open tag as its first text, and the close tag
    after that or, with `is_open`, from the start; anywhere else they are text.  White space
    after the open tag and on both sides of the close tag is dropped.  Thinking that never ends
    is all thinking.
    """

    __slots__ = ("_close", "_has_thought", "_held", "_open", "_state")

    def __init__(self, tags: Tags, *, is_open: bool) -> None:
        """`is_open`: the prompt ended inside an opened thinking block."""
        self._open = tags.open
        self._close = tags.close
        self._state: _State = "opening" if is_open else "start"
        self._held = ""
        self._has_thought = False

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends in thinking."""
        return self._state in ("opening", "thinking")

    def feed(self, text: str) -> list[Piece]:
        """What of the text so far is sure; parts of a tag are held back."""
        if self._state == "answer":
            return [(False, text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        if self._state in ("start", "opening"):
            self._look_for_open()
        if self._state == "thinking":
            pieces += self._thought()
        if self._state == "closed" and self._held.lstrip():
            self._held = self._held.lstrip()
            self._state = "answer"
        if self._state == "answer":
            pieces += self._take(is_reasoning=False)
        return pieces

    def flush(self) -> list[Piece]:
        """What was held, when the answer has ended: part of a tag is text after all."""
        match self._state:
            case "start" | "answer":
                return self._take(is_reasoning=False)
            case "opening" | "thinking":
                if not self._has_thought:
                    self._held = self._held.strip()
                return self._take(is_reasoning=True)
            case "closed":
                self._held = ""
                return []

    def _take(self, *, is_reasoning: bool) -> list[Piece]:
        held, self._held = self._held, ""
        return [(is_reasoning, held)] if held else []

    def _look_for_open(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._open):
            self._held = begun[len(self._open) :]
            self._state = "thinking"
        elif not self._open.startswith(begun):
            self._state = "thinking" if self._state == "opening" else "answer"

    def _thought(self) -> list[Piece]:
        """Thinking that is sure: neither part of a close tag nor white space before one."""
        if not self._has_thought:
            self._held = self._held.lstrip()
        before, tag, after = self._held.partition(self._close)
        if tag:
            self._held = after
            self._state = "closed"
        else:
            before = before[: len(before) - self._n_open_end(before)]
        sure = before.rstrip()
        if not tag:
            self._held = self._held[len(sure) :]
        self._has_thought = self._has_thought or bool(sure)
        return [(True, sure)] if sure else []

    def _n_open_end(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of the close tag."""
        longest = min(len(self._close) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if text.endswith(self._close[:n])), 0)
