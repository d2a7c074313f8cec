"""Key-value pairs of a GGUF header, and the type each known key must have.

Owns their syntax, what of them is kept in memory, and the types libllama
insists on.  Must not know what the numbers mean for a model: see rules.py and
header.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponytail.gguf import tables as t
from ponytail.gguf.cursor import MAX_ARRAY_ELEMENTS, Cursor


@dataclass(frozen=True, slots=True)
class Omitted:
    """Stands for a long array (`n` elements) or a huge string (`n` bytes)."""

    n: int


Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[Scalar, ...] | Omitted

MAX_KEY_BYTES: Final = 65_535  # the GGUF specification
MAX_PAIRS: Final = 1 << 14  # libllama compares every key with every other
MAX_ALIGNMENT: Final = 1 << 20
MAX_KEPT_ELEMENTS: Final = 1024
MAX_KEPT_STRING_BYTES: Final = 1 << 20
MAX_TOKENS: Final = 1 << 19
DEFAULT_ALIGNMENT: Final = 32

# Python objects of a header may take about this much; a real one takes 100 KB.
_KEPT_BYTES: Final = 8 << 20
_ELEMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One pair.  `element_type` and `n` are those of the array, if it is one; `at` its data."""

    value: Value
    value_type: int
    element_type: int | None
    n: int
    at: int


Entries: TypeAlias = dict[str, Entry]


class _Reader:
    """Reads pairs one by one, keeping what is small enough."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._budget = _KEPT_BYTES

    def key(self, index: int) -> str:
        cursor = self._cursor
        n = cursor.string_length(f"key {index}")
        if not 0 < n <= MAX_KEY_BYTES:
            raise cursor.bad(f"corrupt header: key {index} is {n:,} bytes long")
        try:
            return cursor.take(n).decode()
        except UnicodeDecodeError as error:
            raise cursor.bad(f"corrupt header: key {index} is not UTF-8 text") from error

    def entry(self, key: str) -> Entry:
        cursor = self._cursor
        value_type = cursor.u32()
        if value_type == t.ARRAY:
            return self._array(key)
        at = cursor.offset
        if value_type == t.STRING:
            return Entry(self._string(key), value_type, None, 1, at)
        code = self._code(key, value_type)
        value = struct.unpack(f"<{code}", cursor.take(struct.calcsize(code)))[0]
        return Entry(value, value_type, None, 1, at)

    def _code(self, key: str, value_type: int) -> str:
        code = t.VALUE_CODES.get(value_type)
        if code is None:
            name = t.value_type_name(value_type)
            raise self._cursor.bad(f"corrupt header: {quoted(key)} has unknown value {name}")
        return code

    def _array(self, key: str) -> Entry:
        cursor = self._cursor
        element_type, n = cursor.u32(), cursor.u64()
        if element_type == t.ARRAY:
            raise cursor.bad(f"corrupt header: {quoted(key)} is an array of arrays")
        if n > MAX_ARRAY_ELEMENTS:
            raise cursor.bad(f"corrupt header: {quoted(key)} claims {n:,} elements")
        at = cursor.offset
        if element_type == t.STRING:
            value = self._strings(key, n)
        else:
            value = self._numbers(self._code(key, element_type), n)
        return Entry(value, t.ARRAY, element_type, n, at)

    def _string(self, key: str) -> str | Omitted:
        cursor = self._cursor
        n = cursor.string_length(quoted(key))
        if n > MAX_KEPT_STRING_BYTES or not self._try_keep(n):
            cursor.skip(n)
            return Omitted(n)
        return cursor.take(n).decode(errors="replace")

    def _strings(self, key: str, n: int) -> Value:
        if n > MAX_KEPT_ELEMENTS or not self._try_keep(n * _ELEMENT_BYTES):
            self._cursor.skip_strings(n, quoted(key))
            return Omitted(n)
        strings = [self._string(key) for _ in range(n)]
        kept = tuple(s for s in strings if isinstance(s, str))
        return kept if len(kept) == n else Omitted(n)

    def _numbers(self, code: str, n: int) -> Value:
        n_bytes = n * struct.calcsize(code)
        if n > MAX_KEPT_ELEMENTS or not self._try_keep(n * _ELEMENT_BYTES):
            self._cursor.skip(n_bytes)
            return Omitted(n)
        return struct.unpack(f"<{n}{code}", self._cursor.take(n_bytes))

    def _try_keep(self, n_bytes: int) -> bool:
        cost = n_bytes + _ELEMENT_BYTES
        if cost > self._budget:
            return False
        self._budget -= cost
        return True


def read_metadata(cursor: Cursor, n_pairs: int) -> Entries:
    """All pairs by key, types of the known ones checked."""
    if n_pairs > MAX_PAIRS:
        raise cursor.bad(f"corrupt header: claims {n_pairs:,} metadata pairs")
    cursor.section = "its metadata"
    reader = _Reader(cursor)
    entries: Entries = {}
    for index in range(n_pairs):
        key = reader.key(index)
        if key in entries:
            raise cursor.bad(f"corrupt header: the key {quoted(key)} appears twice")
        entries[key] = entry = reader.entry(key)
        _ensure_type(cursor, key, entry)
    _ensure_vocabulary(cursor, entries)
    return entries


def alignment(cursor: Cursor, entries: Entries) -> int:
    """What tensor data is aligned to, in bytes."""
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if not isinstance(value, int) or value & (value - 1) or not 8 <= value <= MAX_ALIGNMENT:
        raise cursor.bad(
            f"corrupt header: general.alignment is {value}; "
            f"it must be a power of two from 8 to {MAX_ALIGNMENT:,}"
        )
    return value


def quoted(name: str) -> str:
    """A name from the file, safe and short enough for one line of text."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return f"'{text}'" if len(text) <= 64 else f"'{text[:61]}...'"


