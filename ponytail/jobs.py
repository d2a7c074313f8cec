"""From a request to the jobs that the engine runs.

Owns the order: is it possible at all, what may the answers look like, which tokens is the
prompt, which seed has each choice.  Must not know HTTP.  Any thread; `encode` may take long.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from ponytail.config import Config
from ponytail.engine.sequence import Job, Ticket
from ponytail.errors import InvalidRequest
from ponytail.prompts import Encoded, Prompts
from ponytail.runtime import Runtime
from ponytail.text.answers import Answers, Plan, echoed, salted
from ponytail.types import ChatPrompt, GenerateRequest, Prompt, TextPrompt, Truncation

# With --context-shift an answer has no end of its own but the model's and max_tokens.
_ENDLESS = 1 << 40


class Work(msgspec.Struct, frozen=True):
    """A request made ready: its prompts in tokens, and what its answers may look like."""

    request: GenerateRequest
    prompts: list[Encoded]
    plan: Plan

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.request.n

    @property
    def truncation(self) -> Truncation | None:
        return self.prompts[0].truncation

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was asked for and is not kept to the letter."""
        return self.plan.warnings


class Jobs:
    """For one loaded model and a window of n_ctx tokens."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        self._runtime = runtime
        self._n_ctx = runtime.sizing.ctx
        self._is_endless = config.context_shift
        self._can_cut = runtime.context.can_cut
        self._answers = Answers(runtime.model, runtime.template, config.tool_format)
        self.prompts = Prompts(
            runtime.model,
            runtime.template,
            self._n_ctx,
            tags=self._answers.tags,
            needs_marks=config.context_shift or not self._can_cut,
        )

    def is_slow(self, request: GenerateRequest) -> bool:
        """Whether `encode` takes long enough to be noticed by others."""
        # Leaving turns out may take a dozen renderings.
        return request.truncates or self._answers.is_slow(request) or self.prompts.is_long(request)

    def encode(self, request: GenerateRequest) -> Work:
        """Raises RequestError for what cannot be done."""
        if not self._runtime.context.is_causal:
            raise InvalidRequest("this model reads texts and cannot generate any")
        return Work(request, self.prompts.encode(request), self._answers.plan(request))

    def make(self, work: Work, tickets: Sequence[Ticket]) -> list[Job]:
        """One job for each choice, in the order of their indexes."""
        request = work.request
        seed = request.sampling.seed
        seed = secrets.randbits(32) if seed is None else seed
        jobs = []
        for i, prompt in enumerate(work.prompts):
            prefix = self._echo(request.prompts[i], prompt.ids) if request.echo else ""
            is_chat = isinstance(request.prompts[i], ChatPrompt)
            for j in range(request.n):
                ticket = tickets[i * request.n + j]
                jobs.append(self._job(work, prompt, ticket, seed + j, prefix, is_chat=is_chat))
        return jobs

    def _job(
        self, work: Work, prompt: Encoded, ticket: Ticket, seed: int, prefix: str, *, is_chat: bool
    ) -> Job:
        request, plan = work.request, work.plan
        room = _ENDLESS if self._is_endless else self._n_ctx - len(prompt.ids)
        output = plan.output(is_chat=is_chat, is_open=prompt.opens_thinking)
        scores_prompt = request.echo and request.n_logprobs is not None
        return Job(
            ticket=ticket,
            prompt=prompt.ids,
            output=output,
            sampling=plan.sampling,
            seed=seed,
            n_max=room if request.max_tokens is None else min(request.max_tokens, room),
            is_streaming=request.stream,
            is_solo=request.deterministic,
            prefix=prefix,
            n_keep=prompt.n_keep,
            guide=plan.guide(is_chat=is_chat, is_open=prompt.opens_thinking),
            n_logprobs=request.n_logprobs,
            scores_prompt=scores_prompt,
            on_scored=(
                (lambda scores: echoed(output, prefix, prompt.ids, scores))
                if scores_prompt
                else None
            ),
            stop_ids=request.stop_ids,
            priority=request.priority,
            deadline_s=request.deadline_s,
            key=salted(request.cache_salt, prompt.ids[0]) if request.cache_salt else None,
            marks=() if self._can_cut else prompt.marks,
        )

    def _echo(self, prompt: Prompt, ids: list[int]) -> str:
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return self._runtime.model.detokenize(ids)
