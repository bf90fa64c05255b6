"""Training time: what one optimizer step costs on one GPU, what hides behind what, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from memcore import constants
from memcore.dims import Number
from memcore.experts import active, is_matrix
from memcore.instants import Step, optimizer_states
from memcore.ledger import Amounts
from memcore.ops import slides
from memcore.plan import Plan
from memcore.policies import DTYPE_BYTES
from memcore.report import OperationTime, Time, Transfer
from memcore.roofline import Execution, Links, Speed, executions, operation, run, seconds

LINKS = ("compute", "hbm", "nvlink", "network", "pcie", "dram", "nvme")


@dataclass(frozen=True, slots=True)
class Move:
    """One kind of transfer of a step.

    pieces      bytes of what is moved each time, by name
    seconds     of each time, by link; the links work side by side
    times       in a step
    cover       seconds of each time that `hidden_by` hides
    """

    name: str
    pieces: dict[str, float]
    seconds: dict[str, float]
    times: float
    cover: float
    hidden_by: str

    @property
    def bytes(self) -> float:
        return sum(self.pieces.values())

    @property
    def slowest(self) -> str:
        """The link that can be exposed."""
        return max(self.seconds, key=lambda link: self.seconds[link])


@dataclass(slots=True)
class _Traffic:
    """Transfers so far, one for each link of each move, with busy and exposed seconds by link."""

    transfers: list[Transfer] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))
    exposed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))

    def add(self, move: Move) -> None:
        for link, each in move.seconds.items():
            shown = max(0.0, each - move.cover) * move.times if link == move.slowest else 0.0
            self.busy[link] += each * move.times
            self.exposed[link] += shown
            self.transfers.append(
                Transfer(
                    move.name, link, move.bytes * move.times, each * move.times, shown,
                    move.hidden_by, move.bytes / move.cover if move.cover > 0 else None,
                )
            )  # fmt: skip


def training_time(plan: Plan, step: Step, amounts: Amounts) -> Time:
    """Time of one optimizer step. Assumes that transfers overlap as the framework schedules them:
    FSDP2 gathers the next layer while one runs, DDP reduces buckets during backward."""
    t, gpu = plan.train, plan.accelerator
    speed = Speed.of(gpu, matmul_dtype(step))
    batches = t.grad_accumulation
    operations = run(step_executions(step, batches), amounts, speed)
    if step.offload == "none":
        operations.append(_optimizer(step, amounts, speed))

    traffic = _Traffic()
    for o in operations:
        traffic.busy["compute"] += o.compute_seconds
        traffic.busy["hbm"] += o.hbm_seconds
        traffic.exposed[o.bound_by] += o.seconds
    for move in moves(plan, step, amounts, operations):
        traffic.add(move)

    total = sum(traffic.exposed.values())
    tokens = t.micro_batch * t.seq_len * batches * plan.dp
    flops = {p: sum(o.flops for o in operations if o.phase == p) for p in PHASES}
    model_flops = 3.0 * _convention_flops(step, amounts) * batches
    peak = gpu.peak_flops(matmul_dtype(step))
    bound_by = max(traffic.exposed, key=lambda link: traffic.exposed[link])
    phases = {p: seconds([o for o in operations if o.phase == p]) for p in PHASES}
    phases["communication"] = traffic.exposed["nvlink"] + traffic.exposed["network"]
    phases["offload"] = sum(traffic.exposed[k] for k in ("pcie", "dram", "nvme"))
    return Time(
        step_seconds=total,
        tokens_per_second=tokens / total,
        tokens_per_second_per_gpu=tokens / total / plan.cluster.gpus,
        mfu=model_flops / total / peak,
        hfu=(model_flops + flops["recompute"]) / total / peak,
        bound_by=bound_by,
        resources=traffic.busy,
        exposed=traffic.exposed,
        phases=phases,
        model_flops=model_flops,
        hardware_flops=sum(flops.values()),
        recompute_flops=flops["recompute"],
        operations=tuple(operations),
        transfers=tuple(traffic.transfers),
    )


PHASES = ("forward", "recompute", "backward", "optimizer")


def matmul_dtype(step: Step) -> str:
    return "bf16" if step.copies.autocast else step.copies.compute


def step_executions(step: Step, batches: int) -> list[Execution]:
    """Every operation of a step's forwards and backwards, in the order of `Time.operations`."""
    ends = (step.blocks.embed, step.blocks.head)
    again = tuple(step.recompute(k) for k in range(len(step.blocks.kinds)))
    return [
        *executions(ends, (1, 1), times=batches),
        *executions(step.blocks.layers, step.layers.counts, again, batches),
    ]


