"""dots.llm1, K-EXAONE, and GLM-4.5, of which a part of each head turns: Llama's attention, and
DeepSeek-V3's experts."""

from __future__ import annotations

from dataclasses import replace

from memcore.models.config import Keys
from memcore.models.families import kin
from memcore.models.families.deepseek import mixture, router_groups
from memcore.models.families.deepseek_v32 import SPARSE
from memcore.models.families.family import layer_kinds, listed
from memcore.models.families.llama import attention, embed, head, llama_like, windowed
from memcore.models.families.mixtral import routing, sparse_kinds, sparse_layer, with_experts
from memcore.models.families.rows import family_of
from memcore.models.model import Model


def _mixed(
    k: Keys, model: Model, experts: tuple[int, int], size: int, shared: tuple[str, int], first: int
) -> Model:
    """The model with DeepSeek's experts; numbers are one family's defaults, `shared` of the key of
    that name. `first`: dense layers before those with experts."""
    size = k.count("moe_intermediate_size", size)
    before = k.count_or_zero("first_k_dense_replace", first)
    sparse = listed(k, "mlp_layer_types", model.layers, SPARSE)
    model = with_experts(model, routing(k, "n_routed_experts", *experts), size)
    name, usual = shared
    many = k.count_or_zero(name, usual)
    if not many:
        k.fail(name, "must be 1 or more: a model without shared experts is not known")
    model = replace(model, shared_size=size * max(1, many))
    return sparse_kinds(model, sparse.__getitem__ if sparse else lambda i: i >= before)


def _dots(k: Keys) -> Model:
    model = llama_like(k, "dots1")  # fmt: skip
    if k.config.get("sliding_window", 4096) is not None:
        start = k.count_or_zero("max_window_layers", 62)
        kinds = layer_kinds(k, model.layers, lambda i: i >= start)
        model = windowed(model, k.count("sliding_window", 4096), kinds)
    model = _mixed(k, model, (128, 6), 1408, ("n_shared_experts", 2), 0)
    router_groups(k, model, 1, 1)
    return model


def _exaone(k: Keys) -> Model:
    model = llama_like(k, "exaone_moe")  # fmt: skip
    model = _mixed(k, kin.exaone_windows(k, model), (64, 8), 1024, ("num_shared_experts", 1), 1)
    router_groups(k, model, 1, 1)
    return model


def _glm(k: Keys) -> Model:
    model = llama_like(k, "glm4_moe")
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


LAYER = sparse_layer(attention, mixture)
FAMILIES = {
    name: family_of(name, config, embed, LAYER, head)
    for name, config in (
        ("dots1", _dots),
        ("exaone_moe", _exaone),
        ("glm4_moe", _glm),
    )
}
