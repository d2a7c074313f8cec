"""Measures this server and llama-server side by side, on the same requests, in one run.

    python benchmarks/serve_load.py --model smollm2-q8_0.gguf --peer /path/to/llama-server

One server runs at a time, freshly started for every workload; the sides take turns over the
rounds, and the median of the rounds counts.  The table goes to stderr, one JSON line to
stdout.  See benchmarks/README.md for the workloads and for how to build the peer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import client
import equality
import processes
import report
from processes import Side
from workloads import WITHOUT_WARM_UP, WORKLOADS, Outcome, warm_up

WORKLOAD_TIMEOUT_S = 300.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file both sides serve")
    fields = "with {model}, {port}, {threads}, {parallel}, {ctx} and {total_ctx}"
    parser.add_argument(
        "--ours", default=processes.OURS_TEMPLATE, help=f"command of our side, {fields}"
    )
    parser.add_argument("--peer", help="path to llama-server; without it there are no ratios")
    parser.add_argument(
        "--peer-command", default=processes.PEER_TEMPLATE, help=f"its command: {{path}} {fields}"
    )
    parser.add_argument("--peer-args", default="", help="arguments added to the peer's command")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=8192, help="tokens per request")
    parser.add_argument("--no-equality", action="store_true", help="skip the comparison of texts")
    parser.add_argument("--json", type=Path, help="append the JSON line to this file too")
    args = parser.parse_args()
    args.workloads = [name for name in args.workloads.split(",") if name]
    if unknown := set(args.workloads) - set(WORKLOADS):
        parser.error(
            f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}"
        )
    if not args.model.is_file():
        parser.error(f"no such file: {args.model}")
    return args


class Bench:
    """One run: the sides, the settings their commands are filled with, the outcomes so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.settings = {
            "model": args.model.resolve(),
            "threads": args.threads,
            "parallel": args.parallel,
            "ctx": args.ctx,
            "total_ctx": args.ctx * args.parallel,
        }
        self.sides = [Side("ours", args.ours, sys.executable)]
        if args.peer:
            self.sides.append(
                Side("peer", f"{args.peer_command} {args.peer_args}".strip(), args.peer)
            )

    async def measure(self, name: str, round_number: int, side: Side) -> Outcome:
        """One workload on one fresh server; what goes wrong becomes the outcome's problem."""
        started = time.perf_counter()
        try:
            async with processes.running(side, **self.settings) as server:
                if name not in WITHOUT_WARM_UP:
                    await warm_up(server)
                work = WORKLOADS[name](server, round_number)
                outcome = await asyncio.wait_for(work, WORKLOAD_TIMEOUT_S)
        except (client.RequestFailed, TimeoutError, ValueError, LookupError) as error:
            outcome = Outcome({}, 0, (f"{type(error).__name__}: {error}",))
        shown = ", ".join(f"{key} {value:.4g}" for key, value in outcome.figures.items())
        seconds = time.perf_counter() - started
        say(f"round {round_number} {name} {side.name} ({seconds:.0f} s): {shown}")
        for problem in outcome.problems[:3]:
            say(f"  problem: {problem}")
        return outcome

    async def measure_all(self, name: str) -> dict[str, list[Outcome]]:
        """All rounds of one workload; the side that goes first changes from round to round."""
        by_side: dict[str, list[Outcome]] = {side.name: [] for side in self.sides}
        for round_number in range(self.args.rounds):
            order = self.sides if round_number % 2 == 0 else self.sides[::-1]
            for side in order:
                by_side[side.name].append(await self.measure(name, round_number, side))
        return by_side

    async def compare_texts(self) -> dict[str, Any]:
        """The token-equality check; a side that cannot answer makes it `withheld`."""
        answers = []
        try:
            for side in self.sides:
                async with processes.running(side, **self.settings) as server:
                    answers.append(await equality.collect(server.port, side.name == "peer"))
            return equality.summarise(equality.compare(*answers))
        except (client.RequestFailed, ValueError, LookupError) as error:
            return {"withheld": f"{type(error).__name__}: {error}"}

    def describe(self) -> dict[str, Any]:
        args = self.args
        peer = self.sides[1] if args.peer else None
        return {
            "benchmark": "serve_load",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": processes.describe_commit(),
            "machine": processes.describe_machine(),
            "versions": processes.describe_versions(peer),
            "model": {"name": args.model.name, "bytes": args.model.stat().st_size},
            "rounds": args.rounds,
            "threads": args.threads,
            "parallel": args.parallel,
            "ctx": args.ctx,
            "commands": {side.name: side.shown() for side in self.sides},
        }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    # SIGTERM takes the way Ctrl-C takes, so that the server under test is stopped as well.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    bench = Bench(args)
    result = bench.describe()
    rows: list[report.Row] = []
    withheld: dict[str, list[str]] = {}
    n_prompt: dict[str, int] = {}
    for name in args.workloads:
        by_side = await bench.measure_all(name)
        n_prompt[name] = by_side["ours"][0].n_prompt
        if problems := report.find_problems(by_side):
            withheld[name] = problems
        else:
            rows += report.make_rows(name, by_side)
    result["workloads"] = {
        name: {row.figure: row.as_json() for row in rows if row.workload == name}
        for name in args.workloads
        if name not in withheld
    }
    result["withheld"] = withheld
    result["prompt_tokens"] = n_prompt
    if args.peer and not args.no_equality:
        result["equality"] = await bench.compare_texts()
    say("\n" + report.make_table(rows, withheld))
    if "equality" in result:
        say("\nsame text at temperature 0: " + json.dumps(result["equality"], indent=1))
    return result


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    args = parse_args()
    try:
        result = asyncio.run(run(args))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped before the end")
    line = json.dumps(result)
    print(line)
    if args.json is not None:
        with args.json.open("a") as file:
            file.write(line + "\n")
    sys.exit(1 if result["withheld"] else 0)


if __name__ == "__main__":
    main()
