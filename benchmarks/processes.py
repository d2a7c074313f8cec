"""Starts and stops the servers under test, and reads what their processes and the machine tell.

Owns child processes: one server at a time, in its own process group, so that stopping it ends
everything it started and nothing else.  Must not know workloads or figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import client

POLL_S = 0.01
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0

# Every user of llama-server who asks for `-np 16` gets separate cells per slot (no
# --kv-unified), an 8 GiB host-RAM prompt cache and automatic flash attention: these are kept.
# Only -c differs in meaning: llama-server's is the total over all slots.
PEER_TEMPLATE = (
    "{path} -m {model} --port {port} -np {parallel} -c {total_ctx} -t {threads} -tb {threads}"
    " --no-ui"
)
# Without -t: it takes the usable cores by itself; a given number would be used as it is.
OURS_TEMPLATE = "{path} -m ponytail --model {model} --port {port} -np {parallel} -c {ctx}"
COMPUTED_TOKENS = re.compile(
    rb'^ponytail_prompt_tokens_total\{[^}]*source="computed"[^}]*\} (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Side:
    """One server to measure: its name in the figures and how to start it."""

    name: str
    template: str
    path: str
    is_peer: bool = False

    def command(self, **values: object) -> list[str]:
        return shlex.split(self.template.format(path=shlex.quote(self.path), **values))

    def shown(self) -> str:
        """The template with the program's name instead of its place on this machine."""
        words = self.template.replace("{path}", self.path).split(" ")
        return " ".join([Path(words[0]).name, *words[1:]])


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process tree, in bytes."""

    rss_bytes: int
    anon_bytes: int


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers; `exec_at` and `ready_at` are on the `time.perf_counter` clock."""

    port: int
    pid: int
    exec_at: float
    ready_at: float

    def memory(self) -> Memory:
        return read_memory(self.pid)

    async def buffer_bytes(self) -> float | None:
        """What llama.cpp holds now (weights, cells, compute), where /health tells it."""
        health = (await client.request(self.port, "GET", "/health")).json()
        sizes = [health.get(name) for name in ("model_mib", "kv_mib", "compute_mib")]
        mib = [float(size) for size in sizes if size is not None]
        return sum(mib) * 2**20 if len(mib) == len(sizes) else None

    async def cache_facts(self) -> dict[str, Any] | None:
        """What /v1/cache tells; None where there is no such thing."""
        answer = await client.request(self.port, "GET", "/v1/cache")
        return answer.json() if answer.status == 200 else None

    async def computed_prompt_tokens(self) -> float | None:
        """The engine's own count since start, where /metrics tells it."""
        answer = await client.request(self.port, "GET", "/metrics")
        found = re.search(
            rb'^ponytail_prompt_tokens_total\{.*"computed".*\} (\S+)', answer.body, re.M
        )
        return float(found[1]) if answer.status == 200 and found else None


@dataclass(frozen=True, slots=True)
class Setup:
    """What a workload's server is started with beyond the run's own settings.

    `ours` and `peer` are arguments added to that side's command; the numbers replace the
    run's.  `total_ctx` is `ctx` x `parallel` where it is None.
    """

    ours: str = ""
    peer: str = ""
    parallel: int | None = None
    ctx: int | None = None
    total_ctx: int | None = None


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts fresh servers of one side, with the run's settings or as a workload changes them.

    `judge` is the peer, where there is one: it knows log-probabilities.
    """

    side: Side
    model: Path
    threads: int
    parallel: int
    ctx: int
    judge: Side | None = None

    @property
    def total_ctx(self) -> int:
        return self.parallel * self.ctx

    def __call__(self, setup: Setup | None = None) -> AbstractAsyncContextManager[Server]:
        setup = setup or Setup()
        parallel, ctx = setup.parallel or self.parallel, setup.ctx or self.ctx
        return running(
            self.side,
            setup.peer if self.side.is_peer else setup.ours,
            model=self.model,
            threads=self.threads,
            parallel=parallel,
            ctx=ctx,
            total_ctx=setup.total_ctx or parallel * ctx,
        )

    def for_judging(self) -> Launcher | None:
        return None if self.judge is None else replace(self, side=self.judge)


@contextlib.asynccontextmanager
async def running(side: Side, extra: str, **values: object) -> AsyncIterator[Server]:
    """A freshly started, healthy server; stopped with all its children on the way out.

    `extra` are more arguments for its command.
    """
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        exec_at = time.perf_counter()
        process = subprocess.Popen(
            [*side.command(port=port, **values), *shlex.split(extra)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            healthy = await _wait_ready(process, port, log)
            yield Server(port, process.pid, exec_at, healthy.ended_at)
        finally:
            _stop(process)


async def _wait_ready(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> client.Answer:
    deadline = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline and process.poll() is None:
        with contextlib.suppress(client.RequestFailed):
            answer = await client.request(port, "GET", "/health")
            if answer.status == 200:
                return answer
        await asyncio.sleep(POLL_S)
    ending = "did not get ready" if process.poll() is None else f"ended with {process.returncode}"
    raise client.RequestFailed(f"the server {ending}; its last words:\n{_tail(log)}")


def _tail(log: IO[bytes], n_bytes: int = 2000) -> str:
    log.seek(max(0, os.fstat(log.fileno()).st_size - n_bytes))
    return log.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, SIGKILL after a while; the group outlives a leader that left it."""
    for sign, patience_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((client.HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def read_memory(pid: int) -> Memory:
    """Sums VmRSS and RssAnon of `pid` and all its descendants (shared pages count each time)."""
    rss = anon = 0
    for member in _process_tree(pid):
        with contextlib.suppress(OSError):
            fields = _read_fields(Path(f"/proc/{member}/status"))
            rss += fields.get("VmRSS", 0)
            anon += fields.get("RssAnon", 0)
    return Memory(rss, anon)


def _process_tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def _read_fields(path: Path) -> dict[str, int]:
    """`Name:  123 kB` lines of a /proc file, in bytes."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1:] == ["kB"]}


def describe_machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = _read_fields(Path("/proc/meminfo"))
    return {
        "cpu": models[0] if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory.get("MemTotal", 0) / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def describe_commit() -> str:
    """The commit of the tree this file lies in, with `+` when files differ from it."""
    folder = Path(__file__).parent

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe_versions(peer: Side | None) -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in ("ponytail", "llama_cpp_python"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    if peer is not None:
        answer = subprocess.run([peer.path, "--version"], capture_output=True, text=True)
        lines = (answer.stdout + answer.stderr).splitlines()
        versions["peer"] = "; ".join(line.strip() for line in lines if "version" in line.lower())
    return versions
