"""A call written as a JSON object: `{"name": "f", "arguments": {...}}`.

Owns the keys that different models use, in any order, and what happens to an object
that is no call after all: it comes back as text.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from ponytail.text.toolcalls.answer import Answer
from ponytail.text.toolcalls.json_text import pass_arguments, pass_value, read_string
from ponytail.text.toolcalls.source import SPACE, Source, Steps

_NAME_KEYS = frozenset({"name", "tool_name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_KNOWN_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"type", "id", "tool_call_id", "index"}


def _drop(text: str) -> None:
    """A sink for what nobody needs."""


class JsonCall:
    """Reads one object that may be a call; its `{` comes next.

    With `only`, the object must look like a call of one of these tools from its first key on.
    `silent` are names of no tools that models call to say that they call none.
    """

    def __init__(
        self,
        source: Source,
        answer: Answer,
        ends: Collection[str] = (),
        only: Collection[str] | None = None,
        silent: Collection[str] = (),
    ) -> None:
        self._source = source
        self._answer = answer
        self._ends = ends
        self._only = only
        self._silent = silent
        self._name: str | None = None
        self._early: list[str] = []
        self._has_arguments = False

    def read(self) -> Steps[str | None]:
        """None after a call; otherwise what was read, which is text."""
        self._source.keep()
        is_closed = yield from self._read_members()
        if self._name is None:
            return self._source.kept()
        if not self._has_arguments and (is_closed or (yield from self._source.peek())):
            self._pass_on("{}")
        return None

    def _read_members(self) -> Steps[bool]:
        """Up to the closing brace; False where the object breaks off."""
        depth = 0
        while True:
            yield from self._source.take_while(SPACE + ",")
            c = yield from self._source.peek()
            if c == "{" and depth == 0:
                self._source.take()
                depth = 1
            elif c == "}":
                self._source.take()
                depth -= 1
                if depth == 0:
                    return True
            elif c == '"':
                key = yield from self._read_key()
                if key == "function" and (yield from self._source.skip("{")):
                    depth += 1  # the call is told as in OpenAI's objects, one level down
                elif key is None or not (yield from self._read_member(key)):
                    return False
            else:
                return False

    def _read_key(self) -> Steps[str | None]:
        key = yield from read_string(self._source)
        yield from self._source.skip_space()
        if not (yield from self._source.skip(":")):
            return None
        yield from self._source.skip_space()
        return key

    def _read_member(self, key: str) -> Steps[bool]:
        """Whether to read on."""
        is_string = (yield from self._source.peek()) == '"'
        if key in _NAME_KEYS and is_string and self._name is None:
            name = yield from read_string(self._source)
            return name is not None and self._begin(name)
        if key in _ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            return (yield from pass_arguments(self._source, self._pass_on, self._ends))
        if self._only is not None and self._name is None and key not in _KNOWN_KEYS:
            return False
        return (yield from pass_value(self._source, _drop, self._ends))

    def _begin(self, name: str) -> bool:
        if self._only is not None and name not in self._only:
            return False
        self._name = name
        self._source.kept()
        if name not in self._silent:
            self._answer.begin_call(name)
        self._pass_on("".join(self._early))
        return True

    def _pass_on(self, fragment: str) -> None:
        if self._name is None:
            self._early.append(fragment)
        elif self._name not in self._silent:
            self._answer.arguments(fragment)
