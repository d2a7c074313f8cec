"""Do two servers give the same text at temperature 0?  And where not, was it a close call?

Both get the same prompts, one request at a time.  The peer also reports its tokens with the
log-probabilities of its two best candidates: where the texts part, the gap between the two
says whether rounding can explain it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import client
from load import COMPLETIONS, greedy

N_TOKENS = 64
# Two builds of llama.cpp, or two batch shapes in one, differ by about this much in a logit.
TIE_GAP = 0.1
# Over random words calls are closer and noise larger: llama-server's own texts, alone and 16 at
# a time, parted at gaps of up to 0.15 (100 words in, 60 tokens out).
JUDGED_TIE_GAP = 0.2
# From the last common space to where two texts part it is one long word at most.
N_JUDGED = 16

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "To make a good cup of tea, first",
    "Question: Why is the sky blue?\nAnswer:",
    "def fibonacci(n):\n",
    "The three laws of motion are",
    "Dear Sir or Madam,\n",
    "Water boils at",
    "1, 1, 2, 3, 5, 8,",
    "The largest planet in the solar system",
    "List of European countries:\n-",
    "SELECT name, price FROM products WHERE",
    "My favourite book is about",
    "Die Hauptstadt von Deutschland ist",
    "In 1969, people first",
    "import numpy as np\n",
    "A recipe for bread:\nIngredients:\n",
    "The difference between a virus and a bacterium is",
    "Customer: My order has not arrived.\nAgent:",
    "<|im_start|>user\nTell me a joke.<|im_end|>\n<|im_start|>assistant\n",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of the peer's answer that the other answer does not have.

    `gap` is the difference of the log-probabilities of the peer's two best candidates there.
    """

    prompt_index: int
    position: int
    gap: float
    is_runner_up: bool

    @property
    def is_tie(self) -> bool:
        return self.is_runner_up and self.gap <= TIE_GAP

    def shown(self) -> str:
        kind = "logit tie" if self.is_tie else "NOT a tie"
        took = "took the runner-up" if self.is_runner_up else "took neither of the best two"
        return (
            f"prompt {self.prompt_index}, token {self.position}: {kind},"
            f" top-2 gap {self.gap:.3f}, ours {took}"
        )


async def collect(port: int, with_logprobs: bool) -> list[dict[str, Any]]:
    """One answer's first choice per prompt, in order; raises RequestFailed on a wrong count."""
    extra = {"logprobs": 2} if with_logprobs else {}
    answers = []
    for prompt in PROMPTS:
        answer = await client.post(port, COMPLETIONS, greedy(N_TOKENS, prompt=prompt, **extra))
        value = answer.json()
        n_tokens = value["usage"]["completion_tokens"]
        if n_tokens != N_TOKENS:
            raise client.RequestFailed(f"{n_tokens} tokens instead of {N_TOKENS} for {prompt!r}")
        answers.append(value["choices"][0])
    return answers


def compare(ours: list[dict[str, Any]], peer: list[dict[str, Any]]) -> list[Difference]:
    """The first difference of every prompt whose answers differ."""
    differences = []
    for index, (mine, theirs) in enumerate(zip(ours, peer, strict=True)):
        if mine["text"] != theirs["text"]:
            differences.append(_first_difference(index, mine["text"], theirs))
    return differences


def _first_difference(index: int, text: str, theirs: dict[str, Any]) -> Difference:
    rest = text.encode()
    for position, token in enumerate(theirs["logprobs"]["content"]):
        piece = bytes(token["bytes"])
        if not rest.startswith(piece):
            return _judge(index, position, rest, token["top_logprobs"])
        rest = rest[len(piece) :]
    raise LookupError(f"prompt {index}: the texts differ, the tokens do not")


def _judge(index: int, position: int, rest: bytes, best: list[dict[str, Any]]) -> Difference:
    gap = best[0]["logprob"] - best[1]["logprob"]
    runner_up = bytes(best[1]["bytes"])
    return Difference(index, position, gap, rest.startswith(runner_up))


async def find_gap(port: int, prompt: str, one: str, other: str) -> float:
    """How close the call was where two greedy answers to one prompt part; the peer tells.

    How far the less likely of the two ways is behind the best in log-probability; infinite
    where one of them is not among the peer's best five.
    """
    kept = _common_words(one, other)
    body = greedy(N_JUDGED, prompt=prompt + kept, logprobs=5)
    answer = (await client.post(port, COMPLETIONS, body)).json()["choices"][0]
    rests = [text[len(kept) :].encode() for text in (one, other)]
    for token in answer["logprobs"]["content"]:
        piece = bytes(token["bytes"])
        if not all(rest.startswith(piece) for rest in rests):
            return max(_distance(rest, token["top_logprobs"]) for rest in rests)
        rests = [rest[len(piece) :] for rest in rests]
    return math.inf


def _common_words(one: str, other: str) -> str:
    """What both begin with, up to a space: the same tokens as in the answers from there on."""
    pairs = zip(one, other, strict=False)
    n_same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return one[: max(one.rfind(" ", 0, n_same), 0)]


def _distance(rest: bytes, best: list[dict[str, Any]]) -> float:
    """How far the longest candidate that `rest` begins with is behind the first."""
    fitting = [candidate for candidate in best if rest.startswith(bytes(candidate["bytes"]))]
    if not fitting:
        return math.inf
    taken = max(fitting, key=lambda candidate: len(candidate["bytes"]))
    return float(best[0]["logprob"] - taken["logprob"])


def summarise(differences: list[Difference]) -> dict[str, Any]:
    return {
        "prompts": len(PROMPTS),
        "tokens_each": N_TOKENS,
        "equal": len(PROMPTS) - len(differences),
        "logit_ties": sum(d.is_tie for d in differences),
        "unexplained": sum(not d.is_tie for d in differences),
        "differences": [d.shown() for d in differences],
    }
