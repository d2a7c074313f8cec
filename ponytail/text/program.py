"""One chat template: compiled, tried out, and rendered with the literals hidden.

Owns a template's compiled form and what was found out about it; both are made at
first use and kept.  Must not know that a model file may have several templates, nor
llama.cpp.  A `Program` may be used by any number of threads at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from ponytail.errors import TemplateError
from ponytail.text.abilities import (
    PROBE_TOOL,
    Abilities,
    TemplateMessage,
    ToolPlace,
    find_tool_place,
    probe_abilities,
)
from ponytail.text.jinja_bounds import OutOfBounds, TemplateLimits
from ponytail.text.jinja_env import CompiledTemplate, Refusal, compile_template
from ponytail.text.messages import as_text_only, stricter, template_messages, with_system_tools
from ponytail.text.placeholders import FreeCharacters, Segment, SpecialLiterals, Swap
from ponytail.text.thinking import find_tags
from ponytail.text.tool_prompt import ToolDict, tools_as_text
from ponytail.types import ChatPrompt

_THINKING_TAG = re.compile("think|thought|reason", re.IGNORECASE)
_USER_FIELDS = (
    *("content", "name", "tool_call_id", "tool_calls", "tools"),
    *("reasoning_content", "thinking"),
)
_LOST_END = "the end of the last message is not shown, so it cannot be continued"


@dataclass(frozen=True, slots=True)
class _Job:
    """What is rendered.  `tools` are for the template's variable."""

    messages: list[TemplateMessage]
    tools: list[ToolDict]
    kwargs: dict[str, Any]
    add_generation_prompt: bool
    continues: bool


