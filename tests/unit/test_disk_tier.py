"""Prefixes on disk: whole or not at all, within their bound, whoever else uses the folder."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ponytail.engine import disk_file
from ponytail.engine.disk_tier import DiskTier
from ponytail.errors import BadConfig

WAIT_S = 10.0
TOKENS = array("i", range(100, 160))
STATE = np.arange(5000, dtype=np.uint8)


@contextmanager
def tier(
    folder: Path, fingerprint: str = "model f16", max_bytes: int = 1 << 30
) -> Iterator[DiskTier]:
    disk = DiskTier(folder, fingerprint=fingerprint, max_bytes=max_bytes)
    try:
        yield disk
    finally:
        threads = [w._thread for w in (disk._writer, disk._reader) if w._thread is not None]
        disk.close(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)


def save(disk: DiskTier, first: int = 100, n_bytes: int = 5000) -> array:
    tokens = array("i", range(first, first + 60))
    assert disk.save(tokens, bytes([first % 256]) * n_bytes)
    assert disk.flush(WAIT_S)
    return tokens


def loaded(disk: DiskTier, entry) -> bytes | None:
    load = disk.load(entry)
    assert load.wait(WAIT_S)
    return None if load.state is None else bytes(load.state)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ptkv"))


def test_what_is_saved_is_there_after_a_restart(tmp_path):
    with tier(tmp_path / "kv") as disk:
        assert disk.save(TOKENS, STATE)
        assert disk.flush(WAIT_S)
        ((entry,), removed) = disk.refresh()
        assert (list(entry.tokens), removed) == (list(TOKENS), [])
        assert not disk.save(TOKENS, STATE), "saved twice"
    with tier(tmp_path / "kv") as disk:
        ((entry,), _) = disk.refresh()
        assert entry.tokens == TOKENS
        assert loaded(disk, entry) == STATE.tobytes()
        assert disk.refresh() == ([], [])


def test_nobody_else_may_read_it(tmp_path):
    with tier(tmp_path / "kv") as disk:
        save(disk)
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert [f.stat().st_mode & 0o777 for f in files(tmp_path / "kv")] == [0o600]


def test_another_model_or_setting_finds_nothing_and_breaks_nothing(tmp_path, caplog):
    with tier(tmp_path, "model f16") as disk:
        save(disk)
    with tier(tmp_path, "model q8_0") as disk, caplog.at_level(logging.INFO):
        assert disk.refresh() == ([], [])
        assert disk.n_bytes > 5000
    assert len(files(tmp_path)) == 1
    assert [r.message for r in caplog.records] == [
        "KV cache on disk: 1 files of other models or settings"
    ]


def damages() -> list[tuple[str, object]]:
    whole = disk_file._HEADER.size + 4 * len(TOKENS) + len(STATE)
    cuts = [0, 4, disk_file._HEADER.size - 1, disk_file._HEADER.size, 200, whole - 1]
    flips = [0, 20, disk_file._HEADER.size - 1, disk_file._HEADER.size + 9, whole - 7]
    return [
        *((f"cut at {n}", lambda data, n=n: data[:n]) for n in cuts),
        *(
            (f"byte {n} flipped", lambda data, n=n: data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :])
            for n in flips
        ),
        ("longer", lambda data: data + b"x"),
        ("huge counts", lambda data: data[:12] + b"\xff" * 12 + data[24:]),
        ("garbage", lambda data: os.urandom(300)),
    ]


@pytest.mark.parametrize(("name", "damage"), damages(), ids=lambda value: str(value)[:20])
def test_a_damaged_file_is_skipped_with_one_line_and_removed(tmp_path, caplog, name, damage):
    with tier(tmp_path) as disk:
        assert disk.save(TOKENS, STATE)
        assert disk.flush(WAIT_S)
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with tier(tmp_path) as disk, caplog.at_level(logging.INFO):
        added, _ = disk.refresh()
        states = [loaded(disk, entry) for entry in added]
        disk.refresh()
        assert states in ([], [None])
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 1
        # A flipped fingerprint is another model's file, and left alone; all else is gone.
        if files(tmp_path):
            assert "other models" in caplog.text
        else:
            assert "is damaged" in caplog.text
            assert disk.save(TOKENS, STATE)


def test_the_folder_keeps_its_bound_and_the_least_used_go_first(tmp_path):
    with tier(tmp_path, max_bytes=20_000) as disk:
        for i, first in enumerate((1, 2, 3)):
            save(disk, first)
            for path in files(tmp_path):
                os.utime(path, (1000 + i, 1000 + i)) if path.stat().st_mtime > 10_000 else None
        entries = {entry.tokens[0]: entry for entry in disk.refresh()[0]}
        assert loaded(disk, entries[1]) is not None  # used now, so that 2 is the oldest
        save(disk, 4)
        added, removed = disk.refresh()
        assert [entry.tokens[0] for entry in removed] == [2]
        assert [entry.tokens[0] for entry in added] == [4]
        assert disk.n_bytes <= 20_000
        assert not disk.save(array("i", range(50)), bytes(30_000)), "larger than all"


def test_two_processes_see_each_others_files(tmp_path):
    with tier(tmp_path) as ours, tier(tmp_path) as theirs:
        tokens = save(theirs)
        ((entry,), _) = ours.refresh()
        assert entry.tokens == tokens
        assert loaded(ours, entry) == bytes([100]) * 5000
        files(tmp_path)[0].unlink()
        assert loaded(ours, entry) is None
        assert ours.refresh() == ([], [entry])
        assert len(theirs.refresh()[0]) <= 1


def test_a_full_disk_costs_a_line_and_a_pause(tmp_path, caplog, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with tier(tmp_path) as disk:
        monkeypatch.setattr(os, "fsync", full)
        assert disk.save(TOKENS, STATE)
        assert disk.flush(WAIT_S)
        assert list(tmp_path.iterdir()) == []
        assert disk.is_busy
        assert not disk.save(TOKENS, STATE)
        monkeypatch.undo()
        disk._paused_until = 0.0
        assert disk.save(TOKENS, STATE)
    assert [r.message for r in caplog.records if "full" in r.message] == [
        "KV cache on disk: could not write (the disk is full); next try in 60 s"
    ]


def test_a_folder_that_goes_away_takes_nothing_with_it(tmp_path):
    folder = tmp_path / "kv"
    with tier(folder) as disk:
        save(disk)
        ((entry,), _) = disk.refresh()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        assert loaded(disk, entry) is None
        assert disk.refresh() == ([], [entry])
        assert disk.save(TOKENS, STATE)
        assert disk.flush(WAIT_S)
        folder.mkdir()
        disk._paused_until = 0.0
        save(disk)
        assert len(disk.refresh()[0]) == 1


def test_no_more_than_two_states_wait_in_memory(tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(disk_file, "write", lambda *_: gate.wait(WAIT_S))
    with tier(tmp_path) as disk:
        taken = [disk.save(array("i", [i] * 40), bytes(10)) for i in range(5)]
        assert taken == [True, True, False, False, False]
        gate.set()


def test_a_folder_that_cannot_be_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadConfig, match=r"--kv-dir .*file/kv: Not a directory"):
        DiskTier(tmp_path / "file" / "kv", fingerprint="", max_bytes=1)


def test_what_killed_processes_left_is_cleared(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = (tmp_path / f"abc.{pid}.0011.tmp" for pid in (os.getpid(), gone.pid))
    for path in (ours, theirs):
        path.write_bytes(b"half")
        os.utime(path, (path.stat().st_mtime - 100,) * 2)
    with tier(tmp_path):
        assert list(tmp_path.iterdir()) == [ours]


_WRITER = """
import sys
from array import array
from pathlib import Path
from ponytail.engine.disk_tier import DiskTier
disk = DiskTier(Path(sys.argv[1]), fingerprint="model f16", max_bytes=1 << 30)
for i in range(int(sys.argv[2]), 1 << 30):
    assert disk.save(array("i", range(i, i + 60)), bytes([i % 256]) * 300_000)
    assert disk.flush(60.0)
    print(i, flush=True)
"""


def test_killed_fifty_times_while_saving_nothing_but_the_unsaved_is_lost(tmp_path, caplog):
    n_saved = 0
    for n_more in range(50):
        command = [sys.executable, "-S", "-c", _WRITER, str(tmp_path), str(n_saved)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
            assert child.stdout is not None
            for _ in range(1 + n_more % 3):
                n_saved = int(child.stdout.readline()) + 1
            child.send_signal(signal.SIGKILL)
    with tier(tmp_path) as disk:
        entries = {entry.tokens[0]: entry for entry in disk.refresh()[0]}
        assert set(range(n_saved)) <= set(entries)
        for first, entry in entries.items():
            assert loaded(disk, entry) == bytes([first % 256]) * 300_000
    assert "damaged" not in caplog.text
