"""FSDP2: each layer is gathered before use, its gradient reduce-scattered after."""

from __future__ import annotations

from memcore.frameworks.framework import Framework
from memcore.frameworks.instants import (
    behind,
    embedding_backward,
    forwards,
    gradients_behind,
    loss,
    loss_backward,
    whole_gradients,
)
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.step.step import (
    EMBEDDING_RUNS,
    HEAD_RUNS,
    Alive,
    Instant,
    Step,
    activations,
    layers_reached,
    resident,
    stepping,
    waiting,
)
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts, gradients, saved
from memcore.tape.structure import BRIDGE, IDLE
from memcore.timing.communication import (
    ALL_BACKWARD,
    ALL_GATHER,
    ALL_REDUCE,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    NOTHING_AFTER,
    NOTHING_BEFORE,
    Beside,
    Cover,
    Move,
    collective,
    links,
)
from memcore.timing.pieces import moved
from memcore.words.training import FRAMEWORKS


def sharded_layers(step: Step) -> list[Instant]:
    """FSDP2: each layer is gathered before use and its gradient reduce-scattered after.

    Follows torch/distributed/fsdp/_fully_shard: in forward the buffer of the last all-gather stays
    until the next; in backward the next layer is gathered while one runs, and the buffer of a
    reduce-scatter stays until the next one. Embedding, final norm and head are the root's group:
    their gradients stay whole until all layers are done.
    """
    blocks, layers = step.blocks, step.running
    n = layers.count
    base = resident(step)
    hosted = step.offload_parameters != "none"  # and with them gradients and states
    there = step.keeps_gradients and not hosted
    before = base + (step.every("gradients") if there and not step.sums else [])
    before += whole_gradients(step) if step.sums else []  # summed where backward makes them
    bridges = [k for k, kind in enumerate(blocks.kinds) if kind.place == BRIDGE]
    root = [
        *step.at_first((step.embed.gathered, 1)),
        *((step.layer(k).gathered, 1) for k in bridges),
        *step.at_last((step.head.gathered, 1)),
    ]

    def root_grads(counts: list[int]) -> Alive:
        """Of the root's gradients those that are there when these layers have run backward."""
        if step.sums:
            return gradients_behind(step, [], merge=True)
        made = [(gradients(blocks.layers[k]), counts[k]) for k in bridges]
        return [*step.at_last((gradients(blocks.head), 1)), *made]

    def proper(counts: list[int]) -> list[int]:
        """How many of these are layers, with a group of weights of their own."""
        return [0 if k in bridges else count for k, count in enumerate(counts)]

    def trains(i: int, towards: int) -> int:
        """Layer `i`, or the next one that is a layer and is run backward."""
        while 0 <= i < n and blocks.kinds[layers.kind(i)].place in (BRIDGE, IDLE):
            i += towards
        return i

    def whole(i: int) -> Alive:
        """The gathered weights of layer `i`, if there is one."""
        return [(step.layer(layers.kind(i)).gathered, 1)] if 0 <= i < n else []

    def unsharded(count: int) -> Alive:
        """Whole weights of the first `count` layers, when they are not resharded."""
        return [] if step.reshards else step.of_layers("gathered", proper(layers.first(count)))

    def gathering(i: int) -> Alive:
        """The all-gather buffer of layer `i`, which is fetched ahead when layers are resharded."""
        return [*whole(i), *arriving(i)] if step.reshards else []

    def arriving(i: int) -> Alive:
        """The shard of layer `i` on its way from the host, if shards live there."""
        return [(step.layer(layers.kind(i)).movable, 1)] if hosted and 0 <= i < n else []

    def leaving(i: int) -> Alive:
        """The reduced gradients of layer `i` on their way to the host."""
        return [(step.layer(layers.kind(i)).gradients, 1)] if hosted and 0 <= i < n else []

    def reducing(i: int) -> Alive:
        """The reduce-scatter buffer of layer `i`, if there is one: of whole sums no more than what
        was freed for it."""
        if step.sums:
            return []
        return [(step.layer(layers.kind(i)).reduction, 1)] if 0 <= i < n else []

    def reduction(i: int) -> Alive:
        """What the reduction of layer `i` reads and sends, beside sums that are there."""
        layer = layers.kind(i)
        made = [] if step.sums else [(gradients(blocks.layers[layer]), 1)]
        return [(step.layer(layer).reduction, 1), *made]

    def reduced(counts: list[int]) -> Alive:
        """Reduced gradients of these layers, if they were not there before."""
        gone = step.keeps_gradients or hosted
        return [] if gone else step.of_layers("gradients", proper(counts))

    out = [
        *step.between(before),
        *forwards(step, lambda i: [*before, *root, *unsharded(i + 1), *whole(i), *gathering(i)]),
        *loss(step, [*before, *root, *unsharded(n), *whole(n - 1)]),
    ]
    if step.reshards:
        out.append(
            Instant(
                "root-gather",
                "Gathering the root's weights for backward",
                [
                    *before,
                    *root,
                    *root,
                    *activations(step, n, forward=False),
                    *step.at_last((saved(blocks.head), 1)),
                ],
                phase=BACKWARD,
                layer=HEAD_RUNS,
            )
        )
    gathered = [*root, *whole(n - 1)]
    out += loss_backward(
        step, [*before, *root, *unsharded(n), *gathering(n - 1)], step.sums, gathered
    )
    for name, label, i in step.ends:
        tape = blocks.layers[layers.kind(i)]
        common = [
            *before,
            *root,
            *gathering(trains(i - 1, -1)),
            *reduced(layers.after(i)),
            *root_grads(layers.after(i)),
            *behind(step, i),
        ]
        own = [] if layers.kind(i) in bridges else gathering(i)
        running, waits = [*common, *unsharded(i + 1), *own], reducing(trains(i + 1, 1))
        if tape.reduced:  # that reduction waits for the one before, and lets its buffer go
            before_that = [*running, *waits]
            first = step.backward(i, step.sums, reduced=False)
            out.append(Instant(name, label, before_that, first, BACKWARD, i))
            name, label = f"{name}-reduced", f"{label}, its experts' gradients reduced"
            rest = step.backward(i, step.sums, reduced=True)
            out.append(Instant(name, label, running, rest, BACKWARD, i))
        else:
            both = step.backward(i, step.sums)
            out.append(Instant(name, label, [*running, *waits], both, BACKWARD, i))
        if layers.kind(i) in bridges:
            continue
        out.append(
            Instant(
                name.replace("backward", "reduce"),
                label.replace("Backward", "Gradient reduction"),
                [*common, *unsharded(i), *leaving(i), *reduction(i)],
                phase=BACKWARD,
                layer=i,
            )
        )
    left = [*before, *root, *reducing(0), *reduced(layers.counts), *root_grads(layers.counts)]
    out += embedding_backward(step, left, step.sums)
    out.append(
        Instant(
            "reduce-root",
            "Gradient reduction, embedding and head",
            [
                *before,
                *reduced(layers.counts),
                *root_grads(layers.counts),
                *((step.layer(k).reduction, 1) for k in bridges),
                *step.at_first((step.embed.reduction, 1)),
                *([] if step.sums else step.at_first((gradients(blocks.embed), 1))),
                *step.at_last((step.head.reduction, 1)),
                *waiting(step),
            ],
            phase=BACKWARD,
            layer=EMBEDDING_RUNS,
        )
    )
    last = [*base, *([] if hosted else step.every("gradients")), *stepping(step)]
    out.append(Instant("optimizer-step", "Optimizer step", last))
    return out


