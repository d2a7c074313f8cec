"""Cached prefixes in a folder: they survive a restart, and several processes may share them.

Owns the folder: what is in it, its bound, and the threads that read and write.  The
folder itself is the only record: nobody waits for a lock, and what another process adds
or removes is noticed.  Must not know the prefix tree or what a state means.  The engine
thread calls; `Load` and `flush` may be used from any thread.

Names are hashes of the tokens; nothing in a path comes from a request.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import stat
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ponytail.engine import disk_file
from ponytail.engine.disk_file import DamagedFile, ForeignFile
from ponytail.errors import BadConfig

_log = logging.getLogger("ponytail.engine")

# States that wait to be written stay in memory: one being written, one behind it.
_MAX_PENDING = 2
# After an error of the disk, so long nothing is written.
_PAUSE_S = 60.0
# Two changes of a folder this close together may leave it the same modification time.
_TICK_NS = 20_000_000


class DiskEntry:
    """One file of this model; hashed by identity."""

    __slots__ = ("inode", "path", "tokens")

    def __init__(self, path: Path, inode: int, tokens: array[int]) -> None:
        self.path = path
        self.inode = inode
        self.tokens = tokens


class Load:
    """A state being read: None in the end when the file was damaged or is gone."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Until it is done; False when that takes longer."""
        return self._done.wait(timeout_s)

    def finish(self, state: bytes | None) -> None:
        """Called once, by the reading thread."""
        self.state = state
        self._done.set()


