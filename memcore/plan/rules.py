"""Rules: combinations that cannot exist, each written once.

Plan raises their messages; a sweep uses the same conditions as a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, shown
from memcore.models import catalog
from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.tape.dims import maximum
from memcore.tape.structure import CAUSAL, CLASSIFICATION, EMBEDDING
from memcore.words.optimizers import DEEPSPEED_OPTIMIZERS
from memcore.words.precision import COPIES, eight_bit
from memcore.words.serving import KV_CACHES, PREFILLS
from memcore.words.stored import AS_PUBLISHED, WEIGHT_DTYPES
from memcore.words.training import (
    AVERAGED,
    CHECKPOINTING,
    DENSE,
    FLASH_3,
    FRAMEWORKS,
    LAYER,
    NO_LAYER,
)

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A condition on the flat sizes that must hold; works for numbers and for arrays."""

    field: str
    holds: Callable[[dict[str, Any]], Any]
    message: Callable[[dict[str, Any]], str]


SIZE_RULES = (
    SizeRule(
        "parallel.shard_group",
        lambda s: s["DP"] * s["CP"] % maximum(s["SHARD_GROUP"], 1) == 0,
        lambda s: (
            f"{s['DP'] * s['CP']:,} ranks that share parameters do not divide by "
            f"{s['SHARD_GROUP']:,}; choose a divisor of them, or 0"
        ),
    ),
    SizeRule(
        "cluster.gpus",
        lambda s: s["GPUS"] % (s["TP"] * s["PP"] * s["CP"]) == 0,
        lambda s: (
            f"{s['GPUS']:,} GPUs do not divide by tp x pp x cp = {s['TP'] * s['PP'] * s['CP']:,}; "
            "use a multiple of it"
        ),
    ),
    SizeRule(
        "parallel.tp",
        lambda s: s["HEADS"] % s["TP"] == 0,
        lambda s: (
            f"{s['HEADS']:,} attention heads do not divide by tp {s['TP']:,}; "
            f"choose a divisor of {s['HEADS']:,}"
        ),
    ),
    SizeRule(
        "parallel.tp",
        lambda s: s.get("SSM_HEADS", 0) % s["TP"] == 0,
        lambda s: (
            f"{s['SSM_HEADS']:,} heads of a layer's state do not divide by tp {s['TP']:,}; "
            f"choose a divisor of {s['SSM_HEADS']:,}"
        ),
    ),
    SizeRule(
        "parallel.pp",
        lambda s: s["LAYERS"] >= s["PP"],
        lambda s: f"{s['PP']:,} stages for {s['LAYERS']:,} layers; use at most one per layer",
    ),
    SizeRule(
        "parallel.virtual_stages",
        lambda s: s["LAYERS"] >= s["PP"] * s["VIRTUAL"],
        lambda s: (
            f"{s['VIRTUAL']:,} virtual stages on each of {s['PP']:,} for {s['LAYERS']:,} layers; "
            "use at most one per layer"
        ),
    ),
    SizeRule(
        "parallel.ep",
        lambda s: s["EXPERTS"] % s["EP"] == 0,
        lambda s: (
            f"{s['EXPERTS']:,} experts do not divide by ep {s['EP']:,}; "
            f"choose a divisor of {s['EXPERTS']:,}"
        ),
    ),
    SizeRule(
        "parallel.ep",
        lambda s: s["GPUS"] // s["PP"] % s["EP"] == 0,
        lambda s: (
            f"{s['GPUS'] // s['PP']:,} GPUs on a pipeline stage do not divide by ep {s['EP']:,}; "
            "choose a divisor of them"
        ),
    ),
    SizeRule(
        "train.seq_len",
        lambda s: (s["NARROW"] == 1) | (s["B"] * s["S"] % (s["CP"] * s["TP"] * s["NARROW"]) == 0),
        lambda s: (
            f"{s['B'] * s['S']:,} tokens do not divide by cp x tp x {s['NARROW']}, as products in "
            f"8 bits want; use a multiple of {s['CP'] * s['TP'] * s['NARROW']:,}"
        ),
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
            "not; use bf16-mixed"
        ),
    ),
    SizeRule(
        "parallel.etp",
        lambda s: s["GPUS"] // s["PP"] % (s["EP"] * s["ETP"]) == 0,
        lambda s: (
            f"{s['GPUS'] // s['PP']:,} GPUs on a pipeline stage do not divide by ep x etp = "
            f"{s['EP'] * s['ETP']:,}; choose a divisor of them"
        ),
    ),
    SizeRule(
        "parallel.etp",
        lambda s: s["EXPERT_F"] % s["ETP"] == 0,
        lambda s: (
            f"experts {s['EXPERT_F']:,} wide do not divide by etp {s['ETP']:,}; choose a divisor"
        ),
    ),
    SizeRule(
        "parallel.cp",
        lambda s: s["S"] >= s["CP"],
        lambda s: f"{s['CP']:,} ranks for {s['S']:,} tokens; use at most one per token",
    ),
)


