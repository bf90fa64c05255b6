"""dots.llm1, K-EXAONE, and GLM-4.5, of which a part of each head turns: Llama's attention, and
DeepSeek-V3's experts."""

from __future__ import annotations

from functools import partial

from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
)
from memcore.models.families.deepseek import mixture, router_groups
from memcore.models.families.llama import attention, embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model


def _grouped(k: Keys, family: str) -> Model:
    model = llama_like(k, family)
    router_groups(k, model, 1, 1)
    return model


LAYER = sparse_layer(attention, mixture)
FAMILIES = {
    name: family_of(name, partial(_grouped, family=name), embed, LAYER, head)
    for name in ("dots1", "exaone_moe", "glm4_moe")
}
