"""What Megatron-LM's and DeepSpeed's own estimators say, and which tensors make the difference from
ours (presets/evidence/estimators.toml).

They are no authority either: nothing of ours is tested against them but that every byte of a
difference is named.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memcore.evidence.comparison import text
from memcore.models.counts import parameters
from memcore.plan.plan import Plan
from memcore.report import LedgerRow
from memcore.step import pipeline
from memcore.training.memory import rows_at, saved_rows
from memcore.training.steps import training_sizes

KINDS = ("states", "activations")
OF_STATES = ("parameters", "gradients", "optimizer_states")


@dataclass(frozen=True, slots=True)
class Difference:
    """Tensors that one side counts otherwise than the other: ours less theirs, bytes."""

    tensors: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an estimator says of one GPU's states, or of what its forwards keep, beside ours.

    by      which estimator, by its key in the table
    stage   the pipeline stage that is compared: the one with the most states, and the first
    parts   by which ours is more, or less
    """

    by: str
    label: str
    plan: Plan
    what: str
    stage: int
    theirs: int
    ours: int
    parts: tuple[Difference, ...]

    @property
    def unexplained(self) -> float:
        return self.ours - self.theirs - sum(p.bytes for p in self.parts)


@functools.cache
def estimators_table() -> Mapping[str, Any]:
    """The table as its file has it: source, and plans with what was said of them."""
    return tomllib.loads(text("estimators.toml"))


@functools.cache
def estimates() -> tuple[Estimate, ...]:
    """Every plan's states and activations."""
    rows = estimators_table()["plans"]
    return tuple(_estimate(row, what) for row in rows for what in KINDS if what in row)


def _estimate(row: Mapping[str, Any], what: str) -> Estimate:
    plan = Plan.of(row["plan"])
    stage, rows, times = _ours(plan, what)
    whole = {"THEIRS": row[what], "PARAMETERS": parameters(plan.architecture)}
    sizes = {**training_sizes(plan), **whole}
    shared = estimators_table()["shared"]
    items = [i for name in row[f"of_{what}"] for i in shared[name]["parts"]]
    parts = tuple(Difference(i["tensors"], _bytes(i, rows, times, sizes)) for i in items)
    ours = times * sum(r.bytes for r in rows)
    return Estimate(row["estimator"], row["label"], plan, what, stage, row[what], ours, parts)


def _ours(plan: Plan, what: str) -> tuple[int, list[LedgerRow], int]:
    """The stage compared, its rows, and how often they are there at once."""
    if what == "activations":
        return 0, list(saved_rows(plan)), pipeline.in_flight(plan, 0)
    of_stage = [
        [r for r in rows_at(plan, LAST, stage) if _is_state(plan, r)]
        for stage in range(plan.parallel.pp)
    ]
    stage = max(range(plan.parallel.pp), key=lambda s: sum(r.bytes for r in of_stage[s]))
    return stage, of_stage[stage], 1


def _is_state(plan: Plan, row: LedgerRow) -> bool:
    """DeepSpeed's estimator counts its buffers among the states."""
    if plan.train.framework == "deepspeed":
        return not row.of_angles
    return row.consumer in OF_STATES


LAST = -1  # of a stage's instants: the optimizer's step


def _bytes(
    item: Mapping[str, Any], rows: list[LedgerRow], times: int, sizes: Mapping[str, Any]
) -> float:
    """Ours less theirs of one part: `rows` whose names match, of which they count the share
    `counted`, or the bytes `theirs`, or nothing."""
    mine = times * sum(r.bytes for r in rows if matches(item, r.name))
    return mine * (1 - value(item.get("counted", "0"), sizes)) - value(
        item.get("theirs", "0"), sizes
    )


def matches(item: Mapping[str, Any], name: str) -> bool:
    """Whether a row of this name is one of the part's."""
    return "rows" in item and re.search(item["rows"], name) is not None


OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(formula: str, sizes: Mapping[str, Any]) -> float:
    """The value of a formula of the table in named sizes: '2 * B * S * D / TP'."""

    def of(node: ast.expr) -> float:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return float(sizes[node.id])
        assert isinstance(node, ast.BinOp), "a formula has numbers, sizes and + - * / only"
        return float(OPERATORS[type(node.op)](of(node.left), of(node.right)))

    return of(ast.parse(formula, mode="eval").body)
