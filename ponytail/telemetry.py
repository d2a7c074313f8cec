"""What ponytail says while it runs: log set-up and progress lines.

Owns the log format and how progress looks on a terminal and in a file.  Must
not know what is being logged.  `set_up_logging` is for processes that ponytail
owns (the command line); a library user's logging is left alone.  Any thread.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TextIO

LOGGER = logging.getLogger("ponytail")


class _Format(logging.Formatter):
    """`12:00:01 message`; the level is named only when it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        time = self.formatTime(record, "%H:%M:%S")
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"{time} {level}{line}"


def set_up_logging(*, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Send every log line of this process to `stream` (stderr).  Calling again replaces it.

    Libraries speak from WARNING on, ponytail from INFO, or DEBUG when verbose.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Format("%(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)


def is_verbose() -> bool:
    """Was more asked for, by flag or by variable."""
    return LOGGER.isEnabledFor(logging.DEBUG)


class Progress:
    """One long job's progress: a line that updates on a terminal, a line per tenth elsewhere.

    `update` may come from any thread and as often as the job likes.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown: int | None = None
        self._lock = threading.Lock()

    def update(self, fraction: float) -> None:
        """Show `fraction` (0 to 1); what is no news is not shown."""
        percent = int(min(max(fraction, 0.0), 1.0) * 100 + 1e-9)
        step = 1 if self._is_terminal else 10
        percent -= percent % step
        with self._lock:
            if self._shown is not None and percent <= self._shown:
                return
            self._shown = percent
            self._write(f"{self._label}: {percent} %")

    def close(self) -> None:
        """End the line.  Nothing is printed if nothing was ever shown."""
        with self._lock:
            if self._is_terminal and self._shown is not None:
                self._stream.write("\n")
                self._stream.flush()
            self._shown = None

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        self._stream.flush()
