"""The command line: flags as people know them, one-line errors, the socket before the server."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ponytail.cli import flags_table
from ponytail.cli import serve as serve_module
from ponytail.cli.main import OVERVIEW, main
from ponytail.config import SETTINGS, Config
from ponytail.errors import BadModelFile, BindingMismatch

ROOT = Path(__file__).parents[2]
HEADER = SimpleNamespace(name="header")


class FakeServer:
    """Stands for ponytail.server.run: keeps what it was called with."""

    def __init__(self) -> None:
        self.config: Config | None = None
        self.exit_code = 0

    def serve(self, config: Config, header: object, sock: socket.socket) -> int:
        assert header is HEADER
        self.config = config
        self.family = sock.family
        self.name = sock.getsockname()
        with socket.socket(sock.family, socket.SOCK_STREAM) as client:
            client.connect(self.name)  # listening already: a client waits, it is not refused
        return self.exit_code


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    fake = FakeServer()
    module = ModuleType("ponytail.server.run")
    module.serve = fake.serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ponytail.server.run", module)
    monkeypatch.setattr(serve_module.gguf, "inspect", lambda _path: HEADER)
    for variable in [v for v in os.environ if v.startswith("PONYTAIL_")]:
        monkeypatch.delenv(variable)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield fake
    root.handlers[:], root.level = before


def config_of(server: FakeServer, *args: str) -> Config:
    assert main(["--model", "m.gguf", "--port", "0", *args]) == 0
    assert server.config is not None
    return server.config


def failure(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """stderr of a run that must end with exit code 2 and without a traceback."""
    assert main(list(args)) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


def error_line(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    (line,) = failure(capsys, *args).splitlines()
    assert line.startswith("ponytail: error: ")
    return line.removeprefix("ponytail: error: ")


def test_alone_it_explains_itself_on_one_screen(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 80
    assert "ponytail --model model.gguf" in out
    assert "curl http://127.0.0.1:8080/v1/chat/completions" in out
    assert "ponytail --help" in out
    assert server.config is None


def test_overview_names_only_flags_that_exist() -> None:
    known = {"--" + name.replace("_", "-") for name in SETTINGS} | {"--help"}
    assert set(re.findall(r"--[a-z-]+", OVERVIEW)) <= known


def test_help_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for setting in SETTINGS.values():
        assert setting.flag in out
        assert setting.variable in out
        assert setting.short is None or f"-{setting.short}," in out
    assert "--version" in out


def test_model_alone_and_the_serve_command_do_the_same(server: FakeServer) -> None:
    for args in (
        ["--model", "m.gguf", "--port", "0"],
        ["-m", "m.gguf", "--port=0"],
        ["serve", "--model", "m.gguf", "--port", "0"],
        ["--model", "m.gguf", "serve", "--port", "0"],
    ):
        server.config = None
        assert main(args) == 0
        assert server.config is not None
        assert server.config.model == Path("m.gguf")


def test_model_from_the_environment_is_enough(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONYTAIL_MODEL", "env.gguf")
    monkeypatch.setenv("PONYTAIL_PORT", "0")
    assert main([]) == 0
    assert server.config is not None
    assert server.config.model == Path("env.gguf")


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        ("-np 4", "parallel", 4),
        ("-ngl 0", "n_gpu_layers", 0),
        ("-tb 2", "threads_batch", 2),
        ("-t 3", "threads", 3),
        ("-ub 512", "ubatch_size", 512),
        ("-b 1024", "batch_size", 1024),
        ("-c 4096", "ctx_size", 4096),
        ("-fa on", "flash_attn", "on"),
        ("-ctk q8_0", "cache_type_k", "q8_0"),
        ("-ctv q4_0", "cache_type_v", "q4_0"),
        ("-a name", "alias", "name"),
        ("-v", "verbose", True),
        ("--parallel 4", "parallel", 4),
        ("--no-mmap", "mmap", False),
        ("--mlock", "mlock", True),
        ("--step-ms 100", "step_ms", 100),
        ("--max-queue 9", "max_queue", 9),
        ("--keep-alive-interval 1.5", "keep_alive_interval", 1.5),
    ],
)
def test_flags_long_and_short(server: FakeServer, args: str, name: str, value: object) -> None:
    assert getattr(config_of(server, *args.split()), name) == value


def test_flag_beats_variable(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONYTAIL_PARALLEL", "2")
    monkeypatch.setenv("PONYTAIL_NO_MMAP", "1")
    assert config_of(server).parallel == 2
    assert not config_of(server).mmap
    config = config_of(server, "-np", "4", "--mmap")
    assert (config.parallel, config.mmap) == (4, True)


def test_exit_code_is_the_servers(server: FakeServer) -> None:
    server.exit_code = 2
    assert main(["-m", "m.gguf", "--port", "0"]) == 2


@pytest.mark.parametrize("before", [[], ["serve"], ["--port", "9000"]])
def test_stray_model_path_gets_a_hint(
    server: FakeServer, capsys: pytest.CaptureFixture[str], before: list[str]
) -> None:
    text = failure(capsys, *before, "dir/model.gguf")
    assert "did you mean --model dir/model.gguf?" in text


def test_mistyped_command_and_flag_get_a_guess(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean serve?" in failure(capsys, "serv")
    text = failure(capsys, "--modle", "x")
    assert "--modle" in text
    assert "--model" in text.replace("--modle", "")


def test_bad_value_is_one_line_with_its_source(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = error_line(capsys, "-m", "m.gguf", "-c", "7")
    assert line.startswith("--ctx-size: '7' (from the command line) is out of range: 16 to ")
    monkeypatch.setenv("PONYTAIL_PORT", "99999")
    line = error_line(capsys, "-m", "m.gguf")
    assert line == "--port: '99999' (from PONYTAIL_PORT) is out of range: 0 to 65535"
    assert server.config is None


def test_flags_without_a_model_say_so(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_line(capsys, "--port", "0").startswith("no model given: ponytail --model ")


def test_bad_file_is_one_line_whatever_its_name_holds(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise BadModelFile(f"{path}: empty\nfile")

    monkeypatch.setattr(serve_module.gguf, "inspect", refuse)
    assert error_line(capsys, "-m", "a\x1b[2J.gguf", "--port", "0") == "a\\x1b[2J.gguf: empty file"


def test_verbose_adds_the_traceback(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> None:
        raise BadModelFile("broken")

    monkeypatch.setattr(serve_module.gguf, "inspect", refuse)
    for flags, variable in ((["-v"], "0"), ([], "1")):
        monkeypatch.setenv("PONYTAIL_VERBOSE", variable)
        assert main(["-m", "m.gguf", *flags]) == 2
        text = capsys.readouterr().err
        assert "Traceback" in text
        assert text.splitlines()[-1] == "ponytail: error: broken"


def test_missing_file_ends_in_exit_code_2_without_heavy_imports(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "ponytail", "--model", str(tmp_path / "none.gguf"), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "none.gguf" in ran.stderr


def test_start_imports_nothing_heavy() -> None:
    code = (
        "import sys, ponytail.cli.main, ponytail.cli.serve, ponytail.machine, ponytail.sizing\n"
        "heavy = {'numpy', 'starlette', 'uvicorn', 'llama_cpp', 'ctypes', 'asyncio', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert ran.stdout.strip() == "[]", ran.stderr


def test_port_zero_becomes_the_real_one(server: FakeServer) -> None:
    config = config_of(server)
    assert config.port == server.name[1] != 0
    assert server.name[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_hosts_work(server: FakeServer, host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    config_of(server, "--host", host)
    assert server.family == socket.AF_INET6


def test_port_in_use_is_named(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = error_line(capsys, "-m", "m.gguf", "--port", str(port))
    assert line == f"--port: {port} is already in use on 127.0.0.1; 0 lets the system choose"


def test_addresses_that_cannot_be_had(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(capsys, "-m", "m.gguf", "--port", "0", "--host", "192.0.2.1")
    assert line == "--host: 192.0.2.1 is not an address of this machine"
    line = error_line(capsys, "-m", "m.gguf", "--port", "0", "--host", "no..such..host")
    assert line == "--host: 'no..such..host' is not an address or known name"


def test_open_address_is_warned_about_and_loopback_is_not(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    config_of(server)
    assert "OPEN" not in capsys.readouterr().err
    config_of(server, "--host", "0.0.0.0")
    (line,) = capsys.readouterr().err.splitlines()
    assert "WARNING: OPEN TO THE NETWORK: 0.0.0.0 port" in line


def test_unknown_variable_is_warned_about_once(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONYTAIL_MODLE", "x")
    config_of(server)
    (line,) = capsys.readouterr().err.splitlines()
    assert "WARNING: ignored, no such setting: PONYTAIL_MODLE (did you mean" in line


def test_unix_socket_serves_and_is_removed(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    assert main(["-m", "m.gguf", "--uds", str(path)]) == 0
    assert server.family == socket.AF_UNIX
    assert server.name == str(path)
    assert not path.exists()


def test_stale_unix_socket_is_replaced(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    assert main(["-m", "m.gguf", "--uds", str(path)]) == 0


def test_unix_socket_refusals(
    server: FakeServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    live, plain = tmp_path / "live.sock", tmp_path / "plain"
    plain.write_text("mine")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(live))
        other.listen()
        line = error_line(capsys, "-m", "m.gguf", "--uds", str(live))
        assert line == f"--uds: {live} is already in use by another server"
    assert "exists and is not a socket" in error_line(capsys, "-m", "m.gguf", "--uds", str(plain))
    assert plain.read_text() == "mine"
    missing = str(tmp_path / "no" / "p.sock")
    assert "No such file" in error_line(capsys, "-m", "m.gguf", "--uds", missing)
    long = str(tmp_path / ("x" * 120))
    assert "longer than 107 bytes" in error_line(capsys, "-m", "m.gguf", "--uds", long)


def test_version_names_build_and_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capi = ModuleType("ponytail.llama.capi")
    capi.version_info = lambda: "llama-cpp-python 9.9.9, llama.cpp b1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ponytail.llama.capi", capi)
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"ponytail \d+\.\d+\.\d+", lines[0])
    assert lines[1] == "llama-cpp-python 9.9.9, llama.cpp b1"
    assert lines[2].startswith("this CPU has: ")


def test_version_says_what_is_wrong_with_the_binding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise BindingMismatch("wrong layout")

    capi = ModuleType("ponytail.llama.capi")
    capi.version_info = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ponytail.llama.capi", capi)
    assert main(["--version"]) == 0
    assert "llama.cpp cannot be used: wrong layout" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "table"),
    [("README.md", flags_table.short_table()), ("docs/flags.md", flags_table.long_table())],
)
def test_flag_tables_are_current(name: str, table: str) -> None:
    text = (ROOT / name).read_text()
    assert flags_table.replaced(text, table) == text, "run: make docs"


def test_flag_table_needs_its_markers() -> None:
    with pytest.raises(ValueError, match="no markers"):
        flags_table.replaced("nothing here", "table")
