"""Settings: defaults < PONYTAIL_* environment < flags; validated once, then immutable.

Owns the names, defaults, ranges and help texts: command line, environment and
the tables in the docs all come from `SETTINGS`.  Must not know click or HTTP and
must not import anything heavy: it runs before the port opens.  Any thread.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

from ponytail.errors import BadConfig

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
FlashAttn = Literal["auto", "on", "off"]
Kind = Literal["path", "text", "integer", "number", "choice", "switch"]

PREFIX = "PONYTAIL_"
COMMAND_LINE = "the command line"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Config:
    """One server's or one `LLM`'s settings.  None means: chosen at start, and said."""

    model: Path
    alias: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    uds: Path | None = None
    ctx_size: int | None = None
    parallel: int = 0
    n_gpu_layers: int | None = None
    batch_size: int = 512
    ubatch_size: int = 512
    threads: int | None = None
    threads_batch: int | None = None
    mmap: bool = True
    mlock: bool = False
    flash_attn: FlashAttn = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    step_ms: int = 250
    max_queue: int | None = None
    keep_alive_interval: float = 10.0
    chat_template_file: Path | None = None
    verbose: bool = False

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object],
        env: Mapping[str, str],
        *,
        source: str = COMMAND_LINE,
    ) -> Config:
        """Merge and check.  `flags` holds field names; None in it means not given.

        Values may be text or already of their type.  `source` says in messages
        where `flags` came from.  Raises BadConfig, which names the setting, where
        its value came from, the value, and what would be allowed.
        """
        given = _read_env(env) | _read_flags(flags, source)
        values = {name: parse(SETTINGS[name], raw, source) for name, (raw, source) in given.items()}
        if values.get("model") is None:
            raise BadConfig(
                "no model given: ponytail --model model.gguf (or PONYTAIL_MODEL)", param="model"
            )
        if "batch_size" in values and "ubatch_size" not in values:
            values["ubatch_size"] = min(values["batch_size"], DEFAULTS["ubatch_size"])
        if "ubatch_size" in values and "batch_size" not in values:
            values["batch_size"] = max(values["ubatch_size"], DEFAULTS["batch_size"])
        config = cls(**values)
        _check_together(config, {name: source for name, (_, source) in given.items()})
        return config


DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(Config) if f.name != "model"}
"""What holds when nothing is said; `model` has no default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.  `low` and `high` are inclusive; `unset` spells None."""

    name: str
    kind: Kind
    help: str
    short: str | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    is_negated: bool = False

    @property
    def flag(self) -> str:
        """The long flag; of a switch that is on by default, the one that turns it off."""
        return ("--no-" if self.is_negated else "--") + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable: the flag's name behind PONYTAIL_."""
        return PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def allowed(self) -> str:
        """The values it takes, in words; empty when any will do."""
        words = " or ".join(self.unset)
        if self.kind == "choice":
            return ", ".join(self.choices)
        if self.kind == "switch":
            return "1, true, yes, on, 0, false, no or off"
        if self.low is None or self.high is None:
            return words
        return f"{self.low:g} to {self.high:.0f}" + (f", or {words}" if words else "")

    @property
    def default(self) -> str:
        """The default in words; empty when there is none to speak of."""
        value = DEFAULTS.get(self.name)
        if value is None:
            return "auto" if self.unset else ""
        if self.kind == "switch":
            return ""
        return f"{value:g}" if isinstance(value, float) else str(value)


_AUTO = ("auto",)
_CACHE_TYPES: tuple[str, ...] = get_args(CacheType)
# llama.cpp's own bounds: LLAMA_MAX_SEQ and GGML_MAX_N_THREADS.
_MAX_PARALLEL = 256
_MAX_THREADS = 512

