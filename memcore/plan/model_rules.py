"""Rules of a model: what its code has, how long its sequences are, and which of its weights can be
trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from memcore.errors import Issue, did_you_mean, shown
from memcore.models.counts import weights
from memcore.models.families import FAMILIES
from memcore.models.families.qwen_tower import SIDE
from memcore.models.model import Model
from memcore.models.traced.file import ModelFile
from memcore.models.traced.tuned import adapted, suffixes, within
from memcore.models.traced.tuned import linear_layers as traced_linear_layers
from memcore.plan.remedies import DATA_PARALLEL, OWN, PLAIN, ROWS, SHARDS, UNSHARDED, WHOLE
from memcore.plan.rule import Remedy, broken, only, to
from memcore.plan.serving_rules import prompt_rules
from memcore.plan.sizes import next_multiple
from memcore.tape.structure import CAUSAL, CLASSIFICATION
from memcore.words.jobs import SERVE
from memcore.words.precision import PURE
from memcore.words.stored import WEIGHT_DTYPES
from memcore.words.training import (
    ADAPTERS,
    ALL_LINEAR,
    AUTO,
    AVERAGED,
    AVERAGED_FP32,
    BASE,
    BY_NAME,
    CHECKPOINTING,
    COPIES,
    CUDNN,
    DENSE,
    FLASH_3,
    FP32,
    FRAMEWORKS,
    INT8,
    KEEPS_LIKE,
    LAYER,
    LORA_TARGETS,
    NO_LAYER,
    QUANTIZED,
    SEEING,
    UNSHARED,
    eight_bit,
    listed,
)

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


def model_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What a model's code has, and how long its sequences are."""
    if model is None:
        return
    t, p = plan.train, plan.parallel
    family, own = FAMILIES[model.family], FRAMEWORKS[t.framework].own
    runs = family.attentions
    losses = ("eager",) if beheaded(model) else family.losses
    alike = KEEPS_LIKE.get(t.attention, "")
    if alike in runs:
        yield from _newer_attention_rules(plan, alike)
    elif t.attention not in runs:
        why = attention_missing(model, t.attention)
        yield broken("train.attention", why, *to("train.attention", *reversed(runs)))
    why = f"there are no {t.kernels} kernels for {model.family}"
    yield from only(plan, "train.kernels", family.kernels, why)
    why = f"{model.family} has no {t.cross_entropy} loss"
    yield from only(plan, "train.cross_entropy", losses, why)
    yield from _alone_rules(plan, model)
    yield from traced_rules(plan, model)
    if t.kernels == "compile" and t.checkpointing == "selective":
        why = "a compiled layer is not known to run its attention core alone again"
        yield broken(
            "train.checkpointing", why, *to("train.checkpointing", "full", "selective-op", "none")
        )
    if t.cross_entropy == "chunked" and model.traits.logits_scaled:
        why = f"{model.family} scales its logits, which Liger's chunked loss does not"
        yield broken("train.cross_entropy", why, *to("train.cross_entropy", "eager", "fused"))
    if own and model.experts and p.tp > 1 and not p.sequence_parallel:
        why = "Megatron routes each rank's own tokens"
        ways: tuple[Remedy, ...] = {"parallel.sequence_parallel": True}, {"parallel.tp": 1}
        yield broken("parallel.sequence_parallel", why, *ways)
    if own and t.overlap_param_gather and not t.overlap_grad_reduce:
        why = (
            "Megatron gathers weights behind forward only where it reduces gradients behind "
            "backward (overlap_grad_reduce)"
        )
        ways = {"train.overlap_param_gather": False}, {"train.overlap_grad_reduce": True}
        yield broken("train.overlap_param_gather", why, *ways)
    yield from _expert_overlap_rules(plan, model)
    yield from _async_rules(plan)
    yield from length_rules(plan, model)
    if plan.job == SERVE:  # in any other a note says so
        yield from served_positions(plan, model)


TRACED_IN = {"bf16": ("bf16-mixed", "bf16-pure"), "fp16": ("fp16-mixed", "fp16-pure")}


