"""Convention: the model's FLOPs as papers count them, for MFU."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.layers.experts import active, is_matrix
from memcore.layers.ops import slides
from memcore.models.stack import Layers
from memcore.plan.plan import Plan
from memcore.step.step import Step
from memcore.tape.dims import Number, derive
from memcore.tape.kinds import Part, attends
from memcore.tape.ledger import Amounts
from memcore.tape.structure import BRIDGE, IDLE, MAIN, TOWER
from memcore.tape.tape import Tape
from memcore.training.steps import stack_of
from memcore.words.training import NO_LAYER


def convention_flops(plan: Plan, step: Step, amounts: Amounts) -> Number:
    """FLOPs of one micro-batch on one GPU as MFU counts them: 2 per matmul parameter and token, and
    4 x width x sequence per layer for attention, causal or not (PaLM, Chowdhery et al., app. B),
    three times over; a sliding layer counts its window, one with a
    state its weights alone. A frozen weight has no gradient: twice, and
    once where backward does not come."""
    if plan.architecture.tower:
        return sum(p.times * p.passes * (p.products + p.attention) for p in parts(step, amounts))
    z = amounts.sizes
    tokens = amounts.real(z["B"]) * amounts.real(z["S"])
    # Of an image one token alone is classified, which is next to nothing.
    head = 0.0 if plan.architecture.image else 2.0 * z["EMBED"] * z["VOCAB"]
    total: Number = (2.0 if head_is_frozen(plan) else 3.0) * head
    for times, trained, frozen, reach, passes in convention_layers(plan, step, amounts):
        attention = 2.0 * (z["Q"] + z["VALUES"]) * reach
        fixed = min(2, passes) * 2.0 * frozen
        total += times * (passes * (2.0 * trained + attention) + fixed)
    return tokens * total / sharing(plan)


@dataclass(frozen=True, slots=True)
class StackPart:
    """One block of a model of several stacks, as MFU counts it: FLOPs of one forward, in products
    with weights and in attention, causal or not; how many such blocks, and how often its products
    are made: 3 times, once where nobody reads its result."""

    name: str
    times: int
    products: float
    attention: float
    passes: int


def parts(step: Step, amounts: Amounts) -> list[StackPart]:
    """Every block of a model of several stacks. Each works on tokens of its own, so that products
    are those that its operations declare."""
    z, kinds = amounts.sizes, step.blocks.kinds
    structure = step.blocks.structure
    tower = structure.tower.stack if structure.tower else ""

    def attends(stack: str, reach: Number) -> Number:
        dims = (z[f"{stack}{name}"] for name in ("B", "S", "Q", "VALUES"))
        batch, tokens, queries, values = map(amounts.real, dims)
        return 2.0 * batch * tokens * (queries + values) * amounts.real(reach)

    found = [StackPart("embedding", 1, products(step.blocks.embed, amounts), 0.0, 3)]
    for tape, kind, times in zip(step.blocks.layers, kinds, step.layers.counts, strict=False):
        attention = 0.0
        if kind.place in (TOWER, IDLE):
            attention = attends(f"{tower}.", z[f"{tower}.S"])
        elif kind.place == MAIN:
            reach = amounts.least(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"]
            heard = z[f"{tower}.S"] if step.blocks.carries else 0
            attention = attends("", reach + heard)
        passes = 1 if kind.place == IDLE else 3
        name = "what leads to the main stack" if kind.place == BRIDGE else f"layer, {kind.label}"
        found.append(StackPart(name, times, products(tape, amounts), attention, passes))
    found.append(StackPart("head", 1, products(step.blocks.head, amounts), 0.0, 3))
    return found


def products(tape: Tape, amounts: Amounts) -> Number:
    """FLOPs of one forward of a block, attention left out."""
    return sum(
        count * amounts.real(amounts.elements(shape))
        for work in tape.work
        if work.phase == "forward" and Part.CORE not in work.parts
        for count, shape in work.flops
    )


def head_is_frozen(plan: Plan) -> bool:
    """Whether the matrix of the head is not trained: it is the frozen embedding, or has adapters
    before it."""
    tied = plan.architecture.traits.tied_embeddings
    return plan.train.adapter != "none" or (plan.train.frozen != NO_LAYER and tied)


def sharing(plan: Plan) -> int:
    """GPUs that share a micro-batch."""
    return plan.parallel.tp * plan.parallel.pp * plan.parallel.cp


def convention_layers(
    plan: Plan, step: Step, amounts: Amounts
) -> list[tuple[int, Number, Number, Number, int]]:
    """Of each kind of layer of the whole model: how many, its matmul parameters (of experts those
    that a token is sent to), trained and frozen, the keys a token attends to, and how often its
    products are made: 3 times, once where backward does not come."""
    whole = undivided(plan, amounts)
    z, found = whole.sizes, []
    kinds, stack = step.blocks.kinds, _stack(plan, step)
    for tape, kind, times in zip(step.blocks.layers, kinds, stack.counts, strict=False):
        sums: dict[bool, Number] = {True: 0, False: 0}
        for p in tape.parameters:
            if is_matrix(p):
                sums[p.trained] += whole.elements(active(p.shape))
        reach = amounts.least(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"]
        reach = reach if attends(kind.attention) else 0 * reach
        passes = 1 if kind.frozen and kind.leads else 3
        found.append((times, sums[True], sums[False], reach, passes))
    return found


def _stack(plan: Plan, step: Step) -> Layers:
    """All layers of the model, by the kinds of this step's blocks."""
    if plan.parallel.pp == 1:
        return step.layers
    leads = any(kind.leads for kind in step.blocks.kinds)
    return stack_of(plan, plan.architecture, leads)[1]


def undivided(plan: Plan, amounts: Amounts) -> Amounts:
    """Sizes of the model itself, whatever shares it."""
    p = plan.parallel
    if p.tp * p.ep * p.etp * p.cp == 1:
        return amounts
    kept = plan.sizes()
    sizes = {**kept, "TP": 1, "EP": 1, "ETP": 1, "CP": 1, "SEQ": 1, "VOCAB": amounts.sizes["VOCAB"]}
    derive(sizes)
    return Amounts(sizes)