def broken_rules(plan: Plan, model: Model | None) -> list[Issue]:
    """Every rule this plan breaks; without a model, those that do not need one."""
    issues = []
    t, p = plan.train, plan.parallel
    stages = FRAMEWORKS[t.framework].zero
    if t.zero not in stages:
        others = [n for n, f in FRAMEWORKS.items() if t.zero in f.zero]
        issues.append(
            Issue(
                "train.zero",
                f"{t.framework} has ZeRO {', '.join(map(str, stages))}, not {t.zero}; change the "
                f"stage, or set train.framework to {' or '.join(others)}",
            )
        )
    if (t.framework, t.precision) not in COPIES:
        known = [word for f, word in COPIES if f == t.framework]
        others = [f for f, word in COPIES if word == t.precision]
        or_ = f", or set train.framework to {' or '.join(others)}" if others else ""
        issues.append(
            Issue(
                "train.precision", f"{t.framework} has {', '.join(known)}; choose one of them{or_}"
            )
        )
    if (t.kernels == "megatron") != (t.framework == "megatron"):
        other = "megatron" if t.framework == "megatron" else "hf, liger or compile"
        issues.append(Issue("train.kernels", f"{t.framework} does not run them; set it to {other}"))
    if t.framework == "megatron" and t.early_stop == "on":
        message = "Megatron runs a checkpointed layer again to its end; set it to auto or off"
        issues.append(Issue("train.early_stop", message))
    issues += _eight_bit_issues(plan)
    issues += _adapter_issues(plan, model)
    issues += _frozen_issues(plan, model)
    issues += _deepspeed_issues(plan)
    issues += _prediction_issues(plan, model)
    issues += _parallel_issues(plan)
    issues += _offload_issues(plan)
    issues += _serving_issues(plan, model)
    issues += _host_issues(plan)
    issues += _together_issues(plan, model)
    issues += _stream_issues(plan)
    if model is None:
        return issues
    runs = FAMILIES[model.family].attentions
    if t.attention == FLASH_3 and "flash" in runs:
        issues += _flash_3_issues(plan)
    elif t.attention not in runs:
        why = attention_missing(model, t.attention)
        issues.append(Issue("train.attention", f"{why}; set it to {' or '.join(runs)}"))
    kernels = FAMILIES[model.family].kernels
    if t.kernels not in kernels:
        issues.append(
            Issue(
                "train.kernels",
                f"there are no {t.kernels} kernels for {model.family}; set it to "
                f"{' or '.join(kernels)}",
            )
        )
    losses = ("eager",) if beheaded(model) else FAMILIES[model.family].losses
    if t.cross_entropy not in losses:
        issues.append(
            Issue(
                "train.cross_entropy",
                f"{model.family} has no {t.cross_entropy} loss; set it to {' or '.join(losses)}",
            )
        )
    issues += _alone_issues(plan, model)
    issues += _prompt_issues(plan, model)
    if t.kernels == "compile" and t.checkpointing == "selective":
        issues.append(
            Issue(
                "train.checkpointing",
                "a compiled layer is not known to run its attention core alone again; set it to "
                "selective-op, full or none",
            )
        )
    if t.cross_entropy == "chunked" and model.traits.logits_scaled:
        issues.append(
            Issue(
                "train.cross_entropy",
                f"{model.family} scales its logits, which Liger's chunked loss does not; set it to "
                "eager or fused",
            )
        )
    if model.image and t.seq_len != model.image.tokens:
        issues.append(
            Issue(
                "train.seq_len",
                f"{t.seq_len:,} tokens, but {model.image.text} are {model.image.tokens:,}; set it "
                "to that",
            )
        )
    tower = model.tower
    if tower and tower.image and t.images < 1:
        message = f"{model.label} is planned with images; use one or more"
        issues.append(Issue("train.images", message))
    elif tower and tower.image and t.images * tower.image.read > t.seq_len:
        issues.append(
            Issue(
                "train.images",
                f"{t.images:,} of {tower.image.read:,} tokens each do not fit into "
                f"{t.seq_len:,}; use fewer, or a longer train.seq_len",
            )
        )
    if model.learned_positions and not model.image and t.seq_len > model.max_positions:
        issues.append(
            Issue(
                "train.seq_len",
                f"{t.seq_len:,} tokens, but {model.label} has learned positions for "
                f"{model.max_positions:,}; use at most that",
            )
        )
    sizes = plan.sizes()
    if t.framework == "megatron" and model.experts and p.tp > 1 and not p.sequence_parallel:
        issues.append(
            Issue(
                "parallel.sequence_parallel",
                "Megatron routes each rank's own tokens; set it to true, or parallel.tp to 1",
            )
        )
    issues += [Issue(r.field, r.message(sizes)) for r in SIZE_RULES if not r.holds(sizes)]
    return issues