_ROWS = (
    Setting("model", "path", "The GGUF file to serve.", short="m"),
    Setting("alias", "text", "Name of the model in the API; by default the file's own.", short="a"),
    Setting("host", "text", "Address to listen on."),
    Setting("port", "integer", "Port to listen on; 0 lets the system choose.", low=0, high=65535),
    Setting("uds", "path", "Listen on this UNIX socket instead of host and port."),
    Setting(
        "ctx_size",
        "integer",
        "Context window of each request, in tokens; auto is the model's own where memory allows.",
        short="c",
        low=16,
        high=2**24,
        unset=("auto", "0"),
    ),
    Setting(
        "parallel",
        "integer",
        "Requests computed at the same time; 0 is chosen from memory.",
        short="np",
        low=0,
        high=_MAX_PARALLEL,
    ),
    Setting(
        "n_gpu_layers",
        "integer",
        "Layers to put on the GPU; needs a llama.cpp built for one.",
        short="ngl",
        low=0,
        high=9999,
        unset=_AUTO,
    ),
    Setting(
        "batch_size",
        "integer",
        "Most tokens in one step of the scheduler; a larger step is slower to cancel.",
        short="b",
        low=1,
        high=2**20,
    ),
    Setting(
        "ubatch_size",
        "integer",
        "Most tokens computed at once inside a call; at most the batch size.",
        short="ub",
        low=1,
        high=2**20,
    ),
    Setting(
        "threads",
        "integer",
        "CPU threads that generate; auto follows affinity, CPU quota and physical cores.",
        short="t",
        low=1,
        high=_MAX_THREADS,
        unset=_AUTO,
    ),
    Setting(
        "threads_batch",
        "integer",
        "CPU threads that read prompts; auto is the same as for generating.",
        short="tb",
        low=1,
        high=_MAX_THREADS,
        unset=_AUTO,
    ),
    Setting(
        "mmap",
        "switch",
        "--no-mmap reads the model into memory instead of mapping the file.",
        is_negated=True,
    ),
    Setting("mlock", "switch", "Keep the model in RAM: it is never swapped out."),
    Setting(
        "flash_attn",
        "choice",
        "Flash attention; auto uses it where the model allows.",
        short="fa",
        choices=get_args(FlashAttn),
    ),
    Setting(
        "cache_type_k", "choice", "Type of the cached keys.", short="ctk", choices=_CACHE_TYPES
    ),
    Setting(
        "cache_type_v",
        "choice",
        "Type of the cached values; the quantised ones need flash attention.",
        short="ctv",
        choices=_CACHE_TYPES,
    ),
    Setting(
        "step_ms",
        "integer",
        "Longest step, in milliseconds, while an answer is streaming.",
        low=1,
        high=60_000,
    ),
    Setting(
        "max_queue",
        "integer",
        "Requests that may wait before a 429; auto is four times --parallel.",
        low=1,
        high=1_000_000,
        unset=_AUTO,
    ),
    Setting(
        "keep_alive_interval",
        "number",
        "Seconds between keep-alive comments in a silent stream.",
        low=0.1,
        high=3600,
    ),
    Setting("chat_template_file", "path", "Jinja chat template to use instead of the model's own."),
    Setting("verbose", "switch", "Say more, and show tracebacks.", short="v"),
)

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ROWS}
"""By name of the `Config` field, in the order shown to people."""

_SWITCH_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def parse(setting: Setting, raw: object, source: str) -> Any:
    """The value `raw` stands for.  Raises BadConfig naming setting, source, value and range."""
    if setting.unset and not isinstance(raw, bool) and str(raw).strip() in setting.unset:
        return None
    match setting.kind:
        case "path":
            return _parse_path(setting, raw, source)
        case "text":
            if isinstance(raw, str) and raw:
                return raw
            raise _refusal(setting, raw, source, "is not a text")
        case "integer" | "number":
            return _parse_number(setting, raw, source)
        case "choice":
            if raw in setting.choices:
                return raw
            raise _refusal(setting, raw, source, "is not one of", " ")
        case "switch":
            return _parse_switch(setting, raw, source)
        case _:
            assert_never(setting.kind)


