"""Families: groups of a search whose plans run alike, so that the memory of all is read at once:
one schedule, with arrays in place of sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.frameworks import FRAMEWORKS
from memcore.plan.plan import Plan
from memcore.search.space import Changes, Group, changed
from memcore.search.sweep import Swept
from memcore.step.pipeline import in_flight
from memcore.step.step import Step
from memcore.tape.ledger import Amounts
from memcore.training.memory import most_room, rooms_for
from memcore.training.overheads import by_rules
from memcore.training.steps import complete, kinds_of_stage, offloaded
from memcore.training.training import Training

Batch = tuple[int, int]  # micro-batch and accumulation
SIZED = ("micro_batch", "grad_accumulation")
# What plans of a family may differ in besides, and what their sizes call it.
RANKS = {"TP": "tp", "CP": "cp", "EP": "ep"}


def sized(batch: Batch) -> Changes:
    """What sets a micro-batch and its accumulation."""
    return {f"train.{name}": n for name, n in zip(SIZED, batch, strict=True)}


def alike(group: Group, lattice: Mapping[Any, Sequence[str]]) -> Any:
    """What plans of a family share: all words, the stages of a pipeline, which axes have more than
    one rank, and what may be recomputed and offloaded."""
    plan = group.plan
    p, t = plan.parallel, plan.train
    words = tuple((name, n) for name, n in t if name not in SIZED)
    axes = tuple((name, n) for name, n in p if name not in (*RANKS.values(), "schedule"))
    several = (p.tp > 1, p.cp > 1, p.ep > 1, plan.dp > 1)
    gpu = plan.cluster.model_copy(update={"gpus": 1}).model_dump_json()
    return words, axes, several, gpu, tuple((w, tuple(of)) for w, of in lattice.items())


class Family:
    """Plans of some groups, and of each micro-batch that they try: `members`, a group's index and a
    batch."""

    def __init__(self, groups: Sequence[Group]):
        self.groups = groups
        self.members = [(n, batch) for n, group in enumerate(groups) for batch in group.batches]

    @property
    def plan(self) -> Plan:
        return self.groups[0].plan

    @functools.cached_property
    def once(self) -> Any:
        """Whether a step of a member has one micro-batch, before which no gradients are kept."""
        import numpy as np

        return np.array([accumulation == 1 for _, (_, accumulation) in self.members])

    @functools.cached_property
    def parts(self) -> tuple[_Part | None, _Part | None]:
        """Members with one micro-batch in a step; and all, as if gradients were kept."""
        several = (~self.once).nonzero()[0]
        return (
            _Part(self, self.once.nonzero()[0]) if self.once.any() else None,
            _Part(self, range(len(self.members)), several[0]) if len(several) else None,
        )

    def room(self, words: Changes, asked: Any, exact: bool = True) -> tuple[Any, Any]:
        """Bytes that the GPU has to spare, or somewhat more where none of the members fits, and
        whether it fits; of those members that are asked, with other words. If not `exact`, less may
        be told of what fits: what would fit if gradients were kept does so without."""
        import numpy as np

        room = np.full(len(self.members), -1.0)
        fits = np.zeros(len(self.members), dtype=bool)
        first, every = self.parts
        here = asked & ~self.once
        if every and here.any():
            room, fits = every.room(words, here if exact else asked)
            fits = fits & asked
        left = asked & self.once & (exact | ~fits)
        if first and left.any():
            room, fits = room.copy(), fits.copy()
            own_room, own_fits = first.room(words, left[first.at])
            of, at = left[first.at], np.asarray(first.at)[left[first.at]]
            room[at], fits[at] = np.asarray(own_room)[of], np.asarray(own_fits)[of]
        return room, fits

    def most_room(self, words: Changes) -> Any:
        """About no less than the GPU has to spare, of each member: quickly found."""
        first, every = self.parts
        part = every or first
        assert part
        return part.most_room(words)


class _Part:
    """Members of a family with the same schedule: where they are, and what they differ in."""

    def __init__(self, family: Family, at: Sequence[int], typical: int = 0):
        self.at = at
        self.members = [
            (family.groups[n].plan, batch) for n, batch in map(family.members.__getitem__, at)
        ]
        self.plan = changed(self.members[typical][0], sized(self.members[typical][1]))
        self._amounts: dict[Any, Amounts] = {}
        self._waiting: dict[int, Any] = {}
        self._steps: dict[str, list[tuple[int, Step]]] = {}  # by what is recomputed

    @functools.cached_property
    def differing(self) -> dict[str, Any]:
        """Sizes of each, by name."""
        import numpy as np

        plans = {id(plan): plan for plan, _ in self.members}
        of_plan = {
            key: [
                plan.cluster.gpus,
                plan.gpus_in_node,
                plan.dp,
                *(getattr(plan.parallel, axis) for axis in RANKS.values()),
            ]
            for key, plan in plans.items()
        }
        names = ("B", "ACCUMULATION", "GPUS", "GPUS_PER_NODE", "DP", *RANKS)
        rows = [(*batch, *of_plan[id(plan)]) for plan, batch in self.members]
        return dict(zip(names, np.array(rows, dtype=np.int64).T.copy(), strict=True))

    def amounts(self, plan: Plan) -> Amounts:
        """Of all members with the words of this one: what is computed for others serves it too."""
        import numpy as np

        framework = FRAMEWORKS[plan.train.framework]
        if not framework.complete and self._amounts:
            return self._amounts[()]
        sizes = plan.sizes() | self.differing
        complete(sizes, plan)
        own = (np.asarray(sizes[d.name]) for d in framework.dimensions)
        key = tuple(n.tobytes() for n in own)
        return self._amounts.setdefault(key, Amounts(sizes))

    def waiting(self, stage: int) -> Any:
        """Forwards that wait at a pipeline stage, of each."""
        import numpy as np

        found = self._waiting.get(stage)
        if found is None:
            known: dict[Any, int] = {}
            for plan, batch in self.members:
                key = plan.parallel.schedule, batch[1]
                if key not in known:
                    known[key] = in_flight(changed(plan, sized(batch)), stage) - 1
            each = [known[plan.parallel.schedule, batch[1]] for plan, batch in self.members]
            found = self._waiting[stage] = np.array(each, dtype=np.int64)
        return found

    def stages(self, plan: Plan) -> list[tuple[Step, Any]]:
        """The first of each kind of pipeline stage, with how many forwards wait there."""
        again = plan.train.checkpointing
        if again not in self._steps:
            self._steps[again] = kinds_of_stage(plan)
        return [(offloaded(s, plan.train), self.waiting(n)) for n, s in self._steps[again]]

    def room(self, words: Changes, asked: Any) -> tuple[Any, Any]:
        """As a family's."""
        import numpy as np

        plan = changed(self.plan, words)
        if by_rules(plan):  # one by one: gaps are found by running through a step
            each = [
                Training.planned(changed(one, words | sized(batch)), rows=False).room
                for one, batch in self.members
            ]
            room, fits = (np.array(of) for of in zip(*each, strict=True))
            return room, fits
        return rooms_for(self.swept(plan), self.stages(plan), self.amounts(plan), asked)

    def most_room(self, words: Changes) -> Any:
        """As a family's."""
        plan = changed(self.plan, words)
        return most_room(self.swept(plan), self.stages(plan), self.amounts(plan))

    def swept(self, plan: Plan) -> Any:
        return Swept(plan, {"gpus_in_node": self.differing["GPUS_PER_NODE"]})
