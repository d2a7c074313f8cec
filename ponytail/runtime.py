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
from ponytail.engine.engine import Engine
from ponytail.errors import BadConfig, BadModelFile
from ponytail.gguf import GGUFHeader, ensure_unique_tokens
from ponytail.llama import capi
from ponytail.llama.context import Context
from ponytail.llama.model import Model
from ponytail.machine import Threads, available_memory, usable_threads
from ponytail.sizing import Sizing, choose
from ponytail.text.output import PieceTable
from ponytail.text.template import ChatTemplate

MIB = 1 << 20


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


def build(
    config: Config, header: GGUFHeader, on_progress: Callable[[float], None] | None = None
) -> Runtime:
    """Load and start.  Raises StartError with a sentence; blocks for as long as the load takes."""
    capi.ensure_backend()
    _check_build(config)
    sizing = choose(
        header.n_ctx_train,
        header.kv_bytes_per_token(config.cache_type_k, config.cache_type_v),
        available_memory().available_bytes,
        config.ctx_size,
        config.parallel,
    )
    threads = usable_threads() if config.threads is None else Threads(config.threads, "as asked")
    template_text = _template_file(config)
    # libllama aborts the process on a vocabulary that spells two tokens alike.
    ensure_unique_tokens(header)
    model = _model(config, on_progress)
    context = _context(config, model, sizing, threads)
    max_queue = 4 * sizing.parallel if config.max_queue is None else config.max_queue
    facts = _facts(config, context, sizing, threads, max_queue)
    return Runtime(
        model=model,
        context=context,
        engine=Engine(
            context,
            eog_ids=model.eog_ids,
            step_s=config.step_ms / 1000,
            max_queue=max_queue,
            n_threads=threads.count,
            tunes_threads=config.threads is None,
        ),
        template=_template(model, header, template_text),
        pieces=PieceTable(model.token_bytes),
        sizing=sizing,
        facts=facts,
        fingerprint=_fingerprint(facts),
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


def _context(config: Config, model: Model, sizing: Sizing, threads: Threads) -> Context:
    return Context(
        model,
        n_seq=sizing.parallel,
        n_cells=sizing.n_cells_per_seq,
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


def _template(model: Model, header: GGUFHeader, text: str | None) -> ChatTemplate:
    return ChatTemplate(
        header.chat_template if text is None else text,
        special_tokens=model.control_texts,
        bos=model.token_text(model.bos_id),
        eos=model.token_text(model.eos_id),
        named={} if text is not None else header.chat_templates,
    )


def _facts(
    config: Config, context: Context, sizing: Sizing, threads: Threads, max_queue: int
) -> dict[str, Any]:
    model = context.model
    facts: dict[str, Any] = {
        "n_ctx": sizing.ctx,
        "n_ctx_train": model.n_ctx_train,
        "n_parallel": sizing.parallel,
        "n_cells": sizing.n_cells,
        "sizing": sizing.reason,
        "model_mib": round(model.n_bytes / MIB, 1),
        "kv_mib": round(context.kv_mib or sizing.kv_bytes / MIB, 1),
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
        f"model {f['model_mib']:.0f} MB, KV {f['kv_mib']:.0f} MB ({f['n_cells']} cells, "
        f"{f['cache_type_k']}/{f['cache_type_v']}), compute {f['compute_mib']:.0f} MB; "
        f"ctx {f['n_ctx']} per request, parallel {f['n_parallel']} ({f['sizing']}); "
        f"ngl {f['n_gpu_layers']}, flash-attn {f['flash_attn']}, "
        f"threads {f['n_threads']}/{f['n_threads_batch']} ({f['threads']})"
    )


def _fingerprint(facts: dict[str, Any]) -> str:
    """Changes with whatever may change the text of a seeded request."""
    names = ("llama_cpp", "model_mib", "n_threads", "n_threads_batch", "n_gpu_layers")
    words = [f"{n}={facts[n]}" for n in (*names, "cache_type_k", "cache_type_v", "flash_attn")]
    return "fp_" + hashlib.sha256(" ".join(words).encode()).hexdigest()[:10]
