"""How answers are bound: what may come first, what after it, and how thinking fits in."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

import pytest
from msgspec.structs import replace as changed

from ponytail.errors import ConstraintFailed, InvalidRequest
from ponytail.text.answers import Answers, Plan
from ponytail.text.guide import Guide
from ponytail.types import (
    ChatPrompt,
    Event,
    GenerateRequest,
    JsonSchema,
    Message,
    Reasoning,
    Sampling,
    Text,
    TextPrompt,
    Tool,
    ToolCallStart,
    ToolUse,
)
from tests.unit.chat_templates import TEMPLATES
from tests.unit.grammar.vocabulary import byte_ids
from tests.unit.rendering import chat_template

CONTROLS = ("<eog>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>")
TOOL = Tool("f", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
ANSWER = JsonSchema({"type": "object", "properties": {"a": {"type": "boolean"}}}, "response_format")
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = '<|channel|>final<|message|>{"a": true}'
CALL = ' to=functions.f<|channel|>commentary json<|message|>{"n": 1}'


class Bytes:
    """A vocabulary of bytes and control tokens; fits `grammar.Vocabulary`."""

    def __init__(self, *controls: str) -> None:
        self.control_ids = {text: 256 + i for i, text in enumerate(controls)}
        self.n_vocab = 256 + len(controls)
        self.eog_ids = (256,)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def tokenize_inside(self, text: str) -> list[int]:
        return byte_ids(text, self.control_ids)


HARMONY = Bytes(*CONTROLS)


def harmony() -> Answers:
    return Answers(HARMONY, chat_template(TEMPLATES["gptoss"]))


def asked(*tools: Tool, mode: str = "auto", **fields: object) -> GenerateRequest:
    use = ToolUse(tools, mode) if tools else None  # type: ignore[arg-type]
    prompt = ChatPrompt((Message("user", "q"),), tool_use=use)
    return changed(GenerateRequest(prompts=(prompt,), sampling=Sampling()), **fields)


def say(guide: Guide, ids: Sequence[int], n_vocab: int) -> None:
    """Pick these tokens; each must be allowed by the mask."""
    words = array("I", [0] * -(-n_vocab // 32))
    for one in ids:
        assert guide.forced is None
        is_bound = guide.fill(words.buffer_info()[0], len(words) * 4)
        is_in_mask = bool(words[one // 32] >> one % 32 & 1)
        if is_bound and not is_in_mask and one != guide.extra:
            raise ConstraintFailed(f"{one} may not come")
        guide.accept(one)


def takes(plan: Plan, text: str, vocabulary: Bytes = HARMONY) -> bool:
    guide = plan.guide(is_chat=True, is_open=False)
    assert guide is not None
    try:
        say(guide, vocabulary.tokenize_inside(text), vocabulary.n_vocab)
    except ConstraintFailed:
        return False
    return True


def events(plan: Plan, text: str, vocabulary: Bytes = HARMONY) -> list[Event]:
    output = plan.output(is_chat=True, is_open=False)
    found = [e for one in vocabulary.tokenize_inside(text) for e in output.feed(one)]
    return [*found, *output.flush()]


def joined(found: list[Event], kind: type[Text] | type[Reasoning]) -> str:
    return "".join(event.text for event in found if isinstance(event, kind))


def test_schema_binds_the_final_channel_and_leaves_thinking_free() -> None:
    plan = harmony().plan(asked(constraint=ANSWER))
    assert takes(plan, THOUGHT + FINAL)
    assert takes(plan, FINAL)
    assert not takes(plan, THOUGHT + "<|channel|>final<|message|>Hello")
    assert not takes(plan, "Hello")
    found = events(plan, THOUGHT + FINAL)
    assert joined(found, Reasoning) == "Hm."
    assert json.loads(joined(found, Text)) == {"a": True}


def test_forced_call_may_be_thought_about_first() -> None:
    plan = harmony().plan(asked(TOOL, mode="required"))
    assert takes(plan, THOUGHT + CALL)
    assert takes(plan, CALL)
    assert not takes(plan, FINAL)
    assert not takes(plan, CALL.replace('"n": 1', '"n": "one"'))
    assert any(isinstance(e, ToolCallStart) for e in events(plan, THOUGHT + CALL))


def test_schema_beside_tools_is_one_or_the_other() -> None:
    plan = harmony().plan(asked(TOOL, constraint=ANSWER))
    for text in (THOUGHT + CALL, THOUGHT + FINAL, CALL, FINAL):
        assert takes(plan, text)
    assert not takes(plan, "<|channel|>final<|message|>Hello")


def test_call_in_a_free_answer_is_bound_from_its_header_on() -> None:
    plan = harmony().plan(asked(TOOL))
    assert takes(plan, THOUGHT + CALL)
    assert takes(plan, CALL)
    assert not takes(plan, THOUGHT + CALL.replace('"n": 1', '"n": "one"'))
    assert not takes(plan, CALL.replace('"n": 1', '"n": "one"'))
    # Only headers begin calls: an answer may speak of them.
    assert takes(plan, "<|channel|>final<|message|>Write to=functions.f and so on.")


@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_thinking_budget_ends_the_analysis_channel(tools: tuple[Tool, ...]) -> None:
    plan = harmony().plan(asked(*tools, n_thinking_max=3))
    guide = plan.guide(is_chat=True, is_open=False)
    assert guide is not None
    say(guide, HARMONY.tokenize_inside("<|channel|>analysis<|message|>abc"), HARMONY.n_vocab)
    forced = []
    while guide.forced is not None:
        forced.append(guide.forced)
        guide.accept(forced[-1])
    assert forced == HARMONY.tokenize_inside("<|end|><|start|>assistant")


@pytest.mark.parametrize("fields", [{"constraint": ANSWER}, {}])
def test_thinking_budget_holds_under_a_grammar_too(fields: dict[str, object]) -> None:
    tools = () if fields else (TOOL,)
    plan = harmony().plan(asked(*tools, mode="required", n_thinking_max=3, **fields))
    begun = "<|channel|>analysis<|message|>"
    assert takes(plan, f"{begun}abc<|end|><|start|>assistant")
    assert not takes(plan, f"{begun}abcd")
    none = harmony().plan(asked(*tools, mode="required", n_thinking_max=0, **fields))
    assert not takes(none, begun)


def test_text_that_is_completed_has_no_channels() -> None:
    request = changed(asked(constraint=ANSWER), prompts=(TextPrompt("q"),))
    guide = harmony().plan(request).guide(is_chat=False, is_open=False)
    assert guide is not None
    say(guide, HARMONY.tokenize_inside('{"a": true}'), HARMONY.n_vocab)


def test_thinking_in_channels_stays_raw_where_it_is_not_to_be_split() -> None:
    plan = harmony().plan(asked(splits_reasoning=False))
    found = events(plan, THOUGHT + "<|channel|>final<|message|>Hi")
    assert joined(found, Text) == THOUGHT + "<|channel|>final<|message|>Hi"


def test_open_tag_of_several_tokens_is_seen_beside_tools() -> None:
    """A vocabulary without a token for `<think>` spells it; the budget holds all the same."""
    spelled = Bytes("<eog>", "<tool_call>", "</tool_call>")
    plan = Answers(spelled, chat_template(TEMPLATES["qwen3"])).plan(asked(TOOL, n_thinking_max=2))
    guide = plan.guide(is_chat=True, is_open=False)
    assert guide is not None
    say(guide, spelled.tokenize_inside("<think>ab"), spelled.n_vocab)
    assert guide.forced is not None


def test_format_by_name_is_used_and_shown_to_a_model_whose_template_has_none() -> None:
    plain = Bytes("<eog>")
    answers = Answers(plain, chat_template(TEMPLATES["smollm2"]), "llama3-json")
    plan = answers.plan(asked(TOOL, mode="required"))
    assert takes(plan, '{"name": "f", "parameters": {"n": 1}}', plain)


def test_tools_are_built_once_however_often_they_are_sent() -> None:
    answers = harmony()
    first, again = (answers.plan(asked(TOOL)) for _ in range(2))
    assert first.calls is not None
    assert again.calls is not None
    assert first.calls.matcher.__self__ is again.calls.matcher.__self__  # type: ignore[attr-defined]
    other = answers.plan(asked(changed(TOOL, name="g")))
    assert other.calls is not None
    assert other.calls.matcher.__self__ is not first.calls.matcher.__self__  # type: ignore[attr-defined]


def test_of_many_tools_the_one_no_mask_can_be_made_of_is_named() -> None:
    """Its arguments are left free and that is said; a strict one is refused."""
    unfit = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(?=b)$"}}}
    odd = Tool("odd", parameters=unfit, path="tools[1].function")
    plan = harmony().plan(asked(TOOL, odd))
    assert [w.split(" ")[0] for w in plan.warnings] == ["tools[1].function.parameters"]
    with pytest.raises(InvalidRequest) as caught:
        harmony().plan(asked(TOOL, changed(odd, is_strict=True)))
    assert (caught.value.param or "").startswith("tools[1].function.parameters")
