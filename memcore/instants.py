"""Instants: the moments of a training step at which memory can peak, and what is alive then.

A schedule is a list of instants; an instant is a list of (group of rows, how many of them) and
perhaps a window of one block's tape. Layers are alike, so that between two neighbouring instants
memory changes linearly with the layer's index, and the first, second, last but one and last layer
are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from memcore.blocks import FAMILIES, Blocks
from memcore.dims import HALF_HEAD, Number, maximum, minimum
from memcore.ledger import (
    AUTOGRAD,
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    Group,
    Template,
    Window,
    block_input,
    gradients,
    saved,
    shared,
    tied_gradient,
    weight_copies,
    window,
)
from memcore.policies import Optimizer, Precision
from memcore.states import BlockStates, block_states

Alive = list[tuple[Group, Number]]


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment: what is alive besides the window, how often, and the window running then."""

    id: str
    label: str
    alive: Alive
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The words that decide a training step's schedule, and the numbers it counts with."""

    family: str
    blocks: Blocks
    copies: Precision
    optimizer: Optimizer
    layers: Number
    checkpointed: bool
    accumulates: bool
    sharded: bool  # FSDP owns the parameters
    reshards: bool  # FSDP frees a layer's gathered weights after its forward
    replicas: bool  # DistributedDataParallel averages gradients
    offload: str  # where the optimizer states live: 'none', 'cpu', 'nvme'

    @property
    def embed(self) -> BlockStates:
        return block_states(self.blocks.embed, self.copies, self.optimizer, self.sharded)

    @property
    def layer(self) -> BlockStates:
        return block_states(self.blocks.layer, self.copies, self.optimizer, self.sharded)

    @property
    def head(self) -> BlockStates:
        return block_states(self.blocks.head, self.copies, self.optimizer, self.sharded)

    def every(self, kind: str) -> Alive:
        """One kind of state of every block."""
        return [
            (getattr(self.embed, kind), 1),
            (getattr(self.layer, kind), self.layers),
            (getattr(self.head, kind), 1),
        ]


BUFFERS = Group(
    (
        Template(
            "rotary inverse frequencies",
            "workspace",
            (HALF_HEAD,),
            "fp32",
            "always",
            "buffers of the rotary embedding",
            AUTOGRAD,
            copies=2,
        ),
    )
)


def optimizer_states(step: Step) -> Alive:
    return [*step.every("moments"), *step.every("master"), *step.every("steps")]


def resident(step: Step) -> Alive:
    """What lives on the GPU from step to step."""
    alive = step.every("resident")
    if step.offload == "none":
        alive += optimizer_states(step)
    if step.replicas:
        alive += step.every("buckets")
    if any(s.name.endswith("rotary cos") for s in step.blocks.layer.storages):
        alive.append((BUFFERS, 1))
    return alive


def kept_by_layer(step: Step) -> Group:
    """What one layer's forward leaves for its backward."""
    return block_input(step.blocks.layer) if step.checkpointed else saved(step.blocks.layer)


def saved_for_backward(step: Step) -> Alive:
    """What one micro-batch's forward leaves for its backward, as saved_tensors_hooks counts it."""
    blocks = step.blocks
    until_backward, _ = shared(blocks.layer, step.checkpointed)
    if step.checkpointed:  # of the layers' arguments, only the positional ones are saved
        mask = [r for r in until_backward.rows if r.name == "causal mask"]
        until_backward = Group.of(mask if FAMILIES[step.family].mask_is_argument else ())
    return [
        (saved(blocks.embed), 1),
        (until_backward, 1),
        (kept_by_layer(step), step.layers),
        (saved(blocks.head), 1),
    ]


def instants(step: Step) -> list[Instant]:
    """Every instant of a training step at which memory can peak, in order of time."""
    return _sharded(step) if step.sharded else _whole(step)


def _activations(step: Step, layers: Number, forward: bool) -> Alive:
    """What forward has left so far: the embedding's, the shared tensors', and `layers` layers'."""
    until_backward, forward_only = shared(step.blocks.layer, step.checkpointed)
    alive: Alive = [
        (saved(step.blocks.embed), 1),
        (until_backward, 1),
        (kept_by_layer(step), layers),
    ]
    if forward:
        alive.append((forward_only, 1))
        if step.checkpointed:  # autocast's cache outlives the layers until autocast ends
            alive.append((weight_copies(step.blocks.layer), layers))
    return alive


def _backward_layers(layers: Number) -> list[tuple[str, str, Number]]:
    """The layers at whose backward memory can peak: (id, label, index)."""
    last = layers - 1
    return [
        ("backward-last-layer", "Backward, last layer", last),
        ("backward-next-to-last-layer", "Backward, next to last layer", maximum(last - 1, 0)),
        ("backward-second-layer", "Backward, second layer", minimum(1, last)),
        ("backward-first-layer", "Backward, first layer", 0 * last),
    ]


