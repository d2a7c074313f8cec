"""What a GGUF file says about its model, checked.

Owns GGUFHeader and the order of the checks.  The syntax is in metadata.py and
tensors.py, the model's shape in rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ponytail.gguf import rules
from ponytail.gguf import tables as t
from ponytail.gguf.cursor import Cursor
from ponytail.gguf.metadata import Entries, Omitted, Value, alignment, quoted, read_metadata
from ponytail.gguf.source import open_model
from ponytail.gguf.tensors import TensorTable, read_tensors

_SPLIT_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NO_VOCABULARY: Final = ("none", "no_vocab")
_TEMPLATE: Final = "tokenizer.chat_template"
_EMPTY_TOKEN: Final = bytes(8)  # its length; libllama gives each empty token a name of its own


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A model as its file describes it.

    `n_bytes`, `n_tensors`, `n_params` and `tensor_bytes` count all parts of a
    split model.  `n_heads` is the largest number of query heads in a layer,
    `n_kv_heads` has one entry for each layer (0: a layer without attention).
    `metadata` holds long arrays and huge strings as `Omitted(n)`.
    """

    path: Path
    n_bytes: int
    version: int
    architecture: str
    name: str | None
    file_type: str | None
    metadata: Mapping[str, Value]
    n_tensors: int
    tensor_bytes: int
    n_params: int
    n_layers: int
    n_ctx_train: int
    n_embd: int
    n_heads: int
    n_kv_heads: tuple[int, ...]
    k_dim: int
    v_dim: int
    n_vocab: int
    chat_template: str | None
    chat_templates: Mapping[str, str]
    tokens_at: int | None
    has_rank_head: bool
    """There are tensors that make a score of a text, as rerankers have."""

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        """Bytes one token takes in a KV cache of these types (`f16`, `q8_0`, ...).

        Sum over layers of n_kv_heads * (k_dim * bytes(K) + v_dim * bytes(V)).
        An upper bound where a model keeps fewer: sliding windows, recurrent
        layers.  Models with latent attention (MLA) store no V.
        Raises KeyError for a type that no cache can have.
        """
        k, v = t.CACHE_TYPES[type_k], t.CACHE_TYPES[type_v]
        v_dim = 0 if self._has_latent_attention() else self.v_dim
        return sum(
            _row_bytes(n * self.k_dim, k) + _row_bytes(n * v_dim, v) for n in self.n_kv_heads
        )

    def _has_latent_attention(self) -> bool:
        return bool(self.metadata.get(f"{self.architecture}.attention.key_length_mla"))


def inspect(path: Path) -> GGUFHeader:
    """Read and check the header of a GGUF model, of all its parts if it is split.

    Raises BadModelFile, one line, for every file that libllama would refuse,
    choke on or abort at, with one exception: see `ensure_unique_tokens`.
    """
    with open_model(path) as cursor:
        part = _read_part(cursor)
    rules.ensure_language_model(cursor, part.entries)
    others = _read_other_parts(cursor, part)
    shape = rules.Shape(cursor, part.entries)
    _ensure_tensors(cursor, part, others)
    return _header(cursor, shape, part, others)


def ensure_unique_tokens(header: GGUFHeader) -> None:
    """Raise BadModelFile if two tokens are spelt alike: libllama aborts on that.

    Not part of `inspect` because it takes 0.2 µs for each token, 60 ms for a
    vocabulary of 262,144: call it on the thread that is about to load the model.
    """
    if header.tokens_at is None:
        return
    with open_model(header.path) as cursor:
        cursor.section = "its vocabulary"
        cursor.seek(header.tokens_at)
        seen, n_expected, n_read = {_EMPTY_TOKEN}, 1, 0
        for group in cursor.strings(header.n_vocab, "the vocabulary"):
            seen.update(group)
            n_expected += len(group) - group.count(_EMPTY_TOKEN)
            n_read += len(group)
            if len(seen) != n_expected:
                ids = f"{n_read - len(group)}..{n_read - 1}"
                raise cursor.bad(f"corrupt header: one of the tokens {ids} appears twice")


@dataclass(frozen=True, slots=True)
class _Part:
    """One file: the whole model, or one part of a split one."""

    n_bytes: int
    version: int
    entries: Entries
    tensors: TensorTable


def _read_part(cursor: Cursor) -> _Part:
    cursor.skip(4)
    version = _version(cursor)
    n_tensors, n_pairs = cursor.u64(), cursor.u64()
    entries = read_metadata(cursor, n_pairs)
    tensors = read_tensors(cursor, n_tensors, alignment(cursor, entries))
    return _Part(cursor.size, version, entries, tensors)


def _version(cursor: Cursor) -> int:
    version = cursor.u32()
    if version in (2, 3):
        return version
    if version == 1:
        raise cursor.bad("is GGUF version 1, no longer read; download or convert the model again")
    if version & 0xFFFF == 0 and version:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise cursor.bad(
            f"is a byte-swapped (big-endian) GGUF file of version {swapped}; "
            "a little-endian one is needed"
        )
    raise cursor.bad(f"is GGUF version {version}; versions 2 and 3 are supported")


