"""Rewrites a parsed chat template so that nothing in it runs unpriced.

Owns the places where Jinja itself runs something no filter or call sees: loops
count their turns, output, joined text and slices are charged, what is compared
or used as a key is weighed.  Must not know the environment's set-up, messages
or models.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from ponytail.text.jinja_bounds import MAX_INT_BITS, as_text, counted, current_budget

# Names no template can spell.
_EACH, _EMIT, _CONCAT, _KEPT, _WEIGHED = "|each", "|emit", "|concat", "|kept", "|weighed"


@pass_context  # keeps Jinja from folding it
def _emit(context: Context, value: Any) -> str:
    return as_text(value)


def _concat(values: Iterable[Any]) -> str:
    return "".join([as_text(value) for value in values])


def _kept(value: Any) -> Any:
    return current_budget().keep(value)


def _weighed(value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        current_budget().weigh(value)
    return value


PRICING_FILTERS: dict[str, Callable[..., Any]] = {
    _EACH: counted,
    _EMIT: _emit,
    _CONCAT: _concat,
    _KEPT: _kept,
    _WEIGHED: _weighed,
}


class _Pricing(NodeTransformer):
    """Puts the internal filters where Jinja would run something unpriced."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(_EACH, node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_through(_EMIT, child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(_CONCAT, nodes.List(node.nodes).set_lineno(node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _through(_KEPT, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _unless_constant(node.expr)
        for operand in node.ops:
            operand.expr = _unless_constant(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _unless_constant(node.key)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int) and node.value.bit_length() > MAX_INT_BITS:
            raise jinja2.TemplateSyntaxError("the number is too large", node.lineno)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:
        raise jinja2.TemplateSyntaxError("autoescape is not for chat templates", node.lineno)


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    wrapped = nodes.Filter(node, name, [], [], None, None)
    wrapped.set_lineno(node.lineno)
    return wrapped


def _unless_constant(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _through(_WEIGHED, node)


def with_prices(tree: nodes.Template, env: jinja2.Environment) -> nodes.Template:
    """The same template, changed in place, with every operation paid for.

    Raises TemplateSyntaxError where a template asks for what is not offered.
    """
    _Pricing().visit(tree)
    tree.set_environment(env)
    return tree


def inspected_constants(tree: nodes.Template) -> frozenset[str]:
    """The texts a template compares with, splits at or looks for."""
    looking = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)
    return frozenset(
        constant.value
        for node in tree.find_all(looking)
        for constant in node.find_all(nodes.Const)
        if isinstance(constant.value, str)
    )
