"""Messages to prompt: the model file's own chat templates, made safe.

Owns which of a file's templates renders a prompt and how it is told of the tools.
Nothing is compiled or probed before the first chat, so a broken template never stops a
model from loading.  Must not know llama.cpp or the engine.  A `ChatTemplate` may be used
by any number of threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace as changed

from ponytail.errors import InvalidRequest, TemplateError
from ponytail.text.jinja_bounds import TemplateLimits
from ponytail.text.placeholders import Segment, SpecialLiterals, starts_with
from ponytail.text.program import Program
from ponytail.text.tool_prompt import shown_tools, tool_dict, with_instructions
from ponytail.types import ChatPrompt, ToolUse

__all__ = ["ChatTemplate", "Instructions", "Segment", "TemplateLimits", "starts_with"]

Instructions: TypeAlias = Callable[[ToolUse], str]
"""What a model is told whose template knows no tools: which there are, how to call them."""

_NO_TEMPLATE = "this model file has no chat template; use /v1/completions or --chat-template-file"
_NO_TOOLS = "this model's chat template shows no tools"
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


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
        instructions: Instructions | None = None,
    ) -> None:
        """`special_tokens` are the texts that the tokenizer reads as special tokens.

        `named` are further templates of the file by name; `tool_use` renders prompts with
        tools.  `instructions` are for templates that show no tools; without them such a
        template refuses prompts with tools.  Never raises.
        """
        named = named or {}
        literals = SpecialLiterals(special_tokens)
        tokens = {"bos_token": bos, "eos_token": eos}
        limits = limits or TemplateLimits()
        plain, for_tools = source or named.get("default"), named.get("tool_use")
        self._default = None if plain is None else Program(plain, literals, tokens, limits)
        self._with_tools = self._default
        if for_tools is not None:
            self._with_tools = Program(for_tools, literals, tokens, limits, is_for_tools=True)
        self._instructions = instructions

    @property
    def source(self) -> str | None:
        """The text of the template that renders prompts with tools."""
        return None if self._with_tools is None else self._with_tools.source

    @property
    def knows_tools(self) -> bool:
        """Whether the model is told of tools by its template, not by `instructions`.

        The first call compiles the template and tries it out.
        """
        return self._with_tools is not None and self._with_tools.tool_place is not None

    def render(self, prompt: ChatPrompt) -> tuple[Segment, ...]:
        """The prompt's text in segments, in order.

        Raises TemplateError with the template's own words, InvalidRequest when
        `template_kwargs` names a variable that is not the client's or the last message is
        none to be continued.
        """
        _ensure_fit(prompt)
        tools = [tool_dict(tool) for tool in shown_tools(prompt.tool_use)]
        program = (self._with_tools if tools else None) or self._default or self._with_tools
        if program is None:
            raise TemplateError(_NO_TEMPLATE, param="messages")
        if tools and program.tool_place is None:
            return program.render(self._instructed(prompt), [], is_generic=True)
        return program.render(prompt, tools)

    def render_text(self, prompt: ChatPrompt) -> str:
        """The prompt as one text; raises as `render` does."""
        return "".join(segment.text for segment in self.render(prompt))

    def _instructed(self, prompt: ChatPrompt) -> ChatPrompt:
        assert prompt.tool_use is not None, "there are tools to tell of"
        if self._instructions is None:
            raise TemplateError(_NO_TOOLS, param="tools")
        told = with_instructions(prompt.messages, self._instructions(prompt.tool_use))
        return changed(prompt, messages=told)


def _ensure_fit(prompt: ChatPrompt) -> None:
    for name in _OWN_VARIABLES:
        if name in prompt.template_kwargs:
            raise InvalidRequest(
                f"the template variable '{name}' is the server's to set",
                param="chat_template_kwargs",
            )
    if prompt.continues:
        _ensure_continuable(prompt)


def _ensure_continuable(prompt: ChatPrompt) -> None:
    last = prompt.messages[-1] if prompt.messages else None
    if last is None or last.role != "assistant":
        raise InvalidRequest(
            "only an assistant message at the end can be continued", param="messages"
        )
    if last.tool_calls:
        raise InvalidRequest("a message with tool calls cannot be continued", param="messages")
