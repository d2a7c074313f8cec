"""How long a context and how many requests at once fit into memory.

Owns that one decision.  Pure: the caller brings the model's numbers and what
the machine has free.  Must not know files, cgroups or llama.cpp.  Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponytail.errors import BadConfig

PAD = 256
"""llama.cpp rounds a sequence's cells up to a multiple of this."""

_AUTO_PARALLEL = (4, 2, 1)
_AUTO_TOKENS = 8192
_SMALLEST_CTX = 256


@dataclass(frozen=True, slots=True)
class Sizing:
    """`ctx` tokens for each of `parallel` requests; `n_cells` and `kv_bytes` are what it costs."""

    ctx: int
    parallel: int
    n_cells: int
    n_cells_per_seq: int
    kv_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory as a number of cells: half of it for what we choose, all for what was asked."""

    bytes_per_cell: int
    available_bytes: int

    def has(self, ctx: int, parallel: int) -> bool:
        return 2 * self.cost(ctx, parallel) <= self.available_bytes

    def can_hold(self, ctx: int, parallel: int) -> bool:
        return self.cost(ctx, parallel) <= self.available_bytes

    def cost(self, ctx: int, parallel: int) -> int:
        return padded(ctx) * parallel * self.bytes_per_cell


def padded(ctx: int) -> int:
    """`ctx` as llama.cpp allocates it."""
    return -(-ctx // PAD) * PAD


def choose(
    n_ctx_train: int,
    kv_bytes_per_token: int,
    available_bytes: int,
    ctx_size: int | None,
    parallel: int,
) -> Sizing:
    """Fit the KV of all parallel requests into half of the memory that is available.

    `ctx_size` None and `parallel` 0 are chosen; given values are honoured, up to
    all of the memory.  Raises BadConfig, with the bytes and with what would fit,
    when even that is not enough.
    """
    room = _Room(kv_bytes_per_token, available_bytes)
    n_seq = parallel or _choose_parallel(room, ctx_size or min(n_ctx_train, _AUTO_TOKENS))
    ctx = ctx_size or _choose_ctx(room, n_ctx_train, n_seq)
    if not room.can_hold(ctx, n_seq):
        raise _refusal(room, n_ctx_train, ctx, n_seq)
    n_cells = padded(ctx) * n_seq
    return Sizing(
        ctx=ctx,
        parallel=n_seq,
        n_cells=n_cells,
        n_cells_per_seq=padded(ctx),
        kv_bytes=n_cells * kv_bytes_per_token,
        reason=_reason(room, n_ctx_train, ctx, n_seq, ctx_size is not None, parallel > 0),
    )


def _choose_parallel(room: _Room, n_tokens: int) -> int:
    return next((n for n in _AUTO_PARALLEL if room.has(n_tokens, n)), 1)


def _choose_ctx(room: _Room, window: int, parallel: int) -> int:
    if room.has(window, parallel):
        return window
    ctx = _SMALLEST_CTX
    while 2 * ctx < window and room.has(2 * ctx, parallel):
        ctx *= 2
    return min(ctx, window)


def _reason(
    room: _Room, window: int, ctx: int, parallel: int, ctx_given: bool, parallel_given: bool
) -> str:
    if ctx_given:
        words = [f"ctx {ctx} as asked"]
        if ctx > window:
            words.append(f"longer than the {window} the model was trained on, so it may ramble")
    elif ctx == window:
        words = [f"ctx {ctx} is the model's whole window"]
    else:
        words = [f"ctx {ctx} of the model's window of {window}, to fit in memory"]
    words.append(f"parallel {parallel} " + ("as asked" if parallel_given else "from memory"))
    cost = room.cost(ctx, parallel)
    share = "within half of" if room.has(ctx, parallel) else "more than half of"
    words.append(f"KV {_size(cost)} is {share} the {_size(room.available_bytes)} available")
    return "; ".join(words)


def _refusal(room: _Room, window: int, ctx: int, parallel: int) -> BadConfig:
    return BadConfig(
        f"--ctx-size {ctx} with --parallel {parallel} needs {room.cost(ctx, parallel)} bytes "
        f"({_size(room.cost(ctx, parallel))}) for the KV cache, but {room.available_bytes} bytes "
        f"({_size(room.available_bytes)}) are available; {_what_fits(room, window, ctx, parallel)}",
        param="ctx_size",
    )


def _what_fits(room: _Room, window: int, ctx: int, parallel: int) -> str:
    fits = []
    smaller = _choose_ctx(room, max(window, ctx), parallel)
    if room.can_hold(smaller, parallel):
        fits.append(f"--ctx-size {smaller} with --parallel {parallel}")
    fewer = next((n for n in range(parallel - 1, 0, -1) if room.has(ctx, n)), None)
    if fewer is not None:
        fits.append(f"--ctx-size {ctx} with --parallel {fewer}")
    return f"{' or '.join(fits)} would fit" if fits else "no context fits"


def _size(n_bytes: int) -> str:
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.1f} GiB"
    return f"{n_bytes / 2**20:.1f} MiB"
