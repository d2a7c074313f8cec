"""Stop strings over a stream of text.

Owns the text that is held back because it may become a stop string.  Pure; the
result does not depend on how the text is cut into feeds.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopSplitter:
    """Passes text through up to the stop string that completes first.

    Of several stops that complete at the same character the longest wins.  Text
    that could still become a stop is held back until it cannot, or until `flush`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Text that is safe to send now.  After a match, always ""."""
        if self.matched is not None:
            return ""
        buffer = self._held + text
        end, start = self._first_match(buffer)
        if end >= 0:
            self.matched = buffer[start:end]
            self._held = ""
            return buffer[:start]
        n_held = self._longest_open_suffix(buffer)
        self._held = buffer[len(buffer) - n_held :]
        return buffer[: len(buffer) - n_held]

    def flush(self) -> str:
        """The held text, when the stream has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, int]:
        """(end, start) of the match with the smallest end, then the smallest start; -1 if none."""
        best = (-1, -1)
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0 and (best[0] < 0 or (start + len(stop), start) < best):
                best = (start + len(stop), start)
        return best

    def _longest_open_suffix(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that is a proper beginning of a stop."""
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:n]):
                    longest = n
                    break
        return longest
