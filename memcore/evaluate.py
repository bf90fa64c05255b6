"""Evaluate: one Plan in, one Report out."""

from __future__ import annotations

from memcore.errors import PlanError, shown
from memcore.frameworks import FRAMEWORKS
from memcore.hardware import constants
from memcore.hardware.accelerator import FP32_PASSES, Accelerator
from memcore.hardware.constants import MOST_GPUS
from memcore.models.counts import active_parameters, parameters
from memcore.models.families import FAMILIES
from memcore.models.families.qwen_tower import SIDE
from memcore.models.model import Model
from memcore.plan.model_rules import attention_missing, has_attention
from memcore.plan.plan import Plan, field_of
from memcore.report import Inference, Report, Serve, Time
from memcore.serving.forward import forward_notes, inference, infers
from memcore.serving.notes import serving_notes
from memcore.serving.serve import servable, served_by
from memcore.serving.server import Server
from memcore.tape.dims import CP, KV, TP, VOCAB, B, S, ceil_div
from memcore.tape.structure import EMBEDDING
from memcore.timing.roofline import ALIGNED
from memcore.together.together import together
from memcore.training.executions import peak_dtype
from memcore.training.run import run_of
from memcore.training.steps import keeps_outputs, unfused, unquantized_in_fp32
from memcore.training.training import Training, not_planned, predicting
from memcore.units import bytes_text, rate_text
from memcore.words.precision import PRECISIONS
from memcore.words.training import (
    ADAPTERS,
    ATTENTION,
    AUTO,
    AVERAGED,
    CHECKPOINTING,
    CORE_ATTN,
    CUDNN,
    INT8,
    KEEPS_LIKE,
    MODULES,
    NO_LAYER,
    SPARSE,
)


def evaluate(
    plan: Plan,
    training: Training | None = None,
    server: Server | None = None,
    served: Serve | None = None,
) -> Report:
    """Everything Memplan knows about a plan. Pure; never raises for a valid plan.

    training, server, served: its own, where they are there already; a server, and what it is said
    of, may also be that of a plan which trains otherwise, at the same price of a GPU.
    """
    training, count_of = training or Training.of(plan), parameters(plan.architecture)
    time = training.time() if training else None
    server = server or (Server.of(plan) if servable(plan.architecture) else None)
    served = served or (served_by(server) if server else None)
    forward = inference(plan) if infers(plan.architecture) else None
    return Report(
        plan=plan.document(),
        parameters=count_of,
        trainable_parameters=training.trainable_parameters if training else count_of,
        active_parameters=active_parameters(plan.architecture),
        memory=training.memory if training else None,
        time=time,
        run=run_of(plan, time) if time else None,
        serve=served,
        inference=forward,
        together=together(plan, training.step, training.amounts, training.memory)
        if training
        else None,
        ledger=training.counted.ledger if training else (),
        notes=tuple(_notes(plan, training, served, server, forward)),
        remarks=_remarks(plan, training, time) if training and time else {},
    )


WIDER = "bf16-mixed"  # what precisions in 8 bits are held against
CROPPED = 224  # pixels of a side (preprocessor_config.json of facebook/dinov2-base: crop_size)
HARDLY = 0.01  # of the allocated peak: a word that is chosen to save memory saves more


def _remarks(plan: Plan, training: Training, time: Time) -> dict[str, str]:
    """What a word does in this plan that is not what people choose it for, by the word's field:
    found by evaluating the plan without it, not by a rule of what words do."""
    t, found = plan.train, {}
    recompute = CHECKPOINTING[t.checkpointing].recompute
    if recompute == MODULES and (without := _without(plan, "train.checkpointing", "none")):
        saved = without.memory.allocated_bytes - training.memory.allocated_bytes
        added = time.step_seconds / without.time().step_seconds - 1
        if saved < HARDLY * without.memory.allocated_bytes:
            why = ""
            if t.recompute_modules == CORE_ATTN and not ATTENTION[t.attention].scores:
                label = ATTENTION[t.attention].label
                why = f" {label} keeps no scores that are quadratic in the sequence."
            found["train.checkpointing"] = (
                f"This saves {bytes_text(max(0, saved))} of the allocated peak of "
                f"{bytes_text(without.memory.allocated_bytes)}, and makes a step "
                f"{_longer(added)}.{why}"
            )
    if unfused(plan):
        found["train.attention"] = (
            "In fp32 SDPA has no fused kernel for heads that share keys and values: it keeps the "
            "scores, as eager attention does. bf16 autocast has one."
        )
    elif t.attention == KEEPS_LIKE[CUDNN] and has_attention(plan, CUDNN):
        found["train.attention"] = (
            f"PyTorch 2.11 and newer run {ATTENTION[CUDNN].label} here, which is about twice as "
            "fast: choose it if yours is one."
        )
    eight_bit = training.step.copies.eight_bit
    if eight_bit and (without := _without(plan, "train.precision", WIDER)):
        added_bytes = training.memory.allocated_bytes - without.memory.allocated_bytes
        if added_bytes > 0:
            now, then = training.memory.consumers, without.memory.consumers
            copies = now["parameters"] - then["parameters"]
            why = (
                f": {bytes_text(copies)} are copies of the layers' matrices in "
                f"{eight_bit.bits} bits, which are "
                "cached beside the 16-bit ones"
                if copies > 0
                else ""
            )
            found["train.precision"] = (
                f"This needs {bytes_text(added_bytes)} more of the allocated peak than "
                f"{PRECISIONS[WIDER].label}{why}. A step is "
                f"{_longer(time.step_seconds / without.time().step_seconds - 1)}."
            )
    return found


