"""Answers about a whole run: published energies, the arithmetic between them, list prices."""

import math
import tomllib
from datetime import date

import pytest
from explored import examples
from hypothesis import example, given
from hypothesis import strategies as st

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan
from memcore.shipped import PRESETS

# Touvron et al. 2023, LLaMA, table 15: A100-80GB at 400 W, power usage effectiveness 1.1.
LLAMA = {"7B": (82_432, 36), "13B": (135_168, 59), "33B": (530_432, 233), "65B": (1_022_362, 449)}
ROUNDED_TO_MWH = 1.0
# Luccioni et al. 2022, table 2: BLOOM on A100-80GB at 400 W: GPU-hours and kWh.
BLOOM = (1_082_990, 433_196)
OF_BLOOM = 1e-4


def energy_per_gpu_hour(**run):
    report = evaluate(Plan(cluster={"gpu": "a100-sxm-80gb"}, run=run))
    return report.run.energy_joules / report.run.gpu_hours


@pytest.mark.parametrize("size", LLAMA)
def test_energy_as_llama_reports_it(size):
    hours, megawatt_hours = LLAMA[size]
    ours = hours * energy_per_gpu_hour(pue=1.1) / 3.6e9
    assert abs(ours - megawatt_hours) <= ROUNDED_TO_MWH


def test_energy_as_bloom_reports_it():
    hours, kilowatt_hours = BLOOM
    ours = hours * energy_per_gpu_hour() / 3.6e6
    assert math.isclose(ours, kilowatt_hours, rel_tol=OF_BLOOM)


@given(
    tokens=st.integers(1, 10**15),
    price=st.floats(0, 100),
    watts=st.floats(0, 2000),
    pue=st.floats(1, 3),
    gpus=st.sampled_from([1, 8, 64]),
)
@example(tokens=10**15, price=0.0, watts=5e-324, pue=1.0, gpus=8)
@examples(10)
def test_answers_follow_from_each_other(tokens, price, watts, pue, gpus):
    run = {"tokens": tokens, "price_per_gpu_hour": price, "watts_per_gpu": watts, "pue": pue}
    plan = Plan(cluster={"gpus": gpus}, run=run)
    report = evaluate(plan)
    found = report.run
    assert (found.steps - 1) * plan.tokens_per_step < tokens <= found.steps * plan.tokens_per_step
    assert found.seconds == found.steps * report.time.step_seconds
    assert math.isclose(found.gpu_hours * 3600, found.seconds * gpus)
    assert (found.cost is None) == (not price)
    if price:
        assert found.cost == found.gpu_hours * price
    assert math.isclose(found.energy_joules, found.watts * found.seconds)
    underflow = tokens * math.ulp(0.0)  # where a token's share is too small for a float's digits
    assert math.isclose(
        found.joules_per_token * tokens, found.energy_joules, rel_tol=1e-9, abs_tol=underflow
    )
    assert decode(encode(plan)) == (plan, [])
    assert decode(encode(plan, short=True)) == (plan, [])
    book = Book(plan, report)
    for name, value in report.to_dict()["run"].items():
        assert math.isclose(book.explain(f"run.{name}").formula.value, value)


def test_a_price_changes_nothing_but_the_cost():
    plain, priced = (
        evaluate(Plan(run={"price_per_gpu_hour": price})).to_dict() for price in (0.0, 2.5)
    )
    assert priced["run"].pop("cost") == 2.5 * plain["run"]["gpu_hours"]
    assert plain.pop("plan") != priced.pop("plan")
    for way in ("in", "out"):
        field, each = f"cost_per_million_{way}", priced["serve"]
        assert each.pop(field) > 0
        assert plain["serve"].pop(field, None) is None
    assert plain == priced


def test_list_prices_are_of_known_gpus_dated_and_sourced():
    rows = tomllib.loads(PRESETS.joinpath("prices.toml").read_text())["price"]
    assert len({(row["gpu"], row["cloud"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["gpu"] in catalog.gpu_names()
        assert 0 < row["usd"] < 50
        assert row["as_of"][:4] in ("2025", "2026")
        assert row["source"]
        assert catalog.prices(row["gpu"])[row["cloud"]] == row


@pytest.mark.parametrize(
    ("as_of", "old"),
    [
        ("2025", True),  # perhaps of its first day
        ("2025-10", True),
        ("2025-11-21", True),
        ("2025-11-22", False),
        ("2025-12", False),
        ("2026", False),
    ],
)
def test_a_price_of_more_than_a_year_ago_is_outdated(as_of, old):
    assert catalog.outdated(as_of, date(2026, 11, 22)) == old


def test_clouds_and_chips_of_all_kinds_have_a_price():
    """What a planner is asked to book: each vendor's newest, and the cards that people rent."""
    priced = catalog.priced_gpus()
    wanted = ("b300-sxm-288gb", "gb200-186gb", "tpu-v5p-95gb", "tpu-v6e-32gb", "trainium-1-32gb")
    cards = ("l4-24gb", "t4-16gb", "a10g-24gb", "a100-sxm-80gb", "rtx-4090-24gb", "rtx-5090-32gb")
    assert {*wanted, *cards, "mi300x-192gb", "rtx-pro-6000-server-96gb"} <= set(priced)
    clouds = {cloud.split()[0].strip(",") for gpu in priced for cloud in catalog.prices(gpu)}
    assert clouds >= {"AWS", "CoreWeave", "Google", "Lambda", "Nebius", "Oracle", "RunPod", "Vast"}
