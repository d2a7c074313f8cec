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


class Tool(msgspec.Struct, frozen=True):
    """A function the model may call.  `parameters` is the JSON Schema of its arguments.

    `path` is where the request says it, for messages: `tools[2].function`.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    is_strict: bool = False
    path: str = "tools"


class ToolUse(msgspec.Struct, frozen=True):
    """The tools of a request, and which of them the answer may or must call.

    `mode` required asks for at least one call.  `allowed` names the tools that may be called,
    empty: all.  The template is shown all of them, or none when `mode` is none.
    """

    tools: tuple[Tool, ...]
    mode: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] = ()
    is_parallel: bool = True

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Those that may be called, in the order given."""
        if self.mode == "none":
            return ()
        return tuple(t for t in self.tools if not self.allowed or t.name in self.allowed)


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages to be rendered with the model's chat template.

    `template_kwargs` reach the template as they are (`enable_thinking`, ...).  With
    `continues` the prompt ends inside the last message, which the answer goes on with.
    """

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    tool_use: ToolUse | None = None
    continues: bool = False


class TextPrompt(msgspec.Struct, frozen=True):
    """Raw text; special tokens written in it are parsed as such."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids, taken as they are (no BOS is added)."""

    ids: tuple[int, ...]


class InfillPrompt(msgspec.Struct, frozen=True):
    """The text before and after a gap, for models trained to fill it.

    `extra` are (file name, text) of other files to be seen first.  `prompt` goes on after the
    prefix: the beginning of what fills the gap.
    """

    prefix: str
    suffix: str
    extra: tuple[tuple[str, str], ...] = ()
    prompt: str = ""


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt | InfillPrompt


class JsonSchema(msgspec.Struct, frozen=True):
    """The answer is one JSON value that fits the schema.  `param` is the field that says so."""

    schema: dict[str, Any] | bool
    param: str


class Regex(msgspec.Struct, frozen=True):
    """The whole answer matches the pattern."""

    pattern: str
    param: str


class Grammar(msgspec.Struct, frozen=True):
    """The answer is a sentence of a grammar in Lark's or llama.cpp's (GBNF) notation."""

    text: str
    notation: Literal["lark", "gbnf"]
    param: str


class OneOfTexts(msgspec.Struct, frozen=True):
    """The answer is one of these texts."""

    texts: tuple[str, ...]
    param: str


Constraint: TypeAlias = JsonSchema | Regex | Grammar | OneOfTexts
"""What an answer must look like."""


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
    `max_tokens` None means up to the end of the context window; 0, with `echo` only,
    computes the prompt and no more.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    constraint: Constraint | None = None
    n_logprobs: int | None = None
    """Log-probabilities of each token of the answer (with `echo`: of the prompt too), and of so
    many of the likeliest at its place.  None: none at all."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the answer, besides the model's own."""
    splits_reasoning: bool = True
    """Thinking is told apart from the answer; otherwise it stays in the text as written."""
    n_thinking_max: int | None = None
    """Tokens after which thinking is ended for the model."""
    priority: int = 0
    """Lower goes first."""
    deadline_s: float | None = None
    """Seconds from arrival in which all must be done."""
    legacy_functions: bool = False
    """The tools came in the API's first form (`functions`), and the reply is to be in it."""
    cache_salt: str = ""
    """Cached prefixes are shared only between requests with the same salt."""
    truncates: bool = False
    """Drop the oldest turns of a conversation that does not fit, instead of refusing it."""
    deterministic: bool = False
    """Computed alone and from nothing: the same seed gives the same text whatever else runs."""


class EmbedRequest(msgspec.Struct, frozen=True):
    """Texts, or token ids, to make vectors of; `param` is what the client calls them."""

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    """Numbers of each vector; None: as many as the model makes."""
    is_base64: bool = False
    param: str = "input"


class RankRequest(msgspec.Struct, frozen=True):
    """Documents to rank by a query; `n_top` of them are wanted, None is all."""

    query: str
    documents: tuple[str, ...]
    n_top: int | None = None
    shows_documents: bool = False
    param: str = "documents"


class Truncation(msgspec.Struct, frozen=True):
    """What was dropped from a conversation to make it fit; zeros when it fitted."""

    n_messages: int
    n_turns: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one choice; `n_cached` of the `n_prompt` were not computed again."""

    n_prompt: int
    n_cached: int
    n_completion: int
    n_reasoning: int = 0
    """How many of the completion's tokens were thinking."""


class Timings(msgspec.Struct, frozen=True):
    """Seconds one choice spent waiting for a place, in its prompt, and generating."""

    queued_s: float
    prompt_s: float
    generate_s: float


class Started(msgspec.Struct, frozen=True):
    """The prompt is computed and the first token is about to follow."""

    n_prompt: int
    n_cached: int


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token with the natural logarithm of its probability, in the model's own distribution:
    before temperature, penalties, bias and masks.

    `data` are its bytes, maybe part of a character.  `logprob` is None for the very first
    token of a prompt.  `top` are (id, bytes, logprob) of the likeliest, best first.
    """

    id: int
    data: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer; always whole characters, never part of a stop string.

    `tokens`, where asked for, are those that end in this piece; over all pieces their bytes are
    the text (but for a stop string in the midst of a token).
    """

    text: str
    tokens: tuple[TokenLogprob, ...] = ()


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's thinking."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()


class ToolCallStart(msgspec.Struct, frozen=True):
    """The assistant begins call number `index` of this choice."""

    index: int
    id: str
    name: str


class ToolCallArgs(msgspec.Struct, frozen=True):
    """A fragment of the JSON arguments of call number `index`; `tokens` as in Text, with those
    of the markup before it."""

    index: int
    fragment: str
    tokens: tuple[TokenLogprob, ...] = ()


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
