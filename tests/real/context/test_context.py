"""The real model under the engine: whatever happens to its cells, it computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from ponytail.errors import DecodeError, OutOfCells
from tests.real.context.cells import (
    TEXTS,
    TOLERANCE,
    alone,
    ids,
    logits,
    next_logits,
    resize,
    words,
)

pytestmark = pytest.mark.real


def test_a_batch_of_different_lengths_gives_each_row_its_own_logits(model, context):
    tokens = [ids(model, text) for text in TEXTS]
    expected = [alone(context, i, t) for i, t in enumerate(tokens)]
    for i in range(4):
        context.cut(i, 0)
    context.decode([(i, 0, t, True) for i, t in enumerate(tokens)])
    for row, wanted in zip(logits(context), expected, strict=True):
        assert np.abs(row - wanted).max() < TOLERANCE
        assert row.argmax() == wanted.argmax()


def test_a_prompt_in_chunks_beside_a_decoding_row_is_the_same_prompt(model, context):
    tokens = ids(model, TEXTS[2])
    wanted = alone(context, 1, tokens)
    context.cut(1, 0)
    other = ids(model, TEXTS[0])
    context.decode([(0, 0, other, True)])
    half = len(tokens) // 2
    context.decode([(0, len(other), other[:1], True), (1, 0, tokens[:half], False)])
    context.decode([(0, len(other) + 1, other[:1], True), (1, half, tokens[half:], True)])
    row = logits(context)[1]
    assert np.abs(row - wanted).max() < TOLERANCE
    assert row.argmax() == wanted.argmax()


def test_a_fork_is_bit_identical(model, context):
    tokens = ids(model, TEXTS[2])
    context.decode([(0, 0, tokens[:-1], False)])
    context.fork(0, [2, 3], len(tokens) - 1)
    rows = []
    for seq_id in (0, 2, 3):
        context.decode([(seq_id, len(tokens) - 1, tokens[-1:], True)])
        rows.append(logits(context)[0])
    assert (rows[0] == rows[1]).all()
    assert (rows[0] == rows[2]).all()


def test_a_fork_of_a_part_is_that_part(model, context):
    tokens = ids(model, TEXTS[2])
    context.decode([(0, 0, tokens, False)])
    context.fork(0, [1], 6)
    assert (context.n_tokens(0), context.n_tokens(1)) == (len(tokens), 6)
    context.decode([(1, 6, tokens[6:], True)])
    row = logits(context)[0]
    wanted = alone(context, 2, tokens)
    assert np.abs(row - wanted).max() < TOLERANCE


@pytest.mark.parametrize("second", [0, 5])
def test_a_swap_exchanges_two_sequences_exactly(model, split, second):
    context = split
    tokens = ids(model, TEXTS[0])
    context.decode([(0, 0, tokens, False)])
    context.fork(0, [3], len(tokens))
    if second:
        context.decode([(1, 0, ids(model, TEXTS[1])[:second], False)])
    context.swap(0, 1)
    assert (context.n_tokens(0), context.n_tokens(1)) == (second, len(tokens))
    context.decode([(1, len(tokens), tokens[:1], True)])
    moved = logits(context)[0]
    context.decode([(3, len(tokens), tokens[:1], True)])
    assert (moved == logits(context)[0]).all()


def test_a_state_read_and_written_is_bit_identical_in_any_sequence(model, context):
    tokens = ids(model, TEXTS[2])
    context.decode([(0, 0, tokens, False), (1, 0, words(9), False)])
    wanted = next_logits(context, 0)
    state = context.read_state(0)
    assert isinstance(state, np.ndarray)
    assert len(state) == context.state_bytes(0)
    context.cut(0, 0)
    context.decode([(0, 0, words(40), False)])  # over the old cells: the state is a copy
    for seq_id in (3, 0):
        context.write_state(seq_id, bytes(state) if seq_id else state)
        assert context.n_tokens(seq_id) == len(tokens)
        assert (next_logits(context, seq_id) == wanted).all()
    assert context.n_tokens(1) == 9


def test_cell_bytes_are_what_a_token_adds_to_a_state(context):
    context.decode([(0, 0, words(100), False)])
    n_bytes = context.state_bytes(0)
    context.cut(0, 50)
    assert (n_bytes - context.state_bytes(0)) / 50 == pytest.approx(context.cell_bytes, rel=0.001)


@pytest.mark.parametrize("keep", [0, 10])
def test_a_damaged_state_is_refused_and_leaves_the_sequence_empty(model, pool, keep, has_room):
    pool.decode([(0, 0, words(20), False)])
    wanted = next_logits(pool, 0)
    state = bytes(pool.read_state(0))
    for damaged in (b"", b"x" * 99, state[:-7], state[:200], bytes(8) + state[8:]):
        pool.fork(0, [1], 10)
        with pytest.raises(DecodeError) as caught:
            pool.write_state(1, damaged, keep)
        assert not isinstance(caught.value, OutOfCells)
        assert pool.n_tokens(1) == 0
    assert (next_logits(pool, 0) == wanted).all()
    assert has_room(pool, 236)


def test_a_state_too_long_for_the_cells_is_out_of_cells(tiny):
    tiny.decode([(0, 0, words(260), False)])
    state = tiny.read_state(0)
    resize(tiny, 256, [])
    with pytest.raises(OutOfCells):
        tiny.write_state(2, state)
    assert tiny.n_tokens(2) == 0


def test_after_a_shift_positions_go_on_and_others_are_unharmed(model, context):
    tokens = ids(model, TEXTS[2])
    n = len(tokens)
    context.decode([(0, 0, tokens, False), (1, 0, tokens, False)])
    assert context.can_shift
    before = context.read_state(1)
    context.shift(0, 4, 6)
    assert (context.n_tokens(0), context.n_tokens(1)) == (n - 6, n)
    assert (context.read_state(1) == before).all()
    # A state read right away has the keys in their new places.
    context.write_state(2, context.read_state(0))
    shifted = next_logits(context, 0)
    assert np.abs(next_logits(context, 2) - shifted).max() < TOLERANCE
    # Nearly what the tokens that are left give; they saw the others when they were computed.
    context.cut(2, 0)
    context.decode([(2, 0, tokens[:4] + tokens[10:], False)])
    assert np.corrcoef(shifted, next_logits(context, 2))[0, 1] > 0.95


def test_after_a_shift_the_prefix_is_still_shared(pool, has_room, fill):
    fill(pool, 0, 100)
    pool.fork(0, [1], 100)
    pool.decode([(1, 100, words(50, 4000), False)])
    wanted = next_logits(pool, 0)
    pool.shift(1, 100, 20)
    assert pool.n_tokens(1) == 130
    assert (next_logits(pool, 0) == wanted).all()
    assert has_room(pool, 126)
    assert not has_room(pool, 127)
