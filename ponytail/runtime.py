"""Puts a model, a context and an engine together from a Config.

Owns the choices made at start (sizes, threads, template) and the sentence that
states them.  Must not know HTTP.  Runs in the loading thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ponytail.config import Config
from ponytail.engine.disk_tier import DiskTier
from ponytail.engine.engine import Engine
from ponytail.engine.kv import KV
from ponytail.errors import BadConfig, BadModelFile
from ponytail.gguf import GGUFHeader, content_digest, ensure_unique_tokens
from ponytail.llama import capi
from ponytail.llama.context import Context
from ponytail.llama.embedder import POOLINGS, Embedder, Pooling
from ponytail.llama.model import Model
from ponytail.machine import Threads, available_memory, usable_threads
from ponytail.sizing import Sizing, Wish, choose, ram_bytes
from ponytail.text.output import PieceTable
from ponytail.text.template import ChatTemplate, Instructions
from ponytail.text.toolcalls import GENERIC, by_name, instructions
from ponytail.types import ToolUse

MIB = 1 << 20
# Tokens that a text to embed may have when nobody said how many.
_EMBEDDER_CTX = 8192
# Cached prefixes that an idle server keeps in RAM when nobody said how much it may.
_IDLE_RAM_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that one loaded model needs; `facts` are the settings in force, JSON-able."""

    model: Model
    context: Context
    engine: Engine
    template: ChatTemplate
    pieces: PieceTable
    sizing: Sizing
    facts: dict[str, Any]
    fingerprint: str
    embedder: Embedder | None = None
    rank_template: str | None = None


def build(
    config: Config, header: GGUFHeader, on_progress: Callable[[float], None] | None = None
) -> Runtime:
    """Load and start.  Raises StartError with a sentence; blocks for as long as the load takes."""
    capi.ensure_backend()
    _check_build(config)
    threads = usable_threads() if config.threads is None else Threads(config.threads, "as asked")
    template_text = _template_file(config)
    # libllama aborts the process on a vocabulary that spells two tokens alike.
    ensure_unique_tokens(header)
    pooling = _pooling(config, header)
    available_bytes = _available_bytes(header) - _embedder_bytes(config, header, pooling)
    model = _model(config, on_progress)
    sizing = _sizing(config, header, available_bytes, model.can_share)
    context = _context(config, model, sizing, threads)
    _ensure_shift(config, context)
    max_queue = 4 * sizing.parallel if config.max_queue is None else config.max_queue
    kv = _kv(config, header, context, sizing, available_bytes)
    embedder = _embedder(config, header, context, pooling, threads)
    facts = _facts(config, context, sizing, kv, threads, max_queue)
    if embedder is not None:
        facts["embeddings"] = {
            "pooling": embedder.pooling,
            "n_dims": embedder.n_dims,
            "n_ctx": embedder.n_ctx,
            "mib": embedder.mib,
        }
    engine = Engine(
        context,
        kv=kv,
        n_parallel=sizing.parallel,
        n_ctx=sizing.ctx if config.context_shift else None,
        eog_ids=model.eog_ids,
        step_s=config.step_ms / 1000,
        max_queue=max_queue,
        n_threads=threads.count,
        tunes_threads=config.threads is None,
        reader=embedder,
    )
    return Runtime(
        model=model,
        context=context,
        engine=engine,
        template=_template(model, header, template_text, config.tool_format),
        pieces=PieceTable(model.token_bytes),
        sizing=sizing,
        facts=facts,
        fingerprint=_fingerprint(facts),
        embedder=embedder,
        rank_template=header.chat_templates.get("rerank"),
    )


def _check_build(config: Config) -> None:
    """Refuse what this build of llama.cpp cannot do, rather than ignore it."""
    if (config.n_gpu_layers or 0) > 0 and not capi.lib.llama_supports_gpu_offload():
        raise BadConfig(
            f"--n-gpu-layers {config.n_gpu_layers}: this build of llama.cpp has no GPU support"
        )
    if config.mlock and not capi.lib.llama_supports_mlock():
        raise BadConfig("--mlock: this build of llama.cpp cannot lock memory")
    if config.mmap and not capi.lib.llama_supports_mmap():
        raise BadConfig("this build of llama.cpp cannot map files: give --no-mmap")