def _longer(share: float) -> str:
    return f"{abs(share):.1%} {'longer' if share > 0 else 'shorter'}"


def _without(plan: Plan, path: str, word: str) -> Training | None:
    """Training with another word; None where the rules forbid it."""
    try:
        return Training.of(plan.changed(path, word), rows=False)
    except PlanError:
        return None


def _notes(
    plan: Plan,
    training: Training | None,
    served: Serve | None,
    server: Server | None,
    forward: Inference | None,
) -> list[str]:
    """What a reader of the report should know besides its numbers."""
    notes = [*_of_rollouts(plan), *_booking_notes(plan, training is not None)]
    image = plan.architecture.image
    if image and image.free and plan.train.image_size == SIDE and image.height != CROPPED:
        notes.append(
            f"Images are those of config.json, {image.text}; train.image_size plans others, as the "
            f"model takes them: DINOv2's processors make {CROPPED} x {CROPPED} of every image."
        )
    if plan.accelerator.caveat:
        notes.append(f"{plan.accelerator.label} is {plan.accelerator.caveat}.")
    if training is None:
        notes.append(f"Training is not computed: {not_planned(plan)}")
    else:
        notes += _trained_notes(plan, training.trainable_parameters)
    model = plan.architecture
    notes += model.notes
    if plan.train.seq_len > (model.heard or model.max_positions):
        notes.append(
            f"{plan.train.seq_len:,} tokens are more than the {model.max_positions:,} that "
            f"{model.label} was made for."
        )
    if training:
        notes += _model_notes(plan, training)
        notes += lacking(plan.accelerator, "Training", peak_dtype(training.step))
    if served is not None:
        words = plan.weights
        notes += lacking(plan.accelerator, "Serving", words.product or words.compute)
        return notes + serving_notes(plan, served, server)
    if forward is not None:
        notes += lacking(plan.accelerator, "Serving", plan.weights.compute)
        return [*notes, *forward_notes(plan, forward)]
    if model.traced:
        notes.append(
            f"Serving is not computed: the file of {model.label} has no forward: trace it anew."
        )
        return notes
    notes.append(
        f"Serving is not computed: {model.label} is {_what(model)}, which generates nothing and "
        "has no KV cache, and its forward alone is not planned."
    )
    return notes


def _of_rollouts(plan: Plan) -> list[str]:
    """That an update is planned on less than the rollouts have."""
    made, trained = plan.serve.prompt_len + plan.serve.output_len, plan.train.seq_len
    if plan.together.kind not in ("grpo", "ppo") or made <= trained:
        return []
    said = (
        f"A rollout has {made:,} tokens, and the update is planned on {trained:,} of them "
        f"(train.seq_len). Set train.seq_len to {made:,} if it trains on all."
    )
    return [said]


def assumed_box(plan: Plan) -> list[str]:
    """In which host the GPUs are assumed to stand, where their usual one is a box of any size."""
    gpus, here, node = plan.cluster.gpus, plan.gpus_per_node, plan.node
    if not node.up_to or plan.cluster.node is not None or gpus == 1:
        return []
    through = "" if plan.accelerator.peer_access else " through the host's memory (no P2P)"
    boxes = "one box" if gpus <= here else f"{-(-gpus // here):,} boxes of {here:,}"
    said = (
        f"The GPUs are assumed to stand in {boxes} (cluster.gpus_per_node), joined by PCIe"
        f"{through}; a desktop's is assumed: {node.lanes(min(gpus, here))} lanes of PCIe for each, "
        f"and two channels of memory, {rate_text(node.dram_bandwidth, 'B/s')}. Set cluster.node to "
        "another host."
    )
    return [said]


