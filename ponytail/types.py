"""The words every layer shares: what a client asked, and what it gets back.

Owns the request and event types.  Must not know HTTP, JSON shapes of any
dialect, llama.cpp or threads.  All values are immutable, so any thread may
read them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ponytail.errors import PonytailError

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class ToolCall(msgspec.Struct, frozen=True):
    """A call the assistant made in an earlier turn; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One turn.  `content` is plain text: absent, null and part lists are met in the dialect."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages to be rendered with the model's chat template.

    `template_kwargs` reach the template as they are (`enable_thinking`, ...).
    """

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class TextPrompt(msgspec.Struct, frozen=True):
    """Raw text; special tokens written in it are parsed as such."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids, taken as they are (no BOS is added)."""

    ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


class Sampling(msgspec.Struct, frozen=True):
    """How one sequence picks its tokens; the names and meanings are llama.cpp's.

    `temperature` 0 is greedy.  `seed` None draws a fresh one.  `logit_bias`
    holds (token id, value added to the logit).  A penalty window of -1 is the
    whole context, 0 turns that penalty off.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0


class GenerateRequest(msgspec.Struct, frozen=True):
    """What a client asked, in no dialect's words.

    Every prompt gives `n` choices; choice j of prompt i has index i * n + j.
    `max_tokens` None means up to the end of the context window.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    truncates: bool = False
    """Drop the oldest turns of a conversation that does not fit, instead of refusing it."""
    deterministic: bool = False
    """Computed alone and from nothing: the same seed gives the same text whatever else runs."""


class Truncation(msgspec.Struct, frozen=True):
    """What was dropped from a conversation to make it fit; zeros when it fitted."""

    n_messages: int
    n_turns: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one choice; `n_cached` of the `n_prompt` were not computed again."""

    n_prompt: int
    n_cached: int
    n_completion: int


class Timings(msgspec.Struct, frozen=True):
    """Seconds one choice spent waiting for a place, in its prompt, and generating."""

    queued_s: float
    prompt_s: float
    generate_s: float


class Started(msgspec.Struct, frozen=True):
    """The prompt is computed and the first token is about to follow."""

    n_prompt: int
    n_cached: int


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer; always whole characters, never part of a stop string."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's thinking."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """The assistant begins call number `index` of this choice."""

    index: int
    id: str
    name: str


class ToolCallArgs(msgspec.Struct, frozen=True):
    """A fragment of the JSON arguments of call number `index`."""

    index: int
    fragment: str


class Finished(msgspec.Struct, frozen=True):
    """The choice ended as it should; `stop` is the stop string that ended it, if one did."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None


class Failed(msgspec.Struct, frozen=True):
    """The choice ended in an error; nothing follows."""

    error: PonytailError


Event: TypeAlias = Started | Text | Reasoning | ToolCallStart | ToolCallArgs | Finished | Failed
"""Closed: match on it and end with assert_never.  Exactly one Finished or Failed ends a choice."""
