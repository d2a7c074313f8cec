"""The small routes: health, models, tokens and templates, and a page that names them all.

Owns their paths.  The JSON is `api.openai`'s and `server.health`'s.  Runs in the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ponytail.api import embeddings, openai
from ponytail.api import llamacpp_state as llamacpp
from ponytail.api.dialect import Limits
from ponytail.errors import ModelNotFound
from ponytail.server.body import parse_body, read_body
from ponytail.server.health import readiness
from ponytail.server.metrics import CONTENT_TYPE, encode_metrics
from ponytail.server.service import Generator, Service
from ponytail.server.stream import until_hang_up
from ponytail.types import Sampling

T = TypeVar("T")


def small_routes(
    service: Service, max_body_bytes: int, generate_paths: Sequence[str]
) -> list[Route]:
    """All routes but those that generate; llama.cpp's spellings of three are served too."""
    small = SmallRoutes(service, max_body_bytes, generate_paths)
    get = {
        "/health": small.health,
        "/livez": small.livez,
        "/metrics": small.metrics,
        "/v1/cache": small.cache,
        "/props": small.props,
        "/slots": small.slots,
        "/v1/models": small.models,
        "/v1/models/{id:path}": small.model,
        "/openapi.json": small.openapi,
        "/": small.index,
    }
    post = {
        "/v1/tokenize": small.tokenize,
        "/v1/detokenize": small.detokenize,
        "/v1/apply-template": small.apply_template,
        "/v1/embeddings": small.embeddings,
        "/v1/rerank": small.rerank,
        "/v1/reranking": small.rerank,
    }
    post |= {path.removeprefix("/v1"): endpoint for path, endpoint in post.items()}
    return [
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()),
    ]


class SmallRoutes:
    """The endpoints of one service."""

    def __init__(
        self, service: Service, max_body_bytes: int, generate_paths: Sequence[str]
    ) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._generate_paths = generate_paths

    async def health(self, request: Request) -> Response:
        """200 when a request would be answered, 503 with the reason otherwise."""
        status, body = readiness(self._service)
        headers = {} if status == 200 else {"retry-after": "1"}
        return _json(msgspec.json.encode(body), status, headers)

    async def livez(self, request: Request) -> Response:
        """200 as long as the process answers at all."""
        return _json(b'{"status":"alive"}')

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(encode_metrics(self._service.loaded()), media_type=CONTENT_TYPE)

    async def cache(self, request: Request) -> Response:
        """What the KV cache holds."""
        return _json(msgspec.json.encode(self._service.generator().cache()))

    async def props(self, request: Request) -> Response:
        """The model and the defaults, as llama.cpp's clients ask for them."""
        return _json(llamacpp.encode_props(self._service.generator().props()))

    async def slots(self, request: Request) -> Response:
        """How far each running choice has come, as llama.cpp's clients ask for it."""
        llm = self._service.generator()
        n_parallel = llm.props().n_parallel
        return _json(llamacpp.encode_slots(llm.slots(), n_parallel=n_parallel, n_ctx=llm.n_ctx))

    async def models(self, request: Request) -> Response:
        """The one model, also while it loads."""
        return _json(openai.encode_models([self._card()]))

    async def model(self, request: Request) -> Response:
        """The model by its name, which may hold slashes."""
        card = self._card()
        asked = request.path_params["id"]
        if asked != card.id:
            raise ModelNotFound(f"Model {asked!r} is not served here; served: {card.id!r}.")
        return _json(openai.encode_model(card))

    async def tokenize(self, request: Request) -> Response:
        """Text to token ids."""
        llm = self._service.generator()
        asked = await self._read(request, llm, openai.parse_tokenize)
        ids = await llm.tokenize(
            asked.text, add_special=asked.add_special, parse_special=asked.parse_special
        )
        pieces = await llm.pieces(ids) if asked.with_pieces else None
        return _json(openai.encode_tokens(ids, llm.n_ctx, pieces))

    async def detokenize(self, request: Request) -> Response:
        """Token ids to text."""
        llm = self._service.generator()
        ids = await self._read(request, llm, openai.parse_detokenize)
        return _json(openai.encode_content(await llm.detokenize(ids)))

    async def embeddings(self, request: Request) -> Response:
        """Texts to vectors."""
        llm = self._service.generator()
        asked = await self._read(request, llm, embeddings.parse_embeddings)
        work = llm.embeddings(asked)
        vectors, n_tokens = await until_hang_up(request.receive, work)
        body = await asyncio.to_thread(
            embeddings.encode_embeddings, asked, vectors, n_tokens, llm.name
        )
        return _json(body)

    async def rerank(self, request: Request) -> Response:
        """Documents in the order of how well they answer a query."""
        llm = self._service.generator()
        asked = await self._read(request, llm, embeddings.parse_rerank)
        scores, n_tokens = await until_hang_up(request.receive, llm.ranks(asked))
        return _json(embeddings.encode_ranks(asked, scores, n_tokens, llm.name))

    async def apply_template(self, request: Request) -> Response:
        """Messages to the text the model would see."""
        llm = self._service.generator()
        prompt = await self._read(request, llm, openai.parse_apply_template)
        return _json(openai.encode_prompt(await llm.apply_template(prompt)))

    async def openapi(self, request: Request) -> Response:
        """The machine-readable description of the API."""
        llm = self._service.loaded()
        defaults = Sampling() if llm is None else llm.defaults
        return _json(openai.encode_openapi(defaults=defaults))

    async def index(self, request: Request) -> Response:
        """A page for the person who opens the address in a browser."""
        posts = "".join(f"  POST {path}\n" for path in self._generate_paths)
        return PlainTextResponse(f"ponytail serves {self._card().id}\n\n{posts}{_REST}")

    def _card(self) -> openai.ModelCard:
        llm = self._service.loaded()
        if llm is None:
            about = self._service.about
            meta = {"status": "loading"}
            return openai.ModelCard(about.name, about.created, about.n_ctx, meta=meta)
        meta = {"status": "loaded"}
        return openai.ModelCard(llm.name, llm.created, llm.n_ctx, llm.capabilities, meta)

    async def _read(
        self, request: Request, llm: Generator, parse: Callable[[dict[str, Any], Limits], T]
    ) -> T:
        limits = Limits(n_vocab=llm.n_vocab, n_ctx=llm.n_ctx)
        headers = dict(request.scope["headers"])
        body = await read_body(headers, request.receive, self._max_body_bytes)
        return await parse_body(body, lambda value: parse(value, limits))


_REST = """\
  POST /v1/embeddings  /v1/rerank  with --embeddings, or a model made for it
  POST /v1/tokenize  /v1/detokenize  /v1/apply-template
  GET  /v1/models  /v1/models/{id}
  GET  /health  ready, or why not, and the settings in force
  GET  /livez  the process answers
  GET  /v1/cache  what the KV cache holds
  GET  /props  /slots  as llama.cpp's server has them
  GET  /metrics  for Prometheus
  GET  /openapi.json
"""


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, "application/json")
