"""Grammars of tool calls, in llguidance's Lark.

Owns the notation and the bounds on white space.  Must not know any family, nor
llguidance itself.  Syntax: llguidance's docs/syntax.md and docs/json_schema.md.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ponytail.text.toolcalls.json_text import encode
from ponytail.text.toolcalls.seam import Spell
from ponytail.text.toolcalls.values import Parameters
from ponytail.types import Tool

WHITESPACE = r" |\n {0,16}"
"""White space that may stand between two parts of JSON, at most once: one space, or a new line
with its indentation.  Without a bound a model can write white space for ever."""


def literal(text: str) -> str:
    """The Lark term for a text."""
    return json.dumps(text, ensure_ascii=False)


def either(terms: Sequence[str]) -> str:
    """One of the terms."""
    return terms[0] if len(terms) == 1 else f"({' | '.join(terms)})"


class Rules:
    """Collects the rules of one grammar; terms are made by the methods."""

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._rules: list[str] = []
        self._n_named = 0

    def marker(self, text: str) -> str:
        """The term for a marker, as the vocabulary has it."""
        return self._spell(text)

    def rule(self, body: str) -> str:
        """A new rule; its name."""
        self._n_named += 1
        self._rules.append(f"r{self._n_named}: {body}")
        return f"r{self._n_named}"

    def space(self) -> str:
        """White space, or none."""
        self._once(f"SPACE: /{WHITESPACE}/")
        return "SPACE?"

    def json(self, schema: Any) -> str:
        """A JSON value that fits the schema."""
        options = {"whitespace_pattern": WHITESPACE}
        whole = {"x-guidance": options, **schema} if isinstance(schema, dict) else schema
        return self.rule(f"%json {json.dumps(whole, ensure_ascii=False)}")

    def arguments(self, tool: Tool) -> str:
        """The JSON arguments of a tool."""
        return self.json({"type": "object", **tool.parameters})

    def calls(
        self,
        tools: Sequence[Tool],
        arguments_key: str,
        *,
        name_key: str = "name",
        first: tuple[str, Any] | None = None,
    ) -> str:
        """A call of one of the tools: `{"name": "f", "arguments": {...}}`.

        `first` is a member (key, schema of its value) that may stand before the name.
        """
        space = self.space()
        head = '"{"'
        if first is not None:
            head += f" {space} {self._member(first[0], self.json(first[1]))}?"
        calls = []
        for tool in tools:
            name = self._member(name_key, literal(encode(tool.name)))
            arguments = (
                f'{literal(encode(arguments_key))} {space} ":" {space} {self.arguments(tool)}'
            )
            calls.append(self.rule(f'{head} {space} {name} {space} {arguments} {space} "}}"'))
        return self.rule(either(calls))

    def _member(self, key: str, value: str) -> str:
        """`"key": value,`; the value is a term."""
        space = self.space()
        return f'({literal(encode(key))} {space} ":" {space} {value} {space} ",")'

    def listed(self, call: str, *, is_parallel: bool) -> str:
        """`[call]`, or several."""
        space = self.space()
        more = f'({space} "," {space} {call})* ' if is_parallel else ""
        return f'"[" {space} {call} {more}{space} "]"'

    def text_until(self, marker: str) -> str:
        """Any text and the first marker after it."""
        self._once("ANY: /(?s:.*)/")
        term = self.marker(marker)
        if not term.startswith('"'):
            return f"ANY {term}"
        return self._lazy(term)

    def members(self, known: Parameters, member: Callable[[str], str], separator: str) -> str:
        """A tool's parameters in the schema's order, the optional ones or not; "" without any.

        `member` makes the term of one by its name, `separator` is a text.
        """
        items = [(self.rule(member(name)), name in known.required) for name in known.names]
        return self.in_order(items, literal(separator))

    def in_order(self, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """Items (term, whether it must be there) in this order with separators between."""
        rest, first, may_be_empty = "", "", True
        for term, is_needed in reversed(items):
            alone = f"{term} {rest}"
            if is_needed:
                first, may_be_empty = alone, False
            else:
                first = self.rule(f"{alone} | {first}" if first else alone)
            one = f"{separator} {term}"
            rest = self.rule(f"{one if is_needed else f'({one})?'} {rest}")
        return f"({first})?" if first and may_be_empty else first

    def source(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _lazy(self, term: str) -> str:
        self._n_named += 1
        self._rules.append(f"r{self._n_named}[suffix={term}]: ANY")
        return f"r{self._n_named}"

    def _once(self, rule: str) -> None:
        if rule not in self._rules:
            self._rules.append(rule)
