"""Host: the CPU that starts the kernels of a step, and how long the GPU waits for it.

Python starts one operation after the other and runs ahead: the GPU waits only for what has not
been started yet. So a step takes the longest way through both, the host up to some point and the
GPU from there on. Within forward and within backward both have the same work again and again, layer
by layer, so that the points to look at are where one of them begins or ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memcore.cache import cached
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.quantity.reading import PLAIN, Read, at_least_zero, largest
from memcore.report import OperationTime
from memcore.step.step import Step
from memcore.tape.dims import EP, EXPERTS, Number, positive
from memcore.tape.kinds import Module, Part
from memcore.tape.ledger import Amounts
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape
from memcore.timing.communication import Move
from memcore.timing.roofline import (
    ATTENTION,
    EIGHT_BIT,
    FOUR_BIT,
    NARROW,
    SCANNED,
    TO_8_BITS,
    Work,
    works,
)
from memcore.words.precision import EightBit
from memcore.words.training import ATTN, FULL_ITERATION, MLP, MOE_PREPROCESS, MOE_ROUTER

PHASES = FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

STACK = (EXPERTS / EP,)  # experts of one rank
SOURCE = (
    "one for each operation that is declared, as PyTorch's dispatcher counts them (tests); of "
    "Megatron's mixtures and Transformer Engine's modules what their code starts: "
    "memcore/timing/host.py"
)


class Starts(NamedTuple):
    """Operations that the host starts for one run of an operation: always, and for each of its
    experts and each step of a ring of context-parallel ranks."""

    each: float
    by_expert: float = 0.0
    by_step: float = 0.0

    def of(self, experts: Number, steps: Number) -> Number:
        """All of them, with so many experts and steps."""
        return self.each + experts * self.by_expert + steps * self.by_step


def starts(work: Work, kernels: str, eight: EightBit | None = None) -> Starts:
    """What the host starts for one run of an operation.
    eight: how Transformer Engine's products read 8 bits, where they do."""
    if kernels != "megatron" or work.module is Module.PERMUTE:
        return Starts(float(work.started))
    grouped = work.module is Module.GROUPED
    if eight and work.narrows:
        operands = sum(dtype in NARROW for _, dtype, _ in work.traffic)
        each, by_expert = narrowed(eight, grouped)
        return Starts(operands * each, operands * by_expert)
    if work.module is None:
        return Starts(float(work.started))
    each = constants.MODULE.middle
    if eight and eight.block and work.kernel in (EIGHT_BIT, FOUR_BIT):
        each += SWIZZLED * LOOPED * sum(count / 2 for count, _ in work.flops)
    if grouped:
        return Starts(each, LOOPED * (GROUPED_BACKWARD if work.phase == BACKWARD else 1))
    return Starts(each, by_step=RING if work.module is Module.ATTENTION else 0.0)


# Of each step of a ring, in Python: room for the keys that come, half of a tensor copied, attention
# itself, and two kernels that correct what was summed; in backward halves copied, attention, and
# both gradients added (Transformer Engine 2.5, pytorch/attention/dot_product_attention/
# context_parallel.py: AttnFuncWithCPAndKVP2P).
RING = 5.0
# What Transformer Engine starts from C++ within one call: Python and autograd see that call alone.
LOOPED = constants.LOOPED.middle


def repeated(step: Step, amounts: Amounts) -> tuple[Number, Number]:
    """Experts and steps of a ring that an operation of Megatron's layers is started for."""
    if step.blocks.structure.kernels != "megatron":
        return 0.0, 0.0
    ranks = amounts.sizes["CP"]
    return float(amounts.elements(STACK)), ranks * (ranks > 1)


# Transformer Engine 2.9. A scale of the whole tensor, read off it: its largest value is cleared and
# found, the scale made of it, and then the cast (common/recipe/current_scaling.cu and
# pytorch/csrc/quantizer.cpp: Float8CurrentScalingQuantizer).
SCALED = 4
# NVFP4's is found likewise, and its cast makes the scale (the same: NVFP4Quantizer).
SCALED_BLOCKS = 3
# Of a product whose operands have a scale for each block: both operands' scales are put in the
# order that cuBLAS reads, of all experts together (pytorch/csrc/util.cpp: swizzle_scaling_factors).
SWIZZLED = 2


def narrowed(eight: EightBit, grouped: bool) -> tuple[float, float]:
    """Operations that the host starts to make one operand narrow, and for each expert's rows of it.
    Experts have kernels of their own but for delayed scales, which one kernel casts all with
    (pytorch/csrc/extensions/cast.cpp: multi_tensor_quantize_impl)."""
    kernels = 1 if eight.block or eight.delayed else SCALED
    if eight.dtype == "fp4":
        kernels = SCALED_BLOCKS
    if grouped and not eight.delayed:
        return 1.0, kernels * LOOPED
    return 1.0 + (kernels - 1) * LOOPED, 0.0


# Of each expert in backward: both products, and the tensor that stands in for the weight's
# gradient (Transformer Engine 2.9, module/grouped_linear.py: handle_custom_ddp_from_mcore).
GROUPED_BACKWARD = 3


