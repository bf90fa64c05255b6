"""DeepSeek-V3.2 and GLM-5: V3's layers, where an indexer chooses the tokens that each attends to.

Of GLM-5.2 most layers attend to the tokens that a layer before them chose. A server keeps a key of
each token for every indexer, beside the latents.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like, sparse_kinds
from memcore.models.families.deepseek import CACHE, latent, layer, router_groups
from memcore.models.families.family import listed
from memcore.models.families.llama import embed, head
from memcore.models.model import Indexer, Model
from memcore.tape.kinds import FULL, shared

SHARES = {"full": False, "shared": True}
SPARSE = {"dense": False, "sparse": True}


def _config(
    k: Keys, model: Model, widths: tuple[int, int, int], heads: int, groups: tuple[int, int]
) -> Model:
    first = k.count_or_zero("first_k_dense_replace", 3)
    model = latent(k, model, (256, 8), 2048, 1, 3, widths)
    if not model.query_rank:
        k.fail("q_lora_rank", "missing; an indexer reads the compressed queries")
    router_groups(k, model, *groups)
    sparse = listed(k, "mlp_layer_types", model.layers, SPARSE)
    sparse = [i >= first for i in range(model.layers)] if sparse is None else sparse
    k.refuse("mlp_bias", False, None)
    indexer = Indexer(
        k.count("index_n_heads", heads, 10**6),
        k.count("index_head_dim", 128, 10**6),
        k.count("index_topk", 2048),
    )
    if model.rotary_dim > indexer.dim:
        k.fail("index_head_dim", f"must be at least qk_rope_head_dim, {model.rotary_dim:,}")
    traits = replace(
        model.traits,
        indexed=True,
        router_sigmoid=True,
        router_normalised=k.flag("norm_topk_prob", True),
        rotary_interleaved=True,
    )
    model = replace(model, indexer=indexer, traits=traits, kinds=_kinds(k, model))
    return sparse_kinds(model, sparse.__getitem__)


def _kinds(k: Keys, model: Model) -> tuple[str, ...]:
    if model.family == "deepseek_v32":
        return ()
    shares = listed(k, "indexer_types", model.layers, SHARES)
    if shares is None:
        every = k.count("index_topk_freq", 1)
        start = k.count_or_zero("index_skip_topk_offset", 2)
        shares = [max(i - start + 1, 0) % every != 0 for i in range(model.layers)]
        k.refuse("index_topk_pattern", None)
    if shares and shares[0]:
        k.fail("indexer_types", "the first layer has none to share with; make it full")
    return tuple(shared(FULL) if share else FULL for share in shares) if any(shares) else ()


def _v32(k: Keys) -> Model:
    model = llama_like(k, "deepseek_v32")
    return _config(k, model, (128, 128, 1536), 64, (8, 4))


def _glm(k: Keys) -> Model:
    model = llama_like(k, "glm_moe_dsa")
    return _config(k, model, (192, 256, 2048), 32, (1, 1))


NOTE = (
    "A server's times have what the indexer scores and what its tokens choose; a training step's "
    "have every token attend to all before it, under a mask, as transformers computes it."
)
ALIASES = {
    "num_local_experts": "n_routed_experts",
    "num_experts": "n_routed_experts",
    "num_mtp_layers": "num_nextn_predict_layers",
}
FAMILIES = {
    name: family_of(name, config, embed, layer, head, cache=CACHE)
    for name, config in (
        ("deepseek_v32", _v32),
        ("glm_moe_dsa", _glm),
    )
}
