"""Megatron-DeepSpeed: which gradients it keeps and sends, and what its pipelines hold.

What is expected is counted in DeepSpeed's code: runtime/bf16_optimizer.py, runtime/zero/
stage_1_and_2.py and runtime/pipe/engine.py of 0.7.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from memcore import Plan, evaluate
from memcore.step.step import waiting
from memcore.tape.ledger import Amounts, Group
from memcore.training.memory import rows_at
from memcore.training.steps import steps_of, training_sizes

RUN = {
    "model": "gpt2-medium",
    "cluster": {"gpu": "a100-sxm-80gb", "gpus": 4},
    "train": {"framework": "megatron", "kernels": "megatron", "zero": 1, "attention": "eager",
              "cross_entropy": "eager", "checkpointing": "full", "precision": "fp16-mixed",
              "micro_batch": 1, "seq_len": 1024, "grad_accumulation": 8},
}  # fmt: skip
TABLE = 50_304 * 1024  # its embedding, padded
ADDED = 1e-3  # share: rows that are padded, loss scale, counters


def plan_of(parallel=None, **train):
    gpus = 8 if parallel else 4
    words = {"train": RUN["train"] | train, "parallel": parallel or {}}
    return Plan.of(RUN | words | {"cluster": RUN["cluster"] | {"gpus": gpus}})


def at(report, name):
    return next(m for m in report.memory.timeline if m.id == name)


def states(precision, name, **train):
    """Bytes for each parameter of weights, gradients and optimizer at an instant."""
    report = evaluate(plan_of(precision=precision, **train))
    names = ("parameters", "gradients", "optimizer_states")
    return sum(at(report, name).consumers[n] for n in names) / report.parameters


@pytest.mark.parametrize(
    ("precision", "instant", "bytes_of_a_parameter"),
    [
        # weights, gradients that micro-batches add to, master and moments of a quarter
        ("fp16-mixed", "loss", 2 + 2 + 12 / 4),
        # after reduction a quarter in fp32 is left
        ("fp16-mixed", "optimizer-step", 2 + 4 / 4 + 12 / 4),
        # weights, the fp32 buffer, the 16-bit gradients of the micro-batch before
        ("bf16-mixed", "loss", 2 + 4 + 2 + 12 / 4),
        ("bf16-mixed", "optimizer-step", 2 + 4 + 2 + 12 / 4),
        # clear_lp_grads: those are gone when backward begins
        ("bf16-mixed", "loss-backward", 2 + 4 + 12 / 4),
    ],
)
def test_a_parameter_takes_as_many_bytes_as_deepspeed_s_code_keeps(
    precision, instant, bytes_of_a_parameter
):
    found = states(precision, instant)
    assert found == pytest.approx(bytes_of_a_parameter, rel=0.02)


def test_without_micro_batches_no_gradient_is_there_before_backward():
    assert states("fp16-mixed", "loss", grad_accumulation=1) == pytest.approx(5, rel=0.02)
    assert states("bf16-mixed", "loss", grad_accumulation=1) == pytest.approx(9, rel=0.02)


def test_bf16_without_an_fp32_buffer_is_reduced_as_fp16_is():
    narrow = states("bf16-mixed", "loss", grad_reduce_in_fp32=False)
    assert narrow == pytest.approx(states("fp16-mixed", "loss"), rel=ADDED)


def test_reduction_passes_through_one_bucket():
    report = evaluate(plan_of(reduce_bucket_size=100_000_000))
    reduced, kept = at(report, "reduce-gradients"), at(report, "keep-gradients")
    assert reduced.consumers["workspace"] - kept.consumers["workspace"] == 200_000_000
    part = kept.consumers["gradients"] - reduced.consumers["gradients"]
    assert part == pytest.approx(2 * report.parameters / 4, rel=0.01)


def test_every_weight_has_a_gradient_of_its_own():
    plan = plan_of()
    rows = rows_at(plan, [m.id for m in evaluate(plan).memory.timeline].index("reduce-gradients"))
    counted = sum(r.bytes for r in rows if r.name.endswith(".grad"))
    assert counted == pytest.approx(2 * evaluate(plan).parameters, rel=0.003)


def test_gradients_are_reduced_to_their_owners_in_fp16_and_summed_whole_in_bf16():
    """average_tensor reduces each part to its rank; _bf16_reduce_grads sums the fp32 buffer."""

    def sent(precision):
        report = evaluate(plan_of(precision=precision))
        (move,) = [t for t in report.time.transfers if "gradients of weights" in t.name]
        return move.name.split()[0], move.bytes / report.parameters

    assert sent("fp16-mixed") == ("reduce-scatter", pytest.approx(2, rel=0.01))
    assert sent("bf16-mixed") == ("all-reduce", pytest.approx(4, rel=0.01))


@pytest.mark.parametrize(
    ("tp", "stage", "held"),
    # a part of what was sent; whole, with what came; what came alone
    [(2, 0, 0.5), (2, 1, 0.5), (2, 3, 0), (1, 0, 1), (1, 1, 2), (1, 3, 1)],
)
def test_a_stage_holds_what_it_sent_and_got_until_the_backward(tp, stage, held):
    """pipe_buffers; with tensor parallelism what came is made whole, and runs."""
    plan = plan_of({"tp": tp, "pp": 4})
    step, amounts = steps_of(plan)[stage], Amounts(training_sizes(plan))
    hidden = 2 * 1024 * 1024
    assert amounts.alive([(step.handed, 1)]) == held * hidden
    others = amounts.alive(waiting(step)) - amounts.alive(waiting(replace(step, handed=Group(()))))
    assert others == (4 - stage - 1) * held * hidden


@pytest.mark.parametrize(("batches", "slots"), [(1, 1), (8, 2)])
def test_what_the_last_stage_put_out_stays_with_its_graph_s_checkpoints(batches, slots):
    """_exec_backward_pass returns before it clears the last stage's pipe_buffers['outputs'], of
    which TrainSchedule.num_pipe_buffers has two; CheckpointFunction keeps its inputs itself."""
    plan = plan_of(grad_accumulation=batches)
    index = [m.id for m in evaluate(plan).memory.timeline].index("optimizer-step")
    rows = rows_at(plan, index)
    logits = sum(r.bytes for r in rows if r.name.startswith("logits"))
    inputs = sum(r.bytes for r in rows if r.consumer == "activations") - logits
    assert logits == slots * 4 * 1024 * 50_304
    assert inputs == slots * 24 * 2 * 1024 * 1024


def test_checkpoints_stay_until_backward_is_over():
    report = evaluate(plan_of({"tp": 2, "pp": 4}))
    first = [m for m in report.memory.timeline if m.id.startswith("backward")]
    held = {m.id: m.consumers["activations"] for m in first}
    assert held["backward-first-layer"] >= held["backward-last-layer"]


def test_the_table_s_gradient_is_widened_on_its_way_into_the_buffer():
    report = evaluate(plan_of(precision="bf16-mixed"))
    assert at(report, "sum-gradients").consumers["workspace"] >= 4 * TABLE


def test_megatron_by_itself_keeps_its_buffer():
    found = evaluate(plan_of(attention="flash"))
    names = ("parameters", "gradients", "optimizer_states")
    total = sum(at(found, "loss").consumers[n] for n in names) / found.parameters
    assert total == pytest.approx(2 + 4 + 12 / 4, rel=0.02)