# libllama takes exactly these types; `[X]` is an array of X.
_INT: Final = ("UINT32",)
_TEXT: Final = ("STRING",)
_INT_PER_LAYER: Final = ("UINT32", "[UINT32]", "[INT32]")
_KEY_TYPES: Final = {
    "general.architecture": _TEXT,
    "general.name": _TEXT,
    "general.type": _TEXT,
    "general.alignment": _INT,
    "general.file_type": _INT,
    "tokenizer.ggml.model": _TEXT,
    "tokenizer.ggml.pre": _TEXT,
    "tokenizer.ggml.tokens": ("[STRING]",),
    "tokenizer.ggml.merges": ("[STRING]",),
    "tokenizer.ggml.scores": ("[FLOAT32]", "[INT32]"),
    "tokenizer.ggml.token_type": ("[INT32]",),
    "tokenizer.chat_template": _TEXT,
    "split.no": ("UINT16",),
    "split.count": ("UINT16",),
    "split.tensors.count": ("INT32",),
}
# The same for keys that begin with the architecture's name.
_MODEL_KEY_TYPES: Final = {
    "block_count": _INT,
    "context_length": _INT,
    "embedding_length": _INT,
    "vocab_size": _INT,
    "feed_forward_length": _INT_PER_LAYER,
    "nextn_predict_layers": _INT,
    "expert_count": _INT,
    "expert_used_count": _INT_PER_LAYER,
    "expert_group_count": _INT,
    "expert_group_used_count": _INT,
    "attention.head_count": _INT_PER_LAYER,
    "attention.head_count_kv": _INT_PER_LAYER,
    "attention.key_length": _INT,
    "attention.value_length": _INT,
    "attention.key_length_mla": _INT,
    "attention.value_length_mla": _INT,
    "attention.layer_norm_epsilon": ("FLOAT32",),
    "attention.layer_norm_rms_epsilon": ("FLOAT32",),
    "rope.dimension_count": _INT,
    "rope.freq_base": ("FLOAT32",),
    "rope.scaling.type": _TEXT,
    "rope.scaling.factor": ("FLOAT32",),
}


def _allowed_types(key: str) -> tuple[str, ...] | None:
    if key in _KEY_TYPES:
        return _KEY_TYPES[key]
    if key.startswith("tokenizer.chat_template."):
        return _TEXT
    if key.startswith("tokenizer.ggml.add_"):
        return ("BOOL",)
    if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
        return _INT
    return _MODEL_KEY_TYPES.get(key.partition(".")[2])


def _ensure_type(cursor: Cursor, key: str, entry: Entry) -> None:
    allowed = _allowed_types(key)
    if allowed is None:
        return
    if entry.element_type is None:
        actual = t.value_type_name(entry.value_type)
    else:
        actual = f"[{t.value_type_name(entry.element_type)}]"
    if actual not in allowed:
        raise cursor.bad(
            f"corrupt header: {quoted(key)} has type {actual}, not {' or '.join(allowed)}"
        )


def _ensure_vocabulary(cursor: Cursor, entries: Entries) -> None:
    """Scores and token types are read by token id, so there must be one for each token."""
    tokens = entries.get("tokenizer.ggml.tokens")
    if tokens is None:
        return
    if not 0 < tokens.n <= MAX_TOKENS:
        raise cursor.bad(f"corrupt header: a vocabulary of {tokens.n:,} tokens")
    for name in ("scores", "token_type"):
        other = entries.get(f"tokenizer.ggml.{name}")
        if other is not None and other.n != tokens.n:
            raise cursor.bad(
                f"corrupt header: {tokens.n:,} tokens but {other.n:,} in tokenizer.ggml.{name}"
            )
