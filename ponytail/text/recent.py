"""The results last used, by what they were made of.

Owns nothing else.  Any thread; one result is made at a time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `n_max` of them.  What could not be made is not kept."""

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result for this key, made if it is not there.  Raises what `make` raises."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            made = self._kept[key] = make()
            if len(self._kept) > self._n_max:
                self._kept.popitem(last=False)
            return made
