"""What the tests of the disk tier save, and how they look at it."""

from __future__ import annotations

import os
import random
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from ponytail.engine.disk_tier import DiskEntry, DiskTier

WAIT_S = 20.0
HEADER_BYTES = 64
N_TOKENS = 40
N_STATE = 5000
FILE_BYTES = HEADER_BYTES + 4 * N_TOKENS + N_STATE

END = FILE_BYTES
STATE_AT = HEADER_BYTES + 4 * N_TOKENS

Opener = Callable[..., DiskTier]
Lines = Callable[[], list[str]]


def tokens_of(i: int, n: int = N_TOKENS) -> array[int]:
    return array("i", [i, *range(n - 1)])


def state_of(i: int, n: int = N_STATE) -> bytes:
    return random.Random(i).randbytes(n)


def save(tier: DiskTier, *numbers: int) -> list[DiskEntry]:
    """Save prefixes and wait; their entries in that order."""
    for i in numbers:
        assert tier.save(tokens_of(i), state_of(i))
        assert tier.flush(WAIT_S)
    tier.refresh()
    return [entry_of(tier, i) for i in numbers]


def entry_of(tier: DiskTier, i: int) -> DiskEntry:
    (entry,) = [entry for entry in tier.entries if entry.tokens == tokens_of(i)]
    return entry


def load(tier: DiskTier, entry: DiskEntry) -> bytes | None:
    reading = tier.load(entry)
    assert reading.wait(WAIT_S)
    assert reading.is_done
    return reading.state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def set_used(*entries: DiskEntry) -> None:
    """As if they had been used a year ago, in this order."""
    start = time.time() - 365 * 86400
    for i, entry in enumerate(entries):
        os.utime(entry.path, (start + i, start + i))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
