"""The `messages` and `prompt` of the OpenAI dialect, checked and made plain.

Owns how turns, content parts and earlier tool calls become `types.Message`, and how
the four shapes of a raw prompt become `types.Prompt`.  Must not know templates or
the model.  Pure; any thread.

Members of a message that no row of `docs/api.md` names are ignored: clients send turns
back with whatever a server or framework hung on them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ponytail.api.dialect import Limits
from ponytail.api.fields import Schema, must, wrong
from ponytail.errors import InvalidRequest, UnsupportedContent, UnsupportedParameter
from ponytail.types import Message, Prompt, Role, TextPrompt, TokenPrompt, ToolCall

N_PROMPTS = 2048
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
MEDIA_PARTS = {
    "image_url": "an image",
    "input_image": "an image",
    "image": "an image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "a video",
    "video": "a video",
    "input_video": "a video",
    "file": "a file",
    "input_file": "a file",
    "document": "a file",
}


def parse_messages(value: list[Any], path: str) -> tuple[Message, ...]:
    return tuple(_message(turn, f"{path}[{i}]") for i, turn in enumerate(value))


def _message(turn: object, path: str) -> Message:
    if not isinstance(turn, dict):
        raise must(path, "an object with role and content", turn)
    role = _role(turn.get("role"), f"{path}.role")
    _ensure_plain(turn, path)
    content = _content(turn.get("content"), f"{path}.content", is_tool=role == "tool")
    if role != "assistant":
        tool_call_id = _text(turn, "tool_call_id", path) if role == "tool" else None
        return Message(role, content, (), tool_call_id, _text(turn, "name", path))
    return Message(
        role,
        content or _text(turn, "refusal", path) or "",
        tool_calls=_tool_calls(turn, path),
        name=_text(turn, "name", path),
        reasoning=_text(turn, "reasoning_content", path) or _text(turn, "reasoning", path),
    )


def _role(value: object, path: str) -> Role:
    if not isinstance(value, str) or value not in ROLES:
        raise must(path, "one of " + ", ".join(ROLES), value)
    return ROLES[value]


def _ensure_plain(turn: dict[str, Any], path: str) -> None:
    """Refuses the members of a turn that would change the answer if they were ignored."""
    if turn.get("audio") is not None:
        raise _media(f"{path}.audio", "audio", "audio")
    if turn.get("prefix") not in (None, False):
        raise UnsupportedParameter(
            f"{path}.prefix is not supported yet: a reply cannot continue the last message.",
            param=f"{path}.prefix",
        )


def _content(value: object, path: str, *, is_tool: bool) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return "\n".join([_part(part, f"{path}[{j}]") for j, part in enumerate(value)])
        case dict() if is_tool:
            return _dumps(value, path)
        case _:
            kinds = "a string, null or a list of parts"
            raise must(path, f"{kinds}, or an object" if is_tool else kinds, value)


def _part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise must(path, "an object with a type", part)
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        raise _media(path, MEDIA_PARTS[kind], kind)
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise must(f"{path}.type", "'text' (this server reads text only)", kind)
    key = TEXT_PARTS[kind]
    text = part.get(key)
    if not isinstance(text, str):
        raise must(f"{path}.{key}", "a string", text)
    return text


def _media(path: str, what: str, kind: str) -> UnsupportedContent:
    return UnsupportedContent(
        f"{path} is {what} (type '{kind}'); this model and server read text only.", param=path
    )


def _tool_calls(turn: dict[str, Any], path: str) -> tuple[ToolCall, ...]:
    calls = turn.get("tool_calls")
    if calls is None:
        return _function_call(turn.get("function_call"), f"{path}.function_call")
    if not isinstance(calls, list):
        raise must(f"{path}.tool_calls", "a list", calls)
    return tuple(_tool_call(call, f"{path}.tool_calls[{k}]") for k, call in enumerate(calls))


def _tool_call(call: object, path: str) -> ToolCall:
    if not isinstance(call, dict):
        raise must(path, "an object with id, type and function", call)
    if call.get("type", "function") != "function":
        raise must(f"{path}.type", "'function'", call["type"])
    if not isinstance(call.get("id"), str):
        raise must(f"{path}.id", "a string", call.get("id"))
    return _call(call["id"], call.get("function"), f"{path}.function")


def _function_call(call: object, path: str) -> tuple[ToolCall, ...]:
    """The one call of the API's first form, which had no ids."""
    return () if call is None else (_call("", call, path),)


