"""Space: the plans that a search goes through, in groups of which each shares all but what is
recomputed, what is offloaded and the micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.models.model import Model
from memcore.plan.plan import Plan, by_section, limits_of, words_of
from memcore.plan.repair import planned
from memcore.plan.rules import broken_rules
from memcore.search.levers import ADAMS, adapter_changes
from memcore.training.training import not_planned
from memcore.words.precision import PURE
from memcore.words.training import COPIES, FRAMEWORKS

TRAINING, ROUNDING, ANYTHING = "training", "rounding", "anything"
KEEPS = {
    TRAINING: "nothing of what the training computes changes",
    ROUNDING: "states and products may be rounded otherwise: other precisions, Adam in 8 bits",
    ANYTHING: "adapters and other optimizers are tried too",
}
MOST_STAGES = 64  # of a pipeline
MOST_CONTEXT = 32  # ranks that share a sequence
# What is tried only by a thorough search: context parallelism that leaves each rank fewer tokens
# (torchtitan and Megatron-LM use it for longer sequences), and pipelines where a framework's users
# run none.
TOKENS_OF_CONTEXT = 4096
PIPELINED = ("fsdp2", "megatron")
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # where the batch is free

OVERLAP = "train.overlap_moe_expert_parallel_comm"

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Plans that differ in recomputation, offload and micro-batch alone.

    plan     with nothing recomputed or offloaded
    batches  micro-batches that are tried, the largest first, with the accumulation of each
    same     whether a step has as many tokens as at the start
    trains   what becomes of the training: a word of KEEPS
    """

    plan: Plan
    batches: tuple[tuple[int, int], ...]
    same: bool
    trains: str


