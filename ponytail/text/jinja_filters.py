"""The filters and tests a chat template may use, each priced before it runs.

Owns which of Jinja's filters exist here and Hugging Face's `tojson`.  Left out
are those that draw at random, rewrite HTML or are quadratic in the text:
pprint, random, striptags, urlize, wordcount, wordwrap, xmlattr.  Must not know
messages or models.  Runs in the thread that renders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from ponytail.text.jinja_bounds import (
    LIST_SLOT,
    Args,
    Budget,
    Pairs,
    check_int_bits,
    counted,
    current_budget,
    price_percent_format,
    price_replace,
    text_size,
)

MAX_INDENT = 64
MAX_DIGITS = 100
MAX_GROUP = 100_000

Price = Callable[[Budget, Any, Args, Pairs], Any]
"""(budget, filtered value, the filter's arguments) -> the value to filter."""


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, text as it is."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _argument(args: Args, kwargs: Pairs, index: int, name: str, default: Any) -> Any:
    return args[index] if len(args) > index else kwargs.get(name, default)


def _width_of(indent: Any) -> int:
    width = len(indent) if isinstance(indent, str) else indent
    return max(0, width) if isinstance(width, int) else 0


def _price_json(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    width = _width_of(_argument(args, kwargs, 1, "indent", 0))
    separators = _argument(args, kwargs, 2, "separators", None) or ()
    n_separator = sum(len(text) for text in separators if isinstance(text, str))
    if max(width, n_separator) > MAX_INDENT:
        raise TemplateRuntimeError(f"tojson indents by at most {MAX_INDENT}")
    budget.make(6 * text_size(value, 2 + n_separator, width))
    return value


def _price_items(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    """For filters that touch each item once."""
    if isinstance(value, Sized):
        budget.spend(len(value) >> 6 if isinstance(value, str) else len(value))
        budget.make(LIST_SLOT * len(value))
    return value


def _price_deep(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    """For filters that compare or hash items."""
    budget.weigh(value if isinstance(value, Sized) else None)
    return _price_items(budget, value, args, kwargs)


def _price_listed(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    """For the same, where a generator must be drawn first to be seen."""
    items = value if isinstance(value, Sized) else list(counted(value))
    return _price_deep(budget, items, args, kwargs)


def _price_sum(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    if not isinstance(_argument(args, kwargs, 1, "start", 0), int | float):
        raise TemplateRuntimeError("sum adds numbers only")
    return _price_items(budget, value, args, kwargs)


def _price_join(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    items = list(counted(value))
    separator = text_size(_argument(args, kwargs, 0, "d", ""))
    budget.make(sum(separator + text_size(item) for item in items))
    return items


def _price_text(factor: int) -> Price:
    """For filters that make at most `factor` characters of one."""

    def price(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
        n_chars = text_size(value)
        budget.spend(n_chars >> 10)
        budget.make(factor * n_chars)
        return value

    return price


def _price_trim(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    n_set = text_size(_argument(args, kwargs, 0, "chars", None) or "")
    budget.spend(text_size(value) * (1 + n_set) >> 10)
    return value


def _price_format(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    price_percent_format(str(value), dict(kwargs) or args)
    return value


def _price_replace(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    old, new = (_argument(args, kwargs, i, name, "") for i, name in enumerate(("old", "new")))
    budget.make(text_size(value) + text_size(old) + text_size(new))
    price_replace(budget, str(value), (str(old), str(new)))
    return value


def _price_indent(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    width = _width_of(_argument(args, kwargs, 0, "width", 4))
    budget.make(text_size(value))
    budget.make(width * (len(str(value).splitlines()) + 1))
    return value


def _price_center(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    budget.make(text_size(value) + _width_of(_argument(args, kwargs, 0, "width", 80)))
    return value


def _price_groups(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    n_groups = args[0] if args else next(iter(kwargs.values()), 1)
    if not isinstance(n_groups, int) or n_groups > MAX_GROUP:
        raise TemplateRuntimeError(f"groups are numbers up to {MAX_GROUP}")
    budget.make(LIST_SLOT * max(0, n_groups))
    return _price_items(budget, value, args, kwargs)


def _price_round(budget: Budget, value: Any, args: Args, kwargs: Pairs) -> Any:
    precision = _argument(args, kwargs, 0, "precision", 0)
    if not isinstance(precision, int) or abs(precision) > MAX_DIGITS:
        raise TemplateRuntimeError(f"round takes up to {MAX_DIGITS} digits")
    return value


_PRICES: dict[str, Price | None] = {
    **dict.fromkeys(("abs", "attr", "count", "d", "default", "filesizeformat", "first")),
    **dict.fromkeys(("float", "int", "last", "length", "safe")),
    **dict.fromkeys(("items", "list", "map", "reverse"), _price_items),
    **dict.fromkeys(("reject", "rejectattr", "select", "selectattr"), _price_items),
    **dict.fromkeys(("dictsort",), _price_deep),
    **dict.fromkeys(("groupby", "max", "min", "sort", "unique"), _price_listed),
    **dict.fromkeys(
        ("capitalize", "lower", "string", "title", "truncate", "upper"), _price_text(3)
    ),
    **dict.fromkeys(("e", "escape", "forceescape"), _price_text(6)),
    **dict.fromkeys(("batch", "slice"), _price_groups),
    "center": _price_center,
    "format": _price_format,
    "indent": _price_indent,
    "join": _price_join,
    "replace": _price_replace,
    "round": _price_round,
    "sum": _price_sum,
    "tojson": _price_json,
    "trim": _price_trim,
    "urlencode": _price_text(12),
}


def priced_filters() -> dict[str, Callable[..., Any]]:
    """Jinja's filters with Hugging Face's `tojson`, each behind its price."""
    builtin: dict[str, Callable[..., Any]] = {**FILTERS, "tojson": tojson}
    return {name: _priced(builtin[name], price) for name, price in _PRICES.items()}


def _priced(function: Callable[..., Any], price: Price | None) -> Callable[..., Any]:
    # Jinja passes context or environment first where the function is marked so.
    n_passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        passed, value, rest = args[:n_passed], args[n_passed], args[n_passed + 1 :]
        budget = current_budget()
        budget.spend()
        if price is not None:
            value = price(budget, value, rest, kwargs)
        result = function(*passed, value, *rest, **kwargs)
        if isinstance(result, int):
            check_int_bits(result.bit_length())
        return result

    return run


def priced_tests() -> dict[str, Callable[..., bool]]:
    """Jinja's tests that compare; they pay for every part they may look at."""
    builtin: Mapping[str, Any] = TESTS
    names = [name for name in TESTS if name == "in" or builtin[name].__module__ == "_operator"]
    return {name: _weighed(builtin[name]) for name in names}


def _weighed(test: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(test)
    def run(value: Any, *args: Any) -> bool:
        budget = current_budget()
        for part in (value, *args):
            budget.weigh(part)
        return test(value, *args)

    return run