def traced_rules(plan: Plan, model: Model) -> Iterator[Issue]:
    """A trace is of one dtype, and has no autocast."""
    if model.traced:
        dtype = model.traced.dtype
        why = f"{model.label} was traced in {dtype}; memplan trace --dtype makes another file"
        yield from only(plan, "train.precision", TRACED_IN.get(dtype, (dtype,)), why)
        yield from _table_rules(plan, model)


def _table_rules(plan: Plan, model: Model) -> Iterator[Issue]:
    """What a recommender's tables are not known to run with where ranks share them out."""
    t = plan.train
    if t.table_sharding == UNSHARED or not model.recommends:
        return
    why = "tables that GPUs share out are planned under PyTorch (DDP), as TorchRec has them"
    yield from only(plan, "train.framework", ["pytorch"], why)
    why = "not planned with tables that GPUs share out"
    yield from only(plan, "train.zero", [0], why)
    yield from only(plan, "train.grad_accumulation", [1], why)
    others = ("offload_optimizer", "offload_activations", "adapter", "frozen", "ema", "reference")
    for name in others:
        yield from only(plan, f"train.{name}", ["none"], why)


def length_rules(plan: Plan, model: Model) -> Iterator[Issue]:
    """How many tokens and images the model takes: a plan that does not name such a field has what
    these remedies set."""
    t = plan.train
    if image := model.image:
        why = f"{t.seq_len:,} tokens, but {image.text} are {image.tokens:,}"
        yield from only(plan, "train.seq_len", [image.tokens], why)
    elif not model.has_dim("tokens"):
        yield from only(plan, "train.seq_len", [1], f"{model.label} has no tokens")
    elif model.heard:
        yield from _of_fixed_length(plan, model)
    elif model.learned_positions and t.seq_len > model.max_positions:
        why = (
            f"{t.seq_len:,} tokens, but {model.label} has learned positions for "
            f"{model.max_positions:,}"
        )
        fewer = to("train.seq_len", model.max_positions)
        yield broken("train.seq_len", why, *fewer, advice="use fewer")
    if model.tower and (image := model.tower.image):
        fitting = t.seq_len // image.read
        fewer = to("train.images", fitting) if fitting else ()
        if t.images < 1:
            why = f"{model.label} is planned with images"
            yield broken("train.images", why, *to("train.images", 1), advice="use more")
        if t.images >= 1 and t.images * image.read > t.seq_len:
            why = f"{t.images:,} of {image.read:,} tokens each do not fit into {t.seq_len:,}"
            yield broken("train.images", why, *fewer, *to("train.seq_len", t.images * image.read))
    yield from prompt_rules(plan, model)
    for field, side in SIZES.items():
        asked = attrgetter(field)(plan)
        if asked != side:  # which says nothing: every plan has it
            yield from one_size(field, asked, model)


SIZES = {"train.image_size": SIDE, "serve.image_size": SIDE}


def one_size(field: str, side: int, model: Model) -> Iterator[Issue]:
    """That a model whose images have one size is asked for no other: it stands in its config.json,
    with as many positions."""
    image = model.image or (model.tower.image if model.tower else None)
    if image is None or image.unit:
        return
    if image.free and field == "train.image_size":
        least = max(image.patch_height, image.patch_width)
        if side < least:
            why = f"{side:,} pixels, but a patch of {model.label} has {least:,}"
            yield broken(field, why, *to(field, least), advice="use more")
        return
    if side == image.height:
        return
    key = "model.image_size" if model.image else "model.vision_config.image_size"
    why = f"the config.json of {model.label} has images of {image.height:,} x {image.width:,} alone"
    advice = f"set image_size there ({key} on the command line)"
    yield broken(field, why, *to(field, image.height), advice=advice)


def served_positions(plan: Plan, model: Model) -> Iterator[Issue]:
    """That a server's prompts and outputs lie within the positions that the model has learned, and
    who guesses tokens for it."""
    for one in (model, plan.draft):
        if one is not None:
            yield from _within_positions(plan, one)


