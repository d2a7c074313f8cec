"""What a chat template accepts and shows, found out by rendering small probes.

Owns the probes: conversations of invented words, looked for in the rendered
text.  A template that refuses a probe, or drops its words, lacks that ability.
Must not know how messages are adjusted for it.  Pure; run once per template.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

from ponytail.text.tool_prompt import ToolDict, tools_as_text

TemplateMessage: TypeAlias = dict[str, Any]
Render: TypeAlias = Callable[[list[TemplateMessage]], str | None]
"""Renders messages; None when the template refuses them."""
RenderWithTools: TypeAlias = Callable[[list[TemplateMessage], list[ToolDict]], str | None]
ToolPlace: TypeAlias = Literal["variable", "system"]
"""Where a template finds the tools: in `tools`, or as text in the system message's `tools`."""
IdForm: TypeAlias = Literal["any", "short", "named"]
"""Ids of calls as they come; of nine letters and digits; `functions.name:0`, for a template that
shows the id alone."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template takes as it is.  The defaults are those of one that takes all."""

    system: bool = True
    many_systems: bool = True
    late_system: bool = True
    lone_system: bool = True
    developer: bool = False
    repeated_users: bool = True
    repeated_assistants: bool = True
    assistant_first: bool = True
    tool_calls: bool = True
    parallel_calls: bool = True
    text_beside_calls: bool = True
    shows_text_beside_calls: bool = True
    thought_beside_both: bool = True
    tool_role: bool = True
    user_after_tool: bool = True
    wants_argument_text: bool = False
    wants_null_beside_calls: bool = False
    id_form: IdForm = "any"
    wants_parts: bool = False
    reasoning_keys: tuple[str, ...] = ("reasoning_content",)


_A, _B, _C, _D, _E = ("probeone", "probetwo", "probethree", "probefour", "probefive")
_IDS: dict[IdForm, str] = {
    "any": "call_0123456789abcdef%d",
    "short": "call0000%d",
    "named": "functions.probefn%d:0",
}
_TOOL_NAME = "probetool"
_ARGUMENT = {"type": "string", "description": "probing"}
_PARAMETERS = {"type": "object", "properties": {"probearg": _ARGUMENT}, "required": ["probearg"]}
PROBE_TOOL: ToolDict = {
    "type": "function",
    "function": {"name": _TOOL_NAME, "description": "probing", "parameters": _PARAMETERS},
}


def probe_abilities(source: str, render: Render) -> Abilities:
    """Try a template out.  One that refuses a lone user turn is taken at its best."""
    found = Abilities(
        developer=_mentions(source, "developer"), reasoning_keys=_reasoning_keys(source)
    )
    if not _shows(render, [_turn("user", _A)], _A):
        if not _shows(_in_parts(render), [_turn("user", _A)], _A):
            return found
        render = _in_parts(render)
        found = replace(found, wants_parts=True)
    return _probe_tools(_probe_turns(found, render), render)