class DiskTier:
    """All `max_bytes` of a folder.  `on_change` is called when a read or a write is over.

    `fingerprint` stands for everything that a state depends on.  Raises BadConfig when the
    folder cannot be used; nothing else here raises: a cache that fails costs time only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fingerprint: str,
        max_bytes: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._fingerprint = hashlib.sha256(fingerprint.encode()).digest()
        self.max_bytes = max_bytes
        self.on_change = on_change
        self._entries: dict[str, DiskEntry] = {}
        # Files that are no use here, by name and inode: looked at once, unless written anew.
        self._useless: dict[str, int] = {}
        self._failed: SimpleQueue[DiskEntry] = SimpleQueue()
        self._seen_at: int | None = None
        self._is_folder_lost = self._has_told_foreign = self._is_closed = False
        self._paused_until = 0.0
        self._pending: set[str] = set()
        self._is_idle = threading.Condition()
        self.n_bytes = 0
        self.n_saved = self.n_loaded = self.n_skipped = self.n_evicted = 0
        self._open()
        self._writer = _Worker("ponytail-kv-write")
        self._reader = _Worker("ponytail-kv-read")

    def _open(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The bound may have been larger the last time.
            self._make_room(0)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadConfig(f"--kv-dir {self._folder}: {reason}", param="kv_dir") from error
        if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
            raise BadConfig(f"--kv-dir {self._folder}: cannot be read and written", param="kv_dir")

    # -- what there is -------------------------------------------------------------------

    @property
    def entries(self) -> list[DiskEntry]:
        """What is there for this model, as of the last `refresh`."""
        return list(self._entries.values())

    def refresh(self) -> tuple[list[DiskEntry], list[DiskEntry]]:
        """(entries that are new since the last call, entries that are gone)."""
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
            if changed_at == self._seen_at and self._failed.empty():
                return [], []
            found = _list(self._folder)
        except OSError as error:
            self._lose(error)
            found = []
        else:
            self._find_again(changed_at)
        files = {file.name: file for file in found if file.is_whole}
        self.n_bytes = sum(file.n_bytes for file in files.values())
        removed = [self._entries.pop(name) for name in self._entries.keys() - files.keys()]
        removed += self._take_failed()
        self._useless = {
            name: inode
            for name, inode in self._useless.items()
            if name in files and files[name].inode == inode
        }
        new = files.keys() - self._entries.keys() - self._useless.keys()
        return self._read_new([files[name] for name in sorted(new)]), removed

    def _lose(self, error: OSError) -> None:
        if not self._is_folder_lost:
            _log.warning("KV cache on disk: the folder is lost: %s", error)
        self._is_folder_lost = True
        self._seen_at = None

    def _find_again(self, changed_at: int) -> None:
        if self._is_folder_lost:
            _log.info("KV cache on disk: the folder is back")
        self._is_folder_lost = False
        is_settled = time.time_ns() - changed_at > _TICK_NS
        self._seen_at = changed_at if is_settled else None

    def _take_failed(self) -> list[DiskEntry]:
        """Entries whose file is there, or was a moment ago, and cannot be read."""
        failed = []
        while not self._failed.empty():
            entry = self._failed.get()
            self._useless[entry.path.name] = entry.inode
            if self._entries.get(entry.path.name) is entry:
                failed.append(self._entries.pop(entry.path.name))
        return failed

    def _read_new(self, files: list[_File]) -> list[DiskEntry]:
        added, n_foreign = [], 0
        for file in files:
            path = self._folder / file.name
            self._useless[file.name] = file.inode
            try:
                header = disk_file.read_header(path, self._fingerprint)
            except ForeignFile:
                n_foreign += 1
            except DamagedFile as error:
                self._discard(path, error)
            except FileNotFoundError:
                continue  # somebody else made room
            except (OSError, MemoryError) as error:
                self.n_skipped += 1
                _log.warning("KV cache on disk: %s cannot be read: %s", file.name, error)
            else:
                del self._useless[file.name]
                entry = self._entries[file.name] = DiskEntry(path, file.inode, header.tokens)
                added.append(entry)
        self._tell_foreign(n_foreign)
        return added

    def _tell_foreign(self, n_foreign: int) -> None:
        """Once: several models may share a folder for long."""
        if n_foreign and not self._has_told_foreign:
            self._has_told_foreign = True
            _log.info("KV cache on disk: %d files of other models or settings", n_foreign)

    def _discard(self, path: Path, error: DamagedFile) -> None:
        """A damaged file helps nobody, and would be reported at each start."""
        self.n_skipped += 1
        _log.warning("KV cache on disk: %s is damaged (%s) and was removed", path.name, error)
        with contextlib.suppress(OSError):
            path.unlink()

    # -- writing -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """No more can be taken at the moment."""
        is_full = len(self._pending) >= _MAX_PENDING
        return is_full or self._is_paused or self._is_folder_lost or self._is_closed

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    @property
    def is_writing(self) -> bool:
        return bool(self._pending)

    def save(self, tokens: array[int], state: Any) -> bool:
        """Have a prefix written; False when it is there already, too large or too much now.

        Nobody may change `state` afterwards.
        """
        n_bytes = disk_file.n_file_bytes(tokens, state)
        if n_bytes > self.max_bytes or len(tokens) > disk_file.MAX_TOKENS:
            return False
        name = disk_file.file_name(self._fingerprint, tokens)
        with self._is_idle:
            if self.is_busy or name in self._pending or name in self._entries:
                return False
            self._pending.add(name)
        self._writer.do(lambda: self._write(name, tokens, state, n_bytes))
        return True

    def _write(self, name: str, tokens: array[int], state: Any, n_bytes: int) -> None:
        try:
            if self._is_paused:
                return  # it was queued before the error
            self._make_room(n_bytes)
            disk_file.write(self._folder / name, self._fingerprint, tokens, state)
            self.n_saved += 1
        except OSError as error:
            self._pause(error)
        finally:
            with self._is_idle:
                self._pending.discard(name)
                self._is_idle.notify_all()
            self.on_change()

    def _pause(self, error: OSError) -> None:
        if not os.path.isdir(self._folder):
            return  # `refresh` tells, and looks whether it is back
        self._paused_until = time.monotonic() + _PAUSE_S
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        _log.warning("KV cache on disk: could not write (%s); next try in %.0f s", reason, _PAUSE_S)

    def _make_room(self, n_bytes: int) -> None:
        """Remove the least recently used files, whoever wrote them, until n_bytes fit.

        What killed processes were writing goes first.  Raises OSError.
        """
        files = sorted(_list(self._folder), key=lambda file: (file.is_whole, file.used_at_ns))
        n_used = sum(file.n_bytes for file in files)
        for file in files:
            if file.is_whole and n_used + n_bytes <= self.max_bytes:
                return
            if self._remove(file):
                n_used -= file.n_bytes
        if n_used + n_bytes > self.max_bytes and n_bytes:
            raise OSError(errno.EDQUOT, "what fills the folder cannot be removed")

    def _remove(self, file: _File) -> bool:
        """False when it stays: somebody is writing it, or it is not ours to remove."""
        path = self._folder / file.name
        try:
            if not file.is_whole:
                return disk_file.remove_leftover(path)
            path.unlink()
            self.n_evicted += 1
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    # -- reading -------------------------------------------------------------------------

    def load(self, entry: DiskEntry) -> Load:
        """Begin to read a state."""
        load = Load()
        if self._is_closed:
            load.finish(None)
        else:
            self._reader.do(lambda: self._read(entry, load))
        return load

    def _read(self, entry: DiskEntry, load: Load) -> None:
        state = None
        try:
            state = disk_file.read_state(entry.path, self._fingerprint)
            self.n_loaded += 1
            with contextlib.suppress(OSError):
                os.utime(entry.path)
        except DamagedFile as error:
            self._discard(entry.path, error)
        except (OSError, ForeignFile, MemoryError) as error:
            self.n_skipped += 1
            _log.warning("KV cache on disk: %s could not be read: %s", entry.path.name, error)
        finally:
            if state is None:
                self._failed.put(entry)
            load.finish(state)
            self.on_change()

    # -- the end -------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything given is written; False when that takes longer."""
        with self._is_idle:
            return self._is_idle.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, then end the threads; takes nothing more."""
        deadline = time.monotonic() + timeout_s
        self._is_closed = True
        self.flush(timeout_s)
        for worker in (self._writer, self._reader):
            worker.close(max(0.0, deadline - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _File:
    """One of our files as the folder's listing has it; not `is_whole`: being written."""

    name: str
    is_whole: bool
    inode: int
    n_bytes: int
    used_at_ns: int


def _list(folder: Path) -> list[_File]:
    """Our files, nothing else that may lie there.  Raises OSError."""
    files = []
    with os.scandir(folder) as found:
        for item in found:
            is_whole = item.name.endswith(disk_file.SUFFIX)
            # What is no plain file, such as a pipe or a link, is not ours.
            with contextlib.suppress(OSError):
                if is_whole or item.name.endswith(disk_file.TEMPORARY_SUFFIX):
                    status = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        facts = status.st_ino, status.st_size, status.st_mtime_ns
                        files.append(_File(item.name, is_whole, *facts))
    return files


class _Worker:
    """One thread that does one thing after another; started by the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                # Whatever it was: the next file may be read and written.
                _log.exception("KV cache on disk: a read or a write broke")

    def close(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(timeout_s)
            self._thread = None
