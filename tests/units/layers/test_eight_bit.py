"""Products in 8 bits: what Transformer Engine and Megatron-Core keep then.

Figures follow from transformer_engine/pytorch (2.20): module/linear.py and layernorm_linear.py
(what is saved), module/base.py: quantize_weight (the cached weights), tensor/float8_tensor.py and
mxfp8_tensor.py (bytes of each); megatron/core/transformer/attention.py: set_save_original_input.
"""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.words.training import COPIES, eight_bit

D, F, Q, LAYERS, TOKENS = 4096, 14_336, 4096, 32, 4096  # Llama 3 8B, one sequence
MATRICES = 6_979_321_856  # its layers' linear weights: 32 x (4096 x (6144 + 4096 + 3 x 14336))
H100, B200 = "h100-sxm-80gb", "b200-sxm-180gb"


def plan(precision, gpu=B200, **train):
    words = {"framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none"}
    return Plan(
        model="llama-3-8b",
        cluster={"gpu": gpu, "gpus": 8},
        parallel={"tp": 1},
        train=words | {"precision": precision} | train,
    )


def saved(p):
    return evaluate(p).memory.saved_for_backward_bytes


def parameters(p):
    return evaluate(p).memory.consumers["parameters"]


ROWWISE = ("fp8-mixed", "fp8-params")


# Inputs of qkv, fc1 and fc2 go from two bytes to one, and one more in 32 with MXFP8; with NVFP4 to
# half of one, and a scale of one for each 16 (tensor/nvfp4_tensor.py). That of the
# output projection stays, since attention keeps it, but with delayed scaling: one byte more.
@pytest.mark.parametrize(
    ("gpu", "precision", "less"),
    [
        *((gpu, precision, D + D + F) for gpu in (H100, B200) for precision in ROWWISE),
        *((gpu, "fp8-delayed", D + D + F - Q) for gpu in (H100, B200)),
        *((B200, precision, (D + D + F) * 31 / 32) for precision in ("mxfp8", "mxfp8-params")),
        *((B200, p, (D + D + F) * (2 - 0.5 - 1 / 16)) for p in ("nvfp4", "nvfp4-params")),
    ],
)
def test_inputs_of_products_are_kept_in_8_bits(gpu, precision, less):
    assert saved(plan("bf16-mixed", gpu)) - saved(plan(precision, gpu)) == LAYERS * TOKENS * less


# Bytes per weight beside the two in bf16. Hopper multiplies fp8 by rows only, so that a weight is
# kept turned too; MXFP8 has scales of its own along columns.
@pytest.mark.parametrize(
    ("gpu", "precision", "more"),
    [
        (H100, "fp8-mixed", 1 + 1),
        (H100, "fp8-params", 1 + 1 - 2),
        (B200, "fp8-mixed", 1),
        (B200, "fp8-params", 1 - 2),
        (B200, "mxfp8", 2 + 2 / 32),
        (B200, "mxfp8-params", 2 + 2 / 32 - 2),
        (B200, "nvfp4", 2 * (1 / 2 + 1 / 16)),
        (B200, "nvfp4-params", 2 * (1 / 2 + 1 / 16) - 2),
    ],
)
def test_bytes_of_a_weight(gpu, precision, more):
    beside = parameters(plan(precision, gpu)) - parameters(plan("bf16-mixed", gpu))
    assert beside == MATRICES * more


def test_embedding_norms_and_head_stay_in_16_bits():
    rows = [r for r in evaluate(plan("mxfp8-params")).ledger if r.consumer == "parameters"]
    wide = {r.name for r in rows if r.dtype == "bf16"}
    assert {"embed.embed_tokens.weight", "head.lm_head.weight"} <= wide
    assert not [name for name in wide if "proj" in name or "qkv" in name]


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("precision", [p for f, p in COPIES if f == "megatron" and eight_bit(f, p)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_parts_add_up_and_more_tokens_never_need_less(model, precision, sequence_parallel):
    peaks = []
    tp = 2 if sequence_parallel else 1
    for seq_len in (512, 1024, 4096):
        p = Plan(
            model=model,
            cluster={"gpu": B200, "gpus": 16},
            parallel={"tp": tp, "pp": 2, "sequence_parallel": sequence_parallel},
            train=plan(precision, seq_len=seq_len).document()["train"],
        )
        report = evaluate(p)
        memory = report.memory
        assert sum(memory.consumers.values()) == memory.allocated_bytes
        on_gpu = [r.bytes for r in report.ledger if r.tier == "hbm"]
        assert sum(on_gpu) == memory.allocated_bytes
        peaks.append(memory.allocated_bytes)
        assert report.time.step_seconds > 0
    assert peaks == sorted(peaks)


def test_delayed_scaling_keeps_a_history():
    rows = [r for r in evaluate(plan("fp8-delayed")).ledger if r.name.endswith("largest values)")]
    assert sum(r.bytes for r in rows) == LAYERS * 4 * 1024 * 5 * 4  # four linear layers


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"precision": "mxfp8", "gpu": H100}, "train.precision"),
        ({"precision": "fp8-mixed", "gpu": "a100-sxm-80gb"}, "train.precision"),
        ({"precision": "mxfp8", "gpu": "rtx-pro-6000-96gb"}, "train.precision"),
        ({"precision": "fp8-params", "zero": 0}, "train.precision"),
        ({"precision": "nvfp4", "gpu": H100}, "train.precision"),
        ({"precision": "nvfp4", "seq_len": 4104}, "train.seq_len"),
        ({"precision": "mxfp8", "seq_len": 4008}, "train.seq_len"),
        (
            {"precision": "mxfp8", "framework": "pytorch", "kernels": "hf", "zero": 0},
            "train.precision",
        ),
    ],
)
def test_what_cannot_be_is_refused(words, field):
    with pytest.raises(PlanError, match=field.replace(".", r"\.")):
        plan(**words)


@pytest.mark.parametrize("precision", ["fp8-mixed", "fp8-delayed", "fp8-params", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_every_number_is_explained(precision, checkpointing):
    p = plan(precision, checkpointing=checkpointing)
    checked(Book(p, evaluate(p)))


def test_tensor_parallel_ranks_share_what_is_in_8_bits():
    """Two ranks hold each matrix once, with sequence parallelism each its own tokens."""
    one, two = (
        evaluate(
            Plan(
                model="llama-3-8b",
                cluster={"gpu": B200, "gpus": 8},
                parallel={"tp": tp, "sequence_parallel": True},
                train=plan("mxfp8").document()["train"],
            )
        )
        for tp in (1, 2)
    )
    eight = [
        sum(r.bytes for r in report.ledger if r.dtype == "fp8" and r.consumer == "parameters")
        for report in (one, two)
    ]
    assert eight[0] == 2 * eight[1]


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b"])
def test_mixtures_of_experts(model):
    """Each expert's matrices and inputs are in 8 bits, the router stays in bf16."""
    words = plan("mxfp8").document()["train"] | {"micro_batch": 1}
    of = {"model": model, "cluster": {"gpu": B200, "gpus": 8}, "parallel": {"ep": 8}}
    report = evaluate(Plan(**of, train=words))
    wide = evaluate(Plan(**of, train=words | {"precision": "bf16-mixed"}))
    assert report.memory.saved_for_backward_bytes < wide.memory.saved_for_backward_bytes
    names = {r.name for r in report.ledger if r.dtype == "fp8"}
    assert any("experts.linear_fc1.weight (8 bit)" in n for n in names)
    assert not [n for n in names if "router" in n]
    assert any("padded" in note for note in report.notes)