def moves(plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime]) -> list[Move]:
    """Every transfer of a step, in the order of `Time.transfers`, which has one for each link."""
    found = [m for m in _communication(plan, step, amounts, operations) if m.seconds]
    backward = seconds([o for o in operations if o.phase in ("backward", "recompute")])
    waited = sum(max(0.0, m.seconds[m.slowest] - m.cover) * m.times for m in found)
    cover = backward / plan.train.grad_accumulation + waited
    return found + _offload(plan, step, amounts, cover)


def _convention_flops(step: Step, amounts: Amounts) -> float:
    """FLOPs of one micro-batch's forward as MFU counts them: 2 per matmul parameter and token, and
    4 x width x sequence per layer for attention, causal or not (PaLM, Chowdhery et al., app. B);
    a sliding layer counts its window."""
    z = amounts.sizes
    tokens = float(z["B"]) * float(z["S"])
    total: float = 2.0 * z["EMBED"] * z["VOCAB"]
    for times, weights, reach in convention_layers(step, amounts):
        total += times * (2.0 * weights + 2.0 * (z["Q"] + z["VALUES"]) * reach)
    return tokens * total


def convention_layers(step: Step, amounts: Amounts) -> list[tuple[int, Number, Number]]:
    """Of each kind of layer: how many, its matmul parameters (of experts those that a token is sent
    to), and the keys a token attends to."""
    z, found = amounts.sizes, []
    kinds, counts = step.blocks.kinds, step.layers.counts
    for tape, kind, times in zip(step.blocks.layers, kinds, counts, strict=True):
        weights = sum(amounts.elements(active(p.shape)) for p in tape.parameters if is_matrix(p))
        found.append(
            (times, weights, min(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"])
        )
    return found


def updated(step: Step, amounts: Amounts) -> tuple[Number, Number]:
    """What the optimizer step updates on this GPU: parameters, and bytes of them and states."""
    states = _sum(step, "resident", amounts) + amounts.alive(optimizer_states(step))
    return _count(step, amounts), states


def _optimizer(step: Step, amounts: Amounts, speed: Speed) -> OperationTime:
    """The optimizer step on the GPU: it reads and writes its states, and reads the gradients."""
    weights, states = updated(step, amounts)
    moved = 2.0 * states + weights * DTYPE_BYTES[step.copies.reduced]
    flops = float(weights) * step.optimizer.flops_per_parameter
    return operation("optimizer step", "optimizer", flops, moved, speed, False, 1)


def _sum(step: Step, state: str, amounts: Amounts) -> Number:
    return amounts.alive(step.every(state))


def _count(step: Step, amounts: Amounts) -> Number:
    """Parameters that this GPU updates."""
    return _sum(step, "resident", amounts) / DTYPE_BYTES[step.copies.resident]


NOTHING_BEFORE = "nothing: the first has no layer before it"
NOTHING_AFTER = "nothing: backward is over"
NOTHING = "nothing"
LAYER_FORWARD = "the forward of the layer before"
LAYER_BACKWARD = "the backward of the layer before"
ONE_BACKWARD = "backward of one batch"
ALL_BACKWARD = "backward"
LAST_BACKWARD = "the last backward"
HOST_STEP = "the host's optimizer step"


def _communication(
    plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime]
) -> list[Move]:
    """What data parallelism sends in one step."""
    if plan.dp <= 1:
        return []
    t, layers = plan.train, step.layers.count
    links = Links.of(plan.accelerator, plan.node, plan.dp, plan.cluster.gpus_per_node)
    batches = t.grad_accumulation
    inner = [o for o in operations if o.name.startswith("layers.")]
    per = layers * batches
    forward = seconds([o for o in inner if o.phase == "forward"]) / per
    backward = seconds([o for o in inner if o.phase in ("backward", "recompute")]) / per
    # Kinds of layer differ little in their weights: a mean layer stands for each.
    counts = step.layers.counts
    gathered = amounts.alive(step.of_layers("gathered", counts)) / layers
    reduced = amounts.alive(step.of_layers("reduction", counts)) / layers
    root = (step.embed, step.head)
    root_gathered = sum(amounts.group(block.gathered) for block in root)
    root_reduced = sum(amounts.group(block.reduction) for block in root)

    def gather(name: str, pieces: dict[str, float], times: float, cover: float, by: str) -> Move:
        """One collective for each piece: an all-gather or a reduce-scatter, which cost the same."""
        each = [links.gather(n) for n in pieces.values()]
        return Move(name, pieces, {k: sum(e[k] for e in each) for k in each[0]}, times, cover, by)

    def reduce(pieces: dict[str, float], times: float, by: str) -> Move:
        sums = links.reduce(sum(pieces.values()))
        return Move("all-reduce gradients", pieces, sums, times, backward * layers, by)

    if not step.sharded:
        return [reduce({"gradients in buckets": _sum(step, "buckets", amounts)}, 1, ONE_BACKWARD)]
    if t.zero == 0:
        pieces = {
            "gradients of the layers": reduced * layers,
            "gradients of the root": root_reduced,
        }
        return [reduce(pieces, batches, ALL_BACKWARD)]
    weights, grads = {"weights of a layer": gathered}, {"gradients of a layer": reduced}
    first = {"weights of the root and of a layer": root_gathered + gathered}
    last = {"gradients of the root and of a layer": root_reduced + reduced}
    others = (layers - 1) * batches
    found = [
        gather("all-gather root and first layer, forward", first, batches, 0.0, NOTHING_BEFORE),
        gather("all-gather layers, forward", weights, others, forward, LAYER_FORWARD),
    ]
    if step.reshards:
        again = {"weights of the root": root_gathered}
        found += [
            gather("all-gather root, backward", again, batches, 0.0, NOTHING_BEFORE),
            gather(
                "all-gather and reduce-scatter layers, backward", weights | grads, others,
                backward, LAYER_BACKWARD,
            ),
        ]  # fmt: skip
    else:
        found.append(gather("reduce-scatter layers", grads, others, backward, LAYER_BACKWARD))
    found.append(gather("reduce-scatter first layer and root", last, batches, 0.0, NOTHING_AFTER))
    return found


def _offload(plan: Plan, step: Step, amounts: Amounts, cover: float) -> list[Move]:
    """What an optimizer on the host moves in one step.

    Gradients leave while the last backward runs and waits for its links: `cover` seconds.
    """
    if step.offload == "none":
        return []
    share = constants.LINK_EFFICIENCY.middle
    node, gpus = plan.node, plan.gpus_in_node
    pcie = plan.accelerator.pcie_bandwidth * share
    weights = float(_count(step, amounts))
    down = weights * DTYPE_BYTES[step.copies.reduced]
    up = weights * DTYPE_BYTES[step.copies.resident]
    moved = weights * gpus * constants.HOST_ADAM_BYTES.middle
    update = _over(moved, node.dram_bandwidth * constants.HBM_EFFICIENCY.middle)
    found = [
        Move(
            "gradients to host", {"gradients": down}, {"pcie": _over(down, pcie)}, 1, cover,
            LAST_BACKWARD,
        ),
        Move("weights from host", {"weights": up}, {"pcie": _over(up, pcie)}, 1, 0.0, NOTHING),
        Move(
            "host optimizer step", {"weights, gradients and states": moved}, {"dram": update}, 1,
            0.0, NOTHING,
        ),
    ]  # fmt: skip
    if step.offload == "nvme":
        states = float(amounts.alive(optimizer_states(step))) * gpus
        if not step.copies.master:
            states += weights * gpus * DTYPE_BYTES["fp32"]
        read = _over(states, node.nvme_read_bandwidth * share)
        write = _over(states, node.nvme_write_bandwidth * share)
        found.append(
            Move(
                "optimizer states from and to NVMe",
                {"states read": states, "states written": states},
                {"nvme": read + write}, 1, update, HOST_STEP,
            )
        )  # fmt: skip
    return found


def _over(moved: float, bandwidth: float) -> float:
    return moved / bandwidth if bandwidth else math.inf
