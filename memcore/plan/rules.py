"""Rules: combinations that cannot exist, each written once.

Plan raises their messages, with the remedies; a sweep uses the same conditions as a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from memcore.errors import Issue, did_you_mean, shown
from memcore.models.counts import weights
from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.plan.rule import Remedy, Rule, each, issues_of, only, to
from memcore.tape.dims import maximum
from memcore.tape.structure import CAUSAL, CLASSIFICATION
from memcore.words import engines
from memcore.words.optimizers import AWARE, DEEPSPEED_OPTIMIZERS, OPTIMIZERS
from memcore.words.precision import BY_TENSOR, PURE
from memcore.words.serving import DRAFT_HEADS, KV_CACHES, PREFILLS
from memcore.words.stored import AS_PUBLISHED, WEIGHT_DTYPES
from memcore.words.training import (
    ADAPTERS,
    ALL_LINEAR,
    ATTN,
    AUTO,
    AVERAGED,
    AVERAGED_FP32,
    BASE,
    CHECKPOINTING,
    COPIES,
    CORE_ATTN,
    CUDNN,
    DENSE,
    FLASH_3,
    FP32,
    FRAMEWORKS,
    FREED,
    FULL_ITERATION,
    INT8,
    KEEPS_LIKE,
    KEPT,
    LAYER,
    LAYERNORM,
    MLA_UP_PROJ,
    MODULES,
    MOE,
    MOE_ACT,
    MOE_PREPROCESS,
    MOE_ROUTER,
    NEVER,
    NO_LAYER,
    OPERATIONS,
    QUANTIZED,
    SEEING,
    SHARED_EXPERTS,
    UNIFORM,
    eight_bit,
    float8,
    listed,
)

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A condition on the flat sizes that must hold; works for numbers and for arrays. What settles
    it is asked of numbers only."""

    field: str
    holds: Callable[[dict[str, Any]], Any]
    why: Callable[[dict[str, Any]], str]
    mends: Callable[[dict[str, Any]], Any]  # what the field is set to
    advice: str = ""
    others: Callable[[dict[str, Any]], tuple[Remedy, ...]] = lambda s: ()  # that leave it alone

    def broken(self, s: dict[str, Any]) -> Rule:
        """What is said of sizes for which it does not hold."""
        remedies = (*to(self.field, self.mends(s)), *self.others(s))
        return Rule(self.field, True, self.why(s), remedies, self.advice)

    def issue(self, s: dict[str, Any]) -> Issue:
        return self.broken(s).issue


