"""What a long job shows, on a terminal and in a file; how the compiler's progress is read."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

from ponytail.telemetry import Progress

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_file_is_a_line_per_tenth() -> None:
    out = io.StringIO()
    progress = Progress("loading", out)
    for i in range(101):
        progress.update(i / 100)
    progress.close()
    assert out.getvalue() == "".join(f"loading: {p} %\n" for p in range(0, 101, 10))


def test_progress_on_a_terminal_is_one_line() -> None:
    out = Terminal()
    progress = Progress("loading", out)
    for fraction in (-1.0, 0.261, 0.262, 0.1, 2.0):
        progress.update(fraction)
    progress.close()
    assert out.getvalue() == "".join(f"\r\x1b[Kloading: {p} %" for p in (0, 26, 100)) + "\n"


def test_build_progress_follows_pip_and_keeps_its_last_words() -> None:
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts/install_llama.py")
    assert spec is not None
    assert spec.loader is not None
    install = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(install)
    lines = [
        "Progress 400 of 500\n",
        "Progress 50000000 of 76600000\n",
        "  [1/2] a probe of CMake's\n",
        *(f"  [{i}/193] g++ -c x.cpp\n" for i in range(1, 51)),
        "  error: no space left\n",
    ]
    out, log = Terminal(), io.StringIO()
    last = install.follow(lines, log, out)
    assert out.getvalue().startswith("\r\x1b[Kdownloading llama.cpp: 65 %\n")
    assert out.getvalue().endswith("compiling llama.cpp: 25 %\n")
    assert last[-1] == "  error: no space left\n"
    assert len(last) == 30
    assert "Progress" not in log.getvalue()
    assert install.pinned().startswith("llama-cpp-python==")
