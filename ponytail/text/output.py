"""Token ids of one choice -> events that may be sent.

Owns the order of work: bytes to whole characters, thinking told from the answer, tool calls
read, stop strings looked for in what is left.  And what is held back meanwhile: parts of
characters, tags and stop strings, and the log-probabilities of their tokens.  Pure; knows no
llama.cpp (token bytes come from a callable) and no engine.  The result does not depend
on how tokens are fed.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace as changed

from ponytail.text.splitter import StopSplitter
from ponytail.text.thinking import ReasoningSplitter
from ponytail.text.toolcalls.seam import CallParser
from ponytail.types import Event, Reasoning, Text, TokenLogprob, ToolCallArgs, ToolCallStart

_new_decoder = codecs.getincrementaldecoder("utf-8")
_NOTHING: tuple[Event, ...] = ()


class PieceTable:
    """Token id -> whole text, or None where a token is part of a character; all share it."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.token_bytes = token_bytes
        self._texts: dict[int, str | None] = {}

    def whole_text(self, token_id: int) -> str | None:
        """The token's text if its bytes are whole UTF-8 characters, else None."""
        try:
            return self._texts[token_id]
        except KeyError:
            return self._learn(token_id)

    def _learn(self, token_id: int) -> str | None:
        try:
            text: str | None = self.token_bytes(token_id).decode("utf-8")
        except UnicodeDecodeError:
            text = None
        self._texts[token_id] = text
        return text


class Output:
    """One choice's events: feed tokens, flush at the end.

    `stop` is the stop string that ended the answer, once one did.  Stops are not looked for
    in thinking, in tool calls and in the first `n_unstoppable` tokens (`min_tokens`).
    `n_reasoning` counts the tokens of thinking, its tags included.
    """

    __slots__ = (
        "_calls",
        "_decoder",
        "_is_all_calls",
        "_is_split",
        "_n_unstoppable",
        "_pieces",
        "_reasoning",
        "_splitter",
        "_tokens",
        "has_calls",
        "n_reasoning",
    )

    def __init__(
        self,
        pieces: PieceTable,
        stops: Sequence[str] = (),
        n_unstoppable: int = 0,
        *,
        reasoning: ReasoningSplitter | None = None,
        calls: CallParser | None = None,
        is_all_calls: bool = False,
    ) -> None:
        """`is_all_calls`: what is no call is markup of one that was cut off, and not told."""
        self._pieces = pieces
        self._decoder: codecs.IncrementalDecoder | None = None
        self._splitter = StopSplitter(stops) if stops else None
        self._n_unstoppable = n_unstoppable
        self._reasoning = reasoning
        self._calls = calls
        self._is_all_calls = is_all_calls
        self._is_split = reasoning is not None or calls is not None
        self._tokens: _Tokens | None = None
        self.n_reasoning = 0
        self.has_calls = False

    @property
    def stop(self) -> str | None:
        return self._splitter.matched if self._splitter is not None else None

    def feed(self, token_id: int, logprob: TokenLogprob | None = None) -> Sequence[Event]:
        """Events that can be sent now; they carry the log-probabilities that came along."""
        text = self._pieces.whole_text(token_id) if self._decoder is None else None
        if text is None:
            text = self._decode(self._pieces.token_bytes(token_id))
        if not self._is_split and logprob is None:
            text = self._unstopped(text)
            return (Text(text),) if text else _NOTHING
        return self._feed_split(text, logprob)

    def scored(
        self, token_id: int, scores: tuple[float | None, tuple[tuple[int, float], ...]]
    ) -> TokenLogprob:
        """The token with its log-probability and those of the likeliest, in bytes too."""
        own, top = scores
        named = self._pieces.token_bytes
        best = tuple((i, named(i), logprob) for i, logprob in top)
        return TokenLogprob(token_id, named(token_id), own, best)

    def flush(self) -> list[Event]:
        """What is left at the end: an unfinished character becomes one U+FFFD."""
        tail = self._decoder.decode(b"", final=True) if self._decoder is not None else ""
        self._decoder = None
        events = self._split(tail)
        if self._reasoning is not None and self.stop is None:
            for is_thought, text in self._reasoning.flush():
                events += [Reasoning(text)] if is_thought else self._called(text)
        if self._calls is not None and self.stop is None:
            events += self._seen(self._calls.flush())
        if self._splitter is not None:
            held = self._splitter.flush()
            events += [Text(held)] if held else []
        return events if self._tokens is None else self._tokens.rest(events, self.stop is not None)

    def _feed_split(self, text: str, logprob: TokenLogprob | None) -> list[Event]:
        events = self._split(text)
        is_thinking = self._reasoning is not None and self._reasoning.is_thinking
        if is_thinking or any(isinstance(event, Reasoning) for event in events):
            self.n_reasoning += 1
        if logprob is None:
            return events
        if self._tokens is None:
            self._tokens = _Tokens(is_exact=not self._is_split)
        return self._tokens.dealt(events, logprob, len(text))

    def _split(self, text: str) -> list[Event]:
        if self._reasoning is None:
            return self._called(text)
        events: list[Event] = []
        for is_thought, piece in self._reasoning.feed(text):
            events += [Reasoning(piece)] if is_thought else self._called(piece)
        return events

    def _called(self, text: str) -> list[Event]:
        if self._calls is not None:
            return self._seen(self._calls.feed(text))
        text = self._unstopped(text)
        return [Text(text)] if text else []

    def _seen(self, parsed: Sequence[Event]) -> list[Event]:
        """The parser's events with stop strings taken out of the text among them."""
        events: list[Event] = []
        for event in parsed:
            if isinstance(event, Text):
                if self._is_all_calls:
                    continue
                text = self._unstopped(event.text)
                events += [Text(text)] if text else []
                if self.stop is not None:
                    break
            else:
                self.has_calls = self.has_calls or isinstance(event, ToolCallStart)
                events.append(event)
        return events

    def _unstopped(self, text: str) -> str:
        if self._splitter is None:
            return text
        if self._n_unstoppable > 0:
            self._n_unstoppable -= 1
            return text
        return self._splitter.feed(text)

    def _decode(self, data: bytes) -> str:
        """Through a decoder that lives only while bytes of a character are missing."""
        if self._decoder is None:
            self._decoder = _new_decoder("replace")
        text = self._decoder.decode(data)
        if not self._decoder.getstate()[0]:
            self._decoder = None
        return text


