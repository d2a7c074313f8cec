"""Contexts over the real model and over a tiny one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ponytail.errors import OutOfCells
from ponytail.llama.context import Context
from ponytail.llama.model import Model
from tests.real.context.cells import Fill, HasRoom, opened, words
from tests.synthetic import smollm2_path, write_gguf


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(smollm2_path())
    yield model
    model.close()


@pytest.fixture(params=["split", "shared"])
def context(model: Model, request: pytest.FixtureRequest) -> Iterator[Context]:
    is_shared = request.param == "shared"
    context = opened(model, 1024 if is_shared else 512, is_shared=is_shared)
    yield context
    context.close()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(write_gguf(tmp_path_factory.mktemp("context") / "tiny.gguf"))
    yield model
    model.close()


@pytest.fixture(params=["split", "shared"])
def tiny(tiny_model: Model, request: pytest.FixtureRequest) -> Iterator[Context]:
    """For what takes many tokens and depends on their number alone."""
    context = opened(tiny_model, 512, is_shared=request.param == "shared")
    yield context
    context.close()


@pytest.fixture
def pool(model: Model) -> Iterator[Context]:
    """256 cells for four sequences together."""
    context = opened(model, 256, is_shared=True)
    yield context
    context.close()


@pytest.fixture
def split(model: Model) -> Iterator[Context]:
    """256 cells for each of four sequences."""
    context = opened(model, 256, is_shared=False)
    yield context
    context.close()


@pytest.fixture(scope="module")
def fill(model: Model) -> Iterator[Fill]:
    """Give a sequence of a pool n tokens computed elsewhere: quicker than computing them."""
    donor = opened(model, 256, is_shared=True)
    donor.decode([(0, 0, words(256), False)])

    def fill(pool: Context, seq_id: int, n: int) -> None:
        donor.fork(0, [1], n)
        pool.write_state(seq_id, donor.read_state(1))

    yield fill
    donor.close()


@pytest.fixture(scope="module")
def has_room(fill: Fill) -> HasRoom:
    """Whether a pool has n free cells: so many tokens go into sequence 3, which is empty."""

    def has_room(pool: Context, n: int) -> bool:
        try:
            fill(pool, 3, n)
        except OutOfCells:
            return False
        pool.cut(3, 0)
        return True

    return has_room
