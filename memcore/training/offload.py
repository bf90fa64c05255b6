"""Offload: what rests in host DRAM and on NVMe, per node, and what crosses PCIe, DRAM and NVMe.

DeepSpeed as 0.19.2 allocates it (runtime/zero/stage_1_and_2.py, stage3.py and
runtime/swap_tensor). FSDP2's parameters as CPUOffloadPolicy keeps them: with their gradients and
states. An optimizer on the host elsewhere as ZeRO-Offload describes it. Activations as
torch.autograd.graph.save_on_cpu and the checkpoints that DeepSpeed and torchtune put on the host:
what layers leave for their backward rests in pinned memory. The loader as torch.utils.data has it.

Every GPU of a node is counted as if it were on the pipeline stage that needs the most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from memcore.cache import cached
from memcore.hardware import constants
from memcore.models.traced.tapes import inputs_of
from memcore.plan.plan import Plan
from memcore.quantity.reading import PLAIN, Read
from memcore.step.blend import Blend
from memcore.step.states import DEEPSPEED, MANAGED
from memcore.step.step import Alive, Step, kept_of_layers, optimizer_states
from memcore.tape.dims import (
    GROUP,
    HOSTED,
    LARGEST,
    LOADED,
    PARAMETER_BUFFER,
    ROUNDED,
    STATE,
    SUBGROUP,
    SWAPPED,
    B,
    Factor,
    Number,
    S,
    Shape,
    flat,
    of_stack,
    positive,
)
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts, Group, Template
from memcore.timing.communication import (
    BATCH_BACKWARD,
    LAST_BACKWARD,
    NOTHING,
    ONE_FORWARD,
    Beside,
    Cover,
    Move,
    copied,
)

HOST = "ZeRO-Offload (Ren et al. 2021): the states and their fp32 master live on the host"
CPU_POLICY = "torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=True)"
SAVED_ON_CPU = "torch.autograd.graph.save_on_cpu(pin_memory=True)"
LOADER = "torch.utils.data.DataLoader: prefetch_factor batches for each worker"
BATCH = ("input_ids", "attention_mask", "labels")  # of text


@dataclass(frozen=True, slots=True)
class Resting:
    """A row of another tier: so many of it per node."""

    template: Template
    times: Number
    tier: str


def resting(plan: Plan, step: Step | Blend) -> list[Resting]:
    """Every row in host DRAM and on NVMe."""
    if isinstance(step, Blend):
        every = zip(*(resting(plan, one) for one in step.points), strict=True)
        return [replace(r[0], times=step.mixed([one.times for one in r])) for r in every]
    return [
        *_states(plan, step),
        *_parameters(plan, step),
        *_tables(plan, step),
        *_pinned(plan, step),
        *_activations(plan, step),
        *_loader(plan),
    ]


def _rows(
    plan: Plan,
    alive: Iterable[tuple[Group, int]],
    tier: str,
    consumer: str,
    source: str,
    suffix: str = "",
    why: str = "",
    certainty: str = "",
    dtype: str = "",
    lifetime: str = "always",
) -> list[Resting]:
    """Rows that a GPU would have, in another tier, for every GPU of a node."""
    each = plan.gpus_in_node
    return [
        Resting(template, times * copies * each, tier)
        for group, times in alive
        for template, copies in _moved(
            group, consumer, source, suffix, why, certainty, dtype, lifetime
        )
    ]


@cached
def _moved(
    group: Group, consumer: str, source: str, suffix: str, why: str, certainty: str, dtype: str,
    lifetime: str,
) -> tuple[tuple[Template, int], ...]:  # fmt: skip
    """The rows of a group as another tier has them, and how many of each."""
    return tuple(
        (
            Template(
                r.name + suffix, consumer, r.shape, dtype or r.dtype, lifetime, why or r.why,
                source, certainty or r.certainty,
            ),
            r.copies,
        )
        for r in group.rows
    )  # fmt: skip


def _buffer(
    plan: Plan, name: str, size: Factor, dtype: str, why: str, consumer: str = "workspace",
    times: int = 1, tier: str = "dram",
) -> Resting:  # fmt: skip
    """One flat buffer of every GPU's process."""
    template = Template(name, consumer, (size,), dtype, "always", why, DEEPSPEED)
    return Resting(template, times * plan.gpus_in_node, tier)


