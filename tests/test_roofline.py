"""Work of single operations, counted by hand."""

import pytest

from memcore import Plan, evaluate

B, S, D, Q, KV, F, VOCAB, LAYERS = 2, 1024, 4096, 4096, 1024, 14_336, 128_256, 32
HEADS = 32
BF16, FP32 = 2, 4


@pytest.fixture(scope="module")
def operations():
    plan = Plan(
        model="llama-3-8b",
        cluster={"gpus": 1},
        train={"micro_batch": B, "seq_len": S, "checkpointing": "full", "attention": "flash"},
    )
    return {(o.name, o.phase): o for o in evaluate(plan).time.operations}


FORWARD = {
    # name: (FLOPs of one execution, bytes read and written, executions)
    "embed.embed_tokens.lookup": (0, B * S * 8 + 2 * B * S * D * BF16, 1),
    "layers.input_layernorm.x (fp32)": (0, B * S * D * (BF16 + FP32), LAYERS),
    "layers.self_attn.q_proj.matmul": (
        2 * B * S * D * Q, (B * S * (D + Q) + D * Q) * BF16, LAYERS,
    ),
    "layers.self_attn.core.flash": (
        2 * B * S * S * Q,  # two products, half of each behind the causal mask
        B * S * (2 * Q + 2 * KV) * BF16 + B * S * HEADS * FP32,
        LAYERS,
    ),
    "layers.mlp.down_proj.matmul": (
        2 * B * S * F * D, (B * S * (F + D) + F * D) * BF16, LAYERS,
    ),
    "head.lm_head.matmul": (2 * B * S * D * VOCAB, (B * S * (D + VOCAB) + D * VOCAB) * BF16, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_forward_work(operations, name):
    flops, moved, times = FORWARD[name]
    operation = operations[name, "forward"]
    assert operation.flops == flops * times
    assert operation.hbm_bytes == moved * times


@pytest.mark.parametrize("name", [n for n in FORWARD if n.startswith("layers.")])
def test_a_checkpointed_layer_runs_forward_again(operations, name):
    forward, again = operations[name, "forward"], operations[name, "recompute"]
    assert (forward.flops, forward.hbm_bytes) == (again.flops, again.hbm_bytes)


def test_backward_of_a_product_is_two_products(operations):
    name = "layers.mlp.down_proj.matmul"
    assert operations[name, "backward"].flops == 2 * operations[name, "forward"].flops


def test_flash_attention_runs_five_products_backward(operations):
    name = "layers.self_attn.core.flash"
    assert operations[name, "backward"].flops == 2.5 * operations[name, "forward"].flops