def _mentions(source: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", source) is not None


def _reasoning_keys(source: str) -> tuple[str, ...]:
    """The one the template reads; Hugging Face gives both to a template that may read either."""
    names = tuple(key for key in ("reasoning_content", "thinking") if _mentions(source, key))
    return names or ("reasoning_content",)


def find_tool_place(render: RenderWithTools) -> ToolPlace | None:
    """Where the template looks for tools; None when it shows them from nowhere."""
    in_system = {"tools": tools_as_text([PROBE_TOOL])}
    for as_content in (str, as_parts):
        user = _turn("user", as_content(_B))
        for turns in ([user], [_turn("system", as_content(_A)), user]):
            if _TOOL_NAME in (render(turns, [PROBE_TOOL]) or "").lower():
                return "variable"
        if _TOOL_NAME in (render([_turn("system", as_content(_A), **in_system), user], []) or ""):
            return "system"
    return None


def _in_parts(render: Render) -> Render:
    def render_parts(messages: list[TemplateMessage]) -> str | None:
        return render([{**one, "content": as_parts(one["content"])} for one in messages])

    return render_parts


def as_parts(content: str | None) -> list[dict[str, str]] | None:
    """Content as a list of one text part."""
    return None if content is None else [{"type": "text", "text": content}]


def _turn(role: str, content: Any, **fields: Any) -> TemplateMessage:
    return {"role": role, "content": content, **fields}


def _shows(render: Render, messages: list[TemplateMessage], *words: str) -> bool:
    """Whether the rendering has each word exactly once, and no None for content."""
    text = render(messages)
    if text is None or "None" in text:
        return False
    text = text.lower()
    return all(text.count(word) == 1 for word in words)


def _probe_turns(found: Abilities, render: Render) -> Abilities:
    def shows(*turns: tuple[str, str]) -> bool:
        return _shows(render, [_turn(*turn) for turn in turns], *(word for _, word in turns))

    user, assistant, system = "user", "assistant", "system"
    return replace(
        found,
        system=shows((system, _A), (user, _B)),
        lone_system=shows((system, _A)),
        many_systems=shows((system, _A), (system, _B), (user, _C)),
        late_system=shows((system, _A), (user, _B), (assistant, _C), (system, _D), (user, _E))
        and shows((user, _A), (assistant, _B), (system, _C), (user, _D)),
        repeated_users=shows((user, _A), (user, _B), (assistant, _C), (user, _D)),
        repeated_assistants=shows((user, _A), (assistant, _B), (assistant, _C), (user, _D)),
        assistant_first=shows((assistant, _A), (user, _B)),
    )


def _probe_tools(found: Abilities, render: Render) -> Abilities:
    for id_form, null, text in product(_IDS, (False, True), (False, True)):
        form = replace(
            found, id_form=id_form, wants_null_beside_calls=null, wants_argument_text=text
        )
        if _shows_calls(form, render):
            return _probe_calls(form, render)
        form = replace(form, tool_role=False)
        if _shows_calls(form, render):
            return _probe_calls(form, render)
    results = [_turn("user", _A), _turn("assistant", _B), _result(found, 1)]
    return replace(found, tool_calls=False, tool_role=_shows(render, results, _A, _B, "result1"))


def _probe_calls(form: Abilities, render: Render) -> Abilities:
    thought: dict[str, Any] = dict.fromkeys(form.reasoning_keys, _D)
    beside = _with_calls(form, content=_B)
    return replace(
        form,
        parallel_calls=_shows_calls(form, render, n_calls=2),
        text_beside_calls=_shows_calls(form, render, content=_B),
        shows_text_beside_calls=_shows(render, beside, _B),
        thought_beside_both=render(_with_calls(form, content=_B, **thought)) is not None,
        user_after_tool=_shows_calls(form, render, then=(_turn("user", _C),)),
    )


def _with_calls(
    form: Abilities, n_calls: int = 1, content: str = "", **fields: Any
) -> list[TemplateMessage]:
    """A question, an answer with calls and, with a tool role, their results."""
    numbers = range(1, n_calls + 1)
    null = form.wants_null_beside_calls and not content
    calls = [_call(form, number) for number in numbers]
    results = [_result(form, number) for number in numbers] if form.tool_role else []
    answer = _turn("assistant", None if null else content, tool_calls=calls, **fields)
    return [_turn("user", _A), answer, *results]


def _shows_calls(
    form: Abilities,
    render: Render,
    n_calls: int = 1,
    content: str = "",
    then: tuple[TemplateMessage, ...] = (),
) -> bool:
    """Whether the calls' names and arguments are shown and, with a tool role, each result once."""
    messages = [*_with_calls(form, n_calls, content), *then]
    text = render(messages) or ""
    numbers = range(1, n_calls + 1)
    has_calls = all(f"{kind}{n}" in text for kind in ("probefn", "value") for n in numbers)
    # A Python dict or a string in a string: the template wanted the other form.
    is_wrong = "'probekey'" in text or '\\"probekey' in text
    once = [message["content"] for message in messages[2:]]
    return has_calls and not is_wrong and _shows(render, messages, *once)


def _call(form: Abilities, number: int) -> dict[str, Any]:
    value = f"value{number}"
    arguments = f'{{"probekey": "{value}"}}' if form.wants_argument_text else {"probekey": value}
    function = {"name": f"probefn{number}", "arguments": arguments}
    return {"id": _IDS[form.id_form] % number, "type": "function", "function": function}


def _result(form: Abilities, number: int) -> TemplateMessage:
    # Without a name: most clients send none.
    return _turn("tool", f"result{number}", tool_call_id=_IDS[form.id_form] % number)
