"""How many threads compute a single row: measured, not assumed.

Owns one small experiment.  With one row per step the cores mostly wait for each
other; often one thread fewer is as fast, and the core it leaves runs the HTTP side.
Pure; engine thread.
"""

from __future__ import annotations

from statistics import median

_N_TRIAL = 12
# The fewer threads win only if they cost nothing.
_TOLERANCE = 1.0


class ThreadTuner:
    """Says how many threads the next single-row step should use.

    Tries `n_threads` and one fewer in turn for the first steps, then keeps the
    better.  With `n_threads` 1, or when the number is fixed, there is nothing to try.
    """

    def __init__(self, n_threads: int, *, is_fixed: bool = False) -> None:
        self.is_settled = is_fixed or n_threads == 1
        self._choices = (n_threads,) if self.is_settled else (n_threads, n_threads - 1)
        self._seconds: dict[int, list[float]] = {n: [] for n in self._choices}
        self.n_threads = n_threads

    def observe(self, seconds: float) -> None:
        """One single-row step took that long with the current number of threads."""
        if self.is_settled:
            return
        self._seconds[self.n_threads].append(seconds)
        most, fewer = self._choices[0], self._choices[-1]
        if all(len(s) >= _N_TRIAL for s in self._seconds.values()):
            # The first steps of each number carry its start-up; the medians do not.
            is_cheap = median(self._seconds[fewer]) <= _TOLERANCE * median(self._seconds[most])
            self.n_threads = fewer if is_cheap else most
            self.is_settled = True
        elif len(self._seconds[self.n_threads]) % (_N_TRIAL // 2) == 0:
            self.n_threads = fewer if self.n_threads == most else most
