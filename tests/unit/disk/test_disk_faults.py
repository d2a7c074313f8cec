"""Damage, a disk that fails, a killed process: what is whole comes back, or nothing does."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import ponytail
from ponytail.engine import disk_file, disk_tier
from ponytail.engine.disk_tier import DiskTier
from tests.unit.disk.files import (
    END,
    FILE_BYTES,
    HEADER_BYTES,
    N_STATE,
    N_TOKENS,
    STATE_AT,
    WAIT_S,
    Lines,
    Opener,
    entry_of,
    flip,
    load,
    names,
    save,
    state_of,
    tokens_of,
)

# -- damage ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [0, 1, 8, HEADER_BYTES - 1, HEADER_BYTES, STATE_AT - 1, STATE_AT, END - 1, END + 1]
)
def test_a_file_of_wrong_size_is_skipped_once(
    opened: Opener, folder: Path, lines: Lines, size: int
) -> None:
    (entry,) = save(opened(), 1)
    os.truncate(entry.path, size)
    assert_removed_with_one_line(opened, folder, lines)


@pytest.mark.parametrize("at", [*range(8), *range(12, 24), *range(56, STATE_AT, 5)])
def test_a_flipped_bit_before_the_state_is_found_at_the_start(
    opened: Opener, folder: Path, lines: Lines, at: int
) -> None:
    (entry,) = save(opened(), 1)
    flip(entry.path, at)
    assert_removed_with_one_line(opened, folder, lines)


def assert_removed_with_one_line(opened: Opener, folder: Path, lines: Lines) -> None:
    tier = opened()
    assert tier.refresh() == ([], [])
    assert tier.refresh() == ([], [])
    (line,) = lines()
    assert "damaged" in line
    assert tier.n_skipped == 1
    assert names(folder) == []
    opened().refresh()
    assert not lines()
    save(tier, 1)


@pytest.mark.parametrize("at", [8, 24, 55])
def test_a_flipped_bit_in_version_or_fingerprint_makes_it_foreign(
    opened: Opener, lines: Lines, at: int
) -> None:
    (entry,) = save(opened(), 1)
    flip(entry.path, at)
    assert opened().refresh() == ([], [])
    assert len(lines()) == 1
    assert entry.path.exists()


@pytest.mark.parametrize("at", [STATE_AT, STATE_AT + N_STATE // 2, END - 1])
def test_a_flipped_bit_in_the_state_is_found_when_it_is_read(
    opened: Opener, folder: Path, lines: Lines, at: int
) -> None:
    (old,) = save(opened(), 1)
    flip(old.path, at)
    tier = opened()
    ((entry,), _) = tier.refresh()
    assert load(tier, entry) is None
    (line,) = lines()
    assert "damaged" in line
    assert names(folder) == []
    assert tier.refresh() == ([], [entry])
    assert load(tier, save(tier, 1)[0]) == state_of(1)


def test_a_file_cut_after_the_start_is_not_given_out(opened: Opener, lines: Lines) -> None:
    tier = opened()
    (entry,) = save(tier, 1)
    os.truncate(entry.path, END - 100)
    assert load(tier, entry) is None
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("n_tokens", "n_bytes"),
    [(2**32 - 1, N_STATE), (N_TOKENS, 2**64 - 1), (2**30, 2**40), (0, 2**63), (2**24 + 1, 0)],
)
def test_counts_in_a_header_are_not_believed(
    opened: Opener, lines: Lines, n_tokens: int, n_bytes: int
) -> None:
    """Not even when the file is, with holes, as large as they say."""
    (entry,) = save(opened(), 1)
    with entry.path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<IQ", n_tokens, n_bytes))
    size = HEADER_BYTES + 4 * n_tokens + n_bytes
    if size < 2**43:
        os.truncate(entry.path, size)
    tier = opened(max_bytes=2**62)
    tracemalloc.start()
    try:
        assert tier.refresh() == ([], [])
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert len(lines()) == 1


def test_garbage_is_skipped_and_the_rest_is_read(
    opened: Opener, folder: Path, lines: Lines
) -> None:
    save(opened(), 1)
    for i in range(5):
        (folder / f"garbage{i}.ptkv").write_bytes(state_of(i))
    tier = opened()
    assert len(tier.refresh()[0]) == 1
    assert len(lines()) == 5
    assert len(names(folder)) == 1


def test_a_file_that_cannot_be_read_is_told_of_once(
    opened: Opener, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    (entry,) = save(tier, 1)
    with monkeypatch.context() as patch:
        patch.setattr(disk_file, "read_state", raising(errno.EIO))
        assert load(tier, entry) is None
    assert len(lines()) == 1
    assert tier.refresh() == ([], [entry])
    assert tier.refresh() == ([], [])
    assert entry.path.exists()
    assert load(tier, save(tier, 1)[0]) == state_of(1)


def test_a_header_that_cannot_be_read_is_told_of_once(
    opened: Opener, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(opened(), 1)
    monkeypatch.setattr(disk_file, "read_header", raising(errno.EACCES))
    tier = opened()
    assert tier.refresh() == tier.refresh() == ([], [])
    assert len(lines()) == 1


def raising(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# -- killed processes ------------------------------------------------------------------

CHILD = """
import sys
from array import array
from pathlib import Path
from ponytail.engine.disk_tier import DiskTier

tier = DiskTier(Path(sys.argv[1]), fingerprint="model A", max_bytes=10**10)
first = int(sys.argv[2])
for n, i in enumerate(range(first, first + 1000), 1):
    tier.save(array("i", [i] * 50), i.to_bytes(4, "little") * ((1 + i % 4) << 18))
    if not tier.flush(60.0) or tier.n_saved != n:
        sys.exit("not saved")
    print(i, flush=True)
