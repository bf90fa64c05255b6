"""The tables in reference/: what PyTorch, PEFT and others said, and the plans of their rows."""

import json
from pathlib import Path

import pytest

from memcore.evidence import REGIMES
from memcore.evidence.planned import training_of
from memcore.evidence.pytorch import wider_on_a_gpu
from memcore.models.families import FAMILIES, from_config
from memcore.plan.plan import Plan
from memcore.step.step import workspaces
from memcore.tape.kinds import Role

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
RANKS = 4  # of the FSDP2 rows
UNNAMED = ("kind", "bytes", "at", "detail")  # of a row: what its test's name leaves out


def table(name):
    return json.loads((REFERENCE / f"{name}.json").read_text())


def family_of(config):
    """Its family: of a wrapper that is none by itself, that of the language model inside."""
    kind = config["model_type"]
    return kind if kind in FAMILIES else from_config(config).family


def rows(asked, kind):
    return [
        pytest.param(r, id=" ".join(str(v) for k, v in r.items() if k not in UNNAMED))
        for r in asked["rows"]
        if r["kind"] == kind
    ]


def plan_of(asked, row, words, train=(), gpu="h100-sxm-80gb"):
    """The plan of a row whose `words` are fields of `train` by the same names."""
    regime = row.get("regime", "pure-bf16")
    own = {"micro_batch": row["batch"], "seq_len": row["seq"]} | {w: row[w] for w in words}
    gpus = RANKS if regime.startswith("fsdp2") else 1
    return Plan(
        model=asked["configs"][row["model"]],
        train=own | REGIMES[regime] | dict(train),
        cluster={"gpu": gpu, "gpus": gpus},
    )


def plan_of_family(asked, row):
    more = [word for word in ("images", "target_len") if word in row]
    return plan_of(asked, row, ("attention", "checkpointing", *more))


def plan_of_peak(plan):
    """The same plan; one whose reference, which ran on a CPU, keeps less than a GPU is skipped."""
    if wider_on_a_gpu(plan.architecture.traits.activation, plan.train.precision):
        pytest.skip("torch.pow is in fp32 under CUDA's autocast alone")
    return plan


def trained(plan):
    """A plan's training: its memory and parameters are those of the Report (held to be in
    units/search/test_levers.py), without the time and the serving that a table does not ask."""
    return training_of(plan)


def peak_before_the_optimizer(found):
    """The references leave the optimizer's step out. They are asked on fake tensors, by PyTorch's
    dispatcher, which does not see what the code of one CUDA kernel allocates."""
    moments = (i for i in found.step.instants if i.id != "optimizer-step")
    most = max(_dispatched(i, found.amounts) for i in moments)
    return most - workspaces(found.amounts)


def _dispatched(instant, amounts):
    window = instant.window
    if not window:
        return amounts.held(instant.holding)
    each = [
        0 if row.role is Role.KERNEL else amounts.bytes(row.shape, row.dtype) for row in window.rows
    ]
    most = max(sum(each[i] for i in alive) for alive in window.alive)
    return amounts.held(instant.holding) + most
