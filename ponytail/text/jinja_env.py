"""The Jinja sandbox that chat templates run in, with Hugging Face's semantics.

Owns the environment, its globals and the errors of one template.  Nothing runs
unpriced: the rewriting is in `jinja_pricing`, the prices in `jinja_bounds` and
`jinja_filters`; no signals, no watching threads.  Must not know messages or
models.  A compiled template may be rendered by any number of threads at once.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, update_wrapper
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.utils import Namespace
from markupsafe import Markup

from ponytail.text.jinja_bounds import (
    STR_METHODS,
    Budget,
    OutOfBounds,
    TemplateLimits,
    as_text,
    counted,
    current_budget,
    price_binop,
    price_format_spec,
    price_str_method,
    running_under,
    text_size,
)
from ponytail.text.jinja_filters import priced_filters, priced_tests
from ponytail.text.jinja_pricing import PRICING_FILTERS, inspected_constants, with_prices

_MAX_TIME_FORMAT = 200
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(STR_METHODS)),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
)


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; here it only scopes."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own way to declare them)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateNamespace(Namespace):
    """Jinja's namespace without underscore names, and without a text of its own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` stays positional so that a template may write namespace(self=...).
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_attribute_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")


class DictBuilder:
    """The global `dict`, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def raise_exception(message: Any) -> None:
    """What templates call to refuse a conversation."""
    raise jinja2.TemplateError(as_text(message))


def strftime_now(time_format: str) -> str:
    """The local time now."""
    if len(time_format) > _MAX_TIME_FORMAT:
        raise OutOfBounds("its time format is too long")
    return datetime.now().strftime(time_format)


class PricedFormatter(SandboxedFormatter):
    """`str.format` that pays for each field before it is written."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        price_format_spec(value, format_spec)
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        current_budget().make(text_size(value))
        return super().convert_field(value, conversion)


class PricedEscapeFormatter(PricedFormatter, SandboxedEscapeFormatter):
    """The same for text marked safe."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as `transformers` sets it up, where every operation is paid for."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Constants are not folded: folding would run filters unpriced while compiling.
            optimized=False,
            extensions=[GenerationTag, loopcontrols],
        )
        self.filters.clear()
        self.filters.update(priced_filters())
        self.filters.update(PRICING_FILTERS)
        self.tests.update(priced_tests())
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=raise_exception,
            strftime_now=strftime_now,
            dict=DictBuilder(),
            namespace=TemplateNamespace,
        )

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, names in _METHODS:
            if isinstance(obj, kind):
                return attr in names
        return not isinstance(obj, int | float | bytes | type)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        if attribute.startswith("_"):
            kind = type(obj).__name__
            raise SecurityError(f"access to attribute {attribute!r} of {kind!r} object is unsafe")
        return super().unsafe_undefined(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        price_binop(operator, left, right)
        return self.binop_table[operator](left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            current_budget().weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if getattr(value, "__name__", None) not in ("format", "format_map"):
            return None
        text = getattr(value, "__self__", None)
        if not isinstance(text, str):
            return None
        return update_wrapper(_format_method(self, text, value.__name__ == "format_map"), value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.spend()
        if isinstance(obj, LoopContext) and args:
            args = (counted(args[0]), *args[1:])
        elif not isinstance(obj, Macro | BlockReference | LoopContext):
            args = _price_call(budget, obj, args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        return result if _hands_out(obj) else budget.keep(result)


def _price_call(budget: Budget, obj: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
    for arg in (*args, *kwargs.values()):
        budget.weigh(arg)
    if not isinstance(obj, types.BuiltinMethodType | types.MethodType):
        return args
    owner, name = obj.__self__, obj.__name__
    if isinstance(owner, str):
        if name not in STR_METHODS:
            raise SecurityError(f"the method {name!r} of strings is not for templates")
        priced = price_str_method(owner, name, (*args, *kwargs.values()))
        return args if kwargs else priced
    if isinstance(owner, list | tuple) and name in ("index", "count"):
        budget.weigh(owner)
    return args


def _hands_out(obj: Any) -> bool:
    """Whether a call returns a value that existed before."""
    return isinstance(getattr(obj, "__self__", None), dict) and obj.__name__ != "copy"


def _format_method(env: ChatEnvironment, text: str, takes_mapping: bool) -> Callable[..., str]:
    formatter: PricedFormatter
    if isinstance(text, Markup):
        formatter = PricedEscapeFormatter(env, escape=text.escape)
    else:
        formatter = PricedFormatter(env)

    def format_text(*args: Any, **kwargs: Any) -> str:
        current_budget().make(len(text))
        values, named = ((), args[0]) if takes_mapping and args else (args, kwargs)
        return type(text)(formatter.vformat(text, values, named))

    return format_text


class Refusal(Exception):
    """A template's own error, or a broken template; `str()` is its words and line."""


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A template ready to run.

    `inspected` are the constants it compares with, splits at or looks for.
    """

    template: jinja2.Template
    inspected: frozenset[str]

    def render(self, values: Mapping[str, Any], limits: TemplateLimits) -> str:
        """The text for these variables.

        Raises Refusal (the template's words) or OutOfBounds.
        """
        budget = Budget(limits, _n_chars(values))
        try:
            with running_under(budget):
                return self._run(values, limits.max_chars)
        except OutOfBounds:
            raise
        except RecursionError:
            raise OutOfBounds("it nests too deep") from None
        except MemoryError:
            raise OutOfBounds("it needs too much memory") from None
        except Exception as error:
            raise Refusal(self._words(error)) from error

    def _run(self, values: Mapping[str, Any], max_chars: int) -> str:
        pieces: list[str] = []
        n_chars = 0
        for piece in self.template.root_render_func(self.template.new_context(dict(values))):
            n_chars += len(piece)
            if n_chars > max_chars:
                raise OutOfBounds(f"its text is longer than {max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _words(self, error: Exception) -> str:
        words = str(error) or type(error).__name__
        line = _template_line(self.template, error)
        return f"{words[:1000]} (line {line})" if line else words[:1000]


def _template_line(template: jinja2.Template, error: Exception) -> int | None:
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _n_chars(values: Mapping[str, Any]) -> int:
    """Characters of all texts in the values; a number counts as one."""
    n_chars, left = 0, list[Any](values.values())
    while left:
        value = left.pop()
        if isinstance(value, str):
            n_chars += len(value)
        elif isinstance(value, dict):
            left += value
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        else:
            n_chars += 1
    return n_chars


@cache
def _environment() -> ChatEnvironment:
    return ChatEnvironment()


def compile_template(source: str, limits: TemplateLimits) -> CompiledTemplate:
    """Parse and compile.  Raises Refusal with the error's words and line, or OutOfBounds."""
    if len(source) > limits.max_source_chars:
        raise OutOfBounds(f"its source is longer than {limits.max_source_chars} characters")
    env = _environment()
    try:
        tree = env.parse(source)
        inspected = inspected_constants(tree)
        code = env.compile(with_prices(tree, env))
        template = jinja2.Template.from_code(env, code, env.make_globals(None))
    except jinja2.TemplateSyntaxError as error:
        raise Refusal(f"{error.message} (line {error.lineno})") from error
    except Exception as error:  # RecursionError, MemoryError, SyntaxError, ...: it is broken
        raise Refusal(f"it cannot be compiled: {error}") from error
    return CompiledTemplate(template, inspected)
