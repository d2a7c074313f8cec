"""Headers made to crash a reader: refused quickly, in little memory, with the reason."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponytail import gguf
from ponytail.errors import BadModelFile
from ponytail.gguf import tables as t
from tests import synthetic as syn
from tests.synthetic import RawGGUF, array_pair, raw_pair, raw_tensor, text_pair, u32_pair
from tests.unit.gguf.refusal import refusal


def outcome(path: Path) -> str:
    """Its refusal, or "accepted"; any other exception is let through."""
    try:
        header = gguf.inspect(path)
        gguf.ensure_unique_tokens(header)
    except BadModelFile as error:
        return str(error)
    assert header.kv_bytes_per_token("q8_0", "q4_0") >= 0
    return "accepted"


def _set(key: str, pair: bytes) -> RawGGUF:
    raw = RawGGUF()
    raw.pairs[key] = pair
    return raw


def _without(key: str) -> RawGGUF:
    raw = RawGGUF()
    del raw.pairs[key]
    return raw


def _u32(key: str, value: int) -> RawGGUF:
    return _set(key, u32_pair(key, value))


def _with(*pairs: bytes) -> RawGGUF:
    return RawGGUF(extra_pairs=list(pairs))


def _tensors(*tensors: bytes) -> RawGGUF:
    return RawGGUF(tensors=list(tensors))


HEADS, HEADS_KV = "llama.attention.head_count", "llama.attention.head_count_kv"
TOKENS, SCORES = "tokenizer.ggml.tokens", "tokenizer.ggml.scores"
EMBD = "token_embd.weight"

HOSTILE: dict[str, tuple[RawGGUF | bytes, str]] = {
    "version 0": (RawGGUF(version=0), "is GGUF version 0; versions 2 and 3"),
    "version 1": (RawGGUF(version=1), "is GGUF version 1, no longer read"),
    "version 4": (RawGGUF(version=4), "is GGUF version 4; versions 2 and 3"),
    "big endian": (RawGGUF(version=3 << 24), "byte-swapped (big-endian) GGUF file of version 3"),
    "n_kv 2^60": (RawGGUF(n_pairs=2**60), "claims 1,152,921,504,606,846,976 metadata pairs"),
    "n_kv too many": (RawGGUF(n_pairs=2**14 + 1), "claims 16,385 metadata pairs"),
    "n_kv one more": (RawGGUF(n_pairs=11), "corrupt header"),
    "n_tensors 2^60": (RawGGUF(n_tensors=2**60), "claims 1,152,921,504,606,846,976 tensors"),
    "n_tensors 2^64-1": (RawGGUF(n_tensors=2**64 - 1), "claims 18,446,744,073,709,551,615 tensors"),
    "no tensors": (_tensors(), "holds no tensors"),
    "string 2^62": (
        _with(raw_pair("x", t.STRING, syn.raw_string("", 2**62))),
        "'x' claims 4,611,686,018,427,387,904 bytes",
    ),
    "string longer than the file": (
        _with(raw_pair("x", t.STRING, syn.raw_string("", 2**29))),
        "the file ends inside its metadata",
    ),
    "array 2^40": (_with(array_pair("x", t.UINT8, 2**40, b"")), "'x' claims 1,099,511,627,776"),
    "array 2^30": (_with(array_pair("x", t.FLOAT64, 2**30, b"")), "the file ends inside"),
    "strings 2^40": (_with(array_pair("x", t.STRING, 2**40, b"")), "claims 1,099,511,627,776"),
    "strings 2^30": (_with(array_pair("x", t.STRING, 2**30, b"")), "1,073,741,824 strings"),
    "string in array 2^62": (
        _with(array_pair("x", t.STRING, 2000, syn.raw_string("", 2**62) + bytes(16000))),
        "'x' claims 4,611,686,018,427,387,904 bytes",
    ),
    "nested array": (_with(array_pair("x", t.ARRAY, 2, bytes(64))), "'x' is an array of arrays"),
    "value type 13": (_with(raw_pair("x", 13, bytes(8))), "'x' has unknown value type 13"),
    "element type 99": (_with(array_pair("x", 99, 1, bytes(8))), "'x' has unknown value type 99"),
    "key empty": (_with(u32_pair("", 1)), "key 10 is 0 bytes long"),
    "key over-long": (_with(u32_pair("k" * 65536, 1)), "key 10 is 65,536 bytes long"),
    "key not UTF-8": (_with(raw_pair(b"\xff\xfe", t.UINT8, b"1")), "key 10 is not UTF-8"),
    "key twice": (_with(u32_pair(HEADS, 2)), f"the key '{HEADS}' appears twice"),
    "key with line break": (_with(raw_pair("a\nb", 13, b"")), "'a\\nb' has unknown value type 13"),
    "alignment 0": (_with(u32_pair("general.alignment", 0)), "general.alignment is 0"),
    "alignment 3": (_with(u32_pair("general.alignment", 3)), "general.alignment is 3"),
    "alignment 2^30": (_with(u32_pair("general.alignment", 2**30)), "alignment is 1073741824"),
    "alignment INT32": (
        _with(raw_pair("general.alignment", t.INT32, struct.pack("<i", 32))),
        "'general.alignment' has type INT32, not UINT32",
    ),
    "architecture missing": (_without("general.architecture"), "general.architecture is missing"),
    "architecture a number": (
        _set("general.architecture", u32_pair("general.architecture", 1)),
        "'general.architecture' has type UINT32, not STRING",
    ),
    "architecture empty": (
        _set("general.architecture", text_pair("general.architecture", "")),
        "general.architecture is not a name",
    ),
    "projector": (
        _set("general.architecture", text_pair("general.architecture", "clip")),
        "is an image or audio projector (mmproj)",
    ),
    "adapter": (_with(text_pair("general.type", "adapter")), "is an adapter file"),
    "block_count missing": (_without("llama.block_count"), "'llama.block_count' is missing"),
    "block_count 0": (_u32("llama.block_count", 0), "'llama.block_count' is 0"),
    "block_count 513": (_u32("llama.block_count", 513), "'llama.block_count' is 513"),
    "block_count text": (
        _set("llama.block_count", text_pair("llama.block_count", "1")),
        "has type STRING, not UINT32",
    ),
    "context_length missing": (_without("llama.context_length"), "context_length' is missing"),
    "context_length 0": (_u32("llama.context_length", 0), "context_length' is 0"),
    "embedding_length missing": (_without("llama.embedding_length"), "length' is missing"),
    "heads missing": (_without(HEADS), f"'{HEADS}' is missing"),
    "heads 0": (_u32(HEADS, 0), f"'{HEADS}' is 0"),
    "heads do not divide": (_u32(HEADS, 3), "is 8, not a multiple of 3 attention heads"),
    "heads for 2 layers": (
        _set(HEADS, array_pair(HEADS, t.INT32, 2, bytes(8))),
        "has 2 elements for 1 layers",
    ),
    "heads negative": (
        _set(HEADS, array_pair(HEADS, t.INT32, 1, struct.pack("<i", -2))),
        "has a negative element",
    ),
    "KV heads 0": (_u32(HEADS_KV, 0), f"'{HEADS_KV}' is 0"),
    "KV heads do not divide": (_u32(HEADS_KV, 4), "is 2, not a multiple of 4"),
    "key_length 2^31": (_with(u32_pair("llama.attention.key_length", 2**31)), "it must lie in"),
    "experts 2000": (_with(u32_pair("llama.expert_count", 2000)), "expert_count' is 2,000"),
    "experts unused": (_with(u32_pair("llama.expert_count", 8)), "is 0 of 8 experts"),
    "more experts used": (_with(u32_pair("llama.expert_used_count", 2)), "is 2 of 0 experts"),
    "rope scaling": (_with(text_pair("llama.rope.scaling.type", "x")), "is none of none, linear"),
    "prediction layers": (_with(u32_pair("llama.nextn_predict_layers", 2)), "more than 1 layers"),
    "tokens missing": (_without(TOKENS), f"{TOKENS} is missing"),
    "tokens none": (_set(TOKENS, syn.strings_pair(TOKENS, [])), "a vocabulary of 0 tokens"),
    "tokens as numbers": (
        _set(TOKENS, array_pair(TOKENS, t.UINT8, 4, b"abcd")),
        "has type [UINT8], not [STRING]",
    ),
    "scores as uint8": (
        _set(SCORES, array_pair(SCORES, t.UINT8, 4, bytes(4))),
        "has type [UINT8], not [FLOAT32] or [INT32]",
    ),
    "fewer scores": (_set(SCORES, array_pair(SCORES, t.FLOAT32, 3, bytes(12))), "4 tokens but 3"),
    "more token types": (
        _set("tokenizer.ggml.token_type", array_pair("tokenizer.ggml.token_type", 5, 5, bytes(20))),
        "4 tokens but 5 in tokenizer.ggml.token_type",
    ),
    "vocabulary and rows differ": (
        _set(TOKENS, syn.strings_pair(TOKENS, "abcde")),
        "5 tokens but 4 in tokenizer.ggml.scores",
    ),
    "embedding rows": (_tensors(raw_tensor(EMBD, [8, 3])), "4 tokens but 3 rows"),
    "token id text": (
        _with(text_pair("tokenizer.ggml.eos_token_id", "2")),
        "has type STRING, not UINT32",
    ),
    "template a number": (_with(u32_pair("tokenizer.chat_template", 1)), "not STRING"),
    "template 2 MB": (
        _with(text_pair("tokenizer.chat_template", "x" * (2 << 20))),
        "'tokenizer.chat_template' has 2,097,152 bytes",
    ),
    "n_dims 0": (_tensors(raw_tensor(EMBD, [])), f"'{EMBD}' has 0 dimensions"),
    "n_dims 9": (_tensors(raw_tensor(EMBD, [1] * 9)), f"'{EMBD}' has 9 dimensions"),
    "dimension 0": (_tensors(raw_tensor(EMBD, [8, 0])), "has a dimension of 0"),
    "dimension 2^42+1": (_tensors(raw_tensor(EMBD, [2**42 + 1])), "claims 17,592,186,044,420"),
    "dimensions overflow": (_tensors(raw_tensor(EMBD, [2**33] * 4)), "corrupt header: tensor"),
    "dimensions wrap to 32": (_tensors(raw_tensor(EMBD, [2**32, 2**32])), "corrupt header: tensor"),
    "larger than the file": (_tensors(raw_tensor(EMBD, [8, 4000])), "inside its tensor data"),
    "rows of part blocks": (_tensors(raw_tensor(EMBD, [8, 4], 8)), "not a multiple of Q8_0's"),
    "tensor type 43": (_tensors(raw_tensor(EMBD, [8, 4], 43)), "has unknown type 43"),
    "tensor type 2^32-1": (_tensors(raw_tensor(EMBD, [8, 4], 2**32 - 1)), "has unknown type"),
    "tensor type removed": (_tensors(raw_tensor(EMBD, [8, 4], 31)), "type Q4_0_4_4, which"),
    "offset beyond the file": (
        _tensors(raw_tensor(EMBD, [8, 4], 0, 2**40)),
        "at offset 1,099,511,627,776, past the end of the file; expected 0",
    ),
    "offset misaligned": (
        _tensors(raw_tensor(EMBD, [8, 4]), raw_tensor("b", [1], 0, 129)),
        "at offset 129; expected 128",
    ),
    "offset overlaps": (
        _tensors(raw_tensor(EMBD, [8, 4]), raw_tensor("b", [1], 0, 0)),
        "at offset 0; expected 128",
    ),
    "tensor name twice": (
        _tensors(raw_tensor(EMBD, [8, 4]), raw_tensor(EMBD, [8, 4], 0, 128)),
        f"the tensor '{EMBD}' appears twice",
    ),
    "tensor name empty": (_tensors(raw_tensor("", [8])), "name of tensor 0 is 0 bytes"),
    "tensor name of 64": (_tensors(raw_tensor("n" * 64, [8])), "name of tensor 0 is 64 bytes"),
    "tensor name 2^62": (_tensors(syn.raw_string("", 2**62)), "name of tensor 0 claims"),
    "tensor name not UTF-8": (_tensors(raw_tensor(b"\xff", [8])), "tensor 0 is not UTF-8"),
    "split count INT32": (_with(raw_pair("split.count", t.INT32, bytes(4))), "not UINT16"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_header(write: Callable[..., Path], kind: str) -> None:
    data, words = HOSTILE[kind]
    path = write(data)
    started = time.monotonic()
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert time.monotonic() - started < 1


def test_hostile_headers_take_little_memory(write: Callable[..., Path]) -> None:
    paths = [write(data, f"{i}.gguf") for i, (data, _) in enumerate(HOSTILE.values())]
    tracemalloc.start()
    try:
        for path in paths:
            refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_many_small_arrays_are_not_all_kept(write: Callable[..., Path]) -> None:
    """16,000 arrays of 1,000 numbers would be 500 MB of Python objects."""
    arrays = [array_pair(f"x.{i}", t.UINT8, 1000, bytes(1000)) for i in range(16_000)]
    path = write(_with(*arrays))
    tracemalloc.start()
    try:
        header = gguf.inspect(path)
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert header.metadata["x.15999"] == gguf.Omitted(1000)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_bytes_never_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(RawGGUF().build())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 129))
        whole[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(whole)
    assert "\n" not in outcome(path)
