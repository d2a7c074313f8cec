"""The tensor table of a GGUF header and the file size it implies.

Owns names, shapes, types and places of tensors.  Must not know what a tensor
is for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ponytail.gguf import tables as t
from ponytail.gguf.cursor import Cursor
from ponytail.gguf.metadata import quoted

MAX_TENSORS: Final = 1 << 16  # libllama compares every name with every other
MAX_NAME_BYTES: Final = 63
MAX_DIMS: Final = 4
MAX_TENSOR_BYTES: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class TensorTable:
    """`shapes` has the innermost dimension first, as GGUF does; `n_bytes` is data, unpadded."""

    shapes: Mapping[str, tuple[int, ...]]
    n_params: int
    n_bytes: int


def read_tensors(cursor: Cursor, n_tensors: int, alignment: int) -> TensorTable:
    """The table, after checking that the file holds the data of every tensor."""
    if n_tensors > MAX_TENSORS:
        raise cursor.bad(f"corrupt header: claims {n_tensors:,} tensors")
    cursor.section = "its tensor table"
    shapes: dict[str, tuple[int, ...]] = {}
    n_params = n_bytes = expected_offset = end = 0
    for index in range(n_tensors):
        name = _name(cursor, index)
        if name in shapes:
            raise cursor.bad(f"corrupt header: the tensor {quoted(name)} appears twice")
        shapes[name] = shape = _shape(cursor, name)
        size = _size(cursor, name, shape)
        _ensure_offset(cursor, name, cursor.u64(), expected_offset)
        n_params += math.prod(shape)
        n_bytes += size
        end = expected_offset + size
        expected_offset = _padded(end, alignment)
    if n_tensors:
        _ensure_data(cursor, _padded(cursor.offset, alignment) + end)
    return TensorTable(shapes, n_params, n_bytes)


def _name(cursor: Cursor, index: int) -> str:
    n = cursor.string_length(f"the name of tensor {index}")
    if not 0 < n <= MAX_NAME_BYTES:
        raise cursor.bad(f"corrupt header: the name of tensor {index} is {n:,} bytes long")
    try:
        return cursor.take(n).decode()
    except UnicodeDecodeError as error:
        raise cursor.bad(f"corrupt header: the name of tensor {index} is not UTF-8") from error


def _shape(cursor: Cursor, name: str) -> tuple[int, ...]:
    n_dims = cursor.u32()
    if not 0 < n_dims <= MAX_DIMS:
        raise cursor.bad(f"corrupt header: tensor {quoted(name)} has {n_dims:,} dimensions")
    shape: tuple[int, ...] = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims))
    if 0 in shape:
        raise cursor.bad(f"corrupt header: tensor {quoted(name)} has a dimension of 0")
    return shape


def _size(cursor: Cursor, name: str, shape: tuple[int, ...]) -> int:
    """Bytes of one tensor's data, from its type (the next field) and its shape."""
    type_id = cursor.u32()
    tensor_type = t.TENSOR_TYPES.get(type_id)
    if tensor_type is None:
        raise cursor.bad(f"tensor {quoted(name)} has {_unknown_type(type_id)}")
    if shape[0] % tensor_type.block:
        raise cursor.bad(
            f"corrupt header: tensor {quoted(name)} has rows of {shape[0]:,} elements, not a "
            f"multiple of {tensor_type.name}'s block of {tensor_type.block}"
        )
    size = math.prod(shape) // tensor_type.block * tensor_type.n_bytes
    if size > MAX_TENSOR_BYTES:
        raise cursor.bad(f"corrupt header: tensor {quoted(name)} claims {size:,} bytes")
    return size


def _unknown_type(type_id: int) -> str:
    removed = t.REMOVED_TENSOR_TYPES.get(type_id)
    if removed:
        return f"type {removed}, which llama.cpp no longer reads; quantize the model again"
    return f"unknown type {type_id}: a corrupt header, or a model newer than this llama.cpp"


def _ensure_offset(cursor: Cursor, name: str, offset: int, expected: int) -> None:
    """Tensor data must follow without gap or overlap, in the table's order."""
    if offset != expected:
        past = ", past the end of the file" if offset > cursor.size else ""
        raise cursor.bad(
            f"corrupt header: the data of tensor {quoted(name)} is said to start at offset "
            f"{offset:,}{past}; expected {expected:,}"
        )


def _ensure_data(cursor: Cursor, expected: int) -> None:
    if expected > cursor.size:
        raise cursor.bad(
            f"the file ends inside its tensor data: {expected:,} bytes expected, "
            f"{cursor.size:,} present; truncated download?"
        )


def _padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
