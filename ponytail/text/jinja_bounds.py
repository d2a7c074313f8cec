"""What one run of a chat template may use: steps, text volume, seconds.

Owns the budget and the rules that price an operation *before* it runs, so that
`'x' * 10**9` is refused rather than tried.  Must not know the Jinja environment
that calls it, messages or models.  A budget belongs to the one thread that
renders; it is found through a context variable.

Prices.  A *step* is a loop turn, a call or a filter, or about a thousand
characters scanned.  *Volume* is the characters a run makes, dropped ones
included (eight for every slot of a list): what is not freed cannot exceed it.
"""

from __future__ import annotations

import re
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

LIST_SLOT = 8
MAX_INT_BITS = 16_384

Args: TypeAlias = tuple[Any, ...]
Pairs: TypeAlias = Mapping[str, Any]


class OutOfBounds(Exception):
    """A template used more than it may; never caught inside a template."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Bounds of one template and of one rendering; `max_s` is processor time of the thread."""

    max_source_chars: int = 1_000_000
    max_chars: int = 16 * 1024 * 1024
    max_s: float = 2.0
    max_steps: int = 1_000_000
    max_volume: int = 32 * 1024 * 1024
    volume_per_input_char: int = 32


class Budget:
    """What is left for one rendering."""

    __slots__ = ("_deadline", "_limits", "_n_checks", "_steps", "_volume")

    def __init__(self, limits: TemplateLimits, n_input_chars: int) -> None:
        self._limits = limits
        self._steps = limits.max_steps
        self._volume = limits.max_volume + limits.volume_per_input_char * n_input_chars
        self._deadline = time.thread_time() + limits.max_s
        self._n_checks = 0

    def spend(self, n_steps: int = 1) -> None:
        """Pay for work.  Raises OutOfBounds when the steps or the seconds are used up."""
        self._steps -= n_steps
        if self._steps < 0:
            raise OutOfBounds(f"it runs for more than {self._limits.max_steps} steps")
        self._n_checks += 1
        if self._n_checks & 15 == 0 and time.thread_time() > self._deadline:
            raise OutOfBounds(f"it runs for more than {self._limits.max_s:g} s")

    def make(self, n_chars: int) -> None:
        """Pay for text about to be made.  Raises OutOfBounds when it is too much."""
        self._volume -= n_chars
        if self._volume < 0:
            raise OutOfBounds("it builds too much text")

    def keep(self, value: Any) -> Any:
        """Pay for a value that an operation of bounded growth has made; returns it."""
        if isinstance(value, str):
            self.make(len(value))
        elif isinstance(value, list | tuple | dict):
            self.make(LIST_SLOT * len(value))
        return value

    def weigh(self, value: Any) -> None:
        """Pay for looking at every part of a container, as comparing and hashing do.

        A part that is shared costs once for every way to it.  Templates cannot
        change a list in place, so there are no cycles.
        """
        parts = _parts_of(value)
        if parts is None:
            return
        self.spend(1 + len(parts))
        for part in parts:
            if isinstance(part, str):
                if len(part) > 255:
                    self.spend(len(part) >> 8)
            else:
                self.weigh(part)


_current: ContextVar[Budget] = ContextVar("ponytail_template_budget")


def current_budget() -> Budget:
    """The budget of the rendering this thread is in; LookupError outside one."""
    return _current.get()


@contextmanager
def running_under(budget: Budget) -> Iterator[None]:
    """Make `budget` the current one for the calls inside."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)


def _parts_of(value: Any) -> Sequence[Any] | None:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, KeysView | ValuesView | ItemsView):
        return list(value)
    return None


def text_size(value: Any, per_node: int = 0, per_level: int = 0, depth: int = 0) -> int:
    """Upper bound of the characters of `str(value)`; pays a step for each part.

    `per_node` and `per_level` add separators and indentation of JSON.
    """
    if isinstance(value, str):
        return (len(value) if depth == 0 else _quoted_size(value)) + 2
    parts = _parts_of(value)
    if parts is None:
        return value.bit_length() // 3 + 6 if isinstance(value, int) else 64
    current_budget().spend(1 + len(parts))
    n_chars = (2 + len(parts)) * (4 + per_node + per_level * (depth + 1))
    for part in parts:
        if isinstance(part, str):
            n_chars += _quoted_size(part) + 2
        else:
            n_chars += text_size(part, per_node, per_level, depth + 1)
    return n_chars


def _quoted_size(text: str) -> int:
    """Inside a container a strange character is written as up to ten."""
    return len(text) if text.isascii() and text.isprintable() else 10 * len(text)


def as_text(value: Any) -> str:
    """`str(value)`, paid for."""
    budget = current_budget()
    if not isinstance(value, str):
        budget.make(text_size(value))
        return str(value)
    budget.make(len(value))
    return value


def counted(items: Iterable[Any]) -> Iterator[Any]:
    """The items, each costing a step."""
    budget = current_budget()
    budget.spend()
    return _counted(budget, iter(items))


def _counted(budget: Budget, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        budget.spend()
        yield item


def price_binop(operator: str, left: Any, right: Any) -> None:
    """Pay for `left operator right` before it is computed."""
    budget = current_budget()
    if operator == "*":
        _price_product(budget, left, right)
    elif operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            unit = 1 if isinstance(left, str) else LIST_SLOT
            budget.make(unit * (len(left) + len(right)))
    elif operator == "%" and isinstance(left, str):
        price_percent_format(left, right)
    elif operator == "**":
        _price_power(left, right)


def _price_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_int_bits(left.bit_length() + right.bit_length())
        return
    for items, times in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(times, int) and times > 0:
            budget.make((1 if isinstance(items, str) else LIST_SLOT) * len(items) * times)


def _price_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        check_int_bits(base.bit_length() * exponent)


def check_int_bits(n_bits: int) -> None:
    """Numbers have no volume, so their size is simply bounded."""
    if n_bits > MAX_INT_BITS:
        raise OutOfBounds("it computes too large a number")


_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?(.)", re.DOTALL)


def price_percent_format(template: str, values: Any) -> None:
    """Pay for `template % values`; a width taken from the values is refused."""
    largest, n_chars = text_size(values), len(template)
    for match in _PERCENT.finditer(template):
        width, precision, kind = match.groups()
        if "*" in (width, precision):
            raise OutOfBounds("it takes a format width from its values")
        n_chars += (largest if kind != "%" else 1) + _number(width) + _number(precision)
    current_budget().make(n_chars * (6 if hasattr(template, "__html__") else 1))


def price_format_spec(value: Any, spec: str) -> None:
    """Pay for `format(value, spec)`: a spec's numbers are its width and precision."""
    widths = sum(_number(digits) for digits in re.findall(r"\d+", spec))
    current_budget().make(text_size(value) + widths)