def _up(n: int, multiple: int) -> int:
    """A number, or the next multiple above it."""
    return -(-n // multiple) * multiple


def _most(at_most: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits; 1 where none does."""
    return next((n for n in range(at_most, 0, -1) if fits(n)), 1)


def _ranks(s: dict[str, Any], axis: str, divides: int) -> int:
    """The most ranks of an axis, no more than there are, that share out so many things and the
    GPUs; or the things alone, where no number shares out both."""
    others, most = s["TP"] * s["PP"] * s["CP"] // s[axis], min(s[axis], divides)
    both = _most(most, lambda n: divides % n == 0 and s["GPUS"] % (n * others) == 0)
    return both if both > 1 else _most(most, lambda n: divides % n == 0)


def _fewer_ranks(s: dict[str, Any]) -> tuple[Remedy, ...]:
    """Ranks of one axis, or of all, that share out the GPUs: divisors of what there are, since
    these share out all else."""
    axes, gpus = ("TP", "PP", "CP"), int(s["GPUS"])
    paths = {axis: f"parallel.{axis.lower()}" for axis in axes}
    found: list[Remedy] = []
    together: dict[str, int] = {}
    for axis in axes:
        others = math.prod(int(s[a]) for a in axes if a != axis)
        if gpus % others == 0:
            found.append({paths[axis]: math.gcd(int(s[axis]), gpus // others)})
        left = gpus // math.prod(together.values())
        together[paths[axis]] = math.gcd(int(s[axis]), left)
    return tuple(found) or (together,)


def _at_most_ranks(s: dict[str, Any], axis: str, things: int) -> int:
    """The most ranks of an axis, at most one for each thing, that share out the GPUs."""
    others = s["TP"] * s["PP"] * s["CP"] // s[axis]
    return _most(min(s[axis], things), lambda n: s["GPUS"] % (n * others) == 0)


def _expert_ranks(s: dict[str, Any]) -> int:
    shared = math.gcd(s["GPUS"] // s["PP"], s["EXPERTS"])
    return _most(s["EP"], lambda n: shared % n == 0)


def _expert_tensor_ranks(s: dict[str, Any]) -> int:
    on_stage, wide = s["GPUS"] // s["PP"], s["EXPERT_F"]
    return _most(s["ETP"], lambda n: wide % n == 0 and on_stage % (n * s["EP"]) == 0)


USUAL = "bf16-mixed"  # the precision that every framework has
SIZE_RULES = (
    SizeRule(
        "parallel.shard_group",
        lambda s: s["DP"] * s["CP"] % maximum(s["SHARD_GROUP"], 1) == 0,
        lambda s: (
            f"{s['DP'] * s['CP']:,} ranks that share parameters do not divide by "
            f"{s['SHARD_GROUP']:,}"
        ),
        lambda s: 0,
        "choose a divisor of them",
    ),
    SizeRule(
        "cluster.gpus",
        lambda s: s["GPUS"] % (s["TP"] * s["PP"] * s["CP"]) == 0,
        lambda s: (
            f"{s['GPUS']:,} GPUs do not divide by tp x pp x cp = {s['TP'] * s['PP'] * s['CP']:,}"
        ),
        lambda s: _up(s["GPUS"], s["TP"] * s["PP"] * s["CP"]),
        "choose another multiple of it",
        _fewer_ranks,
    ),
    SizeRule(
        "parallel.tp",
        lambda s: s["HEADS"] % s["TP"] == 0,
        lambda s: f"{s['HEADS']:,} attention heads do not divide by tp {s['TP']:,}",
        lambda s: _ranks(s, "TP", s["HEADS"]),
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.tp",
        lambda s: s.get("SSM_HEADS", 0) % s["TP"] == 0,
        lambda s: f"{s['SSM_HEADS']:,} heads of a layer's state do not divide by tp {s['TP']:,}",
        lambda s: _ranks(s, "TP", s["SSM_HEADS"]),
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.pp",
        lambda s: s["LAYERS"] >= s["PP"],
        lambda s: f"{s['PP']:,} stages for {s['LAYERS']:,} layers",
        lambda s: _at_most_ranks(s, "PP", s["LAYERS"]),
        "use at most one per layer",
    ),
    SizeRule(
        "parallel.virtual_stages",
        lambda s: s["LAYERS"] + s["OUTER"] >= s["PP"] * s["VIRTUAL"],
        lambda s: (
            f"{s['VIRTUAL']:,} virtual stages on each of {s['PP']:,} for {s['LAYERS']:,} layers"
        ),
        lambda s: max(1, s["LAYERS"] // s["PP"]),
        "use at most one per layer",
    ),
    SizeRule(
        "parallel.pp",
        lambda s: (s["OUTER"] == 0) | ((s["LAYERS"] + s["OUTER"]) % (s["PP"] * s["VIRTUAL"]) == 0),
        lambda s: (
            f"{s['LAYERS']:,} layers and {s['OUTER']:,} for embedding and loss do not divide by "
            f"{s['PP'] * s['VIRTUAL']:,} stages"
        ),
        lambda s: _most(
            s["PP"],
            lambda n: (
                (s["LAYERS"] + s["OUTER"]) % (n * s["VIRTUAL"]) == 0
                and s["GPUS"] % (s["TP"] * s["CP"] * n) == 0
            ),
        ),
        "choose another divisor of them, or leave embedding and loss out",
    ),
    SizeRule(
        "parallel.ep",
        lambda s: s["EXPERTS"] % s["EP"] == 0,
        lambda s: f"{s['EXPERTS']:,} experts do not divide by ep {s['EP']:,}",
        _expert_ranks,
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.ep",
        lambda s: s["GPUS"] // s["PP"] % s["EP"] == 0,
        lambda s: (
            f"{s['GPUS'] // s['PP']:,} GPUs on a pipeline stage do not divide by ep {s['EP']:,}"
        ),
        _expert_ranks,
        "choose another divisor of them",
    ),
    SizeRule(
        "train.seq_len",
        lambda s: (s["NARROW"] == 1) | (s["B"] * s["S"] % (s["CP"] * s["TP"] * s["NARROW"]) == 0),
        lambda s: (
            f"{s['B'] * s['S']:,} tokens do not divide by cp x tp x {s['NARROW']} = "
            f"{s['CP'] * s['TP'] * s['NARROW']:,}, as products in 8 bits want"
        ),
        lambda s: _up(s["S"], s["CP"] * s["TP"] * s["NARROW"]),
        "choose another multiple of it",
        lambda s: ({"train.precision": USUAL},),  # where images say how many tokens there are
    ),
    SizeRule(
        "train.precision",
        lambda s: (
            (s["NARROW"] == 1)
            | (s["D"] % s["NARROW"] == 0)
            & (s["F"] % (s["TP"] * s["NARROW"]) == 0)
            & (s["EXPERT_F"] % (s["ETP"] * s["NARROW"]) == 0)
            & (s["HEADS"] * s["HEAD_DIM"] % (s["TP"] * s["NARROW"]) == 0)
        ),
        lambda s: (
            f"products in 8 bits want widths in multiples of {s['NARROW']}, which this model's are "
            "not"
        ),
        lambda s: USUAL,
    ),
    SizeRule(
        "parallel.etp",
        lambda s: s["GPUS"] // s["PP"] % (s["EP"] * s["ETP"]) == 0,
        lambda s: (
            f"{s['GPUS'] // s['PP']:,} GPUs on a pipeline stage do not divide by ep x etp = "
            f"{s['EP'] * s['ETP']:,}"
        ),
        _expert_tensor_ranks,
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.etp",
        lambda s: s["EXPERT_F"] % s["ETP"] == 0,
        lambda s: f"experts {s['EXPERT_F']:,} wide do not divide by etp {s['ETP']:,}",
        _expert_tensor_ranks,
        "choose another divisor",
    ),
    SizeRule(
        "parallel.cp",
        lambda s: s["S"] >= s["CP"],
        lambda s: f"{s['CP']:,} ranks for {s['S']:,} tokens",
        lambda s: _at_most_ranks(s, "CP", s["S"]),
        "use at most one per token",
    ),
)

# Frameworks that have a fact, as remedies name them.
PLAIN = [name for name, f in reversed(FRAMEWORKS.items()) if f.plain]
UNSHARDED = [name for name in PLAIN if FRAMEWORKS[name].shards == NEVER]
OWN = [name for name, f in FRAMEWORKS.items() if f.own]
ROWS = [name for name, f in FRAMEWORKS.items() if f.rows]
HYBRID = [name for name, f in FRAMEWORKS.items() if f.hybrid]
SHARDS = [name for name, f in FRAMEWORKS.items() if f.shards < NEVER and not f.own]
WHOLE = [name for name, f in FRAMEWORKS.items() if f.plain and f.shards == NEVER]
SHARDED = [name for name in PLAIN if name not in WHOLE]
NVME = [name for name, f in FRAMEWORKS.items() if f.nvme]


def _under(frameworks: Iterable[str]) -> list[Remedy]:
    """Parameters sharded by one of these."""
    return [{"train.framework": name, "train.zero": 3} for name in frameworks]


DATA_PARALLEL: Remedy = {f"parallel.{axis}": 1 for axis in ("tp", "pp", "cp", "ep")}


def broken_rules(
    plan: Plan, model: Model | None, asked: Collection[int] | None = None
) -> list[Issue]:
    """Every rule this plan breaks; without a model, those that do not need one. `asked`: which
    places of RULES are asked, where the others are known to hold."""
    rules = RULES if asked is None else [RULES[n] for n in sorted(asked)]
    return [issue for of in rules for issue in issues_of(of(plan, model))]


def readers_of(plan: Plan) -> dict[str, set[int]]:
    """The places of RULES that read a field of a plan, by the field's path."""
    found: dict[str, set[int]] = {}
    for n, rules in enumerate(RULES):
        read: set[str] = set()
        for _ in rules(cast("Plan", _Recorded(plan, read)), plan.architecture):
            pass
        for path in read:
            found.setdefault(path, set()).add(n)
    return found


# What says what a plan's hardware is: fields that are read where this is.
READ_OF = {
    "accelerator": ("cluster.gpu",),
    "node": tuple(f"cluster.{name}" for name in ("gpu", "node", "network_gbits", "dram_gib")),
}
OF_HARDWARE = frozenset(READ_OF["node"])


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A plan, or its section, that notes which fields are read; of its hardware every field that
    says what that is. What its model is, is not noted."""

    of: Any
    read: set[str]
    section: str = ""

    def __getattr__(self, name: str) -> Any:
        declared = getattr(type(self.of), name, None)
        if self.section or declared is None:
            value = getattr(self.of, name)
            if isinstance(value, BaseModel):
                return _Recorded(value, self.read, f"{name}.")
            self.read.add(f"{self.section}{name}")
            return value
        if name in ("architecture", "accelerator", "node"):
            self.read.update(READ_OF.get(name, ()))
            return getattr(self.of, name)
        compute = getattr(declared, "fget", None) or getattr(declared, "func", declared)
        return compute(self) if compute is not declared else partial(compute, self)


def _recompute_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """What chooses the layers that run again: Megatron's two fields, or every n-th."""
    t = plan.train
    block, several = "train.recompute_method", "train.recompute_num_layers"
    chosen = t.recompute_method != UNIFORM or t.recompute_num_layers > 1
    return each(
        block if t.recompute_method != UNIFORM else several,
        ({block: UNIFORM, several: 1},),
        (
            chosen and not FRAMEWORKS[t.framework].own,
            "Megatron alone has it",
            *to("train.framework", *OWN),
        ),
        (
            chosen and t.checkpoint_every > 1,
            "Megatron has nothing like train.checkpoint_every beside it",
            {"train.checkpoint_every": 1},
        ),
    )


# What a model needs for a module to be run again, and what it is called.
PARTS: dict[str, tuple[str, Callable[[Model], object]]] = {
    MOE_ACT: ("experts", lambda model: model.experts),
    MOE: ("experts", lambda model: model.experts),
    SHARED_EXPERTS: ("shared experts", lambda model: model.shared_size),
    MLA_UP_PROJ: ("latent attention", lambda model: model.kv_rank),
}


def _module_recompute_rules(plan: Plan, model: Model | None) -> Iterator[Rule]:
    """Which modules a selective checkpointing can run again."""
    t, field = plan.train, "train.recompute_modules"
    named, owned = listed(t.recompute_modules), FRAMEWORKS[t.framework].own
    if named == (CORE_ATTN,):
        return

    def without(*names: str) -> Remedy:
        left = ",".join(name for name in named if name not in names)
        return {field: left} if left else {field: CORE_ATTN, "train.checkpointing": "none"}

    yield from each(
        field,
        (),
        (
            not owned,
            f"Megatron alone has others than {CORE_ATTN}",
            *({field: CORE_ATTN}, *to("train.framework", *OWN)),
        ),
        (
            t.precision == "fp8-delayed" and bool({MOE_ACT, LAYERNORM} & set(named)),
            "Transformer Engine's delayed scales have neither moe_act nor layernorm",
            without(MOE_ACT, LAYERNORM),
            {"train.precision": "fp8-mixed"},
        ),
        (
            t.overlap_moe_expert_parallel_comm and MOE in named,
            "experts' rows are not sent behind another micro-batch where moe is run again",
            without(MOE),
            {"train.overlap_moe_expert_parallel_comm": False},
        ),
    )
    for name, (what, has) in PARTS.items():
        if model and not has(model):
            yield Rule(
                field, name in named, f"the model has no {what} for {name}", (without(name),)
            )


NO_WHOLE_GRAPH = (
    "how many rows an expert gets is not known before, so that a mixture has no graph of the whole "
    "iteration"
)


def _graph_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """What can be captured as CUDA graphs (Megatron-Core, transformer_config.py)."""
    t, field = plan.train, "train.cuda_graphs"
    named = listed(t.cuda_graphs)
    if not named:
        return []

    def without(*names: str) -> Remedy:
        return {field: ",".join(name for name in named if name not in names) or NO_LAYER}

    whole, experts = FULL_ITERATION in named, bool(model and model.experts)
    routes = [name for name in (MOE_ROUTER, MOE_PREPROCESS) if name in named]
    again = CHECKPOINTING[t.checkpointing].recompute
    of_mixtures = f"{ATTN},{MOE_ROUTER},{MOE_PREPROCESS}"
    return each(
        field,
        (),
        (
            not FRAMEWORKS[t.framework].own,
            "graphs of a training step are planned of Megatron",
            *({field: NO_LAYER}, *to("train.framework", *OWN)),
        ),
        (
            whole and len(named) > 1,
            f"{FULL_ITERATION} captures all there is: nothing is named beside it",
            {field: FULL_ITERATION},
            without(FULL_ITERATION),
        ),
        (
            whole and experts,
            f"{NO_WHOLE_GRAPH}; use {of_mixtures}",
            {field: of_mixtures},
        ),
        (
            bool(routes) and model is not None and not experts,
            f"the model has no experts for {', '.join(routes)}",
            without(MOE_ROUTER, MOE_PREPROCESS),
        ),
        (
            MOE_PREPROCESS in named and MOE_ROUTER not in named,
            f"{MOE_PREPROCESS} is captured with {MOE_ROUTER} only",
            {field: f"{t.cuda_graphs},{MOE_ROUTER}"},
            without(MOE_PREPROCESS),
        ),
        (
            again == LAYER and not whole,
            f"layers that run again whole are captured by {FULL_ITERATION} only",
            {"train.checkpointing": "selective"},
            {"train.checkpointing": "none"},
            {field: NO_LAYER},
        ),
        (
            again == MODULES and MOE in listed(t.recompute_modules) and bool(routes),
            "a router is not captured where all of moe is run again",
            without(MOE_ROUTER, MOE_PREPROCESS),
        ),
    )


def _framework_rules(plan: Plan, _: Model | None) -> Iterator[Rule]:
    """Which stages, precisions and kernels a framework has."""
    t = plan.train
    framework = FRAMEWORKS[t.framework]
    if t.zero not in framework.zero:
        nearest = min(framework.zero, key=lambda n: (abs(n - t.zero), -n))
        others = [n for n, f in FRAMEWORKS.items() if t.zero in f.zero]
        yield Rule(
            "train.zero",
            True,
            f"{t.framework} has ZeRO {', '.join(map(str, framework.zero))}, not {t.zero}",
            (*to("train.framework", *others), *to("train.zero", nearest)),
        )
    yield Rule(
        "train.outputs",
        t.outputs == KEPT and (framework.own or plan.parallel.pp > 1),
        "Megatron and pipelines hand the loss alone to the training loop",
        to("train.outputs", AUTO, FREED),
    )
    if (t.framework, t.precision) not in COPIES:
        known = sorted((w for f, w in COPIES if f == t.framework), key=lambda w: w != USUAL)
        others = [f for f, word in COPIES if word == t.precision]
        yield Rule(
            "train.precision",
            True,
            f"{t.framework} does not have {t.precision}",
            (*to("train.precision", *known), *to("train.framework", *others)),
        )
    yield only(
        plan,
        "train.kernels",
        framework.kernels,
        f"{t.framework} does not run {t.kernels}",
        *to("train.framework", *(PLAIN if framework.own else OWN)),
    )
    yield Rule(
        "train.early_stop",
        framework.to_end and t.early_stop == "on",
        "Megatron runs a checkpointed layer again to its end",
        to("train.early_stop", "auto", "off"),
    )
    yield from each(
        "train.reentrant",
        to("train.reentrant", False),
        (
            t.reentrant and t.early_stop == "on",
            "a reentrant checkpoint runs its layer again to the end",
            *to("train.early_stop", "auto", "off"),
        ),
        (
            t.reentrant and CHECKPOINTING[t.checkpointing].recompute == OPERATIONS,
            "checkpointing by operation is not reentrant",
            *to("train.checkpointing", "full"),
        ),
    )


def _model_rules(plan: Plan, model: Model | None) -> Iterator[Rule]:
    """What a model's code has, and how long its sequences are."""
    if model is None:
        return
    t, p = plan.train, plan.parallel
    family, own = FAMILIES[model.family], FRAMEWORKS[t.framework].own
    runs = family.attentions
    losses = ("eager",) if beheaded(model) else family.losses
    alike = KEEPS_LIKE.get(t.attention, "")
    newer = alike in runs
    if newer:
        yield from _newer_attention_rules(plan, alike)
    yield Rule(
        "train.attention",
        not newer and t.attention not in runs,
        attention_missing(model, t.attention),
        to("train.attention", *reversed(runs)),
    )
    why = f"there are no {t.kernels} kernels for {model.family}"
    yield only(plan, "train.kernels", family.kernels, why)
    why = f"{model.family} has no {t.cross_entropy} loss"
    yield only(plan, "train.cross_entropy", losses, why)
    yield from _alone_rules(plan, model)
    yield from _prompt_rules(plan, model)
    yield Rule(
        "train.checkpointing",
        t.kernels == "compile" and t.checkpointing == "selective",
        "a compiled layer is not known to run its attention core alone again",
        to("train.checkpointing", "full", "selective-op", "none"),
    )
    yield Rule(
        "train.cross_entropy",
        t.cross_entropy == "chunked" and model.traits.logits_scaled,
        f"{model.family} scales its logits, which Liger's chunked loss does not",
        to("train.cross_entropy", "eager", "fused"),
    )
    yield Rule(
        "parallel.sequence_parallel",
        own and bool(model.experts) and p.tp > 1 and not p.sequence_parallel,
        "Megatron routes each rank's own tokens",
        ({"parallel.sequence_parallel": True}, {"parallel.tp": 1}),
    )
    yield Rule(
        "train.overlap_param_gather",
        own and t.overlap_param_gather and not t.overlap_grad_reduce,
        "Megatron gathers weights behind forward only where it reduces gradients behind "
        "backward (overlap_grad_reduce)",
        ({"train.overlap_param_gather": False}, {"train.overlap_grad_reduce": True}),
    )
    yield from _expert_overlap_rules(plan, model)
    yield from _async_rules(plan)
    if image := model.image:
        why = f"{t.seq_len:,} tokens, but {image.text} are {image.tokens:,}"
        yield only(plan, "train.seq_len", [image.tokens], why)
    elif model.heard:
        yield from _of_fixed_length(plan, model)
    elif model.learned_positions:
        yield Rule(
            "train.seq_len",
            t.seq_len > model.max_positions,
            f"{t.seq_len:,} tokens, but {model.label} has learned positions for "
            f"{model.max_positions:,}",
            to("train.seq_len", model.max_positions),
            "use fewer",
        )
    if model.tower and (image := model.tower.image):
        fitting = t.seq_len // image.read
        fewer = to("train.images", fitting) if fitting else ()
        yield Rule(
            "train.images",
            t.images < 1,
            f"{model.label} is planned with images",
            to("train.images", 1),
            "use more",
        )
        yield Rule(
            "train.images",
            t.images >= 1 and t.images * image.read > t.seq_len,
            f"{t.images:,} of {image.read:,} tokens each do not fit into {t.seq_len:,}",
            (*fewer, *to("train.seq_len", t.images * image.read)),
        )


def _expert_overlap_rules(plan: Plan, model: Model) -> list[Rule]:
    """What two micro-batches side by side want (Megatron-Core, transformer_config.py)."""
    t, p, field = plan.train, plan.parallel, "train.overlap_moe_expert_parallel_comm"
    if not (FRAMEWORKS[t.framework].own and t.overlap_moe_expert_parallel_comm):
        return []
    return each(
        field,
        to(field, False),
        (not model.experts or p.ep == 1, "no rank sends rows to another's experts"),
        (
            CHECKPOINTING[t.checkpointing].recompute == LAYER,
            "Megatron runs two micro-batches side by side only where no whole layer runs again",
            *to("train.checkpointing", "selective", "none"),
        ),
        (
            p.pp > 1 and p.virtual_stages == 1,
            "in a pipeline Megatron has it with virtual stages only",
            {"parallel.virtual_stages": 2},
        ),
        (
            t.grad_accumulation == 1,
            "one micro-batch has no other beside it",
            {"train.grad_accumulation": 2},
        ),
    )


def _async_rules(plan: Plan) -> list[Rule]:
    """What pieces of a product beside those of a collective want (torch's micro_pipeline_tp)."""
    t, p, field = plan.train, plan.parallel, "train.async_tp"
    if not t.async_tp or p.tp == 1:
        return []
    return each(
        field,
        to(field, False),
        (
            t.kernels != "compile",
            "torch.compile alone cuts products in pieces beside what ranks send",
            {"train.kernels": "compile"},
        ),
        (
            not p.sequence_parallel,
            "what is summed by all ranks is not cut in pieces",
            {"parallel.sequence_parallel": True},
        ),
    )


def attention_missing(model: Model, word: str) -> str:
    """Why a model cannot run with an attention that its family has not."""
    which = f"{word} attention for {model.family}"
    return f"{which} is not planned" if model.buckets else f"transformers has no {which}"


def _eight_bit_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """What products in 8 bits need of the GPU and of the framework."""
    t = plan.train
    how = eight_bit(t.framework, t.precision)
    if not how:
        return []
    try:
        gpu = plan.accelerator
    except KeyError:  # an unknown preset, which is reported on its own
        return []
    field, another = "train.precision", "take another cluster.gpu"
    return [
        Rule(
            field,
            how.block > 0 and not gpu.any_layout_fp8,
            f"{gpu.label} has no scales for each {how.block} values, which came with B200",
            to(field, "fp8-mixed"),
            another,
        ),
        Rule(
            field,
            not how.block and not gpu.flops.get("fp8"),
            f"{gpu.label} has no products in fp8",
            to(field, "bf16-mixed"),
            another,
        ),
        Rule(
            field,
            how.primary and t.zero != 1,
            f"Megatron keeps {t.precision} with its distributed optimizer only",
            (*to(field, "mxfp8" if how.block else "fp8-mixed"), {"train.zero": 1}),
        ),
    ]


def _unit_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """What Megatron-FSDP is planned with."""
    t, field = plan.train, "train.zero"
    framework = FRAMEWORKS[t.framework]
    if not (framework.own and t.zero >= framework.shards):
        return []
    return each(
        field,
        to(field, 1),
        (
            plan.parallel.pp > 1,
            "Megatron-FSDP is planned without a pipeline",
            {"parallel.pp": 1, "parallel.virtual_stages": 1},
        ),
        (
            t.adapter != "none",
            "Megatron-FSDP is planned where every weight is trained",
            {"train.adapter": "none"},
        ),
        (
            t.optimizer not in ("adamw", "sgd"),
            "Megatron-FSDP has Adam and SGD (arguments.py)",
            *to("train.optimizer", "adamw"),
        ),
        (
            t.overlap_moe_expert_parallel_comm,
            "Megatron-FSDP is planned without experts' rows behind another micro-batch",
            *to("train.overlap_moe_expert_parallel_comm", False),
        ),
        (
            bool(listed(t.cuda_graphs)),
            "Megatron-FSDP is planned without CUDA graphs",
            *to("train.cuda_graphs", NO_LAYER),
        ),
    )


def _aware_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """Where Megatron's precision-aware optimizer keeps masters and moments in 16 bits each."""
    t, field = plan.train, "train.optimizer"
    how = eight_bit(t.framework, t.precision)
    return each(
        field,
        to(field, "adamw"),
        (
            t.optimizer == AWARE and not FRAMEWORKS[t.framework].own,
            "Megatron alone has it",
        ),
        (
            t.optimizer == AWARE and t.zero != 1,
            "it is part of Megatron's distributed optimizer",
            {"train.zero": 1},
        ),
        (
            t.optimizer == AWARE
            and (not t.precision.startswith("bf16") if how is None else not how.delayed),
            f"with {t.precision} Megatron keeps master copies of its own, which is not planned",
            *to("train.precision", "bf16-mixed"),
        ),
    )


def _float8_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """What torchao's float8 needs of the GPU, or is not known to run with."""
    t, p, field = plan.train, plan.parallel, "train.precision"
    precise = float8(t.framework, t.precision)
    if not precise:
        return []
    wide = to(field, "bf16-mixed")
    try:
        gpu = plan.accelerator
    except KeyError:  # an unknown preset, which is reported on its own
        return []
    return [
        Rule(
            field,
            not gpu.flops.get("fp8"),
            f"{gpu.label} has no products in fp8",
            wide,
            "take another cluster.gpu",
        ),
        Rule(
            field,
            p.tp > 1 and not p.sequence_parallel and precise == BY_TENSOR,
            "torchao's tensor parallelism with one scale for a tensor has sequence parallelism",
            ({"parallel.sequence_parallel": True}, *to(field, "float8-rowwise")),
        ),
        Rule(
            field,
            p.ep > 1,
            "float8 is not planned with expert parallelism under FSDP2",
            (*wide, {"parallel.ep": 1}),
        ),
        Rule(
            field,
            t.adapter != "none",
            "float8 is not planned with adapters",
            (*wide, {"train.adapter": "none"}),
        ),
    ]


# Architectures that an attention runs on, of GPUs for data centres, and what to say of others.
NEWER_ATTENTION = {
    FLASH_3: (("Hopper",), "FlashAttention 3 runs on Hopper only"),
    CUDNN: (
        ("Hopper", "Blackwell"),
        "SDPA runs cuDNN's attention on Hopper and Blackwell with HBM only",
    ),
}


def has_attention(plan: Plan, word: str) -> bool:
    """Whether a plan may have an attention that keeps the same tensors as another and is newer:
    its GPU runs it, and its framework has no attention of its own."""
    architectures, _ = NEWER_ATTENTION[word]
    gpu, own = plan.accelerator, FRAMEWORKS[plan.train.framework].own
    runs = gpu.architecture.startswith(architectures) and gpu.memory_kind.startswith("HBM")
    return runs and not own


def _newer_attention_rules(plan: Plan, alike: str) -> list[Rule]:
    """What an attention that keeps the same tensors as another does not run on."""
    own = FRAMEWORKS[plan.train.framework].own
    other = to("train.attention", alike)
    word = plan.train.attention
    return [
        Rule("train.attention", own, "Megatron runs Transformer Engine's attention", other),
        Rule(
            "train.attention",
            not own and not has_attention(plan, word),
            NEWER_ATTENTION[word][1],
            other,
            "take such a GPU",
        ),
    ]


ROUTER = "logits"  # a parameter of its own, no linear layer


def linear_layers(model: Model) -> tuple[str, ...]:
    """What the linear layers of a model's layers are called, as PEFT finds them."""
    _, tapes = weights(model)
    found = (
        p.path.split(".")[-2]
        for tape, _ in tapes
        for p in tape.parameters
        if p.path.endswith(".weight") and len(p.shape) == 2 and p.path.startswith("layers.")
    )
    return tuple(dict.fromkeys(name for name in found if name != ROUTER))


def _module_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """Whether the model has the linear layers that adapters are listed for, adapted now or not."""
    field, asked = "train.lora_modules", listed(plan.train.lora_modules)
    if not (asked and model):
        return []
    names = linear_layers(model)
    unknown = [name for name in asked if name not in names]
    if not unknown:
        return []
    message = f"the layers have no linear layer {shown(unknown[0])}"
    told = did_you_mean(unknown[0], names)
    return [Rule(field, True, f"{message}; {told}", to(field, NO_LAYER))]


def _adapter_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """What adapters are not known to run with."""
    t, p = plan.train, plan.parallel
    if t.adapter == "none":
        return []
    framework, copies = FRAMEWORKS[t.framework], COPIES.get((t.framework, t.precision))
    field, targets = "train.adapter", "train.lora_targets"
    experts = model is not None and bool(model.experts)
    drop: Remedy = {field: "none"}
    by_name = bool(listed(t.lora_modules))
    in_8_bits = ADAPTERS[t.adapter].quantized == INT8
    in_4_bits = ADAPTERS[t.adapter].quantized in QUANTIZED
    to_4_bits: Remedy = {
        field: "qlora", "train.precision": "bf16-pure", "train.adapter_dtype": "base",
    } if framework.as_floats else {field: "qlora"}  # fmt: skip
    return [
        Rule(
            targets,
            not (by_name or framework.own) and experts and t.lora_targets == ALL_LINEAR,
            "PEFT adapts stacked experts as whole parameters then (target_parameters), which is "
            "not planned",
            to(targets, "attention", "attention-all"),
        ),
        Rule(
            targets,
            not by_name
            and model is not None
            and bool(model.kv_rank)
            and t.lora_targets == "attention",
            "latent attention has no projection of values alone",
            to(targets, "attention-all"),
        ),
        *_parallel_adapter_rules(plan, model),
        Rule(
            field,
            in_4_bits and framework.as_floats and t.precision not in PURE,
            f"{t.adapter} has its 4-bit values in the other weights' dtype under FSDP2 "
            f"(bnb_4bit_quant_storage), which {t.precision} casts",
            (
                {"train.precision": "bf16-pure", "train.adapter_dtype": "base"},
                drop,
                {"train.framework": WHOLE[0]},
            ),
        ),
        Rule(
            field,
            in_8_bits and t.zero >= framework.gathers,
            "bitsandbytes has 8-bit weights as integers of its own, which FSDP2 and ZeRO 3 do not "
            "shard; 4-bit ones are stored as floating-point numbers for it",
            (to_4_bits, drop, {"train.framework": WHOLE[0], "train.zero": 0}),
        ),
        Rule(
            "train.offload_activations",
            in_8_bits and t.offload_activations != "none",
            "what bitsandbytes holds for backward in 8 bits is not saved as others are, so that "
            "nothing takes it to the host",
            to("train.offload_activations", "none"),
        ),
        Rule(
            "train.unquantized_dtype",
            framework.one_dtype and not framework.own and t.unquantized_dtype == FP32,
            "DeepSpeed and FSDP2 want one dtype for the weights of a layer",
            to("train.unquantized_dtype", AUTO, BASE),
        ),
        *each(
            field,
            (drop,),
            (
                framework.plain and copies is not None and bool(copies.master),
                f"adapters have no master copies, which {t.precision} means",
                {"train.precision": "bf16-pure"},
            ),
            (
                framework.as_floats and t.precision in PURE and t.adapter_dtype == "fp32",
                "FSDP2 wants one dtype for the weights of a layer",
                {"train.adapter_dtype": "base"},
            ),
            (
                t.kernels == "compile",
                "adapters are not planned with compiled layers",
                *to("train.kernels", "hf", "liger"),
            ),
            (
                t.offload_optimizer != "none",
                "adapters are not planned with optimizer offload",
                {"train.offload_optimizer": "none"},
            ),
            (
                not framework.own and p.tp * p.pp * p.cp * p.ep > 1,
                "adapters are planned with data parallelism only, but under Megatron",
                *(DATA_PARALLEL, *to("train.framework", *OWN)),
            ),
        ),
        Rule(
            field,
            experts and t.adapter != "lora",
            "bitsandbytes leaves stacked experts as they are, which is not planned",
            to(field, "none", "lora"),
        ),
        Rule(
            field,
            t.kernels == "liger" and t.adapter != "lora",
            f"{t.adapter} is not planned with Liger's kernels",
            (drop, {"train.kernels": "hf"}),
        ),
    ]


def _parallel_adapter_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """What Megatron-Bridge's adapters do not have, or are not known to run with."""
    t, p, field = plan.train, plan.parallel, "train.adapter"
    if not FRAMEWORKS[t.framework].own:
        return []
    drop: Remedy = {field: "none"}
    elsewhere = to("train.framework", *reversed(PLAIN))
    return [
        Rule(
            field,
            bool(ADAPTERS[t.adapter].quantized),
            "Megatron-Bridge has adapters over unquantized weights alone",
            (*to(field, "lora", "none"), *elsewhere),
        ),
        Rule(
            "train.lora_modules",
            bool(listed(t.lora_modules)),
            "Megatron's layers have names of their own, one for queries, keys and values together",
            to("train.lora_modules", NO_LAYER),
        ),
        Rule(
            "train.lora_rank",
            t.lora_rank % p.tp != 0,
            f"tensor-parallel ranks share a rank of {t.lora_rank:,}, which does not divide by "
            f"{p.tp:,}",
            to("train.lora_rank", _up(t.lora_rank, p.tp)),
        ),
        Rule(
            "train.lora_targets",
            t.lora_targets == ALL_LINEAR and p.etp > 1,
            "adapters of experts that ranks share each of are not planned",
            (*to("train.lora_targets", "attention-all"), *to("parallel.etp", 1)),
        ),
        Rule(
            field,
            model is not None and bool(model.kv_rank),
            "adapters of latent attention are not planned under Megatron",
            (drop, *elsewhere),
        ),
        Rule(
            field,
            t.mtp_layers > 0 or plan.megatron_deepspeed,
            "adapters are not planned with multi-token prediction, nor with Megatron-DeepSpeed",
            (drop, {"train.mtp_layers": 0}),
        ),
    ]


def _frozen_rules(plan: Plan, model: Model | None) -> Iterator[Rule]:
    """What frozen weights, averages of the weights, and rows of the embedding's gradient are not
    known to run with."""
    t, p = plan.train, plan.parallel
    framework = FRAMEWORKS[t.framework]
    decodes = model is None or (
        FAMILIES[model.family].decoder
        and model.head == CAUSAL
        and model.tower is None
        and not model.stack
    )
    if t.embedding_gradient != DENSE:
        field = "train.embedding_gradient"
        # That somebody wants rows is no reason to take their GPUs away: it is refused on several.
        one = "planned with pytorch on one GPU"
        yield Rule(field, plan.cluster.gpus > 1, one, to(field, DENSE))
        yield from each(
            field,
            to(field, DENSE),
            (not framework.rows, "planned with pytorch", {"train.framework": ROWS[0]}),
            (
                model is not None and model.traits.tied_embeddings,
                "the embedding is the head too, whose gradient is dense",
            ),
            (not decodes, "planned for decoders only"),
            (
                t.precision not in (*PURE, "fp32"),
                "planned in bf16-pure, fp16-pure and fp32",
                *to("train.precision", *PURE, "fp32"),
            ),
            (
                t.grad_accumulation > 1 or t.gradients == "kept",
                "planned for one micro-batch",
                {"train.grad_accumulation": 1, "train.gradients": "freed"},
            ),
            (
                t.offload_optimizer != "none" or t.adapter != "none" or t.frozen != "none",
                "not planned with offload, adapters or frozen weights",
                {f"train.{other}": "none" for other in ("offload_optimizer", "adapter", "frozen")},
            ),
        )
    if t.frozen != "none":
        yield from each(
            "train.frozen",
            to("train.frozen", "none"),
            (
                t.frozen == SEEING and not (model and _any_images(model)),
                "planned for models that read images of any size",
            ),
            (not decodes and t.frozen != SEEING, "planned for decoders only"),
            (
                t.adapter != "none",
                "adapters freeze the model's own weights",
                {"train.adapter": "none"},
            ),
            (
                not framework.plain,
                f"not planned with {t.framework}",
                *to("train.framework", *PLAIN),
            ),
            (p.tp * p.pp * p.cp * p.ep > 1, "planned with data parallelism only", DATA_PARALLEL),
            (
                t.kernels == "compile",
                "not planned with compiled layers",
                *to("train.kernels", "hf", "liger"),
            ),
            (
                t.offload_optimizer != "none",
                "not planned with optimizer offload",
                {"train.offload_optimizer": "none"},
            ),
        )
    if t.ema != "none":
        none = to("train.ema", "none")
        yield from each(
            "train.ema",
            none,
            (
                t.adapter != "none",
                "an average of adapters is not planned",
                {"train.adapter": "none"},
            ),
            (
                framework.flat,
                f"an average of the weights is not planned with {t.framework}",
                {"train.framework": PLAIN[0]},
            ),
        )
        yield Rule(
            "train.ema",
            t.ema == AVERAGED and bool(eight_bit(t.framework, t.precision)),
            "a second model with weights in 8 bits is not planned",
            (*to("train.ema", AVERAGED_FP32), *none),
        )


def beheaded(model: Model) -> bool:
    """Whether a class of a decoder is planned that has no language model's head."""
    return FAMILIES[model.family].decoder and model.head != CAUSAL


def _any_images(model: Model) -> bool:
    """Whether it has a tower that may be frozen, for images of any size."""
    return bool(model.tower and model.tower.image and model.tower.image.unit)


def _alone_rules(plan: Plan, model: Model) -> Iterator[Rule]:
    """What families that are known with data parallelism only are not known to run with."""
    family = FAMILIES[model.family]
    if not family.alone and not beheaded(model):
        return
    t, weights, name = plan.train, plan.weight_dtype, model.family
    for axis in ("tp", "pp", "cp", *(["ep"] if model.tower else [])):
        yield only(plan, f"parallel.{axis}", [1], f"{name} is planned with data parallelism")
    yield only(plan, "train.framework", PLAIN, f"{name} is not planned with it")
    yield only(
        plan,
        "train.adapter",
        ["none", *(["lora"] if _any_images(model) else [])],
        f"{f'{t.adapter} is' if _any_images(model) else 'adapters are'} not planned for {name}",
    )
    yield Rule(
        "train.precision",
        bool(eight_bit(t.framework, t.precision)),
        f"{name} is not planned with products in 8 bits",
        to("train.precision", "bf16-mixed"),
    )
    yield only(
        plan,
        "train.frozen",
        [NO_LAYER, *([SEEING] if _any_images(model) else [])],
        f"{name} is planned with all its weights trained"
        + (", or all but what reads images" if _any_images(model) else ""),
    )
    yield only(plan, "together.kind", ["none"], f"{name} is planned by itself only")
    if model.tower:
        for what in ("parameters", "activations"):
            yield only(plan, f"train.offload_{what}", ["none"], f"that of {name} is not planned")
        yield Rule(
            "serve.weight_dtype",
            model.encoder_decoder and WEIGHT_DTYPES[weights].compute != weights,
            f"{name} is served in 16 or 32 bits, its encoder with it",
            to("serve.weight_dtype", "bf16"),
        )
    if model.encoder_decoder and model.head == CLASSIFICATION:
        why = f"the decoder of a classifier of {name} reads the tokens that its encoder does"
        yield only(plan, "train.target_len", [t.seq_len], why)
    if family.unsharded:
        why = f"{name} is not planned shared out: {family.unsharded}"
        yield only(plan, "train.framework", UNSHARDED, why)
        yield only(plan, "train.offload_parameters", ["none"], why)
    if not family.checkpoints:
        why = f"transformers' code of {name} has no checkpointing"
        yield only(plan, "train.checkpointing", ["none"], why)
    if family.carries:
        encodes = model.encoder_decoder or not family.decoder
        yield Rule(
            "train.checkpointing",
            CHECKPOINTING[t.checkpointing].recompute not in ("", LAYER),
            f"{name} is planned with whole layers",
            to("train.checkpointing", "full", "none"),
        )
        why = f"{name} is planned with every layer checkpointed or none"
        yield only(plan, "train.checkpoint_every", [1], why)
        yield Rule(
            "train.precision",
            encodes and "fp16" in t.precision,
            f"{name} clamps fp16, which is not planned",
            to("train.precision", "bf16-mixed"),
        )
        yield Rule(
            "serve.weight_dtype",
            encodes and weights == "fp16",
            f"transformers keeps wo of {name} in fp32 then",
            to("serve.weight_dtype", "bf16"),
        )


def _of_fixed_length(plan: Plan, model: Model) -> list[Rule]:
    """What an encoder that always reads as many positions asks for, and the decoder behind it."""
    target, rows = plan.train.target_len, model.position_rows
    why = f"the encoder of {model.label} always reads {model.heard:,} positions"
    return [
        only(plan, "train.seq_len", [model.heard], why),
        only(plan, "serve.prompt_len", [model.heard], why),
        Rule(
            "train.target_len",
            target > rows,
            f"{target:,} tokens, but {model.label} has learned positions for {rows:,}",
            to("train.target_len", rows),
            "use fewer",
        ),
    ]


def _prompt_rules(plan: Plan, model: Model) -> Iterator[Rule]:
    """What an encoder, or a vision tower, asks of a prompt."""
    s, tower = plan.serve, model.seeing(plan.serve.image_size).tower
    image = tower.image if tower else None
    if image:
        yield Rule(
            "serve.images",
            s.images * image.prompted > s.prompt_len,
            f"{s.images:,} of {image.prompted:,} tokens each do not fit into a prompt of "
            f"{s.prompt_len:,}",
            (
                {"serve.images": s.prompt_len // image.prompted},
                {"serve.prompt_len": s.images * image.prompted},
            ),
        )
    if model.encoder_decoder:
        yield Rule(
            "serve.prefill",
            PREFILLS[s.prefill].chunked,
            "an encoder reads prompts whole: every token sees every other",
            to("serve.prefill", "whole"),
        )
        why = "what an encoder makes of a prefix depends on what follows it"
        yield only(plan, "serve.shared_prefix", [0], why)
        why = "guessed tokens are not planned for encoder-decoders"
        yield only(plan, "serve.draft_tokens", [0], why)


def _together_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """How many GPUs an engine beside the trainer can have, and what leaves it room."""
    t, gpus = plan.together, plan.cluster.gpus
    if t.kind == "none":
        return []
    if OPTIMIZERS[plan.train.optimizer].paged:
        why = "how much of the GPU pages leave to an engine beside is not planned"
        remedies = (*to("train.optimizer", "adamw", "adam8bit"), *to("together.kind", "none"))
        return [Rule("train.optimizer", True, why, remedies)]
    tp, pp, heads = plan.engine_tp, plan.engine_pp, model.heads if model else 0
    field, reason = "serve.tp" if plan.serve.tp else "together.engine_tp", ""
    if gpus % (tp * pp):
        reason = f"{gpus:,} GPUs do not divide by {tp * pp:,} for each engine"
    elif heads % tp:
        reason = f"{heads:,} attention heads do not divide by {tp:,}"
    if not reason:
        return []
    fitting = _most(min(tp, gpus), lambda n: gpus % (n * pp) == 0 and heads % n == 0)
    return [Rule(field, True, reason, to(field, fitting), "use another divisor of them")]


def _deepspeed_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """What DeepSpeed does not run, or is not known to run as it is planned here."""
    t = plan.train
    if not FRAMEWORKS[t.framework].flat:
        return []
    offloaded = t.offload_optimizer != "none"
    optimizer, offload = "train.optimizer", "train.offload_optimizer"
    return [
        *(
            only(
                plan,
                f"parallel.{axis}",
                [1],
                "DeepSpeed is planned with data parallelism only",
                *to("train.framework", *(SHARDED if axis != "ep" else ()), *OWN),
            )
            for axis in ("tp", "pp", "cp", "ep")
        ),
        only(
            plan,
            "train.kernels",
            ("hf", "liger"),
            f"{t.kernels} kernels are not planned with DeepSpeed",
        ),
        only(
            plan,
            optimizer,
            DEEPSPEED_OPTIMIZERS,
            f"{t.optimizer} is not known to step DeepSpeed's flat partitions",
        ),
        Rule(
            optimizer,
            t.zero == 0 and t.optimizer != "adamw",
            "DeepSpeed without ZeRO is planned with its FusedAdam alone",
            (*to(optimizer, "adamw"), *to("train.zero", 1, 2, 3)),
        ),
        Rule(
            optimizer,
            offloaded and t.optimizer not in ("adamw", "lion"),
            "DeepSpeed has CPU versions of Adam and Lion alone",
            to(optimizer, "adamw", "lion"),
        ),
        Rule(
            offload,
            offloaded and t.zero == 0,
            "DeepSpeed offloads under ZeRO 1, 2 and 3",
            (*to(offload, "none"), *to("train.zero", 1)),
        ),
        Rule(
            offload,
            t.offload_optimizer == "nvme" and t.zero < 3,
            "DeepSpeed has NVMe under ZeRO 3 alone",
            (*to(offload, "cpu"), *to("train.zero", 3)),
        ),
    ]


def _prediction_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """What multi-token prediction is not known to run with."""
    t, field = plan.train, "train.mtp_layers"
    if not t.mtp_layers:
        return []
    return each(
        field,
        to(field, 0),
        (
            not FRAMEWORKS[t.framework].own,
            "only Megatron trains such layers",
            *to("train.framework", *OWN),
        ),
        (
            model is not None and FAMILIES[model.family].head is not FAMILIES["llama"].head,
            "it is planned for models with Llama's head",
        ),
        (
            t.cross_entropy == "chunked" or t.checkpointing == "selective-op",
            "it is not planned with a chunked loss or checkpointing by operation",
            {"train.cross_entropy": "eager", "train.checkpointing": "full"},
        ),
    )


def _replica_rules(plan: Plan, model: Model | None) -> Iterator[Rule]:
    """How the ranks of a replica that are not training's share the model and the GPUs."""
    s, gpus, ranks = plan.serve, plan.cluster.gpus, plan.serving_ranks
    if model is not None:
        for what, n in (
            ("attention heads", model.heads),
            ("heads of a layer's state", int(model.sizes.get("SSM_HEADS", 0))),
        ):
            yield Rule(
                "serve.tp",
                bool(s.tp and n % s.tp),
                f"{n:,} {what} do not divide by {s.tp:,}",
                to("serve.tp", 0),
                f"choose a divisor of {n:,}; 0 is as many as in training",
            )
        yield Rule(
            "serve.pp",
            s.pp > model.layers,
            f"{s.pp:,} stages for {model.layers:,} layers",
            to("serve.pp", 0),
            "use at most one per layer; 0 is as many as in training",
        )
    field = "serve.tp" if s.tp else "serve.pp"
    yield Rule(
        field,
        bool(s.tp or s.pp) and ranks > gpus,
        f"a replica has {ranks:,} ranks, tp x pp, but there are {gpus:,} GPUs",
        (*to(field, 0), *to("cluster.gpus", _up(ranks, gpus))),
        "use fewer; 0 is as many as in training",
    )


def _stored_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """A way to store weights that a config.json names and that is not planned."""
    said = model.quantization if model else None
    if plan.serve.weight_dtype != AS_PUBLISHED or said is None or said.word:
        return []
    why = f" ({'; '.join(said.notes)})" if said.notes else ""
    return [
        Rule(
            "serve.weight_dtype",
            True,
            f"config.json has its weights as {shown(said.method)}{why}, which is not planned",
            to("serve.weight_dtype", "bf16", "int4", "fp8"),
        )
    ]


BY_CPU = ("gpu_layers", "cpu_moe_layers")  # fields that have the CPU compute


def _of_draft(plan: Plan, draft: Model, model: Model | None) -> list[Rule]:
    """What the file of a draft asks of the model that it guesses for, and of a step."""
    own, asked = draft.draft, plan.serve.draft_tokens
    if not own:
        return []
    return [
        Rule(
            "serve.draft_model",
            model is not None and model.hidden_size != own.target,
            f"it reads hidden states of {own.target:,}, and the model's have "
            f"{model.hidden_size if model else 0:,}",
            to("serve.draft_model", "none"),
            "give the draft of this model",
        ),
        Rule(
            "serve.draft_tokens",
            bool(own.most) and asked > own.most,
            f"its draft guesses a block, of {own.most:,} at most",
            to("serve.draft_tokens", own.most),
        ),
    ]


def _serving_rules(plan: Plan, model: Model | None) -> Iterator[Rule]:
    """What a server cannot do."""
    yield from _replica_rules(plan, model)
    yield from _stored_rules(plan, model)
    s, ranks = plan.serve, plan.serving_ranks
    yield Rule(
        "serve.prefill",
        PREFILLS[s.prefill].elsewhere and plan.cluster.gpus < 2 * ranks,
        f"prompts are read on another replica, but {plan.cluster.gpus:,} GPUs have one of "
        f"{ranks:,}",
        (*to("serve.prefill", "whole", "chunked"), *to("cluster.gpus", 2 * ranks)),
    )
    other = plan.engine != engines.LLAMA_CPP
    for name in BY_CPU:
        path, set_ = f"serve.{name}", bool(getattr(s, name))
        yield from each(
            path,
            to(path, 0),
            (
                set_ and other,
                "the CPU computes layers or experts in llama.cpp alone",
                *to("serve.engine", engines.LLAMA_CPP),
            ),
            (
                set_ and not other and ranks > 1,
                f"with the CPU one GPU is planned, not {ranks:,}",
                {"serve.tp": 1, "serve.pp": 1},
            ),
        )
    keeps = model is None or not (model.recurrence or model.encoder_decoder)
    for path, asked, off in (
        ("serve.prefix_hits", bool(s.prefix_hits), 0.0),
        ("serve.turns", s.turns > 1, 1),
    ):
        yield Rule(
            path,
            asked and not keeps,
            "layers with a state, and encoders, have no prefix cache here",
            to(path, off),
        )
    field = "serve.draft_model"
    none = to(field, "none")
    if plan.drafts and s.draft_model in DRAFT_HEADS:
        yield Rule(
            field,
            model is not None and bool(model.recurrence or model.tower or model.entries),
            "heads for models with states, towers or compressed entries are not planned",
            none,
        )
    elif draft := plan.draft:
        yield from _of_draft(plan, draft, model)
        why = ""
        if not FAMILIES[draft.family].decoder or draft.tower:
            why = "it cannot be served"
        elif draft.recurrence:
            why = "a model that keeps states cannot take back its guesses here"
        elif draft.heads % plan.serving_tp:
            why = f"its {draft.heads:,} attention heads do not divide by tp {plan.serving_tp:,}"
        yield Rule(field, bool(why), why, none, "choose another")
    if model is not None and model.recurrence:
        state = KV_CACHES[plan.cache_manager].state
        why = "states of sequences on the host are not planned"
        yield only(plan, "serve.offload_kv", ["none"], why)
        yield Rule(
            "serve.state_dtype",
            s.state_dtype != "auto" and state not in ("", s.state_dtype),
            f"there states are {state}",
            (*to("serve.state_dtype", "auto"), *to("serve.kv_cache", "paged")),
        )
    try:
        node = plan.node
    except KeyError:  # an unknown preset, which is reported on its own
        return
    if not node.dram_bytes:
        one = f"{node.label} has one memory for CPU and GPU, so there is nowhere to offload to"
        yield only(plan, "serve.offload_weights", [0], one)
        yield only(plan, "serve.offload_kv", ["none"], one)
        if not node.dram_bandwidth:  # a card in a host whose only memory is another chip's
            idle = f"{node.label} has no memory that its CPU could read layers from"
            for name in BY_CPU:
                yield only(plan, f"serve.{name}", [0], idle)


def _parallel_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """Axes of parallelism that do not go together."""
    p, t = plan.parallel, plan.train
    framework, batches = FRAMEWORKS[t.framework], t.grad_accumulation
    # Megatron has as many micro-batches in a round as stages.
    rounds = p.pp if framework.own else max(1, batches // p.pp)
    return [
        Rule(
            "parallel.shard_group",
            bool(p.shard_group)
            and (not framework.hybrid or t.zero < framework.shards or p.shard_group == 1),
            "groups of two or more ranks are FSDP2's, with ZeRO 2 or 3",
            (
                {"parallel.shard_group": 0},
                {"train.framework": HYBRID[0], "train.zero": 3}
                if p.shard_group > 1
                else {"parallel.shard_group": 2},
            ),
        ),
        Rule(
            "parallel.virtual_stages",
            p.virtual_stages > 1 and p.schedule != "1f1b",
            "only the 1f1b schedule has them",
            ({"parallel.virtual_stages": 1}, {"parallel.schedule": "1f1b"}),
        ),
        Rule(
            "train.grad_accumulation",
            p.virtual_stages > 1 and batches % rounds != 0,
            f"virtual stages take micro-batches in rounds: {batches:,} are no multiple of "
            f"{rounds:,}",
            (
                *to("train.grad_accumulation", _up(batches, rounds)),
                {"parallel.virtual_stages": 1},
            ),
        ),
        Rule(
            "train.attention",
            p.cp > 1 and t.attention == "eager",
            "context parallelism needs sdpa or flash",
            (*to("train.attention", "flash", "sdpa"), {"parallel.cp": 1}),
        ),
    ]


def _offload_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """Which framework keeps what outside the GPU."""
    t = plan.train
    if OPTIMIZERS[t.optimizer].paged and t.offload_optimizer != "none":
        why = "the driver moves what a paged optimizer keeps, no framework"
        remedies = (*to("train.optimizer", "adamw"), *to("train.offload_optimizer", "none"))
        return [Rule("train.offload_optimizer", True, why, remedies)]
    parameters, activations = t.offload_parameters != "none", t.offload_activations != "none"
    if not (parameters or activations):
        return []
    framework = FRAMEWORKS[t.framework]
    field, kept = "train.offload_parameters", "train.offload_activations"
    none, nowhere = to(field, "none"), to(kept, "none")
    nvme, on_nvme = t.offload_parameters == "nvme", _under(NVME)
    fitting = NVME if nvme or framework.nvme else SHARDS
    return [
        Rule(
            field,
            parameters and (framework.own or t.zero < framework.shards),
            "sharded parameters alone can live outside the GPU",
            (*none, *_under(fitting)),
        ),
        Rule(
            field,
            nvme and not framework.nvme,
            "DeepSpeed alone has parameters on NVMe",
            (*to(field, "cpu", "none"), *on_nvme),
        ),
        Rule(
            field,
            parameters and t.offload_optimizer == "none",
            "parameters are offloaded beside the optimizer",
            (*none, {"train.offload_optimizer": "cpu"}),
        ),
        Rule(
            field,
            parameters
            and t.framework in SHARDS
            and not framework.nvme
            and t.offload_optimizer == "nvme",
            "FSDP2 keeps parameters, gradients and states in one place, DRAM",
            (*none, {"train.offload_optimizer": "cpu"}, *on_nvme),
        ),
        Rule(
            field,
            parameters and t.adapter != "none",
            "adapters are not planned with offloaded parameters",
            (*none, {"train.adapter": "none"}),
        ),
        Rule(
            "train.ema",
            parameters and t.ema != "none",
            "an average of offloaded parameters is not planned",
            (*to("train.ema", "none"), *none),
        ),
        Rule(
            kept,
            activations and framework.own,
            "Megatron's own activation offload is not planned",
            (*nowhere, *to("train.framework", PLAIN[0])),
        ),
        Rule(
            kept,
            activations and t.kernels == "compile",
            "a compiled layer keeps its own activations",
            (*nowhere, *to("train.kernels", "hf")),
        ),
    ]


def _host_rules(plan: Plan, _: Model | None) -> Iterator[Rule]:
    """What the host must have for the plan to run at all."""
    try:
        node = plan.node
    except KeyError:  # an unknown preset, which is reported on its own
        return
    gpus, each = plan.cluster.gpus, plan.gpus_per_domain
    yield Rule(
        "cluster.gpus",
        gpus > each and not node.network_bandwidth,
        f"{gpus:,} GPUs need several nodes of {each:,}, but {node.label} has no network",
        to("cluster.gpus", each),
        "take another cluster.node",
    )
    yield Rule(
        "cluster.dram_gib",
        bool(plan.cluster.dram_gib) and not node.dram_bytes,
        f"{node.label} has one memory for CPU and GPU, whose size is the GPU's",
        to("cluster.dram_gib", 0),
    )
    for name in ("optimizer", "parameters", "activations"):
        field = f"train.offload_{name}"
        word = getattr(plan.train, f"offload_{name}")
        yield Rule(
            field,
            word != "none" and not node.dram_bytes,
            f"{node.label} has one memory for CPU and GPU, so there is nowhere to offload to",
            to(field, "none"),
        )
        yield Rule(
            field,
            word == "nvme" and not (node.nvme_bytes and node.nvme_read_bandwidth),
            f"{node.label} has no NVMe drives",
            to(field, "cpu", "none"),
        )


def _stream_rules(plan: Plan, _: Model | None) -> list[Rule]:
    """Lengths of requests that contradict each other."""
    s = plan.serve
    long = s.prompt_len + s.output_len
    return [
        Rule(
            "serve.shared_prefix",
            s.shared_prefix >= s.prompt_len,
            f"{s.shared_prefix:,} tokens, but a prompt has {s.prompt_len:,}",
            to("serve.shared_prefix", s.prompt_len - 1),
            "use fewer than serve.prompt_len",
        ),
        Rule(
            "serve.max_seq_len",
            0 < s.max_seq_len < long,
            f"{s.max_seq_len:,} tokens for a prompt of {s.prompt_len:,} and an output of "
            f"{s.output_len:,}",
            to("serve.max_seq_len", 0, long),
            "use more",
        ),
    ]


def _size_rules(plan: Plan, model: Model | None) -> list[Rule]:
    """What the sizes must hold."""
    if model is None:
        return []
    try:
        sizes = plan.sizes()
    except KeyError:  # an unknown preset of hardware, which is reported on its own
        return []
    return [r.broken(sizes) for r in SIZE_RULES if not r.holds(sizes)]


RULES: tuple[Callable[[Plan, Model | None], Iterable[Rule]], ...] = (
    _framework_rules,
    _recompute_rules,
    _module_recompute_rules,
    _graph_rules,
    _eight_bit_rules,
    _unit_rules,
    _aware_rules,
    _float8_rules,
    _module_rules,
    _adapter_rules,
    _frozen_rules,
    _deepspeed_rules,
    _prediction_rules,
    _parallel_rules,
    _offload_rules,
    _serving_rules,
    _host_rules,
    _together_rules,
    _stream_rules,
    _model_rules,
    _size_rules,
)
