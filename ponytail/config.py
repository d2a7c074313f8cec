"""Settings: defaults < PONYTAIL_* environment < flags; validated once, then immutable.

Owns the names, defaults, ranges and help texts: command line, environment and
the tables in the docs all come from `SETTINGS`.  Must not know click or HTTP and
must not import anything heavy: it runs before the port opens.  Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ponytail.errors import BadConfig
from ponytail.setting import PREFIX, Amount, Setting, parse

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
FlashAttn = Literal["auto", "on", "off"]
KVLayout = Literal["auto", "shared", "split"]
ToolFormat = Literal[
    "harmony",
    "deepseek-v3",
    "deepseek-v3.1",
    "kimi",
    "mistral-args",
    "mistral",
    "command-r7b",
    "command-r",
    "function-gemma",
    "gemma",
    "granite",
    "phi",
    "qwen3-coder",
    "glm",
    "hermes",
    "pythonic",
    "llama3-json",
    "generic",
]
PoolingKind = Literal["mean", "cls", "last", "rank"]

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
    kv_layout: KVLayout = "auto"
    kv_cells: int | None = None
    kv_memory: Amount | None = None
    kv_ram: Amount | None = None
    kv_dir: Path | None = None
    kv_disk: int = 4 << 30
    context_shift: bool = False
    step_ms: int = 250
    max_queue: int | None = None
    keep_alive_interval: float = 10.0
    chat_template_file: Path | None = None
    tool_format: ToolFormat | None = None
    embeddings: bool = False
    pooling: PoolingKind | None = None
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
        "kv_layout",
        "choice",
        "How requests share KV cells: split gives each its own, shared is one pool.",
        choices=get_args(KVLayout),
    ),
    Setting(
        "kv_cells",
        "integer",
        "KV cells (tokens) of all requests together; auto is what half the free memory holds.",
        low=256,
        high=2**28,
        unset=_AUTO,
    ),
    Setting(
        "kv_memory",
        "amount",
        "The same as memory: bytes, or a share of what is free at the start.",
        unset=_AUTO,
    ),
    Setting(
        "kv_ram",
        "amount",
        "Host memory for cached prefixes outside the cells; 0 for none, auto is 10% of the free.",
        unset=_AUTO,
    ),
    Setting("kv_dir", "path", "Folder for cached prefixes that outlive the server."),
    Setting("kv_disk", "size", "Most that folder may hold; the least recently used go first."),
    Setting(
        "context_shift",
        "switch",
        "Go on past the context window by dropping the oldest tokens of a request.",
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
    Setting(
        "tool_format",
        "choice",
        "How the model writes tool calls; auto: its chat template tells.",
        choices=get_args(ToolFormat),
        unset=_AUTO,
    ),
    Setting(
        "embeddings",
        "switch",
        "Serve /v1/embeddings too; on by itself for models made for embedding or ranking.",
    ),
    Setting(
        "pooling",
        "choice",
        "What a text's vector is made of: all its tokens, the first, the last, or the head that "
        "ranks; auto: the model says, else mean.",
        choices=get_args(PoolingKind),
        unset=_AUTO,
    ),
    Setting("verbose", "switch", "Say more, and show tracebacks.", short="v"),
)

SETTINGS: Mapping[str, Setting] = {
    setting.name: replace(setting, value=DEFAULTS.get(setting.name)) for setting in _ROWS
}
"""By name of the `Config` field, in the order shown to people."""


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
    if config.kv_cells is not None and config.kv_memory is not None:
        raise BadConfig(
            f"{said('kv_cells')} excludes {said('kv_memory')}: give one of them", param="kv_cells"
        )
    if config.kv_dir is None and "kv_disk" in sources:
        raise BadConfig(f"{said('kv_disk')} needs --kv-dir", param="kv_disk")
