"""The workloads that need one fresh server: what is sent, when, and which figures come out.

Each is an async function of a freshly started server and a round's number; it returns an
Outcome.  Must not know which server it measures.
"""

from __future__ import annotations

import asyncio
import random

import client
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
    together,
    wall_s,
)
from processes import Server

N_TOKENS_BEFORE_ARRIVAL = 32


async def single(server: Server, round_number: int) -> Outcome:
    """One stream at a time, 3 x 256 tokens: the median rate, with and without its prompt."""
    n_tokens, check = 256, Check()
    streams = []
    for index in range(3):
        prompt = make_words(32, "single", round_number, index)
        streams.append(
            await client.stream(server.port, COMPLETIONS, greedy(n_tokens, prompt=prompt))
        )
        check.stream(streams[-1], n_tokens)
    figures = {
        "tok_s": median((n_tokens - 1) / (s.delta_at[-1] - s.delta_at[0]) for s in streams),
        "overall_tok_s": median(n_tokens / (s.ended_at - s.sent_at) for s in streams),
        "ttft_ms": median(1000 * s.ttft_s for s in streams),
    }
    return Outcome(figures, count_prompt(streams), tuple(check.problems))


async def distinct(server: Server, round_number: int) -> Outcome:
    """16 streams with nothing in common start together: 200 words in, 128 tokens out."""
    prompts = [make_words(200, "distinct", round_number, index) for index in range(16)]
    streams, problems = await burst(server, prompts, 128)
    memory = server.memory()
    figures = {
        "tok_s": 16 * 128 / wall_s(streams),
        "ttft_max_ms": max(1000 * s.ttft_s for s in streams),
        "anon_after_mb": memory.anon_bytes / 1e6,
    }
    return Outcome(figures, count_prompt(streams), problems)


async def distinct_long(server: Server, round_number: int) -> Outcome:
    """The same with prompts of 1,000 words."""
    prompts = [make_words(1000, "distinct_long", round_number, index) for index in range(16)]
    streams, problems = await burst(server, prompts, 128)
    figures = {
        "tok_s": 16 * 128 / wall_s(streams),
        "ttft_max_ms": max(1000 * s.ttft_s for s in streams),
    }
    return Outcome(figures, count_prompt(streams), problems)


async def churn(server: Server, round_number: int) -> Outcome:
    """16 clients keep 48 requests going, 100-300 words in, 32-160 tokens out."""
    random_source = random.Random(f"churn/{round_number}")
    sizes = [(random_source.randint(100, 300), random_source.randint(32, 160)) for _ in range(48)]
    rest = iter(enumerate(sizes))
    streams: list[client.Stream] = []
    check = Check()

    async def keep_asking() -> None:
        for index, (n_words, n_tokens) in rest:
            text = make_words(n_words, "churn", round_number, index)
            body = greedy(n_tokens, prompt=text)
            streams.append(await client.stream(server.port, COMPLETIONS, body))
            check.stream(streams[-1], n_tokens)

    await together(*(keep_asking() for _ in range(16)))
    figures = {
        "tok_s": sum(n_tokens for _, n_tokens in sizes) / wall_s(streams),
        "ttft_ms": median(1000 * s.ttft_s for s in streams),
        "ttft_max_ms": max(1000 * s.ttft_s for s in streams),
    }
    check.expect(len(streams) == len(sizes), f"{len(streams)} answers to {len(sizes)} requests")
    return Outcome(figures, count_prompt(streams), tuple(check.problems))


async def prefix(server: Server, round_number: int) -> Outcome:
    """16 requests start together on a cold server: 1,200 words in common, 30 of their own."""
    common = make_words(1200, "prefix", round_number)
    prompts = [f"{common} {make_words(30, 'tail', round_number, index)}" for index in range(16)]
    before = await server.computed_prompt_tokens()
    streams, problems = await burst(server, prompts, 32)
    after = await server.computed_prompt_tokens()
    n_prompt = count_prompt(streams)
    n_computed = n_prompt - sum(s.n_cached for s in streams)
    check = Check(list(problems))
    if before is not None and after is not None:
        # What usage calls cached must not have been computed behind its back.
        is_true = after - before <= 1.02 * n_computed
        check.expect(is_true, f"usage: {n_computed} tokens computed, metrics: {after - before:g}")
    figures = {
        "wall_s": wall_s(streams),
        "cached_share": 1 - n_computed / n_prompt,
        "computed_prompts": n_computed / (n_prompt / 16),
        # The 16 x 30 words that nothing can share are not counted here.
        "computed_commons": (n_computed - 16 * 30) / 1200,
    }
    return Outcome(figures, n_prompt, tuple(check.problems))


