"""The `messages` and `prompt` of the OpenAI dialect, checked and made plain.

Owns how turns, content parts and earlier tool calls become `types.Message`, and how
the four shapes of a raw prompt become `types.Prompt`.  Must not know templates or
the model.  Pure; any thread.

Members of a message that no row of `docs/api.md` names are ignored: clients send turns
back with whatever a server or framework hung on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ponytail.api.bounded import encode_json
from ponytail.api.dialect import Limits
from ponytail.api.fields import Schema, must, wrong
from ponytail.errors import InvalidRequest, UnsupportedContent
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
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
}


class Conversation(msgspec.Struct, frozen=True):
    """The turns, and the path of the `prefix` that asks to go on with the last one."""

    messages: tuple[Message, ...]
    prefix_param: str | None = None


def parse_messages(value: list[Any], path: str, *, shows_omitted: bool = False) -> Conversation:
    """Checks every turn; with `shows_omitted` media becomes a sentence instead of an error.

    Raises InvalidRequest or UnsupportedContent, with `param` the path of the fault.
    """
    turns = tuple(_message(turn, f"{path}[{i}]", shows_omitted) for i, turn in enumerate(value))
    return Conversation(turns, _prefix(value, path))


def _message(turn: object, path: str, shows_omitted: bool) -> Message:
    if not isinstance(turn, dict):
        raise must(path, "an object with role and content", turn)
    role = _role(turn.get("role"), f"{path}.role")
    content = _content(turn.get("content"), f"{path}.content", role == "tool", shows_omitted)
    if turn.get("audio") is not None:
        omitted = _media(f"{path}.audio", "audio", "audio", shows_omitted)
        content = f"{content}\n{omitted}" if content else omitted
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


def _prefix(turns: list[Any], path: str) -> str | None:
    """DeepSeek's and Mistral's way to say that the answer goes on with the last message."""
    for i, turn in enumerate(turns):
        value, at = turn.get("prefix"), f"{path}[{i}].prefix"
        if value is None or value is False:
            continue
        if value is not True:
            raise must(at, "true or false", value)
        if i < len(turns) - 1 or turn["role"] != "assistant":
            raise InvalidRequest(
                f"{at} may be true only in the last message, and only in one of the assistant.",
                param=at,
            )
        return at
    return None


def _content(value: object, path: str, is_tool: bool, shows_omitted: bool) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            parts = enumerate(value)
            return "\n".join([_part(part, f"{path}[{j}]", shows_omitted) for j, part in parts])
        case dict() if is_tool:
            return encode_json(value, path)
        case _:
            kinds = "a string, null or a list of parts"
            raise must(path, f"{kinds}, or an object" if is_tool else kinds, value)


def _part(part: object, path: str, shows_omitted: bool) -> str:
    if not isinstance(part, dict):
        raise must(path, "an object with a type", part)
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        return _media(path, MEDIA_PARTS[kind], kind, shows_omitted)
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise must(f"{path}.type", "'text' (this server reads text only)", kind)
    key = TEXT_PARTS[kind]
    text = part.get(key)
    if not isinstance(text, str):
        raise must(f"{path}.{key}", "a string", text)
    return text


def _media(path: str, what: str, kind: str, shows_omitted: bool) -> str:
    if shows_omitted:
        return f"[{what} omitted: this model reads text only]"
    article = {"image": "an ", "audio": ""}.get(what, "a ")
    raise UnsupportedContent(
        f"{path} is {article}{what} (type '{kind}'); this model and server read text only.",
        param=path,
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
            return encode_json(value, path)
        case _:
            raise must(path, "a string of JSON or an object", value)


def _text(turn: dict[str, Any], key: str, path: str) -> str | None:
    value = turn.get(key)
    if value is not None and not isinstance(value, str):
        raise must(f"{path}.{key}", "a string or null", value)
    return value


@dataclass(frozen=True, slots=True)
class Messages:
    """A non-empty list of turns; `parse_messages` reads what is in them."""

    @property
    def words(self) -> str:
        return "a non-empty list of messages"

    def read(self, value: object, path: str, limits: Limits) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise wrong(self, value, path)
        return value

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
    n_max: int | None = None

    @property
    def words(self) -> str:
        most = "" if self.n_max is None else f"at most {self.n_max} "
        return f"a list of {most}token ids"

    def read(self, value: object, path: str, limits: Limits) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) < self.n_min:
            raise wrong(self, value, path)
        if self.n_max is not None and len(value) > self.n_max:
            raise wrong(self, value, path)
        return read_ids(value, path, limits)

    def schema(self) -> Schema:
        low = {"minItems": self.n_min} if self.n_min else {}
        high = {} if self.n_max is None else {"maxItems": self.n_max}
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, **low, **high}


def read_ids(ids: list[Any], path: str, limits: Limits) -> tuple[int, ...]:
    n_vocab = limits.n_vocab
    for i, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < n_vocab:
            raise must(f"{path}[{i}]", f"a token id from 0 to {n_vocab - 1}", token)
    return tuple(ids)
