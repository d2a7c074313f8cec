"""Context and parallelism from memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponytail.errors import BadConfig
from ponytail.sizing import choose, padded

KIB, MIB, GIB = 2**10, 2**20, 2**30
# SmolLM2-135M at f16.
TOKEN = 23_040


def test_plenty_of_memory_gives_the_whole_window_to_four() -> None:
    sizing = choose(8192, TOKEN, 16 * GIB, None, 0)
    assert (sizing.ctx, sizing.parallel, sizing.n_cells) == (8192, 4, 32_768)
    assert sizing.kv_bytes == 32_768 * TOKEN
    assert "ctx 8192 is the model's whole window; parallel 4 from memory" in sizing.reason


@pytest.mark.parametrize(("available", "parallel"), [(8192, 4), (8191, 2), (4096, 2), (4095, 1)])
def test_auto_parallel_is_the_most_that_leaves_half_free(available: int, parallel: int) -> None:
    # A window of 1024 tokens of 1 byte: 4 requests take 4096 of the 8192.
    assert choose(1024, 1, available, None, 0).parallel == parallel


def test_auto_parallel_asks_for_8192_tokens_each_of_a_long_window() -> None:
    sizing = choose(131_072, 1, 2 * 4 * 8192, None, 0)
    assert (sizing.ctx, sizing.parallel) == (8192, 4)
    assert "ctx 8192 of the model's window of 131072, to fit in memory" in sizing.reason


def test_auto_parallel_follows_the_ctx_that_was_asked() -> None:
    assert choose(131_072, 1, 2 * 32_768, 32_768, 0).parallel == 1
    assert choose(131_072, 1, 2 * 32_768, 16_384, 0).parallel == 2


def test_ctx_is_the_largest_power_of_two_that_fits() -> None:
    assert choose(10_000, 1, 2 * 10_240, None, 1).ctx == 10_000
    assert choose(10_000, 1, 2 * 10_239, None, 1).ctx == 8192
    assert choose(10_000, 1, 2 * 8191, None, 1).ctx == 4096
    assert choose(10_000, 1, 2 * 300, None, 1).ctx == 256


def test_explicit_values_are_honoured_beyond_half() -> None:
    sizing = choose(8192, TOKEN, 200 * MIB, 4096, 2)
    assert (sizing.ctx, sizing.parallel) == (4096, 2)
    assert "more than half of the 200.0 MiB available" in sizing.reason


def test_ctx_is_enforced_as_asked_while_cells_are_padded() -> None:
    sizing = choose(8192, 1, GIB, 1000, 3)
    assert (sizing.ctx, sizing.n_cells_per_seq, sizing.n_cells) == (1000, 1024, 3072)


def test_tiny_window_is_used_whole() -> None:
    assert choose(64, 1, GIB, None, 0).ctx == 64


def test_model_without_kv_takes_no_memory() -> None:
    sizing = choose(4096, 0, 0, None, 0)
    assert (sizing.ctx, sizing.parallel, sizing.kv_bytes) == (4096, 4, 0)


def test_ctx_beyond_the_window_is_honoured_and_said() -> None:
    sizing = choose(2048, 1, GIB, 4096, 1)
    assert sizing.ctx == 4096
    assert "longer than the 2048 the model was trained on" in sizing.reason


def test_refusal_names_both_numbers_and_what_would_fit() -> None:
    with pytest.raises(BadConfig) as caught:
        choose(32_768, KIB, 40 * MIB, 32_768, 4)
    message = str(caught.value)
    assert "--ctx-size 32768 with --parallel 4 needs 134217728 bytes (128.0 MiB)" in message
    assert "41943040 bytes (40.0 MiB) are available" in message
    assert "--ctx-size 4096 with --parallel 4 would fit" in message
    choose(32_768, KIB, 40 * MIB, 4096, 4)


def test_refusal_offers_fewer_requests_at_once() -> None:
    with pytest.raises(BadConfig, match="or --ctx-size 4096 with --parallel 3 would fit"):
        choose(4096, KIB, 30 * MIB, 4096, 8)


def test_no_room_for_the_smallest_context_is_refused() -> None:
    with pytest.raises(BadConfig, match="no context fits"):
        choose(8192, MIB, 100 * MIB, None, 0)


@given(
    window=st.integers(1, 200_000),
    token=st.integers(0, 10**6),
    available=st.integers(0, 2**38),
    ctx=st.none() | st.integers(16, 200_000),
    parallel=st.integers(0, 64),
)
def test_choice_keeps_its_promises(
    window: int, token: int, available: int, ctx: int | None, parallel: int
) -> None:
    least = padded(min(window, 256) if ctx is None else ctx) * (parallel or 1) * token
    if least > available:
        with pytest.raises(BadConfig):
            choose(window, token, available, ctx, parallel)
        return
    sizing = choose(window, token, available, ctx, parallel)
    assert sizing.kv_bytes == sizing.n_cells * token <= available
    assert sizing.n_cells == sizing.n_cells_per_seq * sizing.parallel
    assert sizing.n_cells_per_seq % 256 == 0
    assert 0 <= sizing.n_cells_per_seq - sizing.ctx < 256
    assert ctx is None or sizing.ctx == ctx
    assert parallel == 0 or sizing.parallel == parallel
    if ctx is None:
        assert sizing.ctx <= window
        assert 2 * sizing.kv_bytes <= available or sizing.ctx <= 256