def attention_missing(model: Model, word: str) -> str:
    """Why a model cannot run with an attention that its family has not."""
    which = f"{word} attention for {model.family}"
    return f"{which} is not planned" if model.buckets else f"transformers has no {which}"


def _eight_bit_issues(plan: Plan) -> list[Issue]:
    """What products in 8 bits need of the GPU and of the framework."""
    t = plan.train
    how = eight_bit(t.framework, t.precision)
    if not how:
        return []
    try:
        gpu = plan.accelerator
    except KeyError:  # an unknown preset, which is reported on its own
        return []
    blocks = f"{gpu.label} has no scales for each {how.block} values, which came with B200"
    refused = [
        (
            how.block > 0 and not gpu.any_layout_fp8,
            f"{blocks}; use fp8-mixed, or another cluster.gpu",
        ),
        (
            not how.block and not gpu.flops.get("fp8"),
            f"{gpu.label} has no products in fp8; use bf16-mixed, or another cluster.gpu",
        ),
        (
            how.primary and t.zero != 1,
            f"Megatron keeps {t.precision} with its distributed optimizer only; set train.zero to "
            "1, or use " + ("mxfp8" if how.block else "fp8-mixed"),
        ),
    ]
    return [Issue("train.precision", message) for broken, message in refused if broken]


def _flash_3_issues(plan: Plan) -> list[Issue]:
    """What FlashAttention 3 does not run on."""
    if plan.train.framework == "megatron":
        message = "Megatron runs Transformer Engine's attention; set it to flash"
    elif not plan.accelerator.architecture.startswith("Hopper"):
        message = "FlashAttention 3 runs on Hopper only; set it to flash, or take such a GPU"
    else:
        return []
    return [Issue("train.attention", message)]