def sharded(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """Each layer's weights are gathered while the layer before runs, and its gradients
    reduce-scattered while the next one runs backward. With one rank in a shard group gradients are
    all-reduced instead. Kinds of layer differ little in their weights: a mean layer stands for
    each."""
    t, over = plan.train, links(plan, "DP")
    batches = t.grad_accumulation
    reductions = 1 if step.sums else batches
    layers, reached = sum(step.grouped), layers_reached(step)

    def of(*names: str) -> dict[str, float]:
        return moved(beside, amounts, *names)

    def gather(name: str, bytes_: dict[str, float], times: float, by: Cover, phase: str) -> Move:
        """One collective for each piece: an all-gather or a reduce-scatter, which cost the same."""
        return collective(name, ALL_GATHER, "DP", over, bytes_, times, by, phase, beside)

    if t.zero == 0:
        every = of("gradients of the layers", "gradients of the root")
        return [
            collective(
                "all-reduce gradients", ALL_REDUCE, "DP", over, every, reductions, ALL_BACKWARD,
                BACKWARD, beside,
            )
        ]  # fmt: skip
    weights, grads = of("weights of a layer"), of("gradients of a layer")
    first = of("weights of the root and of a layer")
    last = of("gradients of the root and of a layer")
    others, behind_them = (max(1, layers) - 1) * batches, max(1, reached) - 1
    again = behind_them * reductions
    name, both = "all-gather root and first layer, forward", step.forwards * batches
    found = [
        gather(name, first, both, NOTHING_BEFORE, FORWARD),
        gather(
            "all-gather layers, forward", weights, step.forwards * others, LAYER_FORWARD, FORWARD
        ),
    ]
    if step.reshards:
        whole = of("weights of the root")
        found += [
            gather("all-gather root, backward", whole, batches, NOTHING_BEFORE, BACKWARD),
            gather(
                "all-gather and reduce-scatter layers, backward", weights | grads, again,
                LAYER_BACKWARD, BACKWARD,
            ),
        ]  # fmt: skip
        if step.sums:
            before, name = behind_them * (batches - 1), "all-gather layers, backward"
            found.append(gather(name, weights, before, LAYER_BACKWARD, BACKWARD))
    else:
        name = "reduce-scatter layers"
        found.append(gather(name, grads, again, LAYER_BACKWARD, BACKWARD))
    name = "reduce-scatter first layer and root"
    found.append(gather(name, last, reductions, NOTHING_AFTER, ""))
    if plan.parallel.shard_group:
        # All-reduced where they are, in the result of the reduce-scatter: no further buffer.
        found.append(
            collective(
                "all-reduce shards of gradients between groups", ALL_REDUCE, "REPLICAS",
                links(plan, "REPLICAS"), of("gradients of all weights"), reductions, ALL_BACKWARD,
                BACKWARD, beside,
            )
        )  # fmt: skip
    return found


FSDP2 = Framework(
    facts=FRAMEWORKS["fsdp2"],
    schedule=sharded_layers,
    sends=sharded,
    slack=constants.ALLOCATOR_SLACK_FSDP2,
    rules_native=constants.NATIVE_RULES_FSDP2,
    regathers=True,
    stacks=True,
)
