"""Steps: a plan's words as the Step of each pipeline stage, and the sizes of its dimensions."""

from __future__ import annotations

from dataclasses import replace

from memcore.frameworks import FRAMEWORKS, framework_of
from memcore.frameworks.megatron_deepspeed import ZERO_1
from memcore.hardware import constants
from memcore.models.blocks import Blocks, build, structure_of
from memcore.models.families import FAMILIES
from memcore.models.families.traced import as_trained
from memcore.models.model import Model
from memcore.models.stack import Layers, layers_of
from memcore.models.traced.file import ModelFile
from memcore.models.traced.tuned import LowRank, adapted
from memcore.plan.plan import Plan
from memcore.plan.sections import Train
from memcore.step import pipeline
from memcore.step.step import NOTHING_HANDED, Step, interned
from memcore.tape.derived import derive
from memcore.tape.dims import Number, ceil_div, minimum, where
from memcore.tape.kinds import FULL
from memcore.tape.structure import (
    FIRST,
    HEAD,
    OWN,
    SEQUENCE,
    TENSOR,
    Adapters,
    Depths,
    LayerKind,
    Narrow,
    Structure,
    Tables,
)
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.precision import PURE, Precision
from memcore.words.training import (
    ADAPTERS,
    ALL_LINEAR,
    AUTO,
    BLOCK,
    BY_NAME,
    CHECKPOINTING,
    COPIES,
    EACH_ROW,
    EMBEDDINGS,
    FP32,
    GPIPE,
    IN_16_BITS,
    KEEPS_LIKE,
    KEPT,
    LAYER,
    LOWER,
    MODULES,
    MOE_PREPROCESS,
    NO_LAYER,
    OPERATIONS,
    SEEING,
    UNIFORM,
    UNSHARED,
    WHOLE,
    eight_bit,
    listed,
)

# Of what sorts the tokens of an embedding's gradient: it does not with so many, and makes a sum of
# its own of so many rows (aten/src/ATen/native/cuda/Embedding.cu: embedding_dense_backward_cuda;
# EmbeddingBackwardKernel.cu: NROWS_PER_THREAD, max_partial_segment).
UNSORTED, ROWS_OF_A_SUM = 3072, 10


def step_of(plan: Plan, stage: int = 0) -> Step:
    """The words of a plan that decide its schedule on one pipeline stage."""
    return _stage(plan, stage, *_model_of(plan))


def steps_of(plan: Plan) -> list[Step]:
    """The same of every pipeline stage."""
    model = _model_of(plan)
    return [_stage(plan, stage, *model) for stage in range(plan.parallel.pp)]


def kinds_of_stage(plan: Plan) -> list[tuple[int, Step]]:
    """The first pipeline stage of each kind, and its step where no other forward waits. Stages of a
    kind differ in how many do: no later one has more. One between the ends with the layers of the
    first is left out: it has all that the first has but for the embedding, unless stages hold what
    they got from the one before."""
    blocks, stack = _model_of(plan)
    p = plan.parallel
    every = [stack.part(*pipeline.span_of(plan, stack.count, n)) for n in range(p.pp)]
    found: dict[tuple[bool, bool, Layers], int] = {}
    apart = framework_of(plan).handed is not None
    for stage, layers in enumerate(every):
        found.setdefault((apart and stage == 0, stage == p.pp - 1, layers), stage)
    return [(stage, _stage(plan, stage, blocks, stack, waiting=0)) for stage in found.values()]


def layer_counts(plan: Plan) -> list[int]:
    """How many layers of each kind all stages have together."""
    return _model_of(plan)[1].counts


def offloaded(step: Step, t: Train) -> Step:
    """A step where other things are offloaded, and nothing else is changed."""
    return replace(
        step,
        offload=t.offload_optimizer,
        offload_parameters=t.offload_parameters,
        offload_activations=t.offload_activations,
    )


def _kept_in(model: Model) -> tuple[object, ...]:
    """What of a model has buffers that its operations read in the dtype of the weights at rest."""
    return model.recurrence, model.traits.router_fp32, model.traits.positions


