"""The disk tier: what was saved comes back, within its bound, for one process or two."""

from __future__ import annotations

import os
import stat
import threading
import time
import tracemalloc
from array import array
from pathlib import Path

import pytest

from ponytail.engine import disk_file
from ponytail.engine.disk_tier import DiskTier
from ponytail.errors import BadConfig
from tests.unit.disk.files import (
    FILE_BYTES,
    N_STATE,
    WAIT_S,
    Lines,
    Opener,
    entry_of,
    load,
    names,
    save,
    set_used,
    state_of,
    tokens_of,
)

# -- what is saved comes back ----------------------------------------------------------


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


# -- what is not ours ------------------------------------------------------------------


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


# -- the bound -------------------------------------------------------------------------


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


# -- two processes ---------------------------------------------------------------------


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


# -- opening and closing ---------------------------------------------------------------


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
