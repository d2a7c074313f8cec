"""A folder of the disk tier, and what is said about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ponytail.engine.disk_tier import DiskTier
from tests.unit.disk.files import WAIT_S, Opener


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def opened(folder: Path) -> Iterator[Opener]:
    """Opens tiers on the folder and closes them in the end."""
    tiers = []

    def open_tier(fingerprint: str = "model A", max_bytes: int = 10**7, **rest: object) -> DiskTier:
        tiers.append(DiskTier(folder, fingerprint=fingerprint, max_bytes=max_bytes, **rest))
        return tiers[-1]

    yield open_tier
    for tier in tiers:
        tier.close(WAIT_S)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Takes what was logged since the last call."""
    caplog.set_level(logging.INFO, logger="ponytail.engine")

    def take() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take
