"""Phi-3.5-MoE (phimoe): Mixtral's layers with layer norms, and two experts for each token, which
SparseMixer draws one after the other (Liu et al., arXiv 2409.12136)."""

from __future__ import annotations

from memcore.layers.experts import SCORED, routed_experts
from memcore.layers.ops import TOKENS, head_behind
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import attention, embed
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, ONE, TOP_K, D
from memcore.tape.primitives import add, joined, layer_norm, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Gradients, Tape, Tensor

DRAWN = 2  # experts of a token: the mixer draws no more and no fewer


def _config(k: Keys) -> Model:
    model = llama_like(k, "phimoe")
    k.dropout("router_jitter_noise", 0.01)  # which only says who is near the best
    if (chosen := model.top_k) != DRAWN:
        k.fail("num_experts_per_tok", f"{chosen:,}, but its router draws {DRAWN} for each token")
    return model


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, layer_norm(t, x, D, "input_layernorm"), kind)
    x = add(t, x, h, "residual")
    h = layer_norm(t, x, D, "post_attention_layernorm")
    with t.scope("mlp"):
        h = _jittered(t, s, h)
        with t.scope("router"):
            h = _jittered(t, s, h)
            weights, index = _mixed(t, linear(t, "logits", h, D, EXPERTS, bias=False))
        return add(t, x, routed_experts(t, s, h, weights, index), "residual")


def _jittered(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """x times noise, in place. Saves the noise."""
    if not s.traits.router_jitter or s.served:
        return x
    t.start("jitter", x)
    noise = t.new("jitter", x.shape, x.dtype)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish("jitter", [x], out, [noise], t.grads("jitter grad", x))
    return out


def _mixed(t: Tape, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the two experts of each token, and which they are."""
    drawn = [_drawn(t, logits, which) for which in ("first", "second")]
    weights = joined(t, [w for w, _ in drawn], (*TOKENS, TOP_K), "weights")
    t.start("experts", *(index for _, index in drawn))
    return weights, t.new("experts", (*TOKENS, TOP_K), "int64")


def _drawn(t: Tape, logits: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """One expert of each token. Saves which, its weight, the softmax of all that are near the best,
    and which are not; of logits without those drawn before, where they were put out."""
    one, dtype = (*TOKENS, ONE), logits.dtype
    with t.scope(name):
        t.start("draw", logits)
        far = t.new("far from the best", SCORED, "bool")
        near = t.new("near", SCORED, dtype)
        index = t.new("expert", one, "int64")
        shares = t.new("softmax", SCORED, "fp32" if t.autocast else dtype)
        t.use(near)
        weight = t.new("weight", one, shares.dtype)
        out = t.new("weight, at random", one, shares.dtype)

        def backward(g: Gradients) -> Gradients:
            return [t.new("logits grad", SCORED, shares.dtype)]

        t.finish("draw", [logits], out, [far, index, shares, weight], backward)
        return out, index


_head = head_behind(layer_norm, width=D)
FAMILY = family_of("phimoe", _config, embed, _layer, _head)
