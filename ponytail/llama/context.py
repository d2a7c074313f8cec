"""A llama.cpp context: batches in, logits rows and sequence operations out.

Owns the `llama_context` pointer, the batch buffers and the KV cells; fits
`engine.backend.Backend`.  Must not know requests or scheduling.  Engine thread only.

Every sequence has its own stream of cells (kv_unified off).  Copying between
streams with `llama_memory_seq_cp` would copy the whole capacity, so forks and
swaps move the sequence's state instead, which holds only used cells.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ponytail.errors import BadConfig, DecodeError, SampleError
from ponytail.llama.capi import captured_log, lib
from ponytail.llama.model import Model
from ponytail.llama.sampler import RowSampler
from ponytail.types import Sampling

Row: TypeAlias = "tuple[int, int, array[int], bool]"

CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "bf16": 30,
}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
# What the library tells of a new context only in its log.
_COMPUTE = re.compile(r"compute buffer size\s*=\s*([\d.]+) MiB")
_KV = re.compile(r"KV buffer size\s*=\s*([\d.]+) MiB")
_FLASH = re.compile(r"Flash Attention.*?(enabled|disabled)", re.IGNORECASE)
_KEEP_SCRATCH_BYTES = 8 << 20


class Context:
    """`n_seq` sequences of `n_cells` tokens each over one model.

    `n_batch` bounds one decode, which is one step of the scheduler; `n_ubatch` is how
    many tokens of it are computed at once.  `flash_attn`, `kv_mib` and `compute_mib` say
    what the library made of it.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_seq: int,
        n_cells: int,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int = 1,
        n_threads_batch: int = 1,
        flash_attn: str = "auto",
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
    ) -> None:
        self.model = model
        self.n_seq, self.n_cells, self.can_cut = n_seq, n_cells, model.can_cut
        # 128: the fixed chunk of deterministic requests (engine.scheduler.SOLO_CHUNK).
        self.n_batch = max(n_batch, n_seq, 128)
        self._n_threads_batch = n_threads_batch
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_cells * n_seq, n_seq
        params.n_batch, params.n_ubatch = self.n_batch, min(n_ubatch, self.n_batch)
        params.n_outputs_max = n_seq
        params.n_threads, params.n_threads_batch = n_threads, n_threads_batch
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.type_k, params.type_v = CACHE_TYPES[cache_type_k], CACHE_TYPES[cache_type_v]
        params.swa_full = True
        params.kv_unified = False
        with captured_log() as lines:
            self.pointer = lib.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise BadConfig(
                f"llama.cpp could not create a context of {n_cells} cells x {n_seq} sequences "
                f"(KV {cache_type_k}/{cache_type_v}, flash attention {flash_attn}); "
                "see --verbose for its words"
            )
        self._read_log("\n".join(lines), flash_attn)
        self._memory = lib.llama_get_memory(self.pointer)
        self._build_batch()
        self._scratch: Any = None
        self._logits: tuple[int, int, Any] = (0, 0, None)
        self._outputs: list[int] = []

    def _read_log(self, log: str, asked_flash_attn: str) -> None:
        self.kv_mib: float = sum(map(float, _KV.findall(log)))
        self.compute_mib: float = sum(map(float, _COMPUTE.findall(log)))
        resolved = _FLASH.findall(log)
        self.flash_attn: str = resolved[-1].lower() if resolved else asked_flash_attn
        # ggml's CPU flash attention works in tiles of 64 rows, and falls back to one row at
        # a time below (measured at 4,096 tokens: 6.7 against 12.3 ms a token).
        is_tiled = self.flash_attn not in ("off", "disabled") and self.model.n_gpu_layers == 0
        self.tile = 64 if is_tiled else 1

    def _build_batch(self) -> None:
        """One set of buffers for all decodes; row i's sequence id lies at a fixed address."""
        n = self.n_batch
        self._arrays: tuple[Any, ...] = (
            np.zeros(n, dtype=np.int32),
            np.zeros(n, dtype=np.int32),
            np.ones(n, dtype=np.int32),
            np.zeros(n, dtype=np.int32),
            np.zeros(n, dtype=np.int8),
            np.zeros(n, dtype=np.uint64),
        )
        token, pos, n_seq_id, seq_id, logits, pointers = self._arrays
        pointers[:] = seq_id.ctypes.data + 4 * np.arange(n, dtype=np.uint64)
        # Memoryviews: writing one number costs half of what it costs through the array.
        self._token, self._pos = token.data, pos.data
        self._seq_id, self._wants = seq_id.data, logits.data
        self._positions = np.arange(self.n_cells + n, dtype=np.int32)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self._batch = lib.llama_batch(
            n_tokens=0,
            token=token.ctypes.data_as(int32_p),
            pos=pos.ctypes.data_as(int32_p),
            n_seq_id=n_seq_id.ctypes.data_as(int32_p),
            seq_id=ctypes.cast(pointers.ctypes.data, ctypes.POINTER(int32_p)),
            logits=ctypes.cast(logits.ctypes.data, ctypes.POINTER(ctypes.c_int8)),
        )

    def close(self) -> None:
        """Free the context and its KV cells."""
        if self.pointer:
            lib.llama_free(self.pointer)
            self.pointer = None

    # -- running -------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute all rows in one llama_decode call.  Raises DecodeError."""
        self._outputs = []
        n = 0
        for seq_id, position, tokens, wants_logits in rows:
            n_row = len(tokens)
            if n_row == 1:
                self._token[n] = tokens[0]
                self._pos[n] = position
                self._seq_id[n] = seq_id
                self._wants[n] = wants_logits
            else:
                self._fill(n, n_row, seq_id, position, tokens, wants_logits)
            n += n_row
            if wants_logits:
                self._outputs.append(n - 1)
        self._batch.n_tokens = n
        result = lib.llama_decode(self.pointer, self._batch)
        if result != 0:
            raise DecodeError(f"llama_decode returned {result} for {n} tokens in {len(rows)} rows")

    def _fill(
        self, at: int, n: int, seq_id: int, position: int, tokens: Any, wants_logits: bool
    ) -> None:
        token, pos, _, seq_ids, wants, _ = self._arrays
        token[at : at + n] = tokens
        pos[at : at + n] = self._positions[position : position + n]
        seq_ids[at : at + n] = seq_id
        wants[at : at + n] = 0
        wants[at + n - 1] = wants_logits

    def _rows_of_logits(self) -> Any:
        """Logits of the last decode, shape (n_outputs, n_vocab), a view of libllama's buffer."""
        # Asking for one row first makes libllama put the rows into batch order.
        lib.llama_get_logits_ith(self.pointer, self._outputs[-1])
        address = ctypes.cast(lib.llama_get_logits(self.pointer), ctypes.c_void_p).value or 0
        n = len(self._outputs)
        if self._logits[:2] != (address, n):
            size = n * self.model.n_vocab
            buffer: Any = (ctypes.c_float * size).from_address(address)
            view = np.frombuffer(buffer, dtype=np.float32).reshape(n, self.model.n_vocab)
            self._logits = (address, n, view)
        return self._logits[2]

    def sample(self, samplers: Sequence[RowSampler]) -> list[int | SampleError]:
        """One pick per output row of the last decode, in row order."""
        logits = self._rows_of_logits()
        picks: list[int | SampleError] = []
        for i, sampler in enumerate(samplers):
            row = logits[i]
            sampler.prepare(row)
            best = int(row.argmax())
            top = row[best]
            if not (-np.inf < top < np.inf):
                picks.append(SampleError(f"the largest logit of the row is {top}"))
            elif sampler.chain is None:
                picks.append(best)
            else:
                pick = lib.llama_sampler_sample(
                    sampler.chain.pointer, self.pointer, self._outputs[i]
                )
                picks.append(pick)
        return picks

    def open_sampler(self, sampling: Sampling, seed: int, history: Sequence[int]) -> RowSampler:
        """A sampler for one sequence; `history` are the tokens penalties count from."""
        return RowSampler(self.model, sampling, seed, self.n_cells, history)

    def set_threads(self, n_threads: int) -> None:
        """Threads for one-token rows from the next decode on."""
        lib.llama_set_n_threads(self.pointer, n_threads, self._n_threads_batch)

    # -- sequences -----------------------------------------------------------------------

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        """Keep the first n_tokens of a sequence; False (and empty) when its memory cannot."""
        if lib.llama_memory_seq_rm(self._memory, seq_id, n_tokens, -1):
            return True
        lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        return False

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        """Replace each dst by a copy of the first n_tokens of src (used cells only)."""
        state = self._read_state(src)
        for dst in dsts:
            self._write_state(dst, state)
            lib.llama_memory_seq_rm(self._memory, dst, n_tokens, -1)
        self._drop_scratch()

    def swap(self, a: int, b: int) -> None:
        """Exchange two sequences by their states."""
        if self.n_tokens(a) == 0:
            a, b = b, a
        first = self._read_state(a)
        if self.n_tokens(b) == 0:
            self._write_state(b, first)
            lib.llama_memory_seq_rm(self._memory, a, -1, -1)
        else:
            first = memoryview(bytes(first))
            self._write_state(a, self._read_state(b))
            self._write_state(b, first)
        self._drop_scratch()

    def _read_state(self, seq_id: int) -> memoryview:
        size = lib.llama_state_seq_get_size_ext(self.pointer, seq_id, 0)
        if self._scratch is None or len(self._scratch) < size:
            self._scratch = np.empty(size, dtype=np.uint8)
        pointer = self._scratch.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = lib.llama_state_seq_get_data_ext(self.pointer, pointer, size, seq_id, 0)
        return memoryview(self._scratch)[:n]

    def _write_state(self, seq_id: int, state: memoryview | bytes) -> None:
        lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        data = np.frombuffer(state, dtype=np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = lib.llama_state_seq_set_data_ext(self.pointer, pointer, len(data), seq_id, 0)
        if n == 0:
            raise DecodeError(f"llama_state_seq_set_data refused {len(data)} bytes")

    def _drop_scratch(self) -> None:
        if self._scratch is not None and len(self._scratch) > _KEEP_SCRATCH_BYTES:
            self._scratch = None

    def n_tokens(self, seq_id: int) -> int:
        """Tokens that a sequence holds in its cells."""
        return int(lib.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
