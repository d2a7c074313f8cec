"""The parameters of llama.cpp's native routes: one row each, honoured, accepted or refused.

Owns the tables of /completion and /infill and the kinds only they need; the sampling rows
are those of the OpenAI routes.  Names, defaults and shapes are those of llama.cpp's
tools/server (README.md, server-task.cpp, server-common.cpp).  Must not know HTTP or the
engine.  Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponytail.api.dialect import Limits
from ponytail.api.fields import (
    Boolean,
    Fields,
    Integer,
    Number,
    Schema,
    String,
    Strings,
    accepted,
    clip,
    honoured,
    must,
    refused,
    wrong,
)
from ponytail.api.openai_constraints import N_GRAMMAR, SchemaOfAnswer
from ponytail.api.openai_fields import OUTPUT as OPENAI_OUTPUT
from ponytail.api.openai_fields import ChoiceCount
from ponytail.api.openai_messages import N_PROMPTS, TokenIds, read_ids
from ponytail.api.openai_sampling import INT32_MAX, SAMPLING
from ponytail.errors import UnsupportedParameter
from ponytail.types import Grammar, Prompt, TextPrompt, TokenPrompt

N_STOPS = 64
N_PROBS = 100
N_EXTRA = 1024
N_RESPONSE_FIELDS = 64

# The order of a sampler chain, here and by default in llama.cpp, with the values that switch
# each part off.  There is no top_n_sigma here; its field is refused unless it is off.
SAMPLERS: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
_LETTERS = dict(zip("edskypmxt", SAMPLERS, strict=True)) | {"i": "infill", "a": "adaptive_p"}


@dataclass(frozen=True, slots=True)
class LlamaPrompts:
    """The shapes of a prompt, or a list of them; text and ids do not mix within one."""

    @property
    def words(self) -> str:
        return (
            'a non-empty string, a list of token ids, an object with "prompt_string", or a list '
            f"of these (at most {N_PROMPTS} prompts)"
        )

    def read(self, value: object, path: str, limits: Limits) -> tuple[Prompt, ...]:
        if not isinstance(value, list):
            return (self._one(value, path, limits),)
        # As in llama.cpp: with a number in it the list is one prompt.
        if any(isinstance(item, int) for item in value):
            return (self._one(value, path, limits),)
        if not 0 < len(value) <= N_PROMPTS:
            raise wrong(self, value, path)
        return tuple(self._one(item, f"{path}[{i}]", limits) for i, item in enumerate(value))

    def _one(self, value: object, path: str, limits: Limits) -> Prompt:
        match value:
            case str() if value:
                return TextPrompt(value)
            case list() if value:
                _ensure_no_mix(value, path)
                return TokenPrompt(read_ids(value, path, limits))
            case dict():
                return TextPrompt(PROMPT_OBJECT.read(value, path, limits)["prompt_string"])
            case _:
                raise wrong(self, value, path)

    def schema(self) -> Schema:
        text = String(1).schema()
        one = {"anyOf": [text, TokenIds(n_min=1).schema(), PROMPT_OBJECT.schema()]}
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": N_PROMPTS}
        return {"anyOf": [*one["anyOf"], many]}


def _ensure_no_mix(items: list[Any], path: str) -> None:
    """Raises UnsupportedParameter that names the first item of another kind than those before."""
    kinds = [str if isinstance(item, str) else int for item in items]
    at = next((i for i, kind in enumerate(kinds) if kind is not kinds[0]), None)
    if at is not None and isinstance(items[at], str | int):
        raise UnsupportedParameter(
            f"{path}[{at}] is not supported here: text and token ids mixed in one prompt. "
            "POST the text to /tokenize and send ids only.",
            param=f"{path}[{at}]",
        )


PROMPT_OBJECT = Fields(
    honoured("prompt_string", String(1), "The text.", required=True),
    refused("multimodal_data", "This model and server read text only.", []),
)


@dataclass(frozen=True, slots=True)
class Samplers:
    """Names in the order of the chain, or llama.cpp's letters for them; those left out are off.

    Names in `without_effect` may stand anywhere.
    """

    without_effect: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return "a list of some of " + ", ".join((*SAMPLERS, *self.without_effect)) + ", in order"

    def read(self, value: object, path: str, limits: Limits) -> tuple[str, ...]:
        names = _spelled_out(value) if isinstance(value, str) else value
        if not isinstance(names, list) or len(names) > len(_LETTERS):
            raise wrong(self, value, path)
        for i, name in enumerate(names):
            if not isinstance(name, str):
                raise must(f"{path}[{i}]", "the name of a sampler", name)
            if name not in SAMPLERS and name not in self.without_effect:
                raise self._refusal(f'"{clip(name)}"', f"{path}[{i}]")
        chain = tuple(name for name in names if name in SAMPLERS)
        if chain != tuple(name for name in SAMPLERS if name in chain):
            raise self._refusal("this order", path)
        return chain

    def _refusal(self, what: str, path: str) -> UnsupportedParameter:
        return UnsupportedParameter(
            f"{path} is not supported here: {what}. Send {self.words}.", param=path
        )

    def schema(self) -> Schema:
        names = {"type": "string", "enum": [*SAMPLERS, *self.without_effect]}
        letters = "".join(k for k, v in _LETTERS.items() if v in names["enum"])
        listed = {"type": "array", "items": names, "uniqueItems": True}
        return {"anyOf": [listed, {"type": "string", "pattern": f"^[{letters}]*$"}]}


def _spelled_out(letters: str) -> list[str]:
    return [_LETTERS.get(letter, letter) for letter in letters]


@dataclass(frozen=True, slots=True)
class Gbnf:
    """A grammar in llama.cpp's notation; "" asks for nothing."""

    @property
    def words(self) -> str:
        return f"a GBNF grammar of at most {N_GRAMMAR} characters"

    def read(self, value: object, path: str, limits: Limits) -> Grammar | None:
        if not isinstance(value, str) or len(value) > N_GRAMMAR:
            raise wrong(self, value, path)
        return Grammar(value, "gbnf", path) if value else None

    def schema(self) -> Schema:
        return String(0, N_GRAMMAR).schema()


