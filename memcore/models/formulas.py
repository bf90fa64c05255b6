"""Formulas: numbers as the tables of presets/families write them, worked out without running
anything: of Python's expressions those that have sums, products, conditions and known functions."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections import ChainMap
from collections.abc import Callable, Mapping
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


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    of.__name__: of
    for of in (
        *(sizes.linear, sizes.norm, sizes.convolution, sizes.attention, sizes.mlp),
        *(sizes.gated_mlp, sizes.encoder_layer, math.ceil, max, sum, len, int, range),
    )
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
        case ast.GeneratorExp(item, [ast.comprehension(ast.Name(each), things)]):
            inside = (ChainMap({each: thing}, names) for thing in _value(things, names))  # type: ignore[arg-type]
            return [_value(item, known) for known in inside]
    raise ValueError(f"{ast.unparse(node)} is no part of a formula")
