"""Multi-token prediction: the layers that Megatron-Core puts behind the last one.

Follows megatron/core/transformer/multi_token_prediction.py and models/gpt/gpt_model.py (main,
August 2026). Each depth joins the normed hidden state with the normed embedding of the next token,
projects both to the width of one, runs a layer like the model's last, and predicts one token
further with the model's own output layer. The last pipeline stage runs them, and has a copy of the
embedding where it is not the first.
"""

from __future__ import annotations

from collections.abc import Callable

from memcore.layers.ops import HIDDEN, TOKENS, logits_loss, rms_norm
from memcore.tape import fused
from memcore.tape.dims import CP, JOINED, SEQ, TP, VOCAB, B, D, S, Shape
from memcore.tape.kinds import Part
from memcore.tape.primitives import contiguous, scale, scatter
from memcore.tape.structure import HEAD, OWN, Structure
from memcore.tape.tape import Gradients, Tape, Tensor
from memcore.words.training import LAYER

Layer = Callable[[Tape, Structure, Tensor, str], Tensor]
TABLE: Shape = (VOCAB / TP, D)
BOTH: Shape = (B, S / CP / SEQ, JOINED)  # an embedding and a hidden state side by side


def head(t: Tape, s: Structure, x: Tensor, layer: Layer) -> Tensor:
    """The model's head behind its prediction layers: from the last layer's result to the loss."""
    assert s.depths
    with t.scope("lm_head"):
        weight = table = t.parameter("weight", TABLE, tied=s.traits.tied_embeddings)
    if s.depths.table != HEAD:
        with t.scope("embedding"):
            table = t.parameter("weight", TABLE, tied=s.depths.table != OWN)
    table = _shared(t, table, lambda g: g)
    states = [rms_norm(t, x, "norm")]
    for depth in range(s.depths.count):
        with t.scope(f"mtp.{depth}", Part.DEPTH):
            states.append(_deeper(t, s, states[-1], table, layer))
    out, *deeper = _joined(t, states)
    weight = _shared(t, weight, lambda g: [None])  # its gradient is in their buffer by then
    for depth, state in enumerate(deeper):
        with t.scope(f"mtp.{depth}", Part.DEPTH):
            out = _with_loss(t, out, _loss(t, s, state, weight))
    return _loss(t, s, out, weight)


def _shared(t: Tape, w: Tensor, backward: Callable[[Gradients], Gradients]) -> Tensor:
    """A weight that several operations read: autograd sums their gradients before one arrives."""
    out = Tensor(w.storage, w.shape, w.dtype, False)
    t.finish("weight", [w], out, [], backward)
    return out


def _deeper(t: Tape, s: Structure, h: Tensor, table: Tensor, layer: Layer) -> Tensor:
    """MultiTokenPredictionLayer: a hidden state to the one that predicts a token further."""
    assert s.depths
    e = scatter(t, _looked_up(t, table))
    e = scale(t, e, "scaled") if s.traits.embeddings_scaled else e
    kind = s.depths.kind

    def run(e: Tensor, h: Tensor) -> Tensor:
        e, h = rms_norm(t, e, "enorm"), rms_norm(t, h, "hnorm")
        both = contiguous(t, e, BOTH, "both", other=h)
        x = layer(t, s, _projected(t, both), kind)
        return rms_norm(t, x, "final_layernorm")

    return t.checkpoint(run, [e, h]) if s.depths.again == LAYER else run(e, h)


def _looked_up(t: Tape, table: Tensor) -> Tensor:
    """Embeddings of the tokens, moved by one. Saves the ids; backward makes a whole gradient."""
    t.start("lookup")
    ids = t.new("input_ids, moved", TOKENS, "int64")
    out = t.new("embeddings", (*TOKENS, D), table.dtype)
    t.use(out)  # the rows that are read are as many bytes as the result

    def backward(g: Gradients) -> Gradients:
        return [t.new("embedding grad", TABLE, table.dtype)]

    t.finish("lookup", [table], out, [ids], backward)
    return out


def _projected(t: Tape, both: Tensor) -> Tensor:
    """eh_proj, column-parallel, whose result is gathered and cut over the tokens again."""
    x = fused.linear(t, "eh_proj", both, JOINED, D / TP, bias=False, tied=False)
    if not t.parallel:
        return Tensor(x.storage, HIDDEN, x.dtype, x.needs_grad, x.node, x.index)
    t.start("gather", x)
    whole = t.new("projected, gathered", (*TOKENS, D), x.dtype)
    t.finish("gather", [x], whole, [], t.grads("gather grad", x))
    return scatter(t, whole)


def _joined(t: Tape, states: list[Tensor]) -> list[Tensor]:
    """All hidden states in one tensor, and each as a part of it."""
    t.start("join", *states)
    every = t.new("hidden states", (len(states), *HIDDEN), states[0].dtype)
    t.finish("join", states, every, [], lambda g: [g[0]] * len(states))
    parts = [Tensor(every.storage, HIDDEN, every.dtype, False) for _ in states]
    t.finish("chunk", [every], parts, [], t.grads("chunk grad", every))
    return parts


def _with_loss(t: Tape, h: Tensor, loss: Tensor) -> Tensor:
    """MTPLossAutoScaler: h as it is; backward begins the backward of a loss too."""
    out = Tensor(h.storage, h.shape, h.dtype, False)

    def backward(g: Gradients) -> Gradients:
        return [g[0], t.new("loss grad", loss.shape, loss.dtype)]

    t.finish("loss", [h, loss], out, [], backward)
    return out


def _loss(t: Tape, s: Structure, h: Tensor, weight: Tensor) -> Tensor:
    logits = fused.linear(t, "lm_head", h, D, VOCAB / TP, False, False, weight)
    return logits_loss(t, s, logits)
