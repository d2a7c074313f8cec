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
import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ponytail.api.dialect import Limits
from ponytail.api.openai import ChatCompletions, Completions
from ponytail.config import Config
from ponytail.delivery import AsyncStream, Indexed, ThreadStream
from ponytail.engine.sequence import Job, Ticket
from ponytail.engine.stats import Gauges
from ponytail.errors import ShuttingDown
from ponytail.gguf import GGUFHeader, inspect
from ponytail.prompts import Encoded, Prompts
from ponytail.runtime import Runtime, build
from ponytail.text.output import Output
from ponytail.types import (
    ChatPrompt,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Prompt,
    Reasoning,
    Sampling,
    Text,
    TextPrompt,
    Truncation,
    Usage,
)

# In process there is no client to send away: whoever asks for a thousand answers waits for them.
_NO_QUEUE_LIMIT = 1_000_000
# With --context-shift an answer has no end of its own but the model's and max_tokens.
_ENDLESS = 1 << 40


class Choice(msgspec.Struct, frozen=True):
    """One finished answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    reasoning: str = ""
    stop: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """All choices of one request; `text`, `finish_reason` and `usage` are the first one's.

    `truncation` says what `truncation="auto"` dropped.
    """

    choices: tuple[Choice, ...]
    truncation: Truncation | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        return self.choices[0].usage


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
        self._prompts = Prompts(
            runtime.model,
            runtime.template,
            self.n_ctx,
            needs_marks=config.context_shift or not runtime.context.can_cut,
        )
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
        return _collect(iter(stream), stream.truncation)

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Answer:
        """Continue raw text or token ids; blocks until it is complete."""
        return _collect(iter(self._run(self._completion_request(prompt, options))))

    def stream(self, messages: Sequence[dict[str, Any]], **options: Any) -> Iterator[Event]:
        """Events of one answer as they come; leaving the loop early cancels it."""
        request = self._chat_request(messages, options, stream=True)
        return (_checked(event) for _, event in self._run(request))

    async def achat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Answer:
        """Async twin of chat; cancelling the task cancels the work."""
        stream = await self.open(self._chat_request(messages, options))
        return _collect([e async for e in _events(stream)], stream.truncation)

    async def acomplete(self, prompt: str | Sequence[int], **options: Any) -> Answer:
        """Async twin of complete."""
        stream = await self.open(self._completion_request(prompt, options))
        return _collect([e async for e in _events(stream)])

    async def astream(
        self, messages: Sequence[dict[str, Any]], **options: Any
    ) -> AsyncIterator[Event]:
        """Async twin of stream."""
        stream = await self.open(self._chat_request(messages, options, stream=True))
        async for _, event in _events(stream):
            yield _checked(event)

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
        encoded = self._encode(request)
        stream = ThreadStream(len(request.prompts) * request.n, encoded[0].truncation)
        self._submit(request, encoded, stream.tickets)
        return stream

    # -- what the server uses ------------------------------------------------------------

    async def open(self, request: GenerateRequest) -> AsyncStream:
        """Render, tokenise and queue a request; raises before anything is generated."""
        # Leaving turns out may take a dozen renderings.
        if request.truncates or self._prompts.is_long(request):
            encoded = await asyncio.to_thread(self._encode, request)
        else:
            encoded = self._encode(request)
        stream = AsyncStream(len(request.prompts) * request.n, encoded[0].truncation)
        self._submit(request, encoded, stream.tickets)
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
        return self._runtime.engine.cache_facts()

    # -- requests to jobs ----------------------------------------------------------------

    def _encode(self, request: GenerateRequest) -> list[Encoded]:
        self._ensure_open()
        return self._prompts.encode(request)

    def _submit(
        self, request: GenerateRequest, encoded: list[Encoded], tickets: tuple[Ticket, ...]
    ) -> None:
        seed = request.sampling.seed
        seed = secrets.randbits(32) if seed is None else seed
        jobs = []
        for i, prompt in enumerate(encoded):
            prefix = self._echo(request.prompts[i], prompt.ids) if request.echo else ""
            for j in range(request.n):
                ticket = tickets[i * request.n + j]
                jobs.append(self._job(request, prompt, ticket, seed + j, prefix))
        self._runtime.engine.submit(jobs)

    def _job(
        self, request: GenerateRequest, prompt: Encoded, ticket: Ticket, seed: int, prefix: str
    ) -> Job:
        room = _ENDLESS if self.config.context_shift else self.n_ctx - len(prompt.ids)
        return Job(
            ticket=ticket,
            prompt=prompt.ids,
            output=Output(self._runtime.pieces, request.stop, request.sampling.min_tokens),
            sampling=request.sampling,
            seed=seed,
            n_max=room if request.max_tokens is None else min(request.max_tokens, room),
            is_streaming=request.stream,
            is_solo=request.deterministic,
            prefix=prefix,
            n_keep=prompt.n_keep,
            marks=() if self._runtime.context.can_cut else prompt.marks,
        )

    def _echo(self, prompt: Prompt, ids: list[int]) -> str:
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return self._runtime.model.detokenize(ids)

    # -- life ----------------------------------------------------------------------------

    def close(self, grace_s: float = 0.0) -> None:
        """Refuse new work, give running requests grace_s seconds, then free everything."""
        self._runtime.engine.close(grace_s)
        atexit.unregister(self._close_at_exit)
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
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


async def _events(stream: AsyncStream) -> AsyncIterator[Indexed]:
    """All events; leaving early cancels."""
    try:
        while not stream.done:
            for item in await stream.receive():
                yield item
    finally:
        stream.cancel()


def _checked(event: Event) -> Event:
    if isinstance(event, Failed):
        raise event.error
    return event


def _collect(
    items: Iterator[Indexed] | list[Indexed], truncation: Truncation | None = None
) -> Answer:
    texts: dict[int, list[str]] = {}
    thoughts: dict[int, list[str]] = {}
    ends: dict[int, Finished] = {}
    for index, event in items:
        match _checked(event):
            case Text(text):
                texts.setdefault(index, []).append(text)
            case Reasoning(text):
                thoughts.setdefault(index, []).append(text)
            case Finished() as end:
                ends[index] = end
            case _:
                pass
    return Answer(
        tuple(
            Choice(
                text="".join(texts.get(i, ())),
                finish_reason=end.reason,
                usage=end.usage,
                reasoning="".join(thoughts.get(i, ())),
                stop=end.stop,
            )
            for i, end in sorted(ends.items())
        ),
        truncation,
    )
