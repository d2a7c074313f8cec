"""One server for all tests that do not stop it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ponytail.server.service import Ready
from tests.unit.fake_llm import FakeLLM
from tests.unit.server.served import Served, served


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served(FakeLLM()) as it:
        yield it


@pytest.fixture
def llm() -> FakeLLM:
    return FakeLLM()


@pytest.fixture
def server(shared: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture) -> Served:
    """One server for all tests that do not stop it, with a model of the test's own."""
    shared.service.state = Ready(llm)
    return shared


@pytest.fixture
def http(server: Served) -> httpx.Client:
    return server.http