@dataclass(frozen=True, slots=True)
class Paths:
    """Members of the reply, such as `timings/prompt_ms`; what is not there is left out."""

    @property
    def words(self) -> str:
        return f"a list of at most {N_RESPONSE_FIELDS} paths, such as timings/prompt_ms"

    def read(self, value: object, path: str, limits: Limits) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > N_RESPONSE_FIELDS:
            raise wrong(self, value, path)
        return tuple(String().read(v, f"{path}[{i}]", limits) for i, v in enumerate(value))

    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "string"}, "maxItems": N_RESPONSE_FIELDS}


@dataclass(frozen=True, slots=True)
class Anything:
    """A value that nobody reads."""

    @property
    def words(self) -> str:
        return "anything"

    def read(self, value: object, path: str, limits: Limits) -> None:
        return None

    def schema(self) -> Schema:
        return {"description": "Not read."}


@dataclass(frozen=True, slots=True)
class Extra:
    """Pieces of other files, as (file name, text)."""

    @property
    def words(self) -> str:
        return f"a list of at most {N_EXTRA} objects with filename and text"

    def read(self, value: object, path: str, limits: Limits) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, list) or len(value) > N_EXTRA:
            raise wrong(self, value, path)
        chunks = [EXTRA.read(chunk, f"{path}[{i}]", limits) for i, chunk in enumerate(value)]
        return tuple((chunk.get("filename", "tmp"), chunk["text"]) for chunk in chunks)

    def schema(self) -> Schema:
        return {"type": "array", "items": EXTRA.schema(), "maxItems": N_EXTRA}


EXTRA = Fields(
    honoured("filename", String(), "Shown to the model.", default="tmp"),
    honoured("text", String(), "What the file holds.", required=True),
    accepted("time", Anything(), "Editors send it; not used."),
)

