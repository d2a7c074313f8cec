"""The sampling parameters of the OpenAI routes: one row each.

Owns the rows whose names, meanings and defaults are those of `types.Sampling`, and the
kind only they need.  Must not know how a sampler works.  Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponytail.api.dialect import Limits
from ponytail.api.fields import (
    Boolean,
    Field,
    Integer,
    Kind,
    Number,
    Schema,
    Strings,
    clip,
    honoured,
    must,
    wrong,
)
from ponytail.types import Sampling

DEFAULTS = Sampling()
INT32_MAX = 2**31 - 1


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
        by_id = {
            "type": "object",
            "additionalProperties": bias,
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        }
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


def _sampling(name: str, kind: Kind, doc: str, *aliases: str) -> Field:
    return honoured(name, kind, doc, default=getattr(DEFAULTS, name), aliases=aliases)


WINDOW = Integer(-1, INT32_MAX)

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
    honoured(
        "deterministic",
        Boolean(),
        "Compute this request apart from all others and without cached prefixes, so that the same "
        "seed gives the same text under any load; slower.",
    ),
    _sampling(
        "min_tokens", Integer(0, INT32_MAX), "No end token before this many; not above max_tokens."
    ),
)
