"""Small mixtures of experts, and how Megatron-LM trains them."""

from memcore.tape.ledger import Amounts
from memcore.training.steps import step_of, training_sizes

MEGATRON = {"framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none"}
MIXTURE = {
    "model_type": "qwen3_moe",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "vocab_size": 4096,
}
LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 16,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 256,
    "vocab_size": 4096,
}


def of_experts(p, state, experts=True):
    """Bytes of one kind of state, of the experts or of all else, on one GPU."""
    amounts, step = Amounts(training_sizes(p)), step_of(p)
    return sum(
        times * r.copies * amounts.bytes(r.shape, r.dtype)
        for group, times in step.every(state)
        for r in group.rows
        if (".experts." in r.name) == experts
    )
