"""Opens a path as a model file, or says in one line what it is instead.

Owns every reason to refuse a file that does not even look like GGUF.  Must not
know what stands in a GGUF header.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ponytail.errors import BadModelFile
from ponytail.gguf.cursor import Cursor, shown

MAGIC = b"GGUF"
HEAD_BYTES = 1024

_KINDS = (
    (stat.S_ISDIR, "a directory, not a .gguf file"),
    (stat.S_ISFIFO, "a FIFO, not a regular file"),
    (stat.S_ISSOCK, "a socket, not a regular file"),
    (stat.S_ISCHR, "a character device, not a regular file"),
    (stat.S_ISBLK, "a block device, not a regular file"),
)

# First bytes of files people hand over by mistake.
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive (a PyTorch file?), not a GGUF model; convert it to GGUF first"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"tjgg", "an old GGJT file, from before GGUF; download or convert the model again"),
    (b"lmgg", "an old GGML file, from before GGUF; download or convert the model again"),
    (b"fmgg", "an old GGMF file, from before GGUF; download or convert the model again"),
    (b"FUGG", "a byte-swapped (big-endian) GGUF file; a little-endian one is needed"),
)

_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/.*?(?:\nsize (\d+)|\Z)", re.DOTALL)
_HTML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|head|\?xml|!--)", re.IGNORECASE)
_SAFETENSORS = re.compile(rb".{6}\0\0\{", re.DOTALL)


@contextmanager
def open_model(path: Path) -> Iterator[Cursor]:
    """A cursor at byte 0 of a non-empty regular file that begins with `GGUF`.

    Never blocks: the kind of file is checked before it is opened.
    """
    _ensure_regular(path, _stat(path))
    fd = _open(path)
    try:
        info = os.fstat(fd)  # again: the path may have been swapped since
        _ensure_regular(path, info)
        cursor = Cursor(fd, info.st_size, path)
        _ensure_gguf(cursor, os.pread(fd, HEAD_BYTES, 0))
        yield cursor
    except OSError as error:
        raise BadModelFile(f"{shown(path)}: cannot be read: {_reason(error)}") from error
    finally:
        os.close(fd)


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _stat(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError as error:
        link = f"a link to {shown(Path(os.readlink(path)))}, which" if path.is_symlink() else "it"
        raise BadModelFile(f"{shown(path)}: no such file: {link} does not exist") from error
    except OSError as error:
        raise BadModelFile(f"{shown(path)}: cannot be opened: {_reason(error)}") from error
    except ValueError as error:  # a NUL in the name
        raise BadModelFile(f"{shown(path)}: not a file name") from error


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise BadModelFile(
            f"{shown(path)}: no permission to read it (user id {os.geteuid()})"
        ) from error
    except OSError as error:
        raise BadModelFile(f"{shown(path)}: cannot be opened: {_reason(error)}") from error


def _ensure_regular(path: Path, info: os.stat_result) -> None:
    for is_kind, words in _KINDS:
        if is_kind(info.st_mode):
            raise BadModelFile(f"{shown(path)}: is {words}")


def _ensure_gguf(cursor: Cursor, head: bytes) -> None:
    if not head:
        raise cursor.bad("is empty (0 bytes); truncated download?")
    if head.startswith(MAGIC):
        return
    if MAGIC.startswith(head):
        raise cursor.bad(
            f"the file ends inside its first 24 bytes: at least 24 bytes expected, "
            f"{len(head)} present; truncated download?"
        )
    raise cursor.bad(_describe(head))


def _describe(head: bytes) -> str:
    """What a file that is not GGUF most likely is, and what to do about it."""
    pointer = _LFS.match(head)
    if pointer:
        size = f" of a {int(pointer[1]):,}-byte file" if pointer[1] else ""
        return (
            f"is a Git LFS pointer{size}, not the model; "
            "run `git lfs pull` in its repository to fetch it"
        )
    if _HTML.match(head):
        return "is an HTML page (a saved web page?), not a GGUF model; download the file itself"
    for start, words in _FOREIGN:
        if head.startswith(start):
            return f"is {words}"
    if _SAFETENSORS.match(head):
        return "is a safetensors file, not a GGUF model; convert it to GGUF first"
    return f"is not a GGUF file: it begins with {ascii(head[:4])[1:]}, not 'GGUF'"
