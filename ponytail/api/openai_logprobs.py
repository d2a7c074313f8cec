"""Log-probabilities in the OpenAI dialect's two shapes: the chat's and the first one.

Owns how tokens are spelled and gathered.  What the numbers mean is `types.TokenLogprob`'s
to say.  One gatherer serves one choice and is fed by one thread.
"""

from __future__ import annotations

import codecs
from typing import Any, Protocol

from ponytail.types import Event, Reasoning, Text, TokenLogprob, ToolCallArgs

# JSON has no infinity; this is OpenAI's number for "very unlikely".
FLOOR = -9999.0


class Tokens(Protocol):
    """Gathers the tokens of one choice; `take` gives those since the last `take`."""

    def add(self, event: Event) -> None: ...

    def take(self) -> dict[str, Any]: ...


class ChatTokens:
    """{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}.

    Tokens of thinking and of calls are no content: they stand beside it, in
    `reasoning_content` and `tool_calls`, which are absent when empty.
    """

    def __init__(self) -> None:
        self._by_place: dict[str, list[dict[str, Any]]] = {}

    def add(self, event: Event) -> None:
        match event:
            case Text(_, tokens):
                self._put("content", tokens)
            case Reasoning(_, tokens):
                self._put("reasoning_content", tokens)
            case ToolCallArgs(_, _, tokens):
                self._put("tool_calls", tokens)
            case _:
                pass

    def _put(self, place: str, tokens: tuple[TokenLogprob, ...]) -> None:
        if tokens:
            self._by_place.setdefault(place, []).extend(map(_chat_token, tokens))

    def take(self) -> dict[str, Any]:
        taken, self._by_place = self._by_place, {}
        return {"content": [], "refusal": None, **taken}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    top = [_one(data, logprob) for _, data, logprob in token.top]
    return {**_one(token.data, token.logprob), "top_logprobs": top}


def _one(data: bytes, logprob: float | None) -> dict[str, Any]:
    text = data.decode(errors="replace")
    return {"token": text, "logprob": _finite(logprob), "bytes": list(data)}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, FLOOR)


class RawTokens:
    """{"tokens", "token_logprobs", "top_logprobs", "text_offset"}, four lists of one length.

    A token's offset is the number of whole characters before it.  With `is_echoed` the
    first text is the prompt.
    """

    def __init__(self, is_echoed: bool) -> None:
        self._is_echo_due = is_echoed
        self._n_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._taken = _lists()

    def add(self, event: Event) -> None:
        if not isinstance(event, Text | Reasoning):
            return
        for token in event.tokens:
            self._put(token)
        if self._is_echo_due:
            # A prompt's control tokens may be spelled otherwise in its text: count afresh.
            self._is_echo_due = False
            self._n_chars = len(event.text)
            self._decoder.reset()

    def _put(self, token: TokenLogprob) -> None:
        lists = self._taken
        lists["tokens"].append(spell(token.data))
        lists["token_logprobs"].append(_finite(token.logprob))
        lists["top_logprobs"].append(_top(token))
        lists["text_offset"].append(self._n_chars)
        self._n_chars += len(self._decoder.decode(token.data))

    def take(self) -> dict[str, Any]:
        taken, self._taken = self._taken, _lists()
        return taken


def _lists() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _top(token: TokenLogprob) -> dict[str, float] | None:
    """The likeliest and the token itself; of those that are spelled alike, the best."""
    if token.logprob is None:
        return None
    top: dict[str, float] = {}
    for data, logprob in [*((d, lp) for _, d, lp in token.top), (token.data, token.logprob)]:
        text = spell(data)
        top[text] = max(top.get(text, FLOOR), logprob)
    return top


def spell(data: bytes) -> str:
    r"""A token as text; one with part of a character as `bytes:\xe2\x80`, like OpenAI's."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(_spell_byte(byte) for byte in data)


def _spell_byte(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}"
