"""Arguments that the model does not write as JSON, put into a JSON object one by one.

Pure.
"""

from __future__ import annotations

from ponytail.text.toolcalls.answer import Answer
from ponytail.text.toolcalls.json_text import encode


class WrittenArguments:
    """The object of the call begun last: each member is sent when its value is complete."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._before = "{"

    def member(self, name: str, value: str) -> None:
        """`value` is JSON text."""
        self._answer.arguments(f"{self._before}{encode(name)}: {value}")
        self._before = ", "

    def close(self) -> None:
        """There are no more."""
        self._answer.arguments("{}" if self._before == "{" else "}")
