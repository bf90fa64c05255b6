"""What PyTorch itself says of parameters, saved bytes and peaks (presets/evidence/oracle)."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Mapping
from typing import Any

from evidence.planned import memory_of, of_training, training_of
from memcore.evidence.comparison import AUTOGRAD, COUNTED, TRACKER, Comparison, text
from memcore.models import catalog
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES
from memcore.plan.plan import Plan
from memcore.step.step import Instant, workspaces
from memcore.tape.kinds import Role
from memcore.tape.ledger import Amounts
from memcore.training.training import Training

# The reference's words for a framework, its precision and its ZeRO stage.
REGIMES: Mapping[str, Mapping[str, Any]] = {
    "pure-bf16": {"framework": "pytorch", "precision": "bf16-pure", "zero": 0},
    "autocast": {"framework": "pytorch", "precision": "bf16-autocast", "zero": 0},
    "fsdp2-reshard": {"framework": "fsdp2", "precision": "bf16-mixed", "zero": 3},
    "fsdp2-no-reshard": {"framework": "fsdp2", "precision": "bf16-mixed", "zero": 2},
}
# What temporaries of a byte mask or a sum in flight leave open: 0.001 % at most today.
PEAK_TOLERANCE = 0.0001
# The reference's attention is not on the autocast list; a GPU's is (oracle/README.md).
PEAK_TOLERANCES = {"autocast": 0.03}

_KINDS = {
    "params": (COUNTED, "parameters"),
    "saved": (AUTOGRAD, "saved"),
    "peak": (TRACKER, "peak"),
}


@functools.cache
def _configs() -> dict[str, dict[str, Any]]:
    configs: dict[str, dict[str, Any]] = json.loads(text("oracle", "configs.json"))
    return configs


@functools.cache
def oracle() -> tuple[Mapping[str, str], ...]:
    """The reference's rows, as its table has them, of every model whose family is known."""
    rows = csv.DictReader(text("oracle", "figures.csv").splitlines())
    return tuple(row for row in rows if _is_comparable(_configs()[row["model"]], row["regime"]))


def _is_comparable(config: Mapping[str, Any], regime: str) -> bool:
    precision = REGIMES[regime or "pure-bf16"]["precision"]
    wider = wider_on_a_gpu(config.get("activation_function", ""), precision)
    return config["model_type"] in FAMILIES and not wider


def wider_on_a_gpu(activation: str, precision: str) -> bool:
    """Whether the reference, which ran on a CPU, keeps less than a GPU: torch.pow is on the list of
    what autocast runs in fp32 for CUDA alone (aten/src/ATen/autocast_mode.h), and one GELU has
    it. A run of our own on an H100 is compared instead (evidence/campaign.py)."""
    return precision == "bf16-autocast" and activation == "gelu_new"


@functools.cache
def preset_parameters() -> dict[str, int]:
    """Parameters of each preset as transformers counts them."""
    rows = csv.DictReader(text("oracle", "preset_parameters.csv").splitlines())
    return {r["preset"]: int(r["parameters"]) for r in rows}


def compared_presets() -> tuple[Comparison, ...]:
    """The parameters of each preset beside ours."""
    found = []
    for name, theirs in preset_parameters().items():
        model = catalog.model(name)
        found.append(_counted(name, model.family, theirs, parameters(model)))
    return tuple(found)


def plan_of(row: Mapping[str, str]) -> Plan:
    """The plan that a row of the reference is about."""
    config = dict(_configs()[row["model"]])
    if row["layers"]:
        key = "n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"
        config[key] = int(row["layers"])
    train: dict[str, Any] = {"seq_len": 64}
    if row["batch"]:
        train = {
            "micro_batch": int(row["batch"]),
            "seq_len": int(row["seq"]),
            "attention": row["attn"],
            "checkpointing": row["ckpt"],
            **REGIMES[row["regime"] or "pure-bf16"],
        }
    cluster = {"gpus": int(row["world"] or 1), "gpus_per_node": 8}
    return Plan.of({"model": config, "train": train, "cluster": cluster})


def compared(row: Mapping[str, str]) -> Comparison:
    """One row of the reference beside ours."""
    source, what = _KINDS[row["kind"]]
    plan, theirs = plan_of(row), int(row["value"])
    family = plan.architecture.family
    if what == "parameters":
        return _counted(row["model"], family, theirs, parameters(plan.architecture))
    regime = row["regime"] or "pure-bf16"
    if what == "saved":
        ours, tolerance = memory_of(plan).saved_for_backward_bytes, 0.0
    else:
        ours, tolerance = dispatched_peak(plan), PEAK_TOLERANCES.get(regime, PEAK_TOLERANCE)
    told = of_training(plan) | {"regime": regime, "family": family, "layers": int(row["layers"])}
    return Comparison(
        source, row["model"], what, theirs, ours, "bytes",
        gpus=plan.cluster.gpus, tolerance=tolerance, **told,
    )  # fmt: skip


def _counted(model: str, family: str, theirs: int, ours: int) -> Comparison:
    return Comparison(COUNTED, model, "parameters", theirs, ours, "parameters", family)


def dispatched_peak(plan: Plan) -> int:
    """The peak of forward and backward, as PyTorch's dispatcher sees it, which does not see what
    the code of one CUDA kernel allocates. The reference leaves out the optimizer's step."""
    return dispatched(training_of(plan))


def dispatched(found: Training) -> int:
    """The same of what is planned."""
    moments = (i for i in found.step.instants if i.id != "optimizer-step")
    most = max(dispatched_bytes(i, found.amounts)[0] for i in moments)
    return most - int(workspaces(found.amounts))


def dispatched_bytes(instant: Instant, amounts: Amounts) -> tuple[int, int]:
    """The same of one instant, with cuBLAS's workspaces, and the step of its window where they
    peak."""
    held = amounts.held(instant.holding)
    if not instant.window:
        return int(held), 0
    rows, alive = instant.window.rows, instant.window.alive
    each = [0 if row.role is Role.KERNEL else amounts.bytes(row.shape, row.dtype) for row in rows]
    sizes = [sum(each[i] for i in here) for here in alive]
    most = max(sizes)
    return int(held + most), sizes.index(most)