def _adapter_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """What adapters are not known to run with."""
    t, p = plan.train, plan.parallel
    if t.adapter == "none":
        return []
    wide = t.adapter_dtype == "fp32"
    refused = [
        (
            t.framework == "megatron",
            "megatron's adapters are not planned; set train.framework to pytorch or fsdp2",
        ),
        (
            t.adapter != "lora" and t.framework != "pytorch",
            f"{t.adapter} is planned with pytorch only; set train.framework to it",
        ),
        (
            t.framework == "pytorch" and t.precision in ("bf16-mixed", "fp16-mixed"),
            f"adapters have no master copies, which {t.precision} means; use bf16-pure",
        ),
        (
            t.framework == "fsdp2" and t.precision == "bf16-pure" and wide,
            "FSDP2 wants one dtype for the weights of a layer; set train.adapter_dtype to base",
        ),
        (
            t.kernels == "compile",
            "adapters are not planned with compiled layers; set train.kernels to hf or liger",
        ),
        (
            t.offload_optimizer != "none",
            "adapters are not planned with optimizer offload; set train.offload_optimizer to none",
        ),
        (
            p.tp * p.pp * p.cp * p.ep > 1,
            "adapters are planned with data parallelism only; set parallel.tp, pp, cp and ep to 1",
        ),
        (
            model is not None and bool(model.experts) and t.adapter != "lora",
            "bitsandbytes leaves stacked experts as they are, which is not planned; set it to lora",
        ),
        (
            t.kernels == "liger" and t.adapter != "lora",
            f"{t.adapter} is not planned with Liger's kernels; set train.kernels to hf",
        ),
    ]
    issues = []
    if model is not None and model.experts and t.lora_targets == "all-linear":
        issues.append(
            Issue(
                "train.lora_targets",
                "PEFT adapts stacked experts as whole parameters then (target_parameters), which "
                "is not planned; use attention-all or attention",
            )
        )
    if model is not None and model.kv_rank and t.lora_targets == "attention":
        issues.append(
            Issue(
                "train.lora_targets",
                "latent attention has no projection of values alone; use attention-all",
            )
        )
    return issues + [Issue("train.adapter", message) for broken, message in refused if broken]


def _frozen_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """What frozen weights, and averages of the weights, are not known to run with."""
    t, p = plan.train, plan.parallel
    decodes = model is None or (
        FAMILIES[model.family].decoder
        and model.head == CAUSAL
        and model.tower is None
        and not model.stack
    )
    frozen = [
        (not decodes, "planned for decoders only; set it to none"),
        (t.adapter != "none", "adapters freeze the model's own weights; set it to none"),
        (
            t.framework not in ("pytorch", "fsdp2"),
            f"not planned with {t.framework}; set it to none, or train.framework to fsdp2",
        ),
        (
            p.tp * p.pp * p.cp * p.ep > 1,
            "planned with data parallelism only; set it to none, or tp, pp, cp and ep to 1",
        ),
        (
            t.kernels == "compile",
            "not planned with compiled layers; set it to none, or train.kernels to hf or liger",
        ),
        (
            t.offload_optimizer != "none",
            "not planned with optimizer offload; set it or train.offload_optimizer to none",
        ),
    ]
    ema = [
        (t.adapter != "none", "an average of adapters is not planned; set it to none"),
        (
            t.framework == "deepspeed",
            "an average of the weights is not planned with deepspeed; set it to none",
        ),
        (
            t.ema == AVERAGED and bool(eight_bit(t.framework, t.precision)),
            "a second model with weights in 8 bits is not planned; set it to fp32",
        ),
    ]
    tied = model is not None and model.traits.tied_embeddings
    rows = [
        (
            t.framework != "pytorch" or plan.cluster.gpus > 1,
            "planned with pytorch on one GPU; set it to dense",
        ),
        (tied, "the embedding is the head too, whose gradient is dense; set it to dense"),
        (not decodes, "planned for decoders only; set it to dense"),
        (
            t.precision not in ("bf16-pure", "fp32"),
            "planned in bf16-pure and fp32; set train.precision to one of them, or it to dense",
        ),
        (
            t.grad_accumulation > 1 or t.gradients == "kept",
            "planned for one micro-batch; set it to dense, or train.grad_accumulation to 1",
        ),
        (
            t.offload_optimizer != "none" or t.adapter != "none" or t.frozen != "none",
            "not planned with offload, adapters or frozen weights; set it to dense",
        ),
    ]
    issues = []
    if t.embedding_gradient != DENSE:
        issues += [Issue("train.embedding_gradient", text) for broken, text in rows if broken]
    if t.frozen != "none":
        issues += [Issue("train.frozen", message) for broken, message in frozen if broken]
    if t.ema != "none":
        issues += [Issue("train.ema", message) for broken, message in ema if broken]
    return issues


