"""Context, requests at once and KV cells from memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponytail.errors import BadConfig
from ponytail.setting import Amount
from ponytail.sizing import Sizing, Wish, choose, padded, ram_bytes

KIB, MIB, GIB = 2**10, 2**20, 2**30
# SmolLM2-135M, and an 8B model with grouped queries, at f16.
TOKEN, TOKEN_8B = 23_040, 131_072


def size(window: int, token: int, available: int, *, can_share: bool = True, **wish: Any) -> Sizing:
    return choose(window, token, available, Wish(**wish), can_share=can_share)


def test_plenty_of_memory_gives_the_whole_window_to_four() -> None:
    sizing = size(8192, TOKEN, 16 * GIB)
    assert (sizing.ctx, sizing.parallel, sizing.layout) == (8192, 4, "split")
    assert (sizing.n_cells, sizing.n_cells_max) == (32_768, 8192)
    assert sizing.kv_bytes == 32_768 * TOKEN
    assert "ctx 8192 is the model's whole window; parallel 4 from memory" in sizing.reason
    assert "layout split: 4 requests of 8192 fit" in sizing.reason


@pytest.mark.parametrize(("available", "parallel"), [(8192, 4), (8191, 2), (4096, 2), (4095, 1)])
def test_auto_parallel_is_the_most_that_leaves_half_free(available: int, parallel: int) -> None:
    # A window of 1024 tokens of 1 byte: 4 requests take 4096 of the 8192.
    assert size(1024, 1, available).parallel == parallel


def test_a_long_window_is_not_cut_below_8192_where_a_pool_holds_it() -> None:
    # An 8 GB laptop with an 8B model: some 3 GB are left when the weights are in.
    sizing = size(131_072, TOKEN_8B, 3 * GIB)
    assert (sizing.ctx, sizing.parallel, sizing.layout) == (8192, 4, "shared")
    sizing = size(131_072, TOKEN_8B, 4 * GIB, parallel=4)
    assert (sizing.ctx, sizing.layout, sizing.n_cells) == (8192, "shared", 16_384)
    assert "layout shared: a pool of 16384 cells for 4 requests of up to 8192" in sizing.reason


def test_a_small_container_gets_what_fits_it() -> None:
    sizing = size(8192, TOKEN, 600 * MIB)
    assert sizing.kv_bytes <= 300 * MIB
    assert (sizing.ctx, sizing.parallel, sizing.n_cells) == (8192, 4, 13_568)


def test_ctx_is_per_request_and_four_of_them_share_what_is_less() -> None:
    sizing = size(8192, TOKEN, 16 * GIB, ctx_size=4096, parallel=4)
    assert (sizing.ctx, sizing.layout, sizing.n_cells) == (4096, "split", 16_384)
    sizing = size(8192, TOKEN, 16 * GIB, ctx_size=4096, parallel=4, kv_cells=6000)
    assert (sizing.ctx, sizing.layout, sizing.n_cells) == (4096, "shared", 6144)


def test_what_was_asked_may_take_more_than_half_of_the_memory() -> None:
    sizing = size(8192, TOKEN, 200 * MIB, ctx_size=6000, parallel=2)
    assert (sizing.ctx, sizing.layout, sizing.n_cells) == (6000, "shared", 6144)
    assert "more than half of the 200.0 MiB available" in sizing.reason


def test_ctx_is_enforced_as_asked_while_cells_are_padded() -> None:
    sizing = size(8192, 1, GIB, ctx_size=1000, parallel=3)
    assert (sizing.ctx, sizing.n_cells_max, sizing.n_cells) == (1000, 1024, 3072)


def test_tiny_window_is_used_whole() -> None:
    assert size(64, 1, GIB).ctx == 64


def test_model_without_kv_takes_no_memory() -> None:
    sizing = size(4096, 0, 0, can_share=False)
    assert (sizing.ctx, sizing.parallel, sizing.kv_bytes) == (4096, 4, 0)


def test_ctx_beyond_the_window_is_honoured_and_said() -> None:
    sizing = size(2048, 1, GIB, ctx_size=4096, parallel=1)
    assert sizing.ctx == 4096
    assert "longer than the 2048 the model was trained on" in sizing.reason


def test_a_capacity_may_be_bytes_or_a_share() -> None:
    assert size(8192, TOKEN, 16 * GIB, kv_memory=Amount(share=0.01)).n_cells == 7424
    sizing = size(8192, TOKEN, 16 * GIB, kv_memory=Amount(n_bytes=512 * MIB), parallel=4)
    assert sizing.kv_bytes <= 512 * MIB
    assert (sizing.layout, sizing.ctx) == ("shared", 8192)


def test_more_cells_than_all_requests_can_use_are_not_made() -> None:
    sizing = size(2048, TOKEN, 16 * GIB, kv_cells=100_000, parallel=2)
    assert sizing.n_cells == 4096
    assert "--kv-cells 100000 is cut to the 4096 cells that they can use" in sizing.reason


def test_a_layout_that_was_asked_is_kept() -> None:
    sizing = size(8192, TOKEN, 16 * GIB, parallel=4, layout="shared")
    assert (sizing.layout, sizing.n_cells, sizing.n_cells_max) == ("shared", 32_768, 32_768)
    sizing = size(8192, TOKEN, 16 * GIB, parallel=4, layout="split", kv_cells=8192)
    assert (sizing.layout, sizing.ctx, sizing.n_cells_max) == ("split", 2048, 2048)


def test_few_cells_at_start_whatever_the_capacity() -> None:
    split = size(8192, TOKEN, 16 * GIB, ctx_size=8192, parallel=16)
    assert (split.n_cells, split.n_cells_start) == (131_072, 1024)
    shared = size(8192, TOKEN, 16 * GIB, ctx_size=8192, parallel=16, layout="shared")
    assert (shared.n_cells, shared.n_cells_start) == (131_072, 17_408)
    assert size(64, TOKEN, GIB, parallel=1).n_cells_start == 256


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (
            {"ctx_size": 8192, "parallel": 4, "kv_cells": 4096},
            "--ctx-size 8192 is more than the 4096 cells of --kv-cells 4096: "
            "--ctx-size 4096 or --kv-cells 8192 would fit",
        ),
        (
            {"ctx_size": 8192, "kv_memory": Amount(share=0.1)},
            "--ctx-size 8192 is more than the 4096 cells of --kv-memory 10%: "
            "--ctx-size 4096 or --kv-memory 8MiB would fit",
        ),
        (
            {"ctx_size": 4096, "parallel": 4, "kv_cells": 8192, "layout": "split"},
            "--kv-layout split divides the 8192 cells of --kv-cells 8192 among 4 requests: 2048 "
            "for each, which is less than 4096; "
            "--kv-cells 16384 or --ctx-size 2048 or --kv-layout shared would fit",
        ),
        ({"kv_cells": 100_000}, "which hold 40960 cells"),
        ({"kv_memory": Amount(n_bytes=GIB)}, "but 41943040 bytes (40.0 MiB) are available"),
        ({"ctx_size": 65_536, "parallel": 4}, "needs 67108864 bytes (64.0 MiB)"),
        (
            {"ctx_size": 16_384, "parallel": 4, "layout": "split"},
            "--ctx-size 5120 with --parallel 4 or --ctx-size 16384 with --parallel 1 or "
            "--kv-layout shared would fit",
        ),
        ({"kv_memory": Amount(n_bytes=1000)}, "--kv-memory 1000 bytes holds 0 KV cells"),
        ({"layout": "split", "kv_cells": 256, "parallel": 8}, "--kv-cells 2048 or"),
        ({"layout": "shared", "parallel": 256}, "at most 255 requests can share"),
    ],
)
def test_refusals_have_the_numbers_and_what_would_fit(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        size(32_768, KIB, 40 * MIB, **wish)
    assert words in str(caught.value)


def test_a_memory_without_a_pool_is_never_shared() -> None:
    sizing = size(8192, KIB, 40 * MIB, parallel=4, can_share=False)
    assert (sizing.layout, sizing.ctx) == ("split", 5120)
    with pytest.raises(BadConfig, match="has no pool"):
        size(8192, KIB, 40 * MIB, parallel=4, layout="shared", can_share=False)


def test_host_memory_for_prefixes_is_a_tenth_by_default_and_may_be_nothing() -> None:
    assert ram_bytes(None, GIB) == GIB // 10
    assert ram_bytes(Amount(n_bytes=0), GIB) == 0
    assert ram_bytes(Amount(share=0.5), GIB) == GIB // 2


def test_no_room_for_the_smallest_context_is_refused() -> None:
    with pytest.raises(BadConfig, match="no context fits"):
        size(8192, MIB, 100 * MIB)


def test_explicit_values_that_all_of_the_memory_holds_stay_split() -> None:
    sizing = size(8192, TOKEN, 200 * MIB, ctx_size=4096, parallel=2)
    assert (sizing.ctx, sizing.parallel, sizing.layout) == (4096, 2, "split")
    assert "more than half of the 200.0 MiB available" in sizing.reason


def test_a_capacity_alone_is_a_pool_that_each_request_may_use_whole() -> None:
    sizing = size(131_072, TOKEN, 16 * GIB, kv_cells=12_288)
    assert (sizing.ctx, sizing.parallel, sizing.layout) == (12_288, 4, "shared")
    assert "to fit in --kv-cells 12288; parallel 4 from --kv-cells 12288" in sizing.reason
    sizing = size(2048, TOKEN, 16 * GIB, kv_cells=12_288, parallel=4)
    assert (sizing.ctx, sizing.layout, sizing.n_cells) == (2048, "split", 8192)


def test_auto_parallel_follows_the_ctx_that_was_asked() -> None:
    assert size(131_072, 1, 2 * 32_768, ctx_size=32_768).parallel == 1
    assert size(131_072, 1, 2 * 32_768, ctx_size=16_384).parallel == 2


def test_more_requests_than_can_share_are_split() -> None:
    sizing = size(8192, KIB, GIB, parallel=256)
    assert (sizing.layout, sizing.ctx) == ("split", 2048)


def test_a_capacity_has_no_effect_where_memory_does_not_grow() -> None:
    sizing = size(4096, 0, GIB, kv_cells=1024, parallel=2, can_share=False)
    assert (sizing.ctx, sizing.n_cells, sizing.kv_bytes) == (4096, 8192, 0)
    assert "so --kv-cells 1024 has no effect" in sizing.reason


def test_host_memory_beyond_what_is_available_is_refused() -> None:
    with pytest.raises(BadConfig, match="is more than the 1073741824 bytes"):
        ram_bytes(Amount(n_bytes=2 * GIB), GIB)


FIELDS = {
    "--ctx-size": "ctx_size",
    "--parallel": "parallel",
    "--kv-cells": "kv_cells",
    "--kv-layout": "layout",
}


def _value(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def _refusal(window: int, available: int, can_share: bool, wish: dict[str, Any]) -> str | None:
    try:
        size(window, KIB, available, can_share=can_share, **wish)
    except BadConfig as error:
        return str(error)
    return None


OFFER = re.compile(r"(--[a-z-]+ \S+(?: with --parallel \d+)?)(?= or | would fit)")


@given(
    window=st.sampled_from([64, 2048, 10_000, 131_072]),
    n_available=st.integers(0, 60_000),
    ctx=st.none() | st.integers(16, 60_000),
    parallel=st.integers(0, 256),
    layout=st.sampled_from(["auto", "split", "shared"]),
    kv_cells=st.none() | st.integers(256, 40_000),
    can_share=st.booleans(),
)
def test_what_a_refusal_offers_is_not_refused_for_the_same_reason(
    window: int,
    n_available: int,
    ctx: int | None,
    parallel: int,
    layout: str,
    kv_cells: int | None,
    can_share: bool,
) -> None:
    wish: dict[str, Any] = {"ctx_size": ctx, "parallel": parallel, "layout": layout}
    wish["kv_cells"] = kv_cells
    refusal = _refusal(window, n_available * KIB, can_share, wish)
    for offer in OFFER.findall(refusal or ""):
        words = [w for w in offer.split() if w != "with"]
        other = {FIELDS[words[i]]: _value(words[i + 1]) for i in range(0, len(words), 2)}
        again = _refusal(window, n_available * KIB, can_share, wish | other)
        # A capacity that would do may be more than there is: that is said next.
        assert again is None or "are available, which hold" in again, (offer, refusal)


@given(
    window=st.integers(1, 200_000),
    token=st.integers(0, 10**6),
    available=st.integers(0, 2**38),
    ctx=st.none() | st.integers(16, 200_000),
    parallel=st.integers(0, 64),
    layout=st.sampled_from(["auto", "split", "shared"]),
    kv_cells=st.none() | st.integers(256, 10**6),
    can_share=st.booleans(),
)
def test_choice_keeps_its_promises(
    window: int,
    token: int,
    available: int,
    ctx: int | None,
    parallel: int,
    layout: str,
    kv_cells: int | None,
    can_share: bool,
) -> None:
    wish = {"ctx_size": ctx, "parallel": parallel, "layout": layout, "kv_cells": kv_cells}
    try:
        sizing = size(window, token, available, can_share=can_share, **wish)
    except BadConfig:
        least = padded(min(window, 256) if ctx is None else ctx) * token
        is_hopeless = least > available or (layout == "shared" and not can_share)
        assert is_hopeless or kv_cells is not None or layout == "split" or not can_share
        return
    assert sizing.kv_bytes == sizing.n_cells * token <= available
    assert padded(sizing.ctx) <= sizing.n_cells
    assert sizing.layout == "split" or can_share
    assert layout in ("auto", sizing.layout)
    assert ctx is None or sizing.ctx == ctx
    assert parallel == 0 or sizing.parallel == parallel
    assert ctx is not None or sizing.ctx <= window
    assert 0 < sizing.n_cells_start <= sizing.n_cells_max
    assert sizing.n_cells_start % 256 == sizing.n_cells_max % 256 == 0
    each = sizing.n_cells_max * (sizing.parallel if sizing.layout == "split" else 1)
    assert each == sizing.n_cells
    if ctx is None and kv_cells is None:
        assert 2 * sizing.kv_bytes <= available or sizing.ctx <= 256
