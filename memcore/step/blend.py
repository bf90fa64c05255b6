"""Blend: one step for many plans whose pipeline stages differ in how many layers they have alone.

Of a stack whose layers are all of one kind a schedule holds so many rows of each group, and how
many is linear in the layers of the stage and in those that one forward runs through, from LINEAR
of the latter on: memory can peak at the ends alone, which are then apart. So the schedules of three
steps say that of all. A law in the tests holds it for every framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memcore.models.stack import Layers
from memcore.step.step import Alive, Step, chart, interned, least_chart
from memcore.tape.dims import Number, is_array
from memcore.tape.ledger import Amounts, Holding

LINEAR = 3  # layers that one forward runs through, from which on the ends are apart


@dataclass(frozen=True, eq=False)
class Blend:
    """As a Step, of many plans at once.

    step      with the words that all have
    more      layers of each beyond those of `step`
    longer    layers that one forward runs through, beyond those of `step`
    waiting   of each plan, the forwards that wait; None: no other
    """

    step: Step
    more: Any
    longer: Any
    waiting: Any = None
    _holdings: dict[str, Holding] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Step, layers: Any, running: Any) -> Blend:
        """Of a step with other numbers of layers, as arrays; `running` is the same of all where it
        is below LINEAR."""
        start = int(running.min()) if running.max() < LINEAR else LINEAR + 1
        whole, part = (Layers(n, ()) for n in (max(start, LINEAR + 1), start))
        base = interned(replace(step, layers=whole, running=part))
        return cls(base, layers - whole.count, running - start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    @functools.cached_property
    def points(self) -> tuple[Step, ...]:
        """Steps that say what all have: one, with a layer more, and with a longer forward."""
        if self.waiting is not None:  # an array, which nothing is interned by
            return tuple(replace(one, waiting=self.waiting) for one in self.points_alone)
        return self.points_alone

    @functools.cached_property
    def points_alone(self) -> tuple[Step, ...]:
        """The same where no other forward waits."""
        base = self.step
        layers, running = Layers(base.layers.count + 1, ()), Layers(base.running.count + 1, ())
        longer = interned(replace(base, running=running)) if self.longer.any() else base
        return base, interned(replace(base, layers=layers)), longer

    def mixed(self, times: Sequence[Number]) -> Number:
        """What is linear, of each plan, as the three points have it."""
        here, more, longer = times
        found: Number = here
        for then, extra in ((more, self.more), (longer, self.longer)):
            each = then - here
            if is_array(each) or each:
                found = found + each * extra
        return found

    def blended(self, of: Callable[[Step], Holding]) -> Holding:
        """A holding of each plan."""
        return self._blended([of(step) for step in self.points])

    def _blended(self, holdings: Sequence[Holding]) -> Holding:
        counted = [dict(zip(h.groups, h.times, strict=True)) for h in holdings]
        groups = tuple(dict.fromkeys(group for one in counted for group in one))
        times = (self.mixed([one.get(group, 0) for one in counted]) for group in groups)
        return Holding(groups, tuple(times))

    def held(self, alive: Callable[[Step], Alive]) -> Holding:
        return self.blended(lambda step: step.held(alive))

    def holding(self, name: str, alive: Callable[[Step], Alive] | None = None) -> Holding:
        found = self._holdings.get(name)
        if found is None:
            found = self._holdings[name] = self.blended(lambda step: step.holding(name, alive))
        return found

    def charted(self, amounts: Amounts) -> tuple[Any, Any, Any]:
        """As a Step's."""
        return chart(self.step, self.apart, len(self.extra)).apart(amounts, self.extra)

    def charted_least(self, amounts: Amounts) -> Any:
        """As a Step's."""
        return least_chart(self.step, self.apart, len(self.extra)).bytes(amounts, self.extra)

    def apart(self) -> tuple[Step, ...]:
        """Steps that say what all have, but for one that is as another."""
        return self.points_alone[: 1 + len(self.extra)]

    @functools.cached_property
    def extra(self) -> tuple[Any, ...]:
        """How much more each plan has of what the second says, and of what the third does."""
        return (self.more, self.longer) if self.longer.any() else (self.more,)

    @functools.cached_property
    def one_waiting(self) -> Holding:
        return self.blended(lambda step: step.one_waiting)

    @functools.cached_property
    def optimizer_states(self) -> Holding:
        return self.blended(lambda step: step.optimizer_states)
