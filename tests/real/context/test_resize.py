"""Other numbers of cells: what is held moves, bit by bit, and nothing is lost when it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from ponytail.errors import DecodeError
from ponytail.llama.capi import lib
from ponytail.types import Sampling
from tests.real.context.cells import (
    TEXTS,
    TOLERANCE,
    ids,
    next_logits,
    opened,
    resize,
    resizing_threads,
    words,
)

pytestmark = pytest.mark.real


def test_a_resize_keeps_what_it_is_told_bit_identical(model, context):
    tokens = ids(model, TEXTS[2])
    n = len(tokens)
    context.decode([(0, 0, tokens, False), (1, 0, words(30), False)])
    context.fork(0, [2], n)
    wanted = next_logits(context, 0)
    in_pool, in_streams = [(0, 10, [0, 2]), (10, n, [0, 2])], [(0, n, [0]), (0, n, [2])]
    spans = in_pool if context.is_shared else in_streams
    mib_per_cell = context.kv_mib / context.n_cells
    for n_cells in (2048, 256):
        pointer = context.pointer
        resize(context, n_cells, spans)
        assert context.n_cells == n_cells
        assert context.pointer != pointer
        assert context.kv_mib == pytest.approx(mib_per_cell * n_cells)
        assert [context.n_tokens(i) for i in range(4)] == [n, 0, n, 0]
        for seq_id in (0, 2):
            assert (next_logits(context, seq_id) == wanted).all()
    assert not resizing_threads()


def test_a_sequence_may_use_more_cells_after_growing(tiny):
    resize(tiny, 2048, [])
    for start in range(0, 2048, 512):
        tiny.decode([(0, start, words(512), start == 1536)])
    sampler = tiny.open_sampler(Sampling(repeat_last_n=-1, repeat_penalty=1.1), 1, words(2000))
    (pick,) = tiny.sample([sampler])
    assert isinstance(pick, int)
    assert tiny.n_tokens(0) == 2048
    sampler.close()


def test_sharing_survives_a_resize(pool, has_room, fill):
    fill(pool, 0, 100)
    pool.fork(0, [1, 2], 100)
    pool.decode([(i, 100, words(10, 4000 + i), True) for i in range(3)])
    wanted = [next_logits(pool, i) for i in range(3)]
    spans = [(0, 100, [0, 1, 2]), *((100, 110, [i]) for i in range(3))]
    for n_cells in (512, 256):
        resize(pool, n_cells, spans)
        rows = [next_logits(pool, i) for i in range(3)]
        assert all(np.abs(a - b).max() < TOLERANCE for a, b in zip(rows, wanted, strict=True))
    assert has_room(pool, 126)
    assert not has_room(pool, 127)


def test_what_does_not_fit_leaves_the_old_cells_in_force(tiny):
    n = tiny.n_cells
    tiny.decode([(0, 0, words(260), False), (1, 0, words(20), False)])
    wanted = next_logits(tiny, 0)
    pointer = tiny.pointer
    with pytest.raises(DecodeError):
        resize(tiny, 256, [(0, 20, [1]), (0, 260, [0])])
    assert (tiny.pointer, tiny.n_cells) == (pointer, n)
    assert [tiny.n_tokens(i) for i in range(4)] == [260, 20, 0, 0]
    assert (next_logits(tiny, 0) == wanted).all()
    resize(tiny, 2048, [(0, 260, [0])])
    assert (next_logits(tiny, 0) == wanted).all()


def test_work_goes_on_beside_a_resize(context):
    context.begin_resize(2048)
    context.decode([(0, 0, words(30), False)])
    wanted = next_logits(context, 0)
    context._opening.take()
    assert context.is_resized()
    context.finish_resize([(0, 30, [0])])
    assert (next_logits(context, 0) == wanted).all()


def test_threads_set_stay_set_after_a_resize(context):
    context.set_threads(3)
    resize(context, 256, [])
    assert lib.llama_n_threads(context.pointer) == 3
    assert lib.llama_n_threads_batch(context.pointer) == 1


def test_a_resize_given_up_leaves_no_thread_and_no_change(context):
    context.decode([(0, 0, words(30), False)])
    wanted = next_logits(context, 0)
    for _ in range(2):
        context.begin_resize(2048)
        context.cancel_resize()
        assert not resizing_threads()
    context.cancel_resize()
    assert (next_logits(context, 0) == wanted).all()


def test_closing_ends_a_resize_in_flight(model):
    context = opened(model, 256, is_shared=False)
    context.begin_resize(2048)
    context.close()
    context.close()
    assert not resizing_threads()
    assert context.pointer is None


def test_cells_that_cannot_be_made_are_said_once(context, monkeypatch):
    context.decode([(0, 0, words(30), False)])
    monkeypatch.setattr(lib, "llama_init_from_model", lambda model, params: None)
    context.begin_resize(2048)
    context._opening.take()
    with pytest.raises(DecodeError):
        context.is_resized()
    monkeypatch.undo()
    resize(context, 2048, [(0, 30, [0])])
    assert context.n_tokens(0) == 30


def test_more_cells_than_announced_are_refused(context):
    with pytest.raises(ValueError, match="2048"):
        context.begin_resize(2049)
