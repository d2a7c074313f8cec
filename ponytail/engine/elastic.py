"""How many cells there are: few at start, more when they are needed, few again when idle.

Owns the resize in flight and when to begin one.  A resize makes the new cells in the
background while the old ones are in use, then moves what is held, which takes about as
long as copying it twice.  Must not know sequences or tiers.  Engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ponytail.engine.backend import Backend, Span
from ponytail.errors import DecodeError

_log = logging.getLogger("ponytail.engine")

PAD = 256
# Growing costs time each time, and making cells costs time by their number: a little more than
# is needed, and at least twice what there is.
_FACTOR = 2.0
_SPARE = 1.125
# After a growth that failed (no memory), so long none is tried; then just what is needed.
_RETRY_S = 5.0


class Elastic:
    """Between `n_start` and `n_max` cells, in the backend's sense of `n_cells`."""

    def __init__(
        self,
        backend: Backend,
        n_max: int,
        spans: Callable[[], Sequence[Span]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._spans = spans
        self._clock = clock
        self.n_start = backend.n_cells
        self.n_max = max(n_max, backend.n_cells)
        self.n_growths = 0
        self.n_shrinks = 0
        self._target: int | None = None
        self._began_at = 0.0
        self._failed_at: float | None = None

    @property
    def is_resizing(self) -> bool:
        return self._target is not None

    @property
    def can_grow(self) -> bool:
        """More cells are coming or could be asked for."""
        if self._target is not None:
            return True
        if self._backend.n_cells >= self.n_max:
            return False
        return self._failed_at is None or self._clock() >= self._failed_at + _RETRY_S

    def want(self, n_cells: int) -> None:
        """Begin to grow if there are fewer cells than that."""
        if n_cells <= self._backend.n_cells or self.is_resizing or not self.can_grow:
            return
        n = n_cells
        if self._failed_at is None:
            n = int(max(n_cells * _SPARE, self._backend.n_cells * _FACTOR))
        self._begin(min(self.n_max, -(-n // PAD) * PAD))

    def poll(self) -> bool:
        """Finish a resize whose cells are ready; True when there are other cells now."""
        if self._target is None:
            return False
        try:
            if not self._backend.is_resized():
                return False
            self._finish()
        except DecodeError as error:
            _log.warning("KV cells: no change of size, %s", error)
            self._target, self._failed_at = None, self._clock()
            return False
        return True

    def shrink(self) -> None:
        """Begin to go back to the cells of the start; what is held then must fit."""
        if self._backend.n_cells > self.n_start and not self.is_resizing:
            self._begin(self.n_start)

    def stop_shrinking(self) -> None:
        """There is work again: what is held may not fit into fewer cells when they are ready."""
        if self._target is not None and self._target < self._backend.n_cells:
            self.close()

    def close(self) -> None:
        """Give up a resize in flight."""
        if self._target is not None:
            self._backend.cancel_resize()
            self._target = None

    def _begin(self, n_cells: int) -> None:
        self._target, self._began_at = n_cells, self._clock()
        self._backend.begin_resize(n_cells)

    def _finish(self) -> None:
        target, n_before = self._target, self._backend.n_cells
        assert target is not None
        ready_at = self._clock()
        self._backend.finish_resize(self._spans())
        self._target = self._failed_at = None
        if target > n_before:
            self.n_growths += 1
        else:
            self.n_shrinks += 1
        _log.info(
            "KV cells: %d to %d%s, made in %.0f ms beside the work, moved in %.0f ms",
            n_before,
            target,
            "" if self._backend.is_shared else " per sequence",
            1000 * (ready_at - self._began_at),
            1000 * (self._clock() - ready_at),
        )
