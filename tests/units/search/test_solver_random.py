"""Solvers equal brute force, of random plans: every field that can be solved for, both ways.

What is asked is `evaluate`, of every value of a bounded lattice: all near the least, near the
plan's own and near the answer, and powers of two up to the greatest. A run takes a few of these;
the thousand are `-m thousand`, and MEMPLAN_EXPLORE=1 draws others.
"""

import json
import math
from collections import Counter
from zlib import crc32

import pytest
from drawn import divided, plans, served, stacked
from explored import EXPLORE, examples
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from memcore import solve
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import facts, field_of, limits_of
from memcore.plan.repair import settled
from memcore.search.solver import (
    FLOAT_STEPS,
    LARGEST,
    SMALLEST,
    bookable,
    config_of,
    numeric_fields,
    smallest_gpu,
)
from memcore.serving.serve import servable
from memcore.training.training import not_planned

NEAR = 12  # values on either side of a known one
LIKE = ("layers", "model.vocab_size", "cluster.gpu.memory_bytes", "cluster.node.dram_bytes")
OF_A_STACK = ("layers", "model.vocab_size")  # one, whose config.json has them at its top
FIELDS = (*numeric_fields(), *LIKE, "cluster.gpu")
EACH = math.ceil(1000 / len(FIELDS))  # plans of a field


MEANT = {  # words under which a field means something that are seldom drawn
    "train.lora_rank": {"train.adapter": "lora"},
    "train.lora_dropout": {"train.adapter": "lora"},
    "parallel.shard_group": {"train.framework": "fsdp2", "train.zero": 3},
    "parallel.virtual_stages": {"parallel.pp": 2, "train.grad_accumulation": 8},
}


@st.composite
def scarce(draw, path):
    """A plan on a GPU that has from too little memory for it to a lot."""
    kind = path.partition(".")[0]
    if kind == "serve" or (kind == "cluster" and draw(st.booleans())):
        plan = draw(served())
    elif path in OF_A_STACK:
        plan = draw(st.one_of(plans(), divided()))
    else:
        plan = draw(st.one_of(plans(), divided(), stacked()))
    if kind == "together" or draw(st.integers(0, 7)) == 0:
        plan = _changed(plan, {"together.kind": draw(st.sampled_from(["grpo", "ppo"]))}) or plan
    plan = settled(plan, MEANT.get(path, {})) or plan
    report = evaluate(plan)
    most = report.memory.device_bytes[1] if report.memory else 1 << 33
    if kind == "serve" and report.serve:
        s = report.serve
        most = s.weights_bytes + s.activation_bytes + s.overhead_bytes + 4 * s.sequence_bytes
    room = int(most * draw(st.sampled_from([0.6, 1.02, 1.3, 2, 8])))
    gpu = catalog.accelerator(draw(st.sampled_from(["h100-sxm-80gb", "l4-24gb", "mi300x-192gb"])))
    described = gpu.model_dump(mode="json", exclude_none=True)
    described |= {"memory_bytes": room, "usable_bytes": room}
    return _changed(plan, {"cluster.gpu": described}) or plan


def _changed(plan, changes):
    try:
        return plan.with_changes(changes)
    except PlanError:
        return None


def at(plan, path, value):
    """The plan with this value, made without the solver; None where a rule forbids it."""
    if path in LIKE:
        part = path.rpartition(".")[0] or "model"
        if part == "model":
            described = config_of(plan)
            key = path.rpartition(".")[2]
            if key == "layers":
                key = next(k for k in ("num_hidden_layers", "n_layer", "num_layers") if
                           isinstance(described.get(k), int))  # fmt: skip
        else:
            here = plan.accelerator if part == "cluster.gpu" else plan.cluster.node
            if here is None or isinstance(here, str):
                here = catalog.node(here or plan.accelerator.node)
            described = here.model_dump(mode="json", exclude_none=True)
            key = path.rpartition(".")[2]
            if key == "memory_bytes":  # as sold: the same share of it can be allocated
                share = described["usable_bytes"] * value // described[key]
                described["usable_bytes"] = share
        return _changed(plan, {part: described | {key: value}})
    return _changed(plan, {path: value})


