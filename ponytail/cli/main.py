"""The `ponytail` command: its flags, its help, and how errors end.

Owns parsing and exit codes: 0, 2 for what the caller can mend, 130 for Ctrl-C.
Flags come from `config.SETTINGS` and are handed on as text; `Config.load`
judges them.  Must not import the HTTP stack, numpy or llama.cpp: the port opens
first.  Main thread.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import click

from ponytail import __version__
from ponytail.config import SETTINGS
from ponytail.errors import StartError
from ponytail.setting import Setting

F = TypeVar("F", bound=Callable[..., Any])

OVERVIEW = """\
ponytail: one GGUF file in, a fast OpenAI-compatible API out.

Serve a model:

  ponytail --model model.gguf

and ask it something:

  curl http://127.0.0.1:8080/v1/chat/completions \\
    -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Say hello."}]}'

Flags used most:

  -m,  --model PATH      the GGUF file
       --port N          port to listen on (8080)
       --host ADDRESS    address to listen on (127.0.0.1)
  -c,  --ctx-size N      context window of each request, in tokens
  -np, --parallel N      requests computed at the same time
  -t,  --threads N       CPU threads

All flags: ponytail --help"""


class Commands(click.Group):
    """A group that knows what a stray model path was meant to be."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            _refuse_word(ctx, args[0], tuple(self.commands))
        return super().resolve_command(ctx, args)


def _refuse_word(ctx: click.Context, word: str, commands: Sequence[str]) -> NoReturn:
    from difflib import get_close_matches  # costs start time and is rarely needed

    if word.lower().endswith(".gguf") or os.path.exists(word):
        ctx.fail(f"{word!r} is not a command; did you mean --model {word}?")
    close = get_close_matches(word, commands, n=1)
    guess = f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(commands)}"
    ctx.fail(f"{word!r} is not a command{guess}")


def _with_settings(function: F) -> F:
    for setting in reversed(tuple(SETTINGS.values())):
        function = _option(setting)(function)
    return function


_METAVARS = {"path": "PATH", "text": "TEXT", "size": "SIZE", "amount": "SIZE|N%"}


def _option(setting: Setting) -> Callable[[F], F]:
    short = [f"-{setting.short}"] if setting.short else []
    long = "--" + setting.name.replace("_", "-")
    text = f"{setting.help}  [{_details(setting)}]"
    if setting.kind == "switch":
        both = f"{long}/--no-{long.removeprefix('--')}"
        return click.option(setting.name, both, *short, default=None, help=text)
    metavar = _METAVARS.get(setting.kind, "N")
    if setting.kind == "choice" and len(setting.choices) < 4:
        metavar = "|".join(setting.choices)
    elif setting.kind == "choice":
        metavar = "TYPE"
    return click.option(setting.name, *short, long, default=None, metavar=metavar, help=text)


def _details(setting: Setting) -> str:
    default = f"default {setting.default}" if setting.default else ""
    allowed = "" if setting.kind == "switch" else setting.allowed
    return "; ".join(part for part in (default, allowed, setting.variable) if part)


def _print_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(version_text())
        ctx.exit()


def version_text() -> str:
    """ponytail, llama.cpp and its binding, and the CPU: a line each."""
    from ponytail.machine import cpu_features

    has = " ".join(cpu_features()) or "features unknown"
    return f"ponytail {__version__}\n{_build()}\nthis CPU has: {has}"


def _build() -> str:
    from importlib import import_module

    try:
        return str(import_module("ponytail.llama.capi").version_info())
    except (ImportError, OSError, RuntimeError, StartError) as error:
        # Whoever asks for versions may be looking for this very fault: say it, and the rest.
        return f"llama.cpp cannot be used: {one_line(str(error))}"


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    options_metavar="[FLAGS]",
    subcommand_metavar="[COMMAND]",
)
@_with_settings
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print versions, the llama.cpp build and CPU features.",
)
@click.pass_context
def cli(ctx: click.Context, /, **flags: object) -> int | None:
    """Serve a GGUF model over an OpenAI-compatible HTTP API.

    Without a command, ponytail serves.  Every flag can also be given as the
    environment variable that stands behind it; a flag wins.
    """
    ctx.obj = _given(flags)
    if ctx.invoked_subcommand is not None:
        return None
    if not ctx.obj and not os.environ.get(SETTINGS["model"].variable):
        click.echo(OVERVIEW)
        return 0
    return _serve(ctx.obj)


@cli.command(context_settings={"allow_extra_args": True})
@_with_settings
@click.pass_context
def serve(ctx: click.Context, /, **flags: object) -> int:
    """Serve a model (what happens without a command, too)."""
    if ctx.args:
        _refuse_word(ctx, ctx.args[0], ("--model",))
    return _serve({**ctx.obj, **_given(flags)})


def _given(flags: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None}


def _serve(flags: Mapping[str, object]) -> int:
    from ponytail.cli.serve import run
    from ponytail.telemetry import is_verbose

    try:
        return run(flags, os.environ)
    except StartError as error:
        if is_verbose():
            traceback.print_exception(error)
        click.echo(f"ponytail: error: {one_line(str(error))}", err=True)
        return error.exit_code


def one_line(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; a StartError becomes one line, not a trace."""
    argv = list(sys.argv[1:] if args is None else args)
    try:
        code = cli.main(argv, prog_name="ponytail", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0
