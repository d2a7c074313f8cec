"""Files that are no model, and truncated ones: refused in one line that says what they are."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ponytail import gguf
from tests import synthetic as syn
from tests.synthetic import RawGGUF
from tests.unit.gguf.refusal import refusal

SMOLLM2_BYTES = 98_362_432


# Things that are no model file.


def test_missing(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    assert refusal(path) == f"{path}: no such file: it does not exist"


def test_broken_link(tmp_path: Path) -> None:
    path = tmp_path / "link.gguf"
    path.symlink_to(tmp_path / "gone")
    assert f"a link to {tmp_path / 'gone'}, which does not exist" in refusal(path)


def test_file_inside_a_file(write: Callable[..., Path]) -> None:
    assert "cannot be opened: not a directory" in refusal(write(b"x") / "m.gguf")


def test_nul_in_the_name() -> None:
    assert "not a file name" in refusal(Path("a\0b"))


def test_name_with_a_line_break(tmp_path: Path) -> None:
    assert "a\\nb.gguf" in refusal(tmp_path / "a\nb.gguf")


def test_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)


def test_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a FIFO" in refusal(tmp_path / "pipe")


def test_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "s"))
        assert "is a socket" in refusal(tmp_path / "s")


def test_device() -> None:
    assert "is a character device" in refusal(Path("/dev/zero"))


def test_no_permission(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert "no permission to read it" in refusal(model)


def test_unreadable_disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    assert "cannot be read: input/output error" in refusal(model)


def test_file_that_shrinks_while_it_is_read(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(RawGGUF())
    monkeypatch.setattr(
        os, "fstat", lambda _: os.stat_result((0o100644, *[0] * 5, 10**6, *[0] * 3))
    )
    monkeypatch.setattr(os, "pread", lambda _fd, n, at: RawGGUF().build()[:200][at : at + n])
    assert "became shorter" in refusal(path)


def test_files_are_closed(model: Path, write: Callable[..., Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    gguf.inspect(model)
    refusal(write(RawGGUF(version=9)))
    assert len(os.listdir("/proc/self/fd")) == before


LFS = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 98362432
"""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty (0 bytes)"),
        (LFS, "is a Git LFS pointer of a 98,362,432-byte file, not the model; run `git lfs pull`"),
        (LFS[:60], "is a Git LFS pointer, not the model"),
        (b"<!DOCTYPE html><html>", "is an HTML page (a saved web page?)"),
        (b"\xef\xbb\xbf\n <HTML><head>", "is an HTML page"),
        (b'<?xml version="1.0"?><Error>', "is an HTML page"),
        (b"PK\x03\x04aaaa", "is a zip archive"),
        (b"\x1f\x8b\x08\0", "is gzip-compressed"),
        (b"tjgg\x03\0\0\0", "is an old GGJT file"),
        (b"FUGG\0\0\0\x03", "is a byte-swapped (big-endian)"),
        (struct.pack("<Q", 900) + b'{"a":1}', "is a safetensors file"),
        (b'{"error":"not found"}', "begins with '{\"er', not 'GGUF'"),
        (b"\n\x1b[31m", "begins with '\\n\\x1b[3', not 'GGUF'"),
        (b"gguf\x03\0\0\0", "is not a GGUF file"),
    ],
)
def test_other_files(write: Callable[..., Path], data: bytes, words: str) -> None:
    path = write(data)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert words in message


# Truncated files.


def test_every_cut_of_a_small_file(write: Callable[..., Path]) -> None:
    whole = RawGGUF().build()
    for n in range(1, len(whole)):
        message = refusal(write(whole[:n]))
        assert message.endswith(f" {n:,} present; truncated download?"), n


@pytest.mark.parametrize(
    ("cut", "where"),
    [
        (lambda whole, table: 3, "inside its first 24 bytes: at least 24 bytes expected, 3"),
        (lambda whole, table: 23, "inside its first 24 bytes: at least 24 bytes expected, 23"),
        (lambda whole, table: table // 2, "inside its metadata: at least "),
        (lambda whole, table: table + 100, "inside its tensor table: at least "),
    ],
)
def test_cut_in_the_header(
    model: Path, write: Callable[..., Path], cut: Callable[[int, int], int], where: str
) -> None:
    data = model.read_bytes()
    table = data.index(struct.pack("<Q", 17) + b"token_embd.weight")
    n = cut(len(data), table)
    message = refusal(write(data[:n]))
    assert where in message
    assert message.endswith(f"{n:,} present; truncated download?")


@pytest.mark.parametrize("part", [0.5, 0.99, 1.0])
def test_cut_in_the_data_names_both_sizes(
    model: Path, write: Callable[..., Path], part: float
) -> None:
    data = model.read_bytes()
    n = int(part * len(data)) - 1
    words = f"inside its tensor data: {len(data):,} bytes expected, {n:,} present"
    assert words in refusal(write(data[:n]))


@pytest.mark.real
def test_cut_in_the_real_model(tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    with syn.smollm2_path().open("rb") as whole:
        path.write_bytes(whole.read(4 << 20))
    os.truncate(path, SMOLLM2_BYTES - 1)
    words = f"{SMOLLM2_BYTES:,} bytes expected, {SMOLLM2_BYTES - 1:,} present; truncated download?"
    assert words in refusal(path)
