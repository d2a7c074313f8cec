"""The binding, checked: the functions we call and what this pinned build must look like.

Owns the import of `llama_cpp.llama_cpp` and the start-up self-check.  Everything
that ponytail does with structs passed by value is only right for the layout it was
written for, so a different build is refused with a sentence instead of a crash.
Must not know models or requests.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import llama_cpp.llama_cpp as lib

from ponytail.errors import BindingMismatch

__all__ = [
    "BINDING_VERSION",
    "captured_log",
    "check_binding",
    "cpu_features",
    "ensure_backend",
    "lib",
    "logged_mib",
]

BINDING_VERSION = "0.3.36"

_log = logging.getLogger("ponytail.llama")

# (struct, size in bytes, defaults that change meaning between versions)
_EXPECTED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    (
        "llama_model_default_params",
        80,
        {"n_gpu_layers": -1, "load_mode": -1, "use_extra_bufts": True, "vocab_only": False},
    ),
    (
        "llama_context_default_params",
        160,
        {
            "n_ctx": 512,
            "n_batch": 2048,
            "n_ubatch": 512,
            "n_seq_max": 1,
            "n_outputs_max": 0,
            "flash_attn_type": -1,
            "type_k": 1,
            "type_v": 1,
            "offload_kqv": True,
            "swa_full": True,
            "kv_unified": False,
        },
    ),
    ("llama_sampler_chain_default_params", 1, {"no_perf": True}),
)
_BATCH_BYTES = 56

LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


def check_binding(binding: Any = lib, version: str | None = None) -> None:
    """Refuse a binding whose version, struct sizes or defaults are not the pinned ones."""
    found = version or metadata.version("llama-cpp-python")
    if found != BINDING_VERSION:
        raise BindingMismatch(
            f"llama-cpp-python {found} is installed, but this ponytail needs exactly "
            f"{BINDING_VERSION} (pip install llama-cpp-python=={BINDING_VERSION})"
        )
    for function, size, defaults in _EXPECTED:
        params = getattr(binding, function)()
        if ctypes.sizeof(params) != size:
            raise _mismatch(function, "size", ctypes.sizeof(params), size)
        for name, value in defaults.items():
            if getattr(params, name) != value:
                raise _mismatch(function, name, getattr(params, name), value)
    if ctypes.sizeof(binding.llama_batch) != _BATCH_BYTES:
        raise _mismatch("llama_batch", "size", ctypes.sizeof(binding.llama_batch), _BATCH_BYTES)


def _mismatch(function: str, name: str, found: object, expected: object) -> BindingMismatch:
    return BindingMismatch(
        f"llama-cpp-python {BINDING_VERSION} does not look as it should: {function}: {name} is "
        f"{found}, expected {expected}; reinstall it with "
        f"pip install --force-reinstall --no-cache-dir llama-cpp-python=={BINDING_VERSION}"
    )


_last_level = logging.INFO
_captured: list[str] | None = None


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """Collect the library's own lines meanwhile: some facts it tells in no other way."""
    global _captured
    lines: list[str] = []
    _captured = lines
    try:
        yield lines
    finally:
        _captured = None


def logged_mib(log: str, *buffers: str) -> float:
    """MiB of these buffers (`KV`, `RS`, `compute`) of a context, which only its log tells."""
    sizes = re.findall(rf"(?:{'|'.join(buffers)}) buffer size\s*=\s*([\d.]+) MiB", log)
    return sum(map(float, sizes))


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _forward_log(level: int, text: bytes, _user_data: Any) -> None:
    """llama.cpp's own lines go to the log; level 5 continues the line before it."""
    global _last_level
    if level != 5:
        _last_level = LOG_LEVELS.get(level, logging.DEBUG)
    line = text.decode("utf-8", "replace").rstrip()
    if _captured is not None:
        _captured.append(line)
    if line and line != ".":
        # The library's INFO is a page per load; its warnings are about itself, not the user.
        _log.log(logging.DEBUG if _last_level < logging.ERROR else logging.INFO, "%s", line)


_is_ready = False


def ensure_backend() -> None:
    """Check the binding, route the library's log and initialise the backend, once."""
    global _is_ready
    if not _is_ready:
        check_binding()
        lib.llama_log_set(_forward_log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _is_ready = True


def cpu_features() -> tuple[str, ...]:
    """The instruction sets this build of llama.cpp uses on this machine."""
    words = lib.llama_print_system_info().decode().replace("CPU :", "").split("|")
    return tuple(w.split("=")[0].strip() for w in words if w.strip().endswith("= 1"))


def version_info() -> str:
    """One line for `--version`: binding, llama.cpp build, instruction sets."""
    return (
        f"llama-cpp-python {metadata.version('llama-cpp-python')}, "
        f"llama.cpp {lib.llama_version().decode()}, CPU: {' '.join(cpu_features())}"
    )
