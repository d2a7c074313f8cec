"""What libllama asserts while loading: such a file would abort the process.

Owns the checks on the model's shape, each against one GGML_ASSERT or division
in llama-model.cpp of the pinned version.  Must not know the file's syntax.
"""

from __future__ import annotations

from typing import Final

from ponytail.gguf.cursor import Cursor
from ponytail.gguf.metadata import Entries, Entry, quoted

MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS
ROPE_SCALINGS: Final = ("none", "linear", "yarn", "longrope")

# Key groups of layers that keep a state instead of keys and values.
_RECURRENT: Final = ("ssm", "wkv", "shortconv", "time_mix_extra_dim")


class Shape:
    """Typed access to `<architecture>.*`; every refusal names the key."""

    __slots__ = ("_cursor", "_entries", "architecture")

    def __init__(self, cursor: Cursor, entries: Entries) -> None:
        self._cursor = cursor
        self._entries = entries
        self.architecture = self._architecture()

    def _architecture(self) -> str:
        entry = self._entries.get("general.architecture")
        if entry is None:
            raise self._cursor.bad("general.architecture is missing: not a model file")
        name = entry.value
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 64:
            raise self._cursor.bad("corrupt header: general.architecture is not a name")
        return name

    def entry(self, name: str) -> Entry | None:
        return self._entries.get(f"{self.architecture}.{name}")

    def bad(self, name: str, reason: str) -> Exception:
        """The error for one key."""
        return self._cursor.bad(f"corrupt header: {quoted(f'{self.architecture}.{name}')} {reason}")

    def count(self, name: str, default: int = 0) -> int:
        """An integer key; its type was checked when it was read."""
        entry = self.entry(name)
        return entry.value if entry and isinstance(entry.value, int) else default

    def required(self, name: str, at_most: int = 2**32 - 1) -> int:
        """An integer key that must be there and lie in 1..at_most."""
        if self.entry(name) is None:
            raise self.bad(name, "is missing")
        value = self.count(name)
        if not 0 < value <= at_most:
            raise self.bad(name, f"is {value:,}; it must lie in 1..{at_most:,}")
        return value

    def per_layer(self, name: str, n_layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """A key that holds one integer for all layers or one for each."""
        entry = self.entry(name)
        if entry is None:
            return default
        if isinstance(entry.value, int):
            return (entry.value,) * n_layers
        if entry.n != n_layers:
            raise self.bad(name, f"has {entry.n:,} elements for {n_layers} layers")
        values = entry.value if isinstance(entry.value, tuple) else ()
        numbers = tuple(v for v in values if isinstance(v, int) and v >= 0)
        if len(numbers) != n_layers:
            raise self.bad(name, "has a negative element")
        return numbers

    def is_recurrent(self) -> bool:
        """Whether at least some layers need no attention heads."""
        starts = tuple(f"{self.architecture}.{group}" for group in _RECURRENT)
        return any(key.startswith(starts) for key in self._entries)


def ensure_language_model(cursor: Cursor, entries: Entries) -> None:
    """Name the two kinds of GGUF file that are often mistaken for a model."""
    architecture = entries.get("general.architecture")
    if architecture is not None and architecture.value == "clip":
        raise cursor.bad("is an image or audio projector (mmproj), not a language model")
    kind = entries.get("general.type")
    if kind is not None and kind.value in ("adapter", "imatrix"):
        raise cursor.bad(f"is an {kind.value} file, not a whole model")


def heads(shape: Shape, n_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query heads and KV heads of each layer; 0 where a layer has no attention."""
    n_heads = shape.per_layer("attention.head_count", n_layers, (0,) * n_layers)
    n_kv_heads = shape.per_layer("attention.head_count_kv", n_layers, n_heads)
    if not any(n_heads) and not shape.is_recurrent():
        found = "is missing" if shape.entry("attention.head_count") is None else "is 0"
        raise shape.bad("attention.head_count", found)
    _ensure_kv_heads(shape, n_heads, n_kv_heads)
    return n_heads, n_kv_heads


def _ensure_kv_heads(shape: Shape, n_heads: tuple[int, ...], n_kv_heads: tuple[int, ...]) -> None:
    scalar = not isinstance(getattr(shape.entry("attention.head_count_kv"), "value", ()), tuple)
    for layer, (n, n_kv) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        if n and scalar and not n_kv and not shape.is_recurrent():
            raise shape.bad("attention.head_count_kv", "is 0")
        if n_kv and n % n_kv:
            raise shape.bad(
                "attention.head_count", f"is {n:,}, not a multiple of {n_kv:,} (layer {layer})"
            )


def head_dims(shape: Shape, n_embd: int, n_heads: tuple[int, ...]) -> tuple[int, int]:
    """Elements of one head's key and of its value."""
    n = next((n for n in n_heads if n), 0)
    if not n:
        return 0, 0
    dims = []
    for name in ("attention.key_length", "attention.value_length"):
        if shape.entry(name) is not None:
            dims.append(shape.required(name, at_most=1 << 16))
        elif n_embd % n:
            raise shape.bad(
                "embedding_length", f"is {n_embd:,}, not a multiple of {n:,} attention heads"
            )
        else:
            dims.append(n_embd // n)
    return dims[0], dims[1]


def ensure_loadable(shape: Shape, n_layers: int) -> None:
    """The remaining assertions: experts, prediction layers, rope scaling."""
    if shape.count("nextn_predict_layers") > n_layers:
        raise shape.bad("nextn_predict_layers", f"is more than {n_layers} layers")
    scaling = shape.entry("rope.scaling.type")
    if scaling is not None and scaling.value not in ROPE_SCALINGS:
        raise shape.bad("rope.scaling.type", f"is none of {', '.join(ROPE_SCALINGS)}")
    if not shape.architecture.startswith("hunyuan"):  # there libllama corrects the numbers
        _ensure_experts(shape, n_layers)


def _ensure_experts(shape: Shape, n_layers: int) -> None:
    n = shape.count("expert_count")
    if n > MAX_EXPERTS:
        raise shape.bad("expert_count", f"is {n:,}; at most {MAX_EXPERTS:,} are possible")
    n_used = max(shape.per_layer("expert_used_count", n_layers, (0,)))
    if n_used > n or (n and not n_used):
        raise shape.bad("expert_used_count", f"is {n_used:,} of {n:,} experts")
    n_groups = shape.count("expert_group_count")
    if n_groups and (n_groups >= n or n % n_groups):
        raise shape.bad("expert_group_count", f"is {n_groups:,} for {n:,} experts")
    if n_groups > 1 and not 0 < shape.count("expert_group_used_count") < n_groups:
        raise shape.bad("expert_group_used_count", f"does not lie within {n_groups:,} groups")