def _within_positions(plan: Plan, model: Model) -> Iterator[Issue]:
    s, most = plan.serve, model.position_rows if model.heard else model.max_positions
    if not (model.learned_positions and FAMILIES[model.family].decoder and model.head == CAUSAL):
        return
    why = f"{model.label} has learned positions for {most:,}"
    if model.encoder_decoder:
        for name in ("output_len", *(() if model.heard else ("prompt_len",))):
            if (tokens := getattr(s, name)) > most:
                field = f"serve.{name}"
                yield broken(field, f"{tokens:,} tokens, but {why}", *to(field, most))
    elif s.prompt_len + s.output_len > most:
        out = most // 4
        ways: tuple[Remedy, ...] = (
            {"serve.prompt_len": most - s.output_len},
            {"serve.output_len": most - s.prompt_len},
            {"serve.prompt_len": most - out, "serve.output_len": out},
        )
        said = f"{s.prompt_len:,} tokens and {s.output_len:,} more, but {why} in all"
        yield broken("serve.prompt_len", said, *(w for w in ways if min(w.values()) > 0))


def _expert_overlap_rules(plan: Plan, model: Model) -> Iterator[Issue]:
    """What two micro-batches side by side want (Megatron-Core, transformer_config.py)."""
    t, p, field = plan.train, plan.parallel, "train.overlap_moe_expert_parallel_comm"
    if not (FRAMEWORKS[t.framework].own and t.overlap_moe_expert_parallel_comm):
        return
    off = to(field, False)
    if not model.experts or p.ep == 1:
        yield broken(field, "no rank sends rows to another's experts", *off)
    if CHECKPOINTING[t.checkpointing].recompute == LAYER:
        why = "Megatron runs two micro-batches side by side only where no whole layer runs again"
        yield broken(field, why, *off, *to("train.checkpointing", "selective", "none"))
    if p.pp > 1 and p.virtual_stages == 1:
        why = "in a pipeline Megatron has it with virtual stages only"
        yield broken(field, why, *off, {"parallel.virtual_stages": 2})
    if t.grad_accumulation == 1:
        why = "one micro-batch has no other beside it"
        yield broken(field, why, *off, {"train.grad_accumulation": 2})


def _async_rules(plan: Plan) -> Iterator[Issue]:
    """What pieces of a product beside those of a collective want (torch's micro_pipeline_tp)."""
    t, p, field = plan.train, plan.parallel, "train.async_tp"
    if not t.async_tp or p.tp == 1:
        return
    off = to(field, False)
    if t.kernels != "compile":
        why = "torch.compile alone cuts products in pieces beside what ranks send"
        yield broken(field, why, *off, {"train.kernels": "compile"})
    if not p.sequence_parallel:
        why = "what is summed by all ranks is not cut in pieces"
        yield broken(field, why, *off, {"parallel.sequence_parallel": True})


def attention_missing(model: Model, word: str) -> str:
    """Why a model cannot run with an attention that its family has not."""
    which = f"{word} attention for {model.family}"
    return f"{which} is not planned" if model.buckets else f"transformers has no {which}"


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


def _newer_attention_rules(plan: Plan, alike: str) -> Iterator[Issue]:
    """What an attention that keeps the same tensors as another does not run on."""
    own = FRAMEWORKS[plan.train.framework].own
    other = to("train.attention", alike)
    word = plan.train.attention
    if own:
        yield broken("train.attention", "Megatron runs Transformer Engine's attention", *other)
    elif not has_attention(plan, word):
        yield broken("train.attention", NEWER_ATTENTION[word][1], *other, advice="take such a GPU")


ROUTER = "logits"  # a parameter of its own, no linear layer


def linear_layers(model: Model) -> tuple[str, ...]:
    """What the linear layers of a model's layers are called, as PEFT finds them."""
    if model.traced:
        paths = traced_linear_layers(model.traced)
        return tuple(dict.fromkeys(name for path in paths for name in suffixes(path)))
    _, tapes = weights(model)
    found = (
        p.path.split(".")[-2]
        for tape, _ in tapes
        for p in tape.parameters
        if p.path.endswith(".weight") and len(p.shape) == 2 and p.path.startswith("layers.")
    )
    return tuple(dict.fromkeys(name for name in found if name != ROUTER))