def beheaded(model: Model) -> bool:
    """Whether a class of a decoder is planned that has no language model's head."""
    return FAMILIES[model.family].decoder and model.head in (CLASSIFICATION, EMBEDDING)


def _alone_issues(plan: Plan, model: Model) -> list[Issue]:
    """What families that are known with data parallelism only are not known to run with."""
    if not FAMILIES[model.family].alone and not beheaded(model):
        return []
    issues = [
        Issue(f"parallel.{axis}", f"{model.family} is planned with data parallelism; set it to 1")
        for axis in ("tp", "pp", "cp")
        if getattr(plan.parallel, axis) > 1
    ]
    if plan.train.framework not in ("pytorch", "fsdp2"):
        message = f"{model.family} is not planned with it; set it to fsdp2 or pytorch"
        issues.append(Issue("train.framework", message))
    if plan.train.adapter != "none":
        message = f"adapters are not planned for {model.family}; set it to none"
        issues.append(Issue("train.adapter", message))
    if eight_bit(plan.train.framework, plan.train.precision):
        message = f"{model.family} is not planned with products in 8 bits; set it to bf16-mixed"
        issues.append(Issue("train.precision", message))
    if plan.train.frozen != NO_LAYER:
        message = f"{model.family} is planned with all its weights trained; set it to none"
        issues.append(Issue("train.frozen", message))
    for what in ("parameters", "activations") if model.tower else ():
        if getattr(plan.train, f"offload_{what}") != "none":
            message = f"that of {model.family} is not planned; set it to none"
            issues.append(Issue(f"train.offload_{what}", message))
    weights = plan.weight_dtype
    if model.tower and WEIGHT_DTYPES[weights].compute != weights:
        message = f"{model.family} is served in 16 or 32 bits, its tower with it; set it to bf16"
        issues.append(Issue("serve.weight_dtype", message))
    if FAMILIES[model.family].carries:
        if CHECKPOINTING[plan.train.checkpointing].recompute not in ("", LAYER):
            message = f"{model.family} is planned with whole layers; set it to full or none"
            issues.append(Issue("train.checkpointing", message))
        if plan.train.checkpoint_every > 1:
            message = (
                f"{model.family} is planned with every layer checkpointed or none; set it to 1"
            )
            issues.append(Issue("train.checkpoint_every", message))
        if "fp16" in plan.train.precision:
            message = f"{model.family} clamps fp16, which is not planned; set it to bf16-mixed"
            issues.append(Issue("train.precision", message))
        if weights == "fp16":
            message = f"transformers keeps wo of {model.family} in fp32 then; set it to bf16"
            issues.append(Issue("serve.weight_dtype", message))
    if plan.together.kind != "none":
        message = f"{model.family} is planned by itself only; set it to none"
        issues.append(Issue("together.kind", message))
    return issues


def _prompt_issues(plan: Plan, model: Model) -> list[Issue]:
    """What an encoder, or a vision tower, asks of a prompt."""
    s, image = plan.serve, model.tower.image if model.tower else None
    refused = []
    if image:
        many = f"{s.images:,} of {image.prompted:,} tokens each do not fit into a prompt of"
        refused.append((
            "serve.images",
            s.images * image.prompted > s.prompt_len,
            f"{many} {s.prompt_len:,}; use fewer, or a longer serve.prompt_len",
        ))  # fmt: skip
    if model.encoder_decoder:
        refused += [
            (
                "serve.prefill",
                PREFILLS[s.prefill].chunked,
                "an encoder reads prompts whole: every token sees every other; set it to whole",
            ),
            (
                "serve.shared_prefix",
                s.shared_prefix > 0,
                "what an encoder makes of a prefix depends on what follows it; set it to 0",
            ),
            (
                "serve.draft_tokens",
                s.draft_tokens > 0,
                "guessed tokens are not planned for encoder-decoders; set it to 0",
            ),
        ]
    return [Issue(field, message) for field, broken, message in refused if broken]


