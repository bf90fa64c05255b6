"""Search: of all ways to run a training step, those that fit, the best first.

Every combination of GPUs, parallelism, framework, ZeRO stage, kernels, recomputation, offload and
micro-batch is judged, but not each by a computation of its own. What a group of plans shares is
asked once; what a plan takes at least before its memory, and both before its time, each only of
what may still be among the best. What holds of all plans is used, and laws in tests hold it: what
is offloaded leaves as much on the GPU, whether to DRAM or to NVMe, and where a plan fits without
offload, the same with it and with as much recomputation or more is no faster. Less recomputation
may need less memory, so that each word of it is asked.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from memcore.cache import seldom_collected
from memcore.errors import Issue, PlanError, did_you_mean, shown
from memcore.models import cards, catalog
from memcore.plan.plan import Plan, get, words_of
from memcore.plan.rules import RULES as RULES_OF_PLANS
from memcore.plan.rules import broken_rules, readers_of
from memcore.quantity.reading import Values
from memcore.search.change import differences
from memcore.search.families import Batch, Family, Timed, alike, sized
from memcore.search.fronts import front
from memcore.search.prices import price_of
from memcore.search.result import (
    BEATEN,
    BY,
    ENERGY,
    FITS,
    HOST,
    LISTED,
    MEMORY,
    MONEY,
    RULES,
    SLOWER,
    TIME,
    ZERO,
    Point,
    Progress,
    SearchResult,
)
from memcore.search.space import (
    KEEPS,
    TRAINING,
    Changes,
    Group,
    Space,
    allowed,
    changed,
)
from memcore.search.waterfall import waterfall
from memcore.timing.certainty import apart, ranked
from memcore.training.memory import peak_bytes
from memcore.training.overheads import allocator_slack
from memcore.training.run import run_of
from memcore.training.training import Pool, Training, not_planned
from memcore.words.training import CHECKPOINTING

OFFLOADS = ("train.offload_optimizer", "train.offload_parameters", "train.offload_activations")


def search(
    plan: Plan,
    *,
    gpus: Sequence[str] = (),
    gpus_at_most: int | None = None,
    keep: str = TRAINING,
    by: str = TIME,
    cost_at_most: float = 0.0,
    listed: int = LISTED,
    thorough: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Of all ways to do a plan's training, those that fit, the best first.

    gpus          presets to choose from; none is the plan's own
    gpus_at_most  None is as many as the plan has
    keep          what may not change: 'training', 'rounding' or 'anything' (space.KEEPS says more)
    by            'time', 'cost' or 'energy' of the whole run
    cost_at_most  of the whole run in USD, at the plan's price or the lowest that is listed; 0: any
    thorough      whether ways are tried too that hardly anybody takes (space.Space says which)
    progress      is called with how many groups of plans are done, and of how many; what raises
                  KeyboardInterrupt there or elsewhere stops the search, and the best of what was
                  judged is given; where it stops that too, the best of what was timed

    Raises PlanError for a GPU or a word that there is not, and where training is not planned.
    """
    _refuse(plan, gpus, keep, by)
    space = Space(plan, tuple(gpus), gpus_at_most, keep, thorough)
    run = _Search(plan, by, cost_at_most, listed)
    stopped = False
    with seldom_collected():
        try:
            run.judge(run.groups(space), progress)
        except KeyboardInterrupt:
            stopped = True
        try:  # of what was judged, where that was stopped
            run.time_what_may_win()
        except KeyboardInterrupt:
            stopped = True
        return run.result(stopped)


def _refuse(plan: Plan, gpus: Sequence[str], keep: str, by: str) -> None:
    issues = []
    for gpu in gpus:
        if gpu not in (plan.gpu_name, *catalog.gpu_names()):
            issues.append(Issue("gpus", cards.no_preset(gpu)))
    for name, word, known in (("keep", keep, KEEPS), ("by", by, BY)):
        if word not in known:
            issues.append(Issue(name, f"{shown(word)} is not known; {did_you_mean(word, known)}"))
    if why := not_planned(plan):
        issues.append(Issue("", f"training is not planned, so nothing is searched: {why}"))
    if issues:
        raise PlanError(issues)


