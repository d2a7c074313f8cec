"""docs/api.md, made from the parameter rows.

    python -m ponytail.api.support_table > docs/api.md

Owns the words around the tables; their content is in `tables`.  A test
fails when the file and the rows disagree.  Must not know HTTP or the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from ponytail.api.bounded import N_JSON_CHARS, N_LEVELS
from ponytail.api.embeddings import N_INPUTS
from ponytail.api.fields import Field, Fields
from ponytail.api.openai_constraints import (
    JSON_SCHEMA_FORMAT,
    N_GRAMMAR,
    N_PATTERN,
    RESPONSE_FORMAT,
    STRUCTURED_OUTPUTS,
)
from ponytail.api.openai_fields import N_STOPS, STREAM_OPTIONS
from ponytail.api.openai_request import N_TOTAL_CHOICES
from ponytail.api.openai_tools import N_NAME, N_TOOLS
from ponytail.api.tables import TABLES
from ponytail.text.toolcalls import FORMATS


def _tool_formats() -> str:
    """Each form with an example, as a model is shown it."""
    parts = [f"`{one.name}`:\n\n```text\n{one.example}\n```\n" for one in FORMATS]
    return "\n".join(parts)


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
string is not a number, NaN and infinity are refused, `7.0` is an integer (but no token id).

Errors are `{{"error": {{"message", "type", "param", "code"}}}}`; `param` is the path of the
field, such as `messages[2].content[0].type`. Once a stream has begun, an error is one
event with that object, and neither a finish_reason nor `[DONE]` follows.

## Rules that need more than one field

- `max_tokens` and `max_completion_tokens`: the smaller one counts. Neither: the answer may
  go on to the end of the context window. A value over the window is capped by it, with
  finish_reason `length`. 0 and negative values are a 400; only a raw completion with `echo`
  may ask for 0, and gets the prompt alone.
- `stream_options` without `stream: true` is a 400, and so is `top_logprobs` without
  `logprobs: true`.
- `min_tokens` above `max_tokens` is a 400.
- `n` times the number of prompts is at most {N_TOTAL_CHOICES}. With a `seed`, answer j of a
  prompt has the seed `seed + j`.
- `best_of` may be 1 or the value of `n`.
- `stop` takes at most {N_STOPS} texts; an empty text is a 400, an empty list is no stop.
- `suffix` needs prompts of text, and does not go with `echo`.

## Conversations that are too long

A prompt that does not fit the context window is a 400 with code `context_length_exceeded`.
With `"truncation": "auto"` the oldest turns are dropped instead, whole, until the prompt leaves
room for the answer: for `max_tokens`, or a quarter of the window if it is not given, half of the
window at most. Every such reply, and each chunk of a stream, has
`"truncation": {{"type": "auto", "dropped_messages": 4, "dropped_turns": 2}}`, with zeros when
nothing had to go. [context.md](context.md) has the rules.

## Messages

- Content parts `text`, `input_text`, `output_text` and `refusal` are joined with line
  breaks. `null`, absent and `[]` are the empty text.
- Images, audio, video and files are a 400 with code `unsupported_content` that names the part;
  nothing is ever fetched. With `"unsupported_content": "placeholder"` the model reads
  `[image omitted: this model reads text only]` (or audio, video, file) in its place.
- Role `developer` is given to the template as it is, `function` is read as `tool`.
- `tool_calls` of earlier turns need `id` and `function.name`; `function.arguments` is a string
  of JSON (an object is written as one; absent is `{{}}`). A tool's content may be an object.
- `reasoning_content` (or `reasoning`) of earlier assistant turns is given to the template.
- `continue_final_message: true`, or `prefix: true` in the last message, makes the answer go on
  with that message; the reply holds only what is new. The message must be the assistant's, with
  some text and without tool calls, and `add_generation_prompt` not true.
- Other members of a message are ignored, so that a reply can be sent back as it came.

## What the answer must look like

One of these, in chat and in raw completions; two together are a 400 that names both:

- `response_format`: `{{"type": "text"}}`, `{{"type": "json_object"}}`, or
  `{{"type": "json_schema", "json_schema": {{"name": ..., "schema": {{...}}}}}}`. The schema may
  also stand in `response_format.schema`.
- `json_schema`, `regex`, `choice` (a list of texts) and `grammar`; vLLM's `guided_json`,
  `guided_regex`, `guided_choice`, `guided_grammar` and `structured_outputs`.
- `grammar` is text in Lark's notation if its first line that is not blank begins with
  `%llguidance` or it has a rule `start:`, otherwise in llama.cpp's GBNF.
  `{{"type": "lark", "text": "..."}}` (or `gbnf`) says which.

The answer is held to it token by token, whether `strict` or not. What cannot be built is a 400
that names the field. Sizes: a schema has at most {N_JSON_CHARS} characters and {N_LEVELS} levels, a
pattern {N_PATTERN} characters, a grammar or all texts of a choice together {N_GRAMMAR}. An answer
that `max_tokens` ends is cut short all the same, with finish_reason `length`.

## Tools

- `tools` holds at most {N_TOOLS} entries
  `{{"type": "function", "function": {{"name", "description", "parameters", "strict"}}}}`.
  A name has 1 to {N_NAME} characters, none of them control, and no two are the same. No
  `parameters` means no arguments. Other types of tool are a 400; other members are ignored.
- `tool_choice`: `none`; `auto` (the default with tools): the model decides, and a call it has
  begun is held to the tool's schema; `required`: one call at least;
  `{{"type": "function", "function": {{"name": "f"}}}}`: one call of f;
  `{{"type": "allowed_tools", "allowed_tools": {{"mode": "auto", "tools": [...]}}}}`: only those.
- `parallel_tool_calls: false`: one call at most.
- The reply has `tool_calls` and finish_reason `tool_calls`; `content` is null when there is no text
  beside the calls. In a stream the first delta of a call has index, id, type and the name with
  empty arguments; those that follow have the index and a piece of the arguments.
- `functions` and `function_call`, the first form: the reply has `function_call` and
  finish_reason `function_call`, and holds one call at most.

## Reasoning

- Thinking is in `reasoning_content`, of the message or the delta, and its tokens are counted in
  `usage.completion_tokens_details.reasoning_tokens`. `reasoning_format: "none"` leaves it in the
  content as the model wrote it. A raw completion is never split.
- `reasoning_effort` and `chat_template_kwargs` are the template's to heed; `thinking_budget` is
  the server's: after so many tokens thinking is ended and the answer begins.

## Log-probabilities

They are natural logarithms in the model's own distribution: before temperature, penalties, bias
and samplers, and before the mask of a grammar or a schema too. So a token that was forced shows
how likely the model itself held it.

- Chat (`logprobs`, `top_logprobs`): `choices[].logprobs.content` holds `token`, `logprob`, `bytes`
  and `top_logprobs` of each token; a chunk of a stream has those of its own text. `bytes` is exact,
  `token` shows part of a character as U+FFFD. Tokens of thinking and of calls are in
  `logprobs.reasoning_content` and `logprobs.tool_calls`, which are absent when empty.
- Raw completions (`logprobs`: a number): `tokens`, `token_logprobs`, `top_logprobs` and
  `text_offset`, four lists. `top_logprobs` has the token itself besides the likeliest; part of a
  character is written `bytes:\\xe2\\x80`; of tokens that are written alike the best counts.
  `text_offset` counts the characters before the token, the echoed prompt's too. With `echo` the
  tokens of the prompt come first; the very first has `null` for its log-probability.
- -9999 stands for minus infinity.

## Embeddings and ranks

- `/v1/embeddings` needs `--embeddings`, or a model made for it. `input` is a text, its token ids,
  or a list of either, of at most {N_INPUTS}; none may be empty, and one that is wrong or longer
  than the window is a 400 whose `param` is `input[i]`. Every vector has length 1, also after
  `dimensions`.
- What a vector is made of is the model's to say (`--pooling` says otherwise): the mean of all
  tokens, the first or the last; a chat model that says nothing has the mean.
- `/v1/rerank` needs a model with a head that ranks. `relevance_score` is that head's number as it
  is: higher is better, and only scores of one model compare.
- A model that only reads (an encoder) refuses to generate with a 400.

## How models write tool calls

The first form that the chat template shows is taken; `--tool-format` names another. A model
whose template shows no tools is told of them in the system message, with the example below, and
`generic` is its form.

{_tool_formats()}
## Usage and warnings

`prompt_tokens` counts each prompt once, however many choices it has;
`completion_tokens` counts all choices; `prompt_tokens_details.cached_tokens` are those of each
prompt's first choice that were not computed again.

A reply, and each chunk of a stream, has `warnings`, a list of sentences, when something in the
request could not be done to the letter, such as a bound in a tool's schema that is too large for
a mask.
"""

