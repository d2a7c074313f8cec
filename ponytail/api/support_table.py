"""docs/api.md, made from the parameter rows.

    python -m ponytail.api.support_table > docs/api.md

Owns the words around the tables; the tables' content is in `openai_fields`.  A test
fails when the file and the rows disagree.  Must not know HTTP or the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from ponytail.api.fields import Field
from ponytail.api.openai_fields import N_STOPS, STREAM_OPTIONS, TABLES

INTRO = f"""\
# API: what every parameter does

This page is generated from the rows that the parser checks by
(`python -m ponytail.api.support_table > docs/api.md`); `/openapi.json` says the same
to programs.

- **honoured**: it does what its line says.
- **accepted**: well-known clients send it; it is checked and changes nothing here.
- **refused**: a 400 that names it, unless the value asks for nothing.
- A parameter that is not listed is a 400 with code `unknown_parameter`. Nothing is
  dropped silently.

For every parameter: `null` is the same as leaving it out. `true` is not a number, a
string is not a number, NaN and infinity are refused, `7.0` is an integer.

Errors are `{{"error": {{"message", "type", "param", "code"}}}}`; `param` is the path of the
field, such as `messages[2].content[0].type`. Once a stream has begun, an error is one
event with that object, and neither a finish_reason nor `[DONE]` follows.

## Rules that need more than one field

- `max_tokens` and `max_completion_tokens`: the smaller one counts. Neither: the answer may
  go on to the end of the context window. A value over the window is capped by it, with
  finish_reason `length`. 0 and negative values are a 400.
- `stream_options` without `stream: true` is a 400.
- `min_tokens` above `max_tokens` is a 400.
- `n` times the number of prompts is at most 2048.
- `stop` takes at most {N_STOPS} texts; an empty text is a 400, an empty list is no stop.

## Conversations that are too long

A prompt that does not fit the context window is a 400 with code `context_length_exceeded`.
With `"truncation": "auto"` the oldest turns are dropped instead, whole, until the prompt leaves
room for the answer: for `max_tokens`, or a quarter of the window if it is not given, half of the
window at most. Every such reply, and each chunk of a stream, has
`"truncation": {{"type": "auto", "dropped_messages": 4, "dropped_turns": 2}}`, with zeros when
nothing had to go. [context.md](context.md) has the rules.

## Messages

- Content parts `text`, `input_text`, `output_text` and `refusal` are joined with line
  breaks. `null`, absent and `[]` are the empty text. Images, audio, video and files are a 400
  with code `unsupported_content` that names the part; nothing is ever fetched.
- Role `developer` is given to the template as it is, `function` is read as `tool`.
- `tool_calls` of earlier turns need `id` and `function.name`; `function.arguments` is a string
  of JSON (an object is written as one; absent is `{{}}`). A tool's content may be an object.
- `reasoning_content` (or `reasoning`) of earlier assistant turns is given to the template.
- Other members of a message are ignored, so that a reply can be sent back as it came.

## Usage

`prompt_tokens` counts each prompt once, however many choices it has;
`completion_tokens` counts all choices; `prompt_tokens_details.cached_tokens` are those of each
prompt's first choice that were not computed again.
"""


def render() -> str:
    """The whole page."""
    parts = [INTRO]
    for path, table in TABLES.items():
        parts.append(f"\n## {path}\n\n" + "\n".join(_table(table)) + "\n")
    parts.append("\n## Members of stream_options\n\n" + "\n".join(_table(STREAM_OPTIONS)) + "\n")
    return "".join(parts)


def _table(rows: Iterable[Field]) -> Iterator[str]:
    yield "| parameter | value | default | effect | |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {_names(row)} | {_words(row)} | {_default(row)} | {row.effect} | {row.doc} |"


def _names(row: Field) -> str:
    return ", ".join(f"`{name}`" for name in (row.name, *row.aliases))


def _words(row: Field) -> str:
    words = "see below" if row.name == "stream_options" else row.kind.words
    return "only " + words if row.effect == "refused" else words


def _default(row: Field) -> str:
    if row.required:
        return "required"
    if row.default is None or row.default == ():
        return ""
    return f"`{msgspec.json.encode(row.default).decode()}`"


if __name__ == "__main__":
    sys.stdout.write(render())
