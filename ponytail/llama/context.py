"""A llama.cpp context: batches in, logits rows and sequence operations out.

Owns the batch buffers, the logits view and a resize in flight; the cells themselves are
in cells.py.  Fits `engine.backend.Backend`.  Must not know requests or scheduling.
Engine thread only.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ponytail.errors import (
    BadConfig,
    ConstraintFailed,
    DecodeError,
    OutOfCells,
    SampleError,
)
from ponytail.llama.capi import captured_log, lib, logged_mib
from ponytail.llama.cells import Cells, Opening, Span, State
from ponytail.llama.model import Model
from ponytail.llama.sampler import Guide, RowSampler, Scores, scores_of
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
_CAUSAL = re.compile(r"causal_attn\s*=\s*([01])")
_FLASH = re.compile(r"Flash Attention.*?(enabled|disabled)", re.IGNORECASE)
_MIB = 1 << 20
# What a state says of each cell besides keys and values: position, number of ids, the id.
_CELL_HEAD_BYTES = 12
_MAX_SEQ = 256
_PAD = 256  # libllama rounds cells up to a multiple of this
_SCORE_CHUNK = 64  # engine.backend.SCORE_CHUNK
_NO_SLOT = 1  # what llama_decode returns when the cells do not suffice


class Context:
    """`n_seq` sequences over one model: of `n_cells` tokens each, or of all together in shared.

    Both `n_cells` and `max_cells`, up to which a resize may ask, are rounded up to 256.
    `n_batch` bounds one decode, which is one step of the scheduler; `n_ubatch` is how many
    tokens of it are computed at once.  `flash_attn`, `kv_mib` and `compute_mib` say what the
    library made of it.

    Raises BadConfig when libllama refuses, ValueError for a memory that cannot be shared.
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
        is_shared: bool = False,
        max_cells: int | None = None,
    ) -> None:
        if is_shared and not model.can_share:
            raise ValueError("this model's memory cannot be shared between sequences")
        if n_seq + is_shared > _MAX_SEQ:
            raise ValueError(f"{n_seq} sequences; at most {_MAX_SEQ - is_shared} are possible")
        self.model, self.n_seq, self.is_shared = model, n_seq, is_shared
        # 128: the fixed chunk of deterministic requests (engine.scheduler.SOLO_CHUNK).
        self.n_batch = max(n_batch, n_seq, 128)
        self._n_threads, self._n_threads_batch = n_threads, n_threads_batch
        params = self._params = lib.llama_context_default_params()
        params.n_batch, params.n_ubatch = self.n_batch, min(n_ubatch, self.n_batch)
        # libllama keeps room for one row of logits per sequence, and aborts when told of fewer.
        params.n_seq_max = n_seq + is_shared
        # One for each sequence, or for each token of a prompt that is scored.
        params.n_outputs_max = max(params.n_seq_max, min(_SCORE_CHUNK, self.n_batch))
        params.n_threads, params.n_threads_batch = n_threads, n_threads_batch
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.type_k, params.type_v = CACHE_TYPES[cache_type_k], CACHE_TYPES[cache_type_v]
        params.swa_full = True
        params.kv_unified = is_shared
        self._open(n_cells, f"KV {cache_type_k}/{cache_type_v}, flash attention {flash_attn}")
        self.max_cells = -(-max(n_cells, max_cells or 0) // _PAD) * _PAD
        self.can_cut = model.can_cut
        self.can_shift = model.can_cut and self._cells.can_shift
        self._build_batch()
        self._opening: Opening | None = None
        self._logits: tuple[int, int, Any] = (0, 0, None)
        self._outputs: list[int] = []

    def _open(self, n_cells: int, settings: str) -> None:
        self._params.n_ctx = self._n_ctx(n_cells)
        with captured_log() as lines:
            pointer = lib.llama_init_from_model(self.model.pointer, self._params)
        if not pointer:
            size = f"{n_cells} cells" + ("" if self.is_shared else f" x {self.n_seq} sequences")
            raise BadConfig(
                f"llama.cpp could not create a context of {size} ({settings}); "
                "see --verbose for its words"
            )
        self._cells = self._wrap(pointer)
        self.n_cells = self._cells.n_cells
        self._read_log("\n".join(lines))

    def _n_ctx(self, n_cells: int) -> int:
        return n_cells if self.is_shared else n_cells * self.n_seq

    def _wrap(self, pointer: Any) -> Cells:
        return Cells(pointer, n_seq=self.n_seq, is_shared=self.is_shared, n_swa=self.model.n_swa)

    def _read_log(self, log: str) -> None:
        self.compute_mib = logged_mib(log, "compute")
        self._recurrent_mib = logged_mib(log, "RS")
        self._mib_per_cell = logged_mib(log, "KV") / self.n_cells
        per_token = self._mib_per_cell * _MIB / (1 if self.is_shared else self.n_seq)
        # As exact as the log, which has two decimals; 0 where a state does not grow.
        self.cell_bytes: int = round(per_token + _CELL_HEAD_BYTES) if per_token else 0
        # An encoder's tokens see each other in both directions: it cannot generate.
        self.is_causal: bool = "0" not in _CAUSAL.findall(log)
        resolved = _FLASH.findall(log)
        asked = {number: word for word, number in FLASH_ATTN.items()}
        self.flash_attn: str = (
            resolved[-1].lower() if resolved else asked[self._params.flash_attn_type]
        )
        # ggml's CPU flash attention works in tiles of 64 rows, and falls back to one row at
        # a time below (measured at 4,096 tokens: 6.7 against 12.3 ms a token).
        is_tiled = self.flash_attn not in ("off", "disabled") and self.model.n_gpu_layers == 0
        self.tile = 64 if is_tiled else 1

    @property
    def pointer(self) -> Any:
        """The `llama_context` in force; another one after a resize, None once closed."""
        return self._cells.pointer

    @property
    def kv_mib(self) -> float:
        """MiB that the cells take now, recurrent states included."""
        return self._mib_per_cell * self.n_cells + self._recurrent_mib

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
        self._positions = np.arange(self.max_cells + n, dtype=np.int32)
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
        """Free the context and its KV cells; waits for a resize in flight."""
        self.cancel_resize()
        self._cells.close()

    # -- running -------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row], *, all_logits: bool = False) -> None:
        """Compute all rows in one llama_decode call; `all_logits`: of every token of one row.

        Raises OutOfCells: nothing was computed, nothing changed; or DecodeError: what was
        computed before the micro-batch that failed is still there.
        """
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
            if all_logits:
                self._arrays[4][n - n_row : n] = 1
                self._outputs += range(n - n_row, n)
            elif wants_logits:
                self._outputs.append(n - 1)
        # libllama bounds a batch by the cells, and aborts beyond.
        if n > self.n_cells and self.is_shared:
            raise OutOfCells(f"{n} tokens in one batch, {self.n_cells} cells")
        self._batch.n_tokens = n
        result = lib.llama_decode(self.pointer, self._batch)
        if result != 0:
            error = OutOfCells if result == _NO_SLOT else DecodeError
            raise error(f"llama_decode returned {result} for {n} tokens in {len(rows)} rows")

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

    def sample(self, samplers: Sequence[RowSampler]) -> list[int | Exception]:
        """One pick per output row of the last decode, in row order."""
        logits = self._rows_of_logits()
        n_skipped = len(self._outputs) - len(samplers)
        picks: list[int | Exception] = []
        for i, sampler in enumerate(samplers, start=n_skipped):
            try:
                picks.append(self._pick(logits[i], sampler, self._outputs[i]))
            except (SampleError, ConstraintFailed) as error:
                picks.append(error)
        return picks

    def _pick(self, row: Any, sampler: RowSampler, output: int) -> int:
        sampler.prepare(row)
        pick = int(row.argmax())
        top = row[pick]
        if not (-np.inf < top < np.inf):
            raise SampleError(f"the largest logit of the row is {top}")
        if sampler.chain is not None:
            pick = lib.llama_sampler_sample(sampler.chain.pointer, self.pointer, output)
        sampler.accept(pick)
        return pick

    def score(self, row: Row, targets: Sequence[int], n_top: int) -> list[Scores]:
        """Compute one row of tokens, and the score of what follows each of them.

        One target fewer than tokens when the last is the prompt's last: `sample` goes on there.
        """
        self.decode([row], all_logits=True)
        logits = self._rows_of_logits()
        n_top = min(n_top, self.model.n_vocab)
        return [scores_of(logits[i], target, n_top) for i, target in enumerate(targets)]

    def open_sampler(
        self,
        sampling: Sampling,
        seed: int,
        history: Sequence[int],
        guide: Guide | None = None,
        n_scores: int | None = None,
    ) -> RowSampler:
        """A sampler for one sequence; `history` are the tokens penalties count from."""
        return RowSampler(self.model, sampling, seed, self.max_cells, history, guide, n_scores)

    def set_threads(self, n_threads: int) -> None:
        """Threads for one-token rows from the next decode on."""
        self._n_threads = n_threads
        lib.llama_set_n_threads(self.pointer, n_threads, self._n_threads_batch)

    # -- sequences -----------------------------------------------------------------------

    def n_tokens(self, seq_id: int) -> int:
        """Tokens that a sequence holds in its cells."""
        return self._cells.n_tokens(seq_id)

    def cut(self, seq_id: int, n_tokens: int) -> bool:
        """Keep the first n_tokens of a sequence; False, and empty, when its memory cannot."""
        return self._cells.cut(seq_id, n_tokens)

    def fork(self, src: int, dsts: Sequence[int], n_tokens: int) -> None:
        """Replace each dst by the first n_tokens of src: copied in split, shared in shared."""
        self._cells.fork(src, dsts, n_tokens)

    def adopt(self, src: int, dst: int, start: int, end: int) -> None:
        """Shared only: dst gives up its own cells of [start, end) and shares src's instead."""
        self._cells.adopt(src, dst, start, end)

    def swap(self, a: int, b: int) -> None:
        """Split only: exchange two sequences."""
        self._cells.swap(a, b)

    def shift(self, seq_id: int, start: int, n_tokens: int) -> None:
        """Take [start, start + n_tokens) out of a sequence; drops the logits there are."""
        self._cells.shift(seq_id, start, n_tokens)
        # libllama turns the keys to their new places before it decodes; until then a state
        # would be wrong.  So decode some token, and forget it.
        n_left = self.n_tokens(seq_id)
        self.decode([(seq_id, n_left, array("i", [0]), False)])
        self._cells.cut(seq_id, n_left)

    # -- states --------------------------------------------------------------------------

    def state_bytes(self, seq_id: int) -> int:
        """Size of what `read_state` would return."""
        return self._cells.state_bytes(seq_id)

    def read_state(self, seq_id: int) -> State:
        """All cells of a sequence as a copy: bytes in an array of its own."""
        return self._cells.read(seq_id)

    def write_state(self, seq_id: int, state: Any, keep: int = 0) -> None:
        """Replace a sequence by a state; its first `keep` tokens stay the cells it has.

        With `keep`, which is for shared only, it needs free cells for the whole state for a
        moment.  Raises OutOfCells or DecodeError; the sequence is then empty.
        """
        self._cells.write(seq_id, state, keep)

    # -- size ----------------------------------------------------------------------------

    def begin_resize(self, n_cells: int) -> None:
        """Start to make cells of another number, in the background."""
        if self._opening is not None:
            raise RuntimeError("a resize is in flight")
        if n_cells > self.max_cells:
            raise ValueError(f"{n_cells} cells; at most {self.max_cells} were announced")
        self._params.n_ctx = self._n_ctx(n_cells)
        self._opening = Opening(self.model.pointer, self._params)

    def is_resized(self) -> bool:
        """The new cells are ready.  Raises DecodeError, once, if there will be none."""
        opening = self._begun()
        if not opening.is_done():
            return False
        if opening.take():
            return True
        self._opening = None
        raise DecodeError("llama.cpp could not create a context of another size")

    def finish_resize(self, spans: Sequence[Span]) -> None:
        """Move these cells into the new ones and go on there; other sequences are empty.

        Raises DecodeError, and all is as before, when they do not go in.
        """
        pointer, self._opening = self._begun().take(), None
        old, new = self._cells, self._wrap(pointer)
        try:
            old.move(new, spans)
        except DecodeError:
            new.close()
            raise
        lib.llama_set_n_threads(pointer, self._n_threads, self._n_threads_batch)
        self._cells, self.n_cells = new, new.n_cells
        self._logits, self._outputs = (0, 0, None), []
        old.close()

    def _begun(self) -> Opening:
        if self._opening is None:
            raise RuntimeError("no resize was begun")
        return self._opening

    def cancel_resize(self) -> None:
        """Give up a resize that was begun; waits for it to be over."""
        if self._opening is not None:
            pointer, self._opening = self._opening.take(), None
            if pointer:
                lib.llama_free(pointer)