@dataclass
class Standing:
    """The fastest plans so far: of each GPU seconds of a token by how many GPUs, and what all are
    ranked by, the least first."""

    fastest: dict[str, dict[int, float]] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)

    def add(self, plan: Plan, per_token: float, score: float) -> None:
        gpu, gpus = _where(plan)
        known = self.fastest.setdefault(gpu, {})
        known[gpus] = min(known.get(gpus, per_token), per_token)
        bisect.insort(self.scores, score)

    def on(self, plan: Plan) -> float:
        """Seconds of a token of the fastest on as many GPUs or fewer."""
        gpu, gpus = _where(plan)
        known = self.fastest.get(gpu, {}).items()
        return min((seconds for n, seconds in known if n <= gpus), default=math.inf)

    def score(self, listed: int) -> float:
        """What the last of so many is ranked by."""
        return self.scores[listed - 1] if len(self.scores) >= listed else math.inf


@dataclass
class _Cell:
    """One plan that fits, of the group with this index: `where` things are offloaded, what runs
    `again`, bytes to spare, the seconds that a token takes at `least`, and those of a step, where
    it was timed."""

    index: int
    group: Group
    where: Offload
    again: str
    batch: Batch
    room: int
    least: float
    seconds: float | None = None

    @functools.cached_property
    def plan(self) -> Plan:
        return changed(self.group.plan, self.changes)

    @functools.cached_property
    def training(self) -> Training:
        return Training.planned(self.plan, rows=False)

    @property
    def changes(self) -> Changes:
        """What it sets of its group's plan."""
        return _words(self.where, self.again) | sized(self.batch)

    @property
    def moves(self) -> list[str]:
        """What is offloaded."""
        return [tier for tier in self.where if tier != "none"]

    @property
    def alike(self) -> tuple[Any, ...]:
        """Of plans that differ in their ZeRO stage alone, and in no figure, the same."""
        plan, least = changed(self.plan, {ZERO: 0}), allocator_slack(self.plan).low
        return plan.model_dump_json(), self.seconds, self.room, least

    @property
    def per_token(self) -> float:
        assert self.seconds is not None
        return self.seconds / self.plan.tokens_per_step