def _together_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """How many GPUs an engine beside the trainer can have."""
    t, gpus = plan.together, plan.cluster.gpus
    if t.kind == "none":
        return []
    ranks, reason = plan.engine_tp * plan.engine_pp, ""
    if gpus % ranks:
        reason = f"{gpus:,} GPUs do not divide by {ranks:,} for each engine"
    elif model is not None and model.heads % plan.engine_tp:
        reason = f"{model.heads:,} attention heads do not divide by {plan.engine_tp:,}"
    field = "serve.tp" if plan.serve.tp else "together.engine_tp"
    return [Issue(field, f"{reason}; use a divisor of them")] if reason else []


def _deepspeed_issues(plan: Plan) -> list[Issue]:
    """What DeepSpeed does not run, or is not known to run as it is planned here."""
    t, p = plan.train, plan.parallel
    if t.framework != "deepspeed":
        return []
    fitting = DEEPSPEED_OPTIMIZERS
    offloaded = t.offload_optimizer != "none"
    refused = [
        (
            f"parallel.{axis}",
            getattr(p, axis) > 1,
            (
                "DeepSpeed is planned with data parallelism only; set it to 1, or train.framework "
                f"to {'megatron' if axis == 'ep' else 'megatron or fsdp2'}"
            ),
        )
        for axis in ("tp", "pp", "cp", "ep")
    ]
    refused += [
        (
            "train.kernels",
            t.kernels not in ("hf", "liger"),
            f"{t.kernels} kernels are not planned with DeepSpeed; set it to hf or liger",
        ),
        (
            "train.adapter",
            t.adapter != "none",
            (
                "adapters are not planned with DeepSpeed; set it to none, or train.framework to "
                "pytorch or fsdp2"
            ),
        ),
        (
            "train.optimizer",
            t.optimizer not in fitting,
            (
                f"{t.optimizer} is not known to step DeepSpeed's flat partitions; set it to "
                f"{', '.join(fitting)}"
            ),
        ),
        (
            "train.optimizer",
            t.zero == 0 and t.optimizer != "adamw",
            (
                "DeepSpeed without ZeRO is planned with its FusedAdam alone; set it to adamw, or "
                "train.zero to 1, 2 or 3"
            ),
        ),
        (
            "train.optimizer",
            offloaded and t.optimizer not in ("adamw", "lion"),
            "DeepSpeed has CPU versions of Adam and Lion alone; set it to adamw or lion",
        ),
        (
            "train.offload_optimizer",
            offloaded and t.zero == 0,
            "DeepSpeed offloads under ZeRO 1, 2 and 3; set it to none, or train.zero to 1",
        ),
        (
            "train.offload_optimizer",
            t.offload_optimizer == "nvme" and t.zero < 3,
            "DeepSpeed has NVMe under ZeRO 3 alone; set it to cpu, or train.zero to 3",
        ),
    ]
    return [Issue(field, message) for field, broken, message in refused if broken]


def _prediction_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """What multi-token prediction is not known to run with."""
    t = plan.train
    if not t.mtp_layers:
        return []
    refused = [
        (
            t.framework != "megatron",
            "only Megatron trains such layers; set train.framework to megatron, or this to 0",
        ),
        (
            model is not None and FAMILIES[model.family].head is not FAMILIES["llama"].head,
            "it is planned for models with Llama's head; set it to 0",
        ),
        (
            t.cross_entropy == "chunked" or t.checkpointing == "selective-op",
            "it is not planned with a chunked loss or checkpointing by operation; set it to 0",
        ),
    ]
    return [Issue("train.mtp_layers", message) for broken, message in refused if broken]


def _replica_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """How the ranks of a replica that are not training's share the model and the GPUs."""
    s, gpus = plan.serve, plan.cluster.gpus
    issues = []

    def refuse(field: str, message: str) -> None:
        issues.append(Issue(f"serve.{field}", f"{message}, or 0 for as many as in training"))

    if model is not None and s.tp:
        heads = {"attention heads": model.heads, "heads of a layer's state": _state_heads(model)}
        for what, n in heads.items():
            if n % s.tp:
                refuse("tp", f"{n:,} {what} do not divide by {s.tp:,}; choose a divisor of {n:,}")
    if model is not None and s.pp > model.layers:
        refuse("pp", f"{s.pp:,} stages for {model.layers:,} layers; use at most one per layer")
    ranks = plan.serving_tp * plan.serving_pp
    if (s.tp or s.pp) and ranks > gpus:
        field = "tp" if s.tp else "pp"
        refuse(
            field, f"a replica has {ranks:,} ranks, tp x pp, but there are {gpus:,} GPUs; use fewer"
        )
    return issues