def _call(call_id: str, function: object, path: str) -> ToolCall:
    if not isinstance(function, dict):
        raise must(path, "an object with name and arguments", function)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise must(f"{path}.name", "a non-empty string", name)
    return ToolCall(call_id, name, _arguments(function.get("arguments"), f"{path}.arguments"))


def _arguments(value: object, path: str) -> str:
    match value:
        case None:
            return "{}"
        case str():
            return value
        case dict():
            return _dumps(value, path)
        case _:
            raise must(path, "a string of JSON or an object", value)


def _text(turn: dict[str, Any], key: str, path: str) -> str | None:
    value = turn.get(key)
    if value is not None and not isinstance(value, str):
        raise must(f"{path}.{key}", "a string or null", value)
    return value


def _dumps(value: dict[str, Any], path: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be written as JSON: {error}.", param=path) from error


@dataclass(frozen=True, slots=True)
class Messages:
    """A non-empty list of turns."""

    @property
    def words(self) -> str:
        return "a non-empty list of messages"

    def read(self, value: object, path: str, limits: Limits) -> tuple[Message, ...]:
        if not isinstance(value, list) or not value:
            raise wrong(self, value, path)
        return parse_messages(value, path)

    def schema(self) -> Schema:
        return {
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/components/schemas/Message"},
        }


@dataclass(frozen=True, slots=True)
class Prompts:
    """A text, texts, token ids, or lists of token ids; none of them empty."""

    @property
    def words(self) -> str:
        return (
            "a non-empty string, a list of strings, a list of token ids, or a list of lists "
            f"of token ids (at most {N_PROMPTS} prompts)"
        )

    def read(self, value: object, path: str, limits: Limits) -> tuple[Prompt, ...]:
        if isinstance(value, str) and value:
            return (TextPrompt(value),)
        if not isinstance(value, list) or not value:
            raise wrong(self, value, path)
        if isinstance(value[0], int):
            return (TokenPrompt(read_ids(value, path, limits)),)
        if len(value) > N_PROMPTS:
            raise wrong(self, value, path)
        one = self._text if isinstance(value[0], str) else self._ids
        return tuple(one(item, f"{path}[{i}]", limits) for i, item in enumerate(value))

    def _text(self, item: object, path: str, limits: Limits) -> Prompt:
        if not isinstance(item, str) or not item:
            raise must(path, "a non-empty string", item)
        return TextPrompt(item)

    def _ids(self, item: object, path: str, limits: Limits) -> Prompt:
        if not isinstance(item, list) or not item:
            raise must(path, "a non-empty string or list of token ids", item)
        return TokenPrompt(read_ids(item, path, limits))

    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1}
        ids = TokenIds(n_min=1).schema()
        texts = {"type": "array", "items": text, "minItems": 1, "maxItems": N_PROMPTS}
        lists = {"type": "array", "items": ids, "minItems": 1, "maxItems": N_PROMPTS}
        return {"anyOf": [text, texts, ids, lists]}


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A list of ids of this model's vocabulary."""

    n_min: int = 0

    @property
    def words(self) -> str:
        return "a list of token ids"

    def read(self, value: object, path: str, limits: Limits) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) < self.n_min:
            raise wrong(self, value, path)
        return read_ids(value, path, limits)

    def schema(self) -> Schema:
        token = {"type": "integer", "minimum": 0}
        return {"type": "array", "items": token, **({"minItems": 1} if self.n_min else {})}


def read_ids(ids: list[Any], path: str, limits: Limits) -> tuple[int, ...]:
    n_vocab = limits.n_vocab
    for i, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < n_vocab:
            raise must(f"{path}[{i}]", f"a token id from 0 to {n_vocab - 1}", token)
    return tuple(ids)
