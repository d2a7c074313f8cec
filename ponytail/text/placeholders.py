"""Keeps special-token literals in user text from becoming control tokens.

Owns the swap: a literal such as `<|im_end|>` inside content, a name or tool
arguments becomes one private-use character before rendering, and the rendered
text is cut there.  One character survives trimming, slicing, splitting and
upper-casing, and leaves the rest of the text for the template to look at.
Must not know Jinja or messages.  `SpecialLiterals` is immutable; a `Swap` belongs
to one rendering.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from ponytail.errors import TemplateError

_Trie: TypeAlias = dict[str, "_Trie"]
_END = ""

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_JSON_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")


class Segment(msgspec.Struct, frozen=True):
    """A piece of a rendered prompt.

    Scaffold is tokenised with special tokens parsed; it holds the template's own
    text and all ordinary content.  The rest are literals that came from content,
    tokenised with specials off.
    """

    text: str
    is_scaffold: bool


class SpecialLiterals:
    """The texts that the tokenizer would read as special tokens.

    Literals of white space only are left alone: they forge nothing, and hiding
    them would break templates that trim.
    """

    def __init__(self, literals: Iterable[str]) -> None:
        self.all = frozenset(literal for literal in literals if literal.strip())

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Any literal, the longest that fits."""
        return re.compile(_alternatives(_trie(self.all)) if self.all else "(?!)")

    @cached_property
    def edge_pattern(self) -> re.Pattern[str]:
        """A literal, or a character that a literal could begin or end with.

        Letters and digits are no edges: literals made of words cannot be told from text.
        """
        edges = {edge for literal in self.all for edge in (literal[0], literal[-1])}
        signs = "".join(re.escape(edge) for edge in sorted(edges) if not edge.isalnum())
        return re.compile(f"{self.pattern.pattern}|[{signs}]") if signs else self.pattern

    def is_inside(self, text: str) -> bool:
        """Whether `text` is part of a literal."""
        return text in self._joined

    @cached_property
    def _joined(self) -> str:
        return "\0".join(sorted(self.all))

    def count_in(self, text: str) -> Counter[str]:
        """How often each literal stands in `text`."""
        return Counter(self.pattern.findall(text))


def _trie(words: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for word in words:
        node = root
        for character in word:
            node = node.setdefault(character, {})
        node[_END] = {}
    return root


def _alternatives(node: _Trie) -> str:
    """The regular expression of what follows `node`, longest first.

    Thousands of literals share few beginnings, so a trie keeps the search short.
    """
    branches = [_branch(character, child) for character, child in node.items() if character]
    if not branches:
        return ""
    joined = f"(?:{'|'.join(branches)})"
    return joined + "?" if _END in node else joined


def _branch(character: str, node: _Trie) -> str:
    text = re.escape(character)
    while len(node) == 1 and _END not in node:
        character, node = next(iter(node.items()))
        text += re.escape(character)
    return text + _alternatives(node)


class Swap:
    """One rendering's placeholders: which private-use character stands for which text."""

    def __init__(self, literals: SpecialLiterals, free: Iterable[str]) -> None:
        """`free` are characters that cannot show up in the rendering otherwise."""
        self._literals = literals
        self._free = iter(free)
        self._by_text: dict[str, str] = {}
        self._by_character: dict[str, str] = {}

    def hide(self, value: Any, keep: frozenset[str] = frozenset()) -> Any:
        """`value` with the literals in all its strings, keys too, swapped; `keep` stay."""
        return _mapped(value, partial(self._literals.pattern.sub, self._replacer(keep)))

    def hide_edges(self, value: Any, keep: frozenset[str] = frozenset()) -> Any:
        """The same, and whatever could become part of a literal once it is joined to more."""
        if isinstance(value, str):
            core = value.strip()
            if core and core not in self._literals.all and self._literals.is_inside(core):
                return value.replace(core, self._character(core), 1)
        return _mapped(value, partial(self._literals.edge_pattern.sub, self._replacer(keep)))

    @property
    def has_literals_only(self) -> bool:
        """Whether all that was hidden are whole literals."""
        return self._by_text.keys() <= self._literals.all

    def _replacer(self, keep: frozenset[str]) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            text = match.group()
            return text if text in keep else self._character(text)

        return replace

    def _character(self, text: str) -> str:
        character = self._by_text.get(text)
        if character is None:
            character = self._new_character(text)
            self._by_text[text] = character
        return character

    def _new_character(self, text: str) -> str:
        character = next(self._free, "")
        if not character:
            raise TemplateError("template error: the messages use every private-use character")
        self._by_character[character] = text
        return character

    def mark(self) -> str:
        """A character that stands for nothing, to see where a text ends in the rendering."""
        return self._new_character("")

    def until(self, mark: str, rendered: str) -> str | None:
        """The rendering up to the last `mark`, which was given with a blank behind it.

        Where the template trimmed that blank, the text before is trimmed too.  None when the
        mark is lost.
        """
        before, found, after = self._unescaped(rendered).rpartition(mark)
        if not found:
            return None
        return before if after.startswith(" ") else before.rstrip()

    def restore(self, text: str) -> str:
        """`text` as it reads with every literal in its place."""
        if not self._by_character:
            return text
        table: dict[str, str | int | None] = {**self._by_character}
        return self._unescaped(text).translate(str.maketrans(table))

    def _unescaped(self, text: str) -> str:
        """Placeholders that a template wrote as JSON in ASCII, as characters again."""
        if "\\u" in text:
            for character in self._by_character:
                text = text.replace(json.dumps(character)[1:-1], character)
        return text

    def cut(self, rendered: str) -> tuple[Segment, ...]:
        """Scaffold and literals of a rendered text, in order."""
        if not self._by_character:
            return (Segment(rendered, True),) if rendered else ()
        rendered = self._unescaped(rendered)
        pattern = f"([{''.join(map(re.escape, self._by_character))}]+)"
        pieces = zip(_alternating(), re.split(pattern, rendered), strict=False)
        restored = ((self.restore(piece) if is_lit else piece, is_lit) for is_lit, piece in pieces)
        return tuple(Segment(text, not is_literal) for text, is_literal in restored if text)


def _alternating() -> Iterator[bool]:
    while True:
        yield False
        yield True


class FreeCharacters:
    """The private-use characters that are in none of the texts of a rendering."""

    def __init__(self, taken: Any) -> None:
        """`taken` are texts in lists and dicts, as JSON has them."""
        # One text is looked through faster than each of its parts.
        text = json.dumps(taken, ensure_ascii=False)
        self._used = frozenset() if text.isascii() else frozenset(text)
        if "\\u" in text:
            self._used |= frozenset(_JSON_ESCAPE.findall(text))

    def __iter__(self) -> Iterator[str]:
        characters = map(chr, chain(*_PRIVATE_USE))
        if not self._used:
            return characters
        return (one for one in characters if self._used.isdisjoint((one, *_escapes(one))))


def _escapes(character: str) -> list[str]:
    return _JSON_ESCAPE.findall(json.dumps(character))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change(key) if isinstance(key, str) else key: (
                change(part) if isinstance(part, str) else _mapped(part, change)
            )
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value


def starts_with(segments: Iterable[Segment], literal: str) -> bool:
    """Whether the template itself begins the prompt with `literal` (the BOS token, say)."""
    first = next(iter(segments), None)
    return bool(
        literal and first is not None and first.is_scaffold and first.text.startswith(literal)
    )
