"""One pool of cells: what sequences share counts once, and a full pool harms nobody."""

from __future__ import annotations

import numpy as np
import pytest

from ponytail.errors import DecodeError, OutOfCells
from ponytail.llama.context import Context
from tests.real.context.cells import TOLERANCE, next_logits, words

pytestmark = pytest.mark.real


def test_forks_share_their_cells(pool, has_room, fill):
    fill(pool, 0, 200)
    pool.fork(0, [1, 2], 200)
    pool.decode([(i, 200, words(10, 4000 + i), True) for i in range(3)])
    assert has_room(pool, 26)
    assert not has_room(pool, 27)


def test_a_full_pool_refuses_and_harms_nobody(pool, fill):
    fill(pool, 0, 100)
    fill(pool, 1, 100)
    wanted = next_logits(pool, 0)
    with pytest.raises(OutOfCells):
        pool.decode([(0, 100, words(1), True), (2, 0, words(60, 5000), True)])
    with pytest.raises(OutOfCells):  # more than there are cells at all
        pool.decode([(2, 0, words(300, 5000), True)])
    assert [pool.n_tokens(i) for i in range(4)] == [100, 100, 0, 0]
    assert (next_logits(pool, 0) == wanted).all()
    pool.cut(1, 0)
    pool.decode([(0, 100, words(1), True), (2, 0, words(60, 5000), True)])
    assert [pool.n_tokens(i) for i in range(4)] == [101, 0, 60, 0]


def test_a_row_out_of_place_is_an_error_that_changes_nothing(context):
    context.decode([(0, 0, words(10), False)])
    wanted = next_logits(context, 0)
    with pytest.raises(DecodeError):
        context.decode([(0, 12, words(3), True)])
    assert context.n_tokens(0) == 10
    assert (next_logits(context, 0) == wanted).all()


def test_adopting_gives_up_double_cells(pool, has_room):
    pool.decode([(0, 0, words(100), False), (1, 0, words(110), False)])
    wanted = next_logits(pool, 1)
    assert not has_room(pool, 60)
    pool.adopt(0, 1, 0, 100)
    assert (pool.n_tokens(0), pool.n_tokens(1)) == (100, 110)
    assert has_room(pool, 146)
    assert not has_room(pool, 147)
    assert np.abs(next_logits(pool, 1) - wanted).max() < TOLERANCE
    pool.cut(0, 0)
    assert pool.n_tokens(1) == 110
    assert np.abs(next_logits(pool, 1) - wanted).max() < TOLERANCE


def test_a_state_comes_back_behind_what_others_hold(pool, has_room):
    pool.decode([(0, 0, words(60), False)])
    pool.fork(0, [1], 50)
    pool.decode([(1, 50, words(40, 7000), False)])
    wanted = next_logits(pool, 1)
    state = pool.read_state(1)
    pool.cut(1, 0)
    pool.fork(0, [2], 50)
    pool.write_state(2, state, 50)
    assert pool.n_tokens(2) == 90
    assert np.abs(next_logits(pool, 2) - wanted).max() < TOLERANCE
    assert has_room(pool, 256 - 60 - 40)
    assert not has_room(pool, 256 - 60 - 40 + 1)


@pytest.mark.parametrize("keep", [0, 50])
def test_a_state_without_room_is_refused_and_leaves_the_sequence_empty(pool, keep, has_room, fill):
    fill(pool, 0, 100)
    fill(pool, 1, 100)
    state = pool.read_state(0)
    pool.fork(0, [2], 50)
    with pytest.raises(OutOfCells):
        pool.write_state(2, state, keep)
    assert [pool.n_tokens(i) for i in range(4)] == [100, 100, 0, 0]
    assert has_room(pool, 56)


def test_as_many_sequences_as_libllama_has(model):
    context = Context(model, n_seq=255, n_cells=512, is_shared=True)
    context.decode([(0, 0, words(20), False)])
    context.fork(0, [253, 254], 20)
    rows = []
    for seq_id in (0, 254):
        context.write_state(seq_id, context.read_state(254))
        rows.append(next_logits(context, seq_id))
    context.close()
    assert (rows[0] == rows[1]).all()
    with pytest.raises(ValueError, match="at most 255"):
        Context(model, n_seq=256, n_cells=512, is_shared=True)
