"""DeepSeek-V3.2 and GLM-5: V3's layers, where an indexer chooses the tokens that each attends to.

Of GLM-5.2 most layers attend to the tokens that a layer before them chose. A server keeps a key of
each token for every indexer, beside the latents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, sparse_kinds
from memcore.models.families.deepseek import CACHE, latent, layer, router_groups
from memcore.models.families.family import listed
from memcore.models.families.llama import embed, head
from memcore.models.model import Indexer, Model
from memcore.tape.kinds import FULL, shared

SHARES = {"full": False, "shared": True}
SPARSE = {"dense": False, "sparse": True}


def _config(k: Keys, family: str, groups: tuple[int, int]) -> Model:
    model, first = latent(k, family), k.count_or_zero("first_k_dense_replace", 3)
    if not model.query_rank:
        k.fail("q_lora_rank", "missing; an indexer reads the compressed queries")
    router_groups(k, model, *groups)
    sparse = listed(k, "mlp_layer_types", model.layers, SPARSE)
    sparse = [i >= first for i in range(model.layers)] if sparse is None else sparse
    indexer = Indexer(
        k.count("index_n_heads", 64 if family == "deepseek_v32" else 32, 10**6),
        k.count("index_head_dim", 128, 10**6),
        k.count("index_topk", 2048),
    )
    if model.rotary_dim > indexer.dim:
        k.fail("index_head_dim", f"must be at least qk_rope_head_dim, {model.rotary_dim:,}")
    model = replace(model, indexer=indexer, kinds=_kinds(k, model))
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


FAMILIES = {
    name: family_of(
        name, partial(_config, family=name, groups=groups), embed, layer, head, cache=CACHE
    )
    for name, groups in (("deepseek_v32", (8, 4)), ("glm_moe_dsa", (1, 1)))
}
