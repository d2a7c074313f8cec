"""What an outside API is to the server: a parser in, encoders out.

Owns the two protocols and nothing else.  A dialect is pure: JSON to
`GenerateRequest`, events to bytes; it knows no HTTP connection, engine or
model.  Adding one is one new file here and one line in `server.app.DIALECTS`.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ponytail.errors import PonytailError
from ponytail.types import Event, GenerateRequest, Truncation


class Reply(msgspec.Struct, frozen=True):
    """What every reply states: its id, the unix time in seconds, and the model that answers.

    `fingerprint` changes when the same seed may give another text (build, threads).
    `truncation` is there when the request asked for it.  `warnings` are sentences about
    what of the request could not be done to the letter.
    """

    id: str
    created: int
    model: str
    fingerprint: str = ""
    truncation: Truncation | None = None
    warnings: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """What the loaded model and the settings allow a request to ask for."""

    n_vocab: int
    n_ctx: int
    n_choices: int = 128


class Encoder(Protocol):
    """Turns the events of one request, all its choices, into the bytes of one reply.

    `feed` returns what can be sent now (often b"" for a plain reply); `finish`
    is called once, after every choice ended in `Finished`; `fail` instead, once,
    when a choice ended in `Failed` after the status line was sent.
    """

    media_type: str
    keep_alive: bytes

    def feed(self, index: int, event: Event) -> bytes: ...

    def finish(self) -> bytes: ...

    def fail(self, error: PonytailError) -> bytes: ...


class Dialect(Protocol):
    """One route's outside shape."""

    path: str
    id_prefix: str

    def parse(self, body: dict[str, Any], limits: Limits) -> GenerateRequest: ...

    def encoder(self, reply: Reply, request: GenerateRequest) -> Encoder: ...

    def encode_error(self, error: PonytailError) -> bytes: ...
