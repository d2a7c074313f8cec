"""The HTTP surface: routes, one generate handler for all dialects, errors in their shape.

Owns which path answers what.  Must not know a dialect's JSON, the engine or how
the process starts and ends.  Runs in the event loop.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from ponytail.api.dialect import Dialect, Limits, Reply
from ponytail.api.llamacpp import Completion, Infill, PluralCompletion
from ponytail.api.openai import ChatCompletions, Completions, encode_error
from ponytail.errors import EngineFailed, MethodNotAllowed, NotFound, PonytailError
from ponytail.server.body import MAX_BODY_BYTES, parse_body, read_body
from ponytail.server.routes import small_routes
from ponytail.server.security import Guard
from ponytail.server.service import Generator, Service
from ponytail.server.stream import (
    ClientGone,
    Headers,
    collect,
    send_error,
    send_stream,
    send_whole,
    until_hang_up,
)
from ponytail.types import Sampling

log = logging.getLogger("ponytail.server")

MakeDialect: TypeAlias = Callable[[Sampling], Dialect]
DIALECTS: Sequence[MakeDialect] = (
    ChatCompletions,
    Completions,
    Completion,
    PluralCompletion,
    Infill,
)


class Generate:
    """One dialect's route: its JSON in, its reply out, stopped when the client hangs up."""

    def __init__(
        self, service: Service, make: MakeDialect, keep_alive_s: float, max_body_bytes: int
    ) -> None:
        self.dialect = make(Sampling())
        self._service = service
        self._make = make
        self._keep_alive_s = keep_alive_s
        self._max_body_bytes = max_body_bytes
        self._is_bound = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        llm = self._service.generator()
        self._bind(llm)
        body = await read_body(dict(scope["headers"]), receive, self._max_body_bytes)
        await until_hang_up(receive, self._reply(llm, body, send))

    def _bind(self, llm: Generator) -> None:
        # The model's own sampling defaults are known once it is loaded.
        if not self._is_bound:
            self.dialect = self._make(llm.defaults)
            self._is_bound = True

    async def _reply(self, llm: Generator, body: bytes, send: Send) -> None:
        dialect = self.dialect
        limits = Limits(n_vocab=llm.n_vocab, n_ctx=llm.n_ctx)
        request = await parse_body(body, lambda value: dialect.parse(value, limits))
        stream = await llm.open(request)
        try:
            reply_id = dialect.id_prefix + uuid.uuid4().hex
            reply = Reply(
                reply_id,
                int(time.time()),
                llm.name,
                llm.fingerprint,
                stream.truncation,
                stream.warnings,
            )
            encoder = dialect.encoder(reply, request)
            if request.stream:
                await send_stream(send, stream, encoder, self._keep_alive_s)
            else:
                await send_whole(send, 200, await collect(stream, encoder), encoder.media_type)
        finally:
            stream.cancel()


class App:
    """The ASGI application: host check, CORS, routing, and every error as JSON."""

    def __init__(self, router: Router, guard: Guard, generates: Mapping[str, Generate]) -> None:
        self._router = router
        self._guard = guard
        self._generates = generates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        cors = self._guard.cors_headers(headers)
        reply = _with_headers(send, cors) if cors else send
        try:
            self._guard.check_host(headers)
            if scope["method"] == "OPTIONS":
                answer = self._guard.preflight_headers(headers)
                await send_whole(send, 204, b"", "text/plain", answer)
            else:
                await self._route(scope, receive, reply)
        except ClientGone:
            pass
        except Exception as error:
            known, extra = _known(error, scope)
            await send_error(reply, known, self._shape(scope["path"]), extra)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            # A redirect would lose the body of a POST in many clients.
            scope["path"] = path.rstrip("/") or "/"
        # Starlette raises its 404 and 405 (rather than answer in plain text) when this is set.
        scope["app"] = self
        await self._router(scope, receive, send)

    def _shape(self, path: str) -> Callable[[PonytailError], bytes]:
        generate = self._generates.get(path)
        return encode_error if generate is None else generate.dialect.encode_error


def build_app(
    service: Service,
    guard: Guard,
    keep_alive_s: float,
    *,
    dialects: Sequence[MakeDialect] = DIALECTS,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> App:
    """The application that serves `service`."""
    made = [Generate(service, make, keep_alive_s, max_body_bytes) for make in dialects]
    generates = {generate.dialect.path: generate for generate in made}
    routes = [Route(path, generate, methods=["POST"]) for path, generate in generates.items()]
    routes += small_routes(service, max_body_bytes, tuple(generates))
    return App(Router(routes, redirect_slashes=False), guard, generates)


def _known(error: Exception, scope: Scope) -> tuple[PonytailError, Headers]:
    """`error` as one of ours, and the headers that go with it."""
    match error:
        case PonytailError():
            return error, ()
        case HTTPException(status_code=404):
            return NotFound(f"There is no {scope['path']} here; GET / lists the routes."), ()
        case HTTPException(status_code=405):
            allow = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            message = f"{scope['path']} takes {allow}, not {scope['method']}."
            return MethodNotAllowed(message), [(b"allow", allow.encode())]
        case _:
            log.error("%s %s broke", scope["method"], scope["path"], exc_info=error)
            return EngineFailed("The server failed while it answered this request."), ()


def _with_headers(send: Send, extra: Headers) -> Send:
    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_more