def module_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """Whether the model has the linear layers that adapters are listed for, adapted now or not."""
    field, asked = "train.lora_modules", listed(plan.train.lora_modules)
    if not (asked and model):
        return
    names = linear_layers(model)
    unknown = [name for name in asked if name not in names]
    if not unknown:
        return
    message = f"the layers have no linear layer {shown(unknown[0])}"
    told = did_you_mean(unknown[0], names)
    yield broken(field, f"{message}; {told}", *to(field, NO_LAYER))


def adapter_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What adapters are not known to run with."""
    t, p = plan.train, plan.parallel
    if t.adapter == "none":
        return
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
    if not (by_name or framework.own) and experts and t.lora_targets == ALL_LINEAR:
        why = (
            "PEFT adapts stacked experts as whole parameters then (target_parameters), which is "
            "not planned"
        )
        yield broken(targets, why, *to(targets, "attention", "attention-all"))
    if not by_name and model is not None and model.kv_rank and t.lora_targets == "attention":
        why = "latent attention has no projection of values alone"
        yield broken(targets, why, *to(targets, "attention-all"))
    yield from _parallel_adapter_rules(plan, model)
    if in_4_bits and framework.as_floats and t.precision not in PURE:
        why = (
            f"{t.adapter} has its 4-bit values in the other weights' dtype under FSDP2 "
            f"(bnb_4bit_quant_storage), which {t.precision} casts"
        )
        yield broken(
            field,
            why,
            {"train.precision": "bf16-pure", "train.adapter_dtype": "base"},
            drop,
            {"train.framework": WHOLE[0]},
        )
    if in_8_bits and t.zero >= framework.gathers:
        why = (
            "bitsandbytes has 8-bit weights as integers of its own, which FSDP2 and ZeRO 3 do not "
            "shard; 4-bit ones are stored as floating-point numbers for it"
        )
        yield broken(field, why, to_4_bits, drop, {"train.framework": WHOLE[0], "train.zero": 0})
    if in_8_bits and t.offload_activations != "none":
        why = (
            "what bitsandbytes holds for backward in 8 bits is not saved as others are, so that "
            "nothing takes it to the host"
        )
        yield broken("train.offload_activations", why, *to("train.offload_activations", "none"))
    if framework.one_dtype and not framework.own and t.unquantized_dtype == FP32:
        why = "DeepSpeed and FSDP2 want one dtype for the weights of a layer"
        yield broken("train.unquantized_dtype", why, *to("train.unquantized_dtype", AUTO, BASE))
    if framework.plain and copies is not None and copies.master:
        why = f"adapters have no master copies, which {t.precision} means"
        yield broken(field, why, drop, {"train.precision": "bf16-pure"})
    if framework.as_floats and t.precision in PURE and t.adapter_dtype == "fp32":
        why = "FSDP2 wants one dtype for the weights of a layer"
        yield broken(field, why, drop, {"train.adapter_dtype": "base"})
    if t.kernels == "compile":
        why = "adapters are not planned with compiled layers"
        yield broken(field, why, drop, *to("train.kernels", "hf", "liger"))
    if t.offload_optimizer != "none" and t.offload_parameters == "none":
        why = "adapters are not planned with optimizer offload"
        yield broken(field, why, drop, {"train.offload_optimizer": "none"})
    if not framework.own and plan.sharing * p.ep > 1:
        why = "adapters are planned with data parallelism only, but under Megatron"
        yield broken(field, why, drop, DATA_PARALLEL, *to("train.framework", *OWN))
    if experts and t.adapter != "lora":
        why = "bitsandbytes leaves stacked experts as they are, which is not planned"
        yield broken(field, why, *to(field, "none", "lora"))
    if t.kernels == "liger" and t.adapter != "lora":
        why = f"{t.adapter} is not planned with Liger's kernels"
        yield broken(field, why, drop, {"train.kernels": "hf"})


def _parallel_adapter_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What Megatron-Bridge's adapters do not have, or are not known to run with."""
    t, p, field = plan.train, plan.parallel, "train.adapter"
    if not FRAMEWORKS[t.framework].own:
        return
    drop: Remedy = {field: "none"}
    elsewhere = to("train.framework", *reversed(PLAIN))
    if ADAPTERS[t.adapter].quantized:
        why = "Megatron-Bridge has adapters over unquantized weights alone"
        yield broken(field, why, *to(field, "lora", "none"), *elsewhere)
    if listed(t.lora_modules):
        why = "Megatron's layers have names of their own, one for queries, keys and values together"
        yield broken("train.lora_modules", why, *to("train.lora_modules", NO_LAYER))
    if t.lora_rank % p.tp != 0:
        why = (
            f"tensor-parallel ranks share a rank of {t.lora_rank:,}, which does not divide by "
            f"{p.tp:,}"
        )
        wider = next_multiple(t.lora_rank, p.tp)
        yield broken("train.lora_rank", why, {"train.lora_rank": wider})
    if t.lora_targets == ALL_LINEAR and p.etp > 1:
        why = "adapters of experts that ranks share each of are not planned"
        ways: tuple[Remedy, ...] = {"train.lora_targets": "attention-all"}, {"parallel.etp": 1}
        yield broken("train.lora_targets", why, *ways)
    if model is not None and model.kv_rank:
        why = "adapters of latent attention are not planned under Megatron"
        yield broken(field, why, drop, *elsewhere)
    if t.mtp_layers > 0 or plan.megatron_deepspeed:
        why = "adapters are not planned with multi-token prediction, nor with Megatron-DeepSpeed"
        yield broken(field, why, drop, {"train.mtp_layers": 0})