def _booking_notes(plan: Plan, trained: bool) -> list[str]:
    """What nobody can book, or nobody has measured, of the GPUs as they are counted."""
    gpus, here, node, notes = plan.cluster.gpus, plan.gpus_per_node, plan.node, []
    if plan.gpus_in_node > node.gpus:
        notes.append(
            f"{plan.gpus_in_node:,} GPUs in a node are more than the {node.gpus:,} of "
            f"{node.label}: they are planned with its DRAM, PCIe and network all the same. Set "
            "cluster.gpus_per_node to 0, or cluster.node to a host that has as many."
        )
    nodes, rest = divmod(gpus, here)
    notes += assumed_box(plan)
    if rest and (nodes or here % rest) and not (node.up_to and not nodes):
        filled = f"{nodes:,} of them and {rest:,} of another" if nodes else f"{rest:,} of one"
        notes.append(
            f"{gpus:,} GPUs fill no whole number of nodes of {here:,}, but {filled}: "
            f"{here - rest:,} would stand idle. {(nodes + 1) * here:,} fill {nodes + 1:,}."
        )
    most = int(MOST_GPUS.middle)
    if trained and gpus > most:
        notes.append(
            f"{gpus:,} GPUs are more than the {most:,} of the largest step that Memplan's times "
            "were held against: what they wait for each other is extrapolated."
        )
    return notes


def lacking(gpu: Accelerator, what: str, dtype: str) -> list[str]:
    """What products run as where the GPU has no units for their dtype."""
    runs = gpu.runs_as(dtype)
    if runs == dtype:
        return []
    rate = f"{rate_text(gpu.peak_flops(dtype), 'FLOP/s')} at most"
    start = f"{what}: {gpu.label} has no units for {dtype}"
    if dtype == "fp32":
        one = f"JAX's default is one, with the precision of {runs}"
        return [f"{start}: each product is {FP32_PASSES} of {runs}, {rate}. {one}."]
    if dtype == "bf16" and runs == "fp32":
        refused = ", and vLLM refuses it" if what == "Serving" else ""
        note = f"{start}{refused}: products run in fp32, {rate}."
        if fp16 := gpu.flops.get("fp16"):
            note += f" fp16 reaches {rate_text(fp16, 'FLOP/s')}"
            note += (
                ": a step on a T4 took 4.3 times as long in bf16." if what == "Training" else "."
            )
        return [note]
    return [f"{start}: values are widened and products run in {runs}, {rate}."]


def _what(model: Model) -> str:
    """What a model that does not generate is."""
    if FAMILIES[model.family].decoder:
        return "an embedding model" if model.head == EMBEDDING else "a classifier"
    return "an encoder"


def _trained_notes(plan: Plan, trainable: int) -> list[str]:
    """What words of the plan change about what is trained, and what of it no number says."""
    t, notes = plan.train, []
    said = plan.architecture.quantization
    if said and not said.wide:
        notes.append(
            f"config.json has its weights as {shown(said.method)[1:-1]}: training is planned with "
            f"them widened to the training's own precision ({t.precision}) before it begins."
        )
    if plan.megatron_deepspeed:
        notes.append(
            "Megatron's layers with eager attention and ZeRO 1 are planned as Megatron-DeepSpeed "
            "runs them: with DeepSpeed's gradients and pipelines, in which ranks wait for every "
            "sum and nothing is sent beside backward."
        )
    if t.adapter != "none":
        notes.append(
            f"{trainable:,} parameters of adapters are trained, and none of the model's own."
        )
        if t.unquantized_dtype == AUTO and unquantized_in_fp32(plan):
            notes.append(
                "What is not quantized is taken to be fp32, with the residual stream and the "
                "logits, as PEFT's prepare_model_for_kbit_training leaves it "
                "(train.unquantized_dtype)."
            )
        if ADAPTERS[t.adapter].quantized == INT8:
            notes.append(
                "Of 8-bit products the columns of an input beyond the threshold, which run in 16 "
                "bits, are not counted: how many there are depends on the values. No measured step "
                "was held against their time."
            )
        if t.outputs == AUTO and keeps_outputs(plan):
            notes.append(
                "The training loop is taken to keep the model's outputs through backward, as the "
                "loops of PEFT's examples do; transformers' Trainer frees them (train.outputs)."
            )
    elif t.frozen != NO_LAYER:
        notes.append(f"{trainable:,} parameters are trained; the others are frozen.")
    if plan.run.target_cost and not plan.run.price_per_gpu_hour:
        notes.append("run.target_cost limits nothing: the plan has no run.price_per_gpu_hour.")
    if t.ema == AVERAGED:
        notes.append("Updating the second model is not part of the step's time.")
    if t.reference != "none":
        notes.append(
            "Each micro-batch runs forward through the frozen reference too, which is in the "
            "step's time; MFU counts none of its FLOPs."
        )
    if t.embedding_gradient == SPARSE:
        notes.append("The optimizer's time is that of updating every row of the embedding.")
    if plan.architecture.recommends and t.table_cache < 1 and not t.table_hits:
        notes.append(
            f"{plan.table_hits:.0%} of the rows that a step reads are taken to be on the GPU, as "
            "Zipf's law has it; train.table_hits says how many are."
        )
    if t.mtp_layers:
        notes.append(
            f"Multi-token prediction has {predicting(plan):,} parameters besides the model's "
            "own; MFU counts none of its FLOPs."
        )
    return notes