def _state_heads(model: Model) -> int:
    return int(model.sizes.get("SSM_HEADS", 0))


def _stored_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """A way to store weights that a config.json names and that is not planned."""
    said = model.quantization if model else None
    if plan.serve.weight_dtype != AS_PUBLISHED or said is None or said.word:
        return []
    why = f" ({'; '.join(said.notes)})" if said.notes else ""
    message = (
        f"config.json has its weights as {shown(said.method)}{why}, which is not planned; choose "
        "how they are stored: int4 or fp8, say, or bf16"
    )
    return [Issue("serve.weight_dtype", message)]


def _serving_issues(plan: Plan, model: Model | None) -> list[Issue]:
    """What a server cannot do."""
    s, issues = plan.serve, [*_replica_issues(plan, model), *_stored_issues(plan, model)]
    ranks = plan.serving_tp * plan.serving_pp
    if PREFILLS[s.prefill].elsewhere and plan.cluster.gpus < 2 * ranks:
        issues.append(
            Issue(
                "serve.prefill",
                f"prompts are read on another replica, but {plan.cluster.gpus:,} GPUs have one of "
                f"{ranks:,}; use {2 * ranks:,} GPUs, or set it to whole or chunked",
            )
        )
    if s.draft_tokens and s.draft_model != "none":
        draft = catalog.model(s.draft_model)
        heads = draft.heads
        if not FAMILIES[draft.family].decoder or draft.tower:
            issues.append(
                Issue("serve.draft_model", "it cannot be served; choose another, or none")
            )
        elif draft.recurrence:
            issues.append(
                Issue(
                    "serve.draft_model",
                    "a model that keeps states cannot take back its guesses here; choose another, "
                    "or none",
                )
            )
        elif heads % plan.serving_tp:
            issues.append(
                Issue(
                    "serve.draft_model",
                    f"its {heads:,} attention heads do not divide by tp {plan.serving_tp:,}; "
                    "choose another, or none",
                )
            )
    if model is not None and model.recurrence and s.offload_kv != "none":
        message = "states of sequences on the host are not planned; set it to none"
        issues.append(Issue("serve.offload_kv", message))
    if model is not None and model.recurrence and s.state_dtype != "auto":
        manager = KV_CACHES[s.kv_cache]
        if manager.state not in ("", s.state_dtype):
            message = (
                f"there states are {manager.state}; set it to auto, or serve.kv_cache to paged"
            )
            issues.append(Issue("serve.state_dtype", message))
    try:
        node = plan.node
    except KeyError:  # an unknown preset, which is reported on its own
        return issues
    if not node.dram_bytes:
        one = f"{node.label} has one memory for CPU and GPU, so there is nowhere to offload to"
        if s.offload_weights:
            issues.append(Issue("serve.offload_weights", f"{one}; set it to 0"))
        if s.offload_kv != "none":
            issues.append(Issue("serve.offload_kv", f"{one}; set it to none"))
    return issues


def _parallel_issues(plan: Plan) -> list[Issue]:
    """Axes of parallelism that do not go together."""
    p, t = plan.parallel, plan.train
    issues = []
    if p.shard_group and (t.framework != "fsdp2" or t.zero < 2 or p.shard_group == 1):
        issues.append(
            Issue(
                "parallel.shard_group",
                "groups of two or more ranks are FSDP2's, with ZeRO 2 or 3; set it to 0, or "
                "train.framework to fsdp2 and train.zero to 3",
            )
        )
    if p.virtual_stages > 1 and p.schedule != "1f1b":
        issues.append(
            Issue(
                "parallel.virtual_stages",
                "only the 1f1b schedule has them; set it to 1, or parallel.schedule to 1f1b",
            )
        )
    if p.cp > 1 and t.attention == "eager":
        issues.append(
            Issue("train.attention", "context parallelism needs sdpa or flash; set it to flash")
        )
    return issues


