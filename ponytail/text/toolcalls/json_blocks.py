"""Calls as JSON objects between markers, one or a list of them in a block.

Owns the way from text into a block and out again.  A marker that is not followed by
JSON is part of the text, as it is written; a block that names no tool comes out as
text without its markers.  Knows no family.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ponytail.text.toolcalls.answer import Answer, Reading, pass_text
from ponytail.text.toolcalls.json_call import JsonCall
from ponytail.text.toolcalls.source import Source, Steps

Ends = tuple[str, ...]


def json_blocks(blocks: Mapping[str, Ends], silent: Collection[str] = ()) -> Reading:
    """Reads blocks: the marker that opens one -> those that may close it.

    A block without closing markers ends with its JSON.
    """

    def read(source: Source, answer: Answer) -> Steps[None]:
        awaited: Ends = ()
        while stop := (yield from pass_text(source, (*blocks, *awaited), answer.text)):
            awaited = ()
            if stop in blocks:
                awaited = yield from JsonBlock(source, answer, stop, blocks, silent).read()

    return read


class JsonBlock:
    """One block, from behind the marker `opener` on."""

    def __init__(
        self,
        source: Source,
        answer: Answer,
        opener: str,
        blocks: Mapping[str, Ends],
        silent: Collection[str] = (),
    ) -> None:
        self._source = source
        self._answer = answer
        self._opener = opener
        self._ends = blocks[opener]
        self._broken_by = (*self._ends, *(o for o in blocks if o[0] not in "{["))
        self._silent = silent

    def read(self) -> Steps[Ends]:
        """Reads the block; the closing markers that are still to be expected."""
        space = yield from self._source.skip_space()
        c = yield from self._source.peek()
        if c not in ("{", "["):
            if c and not (yield from self._source.skip_any(self._ends)):
                self._answer.text(self._opener + space)
            return ()
        is_list = c == "["
        if is_list:
            self._source.take()
        if not (yield from self._read_first("[" * is_list)):
            return self._ends
        return (yield from self._read_rest(is_list))

    def _read_first(self, unsaid: str) -> Steps[bool]:
        """Whether the block begins with a call; what does not is text."""
        unsaid += yield from self._source.skip_space()
        if (yield from self._source.peek()) == "{":
            text = yield from self._read_call()
            if text is None:
                return True
            unsaid += text
        self._answer.text(unsaid)
        return False

    def _read_rest(self, is_list: bool) -> Steps[Ends]:
        """Further calls, and brackets too many."""
        while True:
            space = yield from self._source.skip_space()
            c = yield from self._source.peek()
            if c and c in "}],;":
                self._source.take()
                if c == "]" and is_list and not self._ends:
                    return ()
                continue
            if c == "{" and (is_list or self._ends):
                text = yield from self._read_call()
                if text is None:
                    continue
                self._answer.text(space + text)
            elif (yield from self._source.skip_any(self._ends)):
                return ()
            else:
                self._answer.text(space)
            return self._ends

    def _read_call(self) -> Steps[str | None]:
        call = JsonCall(self._source, self._answer, self._broken_by, silent=self._silent)
        return (yield from call.read())