@dataclass(slots=True)
class _Search:
    start: Plan
    by: str
    cost_at_most: float
    listed: int
    standing: Standing = field(default_factory=Standing)
    judged: int = 0
    there: int | None = None  # combinations in all, once all groups are known
    excluded: Counter[str] = field(default_factory=Counter)
    # What became of combinations: the indices of their groups, and the least seconds of a token.
    verdicts: list[tuple[str, Any, Any]] = field(default_factory=list)
    judged_groups: list[Group] = field(default_factory=list)
    cells: list[_Cell] = field(default_factory=list)
    pool: Pool = field(default_factory=dict)
    _permitted: dict[Any, bool] = field(default_factory=dict)
    _readers: dict[Any, dict[str, set[int]]] = field(default_factory=dict)
    _lattices: dict[Any, dict[Offload, list[str]]] = field(default_factory=dict)
    _kernels: dict[Any, list[Changes]] = field(default_factory=dict)
    _seen: int = 0  # cells that were timed or ruled out
    _alike: set[tuple[Any, ...]] = field(default_factory=set)  # of those that were timed

    # --- what there is ---------------------------------------------------------------------------

    def groups(self, space: Space) -> list[Group]:
        groups = []
        for cluster in space.clusters():
            layouts = list(space.layouts(cluster))
            cluster = changed(cluster, _words(BARE, NOTHING))  # whatever the start has of them
            for trains, setup in space.setups():
                for framework in space.frameworks(setup):
                    words = setup | framework
                    for kernels in self.kernels(cluster, words):
                        for layout in (w for w in layouts if space.goes(framework, w)):
                            plan = changed(cluster, words | kernels | layout)
                            batches, same = space.batches(plan)
                            may = self.permitted(plan, batches)
                            plan = changed(plan, sized(may[0])) if may else plan
                            if not (may and self.lattice(plan) and self.allowed_at_all(plan)):
                                may = ()
                            n = (len(batches) - len(may)) * COMBINATIONS
                            self.judged += n
                            self.excluded[RULES] += n
                            if may:
                                groups.append(Group(plan, may, same, trains))
        self.there = self.judged + COMBINATIONS * sum(len(group.batches) for group in groups)
        return groups

    def permitted(self, plan: Plan, batches: Iterable[Batch]) -> tuple[Batch, ...]:
        """Of batches those whose accumulation is allowed. Rules read whether there is any, and of
        virtual stages, which take micro-batches in rounds, how much."""
        words = _ruled(plan)
        allowed_batches = []
        for batch in batches:
            much = batch[1] if plan.parallel.virtual_stages > 1 else min(batch[1], 2)
            key = words, plan.parallel.pp, much
            if key not in self._permitted:
                rules = self._readers_of(plan, ("train.grad_accumulation",))
                self._permitted[key] = _allows(changed(plan, sized(batch)), rules)
            if self._permitted[key]:
                allowed_batches.append(batch)
        return tuple(allowed_batches)

    def _readers_of(self, plan: Plan, fields: Iterable[str]) -> set[int]:
        """Rules that read any of these fields: no other says anything else where these change."""
        key = _ruled(plan)
        if key not in self._readers:
            self._readers[key] = readers_of(plan)
        readers = self._readers[key]
        return set().union(*(readers.get(path, ()) for path in fields))

    def allowed_at_all(self, plan: Plan) -> bool:
        """Whether the sizes of a group are allowed, with one of its combinations."""
        trial = changed(plan, _words(BARE, self.lattice(plan)[BARE][-1]))
        return _allows(trial, self._readers_of(plan, SIZES)) and not not_planned(trial)

    def kernels(self, plan: Plan, words: Changes) -> list[Changes]:
        """Kernels, attention and cross-entropy that a framework runs, without those that another
        beats in memory and time, both with and without recomputation. Of equal ones that which
        changes the least."""
        named = {path: words[path] for path in DECIDE_KERNELS if path in words}
        key = (plan.gpu_name, tuple(named.items()))
        if key not in self._kernels:
            self._kernels[key] = self._best_kernels(plan, words)
        return self._kernels[key]

    def _best_kernels(self, plan: Plan, words: Changes) -> list[Changes]:
        names = ("train.kernels", "train.attention", "train.cross_entropy")
        measured: list[tuple[Changes, dict[str, tuple[float, float]]]] = []
        others = [again for again in CHECKPOINTING if again not in ("none", "full")]
        words_by_field = [
            sorted(words_of(n) or (), key=lambda w, n=n: w != get(plan, n)) for n in names
        ]
        for values in itertools.product(*words_by_field):
            chosen = dict(zip(names, values, strict=True))
            figures: dict[str, tuple[float, float]] = {}
            for again in ("none", "full", *others):
                if again in others and figures:
                    break  # they are asked where neither of the first is allowed
                trial = changed(plan, words | chosen | _words(BARE, again))
                if not allowed(trial):
                    continue
                training = Training.planned(trial, rows=False, pool=self.pool)
                peak = max(peak_bytes(step, training.amounts) for step in training.steps)
                figures[again] = float(peak), training.seconds
            if figures:
                measured.append((chosen, figures))
        unbeaten = []
        for i, (chosen, figures_of) in enumerate(measured):
            beaten = any(
                figures_of.keys() <= other.keys()
                and all(
                    b <= a for w in figures_of for a, b in zip(figures_of[w], other[w], strict=True)
                )
                and (other != figures_of or k < i)
                for k, (_, other) in enumerate(measured)
                if k != i
            )
            if not beaten:
                unbeaten.append(chosen)
        return unbeaten

    def lattice(self, plan: Plan) -> dict[Offload, list[str]]:
        """Which words of recomputation go with what is offloaded, under a plan's other words: the
        rules ask for no more of a plan than is in the key, and allow its accumulation."""
        key = _ruled(plan)
        if key not in self._lattices:
            of_words = self._readers_of(plan, ("train.checkpointing", "train.checkpoint_every"))
            of_offload = self._readers_of(plan, OFFLOADS)

            def may(where: Offload, again: str, rules: set[int]) -> bool:
                trial = changed(plan, _words(where, again))
                return _allows(trial, rules) and not not_planned(trial)

            others = set(range(len(RULES_OF_PLANS))) - of_words - of_offload
            words: list[str] = []
            if may(BARE, NOTHING, others):
                words = [w for w in CHECKPOINTING if may(BARE, w, of_words | of_offload)]
            # Rules of offload ask for no word of recomputation.
            ways = [w for w in WHERE[1:] if words and may(w, words[-1], of_words | of_offload)]
            self._lattices[key] = dict.fromkeys((BARE, *ways), words) if words else {}
        return self._lattices[key]

    # --- what fits -------------------------------------------------------------------------------

    def judge(self, groups: Sequence[Group], progress: Progress | None = None) -> None:
        """Memory of every combination of some groups that may win; of those before a family also
        time, so that there is something to beat."""
        first, done = len(self.judged_groups), 0
        self.judged_groups += groups
        for of, family in self._families(groups):
            if done:
                self.time_what_may_win()
            if progress:
                progress(done, len(groups))
            self._judge(family, first + of)
            family.forget()
            done += len(of)

    def _families(self, groups: Sequence[Group]) -> list[tuple[Any, Family]]:
        """Families with the indices of their groups: those first that may take the least."""
        of: dict[Any, list[int]] = {}
        known: dict[Any, int] = {}
        for n, group in enumerate(groups):
            of.setdefault(alike(group, self.lattice(group.plan), known), []).append(n)
        timed = Timed()
        families = [(np.array(at), Family([groups[n] for n in at], timed)) for at in of.values()]
        return sorted(families, key=lambda pair: self._promise(pair[1]))

    def _promise(self, family: Family) -> float:
        """Seconds of all GPUs that a token takes at least, of the best of a family."""
        again = self.lattice(family.plan)[BARE][0]
        return float((self._least(family, BARE, again) * family.differing["GPUS"]).min())

    def _judge(self, family: Family, index: Any) -> None:
        """The same of one family, whose groups have these indices: all of it or, where that is
        stopped, nothing."""
        lattice, every, group_of = self.lattice(family.plan), len(family), family.group_of
        at = index[group_of]
        limits = np.array([self.limit(group.plan) for group in family.groups])[group_of]
        in_all = sum(map(len, lattice.values()))
        excluded = Counter({RULES: (COMBINATIONS - in_all) * every})
        verdicts: list[tuple[str, Any, Any]] = []
        cells: list[_Cell] = []
        words = lattice[BARE]
        if NOTHING in words and (self._least(family, BARE, NOTHING) > limits).all():
            excluded[BEATEN] += in_all * every  # what runs again takes longer
            lattice, words = {}, []
        bare = {again: self._least(family, BARE, again) for again in words}

        def note(why: str, of: Any, least: Any) -> None:
            if of.any():
                verdicts.append((why, at[of], least[of]))

        fitting: dict[Offload, dict[str, Any]] = {}  # by word of recomputation
        short: dict[Offload, Any] = {}  # groups for some plan of which the host has too little
        for where, words in lattice.items():
            on_host = tuple("cpu" if tier == "nvme" else tier for tier in where)
            faster = [fitting[less] for less in (BARE, on_host) if less in fitting]
            fitting[where], short[where] = {}, np.zeros(len(family.groups), dtype=bool)
            for again in words:
                fits = fitting[where][again] = np.zeros(every, dtype=bool)
                least, left = bare[again], bare[again] <= limits
                if where != BARE and left.any():
                    least = self._least(family, where, again)
                    left = least <= limits
                excluded[BEATEN] += int(np.sum(~left))
                wanted = _left(left, again, faster)
                note(SLOWER, left & ~wanted, least)
                here = wanted
                if where != on_host and on_host in fitting:
                    here = wanted & short[on_host][group_of]  # NVMe leaves as much on the GPU
                    note(MEMORY, wanted & ~here, least)
                if not here.any():
                    continue
                room, fitting_now = family.room(_words(where, again), here, exact=False)
                over = room < 0
                fits |= here & fitting_now
                hosted = here & ~over & ~fitting_now
                short[where][group_of[hosted]] = True
                for why, of in ((FITS, fits), (MEMORY, here & over), (HOST, hosted)):
                    note(why, of, least)
                for i in self._winning(family, fits):
                    what = family.groups[group_of[i]], where, again, family.batch(i)
                    cells.append(_Cell(int(at[i]), *what, int(room[i]), float(least[i])))
        self.judged += COMBINATIONS * every
        self.excluded += excluded
        self.verdicts += verdicts
        self.cells += cells

    def _least(self, family: Family, where: Offload, again: str) -> Any:
        """Seconds that a token of each member takes at least."""
        return FLOOR * family.least_seconds(_words(where, again))

    def counts(self) -> Counter[str]:
        """How many combinations fit, and how many others each reason excludes: before all others
        that they are slower than what they have to beat, so that no order of judging matters."""
        counts = self.excluded.copy()
        limits = np.array([self.limit(group.plan) for group in self.judged_groups])
        for why, at, least in self.verdicts:
            beaten = int(np.sum(least > limits[at]))
            counts[BEATEN] += beaten
            counts[why] += len(at) - beaten
        return +counts

    def _winning(self, family: Family, fits: Any) -> Iterator[int]:
        """Of members that fit those that may win: without a pipeline a smaller micro-batch is
        slower than a larger one."""
        largest = family.plan.parallel.pp == 1
        of_group: dict[int, dict[Batch, int]] = {}
        for i in fits.nonzero()[0]:
            of_group.setdefault(family.group_of[i], {})[family.batch(i)] = i
        for of in of_group.values():
            yield from (of[batch] for batch in ([max(of)] if largest else sorted(of)))

    # --- how long it takes -----------------------------------------------------------------------

    def time_what_may_win(self) -> None:
        """Time plans until no other can be among the best, nor the fastest on as many GPUs or
        fewer: plans whose arithmetic and offload alone take longer are left out. Those that take
        the least at least go first: they rule out more."""
        for cell in sorted(self.cells[self._seen :], key=lambda c: c.least):
            if cell.least <= self.limit(cell.group.plan):
                cell.seconds = cell.training.seconds
                # What nobody may book is nothing to beat, and what is the same is one place.
                if not self._dear(cell) and self._is_new(cell):
                    score = self._score(cell.plan, cell.per_token)
                    self.standing.add(cell.plan, cell.per_token, score)
        self._seen = len(self.cells)

    def _is_new(self, cell: _Cell) -> bool:
        """Whether none that is the same was timed before."""
        before = len(self._alike)
        self._alike.add(cell.alike)
        return len(self._alike) > before

    def _dear(self, cell: _Cell) -> bool:
        """Whether the whole run costs more than it may."""
        return bool(self.cost_at_most) and (_cost(cell, self.start) or 0.0) > self.cost_at_most

    def limit(self, plan: Plan) -> float:
        """Seconds of a token: who takes more is neither listed nor the fastest on so many GPUs."""
        last = self.standing.score(self.listed)
        listed = last if last == math.inf else last / self._score(plan, 1.0)
        return max(self.standing.on(plan), listed)

    def _score(self, plan: Plan, per_token: float) -> float:
        """What plans are ranked by, the least first."""
        seconds = per_token * plan.cluster.gpus
        if self.by == TIME:
            return per_token
        if self.by == ENERGY:
            return seconds * (plan.run.watts_per_gpu or plan.accelerator.watts)
        return seconds * (_price(plan, self.start) or math.inf)

    # --- the answer ------------------------------------------------------------------------------

    def result(self, stopped: bool) -> SearchResult:
        self.cells.sort(key=lambda c: c.index)  # in the order of the space, whoever judged
        timed = [
            c for c in self.cells if c.seconds is not None and c.least <= self.limit(c.group.plan)
        ]
        dear = sum(map(self._dear, timed))
        timed = [c for c in timed if not self._dear(c)]
        same: dict[Any, list[_Cell]] = {}
        for c in timed:
            same.setdefault(c.alike, []).append(c)
        timed = [self._one_of(of) for of in same.values()]
        timed.sort(key=lambda c: (self._score(c.plan, c.per_token), not c.group.same))
        scores = [self._score(c.plan, c.per_token) for c in timed]
        ranks = ranked([c.plan for c in timed], scores)
        chosen = timed[: self.listed]
        best = [self._point(c, r, same) for c, r in zip(chosen, ranks, strict=False)]
        pareto = [self._point(c, ranks[timed.index(c)], same) for c in _front(timed, self.start)]
        counts = self.counts()
        counts[MONEY] += dear
        counts[FITS] -= dear
        return SearchResult(
            evaluated=self.judged,
            fits=(+counts).pop(FITS, 0),
            excluded={why: n for why, n in sorted((+counts).items()) if why != FITS},
            best=tuple(best),
            pareto=tuple(pareto),
            why=waterfall(self.start, best[0].plan) if best else (),
            stopped=stopped,
            left=None if self.there is None else self.there - self.judged,
            apart=apart(best[0].plan, best[0].plan) if best else None,
        )

    def _one_of(self, cells: Sequence[_Cell]) -> _Cell:
        """Of plans that are the same but for their ZeRO stage, the start's or else the first."""
        stage = self.start.train.zero
        return next((c for c in cells if c.plan.train.zero == stage), cells[0])

    def _point(self, cell: _Cell, rank: int, same: Mapping[Any, Sequence[_Cell]]) -> Point:
        plan = Plan.of(cell.plan.document())
        others = (c.plan.train.zero for c in same[cell.alike] if c is not cell)
        return Point(
            plan=plan,
            rank=rank,
            changes=differences(self.start, plan),
            trains=cell.group.trains,
            same_batch=cell.group.same,
            figures=_figures(cell, plan, self.start),
            also=tuple(sorted(others)),
        )