def _whole(step: Step) -> list[Instant]:
    """Every GPU has whole parameters: plain PyTorch, or DistributedDataParallel."""
    blocks, n = step.blocks, step.layers
    base = resident(step)
    made = [(gradients(blocks.embed), 1), (gradients(blocks.layer), n), (gradients(blocks.head), 1)]
    merge = step.accumulates
    before = base + (made if merge else [])

    def so_far(layers: Number) -> Alive:
        """Gradients made when `layers` layers have run backward, beside those that were there."""
        if merge:
            return [(tied_gradient(blocks.head), 1)]
        return [(gradients(blocks.head), 1), (gradients(blocks.layer), layers)]

    stretch = RECOMPUTE if step.checkpointed else BACKWARD
    out = [
        Instant(
            "forward-last-layer",
            "Forward, last layer",
            before + _activations(step, n - 1, forward=True),
            window(blocks.layer, FORWARD),
        ),
        Instant(
            "loss",
            "Loss",
            before + _activations(step, n, forward=True),
            window(blocks.head, FORWARD),
        ),
        Instant(
            "loss-backward",
            "Backward of the loss",
            before + _activations(step, n, forward=False),
            window(blocks.head, BACKWARD, merge),
        ),
    ]
    for name, label, i in _backward_layers(n):
        out.append(
            Instant(
                name,
                label,
                before + so_far(n - 1 - i) + _activations(step, i, forward=False),
                window(blocks.layer, stretch, merge),
            )
        )
    out.append(
        Instant(
            "embedding-backward",
            "Backward of the embedding",
            before + so_far(n) + [(saved(blocks.embed), 1)],
            window(blocks.embed, BACKWARD, merge),
        )
    )
    out.append(Instant("optimizer-step", "Optimizer step", base + made))
    return out


def _sharded(step: Step) -> list[Instant]:
    """FSDP2: each layer is gathered before use and its gradient reduce-scattered after.

    Follows torch/distributed/fsdp/_fully_shard: in forward the buffer of the last all-gather stays
    until the next; in backward the next layer is gathered while one runs, and the buffer of a
    reduce-scatter stays until the next one. Embedding, final norm and head are the root's group:
    their gradients stay whole until all layers are done.
    """
    blocks, n = step.blocks, step.layers
    base = resident(step)
    kept = step.every("gradients") if step.accumulates else []
    root: Alive = [(step.embed.gathered, 1), (step.head.gathered, 1)]
    root_grads: Alive = [(gradients(blocks.embed), 1), (gradients(blocks.head), 1)]
    layer = step.layer.gathered
    before = base + kept

    def gathered(layers: Number) -> Alive:
        """Whole weights of layers 0 .. `layers`-1, when they are not resharded."""
        return [] if step.reshards else [(layer, layers)]

    def reduced(layers: Number) -> Alive:
        """Reduced gradients of `layers` layers."""
        return [] if step.accumulates else [(step.layer.gradients, layers)]

    stretch = RECOMPUTE if step.checkpointed else BACKWARD
    in_flight = 1 if step.reshards else 0
    out = [
        Instant(
            "forward-last-layer",
            "Forward, last layer",
            [
                *before,
                *root,
                *gathered(n),
                (layer, 1 + in_flight),
                *_activations(step, n - 1, forward=True),
            ],
            window(blocks.layer, FORWARD),
        ),
        Instant(
            "loss",
            "Loss",
            [*before, *root, *gathered(n), (layer, 1), *_activations(step, n, forward=True)],
            window(blocks.head, FORWARD),
        ),
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
                    *_activations(step, n, forward=False),
                    (saved(blocks.head), 1),
                ],
            )
        )
    out.append(
        Instant(
            "loss-backward",
            "Backward of the loss",
            [
                *before,
                *root,
                *gathered(n),
                (layer, in_flight),
                *_activations(step, n, forward=False),
            ],
            window(blocks.head, BACKWARD),
        )
    )
    for name, label, i in _backward_layers(n):
        out.append(
            Instant(
                name,
                label,
                [
                    *before,
                    *root,
                    *gathered(i + 1),
                    (layer, in_flight * (1 + minimum(i, 1))),
                    (step.layer.reduction, minimum(n - 1 - i, 1)),
                    *reduced(n - 1 - i),
                    (gradients(blocks.head), 1),
                    *_activations(step, i, forward=False),
                ],
                window(blocks.layer, stretch),
            )
        )
        out.append(
            Instant(
                name.replace("backward", "reduce"),
                label.replace("Backward", "Gradient reduction"),
                [
                    *before,
                    *root,
                    *gathered(i),
                    (layer, in_flight * minimum(i, 1)),
                    (gradients(blocks.layer), 1),
                    (step.layer.reduction, 1),
                    *reduced(n - 1 - i),
                    (gradients(blocks.head), 1),
                    *_activations(step, i, forward=False),
                ],
            )
        )
    out.append(
        Instant(
            "embedding-backward",
            "Backward of the embedding",
            [
                *before,
                *root,
                (step.layer.reduction, 1),
                *reduced(n),
                (gradients(blocks.head), 1),
                (saved(blocks.embed), 1),
            ],
            window(blocks.embed, BACKWARD),
        )
    )
    out.append(
        Instant(
            "reduce-root",
            "Gradient reduction, embedding and head",
            [
                *before,
                *reduced(n),
                *root_grads,
                (step.embed.reduction, 1),
                (step.head.reduction, 1),
            ],
        )
    )
    out.append(
        Instant("optimizer-step", "Optimizer step", [*base, *step.every("gradients")]),
    )
    return out