def _model(config: Config, on_progress: Callable[[float], None] | None) -> Model:
    n_gpu_layers = config.n_gpu_layers
    if n_gpu_layers is None:
        n_gpu_layers = -1 if capi.lib.llama_supports_gpu_offload() else 0
    model = Model(
        config.model,
        n_gpu_layers=n_gpu_layers,
        use_mmap=config.mmap,
        use_mlock=config.mlock,
        on_progress=on_progress,
    )
    if model.has_encoder:
        raise BadModelFile(f"{config.model}: encoder-decoder models cannot be served")
    return model


def _available_bytes(header: GGUFHeader) -> int:
    """What is left for KV cells once the weights are in memory.

    They may be mapped from the file and count as reclaimable then, but a model whose pages
    come and go is no use.  A model larger than memory leaves an eighth of it.
    """
    available = available_memory().available_bytes
    return max(available - header.tensor_bytes, available // 8)


def _pooling(config: Config, header: GGUFHeader) -> Pooling | None:
    """How vectors are made; None when none were asked for and the file is not made for it."""
    if config.pooling == "rank" and not header.has_rank_head:
        raise BadConfig("--pooling rank: this model has no head that ranks", param="pooling")
    own = header.metadata.get(f"{header.architecture}.pooling_type")
    known = POOLINGS.get(own) if isinstance(own, int) else None
    if known == "rank" and not header.has_rank_head:
        known = None
    is_made_for_it = known is not None or not header.metadata.get(_causal_key(header), True)
    if config.pooling is None and not config.embeddings and not is_made_for_it:
        return None
    return config.pooling or known or "mean"


def _causal_key(header: GGUFHeader) -> str:
    return f"{header.architecture}.attention.causal"


def _embedder_ctx(config: Config, header: GGUFHeader) -> int:
    return min(config.ctx_size or _EMBEDDER_CTX, header.n_ctx_train)


def _embedder_bytes(config: Config, header: GGUFHeader, pooling: Pooling | None) -> int:
    """What its cells take; an encoder has none, which only its context tells."""
    if pooling is None or not header.metadata.get(_causal_key(header), True):
        return 0
    return header.kv_bytes_per_token("f16", "f16") * _embedder_ctx(config, header)


def _embedder(
    config: Config,
    header: GGUFHeader,
    context: Context,
    pooling: Pooling | None,
    threads: Threads,
) -> Embedder | None:
    if pooling is None and context.is_causal:
        return None
    return Embedder(
        context.model,
        pooling=pooling or "mean",
        is_causal=context.is_causal,
        n_ctx=_embedder_ctx(config, header),
        n_threads=config.threads_batch or threads.count,
        flash_attn=config.flash_attn,
    )


def _sizing(config: Config, header: GGUFHeader, available_bytes: int, can_share: bool) -> Sizing:
    wish = Wish(
        ctx_size=config.ctx_size,
        parallel=config.parallel,
        layout=config.kv_layout,
        kv_cells=config.kv_cells,
        kv_memory=config.kv_memory,
    )
    bytes_per_token = header.kv_bytes_per_token(config.cache_type_k, config.cache_type_v)
    return choose(header.n_ctx_train, bytes_per_token, available_bytes, wish, can_share=can_share)


def _ensure_shift(config: Config, context: Context) -> None:
    if config.context_shift and not context.can_shift:
        raise BadConfig(
            "--context-shift: this model's memory cannot drop tokens from the middle",
            param="context_shift",
        )


def _kv(
    config: Config, header: GGUFHeader, context: Context, sizing: Sizing, available_bytes: int
) -> KV:
    disk = None
    if config.kv_dir is not None:
        disk = DiskTier(
            config.kv_dir,
            fingerprint=_state_fingerprint(config, header, context),
            max_bytes=config.kv_disk,
        )
    n_bytes = ram_bytes(config.kv_ram, available_bytes)
    return KV(
        context,
        n_max_cells=sizing.n_cells_max,
        ram_bytes=n_bytes,
        # Who gives a number means it; what we chose ourselves is given back when nobody asks.
        idle_ram_bytes=n_bytes if config.kv_ram is not None else min(n_bytes, _IDLE_RAM_BYTES),
        disk=disk,
    )


def _state_fingerprint(config: Config, header: GGUFHeader, context: Context) -> str:
    """Changes with whatever a saved state depends on: the file, its rope, the cells' form."""
    words = [
        capi.lib.llama_version().decode(),
        content_digest(header),
        config.cache_type_k,
        config.cache_type_v,
        context.flash_attn,
        "shared" if context.is_shared else f"split {context.n_seq}",
    ]
    return " ".join(words)


def _context(config: Config, model: Model, sizing: Sizing, threads: Threads) -> Context:
    is_shared = sizing.layout == "shared"
    return Context(
        model,
        # In the pool a cached prefix needs an id of its own, but no cells of its own.
        n_seq=min(2 * sizing.parallel + 16, 255) if is_shared else sizing.parallel,
        n_cells=sizing.n_cells_start,
        max_cells=sizing.n_cells_max,
        is_shared=is_shared,
        n_batch=config.batch_size,
        n_ubatch=config.ubatch_size,
        n_threads=threads.count,
        n_threads_batch=config.threads_batch or threads.count,
        flash_attn=config.flash_attn,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
    )


def _template_file(config: Config) -> str | None:
    path = config.chat_template_file
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"--chat-template-file {path}: {error}") from error