Offload = tuple[str, ...]  # where each of OFFLOADS is
# What is offloaded, from the fastest on: nothing, then to the host, then to NVMe.
WHERE: tuple[Offload, ...] = tuple(
    sorted(
        itertools.product(*((words_of(path) or {}) for path in OFFLOADS)),
        key=lambda where: ("nvme" in where, sum(tier != "none" for tier in where)),
    )
)
BARE = WHERE[0]
NOTHING = next(iter(CHECKPOINTING))  # is recomputed
COMBINATIONS = len(WHERE) * len(CHECKPOINTING)
# What kernels go with; no other word makes one of them better than another.
DECIDE_KERNELS = ("train.framework", "train.precision", "train.adapter")
# Fields of a layout and a batch that no word says, which rules are asked of each group about.
SIZES = (
    *(f"parallel.{axis}" for axis in ("tp", "pp", "cp", "ep")),
    *("cluster.gpus", "train.micro_batch", "train.grad_accumulation"),
)
FLOOR = 0.999  # of what a plan takes at least, for sums in another order


def _words(where: Offload, again: str) -> Changes:
    offloads = dict(zip(OFFLOADS, where, strict=True))
    return offloads | {"train.checkpointing": again, "train.checkpoint_every": 1}


def _ruled(plan: Plan) -> tuple[Any, ...]:
    """What rules read of a plan of a search, but for sizes and what a group's plans differ in."""
    t, p = plan.train, plan.parallel
    ranks = (p.tp > 1, p.pp > 1, p.cp > 1, p.ep > 1, plan.dp > 1, p.schedule, p.virtual_stages)
    return (
        t.framework, t.zero, t.precision, t.optimizer, t.kernels, t.attention, t.adapter,
        t.overlap_moe_expert_parallel_comm, plan.gpu_name, ranks,
    )  # fmt: skip