async def arrival(server: Server, round_number: int) -> Outcome:
    """A 4,600-token prompt comes to an idle server, then another beside a running stream."""
    check = Check()
    texts = [make_words(4600, "arrival", round_number, index) for index in range(2)]
    alone = await client.stream(server.port, COMPLETIONS, greedy(16, prompt=texts[0]))
    stream, newcomer = await _beside_a_stream(server, round_number, texts[1])
    check.stream(stream, 400)
    for other in (alone, newcomer):
        check.stream(other, 16)
        check.expect(other.n_cached < 100, f"{other.n_cached} tokens of a cold prompt were cached")
    check.expect(
        stream.ended_at > newcomer.delta_at[0], "the stream ended before the newcomer came"
    )
    figures = {
        "gap_ms": 1000 * _largest_gap_s(stream, newcomer.sent_at),
        "newcomer_slowdown": newcomer.ttft_s / alone.ttft_s,
        "newcomer_ttft_s": newcomer.ttft_s,
        "alone_ttft_s": alone.ttft_s,
    }
    return Outcome(figures, count_prompt([alone, stream, newcomer]), tuple(check.problems))


async def turns(server: Server, round_number: int) -> Outcome:
    """8 conversations of 4 turns; each turn goes round all of them, two at a time."""
    talks: list[list[dict[str, str]]] = [[] for _ in range(8)]
    later: list[client.Stream] = []
    check = Check()
    n_prompt = 0
    for turn in range(4):
        for talk_index, talk in enumerate(talks):
            n_words = 150 if turn == 0 else 50
            text = make_words(n_words, "turns", round_number, talk_index, turn)
            talk.append({"role": "user", "content": text})
        for first in range(0, len(talks), 2):
            pair = talks[first : first + 2]
            streams = await together(
                *(client.stream(server.port, CHAT, greedy(48, messages=talk)) for talk in pair)
            )
            for talk, stream in zip(pair, streams, strict=True):
                check.stream(stream, 48)
                talk.append({"role": "assistant", "content": stream.text})
            n_prompt += count_prompt(streams)
            later += streams if turn > 0 else []
    figures = {
        "ttft_ms": median(1000 * s.ttft_s for s in later),
        "ttft_max_ms": max(1000 * s.ttft_s for s in later),
        "cached_share": sum(s.n_cached for s in later) / count_prompt(later),
    }
    return Outcome(figures, n_prompt, tuple(check.problems), prompt_slack=0.03)


async def choices(server: Server, round_number: int) -> Outcome:
    """One request for 8 answers of 64 tokens to a 1,000-token prompt."""
    check = Check()
    prompt = make_words(1000, "choices", round_number)
    answer = await client.post(server.port, COMPLETIONS, greedy(64, prompt=prompt, n=8))
    value = answer.json()
    reasons = [choice["finish_reason"] for choice in value["choices"]]
    check.expect(reasons == ["length"] * 8, f"finish reasons {reasons}")
    check.expect(all(choice["text"] for choice in value["choices"]), "an empty choice")
    # llama-server counts the tokens of one choice only.
    n_tokens = value["usage"]["completion_tokens"]
    check.expect(n_tokens in (64, 8 * 64), f"{n_tokens} tokens, not 8 x 64")
    figures = {"wall_s": answer.ended_at - answer.sent_at}
    return Outcome(figures, value["usage"]["prompt_tokens"], tuple(check.problems))


async def _beside_a_stream(server: Server, round_number: int, text: str) -> list[client.Stream]:
    """Sends `text` once a stream has been running for some tokens; returns both, ended."""
    is_under_way = asyncio.Event()
    n_packets = 0

    def count() -> None:
        nonlocal n_packets
        n_packets += 1
        if n_packets > N_TOKENS_BEFORE_ARRIVAL:
            is_under_way.set()

    async def arrive() -> client.Stream:
        await is_under_way.wait()
        return await client.stream(server.port, COMPLETIONS, greedy(16, prompt=text))

    body = greedy(400, prompt=make_words(16, "running", round_number))
    running = client.stream(server.port, COMPLETIONS, body, count)
    return await together(running, arrive())


def _largest_gap_s(stream: client.Stream, after: float) -> float:
    """The longest time without a token that ended after the moment `after`."""
    pairs = zip(stream.delta_at, stream.delta_at[1:], strict=False)
    return max(later - earlier for earlier, later in pairs if later >= after)