class _Tokens:
    """Tokens that wait for the event that their text comes out in.

    `is_exact`: all text comes out as it went in, so characters can be counted and a held
    token waits for its own.  Otherwise (tags and markup do not come out) the next event has it.
    """

    def __init__(self, *, is_exact: bool) -> None:
        self._waiting: deque[tuple[TokenLogprob, int]] = deque()
        self._is_exact = is_exact
        self._n_chars = 0

    def dealt(self, events: list[Event], token: TokenLogprob, n_chars: int) -> list[Event]:
        self._waiting.append((token, n_chars))
        return self._deal(events)

    def _deal(self, events: list[Event]) -> list[Event]:
        """The events, each with the tokens whose text it ends."""
        dealt: list[Event] = []
        for i, event in enumerate(events):
            if not isinstance(event, Text | Reasoning | ToolCallArgs):
                dealt.append(event)
                continue
            tokens = self._taken(event, is_last=i == len(events) - 1)
            dealt.append(changed(event, tokens=tokens) if tokens else event)
        return dealt

    def _taken(
        self, event: Text | Reasoning | ToolCallArgs, *, is_last: bool
    ) -> tuple[TokenLogprob, ...]:
        taken: list[TokenLogprob] = []
        if not self._is_exact:
            if is_last:
                taken = [token for token, _ in self._waiting]
                self._waiting.clear()
            return tuple(taken)
        self._n_chars += len(event.fragment if isinstance(event, ToolCallArgs) else event.text)
        while self._waiting and self._waiting[0][1] <= self._n_chars:
            token, n = self._waiting.popleft()
            self._n_chars -= n
            taken.append(token)
        return tuple(taken)

    def rest(self, events: list[Event], is_stopped: bool) -> list[Event]:
        """At the end: what still waits goes with the last text, unless a stop string took it."""
        dealt = self._deal(events)
        left = () if is_stopped else tuple(token for token, _ in self._waiting)
        # A token that a stop string cut through has some of its text sent.
        if is_stopped and self._is_exact and self._n_chars and self._waiting:
            left = (self._waiting[0][0],)
        self._waiting.clear()
        return [*dealt, Text("", left)] if left else dealt
