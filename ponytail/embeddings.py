"""From texts to vectors and ranks: tokens, window, the engine's side work.

Owns the check that each text fits and how a query and a document are put together.  Must not
know HTTP or JSON.  Any thread; making tokens may take long.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from typing import TypeAlias

from ponytail.engine.side_work import Work
from ponytail.errors import InputTooLong, InvalidRequest
from ponytail.runtime import Runtime
from ponytail.types import EmbedRequest, RankRequest

_OFF = "this server makes no embeddings: start it with --embeddings"
_RANKS = "this model ranks (/v1/rerank) and makes no embeddings"
_NO_HEAD = (
    "this model has no head that ranks; load a reranker, or compare embeddings from /v1/embeddings"
)
Texts: TypeAlias = Sequence[Sequence[int]]

_PLACES = re.compile(r"(\{query\}|\{document\})")


class Embeddings:
    """For one loaded model."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._template = runtime.rank_template

    def to_embed(self, request: EmbedRequest) -> Texts:
        """The texts in tokens.  Raises InvalidRequest or InputTooLong, naming the item."""
        embedder = self._runtime.embedder
        if embedder is None:
            raise InvalidRequest(_OFF)
        if embedder.pooling == "rank":
            raise InvalidRequest(_RANKS)
        if request.dimensions is not None and request.dimensions > embedder.n_dims:
            raise InvalidRequest(
                f"dimensions must be at most {embedder.n_dims}, the length of this model's "
                f"vectors, got {request.dimensions}.",
                param="dimensions",
            )
        texts = [self._tokens(one) for one in request.inputs]
        is_one = len(texts) == 1
        names = [request.param if is_one else f"{request.param}[{i}]" for i in range(len(texts))]
        return self._checked(texts, names)

    def to_rank(self, request: RankRequest) -> Texts:
        """Each document beside the query.  Raises as `to_embed` does."""
        embedder = self._runtime.embedder
        if embedder is None or embedder.pooling != "rank":
            raise InvalidRequest(_NO_HEAD)
        texts = [self._pair(request.query, document) for document in request.documents]
        return self._checked(texts, [f"{request.param}[{i}]" for i in range(len(texts))])

    def submit(self, texts: Texts) -> Work:
        """Queue texts; never blocks.  Raises Overloaded or ShuttingDown."""
        work = Work(texts)
        self._runtime.engine.side.submit(work)
        return work

    def _checked(self, texts: Texts, names: Sequence[str]) -> Texts:
        embedder = self._runtime.embedder
        assert embedder is not None, "checked by both"
        for tokens, name in zip(texts, names, strict=True):
            if len(tokens) > embedder.n_ctx:
                raise InputTooLong(len(tokens), embedder.n_ctx, param=name)
            if not tokens:
                raise InvalidRequest(f"{name} has no tokens.", param=name)
        return texts

    def _tokens(self, text: str | tuple[int, ...]) -> Sequence[int]:
        if not isinstance(text, str):
            return text
        return self._runtime.model.tokenize(text, add_special=True, parse_special=False)

    def _pair(self, query: str, document: str) -> list[int]:
        """As the model file's own template for ranking has it, else as encoders take pairs."""
        model = self._runtime.model
        if self._template is not None:
            said = {"{query}": query, "{document}": document}
            pieces = _PLACES.split(self._template)
            return model.tokenize_segments((said.get(p, p), p not in said) for p in pieces if p)
        return model.tokenize_pair(query, document)


def all_shortened(vectors: Sequence[array[float]], n_dims: int | None) -> list[array[float]]:
    """The first n_dims numbers of each, scaled to length 1 again."""
    return [one if n_dims is None else _shortened(one, n_dims) for one in vectors]


def _shortened(vector: array[float], n_dims: int) -> array[float]:
    if n_dims >= len(vector):
        return vector
    first = vector[:n_dims]
    length = math.sqrt(math.fsum(x * x for x in first))
    return array("f", (x / length for x in first)) if length else first
