"""Thinking is told apart from the answer the same way however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ponytail.text.thinking import (
    DEFAULT,
    KNOWN,
    Piece,
    ReasoningSplitter,
    Tags,
    find_tags,
    is_left_open,
    is_open_at_end,
)
from tests.unit.chat_templates import TEMPLATES
from tests.unit.rendering import chat_template, prompt


def split(pieces: list[str], *, is_open: bool, tags: Tags = DEFAULT) -> tuple[str, str]:
    """(reasoning, content) of an answer that came in these pieces."""
    splitter = ReasoningSplitter(tags, is_open=is_open)
    out: list[Piece] = [one for piece in pieces for one in splitter.feed(piece)]
    out += splitter.flush()
    assert all(text for _, text in out)
    kinds = [is_reasoning for is_reasoning, _ in out]
    assert kinds == sorted(kinds, reverse=True), "thinking comes first"
    return "".join(t for is_r, t in out if is_r), "".join(t for is_r, t in out if not is_r)


OPEN, CLOSE = "<think>", "</think>"
TABLE = [
    # is_open, answer, reasoning, content
    (True, "abc</think>def", "abc", "def"),
    (False, "<think>a</think>b", "a", "b"),
    (False, "x <think> y", "", "x <think> y"),
    (False, "<think>\nhm\n\nso\n</think>\n\nanswer\n", "hm\n\nso", "answer\n"),
    (False, "  \n<think>a</think>b", "a", "b"),
    (True, "\na \n</think>\n\n  b", "a", "b"),
    (False, "<think>never done", "never done", ""),
    (True, "never done</thin", "never done</thin", ""),
    (True, "<thi", "<thi", ""),
    (False, "<thi", "", "<thi"),
    (False, "a</think>b", "", "a</think>b"),
    (False, "</think>b", "", "</think>b"),
    (True, "<think>\na</think>b", "a", "b"),
    (True, "a <think> b</think>c", "a <think> b", "c"),
    (True, "a</think>b</think>c<think>d", "a", "b</think>c<think>d"),
    (False, "<think>a</think><think>b</think>", "a", "<think>b</think>"),
    (False, "<think>\n\n</think>\n\nb", "", "b"),
    (True, "\n</think>\n\nb", "", "b"),
    (True, "</think>b", "", "b"),
    (True, " \n ", "", ""),
    (False, " \n ", "", " \n "),
    (False, "  a", "", "  a"),
    (False, "<think>a</think>\n\n", "a", ""),
    (True, "1 < 2 </ 3 </think >4</think>5", "1 < 2 </ 3 </think >4", "5"),
    (False, "<thinker>a", "", "<thinker>a"),
    (True, "a \n", "a \n", ""),
    (False, "", "", ""),
]


@pytest.mark.parametrize(("is_open", "answer", "reasoning", "content"), TABLE)
def test_answer_is_split_whole_and_by_characters(
    is_open: bool, answer: str, reasoning: str, content: str
) -> None:
    assert split([answer], is_open=is_open) == (reasoning, content)
    assert split(list(answer), is_open=is_open) == (reasoning, content)


PARTS = st.sampled_from([OPEN, CLOSE, "<thi", "nk>", "</", "<", "\n", " ", "\n\n", "a", "é", "</t"])
ANSWERS = st.lists(PARTS, max_size=10).map("".join)


@given(ANSWERS, st.lists(st.integers(0, 60)), st.booleans(), st.sampled_from(KNOWN))
@example("<think>\na\n</think>\n\nb", [1, 8, 10, 12, 17, 19, 20], False, DEFAULT)
def test_every_cut_gives_the_same(
    answer: str, places: list[int], is_open: bool, tags: Tags
) -> None:
    answer = answer.replace(OPEN, tags.open).replace(CLOSE, tags.close)
    edges = sorted({0, len(answer), *(place % (len(answer) + 1) for place in places)})
    pieces = [answer[a:b] for a, b in itertools.pairwise(edges)]
    expected = split([answer], is_open=is_open, tags=tags)
    assert split(pieces, is_open=is_open, tags=tags) == expected
    assert split(list(answer), is_open=is_open, tags=tags) == expected


@given(ANSWERS, st.booleans())
@example("<think>nk></think>", False)
def test_only_tags_and_white_space_are_lost(answer: str, is_open: bool) -> None:
    reasoning, content = split([answer], is_open=is_open)
    assert answer.endswith(content)
    rest = answer.removesuffix(content)
    # The thinking may also be a part of a tag: one of the places where it stands must do.
    starts = [at for at in range(len(rest) + 1) if rest.startswith(reasoning, at)]
    without = ["".join((rest[:at] + rest[at + len(reasoning) :]).split()) for at in starts]
    assert {"", OPEN, CLOSE, OPEN + CLOSE}.intersection(without)


def test_thinking_is_let_out_as_soon_as_it_is_sure() -> None:
    splitter = ReasoningSplitter(DEFAULT, is_open=False)
    fed = ["<think>\n", "so", " it", " is", " </", "b> ", "</think>", "\n\n", "Yes", " "]
    assert [splitter.feed(piece) for piece in fed] == [
        [],
        [(True, "so")],
        [(True, " it")],
        [(True, " is")],
        [],
        [(True, " </b>")],
        [],
        [],
        [(False, "Yes")],
        [(False, " ")],
    ]
    assert splitter.flush() == []


def test_one_feed_may_hold_both_kinds() -> None:
    splitter = ReasoningSplitter(DEFAULT, is_open=True)
    assert splitter.feed("a</think>b") == [(True, "a"), (False, "b")]


@pytest.mark.parametrize("tags", KNOWN)
def test_tags_are_found_in_a_template(tags: Tags) -> None:
    both = f"{{% if '{tags.close}' in m.content %}}{{{{ '{tags.open}' }}}}{{% endif %}}"
    assert find_tags(both) == tags
    assert find_tags(f"{{{{ '{tags.close}' }}}}") == tags
    assert find_tags("{{ messages }}", {tags.open, tags.close, "<s>"}) == tags


def test_tags_of_templates_that_mention_none_or_several() -> None:
    assert find_tags(None) == DEFAULT
    assert find_tags("{{ messages }}") == DEFAULT
    # One tag in passing, a pair in use.
    assert find_tags("'<think>' [THINK] [/THINK]") == Tags("[THINK]", "[/THINK]")
    assert find_tags(TEMPLATES["qwen3"]) == DEFAULT
    assert find_tags(TEMPLATES["deepseek"]) == DEFAULT


def test_harmony_has_channels_instead() -> None:
    assert find_tags(TEMPLATES["gptoss"]) is None


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_prompt_that_ends_inside_thinking(text: str, is_open: bool) -> None:
    assert is_open_at_end(text, DEFAULT) is is_open


@pytest.mark.parametrize(
    ("content", "is_open"),
    [
        ("<think>\nLet me", True),
        ("\n<think>", True),
        ("<think>a</think>b", False),
        ("a <think> b", False),
        ("", False),
    ],
)
def test_prefilled_answer_that_is_still_thinking(content: str, is_open: bool) -> None:
    assert is_left_open(content, DEFAULT) is is_open


def test_template_that_opens_thinking_and_one_that_closes_it() -> None:
    opened = chat_template(TEMPLATES["deepseek"]).render_text(prompt(("user", "q")))
    assert is_open_at_end(opened, DEFAULT)
    off = prompt(("user", "q"), enable_thinking=False)
    assert not is_open_at_end(chat_template(TEMPLATES["qwen3"]).render_text(off), DEFAULT)
