"""What a live sequence may wait for before its prompt is computed.

Owns the three kinds of `sequence.Wait`; each only says whether it is over.  Engine
thread only.
"""

from __future__ import annotations

import msgspec

from ponytail.engine.backend import Backend
from ponytail.engine.disk_tier import DiskEntry, Load
from ponytail.engine.elastic import Elastic
from ponytail.engine.sequence import Sequence


class ForPrefix(msgspec.Struct, frozen=True):
    """Until `owner` has computed `n_tokens`, or is gone."""

    owner: Sequence
    n_tokens: int

    @property
    def is_over(self) -> bool:
        return not self.owner.has_slot or self.owner.n_computed >= self.n_tokens


class ForLoad(msgspec.Struct, frozen=True):
    """Until a prefix is read from disk."""

    load: Load
    entry: DiskEntry

    @property
    def is_over(self) -> bool:
        return self.load.is_done


class ForCells(msgspec.Struct, frozen=True):
    """Until a state that is at hand has cells to go to."""

    backend: Backend
    elastic: Elastic
    n_cells: int

    @property
    def is_over(self) -> bool:
        return self.backend.n_cells >= self.n_cells or not self.elastic.is_resizing
