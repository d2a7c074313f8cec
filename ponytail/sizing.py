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
# llama.cpp takes 256 sequence ids, and the pool needs one of them for itself.
_MAX_SHARED = 255
# What memory holds of a model whose memory does not grow with the text.
_BOUNDLESS = 1 << 40
# Cells at start: about this much memory, so that a server opens at once; more when needed.
START_BYTES = 384 << 20
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
    """What was asked; None and 0 are chosen.  At most one of `kv_cells` and `kv_memory`."""

    ctx_size: int | None = None
    parallel: int = 0
    layout: Literal["auto", "shared", "split"] = "auto"
    kv_cells: int | None = None
    kv_memory: Amount | None = None

    @property
    def capacity(self) -> str:
        """The flag that asks for a capacity, with its value."""
        asks_cells = self.kv_cells is not None
        return f"--kv-cells {self.kv_cells}" if asks_cells else f"--kv-memory {self.kv_memory}"


@dataclass(frozen=True, slots=True)
class _Case:
    """What the decision depends on; memory counted in cells, half of it and all of it."""

    window: int
    bytes_per_cell: int
    available_bytes: int
    n_half: int
    n_all: int
    wish: Wish
    can_share: bool

    @property
    def may_share(self) -> bool:
        return self.can_share and self.wish.layout != "split" and self.wish.parallel <= _MAX_SHARED

    @property
    def useful_ctx(self) -> int:
        """The context that as many requests as possible should have."""
        return self.wish.ctx_size or min(self.window, _AUTO_TOKENS)


