"""Install the llama-cpp-python that pyproject.toml pins, showing how far the compiler is.

Runs with the Python of the virtual environment, which needs nothing installed.
Everything pip says goes to llama-build.log in the environment; its last lines
are shown when it fails.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ponytail.telemetry import Progress  # noqa: E402

NAME = "llama-cpp-python"
N_LAST_LINES = 30
# What ninja prints: [50/193] g++ ...  CMake's own probes are far smaller builds.
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")
N_STEPS_OF_A_PROBE = 20
# What `pip --progress-bar=raw` prints; only the llama.cpp sources are this large.
MOVED = re.compile(r"^\s*Progress (\d+) of (\d+)")
LARGE_BYTES = 40_000_000
# Intel's matrix tiles: gcc 12 compiles llama.cpp's set-up of them wrongly, and the first prompt
# then ends the process with an illegal instruction.
AMX_FLAGS = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def pinned() -> str:
    """The requirement as pyproject.toml has it, `llama-cpp-python==...`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(line for line in project["dependencies"] if line.startswith(f"{NAME}=="))


def is_installed(requirement: str) -> bool:
    try:
        return requirement == f"{NAME}=={version(NAME)}"
    except PackageNotFoundError:
        return False


def follow(lines: Iterable[str], log: TextIO, out: TextIO) -> deque[str]:
    """Copy pip's lines to `log`, show download and compiler steps, return the last lines."""
    last: deque[str] = deque(maxlen=N_LAST_LINES)
    downloading = Progress("downloading llama.cpp", out)
    compiling = Progress("compiling llama.cpp", out)
    for line in lines:
        if moved := MOVED.match(line):
            if int(moved[2]) > LARGE_BYTES:
                downloading.update(int(moved[1]) / int(moved[2]))
            continue
        log.write(line)
        last.append(line)
        step = STEP.match(line)
        if step and int(step[2]) > N_STEPS_OF_A_PROBE:
            downloading.close()
            compiling.update(int(step[1]) / int(step[2]))
    downloading.close()
    compiling.close()
    return last


def progress_bar() -> str:
    """The pip option that makes download progress readable, from 24.1 on."""
    major, minor = (int(n) for n in version("pip").split(".")[:2])
    return "--progress-bar=" + ("raw" if (major, minor) >= (24, 1) else "off")


def has_amx() -> bool:
    """Whether -march=native would use matrix tiles."""
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


def build_environment() -> dict[str, str]:
    """What pip and the compiler are told; a build without tiles has a wheel cache of its own."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if has_amx():
        for name in ("CFLAGS", "CXXFLAGS"):
            env[name] = f"{env.get(name, '')} {AMX_FLAGS}".strip()
        pip = [sys.executable, "-m", "pip", "cache", "dir"]
        cache = subprocess.run(pip, capture_output=True, text=True, env=env).stdout.strip()
        if cache:
            env["PIP_CACHE_DIR"] = str(Path(cache) / "ponytail-without-amx")
    return env


def main() -> int:
    requirement = pinned()
    if is_installed(requirement):
        return 0
    log_path = Path(sys.prefix) / "llama-build.log"
    print(
        f"installing {requirement}: llama.cpp is compiled for this CPU, once\n"
        "(77 MB to download, then about 4 minutes on 2 cores)",
        flush=True,
    )
    command = [sys.executable, "-m", "pip", "install", "--verbose", progress_bar()]
    with (
        log_path.open("w") as log,
        subprocess.Popen(
            [*command, requirement],
            env=build_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip,
    ):
        assert pip.stdout is not None
        last = follow(pip.stdout, log, sys.stdout)
    if pip.returncode:
        sys.stderr.writelines(last)
        print(f"\ninstalling {requirement} failed; all of it is in {log_path}", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
