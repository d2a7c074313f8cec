"""What a person sees at start: the sizes, the ready line, refusals in one line with exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.server import Server
from tests.synthetic import smollm2_path

pytestmark = pytest.mark.real


def ponytail(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ponytail", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def refusal(*flags: str) -> str:
    done = ponytail(*flags)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_the_start_up_line_states_the_real_sizes(server: Server):
    line = server.lines[0]
    # 4 x 2,048 cells of 23,040 bytes.
    assert "growing to 180 (8192 cells, f16/f16)" in line
    assert "model 92 MB" in line
    assert "ctx 2048 per request, parallel 4" in line
    assert "threads" in line
    assert "ngl 0" in line


@pytest.mark.parametrize("size", [0, 3, 23, 5_000, 1_800_000, 49_000_000, -1])
def test_a_truncated_file_ends_with_the_bytes_it_has_and_should_have(size, tmp_path):
    whole = smollm2_path().stat().st_size
    n_bytes = size if size >= 0 else whole - 1
    cut = tmp_path / "cut.gguf"
    with smollm2_path().open("rb") as source, cut.open("wb") as target:
        os.sendfile(target.fileno(), source.fileno(), 0, n_bytes) if n_bytes else None
        target.truncate(n_bytes)
    line = refusal("--model", str(cut), "--port", "0")
    assert "cut.gguf" in line
    assert "empty" in line or f"{n_bytes:,}" in line or str(n_bytes) in line
    if n_bytes > 2_000_000:
        assert f"{whole:,}" in line or str(whole) in line


def test_other_bad_files(tmp_path):
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html><html><body>404</body></html>")
    pointer = tmp_path / "pointer.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert "LFS" in refusal("--model", str(pointer))
    assert "page.gguf" in refusal("--model", str(page))
    assert "nothing.gguf" in refusal("--model", str(tmp_path / "nothing.gguf"))
    assert "director" in refusal("--model", str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("-ngl", "5"), "--n-gpu-layers"),
        (("-c", "3"), "--ctx-size"),
        (("-np", "256", "-c", "8388608"), "are available"),
        (("-fa", "off", "-ctv", "q8_0"), "--cache-type-v"),
        (("--chat-template-file", "nowhere.jinja"), "--chat-template-file"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(flags, word):
    assert word in refusal("--model", str(smollm2_path()), "--port", "0", *flags)


def test_a_port_in_use_is_named(server: Server):
    port = server.url.rsplit(":", 1)[1]
    assert port in refusal("--model", str(smollm2_path()), "--port", port)


def test_version_names_the_build(tmp_path: Path):
    done = ponytail("--version")
    assert done.returncode == 0
    assert "llama-cpp-python 0.3.36" in done.stdout
    assert "AVX" in done.stdout or "NEON" in done.stdout
