"""Collectives behind other work: what they take from it, and which ones Megatron hides."""

import pytest

from memcore import Plan, evaluate
from memcore.errors import PlanError
from memcore.hardware import constants
from memcore.timing.communication import LAYER_FORWARD, Links, Move

MEGATRON = {
    "model": "llama-3-8b",
    "cluster": {"gpu": "h100-sxm-80gb", "gpus": 16},
    "parallel": {"tp": 2, "sequence_parallel": True},
    "train": {"framework": "megatron", "kernels": "megatron", "zero": 1, "attention": "flash",
              "micro_batch": 1, "seq_len": 4096, "grad_accumulation": 8, "cross_entropy": "fused"},
}  # fmt: skip


def time_of(gpu="h100-sxm-80gb", **train):
    words = {"train": MEGATRON["train"] | train, "cluster": {"gpu": gpu, "gpus": 16}}
    return evaluate(Plan.of(MEGATRON | words)).time


def exposed(time, words):
    return sum(t.exposed_seconds for t in time.transfers if words in t.name)


def test_a_hidden_collective_costs_what_it_takes_however_slow_its_link_is() -> None:
    """Of the same bytes: ten times as long on a slow link is not ten times the loss."""

    def lost(seconds: float) -> float:
        move = Move("", {"weights": 1e9}, {"network": seconds}, 1, 10.0, LAYER_FORWARD,
                    axis="DP", taken=0.2, drawn=0.05)  # fmt: skip
        return move.exposed

    assert lost(0.5) == pytest.approx(0.2 * 0.5 + 0.05)
    assert lost(5.0) == pytest.approx(0.2 * 5.0 + 0.05)


def test_what_nothing_hides_is_waited_for_whole() -> None:
    move = Move("", {"weights": 1e9}, {"network": 3.0}, 2, 0.0, LAYER_FORWARD, axis="DP",
                taken=0.2, drawn=0.05)  # fmt: skip
    assert move.exposed == 6.0


def test_a_collective_takes_nccls_multiprocessors_and_reads_and_writes_memory() -> None:
    plan = Plan.of(MEGATRON)
    over = Links.of(plan, 8)
    assert over.taken == constants.COLLECTIVE_SMS.middle / plan.accelerator.sms
    assert over.drawn("all-gather", 8e9) == pytest.approx(2 * 7e9 / over.memory)
    assert over.drawn("all-reduce", 8e9) == pytest.approx(4 * 7e9 / over.memory)
    tpu = Plan.of(MEGATRON | {"cluster": {"gpu": "tpu-v5p-95gb", "gpus": 16}, "train": {}})
    assert Links.of(tpu, 8).taken == 0


def test_megatron_hides_what_data_parallelism_sends() -> None:
    """NeMo's callback turns both on where there is data parallelism; Megatron-LM's own default is
    off (nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py)."""
    hidden = time_of()
    reduced = time_of(overlap_param_gather=False)
    bare = time_of(overlap_param_gather=False, overlap_grad_reduce=False)
    gradients, weights = "gradients of weights", "updated weights"
    assert exposed(hidden, gradients) < 0.5 * exposed(bare, gradients)
    assert exposed(hidden, weights) < 0.5 * exposed(bare, weights)
    assert exposed(reduced, weights) == exposed(bare, weights)
    assert hidden.step_seconds < reduced.step_seconds < bare.step_seconds


def test_megatron_gathers_behind_forward_only_where_it_reduces_behind_backward() -> None:
    with pytest.raises(PlanError, match="overlap_grad_reduce"):
        time_of(overlap_grad_reduce=False)


def test_tensor_parallel_transfers_run_behind_pieces_of_their_products() -> None:
    """The head's are not Transformer Engine's, and are waited for as before."""
    plain, cut = time_of(tp_comm_overlap=False), time_of()
    words = "all-gather tokens, tensor parallel, forward"
    assert exposed(cut, words) < exposed(plain, words)
    assert cut.step_seconds < plain.step_seconds
    summed = MEGATRON | {"parallel": {"tp": 2}}  # no sequence parallelism: nothing to cut
    off = summed | {"train": MEGATRON["train"] | {"tp_comm_overlap": False}}
    assert evaluate(Plan.of(summed)).time == evaluate(Plan.of(off)).time


