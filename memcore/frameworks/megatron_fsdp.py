"""Megatron-FSDP: Megatron's layers with parameters, gradients and states cut over ranks.

Follows megatron/core/distributed/fsdp/src/megatron_fsdp (param_and_grad_buffer.py,
megatron_fsdp.py) at d98e8a6 (August 2026), with optim_grads_params, fp32 main weights and no double
buffers. Each layer is a unit, whose weights lie side by side in buckets: an all-gather writes into
the bucket that operations read, and a reduction leaves its result in the bucket that it sent, so
that nothing is copied. Gradients are summed in a buffer of this rank's part, which is always there.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.cache import cached
from memcore.frameworks.instants import backwards, embedding_backward, forwards, loss, loss_backward
from memcore.plan.plan import Plan
from memcore.plan.sections import Train
from memcore.step.step import Alive, Instant, Step, layers_reached, optimizers, resident
from memcore.tape.dims import (
    CUT,
    CUT_EXPERTS,
    Dim,
    Number,
    Share,
    ceil_div,
    elements,
    maximum,
    minimum,
    positive,
    share,
    where,
)
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts, Group, Template, tied_gradient
from memcore.tape.sharding import is_shared_out
from memcore.timing.communication import (
    ALL_BACKWARD,
    ALL_GATHER,
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

SOURCE = "megatron_fsdp/param_and_grad_buffer.py"
COMMUNICATED = 1_000_000_000  # suggested_communication_unit_size, in elements, or two units
UNIT = Dim("UNIT", "elements of a mean layer that its ranks gather")
UNIT_GRADIENTS = Dim("UNIT_GRADIENTS", "elements of a mean layer's gradients that ranks reduce")
AHEAD = Dim("AHEAD", "layers that are gathered ahead of the one that runs, at most")
QUEUED = Dim("QUEUED", "layers whose gradients are there until they are reduced, at most")
DIMENSIONS = (CUT, CUT_EXPERTS, UNIT, UNIT_GRADIENTS, AHEAD, QUEUED)


def complete(sizes: dict[str, Number], train: Train, step: Step) -> None:
    """Add the dimensions of its buckets.

    AHEAD: buckets are gathered until half of what is communicated at once is under way
    (all_gather_params). QUEUED: before a layer's gradients are sent those of earlier ones are freed
    until no more than all of it waits (wait_for_previous_grad_reduce).
    """
    if not step.sharded:
        return
    sizes["CUT"] = where(sizes["SHARD"] > 1, 1, 0)
    sizes["CUT_EXPERTS"] = where(sizes["EDP"] > 1, 1, 0)
    layers, whole, cut, reduced = sum(step.grouped), 0, 0, 0
    for tape, times in zip(step.blocks.layers, step.grouped, strict=False):
        for p in tape.parameters:
            n = elements(p.shape, sizes) * times
            here = sizes["CUT_EXPERTS" if is_shared_out(p.shape) else "CUT"]
            whole, cut = whole + n, cut + n * here
            reduced = reduced + n * here * p.trained
    layers = max(1, layers)
    unit = maximum(1, whole // layers)
    at_once = maximum(COMMUNICATED + 0 * unit, 2 * unit)
    sizes["UNIT"], sizes["UNIT_GRADIENTS"] = cut // layers, reduced // layers
    sizes["AHEAD"] = ceil_div(at_once // 2, unit)
    sizes["QUEUED"] = at_once // unit + 1


@cached
def _at_most(of: Dim, most: int) -> Share:
    """So many layers, of `most` that there are."""
    return share(f"at most {most:,}", (of,), lambda n: minimum(n, most + 0 * n))


@cached
def _while_queued(done: int) -> Share:
    """1 while the first of so many layers, and one before them, are not yet freed."""
    return share(
        f"1 with fewer than {done + 1:,} freed", (QUEUED,), lambda n: where(n > done, 1, 0)
    )


@cached
def _row(name: str, layers: Share, each: Dim, dtype: str, lifetime: str, why: str) -> Group:
    return Group.of([Template(name, "workspace", (layers, each), dtype, lifetime, why, SOURCE)])


@cached
def _queued(group: Group, done: int) -> Group:
    """The buckets of a group while they wait behind those of so many layers."""
    return Group.of(replace(r, shape=(_while_queued(done), *r.shape)) for r in group.rows)


def units(step: Step) -> list[Instant]:
    """Each layer is gathered before use, as are the next ones, and its gradients are reduced once
    all are there; their buckets are freed when later ones need the room, or behind backward. What
    is no unit, embedding, final norm and head, stays gathered for good."""
    blocks, layers = step.blocks, step.running
    n, tied = layers.count, blocks.structure.traits.tied_embeddings
    every = step if step.each else replace(step, each=True)
    before: Alive = [
        *resident(step),
        *step.at_first((step.embed.gathered, 1)),
        *step.at_last((step.head.gathered, 1)),
    ]

    def gathered(i: int, left: int) -> Alive:
        """Layer `i` whole, and the next ones of those that are left."""
        ahead = _row(
            "weights gathered ahead", _at_most(AHEAD, left), UNIT, step.copies.compute,
            "all-gather to release", "the next layers, whose weights are on their way",
        )  # fmt: skip
        return [(step.layer(layers.kind(i)).gathered, 1), *([(ahead, 1)] if left else [])]

    def made(i: int, done: int) -> Alive:
        """Gradients of layer `i`, and of the layers and the head before that are not yet freed."""
        found = [*step.at_last((_queued(step.head.reduction, done), 1))]
        if done:
            row = _row(
                "gradients that are reduced", _at_most(QUEUED, done), UNIT_GRADIENTS,
                step.copies.reduced, "backward to release", "buckets of layers whose backward ran",
            )  # fmt: skip
            found.append((row, 1))
        return [*found, (step.layer(layers.kind(i)).reduction, 1), *of_table]

    def added(counts: list[int]) -> Alive:
        """Gradients of weights that several blocks share, beside their bucket."""
        again = [(tied_gradient(tape), k) for tape, k in zip(blocks.layers, counts, strict=False)]
        return [*step.at_last((tied_gradient(blocks.head), 1)), *again]

    # A table that the head reads too has gradients from there on.
    of_table = step.at_first((step.embed.reduction, 1)) if tied and step.last else []
    head: Alive = step.at_last((step.head.reduction, 1))
    left = [*made(0, n - 1), *(() if of_table else [(step.embed.reduction, 1)])]
    return [
        *step.between(before),
        *forwards(step, lambda i: [*before, *gathered(i, n - 1 - i)], every.starts),
        *loss(step, before),
        *loss_backward(step, [*before, *head, *of_table], merge=True),
        *backwards(
            step,
            lambda i: [*before, *gathered(i, i), *made(i, n - 1 - i), *added(layers.after(i))],
            merge=True,
            layers=every.ends,
        ),
        *embedding_backward(step, [*before, *left, *added(layers.counts)], merge=True),
        *optimizers(step, before),
    ]


def sent(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """Each layer's weights are gathered behind the layers before it, in both directions, and its
    gradients reduced behind those that run later; backward is over when all are. What is no unit is
    gathered once a step. Experts have their own replicas, and share what hides both."""
    batches = plan.train.grad_accumulation
    layers, reached = max(1, sum(step.grouped)), max(1, layers_reached(step))
    forward, backward = (layers - 1) * batches, (reached - 1) * batches
    both = "all-gather and reduce-scatter layers', backward,"
    wanted: list[tuple[str, tuple[str, ...], float, Cover, str]] = [
        ("all-gather root's", ("root",), 1, NOTHING_BEFORE, FORWARD),
        ("all-gather first layer's", ("layer",), batches, NOTHING_BEFORE, FORWARD),
        ("all-gather layers', forward,", ("layer",), forward, LAYER_FORWARD, FORWARD),
        ("reduce-scatter root's", ("of root",), batches, ALL_BACKWARD, BACKWARD),
        (both, ("layer", "of layer"), backward, LAYER_BACKWARD, BACKWARD),
        ("reduce-scatter first layer's", ("of layer",), batches, NOTHING_AFTER, ""),
    ]
    found = []
    for axis, whose in (("DP", "weights"), ("EDP", "experts")):
        over = links(plan, axis)
        for name, pieces, times, by, phase in wanted:
            named = [PIECES[piece, whose] for piece in pieces if (piece, whose) in PIECES]
            here = moved(beside, amounts, *named)
            if over.ranks > 1 and positive(sum(here.values())):
                name = f"{name} {whose}"
                found.append(
                    collective(name, ALL_GATHER, axis, over, here, times, by, phase, beside)
                )
    return found


PIECES = {
    ("root", "weights"): "weights of the root",
    ("of root", "weights"): "gradients of the root",
    ("layer", "weights"): "weights of a unit",
    ("of layer", "weights"): "gradients of a unit",
    ("layer", "experts"): "experts of a unit",
    ("of layer", "experts"): "gradients of a unit's experts",
}
