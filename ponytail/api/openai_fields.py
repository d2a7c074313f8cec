"""The parameters of the OpenAI routes: one row each, honoured, accepted or refused.

Owns the tables.  The parser, docs/api.md and /openapi.json are made from these rows.
Must not know HTTP or the engine.  Pure; any thread.

*honoured*: it does what the row says.  *accepted*: well-known clients send it, it is
checked, and it changes nothing here.  *refused*: a 400 that names it, unless the value
asks for nothing.  A field in no row is a 400 as well: nothing is dropped silently.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponytail.api.bounded import JsonObjects
from ponytail.api.dialect import Limits
from ponytail.api.fields import (
    Boolean,
    Field,
    Fields,
    Integer,
    Number,
    Object,
    OneOf,
    Schema,
    String,
    Strings,
    accepted,
    honoured,
    refused,
    wrong,
)
from ponytail.api.openai_constraints import CONSTRAINTS, ResponseFormat
from ponytail.api.openai_messages import Messages, Prompts, TokenIds
from ponytail.api.openai_sampling import INT32_MAX, SAMPLING
from ponytail.api.openai_tools import FunctionChoices, Functions, ToolChoices, Tools
from ponytail.api.openai_unused import ACCEPTED, REFUSED

N_CHOICES = 128
N_STOPS = 16
N_STOP_IDS = 256
N_TOP = 20
N_DOCUMENTS = 1024
DAY_S = 86400
INT64_MAX = 2**63 - 1
# Names the renderer fills; a client that set them would replace the conversation.
RESERVED = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
)


@dataclass(frozen=True, slots=True)
class ChoiceCount:
    """How many choices, up to what the server allows."""

    @property
    def words(self) -> str:
        return f"an integer from 1 to {N_CHOICES}"

    def read(self, value: object, path: str, limits: Limits) -> int | None:
        return Integer(1, limits.n_choices).read(value, path, limits)

    def schema(self) -> Schema:
        return Integer(1, N_CHOICES).schema()


@dataclass(frozen=True, slots=True)
class TopCount:
    """The first form of logprobs: a number says both whether and how many; false is none."""

    @property
    def words(self) -> str:
        return f"an integer from 0 to {N_TOP}, or false"

    def read(self, value: object, path: str, limits: Limits) -> int | None:
        if value is False:
            return None
        if isinstance(value, bool):
            raise wrong(self, value, path)
        return Integer(0, N_TOP).read(value, path, limits)

    def schema(self) -> Schema:
        return {"anyOf": [Integer(0, N_TOP).schema(), {"const": False}]}


STREAM_OPTIONS = Fields(
    honoured("include_usage", Boolean(), "One more chunk before [DONE], with the token counts."),
    accepted("include_obfuscation", Boolean(), "No padding is ever added here."),
    refused("continuous_usage_stats", "The counts come once, at the end.", False),
)


def _max_tokens(low: int, note: str) -> Field:
    return honoured(
        "max_tokens",
        Integer(low, INT64_MAX),
        "Most tokens of the answer; absent or null: up to the end of the context window. " + note,
        aliases=("n_predict",),
    )


OUTPUT = (
    honoured(
        "stop",
        Strings(N_STOPS, or_one=True),
        "The answer ends before the first of these texts; they may span tokens.",
    ),
    honoured(
        "stop_token_ids",
        TokenIds(n_max=N_STOP_IDS),
        "Tokens that end the answer, besides the model's own.",
    ),
    honoured(
        "n",
        ChoiceCount(),
        "Independent answers per prompt; with a seed, answer j has seed + j.",
        default=1,
    ),
    honoured("stream", Boolean(), "Send the answer as server-sent events.", default=False),
    honoured("stream_options", STREAM_OPTIONS, "Only with `stream: true`; see the members below."),
    honoured(
        "priority",
        Integer(-INT32_MAX - 1, INT32_MAX),
        "Lower goes first in the queue.",
        default=0,
    ),
    honoured(
        "deadline_s",
        Number(0, DAY_S, True),
        "Seconds from arrival. Past it a waiting request is a 408 with code deadline_exceeded, "
        "a running one ends with finish_reason length.",
    ),
    honoured(
        "cache_salt",
        String(1, 256),
        "Cached prefixes are shared only between requests with the same salt.",
    ),
)

FORM = (
    honoured(
        "response_format", ResponseFormat(), "What the answer must look like; see the members."
    ),
    *CONSTRAINTS,
)

TOOLS = (
    honoured("tools", Tools(), "Functions the model may call."),
    honoured(
        "tool_choice",
        ToolChoices(),
        "Whether and what to call; a call that is required or named is forced. With tools: auto.",
    ),
    honoured(
        "parallel_tool_calls",
        Boolean(),
        "false: one call at most. No effect without tools.",
        default=True,
    ),
    honoured("functions", Functions(), "The first form of tools; the reply is in that form."),
    honoured("function_call", FunctionChoices(), "The first form of tool_choice."),
)

TEMPLATE = (
    honoured(
        "chat_template_kwargs",
        Object(RESERVED),
        "Variables for the model's chat template, such as `enable_thinking`.",
    ),
    honoured(
        "add_generation_prompt",
        Boolean(),
        "End the prompt where the answer begins; false with continue_final_message.",
        default=True,
    ),
    honoured(
        "continue_final_message",
        Boolean(),
        "The answer goes on with the last message, the assistant's; as `prefix: true` in it.",
        default=False,
    ),
    honoured("documents", JsonObjects(N_DOCUMENTS), "Given to the chat template under this name."),
    honoured(
        "reasoning_effort",
        String(1),
        "Given to the chat template under this name; chat_template_kwargs goes before it.",
    ),
    honoured(
        "unsupported_content",
        OneOf(("error", "placeholder")),
        "placeholder: a sentence takes the place of an image, audio, a video or a file, "
        "instead of a 400.",
        default="error",
    ),
    refused("chat_template", "The model file's own is used; the operator may give another."),
)

THINKING = (
    honoured(
        "reasoning_format",
        OneOf(("auto", "deepseek", "none")),
        "none: thinking stays in the content as it was written. deepseek is auto.",
        default="auto",
    ),
    honoured(
        "thinking_budget",
        Integer(0, INT32_MAX, ((-1, None),), " (-1: no limit)"),
        "Tokens after which thinking is ended for the model.",
        aliases=("thinking_budget_tokens", "reasoning_budget"),
    ),
)

MESSAGES = honoured(
    "messages",
    Messages(),
    "The conversation: roles system, developer, user, assistant, tool, function; content "
    "a string, null or text parts (joined with line breaks).",
    required=True,
)

CHAT = Fields(
    MESSAGES,
    honoured(
        "max_completion_tokens",
        Integer(1, INT64_MAX),
        "As max_tokens; of both, the smaller one counts.",
    ),
    _max_tokens(1, "0 is refused."),
    *OUTPUT,
    *SAMPLING,
    *TEMPLATE,
    *THINKING,
    *TOOLS,
    *FORM,
    honoured(
        "logprobs",
        Boolean(),
        "The log-probability of each token of the answer.",
        default=False,
    ),
    honoured(
        "top_logprobs",
        Integer(0, N_TOP),
        "So many of the likeliest tokens at each place; only with `logprobs: true`.",
    ),
    honoured(
        "truncation",
        OneOf(("auto", "disabled")),
        "auto: drop the oldest turns of a conversation that does not fit; the reply says how many.",
        default="disabled",
    ),
    *ACCEPTED,
    accepted("prediction", Object(), "A hint for speed; the text is the same without it."),
    refused("modalities", "Answers are text.", ["text"]),
    refused("audio", "Answers are text."),
    refused("echo", "/v1/completions has it.", False),
    refused("web_search_options", "The server fetches nothing."),
    refused("moderation", "Nothing is moderated here."),
    *REFUSED,
)

# Only the values 1 and n ask for nothing, and a row does not know n.
BEST_OF = "Choosing needs the discarded answers' time; ask for n and choose. 1 and n are fine."

COMPLETION = Fields(
    honoured(
        "prompt",
        Prompts(),
        "Text, texts, token ids, or lists of token ids; none empty. Control tokens written in "
        "a text are read as such.",
        required=True,
    ),
    honoured(
        "suffix",
        String(),
        "The text after the gap that the answer fills, for models trained to; the prompt is "
        "the text before it.",
    ),
    _max_tokens(0, "0 only with `echo: true`."),
    *OUTPUT,
    *SAMPLING,
    *FORM,
    honoured("echo", Boolean(), "Put the prompt before the answer.", default=False),
    honoured(
        "logprobs",
        TopCount(),
        "The log-probability of each token, and so many of the likeliest at its place; with "
        "`echo` those of the prompt too.",
    ),
    *ACCEPTED,
    Field("best_of", Integer(1, N_CHOICES), "refused", BEST_OF),
    refused("truncation", "A raw prompt has no turns to drop.", "disabled"),
    *REFUSED,
)

MODEL = accepted("model", String(), "One model is served, whatever this says.")

APPLY_TEMPLATE = Fields(MESSAGES, *TEMPLATE, *TOOLS, MODEL)

TOKENIZE = Fields(
    honoured("content", String(), "The text.", required=True, aliases=("prompt", "text")),
    honoured(
        "add_special",
        Boolean(),
        "Add the tokens the model puts before a text (BOS).",
        default=False,
        aliases=("add_special_tokens",),
    ),
    honoured(
        "parse_special",
        Boolean(),
        "Read control tokens written in the text as such.",
        default=True,
    ),
    honoured("with_pieces", Boolean(), "Give each token's text with its id.", default=False),
    MODEL,
)

DETOKENIZE = Fields(honoured("tokens", TokenIds(), "The token ids.", required=True), MODEL)

TABLES: dict[str, Fields] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/tokenize": TOKENIZE,
    "/v1/detokenize": DETOKENIZE,
    "/v1/apply-template": APPLY_TEMPLATE,
}
