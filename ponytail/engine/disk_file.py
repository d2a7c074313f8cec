"""The file of one cached prefix: its token ids and the state of its cells.

Owns the format, whole and checked reading, and writing that leaves either the whole file
or none.  Must not know what the bytes mean or which files there are.  Any thread.

Little endian: magic, version, number of tokens, bytes of the state, fingerprint (32
bytes), CRC-32 of the state, CRC-32 of all before and of the token ids; then the token ids
(int32), then the state.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

SUFFIX = ".ptkv"
TEMPORARY_SUFFIX = ".tmp"

_HEADER = struct.Struct("<8sIIQ32sII")
_MAGIC = b"PTKVSTAT"
_VERSION = 1
_CHUNK_BYTES = 16 << 20


class DamagedFile(Exception):
    """The file is not what was written."""


class ForeignFile(Exception):
    """Of another version, or of another model or setting: whole, but no use here."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a file without reading its state."""

    tokens: array[int]
    n_state_bytes: int
    state_crc: int

    @property
    def state_at(self) -> int:
        """Where the state begins in the file."""
        return _HEADER.size + 4 * len(self.tokens)


def write(path: Path, fingerprint: bytes, tokens: array[int], state: Any) -> int:
    """Write a file at once and for good; the bytes written.  Raises OSError.

    A process killed meanwhile leaves a temporary file, never half of this one.
    """
    temporary = path.with_name(
        f"{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
    )
    head = _encode_header(fingerprint, tokens, state)
    try:
        # Not open(): others on this machine must not read what was asked here.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(head)
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return len(head) + memoryview(state).nbytes


def _encode_header(fingerprint: bytes, tokens: array[int], state: Any) -> bytes:
    # CRC-32 finds what disks and crashes do, and costs 12 ms for 46 MB; SHA-1 costs twice that.
    n_bytes = memoryview(state).nbytes
    fields = (_MAGIC, _VERSION, len(tokens), n_bytes, fingerprint, zlib.crc32(state))
    ids = _little_endian(tokens)
    crc = zlib.crc32(ids, zlib.crc32(_HEADER.pack(*fields, 0)))
    return _HEADER.pack(*fields, crc) + ids


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_header(path: Path, fingerprint: bytes) -> Header:
    """Check everything but the state.  Raises OSError, DamagedFile or ForeignFile."""
    with path.open("rb") as file:
        return _read_header(file, fingerprint)


def _read_header(file: BinaryIO, fingerprint: bytes) -> Header:
    raw = file.read(_HEADER.size)
    if len(raw) < _HEADER.size:
        raise DamagedFile("it is shorter than its header")
    magic, version, n_tokens, n_bytes, found, state_crc, crc = _HEADER.unpack(raw)
    if magic != _MAGIC:
        raise DamagedFile("it does not begin as it should")
    if version != _VERSION or found != fingerprint:
        raise ForeignFile
    # Before anything is allocated: the counts must fit the file.
    size = os.fstat(file.fileno()).st_size
    if size != _HEADER.size + 4 * n_tokens + n_bytes:
        raise DamagedFile(f"it has {size} bytes, not what its header says")
    ids = file.read(4 * n_tokens)
    fields = _HEADER.unpack(raw)[:-1]
    if zlib.crc32(ids, zlib.crc32(_HEADER.pack(*fields, 0))) != crc:
        raise DamagedFile("the checksum of its header is wrong")
    return Header(_from_little_endian(ids), n_bytes, state_crc)


def read_state(path: Path, fingerprint: bytes) -> bytearray:
    """The state, checked.  Raises OSError, DamagedFile or ForeignFile."""
    with path.open("rb") as file:
        header = _read_header(file, fingerprint)
        state = bytearray(header.n_state_bytes)
        view, crc, at = memoryview(state), 0, 0
        while at < len(state):
            n = file.readinto(view[at : at + _CHUNK_BYTES])
            if not n:
                raise DamagedFile("it ends before its state does")
            crc = zlib.crc32(view[at : at + n], crc)
            at += n
    if crc != header.state_crc:
        raise DamagedFile("the checksum of its state is wrong")
    return state


def _little_endian(tokens: array[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _from_little_endian(data: bytes) -> array[int]:
    return array("i", struct.unpack(f"<{len(data) // 4}i", data))
