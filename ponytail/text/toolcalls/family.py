"""A call format put together from a reading and a block; fits `CallFormat`.

Must not know any family.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ponytail.text.thinking import Tags
from ponytail.text.toolcalls.answer import Reading, StreamParser
from ponytail.text.toolcalls.lark import Rules
from ponytail.text.toolcalls.seam import CallParser, NewId, Spell, Trigger, new_call_id
from ponytail.types import Tool


@dataclass(frozen=True, slots=True)
class Family:
    """`block` writes the rules of one block and returns its term; its last argument says
    whether several calls may stand in it.  `shows` tells from a chat template's source
    whether it is of this family.  `openings` are the triggers' texts.  The rest is told at
    `CallFormat`."""

    name: str
    example: str
    reading: Callable[[Sequence[Tool]], Reading]
    block: Callable[[Rules, Sequence[Tool], bool], str]
    shows: Callable[[str], bool]
    openings: Callable[[Sequence[Tool]], tuple[Trigger, ...]]
    markers: frozenset[str] = frozenset()
    repeats: bool = True
    thinking: Tags | None = None
    before_answer: str = ""

    def triggers_for(self, tools: Sequence[Tool]) -> tuple[Trigger, ...]:
        """What a block may begin with."""
        return self.openings(tools)

    def is_written_by(self, template: str) -> bool:
        """Whether a chat template with this source shows calls in this format."""
        return self.shows(template)

    def parser(self, tools: Sequence[Tool], new_id: NewId = new_call_id) -> CallParser:
        """For one choice."""
        return StreamParser(self.reading(tools), new_id)

    def grammar(self, tools: Sequence[Tool], spell: Spell, *, is_parallel: bool) -> str:
        """Lark source of one block."""
        rules = Rules(spell)
        return rules.source(self.block(rules, tools, is_parallel))


def opened_by(*texts: str) -> Callable[[Sequence[Tool]], tuple[Trigger, ...]]:
    """Triggers that are the same for all tools."""
    triggers = tuple(Trigger(text) for text in texts)
    return lambda tools: triggers
