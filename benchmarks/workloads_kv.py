"""The workloads about the KV cache's limits: many agents, a restart, too few cells, idleness.

Each is an async function of a launcher (or of the fresh server it asks for) and a round's
number; it returns an Outcome.  Those that take a launcher start their servers themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import client
import equality
from load import (
    CHAT,
    COMPLETIONS,
    Check,
    Outcome,
    burst,
    count_prompt,
    greedy,
    make_words,
    median,
    wall_s,
    warm_up,
)
from processes import Launcher, Memory, Server, Setup

IDLE_TIMEOUT_S = 60.0
IDLE_RATIO = 1.5
# A request that does not end is a failed one; nobody waits longer.
SURVIVOR_TIMEOUT_S = 240.0

# 16 streams of 200 words and 312 new tokens fill 8,192 cells: four times the scarce ones.
N_STREAMS, N_WORDS, N_NEW = 16, 200, 312
N_SCARCE = N_STREAMS * (N_WORDS + N_NEW) // 4
SCARCE = Setup(
    ours=f"--kv-cells {N_SCARCE}", peer="--kv-unified", parallel=16, ctx=1024, total_ctx=N_SCARCE
)
AMPLE = Setup(ours=f"--kv-cells {N_STREAMS * 1024}", parallel=16, ctx=1024)


async def agents(server: Server, round_number: int) -> Outcome:
    """8 agents of 2,000 words each take turns, one request at a time: 4 turns, 32 tokens."""
    check = Check()
    talks = [
        [{"role": "system", "content": make_words(2000, "agents", round_number, index)}]
        for index in range(8)
    ]
    by_turn: list[list[client.Stream]] = [[] for _ in range(4)]
    for turn, index in itertools.product(range(4), range(8)):
        text = make_words(30, "agents", round_number, index, turn)
        talks[index].append({"role": "user", "content": text})
        stream = await client.stream(server.port, CHAT, greedy(32, messages=talks[index]))
        check.stream(stream, 32)
        talks[index].append({"role": "assistant", "content": stream.text})
        by_turn[turn].append(stream)
    pairs = [pair for turns in itertools.pairwise(by_turn) for pair in zip(*turns, strict=True)]
    later = [new for _, new in pairs]
    figures = {
        "cached_share": sum(s.n_cached for s in later) / sum(_n_reusable(s) for s, _ in pairs),
        "cached_share_min": min(new.n_cached / _n_reusable(old) for old, new in pairs),
        "ttft_ms": median(1000 * s.ttft_s for s in later),
        "ttft_max_ms": max(1000 * s.ttft_s for s in later),
        "cold_ttft_ms": median(1000 * s.ttft_s for s in by_turn[0]),
    }
    n_prompt = count_prompt([*by_turn[0], *later])
    return Outcome(figures, n_prompt, tuple(check.problems), prompt_slack=0.03)


def _n_reusable(before: client.Stream) -> int:
    """All that a turn left to the next one: its last token was never computed."""
    return before.n_prompt + before.n_completion - 1


async def restart(launch: Launcher, round_number: int) -> Outcome:
    """6 prompts (3 of 2,000 words, 3 of 300), SIGTERM, the same prompts to a new process."""
    prompts = [
        make_words(n_words, "restart", round_number, n_words, index)
        for n_words in (2000, 300)
        for index in range(3)
    ]
    check = Check()
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(ours=f"--kv-dir {shlex.quote(folder)}")
        async with launch(setup) as server:
            cold = await _one_by_one(server, prompts, check)
            stopping_at = time.perf_counter()
        stop_s = time.perf_counter() - stopping_at
        n_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        async with launch(setup) as server:
            again = await _one_by_one(server, prompts, check)
    for stream in cold:
        check.expect(stream.n_cached < 100, f"{stream.n_cached} tokens of a cold prompt cached")
    cold_ms, again_ms = (median(1000 * s.ttft_s for s in part[:3]) for part in (cold, again))
    figures = {
        "cached_share": sum(s.n_cached for s in again) / count_prompt(again),
        "ttft_ratio": again_ms / cold_ms,
        "ttft_ms": again_ms,
        "cold_ttft_ms": cold_ms,
        "stop_s": stop_s,
        "disk_mb": n_bytes / 1e6,
    }
    equal, notes = await _compare(launch, prompts, cold, again)
    problems = tuple(check.problems)
    return Outcome(figures | equal, count_prompt(cold), problems, notes=notes)


async def _one_by_one(server: Server, prompts: Sequence[str], check: Check) -> list[client.Stream]:
    await warm_up(server)
    streams = []
    for prompt in prompts:
        body = greedy(32, prompt=prompt)
        streams.append(await client.stream(server.port, COMPLETIONS, body))
        check.stream(streams[-1], 32)
    return streams


async def oversubscribed(launch: Launcher, round_number: int) -> Outcome:
    """16 streams that need four times the cells there are, then the same with enough cells.

    Of the peer it counts how many survive: it has no second run.
    """
    prompts = [make_words(N_WORDS, "over", round_number, index) for index in range(N_STREAMS)]
    if launch.side.is_peer:
        return await _count_survivors(launch, prompts)
    check = Check()
    scarce, facts = await _fill(launch, SCARCE, prompts, check)
    ample, ample_facts = await _fill(launch, AMPLE, prompts, check)
    capacity, layout = facts["cells"]["capacity"], facts["layout"]
    check.expect(capacity <= N_SCARCE, f"{capacity} cells, not {N_SCARCE}")
    alike = ample
    if ample_facts["layout"] != layout:
        # The layouts round differently; preemption alone must change no text.
        in_layout = replace(AMPLE, ours=f"{AMPLE.ours} --kv-layout {layout}")
        alike, _ = await _fill(launch, in_layout, prompts, check)
    figures = {
        "complete": float(len(scarce)),
        "tok_s": N_STREAMS * N_NEW / wall_s(scarce),
        "undisturbed_tok_s": N_STREAMS * N_NEW / wall_s(ample),
        "undisturbed_share": wall_s(ample) / wall_s(scarce),
        "ttft_max_ms": max(1000 * s.ttft_s for s in scarce),
        "preemptions": float(facts["counters"]["preemptions"]),
    }
    equal, notes = await _compare(launch, prompts, scarce, alike)
    n_prompt, problems = count_prompt(scarce), tuple(check.problems)
    return Outcome(figures | equal, n_prompt, problems, prompt_slack=1, notes=notes)


async def _fill(
    launch: Launcher, setup: Setup, prompts: Sequence[str], check: Check
) -> tuple[list[client.Stream], dict[str, Any]]:
    """The answers of a fresh server to all prompts at once, and what /v1/cache tells then."""
    async with launch(setup) as server:
        await warm_up(server)
        streams, problems = await burst(server, prompts, N_NEW)
        facts = await server.cache_facts()
    check.problems += [f"{setup.ours}: {problem}" for problem in problems]
    if facts is None:
        raise client.RequestFailed("there is no /v1/cache to tell the cells and the layout")
    return streams, facts


async def _count_survivors(launch: Launcher, prompts: Sequence[str]) -> Outcome:
    """Failed requests are a figure here, not a problem."""
    async with launch(SCARCE) as server:
        await warm_up(server)
        began_at = time.perf_counter()
        work = [
            client.stream(server.port, COMPLETIONS, greedy(N_NEW, prompt=prompt))
            for prompt in prompts
        ]
        answers = await asyncio.gather(
            *(asyncio.wait_for(coroutine, SURVIVOR_TIMEOUT_S) for coroutine in work),
            return_exceptions=True,
        )
        seconds = time.perf_counter() - began_at
    complete = 0
    for answer in answers:
        match answer:
            case client.Stream():
                check = Check()
                check.stream(answer, N_NEW)
                complete += not check.problems
            case client.RequestFailed() | TimeoutError():
                pass
            case unexpected:
                raise unexpected
    figures = {"complete": float(complete), "tok_s": complete * N_NEW / seconds}
    return Outcome(figures, 0, prompt_slack=1)


async def _compare(
    launch: Launcher,
    prompts: Sequence[str],
    some: Sequence[client.Stream],
    others: Sequence[client.Stream],
) -> tuple[dict[str, float], tuple[str, ...]]:
    """How many texts are equal, and with a peer to judge how many no logit tie explains.

    Returns figures, and a note for each difference.
    """
    partings = [
        (prompt, a.text, b.text)
        for prompt, a, b in zip(prompts, some, others, strict=True)
        if a.text != b.text
    ]
    figures = {"equal_texts": float(len(prompts) - len(partings))}
    judge = launch.for_judging()
    if judge is None:
        return figures, ()
    gaps: list[float] = []
    if partings:
        async with judge() as server:
            gaps = [await equality.find_gap(server.port, *parting) for parting in partings]
    figures["unexplained_texts"] = float(sum(gap > equality.JUDGED_TIE_GAP for gap in gaps))
    return figures, tuple(f"a text differs at a gap of {gap:.3f}" for gap in gaps)


async def start(launch: Launcher, round_number: int) -> Outcome:
    """A fresh process: ready, first token, a load, and what of its memory is given back."""
    check = Check()
    async with launch() as server:
        at_ready = server.memory()
        first = await client.stream(
            server.port, COMPLETIONS, greedy(8, prompt=make_words(8, "start", round_number))
        )
        check.stream(first, 8)
        after_first, buffer_bytes = server.memory(), await server.buffer_bytes()
        texts = [make_words(1000, "start", round_number, index) for index in range(16)]
        streams, problems = await burst(server, texts, 64)
        loaded = server.memory()
        idle, idle_s = await _wait_idle(server, IDLE_RATIO * at_ready.rss_bytes)
        facts = await server.cache_facts()
    figures = {
        "ready_s": server.ready_at - server.exec_at,
        "first_token_s": first.delta_at[0] - server.exec_at,
        "rss_mb": at_ready.rss_bytes / 1e6,
        "anon_mb": at_ready.anon_bytes / 1e6,
        "anon_after_mb": after_first.anon_bytes / 1e6,
        "rss_load_mb": loaded.rss_bytes / 1e6,
        "anon_load_mb": loaded.anon_bytes / 1e6,
        "rss_after_idle_mb": idle.rss_bytes / 1e6,
        "anon_after_idle_mb": idle.anon_bytes / 1e6,
        "rss_after_idle_ratio": idle.rss_bytes / at_ready.rss_bytes,
        "idle_s": idle_s,
    }
    if buffer_bytes is not None:
        figures["beyond_buffers_mb"] = (after_first.rss_bytes - buffer_bytes) / 1e6
    notes: tuple[str, ...] = ()
    if facts is not None:
        cells, ram_bytes = facts["cells"], facts["tiers"]["ram_bytes"]
        is_all = cells["capacity"] >= launch.total_ctx
        check.expect(is_all, f"{cells['capacity']} cells, not {launch.total_ctx}")
        notes = (f"idle: {cells['now']} cells, {ram_bytes / 1e6:.0f} MB of prefixes in RAM",)
    n_prompt = count_prompt([first, *streams])
    return Outcome(figures, n_prompt, (*check.problems, *problems), notes=notes)


async def _wait_idle(server: Server, limit_bytes: float) -> tuple[Memory, float]:
    """The resident memory once it is within the limit, or after a minute, and how long it took."""
    began_at = time.perf_counter()
    while True:
        memory, seconds = server.memory(), time.perf_counter() - began_at
        if memory.rss_bytes <= limit_bytes or seconds > IDLE_TIMEOUT_S:
            return memory, seconds
        await asyncio.sleep(0.5)
