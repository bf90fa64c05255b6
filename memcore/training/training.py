"""Training: one step of a plan, its memory and its time, or why it cannot be planned."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memcore.errors import Issue
from memcore.frameworks import FRAMEWORKS
from memcore.models.blocks import build, structure_of
from memcore.models.counts import parameters, weights
from memcore.models.families import FAMILIES
from memcore.models.stack import layers_of
from memcore.pausing import pause
from memcore.plan.plan import Plan
from memcore.plan.remedies import OWN
from memcore.plan.rule import Remedy, broken, to
from memcore.plan.sections import Parallel
from memcore.report import Memory, Time
from memcore.step.step import Step
from memcore.tape.dims import Number
from memcore.tape.kinds import Part, attends
from memcore.tape.ledger import Amounts
from memcore.tape.tape import Storage
from memcore.training.memory import Counted, Room, by_rank, count
from memcore.training.stages import Stage
from memcore.training.steps import depths_of, steps_of, training_sizes
from memcore.training.time import Whole, training_time, wholes_of
from memcore.words.training import ADAPTERS, ALL_LINEAR, COPIES, NO_LAYER


def predicting(plan: Plan) -> int:
    """Parameters of a plan's multi-token prediction, besides embedding and head."""
    model = plan.architecture
    kinds, _ = layers_of(model)
    head = build(
        replace(structure_of(model, kernels="megatron"), depths=depths_of(plan)), kinds
    ).head
    amounts, _ = weights(model)
    return int(sum(amounts.elements(p.shape) for p in head.parameters if Part.DEPTH in p.parts))


def trained(steps: Sequence[Step]) -> list[tuple[Storage, int]]:
    """Each weight that the stages of a step train, and how many layers have it."""
    found: Counter[Storage] = Counter()
    for step in steps:
        for tape, times in step.blocks.counted(step.layers.counts):
            found.update({p: times for p in tape.parameters if p.trained})
    return list(found.items())


def undivided(plan: Plan) -> Amounts:
    """Sizes of the plan's tensors where no ranks share them."""
    return Amounts(training_sizes(plan.model_copy(update={"parallel": Parallel()})))


def not_planned(plan: Plan) -> str:
    """Why training cannot be planned for this combination, or ''. Serving may still be."""
    issue = next(training_rules(plan), None)
    return f"{issue.message}." if issue else ""


def training_rules(plan: Plan) -> Iterator[Issue]:
    """Combinations that can be served and whose training is not planned."""
    t, p, model = plan.train, plan.parallel, plan.architecture
    framework = FRAMEWORKS[t.framework]
    own = framework.facts.own
    alone: Remedy = {"parallel.ep": 1}
    shares = p.ep > 1 and not own
    moved = [
        f"train.offload_{what}"
        for what in ("optimizer", "parameters", "activations")
        if getattr(t, f"offload_{what}") != "none"
    ]
    still: Remedy = dict.fromkeys(moved, "none")
    hybrid: Remedy = {"parallel.shard_group": 0} if p.shard_group else {}
    llama_4 = model.family == "llama4_text"
    axes: Remedy = dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.cp"), 1)
    if FAMILIES[model.family].untrained:
        why = f"{model.family} is planned as a server alone: {FAMILIES[model.family].untrained}"
        yield broken("", why, advice="train another model")
    yield from _state_rules(plan)
    if p.etp > 1 and not (own and model.experts):
        why = "expert tensor parallelism is that of Megatron's mixtures of experts"
        yield broken("", why, *to("parallel.etp", 1))
    if p.ep > 1 and not model.experts:
        yield broken("", f"{model.label} has no experts to share out", alone)
    if shares and (not framework.regathers or t.zero != 3):
        why = (
            "expert parallelism is planned under Megatron, and under FSDP2 with ZeRO 3 as "
            "transformers runs it"
        )
        yield broken(
            "",
            why,
            *(
                {"train.framework": word, "train.zero": 3}
                for word, f in FRAMEWORKS.items()
                if f.regathers
            ),
            *to("train.framework", *OWN),
            alone,
        )
    if shares and (hybrid or moved):
        why = "expert parallelism under FSDP2 is not planned with hybrid sharding or offload"
        yield broken("", why, {**hybrid, **still}, alone)
    if shares and (plan.sharing > 1 or llama_4):
        why = (
            "expert parallelism under FSDP2 is planned with data parallelism alone, and not of "
            "Llama 4"
        )
        yield broken("", why, *((alone,) if llama_4 else (axes, alone)))
    if p.tp > 1 and model.experts and not (own or FAMILIES[model.family].cuts_experts):
        why = "tensor parallelism of this mixture of experts is planned for Megatron only"
        yield broken("", why, *to("train.framework", *OWN), {"parallel.tp": 1})


