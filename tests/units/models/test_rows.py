"""The tables of presets/families: every name in a formula stands for something, and a formula is
worked out without running anything."""

import ast

import pytest
from tables import each

from memcore.models import formulas
from memcore.models.families.rows import rows, spelled_out
from memcore.models.formulas import value_of

KNOWN = {"head", "labels", "given", "parameters"}
# What a row of one file is told besides.
TOLD = {
    "wrappers": {"hidden"},
    "twins": {"written"},
    "families": {"layers", "heads", "hidden_size", "intermediate_size", "i"},
}
FORMULAS = ("let", "parts", "heads", "sets", "drops_where", "model", "more", "recurrence", "traits")


def every_row():
    """All rows, those inside of others too: (file, what it is called, row)."""
    for name in TOLD:
        for kind, row in rows(name).items():
            if not kind.startswith("_"):
                yield from inside(name, kind, spelled_out(row, name))


def inside(name, kind, row):
    yield name, kind, row
    for key, value in row.get("keys", {}).items():
        if isinstance(value, dict) and ("of" in value or "keys" in value) and "words" not in value:
            if isinstance(value.get("of"), list) or "activation" in value:
                continue
            yield from inside(name, f"{kind}.{key}", spelled_out(value))


def names_of(formula):
    tree = ast.parse(f"({formula})", mode="eval")
    bound = {
        n.id for c in ast.walk(tree) if isinstance(c, ast.comprehension)
        for n in ast.walk(c.target) if isinstance(n, ast.Name)
    }  # fmt: skip
    called = {c.func.id for c in ast.walk(tree) if isinstance(c, ast.Call)}
    assert called <= formulas.FUNCTIONS.keys(), called
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return read - bound - called


@each("row", list(every_row()))
def test_each_name_in_a_formula_stands_for_something(row):
    name, kind, row = row
    there = KNOWN | TOLD[name] | row.get("let", {}).keys() | row.get("keys", {}).keys()
    there |= row.get("flags", {}).keys() | {"i"}
    for part in FORMULAS:
        listed = row.get(part, {})
        for key, formula in listed.items() if isinstance(listed, dict) else ():
            if isinstance(formula, str) and formula:
                assert names_of(formula) <= there, (kind, part, key, names_of(formula) - there)


@pytest.mark.parametrize(
    "formula", ["__import__('os')", "a.__class__", "(lambda: 1)()", "[i for i in a]", "open('x')"]
)
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises((ValueError, KeyError, TypeError)):
        value_of(formula, {"a": {"b": 1}})


def test_what_is_not_there_is_not_read():
    assert value_of("flag * missing", {"flag": False}) == 0
    assert value_of("sum(a * a for a in xs)", {"xs": [1, 2, 3]}) == 14