def embedding_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What rows of the embedding's gradient are not known to run with."""
    t, field = plan.train, "train.embedding_gradient"
    if t.embedding_gradient == DENSE:
        return
    dense = to(field, DENSE)
    if plan.cluster.gpus > 1:  # that somebody wants rows is no reason to take their GPUs away
        yield broken(field, "planned with pytorch on one GPU", *dense)
    if not FRAMEWORKS[t.framework].rows:
        yield broken(field, "planned with pytorch", *dense, {"train.framework": ROWS[0]})
    if model is not None and model.traits.tied_embeddings:
        yield broken(field, "the embedding is the head too, whose gradient is dense", *dense)
    if not _decodes(model):
        yield broken(field, "planned for decoders only", *dense)
    if t.precision not in (*PURE, "fp32"):
        why = "planned in bf16-pure, fp16-pure and fp32"
        yield broken(field, why, *dense, *to("train.precision", *PURE, "fp32"))
    if t.grad_accumulation > 1 or t.gradients == "kept":
        why = "planned for one micro-batch"
        yield broken(field, why, *dense, {"train.grad_accumulation": 1, "train.gradients": "freed"})
    if t.offload_optimizer != "none" or t.adapter != "none" or t.frozen != "none":
        why = "not planned with offload, adapters or frozen weights"
        others = ("offload_optimizer", "adapter", "frozen")
        yield broken(field, why, *dense, {f"train.{other}": "none" for other in others})