def _states(plan: Plan, step: Step) -> list[Resting]:
    if step.offload == "none":
        return []
    if step.flat:
        return _deepspeed_states(plan, step)
    place = "nvme" if step.offload == "nvme" else "dram"
    states = "optimizer_states"
    rows = _rows(plan, optimizer_states(step), place, states, HOST)
    hosted = step.offload_parameters != "none"
    if not step.copies.master and step.copies.resident == "fp32" and not hosted:
        why = "fp32 copy that the host updates"
        rows += _rows(plan, step.every("updated"), place, states, HOST, ".master", why)
    reduced, suffix = step.every("updated"), ".grad (pinned)"
    dtype = step.copies.reduced
    if hosted:
        why = "reduced gradients go where the parameters are"
        return rows + _rows(plan, reduced, "dram", "gradients", CPU_POLICY, suffix, why, "", dtype)
    why = "gradients staged for the host's step"
    return rows + _rows(plan, reduced, "dram", states, HOST, suffix, why, "assumed", dtype)


def _deepspeed_states(plan: Plan, step: Step) -> list[Resting]:
    """Stages 1 and 2 keep everything in DRAM, gradients in a 16-bit copy each while they
    accumulate. Stage 3 keeps 16-bit gradients besides; on NVMe, its fp32 states and gradients are
    swapped through buffers as large as a sub-group."""
    t, half = plan.train, step.copies.compute
    states, part = "optimizer_states", flat((GROUP,), STATE)
    place = "nvme" if step.offload == "nvme" else "dram"
    rows = _rows(plan, optimizer_states(step), place, states, DEEPSPEED)
    why = "what the host's step reads"
    rows.append(_buffer(plan, "gradients (fp32)", part, "fp32", why, "gradients", 1, place))
    if step.zero == 3:
        why = "grad_partitions_flat_buffer (pinned)"
        rows.append(_buffer(plan, "gradients", part, half, why, "gradients"))
        if place == "nvme":
            why = "what states and gradients are swapped through (pinned)"
            n = t.offload_optimizer_buffers
            rows.append(_buffer(plan, "swap buffers of the optimizer", SUBGROUP, "fp32", why,
                                times=n))  # fmt: skip
        return rows
    why = "updated weights on their way to the GPU (pinned)"
    rows.append(_buffer(plan, "weights, 16 bit", part, half, why))
    why = "temp_grad_buffer_for_cpu_offload (pinned)"
    rows.append(_buffer(plan, "gradient staging", LARGEST, half, why))
    if t.grad_accumulation > 1:
        why = "accumulated_grads_in_cpu: gradients summed up so far (pinned)"
        rows.append(_buffer(plan, "accumulated gradients", part, half, why, "gradients"))
    return rows


def _parameters(plan: Plan, step: Step) -> list[Resting]:
    if step.offload_parameters == "none":
        return []
    name, frozen = "parameters", step.every("reference") if step.reference else []
    if not step.flat:
        alive = [*step.every("movable"), *frozen]
        return _rows(plan, alive, "dram", name, CPU_POLICY, " (pinned)")
    place = "nvme" if step.offload_parameters == "nvme" else "dram"
    return [*_rows(plan, frozen, place, name, DEEPSPEED), *_flat_parameters(plan, step)]


def _tables(plan: Plan, step: Step) -> list[Resting]:
    """Tables of which the GPUs cache rows, in unified memory."""
    return [
        Resting(row, times * row.copies * plan.gpus_in_node, "dram")
        for group, times in step.every("hosted")
        for row in group.rows
    ]


