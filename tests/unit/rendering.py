"""A template and a prompt as the tests of both files about templates need them."""

from __future__ import annotations

from typing import Any

from ponytail.text.template import ChatTemplate
from ponytail.types import ChatPrompt, Message

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|>!",
    "<think>",
    "</think>",
    "<s>",
    "</s>",
    "\n\n",
)


def chat_template(source: str | None, **options: Any) -> ChatTemplate:
    return ChatTemplate(
        source, **{"special_tokens": SPECIAL, "bos": "<s>", "eos": "</s>"} | options
    )


def prompt(*turns: tuple[str, str], **kwargs: Any) -> ChatPrompt:
    return ChatPrompt(
        tuple(Message(role=role, content=content) for role, content in turns),  # type: ignore[arg-type]
        template_kwargs=kwargs,
    )
