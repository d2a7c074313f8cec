"""The real model under the engine: batches, forks and swaps compute what a lone run computes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import pytest

from ponytail.llama.context import Context
from ponytail.llama.model import Model
from ponytail.types import Sampling
from tests.synthetic import smollm2_path

pytestmark = pytest.mark.real

TEXTS = [
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a king who had three sons, and the youngest of them was called",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
]
# Batch shape changes the order of additions: measured up to 0.05 on logits of about 20.
TOLERANCE = 0.5


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(smollm2_path())
    yield model
    model.close()


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    context = Context(model, n_seq=4, n_cells=512, n_threads=2, n_threads_batch=2)
    yield context
    context.close()


def ids(model: Model, text: str) -> array[int]:
    return array("i", model.tokenize(text, add_special=False, parse_special=True))


def logits(context: Context) -> np.ndarray:
    return np.array(context._rows_of_logits())


def alone(context: Context, seq_id: int, tokens: array[int]) -> np.ndarray:
    context.cut(seq_id, 0)
    context.decode([(seq_id, 0, tokens, True)])
    return logits(context)[0]


def test_a_batch_of_different_lengths_gives_each_row_its_own_logits(model, context):
    tokens = [ids(model, text) for text in TEXTS]
    expected = [alone(context, i, t) for i, t in enumerate(tokens)]
    for i in range(4):
        context.cut(i, 0)
    context.decode([(i, 0, t, True) for i, t in enumerate(tokens)])
    for row, wanted in zip(logits(context), expected, strict=True):
        assert np.abs(row - wanted).max() < TOLERANCE
        assert row.argmax() == wanted.argmax()


def test_a_prompt_in_chunks_beside_a_decoding_row_is_the_same_prompt(model, context):
    tokens = ids(model, TEXTS[2])
    wanted = alone(context, 1, tokens)
    context.cut(1, 0)
    other = ids(model, TEXTS[0])
    context.decode([(0, 0, other, True)])
    half = len(tokens) // 2
    context.decode([(0, len(other), other[:1], True), (1, 0, tokens[:half], False)])
    context.decode([(0, len(other) + 1, other[:1], True), (1, half, tokens[half:], True)])
    row = logits(context)[1]
    assert np.abs(row - wanted).max() < TOLERANCE
    assert row.argmax() == wanted.argmax()


def test_a_fork_is_bit_identical(model, context):
    tokens = ids(model, TEXTS[2])
    context.decode([(0, 0, tokens[:-1], False)])
    context.fork(0, [2, 3], len(tokens) - 1)
    rows = []
    for seq_id in (0, 2, 3):
        context.decode([(seq_id, len(tokens) - 1, tokens[-1:], True)])
        rows.append(logits(context)[0])
    assert (rows[0] == rows[1]).all()
    assert (rows[0] == rows[2]).all()


def test_a_fork_of_a_part_is_that_part(model, context):
    tokens = ids(model, TEXTS[2])
    context.decode([(0, 0, tokens, False)])
    context.fork(0, [1], 6)
    assert (context.n_tokens(0), context.n_tokens(1)) == (len(tokens), 6)
    context.decode([(1, 6, tokens[6:], True)])
    row = logits(context)[0]
    wanted = alone(context, 2, tokens)
    assert np.abs(row - wanted).max() < TOLERANCE


@pytest.mark.parametrize("second", [0, 5])
def test_a_swap_exchanges_two_sequences_exactly(model, context, second):
    tokens = ids(model, TEXTS[0])
    context.decode([(0, 0, tokens, False)])
    context.fork(0, [3], len(tokens))
    if second:
        context.decode([(1, 0, ids(model, TEXTS[1])[:second], False)])
    context.swap(0, 1)
    assert (context.n_tokens(0), context.n_tokens(1)) == (second, len(tokens))
    context.decode([(1, len(tokens), tokens[:1], True)])
    moved = logits(context)[0]
    context.decode([(3, len(tokens), tokens[:1], True)])
    assert (moved == logits(context)[0]).all()


def generate(context: Context, tokens: array[int], sampling: Sampling, n: int, seed: int = 7):
    sampler = context.open_sampler(sampling, seed, tokens)
    context.cut(0, 0)
    out: list[int] = []
    position, step = 0, tokens
    for _ in range(n):
        context.decode([(0, position, step, True)])
        position += len(step)
        (pick,) = context.sample([sampler])
        assert isinstance(pick, int)
        out.append(pick)
        step = array("i", [pick])
    sampler.close()
    return out


SAMPLINGS = {
    "plain": Sampling(temperature=1.2, top_k=0, top_p=1, min_p=0),
    "top_k": Sampling(temperature=5, top_k=1),
    "penalties": Sampling(repeat_penalty=1.5, presence_penalty=1, frequency_penalty=1),
    "greedy with penalties": Sampling(temperature=0, frequency_penalty=2, repeat_last_n=-1),
    "dry": Sampling(temperature=0, dry_multiplier=2.0),
    "xtc": Sampling(xtc_probability=1, xtc_threshold=0.01),
    "typical": Sampling(typical_p=0.3),
    "mirostat 1": Sampling(mirostat=1),
    "mirostat 2": Sampling(mirostat=2),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_sampler_runs_and_its_seed_fixes_it(model, context, name):
    tokens = ids(model, TEXTS[2])
    first = generate(context, tokens, SAMPLINGS[name], 12)
    assert first == generate(context, tokens, SAMPLINGS[name], 12)


def test_each_sampler_changes_the_text(model, context):
    tokens = ids(model, TEXTS[3])
    greedy = generate(context, tokens, Sampling(temperature=0), 24)
    assert generate(context, tokens, SAMPLINGS["top_k"], 24) == greedy
    again = ids(model, "la di da, la di da, la di da, la di da,")
    assert generate(context, again, SAMPLINGS["dry"], 24) != generate(
        context, again, Sampling(temperature=0), 24
    )
    for name in ("plain", "greedy with penalties", "xtc"):
        assert generate(context, tokens, SAMPLINGS[name], 24) != greedy, name
    assert generate(context, tokens, SAMPLINGS["plain"], 24, seed=8) != generate(
        context, tokens, SAMPLINGS["plain"], 24, seed=9
    )


def test_bias_bans_and_minimum_hold_for_greedy_and_for_the_chain(model, context):
    tokens = ids(model, "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>")
    eog = set(model.eog_ids)
    for base in (Sampling(temperature=0), Sampling()):
        forced = Sampling(temperature=base.temperature, logit_bias=((500, 100.0),))
        assert generate(context, tokens, forced, 3) == [500] * 3
    prompt = ids(model, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!")
    free = generate(context, prompt, Sampling(temperature=0, logit_bias=((2, 60.0),)), 1)
    assert free == [2]
    kept = Sampling(temperature=0, logit_bias=((2, 60.0),), min_tokens=3)
    out = generate(context, prompt, kept, 4)
    assert not eog & set(out[:3])
    assert out[3] == 2
    never = Sampling(temperature=0, logit_bias=((2, 60.0),), ignore_eos=True)
    assert not eog & set(generate(context, prompt, never, 12))
