"""Messages to prompt: the model file's own chat template, made safe.

Owns the order of work: normalise the messages, hide special-token literals in
them, render, cut the text into scaffold and literals.  Nothing is compiled or
probed before the first chat, so a broken template never stops a model from
loading.  Must not know llama.cpp or the engine.  A `ChatTemplate` may be used by
any number of threads at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from ponytail.errors import InvalidRequest, TemplateError
from ponytail.text.abilities import Abilities, TemplateMessage, probe_abilities
from ponytail.text.jinja_bounds import OutOfBounds, TemplateLimits
from ponytail.text.jinja_env import CompiledTemplate, Refusal, compile_template
from ponytail.text.messages import stricter, template_messages
from ponytail.text.placeholders import Segment, SpecialLiterals, Swap, starts_with
from ponytail.types import ChatPrompt, Message

__all__ = ["ChatTemplate", "Segment", "TemplateLimits", "starts_with"]

_NO_TEMPLATE = "this model file has no chat template; use /v1/completions or --chat-template-file"
_OWN_VARIABLES = ("messages", "add_generation_prompt", "bos_token", "eos_token")
_THINKING_TAG = re.compile("think|thought|reason", re.IGNORECASE)
_USER_FIELDS = ("content", "name", "tool_call_id", "tool_calls", "reasoning_content", "thinking")


class ChatTemplate:
    """One model file's chat templates."""

    def __init__(
        self,
        source: str | None,
        *,
        special_tokens: Iterable[str],
        bos: str,
        eos: str,
        named: Mapping[str, str] | None = None,
        limits: TemplateLimits | None = None,
    ) -> None:
        """`special_tokens` are the texts that the tokenizer reads as special tokens.

        `named` are further templates of the file by name; `tool_use` renders
        prompts with tools.  Never raises.
        """
        named = named or {}
        literals = SpecialLiterals(special_tokens)
        tokens = {"bos_token": bos, "eos_token": eos}
        limits = limits or TemplateLimits()
        self._default = _named_or_none(source or named.get("default"), literals, tokens, limits)
        self._tool_use = _named_or_none(named.get("tool_use"), literals, tokens, limits)

    def render(self, prompt: ChatPrompt) -> tuple[Segment, ...]:
        """The prompt's text in segments, in order.

        Raises TemplateError with the template's own words, InvalidRequest when
        `template_kwargs` names a variable that is not the client's.
        """
        return self._chosen(prompt).render(prompt)

    def render_text(self, prompt: ChatPrompt) -> str:
        """The prompt as one text; raises as `render` does."""
        return "".join(segment.text for segment in self.render(prompt))

    def _chosen(self, prompt: ChatPrompt) -> _Program:
        chosen = self._default
        if self._tool_use is not None and (prompt.template_kwargs.get("tools") or chosen is None):
            chosen = self._tool_use
        if chosen is None:
            raise TemplateError(_NO_TEMPLATE, param="messages")
        return chosen


def _named_or_none(
    source: str | None, literals: SpecialLiterals, tokens: dict[str, str], limits: TemplateLimits
) -> _Program | None:
    return None if source is None else _Program(source, literals, tokens, limits)