REPLAY = constants.MODULE  # that a graph's replay takes as much of the host is assumed
# Of what a permutation starts, what stays outside a graph: the copies of counts to the host
# (token_dispatcher.py: cuda_dtoh_point is before_ep_alltoall then).
COPIED = 4


def left_to_start(
    work: Work, kernels: str, captured: frozenset[str], eight: EightBit | None = None
) -> Starts:
    """As `starts`, of an operation some of which may be part of a CUDA graph."""
    found = starts(work, kernels, eight)
    if work.name.removesuffix(TO_8_BITS) not in captured:
        return found
    copied = COPIED if work.phase != BACKWARD and work.module is Module.PERMUTE else 0
    return Starts(min(found.each, float(copied)))


@cached
def captured(tapes: tuple[Tape, ...], graphs: tuple[str, ...]) -> frozenset[str]:
    """Names of the operations of some layers that are part of a CUDA graph, in both directions:
    those that every layer with an operation of that name captures."""
    inside: set[str] = set()
    outside: set[str] = set()
    for tape in tapes if graphs else ():
        for name, module in _modules(tape):
            (inside if module in graphs else outside).add(name)
    return frozenset(inside - outside)


def _modules(tape: Tape) -> list[tuple[str, str]]:
    """The operations of a layer with the module of a CUDA graph that they would be part of, '' if
    of none. What comes up to attention's last operation is attention's; then comes the dense MLP,
    or router, permutation and what cannot be captured. A residual's two sums have one name."""
    work = [w for w in tape.work if Part.LAYER in w.parts]
    forward = [w for w in work if w.phase == FORWARD]
    attends = [i for i, w in enumerate(forward) if Part.ATTENTION in w.parts]
    last = attends[-1] if attends else -1
    routes = [i for i, w in enumerate(forward) if w.module is Module.PERMUTE]
    mixes = any(w.module is Module.GROUPED for w in forward)
    found = []
    for i, w in enumerate(forward):
        if i <= last:
            module = ATTN
        elif not mixes:
            module = MLP
        elif routes and i == routes[0]:
            module = MOE_PREPROCESS
        else:
            module = MOE_ROUTER if routes and i < routes[0] else ""
        found.append((w.name, module))
    known = {name for name, _ in found}
    others = {w.name: w for w in work if w.name not in known}
    return found + [(name, ATTN if Part.ATTENTION in w.parts else "") for name, w in others.items()]


def replayed(step: Step) -> int:
    """Graphs that the host replays in one forward, and as many in one backward: one for each layer
    that captures anything (megatron/core/transformer/cuda_graphs.py: TECudaGraphHelper)."""
    graphs = step.blocks.structure.graphs
    if not graphs or FULL_ITERATION in graphs:
        return 0
    of = zip(step.blocks.layers, step.layers.counts, strict=False)
    inside = captured(step.blocks.layers, graphs)
    return sum(n for tape, n in of if any(w.name in inside for w in tape.work))


# Of each node that layers are cut into where one micro-batch's forward runs beside another's
# backward: its stream waits for an event and records one, and either its input is detached or
# autograd is run for it alone (megatron/core/pipeline_parallel/utils.py: ScheduleNode).
NODE = 3
# Nodes of a layer with experts: attention, what is before the rows leave, their way there, experts
# and their way back; of others attention and the MLP (megatron/core/models/gpt/
# fine_grained_callables.py).
NODES_OF_EXPERTS, NODES = 5, 2


def scheduled(step: Step) -> int:
    """Operations by which the host starts the nodes of one forward, and as many of one backward."""
    if not step.in_nodes:
        return 0
    of = zip(step.blocks.layers, step.layers.counts, strict=False)
    return NODE * sum(n * (NODES_OF_EXPERTS if _mixes(tape) else NODES) for tape, n in of)


def _mixes(tape: Tape) -> bool:
    return any(w.module is Module.GROUPED for w in tape.work)


@cached
def _counted(
    tapes: tuple[Tape, ...],
    counts: tuple[int, ...],
    again: tuple[str, ...],
    kernels: str,
    graphs: tuple[str, ...] = (),
    eight: EightBit | None = None,
) -> tuple[Starts, ...]:
    """What some tapes start in one forward, in one backward, and for the gradients of weights in
    it."""
    sums = [[0.0, 0.0, 0.0] for _ in range(3)]
    every = (*counts, *(0 for _ in range(len(tapes) - len(counts))))
    inside = captured(tapes, graphs)
    for work, where in works(tapes, again):
        runs = sum(every[i] for i in where)
        for k, n in enumerate(left_to_start(work, kernels, inside, eight)):
            sums[work.phase != FORWARD][k] += runs * n
            if is_product(work):
                sums[2][k] += runs * n / 2
    return tuple(Starts(*of) for of in sums)


def is_product(of: Work | OperationTime) -> bool:
    """Whether backward makes two products of an operation: of its input's gradient and of its
    weight's."""
    if of.phase != BACKWARD or of.kernel in (ATTENTION, SCANNED):
        return False
    return bool(of.flops) if isinstance(of, Work) else positive(of.flops)


