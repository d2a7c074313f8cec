"""The parameters of the OpenAI routes: one row each, honoured, accepted or refused.

Owns the tables and the kinds only they need.  The parser, docs/api.md and
/openapi.json are made from these rows.  Must not know HTTP or the engine.  Pure; any
thread.

*honoured*: it does what the row says.  *accepted*: well-known clients send it, it is
checked, and it changes nothing here.  *refused*: a 400 that names it, unless the value
asks for nothing.  A field in no row is a 400 as well: nothing is dropped silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponytail.api.dialect import Limits
from ponytail.api.fields import (
    Boolean,
    Field,
    Fields,
    Integer,
    Kind,
    Number,
    Object,
    OneOf,
    Only,
    Schema,
    String,
    Strings,
    clip,
    must,
    wrong,
)
from ponytail.api.openai_messages import Messages, Prompts, TokenIds
from ponytail.types import Sampling

DEFAULTS = Sampling()
N_CHOICES = 128
N_STOPS = 16
INT32_MAX = 2**31 - 1
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
class LogitBias:
    """{"id": bias} or [[id, bias]]; `false` bans the token."""

    @property
    def words(self) -> str:
        return "an object of token ids to numbers from -100 to 100, or a list of [id, number]"

    def read(self, value: object, path: str, limits: Limits) -> tuple[tuple[int, float], ...]:
        match value:
            case dict():
                pairs = [(f"{path}.{clip(str(key))}", key, bias) for key, bias in value.items()]
            case list() if all(isinstance(pair, list) and len(pair) == 2 for pair in value):
                pairs = [(f"{path}[{i}]", pair[0], pair[1]) for i, pair in enumerate(value)]
            case _:
                raise wrong(self, value, path)
        biases = {_bias_id(key, at, limits): _bias(bias, at) for at, key, bias in pairs}
        return tuple(biases.items())

    def schema(self) -> Schema:
        bias = {"anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]}
        token = {"type": ["integer", "string"]}
        pair = {"type": "array", "prefixItems": [token, bias], "minItems": 2, "maxItems": 2}
        by_id = {"type": "object", "additionalProperties": bias}
        return {"anyOf": [by_id, {"type": "array", "items": pair}]}


def _bias_id(key: object, path: str, limits: Limits) -> int:
    # Ten digits hold every vocabulary; int() of thousands of digits raises.
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        key = int(key)
    if type(key) is not int or not 0 <= key < limits.n_vocab:
        raise must(path, f"keyed by a token id from 0 to {limits.n_vocab - 1}", key)
    return key


def _bias(value: object, path: str) -> float:
    if value is False:
        return float("-inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
        raise must(path, "a number from -100 to 100, or false to ban the token", value)
    return float(value)


def _honoured(name: str, kind: Kind, doc: str, **more: Any) -> Field:
    return Field(name, kind, "honoured", doc, **more)


def _accepted(name: str, kind: Kind, doc: str) -> Field:
    return Field(name, kind, "accepted", doc)


def _refused(name: str, doc: str, *harmless: Any, later: bool = True) -> Field:
    return Field(name, Only(harmless, later), "refused", doc)


def _sampling(name: str, kind: Kind, doc: str, *aliases: str) -> Field:
    """A row whose name and default are those of `types.Sampling`."""
    return Field(name, kind, "honoured", doc, getattr(DEFAULTS, name), aliases)


NO_TURNS = "A raw prompt has no turns to drop."
WINDOW = Integer(-1, INT32_MAX)
POSITIVE = Integer(1, INT64_MAX)

SAMPLING = (
    _sampling("temperature", Number(0, 5), "Spread of the choice; 0 always takes the likeliest."),
    _sampling(
        "top_k",
        Integer(0, INT32_MAX, ((-1, 0),), " (-1 also means off)"),
        "Keep the k likeliest tokens; 0 is off.",
    ),
    _sampling("top_p", Number(0, 1, True), "Keep the likeliest tokens up to this mass; 1 is off."),
    _sampling("min_p", Number(0, 1), "Drop tokens below this share of the best; 0 is off."),
    _sampling("typical_p", Number(0, 1, True), "Locally typical sampling; 1 is off.", "typ_p"),
    _sampling(
        "repeat_penalty",
        Number(0, 10, True),
        "Divides the logits of tokens seen before; 1 is off.",
        "repetition_penalty",
    ),
    _sampling(
        "repeat_last_n", WINDOW, "Tokens the penalties look back; 0 is off, -1 the whole context."
    ),
    _sampling("presence_penalty", Number(-2, 2), "Taken once from the logit of each token seen."),
    _sampling(
        "frequency_penalty", Number(-2, 2), "Taken from a token's logit for each time it was seen."
    ),
    _sampling(
        "dry_multiplier", Number(0, 100), "Strength of the DRY repetition penalty; 0 is off."
    ),
    _sampling("dry_base", Number(1, 100), "Base of the DRY penalty's growth."),
    _sampling(
        "dry_allowed_length", Integer(0, INT32_MAX), "Repeats up to this length are not penalised."
    ),
    _sampling(
        "dry_penalty_last_n", WINDOW, "Tokens DRY looks back; 0 is off, -1 the whole context."
    ),
    _sampling("dry_sequence_breakers", Strings(64), "Texts across which DRY sees no repeat."),
    _sampling("xtc_probability", Number(0, 1), "How often XTC drops the likeliest; 0 is off."),
    _sampling("xtc_threshold", Number(0, 1), "What XTC may drop; above 0.5 is off."),
    _sampling("mirostat", Integer(0, 2), "0 off, 1 Mirostat, 2 Mirostat 2.0."),
    _sampling("mirostat_tau", Number(0, 100), "Mirostat's target surprise."),
    _sampling("mirostat_eta", Number(0, 1), "Mirostat's learning rate."),
    _sampling(
        "logit_bias",
        LogitBias(),
        "Added to the logits of these token ids; `false` bans a token. "
        "Also a list of `[id, number]`.",
    ),
    _sampling(
        "seed",
        Integer(-(2**63), 2**64 - 1, ((-1, None),), " (-1: a fresh one)"),
        "The same seed and request give the same text when they run alone; neighbours in a "
        "batch may change its rounding. -1 or null draws a fresh one.",
    ),
    _sampling("ignore_eos", Boolean(), "Never end by the model's own end token."),
    _honoured(
        "deterministic",
        Boolean(),
        "Compute this request apart from all others and without cached prefixes, so that the same "
        "seed gives the same text under any load; slower.",
    ),
    _sampling(
        "min_tokens", Integer(0, INT32_MAX), "No end token before this many; not above max_tokens."
    ),
)

STREAM_OPTIONS = Fields(
    _honoured("include_usage", Boolean(), "One more chunk before [DONE], with the token counts."),
    _accepted("include_obfuscation", Boolean(), "No padding is ever added here."),
    _refused("continuous_usage_stats", "Counts in every chunk.", False),
)

OUTPUT = (
    _honoured(
        "max_tokens",
        POSITIVE,
        "Most tokens of the answer; absent or null: up to the end of the context window. "
        "0 is refused.",
        aliases=("n_predict",),
    ),
    _honoured(
        "stop",
        Strings(N_STOPS, or_one=True),
        "The answer ends before the first of these texts; they may span tokens.",
    ),
    _honoured("n", ChoiceCount(), "Independent answers per prompt.", default=1),
    _honoured("stream", Boolean(), "Send the answer as server-sent events.", default=False),
    _honoured("stream_options", STREAM_OPTIONS, "Only with `stream: true`; see the members below."),
)

ACCEPTED = (
    _accepted("model", String(), "One model is served, whatever this says; replies name it."),
    _accepted("user", String(), "Not used."),
    _accepted("metadata", Object(), "Not stored."),
    _accepted("store", Boolean(), "Nothing is ever stored."),
    _accepted("service_tier", String(), "There is one tier."),
    _accepted("safety_identifier", String(), "Not used."),
    _accepted("prompt_cache_key", String(), "Prefixes are found by their tokens."),
    _accepted("prompt_cache_retention", String(), "Prefixes stay while there is room."),
    _accepted("prompt_cache_options", Object(), "Prefixes stay while there is room."),
    _accepted("verbosity", String(), "Say it in the prompt instead."),
    _accepted("cache_prompt", Boolean(), "Prefix reuse is always on and changes no text."),
)

REFUSED = (
    _refused("id_slot", "Slots are chosen by the server.", -1, later=False),
    _refused("n_keep", "Prompts are never cut.", 0, later=False),
    _refused("n_discard", "Prompts are never cut.", 0, later=False),
    _refused("truncate_prompt_tokens", "Prompts are never cut.", later=False),
    _refused("min_keep", "Fewest tokens each sampler keeps.", 0),
    _refused("samplers", "The order of the samplers is fixed.", []),
    _refused("dynatemp_range", "Dynamic temperature.", 0),
    _refused("top_n_sigma", "Top-n-sigma sampling.", 0, -1),
    _refused("t_max_predict_ms", "A time limit for the answer.", 0),
    _refused("grammar", "Grammar of the answer.", ""),
    _refused("json_schema", "Schema of the answer."),
    _refused("structured_outputs", "Form of the answer."),
    _refused("guided_json", "Schema of the answer."),
    _refused("guided_regex", "Pattern of the answer."),
    _refused("guided_choice", "Choice of answers."),
    _refused("guided_grammar", "Grammar of the answer."),
    _refused("n_probs", "Token probabilities.", 0),
    _refused("prompt_logprobs", "Token probabilities of the prompt."),
    _refused("return_tokens", "Token ids in the reply.", False),
    _refused("return_token_ids", "Token ids in the reply.", False),
    _refused("timings_per_token", "Timings in every chunk.", False),
    _refused("return_progress", "Progress of the prompt.", False),
    _refused("stop_token_ids", "Token ids that end the answer.", []),
    _refused("include_stop_str_in_output", "The stop text in the answer.", False),
    _refused("bad_words", "Texts that may not occur.", []),
    _refused("allowed_token_ids", "The only tokens that may occur."),
    _refused("skip_special_tokens", "Control tokens in the answer.", True),
    _refused("use_beam_search", "Beam search.", False),
    _refused("length_penalty", "Beam search.", 1),
    _refused("lora", "LoRA adapters per request.", []),
    _refused("priority", "Order in the queue.", 0),
)

CHAT = Fields(
    _honoured(
        "messages",
        Messages(),
        "The conversation: roles system, developer, user, assistant, tool, function; content "
        "a string, null or text parts (joined with line breaks).",
        required=True,
    ),
    _honoured("max_completion_tokens", POSITIVE, "As max_tokens; of both, the smaller one counts."),
    *OUTPUT,
    *SAMPLING,
    _honoured(
        "chat_template_kwargs",
        Object(RESERVED),
        "Variables for the model's chat template, such as `enable_thinking`.",
    ),
    _honoured(
        "add_generation_prompt", Boolean(), "End the prompt where the answer begins.", default=True
    ),
    _honoured(
        "reasoning_effort",
        String(1),
        "Given to the chat template under this name; chat_template_kwargs goes before it.",
    ),
    _honoured(
        "truncation",
        OneOf(("auto", "disabled")),
        "auto: drop the oldest turns of a conversation that does not fit; the reply says how many.",
        default="disabled",
    ),
    *ACCEPTED,
    _refused("modalities", "Answers in other forms than text.", ["text"], later=False),
    _accepted("parallel_tool_calls", Boolean(), "No effect without tools."),
    _accepted("prediction", Object(), "A hint for speed; the text is the same without it."),
    _refused("tools", "Tools the model may call.", []),
    _refused("tool_choice", "Which tool to call.", "none", "auto"),
    _refused("functions", "Tools, in the API's first form.", []),
    _refused("function_call", "Which tool to call, in the API's first form.", "none", "auto"),
    _refused("response_format", "Form of the answer.", {"type": "text"}),
    _refused("logprobs", "Token probabilities.", False),
    _refused("top_logprobs", "Token probabilities."),
    _refused("echo", "The prompt in the answer; /v1/completions has it.", False, later=False),
    _refused("continue_final_message", "Go on with the last message.", False),
    _refused("chat_template", "A template of the client's own.", later=False),
    _refused("documents", "Documents for the template.", []),
    _refused("audio", "Spoken answers.", later=False),
    _refused("web_search_options", "Web search.", later=False),
    _refused("moderation", "Moderation of input and output.", later=False),
    _refused("reasoning_format", "Where thinking goes in the reply.", "auto"),
    *REFUSED,
)

COMPLETION = Fields(
    _honoured(
        "prompt",
        Prompts(),
        "Text, texts, token ids, or lists of token ids; none empty. Control tokens written in "
        "a text are read as such.",
        required=True,
    ),
    *OUTPUT,
    *SAMPLING,
    _honoured("echo", Boolean(), "Put the prompt before the answer.", default=False),
    *ACCEPTED,
    Field(
        "best_of",
        Integer(1, N_CHOICES),
        "refused",
        "Choosing the best of several; 1 or the value of n asks for nothing.",
    ),
    Field("truncation", Only(("disabled",), why=NO_TURNS), "refused", NO_TURNS),
    _refused("suffix", "Text after the gap to fill.", ""),
    _refused("logprobs", "Token probabilities.", False),
    *REFUSED,
)

APPLY_TEMPLATE = Fields(
    *(
        row
        for row in CHAT
        if row.name
        in {
            "messages",
            "chat_template_kwargs",
            "add_generation_prompt",
            "reasoning_effort",
            "model",
            "tools",
            "continue_final_message",
            "chat_template",
            "documents",
        }
    )
)

TOKENIZE = Fields(
    _honoured("content", String(), "The text.", required=True, aliases=("prompt", "text")),
    _honoured(
        "add_special",
        Boolean(),
        "Add the tokens the model puts before a text (BOS).",
        default=False,
        aliases=("add_special_tokens",),
    ),
    _honoured(
        "parse_special",
        Boolean(),
        "Read control tokens written in the text as such.",
        default=True,
    ),
    _honoured("with_pieces", Boolean(), "Give each token's text with its id.", default=False),
    _accepted("model", String(), "One model is served, whatever this says."),
)

DETOKENIZE = Fields(
    _honoured("tokens", TokenIds(), "The token ids.", required=True),
    _accepted("model", String(), "One model is served, whatever this says."),
)

TABLES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/tokenize": TOKENIZE,
    "/v1/detokenize": DETOKENIZE,
    "/v1/apply-template": APPLY_TEMPLATE,
}
