"""Reads forward through a header of any size with bounded memory.

Owns the file position and the window of bytes around it.  Must not know what
the bytes mean.  It reads with pread instead of mapping the file, so that a file
that shrinks meanwhile gives an error and not a SIGBUS.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from ponytail.errors import BadModelFile

WINDOW: Final = 1 << 18

# llama.cpp's own limits (gguf.cpp): beyond them a length is damage, not size.
MAX_STRING_BYTES: Final = 1 << 30
MAX_ARRAY_ELEMENTS: Final = 1 << 30

# Twice what the largest tokenizers have (262k tokens and 515k merges); it keeps
# the walk over a hostile file under a second.
MAX_STRINGS: Final = 1 << 21

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_RUN: Final = 64
_SHORT: Final = 32
_ANY: Final = "."
_NOT_NUL: Final = r"[^\0]"


def _short_string(character: str) -> str:
    """A regular expression for one string of under 32 `character`s.

    An array of strings can only be skipped by walking it.  Here the regular
    expression engine walks: it takes two thirds of the time of Python's fastest
    loop, and every length is still checked.  Common lengths are tried first.
    """
    by_rate = sorted(range(_SHORT), key=lambda n: abs(n - 9))
    return "(?:" + "|".join(rf"\x{n:02x}\0{{7}}" + character * n for n in by_rate) + ")"


@cache
def _short_run(character: str) -> re.Pattern[bytes]:
    return re.compile(f"{_short_string(character)}{{{_RUN}}}+".encode(), re.DOTALL)


@cache
def _one_short(character: str) -> re.Pattern[bytes]:
    return re.compile(_short_string(character).encode(), re.DOTALL)


def shown(path: Path) -> str:
    """The path on one line, whatever bytes are in it."""
    text = os.fspath(path)
    return text if text.isprintable() else ascii(text)[1:-1]


class Cursor:
    """A position in an open file.  Every read past the end raises BadModelFile."""

    __slots__ = ("_base", "_fd", "_n_strings", "_pos", "_window", "path", "section", "size")

    def __init__(self, fd: int, size: int, path: Path) -> None:
        self._fd = fd
        self._base = 0
        self._pos = 0
        self._window = b""
        self._n_strings = 0
        self.path = path
        self.size = size
        self.section = "its first 24 bytes"

    @property
    def offset(self) -> int:
        """Bytes from the start of the file."""
        return self._base + self._pos

    def bad(self, reason: str) -> BadModelFile:
        """The error to raise: one line with the path and the reason."""
        return BadModelFile(f"{shown(self.path)}: {reason}")

    def seek(self, offset: int) -> None:
        """Continue at `offset`; nothing is read until it is asked for."""
        self._base, self._pos, self._window = offset, 0, b""

    def ensure_file_holds(self, n: int) -> None:
        """Raise unless `n` more bytes exist in the file."""
        if n > self.size - self.offset:
            raise self.bad(
                f"the file ends inside {self.section}: at least {self.offset + n:,} bytes "
                f"expected, {self.size:,} present; truncated download?"
            )

    def take(self, n: int) -> bytes:
        """The next `n` bytes; `n` must be bounded by the caller."""
        self._load(n)
        start = self._pos
        self._pos = start + n
        return self._window[start : self._pos]

    def skip(self, n: int) -> None:
        """Pass over `n` bytes without reading them."""
        if self._pos + n <= len(self._window):
            self._pos += n
            return
        self.ensure_file_holds(n)
        self.seek(self.offset + n)

    def u32(self) -> int:
        """The next little-endian unsigned 32-bit number."""
        self._load(4)
        value: int = _U32.unpack_from(self._window, self._pos)[0]
        self._pos += 4
        return value

    def u64(self) -> int:
        """The next little-endian unsigned 64-bit number."""
        self._load(8)
        value: int = _U64.unpack_from(self._window, self._pos)[0]
        self._pos += 8
        return value

    def string_length(self, what: str) -> int:
        """The length in front of a string that the file really holds."""
        n = self.u64()
        if n > MAX_STRING_BYTES:
            raise self.bad(f"corrupt header: {what} claims {n:,} bytes")
        self.ensure_file_holds(n)
        return n

    def skip_strings(self, n: int, what: str) -> None:
        """Pass over `n` strings without building them."""
        self._count_strings(n, what)
        match = _short_run(_ANY).match
        while n > 0:
            run = match(self._window, self._pos) if n >= _RUN else None
            if run is not None:
                self._pos = run.end()
                n -= _RUN
            else:
                n -= self._skip_some(min(n, _RUN), what)

    def _skip_some(self, n: int, what: str) -> int:
        """Pass over up to `n` strings of any length, at least one; returns how many."""
        window, pos, unpack = self._window, self._pos, _U64.unpack_from
        last = len(window) - 8
        n_done = 0
        while n_done < n and pos <= last:
            size = unpack(window, pos)[0]
            if size > last - pos:
                break
            pos += 8 + size
            n_done += 1
        self._pos = pos
        if n_done == 0:
            self.skip(self.string_length(what))
        return max(n_done, 1)

    def strings(self, n: int, what: str) -> Iterator[list[bytes]]:
        """`n` strings in groups, each with its 8 bytes of length in front.

        As libllama sees them: a string ends at its first NUL.
        """
        self._count_strings(n, what)
        match, find_all = _short_run(_NOT_NUL).match, _one_short(_NOT_NUL).findall
        while n > 0:
            run = match(self._window, self._pos) if n >= _RUN else None
            if run is not None:
                yield find_all(self._window, self._pos, run.end())
                self._pos = run.end()
            else:
                yield [self._string(what) for _ in range(min(n, _RUN))]
            n -= _RUN

    def _string(self, what: str) -> bytes:
        text = self.take(self.string_length(what)).split(b"\0", 1)[0]
        return _U64.pack(len(text)) + text

    def _count_strings(self, n: int, what: str) -> None:
        self._n_strings += n
        if self._n_strings > MAX_STRINGS:
            raise self.bad(f"corrupt header: {what} brings it to {self._n_strings:,} strings")
        self.ensure_file_holds(8 * n)

    def _load(self, n: int) -> None:
        """Have `n` bytes after the position in the window."""
        if self._pos + n <= len(self._window):
            return
        self.ensure_file_holds(n)
        at = self.offset
        data = os.pread(self._fd, max(n, WINDOW), at)
        while len(data) < n:
            more = os.pread(self._fd, n - len(data), at + len(data))
            if not more:
                raise self.bad("the file became shorter while it was read")
            data += more
        self._base, self._pos, self._window = at, 0, data
