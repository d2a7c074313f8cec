"""Samplers on the real model: each runs, each changes the text, each seed fixes it."""

from __future__ import annotations

from array import array

import pytest

from ponytail.llama.context import Context
from ponytail.types import Sampling
from tests.real.context.cells import TEXTS, ids

pytestmark = pytest.mark.real


def generate(split: Context, tokens: array[int], sampling: Sampling, n: int, seed: int = 7):
    sampler = split.open_sampler(sampling, seed, tokens)
    split.cut(0, 0)
    out: list[int] = []
    position, step = 0, tokens
    for _ in range(n):
        split.decode([(0, position, step, True)])
        position += len(step)
        (pick,) = split.sample([sampler])
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
def test_every_sampler_runs_and_its_seed_fixes_it(model, split, name):
    tokens = ids(model, TEXTS[2])
    first = generate(split, tokens, SAMPLINGS[name], 12)
    assert first == generate(split, tokens, SAMPLINGS[name], 12)


def test_each_sampler_changes_the_text(model, split):
    tokens = ids(model, TEXTS[3])
    greedy = generate(split, tokens, Sampling(temperature=0), 24)
    assert generate(split, tokens, SAMPLINGS["top_k"], 24) == greedy
    again = ids(model, "la di da, la di da, la di da, la di da,")
    assert generate(split, again, SAMPLINGS["dry"], 24) != generate(
        split, again, Sampling(temperature=0), 24
    )
    for name in ("plain", "greedy with penalties", "xtc"):
        assert generate(split, tokens, SAMPLINGS[name], 24) != greedy, name
    assert generate(split, tokens, SAMPLINGS["plain"], 24, seed=8) != generate(
        split, tokens, SAMPLINGS["plain"], 24, seed=9
    )


def test_bias_bans_and_minimum_hold_for_greedy_and_for_the_chain(model, split):
    tokens = ids(model, "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>")
    eog = set(model.eog_ids)
    for base in (Sampling(temperature=0), Sampling()):
        forced = Sampling(temperature=base.temperature, logit_bias=((500, 100.0),))
        assert generate(split, tokens, forced, 3) == [500] * 3
    prompt = ids(model, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!")
    free = generate(split, prompt, Sampling(temperature=0, logit_bias=((2, 60.0),)), 1)
    assert free == [2]
    kept = Sampling(temperature=0, logit_bias=((2, 60.0),), min_tokens=3)
    out = generate(split, prompt, kept, 4)
    assert not eog & set(out[:3])
    assert out[3] == 2
    never = Sampling(temperature=0, logit_bias=((2, 60.0),), ignore_eos=True)
    assert not eog & set(generate(split, prompt, never, 12))