class Program:
    """One template of a model file."""

    def __init__(
        self,
        source: str,
        literals: SpecialLiterals,
        tokens: dict[str, str],
        limits: TemplateLimits,
        *,
        is_for_tools: bool = False,
    ) -> None:
        """`is_for_tools`: it may refuse whatever comes without them.  Never raises."""
        self.source = source
        self._literals = literals
        self._tokens = tokens
        self._limits = limits
        self._is_for_tools = is_for_tools

    @cached_property
    def tool_place(self) -> ToolPlace | None:
        """Where the template takes tools from; None when it shows none, or is broken."""
        try:
            return find_tool_place(self._render_probe)
        except (Refusal, OutOfBounds, RecursionError):
            return None

    def render(
        self, prompt: ChatPrompt, tools: list[ToolDict], *, is_generic: bool = False
    ) -> tuple[Segment, ...]:
        """The prompt in segments, with these tools in it.

        `is_generic`: calls and results of earlier turns are told in the generic format.
        Raises TemplateError with the template's words.
        """
        try:
            return self._render_first_accepted(prompt, tools, is_generic)
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
            return compile_template(self.source, self._limits)
        except (Refusal, OutOfBounds) as error:
            return error

    @cached_property
    def _abilities(self) -> Abilities:
        tools = [PROBE_TOOL] if self._is_for_tools else []
        return probe_abilities(self.source, partial(self._render_probe, tools=tools))

    @cached_property
    def _abilities_with_tools(self) -> Abilities:
        """A template may have another branch for prompts with tools."""
        return probe_abilities(self.source, partial(self._render_probe, tools=[PROBE_TOOL]))

    @cached_property
    def _kept_tags(self) -> frozenset[str]:
        """Thinking tags the template looks for: in the model's own turns they keep their meaning.

        Templates cut earlier thoughts out of the history at these tags.
        """
        inspected = self._template().inspected & self._literals.all
        return frozenset(tag for tag in inspected if _THINKING_TAG.search(tag))

    @cached_property
    def _own_tags(self) -> frozenset[str]:
        """The tags the model thinks in: they keep their meaning in an answer it goes on with."""
        tags = find_tags(self.source, self._literals.all)
        return frozenset() if tags is None else frozenset({tags.open, tags.close})

    def _template(self) -> CompiledTemplate:
        if isinstance(self._compiled, CompiledTemplate):
            return self._compiled
        raise type(self._compiled)(str(self._compiled))

    def _render_probe(self, messages: list[TemplateMessage], tools: list[ToolDict]) -> str | None:
        try:
            return self._run(_Job(messages, tools, {}, True, False))
        except Refusal:
            return None

    def _run(self, job: _Job) -> str:
        values = {
            "documents": None,
            **job.kwargs,
            **self._tokens,
            "tools": job.tools or None,
            "messages": job.messages,
            "add_generation_prompt": job.add_generation_prompt,
        }
        return self._template().render(values, self._limits)

    def _render_first_accepted(
        self, prompt: ChatPrompt, tools: list[ToolDict], is_generic: bool
    ) -> tuple[Segment, ...]:
        """The conversation in the first form that the template does not refuse."""
        first_refusal: Refusal | None = None
        for job in self._forms(prompt, tools, is_generic):
            try:
                return self._render_safely(job)
            except Refusal as refusal:
                first_refusal = first_refusal or refusal
        assert first_refusal is not None, "there is always a form to try"
        raise first_refusal

    def _forms(self, prompt: ChatPrompt, tools: list[ToolDict], is_generic: bool) -> Iterator[_Job]:
        in_variable = bool(tools) and self.tool_place == "variable"
        best = self._abilities_with_tools if in_variable else self._abilities
        if is_generic:
            best = as_text_only(best)
        tried: list[list[TemplateMessage]] = []
        for abilities in (best, *stricter(best)):
            form = template_messages(prompt.messages, abilities)
            if tools and not in_variable:
                form = with_system_tools(form, tools_as_text(tools), abilities)
            if form not in tried:
                tried.append(form)
                yield _Job(
                    form,
                    tools if in_variable else [],
                    prompt.template_kwargs,
                    prompt.add_generation_prompt and not prompt.continues,
                    prompt.continues,
                )

    def _render_safely(self, job: _Job) -> tuple[Segment, ...]:
        """Render with the literals hidden.

        Joining, trimming or lower-casing pieces of content may still make a literal
        (`<|im_` and `end|>`).  So if content has such pieces, it is rendered once more
        with them hidden; literals that then are missing were not the template's own.
        """
        taken = (self.source, self._tokens, job.messages, job.kwargs, job.tools)
        free = FreeCharacters(taken)
        plain = Swap(self._literals, free)
        text = self._run_hidden(plain, plain.hide, job)
        edged = Swap(self._literals, free)
        edged_text = self._run_hidden(edged, edged.hide_edges, job, text)
        count, proper = self._literals.count_in(text), self._literals.count_in(edged_text)
        return edged.cut(edged_text) if count - proper else plain.cut(text)

    def _run_hidden(
        self, swap: Swap, hide: Callable[..., Any], job: _Job, text_if_plain: str | None = None
    ) -> str:
        messages = [self._hidden(message, hide, self._kept_tags) for message in job.messages]
        if job.continues:
            messages[-1] = self._hidden(job.messages[-1], hide, self._kept_tags | self._own_tags)
        kwargs = dict(zip(job.kwargs, hide(list(job.kwargs.values())), strict=True))
        tools = [_hidden_tool(tool, hide) for tool in job.tools]
        if text_if_plain is not None and swap.has_literals_only:
            return text_if_plain
        mark = swap.mark() if job.continues else ""
        if mark:
            messages[-1]["content"] = _with_end(messages[-1]["content"], mark + " ")
        try:
            text = self._run(replace(job, messages=messages, kwargs=kwargs, tools=tools))
        except Refusal as refusal:
            raise Refusal(swap.restore(str(refusal))) from refusal
        return _until(swap, mark, text) if mark else text

    def _hidden(
        self, message: TemplateMessage, hide: Callable[..., Any], own_tags: frozenset[str]
    ) -> TemplateMessage:
        hidden = dict(message)
        for field in _USER_FIELDS:
            if field in message:
                is_own = message["role"] == "assistant" and field == "content"
                hidden[field] = hide(message[field], own_tags if is_own else frozenset())
        return hidden


def _until(swap: Swap, mark: str, text: str) -> str:
    until = swap.until(mark, text)
    if until is None:
        raise Refusal(_LOST_END)
    return until


def _with_end(content: Any, end: str) -> Any:
    """The content, text or one text part, with `end` behind it."""
    if isinstance(content, str):
        return content + end
    *others, last = content
    return [*others, {**last, "text": last["text"] + end}]


def _hidden_tool(tool: ToolDict, hide: Callable[..., Any]) -> ToolDict:
    """The outer names stay, whatever they may be in the vocabulary: templates look them up."""
    function = tool["function"]
    return {**tool, "function": {key: hide(value) for key, value in function.items()}}
