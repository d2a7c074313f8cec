"""The file of a listening UNIX socket, and who may remove it.

Owns that one file.  Imports nothing heavy: the command line makes it before the HTTP
stack is imported.  Any thread.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SocketFile:
    """A UNIX socket's file, known by its inode: a successor may have replaced it."""

    path: Path
    inode: int

    @classmethod
    def of(cls, sock: socket.socket) -> SocketFile | None:
        """The file of `sock`, or None when it has none (TCP, abstract names)."""
        if sock.family != socket.AF_UNIX:
            return None
        name = sock.getsockname()
        if not isinstance(name, str) or not name:
            return None
        path = Path(name).absolute()
        return cls(path, path.stat().st_ino)

    def remove(self) -> None:
        """Remove the file if it is still ours."""
        try:
            if self.path.stat().st_ino == self.inode:
                self.path.unlink()
        except FileNotFoundError:
            pass
