"""A client that hangs up ends its work, whenever it does."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from ponytail.types import Text
from tests.unit.fake_llm import WAIT_S, FakeLLM
from tests.unit.server.served import CHAT, HELLO, STREAM, Served


def test_hang_up_while_streaming_cancels(
    server: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    stream.say("one")
    raw.read_until(b"one")
    raw.hang_up()
    # Nothing flows any more: the watch alone must notice.
    assert stream.was_cancelled.wait(WAIT_S)
    llm.answer = ("next",)
    assert server.http.post(CHAT, json=HELLO).status_code == 200
    assert caplog.records == []


def test_hang_up_while_a_plain_reply_is_made_cancels(
    server: Served, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    raw = server.raw(HELLO)
    stream = llm.next_stream()
    assert stream.was_read.wait(WAIT_S)
    raw.hang_up()
    assert stream.was_cancelled.wait(WAIT_S)
    assert caplog.records == []


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["plain", "stream"])
def test_hang_up_before_the_request_is_admitted(
    server: Served, llm: FakeLLM, body: dict[str, Any]
) -> None:
    llm.holds_open = True
    raw = server.raw(body)
    assert llm.open_was_entered.wait(WAIT_S)
    raw.hang_up()
    assert llm.open_was_cancelled.wait(WAIT_S)


def test_a_client_that_stops_reading_can_still_hang_up(server: Served, llm: FakeLLM) -> None:
    raw = server.raw(STREAM)
    stream = llm.next_stream()
    stream.push(*(Text("x" * 1_000_000) for _ in range(40)))  # more than the sockets hold
    stream.say("more")
    raw.hang_up()
    assert stream.was_cancelled.wait(WAIT_S)


def test_a_finished_stream_was_not_cancelled(server: Served, llm: FakeLLM) -> None:
    llm.answer = ("Hi",)
    raw = server.raw(STREAM)
    raw.read_all()
    assert not llm.next_stream().was_cancelled.is_set()
    raw.hang_up()


def test_logging_is_captured_by_these_tests(caplog: pytest.LogCaptureFixture) -> None:
    """The tests above that expect no record would see one."""
    for name in ("ponytail.server", "uvicorn.error", "asyncio"):
        logging.getLogger(name).error(os.sep)
    assert len(caplog.records) == 3
