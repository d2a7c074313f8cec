"""The engine in process: `LLM`.  The server is built on it, not beside it.

Owns the way from a request to tokens in the engine and back: template, tokeniser,
window check, seeds.  Every public method may be called from any thread; the async
ones from any event loop.

    from ponytail import LLM

    with LLM("model.gguf") as llm:
        print(llm.chat([{"role": "user", "content": "Hi"}], max_tokens=32).text)
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from ponytail.api.dialect import Limits
from ponytail.api.embeddings import parse_embeddings, parse_rerank
from ponytail.api.llamacpp_state import PropsFacts, SlotFacts
from ponytail.api.openai import ChatCompletions, Completions
from ponytail.collected import Answer, Choice, checked, collect, events
from ponytail.config import Config
from ponytail.delivery import AsyncStream, ThreadStream
from ponytail.embeddings import Embeddings, Texts, all_shortened
from ponytail.engine.side_work import Vector
from ponytail.engine.stats import Gauges
from ponytail.errors import ShuttingDown
from ponytail.gguf import GGUFHeader, inspect
from ponytail.jobs import Jobs
from ponytail.runtime import Runtime, build
from ponytail.types import (
    ChatPrompt,
    EmbedRequest,
    Event,
    GenerateRequest,
    RankRequest,
    Sampling,
)

T = TypeVar("T")
__all__ = ["LLM", "Answer", "Choice"]

# In process there is no client to send away: whoever asks for a thousand answers waits for them.
_NO_QUEUE_LIMIT = 1_000_000


class LLM:
    """One GGUF file, loaded.

    `settings` are the command line's, by their long names with underscores
    (`ctx_size=4096, parallel=2`).  Sampling options of the methods are the HTTP
    API's (`temperature`, `max_tokens`, `stop`, `seed`, `n`, ...), checked alike:
    InvalidRequest names a wrong one.  Raises StartError when the file or a setting
    is bad, ContextLengthExceeded when a prompt does not fit, and Overloaded when a
    `max_queue` was given and is reached; by default any number of calls may wait.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        values = {"model": model, "max_queue": _NO_QUEUE_LIMIT, **settings}
        config = Config.load(values, {}, source="LLM()")
        self._init(config, build(config, inspect(config.model)))

    @classmethod
    def load(
        cls,
        config: Config,
        header: GGUFHeader,
        on_progress: Callable[[float], None] | None = None,
    ) -> Self:
        """Like LLM(...), from a checked Config and an inspected file; reports 0.0-1.0."""
        llm = cls.__new__(cls)
        llm._init(config, build(config, header, on_progress))
        return llm

    def _init(self, config: Config, runtime: Runtime) -> None:
        self.config = config
        self.name = config.alias or config.model.stem
        self.created = int(config.model.stat().st_mtime)
        self.fingerprint = runtime.fingerprint
        self.n_ctx = runtime.sizing.ctx
        self.n_vocab = runtime.model.n_vocab
        self.defaults = Sampling()
        self._runtime = runtime
        self._limits = Limits(n_vocab=self.n_vocab, n_ctx=self.n_ctx)
        self._chat = ChatCompletions(self.defaults)
        self._completions = Completions(self.defaults)
        self._jobs = Jobs(config, runtime)
        self._embeddings = Embeddings(runtime)
        self._is_closed = False
        self._lock = threading.Lock()
        # The engine thread must be out of libllama before the interpreter takes it down.
        this = weakref.ref(self)

        def close_at_exit() -> None:
            llm = this()
            if llm is not None:
                llm.close()

        self._close_at_exit = close_at_exit
        atexit.register(self._close_at_exit)
        runtime.engine.start()

    # -- answers -------------------------------------------------------------------------

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Answer:
        """Answer a conversation; blocks until it is complete."""
        stream = self._run(self._chat_request(messages, options))
        return collect(iter(stream), stream.truncation)

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Answer:
        """Continue raw text or token ids; blocks until it is complete."""
        return collect(iter(self._run(self._completion_request(prompt, options))))

    def stream(self, messages: Sequence[dict[str, Any]], **options: Any) -> Iterator[Event]:
        """Events of one answer as they come; leaving the loop early cancels it."""
        request = self._chat_request(messages, options, stream=True)
        return (checked(event) for _, event in self._run(request))

    def embed(
        self, texts: Sequence[str | Sequence[int]], *, dimensions: int | None = None
    ) -> list[list[float]]:
        """A vector of length 1 for each text (or its token ids); blocks until all are made."""
        body = {"input": [t if isinstance(t, str) else list(t) for t in texts]}
        request = parse_embeddings({**body, "dimensions": dimensions}, self._limits)
        vectors, _ = self._read(self._embeddings.to_embed, request)
        return [vector.tolist() for vector in all_shortened(vectors, dimensions)]

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """How well each document answers the query, higher is better, in the order given."""
        body = {"query": query, "documents": list(documents)}
        scores, _ = self._read(self._embeddings.to_rank, parse_rerank(body, self._limits))
        return [score[0] for score in scores]

    def _read(self, encode: Callable[[T], Texts], request: T) -> tuple[list[Vector], int]:
        self._ensure_open()
        work = self._embeddings.submit(encode(request))
        try:
            return work.future.result(), work.n_tokens
        except BaseException:
            work.future.cancel()
            raise

    async def achat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Answer:
        """Async twin of chat; cancelling the task cancels the work."""
        stream = await self.open(self._chat_request(messages, options))
        return collect([e async for e in events(stream)], stream.truncation)

    async def acomplete(self, prompt: str | Sequence[int], **options: Any) -> Answer:
        """Async twin of complete."""
        stream = await self.open(self._completion_request(prompt, options))
        return collect([e async for e in events(stream)])

    async def astream(
        self, messages: Sequence[dict[str, Any]], **options: Any
    ) -> AsyncIterator[Event]:
        """Async twin of stream."""
        stream = await self.open(self._chat_request(messages, options, stream=True))
        async for _, event in events(stream):
            yield checked(event)

    def _chat_request(
        self, messages: Sequence[dict[str, Any]], options: dict[str, Any], stream: bool = False
    ) -> GenerateRequest:
        body = {"messages": list(messages), **options, "stream": stream}
        return self._chat.parse(body, self._limits)

    def _completion_request(
        self, prompt: str | Sequence[int], options: dict[str, Any]
    ) -> GenerateRequest:
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **options}
        return self._completions.parse(body, self._limits)

    def _run(self, request: GenerateRequest) -> ThreadStream:
        self._ensure_open()
        work = self._jobs.encode(request)
        stream = ThreadStream(work.n_choices, work.truncation)
        self._runtime.engine.submit(self._jobs.make(work, stream.tickets))
        return stream

    # -- what the server uses ------------------------------------------------------------

    async def embeddings(self, request: EmbedRequest) -> tuple[list[Vector], int]:
        """(a vector for each input, tokens read); cancelling the task cancels the work."""
        vectors, n_tokens = await self._aread(self._embeddings.to_embed, request)
        if request.dimensions is not None:
            # Some tenths of a second for thousands of long vectors: not in the event loop.
            vectors = await asyncio.to_thread(all_shortened, vectors, request.dimensions)
        return vectors, n_tokens

    async def ranks(self, request: RankRequest) -> tuple[list[float], int]:
        """(a score for each document, tokens read)."""
        scores, n_tokens = await self._aread(self._embeddings.to_rank, request)
        return [score[0] for score in scores], n_tokens

    async def _aread(self, encode: Callable[[T], Texts], request: T) -> tuple[list[Vector], int]:
        self._ensure_open()
        # A task that is cancelled meanwhile has submitted nothing.
        work = self._embeddings.submit(await asyncio.to_thread(encode, request))
        return await asyncio.wrap_future(work.future), work.n_tokens

    async def open(self, request: GenerateRequest) -> AsyncStream:
        """Render, tokenise and queue a request; raises before anything is generated."""
        self._ensure_open()
        if self._jobs.is_slow(request):
            work = await asyncio.to_thread(self._jobs.encode, request)
        else:
            work = self._jobs.encode(request)
        stream = AsyncStream(work.n_choices, work.truncation, work.warnings)
        self._runtime.engine.submit(self._jobs.make(work, stream.tickets))
        return stream

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of raw text."""
        return await asyncio.to_thread(
            self._runtime.model.tokenize, text, add_special=add_special, parse_special=parse_special
        )

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids; control tokens have none."""
        return self._runtime.model.detokenize(ids)

    async def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token id."""
        return [self._runtime.model.token_bytes(i) for i in ids]

    async def apply_template(self, prompt: ChatPrompt) -> str:
        """The text the chat template makes of the messages."""
        return await asyncio.to_thread(self._runtime.template.render_text, prompt)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the model can be asked for, as /v1/models names it."""
        generates = ("completion", "chat") if self._runtime.context.is_causal else ()
        embedder = self._runtime.embedder
        if embedder is None:
            return generates
        return (*generates, "rerank" if embedder.pooling == "rank" else "embeddings")

    def info(self) -> dict[str, Any]:
        """The settings in force, as /health shows them."""
        return {"model": self.name, **self._runtime.facts}

    def gauges(self) -> Gauges:
        """How many requests run and wait now."""
        return self._runtime.engine.gauges()

    def counters(self) -> dict[str, Any]:
        """Totals since start."""
        return {**msgspec.to_builtins(self._runtime.engine.counters)}

    def cache(self) -> dict[str, Any]:
        """What the KV cache holds, as /v1/cache shows it; a quarter of a second old at most."""
        return self._runtime.engine.view.cache

    def slots(self) -> list[SlotFacts]:
        """How far each running choice has come; a quarter of a second old at most."""
        return [
            SlotFacts(
                one.n_prompt,
                one.n_computed,
                one.n_generated,
                None if self.config.context_shift else one.n_max,
            )
            for one in self._runtime.engine.view.sequences
        ]

    def props(self) -> PropsFacts:
        """What llama.cpp's /props tells of a model."""
        model, facts = self._runtime.model, self._runtime.facts
        return PropsFacts(
            model=self.name,
            n_ctx=self.n_ctx,
            n_parallel=facts["n_parallel"],
            defaults=self.defaults,
            chat_template=self._runtime.template.source or "",
            bos_token=model.token_text(model.bos_id),
            eos_token=model.token_text(model.eos_id),
            build=facts["llama_cpp"],
        )

    # -- life ----------------------------------------------------------------------------

    def close(self, grace_s: float = 0.0) -> None:
        """Refuse new work, give running requests grace_s seconds, then free everything."""
        self._runtime.engine.close(grace_s)
        atexit.unregister(self._close_at_exit)
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if self._runtime.embedder is not None:
                    self._runtime.embedder.close()
                self._runtime.context.close()
                self._runtime.model.close()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ShuttingDown("this model is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
