"""A real server in a child process, on a port the kernel chose."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Server:
    """`lines` is what it printed up to and including the curl line."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str]

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def running(model: Path, *flags: str) -> Iterator[Server]:
    """Start, wait for the ready line, and end with SIGTERM."""
    command = [sys.executable, "-m", "ponytail", "--model", str(model), "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            ready = re.search(r"ponytail is ready: (http://\S+)", line)
            if ready:
                # The curl line follows at once.
                lines.append(process.stdout.readline())
                yield Server(process, ready[1], lines)
                break
        else:
            raise AssertionError(f"the server ended with {process.wait()}: {lines}")
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()