def _parse_path(setting: Setting, raw: object, source: str) -> Path:
    if not isinstance(raw, str | os.PathLike) or not os.fspath(raw):
        raise _refusal(setting, raw, source, "is not a path")
    path = Path(raw)
    if setting.name == "chat_template_file":
        try:
            path.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise _refusal(setting, raw, source, f"cannot be read: {reason}") from error
    return path


def _parse_number(setting: Setting, raw: object, source: str) -> int | float:
    is_whole = setting.kind == "integer"
    problem = "is not a whole number" if is_whole else "is not a number"
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise _refusal(setting, raw, source, problem, ": ")
    try:
        value = int(raw) if is_whole else float(raw)  # both take blanks around the digits
    except (ValueError, OverflowError) as error:
        raise _refusal(setting, raw, source, problem, ": ") from error
    if isinstance(raw, float) and value != raw:
        raise _refusal(setting, raw, source, problem, ": ")
    low, high = setting.low or 0, math.inf if setting.high is None else setting.high
    if not low <= value <= high:
        raise _refusal(setting, raw, source, "is out of range", ": ")
    return value


def _parse_switch(setting: Setting, raw: object, source: str) -> bool:
    if isinstance(raw, bool):
        return raw
    word = _SWITCH_WORDS.get(raw.lower()) if isinstance(raw, str) else None
    if word is None:
        raise _refusal(setting, raw, source, "is not one of", " ")
    return word != setting.is_negated


def _refusal(
    setting: Setting, raw: object, source: str, problem: str, joint: str | None = None
) -> BadConfig:
    shown = repr(raw)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    allowed = "" if joint is None else joint + setting.allowed
    return BadConfig(
        f"{setting.flag}: {shown} (from {source}) {problem}{allowed}", param=setting.name
    )


def _read_flags(flags: Mapping[str, object], source: str) -> dict[str, tuple[object, str]]:
    given = {}
    for name, raw in flags.items():
        if name not in SETTINGS:
            raise BadConfig(f"unknown setting {name!r}{_guess(name, SETTINGS)}", param=name)
        if raw is not None:
            given[name] = (raw, source)
    return given


def _read_env(env: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Settings from PONYTAIL_* variables.  An empty one counts as not set, as in compose files."""
    names = {setting.variable: setting.name for setting in SETTINGS.values()}
    unknown = sorted(v for v in env if v.startswith(PREFIX) and v not in names)
    if unknown:
        said = ", ".join(v + _guess(v, names) for v in unknown)
        _log.warning("ignored, no such setting: %s", said)
    return {name: (env[v], v) for v, name in names.items() if env.get(v)}


def _guess(word: str, known: Mapping[str, object]) -> str:
    from difflib import get_close_matches  # costs start time and is rarely needed

    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _check_together(config: Config, sources: Mapping[str, str]) -> None:
    """Refuse values that are fine alone and wrong together."""

    def said(name: str) -> str:
        return (
            f"{SETTINGS[name].flag} (from {sources[name]})"
            if name in sources
            else (f"{SETTINGS[name].flag} (the default)")
        )

    if config.ubatch_size > config.batch_size:
        raise BadConfig(
            f"{said('ubatch_size')} is {config.ubatch_size}, more than "
            f"{said('batch_size')} of {config.batch_size}: raise the latter or lower the former",
            param="ubatch_size",
        )
    for name in ("host", "port"):
        if config.uds is not None and name in sources:
            raise BadConfig(f"{said('uds')} excludes {said(name)}: give one of them", param="uds")
    if config.cache_type_v not in ("f32", "f16", "bf16") and config.flash_attn == "off":
        raise BadConfig(
            f"{said('cache_type_v')} is {config.cache_type_v}, which needs flash attention, "
            f"but {said('flash_attn')} is off",
            param="cache_type_v",
        )