def _model_notes(plan: Plan, training: Training) -> list[str]:
    """What the model's architecture makes of this plan's training."""
    model, notes = plan.architecture, []
    usual = field_of("train.attention").default
    if usual not in FAMILIES[model.family].attentions:
        why = attention_missing(model, usual)
        notes.append(f"{why[0].upper()}{why[1:]}; {plan.train.attention} attention is taken.")
    if note := FAMILIES[model.family].note:
        notes.append(note)
    if model.recurrence and not model.recurrence.scans:
        notes.append(
            "Short convolutions run the kernel of causal-conv1d, as transformers does where it is "
            "installed; its own code without it keeps more bytes."
        )
    elif model.recurrence:
        notes.append(
            f"Layers with a state run the kernels of {model.recurrence.package} and causal-conv1d, "
            "as transformers does where both are installed; its own code without them keeps "
            "several times as many bytes. What share of the peak their scans reach is assumed: no "
            "measured step was held against it."
        )
    if model.experts and (eight_bit := training.step.copies.eight_bit):
        notes.append(
            "Rows of an expert that are padded to a multiple of "
            f"{eight_bit.multiple} for products in few bits are not counted."
        )
    if padded := _padded_experts(plan):
        notes.append(
            "FSDP2 cuts a stack of experts along its first dimension: "
            f"{model.experts:,} experts over {plan.dp:,} ranks are padded to "
            f"{padded:,}. Fewer ranks that share parameters, or fully_shard's "
            "shard_placement_fn, avoid it."
        )
    if cache := _cache_bytes(plan, training):
        notes.append(
            "The model's cache is off, as checkpointing and the Trainer of transformers 5 have it. "
            "A loop that leaves config.use_cache on keeps copies of keys and values beside their "
            f"joint projection: {bytes_text(cache)} more."
        )
    if odd := _odd_vocabulary(training):
        notes.append(
            f"A vocabulary of {odd:,} is no multiple of {ALIGNED}, so that the head's products "
            f"take {constants.MISALIGNED.middle:g} times as long: resize_token_embeddings with "
            "pad_to_multiple_of=64 avoids it."
        )
    if model.encoder_decoder:
        notes.append(
            "Tokens of a step, of a second and of the whole run are those that the encoder reads."
        )
    return notes


# Families with one projection for queries, keys and values that attention reads as it is: a copy of
# keys and values, as a cache makes it, comes on top. Where queries are rotated it takes its place.
JOINT = ("gpt2", "gpt_bigcode", "bloom", "mpt")


def _cache_bytes(plan: Plan, training: Training) -> int:
    """What transformers' cache would keep in training besides, if it was on."""
    t, model = plan.train, plan.architecture
    runs_again = CHECKPOINTING[t.checkpointing].recompute or FRAMEWORKS[t.framework].facts.own
    if model.family not in JOINT or model.head == EMBEDDING or runs_again:
        return 0
    dtype = "bf16" if training.step.copies.autocast else training.step.copies.compute
    shape = (2, model.layers, B, S / CP, KV / TP)
    return int(training.amounts.bytes(shape, dtype))


def _odd_vocabulary(training: Training) -> int:
    """Tokens of the vocabulary that a rank's head has, if it makes the products longer."""
    into = VOCAB / TP
    every = (cost.flops for cost in training.step.blocks.head.work)
    rows = int(training.amounts.elements((into,)))
    multiplied = any(shape[-1] is into for flops in every for _, shape in flops)
    narrow = training.step.copies.autocast or training.step.copies.compute != "fp32"
    return rows if multiplied and narrow and rows % ALIGNED else 0


def _padded_experts(plan: Plan) -> int:
    """How many experts a stack is padded to where FSDP2 shards it, or 0 where it is not padded."""
    experts, t = plan.architecture.experts, plan.train
    framework = FRAMEWORKS[t.framework]
    if not experts or not framework.stacks or t.zero < framework.facts.shards:
        return 0
    holders = plan.dp // plan.parallel.ep  # the ranks that have the same experts
    padded = ceil_div(experts // plan.parallel.ep, holders) * plan.dp
    return padded if padded > experts else 0
