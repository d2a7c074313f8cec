"""The disk tier: what was saved comes back whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import select
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import ponytail
from ponytail.engine import disk_file, disk_tier
from ponytail.engine.disk_tier import DiskEntry, DiskTier
from ponytail.errors import BadConfig

WAIT_S = 20.0
HEADER_BYTES = 64
N_TOKENS = 40
N_STATE = 5000
FILE_BYTES = HEADER_BYTES + 4 * N_TOKENS + N_STATE

Opener = Callable[..., DiskTier]


def tokens_of(i: int, n: int = N_TOKENS) -> array[int]:
    return array("i", [i, *range(n - 1)])


def state_of(i: int, n: int = N_STATE) -> bytes:
    return random.Random(i).randbytes(n)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def opened(folder: Path) -> Iterator[Opener]:
    """Opens tiers on the folder and closes them in the end."""
    tiers = []

    def open_tier(fingerprint: str = "model A", max_bytes: int = 10**7, **rest: object) -> DiskTier:
        tiers.append(DiskTier(folder, fingerprint=fingerprint, max_bytes=max_bytes, **rest))
        return tiers[-1]

    yield open_tier
    for tier in tiers:
        tier.close(WAIT_S)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Takes what was logged since the last call."""
    caplog.set_level(logging.INFO, logger="ponytail.engine")

    def take() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take


Lines = Callable[[], list[str]]


def save(tier: DiskTier, *numbers: int) -> list[DiskEntry]:
    """Save prefixes and wait; their entries in that order."""
    for i in numbers:
        assert tier.save(tokens_of(i), state_of(i))
        assert tier.flush(WAIT_S)
    tier.refresh()
    return [entry_of(tier, i) for i in numbers]


def entry_of(tier: DiskTier, i: int) -> DiskEntry:
    (entry,) = [entry for entry in tier.entries if entry.tokens == tokens_of(i)]
    return entry


def load(tier: DiskTier, entry: DiskEntry) -> bytes | None:
    reading = tier.load(entry)
    assert reading.wait(WAIT_S)
    assert reading.is_done
    return reading.state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def set_used(*entries: DiskEntry) -> None:
    """As if they had been used a year ago, in this order."""
    start = time.time() - 365 * 86400
    for i, entry in enumerate(entries):
        os.utime(entry.path, (start + i, start + i))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


# -- what is saved comes back ------------------------------------------------------------


def test_a_saved_prefix_comes_back(opened: Opener) -> None:
    tier = opened()
    assert tier.save(tokens_of(1), state_of(1))
    assert tier.flush(WAIT_S)
    (entry,), removed = tier.refresh()
    assert not removed
    assert entry.tokens == tokens_of(1)
    assert load(tier, entry) == state_of(1)
    assert (tier.n_saved, tier.n_loaded, tier.n_skipped, tier.n_bytes) == (1, 1, 0, FILE_BYTES)
    assert tier.refresh() == ([], [])


def test_what_is_there_is_not_saved_again(opened: Opener) -> None:
    tier = opened()
    save(tier, 1)
    assert not tier.save(tokens_of(1), state_of(1))


def test_a_prefix_survives_a_restart(opened: Opener, lines: Lines) -> None:
    before = opened()
    save(before, 1, 2)
    before.close(WAIT_S)
    after = opened()
    added, _ = after.refresh()
    assert sorted(entry.tokens[0] for entry in added) == [1, 2]
    assert load(after, entry_of(after, 2)) == state_of(2)
    assert not after.save(tokens_of(1), state_of(1))
    assert not lines()


@pytest.mark.parametrize("n_tokens", [0, 1])
def test_an_empty_state_is_a_state(opened: Opener, n_tokens: int) -> None:
    tier = opened()
    assert tier.save(array("i", range(n_tokens)), b"")
    assert tier.flush(WAIT_S)
    (entry,), _ = tier.refresh()
    assert load(tier, entry) == b""


def test_only_the_owner_can_look_into_it(opened: Opener, folder: Path) -> None:
    (entry,) = save(opened(), 1)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.path.stat().st_mode) == 0o600


def test_names_tell_nothing_of_the_text(opened: Opener, folder: Path) -> None:
    save(opened(), 1, 2)
    for name in names(folder):
        stem, suffix = name.split(".")
        assert suffix == "ptkv"
        assert len(bytes.fromhex(stem)) == 32


