"""Calls written as Python: `f(x="a", n=1)`.

Owns where an argument ends and what its literal means.  Nothing is evaluated: the
text is parsed to a syntax tree of which only literals are taken.  Pure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ponytail.text.toolcalls.answer import Answer
from ponytail.text.toolcalls.lark import Rules, either, literal
from ponytail.text.toolcalls.source import NAME, SPACE, Source, Steps
from ponytail.text.toolcalls.values import NO_PARAMETERS, Parameters
from ponytail.text.toolcalls.written_arguments import WrittenArguments
from ponytail.types import Tool

_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
_RAW_STRING = re.compile(r"""\b(?:[rR][bB]?|[bB][rR])["']""")
_WRONG_ESCAPE = re.compile(r"""(\\\\)|\\(?![\n\r\\'"abfnrtv0-7xNuU])""")
_OPENING, _CLOSING = "([{", ")]}"


def read_calls(
    source: Source,
    answer: Answer,
    known: Mapping[str, Parameters],
    name: str,
    *,
    between: str,
    before: Collection[str] = (),
) -> Steps[bool]:
    """Tell the call of this name, whose parenthesis was read, and those after it.

    `between` are characters that may part them, `before` what may stand before a name.
    Whether all were complete.
    """
    while name:
        if not (yield from read_arguments(source, answer, name, known)):
            return False
        yield from source.take_while(SPACE + between)
        yield from source.skip_any(before)
        name = yield from read_name(source)
    return True


def read_name(source: Source) -> Steps[str]:
    """The name of the call that comes next and its parenthesis; "" and nothing read if none."""
    source.keep()
    name = yield from source.take_while(NAME)
    if name and (yield from source.skip("(")):
        source.kept()
        return name
    source.rewind()
    return ""


def read_arguments(
    source: Source, answer: Answer, name: str, known: Mapping[str, Parameters]
) -> Steps[bool]:
    """Tell the call whose parenthesis was read; whether it was complete."""
    answer.begin_call(name)
    parameters = known.get(name, NO_PARAMETERS)
    arguments = WrittenArguments(answer)
    n_unnamed = 0
    while True:
        text, end = yield from _read_argument(source)
        if not end:
            return False
        if text.strip(SPACE):
            found = _NAMED.match(text)
            key = found[1] if found else _key_at(parameters, n_unnamed)
            n_unnamed += found is None
            arguments.member(key, value_of(parameters, key, found[2] if found else text))
        if end == ")":
            arguments.close()
            return True


def value_of(parameters: Parameters, name: str, text: str) -> str:
    """Python literal -> JSON; text that is none is a string, or what the schema makes of it."""
    text = text.strip()
    try:
        value = _literal(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
        return parameters.json_of_text(name, text[1:-1] if is_quoted else text)
    return parameters.json_of_value(name, value, text)


def call_terms(rules: Rules, tools: Sequence[Tool]) -> str:
    """The term for one call of a tool."""
    return rules.rule(either([_call(rules, tool) for tool in tools]))


def _call(rules: Rules, tool: Tool) -> str:
    known = Parameters(tool)
    members = rules.members(
        known, lambda name: f"{literal(name + '=')} {_value(rules, known, name)}", ", "
    )
    if not known.names and not known.is_closed:
        member = rules.rule(f'/[A-Za-z_][A-Za-z0-9_]{{0,62}}/ "=" {rules.json({})}')
        members = f'({member} (", " {member})*)?'
    return rules.rule(f"{literal(tool.name + '(')} {members} {literal(')')}")


def _value(rules: Rules, known: Parameters, name: str) -> str:
    """JSON, but for the words that Python spells otherwise.  JSON strings are Python's too."""
    words = {"boolean": ["True", "False"], "null": ["None"]}
    spelled = words.get(next(iter(known.types(name)))) if len(known.types(name)) == 1 else None
    if spelled:
        return either([literal(word) for word in spelled])
    return rules.json(known.whole_schema(name))


def _key_at(parameters: Parameters, index: int) -> str:
    """The name of an argument that was given by its place."""
    return parameters.names[index] if index < len(parameters.names) else f"arg{index + 1}"


def _read_argument(source: Source) -> Steps[tuple[str, str]]:
    """(the text up to a comma or parenthesis outside of any other, that character)."""
    pieces: list[str] = []
    depth = 0
    while c := (yield from source.peek()):
        if c in "\"'":
            pieces.append((yield from _read_quoted(source)))
            continue
        source.take()
        if depth == 0 and c in ",)":
            return "".join(pieces), c
        depth += (c in _OPENING) - (c in _CLOSING and depth > 0)
        pieces.append(c)
    return "", ""


def _read_quoted(source: Source) -> Steps[str]:
    """A string with its quotes, one or three of them."""
    quote = source.take()
    quotes = quote + (yield from source.skip_any((quote * 2,)))
    if len(quotes) == 1 and (yield from source.skip(quote)):
        return quote * 2
    pieces = [quotes]
    while c := (yield from source.peek()):
        if (yield from source.skip(quotes)):
            pieces.append(quotes)
            break
        pieces.append(source.take())
        if c == "\\" and (yield from source.peek()):
            pieces.append(source.take())
    return "".join(pieces)


def _literal(text: str) -> Any:
    # Python warns of unknown escapes on stderr; it takes them as they are written, as here.
    if not _RAW_STRING.search(text):
        text = _WRONG_ESCAPE.sub(lambda found: found[1] or "\\\\", text)
    return _value_of_node(ast.parse(text, mode="eval").body)


def _value_of_node(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return _finite(value)
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _finite(-value)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value_of_node(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_key_of(key): _value_of_node(value) for key, value in pairs}
        case _:
            raise ValueError("no literal")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise ValueError("JSON has no infinity")
    return value


def _key_of(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    raise ValueError("no literal")