"""


def start_child(folder: Path, first: int) -> subprocess.Popen[bytes]:
    # -S: it needs nothing of the environment, and starts in half the time.
    command = [sys.executable, "-S", "-c", CHILD, str(folder), str(first)]
    root = str(Path(ponytail.__file__).parents[1])
    return subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env={"PYTHONPATH": root})


def kill_while_saving(child: subprocess.Popen[bytes], chance: random.Random) -> set[int]:
    """Kill it at a random moment of a save; the numbers it has reported as saved."""
    assert child.stdout is not None
    with child:
        head = b"".join(child.stdout.readline() for _ in range(chance.randint(1, 3)))
        assert child.poll() is None, "it ended by itself"
        select.select([child.stdout], [], [], chance.uniform(0.0, 0.006))
        child.kill()
        said = head + child.stdout.read()
    return {int(line) for line in said.split(b"\n")[:-1]}


def test_fifty_killed_processes_lose_only_what_they_were_saving(tmp_path: Path) -> None:
    """Two at a time in one folder."""
    chance = random.Random(72)
    n_cut_short = 0
    for n in range(25):
        folder = tmp_path / str(n)
        children = [start_child(folder, 1000), start_child(folder, 2000)]
        said = set().union(*(kill_while_saving(child, chance) for child in children))
        n_cut_short += sum(path.stat().st_size > 0 for path in folder.glob("*.tmp"))
        assert said
        assert_whole(folder, said)
        shutil.rmtree(folder)
    assert n_cut_short > 5, "hardly any was killed while it wrote: this test shows nothing"


def assert_whole(folder: Path, said: set[int]) -> None:
    tier = DiskTier(folder, fingerprint="model A", max_bytes=10**10)
    tier.refresh()
    for entry in tier.entries:
        i = entry.tokens[0]
        assert entry.tokens == array("i", [i] * 50)
        assert load(tier, entry) == i.to_bytes(4, "little") * ((1 + i % 4) << 18)
    assert said <= {entry.tokens[0] for entry in tier.entries}
    assert tier.n_skipped == 0
    assert not sum(path.stat().st_size for path in folder.glob("*.tmp"))
    tier.close(WAIT_S)


def test_what_a_killed_process_was_writing_is_removed(opened: Opener, folder: Path) -> None:
    folder.mkdir()
    dead, alive, hung, new = (
        folder / f"{name}.1.ab.ptkv.tmp" for name in ("dead", "alive", "hung", "new")
    )
    for path in (dead, alive, hung):
        path.write_bytes(b"half of it")
    new.touch()
    os.utime(hung, (0, 0))
    with alive.open("rb") as first, hung.open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)
        opened()
        assert names(folder) == [alive.name, new.name]
    save(opened(), 1)
    assert alive.name not in names(folder)


# -- a disk that fails -----------------------------------------------------------------


def test_a_full_disk_is_told_of_once_and_left_alone_for_a_minute(
    opened: Opener, folder: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0, time_ns=time.time_ns)
    monkeypatch.setattr(disk_tier, "time", clock)
    tier, go_on = opened(), threading.Event()

    def fail(_: int) -> None:
        go_on.wait(WAIT_S)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert tier.save(tokens_of(1), state_of(1))
        assert tier.save(tokens_of(2), state_of(2))
        go_on.set()
        assert tier.flush(WAIT_S)
    assert names(folder) == []
    (line,) = lines()
    assert "full" in line
    assert tier.is_busy
    assert not tier.save(tokens_of(3), state_of(3))
    clock.monotonic = lambda: 1061.0
    save(tier, 3)
    assert not lines()


@pytest.mark.parametrize("name", ["open", "fsync", "scandir"])
def test_no_error_of_the_system_reaches_the_engine(
    opened: Opener, lines: Lines, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tier = opened()
    (entry,) = save(tier, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, raising(errno.EIO))
        assert tier.save(tokens_of(2), state_of(2))
        assert tier.flush(WAIT_S)
        tier.refresh()
        load(tier, entry)
    assert lines()
    tier.refresh()
    assert load(tier, entry_of(tier, 1)) == state_of(1)


def test_what_cannot_be_removed_stops_the_saving(
    opened: Opener, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(max_bytes=FILE_BYTES)
    (entry,) = save(tier, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", raising(errno.EPERM))
        assert tier.save(tokens_of(2), state_of(2))
        assert tier.flush(WAIT_S)
    assert len(lines()) == 1
    assert tier.refresh() == ([], [])
    assert (tier.n_evicted, tier.n_bytes) == (0, FILE_BYTES)
    assert load(tier, entry) == state_of(1)


def test_a_removed_folder_is_told_of_once_and_may_come_back(
    opened: Opener, folder: Path, lines: Lines
) -> None:
    tier = opened()
    (entry,) = save(tier, 1)
    shutil.rmtree(folder)
    assert tier.save(tokens_of(2), state_of(2))
    assert tier.flush(WAIT_S)
    assert tier.refresh() == ([], [entry])
    assert tier.refresh() == ([], [])
    assert not tier.save(tokens_of(3), state_of(3))
    assert len(lines()) == 1
    assert tier.n_bytes == 0
    folder.mkdir()
    assert tier.refresh() == ([], [])
    save(tier, 4)
    assert len(lines()) == 1


def test_a_write_that_breaks_does_not_end_the_writing(opened: Opener, lines: Lines) -> None:
    calls = iter([True])

    def break_once() -> None:
        if next(calls, False):
            raise RuntimeError("the engine is gone")

    tier = opened(on_change=break_once)
    save(tier, 1, 2)
    assert len(lines()) == 1
