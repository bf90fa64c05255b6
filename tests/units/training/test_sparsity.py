"""Sparse gradients of the token embedding, row-wise optimizers, and 2:4 weights."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.words.stored import STORED_BITS

VOCAB, WIDTH, TOKENS = 32_000, 4096, 2 * 1024
TABLE = "embed.embed_tokens.weight"
BYTES = 2  # bf16-pure


def plan(model="llama-2-7b", gpus=1, **train):
    words = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}
    sizes = {"micro_batch": 2, "seq_len": 1024, "checkpointing": "none"}
    return Plan(model=model, cluster={"gpus": gpus}, train=words | sizes | train)


def rows(p, consumer):
    return {r.name: r for r in evaluate(p).ledger if r.consumer == consumer}


def at_step(p):
    return next(m for m in evaluate(p).memory.timeline if m.id == "optimizer-step")


# torch.nn.Embedding(sparse=True) has one row for each token, as the gradient that came has them.
def test_a_sparse_gradient_has_a_row_for_each_token():
    dense, sparse = (at_step(plan(embedding_gradient=w)).consumers for w in ("dense", "sparse"))
    less = (VOCAB - TOKENS) * WIDTH * BYTES
    assert dense["gradients"] - sparse["gradients"] == less


@pytest.mark.oracle
def test_torch_s_sparse_gradient():
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(100, 8, sparse=True, dtype=torch.bfloat16)
    optimizer = torch.optim.SparseAdam(table.parameters())
    out = table(torch.randint(0, 100, (2, 16)))
    came = torch.randn_like(out)
    out.backward(came)
    grad = table.weight.grad
    assert grad._values().shape == (32, 8)
    assert grad._values().untyped_storage().nbytes() == 32 * 8 * 2
    optimizer.step()
    state = {k: v for k, v in optimizer.state[table.weight].items() if torch.is_tensor(v)}
    assert set(state) == {"exp_avg", "exp_avg_sq"}
    assert all((v.shape, v.dtype) == ((100, 8), torch.bfloat16) for v in state.values())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adam8bit"])
@pytest.mark.parametrize(
    ("word", "states"),
    [
        ("sparse", {"exp_avg": VOCAB * WIDTH * BYTES, "exp_avg_sq": VOCAB * WIDTH * BYTES}),
        ("fused", {"momentum1": VOCAB * 4}),  # FBGEMM: EXACT_ROWWISE_ADAGRAD, fp32
    ],
)
def test_the_table_has_an_optimizer_of_its_own(optimizer, word, states):
    kept = rows(plan(optimizer=optimizer, embedding_gradient=word), "optimizer_states")
    ours = {n.removeprefix(f"{TABLE}."): r.bytes for n, r in kept.items() if n.startswith(TABLE)}
    assert ours == states


def test_a_fused_optimizer_leaves_no_gradient():
    dense, fused = (at_step(plan(embedding_gradient=w)).consumers for w in ("dense", "fused"))
    assert dense["gradients"] - fused["gradients"] == VOCAB * WIDTH * BYTES


def test_no_more_rows_are_read_than_there_are():
    """SparseAdam's step has six tensors of the distinct rows."""
    few, many = (at_step(plan(embedding_gradient="sparse", seq_len=n)) for n in (512, 4096 * 8))
    assert few.consumers["workspace"] < many.consumers["workspace"]
    rows = many.consumers["workspace"] - 2 * constants.CUBLAS_WORKSPACE_HOPPER.middle
    assert rows >= 6 * VOCAB * WIDTH * BYTES
    assert rows < 6.1 * VOCAB * WIDTH * BYTES


@pytest.mark.parametrize(
    "words",
    [
        {"gpus": 8},
        {"framework": "fsdp2", "zero": 3},
        {"model": "gemma-2-2b"},  # tied
        {"precision": "bf16-autocast"},
        {"grad_accumulation": 2},
        {"adapter": "lora"},
        {"frozen": "lower"},
    ],
)
def test_what_is_not_modelled_is_refused(words):
    with pytest.raises(PlanError, match=r"train\.embedding_gradient"):
        plan(embedding_gradient="sparse", **words)


def test_it_takes_nobodys_gpus_away():
    with pytest.raises(PlanError) as refused:
        plan(embedding_gradient="sparse", gpus=8)
    assert not any("cluster.gpus" in r for i in refused.value.issues for r in i.remedies)


@pytest.mark.parametrize("word", ["sparse", "fused"])
@pytest.mark.parametrize("model", ["llama-2-7b", "pythia-1.4b", "olmoe-1b-7b"])
def test_every_number_is_explained(word, model):
    p = plan(model, embedding_gradient=word)
    report = evaluate(p)
    on_gpu = [r.bytes for r in report.ledger if r.tier == "hbm"]
    assert sum(on_gpu) == report.memory.allocated_bytes
    checked(Book(p, report))


@pytest.mark.oracle
def test_two_of_four_weights_are_nine_bits_each():
    """Values and places as torch converts a dense matrix for CUTLASS."""
    torch = pytest.importorskip("torch")
    from torch.sparse._semi_structured_conversions import (
        sparse_semi_structured_from_dense_cutlass as converted,
    )

    dense = torch.zeros(128, 256, dtype=torch.bfloat16)
    dense[:, ::2] = 1  # two of each four
    parts = converted(dense)
    bits = 8 * sum(p.numel() * p.element_size() for p in parts) / dense.numel()
    assert bits == STORED_BITS["bf16 2:4"] == 9


def test_a_served_model_with_two_of_four_weights():
    dense, sparse = (
        evaluate(Plan(model="llama-2-7b", serve={"weight_dtype": w})).serve.weights_bytes
        for w in ("bf16", "bf16-sparse24")
    )
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
    assert dense - sparse == matrices * 7 // 8
