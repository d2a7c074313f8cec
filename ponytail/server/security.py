"""Which web pages may talk to a server on this machine.

Owns the Host check and the CORS answers.  Any page a browser shows can send
requests to 127.0.0.1, and by re-pointing its own domain there (DNS rebinding)
even read the replies; neither may work.  Pages served from this machine may:
people build front ends on it.  Must not know routes or models.  Pure.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ponytail.errors import Forbidden

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::\d*)?")
_LOCAL_ORIGIN = re.compile(rb"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Guard:
    """`hosts` are the names a Host header may hold, in lower case; None allows any."""

    hosts: frozenset[str] | None

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden when the Host header names a machine this server is not."""
        host = headers.get(b"host")
        # No browser leaves the header out; HTTP/1.0 clients may.
        if self.hosts is None or host is None:
            return
        if _host_name(host) not in self.hosts:
            raise Forbidden(
                f"Host {host.decode('latin-1')!r} is not this server, which listens on this "
                "machine only. Use http://localhost, let the proxy send Host: localhost, "
                "or start with --host 0.0.0.0."
            )

    def cors_headers(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """What lets a page of this machine read the reply; empty for all others."""
        origin = headers.get(b"origin", b"")
        if not _LOCAL_ORIGIN.fullmatch(origin):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"retry-after"),
            (b"vary", b"origin"),
        ]

    def preflight_headers(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """The answer to a browser that asks before it sends; empty when it may not."""
        allowed = self.cors_headers(headers)
        if not allowed:
            return []
        asked = headers.get(b"access-control-request-headers", b"content-type, authorization")
        answer = [
            *allowed,
            (b"access-control-allow-methods", b"GET, HEAD, POST"),
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", b"600"),
        ]
        if b"access-control-request-private-network" in headers:
            answer.append((b"access-control-allow-private-network", b"true"))
        return answer


def guard_for(sock: socket.socket, bound_host: str) -> Guard:
    """The guard of a listening socket: hosts are checked on loopback TCP addresses only."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return Guard(hosts=None)
    address = str(sock.getsockname()[0]).partition("%")[0].removeprefix("::ffff:")
    if not ipaddress.ip_address(address).is_loopback:
        return Guard(hosts=None)
    return Guard(hosts=_LOCAL_NAMES | {address, bound_host.strip("[]").lower()})


def _host_name(host: bytes) -> str:
    """The name without port and brackets; empty when the header is malformed."""
    found = _HOST.fullmatch(host.decode("latin-1").strip().lower())
    return (found["ipv6"] or found["name"]).rstrip(".") if found else ""
