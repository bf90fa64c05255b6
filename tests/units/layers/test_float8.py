"""torchao's float8 under FSDP2, against what torchtitan printed with it and without (Llama 3.1 8B
on 8 H100, compiled): commit 069bae286, and benchmarks/llama3_h100_202412_torchtitan.md, table 1."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan

GIB = 2**30


def plan_of(precision, gpu="h100-sxm-96gb-500w", parallel=(), **words):
    train = {
        "micro_batch": 2, "seq_len": 8192, "checkpointing": "selective-op", "attention": "sdpa",
        "kernels": "compile", "precision": precision,
    }  # fmt: skip
    cluster = {"gpu": gpu, "gpus": 8}
    return Plan(model="llama-3.1-8b", cluster=cluster, parallel=dict(parallel), train=train | words)


@pytest.mark.parametrize(
    ("precision", "batch", "printed"),
    [("float8-tensorwise", 1, -0.33), ("float8-tensorwise", 2, -0.2), ("float8-rowwise", 1, 0.12)],
)
def test_memory_beside_bf16(precision, batch, printed):
    """Inputs are kept in bf16; gathered weights are half as large where they are in 8 bits."""
    wide, narrow = (
        evaluate(plan_of(p, micro_batch=batch)).memory for p in ("bf16-mixed", precision)
    )
    assert narrow.saved_for_backward_bytes == wide.saved_for_backward_bytes
    moved = (narrow.allocated_bytes - wide.allocated_bytes) / GIB
    assert moved == pytest.approx(printed, abs=0.15)


def test_what_is_gathered_in_8_bits():
    """Of each layer its matrices; the head, the embedding and the norms are not."""
    found = {}
    for word in ("float8-tensorwise", "float8-rowwise", "bf16-mixed"):
        moved = {t.name: t.bytes for t in evaluate(plan_of(word)).time.transfers}
        found[word] = moved["all-gather layers, forward"]
        root = moved["all-gather root, backward"]
        assert root == pytest.approx(2 * 2 * 128_256 * 4096, rel=1e-3)
    assert found["float8-rowwise"] == found["bf16-mixed"]
    assert found["float8-tensorwise"] == pytest.approx(found["bf16-mixed"] / 2, rel=1e-3)


def test_a_step_is_as_much_faster_as_printed():
    """6,667 to 8,532 tokens a second."""
    wide, narrow = (
        evaluate(plan_of(p)).time.step_seconds for p in ("bf16-mixed", "float8-tensorwise")
    )
    assert wide / narrow == pytest.approx(8532 / 6667, rel=0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu": "a100-sxm-80gb"}, "has no products in fp8"),
        ({"parallel": {"tp": 2}}, "has sequence parallelism"),
        ({"adapter": "lora", "adapter_dtype": "base", "kernels": "hf"}, "not planned with adapt"),
    ],
)
def test_what_it_does_not_run_with(words, message):
    with pytest.raises(PlanError, match=message):
        plan_of("float8-tensorwise", **words)


RANKS = {"tp": 2, "sequence_parallel": True}


def sent(precision, **words):
    return evaluate(plan_of(precision, parallel=RANKS, **words)).time.transfers


def test_ranks_send_8_bits_where_a_tensor_has_one_scale():
    """Tokens forward and gradients of results backward; what is summed is sent in 16 bits, and
    with a scale for each row all is (torchtitan/components/quantization/float8.md)."""

    def bytes_of(precision, words):
        return sum(t.bytes for t in sent(precision, checkpointing="none") if words in t.name)

    for words, share in (
        ("all-gather tokens, tensor parallel, forward", 0.5),
        ("all-gather gradients of results, tensor", 0.5),
        ("reduce-scatter partial results", 1),
        ("reduce-scatter gradients of tokens", 1),
    ):
        wide, by_row, narrow = (
            bytes_of(p, words) for p in ("bf16-mixed", "float8-rowwise", "float8-tensorwise")
        )
        assert by_row == wide > 0
        end = 2 * 2 * 8192 * 4096 if share < 1 else 0  # the head's input, the embedding's gradient
        assert narrow - end == pytest.approx(share * (wide - end), rel=1e-6), words


def test_a_scale_is_agreed_on_for_each_tensor():
    """Four inputs forward; five outputs of columns and two of rows backward."""
    found = [t for t in sent("float8-tensorwise", checkpointing="none") if "largest" in t.name]
    assert sum(t.bytes for t in found if "forward" in t.name) == 4 * 32 * 4
    assert sum(t.bytes for t in found if "backward" in t.name) == 7 * 32 * 4


@pytest.mark.parametrize("precision", ["float8-tensorwise", "float8-rowwise", "bf16-mixed"])
def test_pieces_run_behind_pieces_where_torch_compile_finds_both_side_by_side(precision):
    """micro_pipeline_tp.py: a cast between a collective and its product, as rows' scales want,
    leaves both whole; so does a sum of several products' gradients."""
    plain, cut = (sent(precision, async_tp=on) for on in (False, True))
    behind = {t.name for t in cut if "pieces" in t.hidden_by}
    assert not any("pieces" in t.hidden_by for t in plain)
    assert any("reduce-scatter partial results" in name for name in behind)
    by_row = precision == "float8-rowwise"
    assert any("all-gather tokens" in name for name in behind) is not by_row
    assert any("all-gather gradients of results" in name for name in behind) is not by_row
    assert not any("gradients of tokens" in name for name in behind)
    assert sum(t.exposed_seconds for t in cut) < sum(t.exposed_seconds for t in plain)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kernels": "hf"}, "torch.compile alone cuts"),
        ({"parallel": {"tp": 2}}, "summed by all ranks"),
    ],
)
def test_what_pieces_want(words, message):
    with pytest.raises(PlanError, match=message):
        plan_of("bf16-mixed", **{"parallel": RANKS, "async_tp": True, **words})


@pytest.mark.parametrize("parallel", [(), RANKS])
@pytest.mark.parametrize("precision", ["float8-tensorwise", "float8-rowwise"])
def test_every_number_is_explained(precision, parallel):
    kernels = {"kernels": "compile", "async_tp": True} if parallel else {"kernels": "hf"}
    plan = plan_of(precision, parallel=parallel, **kernels)
    checked(Book(plan, evaluate(plan)))
