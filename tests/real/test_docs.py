"""The examples in the documentation run as they stand, but for the model's path and the port."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.server import Server
from tests.synthetic import smollm2_path

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def adapted(code: str, server: Server) -> str:
    code = code.replace("http://127.0.0.1:8080", server.url)
    return code.replace('"model.gguf"', repr(str(smollm2_path())))


PAGES = ("README.md", "docs/library.md")
EXAMPLES = [(n, i) for n in PAGES for i in range(len(blocks(n, "python")))]


@pytest.mark.parametrize(("name", "index"), EXAMPLES)
def test_python_example(name, index, server, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(adapted(blocks(name, "python")[index], server))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_curl_example_and_the_curl_line_the_server_prints(server):
    (readme,) = [b for b in blocks("README.md", "sh") if b.startswith("curl")]
    (printed,) = [line for line in server.lines if line.startswith("curl")]
    for command in (adapted(readme, server), printed):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        assert '"choices"' in done.stdout, done.stderr