class _Program:
    """One template with what was found out about it; both are made at first use and kept."""

    def __init__(
        self,
        source: str,
        literals: SpecialLiterals,
        tokens: dict[str, str],
        limits: TemplateLimits,
    ) -> None:
        self._source = source
        self._literals = literals
        self._tokens = tokens
        self._limits = limits

    def render(self, prompt: ChatPrompt) -> tuple[Segment, ...]:
        for name in _OWN_VARIABLES:
            if name in prompt.template_kwargs:
                raise InvalidRequest(
                    f"the template variable '{name}' is the server's to set",
                    param="chat_template_kwargs",
                )
        try:
            return self._render_first_accepted(prompt)
        except (Refusal, OutOfBounds) as error:
            raise TemplateError(f"template error: {error}", param="messages") from error
        except RecursionError:
            raise TemplateError(
                "template error: the messages nest too deep", param="messages"
            ) from None

    @cached_property
    def _compiled(self) -> CompiledTemplate | Refusal | OutOfBounds:
        # The error is kept too: a broken template is not compiled for every request.
        try:
            return compile_template(self._source, self._limits)
        except (Refusal, OutOfBounds) as error:
            return error

    @cached_property
    def _abilities(self) -> Abilities:
        return probe_abilities(self._source, self._render_probe)

    @cached_property
    def _kept_tags(self) -> frozenset[str]:
        """Thinking tags the template looks for: in the model's own turns they keep their meaning.

        Templates cut earlier thoughts out of the history at these tags.
        """
        inspected = self._template().inspected & self._literals.all
        return frozenset(tag for tag in inspected if _THINKING_TAG.search(tag))

    def _template(self) -> CompiledTemplate:
        if isinstance(self._compiled, CompiledTemplate):
            return self._compiled
        raise type(self._compiled)(str(self._compiled))

    def _render_probe(self, messages: list[TemplateMessage]) -> str | None:
        try:
            return self._run(messages, True, {})
        except Refusal:
            return None

    def _run(
        self, messages: list[TemplateMessage], add_generation_prompt: bool, kwargs: dict[str, Any]
    ) -> str:
        values = {
            "tools": None,
            "documents": None,
            **kwargs,
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._template().render(values, self._limits)

    def _render_first_accepted(self, prompt: ChatPrompt) -> tuple[Segment, ...]:
        """The conversation in the first form that the template does not refuse."""
        first_refusal: Refusal | None = None
        for messages in self._forms(prompt.messages):
            try:
                return self._render_safely(messages, prompt)
            except Refusal as refusal:
                first_refusal = first_refusal or refusal
        assert first_refusal is not None, "there is always a form to try"
        raise first_refusal

    def _forms(self, messages: tuple[Message, ...]) -> Iterator[list[TemplateMessage]]:
        tried: list[list[TemplateMessage]] = []
        for abilities in (self._abilities, *stricter(self._abilities)):
            form = template_messages(messages, abilities)
            if form not in tried:
                tried.append(form)
                yield form

    def _render_safely(
        self, messages: list[TemplateMessage], prompt: ChatPrompt
    ) -> tuple[Segment, ...]:
        """Render with the literals hidden.

        Joining, trimming or lower-casing pieces of content may still make a literal
        (`<|im_` and `end|>`).  So if content has such pieces, it is rendered once more
        with them hidden; literals that then are missing were not the template's own.
        """
        plain = self._swap(messages, prompt)
        text = self._run_hidden(plain, plain.hide, messages, prompt)
        edged = self._swap(messages, prompt)
        edged_text = self._run_hidden(edged, edged.hide_edges, messages, prompt, text)
        count, proper = self._literals.count_in(text), self._literals.count_in(edged_text)
        return edged.cut(edged_text) if count - proper else plain.cut(text)

    def _swap(self, messages: list[TemplateMessage], prompt: ChatPrompt) -> Swap:
        taken = (self._source, self._tokens, messages, prompt.template_kwargs)
        return Swap(self._literals, taken)

    def _run_hidden(
        self,
        swap: Swap,
        hide: Callable[..., Any],
        messages: list[TemplateMessage],
        prompt: ChatPrompt,
        text_if_plain: str | None = None,
    ) -> str:
        hidden = [self._hidden(message, hide) for message in messages]
        kwargs = prompt.template_kwargs
        kwargs = dict(zip(kwargs, hide(list(kwargs.values())), strict=True))
        if text_if_plain is not None and swap.has_literals_only:
            return text_if_plain
        try:
            return self._run(hidden, prompt.add_generation_prompt, kwargs)
        except Refusal as refusal:
            raise Refusal(swap.restore(str(refusal))) from refusal

    def _hidden(self, message: TemplateMessage, hide: Callable[..., Any]) -> TemplateMessage:
        hidden = dict(message)
        for field in _USER_FIELDS:
            if field in message:
                is_own = message["role"] == "assistant" and field == "content"
                keep = self._kept_tags if is_own else frozenset()
                hidden[field] = hide(message[field], keep)
        return hidden
