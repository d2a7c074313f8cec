"""Messages as a chat template wants them.

Owns the adjustments for templates that refuse or drop what others show.  A
template that takes a conversation gets it unchanged; each step below is skipped
where the template has that ability:

- developer turns become system turns;
- several system turns are joined in order, a late one moves to the front;
- where there is no system turn at all, its text begins the first user turn; one
  that stands alone and would not be shown becomes a user turn;
- an assistant turn that comes first is preceded by an empty user turn;
- neighbours of one role are joined with a blank line;
- tool calls become `<tool_call>` text at the end of the content, several calls of
  one turn are told one by one, tool results become `<tool_response>` user turns;
- text beside calls gets a turn of its own, or joins the thoughts where only one may stand there;
- ids of calls take the form that the template insists on;
- an empty assistant turn parts a tool result from a user turn that may not follow it.

Must not know Jinja or the tokenizer.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

from msgspec.structs import replace as changed

from ponytail.text.abilities import Abilities, TemplateMessage, as_parts
from ponytail.types import Message, ToolCall

Turns: TypeAlias = tuple[Message, ...]

_INSTRUCTIONS = frozenset({"system", "developer"})


def template_messages(messages: Sequence[Message], abilities: Abilities) -> list[TemplateMessage]:
    """The dicts to render: the same conversation in a form the template takes."""
    turns = _without_developer(tuple(messages), abilities)
    turns = _with_tools_told(turns, abilities)
    turns = _with_systems_placed(turns, abilities)
    turns = _with_user_first(turns, abilities)
    turns = tuple(_merged(turns, abilities))
    return [_as_dict(turn, abilities) for turn in turns]


def stricter(abilities: Abilities) -> Iterator[Abilities]:
    """The same with ever less asked of the template, for one that refused a conversation."""
    strict = replace(
        abilities,
        many_systems=False,
        late_system=False,
        repeated_users=False,
        repeated_assistants=False,
        assistant_first=False,
    )
    yield strict
    yield replace(strict, parallel_calls=False, text_beside_calls=False, user_after_tool=False)
    plain = replace(strict, tool_calls=False, tool_role=False)
    yield plain
    yield replace(plain, system=False)


def as_text_only(abilities: Abilities) -> Abilities:
    """The same for a conversation whose calls and results are told in the generic format."""
    return replace(abilities, tool_calls=False, tool_role=False)


def with_system_tools(
    messages: list[TemplateMessage], tools: str, abilities: Abilities
) -> list[TemplateMessage]:
    """The dicts with the tools' text in the system message, an empty one where there is none."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "tools": tools}, *messages[1:]]
    system = _as_dict(Message(role="system", content=""), abilities)
    return [{**system, "tools": tools}, *messages]


def _without_developer(turns: Turns, abilities: Abilities) -> Turns:
    if abilities.developer:
        return turns
    return tuple(
        changed(turn, role="system") if turn.role == "developer" else turn for turn in turns
    )


def _with_systems_placed(turns: Turns, abilities: Abilities) -> Turns:
    instructions = [turn for turn in turns if turn.role in _INSTRUCTIONS]
    if not instructions:
        return turns
    others = tuple(turn for turn in turns if turn.role not in _INSTRUCTIONS)
    if not abilities.system or not (others or abilities.lone_system):
        first = Message(role="user", content=_joined(instructions))
        if others and others[0].role == "user":
            return (_joined_turn([first, others[0]], "user"), *others[1:])
        return (first, *others)
    n_leading = next(
        (i for i, turn in enumerate(turns) if turn.role not in _INSTRUCTIONS), len(turns)
    )
    is_late = n_leading < len(instructions)
    is_mixed = len({turn.role for turn in instructions}) > 1
    if (is_late and not abilities.late_system) or is_mixed:
        return (_joined_turn(instructions, instructions[0].role), *others)
    if n_leading > 1 and not abilities.many_systems:
        return (_joined_turn(turns[:n_leading], turns[0].role), *turns[n_leading:])
    return turns


def _joined(turns: Sequence[Message]) -> str:
    return "\n\n".join(turn.content for turn in turns if turn.content)


def _joined_turn(turns: Sequence[Message], role: Any) -> Message:
    """One turn with all their text, calls and thoughts; the first name given stays."""
    return Message(
        role=role,
        content=_joined(turns),
        tool_calls=tuple(call for turn in turns for call in turn.tool_calls),
        name=next((turn.name for turn in turns if turn.name), None),
        reasoning="\n\n".join(turn.reasoning for turn in turns if turn.reasoning) or None,
    )


def _with_user_first(turns: Turns, abilities: Abilities) -> Turns:
    if abilities.assistant_first:
        return turns
    for i, turn in enumerate(turns):
        if turn.role == "assistant":
            return (*turns[:i], Message(role="user", content=""), *turns[i:])
        if turn.role not in _INSTRUCTIONS:
            break
    return turns


def _merged(turns: Turns, abilities: Abilities) -> Iterator[Message]:
    unrepeatable = {
        role
        for role, can_repeat in (
            ("user", abilities.repeated_users),
            ("assistant", abilities.repeated_assistants),
        )
        if not can_repeat
    }
    run: list[Message] = []
    for turn in turns:
        if run and (turn.role != run[0].role or turn.role not in unrepeatable):
            yield _one_turn(run)
            run = []
        run.append(turn)
    if run:
        yield _one_turn(run)


