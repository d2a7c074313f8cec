"""From the checked values of a body to the request: the rules that need several fields.

Owns which values go together and what they make.  What one field may hold is in
`openai_fields`.  Must not know HTTP, the engine or the model.  Pure; any thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ponytail.api.openai_constraints import only_one
from ponytail.api.openai_fields import BEST_OF
from ponytail.api.openai_messages import Conversation, parse_messages
from ponytail.api.openai_tools import is_first_form, tool_use
from ponytail.errors import InvalidRequest, UnsupportedParameter
from ponytail.types import (
    ChatPrompt,
    GenerateRequest,
    InfillPrompt,
    Prompt,
    Sampling,
    TextPrompt,
)

N_TOTAL_CHOICES = 2048


def chat_request(values: dict[str, Any], defaults: Sampling) -> GenerateRequest:
    """The request of /v1/chat/completions; raises InvalidRequest or UnsupportedContent."""
    request = _request((chat_prompt(values),), values, defaults)
    return msgspec.structs.replace(
        request,
        n_logprobs=_n_top(values),
        splits_reasoning=values.get("reasoning_format") != "none",
        n_thinking_max=values.get("thinking_budget"),
        legacy_functions=is_first_form(values),
        truncates=values.get("truncation") == "auto",
    )


def completion_request(values: dict[str, Any], defaults: Sampling) -> GenerateRequest:
    """The request of /v1/completions; raises InvalidRequest."""
    best_of = values.get("best_of", 1)
    if best_of not in (1, values.get("n", 1)):
        raise UnsupportedParameter(f"best_of is not supported here. {BEST_OF}", param="best_of")
    if values.get("max_tokens") == 0 and not values.get("echo"):
        raise InvalidRequest("max_tokens may be 0 only when echo is true.", param="max_tokens")
    # A raw answer is one text: thinking stays in it, tags and all.
    return msgspec.structs.replace(
        _request(_raw_prompts(values), values, defaults),
        echo=values.get("echo", False),
        n_logprobs=values.get("logprobs"),
        splits_reasoning=False,
    )


def _request(
    prompts: tuple[Prompt, ...], values: dict[str, Any], defaults: Sampling
) -> GenerateRequest:
    _ensure_consistent(prompts, values)
    picked = {name: values[name] for name in Sampling.__struct_fields__ if name in values}
    return GenerateRequest(
        prompts=prompts,
        sampling=msgspec.structs.replace(defaults, **picked),
        max_tokens=_max_tokens(values),
        stop=values.get("stop", ()),
        n=values.get("n", 1),
        stream=values.get("stream", False),
        include_usage=values.get("stream_options", {}).get("include_usage", False),
        constraint=only_one(values.values()),
        stop_ids=values.get("stop_token_ids", ()),
        priority=values.get("priority", 0),
        deadline_s=values.get("deadline_s"),
        cache_salt=values.get("cache_salt", ""),
        deterministic=values.get("deterministic", False),
    )


def _ensure_consistent(prompts: tuple[Prompt, ...], values: dict[str, Any]) -> None:
    if "stream_options" in values and not values.get("stream"):
        raise InvalidRequest(
            "stream_options is only allowed when stream is true.", param="stream_options"
        )
    max_tokens = _max_tokens(values)
    if max_tokens is not None and values.get("min_tokens", 0) > max_tokens:
        raise InvalidRequest(
            f"min_tokens must not be above max_tokens ({max_tokens}), got {values['min_tokens']}.",
            param="min_tokens",
        )
    n_total = len(prompts) * values.get("n", 1)
    if n_total > N_TOTAL_CHOICES:
        raise InvalidRequest(
            f"n times the number of prompts must be at most {N_TOTAL_CHOICES}, got {n_total}.",
            param="n",
        )


def _max_tokens(values: dict[str, Any]) -> int | None:
    given = [values[name] for name in ("max_tokens", "max_completion_tokens") if name in values]
    return min(given, default=None)


def _n_top(values: dict[str, Any]) -> int | None:
    if values.get("logprobs"):
        n_top: int = values.get("top_logprobs", 0)
        return n_top
    if "top_logprobs" in values:
        raise InvalidRequest(
            "top_logprobs is only allowed when logprobs is true.", param="top_logprobs"
        )
    return None


def _raw_prompts(values: dict[str, Any]) -> tuple[Prompt, ...]:
    """With a suffix every prompt is the text before a gap."""
    prompts: tuple[Prompt, ...] = values["prompt"]
    suffix = values.get("suffix")
    if not suffix:
        return prompts
    if values.get("echo"):
        raise InvalidRequest("suffix does not go with echo.", param="suffix")
    return tuple(_infill(prompt, suffix) for prompt in prompts)


def _infill(prompt: Prompt, suffix: str) -> InfillPrompt:
    if not isinstance(prompt, TextPrompt):
        raise InvalidRequest(
            "suffix needs a prompt of text: token ids have no gap to fill.", param="suffix"
        )
    return InfillPrompt(prompt.text, suffix)


def chat_prompt(values: dict[str, Any]) -> ChatPrompt:
    """The conversation with its tools and what the template is told."""
    shows_omitted = values.get("unsupported_content") == "placeholder"
    conversation = parse_messages(values["messages"], "messages", shows_omitted=shows_omitted)
    continues = _continues(conversation, values)
    return ChatPrompt(
        messages=conversation.messages,
        add_generation_prompt=values.get("add_generation_prompt", not continues),
        template_kwargs=_template_kwargs(values),
        tool_use=tool_use(values),
        continues=continues,
    )


def _template_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    """chat_template_kwargs goes before the fields that say the same."""
    told = {name: values[name] for name in ("reasoning_effort", "documents") if values.get(name)}
    return {**told, **values.get("chat_template_kwargs", {})}


def _continues(conversation: Conversation, values: dict[str, Any]) -> bool:
    """Whether the answer goes on with the last message; raises when it cannot."""
    asked = values.get("continue_final_message", False)
    param = "continue_final_message" if asked else conversation.prefix_param
    if param is None:
        return False
    last = conversation.messages[-1]
    needs = {
        "a last message of the assistant": last.role == "assistant",
        "a last message without tool calls": not last.tool_calls,
        "some text in the last message to go on with": last.content != "",
        "add_generation_prompt to be false or left out": not values.get("add_generation_prompt"),
    }
    for need, is_met in needs.items():
        if not is_met:
            raise InvalidRequest(f"{param} needs {need}.", param=param)
    return True
