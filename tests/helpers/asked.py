"""The tables in reference/: what PyTorch, PEFT and others said, and the plans of their rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evidence.planned import training_of
from evidence.pytorch import REGIMES, dispatched, wider_on_a_gpu
from memcore.models.families import FAMILIES, from_config, wrappers
from memcore.plan.plan import Plan

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
RANKS = 4  # of the FSDP2 rows
UNNAMED = ("kind", "bytes", "at", "detail")  # of a row: what its test's name leaves out


def table(name):
    return json.loads((REFERENCE / f"{name}.json").read_text())


def asked_anew(script, *arguments):
    """What the function `asked` of a script in reference/ says now, in a process of its own."""
    code = (
        f"import json, sys, {script}; print(json.dumps({script}.asked(*json.loads(sys.argv[1]))))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        cwd=REFERENCE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(said.stdout.splitlines()[-1])  # libraries may print before it


def config_of(asked, row):
    """The config.json of a row's model: of one with a tower that was asked no images, that of the
    language model inside, which was asked alone."""
    config = asked["configs"][row["model"]]
    alone = "images" not in row and config["model_type"] in FAMILIES.keys() & wrappers.KNOWN.keys()
    return wrappers.opened(config) if alone else config


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
        model=config_of(asked, row),
        train=own | REGIMES[regime] | dict(train),
        cluster={"gpu": gpu, "gpus": gpus},
    )


def seen(row):
    """The fields about images that a row has."""
    return [word for word in ("images", "image_size") if word in row]


def plan_of_family(asked, row):
    more = [*seen(row), *(["target_len"] if "target_len" in row else ())]
    return plan_of(asked, row, ("attention", "checkpointing", *more))


def saved(plan):
    """Bytes that a micro-batch's forward leaves for its backward."""
    return trained(plan).memory.saved_for_backward_bytes


def peak(plan):
    """The most bytes at once before the optimizer; of a plan whose reference, which ran on a CPU,
    keeps less than a GPU the test is skipped."""
    if wider_on_a_gpu(plan.architecture.traits.activation, plan.train.precision):
        pytest.skip("torch.pow is in fp32 under CUDA's autocast alone")
    return dispatched(trained(plan))


def trained(plan):
    """A plan's training: its memory and parameters are those of the Report (held to be in
    units/search/test_levers.py), without the time and the serving that a table does not ask."""
    return training_of(plan)
