"""The instant that is named as the peak is the one that PyTorch's memory tracker shows.

The tracker says at its peak how many bytes of each kind are alive. Which weights are gathered,
which gradients are reduced already and which buffer a reduction holds tell the instants apart.
"""

import functools
import json
from collections import Counter

import pytest
from tables import each

from evidence.pytorch import dispatched_bytes, oracle, plan_of
from memcore.plan.plan import Plan
from memcore.tape import ledger
from memcore.tape.kinds import Role
from memcore.tape.ledger import AUTOGRAD, Amounts
from memcore.training.memory import rows_alive
from memcore.training.steps import step_of, training_sizes

# As a share of the whole peak; under autocast the reference keeps wider activations than a GPU.
TOLERANCE, TOLERANCE_AUTOCAST = 0.01, 0.03

# The tracker's words -> ours. A whole gradient that was just made is a 'Temp' to the tracker.
KINDS = {
    "Parameter": "parameters",
    "Sharded Param": "parameters",
    "Optstate": "optimizer states",
    "OptState": "optimizer states",
    "Unsharded Param": "gathered",
    "All Gather": "gathered",
    "Reduce Scatter": "reduction",
    "Sharded Grad": "reduced gradients",
    "Gradient": "other",
    "Unsharded Grad": "other",
    "Activation": "other",
    "Temp": "other",
    "Buffer": "other",
}
ROWS = [r for r in oracle() if r["kind"] == "peak"]


def kind_of(row):
    if row.consumer in ("parameters", "optimizer_states"):
        return row.consumer.replace("_", " ")
    if row.name.endswith("(gathered)"):
        return "gathered"
    if row.name.endswith("(reduce-scatter input)"):
        return "reduction"
    sharded = row.consumer == "gradients" and row.source != AUTOGRAD
    return "reduced gradients" if sharded else "other"


@functools.cache  # two tests ask of each row
def ours_at_peak(at_row):
    """Our peak of forward and backward: its instant's name, and bytes by kind."""
    plan = plan_of(ROWS[at_row])
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    found = [(*dispatched_bytes(i, amounts), i) for i in step.instants if i.id != "optimizer-step"]
    _, at, peak = max(found, key=lambda f: f[0])
    kinds = Counter()
    for row, count, size in rows_alive(peak, at, amounts):
        if row.role is not Role.KERNEL:  # which PyTorch's dispatcher does not see
            kinds[kind_of(row)] += count * size
    return peak.id, kinds


def name(at_row):
    return "-".join(list(ROWS[at_row].values())[1:9])


@each("at_row", range(len(ROWS)), ids=name)
def test_the_same_kinds_are_alive(at_row):
    row, (peak, kinds) = ROWS[at_row], ours_at_peak(at_row)
    ours, theirs = Counter(kinds), Counter()
    for word, n in json.loads(row["detail"]).items():
        if word in KINDS:
            theirs[KINDS[word]] += n
    if "reduction" not in theirs:  # a buffer that was just made is a 'Temp' to the tracker too
        ours["other"] += ours.pop("reduction", 0)
    autocast = row["regime"] == "autocast"
    room = int(row["value"]) * (TOLERANCE_AUTOCAST if autocast else TOLERANCE)
    apart = {k: ours[k] - theirs[k] for k in {*ours, *theirs} if abs(ours[k] - theirs[k]) > room}
    assert not apart, f"at {peak}: {apart} bytes apart"


@each("at_row", range(len(ROWS)), ids=name)
def test_the_peak_is_before_or_after_the_gradients_exist(at_row):
    """Without FSDP: which gradients are whole already. Those of the block that is running may be
    the tracker's 'Temp' still."""
    detail, (peak, _) = json.loads(ROWS[at_row]["detail"]), ours_at_peak(at_row)
    forward = peak in ("loss", "loss-backward", "forward-last-layer", "root-gather")
    had = detail.get("Gradient", 0) + detail.get("Sharded Grad", 0)
    assert forward == (had == 0), (peak, had)


@pytest.mark.parametrize(
    "train",
    [
        {"framework": "pytorch", "zero": 0, "precision": "bf16-pure"},
        {"framework": "fsdp2", "zero": 3},
        {"framework": "deepspeed", "zero": 3},
    ],
    ids=lambda t: t["framework"],
)
def test_what_the_embedding_saved_is_there_once_in_its_backward(train):
    plan = Plan(model="gpt2", cluster={"gpus": 2}, train={"seq_len": 512, **train})
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    instant = next(i for i in step.instants if i.id == "embedding-backward")
    saved = {row.name for row in ledger.saved(step.blocks.embed).rows}
    assert saved
    times = Counter()
    for at in range(len(instant.window.alive)):
        found = Counter()
        for row, count, _ in rows_alive(instant, at, amounts):
            if row.name in saved:
                found[row.name] += count
        times |= found
    assert set(times) == saved
    assert set(times.values()) == {1}
