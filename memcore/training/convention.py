"""Convention: the model's FLOPs as papers count them, for MFU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcore.layers.experts import active, is_matrix
from memcore.layers.ops import slides
from memcore.models.stack import Layers
from memcore.plan.plan import Plan
from memcore.quantity.reading import PLAIN, Read, total
from memcore.step.step import Step
from memcore.tape.derived import derive
from memcore.tape.dims import EMBED, VALUES, VOCAB, B, Number, Q, S, positive
from memcore.tape.kinds import IN_WINDOWS, Part, attends
from memcore.tape.ledger import Amounts
from memcore.tape.structure import BRIDGE, CAUSAL, IDLE, MAIN, MASKED, TOWER
from memcore.tape.tape import Tape
from memcore.timing.roofline import DECLARED
from memcore.training.steps import stack_of
from memcore.words.training import NO_LAYER

PALM = "PaLM, Chowdhery et al. 2022, appendix B: 2 per parameter and token, 4 x width x sequence"
MATRICES = "the weights of two dimensions: see parameters"


def convention_flops(plan: Plan, step: Step, amounts: Amounts, x: Any = PLAIN) -> Read:
    """FLOPs of one micro-batch on one GPU as MFU counts them: 2 per matmul parameter and token, and
    4 x width x sequence per layer for attention, causal or not (PALM), three times over. A sliding
    layer counts its window, one with a state its weights alone. A frozen weight has no gradient: it
    counts twice, and once where backward does not come. A traced model's are those of its trace."""
    if plan.architecture.traced:
        each = step.blocks.counted(step.layers.counts)
        flops = sum(times * declared(tape, amounts) for tape, times in each)
        return x.known("products of a forward and backward", flops, "FLOP", source=DECLARED)
    if plan.architecture.tower:
        return total(part.flops(plan, x) for part in parts(step, amounts))
    passes = x.known("forward, and twice that for backward", 3, source=PALM)
    frozen_passes = x.known("forward, and the input's gradient", 2, source="weights are frozen")
    alone = x.known("forward alone", 1, source="backward does not reach these layers")
    twice = x.known("multiply and add", 2, source=PALM)
    batch, tokens, embed, vocab, queries, values = (
        x.dimension(of, amounts) for of in (B, S, EMBED, VOCAB, Q, VALUES)
    )
    every = []
    if plan.architecture.head in (CAUSAL, MASKED):  # a few classes are next to nothing
        ends = frozen_passes if head_is_frozen(plan) else passes
        every.append(ends * (twice * embed * vocab))
    for layers, trained, frozen, reach, often in convention_layers(plan, step, amounts):
        of = x.known("matmul parameters of a layer", trained, "parameters", source=MATRICES)
        keys = x.known("keys in reach", reach, source="the sequence, or a sliding window")
        one = twice * of + twice * (queries + values) * keys
        one = (passes if often == 3 else alone) * one
        if positive(frozen):
            name = "frozen matmul parameters of a layer"
            fixed = twice * x.known(name, frozen, "parameters", source=MATRICES)
            one = one + (frozen_passes if often == 3 else alone) * fixed
        config = plan.architecture.origin
        every.append(x.known("layers", layers, source=config) * one)
    flops, shared = batch * tokens * total(every), plan.sharing
    if shared == 1:
        return flops
    return flops / x.known("GPUs that share a micro-batch", shared, source="the plan: tp x pp x cp")


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

    def flops(self, plan: Plan, x: Any = PLAIN) -> Read:
        """Of all such blocks, in one micro-batch."""
        passes = x.known("forward, and twice that for backward", 3, source=PALM)
        if self.passes == 1:
            passes = x.known("forward alone", 1, source="nobody reads the result")
        one = x.known("products with weights", self.products, "FLOP", source=DECLARED)
        if positive(self.attention):
            source = f"{PALM}, with the tokens and the width of its stack"
            one = one + x.known("attention", self.attention, "FLOP", source=source)
        if self.times == 1:
            return passes * one
        config = plan.architecture.origin
        return x.known("such blocks", self.times, source=config) * (passes * one)


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
            s = z[f"{tower}.S"]
            seen = amounts.real(z[f"{tower}.PAIRS"]) / amounts.real(s)
            attention = attends(f"{tower}.", seen if kind.attention == IN_WINDOWS else s)
        elif kind.place == MAIN:
            reach = amounts.least(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"]
            heard = z[f"{tower}.S"] if step.blocks.carries else 0
            attention = attends("", reach + heard)
        passes = 1 if kind.place == IDLE or kind.leads else 2 if kind.frozen else 3
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


def declared(tape: Tape, amounts: Amounts) -> Number:
    """FLOPs of one forward and backward of a block."""
    return sum(
        count * amounts.real(amounts.elements(shape))
        for work in tape.work
        for count, shape in work.flops
    )


def head_is_frozen(plan: Plan) -> bool:
    """Whether the matrix of the head is not trained: it is the frozen embedding, or has adapters
    before it."""
    tied = plan.architecture.traits.tied_embeddings
    return plan.train.adapter != "none" or (plan.train.frozen != NO_LAYER and tied)


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