def _offload_issues(plan: Plan) -> list[Issue]:
    """Which framework keeps what outside the GPU."""
    t = plan.train
    parameters, activations = t.offload_parameters != "none", t.offload_activations != "none"
    sharded = (t.framework == "fsdp2" and t.zero >= 2) or (
        t.framework == "deepspeed" and t.zero == 3
    )
    refused = [
        (
            "train.offload_parameters",
            parameters and not sharded,
            (
                "sharded parameters alone can live outside the GPU; set it to none, or "
                "train.framework to fsdp2 or deepspeed with train.zero 3"
            ),
        ),
        (
            "train.offload_parameters",
            t.offload_parameters == "nvme" and t.framework != "deepspeed",
            "DeepSpeed alone has parameters on NVMe; set it to cpu or none",
        ),
        (
            "train.offload_parameters",
            parameters and t.offload_optimizer == "none",
            (
                "parameters are offloaded beside the optimizer; set it to none, or "
                "train.offload_optimizer to cpu"
            ),
        ),
        (
            "train.offload_parameters",
            parameters and t.framework == "fsdp2" and t.offload_optimizer == "nvme",
            (
                "FSDP2 keeps parameters, gradients and states in one place, DRAM; set it to none, "
                "or train.offload_optimizer to cpu"
            ),
        ),
        (
            "train.offload_parameters",
            parameters and t.adapter != "none",
            "adapters are not planned with offloaded parameters; set it to none",
        ),
        (
            "train.ema",
            parameters and t.ema != "none",
            "an average of offloaded parameters is not planned; set it to none",
        ),
        (
            "train.offload_activations",
            activations and t.framework == "megatron",
            "Megatron's own activation offload is not planned; set it to none",
        ),
        (
            "train.offload_activations",
            activations and t.kernels == "compile",
            "a compiled layer keeps its own activations; set it to none, or train.kernels to hf",
        ),
    ]
    return [Issue(field, message) for field, broken, message in refused if broken]


def _host_issues(plan: Plan) -> list[Issue]:
    """What the host must have for the plan to run at all."""
    try:
        node = plan.node
    except KeyError:  # an unknown preset, which is reported on its own
        return []
    issues = []
    gpus = plan.cluster.gpus
    if gpus > plan.gpus_per_domain and not node.network_bandwidth:
        issues.append(
            Issue(
                "cluster.gpus",
                f"{gpus:,} GPUs need several nodes of {plan.gpus_per_domain:,}, but "
                f"{node.label} has no network; use at most one node's, or another cluster.node",
            )
        )
    for name in ("optimizer", "parameters", "activations"):
        field = f"train.offload_{name}"
        word = getattr(plan.train, f"offload_{name}")
        if word != "none" and not node.dram_bytes:
            issues.append(
                Issue(
                    field,
                    f"{node.label} has one memory for CPU and GPU, so there is nowhere to offload "
                    "to; set it to none",
                )
            )
        if word == "nvme" and not (node.nvme_bytes and node.nvme_read_bandwidth):
            issues.append(Issue(field, f"{node.label} has no NVMe drives; use cpu or none"))
    return issues


def _stream_issues(plan: Plan) -> list[Issue]:
    """Lengths of requests that contradict each other."""
    s = plan.serve
    issues = []
    if s.shared_prefix >= s.prompt_len:
        issues.append(
            Issue(
                "serve.shared_prefix",
                f"{s.shared_prefix:,} tokens, but a prompt has {s.prompt_len:,}; use fewer than "
                "serve.prompt_len",
            )
        )
    if s.max_seq_len and s.max_seq_len < s.prompt_len + s.output_len:
        issues.append(
            Issue(
                "serve.max_seq_len",
                f"{s.max_seq_len:,} tokens for a prompt of {s.prompt_len:,} and an output of "
                f"{s.output_len:,}; use at least {s.prompt_len + s.output_len:,}, or 0",
            )
        )
    return issues