OUTPUT = (
    honoured(
        "n_predict",
        Integer(0, INT32_MAX, ((-1, None),), " (-1: to the end of the context window)"),
        "Most tokens of the answer; 0 computes the prompt, so that it is cached, and no more.",
        default=-1,
        aliases=("max_tokens", "max_completion_tokens"),
    ),
    honoured(
        "stop",
        Strings(N_STOPS, or_one=True),
        "The answer ends before the first of these texts; they may span tokens.",
    ),
    honoured("n_cmpl", ChoiceCount(), "Independent answers per prompt.", default=1, aliases=("n",)),
    honoured("stream", Boolean(), "Send the answer as server-sent events.", default=False),
    honoured(
        "n_probs",
        Integer(0, N_PROBS),
        "Give each token with its log-probability and so many of the likeliest, in the model's "
        "own distribution; 0 is off.",
        default=0,
    ),
    honoured(
        "return_tokens",
        Boolean(),
        "Give the ids of the tokens whose text is sent; without it `tokens` is empty, also in "
        "streams.",
        default=False,
    ),
    honoured(
        "response_fields",
        Paths(),
        "Only these members of the reply (of the last chunk, in a stream), each under its path.",
    ),
    honoured("grammar", Gbnf(), "The answer is a sentence of this grammar, in GBNF."),
    honoured("json_schema", SchemaOfAnswer(), "The answer is JSON that fits; not with `grammar`."),
    # Of this server's own.
    *(row for row in OPENAI_OUTPUT if row.name in ("priority", "deadline_s", "cache_salt")),
)

HARMLESS = (
    accepted("model", String(), "One model is served, whatever this says; replies name it."),
    accepted("cache_prompt", Boolean(), "Prefix reuse is always on and changes no text."),
    accepted("n_cache_reuse", Integer(0, INT32_MAX), "Prefixes are found by their tokens."),
    accepted("t_max_prompt_ms", Integer(-1, INT32_MAX), "llama.cpp does not apply it either."),
    accepted("sse_ping_interval", Integer(-1, INT32_MAX), "The server's own interval counts."),
    accepted("dynatemp_exponent", Number(0, 100), "No effect without dynatemp_range."),
    accepted("speculative.n_max", Integer(0, INT32_MAX), "A hint for speed."),
    accepted("speculative.n_min", Integer(0, INT32_MAX), "A hint for speed."),
    accepted("speculative.p_min", Number(0, 1), "A hint for speed."),
)

REFUSED = (
    refused("id_slot", "Slots are chosen by the server; prefixes are found in any.", -1),
    refused("post_sampling_probs", "Probabilities are those of the model itself.", False),
    refused("timings_per_token", "Timings come with the end of the answer.", False),
    refused("return_progress", "A stream begins when the prompt is computed.", False),
    refused("min_keep", "Every sampler keeps one token at least.", 0, 1),
    refused("dynatemp_range", "There is no dynamic temperature here.", 0),
    refused("top_n_sigma", "There is no such sampler here.", 0, -1),
    refused("adaptive_target", "There is no such sampler here.", -1),
    refused("backend_sampling", "The server decides where tokens are picked.", False),
    refused("lora", "There are no adapters per request.", []),
    refused("n_keep", "Prompts are never cut.", 0),
    refused("n_discard", "Prompts are never cut.", 0),
    refused("grammar_lazy", "A grammar holds from the first token.", False),
    refused("grammar_triggers", "A grammar holds from the first token.", []),
    refused("preserved_tokens", "Only for lazy grammars.", []),
)

ORDERED = "Those left out are off. The order is fixed; llama.cpp's letters are taken too."

COMPLETION = Fields(
    honoured(
        "prompt",
        LlamaPrompts(),
        "One prompt or several. Control tokens written in a text are read as such; ids are "
        "taken as they are.",
        required=True,
    ),
    *OUTPUT,
    *SAMPLING,
    honoured("samplers", Samplers(), ORDERED),
    *HARMLESS,
    *REFUSED,
    refused("n_indent", "An answer does not end by its indentation.", 0),
    refused("t_max_predict_ms", "deadline_s bounds the time.", 0, -1),
)

INFILL = Fields(
    honoured("input_prefix", String(), "The text before the gap.", required=True),
    honoured("input_suffix", String(), "The text after the gap.", required=True),
    honoured("input_extra", Extra(), "Pieces of other files, seen first."),
    honoured("prompt", String(), "The beginning of what fills the gap."),
    *OUTPUT,
    *SAMPLING,
    honoured("samplers", Samplers(("infill",)), ORDERED + " `infill` has no effect here."),
    *HARMLESS,
    # Editor plug-ins send these with every request and are content with a longer answer.
    accepted("n_indent", Integer(0, INT32_MAX), "An answer does not end by its indentation."),
    accepted("t_max_predict_ms", Integer(-1, INT32_MAX), "deadline_s bounds the time."),
    *REFUSED,
)

TABLES: dict[str, Fields] = {
    "/completion": COMPLETION,
    "/completions": COMPLETION,
    "/infill": INFILL,
}
"""The rows of each route, for the support table and /openapi.json."""