def _state_rules(plan: Plan) -> Iterator[Issue]:
    """What training of layers with a state is not known to run with."""
    t, p, model = plan.train, plan.parallel, plan.architecture
    if not model.recurrence:
        return
    drop: Remedy = {"train.adapter": "none"}
    projects = model.recurrence.projects
    apart = model.recurrence.step_rank > 0 and not projects  # the scan is a function by itself
    attending = any(map(attends, model.kinds))
    targets = ("attention", "attention-all") if attending else ()
    if p.tp * p.cp > 1:
        why = (
            "tensor and context parallelism of layers with a state are not planned: no framework "
            "that is planned here shares their scans"
        )
        yield broken("", why, {"parallel.tp": 1, "parallel.cp": 1})
    if p.ep > 1:
        why = "expert parallelism of models whose layers keep states is not planned"
        yield broken("", why, *to("parallel.ep", 1))
    if apart and COPIES[t.framework, t.precision].autocast:
        why = (
            "mamba_ssm's scan takes values, B and C of one dtype, and under autocast the norms of "
            "B and C make them fp32"
        )
        yield broken(
            "",
            why,
            *to(
                "train.precision",
                *(w for w in ("bf16-mixed", "bf16-pure") if (t.framework, w) in COPIES),
            ),
        )
    if p.pp > 1 and model.traits.residual_fp32:
        why = "a residual stream in fp32 is not planned with pipeline parallelism"
        yield broken("", why, *to("parallel.pp", 1))
    if t.adapter != "none" and t.lora_targets != ALL_LINEAR and not attending:
        yield broken("", f"{model.label} has no attention for adapters", drop)
    if projects and t.adapter != "none" and t.lora_targets == ALL_LINEAR:
        why = (
            "mamba_ssm's kernel multiplies with the weight of out_proj itself, past an adapter, "
            "which PEFT refuses"
        )
        yield broken("", why, *to("train.lora_targets", *targets), drop)
    if projects and ADAPTERS[t.adapter].quantized:
        why = (
            "mamba_ssm's kernel multiplies with the weight of out_proj itself, which bitsandbytes "
            "would have in 4 bits"
        )
        yield broken("", why, {"train.adapter": "lora"}, drop)


@dataclass(frozen=True, eq=False)
class Training:
    """One training step of a plan: its memory and its time, each for those who ask.

    rows   whether memory is told with its ledger and timeline, or the peak alone
    """

    plan: Plan
    steps: Sequence[Step]  # of every pipeline stage
    amounts: Amounts
    rows: bool = True

    @classmethod
    def of(cls, plan: Plan, rows: bool = True, pool: Pool | None = None) -> Training | None:
        """None where it is not planned. Of a long list of plans, the peak alone is enough (`rows`
        false), and those that have the same sizes share their amounts in a `pool`."""
        return None if not_planned(plan) else cls.planned(plan, rows, pool)

    @classmethod
    def planned(
        cls,
        plan: Plan,
        rows: bool = True,
        pool: Pool | None = None,
        steps: Sequence[Step] | None = None,
    ) -> Training:
        """The same of a plan whose training is known to be planned; `steps`: where they are known
        from a plan that runs alike."""
        pause()
        sizes = training_sizes(plan)
        amounts = Amounts(sizes)
        if pool is not None:
            amounts = pool.setdefault(tuple(sizes.items()), amounts)
        return cls(plan, steps or steps_of(plan), amounts, rows)

    @functools.cached_property
    def counted(self) -> Counted:
        """Memory with the rows behind it, of the stage that needs the most."""
        steps, amounts = self.steps, self.amounts
        ranks = by_rank(steps, amounts) if len(steps) > 1 else ()
        fullest = steps[max(ranks, key=lambda r: r.allocated_bytes).rank] if ranks else steps[0]
        return count(self.plan, fullest, amounts, ranks, self.rows)

    @functools.cached_property
    def room(self) -> Room:
        """Bytes that the GPU has to spare, and whether the plan fits: for those who ask no more."""
        return Room(self.plan, self.steps, self.amounts)

    @property
    def step(self) -> Step:
        """Of the stage that needs the most memory."""
        return self.steps[self.memory.peak.rank]

    @property
    def memory(self) -> Memory:
        return self.counted.memory

    @property
    def trainable_parameters(self) -> int:
        t = self.plan.train
        if t.frozen == NO_LAYER and t.adapter == "none":
            return parameters(self.plan.architecture)
        of = undivided(self.plan).elements
        return sum(int(of(p.shape)) * n for p, n in trained(self.steps))

    @functools.cached_property
    def wholes(self) -> Sequence[tuple[Stage, Whole]]:
        """Every pipeline stage with its whole step. `seconds` keeps none: of hundreds of plans that
        would take long."""
        return wholes_of(self.plan, self.steps, self.amounts, listed=True)

    @property
    def seconds(self) -> float:
        """Of a step, for those who ask for no more of its time."""
        return max(whole.seconds for _, whole in wholes_of(self.plan, self.steps, self.amounts))

    def time(self) -> Time:
        return training_time(self.plan, self.wholes, self.amounts)


Pool = dict[tuple[tuple[str, Number], ...], Amounts]
