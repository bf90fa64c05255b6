"""Every field of a plan as an axis of a sweep and as what a search starts from: each cell and each
point is what `evaluate` says."""

import functools
import json
import math
from zlib import crc32

import pytest
from axes import BASES, allowed, bases, values_of
from drawn import divided, plans, served, stacked
from explored import EXPLORE, examples
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from swept import number_at

from memcore import search
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan, field_paths
from memcore.search import space
from memcore.search.space import Space
from memcore.search.sweep import BROADCAST, sweep
from memcore.training.training import not_planned

ROUNDING = 1e-9  # of floating-point sums in another order
NUMBERS = (
    *("memory.allocated_bytes", "memory.device_bytes.1", "memory.fits", "memory.tiers.dram"),
    *("memory.tiers.nvme", "time.step_seconds", "time.exposed.host", "time.tokens_per_second"),
    *("run.seconds", "run.energy_joules", "run.elapsed_seconds", "run.disk_bytes"),
    *("serve.weights_bytes", "serve.max_concurrency"),
    *("serve.ttft_seconds", "serve.tpot_seconds", "serve.kv_capacity_tokens"),
    *("together.device_bytes.1", "together.dram_bytes"),
)
# Fields of which a plan has one value that is allowed, or that none of these numbers reads: streams
# of requests, what a server is asked for, what a run may take and costs, and limits of DeepSpeed
# that are far from the peak.
STILL = {
    *("version", "job", "serve.arrival_rate", "serve.requests", "serve.lengths", "serve.prompt_cv"),
    *("serve.output_cv", "serve.seed", "serve.target_ttft", "serve.target_tpot"),
    *("serve.shared_prefix", "run.target_days", "run.target_cost", "run.price_per_gpu_hour"),
    *("parallel.account_for_embedding_in_pipeline_split", "train.loader_pin_memory"),
    *("parallel.account_for_loss_in_pipeline_split", "train.stage3_max_live_parameters"),
    "train.stage3_max_reuse_distance",
}


def figures_of(plan):
    """What `evaluate` says of a plan: each of the numbers, None where it has none."""
    return _figures(plan.model_dump_json())


@functools.cache  # a plan is asked of many fields
def _figures(plan):
    document = evaluate(Plan.model_validate_json(plan)).to_dict()
    return {number: number_at(document, number) for number in NUMBERS}


def _is_nan(value):
    return isinstance(value, float) and math.isnan(value)


def compared(plan, axes):
    """Every cell of a sweep against `evaluate`: the rows in which there is something to compare."""
    known = [n for n, value in figures_of(plan).items() if value is not None]
    rows = []
    for row in sweep(plan, axes, known).to_dict("records"):
        # What nobody set follows the model, as it does wherever a plan is changed.
        changes = {path: None if _is_nan(row[path]) else row[path] for path in axes}
        try:
            here = figures_of(plan.with_changes(changes))
        except PlanError:
            assert all(math.isnan(row[n]) for n in known), row
            continue
        figures = tuple(here[n] for n in known)
        for name, value in zip(known, figures, strict=True):
            if value is None:
                assert math.isnan(row[name]), (row, name)
            else:
                assert row[name] == pytest.approx(value, rel=ROUNDING), (row, name)
        rows.append(figures)
    return rows


@functools.cache
def every_base():
    found = tuple(bases())
    assert len(found) == len(BASES)
    return found


@pytest.mark.parametrize("path", field_paths()[::12])
def test_a_field_is_an_axis(path):
    swept(path)


@pytest.mark.long
@pytest.mark.parametrize("path", field_paths())
def test_every_field_is_an_axis(path):
    swept(path)


def swept(path):
    """Each field moves some number somewhere, so that it is truly swept."""
    reached = moved = 0
    for plan in every_base():
        values = allowed(plan, path, 3)
        if path in STILL:
            values = values_of(plan, path)[:4]
        if len(values) > 1 or path == "version":
            if path not in STILL and not moves(plan, path, values):
                continue
            rows = compared(plan, {path: values})
            reached += len(rows)
            moved += len(set(rows)) > 1
            if moved or (path in STILL and reached):
                break
    assert reached > 0
    assert moved or path in STILL


def moves(plan, path, values):
    """Whether another value of a field moves any number."""
    changed = (plan.changed(path, value) for value in values)
    return len({tuple(figures_of(each).values()) for each in changed}) > 1


@pytest.mark.thousand
@pytest.mark.parametrize("path", field_paths())
def test_every_field_of_random_plans_is_an_axis(path):
    """Also beside fields that are read with arrays."""
    reached = []

    @(lambda test: test if EXPLORE else seed(crc32(path.encode()))(test))
    @settings(examples(6), phases=[Phase.generate])
    @given(st.one_of(plans(), divided(), served(), stacked()), st.sampled_from(sorted(BROADCAST)))
    def every(plan, beside):
        axes = {path: allowed(plan, path, 2)}
        axes |= {} if beside == path else {beside: allowed(plan, beside, 2)}
        reached.append(len(compared(plan, axes)))

    every()
    assert sum(reached) > 6


@pytest.mark.thousand
@pytest.mark.parametrize("path", field_paths())
def test_a_search_from_every_field_finds_plans_as_they_are(path, monkeypatch):
    """Of a plan with another value of each field, on one GPU and two, under two frameworks."""
    monkeypatch.setattr(space, "counts", lambda plan, most: [n for n in (1, 2, 4) if n <= most])
    frameworks = Space.frameworks

    def few(self, setup):
        own = self.plan.train.framework
        return [w for w in frameworks(self, setup) if w["train.framework"] in ("fsdp2", own)]

    monkeypatch.setattr(Space, "frameworks", few)
    for base in every_base():
        values = allowed(base, path, 1)
        start = base.changed(path, values[-1])
        if not_planned(start) or (len(values) == 1 and path != "version"):
            continue
        found = search(start, gpus_at_most=2, listed=3)
        for point in (*found.best, *found.pareto):
            report = evaluate(point.plan)
            assert report.memory.fits
            assert point.figures["step_seconds"] == report.time.step_seconds
            assert point.figures["device_bytes"] == list(report.memory.device_bytes)
            assert point.figures["run_seconds"] == report.run.seconds
            assert start.with_changes(point.changes) == point.plan
        assert found.evaluated == found.fits + sum(found.excluded.values())
        json.dumps(found.to_dict(), allow_nan=False)
        if found.best and (len(values) > 1 or path == "version"):
            return
    pytest.fail(f"no search from another {path}")
