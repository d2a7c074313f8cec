"""Cached prefixes in a folder: they survive a restart, and several processes may share them.

Owns the folder: what is in it, its bound, and the threads that read and write.  The
folder itself is the only record: nothing is locked, and what another process adds or
removes is noticed.  Must not know the prefix tree or what a state means.  The engine
thread calls; `Load` and `flush` may be used from any thread.

Names are hashes of the tokens; nothing in a path comes from a request.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import threading
import time
from array import array
from collections.abc import Callable
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
# A temporary file this old is nobody's; younger ones only if their process is gone.
_STALE_S, _ORPHAN_S = 3600.0, 60.0


class DiskEntry:
    """One file of this model; hashed by identity."""

    __slots__ = ("path", "tokens")

    def __init__(self, path: Path, tokens: array[int]) -> None:
        self.path = path
        self.tokens = tokens


class Load:
    """A state being read: None in the end when the file was damaged or is gone."""

    def __init__(self) -> None:
        self.state: bytearray | None = None
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Until it is done; False when that takes longer."""
        return self._done.wait(timeout_s)

    def finish(self, state: bytearray | None) -> None:
        """Called once, by the reading thread."""
        self.state = state
        self._done.set()


class DiskTier:
    """All `max_bytes` of a folder.  `on_change` is called when a read or a write is over.

    `fingerprint` stands for everything that a state depends on.  Raises BadConfig when the
    folder cannot be used.
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
        self._foreign: set[str] = set()
        self._seen_at: int | None = None
        self._paused_until = 0.0
        self._pending: set[str] = set()
        self._is_idle = threading.Condition()
        self.n_bytes = 0
        self.n_saved = self.n_loaded = self.n_skipped = self.n_evicted = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_leftovers()
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadConfig(f"--kv-dir {folder}: {reason}", param="kv_dir") from error
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise BadConfig(f"--kv-dir {folder}: cannot be read and written", param="kv_dir")
        self._writer = _Worker("ponytail-kv-write")
        self._reader = _Worker("ponytail-kv-read")

    # -- what there is -------------------------------------------------------------------

    def refresh(self) -> tuple[list[DiskEntry], list[DiskEntry]]:
        """(entries that are new since the last call, entries that are gone)."""
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
            if changed_at == self._seen_at:
                return [], []
            sizes = self._sizes()
        except OSError:
            changed_at, sizes = -1, {}
        self._seen_at = changed_at
        self.n_bytes = sum(sizes.values())
        removed = [self._entries.pop(name) for name in self._entries.keys() - sizes.keys()]
        self._foreign &= sizes.keys()
        names = sizes.keys() - self._entries.keys() - self._foreign
        return self._read_new(sorted(names)), removed

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self._folder) as files:
            for file in files:
                if file.name.endswith(disk_file.SUFFIX):
                    with contextlib.suppress(OSError):
                        sizes[file.name] = file.stat().st_size
        return sizes

    def _read_new(self, names: list[str]) -> list[DiskEntry]:
        added, n_foreign = [], 0
        for name in names:
            path = self._folder / name
            try:
                header = disk_file.read_header(path, self._fingerprint)
            except ForeignFile:
                self._foreign.add(name)
                n_foreign += 1
            except DamagedFile as error:
                self._discard(path, error)
            except OSError as error:
                self._foreign.add(name)
                _log.warning("KV cache on disk: %s cannot be read: %s", name, error)
            else:
                entry = self._entries[name] = DiskEntry(path, header.tokens)
                added.append(entry)
        if n_foreign:
            _log.info("KV cache on disk: %d files of other models or settings", n_foreign)
        return added

    def _discard(self, path: Path, error: DamagedFile) -> None:
        """A damaged file helps nobody, and would be reported at each start."""
        self.n_skipped += 1
        _log.warning("KV cache on disk: %s is damaged (%s) and was removed", path.name, error)
        with contextlib.suppress(OSError):
            path.unlink()

    def _remove_leftovers(self) -> None:
        """What killed processes were writing."""
        now = time.time()
        for path in self._folder.glob(f"*{disk_file.TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                age_s = now - path.stat().st_mtime
                if age_s > _STALE_S or (age_s > _ORPHAN_S and not _is_running(path)):
                    path.unlink()

    # -- writing -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """No more can be taken at the moment."""
        return len(self._pending) >= _MAX_PENDING or time.monotonic() < self._paused_until

    @property
    def is_writing(self) -> bool:
        return bool(self._pending)

    def save(self, tokens: array[int], state: Any) -> bool:
        """Have a prefix written; False when it is there already, too large or too much now."""
        name = hashlib.sha256(self._fingerprint + tokens.tobytes()).hexdigest() + disk_file.SUFFIX
        n_bytes = memoryview(state).nbytes + 4 * len(tokens) + 1024
        with self._is_idle:
            if self.is_busy or name in self._pending or name in self._entries:
                return False
            if n_bytes > self.max_bytes:
                return False
            self._pending.add(name)
        self._writer.do(lambda: self._write(name, tokens, state, n_bytes))
        return True

    def _write(self, name: str, tokens: array[int], state: Any, n_bytes: int) -> None:
        try:
            self._make_room(n_bytes)
            disk_file.write(self._folder / name, self._fingerprint, tokens, state)
            self.n_saved += 1
        except OSError as error:
            self._paused_until = time.monotonic() + _PAUSE_S
            reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
            _log.warning(
                "KV cache on disk: could not write (%s); next try in %.0f s", reason, _PAUSE_S
            )
        finally:
            with self._is_idle:
                self._pending.discard(name)
                self._is_idle.notify_all()
            self.on_change()

    def _make_room(self, n_bytes: int) -> None:
        """Remove the least recently used files, whoever wrote them, until n_bytes fit."""
        files = []
        with os.scandir(self._folder) as found:
            for file in found:
                if file.name.endswith(disk_file.SUFFIX):
                    with contextlib.suppress(OSError):
                        stat = file.stat()
                        files.append((stat.st_mtime_ns, stat.st_size, file.path))
        n_used = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if n_used + n_bytes <= self.max_bytes:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self.n_evicted += 1
            n_used -= size

    # -- reading -------------------------------------------------------------------------

    def load(self, entry: DiskEntry) -> Load:
        """Begin to read a state."""
        load = Load()
        self._reader.do(lambda: self._read(entry, load))
        return load

    def _read(self, entry: DiskEntry, load: Load) -> None:
        state = None
        try:
            state = disk_file.read_state(entry.path, self._fingerprint)
            os.utime(entry.path)
            self.n_loaded += 1
        except DamagedFile as error:
            self._discard(entry.path, error)
        except (OSError, ForeignFile, MemoryError) as error:
            self.n_skipped += 1
            _log.warning("KV cache on disk: %s could not be read: %s", entry.path.name, error)
        finally:
            load.finish(state)
            self.on_change()

    # -- the end -------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything given is written; False when that takes longer."""
        with self._is_idle:
            return self._is_idle.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, then end the threads."""
        self.flush(timeout_s)
        self._writer.close(timeout_s)
        self._reader.close(timeout_s)


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
            task()

    def close(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(timeout_s)
            self._thread = None


def _is_running(temporary: Path) -> bool:
    """Whether the process that was writing this file is there; its id is in the name."""
    parts = temporary.name.split(".")
    if len(parts) < 4 or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
