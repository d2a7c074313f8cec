"""The guide of one answer: free, bound, or decided, and how it goes from one to the next."""

from __future__ import annotations

from array import array

import pytest

from ponytail.errors import ConstraintFailed
from ponytail.text.grammar import Grammars
from ponytail.text.guide import Calls, Guide, Thinking
from ponytail.text.thinking import DEFAULT
from ponytail.text.toolcalls.seam import Trigger
from tests.unit.grammar.vocabulary import SmallVocabulary

VOCABULARY = SmallVocabulary()
GRAMMARS = Grammars(VOCABULARY)
CALL = GRAMMARS.lark('start: "<c>" %json {"type": "integer"} "</c>"', "tools")
OPEN_ID = VOCABULARY.control_ids["<tool_call>"]


def say(guide: Guide, text: str) -> None:
    for token_id in VOCABULARY.tokenize_inside(text):
        guide.accept(token_id)


def allowed(guide: Guide) -> set[str] | None:
    """The bytes that may come next as text; None when all may."""
    words = array("I", [0] * -(-VOCABULARY.n_vocab // 32))
    if not guide.fill(words.buffer_info()[0], len(words) * 4):
        return None
    return {chr(i) for i in range(128) if words[i // 32] >> i % 32 & 1}


def bound(text: str) -> Guide:
    return Guide(VOCABULARY.token_bytes, matcher=GRAMMARS.lark(f'start: "{text}"', "x").matcher())


def test_a_bound_answer_is_over_when_its_grammar_is():
    guide = bound("ab")
    assert allowed(guide) == {"a"}
    say(guide, "a")
    assert not guide.is_complete
    say(guide, "b")
    assert guide.is_complete


def test_a_token_that_does_not_fit_is_an_error_of_the_request():
    with pytest.raises(ConstraintFailed):
        say(bound("ab"), "x")


def calls(*, repeats: bool, at_start: bool = False) -> Guide:
    trigger = Trigger("<c>", at_start=at_start)
    return Guide(VOCABULARY.token_bytes, calls=Calls((trigger,), CALL.matcher, repeats))


def test_a_free_answer_is_bound_from_where_a_call_begins():
    guide = calls(repeats=True)
    say(guide, "I will call <")
    assert allowed(guide) is None
    say(guide, "c>")
    assert allowed(guide) == {"-", *"0123456789"}
    say(guide, "12</c>")
    assert allowed(guide) is None
    assert not guide.is_complete
    say(guide, "\n<c>")
    assert allowed(guide) is not None


def test_after_the_only_call_the_answer_is_over():
    guide = calls(repeats=False)
    say(guide, "<c>12</c>")
    assert guide.is_complete


def test_a_trigger_for_the_start_counts_only_there():
    guide = calls(repeats=False, at_start=True)
    say(guide, " \n<c>")
    assert allowed(guide) is not None
    guide = calls(repeats=False, at_start=True)
    say(guide, "so <c>")
    assert allowed(guide) is None


def test_a_trigger_within_one_token_takes_the_rest_of_the_token_along():
    pieces = {1: b"text <c>1", 2: b"2"}
    matcher = CALL.matcher
    guide = Guide(lambda i: pieces[i], calls=Calls((Trigger("<c>"),), matcher, repeats=False))
    guide.accept(1)
    assert allowed(guide) is not None


def thinking(*, is_open: bool, n_max: int | None, open_id: int | None = None) -> Guide:
    closing = tuple(VOCABULARY.tokenize_inside("\n</think>\n"))
    matcher = GRAMMARS.lark('start: "ab"', "x").matcher()
    how = Thinking(DEFAULT, is_open, closing, n_max, open_id)
    return Guide(VOCABULARY.token_bytes, thinking=how, matcher=matcher)


def test_thinking_is_free_and_the_answer_after_it_bound():
    guide = thinking(is_open=True, n_max=None)
    assert allowed(guide) is None
    say(guide, "hm ab</think>")
    assert allowed(guide) == {"a"}


def test_thinking_ends_at_its_budget_by_the_closing_tag():
    guide = thinking(is_open=True, n_max=3)
    say(guide, "abc")
    forced = ""
    while guide.forced is not None:
        token_id = guide.forced
        forced += VOCABULARY.token_bytes(token_id).decode()
        guide.accept(token_id)
    assert forced == "\n</think>\n"
    assert allowed(guide) == {"a"}


def test_no_budget_ends_thinking_before_it_begins():
    assert thinking(is_open=True, n_max=0).forced is not None


def test_a_model_that_opens_thinking_itself_may_do_so_before_a_bound_answer():
    guide = thinking(is_open=False, n_max=None, open_id=OPEN_ID)
    assert guide.extra == OPEN_ID
    guide.accept(OPEN_ID)
    assert allowed(guide) is None
    say(guide, "x</think>")
    assert guide.extra is None
    assert allowed(guide) == {"a"}


def test_thinking_opened_in_free_text_has_its_budget():
    how = Thinking(DEFAULT, False, (7,), 2)
    guide = Guide(VOCABULARY.token_bytes, thinking=how)
    say(guide, "\n<think>a")
    assert guide.forced is None
    say(guide, "b")
    assert guide.forced == 7


def test_a_tag_later_in_the_answer_opens_nothing():
    how = Thinking(DEFAULT, False, (7,), 0)
    guide = Guide(VOCABULARY.token_bytes, thinking=how)
    say(guide, "so <think>a")
    assert guide.forced is None
