"""What the gradient of a token embedding needs while it is made."""

import pytest

from evidence.planned import training_of
from memcore.plan.plan import Plan
from memcore.training.memory import held

TIED = "llama-3.2-1b"  # 128,256 tokens of width 2,048
SUMS, JOINED = "weight grad, sums", "weight grad, joined"


def bytes_of(name, **train):
    words = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "micro_batch": 1}
    found = training_of(Plan(model=TIED, cluster={"gpus": 1}, train=words | train))
    return sum(n for row, n in held(found.step, found.amounts).items() if row.endswith(name))


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [(3072, 0), (3073, 3073 + 307), (131_072, 128_256 + 13_107)],
    ids=["not sorted", "one for each token", "one for each of the vocabulary"],
)
def test_many_tokens_are_summed_in_fp32(tokens, rows):
    """EmbeddingBackwardKernel.cu: max_segments + numel / NROWS_PER_THREAD rows."""
    assert bytes_of(SUMS, seq_len=tokens) == rows * 2048 * 4


def test_a_tpu_has_another_kernel():
    words = {"framework": "fsdp2", "zero": 3, "precision": "bf16-mixed", "seq_len": 8192}
    plan = Plan(model=TIED, cluster={"gpu": "tpu-v5p-95gb", "gpus": 4}, train=words)
    found = training_of(plan)
    every = held(found.step, found.amounts).items()
    assert not any(n for row, n in every if row.endswith(SUMS))


def test_autograd_adds_in_place_to_a_gradient_that_is_no_view():
    """As torch's profiler says: aten::add of a linear layer's gradient, add_ of what a kernel of
    its own has made."""
    assert bytes_of(JOINED) == 128_256 * 2048 * 2
    assert not bytes_of(JOINED, kernels="liger", cross_entropy="chunked")