def unfused(plan: Plan) -> bool:
    """Whether SDPA has no fused kernel for this plan and runs as eager attention does: in fp32,
    where queries share keys and values and no mask is given. transformers then asks for grouped
    heads (integrations/sdpa_attention.py: use_gqa_in_sdpa), which of torch's kernels for fp32 only
    the plain one has (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
    t, model = plan.train, plan.architecture
    asked = t.attention == "sdpa" and t.precision == "fp32" and t.kernels in ("hf", "liger")
    grouped = model.kv_heads < model.heads and not model.window
    return asked and grouped and "eager" in FAMILIES[model.family].attentions


def _model_of(plan: Plan) -> tuple[Blocks, Layers]:
    """The model's blocks as the plan runs them, and its whole stack of layers."""
    t, p = plan.train, plan.parallel
    copies = copies_of(plan)
    again = CHECKPOINTING[t.checkpointing].recompute
    model = plan.architecture
    if model.traced and t.adapter != "none":
        model = as_trained(model, (), low_rank_of(plan, model.traced))
    elif model.traced and t.frozen == BY_NAME:
        model = as_trained(model, listed(t.frozen_modules), None)
    if p.pp > 1 and model.traits.tied_embeddings:  # the last stage has a copy of its own
        model = replace(model, traits=replace(model.traits, tied_embeddings=False))
    parallel = "" if p.tp == 1 else SEQUENCE if p.sequence_parallel else TENSOR
    structure = structure_of(
        model,
        attention="eager" if unfused(plan) else KEEPS_LIKE.get(t.attention, t.attention),
        kernels=t.kernels,
        cross_entropy=t.cross_entropy,
        dtype=copies.compute,
        autocast=copies.autocast,
        parallel=parallel,
        exchanges=p.ep > 1,
        gathers=p.etp > 1,
        adapters=adapters_of(plan),
        narrow=narrow_of(plan),
        depths=depths_of(plan),
        frozen=frozen_of(plan),
        table=t.embedding_gradient,
        buffers=copies.resident if any(_kept_in(model)) else "",
        again=bool(again) and FAMILIES[model.family].carries,
        reached=bool(frozen_of(plan)) and again in (OPERATIONS, LAYER),
        regathers=copies.reduced if p.ep > 1 and FRAMEWORKS[t.framework].regathers else "",
        keeps=keeps_outputs(plan),
        unfused=plan.megatron_deepspeed,
        modules=listed(t.recompute_modules) if again == MODULES else (),
    )
    structure = replace(
        structure, float8=copies.float8, main_grad=copies.reduced, tables=tables_of(plan)
    )
    graphs = listed(t.cuda_graphs)
    holds_rows = MOE_PREPROCESS in graphs and t.moe_dispatcher == EACH_ROW
    structure = replace(structure, graphs=graphs, holds_rows=holds_rows)
    leads = _leads(structure)
    held = max(model.layers - t.trained_layers, 0) if t.frozen == LOWER else 0
    kinds, stack = stack_of(plan, model, leads, held)
    return build(structure, kinds), stack


def stack_of(
    plan: Plan, model: Model, leads: bool, held: int = 0
) -> tuple[tuple[LayerKind, ...], Layers]:
    """The kinds of layer of a plan's model, and the stack of them, before stages share it. `held`
    layers are frozen, and `leads` as in layers_of.

    Under Megatron's `block` all but the first so many of each stage, or of a virtual one, keep
    everything (transformer_block.py: _checkpointed_forward).
    """
    t, p = plan.train, plan.parallel
    again, spared = CHECKPOINTING[t.checkpointing].recompute, set[int]()
    if again == LAYER and t.recompute_method == BLOCK:
        for stage in range(p.pp):
            start, end = pipeline.span_of(plan, model.layers, stage)
            each = pipeline.virtual(end - start, plan)
            spared |= {i for i in range(start, end) if (i - start) % each >= t.recompute_num_layers}
    still = t.frozen == SEEING or t.adapter != "none"
    tower = model.tower.traits if model.tower else None
    reached = again in (OPERATIONS, LAYER) and tower is not None and tower.patches_reached
    quiet = still and not reached
    return layers_of(model, again, t.checkpoint_every, leads, held, frozenset(spared), still, quiet)


