"""MiniMax-M3: grouped queries to a few blocks of tokens, which an indexer chooses; a few first
layers see all. gpt-oss's clamped gate, in an MLP, in a shared expert and in routed ones."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import Stacks, routed_experts
from memcore.layers.indexer import chosen_blocks
from memcore.layers.ops import (
    KEY_ROWS,
    QUERY_ROWS,
    TOKENS,
    attended,
    by_heads,
    partial_rotary,
    query_key_value,
    rms_norm_plus_one,
    rotary_tables,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families import gemma
from memcore.models.families.decoders import llama_like, sparse_kinds
from memcore.models.families.deepseek_v32 import SPARSE
from memcore.models.families.family import Family, listed
from memcore.models.families.gpt_oss import clamped_gate
from memcore.models.families.llama import embed
from memcore.models.families.mimo_v2_flash import pattern
from memcore.models.families.olmoe import sigmoid_router
from memcore.models.model import Indexer, Model
from memcore.tape.dims import EXPERT_F, FUSED, HEAD_DIM, SHARED_F, SHARED_FUSED, TP, D, F, Factor
from memcore.tape.kinds import FULL, Part, is_dense, is_whole, whole
from memcore.tape.primitives import add, heads_first, linear, scale, split
from memcore.tape.structure import CAUSAL, EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor

CHOICE = "sparse_attention_config"  # as the model's own files have it
NAMES = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
ATTENDS = {"full_attention": False, "minimax_m3_sparse": True}


def _config(k: Keys) -> Model:
    if (
        k.config.get("hidden_act") == "swigluoai"
    ):  # the gate's own name; transformers has silu there
        k.config = {**k.config, "hidden_act": "silu"}
    model = llama_like(k, "minimax_m3_vl_text")
    size = model.intermediate_size
    for key, *harmless in (
        ("moe_intermediate_size", size, None),
        ("n_shared_experts", 1, None),
        ("attention_output_gate", False, None),
        ("use_qk_norm", True, None),
        ("qk_norm_type", "per_head", None),
        ("use_gemma_norm", True, None),
        ("scoring_func", "sigmoid", None),
        ("use_routing_bias", True, None),
    ):
        k.refuse(key, *harmless)
    model = replace(
        model,
        intermediate_size=k.count("dense_intermediate_size", 12_288),
        rotary_dim=_turned(k, model.head_dim),
    )
    model = _choosing(k, model)
    experts = listed(k, "mlp_layer_types", model.layers, SPARSE)
    if experts is None:
        experts = list(map(bool, pattern(k, "moe_layer_freq", model.layers)))
    first = k.count_or_zero("first_k_dense_replace", 0)
    experts = experts or [i >= first for i in range(model.layers)]
    return sparse_kinds(model, experts.__getitem__)


def _turned(k: Keys, head_dim: int) -> int:
    """Dimensions of a head that turn. transformers reads the share, engines the number."""
    share = k.rope("partial_rotary_factor", 0.0)
    said = k.count("rotary_dim", 64, head_dim)
    return int(head_dim * share) if share else said


def _choosing(k: Keys, model: Model) -> Model:
    """The model with an indexer in the layers that have one."""
    own = k.within(CHOICE, NAMES)
    said = own if CHOICE in k.config else k
    chooses = listed(k, "layer_types", model.layers, ATTENDS)
    if chooses is None:
        chooses = list(map(bool, pattern(own, "sparse_attention_freq", model.layers)))
    if not own.flag("use_sparse_attention", True):
        chooses = []
    own.refuse("sparse_score_type", "max")
    own.refuse("sparse_init_block", 0)
    values = pattern(own, "sparse_disable_index_value", model.layers)
    if any(there and not off for there, off in zip(chooses, values, strict=False)):
        own.fail("sparse_disable_index_value", "an indexer with values of its own is not planned")
    block = said.count("index_block_size", 128)
    indexer = Indexer(
        said.count("index_n_heads", 4, 10**6),
        said.count("index_head_dim", 128, 10**6),
        said.count("index_topk_blocks", 16, 10**6) * block,
        block,
    )
    said.count_or_zero("index_local_blocks", 1)
    if not any(chooses):
        k.absorb(CHOICE, own)
        return model
    if model.rotary_dim > indexer.dim:
        said.fail("index_head_dim", f"must be at least rotary_dim, {model.rotary_dim:,}")
    if indexer.heads != model.kv_heads:
        said.fail("index_n_heads", f"must be num_key_value_heads, {model.kv_heads:,}: one for each")
    k.absorb(CHOICE, own)
    traits = replace(model.traits, indexed=True)
    kinds = tuple(FULL if here else whole(FULL) for here in chooses)
    return replace(model, indexer=indexer, traits=traits, kinds=kinds)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, rms_norm_plus_one(t, x, "input_layernorm"), kind)
    x = add(t, x, h, "residual")
    h = rms_norm_plus_one(t, x, "post_attention_layernorm")
    h = _mlp(t, s, h, "mlp", FUSED / TP, F / TP) if is_dense(kind) else _mixture(t, s, h)
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias=False)
        q = heads_first(t, q, QUERY_ROWS, copies_grad=False)
        q = rms_norm_plus_one(t, q, "q_norm", HEAD_DIM)
        k = heads_first(t, k, KEY_ROWS, copies_grad=False)
        k = rms_norm_plus_one(t, k, "k_norm", HEAD_DIM)
        q, k = by_heads(t, q, k, copies_grad=False)
        v = value_heads(t, s, v)
        tables = rotary_tables(t)
        q, k = partial_rotary(t, q, k, tables)
        chooses = s.traits.indexed and not is_whole(kind)
        mask = chosen_blocks(t, s, x, tables) if chooses else None
        return attended(t, s, q, k, v, kind, "o_proj", bias=False, mask=mask)


def _mlp(t: Tape, s: Structure, x: Tensor, name: str, both: Factor, width: Factor) -> Tensor:
    with t.scope(name):
        halves = split(t, linear(t, "gate_up_proj", x, D, both, bias=False), [(*TOKENS, width)] * 2)
        out = linear(t, "down_proj", clamped_gate(t, *halves), width, D, bias=False)
        t.use(x)
        return out


def _gate(t: Tape, s: Structure, both: Tensor) -> Tensor:
    return clamped_gate(t, *split(t, both, [(both.shape[0], EXPERT_F / TP)] * 2))


STACKS = Stacks(_gate)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        shared = _mlp(t, s, x, "shared_experts", SHARED_FUSED / TP, SHARED_F / TP)
        routed = routed_experts(t, s, x, *sigmoid_router(t, x), STACKS)
        return add(t, scale(t, routed, "routed, scaled"), shared, "routed and shared")


NOTE = (
    "A server's times have what the indexer scores and the blocks that its tokens choose; a "
    "training step's have every token attend to all before it, under a mask, as transformers "
    "computes it."
)
FAMILY = Family(
    _config, embed, _layer, gemma.head, attentions=("eager", "sdpa"), note=NOTE,
    aliases={"num_experts": "num_local_experts"},
    classes={
        "MiniMaxM3VLForCausalLM": CAUSAL,
        "MiniMaxM3ForCausalLM": CAUSAL,
        "MiniMaxM3VLTextModel": EMBEDDING,
    },
)  # fmt: skip
FAMILIES = {"minimax_m3_vl_text": FAMILY}
