"""Book: the explanations of one report, found by dotted path and made when they are asked for.

A rule says how one kind of number comes about. It is registered for a pattern of paths, such as
'memory.overheads.*.low|high', and gets the words that stand at the star and at the choice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from memcore.errors import did_you_mean, shown
from memcore.plan.plan import Plan
from memcore.quantity.formula import NOTHING, Formula, Term, leaf
from memcore.quantity.quantity import Explanation, Made, UnknownNumberError, matching
from memcore.report import LedgerRow, Report
from memcore.step.step import Step
from memcore.tape.ledger import Amounts
from memcore.training.memory import rows_at, saved_rows
from memcore.training.steps import step_of, training_sizes

PLAN = "the plan: "  # begins the source of what the plan itself says
CHAIN = 8  # steps from a number down to its factors, at most
NOT_WORTH_LISTING = ("the plan", "the dtype", NOTHING)  # beside other sources
MEASURES = ("bytes", "seconds", "FLOP", "parameters", "tokens", "tokens/s")  # worth following down


class Book:
    """The explanations of one report. Nothing is computed before it is asked for."""

    def __init__(self, plan: Plan, report: Report):
        self.plan, self.report = plan, report
        self._known: dict[str, Explanation] = {}
        self._kept: dict[str, Any] = {}

    def explain(self, path: str) -> Explanation:
        """Why the number at a path is what it is. Raises UnknownNumberError."""
        if path not in self._known:
            match = matching(path)
            if match is None:
                raise UnknownNumberError(self._refusal(path))
            function, words = match
            try:
                made = function(self, *words)
            except (LookupError, ValueError, AttributeError) as e:
                raise UnknownNumberError(self._refusal(path)) from e
            self._known[path] = dataclasses.replace(made, path=path)
        return self._known[path]

    def explained(self, path: str) -> Explanation | None:
        """The same, or None where there is no such number."""
        try:
            return self.explain(path)
        except UnknownNumberError:
            return None

    def at(self, path: str, name: str = "", note: str = "") -> Formula:
        """The number at a path, as a part of another."""
        e = self.explain(path)
        return leaf(Term(name or e.what, e.value, e.unit, path, e.certainty, note=note))

    def chain(self, path: str) -> list[Explanation]:
        """From a number down to its factors: each time the largest part that can be opened."""
        chain = [self.explain(path)]
        while len(chain) < CHAIN:
            here = chain[-1]
            openable = [t for t in here.parts if t.path and t.unit in MEASURES]
            parts = [t for t in openable if self.explain(t.path).formula is not None]
            if not parts:
                break
            same = [t for t in parts if t.unit == here.unit and isinstance(t.value, (int, float))]
            best = max(same, key=lambda t: t.value) if same else parts[0]
            chain.append(self.explain(best.path))
        return chain

    def sources(self, path: str) -> list[str]:
        """Where everything comes from that a number is made of, the nearest first."""
        sources: dict[str, None] = {}
        seen, waiting = {path}, [path]
        while waiting:
            e = self.explain(waiting.pop(0))
            sources |= dict.fromkeys(e.sources)
            inner = [t.path for t in e.parts if t.path and t.path not in seen]
            seen.update(inner)
            waiting += inner
        given = [s for s in sources if s.startswith(PLAN)]
        fields = ", ".join(s.removeprefix(PLAN) for s in given)
        others = [s for s in sources if s not in given and s not in NOT_WORTH_LISTING]
        return [*others, f"{PLAN}{fields}"] if given else others or list(sources)

    def paths(self) -> list[str]:
        """Every number and verdict of the report, by its path."""
        paths: list[str] = []

        def walk(value: Any, path: str) -> None:
            if isinstance(value, Mapping):
                for name, inner in value.items():
                    walk(inner, f"{path}.{name}")
                return
            if matching(path):
                paths.append(path)
            for i, inner in enumerate(value) if isinstance(value, list) else ():
                walk(inner, f"{path}.{i}")

        for name, value in self.report.to_dict().items():
            if name != "plan":
                walk(value, name)
        return paths

    def _refusal(self, path: str) -> str:
        part = path.partition(".")[0]
        if getattr(self.report, part, self) is None:
            return f"{part} is not computed for this plan: {' '.join(self.report.notes)}"
        paths = self.paths()
        inside = [p for p in paths if p.startswith(f"{path}.")]
        if inside:
            names = ", ".join(inside[:6]) + (", ..." if len(inside) > 6 else "")
            return f"{shown(path)} is not one number; it has {names}"
        if not any(word.isdigit() for word in path.split(".")):
            paths = [p for p in paths if not any(map(str.isdigit, p.split(".")))]
        return f"{shown(path)} is no number of this report; {did_you_mean(path, paths)}"

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What several rules read, made the first time."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: Made = self._kept[name]
        return kept

    # --- what rules read -------------------------------------------------------------------------

    @property
    def memory(self) -> Any:
        return _computed(self.report.memory)

    @property
    def time(self) -> Any:
        return _computed(self.report.time)

    @property
    def serve(self) -> Any:
        return _computed(self.report.serve)

    @property
    def inference(self) -> Any:
        return _computed(self.report.inference)

    @property
    def run(self) -> Any:
        return _computed(self.report.run)

    @property
    def together(self) -> Any:
        return _computed(self.report.together)

    @functools.cached_property
    def step(self) -> Step:
        return step_of(self.plan, self.stage)

    @functools.cached_property
    def timed(self) -> Step:
        """The pipeline stage that the report's time is of: the slowest."""
        return step_of(self.plan, int(self.time.stage))

    @property
    def stage(self) -> int:
        """The pipeline stage that the report's peak and timeline are of."""
        return int(self.memory.peak.rank)

    @functools.cached_property
    def amounts(self) -> Amounts:
        return Amounts(self.sizes)

    @functools.cached_property
    def sizes(self) -> dict[str, Any]:
        """Dimensions and axes, with the plan's values."""
        return training_sizes(self.plan)

    def rows(self, instant: int) -> tuple[LedgerRow, ...]:
        """What is alive at one instant of the timeline."""
        return self.once(f"rows {instant}", lambda: rows_at(self.plan, instant, self.stage))

    @functools.cached_property
    def saved(self) -> tuple[LedgerRow, ...]:
        """What one micro-batch's forward leaves for its backward."""
        return saved_rows(self.plan, self.stage)


def _computed(part: Any) -> Any:
    if part is None:
        raise LookupError
    return part
