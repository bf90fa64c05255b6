"""Formulas: the allocated peak of one GPU in words, over some numbers of the plan.

Every size is a product of dimensions, so that with all else fixed each instant's bytes are a sum of
products of what varies; the peak is the highest of these sums. Those that are never the highest are
left out, and where each of the others is can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from memcore.errors import did_you_mean, refusal
from memcore.frameworks import FRAMEWORKS
from memcore.plan.plan import Plan, get
from memcore.search.sweep import BROADCAST, TIMED, axes_of, broadcast, varied
from memcore.tape.algebra import (
    ABOVE,
    AT_LEAST,
    AXIS,
    EQUAL,
    FLOOR,
    LARGEST,
    POWER_OF_2,
    WHERE,
    Algebra,
    Number,
    Sum,
    never_above,
)
from memcore.tape.program import Program
from memcore.training.memory import instant_bytes
from memcore.training.steps import steps_of
from memcore.training.training import not_planned
from memcore.units import bytes_text

MOST = 64  # values that are looked at where none are given


@dataclass(frozen=True, slots=True)
class Formula:
    """One instant's bytes, where they are the peak.

    instant, stage   where the peak is then, as the report's timeline calls it, and of which
                     pipeline stage
    text             the sum, for people
    terms            the same as data: bytes, and what they are multiplied with
    first, last      of each field, the values between which it is the peak somewhere
    share            of all values together, at how many it is
    """

    instant: str
    stage: int
    text: str
    terms: tuple[tuple[float, str], ...]
    first: Mapping[str, int]
    last: Mapping[str, int]
    share: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"terms": [{"bytes": n, "times": words} for n, words in self.terms]}


def formulas(plan: Plan, over: Mapping[str, Sequence[int]]) -> tuple[Formula, ...]:
    """The peak's formulas, the one that is the highest most often first.

    over   fields and the values of each: micro-batch, sequence length and GPUs

    Raises PlanError for another field, for values that no plan has, and where training is not
    planned.
    """
    _refuse(plan, over)
    arrays, allowed = broadcast(plan, over)
    if not np.any(allowed):
        raise refusal(next(iter(over)), "has no value that the plan may have")
    found = _found(plan, over, arrays, allowed)
    return tuple(sorted(found, key=lambda f: -f.share))


def usual(plan: Plan, field: str) -> list[int]:
    """Values of a field around the plan's own. Raises PlanError for a field without a formula."""
    _refuse(plan, [field])
    here = int(get(plan, field))
    if field == "train.micro_batch":
        return list(range(1, MOST + 1))
    each = max(1, here // 8)
    return [each * i for i in range(1, MOST + 1)]


def _refuse(plan: Plan, over: Iterable[str]) -> None:
    known = tuple(TIMED if FRAMEWORKS[plan.train.framework].replicas else BROADCAST)
    for name in over:
        if name not in known:
            raise refusal(name, f"has no formula; {did_you_mean(name, known)}")
    if not over:
        raise refusal("over", "names no field")
    if why := not_planned(plan):
        raise refusal("", f"training is not planned: {why}")


@dataclass(frozen=True, slots=True)
class _Told:
    """What is alive at one instant."""

    instant: str
    stage: int
    bytes: Number


def _told(plan: Plan, algebra: Algebra, arrays: Mapping[str, Any]) -> list[_Told]:
    """Every instant's bytes with terms in place of numbers."""
    amounts = varied(plan, axes_of(algebra, arrays))
    return [
        _Told(instant.id, stage, one)
        for stage, step in enumerate(steps_of(plan))
        for instant in step.instants
        for one in algebra.alternatives(instant_bytes(instant, amounts)[0])
    ]


def _leading(every: list[_Told]) -> list[_Told]:
    """Those that none is always above; of equal ones the first."""
    kept: list[_Told] = []
    for one in every:
        if not any(never_above(one.bytes, other.bytes) for other in kept):
            kept = [o for o in kept if not never_above(o.bytes, one.bytes)] + [one]
    return kept


def _found(
    plan: Plan, over: Mapping[str, Sequence[int]], arrays: Mapping[str, Any], allowed: Any
) -> list[Formula]:
    algebra = Algebra()
    every = _leading(_told(plan, algebra, arrays))
    program = Program(algebra, [a.ravel() for a in arrays.values()], [t.bytes for t in every])
    highest = np.empty(tuple(map(len, over.values())), dtype=np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is allowed
        for where, numbers in program.blocks():
            at = np.stack([np.broadcast_to(n, highest[where].shape) for n in numbers])
            highest[where] = at.argmax(axis=0)
    highest = np.where(allowed, highest, -1)
    found = []
    for i, one in enumerate(every):
        points = np.nonzero(highest == i)
        if not len(points[0]):
            continue
        reached = {
            name: [of[k] for k in np.unique(at)]
            for (name, of), at in zip(over.items(), points, strict=True)
        }
        terms = tuple(_terms(plan, one.bytes))
        texts = (f"{bytes_text(n)} x {words}" if words else bytes_text(n) for n, words in terms)
        found.append(
            Formula(
                one.instant,
                one.stage,
                " + ".join(texts).replace("+ -", "- "),
                terms,
                {name: min(of) for name, of in reached.items()},
                {name: max(of) for name, of in reached.items()},
                len(points[0]) / int(np.sum(highest >= 0)),
            )
        )
    return found


def _terms(plan: Plan, n: Number) -> list[tuple[float, str]]:
    """Bytes, and what they are multiplied with: what does not vary first. Lengths and GPUs stand
    over the plan's own, so that the bytes are those of that plan."""
    if not isinstance(n, Sum):
        return [(n, "")]
    found = []
    for product, times in sorted(n.parts.items()):
        words, size = [], float(times)
        for atom, power in n.algebra.products[product]:
            of = n.algebra.atoms[atom]
            own = of.operation == AXIS and of.path != "train.micro_batch"
            scale = int(get(plan, of.path)) if own else 1
            size *= _sign(n.algebra, atom) * float(scale) ** power
            words.append(_factor(n.algebra, atom, power, scale))
        found.append((size, " x ".join(words)))
    return found


def _factor(algebra: Algebra, atom: int, power: int, scale: int = 1) -> str:
    words = _atom(algebra, atom)
    if scale != 1:
        words = f"{words}/{scale:,}" if power == 1 else f"({words}/{scale:,})"
    return words if power == 1 else f"{words}^{power}"


def _sign(algebra: Algebra, i: int) -> int:
    """-1 of -(-a // b), which is a / b rounded up."""
    atom = algebra.atoms[i]
    of = atom.operands[0] if atom.operation == FLOOR else 0
    return -1 if isinstance(of, Sum) and all(n < 0 for n in of.parts.values()) else 1


def _atom(algebra: Algebra, i: int) -> str:
    """A factor in words."""
    atom = algebra.atoms[i]
    if atom.operation == AXIS:
        return atom.path.rpartition(".")[2]
    if _sign(algebra, i) < 0:
        return f"rounded up({_words(-atom.operands[0])} / {_words(atom.operands[1])})"
    of = [_words(n) for n in atom.operands]
    signs = {AT_LEAST: "is at least 0", ABOVE: "is above 0", EQUAL: "is 0"}
    if atom.operation in signs:
        return f"(1 where {of[0]} {signs[atom.operation]}, else 0)"
    return {
        FLOOR: "rounded down({0} / {1})",
        LARGEST: "the largest of ({all})",
        WHERE: "({1} where {0} is not 0, else {2})",
        POWER_OF_2: "the power of 2 from {0} on",
    }.get(atom.operation, "({0})").format(*of, all=", ".join(of))


def _words(n: Number) -> str:
    if not isinstance(n, Sum):
        return f"{n:,}"
    found = []
    for product, times in sorted(n.parts.items()):
        factors = n.algebra.products[product]
        for atom, _ in factors:
            times *= _sign(n.algebra, atom)
        number = [f"{times:,}"] if times != 1 or not factors else []
        found.append(" x ".join([*number, *(_factor(n.algebra, *f) for f in factors)]))
    words = " + ".join(found).replace("+ -", "- ")
    return f"({words})" if len(found) > 1 else words