def _stage(
    plan: Plan, stage: int, blocks: Blocks, stack: Layers, waiting: int | None = None
) -> Step:
    """`waiting`: as many as the plan has, where it is None."""
    t, p = plan.train, plan.parallel
    framework, copies = framework_of(plan), copies_of(plan)
    first, last = stage == 0, stage == p.pp - 1
    layers = stack.part(*pipeline.span_of(plan, stack.count, stage))
    running = layers.part(0, pipeline.virtual(layers.count, plan))
    shared = t.recompute_method == UNIFORM and CHECKPOINTING[t.checkpointing].recompute == LAYER
    together = min(t.recompute_num_layers, running.count) if shared else 1
    return interned(
        Step(
            schedule=framework.schedule,
            outputs=keeps_outputs(plan),
            blocks=blocks,
            copies=copies,
            optimizer=OPTIMIZERS[t.optimizer],
            layers=layers,
            keeps_gradients=t.grad_accumulation > 1 or t.gradients == "kept",
            sharded=t.zero >= framework.facts.gathers,
            sums=t.grad_accumulation > 1 and t.gradients == WHOLE,
            reshards=t.zero == 3,
            replicas=framework.replicas and plan.dp > 1,
            accumulated=framework.accumulated,
            offload=t.offload_optimizer,
            offload_parameters=t.offload_parameters,
            offload_activations=t.offload_activations,
            flat=framework.facts.flat,
            buffers=framework.buffers,
            together=together,
            zero=t.zero,
            buckets=framework.buckets(t.overlap_comm, t.zero),
            running=running,
            first=first,
            last=last,
            handed=framework.handed(first, last, p.tp > 1, copies.compute)
            if framework.handed
            else NOTHING_HANDED,
            waiting=pipeline.in_flight(plan, stage) - 1 if waiting is None else waiting,
            losses=t.grad_accumulation - 1 if p.pp > 1 and p.schedule == GPIPE else 0,
            average=t.ema,
            reference=reference_of(plan),
            forwards=1 if t.reference == "none" else 2,
            in_nodes=pipeline.sides_by_side(plan),
            to_end=t.early_stop == "off"
            or t.reentrant
            or (t.early_stop == "auto" and framework.facts.to_end),
        )
    )


def _leads(structure: Structure) -> bool:
    """Whether nothing before the first layer is trained, so that its input needs no gradient."""
    if structure.frozen not in ("", SEEING):
        return not structure.reached
    a = structure.adapters
    projected = structure.traits.projected_embeddings  # a linear layer, with an adapter of its own
    adapted = "project_in" in a.modules if a and a.modules else a and a.targets == ALL_LINEAR
    return a is not None and not a.inputs and not (projected and adapted)


def frozen_of(plan: Plan) -> str:
    """Which blocks besides layers are frozen, as Structure has it."""
    t = plan.train
    if t.frozen in (NO_LAYER, SEEING, BY_NAME):
        return SEEING if t.frozen == SEEING else ""
    every = t.frozen == LOWER and t.trained_layers == 0
    return LOWER if every else EMBEDDINGS


def narrow_of(plan: Plan) -> Narrow | None:
    """What Transformer Engine's linear layers have in 8 bits on the plan's GPU."""
    how = eight_bit(plan.train.framework, plan.train.precision)
    return Narrow(how, bool(how.block) or not plan.accelerator.any_layout_fp8) if how else None


def adapters_of(plan: Plan) -> Adapters | None:
    """What the plan's adapters decide about which tensors exist, if it has any."""
    t = plan.train
    if t.adapter == "none":
        return None
    copies = COPIES[t.framework, t.precision]
    wide = t.adapter_dtype == "fp32" and not FRAMEWORKS[t.framework].facts.one_dtype
    return Adapters(
        t.lora_targets,
        "fp32" if wide else copies.compute,
        wide or unquantized_in_fp32(plan),
        t.lora_dropout > 0,
        ADAPTERS[t.adapter].quantized,
        "bf16" if copies.autocast else copies.compute,
        CHECKPOINTING[t.checkpointing].recompute in (OPERATIONS, LAYER),
        tuple(sorted(listed(t.lora_modules))),
        t.reentrant,
    )


def low_rank_of(plan: Plan, file: ModelFile) -> LowRank:
    """The adapters of a traced model, as the plan has them."""
    t, of = plan.train, adapters_of(plan)
    assert of
    layers = adapted(file, t.lora_targets, listed(t.lora_modules))
    return LowRank(layers, t.lora_rank, of.dtype, of.dropout)


def copies_of(plan: Plan) -> Precision:
    """Which copies of a weight exist, and in which dtypes: of one that is neither an adapter's nor
    quantized."""
    t = plan.train
    copies, framework = COPIES[t.framework, t.precision], framework_of(plan)
    if framework is ZERO_1 or (framework.accumulated and not t.grad_reduce_in_fp32):
        copies = replace(copies, reduced=copies.gradient)
    return replace(copies, resident="fp32", compute="fp32") if unquantized_in_fp32(plan) else copies


def reference_of(plan: Plan) -> str:
    """The dtype of a frozen reference's weights, '' where it has none of its own: with an adapter
    the model without it is the reference."""
    if plan.train.reference == "none" or plan.train.adapter != "none":
        return ""
    copies = copies_of(plan)
    half = "bf16" if copies.autocast else copies.compute
    return half if plan.train.reference == IN_16_BITS else copies.resident


