"""Our figures against those that papers and datasheets print (presets/evidence/published.toml)."""

import pytest
from tables import each

from evidence.papers import compared_published, published_table, states, weights
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

NORM_SHARE = 0.001  # norms and step counters, which the bytes-per-parameter figures leave out
LOOSEST = 0.03  # published sizes are nominal: "7B" is a model of about that many parameters
NARROW = 0.01  # attention's share of the FLOPs is larger in narrow layers
DRAWN = 0.15  # of lengths that are drawn the paper prints the means only


@each("row", compared_published, ids=lambda r: r.model)
def test_published_figures(row):
    drawn = "KV cache:" in row.model or "in a batch" in row.model
    assert abs(row.error) <= row.tolerance <= (DRAWN if drawn else LOOSEST)


def test_every_figure_has_its_source():
    assert all(figure["source"] for figure in published_table())


def test_weights_are_two_bytes_per_parameter():
    for figure in published_table():
        if figure["quantity"] == "weights":
            parameters = evaluate(Plan.of(figure["plan"])).parameters
            assert weights(figure) == 2 * parameters


def test_states_per_parameter():
    """At the optimizer step of a 7B model on one GPU, unsharded: 8, 12 and 16 bytes."""
    figures = [f for f in published_table() if f["quantity"] == "states"]
    assert [f["bytes_per_parameter"] for f in figures] == [8, 12, 16]
    for figure in figures:
        each = states(figure) / evaluate(Plan.of(figure["plan"])).parameters
        assert each == pytest.approx(figure["bytes_per_parameter"], rel=NORM_SHARE)


def test_offloads_of_zero_infinity_grow_with_batch_or_width():
    """Weights and states are moved once whatever the batch; of checkpoints the width counts."""
    ours = [row.ours for row in compared_published() if "FLOPs per byte" in row.model]
    weights, more_weights, states, more_states, kept, narrow = ours
    assert more_weights == pytest.approx(4 * weights, rel=NORM_SHARE)
    assert more_states == pytest.approx(4 * states, rel=NORM_SHARE)
    assert weights == pytest.approx(4 * states, rel=NORM_SHARE)
    assert narrow == pytest.approx(kept / 2, rel=NARROW)


def test_zero_3_divides_states_by_1024():
    """A model whose dimensions all divide by 1,024, so that nothing is padded but the norms."""
    widths = {"hidden_size": 4096, "intermediate_size": 11_264, "vocab_size": 32_768}
    sizes = widths | {"num_hidden_layers": 32}

    def states(gpus):
        cluster = {"gpus": gpus, "gpus_per_node": 8}
        memory = evaluate(Plan(model={"model_type": "llama", **sizes}, cluster=cluster)).memory
        step = next(m for m in memory.timeline if m.id == "optimizer-step")
        kept = sum(step.consumers[c] for c in ("parameters", "gradients", "optimizer_states"))
        return kept - 4 * (9 * 32 + 3)  # one step counter per parameter tensor stays whole

    assert states(1024) * 1024 == states(1)


def test_full_checkpointing_is_one_more_forward():
    """33 % more compute, less the head, which is not run again."""
    train = {"checkpointing": "full", "early_stop": "off"}
    time = evaluate(Plan(model="llama-2-7b", train=train)).time
    extra = time.recompute_flops / (time.hardware_flops - time.recompute_flops)
    assert extra == pytest.approx(1 / 3, abs=0.03)
    none = evaluate(Plan(model="llama-2-7b", train={"checkpointing": "none"})).time
    assert none.recompute_flops == 0
    assert time.resources["compute"] / none.resources["compute"] == pytest.approx(4 / 3, abs=0.04)


def test_kv_cache_of_llama_2_70b():
    """2 x 80 layers x 8 KV heads x 128 x 2 B x 262,144 tokens = 80 GiB: grouped queries count."""
    report = evaluate(Plan(model="llama-2-70b", serve={"concurrency": 128}))
    assert report.serve.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert report.serve.kv_bytes_per_token * 128 * 2048 == 80 * 2**30


@pytest.mark.parametrize("attention", ["flash", "sdpa"])
def test_flash_attention_keeps_no_quadratic_tensor(attention):
    def saved(seq_len, attention):
        train = {"seq_len": seq_len, "attention": attention, "checkpointing": "none"}
        return evaluate(Plan(train=train)).memory.saved_for_backward_bytes

    def curvature(attention):
        """Second difference over equal steps: nothing but a quadratic term survives it."""
        a, b, c = (saved(n, attention) for n in (2048, 4096, 6144))
        return c - 2 * b + a

    assert curvature(attention) == 0
    assert curvature("eager") > 2048 * 2048


def test_mfu_counts_palm_flops():
    """6 N + 12 L H Q T per token (Chowdhery et al. 2022, appendix B), N without the embedding."""
    plan = Plan(model="llama-3-8b", train={"seq_len": 4096})
    time = evaluate(plan).time
    m = plan.architecture
    n = evaluate(plan).parameters - m.vocab_size * m.hidden_size
    palm = 6 * n + 12 * m.layers * m.heads * m.head_dim * 4096
    assert time.model_flops / 4096 == pytest.approx(palm, rel=0.01)