def operations(
    step: Step, amounts: Amounts, ends: tuple[Tape, ...], again: tuple[str, ...]
) -> tuple[float, float, float]:
    """Operations that the host starts in one micro-batch: in forward, in backward, and of those
    for the gradients of weights."""
    structure = step.blocks.structure
    kernels, graphs = structure.kernels, structure.graphs
    eight = eight_of(structure)
    of_ends = _counted(ends, (1,) * len(ends), ("",) * len(ends), kernels, (), eight)
    counts = tuple(step.layers.counts)
    of_layers = _counted(step.blocks.layers, counts, again, kernels, graphs, eight)
    times = repeated(step, amounts)
    forward, backward, weights = (
        end.of(*times) + layer.of(*times) for end, layer in zip(of_ends, of_layers, strict=True)
    )
    more = REPLAY.middle * replayed(step) + scheduled(step)
    return forward + more, backward + more + hooks(step, amounts), weights


def eight_of(structure: Structure) -> EightBit | None:
    """How products of a step read 8 bits, where Transformer Engine runs them so."""
    return structure.narrow.how if structure.narrow else None


def hooks(step: Step, amounts: Amounts) -> float:
    """Functions that each backward calls, one for each weight, where gradients are summed in a
    buffer (megatron/core/distributed/distributed_data_parallel.py: _make_backward_post_hook). Each
    is taken to be as much as an operation."""
    return tensors(step, amounts) if step.accumulated else 0.0


def in_forward(move: Move) -> bool:
    """Whether the GPU waits for a transfer in forward, where what would hide it runs."""
    return move.phase == FORWARD


def in_backward(move: Move) -> bool:
    """The same of backward."""
    return move.phase == BACKWARD


def at_end(move: Move) -> bool:
    """Whether it begins when backward is over."""
    return not (in_forward(move) or in_backward(move))


def collectives(moves: Sequence[Move]) -> tuple[float, float]:
    """Operations that the host starts for the transfers of a step, in forward and in backward."""
    each = constants.COLLECTIVE_STARTS.middle
    forward = sum(m.times for m in moves if in_forward(m))
    return each * forward, each * (sum(m.times for m in moves) - forward)


def on_gpu(phases: Mapping[str, float], moves: Sequence[Move]) -> tuple[float, float]:
    """Seconds that the GPU takes in forward and in backward, with what it waits for other GPUs.
    phases: seconds of the operations of each."""
    forward, backward = phases[FORWARD], phases["recompute"] + phases[BACKWARD]
    for m in moves:
        if in_forward(m):
            forward = forward + m.exposed  # not in place: arrays may be shared
        elif in_backward(m):
            backward = backward + m.exposed
    return forward, backward


def waited(host: tuple[Read, Read], gpu: tuple[Read, Read], batches: Read) -> Read:
    """Seconds that the GPU waits for the host in all micro-batches of a step together: host and gpu
    are what each takes for forward and for backward of all. The host runs ahead from one
    micro-batch to the next, but before the first nothing was started."""
    behind = at_least_zero(host[0] + host[1] - (gpu[0] + gpu[1]))
    first = largest(behind, host[0] - gpu[0])
    return first if batches == 1 else ((batches - 1) * behind + first) / batches


def each_start(plan: Plan, x: Any = PLAIN) -> Read:
    """Seconds that the host takes for one operation of a training step."""
    megatron = plan.train.kernels == "megatron"
    return each_of(constants.HOST_MEGATRON if megatron else constants.HOST_TRAINING, plan, x)


def each_of(launch: constants.Constant, plan: Plan, x: Any = PLAIN) -> Read:
    """The same of what a common server's CPU takes: on another it is longer by what one operation
    alone takes longer there, which is how its slowness was measured."""
    each, slowness = x.constant(launch), plan.node.host_slowness
    if slowness == 1:
        return each
    return each + (x.at("hardware.host_slowness", slowness) - 1) * x.constant(constants.HOST_ALONE)


def optimizer_starts(step: Step, amounts: Amounts) -> float:
    """Operations that the host starts for an optimizer step on the GPU."""
    each = step.optimizer.starts
    if step.accumulated:
        each += 1  # Megatron copies each updated master to its weight: distrib_optimizer.py
    return each * tensors(step, amounts)


def tensors(step: Step, amounts: Amounts) -> float:
    """Weights that a GPU updates, each a tensor of its own; Megatron's experts are one each."""
    b = step.blocks
    split = float(amounts.elements(STACK)) if b.structure.kernels == "megatron" else 1.0
    of_layers = zip(b.layers, step.layers.counts, strict=False)
    ends = ((t, int(here)) for t, here in ((b.embed, step.first), (b.head, step.last)))
    return sum(n * (plain + stacks * split) for t, n in (*of_layers, *ends)
               for plain, stacks in [_trained(t)])  # fmt: skip


@cached
def _trained(tape: Tape) -> tuple[int, int]:
    """Trained weights of a block: those of all tokens, and stacks of experts."""
    found = [p for p in tape.parameters if p.trained]
    stacks = sum(1 for p in found if len(p.shape) == 3 and p.shape[0] == EXPERTS / EP)
    return len(found) - stacks, stacks
