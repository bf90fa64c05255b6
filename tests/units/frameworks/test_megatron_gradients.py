"""Gradients that Megatron sums in fp32, or in the weights' 16 bits."""

from __future__ import annotations

import pytest

from memcore import Plan, evaluate
from memcore.units import GiB

RUN = {
    "model": "llama-3-8b",
    "cluster": {"gpu": "h100-sxm-80gb", "gpus": 16},
    "train": {"framework": "megatron", "kernels": "megatron", "zero": 1, "attention": "flash",
              "micro_batch": 1, "seq_len": 4096, "grad_accumulation": 4, "cross_entropy": "fused"},
}  # fmt: skip


def report(**train):
    return evaluate(Plan.of(RUN | {"train": RUN["train"] | train}))


def states(**train) -> float:
    """Bytes for each parameter of weights, gradients and optimizer while the optimizer steps."""
    found = report(**train)
    step = next(m for m in found.memory.timeline if m.id == "optimizer-step")
    names = ("parameters", "gradients", "optimizer_states")
    return sum(step.consumers[name] for name in names) / found.parameters


@pytest.mark.parametrize(
    ("in_fp32", "zero", "bytes_of_a_parameter"),
    [(True, 0, 18), (True, 1, 6 + 12 / 16), (False, 0, 20), (False, 1, 4 + 16 / 16)],
)
def test_a_parameter_takes_as_many_bytes_as_megatron_says(in_fp32, zero, bytes_of_a_parameter):
    """Megatron-LM, docs/user-guide/features/dist_optimizer.md: the table of bytes per parameter. In
    16 bits the optimizer's fp32 copy of its part of the gradients is among them."""
    found = states(grad_reduce_in_fp32=in_fp32, zero=zero)
    assert found == pytest.approx(bytes_of_a_parameter, rel=1e-3)


def test_before_the_optimizer_steps_gradients_take_half() -> None:
    wide, narrow = (
        next(m for m in report(grad_reduce_in_fp32=on).memory.timeline if m.id == "loss")
        for on in (True, False)
    )
    gradients = wide.consumers["gradients"], narrow.consumers["gradients"]
    assert gradients[0] == 2 * gradients[1] > 10 * GiB


def test_ranks_send_half_and_products_add_to_half_as_many_bytes() -> None:
    wide, narrow = (report(grad_reduce_in_fp32=on).time for on in (True, False))

    def sent(time):
        return sum(t.bytes for t in time.transfers if "gradients of weights" in t.name)

    assert sent(wide) == 2 * sent(narrow) > 0

    def moved(time):
        return sum(o.hbm_bytes for o in time.operations if o.phase == "backward")

    assert moved(narrow) < moved(wide)
    assert narrow.step_seconds < wide.step_seconds
