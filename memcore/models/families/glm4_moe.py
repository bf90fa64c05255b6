"""GLM-4.5 and its kin: Llama's attention, of which a part of each head turns, and DeepSeek-V3's
experts."""

from __future__ import annotations

from dataclasses import replace

from memcore.models.config import Keys
from memcore.models.families.deepseek import mixture, router_groups
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import attention, embed, head, llama_like
from memcore.models.families.mixtral import routing, sparse_kinds, sparse_layer, with_experts
from memcore.models.model import Model


def _config(k: Keys, label: str) -> Model:
    model = llama_like(
        k,
        label,
        "glm4_moe",
        intermediate=10_944,
        layers=46,
        heads=96,
        kv_heads=8,
        vocab=151_552,
        positions=131_072,
        attention_bias=k.flag("attention_bias", False),
        out_bias=False,
        query_norm=k.flag("use_qk_norm", False),
        rotary_partial=True,
        router_sigmoid=True,
        router_normalised=k.flag("norm_topk_prob", True),
    )
    size = k.count("moe_intermediate_size", 1408)
    first = k.count_or_zero("first_k_dense_replace", 1)
    model = with_experts(model, routing(k, "n_routed_experts", 128, 8), size)
    router_groups(k, model, 1, 1)
    model = replace(
        model,
        rotary_dim=int(model.head_dim * k.rope("partial_rotary_factor", 0.5)),
        shared_size=size * k.count("n_shared_experts", 1, 1000),
    )
    return sparse_kinds(model, lambda i: i >= first)


FAMILY = Family(
    _config, embed, sparse_layer(attention, mixture), head, kernels=HF_ONLY,
    aliases={
        "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    },
    classes=decoder_classes("Glm4Moe", classifier=False),
)  # fmt: skip
