"""What a schema costs: the same streams free and bound, one and eight at a time.

Each is an async function of a freshly started server and a round's number; it returns an
Outcome.  Must not know which server it measures.
"""

from __future__ import annotations

import json
import time
from typing import Any

import client
from load import CHAT, Check, Outcome, count_prompt, make_words, median, together
from processes import Server

N_TOKENS = 160
# So long that max_tokens ends every answer: the rates are of as many tokens, free and bound.
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["admin", "editor", "reader"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "about": {"type": "string"},
    },
    "required": ["name", "age", "role", "tags", "about"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 40}
FORM = {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}


def body(round_number: int, index: int, **fields: Any) -> dict[str, Any]:
    words = make_words(24, "schema", round_number, index)
    messages = [{"role": "user", "content": f"Invent people, as a JSON list: {words}"}]
    return {
        "messages": messages,
        "max_tokens": N_TOKENS,
        "temperature": 0.8,
        "seed": index,
        **fields,
    }


def rate(streams: list[client.Stream]) -> float:
    """Tokens a second of all streams while each was decoding."""
    return sum((s.n_completion - 1) / (s.delta_at[-1] - s.delta_at[0]) for s in streams)


async def schema(server: Server, round_number: int) -> Outcome:
    """One and eight streams of 160 tokens, free and bound by a schema: the shares of speed."""
    check, figures = Check(), {}
    started = time.perf_counter()
    # The first use of a schema builds its grammar, whatever else it does.
    first = body(round_number, 99, response_format=FORM, max_tokens=8)
    await client.post(server.port, CHAT, first)
    figures["first_ms"] = 1000 * (time.perf_counter() - started)
    n_prompt = 0
    for n in (1, 8):
        rates: dict[str, list[float]] = {"free": [], "bound": []}
        for turn in range(3):
            for name, fields in (
                ("free", {"ignore_eos": True}),
                ("bound", {"response_format": FORM}),
            ):
                bodies = [body(round_number, 10 * turn + i, **fields) for i in range(n)]
                streams = await together(*(client.stream(server.port, CHAT, one) for one in bodies))
                rates[name].append(rate(streams))
                n_prompt += count_prompt(streams)
                for stream in streams:
                    check.expect(
                        stream.n_completion == N_TOKENS, f"{stream.n_completion} tokens ({name})"
                    )
                    if name == "bound":
                        check.expect(is_begun(stream.text), f"not as asked: {stream.text[:60]!r}")
        figures[f"share_{n}"] = median(rates["bound"]) / median(rates["free"])
        figures[f"bound_tok_s_{n}"] = median(rates["bound"])
    return Outcome(figures, n_prompt, tuple(check.problems))


def is_begun(text: str) -> bool:
    """Whether a list that was cut off holds people as far as it goes."""
    decoder = json.JSONDecoder()
    at = text.find("[") + 1
    while at:
        while at < len(text) and text[at] in " \n\t,":
            at += 1
        try:
            person, at = decoder.raw_decode(text, at)
        except ValueError:
            return text.lstrip().startswith("[")
        if set(person) != set(PERSON["properties"]):
            return False
    return False
