"""Who computes how many tokens in the next step.

Pure: (live sequences, budgets, learnt cost) -> Plan.  Decoding rows always go, in a batch
of their own; prefill follows in another.  While a stream is past its first token the
step is bounded in time and prompts go in turn, the shortest rest first; while none is,
all prompts are prefilled together at full batch size, so that a burst starts decoding in
lockstep (measured: 209-219 tok/s for 16 streams against 105-157 with staggered starts).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TypeAlias

import msgspec

from ponytail.engine.backend import SCORE_CHUNK
from ponytail.engine.cost import StepCost
from ponytail.engine.sequence import Sequence

Chunk: TypeAlias = tuple[Sequence, int]
"""(sequence, tokens it computes in this step)."""

# Prompts of solo sequences are cut at multiples of this, always: another cut would round
# differently.  Small enough to run beside a stream.
SOLO_CHUNK = 128
# The step after idling: requests that are sent together arrive some milliseconds apart, and a
# full step over the first one's prompt would let it decode while the others still wait.
FIRST_STEP_TOKENS = 64
# Below this a chunk's fixed cost outweighs its tokens; it also bounds starvation.
MIN_CHUNK = 16
# A step may be this much longer than asked when that saves a prompt from the slow path,
# where a token costs about twice as much.
STRETCH = 1.7
# Tokens of credit an older prompt has over each newer one: little enough that prompts
# that arrive together advance together.
_AGE_TOKENS = 4
# The same where prompts go in turn: a long prompt is overtaken by some tens of short ones, not
# by all that ever come.
_TURN_TOKENS = 64
_NO_LIMIT = 1 << 62


class Plan(msgspec.Struct):
    """Batches of the next step, each in ascending order of sequence ids."""

    decoding: list[Chunk]
    prefilling: list[Chunk]
    solo: list[Chunk]


def plan(
    live: Iterable[Sequence],
    n_prefill: int,
    cost: StepCost,
    step_s: float,
    n_limit: int = _NO_LIMIT,
) -> Plan:
    """The next step for `live`, in the order of sequence ids.

    Prompts get at most n_prefill tokens together; no sequence grows beyond n_limit tokens.
    """
    result = Plan([], [], [])
    waiting: list[Sequence] = []
    is_watched = False
    for sequence in live:
        if sequence.n_computed >= n_limit or sequence.waits_for is not None:
            continue
        if sequence.job.is_solo or sequence.is_scoring:
            n = min(SCORE_CHUNK if sequence.is_scoring else SOLO_CHUNK, sequence.n_next)
            if sequence.n_computed + n <= n_limit:
                result.solo.append((sequence, n))
        elif sequence.is_decoding:
            is_watched = is_watched or sequence.job.is_streaming
            result.decoding.append((sequence, 1))
        else:
            waiting.append(sequence)
    if waiting and n_prefill > 0:
        tile = 1 if cost.is_whole else cost.tile
        if is_watched:
            left_s = step_s - cost.decode_s(len(result.decoding))
            shares = _in_turn(waiting, n_prefill, cost, tile, left_s)
        else:
            shares = _together(waiting, n_prefill, tile)
        result.prefilling = [
            (s, min(shares[id(s)], n_limit - s.n_computed)) for s in waiting if id(s) in shares
        ]
    return result


def _together(waiting: Seq[Sequence], n_room: int, tile: int) -> dict[int, int]:
    """Tokens by id(sequence) while nobody watches: whoever was served least, in even shares.

    Whole tiles: fewer prompts a step, each on the fast path, rather than all on the slow.
    """
    ranked = sorted(waiting, key=lambda s: s.n_computed - s.n_cached + _AGE_TOKENS * s.order)
    served = ranked[: max(1, n_room // max(tile, MIN_CHUNK))]
    return _even(served, n_room, tile)


def _in_turn(
    waiting: Seq[Sequence], n_prefill: int, cost: StepCost, tile: int, left_s: float
) -> dict[int, int]:
    """Tokens by id(sequence) in `left_s`: the shortest rest first, and age counts.

    One prompt after another answers sooner on average than all side by side.
    """
    ranked = sorted(waiting, key=lambda s: s.n_todo + _TURN_TOKENS * s.order)
    n_room = min(n_prefill, _affordable(ranked[0], cost, left_s))
    shares: dict[int, int] = {}
    for sequence in ranked:
        share = _chunk(sequence, n_room, tile)
        if shares and share < min(tile, sequence.n_next):
            break
        shares[id(sequence)] = share
        n_room -= share
    return shares


def _affordable(first: Sequence, cost: StepCost, left_s: float) -> int:
    """Prefill tokens that the time allows, at the context of whoever is first.

    Some more where that saves a tile, or what is left of the prompt, from the slow path.
    """
    n, rest = cost.tokens_within(left_s, first.n_computed), first.n_next
    if rest >= cost.tile:  # Less is on the slow path in any case.
        for wanted in (rest if rest < n + cost.tile else n, cost.tile):
            if n < wanted and cost.prefill_s(wanted, first.n_computed) <= STRETCH * left_s:
                return wanted
    return max(MIN_CHUNK, n)


def _even(served: Seq[Sequence], n_room: int, tile: int) -> dict[int, int]:
    """Equal shares in whole tiles; what short prompts leave goes to the longer ones."""
    shares: dict[int, int] = {}
    n_left = len(served)
    for sequence in sorted(served, key=lambda s: s.n_todo):
        shares[id(sequence)] = share = _chunk(sequence, n_room // n_left, tile)
        n_room -= share
        n_left -= 1
    return shares


def _chunk(sequence: Sequence, n_room: int, tile: int) -> int:
    """Tokens that it computes of n_room: all it has, or whole tiles where one fits."""
    n = min(n_room, sequence.n_next)
    return n if n == sequence.n_next else n // tile * tile or n
