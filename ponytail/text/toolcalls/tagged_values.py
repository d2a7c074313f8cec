"""What formats share that write each parameter's value between tags, without JSON quotes.

Owns how a value is asked for: text of a string up to its tag, JSON of other types.  Pure.
"""

from __future__ import annotations

from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.values import Parameters
from ponytail.types import Tool

_NAME = "/[A-Za-z_][A-Za-z0-9_]{0,62}/"


def tagged_members(
    rules: Rules, tool: Tool, *, before: str, between: str, close: str, pad: str
) -> str:
    """All members of a call: `before` name `between` value `close`, in the schema's order.

    `before` and `between` are Lark terms, `close` is a marker, `pad` is the text beside a value.
    Where the schema names no parameters any may be written.
    """
    known = Parameters(tool)
    gap = f" {literal(pad)}" if pad else ""

    def member_of(name: str) -> str:
        value = _value(rules, known, name, pad, close)
        return f"{before} {literal(name)} {between}{gap} {value}"

    if known.names or known.is_closed:
        return rules.members(known, member_of, "\n")
    member = rules.rule(f"{before} {_NAME} {between}{gap} {rules.text_until(close)}")
    return f'({member} ("\\n" {member})*)?'


def _value(rules: Rules, known: Parameters, name: str, pad: str, close: str) -> str:
    """The value and the tag that closes it."""
    end = f"{literal(pad)} {rules.marker(close)}" if pad else rules.marker(close)
    texts = known.texts(name)
    if texts is not None:
        return f"{either([literal(text) for text in texts])} {end}"
    if "string" in known.types(name):
        return rules.text_until(close)
    return f"{rules.json(known.whole_schema(name))} {end}"
