"""`ponytail serve` up to the moment the HTTP stack takes over.

Owns the order of the start: settings, a look at the file, the listening socket;
only then is the server imported, so that the port opens at once and clients
wait in the backlog or get a 503 instead of a refusal.  Must not know HTTP.
Main thread.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ponytail import gguf, telemetry
from ponytail.config import Config
from ponytail.errors import BadConfig, StartError
from ponytail.server.socket_file import SocketFile

_BACKLOG = 2048
# sun_path of unix(7), less its closing zero.
_MAX_UDS_BYTES = 107

_log = logging.getLogger(__name__)


def run(flags: Mapping[str, object], env: Mapping[str, str]) -> int:
    """Serve until told to stop; returns the exit code.  Raises StartError before that."""
    telemetry.set_up_logging(verbose=bool(flags.get("verbose")))
    config = Config.load(flags, env)
    telemetry.set_up_logging(verbose=config.verbose)
    header = gguf.inspect(config.model)
    with listen(config) as sock:
        if sock.family != socket.AF_UNIX:
            config = replace(config, port=sock.getsockname()[1])
        warn_if_open(sock)
        # Here and not above: this import takes longer than everything before it.
        from ponytail.server.run import serve

        return serve(config, header, sock)


@contextmanager
def listen(config: Config) -> Iterator[socket.socket]:
    """A listening socket, TCP or UNIX.  A UNIX socket's file is gone afterwards."""
    if config.uds is None:
        with closing(_listen_tcp(config.host, config.port)) as sock:
            yield sock
        return
    with closing(_listen_uds(config.uds)) as sock:
        socket_file = SocketFile.of(sock)
        try:
            yield sock
        finally:
            if socket_file is not None:
                socket_file.remove()


def _listen_tcp(host: str, port: int) -> socket.socket:
    family, address = _resolve(host, port)
    sock = None
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "::" means every address, IPv4 ones too, whatever the system's default is.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise _tcp_refusal(host, port, error) from error
    return sock


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    name = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (socket.gaierror, UnicodeError) as error:
        raise BadConfig(
            f"--host: {host!r} is not an address or known name", param="host"
        ) from error
    # localhost is often both; clients that say 127.0.0.1 must find us.
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return found[0][0], found[0][4]


def _tcp_refusal(host: str, port: int, error: OSError) -> StartError:
    match error.errno:
        case errno.EADDRINUSE:
            text = f"--port: {port} is already in use on {host}; 0 lets the system choose"
            return BadConfig(text, param="port")
        case errno.EACCES | errno.EPERM:
            return BadConfig(f"--port: {port} needs privileges this user lacks", param="port")
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return BadConfig(f"--host: {host} is not an address of this machine", param="host")
        case _:
            reason = error.strerror or str(error)
            return BadConfig(f"cannot listen on {host} port {port}: {reason}", param="host")


def _listen_uds(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_UDS_BYTES:
        raise BadConfig(
            f"--uds: {path} is longer than {_MAX_UDS_BYTES} bytes, the most a socket path can have",
            param="uds",
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear_stale(path)
        sock.bind(os.fspath(path))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise BadConfig(f"--uds: cannot listen on {path}: {reason}", param="uds") from error
    except BadConfig:
        sock.close()
        raise
    return sock


def _clear_stale(path: Path) -> None:
    """Remove the socket a killed server left behind; refuse a live one and any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadConfig(f"--uds: {path} exists and is not a socket", param="uds")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise BadConfig(f"--uds: {path} is already in use by another server", param="uds")


def warn_if_open(sock: socket.socket) -> None:
    """Say loudly that others can reach this server: there is no access key."""
    if sock.family == socket.AF_UNIX:
        return
    host, port = sock.getsockname()[:2]
    if not _is_loopback(host):
        _log.warning(
            "OPEN TO THE NETWORK: %s port %s takes requests from anyone who can reach it; "
            "there is no access key",
            host,
            port,
        )


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")
