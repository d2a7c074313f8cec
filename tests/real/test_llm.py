"""`LLM` in process, on a tiny model: many calls, both twins, leaving early, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponytail import LLM
from ponytail.errors import BadConfig, Overloaded, ShuttingDown, TemplateError
from ponytail.types import Text
from tests.synthetic import write_gguf

pytestmark = pytest.mark.real

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
HI = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("llm") / "tiny.gguf", template=TEMPLATE)


@pytest.fixture
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, ctx_size=512, parallel=4, threads=1, threads_batch=1) as llm:
        yield llm


def test_the_twins_give_the_same(llm):
    async def main() -> tuple[str, str]:
        answer = await llm.achat(HI, max_tokens=12, **GREEDY)
        events = [e async for e in llm.astream(HI, max_tokens=12, **GREEDY)]
        return answer.text, "".join(e.text for e in events if isinstance(e, Text))

    plain = llm.chat(HI, max_tokens=12, **GREEDY).text
    streamed = "".join(
        e.text for e in llm.stream(HI, max_tokens=12, **GREEDY) if isinstance(e, Text)
    )
    assert asyncio.run(main()) == (plain, plain)
    assert streamed == plain


def test_any_number_of_calls_may_wait(llm):
    async def main() -> list[str]:
        calls = (llm.acomplete(f"item {i}", max_tokens=2, **GREEDY) for i in range(200))
        return [answer.text for answer in await asyncio.gather(*calls)]

    assert len(asyncio.run(main())) == 200


def test_a_given_queue_limit_holds(model):
    with LLM(model, ctx_size=512, parallel=1, max_queue=1, threads=1) as llm:
        streams = [llm.stream(HI, max_tokens=400, **GREEDY) for _ in range(2)]
        with pytest.raises(Overloaded):
            llm.chat(HI)
        for stream in streams:
            next(stream)
            stream.close()


def test_the_window_is_each_requests_own_and_the_cells_are_another_number(model):
    options = {"ctx_size": 1024, "parallel": 4, "kv_cells": 1536, "threads": 1}
    with LLM(model, **options) as llm:
        assert (llm.n_ctx, llm.cache()["cells"]["capacity"]) == (1024, 1536)
        assert llm.info()["n_ctx"] == 1024
        assert llm.complete([500] * 900, max_tokens=20, **GREEDY).usage.n_completion == 20

        async def four() -> list[int]:
            calls = (llm.acomplete([600 + i] * 400, max_tokens=30, **GREEDY) for i in range(4))
            return [a.usage.n_completion for a in await asyncio.gather(*calls)]

        # 1,720 tokens in 1,536 cells: one waits, or gives way; none dies midway.
        assert asyncio.run(four()) == [30] * 4
    with pytest.raises(BadConfig, match="more than the 1024 cells of --kv-cells"):
        LLM(model, ctx_size=2048, parallel=4, kv_cells=1024)


def test_cancelling_a_task_cancels_the_work(llm):
    async def main() -> None:
        task = asyncio.create_task(llm.acomplete("x", max_tokens=480, **GREEDY))
        while llm.gauges().n_running == 0:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    # The next answer comes through an engine that has dropped the first.
    llm.complete("y", max_tokens=1)
    assert llm.gauges().n_running == 0


def test_a_closed_model_refuses_in_words(model):
    llm = LLM(model, ctx_size=512, parallel=1)
    llm.close()
    llm.close()
    with pytest.raises(ShuttingDown):
        llm.chat(HI)


def test_a_wrong_setting_is_named(model):
    with pytest.raises(BadConfig, match="ctx_sise"):
        LLM(model, ctx_sise=512)


def test_a_model_without_a_template_still_completes(tmp_path):
    path = write_gguf(tmp_path / "bare.gguf", template=None)
    with LLM(path, ctx_size=512, parallel=1, threads=1) as llm:
        assert llm.complete("x", max_tokens=2, **GREEDY).usage.n_completion == 2
        with pytest.raises(TemplateError, match="no chat template"):
            llm.chat(HI)


def test_bos_comes_once_with_and_without_the_template_saying_it(tmp_path):
    counts = []
    for name, template in (("said", "{{ bos_token }}" + TEMPLATE), ("unsaid", TEMPLATE)):
        path = write_gguf(tmp_path / f"{name}.gguf", template=template, add_bos=True)
        with LLM(path, ctx_size=512, parallel=1, threads=1) as llm:
            counts.append(llm.chat(HI, max_tokens=1, **GREEDY).usage.n_prompt)
    assert counts[0] == counts[1]