def _read_other_parts(cursor: Cursor, first: _Part) -> tuple[_Part, ...]:
    """The further files of a split model; the error names the one that is missing."""
    count = _split_number(first, "split.count", 1)
    if count <= 1:
        return ()
    name = _SPLIT_NAME.fullmatch(cursor.path.name)
    if name is None or int(name["count"]) != count:
        raise cursor.bad(
            f"is one of {count} parts, so its name must end in -00001-of-{count:05}.gguf"
        )
    paths = [
        cursor.path.with_name(f"{name['prefix']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    if _split_number(first, "split.no", 0) != 0 or int(name["no"]) != 1:
        raise cursor.bad(f"is part {int(name['no'])} of {count}; give {paths[0].name} instead")
    for number, path in enumerate(paths[1:], start=2):
        if not path.exists():
            raise cursor.bad(f"part {number} of {count} is missing: {path.name}")
    return tuple(_read_numbered_part(path, number) for number, path in enumerate(paths[1:], 1))


def _read_numbered_part(path: Path, number: int) -> _Part:
    with open_model(path) as cursor:
        part = _read_part(cursor)
    if _split_number(part, "split.no", -1) != number:
        raise cursor.bad(f"its name says part {number + 1}, its key split.no does not")
    return part


def _split_number(part: _Part, key: str, default: int) -> int:
    entry = part.entries.get(key)
    return entry.value if entry and isinstance(entry.value, int) else default


def _ensure_tensors(cursor: Cursor, first: _Part, others: tuple[_Part, ...]) -> None:
    n_tensors = sum(len(part.tensors.shapes) for part in (first, *others))
    if n_tensors == 0:
        raise cursor.bad("holds no tensors (a vocabulary without a model?)")
    n_stated = _split_number(first, "split.tensors.count", n_tensors)
    if others and n_stated != n_tensors:
        raise cursor.bad(
            f"its {len(others) + 1} parts hold {n_tensors:,} tensors, not {n_stated:,}"
        )


def _header(
    cursor: Cursor, shape: rules.Shape, first: _Part, others: tuple[_Part, ...]
) -> GGUFHeader:
    parts = (first, *others)
    n_layers = shape.required("block_count", rules.MAX_LAYERS)
    n_embd = shape.required("embedding_length")
    n_heads, n_kv_heads = rules.heads(shape, n_layers)
    k_dim, v_dim = rules.head_dims(shape, n_embd, n_heads)
    rules.ensure_loadable(shape, n_layers)
    tokens = first.entries.get("tokenizer.ggml.tokens")
    return GGUFHeader(
        path=cursor.path,
        n_bytes=sum(part.n_bytes for part in parts),
        version=first.version,
        architecture=shape.architecture,
        name=_text(first.entries, "general.name"),
        file_type=_file_type(first.entries),
        metadata={key: entry.value for key, entry in first.entries.items()},
        n_tensors=sum(len(part.tensors.shapes) for part in parts),
        tensor_bytes=sum(part.tensors.n_bytes for part in parts),
        n_params=sum(part.tensors.n_params for part in parts),
        n_layers=n_layers,
        n_ctx_train=shape.required("context_length"),
        n_embd=n_embd,
        n_heads=max(n_heads),
        n_kv_heads=n_kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        n_vocab=_n_vocab(cursor, shape, first.entries, parts),
        chat_template=_template(cursor, first.entries, _TEMPLATE),
        chat_templates=_named_templates(cursor, first.entries),
        tokens_at=tokens.at if tokens else None,
        has_rank_head=any(name.startswith("cls.") for p in parts for name in p.tensors.shapes),
    )


def _n_vocab(cursor: Cursor, shape: rules.Shape, entries: Entries, parts: tuple[_Part, ...]) -> int:
    tokens = entries.get("tokenizer.ggml.tokens")
    if tokens is None:
        if _text(entries, "tokenizer.ggml.model") not in _NO_VOCABULARY:
            raise cursor.bad("corrupt header: tokenizer.ggml.tokens is missing")
        return shape.count("vocab_size")
    for part in parts:
        rows = part.tensors.shapes.get("token_embd.weight", ())[1:2]
        if rows and rows[0] != tokens.n:
            raise cursor.bad(
                f"corrupt header: {tokens.n:,} tokens but {rows[0]:,} rows in token_embd.weight"
            )
    return tokens.n


def _text(entries: Entries, key: str) -> str | None:
    entry = entries.get(key)
    return entry.value if entry and isinstance(entry.value, str) else None


def _file_type(entries: Entries) -> str | None:
    entry = entries.get("general.file_type")
    if entry is None or not isinstance(entry.value, int):
        return None
    return t.FILE_TYPES.get(entry.value & ~t.FILE_TYPE_GUESSED)


def _template(cursor: Cursor, entries: Entries, key: str) -> str | None:
    entry = entries.get(key)
    if entry is not None and isinstance(entry.value, Omitted):
        raise cursor.bad(f"corrupt header: {quoted(key)} has {entry.value.n:,} bytes")
    return _text(entries, key)


def _named_templates(cursor: Cursor, entries: Entries) -> dict[str, str]:
    prefix = f"{_TEMPLATE}."
    found = {
        key.removeprefix(prefix): _template(cursor, entries, key)
        for key in entries
        if key.startswith(prefix)
    }
    return {name: text for name, text in found.items() if text is not None}


def _row_bytes(n_elements: int, cache_type: t.TensorType) -> int:
    """Bytes of one row, in whole blocks."""
    return -(-n_elements // cache_type.block) * cache_type.n_bytes