def frozen_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What frozen weights are not known to run with."""
    t, field = plan.train, "train.frozen"
    if t.frozen == "none":
        return
    none = to(field, "none")
    if t.frozen == SEEING and not (model and _any_images(model)):
        yield broken(field, "planned for models that read images of any size", *none)
    if t.frozen == BY_NAME:
        yield from _frozen_by_name(plan, model)
    elif not _decodes(model) and t.frozen != SEEING:
        yield broken(field, "planned for decoders only", *none)
    if t.adapter != "none":
        why = "adapters freeze the model's own weights"
        yield broken(field, why, *none, {"train.adapter": "none"})
    if not FRAMEWORKS[t.framework].plain:
        why = f"not planned with {t.framework}"
        yield broken(field, why, *none, *to("train.framework", *PLAIN))
    if plan.sharing * plan.parallel.ep > 1:
        yield broken(field, "planned with data parallelism only", *none, DATA_PARALLEL)
    if t.kernels == "compile":
        why = "not planned with compiled layers"
        yield broken(field, why, *none, *to("train.kernels", "hf", "liger"))
    if t.offload_optimizer != "none":
        why = "not planned with optimizer offload"
        yield broken(field, why, *none, {"train.offload_optimizer": "none"})


def _uses_untold(model: Model) -> str:
    """Why nothing of a traced model can be frozen, whose file is of before operations were told."""
    return f"the file of {model.label} does not say which operations use a tensor: trace it anew"


def _frozen_by_name(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """That a traced model has the modules that are frozen, and others that are trained."""
    field, names = "train.frozen_modules", listed(plan.train.frozen_modules)
    none = to("train.frozen", "none")
    if model is None or model.traced is None:
        yield broken("train.frozen", "modules are frozen by name of traced models only", *none)
        return
    if not model.traced.tells_users:
        why = _uses_untold(model)
        yield broken("train.frozen", why, *none)
        return
    paths = [p.path for p in model.traced.parameters]
    modules = dict.fromkeys(p[:n] for p in paths for n in _ends(p))
    unknown = [name for name in names if name not in modules]
    if unknown:
        told = did_you_mean(unknown[0], [*modules])
        yield broken(field, f"the trace has no module {shown(unknown[0])}; {told}", *none)
    elif not names:
        yield broken(field, "it names no module", *to(field, *[*modules][:1]), *none)
    elif all(within(path, names) for path in paths):
        yield broken(field, "nothing is left to train", *none)


def _ends(path: str) -> Iterator[int]:
    """Where the name of each module that has a parameter ends in its path."""
    yield from (i for i, letter in enumerate(path) if letter == ".")


def average_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What an average of the weights is not known to run with."""
    t, field = plan.train, "train.ema"
    if t.ema == "none":
        return
    none = to(field, "none")
    if t.adapter != "none":
        why = "an average of adapters is not planned"
        yield broken(field, why, *none, {"train.adapter": "none"})
    if FRAMEWORKS[t.framework].flat:
        why = f"an average of the weights is not planned with {t.framework}"
        yield broken(field, why, *none, {"train.framework": PLAIN[0]})
    if t.ema == AVERAGED and eight_bit(t.framework, t.precision):
        why = "a second model with weights in 8 bits is not planned"
        yield broken(field, why, *to(field, AVERAGED_FP32), *none)


def reference_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What a frozen reference is not known to run with."""
    t, field = plan.train, "train.reference"
    if t.reference == "none":
        return
    none = to(field, "none")
    if FRAMEWORKS[t.framework].own:
        why = "a frozen reference is not planned with Megatron"
        yield broken(field, why, *none, {"train.framework": PLAIN[0]})
    if plan.together.kind in ("grpo", "ppo"):
        why = "the reference of GRPO and PPO is together.reference"
        yield broken(field, why, *none)


def _decodes(model: Model | None) -> bool:
    """Whether it is a plain decoder with a language model's head, or not known yet."""
    return model is None or (
        FAMILIES[model.family].decoder
        and model.head == CAUSAL
        and model.tower is None
        and not model.stack
    )


def beheaded(model: Model) -> bool:
    """Whether a class of a decoder is planned that has no language model's head."""
    return FAMILIES[model.family].decoder and model.head != CAUSAL


def _traced_targets(plan: Plan, file: ModelFile) -> Iterator[Issue]:
    """That a traced model has linear layers which adapters are for, and that these run as such."""
    t, field = plan.train, "train.lora_targets"
    if listed(t.lora_modules):
        return
    if not adapted(file, t.lora_targets, ()):
        why = "no linear layer of the trace is called so; train.lora_modules names others"
        words = [w for w in LORA_TARGETS if adapted(file, w, ())]
        yield broken(field, why, *to(field, *words), {"train.adapter": "none"})


def _any_images(model: Model) -> bool:
    """Whether it has a tower that may be frozen, for images of any size."""
    return bool(model.tower and model.tower.image and model.tower.image.unit)


