"""Training time: what one optimizer step costs on one GPU, what hides behind what, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from memcore import constants
from memcore.dims import Number
from memcore.instants import Step, optimizer_states
from memcore.ledger import Amounts
from memcore.ops import slides
from memcore.plan import Plan
from memcore.policies import DTYPE_BYTES
from memcore.report import OperationTime, Time, Transfer
from memcore.roofline import Links, Speed, operation, run, seconds

LINKS = ("compute", "hbm", "nvlink", "network", "pcie", "dram", "nvme")


@dataclass(slots=True)
class _Traffic:
    """Transfers so far, with busy and exposed seconds by link."""

    transfers: list[Transfer] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))
    exposed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))

    def add(
        self,
        name: str,
        moved: float,
        links: dict[str, float],
        times: float,
        cover: float,
        hidden_by: str,
    ) -> None:
        """`times` transfers of `moved` bytes, each `links[link]` seconds, `cover` of them hidden.

        Links work side by side, so the slowest is the one that can be exposed.
        """
        if not links:
            return
        slowest = max(links, key=lambda link: links[link])
        for link, each in links.items():
            shown = max(0.0, each - cover) * times if link == slowest else 0.0
            self.busy[link] += each * times
            self.exposed[link] += shown
            hides_at = moved / cover if cover > 0 else None
            self.transfers.append(
                Transfer(name, link, moved * times, each * times, shown, hidden_by, hides_at)
            )


def training_time(plan: Plan, step: Step, amounts: Amounts) -> Time:
    """Time of one optimizer step. Assumes that transfers overlap as the framework schedules them:
    FSDP2 gathers the next layer while one runs, DDP reduces buckets during backward."""
    t, gpu = plan.train, plan.accelerator
    speed = Speed.of(gpu, _matmul_dtype(step))
    blocks, batches = step.blocks, t.grad_accumulation
    ends = (blocks.embed, blocks.head)
    counts = step.layers.counts
    again = tuple(step.recompute(k) for k in range(len(blocks.kinds)))
    operations = run(ends, (1, 1), amounts, speed, times=batches)
    operations += run(blocks.layers, counts, amounts, speed, again, batches)
    if step.offload == "none":
        operations.append(_optimizer(step, amounts, speed))

    traffic = _Traffic()
    for o in operations:
        traffic.busy["compute"] += o.compute_seconds
        traffic.busy["hbm"] += o.hbm_seconds
        traffic.exposed[o.bound_by] += o.seconds
    backward = seconds([o for o in operations if o.phase in ("backward", "recompute")])
    before = dict(traffic.exposed)
    _communication(plan, step, amounts, operations, traffic)
    waited = sum(traffic.exposed[link] - before[link] for link in ("nvlink", "network"))
    _offload(plan, step, amounts, backward / t.grad_accumulation + waited, traffic)

    total = sum(traffic.exposed.values())
    tokens = t.micro_batch * t.seq_len * batches * plan.dp
    flops = {p: sum(o.flops for o in operations if o.phase == p) for p in _PHASES}
    model_flops = 3.0 * _convention_flops(step, amounts) * batches
    peak = gpu.peak_flops(_matmul_dtype(step))
    bound_by = max(traffic.exposed, key=lambda link: traffic.exposed[link])
    phases = {p: seconds([o for o in operations if o.phase == p]) for p in _PHASES}
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


_PHASES = ("forward", "recompute", "backward", "optimizer")


def _matmul_dtype(step: Step) -> str:
    return "bf16" if step.copies.autocast else step.copies.compute


def _convention_flops(step: Step, amounts: Amounts) -> float:
    """FLOPs of one micro-batch's forward as MFU counts them: 2 per matmul parameter and token, and
    4 x width x sequence per layer for attention, causal or not (PaLM, Chowdhery et al., app. B);
    a sliding layer counts its window."""
    z = amounts.sizes
    tokens = float(z["B"]) * float(z["S"])
    total: float = 2.0 * z["EMBED"] * z["VOCAB"]
    kinds = step.blocks.kinds
    counts = step.layers.counts
    for tape, kind, times in zip(step.blocks.layers, kinds, counts, strict=True):
        weights = sum(amounts.elements(p.shape) for p in tape.parameters if len(p.shape) > 1)
        reach = min(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"]
        total += times * (2.0 * weights + 4.0 * z["Q"] * reach)
    return tokens * total


def _optimizer(step: Step, amounts: Amounts, speed: Speed) -> OperationTime:
    """The optimizer step on the GPU: it reads and writes its states, and reads the gradients."""
    states = _sum(step, "resident", amounts) + amounts.alive(optimizer_states(step))
    weights = _count(step, amounts)
    moved = 2.0 * states + weights * DTYPE_BYTES[step.copies.reduced]
    flops = float(weights) * step.optimizer.flops_per_parameter
    return operation("optimizer step", "optimizer", flops, moved, speed, False, 1)


def _sum(step: Step, state: str, amounts: Amounts) -> Number:
    return amounts.alive(step.every(state))


def _count(step: Step, amounts: Amounts) -> Number:
    """Parameters that this GPU updates."""
    return _sum(step, "resident", amounts) / DTYPE_BYTES[step.copies.resident]


def _communication(
    plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime], traffic: _Traffic
) -> None:
    """What data parallelism sends in one step."""
    ranks = plan.dp
    if ranks <= 1:
        return
    t, layers = plan.train, step.layers.count
    links = Links.of(plan.accelerator, plan.node, ranks, plan.cluster.gpus_per_node)
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
    hide_f, hide_b = ("the forward of the layer before", "the backward of the layer before")
    first = "nothing: the first has no layer before it"
    if not step.sharded:
        grads = _sum(step, "buckets", amounts)
        cover = backward * layers
        traffic.add(
            "all-reduce gradients", grads, links.reduce(grads), 1, cover, "backward of one batch"
        )
        return
    if t.zero == 0:
        whole = reduced * layers + root_reduced
        traffic.add(
            "all-reduce gradients", whole, links.reduce(whole), batches, backward * layers,
            "backward",
        )  # fmt: skip
        return
    gather, scatter = links.gather(gathered), links.gather(reduced)
    traffic.add(
        "all-gather root and first layer, forward", root_gathered + gathered,
        links.gather(root_gathered + gathered), batches, 0.0, first,
    )  # fmt: skip
    traffic.add(
        "all-gather layers, forward", gathered, gather, (layers - 1) * batches, forward, hide_f
    )
    if step.reshards:
        traffic.add(
            "all-gather root, backward", root_gathered, links.gather(root_gathered), batches, 0.0,
            first,
        )  # fmt: skip
        both = {link: gather[link] + scatter[link] for link in gather}
        traffic.add(
            "all-gather and reduce-scatter layers, backward", gathered + reduced, both,
            (layers - 1) * batches, backward, hide_b,
        )  # fmt: skip
    else:
        traffic.add(
            "reduce-scatter layers", reduced, scatter, (layers - 1) * batches, backward, hide_b
        )
    traffic.add(
        "reduce-scatter first layer and root", root_reduced + reduced,
        links.gather(root_reduced + reduced), batches, 0.0, "nothing: backward is over",
    )  # fmt: skip


def _offload(plan: Plan, step: Step, amounts: Amounts, cover: float, traffic: _Traffic) -> None:
    """What an optimizer on the host moves in one step.

    Gradients leave while the last backward runs and waits for its links: `cover` seconds.
    """
    if step.offload == "none":
        return
    share = constants.LINK_EFFICIENCY.middle
    node, gpus = plan.node, plan.gpus_in_node
    pcie = plan.accelerator.pcie_bandwidth * share
    weights = float(_count(step, amounts))
    down = weights * DTYPE_BYTES[step.copies.reduced]
    up = weights * DTYPE_BYTES[step.copies.resident]
    traffic.add(
        "gradients to host", down, {"pcie": _over(down, pcie)}, 1, cover, "the last backward"
    )
    traffic.add("weights from host", up, {"pcie": _over(up, pcie)}, 1, 0.0, "nothing")
    moved = weights * gpus * constants.HOST_ADAM_BYTES.middle
    update = _over(moved, node.dram_bandwidth * constants.HBM_EFFICIENCY.middle)
    traffic.add("host optimizer step", moved, {"dram": update}, 1, 0.0, "nothing")
    if step.offload == "nvme":
        states = float(amounts.alive(optimizer_states(step))) * gpus
        if not step.copies.master:
            states += weights * gpus * DTYPE_BYTES["fp32"]
        read = _over(states, node.nvme_read_bandwidth * share)
        write = _over(states, node.nvme_write_bandwidth * share)
        traffic.add(
            "optimizer states from and to NVMe", 2 * states, {"nvme": read + write}, 1, update,
            "the host's optimizer step",
        )  # fmt: skip


def _over(moved: float, bandwidth: float) -> float:
    return moved / bandwidth if bandwidth else math.inf