def _number(digits: str | None) -> int:
    if not digits:
        return 0
    return int(digits) if len(digits) < 10 else 10**9


def price_str_method(text: str, name: str, args: Args) -> Args:
    """Pay for `text.name(*args)` before it runs; returns the arguments to call it with.

    Raises OutOfBounds; KeyError when `name` is no method a template may use.
    """
    budget = current_budget()
    budget.spend(1 + (len(text) >> 10))
    price = STR_METHODS[name]
    return args if price is None else price(budget, text, args)


def _price_width(budget: Budget, text: str, args: Args) -> Args:
    if args and isinstance(args[0], int):
        budget.make(max(0, args[0]))
    return args


def _price_tabs(budget: Budget, text: str, args: Args) -> Args:
    width = args[0] if args and isinstance(args[0], int) else 8
    budget.make(max(0, width) * text.count("\t"))
    return args


def _price_join(budget: Budget, text: str, args: Args) -> Args:
    if len(args) != 1:
        return args
    items = list(counted(args[0]))
    budget.make(sum(len(text) + text_size(item) for item in items))
    return (items,)


def price_replace(budget: Budget, text: str, args: Args) -> Args:
    """Pay for every place where the new text would stand."""
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _price_scan(budget, text, args)
        n_places = text.count(args[0])
        if len(args) > 2 and isinstance(args[2], int) and args[2] >= 0:
            n_places = min(n_places, args[2])
        budget.make(n_places * len(args[1]))
    return args


def _price_scan(budget: Budget, text: str, args: Args) -> Args:
    for arg in args:
        if isinstance(arg, str):
            # Forward search is linear for long needles; short ones cost at most their product.
            budget.spend(len(text) * min(len(arg), 128) >> 10)
        else:
            budget.weigh(arg)
    return args


def _price_product_scan(budget: Budget, text: str, args: Args) -> Args:
    """Backward searches and character sets may look at every pair."""
    for arg in args:
        if isinstance(arg, str):
            budget.spend(len(text) * len(arg) >> 10)
    return args


def _price_split(budget: Budget, text: str, args: Args) -> Args:
    _price_product_scan(budget, text, args)
    if args and isinstance(args[0], str) and args[0]:
        n_pieces = text.count(args[0]) + 1
    else:
        n_pieces = len(text) // 2 + 1
    if len(args) > 1 and isinstance(args[1], int) and args[1] >= 0:
        n_pieces = min(n_pieces, args[1] + 1)
    budget.make(LIST_SLOT * n_pieces)
    return args


_Price: TypeAlias = Callable[[Budget, str, Args], Args]

STR_METHODS: dict[str, _Price | None] = {
    **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "title", "upper")),
    **dict.fromkeys(("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier")),
    **dict.fromkeys(("islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper")),
    # Sandboxed by the environment, field by field.
    **dict.fromkeys(("format", "format_map")),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _price_width),
    **dict.fromkeys(("count", "find", "index", "partition", "startswith", "endswith"), _price_scan),
    **dict.fromkeys(("removeprefix", "removesuffix"), _price_scan),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _price_product_scan),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _price_product_scan),
    **dict.fromkeys(("split", "rsplit", "splitlines"), _price_split),
    "expandtabs": _price_tabs,
    "join": _price_join,
    "replace": price_replace,
}
"""The methods of strings that a template may call, and who prices them."""
