"""Settings: defaults < PONYTAIL_* environment < flags; validated once, then immutable.

Owns the names, defaults, ranges and help texts.  Must not import anything heavy:
it runs before the port opens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


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
    batch_size: int = 2048
    ubatch_size: int = 512
    threads: int | None = None
    threads_batch: int | None = None
    mmap: bool = True
    mlock: bool = False
    flash_attn: Literal["auto", "on", "off"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    step_ms: int = 250
    max_queue: int | None = None
    keep_alive_interval: float = 10.0
    chat_template_file: Path | None = None
    verbose: bool = False