NESTED = {
    "stream_options": STREAM_OPTIONS,
    "response_format": RESPONSE_FORMAT,
    "response_format.json_schema": JSON_SCHEMA_FORMAT,
    "structured_outputs": STRUCTURED_OUTPUTS,
}


def render() -> str:
    """The whole page."""
    sections = {**TABLES, **{f"Members of {name}": table for name, table in NESTED.items()}}
    parts = [
        f"\n## {title}\n\n" + "\n".join(_table(rows)) + "\n" for title, rows in sections.items()
    ]
    return "".join([INTRO, *parts])


def _table(rows: Iterable[Field]) -> Iterator[str]:
    yield "| parameter | value | default | effect | |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {_names(row)} | {_words(row)} | {_default(row)} | {row.effect} | {row.doc} |"


def _names(row: Field) -> str:
    return ", ".join(f"`{name}`" for name in (row.name, *row.aliases))


def _words(row: Field) -> str:
    words = "see below" if isinstance(row.kind, Fields) else row.kind.words
    return "only " + words if row.effect == "refused" else words


def _default(row: Field) -> str:
    if row.required:
        return "required"
    if row.default is None or row.default == ():
        return ""
    return f"`{msgspec.json.encode(row.default).decode()}`"


if __name__ == "__main__":
    sys.stdout.write(render())
