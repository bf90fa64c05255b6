"""Instants that the step of every framework has: what each finds alive then is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcore.step.step import (
    EMBEDDING_RUNS,
    HEAD_RUNS,
    Alive,
    Instant,
    Step,
    activations,
    crossing,
    left_until_end,
    waiting,
)
from memcore.tape.ledger import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    gradients,
    saved,
    tied_gradient,
    window,
)

NOTHING: Alive = []
Told = Sequence[tuple[str, str, int]]  # layers that are told apart: id, label and index of each


def forwards(
    step: Step, alive: Callable[[int], Alive], layers: Told | None = None
) -> list[Instant]:
    """The forward of some layers, where no others are named of `starts`; `alive` by the index of
    one, besides activations."""
    return [
        Instant(name, label, [*alive(i), *_forward(step, i)], step.forward(i), FORWARD, i)
        for name, label, i in layers or step.starts
    ]


def loss(step: Step, alive: Alive) -> list[Instant]:
    """The head and the loss, where the stage has them."""
    if not step.last:
        return []
    there = [*alive, *_forward(step, step.running.count)]
    return [Instant("loss", "Loss", there, window(step.blocks.head, FORWARD), FORWARD, HEAD_RUNS)]


def loss_backward(
    step: Step, alive: Alive, merge: bool = False, gathered: Alive = NOTHING
) -> list[Instant]:
    """The same in backward, with the forward of a frozen reference before it; `merge`: gradients
    are added to those that are there; `gathered`: whole weights of the reference in flight."""
    if not step.last:
        return []
    there = [*alive, *activations(step, step.running.count, forward=False)]
    run = window(step.blocks.head, BACKWARD, merge)
    copy = gathered if step.reference else []
    of_reference = _reference(step, [*there, *copy]) if step.forwards > 1 else []
    loss = Instant("loss-backward", "Backward of the loss", there, run, BACKWARD, HEAD_RUNS)
    return [*of_reference, loss]


def _reference(step: Step, alive: Alive) -> list[Instant]:
    """The forward of a frozen reference, of which nothing is saved, behind the trained model's: its
    last layer, and its head."""
    last, there = step.running.count - 1, [*alive, (saved(step.blocks.head), 1)]
    layer = window(step.blocks.layers[step.running.kind(last)], INFERENCE)
    head = window(step.blocks.head, INFERENCE)
    label = "Forward of the reference"
    return [
        Instant("reference-layer", f"{label}, last layer", there, layer, FORWARD, last),
        Instant("reference-head", f"{label}, head", there, head, FORWARD, HEAD_RUNS),
    ]


def backwards(
    step: Step, alive: Callable[[int], Alive], merge: bool, layers: Told | None = None
) -> list[Instant]:
    """The same of their backward, and of `ends`."""
    return [
        Instant(name, label, [*alive(i), *behind(step, i)], step.backward(i, merge), BACKWARD, i)
        for name, label, i in layers or step.ends
    ]


def embedding_backward(step: Step, alive: Alive, merge: bool = False) -> list[Instant]:
    """The backward of the embedding, where the stage has it."""
    if not step.first:
        return []
    name, label = "embedding-backward", "Backward of the embedding"
    there = [*alive, *left_until_end(step), *waiting(step)]
    run = window(step.blocks.embed, BACKWARD, merge)
    return [Instant(name, label, there, run, BACKWARD, EMBEDDING_RUNS)]


def forth_and_back(
    step: Step,
    forward: Alive,
    turning: Alive,
    backward: Alive,
    so_far: Callable[[list[int]], Alive],
    merge: bool,
    gathered: Alive = NOTHING,
) -> list[Instant]:
    """Forward, loss and backward where each has the same alive in every layer, besides activations;
    `turning`: in the loss's backward, `gathered`: in a reference's forward besides. `so_far`: what
    backward has left when so many layers of each kind are through."""
    layers = step.running
    return [
        *forwards(step, lambda i: forward),
        *loss(step, forward),
        *loss_backward(step, turning, merge, gathered),
        *backwards(step, lambda i: [*backward, *so_far(layers.after(i))], merge),
        *embedding_backward(step, [*backward, *so_far(layers.counts)], merge),
    ]


def whole_gradients(step: Step) -> Alive:
    """Gradients of all weights of the stage, as its backward leaves them."""
    blocks = step.blocks
    return [
        *step.at_first((gradients(blocks.embed), 1)),
        *step.made(step.layers.counts),
        *step.at_last((gradients(blocks.head), 1)),
    ]


def gradients_behind(step: Step, counts: list[int], merge: bool) -> Alive:
    """Gradients when the head and so many layers of each kind have run backward; `merge`: they are
    added to those that are there, but for that of a table which head and embedding share."""
    if merge:
        return step.at_last((tied_gradient(step.blocks.head), 1))
    return [*step.at_last((gradients(step.blocks.head), 1)), *step.made(counts)]


def behind(step: Step, i: int) -> Alive:
    """What forward has left when layer `i` runs backward."""
    return [*activations(step, i, forward=False), *crossing(step, i)]


def _forward(step: Step, i: int) -> Alive:
    return activations(step, i, forward=True)
