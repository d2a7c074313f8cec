"""The pre-check of a model file: what it reads from good ones, whole or split."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import gguf as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponytail import gguf
from ponytail.errors import BadModelFile
from ponytail.gguf import cursor as cursor_module
from ponytail.gguf import tables as t
from tests import synthetic as syn
from tests.synthetic import RawGGUF, array_pair, raw_pair, raw_tensor, text_pair, u32_pair
from tests.unit.gguf.refusal import refusal

TOKENS, SCORES = "tokenizer.ggml.tokens", "tokenizer.ggml.scores"


# Good files.


@pytest.mark.real
def test_real_model() -> None:
    header = gguf.inspect(syn.smollm2_path())
    gguf.ensure_unique_tokens(header)
    assert (header.architecture, header.file_type) == ("llama", "Q4_1")
    assert header.n_bytes == 98_362_432
    assert header.n_tensors == 272
    assert header.n_params == 134_515_008
    assert (header.n_layers, header.n_ctx_train, header.n_embd) == (30, 8192, 576)
    assert (header.n_heads, header.n_kv_heads) == (9, (3,) * 30)
    assert (header.k_dim, header.v_dim, header.n_vocab) == (64, 64, 49152)
    assert header.chat_template is not None
    assert header.chat_template.startswith("{% for message in messages %}")
    assert header.metadata["llama.rope.freq_base"] == 100000.0
    assert header.metadata["general.languages"] == ("en",)
    assert header.metadata["tokenizer.ggml.merges"] == gguf.Omitted(48900)


@pytest.mark.real
@pytest.mark.parametrize(
    ("type_k", "type_v", "expected"),
    [
        ("f16", "f16", 23040),
        ("bf16", "f32", 30 * 3 * (64 * 2 + 64 * 4)),
        ("q8_0", "q8_0", 30 * 3 * 2 * 64 * 34 // 32),
        ("q5_1", "q5_0", 30 * 3 * 64 * (24 + 22) // 32),
        ("q4_1", "q4_0", 30 * 3 * 64 * (20 + 18) // 32),
    ],
)
def test_kv_bytes_per_token(type_k: str, type_v: str, expected: int) -> None:
    assert gguf.inspect(syn.smollm2_path()).kv_bytes_per_token(type_k, type_v) == expected


def test_kv_bytes_of_an_unknown_type(model: Path) -> None:
    with pytest.raises(KeyError):
        gguf.inspect(model).kv_bytes_per_token("q3_k", "f16")


def test_tensor_bytes_agree_with_the_reference_reader(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    raw.tensors += [
        raw_tensor("q", [256, 3], 12, 128),
        raw_tensor("h", [5, 2, 3], 1, 128 + 448),
        raw_tensor("e", [64, 1, 1, 2], 8, 128 + 448 + 64),
    ]
    raw.n_data_bytes = 1024
    path = write(raw)
    tensors = reference.GGUFReader(path).tensors
    header = gguf.inspect(path)
    assert header.n_tensors == 4
    assert header.tensor_bytes == sum(int(tensor.n_bytes) for tensor in tensors)
    assert header.n_params == sum(int(tensor.n_elements) for tensor in tensors)


def test_header_is_immutable(model: Path) -> None:
    with pytest.raises(FrozenInstanceError):
        gguf.inspect(model).n_layers = 2  # type: ignore[misc]


def test_templates(tmp_path: Path) -> None:
    named = {"tokenizer.chat_template.tool_use": "T", "tokenizer.chat_template.rag": "R"}
    path = syn.write_gguf(tmp_path / "m.gguf", template="X", overrides=named)
    header = gguf.inspect(path)
    assert header.chat_template == "X"
    assert header.chat_templates == {"tool_use": "T", "rag": "R"}


def test_no_template(tmp_path: Path) -> None:
    header = gguf.inspect(syn.write_gguf(tmp_path / "m.gguf", template=None))
    assert header.chat_template is None
    assert header.chat_templates == {}


def test_per_layer_heads(tmp_path: Path) -> None:
    """Layers without attention keep no KV."""
    heads = {"llama.attention.head_count": (2, 2, 2), "llama.attention.head_count_kv": (1, 0, 2)}
    header = gguf.inspect(syn.write_gguf(tmp_path / "m.gguf", n_layers=3, overrides=heads))
    assert header.n_kv_heads == (1, 0, 2)
    assert header.kv_bytes_per_token("f16", "f16") == 3 * (32 + 32) * 2


def test_kv_heads_default_to_heads(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    del raw.pairs["llama.attention.head_count_kv"]
    assert gguf.inspect(write(raw)).n_kv_heads == (2,)


def test_key_and_value_length(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    raw.extra_pairs += [
        u32_pair("llama.attention.key_length", 64),
        u32_pair("llama.attention.value_length", 32),
    ]
    header = gguf.inspect(write(raw))
    assert (header.k_dim, header.v_dim) == (64, 32)
    assert header.kv_bytes_per_token("f16", "f32") == 64 * 2 + 32 * 4


def test_latent_attention_stores_no_values(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    for name, value in (("", 576), ("_mla", 192)):
        raw.extra_pairs.append(u32_pair(f"llama.attention.key_length{name}", value))
        raw.extra_pairs.append(u32_pair(f"llama.attention.value_length{name}", value - 64))
    assert gguf.inspect(write(raw)).kv_bytes_per_token("f16", "f16") == 576 * 2


def test_recurrent_model_needs_no_heads(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    raw.pairs["llama.attention.head_count"] = u32_pair("llama.attention.head_count", 0)
    del raw.pairs["llama.attention.head_count_kv"]
    raw.extra_pairs.append(u32_pair("llama.ssm.state_size", 16))
    assert gguf.inspect(write(raw)).kv_bytes_per_token("f16", "f16") == 0


@pytest.mark.parametrize(("number", "name"), [(0, "F32"), (1024 + 7, "Q8_0"), (999, None)])
def test_file_type(write: Callable[..., Path], number: int, name: str | None) -> None:
    raw = RawGGUF(extra_pairs=[u32_pair("general.file_type", number)])
    assert gguf.inspect(write(raw)).file_type == name


def test_version_2_is_read(write: Callable[..., Path]) -> None:
    assert gguf.inspect(write(RawGGUF(version=2))).version == 2


def test_other_alignment(write: Callable[..., Path]) -> None:
    raw = RawGGUF(extra_pairs=[u32_pair("general.alignment", 64)], alignment=64)
    raw.tensors.append(raw_tensor("x", [1], 0, 128))
    raw.n_data_bytes = 132
    path = write(raw)
    assert gguf.inspect(path).n_bytes == path.stat().st_size


def test_every_value_type_is_read(write: Callable[..., Path]) -> None:
    values = {
        t.UINT8: 200, t.INT8: -3, t.UINT16: 60000, t.INT16: -300, t.INT32: -70000,
        t.FLOAT32: 0.5, t.BOOL: True, t.UINT64: 2**63, t.INT64: -(2**62), t.FLOAT64: 0.1,
    }  # fmt: skip
    raw = RawGGUF()
    for kind, value in values.items():
        raw.extra_pairs.append(
            raw_pair(f"x.{kind}", kind, struct.pack("<" + t.VALUE_CODES[kind], value))
        )
    metadata = gguf.inspect(write(raw)).metadata
    assert {kind: metadata[f"x.{kind}"] for kind in values} == values


def test_long_arrays_and_strings_are_not_kept(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    raw.extra_pairs += [
        array_pair("x.short", t.UINT8, 1024, bytes(1024)),
        array_pair("x.long", t.UINT8, 1025, bytes(1025)),
        text_pair("x.text", "y" * (1 << 20) + "z"),
    ]
    metadata = gguf.inspect(write(raw)).metadata
    assert metadata["x.short"] == (0,) * 1024
    assert metadata["x.long"] == gguf.Omitted(1025)
    assert metadata["x.text"] == gguf.Omitted((1 << 20) + 1)


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.lists(
        st.binary(max_size=40) | st.sampled_from([b"", b"a" * 31, b"b" * 32, b"c" * 300]),
        min_size=1,
        max_size=50,
    ),
    n=st.integers(1025, 1400),
    window=st.sampled_from([16, 100, 1000, 1 << 20]),
)
def test_string_arrays_are_walked_exactly(
    tmp_path_factory: pytest.TempPathFactory, pattern: list[bytes], n: int, window: int
) -> None:
    """Whatever the lengths and wherever the window ends, what follows is found."""
    strings = (pattern * n)[:n]
    raw = RawGGUF()
    raw.extra_pairs += [syn.strings_pair("x.strings", strings), text_pair("x.after", "found")]
    path = tmp_path_factory.getbasetemp() / "walk.gguf"
    path.write_bytes(raw.build())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_module, "WINDOW", window)
        metadata = gguf.inspect(path).metadata
    assert metadata["x.strings"] == gguf.Omitted(n)
    assert metadata["x.after"] == "found"


def test_tensor_sizes_agree_with_the_library() -> None:
    library = pytest.importorskip("llama_cpp._ggml").libggml
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    known = {i: (library.ggml_blck_size(i), library.ggml_type_size(i)) for i in range(43)}
    known = {i: sizes for i, sizes in known.items() if sizes[0]}
    assert known == {i: (kind.block, kind.n_bytes) for i, kind in t.TENSOR_TYPES.items()}


def test_tensor_sizes_agree_with_the_gguf_package() -> None:
    ours = {i: (kind.block, kind.n_bytes) for i, kind in t.TENSOR_TYPES.items()}
    theirs = {int(kind): tuple(sizes) for kind, sizes in reference.GGML_QUANT_SIZES.items()}
    # Q8_1 exists in memory only; the package still has its size from before 2023-12.
    theirs.pop(int(reference.GGMLQuantizationType.Q8_1))
    assert theirs.items() <= ours.items()


def test_imports_nothing_heavy() -> None:
    code = (
        "import sys, ponytail.gguf;"
        "print(sorted({'numpy', 'gguf', 'ctypes', 'mmap', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Tokens spelt alike.


def _tokens(*texts: bytes) -> RawGGUF:
    raw = RawGGUF()
    raw.pairs[TOKENS] = syn.strings_pair(TOKENS, texts)
    raw.pairs[SCORES] = array_pair(SCORES, t.FLOAT32, len(texts), bytes(4 * len(texts)))
    del raw.pairs["tokenizer.ggml.token_type"]
    raw.tensors = [raw_tensor("token_embd.weight", [8, len(texts)])]
    raw.n_data_bytes = 32 * len(texts)
    return raw


def _numbered(n: int) -> Iterator[bytes]:
    return (b"t%d" % i for i in range(n))


@pytest.mark.parametrize(
    "texts",
    [
        (b"a", b"b", b"a"),
        (b"a", b"a\0b"),
        (*_numbered(5000), b"t17"),
        (b"x" * 100, *_numbered(100), b"x" * 100),
    ],
)
def test_duplicate_tokens(write: Callable[..., Path], texts: tuple[bytes, ...]) -> None:
    header = gguf.inspect(write(_tokens(*texts)))
    with pytest.raises(BadModelFile, match="appears twice"):
        gguf.ensure_unique_tokens(header)


@pytest.mark.parametrize("texts", [(b"", b"a", b""), tuple(_numbered(5000)), (b"x" * 99, b"x")])
def test_unique_tokens(write: Callable[..., Path], texts: tuple[bytes, ...]) -> None:
    gguf.ensure_unique_tokens(gguf.inspect(write(_tokens(*texts))))


def test_model_without_vocabulary(write: Callable[..., Path]) -> None:
    raw = RawGGUF()
    raw.pairs["tokenizer.ggml.model"] = text_pair("tokenizer.ggml.model", "none")
    del raw.pairs[TOKENS], raw.pairs[SCORES], raw.pairs["tokenizer.ggml.token_type"]
    raw.extra_pairs.append(u32_pair("llama.vocab_size", 4))
    header = gguf.inspect(write(raw))
    gguf.ensure_unique_tokens(header)
    assert header.n_vocab == 4


# Split models.


@pytest.fixture
def split_model(tmp_path: Path) -> Path:
    return syn.write_gguf(tmp_path / "big.gguf", split_max_tensors=5)


def test_split_model_counts_all_parts(split_model: Path, model: Path) -> None:
    whole, split = gguf.inspect(model), gguf.inspect(split_model)
    assert split_model.name == "big-00001-of-00003.gguf"
    assert (split.n_tensors, split.n_params) == (whole.n_tensors, whole.n_params)
    assert split.tensor_bytes == whole.tensor_bytes
    assert split.n_bytes == sum(part.stat().st_size for part in split_model.parent.iterdir())


def test_missing_part_is_named(split_model: Path) -> None:
    split_model.with_name("big-00003-of-00003.gguf").unlink()
    assert refusal(split_model) == (
        f"{split_model}: part 3 of 3 is missing: big-00003-of-00003.gguf"
    )


def test_truncated_part_is_named(split_model: Path) -> None:
    part = split_model.with_name("big-00002-of-00003.gguf")
    os.truncate(part, part.stat().st_size - 1)
    message = refusal(split_model)
    assert message.startswith(f"{part}: ")
    assert message.endswith("truncated download?")


def test_second_part_given(split_model: Path) -> None:
    part = split_model.with_name("big-00002-of-00003.gguf")
    assert "is part 2 of 3; give big-00001-of-00003.gguf instead" in refusal(part)


def test_renamed_part(split_model: Path) -> None:
    renamed = split_model.rename(split_model.with_name("model.gguf"))
    assert "its name must end in -00001-of-00003.gguf" in refusal(renamed)


def test_parts_swapped(split_model: Path) -> None:
    second, third = (split_model.with_name(f"big-0000{n}-of-00003.gguf") for n in (2, 3))
    second.write_bytes(third.read_bytes())
    assert "its name says part 2, its key split.no does not" in refusal(split_model)


# The synthetic model is good enough for libllama.


@pytest.mark.real
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_synthetic_model_decodes(tmp_path: Path, arch: str) -> None:
    api = pytest.importorskip("llama_cpp.llama_cpp")
    path = syn.write_gguf(tmp_path / "m.gguf", arch=arch)
    assert path.stat().st_size < 15_000_000
    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, None)
    api.llama_backend_init()
    model = api.llama_model_load_from_file(os.fsencode(path), api.llama_model_default_params())
    assert model
    params = api.llama_context_default_params()
    params.n_ctx = 64
    context = api.llama_init_from_model(model, params)
    try:
        header = gguf.inspect(path)
        assert api.llama_model_n_layer(model) == header.n_layers
        assert api.llama_model_n_params(model) == header.n_params
        assert api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)) == header.n_vocab
        ids = (api.llama_token * 3)(1, 100, 200)
        assert api.llama_decode(context, api.llama_batch_get_one(ids, 3)) == 0
        logits = api.llama_get_logits_ith(context, -1)
        assert len({logits[i] for i in range(100)}) > 50
    finally:
        api.llama_free(context)
        api.llama_model_free(model)
        api.llama_log_set(api.llama_log_callback(0), None)
