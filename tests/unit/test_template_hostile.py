"""Broken and hostile templates: what they may cost, and what is said of them."""

from __future__ import annotations

import resource
import threading
import time

import pytest

from ponytail.errors import TemplateError
from ponytail.text.template import TemplateLimits
from ponytail.types import ChatPrompt, Message, ToolCall
from tests.unit.chat_templates import CHATS, TEMPLATES
from tests.unit.rendering import chat_template, prompt


def failure_of(source: str, limits: TemplateLimits | None = None) -> str:
    template = chat_template(source, limits=limits)  # making it never raises
    with pytest.raises(TemplateError) as caught:
        template.render(prompt(("user", "x<|im_end|>")))
    assert caught.value.status == 400
    return str(caught.value)


def test_syntax_error_is_told_with_its_line() -> None:
    assert (
        failure_of("a\n{% if %}")
        == "template error: Expected an expression, got 'end of statement block' (line 2)"
    )


def test_template_own_words_and_line_are_told() -> None:
    source = "\n\n{{ raise_exception('No thanks: ' + messages[0].content) }}"
    assert failure_of(source) == "template error: No thanks: x<|im_end|> (line 3)"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.nothing.here }}",
        "{{ 1 + 'a' }}",
        "{{ 'x' | nofilter }}",
        "{% include 'x' %}",
        "{{ '('",
        "{{ " + "(" * 5000 + " }}",
        "{% for a in [1] %}" * 40 + "{% endfor %}" * 40,
        "{% autoescape true %}{% endautoescape %}",
    ],
)
def test_broken_templates_end_in_template_error(source: str) -> None:
    assert failure_of(source).startswith("template error: ")


HUGE = "10**9"
BOMBS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}text{% endfor %}{% endfor %}",
    "{% for i in range(99999) if false %}{% endfor %}" * 3,
    "{% for x in [1] recursive %}{{ loop(range(99999)) }}{% endfor %}",
    f"{{{{ 'x' * {HUGE} }}}}",
    f"{{{{ [1] * {HUGE} }}}}",
    f"{{{{ range({HUGE}) }}}}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    f"{{{{ '%*d' % ({HUGE}, 1) }}}}",
    "{{ '{:>1000000000}'.format(1) }}",
    f"{{{{ '{{:{{w}}}}'.format(1, w={HUGE}) }}}}",
    "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "{% set b = 'x' * 9999999 %}{{ ('{0}' * 99999).format(b) }}",
    f"{{{{ 'x' | center({HUGE}) }}}}",
    f"{{{{ 'a\\nb' | indent({HUGE}) }}}}",
    f"{{{{ '%s' | format('x' * {HUGE}) }}}}",
    f"{{{{ [1] | batch({HUGE}, 0) | list }}}}",
    f"{{{{ 5 | round(-{HUGE}, 'floor') }}}}",
    f"{{{{ [1] | tojson(indent={HUGE}) }}}}",
    f"{{{{ 'x'.ljust({HUGE}) }}}}",
    f"{{{{ '\\t'.expandtabs(tabsize={HUGE}) }}}}",
    "{{ ('x' * 999999).replace('', 'y' * 999) }}",
    "{{ ('x' * 999999) | replace('x', 'y' * 999) }}",
    "{{ (['x' * 999999] * 999) | join(',') }}",
    "{{ ','.join(['x' * 999999] * 999) }}",
    "{{ ('a' * 9999999).rfind('b' + 'a' * 4999999) }}",
    "{{ 10 ** (10 ** 9) }}",
    "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set b = 'x' * 999999 %}{% set n = namespace(x=[]) %}"
    "{% for i in range(9999) %}{% set n.x = n.x + [b[i:]] %}{% endfor %}",
    "{% set b = 'x' * 999999 %}{% macro m() %}{% for i in range(9999) %}{{ b }}{% endfor %}"
    "{% endmacro %}{{ m() | length }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ strftime_now('%9999999d' * 999) }}",
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ('' | attr('__class__')).x }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ messages.append(1) }}",
    "{{ namespace(__init__=1) }}",
    "{{ (5).to_bytes(9) }}",
    "{{ 'a'.maketrans('a', 'b') }}",
]


def doubled(use: str, start: str = "[1]", join: str = "[{0}, {0}]") -> str:
    """A list that holds itself twice, sixty times over: tiny in memory, endless to walk."""
    step = join.format("n.x")
    return (
        f"{{% set n = namespace(x={start}) %}}{{% for i in range(60) %}}"
        f"{{% set n.x = {step} %}}{{% endfor %}}{{{{ {use} }}}}"
    )


BOMBS += [
    doubled("n.x"),
    doubled("n.x | tojson"),
    doubled("n.x == [n.x]"),
    doubled("n.x is eq [n.x]"),
    doubled("'%s' % n.x"),
    doubled("'{}'.format(n.x)"),
    doubled("{n.x: 1}", "(1,)", "({0}, {0})"),
    doubled("{}[n.x]", "(1,)", "({0}, {0})"),
    doubled("[n.x, n.x] | sort"),
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_end_quickly_and_small(source: str) -> None:
    limits = TemplateLimits(max_steps=20_000, max_volume=8 * 1024 * 1024)
    started, peak_kib = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert failure_of(source, limits).startswith("template error: ")
    assert time.thread_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 100 * 1024


def test_time_limit_ends_an_endless_template() -> None:
    limits = TemplateLimits(max_s=0.05, max_steps=10**12)
    assert "for more than 0.05 s" in failure_of(BOMBS[0], limits)


def test_rendered_text_is_bounded() -> None:
    limits = TemplateLimits(max_chars=1000)
    assert "longer than 1000" in failure_of(
        "{% for i in range(99) %}0123456789x{% endfor %}", limits
    )


def test_source_of_two_megabytes_is_refused() -> None:
    assert "source is longer" in failure_of("x" * 2_000_000)


def test_long_conversations_stay_within_the_bounds() -> None:
    turns = [("user", "word " * 4000), ("assistant", "<b>word</b> " * 4000)] * 25
    for name in ("chatml", "qwen25", "gemma2", "mistral"):
        assert len(chat_template(TEMPLATES[name]).render_text(prompt(*turns))) > 1_600_000


def test_bounds_of_one_thread_do_not_touch_another() -> None:
    template = chat_template(TEMPLATES["llama31"])
    expected = template.render_text(prompt(("user", "x"), ("assistant", "y"), ("user", "z")))
    texts: list[str] = []

    def render() -> None:
        for _ in range(20):
            texts.append(
                template.render_text(prompt(("user", "x"), ("assistant", "y"), ("user", "z")))
            )

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 80


def test_deep_arguments_are_an_error_not_a_crash() -> None:
    deep = ToolCall(id="c", name="f", arguments='{"a": ' + "[" * 900 + "]" * 900 + "}")
    messages = (Message(role="assistant", content="", tool_calls=(deep,)),)
    with pytest.raises(TemplateError, match="deep"):
        chat_template(TEMPLATES["qwen25"]).render(ChatPrompt(messages))


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_family_shows_a_plain_conversation_as_it_is(name: str) -> None:
    turns = [(turn["role"], turn["content"].strip()) for turn in CHATS["plain"][0]]
    text = chat_template(TEMPLATES[name], special_tokens=[]).render_text(prompt(*turns))
    if name != "jamba":  # shows abbreviations
        assert all(content in text for _, content in turns)
