"""How the answers to one request are read and bound.

Owns the choice of what an answer's output looks for (thinking, tool calls, stops) and of the
guide that its tokens follow.  Must not know llama.cpp or the engine.  Any thread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec
from msgspec.structs import replace as changed

from ponytail.errors import InvalidRequest
from ponytail.text.grammar import Compiled, Grammars, Vocabulary, tool_schema
from ponytail.text.guide import Calls, Guide, Thinking
from ponytail.text.output import Output, PieceTable
from ponytail.text.recent import Recent
from ponytail.text.template import ChatTemplate
from ponytail.text.thinking import ReasoningSplitter, Tags, find_tags
from ponytail.text.toolcalls import CallFormat, by_name, detect
from ponytail.types import (
    ChatPrompt,
    Constraint,
    GenerateRequest,
    JsonSchema,
    Sampling,
    Text,
    Tool,
    ToolUse,
)

Scores: TypeAlias = tuple[float | None, tuple[tuple[int, float], ...]]

# Calls that a forced answer may make: a model must not be able to go on for ever.
_N_CALLS_MAX = 16
_N_CALLABLES = 64
_GENERIC = "generic"


class Plan(msgspec.Struct, frozen=True):
    """What all answers to one request have in common; `warnings` say what is not kept to.

    `whole` binds the answer after thinking from its first token on, `calls` only from where
    a tool call begins.  `covers_thinking`: `whole` binds the thinking too.  `is_all_calls`: there
    is nothing else in an answer.
    """

    answers: Answers
    request: GenerateRequest
    sampling: Sampling
    tools: tuple[Tool, ...] = ()
    whole: Compiled | None = None
    calls: Calls | None = None
    covers_thinking: bool = False
    is_all_calls: bool = False
    warnings: tuple[str, ...] = ()

    def output(self, *, is_chat: bool, is_open: bool) -> Output:
        """For one choice; `is_open`: the prompt ended within thinking."""
        return self.answers.output(self, is_chat=is_chat, is_open=is_open)

    def guide(self, *, is_chat: bool, is_open: bool) -> Guide | None:
        """For one choice; None where every token is free."""
        return self.answers.guide(self, is_chat=is_chat, is_open=is_open)


class _Callable(msgspec.Struct, frozen=True):
    """Tools with arguments that a mask can be made of, their grammar, and what was given up."""

    tools: tuple[Tool, ...]
    grammar: Compiled
    warnings: tuple[str, ...]


class Answers:
    """For one model.  `tool_format` names its form of tool calls; None: the template tells."""

    def __init__(
        self, vocabulary: Vocabulary, template: ChatTemplate, tool_format: str | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._tool_format = tool_format
        self._grammars = Grammars(vocabulary)
        self._callables: Recent[bytes, _Callable] = Recent(_N_CALLABLES)
        # What the answer's first text may open; None where channels tell thinking apart.
        self.tags: Tags | None = find_tags(template.source, vocabulary.control_ids)
        self._plain = PieceTable(vocabulary.token_bytes)
        tags = (self.tags.open, self.tags.close) if self.tags else ()
        self._shown = PieceTable(self._showing(tags))

    @cached_property
    def call_format(self) -> CallFormat:
        """How this model writes tool calls."""
        if self._tool_format is not None:
            return by_name(self._tool_format)
        if not self._template.knows_tools:
            return by_name(_GENERIC)
        return detect(self._template.source)

    @cached_property
    def _shown_with_calls(self) -> PieceTable:
        tags = (self.tags.open, self.tags.close) if self.tags else ()
        return PieceTable(self._showing((*tags, *self.call_format.markers)))

    def _showing(self, texts: Iterable[str]) -> Callable[[int], bytes]:
        """Token bytes, of control tokens too where an answer's reader must see them."""
        ids = self._vocabulary.control_ids
        shown = {ids[text]: text.encode() for text in texts if text in ids}
        token_bytes = self._vocabulary.token_bytes

        def bytes_of(token_id: int) -> bytes:
            return shown.get(token_id) or token_bytes(token_id)

        return bytes_of

    # -- one request -----------------------------------------------------------------------

    def is_slow(self, request: GenerateRequest) -> bool:
        """Whether `plan` may have to build a grammar."""
        return request.constraint is not None or _tool_use(request) is not None

    def plan(self, request: GenerateRequest) -> Plan:
        """Raises InvalidRequest, with the path, for what no answer can be bound to."""
        constraint, use = request.constraint, _tool_use(request)
        answer = None if constraint is None else self._grammars.constraint(constraint)
        if use is None or use.mode == "none":
            sampling = request.sampling if use is None else self._without_calls(request.sampling)
            covers = constraint is not None and self._covers_thinking(constraint)
            whole = answer
            if constraint and answer and not covers and _begins_turn(request):
                start = f"{self._before_answer} @answer"
                whole = self._after_thinking(start, request, constraint.param, answer=answer)
            return Plan(self, request, sampling, whole=whole, covers_thinking=covers)
        call_format, callable_ = self.call_format, self._callable(use)
        tools, call = callable_.tools, callable_.grammar
        plan = Plan(self, request, request.sampling, tools=use.tools, warnings=callable_.warnings)
        is_many = use.is_parallel and call_format.repeats
        calls = f"@call{{1,{_N_CALLS_MAX}}}" if is_many else "@call"
        if use.mode == "required":
            whole = self._after_thinking(calls, request, "tools", call=call)
            return changed(plan, whole=whole, is_all_calls=True)
        if answer is not None:
            start = f"({calls} | {self._before_answer} @answer)"
            return changed(
                plan, whole=self._after_thinking(start, request, "tools", call=call, answer=answer)
            )
        triggers = call_format.triggers_for(tools)
        return changed(plan, calls=Calls(triggers, call.matcher, is_many))

    def _callable(self, use: ToolUse) -> _Callable:
        """What may be called; kept, because agents send the same tools with every turn."""
        key = msgspec.json.encode((use.callable_tools, use.is_parallel))
        return self._callables.get(key, lambda: self._built(use))

    def _built(self, use: ToolUse) -> _Callable:
        prepared = [(tool, *tool_schema(tool)) for tool in use.callable_tools]
        tools = tuple(changed(tool, parameters=schema) for tool, schema, _ in prepared)
        warnings = [note for _, _, notes in prepared for note in notes]
        try:
            return _Callable(tools, self._calls_of(tools, use), tuple(warnings))
        except InvalidRequest:
            # Which of them is it?
            tools, more = self._without_unfit(tools)
            return _Callable(tools, self._calls_of(tools, use), (*warnings, *more))

    def _calls_of(self, tools: tuple[Tool, ...], use: ToolUse) -> Compiled:
        source = self.call_format.grammar(tools, self._grammars.spell, is_parallel=use.is_parallel)
        return self._grammars.lark(source, "tools")

    def _without_unfit(self, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], list[str]]:
        """The same with any arguments for tools whose schema no mask can be made of."""
        fit: list[Tool] = []
        warnings: list[str] = []
        for tool in tools:
            path = f"{tool.path}.parameters"
            error = self._grammars.fits(tool.parameters)
            if error and tool.is_strict:
                raise InvalidRequest(f"{path}: {error}", param=path)
            if error:
                warnings.append(f"{path} is not kept to: {error}")
                tool = changed(tool, parameters={"type": "object"})
            fit.append(tool)
        return tuple(fit), warnings

    def _after_thinking(
        self, start: str, request: GenerateRequest, param: str, **parts: Compiled
    ) -> Compiled:
        """`start` over these parts; before it the thinking that the grammar itself must take."""
        rules = [start]
        tags, n_max = self._channel_tags, request.n_thinking_max
        if tags is not None and n_max != 0:
            bound = "" if n_max is None else f"[max_tokens={n_max}]"
            opened, closed = self._spelled(tags.open), self._spelled(tags.close)
            rules[0] = f"({opened} thought {closed})? {start}"
            rules.append(f"thought{bound}: /(?s:.*)/")
        elif len(parts) == 1 and start.strip() == f"@{next(iter(parts))}":
            return next(iter(parts.values()))
        return self._grammars.joined("\n".join(rules), parts, param)

    @property
    def _before_answer(self) -> str:
        """Lark terms for what an answer begins with."""
        return self._spelled(self._channels.before_answer) if self._channels else ""

    def _spelled(self, text: str) -> str:
        """Lark terms for text with markers in it."""
        pieces = re.split(f"({'|'.join(map(re.escape, sorted(self.call_format.markers)))})", text)
        return " ".join(self._grammars.spell(piece) for piece in pieces if piece)

    @property
    def _channel_tags(self) -> Tags | None:
        return None if self._channels is None else self._channels.thinking

    @cached_property
    def _channels(self) -> CallFormat | None:
        """The format of a model that tells thinking apart by channels."""
        if self.tags is not None:
            return None
        found = detect(self._template.source)
        return found if found.thinking is not None else None

    def _covers_thinking(self, constraint: Constraint) -> bool:
        """A pattern in which the tag that ends thinking occurs is for all of the output."""
        tags = self.tags or self._channel_tags
        if isinstance(constraint, JsonSchema) or tags is None:
            return False
        told = msgspec.json.encode(constraint).decode()
        return tags.close in told

    def _without_calls(self, sampling: Sampling) -> Sampling:
        """Nothing that begins a call, where that is a token of its own."""
        ids = self._vocabulary.control_ids
        texts = {trigger.text for trigger in self.call_format.triggers_for(())}
        banned = [(ids[text], float("-inf")) for text in sorted(texts) if text in ids]
        return changed(sampling, logit_bias=(*sampling.logit_bias, *banned))

    # -- one choice ------------------------------------------------------------------------

    def output(self, plan: Plan, *, is_chat: bool, is_open: bool) -> Output:
        request = plan.request
        n_unstoppable = request.sampling.min_tokens
        if not is_chat:
            return Output(self._plain, request.stop, n_unstoppable)
        reasoning = None
        if request.splits_reasoning and self.tags is not None:
            reasoning = ReasoningSplitter(self.tags, is_open=is_open)
        has_parser = bool(plan.tools) or (self._channels is not None and request.splits_reasoning)
        return Output(
            self._pieces(plan),
            request.stop,
            n_unstoppable,
            reasoning=reasoning,
            calls=self.call_format.parser(plan.tools) if has_parser else None,
            is_all_calls=plan.is_all_calls,
        )

    def _pieces(self, plan: Plan) -> PieceTable:
        """What a chat's tokens read as: with markup where somebody takes it apart."""
        is_shown = bool(plan.tools) or self._channels is not None
        return self._shown_with_calls if is_shown else self._shown

    def guide(self, plan: Plan, *, is_chat: bool, is_open: bool) -> Guide | None:
        n_max = plan.request.n_thinking_max if is_chat else None
        if plan.whole is None and plan.calls is None and n_max is None:
            return None
        return Guide(
            self._pieces(plan).token_bytes,
            thinking=self._thinking(plan, is_open, n_max) if is_chat else None,
            matcher=None if plan.whole is None else plan.whole.matcher(),
            calls=plan.calls,
        )

    def _thinking(self, plan: Plan, is_open: bool, n_max: int | None) -> Thinking | None:
        if plan.covers_thinking:
            return None
        if self.tags is not None:
            return Thinking(
                self.tags,
                is_open,
                closing=tuple(self._vocabulary.tokenize_inside(f"\n{self.tags.close}\n\n")),
                n_max=n_max,
                open_id=self._vocabulary.control_ids.get(self.tags.open),
            )
        tags = self._channel_tags
        if tags is None or plan.whole is not None:
            return None  # a whole grammar has the channels in it
        closing = tuple(self._vocabulary.tokenize_inside(tags.close))
        return Thinking(tags, is_open=False, closing=closing, n_max=n_max)


def _tool_use(request: GenerateRequest) -> ToolUse | None:
    """The tools of a conversation, if it has some."""
    for prompt in request.prompts:
        if isinstance(prompt, ChatPrompt) and prompt.tool_use is not None:
            return prompt.tool_use if prompt.tool_use.tools else None
    return None


def _begins_turn(request: GenerateRequest) -> bool:
    """Whether answers are turns of their own, not the rest of a text or of a turn."""
    return all(isinstance(one, ChatPrompt) and not one.continues for one in request.prompts)


def echoed(output: Output, text: str, ids: Sequence[int], scores: Sequence[Scores]) -> Text:
    """The prompt as the first piece of the answer, with what its tokens were likely to be.

    `scores` are of the tokens from the second on; nothing comes before the first.
    """
    first = output.scored(ids[0], (None, ()))
    rest = (output.scored(*one) for one in zip(ids[1:], scores, strict=True))
    return Text(text, (first, *rest))


def salted(salt: str, token_id: int) -> int:
    """What stands for a prompt's first token among those with this salt: negative, 31 bits."""
    digest = hashlib.blake2b(f"{token_id} {salt}".encode(), digest_size=4).digest()
    return -1 - (int.from_bytes(digest) >> 1)