def table_moves(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """Rows that a step reads and the GPU has not cached, and as many that make room for them."""
    missed = step.every("missed")
    if not any(group.rows for group, _ in missed):
        return []
    n = amounts.real(amounts.alive(missed))
    names = ("rows from the host", "rows to the host")
    return [copy(name, "pcie", {MISSED: n}, 1, NOTHING, "", beside) for name in names]


def _flat_parameters(plan: Plan, step: Step) -> list[Resting]:
    name, half, t = "parameters", step.copies.compute, plan.train
    why = "this rank's part of the weights (pinned)"
    if step.offload_parameters == "cpu":
        return [_buffer(plan, "weights", flat((GROUP,), STATE), half, why, name)]
    why = "weights that offload_param keeps in DRAM: max_in_cpu (pinned)"
    swap = "what weights are swapped through: buffer_count x buffer_size (pinned)"
    return [
        _buffer(plan, "weights", HOSTED, half, why, name),
        _buffer(plan, "weights", SWAPPED, half, "this rank's other weights", name, tier="nvme"),
        _buffer(plan, "swap buffers of the weights", PARAMETER_BUFFER, half, swap,
                times=t.offload_param_buffers),
    ]  # fmt: skip


def _pinned(plan: Plan, step: Step) -> list[Resting]:
    """What DeepSpeed's page-locked buffers take beyond what lies in them."""
    if not step.flat or {step.offload, step.offload_parameters} == {"none"}:
        return []
    rounding = "PyTorch makes each pinned buffer a power of two"
    freed = "pinned blocks that weights were loaded into, which PyTorch keeps (pin_memory)"
    return [
        _buffer(plan, "pinned buffers, rounded up", ROUNDED, "int8", rounding),
        _buffer(plan, "weights as they were loaded", LOADED, "int8", freed),
    ]


def _activations(plan: Plan, step: Step) -> list[Resting]:
    """What layers leave for their backward, of every forward that waits for it."""
    if step.offload_activations == "none":
        return []
    lifetime = "its forward to its backward"
    left = [(group, times * (1 + step.waiting)) for group, times in kept_of_layers(step)]
    return _rows(plan, left, "dram", "activations", SAVED_ON_CPU, " (pinned)", lifetime=lifetime)


def batches_ahead(plan: Plan) -> int:
    """Batches that a loader holds: one at least, prefetch_factor of each worker's."""
    t = plan.train
    return max(1, t.loader_workers * t.loader_prefetch)


def _loader(plan: Plan) -> list[Resting]:
    batches = batches_ahead(plan) * plan.gpus_in_node
    found = _fetched(tuple(_batch(plan)), plan.train.loader_pin_memory)
    return [Resting(template, batches, "dram") for template in found]


@cached
def _fetched(batch: tuple[tuple[str, Shape, str], ...], pinned: bool) -> list[Template]:
    why = "batches fetched ahead" + (", copied to pinned memory" if pinned else "")
    return [
        Template(f"batch.{name}", "workspace", shape, dtype, "fetched to used", why, LOADER)
        for name, shape, dtype in batch
    ]


def _batch(plan: Plan) -> list[tuple[str, Shape, str]]:
    """What one GPU reads in a step: name, shape and dtype, as Hugging Face's collators make it, or
    as a trace was given it."""
    model = plan.architecture
    if model.traced:
        return inputs_of(model.traced)
    text: list[tuple[str, Shape, str]] = [(name, (B, S), "int64") for name in BATCH]
    if model.stack_before == "encoder":  # which reads all of it but the labels
        read = of_stack("encoder", S)
        return [(name, (B, S if name == "labels" else read), "int64") for name in BATCH]
    image = model.image or (model.tower.image if model.tower else None)
    if not image:
        return text
    pixels = (image.channels, image.height, image.width)
    if model.image:  # it reads nothing else
        return [("pixel_values", (B, *pixels), "fp32"), ("labels", (B,), "int64")]
    return [*text, ("pixel_values", (B, plan.train.images, *pixels), "fp32")]


HOST_STEP = Cover("the host's optimizer step")
UNIFIED = "states in unified memory"
MISSED = "rows that are not cached"


def paged(plan: Plan, step: Step) -> list[Resting]:
    """Rows in host DRAM of states in unified memory that the GPUs have no room for. The driver
    takes what was used longest ago to the host, which is what the optimizer's step wants next, so
    that every state passes through it: as many rows as there are."""
    why = "in unified memory, which the GPU has no room for"
    alive = step.every("paged")
    return _rows(plan, alive, "dram", "optimizer_states", MANAGED, "", why, "assumed")


def pieces(plan: Plan, step: Step) -> dict[str, Alive]:
    """What parameters, activations and pages move each time, by name: rows of one GPU."""
    found: dict[str, Alive] = {}
    if step.optimizer.paged:
        found[UNIFIED] = step.every("paged")
    if any(group.rows for group, _ in step.every("missed")):
        found[MISSED] = step.every("missed")
    if step.offload_parameters != "none":
        found["shards on the host"] = step.every("movable")
    if step.offload_activations != "none":
        found["activations of the layers"] = kept_of_layers(step)
    return found


def moves(
    plan: Plan, step: Step, amounts: Amounts, beside: Beside, weights: Number, spilled: Number
) -> list[Move]:
    """What offload moves in one step. Gradients of the `weights` that this GPU updates leave while
    the last backward runs and waits for its links. spilled: whether states in unified memory pass
    through the host."""
    tables = table_moves(plan, step, amounts, beside)
    if {step.offload, step.offload_parameters, step.offload_activations} == {"none"}:
        return tables + (_paging(step, amounts, beside, spilled) if step.optimizer.paged else [])
    return [
        *optimizer_moves(plan, step, amounts, beside, weights),
        *parameter_moves(plan, step, amounts, beside),
        *activation_moves(plan, step, amounts, beside),
        *swaps(plan, step, amounts, beside),
    ]


def _of_layers(
    name: str, piece: str, plan: Plan, step: Step, amounts: Amounts, beside: Beside,
    by: Cover = NOTHING, phase: str = "",
) -> Move:  # fmt: skip
    """One transfer of a piece of the layers for each micro-batch."""
    n = amounts.real(amounts.held(step.held(lambda one: pieces(plan, one)[piece])))
    return copy(name, "pcie", {piece: n}, plan.train.grad_accumulation, by, phase, beside)


def parameter_moves(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """What parameters on the host move in one step."""
    if step.offload_parameters == "none":
        return []
    given = "shards on the host", plan, step, amounts, beside
    found = [_of_layers("weights to GPU, forward", *given, ONE_FORWARD, FORWARD)]
    if step.reshards:
        found.append(_of_layers("weights to GPU, backward", *given, BATCH_BACKWARD, BACKWARD))
    return found


def activation_moves(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """What activations on the host move in one step."""
    if step.offload_activations == "none":
        return []
    given = "activations of the layers", plan, step, amounts, beside
    return [_of_layers(name, *given) for name in ("activations to host", "activations from host")]


def swaps(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """What parameters on NVMe move between it and the host in one step."""
    if step.offload_parameters != "nvme":
        return []
    n = amounts.real(amounts.bytes((SWAPPED,), step.copies.compute)) * plan.gpus_in_node
    there, batches = {"weights on NVMe": n}, plan.train.grad_accumulation
    return [
        copy("weights from NVMe", "nvme", there, 2 * batches, NOTHING, "", beside, ("read",)),
        copy("weights to NVMe", "nvme", there, 1, NOTHING, "", beside, ("write",)),
    ]


def _paging(step: Step, amounts: Amounts, beside: Beside, spilled: Number) -> list[Move]:
    """Pages that come for the optimizer's step, and others that leave for them."""
    if not positive(spilled):
        return []
    n = amounts.real(amounts.alive(step.every("paged"))) * spilled
    return [copy("pages from and to the host", "pcie", {UNIFIED: n}, 2, NOTHING, "", beside)]


def optimizer_moves(
    plan: Plan, step: Step, amounts: Amounts, beside: Beside, weights: float
) -> list[Move]:
    """What an optimizer on the host moves in one step."""
    if step.offload == "none":
        return []
    gpus = plan.gpus_in_node

    def of(piece: str, *names: str) -> dict[str, Number]:
        states = amounts.real(amounts.held(step.optimizer_states)) if piece == STATES else 0.0
        n: Number = of_optimizer(piece, step, weights, gpus, states)
        return dict.fromkeys(names or [piece], n)

    hosted = step.offload_parameters != "none"
    times = plan.train.grad_accumulation if hosted else 1
    update = copy("host optimizer step", "dram", of(EVERYTHING), 1, NOTHING, "", beside)
    down = of(GRADIENTS)
    found = [copy("gradients to host", "pcie", down, times, LAST_BACKWARD, BACKWARD, beside)]
    if not hosted:
        found.append(copy("weights from host", "pcie", of(WEIGHTS), 1, NOTHING, "", beside))
    found.append(update)
    if step.offload == "nvme":
        both = of(STATES, "states read", "states written")
        swapped = copy("optimizer states from and to NVMe", "nvme", both, 1, HOST_STEP, BACKWARD,
                       beside, ("read", "write"))  # fmt: skip
        found.append(replace(swapped, cover=update.seconds["dram"]))
    return found


GRADIENTS, WEIGHTS, EVERYTHING = "gradients", "weights", "weights, gradients and states"
STATES = "states"


def of_optimizer(
    piece: str, step: Step, weights: Read, gpus: Read, states: Read, x: Any = PLAIN
) -> Read:
    """Bytes of a piece that an optimizer on the host moves each time, of the `weights` that a GPU
    updates or its node's GPUs do. 4 bytes a weight are swapped beside the states: a master copy
    that they lack, or DeepSpeed's fp32 gradients."""
    if piece == GRADIENTS:
        return weights * x.width(step.copies.reduced)
    if piece == WEIGHTS:
        return weights * x.width(step.copies.resident)
    if piece == EVERYTHING:
        return weights * gpus * x.constant(constants.HOST_ADAM_BYTES)
    every = states * gpus
    if not step.copies.master or step.flat:
        every = every + weights * gpus * x.width("fp32")
    return every


def copy(
    name: str, link: str, pieces: dict[str, float], times: float, by: Cover, phase: str,
    beside: Beside, ways: tuple[str, ...] = (),
) -> Move:  # fmt: skip
    """One transfer between a GPU, its host and NVMe."""
    spent = {link: copied(beside.plan, link, list(pieces.values()), ways)}
    cover = by.seconds(beside) if by.seconds else 0.0
    return Move(name, pieces, spent, times, cover, by, phase, ways=ways)
