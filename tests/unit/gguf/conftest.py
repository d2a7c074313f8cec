"""Files for the pre-check: a good one, and whatever a test writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import synthetic as syn
from tests.synthetic import RawGGUF


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return syn.write_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(data: bytes | RawGGUF, name: str = "m.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.build())
        return path

    return write
