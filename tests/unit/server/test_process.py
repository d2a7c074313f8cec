"""Loading, closing, signals: the server from its first moment to its last."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ponytail.errors import (
    ModelLoading,
    ShuttingDown,
)
from ponytail.server.service import Service
from tests.unit.fake_llm import WAIT_S, FakeLLM, listening
from tests.unit.server.served import ABOUT, CHAT, HELLO, STREAM, error_of, served

# -- loading and closing -----------------------------------------------------------------


def test_answers_while_the_model_loads() -> None:
    llm = FakeLLM(answer=("Hi",))
    reached, may_end = threading.Event(), threading.Event()

    def load(on_progress: Callable[[float], None]) -> FakeLLM:
        on_progress(0.42)
        reached.set()
        assert may_end.wait(WAIT_S)
        return llm

    with served(load=load) as server:
        http = server.http
        assert reached.wait(WAIT_S)
        reply = http.get("/health")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json() == {"status": "loading", "progress": 0.42, "model": "org/tiny"}
        assert http.get("/livez").status_code == 200
        card = http.get("/v1/models/org/tiny").json()
        assert (card["context_length"], card["meta"]) == (2048, {"status": "loading"})
        for body in (HELLO, STREAM):
            reply = http.post(CHAT, json=body)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert error_of(reply)["code"] == "model_loading"
        may_end.set()
        assert server.ready.wait(WAIT_S)
        assert http.get("/health").status_code == 200
        assert http.post(CHAT, json=HELLO).status_code == 200


def test_going_down_lets_running_streams_finish() -> None:
    llm = FakeLLM()
    with served(llm, grace_s=WAIT_S) as server:
        assert server.http.get("/health").status_code == 200  # a kept-alive connection
        raw = server.raw(STREAM)
        stream = llm.next_stream()
        server.ask_to_stop()
        wait_for_refusal(("127.0.0.1", server.port))
        reply = server.http.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (503, "closing")
        assert reply.json()["running"] == 1
        reply = server.http.post(CHAT, json=HELLO)
        assert (reply.status_code, error_of(reply)["code"]) == (503, "shutting_down")
        stream.say("last words")
        stream.finish()
        seen = raw.read_all()
        assert b"last words" in seen
        assert b"[DONE]" in seen
        server.thread.join(WAIT_S)
        assert llm.closed.is_set()
        raw.hang_up()


def wait_for_refusal(address: tuple[str, int] | str, family: int = socket.AF_INET) -> None:
    """Return once the listener is closed: the one event of a server a client can only try."""
    for _ in range(int(WAIT_S / 0.01)):
        with socket.socket(family) as probe:
            if probe.connect_ex(address) != 0:
                return
        time.sleep(0.01)
    pytest.fail("the listener stayed open")


def test_going_down_ends_streams_with_an_error_after_the_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = FakeLLM()
    with served(llm, grace_s=0.05) as server:
        raw = server.raw(STREAM)
        stream = llm.next_stream()
        stream.say("begun")
        raw.read_until(b"begun")
        server.ask_to_stop()
        assert b"shutting_down" in raw.read_all()
        server.thread.join(WAIT_S)
        raw.hang_up()
    assert caplog.records == []


def test_a_load_that_ends_after_the_stop_is_closed_at_once() -> None:
    llm = FakeLLM()
    may_end = threading.Event()
    service = Service(ABOUT, lambda on_progress: may_end.wait(WAIT_S) and llm)
    service.start()
    with pytest.raises(ModelLoading):
        service.generator()
    service.close(0.0)
    may_end.set()
    assert llm.closed.wait(WAIT_S)
    with pytest.raises(ShuttingDown):
        service.generator()


# -- the process -------------------------------------------------------------------------


class Program:
    """The fake model served by a process of its own."""

    def __init__(self, mode: str, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.fake_llm", mode, address],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def stop(self, *signals: int) -> tuple[int, str]:
        """Exit code and stderr after `signals`."""
        for number in signals:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, err


def free_port() -> int:
    with listening() as sock:
        return int(sock.getsockname()[1])


def test_the_printed_curl_line_works_and_sigterm_ends_cleanly() -> None:
    port = free_port()
    program = Program("answer", str(port))
    assert program.line() == "tiny: 1 MB\n"
    ready = program.line()
    assert ready.startswith(f"ponytail is ready: http://127.0.0.1:{port}  (model org/tiny")
    curl = program.line()
    out = subprocess.run(shlex.split(curl), capture_output=True, timeout=WAIT_S, check=True).stdout
    assert json.loads(out)["choices"][0]["message"]["content"] == "Hi"
    asked_at = time.monotonic()
    assert program.stop(signal.SIGTERM) == (0, "")
    assert time.monotonic() - asked_at < 2.0  # 1 s is the promise; the machine may be busy
    socket.create_server(("127.0.0.1", port)).close()


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "pony tail.sock"
    program = Program("answer", str(path))
    program.line()
    assert f"unix:{path}" in program.line()
    out = subprocess.run(
        shlex.split(program.line()), capture_output=True, timeout=WAIT_S, check=True
    ).stdout
    assert json.loads(out)["choices"][0]["message"]["content"] == "Hi"
    assert program.stop(signal.SIGINT) == (0, "")
    assert not path.exists()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    program = Program("silent", str(path))
    program.line()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    body = json.dumps(STREAM).encode()
    sock.sendall(f"POST {CHAT} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    program.process.send_signal(signal.SIGTERM)
    wait_for_refusal(str(path), socket.AF_UNIX)  # the listener is closed, the stream goes on
    assert program.stop(signal.SIGTERM)[0] == 128 + signal.SIGTERM
    assert not path.exists()
    sock.close()


@pytest.mark.parametrize(
    ("mode", "words"), [("bad", "the file is truncated"), ("bug", "ZeroDivisionError: oops")]
)
def test_a_failed_load_is_one_line_and_exit_code_2(mode: str, words: str) -> None:
    code, err = Program(mode, "0").stop()
    assert code == 2
    assert len(err.splitlines()) == 1
    assert words in err


def test_a_stop_while_loading_does_not_wait_for_the_load() -> None:
    program = Program("loading", "0")
    assert program.line() == "loading\n"
    assert program.stop(signal.SIGTERM) == (0, "")


def test_run_stays_light_until_the_load_has_begun() -> None:
    code = (
        "import sys, ponytail.server.run\n"
        "print([m for m in ('starlette', 'uvicorn', 'numpy', 'llama_cpp') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
