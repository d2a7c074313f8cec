"""From what an answer must look like to a grammar that llguidance has built.

Owns llguidance's tokenizer of one model and a cache of built grammars.  Nothing is made before
the first request that needs it.  Any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias, assert_never

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from ponytail.errors import InvalidRequest
from ponytail.text.grammar.matcher import Matcher
from ponytail.text.grammar.schema import WHITESPACE, locate, prepared, wrong
from ponytail.text.grammar.vocabulary import Vocabulary, make_tokenizer
from ponytail.text.recent import Recent
from ponytail.types import Constraint, Grammar, JsonSchema, OneOfTexts, Regex

Part: TypeAlias = dict[str, Any]
"""One member of llguidance's list of grammars."""

_N_CACHED = 256
_LIMITS = LLParserLimits(verbose_errors=False)


class Compiled:
    """A built grammar; each choice takes a matcher of its own."""

    def __init__(self, part: Part, inner: Any, vocabulary: Vocabulary) -> None:
        self.part = part
        self._inner = inner
        self._vocabulary = vocabulary

    def matcher(self) -> Matcher:
        """A fresh one, at the start of the grammar."""
        return Matcher(self._inner.deep_copy(), self._vocabulary.tokenize_inside)


class Grammars:
    """For one model's vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._cache: Recent[str, Compiled] = Recent(_N_CACHED)

    @cached_property
    def _tokenizer(self) -> Any:
        return make_tokenizer(self._vocabulary)

    def constraint(self, constraint: Constraint) -> Compiled:
        """Raises InvalidRequest, with the path of what cannot be built."""
        match constraint:
            case JsonSchema(schema, param):
                return self.schema(schema, param)
            case Regex(pattern, param):
                return self._built({"lark_grammar": f"start: {_lark_regex(pattern)}"}, param)
            case Grammar(text, "lark", param):
                return self._built({"lark_grammar": text}, param)
            case Grammar(text, _, param):
                return self._built({"lark_grammar": _from_gbnf(text, param)}, param)
            case OneOfTexts(texts, param):
                words = " | ".join(quoted(text) for text in dict.fromkeys(texts))
                return self._built({"lark_grammar": f"start: {words}"}, param)
            case _:
                assert_never(constraint)

    def schema(self, schema: Any, param: str) -> Compiled:
        """One JSON value that fits the schema."""
        part = schema_part(prepared(schema, param))
        try:
            return self._built(part, param)
        except InvalidRequest:
            path, words = locate(schema, param, lambda s: self._error_of(_try_part(s, param)))
            raise wrong(path, _words(words)) from None

    def fits(self, schema: Any) -> str:
        """Why no grammar can be built of a prepared schema; "" when one can."""
        return self._error_of(schema_part(schema))

    def lark(self, source: str, param: str) -> Compiled:
        """A grammar in llguidance's Lark notation."""
        return self._built({"lark_grammar": source}, param)

    def joined(self, start: str, parts: Mapping[str, Compiled], param: str) -> Compiled:
        """A grammar over others: `start` is Lark that names them, `@call+ | @answer`."""
        named = [{**compiled.part, "name": name} for name, compiled in parts.items()]
        return self._built({"lark_grammar": f"start: {start}"}, param, named)

    def spell(self, text: str) -> str:
        """The Lark term for a marker: its id where it is a control token."""
        token_id = self._vocabulary.control_ids.get(text)
        return quoted(text) if token_id is None else f"<[{token_id}]>"

    def _error_of(self, part: Part | None) -> str:
        if part is None:
            return ""
        matcher = self._matcher(json.dumps({"grammars": [part]}))
        return str(matcher.get_error()).strip() if matcher.is_error() else ""

    def _matcher(self, source: str) -> Any:
        try:
            return LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        except BaseException as error:
            # A panic in the library is no Exception to Python.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return _Unbuilt(str(error))

    def _built(self, part: Part, param: str, others: list[Part] | None = None) -> Compiled:
        source = json.dumps({"grammars": [part, *(others or ())]})

        def make() -> Compiled:
            inner = self._matcher(source)
            if inner.is_error():
                raise wrong(param, _words(inner.get_error()))
            return Compiled(part, inner, self._vocabulary)

        return self._cache.get(source, make)


class _Unbuilt:
    """Stands for a matcher where llguidance broke instead of saying what is wrong."""

    def __init__(self, words: str) -> None:
        self._words = words or "llguidance broke"

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return self._words


def schema_part(schema: Any) -> Part:
    """A prepared schema as a part, with white space bounded."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"json_schema": {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}}


def _try_part(schema: Any, param: str) -> Part | None:
    try:
        return schema_part(prepared(schema, param))
    except InvalidRequest:
        return None


def quoted(text: str) -> str:
    """`text` as a Lark string."""
    return json.dumps(text, ensure_ascii=True)


def _lark_regex(pattern: str) -> str:
    return "/" + pattern.replace("/", r"\/") + "/s"


# \xHH, \uHHHH and \UHHHHHHHH, each after an even number of backslashes.
_CODE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:x(..)|u(....)|U(........))")


def _from_gbnf(text: str, param: str) -> str:
    try:
        return str(any_to_lark(_CODE.sub(_character, text)))
    except Exception as error:
        raise wrong(param, f"this is no GBNF grammar: {error}") from error


def _character(match: re.Match[str]) -> str:
    """A printable character in place of its code, which the translator does not know."""
    before, *codes = match.groups()
    character = chr(int(next(code for code in codes if code), 16))
    is_plain = character.isprintable() and character not in '"\\[]^-/'
    return before + character if is_plain else match[0]


def _words(error: str) -> str:
    """llguidance's words in one sentence."""
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    return f"the grammar cannot be built: {' '.join(lines)[:300]}"
