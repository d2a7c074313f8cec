"""How long a context, how many requests at once and how many KV cells fit into memory.

Owns that one decision.  Pure: the caller brings the model's numbers and what
the machine has free.  Must not know files, cgroups or llama.cpp.  Any thread.

`ctx` is per request, always.  The capacity is a separate number: the cells (tokens) that
all requests have together.  When it holds a whole context for each of them the layout is
split, each with cells of its own; when it is less, they share one pool, and who may go on
is the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ponytail.errors import BadConfig
from ponytail.setting import Amount

Layout: TypeAlias = Literal["split", "shared"]

PAD = 256
"""llama.cpp rounds a sequence's cells up to a multiple of this."""

_AUTO_PARALLEL = (4, 2, 1)
_AUTO_TOKENS = 8192
_SMALLEST_CTX = 256
# Cells at start: about this much memory, so that a server opens at once; more when needed.
_START_BYTES = 128 << 20
_START_SPLIT, _START_SHARED = 512, 2048


@dataclass(frozen=True, slots=True)
class Sizing:
    """`ctx` tokens for each of `parallel` requests; `n_cells` and `kv_bytes` are the capacity.

    `n_cells_start` and `n_cells_max` are what the backend begins with and may grow to: of
    each sequence in the split layout, of all together in the shared one.
    """

    ctx: int
    parallel: int
    layout: Layout
    n_cells: int
    kv_bytes: int
    n_cells_start: int
    n_cells_max: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked; None and 0 are chosen."""

    ctx_size: int | None = None
    parallel: int = 0
    layout: Literal["auto", "shared", "split"] = "auto"
    kv_cells: int | None = None
    kv_memory: Amount | None = None


@dataclass(frozen=True, slots=True)
class _Room:
    """Cells that memory holds: `n_half` for what we choose, `n_all` for what was asked."""

    bytes_per_cell: int
    available_bytes: int
    n_half: int
    n_all: int


def padded(ctx: int) -> int:
    """`ctx` as llama.cpp allocates it."""
    return -(-ctx // PAD) * PAD


def choose(
    n_ctx_train: int,
    kv_bytes_per_token: int,
    available_bytes: int,
    wish: Wish,
    *,
    can_share: bool = True,
) -> Sizing:
    """Fit contexts and cells into memory.

    By default the cells of all take at most half of what is available; what was asked may
    take all of it.  Without `can_share` the memory of this kind of model has no pool.
    Raises BadConfig, with the numbers and with what would fit.
    """
    room = _room(kv_bytes_per_token, available_bytes)
    n_asked = _asked_cells(room, wish)
    n_budget = room.n_half if n_asked is None else n_asked
    parallel = wish.parallel or _choose_parallel(n_budget, wish.ctx_size or n_ctx_train)
    ctx = wish.ctx_size or _choose_ctx(n_budget, n_ctx_train, parallel, wish, can_share)
    if n_asked is None and padded(ctx) * parallel > room.n_half:
        # A context that was asked may take more than half; then as little more as it needs.
        n_budget = min(room.n_all, max(room.n_half, padded(ctx)))
        if wish.layout == "split" or not can_share:
            n_budget = min(room.n_all, padded(ctx) * parallel)
    layout = _choose_layout(n_budget, ctx, parallel, wish, can_share)
    _ensure_fits(room, n_ctx_train, ctx, parallel, n_budget, layout, n_asked is not None)
    most = padded(ctx) * parallel
    n_cells = most if layout == "split" else min(n_budget, most)
    return Sizing(
        ctx=ctx,
        parallel=parallel,
        layout=layout,
        n_cells=n_cells,
        kv_bytes=n_cells * kv_bytes_per_token,
        n_cells_start=_start(layout, n_cells, parallel, kv_bytes_per_token),
        n_cells_max=n_cells // parallel if layout == "split" else n_cells,
        reason=_reason(room, n_ctx_train, ctx, parallel, layout, n_cells, n_asked, wish),
    )


def _room(bytes_per_cell: int, available_bytes: int) -> _Room:
    if bytes_per_cell == 0:
        return _Room(0, available_bytes, 1 << 40, 1 << 40)
    n_all = available_bytes // bytes_per_cell // PAD * PAD
    n_half = available_bytes // 2 // bytes_per_cell // PAD * PAD
    return _Room(bytes_per_cell, available_bytes, n_half, n_all)


def _asked_cells(room: _Room, wish: Wish) -> int | None:
    """The capacity that was asked, a multiple of PAD."""
    if wish.kv_cells is not None:
        return padded(wish.kv_cells)
    if wish.kv_memory is None:
        return None
    n_bytes = wish.kv_memory.of(room.available_bytes)
    n_cells = n_bytes // room.bytes_per_cell // PAD * PAD if room.bytes_per_cell else 1 << 40
    if n_cells < PAD:
        raise BadConfig(
            f"--kv-memory {wish.kv_memory} holds {n_cells} cells of {room.bytes_per_cell} bytes; "
            f"at least {PAD} are needed ({_size(PAD * room.bytes_per_cell)})",
            param="kv_memory",
        )
    return n_cells


def _choose_parallel(n_budget: int, n_tokens: int) -> int:
    ctx = padded(min(n_tokens, _AUTO_TOKENS))
    return next((n for n in _AUTO_PARALLEL if ctx * n <= n_budget), 1)


def _choose_ctx(n_budget: int, window: int, parallel: int, wish: Wish, can_share: bool) -> int:
    """The whole window where all have it; else what the budget gives each.

    With a pool that is not less than 8,192 tokens (or the window) where the budget holds that
    for one and a half requests: few use all of their context at once.
    """
    if padded(window) * parallel <= n_budget:
        return window
    each = max(_SMALLEST_CTX, n_budget // parallel // PAD * PAD)
    useful = min(window, _AUTO_TOKENS)
    if can_share and wish.layout != "split" and 2 * n_budget >= 3 * padded(useful):
        each = max(each, useful)
    return min(each, window)


def _choose_layout(n_budget: int, ctx: int, parallel: int, wish: Wish, can_share: bool) -> Layout:
    if wish.layout == "shared":
        if not can_share:
            raise BadConfig(
                "--kv-layout shared: the memory of this kind of model (recurrent) has no pool; "
                "leave it at auto",
                param="kv_layout",
            )
        return "shared"
    if wish.layout == "split" or not can_share or padded(ctx) * parallel <= n_budget:
        return "split"
    return "shared"


def _ensure_fits(
    room: _Room,
    window: int,
    ctx: int,
    parallel: int,
    n_budget: int,
    layout: Layout,
    is_asked: bool,
) -> None:
    """Raise BadConfig when the capacity, or memory, cannot hold what is needed at least."""
    n_needed = padded(ctx) * (parallel if layout == "split" else 1)
    if is_asked and n_needed > n_budget:
        raise BadConfig(
            f"{n_budget} KV cells (--kv-cells or --kv-memory) are fewer than the {n_needed} that "
            f"--ctx-size {ctx} with --parallel {parallel} needs in the {layout} layout; "
            + _what_fits(window, ctx, parallel, n_budget, layout),
            param="kv_cells",
        )
    n_taken = n_needed if layout == "split" else min(n_budget, padded(ctx) * parallel)
    if max(n_needed, n_taken) > room.n_all:
        needed = max(n_needed, n_taken) * room.bytes_per_cell
        raise BadConfig(
            f"--ctx-size {ctx} with --parallel {parallel} needs {needed} bytes ({_size(needed)}) "
            f"for the KV cache in the {layout} layout, but {room.available_bytes} bytes "
            f"({_size(room.available_bytes)}) are available; "
            + _what_fits(window, ctx, parallel, room.n_all, layout),
            param="ctx_size",
        )


def _what_fits(window: int, ctx: int, parallel: int, n_cells: int, layout: Layout) -> str:
    fits = []
    n_each = n_cells // (parallel if layout == "split" else 1)
    smaller = _SMALLEST_CTX
    while 2 * smaller <= min(n_each, max(window, ctx)):
        smaller *= 2
    if smaller <= n_each and smaller < ctx:
        fits.append(f"--ctx-size {smaller} with --parallel {parallel}")
    fewer = min(parallel - 1, n_cells // padded(ctx)) if layout == "split" else 0
    if fewer > 0:
        fits.append(f"--ctx-size {ctx} with --parallel {fewer}")
    return f"{' or '.join(fits)} would fit" if fits else "no context fits"


def _start(layout: Layout, n_cells: int, parallel: int, bytes_per_cell: int) -> int:
    n_cheap = _START_BYTES // bytes_per_cell if bytes_per_cell else n_cells
    if layout == "shared":
        return min(n_cells, max(_START_SHARED, n_cheap // PAD * PAD))
    return min(n_cells // parallel, max(_START_SPLIT, n_cheap // parallel // PAD * PAD))


def _reason(
    room: _Room,
    window: int,
    ctx: int,
    parallel: int,
    layout: Layout,
    n_cells: int,
    n_asked: int | None,
    wish: Wish,
) -> str:
    if wish.ctx_size:
        words = [f"ctx {ctx} as asked"]
        if ctx > window:
            words.append(f"longer than the {window} the model was trained on, so it may ramble")
    elif ctx == window:
        words = [f"ctx {ctx} is the model's whole window"]
    else:
        words = [f"ctx {ctx} of the model's window of {window}, to fit in memory"]
    words.append(f"parallel {parallel} " + ("as asked" if wish.parallel else "from memory"))
    if layout == "split":
        words.append("layout split: each has cells for all of its ctx")
    else:
        words.append(f"layout shared: a pool of {n_cells} cells, each may use up to {ctx}")
    if n_asked is not None and n_asked > n_cells:
        words.append(f"more than {n_cells} cells are of no use")
    n_bytes = n_cells * room.bytes_per_cell
    share = "within half of" if n_cells <= room.n_half else "more than half of"
    words.append(f"KV up to {_size(n_bytes)} is {share} the {_size(room.available_bytes)} free")
    return "; ".join(words)


def ram_bytes(amount: Amount | None, available_bytes: int) -> int:
    """The budget of the RAM tier; by default a tenth of what is available."""
    return (amount or Amount(share=0.1)).of(available_bytes)


def _size(n_bytes: int) -> str:
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.1f} GiB"
    return f"{n_bytes / 2**20:.1f} MiB"
