"""Many mixed requests, a share of them hung up at random: what is left behind?

    python benchmarks/soak.py --model model.gguf [--requests 500] [--hang-ups 0.3] [--streams 32]

Two parts against one server that this script starts.  First `--streams` mixed streams at
once while /health is asked every 50 ms (p50, p99, max in ms).  Then `--requests` requests,
streaming and plain, chat and completions, in waves of 16; a share hangs up at a random
moment: queued, in the prompt, decoding.  Afterwards the server must be idle, with as many
threads and files as before; prints one JSON line and exits 1 if it is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen


@dataclass
class Target:
    """The server under test."""

    port: int
    pid: int

    def health(self) -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=30) as reply:
            return dict(json.load(reply))

    def counts(self) -> dict[str, int]:
        tasks, files = f"/proc/{self.pid}/task", f"/proc/{self.pid}/fd"
        return {"threads": len(os.listdir(tasks)), "files": len(os.listdir(files))}


def body_of(rng: random.Random, n_tokens: int, stream: bool) -> tuple[str, dict[str, Any]]:
    """(path, body) of a request that generates exactly n_tokens."""
    words = " ".join(
        rng.choice(["sun", "moon", "tree", "river"]) for _ in range(rng.randint(3, 400))
    )
    body: dict[str, Any] = {"max_tokens": n_tokens, "ignore_eos": True, "stream": stream}
    body["temperature"] = 0
    if stream:
        body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.6:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": words}], **body}
    return "/v1/completions", {"prompt": words, **body}


async def ask(
    target: Target, path: str, body: dict[str, Any], hang_up_s: float | None
) -> int | None:
    """Completion tokens that usage tells; None after a hang-up or a refusal (429)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    try:
        reply = await asyncio.wait_for(reader.read(), hang_up_s)
    except TimeoutError:
        return None
    finally:
        writer.close()
    if b" 429 " in reply[:20]:
        return None
    if b" 200 " not in reply[:20]:
        raise AssertionError(reply[:500].decode("utf-8", "replace"))
    place = reply.rindex(b'"completion_tokens":')
    return int(reply[place + 20 : place + 30].split(b",")[0])


async def health_times(target: Target, done: asyncio.Event) -> list[float]:
    """Milliseconds of GET /health, one every 50 ms until done."""
    times = []
    while not done.is_set():
        started = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 200 " in (await reader.read())[:20]
        writer.close()
        times.append(1000 * (time.perf_counter() - started))
        await asyncio.sleep(0.05)
    return times


async def mixed(target: Target, n_streams: int) -> dict[str, Any]:
    rng, done = random.Random(1), asyncio.Event()
    watch = asyncio.create_task(health_times(target, done))
    asked = [body_of(rng, 64, stream=True) for _ in range(n_streams)]
    counts = await asyncio.gather(*(ask(target, path, body, None) for path, body in asked))
    done.set()
    times = sorted(await watch)
    return {
        "streams": n_streams,
        "right_counts": sum(n == 64 for n in counts),
        "health_ms": {
            "n": len(times),
            "p50": round(statistics.median(times), 1),
            "p99": round(times[min(len(times) - 1, int(0.99 * len(times)))], 1),
            "max": round(times[-1], 1),
        },
    }


async def hang_ups(
    target: Target, n_requests: int, share: float, within_s: float
) -> dict[str, Any]:
    rng = random.Random(2)
    gate = asyncio.Semaphore(16)
    ends = {"finished": 0, "wrong": 0, "hung_up": 0}

    async def one() -> None:
        n_tokens = rng.randint(1, 24)
        path, body = body_of(rng, n_tokens, stream=rng.random() < 0.5)
        hang_up_s = rng.uniform(0, within_s) if rng.random() < share else None
        async with gate:
            n = await ask(target, path, body, hang_up_s)
        ends["hung_up" if n is None else "finished" if n == n_tokens else "wrong"] += 1

    await asyncio.gather(*(one() for _ in range(n_requests)))
    return ends


async def settled(target: Target, n_files: int | None = None) -> dict[str, Any]:
    """Health once nothing runs, waits or is open beyond n_files; after 5 s as it is."""
    for _ in range(100):
        health = await asyncio.to_thread(target.health)
        is_closed = n_files is None or target.counts()["files"] <= n_files
        if health["running"] == health["queued"] == 0 and is_closed:
            break
        await asyncio.sleep(0.05)
    return health


async def run(target: Target, args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"mixed": await mixed(target, args.streams)}
    await settled(target)
    before = target.counts()
    result["hang_ups"] = await hang_ups(target, args.requests, args.hang_ups, args.within)
    health = await settled(target, before["files"])
    result["left"] = {k: health[k] for k in ("running", "queued")}
    after = target.counts()
    result["left"] |= {k: after[k] - before[k] for k in after}
    return result


def is_good(result: dict[str, Any]) -> bool:
    left = result["left"]
    clean = left["running"] == left["queued"] == 0 and left["threads"] <= 1 and left["files"] <= 0
    counted = result["mixed"]["right_counts"] == result["mixed"]["streams"]
    return bool(clean and counted and not result["hang_ups"]["wrong"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--hang-ups", type=float, default=0.3)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--within", type=float, default=1.5, help="seconds until a hang-up")
    parser.add_argument("--flags", default="", help="more flags for the server")
    args = parser.parse_args()
    command = [sys.executable, "-m", "ponytail", "--model", args.model, "--port", "0"]
    command += ["-np", "8", "-c", "2048", "--max-queue", "64", *args.flags.split()]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = next(line for line in server.stdout if "is ready: " in line)
        port = int(ready.split("is ready: http://127.0.0.1:")[1].split()[0])
        result = asyncio.run(run(Target(port, server.pid), args))
    finally:
        server.terminate()
        server.wait()
    result["exit_code"] = server.returncode
    print(json.dumps({"benchmark": "soak", "good": is_good(result), **result}))
    return 0 if is_good(result) else 1


if __name__ == "__main__":
    sys.exit(main())
