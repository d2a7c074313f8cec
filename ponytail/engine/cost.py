"""What a step costs, learnt from the steps that ran.

Owns two small models: the time of a decoding batch by number of rows, and the time of
a prefill batch: fixed + n * (per_token + per_context * context).  Pure arithmetic;
engine thread.  The second is a least-squares fit over recent batches (weights decay by
_DECAY a batch), because attention makes a token dearer the more context it looks at.
Batches with fewer tokens than a tile take a slower path of the kernels; how much slower
is learnt apart.
"""

from __future__ import annotations

_DECAY = 0.93
_SMOOTHING = 0.2
# A first guess, used until something was measured; high, so that a first chunk is small.
_GUESS_PER_TOKEN_S = 0.004
_GUESS_SLOWDOWN = 1.5
_MAX_SLOWDOWN = 4.0
# Pulls the fit towards what was last believed when the batches seen do not tell.
_RIDGE = 1e-3


class StepCost:
    """Predicts batch times; observe every batch, ask `tokens_within` before one.

    `tile` is the number of tokens from which a chunk is on the fast path: of one sequence,
    or, with `is_whole`, of all of a batch together.
    """

    def __init__(self, tile: int = 1, *, is_whole: bool = False) -> None:
        self.tile = tile
        self.is_whole = is_whole
        self._decode_s: dict[int, float] = {}
        self._weights = [0.0, _GUESS_PER_TOKEN_S, 0.0]
        self._normal = [[0.0] * 3 for _ in range(3)]
        self._target = [0.0] * 3
        self._slowdown = _GUESS_SLOWDOWN if tile > 1 else 1.0

    def observe_decode(self, n_rows: int, seconds: float) -> None:
        """A batch of n_rows one-token rows took that long."""
        old = self._decode_s.get(n_rows, seconds)
        self._decode_s[n_rows] = old + _SMOOTHING * (seconds - old)

    def observe_prefill(
        self, n_tokens: int, context: float, seconds: float, *, is_tiled: bool = True
    ) -> None:
        """A batch of n_tokens at a mean context took that long; `is_tiled`: on the fast path."""
        predicted = self.prefill_s(n_tokens, context)
        # The slow path bounds the fast one from above: a prediction over it was wrong.
        if is_tiled or seconds < predicted:
            self._learn((1.0, float(n_tokens), n_tokens * context / 1024), seconds)
        if not is_tiled:
            slowdown = min(_MAX_SLOWDOWN, max(1.0, seconds / max(1e-6, predicted)))
            self._slowdown += _SMOOTHING * (slowdown - self._slowdown)

    def decode_s(self, n_rows: int) -> float:
        """Predicted seconds of a batch of n_rows one-token rows."""
        if n_rows == 0 or not self._decode_s:
            return 0.0
        known = self._decode_s.get(n_rows)
        if known is not None:
            return known
        nearest = min(self._decode_s, key=lambda n: abs(n - n_rows))
        return float(self._decode_s[nearest] * max(1.0, n_rows / nearest) ** 0.5)

    def prefill_s(self, n_tokens: int, context: float) -> float:
        """Predicted seconds of a batch of n_tokens at that mean context, on the fast path."""
        fixed, per_token, per_context = self._weights
        return fixed + n_tokens * (per_token + per_context * context / 1024)

    def tokens_within(self, seconds: float, context: float) -> int:
        """Tokens of one sequence whose prefill fits into that time; may be 0.

        Whole tiles where one fits, else what the slow path can do.
        """
        n = self._fast_tokens(seconds, context)
        return n // self.tile * self.tile if n >= self.tile else int(n / self._slowdown)

    def _fast_tokens(self, seconds: float, context: float) -> int:
        left = seconds - self._weights[0]
        if left <= 0:
            return 0
        n = left / self._each_s(context)
        # The chunk itself is context for its later half.
        return int(left / self._each_s(context + n / 2))

    def _each_s(self, context: float) -> float:
        return max(1e-7, self._weights[1] + self._weights[2] * context / 1024)

    def _learn(self, tokens: tuple[float, float, float], seconds: float) -> None:
        """One more equation, scaled so that relative errors count: small batches as much as big."""
        scale = 1 / max(seconds, 1e-6)
        x = [value * scale for value in tokens]
        for i in range(3):
            self._target[i] = _DECAY * self._target[i] + x[i]
            for j in range(3):
                self._normal[i][j] = _DECAY * self._normal[i][j] + x[i] * x[j]
        self._weights = _solve(self._normal, self._target, self._weights)


def _solve(a: list[list[float]], b: list[float], prior: list[float]) -> list[float]:
    """Weights >= 0 of a 3x3 normal system: what comes out negative is held at 0 in turn."""
    free = [0, 1, 2]
    while True:
        x = _ridge(a, b, prior, free)
        least = min(free, key=lambda i: x[i])
        if x[least] >= 0 or len(free) == 1:
            return [max(0.0, value) for value in x]
        free.remove(least)


def _ridge(
    a: list[list[float]], b: list[float], prior: list[float], free: list[int]
) -> list[float]:
    """Solution over the `free` unknowns, pulled towards `prior`; Gaussian elimination."""
    scale = [_RIDGE * a[i][i] + 1e-12 for i in range(3)]
    rows = [
        [a[i][j] + (scale[i] if i == j else 0.0) for j in free] + [b[i] + scale[i] * prior[i]]
        for i in free
    ]
    n = len(free)
    for i in range(n):
        for k in range(i + 1, n):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [rk - factor * ri for rk, ri in zip(rows[k], rows[i], strict=True)]
    x = [0.0, 0.0, 0.0]
    for i in reversed(range(n)):
        known = sum(rows[i][j] * x[free[j]] for j in range(i + 1, n))
        x[free[i]] = (rows[i][n] - known) / rows[i][i]
    return x