@dataclass(frozen=True, slots=True)
class _Choice:
    ctx: int
    parallel: int
    layout: Layout
    n_cells: int


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

    - The capacity is what was asked, otherwise at most half of what is available; a context
      that was asked may take more than half, as much as it needs, up to all.  It is never
      more than all requests can use.
    - Split where that holds a whole context for each request, otherwise shared.
    - Nothing asked: 4, 2 or 1 requests of 8,192 tokens (or of a smaller window), as many as
      fit, then the longest context that all of them can have.  Where just one fits, but
      half as much again is left: 4 requests that share (an 8 GB laptop, a small container).
    - `parallel` alone asked: a context is not cut below 8,192 tokens (or the window, or two
      thirds of the pool) so that each has its own: few use all of theirs at once.
    - A capacity alone asked: 4 requests, each of which may use all of it, up to the window.

    Without `can_share` the memory of this kind of model has no pool: always split.
    Raises BadConfig, with the numbers and with what would fit.
    """
    case = _case(n_ctx_train, kv_bytes_per_token, available_bytes, wish, can_share)
    _ensure_layout(case)
    n_asked = _asked_cells(case)
    if n_asked is None:
        choice = _from_memory(case)
        _ensure_memory(case, choice)
    else:
        choice = _from_capacity(case, n_asked)
        _ensure_capacity(case, choice)
    n_cells = choice.n_cells
    return Sizing(
        ctx=choice.ctx,
        parallel=choice.parallel,
        layout=choice.layout,
        n_cells=n_cells,
        kv_bytes=n_cells * kv_bytes_per_token,
        n_cells_start=_start(choice, kv_bytes_per_token),
        n_cells_max=n_cells // choice.parallel if choice.layout == "split" else n_cells,
        reason=_reason(case, choice, n_asked),
    )


def ram_bytes(amount: Amount | None, available_bytes: int) -> int:
    """The budget of the RAM tier; by default a tenth of what is available.

    Raises BadConfig when it is more than that: the process would be killed when it is used.
    """
    if amount is None:
        return available_bytes // 10
    n_bytes = amount.of(available_bytes)
    if n_bytes > available_bytes:
        raise BadConfig(
            f"--kv-ram {amount} ({_size(n_bytes)}) is more than the {available_bytes} bytes "
            f"({_size(available_bytes)}) that are available",
            param="kv_ram",
        )
    return n_bytes


def _case(
    window: int, bytes_per_cell: int, available_bytes: int, wish: Wish, can_share: bool
) -> _Case:
    def cells(n_bytes: int) -> int:
        return n_bytes // bytes_per_cell // PAD * PAD if bytes_per_cell else _BOUNDLESS

    n_half, n_all = cells(available_bytes // 2), cells(available_bytes)
    return _Case(window, bytes_per_cell, available_bytes, n_half, n_all, wish, can_share)


def _ensure_layout(case: _Case) -> None:
    if case.wish.layout != "shared" or case.may_share:
        return
    if case.can_share:
        problem = f"at most {_MAX_SHARED} requests can share, --parallel is {case.wish.parallel}"
    else:
        problem = "the memory of this kind of model has no pool of cells; leave it at auto"
    raise BadConfig(f"--kv-layout shared: {problem}", param="kv_layout")


def _asked_cells(case: _Case) -> int | None:
    """The capacity that was asked, a multiple of PAD; None where cells cost nothing."""
    wish = case.wish
    if case.bytes_per_cell == 0:
        return None
    if wish.kv_cells is not None:
        return padded(wish.kv_cells)
    if wish.kv_memory is None:
        return None
    n_bytes = wish.kv_memory.of(case.available_bytes)
    n_cells = n_bytes // case.bytes_per_cell
    if n_cells < PAD:
        least = PAD * case.bytes_per_cell
        raise BadConfig(
            f"{wish.capacity} holds {n_cells} KV cells of {case.bytes_per_cell} bytes, but at "
            f"least {PAD} are needed: {least} bytes ({_size(least)})",
            param="kv_memory",
        )
    return n_cells // PAD * PAD


def _from_capacity(case: _Case, n_cells: int) -> _Choice:
    wish = case.wish
    if not case.may_share:
        return _split_capacity(case, n_cells)
    if wish.ctx_size is not None and wish.ctx_size > n_cells:
        raise BadConfig(
            f"--ctx-size {wish.ctx_size} is more than the {n_cells} cells of {wish.capacity}: "
            f"--ctx-size {n_cells} or {_enough(case, padded(wish.ctx_size))} would fit",
            param="ctx_size",
        )
    parallel = wish.parallel or _AUTO_PARALLEL[0]
    ctx = wish.ctx_size or min(case.window, n_cells)
    most = padded(ctx) * parallel
    layout: Layout = "split" if most <= n_cells and wish.layout != "shared" else "shared"
    return _Choice(ctx, parallel, layout, min(most, n_cells))


def _split_capacity(case: _Case, n_cells: int) -> _Choice:
    wish = case.wish
    parallel = wish.parallel or _most_parallel(n_cells, case.useful_ctx)
    n_each = n_cells // parallel // PAD * PAD
    ctx = wish.ctx_size or min(case.window, n_each)
    if n_each < padded(ctx) or n_each == 0:
        least = padded(wish.ctx_size or PAD)
        fits = [_enough(case, least * parallel)]
        if n_each and wish.ctx_size:
            fits.append(f"--ctx-size {n_each}")
        if case.can_share and parallel <= _MAX_SHARED and least <= n_cells:
            fits.append("--kv-layout shared")
        why = (
            "--kv-layout split" if wish.layout == "split" else "this model (its memory has no pool)"
        )
        raise BadConfig(
            f"{why} divides the {n_cells} cells of {wish.capacity} among {parallel} requests: "
            f"{n_each} for each, which is less than {least}; {' or '.join(fits)} would fit",
            param="kv_cells" if wish.kv_cells is not None else "kv_memory",
        )
    return _Choice(ctx, parallel, "split", padded(ctx) * parallel)


def _enough(case: _Case, n_cells: int) -> str:
    n_mib = -(-n_cells * case.bytes_per_cell // 2**20)
    return f"--kv-memory {n_mib}MiB" if case.wish.kv_cells is None else f"--kv-cells {n_cells}"


def _ensure_capacity(case: _Case, choice: _Choice) -> None:
    if choice.n_cells <= case.n_all:
        return
    n_bytes = choice.n_cells * case.bytes_per_cell
    raise BadConfig(
        f"{case.wish.capacity} is {choice.n_cells} KV cells of {case.bytes_per_cell} bytes: "
        f"{n_bytes} bytes ({_size(n_bytes)}), but {case.available_bytes} bytes "
        f"({_size(case.available_bytes)}) are available, which hold {case.n_all} cells",
        param="kv_cells" if case.wish.kv_cells is not None else "kv_memory",
    )


def _from_memory(case: _Case) -> _Choice:
    split = _split_memory(case)
    if not case.may_share:
        return split
    if case.wish.layout == "shared":
        return _pool_memory(case, case.window)
    pool = _pool_memory(case, min(case.window, _AUTO_TOKENS))
    return pool if _is_pool_better(case, split, pool) else split


def _split_memory(case: _Case) -> _Choice:
    wish = case.wish
    parallel = wish.parallel or _most_parallel(case.n_half, case.useful_ctx)
    ctx = wish.ctx_size or _longest(case.window, case.n_half // parallel)
    return _Choice(ctx, parallel, "split", padded(ctx) * parallel)


def _pool_memory(case: _Case, most_ctx: int) -> _Choice:
    """A pool of half the memory, of which a context that was not asked is two thirds at most."""
    wish = case.wish
    parallel = wish.parallel or _AUTO_PARALLEL[0]
    ctx = wish.ctx_size or _longest(
        most_ctx, case.n_half if parallel == 1 else 2 * case.n_half // 3
    )
    n_cells = min(case.n_all, max(case.n_half, padded(ctx)))
    return _Choice(ctx, parallel, "shared", min(n_cells, padded(ctx) * parallel))


def _is_pool_better(case: _Case, split: _Choice, pool: _Choice) -> bool:
    if split.n_cells > case.n_all:
        return pool.n_cells >= padded(pool.ctx)
    if case.wish.parallel:
        return pool.ctx > split.ctx
    is_enough = 2 * case.n_half >= max(3 * padded(case.useful_ctx), 2 * _START_SHARED)
    return split.parallel == 1 and is_enough


def _most_parallel(n_cells: int, n_tokens: int) -> int:
    ctx = padded(n_tokens)
    return next((n for n in _AUTO_PARALLEL if ctx * n <= n_cells), 1)


def _longest(window: int, n_cells: int) -> int:
    """The window, or what fits of it, and at least the smallest context."""
    return min(window, max(_SMALLEST_CTX, n_cells // PAD * PAD))


def _ensure_memory(case: _Case, choice: _Choice) -> None:
    ctx, parallel = choice.ctx, choice.parallel
    n_needed = padded(ctx) * (1 if case.may_share else parallel)
    if max(n_needed, choice.n_cells) <= case.n_all:
        return
    what = f"--ctx-size {ctx}" if case.may_share else f"--ctx-size {ctx} with --parallel {parallel}"
    whose = " of one request" if case.may_share else ""
    n_bytes = n_needed * case.bytes_per_cell
    raise BadConfig(
        f"{what} needs {n_bytes} bytes ({_size(n_bytes)}) for the KV cache{whose}, but "
        f"{case.available_bytes} bytes ({_size(case.available_bytes)}) are available; "
        f"{_what_fits(case, ctx, parallel)}",
        param="ctx_size",
    )


def _what_fits(case: _Case, ctx: int, parallel: int) -> str:
    window = max(case.window, ctx)
    fits = []
    if case.may_share:
        shorter = _longest(window, case.n_all)
        if padded(shorter) <= case.n_all:
            fits.append(f"--ctx-size {shorter}")
    else:
        shorter = _longest(window, case.n_half // parallel)
        if padded(shorter) * parallel <= case.n_all:
            fits.append(f"--ctx-size {shorter} with --parallel {parallel}")
        fewer = min(parallel - 1, case.n_half // padded(ctx))
        if fewer > 0:
            fits.append(f"--ctx-size {ctx} with --parallel {fewer}")
        if case.can_share and parallel <= _MAX_SHARED and padded(ctx) <= case.n_all:
            fits.append("--kv-layout shared")
    return f"{' or '.join(fits)} would fit" if fits else "no context fits"


def _start(choice: _Choice, bytes_per_cell: int) -> int:
    n_cheap = START_BYTES // bytes_per_cell if bytes_per_cell else choice.n_cells
    if choice.layout == "shared":
        return min(choice.n_cells, max(_START_SHARED, n_cheap // PAD * PAD))
    n_each = n_cheap // choice.parallel // PAD * PAD
    return min(choice.n_cells // choice.parallel, max(_START_SPLIT, n_each))


def _reason(case: _Case, choice: _Choice, n_asked: int | None) -> str:
    wish, ctx, parallel = case.wish, choice.ctx, choice.parallel
    whence = "memory" if n_asked is None else wish.capacity
    if wish.ctx_size:
        words = [f"ctx {ctx} as asked"]
        if ctx > case.window:
            words.append(
                f"longer than the {case.window} the model was trained on, so it may ramble"
            )
    elif ctx == case.window:
        words = [f"ctx {ctx} is the model's whole window"]
    else:
        words = [f"ctx {ctx} of the model's window of {case.window}, to fit in {whence}"]
    words.append(f"parallel {parallel} " + ("as asked" if wish.parallel else f"from {whence}"))
    words.append(_layout_words(choice, wish.layout != "auto"))
    if n_asked is not None and n_asked > choice.n_cells:
        words.append(f"{wish.capacity} is cut to the {choice.n_cells} cells that they can use")
    if case.bytes_per_cell == 0:
        words.append("this model's memory does not grow with the text")
        if wish.kv_cells is not None or wish.kv_memory is not None:
            words.append(f"so {wish.capacity} has no effect")
    share = "within half of" if choice.n_cells <= case.n_half else "more than half of"
    n_bytes = choice.n_cells * case.bytes_per_cell
    words.append(
        f"KV up to {_size(n_bytes)} is {share} the {_size(case.available_bytes)} available"
    )
    return "; ".join(words)


def _layout_words(choice: _Choice, is_asked: bool) -> str:
    ctx, parallel = choice.ctx, choice.parallel
    requests = "1 request" if parallel == 1 else f"{parallel} requests"
    layout = f"layout {choice.layout}" + (" as asked" if is_asked else "")
    if choice.layout == "split":
        return f"{layout}: {requests} of {ctx} " + ("fits" if parallel == 1 else "fit")
    return f"{layout}: a pool of {choice.n_cells} cells for {requests} of up to {ctx}"


def _size(n_bytes: int) -> str:
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.1f} GiB"
    return f"{n_bytes / 2**20:.1f} MiB"