def _one_turn(run: Sequence[Message]) -> Message:
    return run[0] if len(run) == 1 else _joined_turn(run, run[0].role)


def _with_tools_told(turns: Turns, abilities: Abilities) -> Turns:
    if not any(turn.tool_calls or turn.role == "tool" for turn in turns):
        return turns
    if abilities.id_form != "any":
        turns = _with_ids(turns, is_named=abilities.id_form == "named")
    if abilities.tool_calls and not abilities.parallel_calls:
        turns = tuple(_one_call_a_turn(turns))
    if abilities.tool_role and not abilities.user_after_tool:
        turns = tuple(_with_answers(turns))
    return tuple(told for turn in turns for told in _tool_turns(turn, abilities))


def _with_answers(turns: Turns) -> Iterator[Message]:
    for i, turn in enumerate(turns):
        if turn.role == "user" and i > 0 and turns[i - 1].role == "tool":
            yield Message(role="assistant", content="")
        yield turn


def _tool_turns(turn: Message, abilities: Abilities) -> Iterator[Message]:
    if turn.role == "tool" and not abilities.tool_role:
        yield Message(role="user", content=f"<tool_response>\n{turn.content}\n</tool_response>")
    elif turn.tool_calls and not abilities.tool_calls:
        yield _told_as_text(turn)
    elif turn.tool_calls and turn.content:
        yield from _text_beside_calls(turn, abilities)
    else:
        yield turn


def _text_beside_calls(turn: Message, abilities: Abilities) -> Iterator[Message]:
    has_both = abilities.text_beside_calls and abilities.shows_text_beside_calls
    if not has_both and abilities.repeated_assistants:
        yield changed(turn, tool_calls=())
        yield changed(turn, content="", reasoning=None)
    elif not abilities.text_beside_calls:
        yield _told_as_text(turn)
    elif turn.reasoning and not abilities.thought_beside_both:
        yield changed(turn, content="", reasoning=f"{turn.reasoning}\n\n{turn.content}")
    else:
        # Where the template leaves the text out, the calls alone are worth more than both as text.
        yield turn


def _told_as_text(turn: Message) -> Message:
    told = "\n".join(filter(None, (turn.content, *map(_call_text, turn.tool_calls))))
    return changed(turn, content=told, tool_calls=())


def _call_text(call: ToolCall) -> str:
    told = {"name": call.name, "arguments": _arguments(call.arguments)}
    return f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>"


def _with_ids(turns: Turns, *, is_named: bool) -> Turns:
    """Ids in the form that some templates insist on, numbered in order."""
    numbers, ids = count(), dict[str, str]()

    def new_id(name: str | None) -> str:
        number = next(numbers)
        return f"functions.{name}:{number}" if is_named and name else f"call{number + 1:05d}"

    def with_ids(turn: Message) -> Message:
        # An id may come again in a later turn; a result belongs to the latest call that has it.
        ids.update((call.id, new_id(call.name)) for call in turn.tool_calls)
        result_id = turn.tool_call_id
        if result_id is not None:
            result_id = ids.get(result_id) or ids.setdefault(result_id, new_id(turn.name))
        calls = tuple(changed(call, id=ids[call.id]) for call in turn.tool_calls)
        return changed(turn, tool_calls=calls, tool_call_id=result_id)

    return tuple(map(with_ids, turns))


def _one_call_a_turn(turns: Turns) -> Iterator[Message]:
    """Several calls of one turn as call, result, call, result."""
    i = 0
    while i < len(turns):
        turn, i = turns[i], i + 1
        if len(turn.tool_calls) < 2:
            yield turn
            continue
        results = []
        while i < len(turns) and turns[i].role == "tool":
            results.append(turns[i])
            i += 1
        yield from _told_one_by_one(turn, results)


def _told_one_by_one(turn: Message, results: list[Message]) -> Iterator[Message]:
    for n, call in enumerate(turn.tool_calls):
        first = turn if n == 0 else Message(role="assistant", content="")
        yield changed(first, tool_calls=(call,))
        yield from (one for one in results if one.tool_call_id == call.id)
    known = {call.id for call in turn.tool_calls}
    yield from (one for one in results if one.tool_call_id not in known)


def _as_dict(turn: Message, abilities: Abilities) -> TemplateMessage:
    """A template's message: a key that does not apply is absent, never None."""
    content: Any = turn.content
    if turn.tool_calls and not content and abilities.wants_null_beside_calls:
        content = None
    message: TemplateMessage = {
        "role": turn.role,
        "content": as_parts(content) if abilities.wants_parts else content,
    }
    if turn.tool_calls:
        message["tool_calls"] = [_call_dict(call, abilities) for call in turn.tool_calls]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    if turn.name is not None:
        message["name"] = turn.name
    if turn.reasoning is not None:
        message.update(dict.fromkeys(abilities.reasoning_keys, turn.reasoning))
    return message


def _call_dict(call: ToolCall, abilities: Abilities) -> dict[str, Any]:
    wants_text = abilities.wants_argument_text
    arguments = call.arguments if wants_text else _arguments(call.arguments)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _arguments(text: str) -> dict[str, Any] | str:
    """The object that argument text stands for; the text itself when it is none."""
    if not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text
