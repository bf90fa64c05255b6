"""Standard: a Llama-shaped model of about a given size."""

from __future__ import annotations

import bisect
import math
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.units import count_text, parse_count

SMALLEST_SIZE, LARGEST_SIZE = 10**8, 2 * 10**12

# Width and depth of published Llama models, by parameters: SmolLM2-135M, TinyLlama-1.1B, Llama 2
# 7B, 13B and 70B, Llama 3.1 405B; the last row continues the trend. A standard model lies between.
STANDARD_PARAMETERS = (134_515_008, 1.1e9, 6_738_415_616, 13.0e9, 68_976_648_192, 405.9e9, 2.1e12)
STANDARD_HIDDEN = (576, 2_048, 4_096, 5_120, 8_192, 16_384, 28_672)
STANDARD_LAYERS = (30, 22, 32, 40, 80, 126, 192)
STANDARD_VOCAB = 32_000
GROUPED_QUERIES_FROM = 30 * 10**9  # Llama 2 groups queries from its 34B model on, over 8 KV heads


def standard_config(size: str) -> dict[str, Any]:
    """A Llama-shaped config.json with about `size` parameters, e.g. '7B'. Raises PlanError.

    Width and depth are interpolated between published Llama models (logarithmically in the
    parameter count); the feed-forward width, in multiples of 64, then takes up what is left,
    which brings the count within 1.5 % of `size`.
    """
    try:
        wanted = parse_count(size)
    except ValueError as e:
        raise PlanError([Issue("model.size", str(e))]) from None
    if not SMALLEST_SIZE <= wanted <= LARGEST_SIZE:
        low, high = count_text(SMALLEST_SIZE), count_text(LARGEST_SIZE)
        raise PlanError(
            [Issue("model.size", f"{shown(size)} must lie between {low} and {high} parameters")]
        )
    step = 1_024 if wanted > 5e9 else 256 if wanted > 5e8 else 64
    hidden = max(1, round(_between(wanted, STANDARD_HIDDEN) / step)) * step
    layers = round(_between(wanted, STANDARD_LAYERS))
    head_dim = 128 if hidden % 128 == 0 and wanted >= 1e9 else 64
    heads = hidden // head_dim
    kv_heads = 8 if wanted >= GROUPED_QUERIES_FROM and heads % 8 == 0 else heads
    attention = 2 * hidden * (heads + kv_heads) * head_dim
    left = wanted - 2 * STANDARD_VOCAB * hidden - layers * (attention + 2 * hidden)
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": max(1, round(left / (3 * hidden * layers) / 64)) * 64,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": STANDARD_VOCAB,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


def _between(parameters: float, values: tuple[int, ...]) -> float:
    """`values` at STANDARD_PARAMETERS, interpolated logarithmically in both."""
    known = STANDARD_PARAMETERS
    i = min(max(bisect.bisect(known, parameters), 1), len(known) - 1)
    share = math.log(parameters / known[i - 1]) / math.log(known[i] / known[i - 1])
    return float(values[i - 1] * (values[i] / values[i - 1]) ** share)
