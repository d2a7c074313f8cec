"""What the engine does for itself while nobody asks anything of it.

Owns the order and the times: prefixes are written to disk when the server has been idle
for a while (each turn of a conversation would write it whole again), and cells that were
added for a load are given back after it.  Engine thread only.
"""

from __future__ import annotations

import logging

from ponytail.engine.kv import KV

_log = logging.getLogger("ponytail.engine")

SAVE_AFTER_S = 5.0
SHRINK_AFTER_S = 10.0
# How often a resize or a write in flight is looked at.
POLL_S = 0.02


class Chores:
    """Over one KV.  `wait_s` says how long to wait for work before the next `run`."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._idle_since: float | None = None
        self._has_saved = False
        self._is_checked = False

    def stop(self) -> None:
        """There is work."""
        self._idle_since = None
        self._kv.resume_work()

    def wait_s(self, now: float) -> float | None:
        """Seconds until something is to be done; None when only work can bring something."""
        if self._idle_since is None:
            self._idle_since, self._has_saved, self._is_checked = now, False, False
        if self._kv.elastic.is_resizing:
            return POLL_S
        due = []
        if self._kv.tiers.has_disk and not self._has_saved:
            due.append(self._idle_since + SAVE_AFTER_S)
        if self._kv.can_shrink:
            due.append(self._idle_since + SHRINK_AFTER_S)
        if not self._is_checked:
            due.append(self._idle_since)
        return max(POLL_S, min(due) - now) if due else None

    def run(self, now: float) -> None:
        """Do what is due; each call does one bounded piece."""
        self._kv.elastic.poll()
        if self._idle_since is None:
            return
        if not self._is_checked:
            self._is_checked = True
            self._check()
        idle_s = now - self._idle_since
        if self._kv.tiers.has_disk and idle_s >= SAVE_AFTER_S and not self._has_saved:
            self._has_saved = not self._kv.save_one() and not self._kv.tiers.is_writing
        if self._kv.can_shrink and idle_s >= SHRINK_AFTER_S:
            self._kv.shrink()

    def _check(self) -> None:
        try:
            self._kv.check_integrity()
        except AssertionError as error:
            _log.error("the KV cache's records are wrong (%s); what is cached is dropped", error)
            self._kv.reset()