@dataclass(frozen=True, slots=True)
class Space:
    """What a search may choose from.

    gpus          presets, or None for the plan's own GPU
    gpus_at_most  None: no more than the plan has
    keep          a word of KEEPS
    thorough      whether ways are tried too that hardly anybody takes
    """

    plan: Plan
    gpus: Sequence[str] = ()
    gpus_at_most: int | None = None
    keep: str = TRAINING
    thorough: bool = False

    def clusters(self) -> list[Plan]:
        """The plan on each GPU and each number of them that can be booked, undivided."""
        most = self.gpus_at_most or self.plan.cluster.gpus
        clusters = []
        for gpu in self.gpus or (None,):
            plan = undivided(self.plan)
            if gpu is not None and gpu != plan.gpu_name:
                plan = plan.with_changes({"cluster.gpu": gpu, "cluster.node": None})
            for n in counts(plan, most):
                if there := planned(plan, {"cluster.gpus": n}):  # else its host has no network, say
                    clusters.append(there)
        return clusters

    def setups(self) -> list[tuple[str, Changes]]:
        """What is changed of the training itself, and what becomes of it; first nothing."""
        t = self.plan.train
        setups: list[tuple[str, Changes]] = [(TRAINING, {})]
        if self.keep == TRAINING:
            return setups
        precisions = [w for w in words_of("train.precision") or () if w != t.precision]
        eight = [w for w in ADAMS if w != t.optimizer] if t.optimizer in ADAMS else []
        setups += [(ROUNDING, {"train.precision": w}) for w in precisions]
        setups += [(ROUNDING, {"train.optimizer": w}) for w in eight]
        # Rounded states both ways: of other precisions those that keep no wider copy.
        pure: list[Changes] = [{}, *({"train.precision": p} for p in precisions if p in PURE)]
        setups += [(ROUNDING, {"train.optimizer": w} | e) for w in eight for e in pure if e]
        if self.keep == ANYTHING:
            others = [
                w for w in words_of("train.optimizer") or () if w not in (t.optimizer, *eight)
            ]
            setups += [(ANYTHING, {"train.optimizer": w} | e) for w in others for e in pure]
            setups += [(ANYTHING, changes) for changes in adapter_changes(self.plan)]
        return setups

    def frameworks(self, setup: Changes) -> Iterator[Changes]:
        """Frameworks and ZeRO stages that have the precision."""
        precision = setup.get("train.precision", self.plan.train.precision)
        for name, framework in FRAMEWORKS.items():
            if (name, precision) not in COPIES or setup.get("train.framework", name) != name:
                continue
            for zero in framework.zero:
                if setup.get("train.zero", zero) == zero:
                    yield {"train.framework": name, "train.zero": zero}

    def layouts(self, plan: Plan) -> Iterator[Changes]:
        """Ways to share a model and its sequences out over a plan's GPUs."""
        gpus, model = plan.cluster.gpus, plan.architecture
        domain = min(plan.gpus_per_domain, gpus)
        for tp in _ranks(gpus, min(domain, model.heads)):
            if model.heads % tp:
                continue
            for pp in _ranks(gpus // tp, min(MOST_STAGES, model.layers)):
                for cp in _ranks(gpus // (tp * pp), self._most_context()):
                    for ep in _experts(model, gpus // pp):
                        yield from _variants(model, tp, pp, cp, ep)

    def _most_context(self) -> int:
        if self.thorough:
            return MOST_CONTEXT
        return min(MOST_CONTEXT, max(1, self.plan.train.seq_len // TOKENS_OF_CONTEXT))

    def goes(self, framework: Changes, layout: Changes) -> bool:
        """Whether a framework is tried with a way to share the model out."""
        name = framework["train.framework"]
        if layout[OVERLAP] and not FRAMEWORKS[name].own:
            return False
        return self.thorough or layout["parallel.pp"] == 1 or name in PIPELINED

    def batches(self, plan: Plan) -> tuple[tuple[tuple[int, int], ...], bool]:
        """Micro-batches and accumulations on so many ranks, and whether the step is the same. Where
        its sequences cannot be shared out, each rank has as many more as make it even."""
        start, dp = self.plan, plan.dp
        sequences = start.train.micro_batch * start.train.grad_accumulation * start.dp
        each = -(-sequences // dp)
        same = each * dp == sequences
        if self.keep == ANYTHING:
            every = {m for m in MICRO_BATCHES if m >= each} | set(_divisors(each))
            return tuple((m, max(1, each // m)) for m in sorted(every, reverse=True)), same
        return tuple((m, each // m) for m in reversed(_divisors(each))), same


def undivided(plan: Plan) -> Plan:
    """The plan on one GPU after another: nothing is shared out yet, and no rank sends rows to
    another's experts."""
    axes = dict.fromkeys(("tp", "pp", "cp", "ep", "etp", "virtual_stages"), 1)
    ways: Changes = {f"parallel.{axis}": n for axis, n in axes.items()}
    ways |= {"parallel.shard_group": 0, "parallel.schedule": "1f1b"}
    return plan.with_changes(ways | {OVERLAP: False, "parallel.sequence_parallel": False})


def counts(plan: Plan, most: int) -> list[int]:
    """Numbers of GPUs up to one that can be booked: an even part of a node, and whole nodes; and
    that number itself."""
    each = plan.gpus_per_node
    parts = [n for n in range(1, min(each, most + 1)) if each % n == 0]
    bookable = {*parts, *range(each, most + 1, each)}
    if most <= limits_of("cluster.gpus")[1]:
        bookable.add(most)
    return sorted(bookable)


def _ranks(of: int, most: int) -> list[int]:
    return [n for n in _divisors(of) if n <= most]


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def _experts(model: Model, ranks: int) -> list[int]:
    """Expert-parallel ranks: those that divide both the experts and a stage's GPUs."""
    return _divisors(math.gcd(model.experts, ranks)) if model.experts else [1]


def _variants(model: Model, tp: int, pp: int, cp: int, ep: int) -> Iterator[Changes]:
    """Tensor-parallel ranks share norms and residuals too, which needs less memory and moves as
    much. GPipe is left out: it is no faster than 1F1B and keeps more. Rows of experts pass behind
    another micro-batch where there is no pipeline, or one of virtual stages."""
    axes: Changes = {"parallel.tp": tp, "parallel.pp": pp, "parallel.cp": cp, "parallel.ep": ep}
    ways: Changes = axes | {"parallel.sequence_parallel": tp > 1, OVERLAP: False}
    yield ways
    if pp > 1:
        yield ways | {"parallel.schedule": "zero-bubble"}
        if 2 * pp > model.layers:
            return
        ways = ways | {"parallel.virtual_stages": 2}
        yield ways
    if ep > 1:
        yield ways | {OVERLAP: True}


def changed(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """A plan with other words and numbers of `train` and `parallel`, of which each is one that its
    field takes; whether they go together is not asked. For who asks `allowed` of many."""
    parts = {s: getattr(plan, s).model_copy(update=of) for s, of in by_section(changes).items()}
    return plan.model_copy(update=parts)


def allowed(plan: Plan) -> bool:
    """Whether rules allow what `changed` made, and its training is planned."""
    return not broken_rules(plan, plan.architecture) and not not_planned(plan)
