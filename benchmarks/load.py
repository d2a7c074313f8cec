"""What the workloads share: their texts, their requests, and what makes an answer void.

The texts are random common words, the same for every server of a round and never the same
twice, so that nothing is cached that a workload does not mean to be.
Must not know a workload's figures or which server it measures.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import client
from processes import Server

# Words that the vocabularies in use spell as one token each, so that n words are n tokens.
_WORD_TEXT = (
    "the of and to in is that it was for on are as with his they at be this from have or by one"
    " had not but what all were when we there can an your which their said if do will each about"
    " how up out them then she many some so these would other into has more her two like him see"
    " time could no make than first been its who now people my made over did down only way find"
    " use may water long little very after words called just where most know get through back much"
    " before go good new write our used me man too any day same right look think also around"
    " another came come work three word must because does part even place well such here take why"
    " things help put years different away again off went old number great tell men say small"
    " every found still between name should home big give air line set own under read last never"
    " us left end along while might next sound below something thought both few those always show"
    " large often together house world going want school important until form food keep children"
    " feet land side without boy once animals life enough sometimes four head above kind almost"
    " live page got earth need far hand high year mother light parts country father let night"
    " following picture being study second soon times story boys since white days ever paper hard"
    " near sentence better best during today others however means try young sun ways thing whole"
    " example several change answer room sea against top learn point city play five using usually"
)
WORDS = _WORD_TEXT.split()

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A workload's figures, the prompt tokens behind them, what makes them void, and remarks.

    `prompt_slack` is by what share the prompt tokens of two servers may differ: more than
    nothing only where a prompt contains what the model answered, or where one may fail.
    """

    figures: dict[str, float]
    n_prompt: int
    problems: tuple[str, ...] = ()
    prompt_slack: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Check:
    """Collects what is wrong with the outputs of one workload."""

    problems: list[str] = field(default_factory=list)

    def expect(self, is_right: bool, problem: str) -> None:
        if not is_right:
            self.problems.append(problem)

    def stream(self, stream: client.Stream, n_tokens: int) -> None:
        """All tokens there, ended by the limit, and really streamed (bytes may join tokens)."""
        self.expect(
            stream.n_completion == n_tokens, f"{stream.n_completion} tokens, not {n_tokens}"
        )
        self.expect(
            stream.finish_reason == "length", f"finish_reason {stream.finish_reason}, not length"
        )
        n_deltas = len(stream.delta_at)
        self.expect(n_deltas > n_tokens / 2, f"{n_tokens} tokens in {n_deltas} pieces")


def make_words(n: int, *key: object) -> str:
    """`n` random words; the same key gives the same words on every machine."""
    return " ".join(random.Random("/".join(map(str, key))).choices(WORDS, k=n))


def greedy(n_tokens: int, **fields: Any) -> dict[str, Any]:
    """A body that yields exactly `n_tokens` tokens: the end tokens are forbidden."""
    return {"max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, **fields}


async def warm_up(server: Server) -> None:
    """One short exchange, so that no workload pays for what happens once per process."""
    await client.stream(server.port, COMPLETIONS, greedy(8, prompt="Once upon a time"))


async def burst(
    server: Server, prompts: Sequence[str], n_tokens: int
) -> tuple[list[client.Stream], tuple[str, ...]]:
    bodies = [greedy(n_tokens, prompt=prompt) for prompt in prompts]
    streams = await together(*(client.stream(server.port, COMPLETIONS, body) for body in bodies))
    check = Check()
    for stream in streams:
        check.stream(stream, n_tokens)
    return streams, tuple(check.problems)


async def together(*coroutines: Coroutine[None, None, Result]) -> list[Result]:
    """Like asyncio.gather, but the first failure ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def wall_s(streams: Sequence[client.Stream]) -> float:
    return max(s.ended_at for s in streams) - min(s.sent_at for s in streams)


def count_prompt(streams: Sequence[client.Stream]) -> int:
    return sum(s.n_prompt for s in streams)


def median(values: Iterable[float]) -> float:
    return statistics.median(values)