def _alone_rules(plan: Plan, model: Model) -> Iterator[Issue]:
    """What families that are known with data parallelism only are not known to run with."""
    family = FAMILIES[model.family]
    if not family.alone and not beheaded(model):
        return
    t, weights, name = plan.train, plan.weight_dtype, model.family
    for axis in ("tp", "pp", "cp", *(["ep"] if model.tower else [])):
        yield from only(plan, f"parallel.{axis}", [1], f"{name} is planned with data parallelism")
    known = list(dict.fromkeys([*PLAIN, *SHARDS])) if model.traced else PLAIN
    yield from only(plan, "train.framework", known, f"{name} is not planned with it")
    images = _any_images(model)
    tells = model.traced is not None and model.traced.tells_users
    adapts = images or tells
    why = f"{f'{t.adapter} is' if adapts else 'adapters are'} not planned for {name}"
    if model.traced and not tells:
        why = _uses_untold(model)
    yield from only(plan, "train.adapter", ["none", *(["lora"] if adapts else [])], why)
    if model.traced and tells and t.adapter == "lora":
        yield from _traced_targets(plan, model.traced)
    if eight_bit(t.framework, t.precision):
        why = f"{name} is not planned with products in 8 bits"
        yield broken("train.precision", why, *to("train.precision", "bf16-mixed"))
    why = f"{name} is planned with all its weights trained"
    why += ", or all but what reads images" if images else ""
    by_name = [BY_NAME] if model.traced else []
    towers = [SEEING] if images else []
    yield from only(plan, "train.frozen", [NO_LAYER, *towers, *by_name], why)
    yield from only(plan, "together.kind", ["none"], f"{name} is planned by itself only")
    if model.tower:
        for what in ("parameters", "activations"):
            why = f"that of {name} is not planned"
            yield from only(plan, f"train.offload_{what}", ["none"], why)
        if model.encoder_decoder and WEIGHT_DTYPES[weights].compute != weights:
            why = f"{name} is served in 16 or 32 bits, its encoder with it"
            yield broken("serve.weight_dtype", why, *to("serve.weight_dtype", "bf16"))
    if model.encoder_decoder and model.head == CLASSIFICATION:
        why = f"the decoder of a classifier of {name} reads the tokens that its encoder does"
        yield from only(plan, "train.target_len", [t.seq_len], why)
    if family.unsharded:
        why = f"{name} is not planned shared out: {family.unsharded}"
        yield from only(plan, "train.framework", UNSHARDED, why)
        yield from only(plan, "train.offload_parameters", ["none"], why)
    if model.traced and not model.traced.checkpoints:
        of = f"the file of {model.label}"
        why = f"{of} has no blocks, or does not say what of them runs again: trace it anew"
        yield from only(plan, "train.checkpointing", ["none"], why)
    elif not family.checkpoints and not model.traced:
        why = f"transformers' code of {name} has no checkpointing"
        yield from only(plan, "train.checkpointing", ["none"], why)
    if family.carries or model.traced:
        encodes = model.encoder_decoder or not family.decoder
        if CHECKPOINTING[t.checkpointing].recompute not in ("", LAYER):
            why = f"{name} is planned with whole layers"
            yield broken("train.checkpointing", why, *to("train.checkpointing", "full", "none"))
        why = f"{name} is planned with every layer checkpointed or none"
        yield from only(plan, "train.checkpoint_every", [1], why)
        if encodes and "fp16" in t.precision:
            why = f"{name} clamps fp16, which is not planned"
            yield broken("train.precision", why, *to("train.precision", "bf16-mixed"))
        if encodes and weights == "fp16":
            why = f"transformers keeps wo of {name} in fp32 then"
            yield broken("serve.weight_dtype", why, *to("serve.weight_dtype", "bf16"))


def _of_fixed_length(plan: Plan, model: Model) -> Iterator[Issue]:
    """What an encoder that always reads as many positions asks for, and the decoder behind it."""
    target, rows = plan.train.target_len, model.position_rows
    why = f"the encoder of {model.label} always reads {model.heard:,} positions"
    yield from only(plan, "train.seq_len", [model.heard], why)
    yield from only(plan, "serve.prompt_len", [model.heard], why)
    if target > rows:
        why = f"{target:,} tokens, but {model.label} has learned positions for {rows:,}"
        yield broken("train.target_len", why, *to("train.target_len", rows), advice="use fewer")