def _allows(plan: Plan, rules: Collection[int]) -> bool:
    """Whether these of a plan's rules allow it."""
    return not broken_rules(plan, plan.architecture, rules)


def _left(may: Any, again: str, fitting: Sequence[Mapping[str, Any]]) -> Any:
    """Members without those that fit where nothing is offloaded, or all of it to the host, and
    nothing is recomputed or the same: otherwise they are no faster."""
    for fits in fitting:
        for word in (NOTHING, again):
            if word in fits:
                may = may & ~fits[word]
    return may


def _where(plan: Plan) -> Any:
    return plan.gpu_name, plan.cluster.gpus


def _price(plan: Plan, start: Plan) -> float:
    """Of one GPU for an hour; 0 where none is known."""
    return price_of(start, plan.gpu_name)[0] or 0.0


def _cost(cell: _Cell, start: Plan) -> float | None:
    price, plan = _price(cell.plan, start), cell.plan
    time = SimpleNamespace(step_seconds=cell.seconds)
    values = Values(plan=plan, hardware=plan.accelerator, time=time)
    return values.run.gpu_hours * price if price else None


def _figures(cell: _Cell, plan: Plan, start: Plan) -> dict[str, Any]:
    """What a Report says of a plan, and what it costs at a known price."""
    memory, time = cell.training.memory, cell.training.time()
    run = run_of(plan, time)
    cost = _cost(cell, start)
    return {
        "gpus": plan.cluster.gpus,
        "step_seconds": time.step_seconds,
        "step_interval": list(time.step_interval),
        "tokens_per_step": plan.tokens_per_step,
        "seconds_per_token": time.step_seconds / plan.tokens_per_step,
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu,
        "allocated_bytes": memory.allocated_bytes,
        "device_bytes": list(memory.device_bytes),
        "capacity_bytes": memory.capacity_bytes,
        "headroom_bytes": memory.capacity_bytes - memory.device_bytes[1],
        "dram_bytes": memory.tiers["dram"],
        "run_seconds": run.seconds,
        "gpu_hours": run.gpu_hours,
        "energy_joules": run.energy_joules,
        **({} if cost is None else {"cost": cost, "price_per_gpu_hour": _price(plan, start)}),
    }


def _front(cells: Sequence[_Cell], start: Plan) -> list[_Cell]:
    """Of GPUs, time and cost, what nothing beats in all three: the fewest GPUs first."""
    best: dict[Any, _Cell] = {}
    for cell in cells:
        where = _where(cell.plan)
        if where not in best or cell.per_token < best[where].per_token:
            best[where] = cell

    def figures(cell: _Cell) -> tuple[float, ...]:
        gpus = cell.plan.cluster.gpus
        return gpus, cell.per_token, gpus * cell.per_token * (_price(cell.plan, start) or 1.0)

    return front(
        ((figures(cell), cell) for cell in best.values()),
        lambda one, other: one[0] != other[0] and all(map(operator.le, one[0], other[0])),
    )
