"""The cells of one llama_context: cutting, sharing, copying and moving sequences.

Owns the `llama_context` pointer, its memory and the buffer that states pass through.
A context has one size for life: a resize opens another (`Opening`) and moves what is
held (`move`).  Must not know batches, logits or scheduling.  Engine thread only, but for
the thread of `Opening`, which touches nothing else.

In split (kv_unified off) each sequence has a stream of cells of its own.  Copying between
streams with `llama_memory_seq_cp` would copy the whole capacity, so forks and swaps move
the sequence's state instead, which holds only used cells.  In shared a copy only adds a
sequence id to cells.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ponytail.errors import DecodeError, OutOfCells
from ponytail.llama.capi import captured_log, lib

Span: TypeAlias = tuple[int, int, Sequence[int]]
"""(first position, position after the last, ids of the sequences that hold these cells)."""

State: TypeAlias = NDArray[np.uint8]

_uint8_p = ctypes.POINTER(ctypes.c_uint8)
# Why a state was refused, libllama tells only in its log.
_NO_ROOM = re.compile(r"available cells|not enough cells")
_KEEP_BUFFER_BYTES = 8 << 20
# Tokens moved at a time between shared cells, so that a long span needs no buffer of its size.
_MOVED_TOKENS = 2048


class Cells:
    """Sequences 0 .. n_seq-1 of one context, and in shared one more for passing things through.

    `n_swa` is the sliding window in tokens, 0 for none.
    """

    def __init__(self, pointer: Any, *, n_seq: int, is_shared: bool, n_swa: int) -> None:
        self.pointer = pointer
        self.is_shared = is_shared
        self.n_cells: int = lib.llama_n_ctx_seq(pointer)
        self._memory = lib.llama_get_memory(pointer)
        self.can_shift: bool = lib.llama_memory_can_shift(self._memory)
        self._n_swa = n_swa
        self._scratch_id = n_seq
        self._buffer: State | None = None

    def close(self) -> None:
        """Free the context with all cells."""
        if self.pointer:
            lib.llama_free(self.pointer)
            self.pointer = None

    def n_tokens(self, seq_id: int) -> int:
        """Tokens that a sequence holds in its cells."""
        return int(lib.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    # -- sequences -----------------------------------------------------------------------

    def clear(self, seq_id: int) -> None:
        """Empty a sequence."""
        lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        """Keep the first n_tokens of a sequence; False, and empty, when its memory cannot."""
        can = self._has_window(seq_id, n_tokens)
        if can and lib.llama_memory_seq_rm(self._memory, seq_id, n_tokens, -1):
            return True
        self.clear(seq_id)
        return False

    def _has_window(self, seq_id: int, n_tokens: int) -> bool:
        """All cells that a token after the first n_tokens looks at are there.

        A state holds a sliding window up to the sequence's end only, so a sequence that came
        from one lacks what an earlier end would look at; libllama would not complain.
        """
        if not self._n_swa:
            return True
        first = int(lib.llama_memory_seq_pos_min(self._memory, seq_id))
        return first <= max(0, n_tokens - self._n_swa + 1)

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        """Replace each dst by the first n_tokens of src: shared, or copied by its state."""
        if self.is_shared:
            for dst in dsts:
                self.clear(dst)
                lib.llama_memory_seq_cp(self._memory, src, dst, 0, n_tokens)
            return
        state = self._borrow(src)
        for dst in dsts:
            self._fill(dst, state)
            self._ensure_cut(dst, n_tokens)
        self._drop_buffer()

    def adopt(self, src: int, dst: int, start: int, end: int) -> None:
        """Let dst hold src's cells of [start, end) instead of its own."""
        lib.llama_memory_seq_rm(self._memory, dst, start, end)
        lib.llama_memory_seq_cp(self._memory, src, dst, start, end)

    def swap(self, a: int, b: int) -> None:
        """Exchange two sequences by their states."""
        if self.n_tokens(a) == 0:
            a, b = b, a
        if self.n_tokens(b) == 0:
            self._fill(b, self._borrow(a))
            self.clear(a)
        else:
            first = self.read(a)
            self._fill(a, self._borrow(b))
            self._fill(b, first)
        self._drop_buffer()

    def shift(self, seq_id: int, start: int, n_tokens: int) -> None:
        """Take out [start, start + n_tokens).  The keys follow with the next llama_decode."""
        end = start + n_tokens
        lib.llama_memory_seq_rm(self._memory, seq_id, start, end)
        lib.llama_memory_seq_add(self._memory, seq_id, end, -1, -n_tokens)

    def _ensure_cut(self, seq_id: int, n_tokens: int) -> None:
        if not self.cut(seq_id, n_tokens):
            raise DecodeError(f"the memory cannot be cut back to {n_tokens} tokens")

    # -- states --------------------------------------------------------------------------

    def state_bytes(self, seq_id: int) -> int:
        """Size of what `read` would return."""
        return int(lib.llama_state_seq_get_size_ext(self.pointer, seq_id, 0))

    def read(self, seq_id: int) -> State:
        """A copy of a sequence's cells, owned by the caller."""
        state: State = np.empty(self.state_bytes(seq_id), dtype=np.uint8)
        return self._read_into(state, seq_id)

    def write(self, seq_id: int, state: Any, keep: int = 0) -> None:
        """Replace a sequence by a state; in shared its first `keep` tokens may stay.

        Raises OutOfCells or DecodeError; the sequence is then empty.
        """
        if not keep:
            self._fill(seq_id, state)
            return
        lib.llama_memory_seq_rm(self._memory, seq_id, keep, -1)
        try:
            self._fill(self._scratch_id, state)
        except DecodeError:
            self.clear(seq_id)
            raise
        self._pass_on([seq_id], keep, -1)

    def _pass_on(self, seq_ids: Sequence[int], start: int, end: int) -> None:
        """Give [start, end) of the scratch sequence to others, and empty it."""
        for seq_id in seq_ids:
            lib.llama_memory_seq_cp(self._memory, self._scratch_id, seq_id, start, end)
        self.clear(self._scratch_id)

    def _read_into(self, buffer: State, seq_id: int) -> State:
        pointer = buffer.ctypes.data_as(_uint8_p)
        n = lib.llama_state_seq_get_data_ext(self.pointer, pointer, len(buffer), seq_id, 0)
        if n == 0:
            raise DecodeError(f"llama_state_seq_get_data gave nothing of sequence {seq_id}")
        return buffer[:n]

    def _borrow(self, seq_id: int) -> State:
        """A sequence's state in the one buffer, good until the next call."""
        size = self.state_bytes(seq_id)
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = np.empty(size, dtype=np.uint8)
        return self._read_into(self._buffer, seq_id)

    def _drop_buffer(self) -> None:
        if self._buffer is not None and len(self._buffer) > _KEEP_BUFFER_BYTES:
            self._buffer = None

    def _fill(self, seq_id: int, state: Any) -> None:
        self.clear(seq_id)
        data = np.frombuffer(state, dtype=np.uint8)
        if self._set_data(seq_id, data):
            return
        with captured_log() as lines:
            if self._set_data(seq_id, data):
                return
        self.clear(seq_id)
        why = "; ".join(lines)
        kind = OutOfCells if _NO_ROOM.search(why) else DecodeError
        raise kind(f"a state of {len(data)} bytes was refused: {why}")

    def _set_data(self, seq_id: int, data: State) -> int:
        pointer = data.ctypes.data_as(_uint8_p)
        n = lib.llama_state_seq_set_data_ext(self.pointer, pointer, len(data), seq_id, 0)
        return int(n)

    # -- moving --------------------------------------------------------------------------

    def move(self, to: Cells, spans: Sequence[Span]) -> None:
        """Copy these spans into other cells.  Raises DecodeError; nothing changes here."""
        for start, end, seq_ids in spans:
            if self.is_shared:
                for at in range(start, end, _MOVED_TOKENS):
                    self._move_piece(to, at, min(at + _MOVED_TOKENS, end), seq_ids)
            else:
                to._fill(seq_ids[0], self._borrow(seq_ids[0]))
                to._ensure_cut(seq_ids[0], end)

    def _move_piece(self, to: Cells, start: int, end: int, seq_ids: Sequence[int]) -> None:
        lib.llama_memory_seq_cp(self._memory, seq_ids[0], self._scratch_id, start, end)
        try:
            state = self._borrow(self._scratch_id)
        finally:
            self.clear(self._scratch_id)
        to._fill(to._scratch_id, state)
        to._pass_on(seq_ids, start, end)


class Opening:
    """A context that is being made in a thread of its own: clearing its cells takes long."""

    def __init__(self, model_pointer: Any, params: Any) -> None:
        self._pointer: Any = None
        self._thread = threading.Thread(
            target=self._open, args=(model_pointer, params), name="ponytail-cells", daemon=True
        )
        self._thread.start()

    def _open(self, model_pointer: Any, params: Any) -> None:
        self._pointer = lib.llama_init_from_model(model_pointer, params)

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def take(self) -> Any:
        """The pointer, None when libllama could not make it; waits for the thread to end."""
        self._thread.join()
        return self._pointer
