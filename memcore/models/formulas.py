"""Formulas: numbers as the tables of presets/families write them, worked out without running
anything: of Python's expressions those that have sums, products, conditions and known functions."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memcore.models import sizes

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mod: operator.mod,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.USub: operator.neg, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt,
    ast.LtE: operator.le, ast.GtE: operator.ge, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def rounded_to(value: float, by: int, least: int) -> int:
    """To a multiple, and never by more than a tenth down (MobileNet's make_divisible)."""
    near = max(least, int(value + by / 2) // by * by)
    return near + by if near < 0.9 * value else near


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        of.__name__: of
        for of in (
            *(sizes.linear, sizes.norm, sizes.convolution, sizes.attention, sizes.mlp),
            *(sizes.gated_mlp, sizes.encoder_layer, rounded_to, math.prod, math.ceil, math.log2),
            *(min, max, sum, len, int, range),
        )
    },
    "zip": lambda *lists: list(zip(*lists, strict=False)),
    "enumerate": lambda things: list(enumerate(things)),
    "pairwise": lambda things: list(itertools.pairwise(things)),
    "count": lambda things, thing: list(things).count(thing),
}


@functools.cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(f"({formula})", mode="eval").body


def value_of(formula: str, names: Mapping[str, Any]) -> Any:
    """What a formula comes to, where its names stand for these values."""
    return _value(_parsed(formula), names)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names[name]
        case ast.Attribute(of, name):
            return _value(of, names)[name]
        case ast.Subscript(of, index):
            return _value(of, names)[_value(index, names)]
        case ast.Tuple(items) | ast.List(items):
            return [_value(item, names) for item in items]
        case ast.UnaryOp(op, operand):
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.BinOp(left, ast.Mult(), right):  # what is not there is not read
            many = _value(left, names)
            return many * _value(right, names) if many else 0
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Compare(left, [op], [right]):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.BoolOp(ast.And(), operands):
            return all(_value(operand, names) for operand in operands)
        case ast.BoolOp(_, operands):
            return any(_value(operand, names) for operand in operands)
        case ast.IfExp(test, yes, no):
            return _value(yes if _value(test, names) else no, names)
        case ast.Call(ast.Name(name), arguments, words):
            by_name = {str(word.arg): _value(word.value, names) for word in words}
            return FUNCTIONS[name](*(_value(given, names) for given in arguments), **by_name)
        case ast.GeneratorExp(item, [ast.comprehension(target, things, conditions)]):
            return list(_each(item, target, things, conditions, names))
    raise ValueError(f"{ast.unparse(node)} is no part of a formula")


def _each(
    item: ast.expr,
    target: ast.expr,
    things: ast.expr,
    conditions: list[ast.expr],
    names: Mapping[str, Any],
) -> Iterator[Any]:
    for thing in _value(things, names):
        inside = ChainMap(_bound(target, thing), names)  # type: ignore[arg-type]
        if all(_value(condition, inside) for condition in conditions):
            yield _value(item, inside)


def _bound(target: ast.expr, thing: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: thing}
    assert isinstance(target, ast.Tuple)
    return {
        name: value
        for part, each in zip(target.elts, thing, strict=True)
        for name, value in _bound(part, each).items()
    }
