"""The file of one cached prefix: its token ids and the state of its cells.

Owns the format, whole and checked reading, writing that leaves either the whole file or
none, and what killed writers leave.  Must not know what the bytes mean or which files
there are.  Any thread.

Little endian: magic, version, number of tokens, bytes of the state, fingerprint (32
bytes), CRC-32 of the state, CRC-32 of all before and of the token ids; then the token ids
(int32), then the state.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
import sys
import time
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

SUFFIX = ".ptkv"
TEMPORARY_SUFFIX = ".ptkv.tmp"
# No prompt is that long; a file that says so would make us take its size in memory.
MAX_TOKENS = 1 << 24

_HEADER = struct.Struct("<8sIIQ32sII")
_MAGIC = b"PTKVSTAT"
_VERSION = 1
# A temporary file this old is nobody's, even if its writer should hang.
_STALE_S = 3600.0


class DamagedFile(Exception):
    """The file is not what was written."""


class ForeignFile(Exception):
    """Of another version, or of another model or setting: whole, but no use here."""

    def __init__(self) -> None:
        super().__init__("it is of another model, setting or version")


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a file without reading its state."""

    tokens: array[int]
    n_state_bytes: int
    state_crc: int


def file_name(fingerprint: bytes, tokens: array[int]) -> str:
    """The one name of this prefix: versions that share a folder do not share names."""
    version = _VERSION.to_bytes(4, "little")
    return hashlib.sha256(version + fingerprint + _to_bytes(tokens)).hexdigest() + SUFFIX


def n_file_bytes(tokens: array[int], state: Any) -> int:
    """The size that `write` would give the file."""
    return _HEADER.size + 4 * len(tokens) + memoryview(state).nbytes


# -- writing -----------------------------------------------------------------------------


def write(path: Path, fingerprint: bytes, tokens: array[int], state: Any) -> None:
    """Write a file at once and for good.  Raises OSError.

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
            _mark_alive(descriptor)
            file.write(head)
            file.write(state)
            file.flush()
            os.fsync(descriptor)
            # Still locked: unlocked and not yet renamed, others would take it for a leftover.
            temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _mark_alive(descriptor: int) -> None:
    """A lock tells others that somebody writes here; the kernel drops it with the process.

    A process id would not do: it means nothing in another container, and is used again.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_leftover(temporary: Path) -> bool:
    """Remove a temporary file if its writer is gone; False when that cannot be told yet.

    Raises OSError: BlockingIOError when its writer is there.
    """
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if time.time() - status.st_mtime < _STALE_S:
            if not status.st_size:
                return False  # its writer may not have come to lock it yet
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()
    finally:
        os.close(descriptor)
    return True


def _encode_header(fingerprint: bytes, tokens: array[int], state: Any) -> bytes:
    # CRC-32 finds what disks and crashes do.  46 MB, the state of 2,000 tokens, cost it
    # 11 ms; Adler-32 13, SHA-1 24 and SHA-256 26 (both with SHA-NI), BLAKE2b 49.
    n_bytes = memoryview(state).nbytes
    fields = (_MAGIC, _VERSION, len(tokens), n_bytes, fingerprint, zlib.crc32(state))
    ids = _to_bytes(tokens)
    return _HEADER.pack(*fields, _header_crc(fields, ids)) + ids


def _header_crc(fields: tuple[Any, ...], ids: bytes) -> int:
    return zlib.crc32(ids, zlib.crc32(_HEADER.pack(*fields, 0)))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading -----------------------------------------------------------------------------


def read_header(path: Path, fingerprint: bytes) -> Header:
    """Check everything but the state.  Raises OSError, DamagedFile or ForeignFile."""
    with path.open("rb") as file:
        return _read_header(file, fingerprint)


def _read_header(file: BinaryIO, fingerprint: bytes) -> Header:
    raw = file.read(_HEADER.size)
    if len(raw) < _HEADER.size:
        raise DamagedFile("it is shorter than its header")
    *fields, crc = _HEADER.unpack(raw)
    magic, version, n_tokens, n_bytes, found, state_crc = fields
    if magic != _MAGIC:
        raise DamagedFile("it does not begin as it should")
    if version != _VERSION or found != fingerprint:
        raise ForeignFile
    # Before anything is allocated: the counts must fit the file.
    size = os.fstat(file.fileno()).st_size
    if n_tokens > MAX_TOKENS or size != _HEADER.size + 4 * n_tokens + n_bytes:
        raise DamagedFile(f"it has {size} bytes, not what its header says")
    ids = file.read(4 * n_tokens)
    if _header_crc(tuple(fields), ids) != crc:
        raise DamagedFile("the checksum of its header is wrong")
    return Header(_from_bytes(ids), n_bytes, state_crc)


def read_state(path: Path, fingerprint: bytes) -> bytes:
    """The state, checked.  Raises OSError, DamagedFile or ForeignFile."""
    with path.open("rb") as file:
        header = _read_header(file, fingerprint)
        # Not into a bytearray: to clear 46 MB first takes 25 ms, in which no other
        # thread runs.
        state = file.read(header.n_state_bytes)
    if len(state) < header.n_state_bytes:
        raise DamagedFile("it ends before its state does")
    if zlib.crc32(state) != header.state_crc:
        raise DamagedFile("the checksum of its state is wrong")
    return state


def _to_bytes(tokens: array[int]) -> bytes:
    if sys.byteorder == "big":
        tokens = array("i", tokens)
        tokens.byteswap()
    return tokens.tobytes()


def _from_bytes(data: bytes) -> array[int]:
    tokens = array("i", data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
