"""Work of single operations, counted by hand."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.timing.roofline import SEEN, flash_tile

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


LAST = "layers.mlp.down_proj.matmul"  # nothing that backward wants is made after its input
AGAIN = [n for n in FORWARD if n.startswith("layers.") and n != LAST]


def test_a_checkpointed_layer_does_not_run_its_last_product_again(operations):
    assert (LAST, "recompute") not in operations


@pytest.mark.parametrize("name", AGAIN)
def test_a_checkpointed_layer_runs_forward_again(operations, name):
    forward, again = operations[name, "forward"], operations[name, "recompute"]
    assert (forward.flops, forward.hbm_bytes) == (again.flops, again.hbm_bytes)


def test_backward_of_a_product_is_two_products(operations):
    name = "layers.mlp.down_proj.matmul"
    assert operations[name, "backward"].flops == 2 * operations[name, "forward"].flops


# GPT-2 medium, 64 x 1,024 tokens, forward and backward of attention (Dao et al. 2022, figure 2).
FLASH_GB, STANDARD_GB = 4.4, 40.3
TILED = 0.05
# transformers also casts scores to fp32 and back, and CUDA's softmax multiplies the gradient with
# its result in a kernel of its own before its backward (ATen/native/cuda/SoftMax.cu).
EAGER = 0.35


def accesses(tensor, rows, head_dim, sram):
    """Bytes that FlashAttention reads and writes, forward and backward, where each head is one
    multiprocessor's: for each tile of keys it passes over queries and results again (Dao et al.
    2022, theorem 2: of the order of (rows x head_dim)^2 / M). tensor: bytes of the queries."""
    passes, again = (SEEN * -(-rows // flash_tile(sram, head_dim, b)) for b in (False, True))
    return tensor * (2 + 3 * passes + 4 + 5 * again)


def test_flash_attention_accesses_hbm_as_published():
    """4.4 GB on an A100, whose multiprocessors have 192 KiB: tiles of 256 and of 128 keys."""
    sram, queries = 192 * 1024, 64 * 16 * 1024 * 64 * 2
    assert (flash_tile(sram, 64), flash_tile(sram, 64, backward=True)) == (256, 128)
    ours = accesses(queries, 1024, 64, sram)
    assert ours / 1e9 == pytest.approx(FLASH_GB, rel=TILED)
    # Of the order of (rows x head_dim)^2 / M where rows are many: four times for twice the rows.
    long, longer = (accesses(n * 128, n, 64, sram) for n in (2**18, 2**19))
    assert longer / long == pytest.approx(4, rel=TILED)


def test_eager_attention_reads_and_writes_quadratic_scores():
    plan = Plan(
        model="gpt2-medium",
        cluster={"gpu": "a100-sxm-40gb", "gpus": 1},
        train={"micro_batch": 64, "seq_len": 1024, "attention": "eager", "checkpointing": "none"},
    )

    def moved(attention):
        time = evaluate(plan.changed("train.attention", attention)).time
        return sum(o.hbm_bytes for o in time.operations if ".core." in o.name) / 24

    assert moved("eager") / 1e9 == pytest.approx(STANDARD_GB, rel=EAGER)
    assert moved("flash") < moved("eager") / 9


def test_flash_attention_runs_five_products_backward(operations):
    name = "layers.self_attn.core.flash"
    assert operations[name, "backward"].flops == 2.5 * operations[name, "forward"].flops


def test_a_tile_s_beginning_does_not_wait_for_slower_units():
    """A narrow product takes less than eight times as long on units that are eight times slower:
    the loads that begin a tile and the stores that end it take as long on either."""
    wide, narrow = (
        Plan(
            model="llama-3.2-1b",
            cluster={"gpu": "t4-16gb", "gpus": 1},
            train={
                "framework": "pytorch",
                "zero": 0,
                "micro_batch": 1,
                "seq_len": 2048,
                "attention": "eager",
                "checkpointing": "none",
                "precision": precision,
            },
        )
        for precision in ("fp32", "fp16-pure")
    )
    units = wide.accelerator.peak_flops("fp16") / wide.accelerator.peak_flops("fp32")

    def seconds(plan, name):
        return sum(
            o.compute_seconds for o in evaluate(plan).time.operations if o.name.endswith(name)
        )

    attention = seconds(wide, "core.scores") / seconds(narrow, "core.scores")
    projection = seconds(wide, "mlp.down_proj.matmul") / seconds(narrow, "mlp.down_proj.matmul")
    assert attention < projection < units


@pytest.mark.parametrize(("dtype", "kernel"), [("fp32", "fp32 product"), ("base", "product")])
def test_adapters_in_fp32_are_multiplied_in_fp32(dtype, kernel):
    """PEFT casts their input to what they are in (tuners/lora/layer.py: _cast_input_dtype)."""
    train = {"framework": "pytorch", "zero": 0, "adapter": "lora", "adapter_dtype": dtype,
             "precision": "bf16-pure", "seq_len": S}  # fmt: skip
    plan = Plan(model="llama-3-8b", cluster={"gpus": 1}, train=train)
    found = {o.kernel for o in evaluate(plan).time.operations if ".lora." in o.name and o.flops}
    assert found == {kernel}
