"""Templates in the style of each model family render as in Hugging Face's transformers.

The main families have their text stored; where `transformers` is installed, all
templates are compared with its own renderer.
"""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from ponytail.text.jinja_bounds import TemplateLimits
from ponytail.text.jinja_env import Refusal, compile_template
from tests.unit.chat_templates import BOS, CHATS, EOS, EXPECTED, TEMPLATES

LIMITS = TemplateLimits()


def variables(chat: str) -> dict[str, Any]:
    messages, others = CHATS[chat]
    fixed = {"tools": None, "documents": None, "bos_token": BOS, "eos_token": EOS}
    return {**fixed, "add_generation_prompt": True, **others, "messages": messages}


@pytest.mark.parametrize(
    ("name", "chat"), [(name, chat) for name, chats in EXPECTED.items() for chat in chats]
)
def test_main_families_render_the_stored_text(name: str, chat: str) -> None:
    template = compile_template(TEMPLATES[name], LIMITS)
    assert template.render(variables(chat), LIMITS) == EXPECTED[name][chat]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_renders_as_in_transformers(name: str) -> None:
    hugging_face = pytest.importorskip("transformers.utils.chat_template_utils")
    ours = compile_template(TEMPLATES[name], LIMITS)
    theirs = hugging_face._compile_jinja_template(TEMPLATES[name])
    for chat in CHATS:
        try:
            expected = theirs.render(**variables(chat))
        except jinja2.TemplateError as error:
            with pytest.raises(Refusal, match=str(error)):
                ours.render(variables(chat), LIMITS)
        else:
            assert ours.render(variables(chat), LIMITS) == expected, chat
