"""One real server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.server import Server, running
from tests.synthetic import smollm2_path


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running(smollm2_path(), "-np", "4", "-c", "2048", "--alias", "smol") as server:
        yield server
