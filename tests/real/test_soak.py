"""Many requests of a tiny model, some hung up at random moments: nothing is left behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from benchmarks.soak import Target, is_good, run
from tests.real.server import running
from tests.synthetic import write_gguf

pytestmark = pytest.mark.real

# One thread: with a model this small the threads of a second would only wait for each other.
FLAGS = ("-np", "4", "-c", "2048", "--max-queue", "64", "-t", "1", "-tb", "1")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def test_hang_ups_leave_no_sequence_thread_or_file_behind(tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf", template=TEMPLATE)
    with running(model, *FLAGS) as server:
        target = Target(int(server.url.rsplit(":", 1)[1]), server.pid)
        asked = SimpleNamespace(streams=32, requests=500, hang_ups=0.3, within=0.03)
        result = asyncio.run(run(target, asked))
    assert is_good(result), result
    assert result["hang_ups"]["finished"] > 250
    assert server.process.returncode == 0