def unquantized_in_fp32(plan: Plan) -> bool:
    """Whether what a quantized model leaves as it is was cast to fp32 before training, as PEFT's
    prepare_model_for_kbit_training does (peft/utils/other.py)."""
    t = plan.train
    if not ADAPTERS[t.adapter].quantized or FRAMEWORKS[t.framework].facts.one_dtype:
        return False
    return t.unquantized_dtype == FP32 or (t.unquantized_dtype == AUTO and by_peft(t))


def by_peft(t: Train) -> bool:
    """Whether adapters are trained as PEFT has them: in fp32 beside weights of fewer bits."""
    return t.adapter != "none" and t.adapter_dtype == "fp32"


def keeps_outputs(plan: Plan) -> bool:
    """Whether the training loop holds the model's outputs while backward runs.

    transformers' Trainer.compute_loss returns the loss alone; the loop that PEFT's examples have,
    and whoever trains in 16 bits without autocast writes, has `outputs = model(**batch)`.
    """
    t = plan.train
    if t.outputs != AUTO:
        return bool(t.outputs == KEPT)
    return FRAMEWORKS[t.framework].facts.by_hand and t.precision in PURE and by_peft(t)


def tables_of(plan: Plan) -> Tables | None:
    """How the plan's ranks share out a recommender's tables, if they do."""
    t = plan.train
    if t.table_sharding == UNSHARED or not plan.architecture.recommends:
        return None
    return Tables(t.table_sharding, t.table_optimizer, t.table_cache < 1)


def depths_of(plan: Plan) -> Depths | None:
    """What the plan's multi-token prediction decides about which tensors exist, if it has any."""
    t, model = plan.train, plan.architecture
    if not t.mtp_layers:
        return None
    tied, stages = model.traits.tied_embeddings, plan.parallel.pp
    table = FIRST if stages == 1 else HEAD if tied else OWN
    kind = model.kinds[-1] if model.kinds else FULL
    again = CHECKPOINTING[t.checkpointing].recompute
    return Depths(t.mtp_layers, kind, again, table)


def training_sizes(plan: Plan) -> dict[str, Number]:
    """The plan's sizes with those of its sharding and those that follow."""
    sizes = plan.sizes()
    complete(sizes, plan)
    return sizes


def complete(sizes: dict[str, Number], plan: Plan) -> None:
    """Add to a plan's sizes, or to a sweep's, what follows from its words and from the others."""
    shared_out(sizes, plan)
    if add := framework_of(plan).complete:
        add(sizes, plan.train, step_of(plan))


def shared_out(sizes: dict[str, Number], plan: Plan) -> None:
    """The same but for those that a framework's buffers have.

    SHARD: ranks that share each parameter; STATE: ranks that share the optimizer states, and EDP:
    those of one expert.
    """
    t, framework = plan.train, framework_of(plan)
    sharded = t.zero >= framework.facts.shards
    ranks = sizes["DP"] * sizes["CP"]  # context-parallel ranks share states like data-parallel ones
    if plan.parallel.shard_group:
        ranks = plan.parallel.shard_group + 0 * ranks
    sizes["SHARD"] = ranks if sharded else 1
    sizes["STATE"] = ranks if t.zero else 1
    # Each expert is on one of EP ranks, taken from all that run the same layers.
    holders = ranks * sizes["TP"] // (sizes["EP"] * sizes["ETP"])
    sizes["EDP"] = holders if sharded or t.zero == 1 else 1
    sizes["SEQ"] = sizes["TP"] if plan.parallel.sequence_parallel else 1
    if not framework.facts.own:
        sizes["ROUTERS"] = 1
    sizes["SMS"] = plan.accelerator.sms
    nvidia, architecture = plan.accelerator.vendor == "nvidia", plan.accelerator.architecture
    sizes["CUBLAS"] = 0
    if nvidia and not framework.facts.own:
        sizes["CUBLAS"] = int(constants.cublas_workspace(architecture).middle)
    if framework.vocabulary:
        whole = framework.vocabulary * sizes["TP"]
        sizes["VOCAB"] = ceil_div(sizes["VOCAB"], whole) * whole
    if plan.accelerator.vendor in ("nvidia", "amd"):
        tokens = sizes["B"] * ceil_div(sizes["S"], sizes["CP"])
        rows = tokens // ROWS_OF_A_SUM + minimum(tokens, ceil_div(sizes["VOCAB"], sizes["TP"]))
        sizes["SUMMED"] = where(tokens > UNSORTED, rows, 0)
    derive(sizes)
    sizes |= {d.name: 0 for other in FRAMEWORKS.values() for d in other.dimensions}