def test_torchs_collectives_copy_what_they_gather() -> None:
    """torch/distributed/_functional_collectives.py: cat(chunk(...)) where it is not the first
    dimension: read and written once more, forward and backward."""
    rows = evaluate(Plan.of(MEGATRON | {"train": {"seq_len": 4096}})).time.operations
    whole, part = 2 * 4096 * 4096, 4096 * 4096
    for name in ("layers.mlp.gather", "layers.mlp.down_proj.scatter"):
        for phase in ("forward", "backward"):
            of = next(o for o in rows if o.name == name and o.phase == phase)
            assert of.hbm_bytes / of.runs == whole + part + 2 * whole, (name, phase)


def test_megatrons_loss_is_a_kernel_for_each_step() -> None:
    """Widened (6 bytes of a logit), read for the largest and the sum, read and written for the
    difference, the exponential and the quotient; backward multiplies and narrows it."""
    rows = {o.phase: o for o in time_of(cross_entropy="eager").operations if ".loss." in o.name}
    logits = 4096 * 128_256 / 2
    for phase, each in (("forward", 6 + 2 * 4 + 3 * 8), ("backward", 8 + 6)):
        of = rows[phase]
        assert of.hbm_bytes / of.runs == pytest.approx(each * logits, rel=0.01), phase


def test_a_product_in_8_bits_makes_its_operands_narrow_first() -> None:
    """By a kernel of its own: it takes traffic and a launch that no arithmetic hides."""
    time = time_of(precision="fp8-delayed")
    rows = {o.name: o for o in time.operations if o.phase == "forward"}
    narrow = rows["layers.mlp.down_proj.matmul, to 8 bits"]
    wide, tokens = 14_336 // 2, 4096
    # Read in 16 bits, written in 8 along rows and along columns, and once more for what is kept.
    each = narrow.hbm_bytes / narrow.runs / (tokens * wide)
    assert 4 <= each <= 5
    assert narrow.bound_by == "hbm"
    assert not any("to 8 bits" in o.name for o in time_of().operations)


def test_a_scale_that_is_read_off_a_tensor_takes_one_more_pass() -> None:
    """Transformer Engine 2.9, csrc/quantizer.cpp: Float8CurrentScalingQuantizer; of what a norm
    made its kernel has found the largest value (csrc/extensions/normalization.cpp)."""
    rows = [
        {(o.name, o.phase): o.hbm_bytes / o.runs for o in time_of(precision=p).operations}
        for p in ("fp8-delayed", "fp8-mixed")
    ]
    shard = 4096 * 4096 // 2  # of two ranks that share out the tokens
    for name, phase, wide in (
        ("gate_up_proj", "forward", 0), ("down_proj", "forward", 4096 * 14_336 // 2),
        ("gate_up_proj", "backward", 4096 * 14_336), ("down_proj", "backward", shard),
    ):  # fmt: skip
        delayed, current = (of[f"layers.mlp.{name}.matmul, to 8 bits", phase] for of in rows)
        assert current - delayed == 2 * wide, (name, phase)


def test_gradients_that_ranks_share_out_are_made_narrow_before_they_are_gathered() -> None:
    """Of o_proj's and down_proj's results; attention's result is made narrow again, where it was
    kept as it is."""
    shard, heads = 4096 * 4096 // 2, 4096 * 4096 // 2
    for precision, again in (("fp8-delayed", 0), ("mxfp8", heads)):
        rows = {
            (o.name, o.phase): o.hbm_bytes / o.runs
            for o in time_of(precision=precision, gpu="b200-sxm-180gb").operations
        }
        copies = 2 if precision == "mxfp8" else 1  # along rows, and along columns
        found = rows["layers.self_attn.o_proj.matmul, to 8 bits", "backward"]
        assert found == (2 + copies) * (shard + again), precision


def test_links_of_version_1_keep_their_meaning() -> None:
    from memcore.plan.link import decode

    plan, _ = decode({"v": "1", "model": "llama-3-8b", "fw": "megatron"})
    assert not plan.train.overlap_grad_reduce
    assert not plan.train.overlap_param_gather
    assert not plan.train.tp_comm_overlap
