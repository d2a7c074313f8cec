"""Text that arrives in pieces, read as if it were all there.

Owns what was fed and not yet read.  A reader is a generator: it yields when a
decision needs more text and goes on when there is some.  Every decision waits for
all the characters it depends on, so results do not depend on how text is cut.
Knows no format.  Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A reading that yields while it waits for text and returns its result."""

SPACE = " \t\r\n"
NAME = string.ascii_letters + string.digits + "_-./:"
"""Characters of names of tools."""


class Source:
    """The unread text.  `has_ended` once no more will come."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._kept: int | None = None
        self.has_ended = False

    def append(self, text: str) -> None:
        """More text has arrived."""
        start = self._at if self._kept is None else self._kept
        self._text = self._text[start:] + text
        self._at -= start
        if self._kept is not None:
            self._kept = 0

    def keep(self) -> None:
        """From here on remember what is read, for `kept` or `rewind`."""
        self._kept = self._at

    def kept(self) -> str:
        """What was read since `keep`, which is forgotten."""
        start, self._kept = self._kept, None
        return self._text[start : self._at]

    def rewind(self) -> None:
        """Go back to where `keep` was called."""
        if self._kept is not None:
            self._at, self._kept = self._kept, None

    def peek(self) -> Steps[str]:
        """The next character, "" at the end."""
        while self._at == len(self._text):
            if self.has_ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> str:
        """The next character, which `peek` has seen."""
        self._at += 1
        return self._text[self._at - 1]

    def unread(self, text: str) -> None:
        """The last thing read was `text`, which is to be read again."""
        self._at -= len(text)

    def take_run(self, pattern: re.Pattern[str]) -> str:
        """What has arrived and matches from here on; does not wait."""
        found = pattern.match(self._text, self._at)
        run = found.group() if found else ""
        self._at += len(run)
        return run

    def skip_any(self, texts: Collection[str]) -> Steps[str]:
        """Skip the longest of `texts` that comes next and return it, "" if none does."""
        found = yield from self.next_of(texts)
        self._at += len(found)
        return found

    def next_of(self, texts: Collection[str]) -> Steps[str]:
        """The longest of `texts` that comes next, "" if none does; nothing is read."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts), default=0)]
            may_grow = any(len(t) > len(rest) and t.startswith(rest) for t in texts)
            if self.has_ended or not may_grow:
                break
            yield
        return max((t for t in texts if rest.startswith(t)), key=len, default="")

    def skip(self, text: str) -> Steps[bool]:
        """Skip `text` if it comes next."""
        return (yield from self.skip_any((text,))) != ""

    def skip_space(self) -> Steps[str]:
        """Skip white space and return it."""
        return (yield from self.take_while(SPACE))

    def take_while(self, characters: str) -> Steps[str]:
        """Read while the next character is one of these."""
        taken = ""
        while (c := (yield from self.peek())) and c in characters:
            taken += self.take()
        return taken

    def cut(self, stops: Collection[str]) -> tuple[str, str]:
        """(text that is certainly before any stop, the stop after it or "" if none came yet).

        Both are read.  Does not wait: what may become a stop stays unread, unless the text has
        ended.  No stop may be part of another.
        """
        start = self._at
        found = [(at, stop) for stop in stops if (at := self._text.find(stop, start)) >= 0]
        if found:
            end, stop = min(found)
            self._at = end + len(stop)
            return self._text[start:end], stop
        end = len(self._text) - (0 if self.has_ended else self._n_open(stops))
        self._at = end
        return self._text[start:end], ""

    def take_until(self, stops: Collection[str]) -> Steps[tuple[str, str]]:
        """(all text before the next stop, that stop), both read; up to the end with "" if none."""
        pieces = []
        while True:
            piece, stop = self.cut(stops)
            pieces.append(piece)
            if stop or self.has_ended:
                return "".join(pieces), stop
            yield

    def _n_open(self, stops: Collection[str]) -> int:
        """Length of the longest unread end that is a proper beginning of a stop."""
        n_unread = len(self._text) - self._at
        longest = 0
        for stop in stops:
            for n in range(min(len(stop) - 1, n_unread), longest, -1):
                if self._text.endswith(stop[:n]):
                    longest = n
                    break
        return longest