def test_the_engine_is_told_of_each_read_and_write(opened: Opener) -> None:
    told = threading.Semaphore(0)
    tier = opened(on_change=told.release)
    (entry,) = save(tier, 1)
    assert told.acquire(timeout=WAIT_S)
    assert load(tier, entry)
    assert told.acquire(timeout=WAIT_S)


def test_opening_reads_no_states(
    opened: Opener, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    n, n_state = 100, 200_000
    folder.mkdir()
    fingerprint = opened()._fingerprint
    for i in range(n):
        path = folder / disk_file.file_name(fingerprint, tokens_of(i))
        disk_file.write(path, fingerprint, tokens_of(i), bytes(n_state))
    tier = opened(max_bytes=10**9)
    n_before = n_bytes_read()
    added, _ = tier.refresh()
    assert len(added) == n
    assert n_bytes_read() - n_before < n * n_state / 10


def n_bytes_read() -> int:
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


# -- what is not ours --------------------------------------------------------------------


def test_another_model_ignores_it_but_counts_it(opened: Opener, lines: Lines) -> None:
    save(opened("model A"), 1, 2)
    other = opened("model B")
    assert other.refresh() == ([], [])
    assert other.n_bytes == 2 * FILE_BYTES
    save(opened("model A"), 3)
    assert other.refresh() == ([], [])
    assert lines() == ["KV cache on disk: 2 files of other models or settings"]
    assert other.n_skipped == 0
    assert len(opened("model A").refresh()[0]) == 3


def test_the_same_prefix_of_two_models_is_two_files(opened: Opener) -> None:
    a, b = opened("model A"), opened("model B")
    save(a, 1)
    assert b.save(tokens_of(1), state_of(2))
    assert b.flush(WAIT_S)
    b.refresh()
    assert load(a, entry_of(a, 1)) == state_of(1)
    assert load(b, entry_of(b, 1)) == state_of(2)


def test_other_files_are_left_alone(opened: Opener, folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (folder / "notes.txt").write_bytes(b"x")
    (folder / "other.tmp").write_bytes(b"x")
    os.mkfifo(folder / "pipe.ptkv")
    (folder / "folder.ptkv").mkdir()
    (folder / "link.ptkv").symlink_to(target)
    before = names(folder)
    tier = opened(max_bytes=2 * FILE_BYTES)
    assert tier.refresh() == ([], [])
    for i in range(3):
        save(tier, i)
    assert tier.n_evicted == 1
    assert set(before) < set(names(folder))
    assert target.read_bytes() == b"precious"


# -- damage ------------------------------------------------------------------------------

END = FILE_BYTES
STATE_AT = HEADER_BYTES + 4 * N_TOKENS


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


# -- the bound ---------------------------------------------------------------------------


def test_the_least_recently_used_goes_first(opened: Opener, folder: Path) -> None:
    tier = opened(max_bytes=3 * FILE_BYTES)
    a, b, c = save(tier, 1, 2, 3)
    set_used(a, b, c)
    assert load(tier, a) is not None
    assert tier.save(tokens_of(4), state_of(4))
    assert tier.flush(WAIT_S)
    added, removed = tier.refresh()
    assert [entry.tokens[0] for entry in added] == [4]
    assert removed == [b]
    assert tier.n_evicted == 1
    assert tier.n_bytes == 3 * FILE_BYTES


def test_the_bound_holds_over_all_models(opened: Opener, folder: Path) -> None:
    limit = 4 * FILE_BYTES + 100
    a, b = opened("model A", limit), opened("model B", limit)
    for i in range(6):
        save(a, i)
        save(b, i)
        assert sum(path.stat().st_size for path in folder.iterdir()) <= limit
    assert len(names(folder)) == 4
    assert a.entries


def test_a_smaller_bound_holds_from_the_start(opened: Opener, folder: Path) -> None:
    old = opened()
    set_used(*save(old, 1, 2, 3))
    tier = opened(max_bytes=FILE_BYTES)
    assert [entry.tokens[0] for entry in tier.refresh()[0]] == [3]
    assert len(names(folder)) == 1


def test_what_is_larger_than_the_bound_is_refused_at_once(opened: Opener, folder: Path) -> None:
    tier = opened(max_bytes=FILE_BYTES)
    (entry,) = save(tier, 1)
    state = bytes(10**7)
    tracemalloc.start()
    try:
        assert not tier.save(tokens_of(2), state)
        assert not tier.save(tokens_of(2), state_of(2, N_STATE + 1))
        assert tracemalloc.get_traced_memory()[1] < 10**5
    finally:
        tracemalloc.stop()
    assert names(folder) == [entry.path.name]


def test_at_most_two_states_wait_in_memory(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, go_on = opened(), threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: go_on.wait(WAIT_S))
    assert tier.save(tokens_of(1), state_of(1))
    assert not tier.save(tokens_of(1), state_of(1))
    assert not tier.is_busy
    assert tier.save(tokens_of(2), state_of(2))
    assert tier.is_busy
    assert not tier.save(tokens_of(3), state_of(3))
    assert not tier.flush(0.0)
    go_on.set()
    assert tier.flush(WAIT_S)
    assert not tier.is_writing
    assert len(tier.refresh()[0]) == 2


# -- two processes -----------------------------------------------------------------------


def test_each_sees_at_once_what_the_other_does(opened: Opener) -> None:
    a, b = opened(), opened()
    for i in range(0, 40, 2):
        save(a, i)
        assert [entry.tokens[0] for entry in b.refresh()[0]] == [i]
        save(b, i + 1)
        assert [entry.tokens[0] for entry in a.refresh()[0]] == [i + 1]
    gone = entry_of(b, 7)
    gone.path.unlink()
    assert [entry.tokens[0] for entry in a.refresh()[1]] == [7]
    assert b.refresh() == ([], [gone])


def test_changes_within_one_tick_of_the_clock_are_seen(opened: Opener, folder: Path) -> None:
    """Some file systems give two changes the same time."""
    a, b = opened(), opened()
    tick = time.time_ns() + 10**9
    for i in range(3):
        save(a, i)
        os.utime(folder, ns=(tick, tick))
        assert [entry.tokens[0] for entry in b.refresh()[0]] == [i]


def test_what_the_other_removed_is_not_there(opened: Opener, lines: Lines) -> None:
    a, b = opened(), opened()
    (entry,) = save(a, 1)
    b.refresh()
    entry.path.unlink()
    assert load(b, entry_of(b, 1)) is None
    assert len(lines()) == 1
    assert len(b.refresh()[1]) == 1


def test_both_may_save_the_same(opened: Opener) -> None:
    a, b = opened(), opened()
    assert a.save(tokens_of(1), state_of(1))
    assert b.save(tokens_of(1), state_of(1))
    assert a.flush(WAIT_S)
    assert b.flush(WAIT_S)
    a.refresh()
    assert load(a, entry_of(a, 1)) == state_of(1)
    assert len(opened().refresh()[0]) == 1


# -- killed processes --------------------------------------------------------------------

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


# -- a disk that fails -------------------------------------------------------------------


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


# -- opening and closing -----------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_is_said_at_the_start(folder: Path, below: str) -> None:
    folder.write_bytes(b"a file")
    with pytest.raises(BadConfig, match=rf"--kv-dir {folder}.*: \w+") as caught:
        DiskTier(folder / below, fingerprint="x", max_bytes=1)
    assert caught.value.param == "kv_dir"


def test_a_folder_that_cannot_be_written_is_said_at_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadConfig, match="cannot be read and written"):
        DiskTier(folder, fingerprint="x", max_bytes=1)


def test_close_writes_what_was_given_and_ends_the_threads(opened: Opener) -> None:
    tier = opened()
    (entry,) = save(tier, 1)
    assert tier.save(tokens_of(2), state_of(2))
    reading = tier.load(entry)
    tier.close(WAIT_S)
    assert reading.state == state_of(1)
    assert not [t for t in threading.enumerate() if t.name.startswith("ponytail-kv")]
    assert not tier.save(tokens_of(3), state_of(3))
    assert load(tier, entry) is None
    assert len(opened().refresh()[0]) == 2


def test_close_does_not_wait_longer_than_it_may(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, go_on = opened(), threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: go_on.wait(WAIT_S))
    assert tier.save(tokens_of(1), state_of(1))
    tier.close(0.0)
    assert tier.is_writing
    go_on.set()
    assert tier.flush(WAIT_S)
