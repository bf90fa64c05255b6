"""What can be booked: whole nodes, as many GPUs in one as it has, as many as anybody measured."""

import pytest

from evidence.times import times_table
from memcore import cli
from memcore.evaluate import evaluate
from memcore.hardware.constants import MOST_GPUS
from memcore.models import catalog
from memcore.plan.plan import Plan

IDLE, MORE, FAR = "stand idle", "are more than the", "extrapolated"


def notes(gpus, **cluster):
    plan = Plan.of({"model": "llama-3.2-1b", "cluster": {"gpus": gpus, **cluster}})
    return evaluate(plan).notes


def said(found, words):
    return [note for note in found if words in note]


@pytest.mark.parametrize(
    ("gpus", "idle"), [(1, 0), (2, 0), (3, 5), (4, 0), (6, 2), (7, 1), (8, 0), (12, 4), (16, 0)]
)
def test_gpus_that_fill_no_whole_node_are_said(gpus, idle):
    """Half of a node and a quarter of one are let; seven of eight are not."""
    found = said(notes(gpus), IDLE)
    assert len(found) == bool(idle)
    assert not idle or f"{idle:,} would {IDLE}" in found[0]
    assert not idle or f"{gpus + idle:,} fill {(gpus + idle) // 8:,}." in found[0]


@pytest.mark.parametrize(
    ("gpu", "gpus", "per_node", "has"),
    [("rtx-4090-24gb", 16, 16, 8), ("h100-sxm-80gb", 16, 16, 8), ("t4-16gb", 8, 8, 4)],
)
def test_more_gpus_in_a_node_than_it_has_are_said(gpu, gpus, per_node, has):
    (note,) = said(notes(gpus, gpu=gpu, gpus_per_node=per_node), "in a node are more")
    assert f"{per_node:,} GPUs in a node are more than the {has:,} of" in note
    assert not said(notes(gpus, gpu=gpu), "in a node are more")
    assert not said(notes(1, gpu=gpu, gpus_per_node=per_node), "in a node are more")


def test_more_gpus_than_times_were_held_against_are_said():
    largest = max(Plan.of(run["plan"]).cluster.gpus for run in times_table()["runs"])
    assert largest == MOST_GPUS.middle
    assert not said(notes(largest), FAR)
    (note,) = said(notes(100_000), FAR)
    assert note.startswith(f"100,000 GPUs {MORE} {largest:,} of the largest step")


def test_what_is_served_alone_is_not_said_to_be_trained():
    alone = {"model": "mamba2-780m", "parallel": {"tp": 2}}  # its training is not cut over ranks
    plan = Plan.of(alone | {"cluster": {"gpus": 100_000}})
    assert not said(evaluate(plan).notes, FAR)


@pytest.mark.parametrize("name", catalog.plan_entries())
def test_worked_plans_can_be_booked(name):
    plan = Plan.of(catalog.plan_entries()[name]["plan"])
    found = evaluate(plan).notes
    assert not [n for words in (IDLE, "in a node are more", FAR) for n in said(found, words)]


def test_the_command_line_says_it_too(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text('{"cluster": {"gpus": 7}}')
    assert cli.main(["evaluate", str(file)]) == 0
    assert "Note: 7 GPUs fill no whole number of nodes of 8" in capsys.readouterr().out
