"""The real model: whatever the cache does, the text is the one of an undisturbed run.

Both layouts, greedy.  Attention sums over cells in their order, and a sum in another order
or precision is rounded differently, so that a near tie may end in another word.  Two ways to
compare all the same: prompts that leave no doubt how they go on; and, for any prompt, the
split layout with values in bf16, where nothing changes a single bit.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from ponytail import LLM, sizing
from ponytail.errors import RequestCancelled
from ponytail.llm import Answer
from tests.synthetic import smollm2_path

pytestmark = pytest.mark.real

GREEDY = {"temperature": 0, "ignore_eos": True}
# Threads that spin beside another busy process would slow both many times over.
ONE_THREAD = {"threads": 1, "threads_batch": 1}
STEM = "The harbour keeps a book of its ships, and every clerk copies it line by line. " * 12
LISTS = [
    "red, green, blue, white",
    "one, two, three, four, five",
    "north, east, south, west",
    "spring, summer, autumn, winter",
    "ship, crane, hatch, mast, anchor, rope",
    "Monday, Tuesday, Wednesday, Thursday",
]
QUESTIONS = [(f"{words}; " * 8).strip() for words in LISTS]


def settings(layout: str, **more: Any) -> dict[str, Any]:
    values = {"ctx_size": 1024, "parallel": 6, "kv_layout": layout, **ONE_THREAD}
    return {**values, **more}


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[str, str]]:
    """Each prompt computed alone, from nothing, one at a time."""
    with LLM(smollm2_path(), ctx_size=1024, parallel=1, kv_ram=0, **ONE_THREAD) as llm:
        yield {question: ask(llm, question, 60, deterministic=True).text for question in QUESTIONS}


def ask(llm: LLM, question: str, n: int = 24, **more: Any) -> Answer:
    return llm.complete(STEM + question, max_tokens=n, **GREEDY, **more)


async def ask_all(llm: LLM, questions: list[str], n: int = 24) -> list[Answer]:
    calls = (llm.acomplete(STEM + q, max_tokens=n, **GREEDY) for q in questions)
    return list(await asyncio.gather(*calls))


def counters(llm: LLM) -> dict[str, int]:
    # The engine publishes what it holds after each step; one more makes it current.
    llm.complete("a", max_tokens=1)
    found: dict[str, int] = llm.cache()["counters"]
    return found


def assert_as(alone: dict[str, str], answers: list[Answer], n_tokens: int = 24) -> None:
    for question, answer in zip(QUESTIONS, answers, strict=False):
        assert answer.usage.n_completion == n_tokens
        assert answer.text
        assert alone[question].startswith(answer.text)


@pytest.mark.parametrize("layout", ["split", "shared"])
def test_together_and_with_a_shared_prefix_is_as_alone(alone, layout):
    with LLM(smollm2_path(), **settings(layout)) as llm:
        answers = asyncio.run(ask_all(llm, QUESTIONS))
        assert_as(alone, answers)
        assert sum(a.usage.n_cached > 150 for a in answers) == len(QUESTIONS) - 1
        again = asyncio.run(ask_all(llm, QUESTIONS))
        assert_as(alone, again)
        assert all(a.usage.n_cached >= 0.95 * a.usage.n_prompt for a in again)


def test_split_with_values_in_bf16_is_exact_for_any_prompt_and_neighbours(tmp_path):
    prompts = [
        "Which ship brought the copper from Chile, and who was her captain?",
        "List three things a mate checks before the hatch is closed:",
        "def load(ship, cargo):\n    ",
        "Der Lotse kommt an Bord, wenn",
    ]
    exact = settings("split", cache_type_v="bf16", parallel=4, kv_dir=tmp_path / "kv")
    with LLM(smollm2_path(), **{**exact, "parallel": 1, "kv_dir": None}) as llm:
        alone = [ask(llm, prompt, 40, deterministic=True).text for prompt in prompts]
    with LLM(smollm2_path(), **exact) as llm:
        for _ in range(2):  # the second time from the cache
            assert [a.text for a in asyncio.run(ask_all(llm, prompts, 40))] == alone
    with LLM(smollm2_path(), **exact) as llm:
        answers = asyncio.run(ask_all(llm, prompts, 40))
        assert [a.text for a in answers] == alone
        assert all(a.usage.n_cached > 100 for a in answers)


@pytest.mark.parametrize("layout", ["split", "shared"])
def test_growing_under_a_running_request_changes_nothing(alone, layout, monkeypatch):
    for name in ("START_BYTES", "_START_SPLIT", "_START_SHARED"):
        monkeypatch.setattr(sizing, name, 512)
    with LLM(smollm2_path(), **settings(layout, parallel=2, ctx_size=2048)) as llm:

        async def main() -> list[Answer]:
            long = llm.acomplete([500] * 700, max_tokens=1)
            short = llm.acomplete(STEM + QUESTIONS[0], max_tokens=60, **GREEDY)
            return list(await asyncio.gather(long, short))

        assert llm.cache()["cells"]["now"] == (512 if layout == "shared" else 1024)
        assert_as(alone, asyncio.run(main())[1:], 60)
        assert counters(llm)["growths"] > 0


@pytest.mark.parametrize("kv_ram", ["0", "200MiB"])
def test_giving_way_and_coming_back_is_as_undisturbed(alone, kv_ram):
    options = settings("shared", kv_cells=512, ctx_size=512, kv_ram=kv_ram)
    with LLM(smollm2_path(), **options) as llm:
        answers = asyncio.run(ask_all(llm, QUESTIONS, 60))
        assert_as(alone, answers, 60)
        assert counters(llm)["preemptions"] > 0


@pytest.mark.parametrize("layout", ["split", "shared"])
def test_a_restart_with_a_folder_finds_its_prefixes_and_says_the_same(alone, layout, tmp_path):
    options = settings(layout, parallel=2, kv_dir=tmp_path / "kv")
    with LLM(smollm2_path(), **options) as llm:
        assert_as(alone, [ask(llm, question) for question in QUESTIONS[:3]])
    with LLM(smollm2_path(), **options) as llm:
        answers = [ask(llm, question) for question in QUESTIONS[:3]]
        assert counters(llm)["hit_disk_tokens"] > 0
    assert_as(alone, answers)
    assert all(a.usage.n_cached >= 0.95 * a.usage.n_prompt for a in answers)
    other = settings(layout, parallel=2, kv_dir=tmp_path / "kv", cache_type_k="q8_0")
    with LLM(smollm2_path(), **other) as llm:
        assert ask(llm, QUESTIONS[0]).usage.n_cached == 0


@pytest.mark.parametrize("layout", ["split", "shared"])
def test_choices_of_one_prompt_are_equal_and_cost_one_prompt(alone, layout):
    with LLM(smollm2_path(), **settings(layout)) as llm:
        body = {"max_tokens": 16, "n": 6, **GREEDY}
        answer = llm.complete(STEM + QUESTIONS[0], **body)
        assert len({choice.text for choice in answer.choices}) == 1
        assert alone[QUESTIONS[0]].startswith(answer.text)
        assert llm.counters()["n_prompt_computed"] <= answer.usage.n_prompt + 6


@pytest.mark.parametrize("layout", ["split", "shared"])
def test_an_endless_answer_outgrows_its_window(layout):
    options = settings(layout, ctx_size=256, parallel=2, context_shift=True)
    with LLM(smollm2_path(), **options) as llm:
        answer = llm.chat([{"role": "user", "content": "Count."}], max_tokens=300, **GREEDY)
        assert (answer.finish_reason, answer.usage.n_completion) == ("length", 300)
        after = llm.complete("The capital of France is", max_tokens=3, temperature=0)
        assert "Paris" in after.text


def fuzz(alone: dict[str, str], layout: str, seed: int, n_operations: int) -> None:
    """Random submits and hang-ups on few cells; every finished text is the undisturbed one."""
    rng = random.Random(seed)
    options = {"kv_cells": 768} if layout == "shared" else {}
    with LLM(
        smollm2_path(), **settings(layout, ctx_size=512, parallel=4, kv_ram="8MiB", **options)
    ) as llm:

        async def one(question: str, n: int, is_cut: bool) -> None:
            task = asyncio.create_task(llm.acomplete(STEM + question, max_tokens=n, **GREEDY))
            if is_cut:
                await asyncio.sleep(0)
                task.cancel()
            try:
                answer = await task
            except (asyncio.CancelledError, RequestCancelled):
                return
            assert answer.usage.n_completion == n
            assert alone[question].startswith(answer.text)

        async def main() -> None:
            pending: set[asyncio.Task[None]] = set()
            for _ in range(n_operations):
                question, n = rng.choice(QUESTIONS), rng.randrange(1, 40)
                work = one(question, n, rng.random() < 0.2)
                pending.add(asyncio.create_task(work))
                if len(pending) >= 8:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            await asyncio.gather(*pending)

        asyncio.run(main())
        gauges = llm.gauges()
        assert (gauges.n_running, gauges.n_queued) == (0, 0)


@pytest.mark.parametrize("layout", ["split", "shared"])
def test_random_requests_on_few_cells_keep_their_texts(alone, layout):
    fuzz(alone, layout, seed=1, n_operations=20 * int(os.environ.get("PONYTAIL_FUZZ", "1")))
