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
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import client
import equality
import processes
import report
from catalogue import WORKLOADS
from load import Outcome
from processes import Launcher, Side

WORKLOAD_TIMEOUT_S = 600.0
LAYOUTS = ("auto", "split", "shared")


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
    parser.add_argument(
        "--layouts", default="", help="run ours once for each of these: auto, split, shared"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=8192, help="tokens per request")
    parser.add_argument("--no-equality", action="store_true", help="skip the comparison of texts")
    parser.add_argument("--json", type=Path, help="append the JSON line to this file too")
    args = parser.parse_args()
    args.workloads = _read_names(parser, "workload", args.workloads, WORKLOADS)
    args.layouts = _read_names(parser, "layout", args.layouts, LAYOUTS)
    if not args.model.is_file():
        parser.error(f"no such file: {args.model}")
    return args


def _read_names(
    parser: argparse.ArgumentParser, kind: str, text: str, known: Collection[str]
) -> list[str]:
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    if unknown := set(names) - set(known):
        parser.error(f"no such {kind}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


class Bench:
    """One run: the sides and how to start them, our one side or one of each layout."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ours = Side("ours", args.ours, sys.executable)
        self.layouts = [
            Side(layout, f"{args.ours} --kv-layout {layout}", sys.executable)
            for layout in args.layouts
        ]
        self.peer: Side | None = None
        if args.peer:
            command = f"{args.peer_command} {args.peer_args}".strip()
            self.peer = Side("peer", command, args.peer, is_peer=True)

    def launcher(self, side: Side) -> Launcher:
        args = self.args
        model = args.model.resolve()
        return Launcher(side, model, args.threads, args.parallel, args.ctx, self.peer)

    def our_sides(self, name: str) -> list[Side]:
        is_apart = self.layouts and WORKLOADS[name].in_layouts
        return self.layouts if is_apart else [self.ours]

    async def measure(self, name: str, round_number: int, side: Side) -> Outcome:
        """One workload on fresh servers; what goes wrong becomes the outcome's problem."""
        started = time.perf_counter()
        try:
            work = WORKLOADS[name].run(self.launcher(side), round_number)
            outcome = await asyncio.wait_for(work, WORKLOAD_TIMEOUT_S)
        except (client.RequestFailed, TimeoutError, ValueError, LookupError) as error:
            outcome = Outcome({}, 0, (f"{type(error).__name__}: {error}",))
        shown = ", ".join(f"{key} {value:.4g}" for key, value in outcome.figures.items())
        seconds = time.perf_counter() - started
        say(f"round {round_number} {name} {side.name} ({seconds:.0f} s): {shown}")
        for problem in outcome.problems[:3]:
            say(f"  problem: {problem}")
        for note in outcome.notes:
            say(f"  note: {note}")
        return outcome

    async def measure_all(self, name: str) -> dict[str, list[Outcome]]:
        """All rounds of one workload; the side that goes first changes from round to round."""
        sides = self.our_sides(name)
        if self.peer is not None and WORKLOADS[name].has_peer:
            sides = [*sides, self.peer]
        by_side: dict[str, list[Outcome]] = {side.name: [] for side in sides}
        for round_number in range(self.args.rounds):
            order = sides if round_number % 2 == 0 else sides[::-1]
            for side in order:
                by_side[side.name].append(await self.measure(name, round_number, side))
        return by_side

    async def compare_texts(self) -> dict[str, Any]:
        """The token-equality check of each of our sides; one that fails is `withheld`."""
        assert self.peer is not None
        theirs: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        for side in self.layouts or [self.ours]:
            try:
                theirs = theirs or await self._collect(self.peer)
                mine = await self._collect(side)
                result[side.name] = equality.summarise(equality.compare(mine, theirs))
            except (client.RequestFailed, ValueError, LookupError) as error:
                result[side.name] = {"withheld": f"{type(error).__name__}: {error}"}
        return result

    async def _collect(self, side: Side) -> list[dict[str, Any]]:
        async with self.launcher(side)() as server:
            return await equality.collect(server.port, side.is_peer)

    def describe(self) -> dict[str, Any]:
        args = self.args
        sides = [self.ours, *self.layouts, *([self.peer] if self.peer else [])]
        return {
            "benchmark": "serve_load",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": processes.describe_commit(),
            "machine": processes.describe_machine(),
            "versions": processes.describe_versions(self.peer),
            "model": {"name": args.model.name, "bytes": args.model.stat().st_size},
            "rounds": args.rounds,
            "threads": args.threads,
            "parallel": args.parallel,
            "ctx": args.ctx,
            "commands": {side.name: side.shown() for side in sides},
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
        for side in bench.our_sides(name):
            pair = {"ours": by_side[side.name]}
            if "peer" in by_side:
                pair["peer"] = by_side["peer"]
            label = name if side is bench.ours else f"{name} ({side.name})"
            n_prompt[label] = pair["ours"][0].n_prompt
            if problems := report.find_problems(pair):
                withheld[label] = problems
            else:
                rows += report.make_rows(name, label, pair)
    result["workloads"] = report.make_json(rows)
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