def _tool_instructions(tool_format: str | None) -> Instructions:
    """What a model whose template knows no tools is told of them."""
    example = (by_name(tool_format) if tool_format else GENERIC).example

    def told(use: ToolUse) -> str:
        return instructions(
            use.tools,
            example=example,
            is_required=use.mode == "required",
            is_parallel=use.is_parallel,
        )

    return told


def _template(
    model: Model, header: GGUFHeader, text: str | None, tool_format: str | None
) -> ChatTemplate:
    return ChatTemplate(
        header.chat_template if text is None else text,
        special_tokens=model.control_texts,
        bos=model.token_text(model.bos_id),
        eos=model.token_text(model.eos_id),
        named={} if text is not None else header.chat_templates,
        instructions=_tool_instructions(tool_format),
    )


def _facts(
    config: Config, context: Context, sizing: Sizing, kv: KV, threads: Threads, max_queue: int
) -> dict[str, Any]:
    model = context.model
    facts: dict[str, Any] = {
        "n_ctx": sizing.ctx,
        "n_ctx_train": model.n_ctx_train,
        "n_parallel": sizing.parallel,
        "n_cells": sizing.n_cells,
        "sizing": sizing.reason,
        "model_mib": round(model.n_bytes / MIB, 1),
        "kv_layout": sizing.layout,
        "kv_mib": round(context.kv_mib, 1),
        "kv_capacity_mib": round(sizing.kv_bytes / MIB, 1),
        "kv_ram_mib": round(kv.tiers.max_bytes / MIB, 1),
        "kv_dir": str(config.kv_dir) if config.kv_dir else None,
        "context_shift": config.context_shift,
        "compute_mib": round(context.compute_mib, 1),
        "cache_type_k": config.cache_type_k,
        "cache_type_v": config.cache_type_v,
        "flash_attn": context.flash_attn,
        "n_gpu_layers": model.n_gpu_layers,
        "n_threads": threads.count,
        "n_threads_batch": config.threads_batch or threads.count,
        "threads": threads.reason,
        "step_ms": config.step_ms,
        "n_batch": context.n_batch,
        "max_queue": max_queue,
        "llama_cpp": capi.lib.llama_version().decode(),
    }
    facts["startup"] = _startup_line(facts)
    return facts


def _startup_line(f: dict[str, Any]) -> str:
    return (
        f"model {f['model_mib']:.0f} MB, KV {f['kv_mib']:.0f} MB growing to "
        f"{f['kv_capacity_mib']:.0f} ({f['n_cells']} cells, "
        f"{f['cache_type_k']}/{f['cache_type_v']}) and up to {f['kv_ram_mib']:.0f} MB of RAM for "
        f"cached prefixes, compute {f['compute_mib']:.0f} MB; "
        f"ctx {f['n_ctx']} per request, parallel {f['n_parallel']} ({f['sizing']}); "
        f"ngl {f['n_gpu_layers']}, flash-attn {f['flash_attn']}, "
        f"threads {f['n_threads']}/{f['n_threads_batch']} ({f['threads']})"
    )


def _fingerprint(facts: dict[str, Any]) -> str:
    """Changes with whatever may change the text of a seeded request."""
    names = ("llama_cpp", "model_mib", "n_threads", "n_threads_batch", "n_gpu_layers")
    words = [f"{n}={facts[n]}" for n in (*names, "cache_type_k", "cache_type_v", "flash_attn")]
    return "fp_" + hashlib.sha256(" ".join(words).encode()).hexdigest()[:10]
