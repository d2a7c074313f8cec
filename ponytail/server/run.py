"""One server process from its listening socket to its exit code.

Owns signals, the order of start (the model loads before the HTTP stack is even
imported) and what a person at the terminal sees.  Must not import starlette,
uvicorn or the engine at module level.  Runs in the main thread; the load thread
prints.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeAlias

import msgspec

from ponytail.config import Config
from ponytail.errors import StartError
from ponytail.server.service import About, Broken, Generator, OnProgress, Service
from ponytail.server.socket_file import SocketFile
from ponytail.telemetry import Progress

if TYPE_CHECKING:
    from ponytail.gguf import GGUFHeader


Loader: TypeAlias = "Callable[[Config, GGUFHeader, OnProgress], Generator]"


def serve(
    config: Config, header: GGUFHeader, sock: socket.socket, load: Loader | None = None
) -> int:
    """Serve `config.model` on a listening socket until a signal or a failed load.

    `load` blocks and runs in its own thread; None loads `ponytail.llm.LLM`.
    Returns the exit code: 0 after an orderly end, 2 when the model cannot be loaded.
    A UNIX socket's file is removed here, because some ends skip the caller's clean-up.
    """
    socket_file = SocketFile.of(sock)
    stop = Stop(socket_file)
    stop.install()
    terminal = Terminal(config, address_of(sock))

    def give_up(error: StartError) -> None:
        terminal.show_failure(error)
        stop.ask()

    service = Service(
        about(config, header),
        lambda on_progress: (load or _load)(config, header, on_progress),
        on_progress=terminal.show_progress,
        on_ready=terminal.show_ready,
        on_failure=give_up,
    )
    service.start()
    _serve_http(config, service, sock, stop)
    if socket_file is not None:
        socket_file.remove()
    if service.is_load_running and not isinstance(service.state, Broken):
        _exit_beside_load()
    return 2 if isinstance(service.state, Broken) else 0


def _serve_http(config: Config, service: Service, sock: socket.socket, stop: Stop) -> None:
    # Only now, beside the load: these imports take as long as loading a small model.
    from ponytail.server.app import build_app
    from ponytail.server.listener import HttpServer
    from ponytail.server.security import guard_for

    app = build_app(service, guard_for(sock, config.host), config.keep_alive_interval)
    HttpServer(app, service, lambda: stop.is_asked).run(sockets=[sock])


def _load(config: Config, header: GGUFHeader, on_progress: OnProgress) -> Generator:
    from ponytail.llm import LLM

    return LLM.load(config, header, on_progress)


def about(config: Config, header: GGUFHeader) -> About:
    """What /v1/models can say while the model loads."""
    n_ctx = min(config.ctx_size or header.n_ctx_train, header.n_ctx_train)
    return About(config.alias or config.model.stem, n_ctx, int(config.model.stat().st_mtime))


def _exit_beside_load() -> NoReturn:
    # A load cannot be interrupted, and the interpreter's own exit would run C++ destructors
    # under it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Stop:
    """The first SIGTERM or SIGINT asks for an orderly end, the second ends the process now."""

    def __init__(self, socket_file: SocketFile | None) -> None:
        self.is_asked = False
        self._socket_file = socket_file

    def install(self) -> None:
        """Handle the signals; as process 1 of a container nothing else would."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def ask(self) -> None:
        """Ask for an orderly end; any thread."""
        self.is_asked = True

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if not self.is_asked:
            self.ask()
            return
        if self._socket_file is not None:
            self._socket_file.remove()
        os._exit(128 + signum)


class Address(msgspec.Struct, frozen=True):
    """Where the server can be reached, as a person and as curl write it."""

    url: str
    curl: str


def address_of(sock: socket.socket) -> Address:
    """The address of a listening socket; a wildcard address is shown as this machine."""
    if sock.family == socket.AF_UNIX:
        path = str(sock.getsockname())
        return Address(f"unix:{path}", f"--unix-socket {shlex.quote(path)} http://localhost")
    host, port = sock.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host)
    url = f"http://{reachable or (f'[{host}]' if ':' in host else host)}:{port}"
    return Address(url, url)


_TRY_BODY = '{"messages":[{"role":"user","content":"Why is the sky blue?"}],"max_tokens":64}'


class Terminal:
    """What a person sees: a load percentage, the ready line and a command to try, or why not."""

    def __init__(self, config: Config, address: Address) -> None:
        self._address = address
        self._progress = Progress(f"loading {config.model.name}") if sys.stderr.isatty() else None

    def show_progress(self, fraction: float) -> None:
        """One line that updates itself; nothing where nobody watches."""
        if self._progress is not None:
            self._progress.update(fraction)

    def show_ready(self, llm: Generator) -> None:
        """The start-up line with the sizes, the ready line, and a curl line to paste."""
        self._end_progress()
        info = llm.info()
        if "startup" in info:
            _print(str(info["startup"]), sys.stdout)
        model = f"model {llm.name}, context {llm.n_ctx} tokens per request"
        _print(f"ponytail is ready: {self._address.url}  ({model})", sys.stdout)
        _print(
            f"curl -s {self._address.curl}/v1/chat/completions "
            f"-H 'Content-Type: application/json' -d {shlex.quote(_TRY_BODY)}",
            sys.stdout,
        )

    def show_failure(self, error: StartError) -> None:
        """One line."""
        self._end_progress()
        _print("ponytail: error: " + " ".join(error.message.split()), sys.stderr)

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()


def _print(text: str, out: TextIO) -> None:
    # A closed pipe or terminal is no reason to stop serving.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=out, flush=True)
