"""What a setting is: its names, its range, and how its text is read.

Owns one row of the table of settings and every kind of value.  Must not know which
settings there are, and must not import anything heavy.  Any thread.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from ponytail.errors import BadConfig

Kind = Literal["path", "text", "integer", "number", "choice", "switch", "size", "amount"]

PREFIX = "PONYTAIL_"


@dataclass(frozen=True, slots=True)
class Amount:
    """So many bytes, or a share (0 to 1) of what is available."""

    n_bytes: int | None = None
    share: float = 0.0

    def of(self, available_bytes: int) -> int:
        """In bytes."""
        return int(self.share * available_bytes) if self.n_bytes is None else self.n_bytes

    def __str__(self) -> str:
        return f"{100 * self.share:g}%" if self.n_bytes is None else f"{self.n_bytes} bytes"


_AMOUNT = re.compile(
    r"(?P<number>\d{1,20}(?:\.\d{1,20})?)\s*(?P<unit>%|[kmgt]i?b?|b|)", re.IGNORECASE
)
# As people mean them: K, M, G and KiB, MiB, GiB are powers of 1024; kB, MB, GB of 1000.
_UNITS = {"": 1, "b": 1} | {
    spelling: base**power
    for power, letter in enumerate("kmgt", start=1)
    for spelling, base in (
        (letter, 1024),
        (letter + "ib", 1024),
        (letter + "i", 1024),
        (letter + "b", 1000),
    )
}
_MAX_BYTES = 2**60
_SIZE_WORDS = {
    "size": "bytes, as 500MiB, 2G (both 1024-based) or 2GB (1000-based)",
    "amount": "bytes, as 500MiB, 2G (both 1024-based) or 2GB (1000-based), or a share, as 25%",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.  `low` and `high` are inclusive; `unset` spells None."""

    name: str
    kind: Kind
    help: str
    short: str | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    is_negated: bool = False
    value: object = None
    """What holds when nothing is said."""

    @property
    def flag(self) -> str:
        """The long flag; of a switch that is on by default, the one that turns it off."""
        return ("--no-" if self.is_negated else "--") + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable: the flag's name behind PONYTAIL_."""
        return PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def allowed(self) -> str:
        """The values it takes, in words; empty when any will do."""
        words = " or ".join(self.unset)
        if self.kind == "choice":
            return ", ".join((*self.unset, *self.choices))
        if self.kind == "switch":
            return "1, true, yes, on, 0, false, no or off"
        if self.kind in ("size", "amount"):
            return _SIZE_WORDS[self.kind] + (f", or {words}" if words else "")
        if self.low is None or self.high is None:
            return words
        return f"{self.low:g} to {self.high:.0f}" + (f", or {words}" if words else "")

    @property
    def default(self) -> str:
        """The default in words; empty when there is none to speak of."""
        value = self.value
        if value is None:
            return "auto" if self.unset else ""
        if self.kind == "switch":
            return ""
        if isinstance(value, int) and self.kind == "size":
            return f"{value >> 30}GiB" if value % 2**30 == 0 else str(value)
        return f"{value:g}" if isinstance(value, float) else str(value)


_SWITCH_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def parse(setting: Setting, raw: object, source: str) -> Any:
    """The value `raw` stands for.  Raises BadConfig naming setting, source, value and range."""
    if setting.unset and not isinstance(raw, bool) and str(raw).strip() in setting.unset:
        return None
    match setting.kind:
        case "path":
            return _parse_path(setting, raw, source)
        case "text":
            if isinstance(raw, str) and raw:
                return raw
            raise _refusal(setting, raw, source, "is not a text")
        case "integer" | "number":
            return _parse_number(setting, raw, source)
        case "choice":
            if raw in setting.choices:
                return raw
            raise _refusal(setting, raw, source, "is not one of", " ")
        case "switch":
            return _parse_switch(setting, raw, source)
        case "size" | "amount":
            return _parse_amount(setting, raw, source)
        case _:
            assert_never(setting.kind)


def _parse_path(setting: Setting, raw: object, source: str) -> Path:
    if not isinstance(raw, str | os.PathLike) or not os.fspath(raw):
        raise _refusal(setting, raw, source, "is not a path")
    path = Path(raw)
    if setting.name == "chat_template_file":
        try:
            path.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise _refusal(setting, raw, source, f"cannot be read: {reason}") from error
    return path


def _parse_number(setting: Setting, raw: object, source: str) -> int | float:
    is_whole = setting.kind == "integer"
    problem = "is not a whole number" if is_whole else "is not a number"
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise _refusal(setting, raw, source, problem, ": ")
    try:
        value = int(raw) if is_whole else float(raw)  # both take blanks around the digits
    except (ValueError, OverflowError) as error:
        raise _refusal(setting, raw, source, problem, ": ") from error
    if isinstance(raw, float) and value != raw:
        raise _refusal(setting, raw, source, problem, ": ")
    low, high = setting.low or 0, math.inf if setting.high is None else setting.high
    if not low <= value <= high:
        raise _refusal(setting, raw, source, "is out of range", ": ")
    return value


def _parse_amount(setting: Setting, raw: object, source: str) -> int | Amount:
    """Bytes for a size, bytes or a share for an amount."""
    found = None if isinstance(raw, bool) else _AMOUNT.fullmatch(str(raw).strip())
    if isinstance(raw, Amount) and setting.kind == "amount":
        return raw
    if found is None or (setting.kind == "size" and found["unit"] == "%"):
        raise _refusal(setting, raw, source, "is not", " ")
    number = float(found["number"])
    if found["unit"] == "%":
        if number > 100:
            raise _refusal(setting, raw, source, "is more than there is; it takes", " ")
        return Amount(share=number / 100)
    unit = _UNITS[found["unit"].lower()]
    if unit == 1 and "." in found["number"]:
        raise _refusal(setting, raw, source, "is not whole bytes; it takes", " ")
    n_bytes = int(number * unit)
    if not (setting.low or 0) <= n_bytes <= _MAX_BYTES:
        raise _refusal(setting, raw, source, "is out of range: it takes", " ")
    return n_bytes if setting.kind == "size" else Amount(n_bytes=n_bytes)


def _parse_switch(setting: Setting, raw: object, source: str) -> bool:
    if isinstance(raw, bool):
        return raw
    word = _SWITCH_WORDS.get(raw.lower()) if isinstance(raw, str) else None
    if word is None:
        raise _refusal(setting, raw, source, "is not one of", " ")
    return word != setting.is_negated


def _refusal(
    setting: Setting, raw: object, source: str, problem: str, joint: str | None = None
) -> BadConfig:
    shown = repr(raw)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    allowed = "" if joint is None else joint + setting.allowed
    return BadConfig(
        f"{setting.flag}: {shown} (from {source}) {problem}{allowed}", param=setting.name
    )
