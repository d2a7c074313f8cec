"""Text out of tokens: whole characters, exact stops, independent of how it is fed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponytail.text.output import Output, PieceTable
from ponytail.text.splitter import StopSplitter
from ponytail.text.thinking import DEFAULT, ReasoningSplitter
from ponytail.types import Event, Reasoning, Text, TokenLogprob


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at these places."""
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def run(pieces: list[bytes], stops: list[str] = [], n_unstoppable: int = 0) -> tuple[str, Output]:  # noqa: B006
    output = Output(PieceTable(lambda i: pieces[i]), stops, n_unstoppable)
    sent: list[Event] = []
    for i in range(len(pieces)):
        sent += output.feed(i)
        if output.stop is not None:
            break
    sent += output.flush()
    return "".join(e.text for e in sent if isinstance(e, Text)), output


places = st.lists(st.integers(0, 200), max_size=30)
small_text = st.text(alphabet="abcé🦙", max_size=30)
small_stops = st.lists(st.text(alphabet="abcé🦙", min_size=1, max_size=4), max_size=4)


@given(st.text(), places)
def test_text_survives_any_cut(text, where):
    assert run(cut(text.encode(), where))[0] == text


@given(st.binary(max_size=60), places)
def test_bytes_that_are_no_text_give_the_same_marks_however_cut(data, where):
    assert run(cut(data, where))[0] == data.decode("utf-8", "replace")


@given(small_text, small_stops, places)
def test_stop_ends_the_text_the_same_way_however_cut(text, stops, where):
    expected = naive(text, stops)
    result, output = run(cut(text.encode(), where), stops)
    assert (result, output.stop) == expected


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character: the first stop to complete ends it, the longest of several."""
    for end in range(1, len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            stop = max(hits, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(small_text, small_stops, places)
def test_nothing_of_a_stop_is_ever_sent(text, stops, where):
    splitter = StopSplitter(stops)
    sent = ""
    for piece in cut(text.encode(), where):
        sent += splitter.feed(piece.decode("utf-8", "ignore"))
        assert not any(stop in sent for stop in stops)


@pytest.mark.parametrize("n_bytes", range(1, 4))
def test_an_unfinished_character_at_the_end_becomes_one_mark(n_bytes):
    assert run([b"ok ", "🦙".encode()[:n_bytes]])[0] == "ok \ufffd"


def test_held_text_is_flushed_when_the_stop_never_completes():
    assert run([b"alpha be", b"ta"], ["beta!"])[0] == "alpha beta"


def test_stops_are_not_looked_for_before_min_tokens():
    text, output = run([b"a", b"b", b"ab"], ["ab"], n_unstoppable=2)
    assert (text, output.stop) == ("ab", "ab")


def test_after_a_match_nothing_more_comes():
    splitter = StopSplitter(["x"])
    assert splitter.feed("axb") == "a"
    assert splitter.feed("more") == ""
    assert splitter.flush() == ""


def run_scored(pieces: list[bytes], stops: list[str]) -> tuple[str, list[TokenLogprob], Output]:
    output = Output(PieceTable(lambda i: pieces[i]), stops)
    events: list[Event] = []
    for i in range(len(pieces)):
        events += output.feed(i, output.scored(i, (-1.0 - i, ())))
        if output.stop is not None:
            break
    events += output.flush()
    texts = [e for e in events if isinstance(e, Text)]
    return "".join(e.text for e in texts), [t for e in texts for t in e.tokens], output


@given(small_text, places)
def test_the_bytes_of_the_scored_tokens_are_the_text(text, where):
    pieces = cut(text.encode(), where)
    sent, tokens, _ = run_scored(pieces, ["never"])
    assert sent == text
    assert b"".join(t.data for t in tokens) == text.encode()
    assert [t.id for t in tokens] == list(range(len(pieces)))


@given(small_text, small_stops, places)
def test_tokens_of_a_stop_are_not_told(text, stops, where):
    sent, tokens, output = run_scored(cut(text.encode(), where), stops)
    data = b"".join(t.data for t in tokens)
    if output.stop is None:
        assert data == text.encode()
    else:
        assert data.startswith(sent.encode())
        before_last = b"".join(t.data for t in tokens[:-1])
        assert len(before_last) <= len(sent.encode())


def test_thinking_is_told_apart_and_counted_and_stops_do_not_end_it():
    pieces = [b"<th", b"ink>", b"a.", b"b", b"</think>", b"\n\nc.", b"d"]
    output = Output(
        PieceTable(lambda i: pieces[i]), ["."], reasoning=ReasoningSplitter(DEFAULT, is_open=False)
    )
    events: list[Event] = []
    for i in range(len(pieces)):
        events += output.feed(i)
        if output.stop is not None:
            break
    events += output.flush()
    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == "a.b"
    assert "".join(e.text for e in events if isinstance(e, Text)) == "c"
    assert output.stop == "."
    assert 3 <= output.n_reasoning <= 5