def fits(plan, path, value):
    changed = at(plan, path, value)
    if changed is None:
        return False
    report = evaluate(changed)
    if path.startswith("serve."):
        return report.serve is not None and report.serve.fits and report.serve.running > 0
    return report.verdict == "fits"


def lattice(plan, path, found):
    """Values that the field may have, the least first."""
    if path == "cluster.gpu":
        return [n for n in catalog.gpu_names() if not catalog.accelerator(n).caveat]
    if path in LIKE:
        low, high, unit = 1, 4096 if path == "layers" else 1 << 20, 1
        if path.startswith("cluster."):
            high = 1 << 50
        here = plan.architecture.layers
    else:
        low, high = limits_of(path)
        unit = FLOAT_STEPS if field_of(path).annotation is float else 1
        here = getattr(getattr(plan, path.partition(".")[0]), path.rpartition(".")[2], low)
        if facts(path).auto and low == 0:
            low = 1 / unit
        low += any(hasattr(limit, "gt") for limit in field_of(path).metadata) / unit
    low, high = math.ceil(low * unit), math.floor(high * unit)
    middles = [low, round(here * unit), *([round(found * unit)] if found is not None else [])]
    whole = {n for m in middles for n in range(m - NEAR, m + NEAR + 1)}
    whole |= {2**k for k in range(high.bit_length())} | {high}
    within = sorted(n for n in whole if low <= n <= high)
    if path == "cluster.gpus":
        within = sorted({*within} & {*bookable(plan)} | {*bookable(plan, 256)})
    if path == "parallel.shard_group":
        ranks = plan.dp * plan.parallel.cp
        within = [n for n in within if ranks % n == 0]
    return [n / unit for n in within] if unit > 1 else within


def held(plan, path, goal):
    """A solver's answer does, and no value of the lattice that does is better; what forbids the
    next, or 'kind' where there is no question."""
    if path.startswith("serve.") and not servable(plan.architecture):
        return "kind"
    trained = path == "cluster.gpus" or path.partition(".")[0] in ("train", "parallel")
    if trained and not_planned(plan):
        return "kind"
    found = smallest_gpu(plan) if path == "cluster.gpu" else solve(plan, path, goal)
    value, values = found.value, lattice(plan, path, found.value)
    if path == "cluster.gpu":  # of presets the one with the least memory
        sizes = {n: catalog.accelerator(n).memory_bytes for n in values}
        better = [n for n in values if value is None or sizes[n] < sizes[value]]
    elif value is None:
        better = values
    else:
        better = [v for v in values if (v > value if goal == LARGEST else v < value)]
    where = f"{path} {goal} {found} {json.dumps(plan.document())}"
    if value is not None:
        assert fits(plan, path, value), where
        assert found.plan == at(plan, path, value), where
    for v in better:
        assert not fits(plan, path, v), f"{v} of {where}"
    return found.limit


def asked_of(path):
    goals = [SMALLEST] if path == "cluster.gpu" else [LARGEST, SMALLEST]
    return st.tuples(scarce(path), st.just(path), st.sampled_from(goals))


@examples(24)
@given(st.sampled_from(FIELDS).flatmap(asked_of))
def test_a_few_random_plans_as_brute_force(asked):
    held(*asked)


@pytest.mark.thousand
@pytest.mark.parametrize("path", FIELDS)
def test_a_thousand_random_plans_as_brute_force(path):
    """Thirteen or more of each field: both directions of each."""
    limits = []

    @(lambda test: test if EXPLORE else seed(crc32(path.encode()))(test))
    @settings(examples(EACH), phases=[Phase.generate])  # to shrink takes minutes
    @given(asked_of(path))
    def every(asked):
        limits.append(held(*asked))

    every()
    assert len(limits) >= EACH
    print(path, sorted(Counter(limits).items()))  # `-s` shows what forbids the next value
