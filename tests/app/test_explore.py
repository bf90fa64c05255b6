"""Explore: every point is what `evaluate` says of its plan, and a click on it is that plan."""

from __future__ import annotations

import pandas as pd
import pytest
from pages import alive, opened, shown_plan, verdict

from app import charts, exploring, shared, tables
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.report import Report
from memcore.search import explore
from memcore.search.explore import FIGURES, Spot, grid, sweep
from memcore.units import bytes_text

TIGHT = Plan(train={"checkpointing": "none"})
QLORA = Plan(
    model="llama-3-8b",
    cluster={"gpu": "rtx-4090-24gb", "gpus": 1},
    train={"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "adapter": "qlora"},
)


def at(plan: Plan, report: Report, path: str) -> float:
    found = Book(plan, report).explain(path).value
    assert isinstance(found, int | float)
    return found


def agrees(s: Spot, path: str) -> None:
    assert s.plan
    report = evaluate(s.plan)
    if s.value is not None and path not in ("serve.budget_bytes",):
        assert s.value == pytest.approx(at(s.plan, report, path), rel=1e-12)
    if path.startswith("serve."):
        assert s.fits == bool(report.serve and report.serve.fits)
        return
    assert report.memory
    assert s.verdict == report.memory.verdict
    assert (s.low, s.high) == report.memory.device_bytes
    assert s.limit == report.memory.capacity_bytes


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("train.seq_len", "device"),
        ("cluster.gpus", "room"),
        ("train.checkpointing", "step"),
        ("train.precision", "tokens"),
        ("model.layers", "device"),
        ("model.size", "mfu"),
        ("run.tokens", "run"),
        ("serve.concurrency", "out"),
        ("serve.prompt_len", "tpot"),
        ("serve.kv_dtype", "kv"),
        ("cluster.gpu", "sequences"),
    ],
)
def test_every_point_of_a_sweep_is_what_evaluate_says(path: str, key: str) -> None:
    found = sweep(Plan(), path, key)
    known = [s for s in found.spots if s.plan]
    assert len(known) >= 3
    for s in known[:: max(1, len(known) // 4)]:
        agrees(s, FIGURES[key].path)
        if path not in ("model.layers", "model.size"):
            assert explore.here(s.plan or Plan(), path) == s.value_at
    assert charts.swept(found, explore.here(Plan(), path)).data


def test_up_to_where_it_fits_is_exact() -> None:
    """The largest micro-batch of 8B QLoRA on one RTX 4090, and the first that does not fit."""
    for plan, path in ((Plan(), "train.seq_len"), (QLORA, "train.micro_batch")):
        found = sweep(plan, path, "device")
        for edge, verdicts in ((found.edge, ("fits",)), (found.maybe, ("fits", "tight"))):
            assert edge
            here, next_ = (evaluate(plan.changed(path, edge + more)).memory for more in (0, 1))
            assert here
            assert next_
            assert here.verdict in verdicts
            assert next_.verdict not in verdicts
        assert exploring.named(path, found.edge) in exploring.says(found)[0]


def test_what_lies_above_the_chart_is_told() -> None:
    found = sweep(TIGHT, "train.seq_len", "device")
    figure = charts.swept(found, 4096)
    assert max(s.high for s in found.spots) > figure.layout.yaxis.range[1] * 2**30
    (note,) = [a.text for a in figure.layout.annotations if "beyond the chart" in a.text]
    assert note.startswith(f"up to {bytes_text(max(s.high for s in found.spots))}")


def test_of_a_field_that_frees_memory_the_least_is_found() -> None:
    plan = Plan(model="llama-3-70b", cluster={"gpus": 64})
    found = sweep(plan, "cluster.gpus", "device")
    assert not found.rises
    assert found.edge
    fits = {n: evaluate(plan.changed("cluster.gpus", found.edge - n)).memory for n in (0, 1)}
    assert [m.verdict == "fits" for m in fits.values() if m] == [True, False]
    assert exploring.says(found)[0].startswith(f"Fits from {found.edge} GPUs")


def test_words_bring_what_must_follow_them_and_say_why_where_none_can() -> None:
    found = sweep(Plan(), "train.framework", "device")
    followers = {s.value_at: dict(s.with_) for s in found.spots}
    assert followers["megatron"]
    assert evaluate(next(s.plan for s in found.spots if s.value_at == "megatron" and s.plan)).memory
    refused = [s for s in sweep(Plan(), "train.precision", "device").spots if not s.plan]
    assert refused
    assert all("B200" in s.why_not for s in refused)


@pytest.mark.parametrize(
    ("across", "down", "key"),
    [
        ("train.seq_len", "train.micro_batch", "tokens"),
        ("cluster.gpus", "train.seq_len", "room"),
        ("train.checkpointing", "train.micro_batch", "step"),
        ("serve.prompt_len", "serve.concurrency", "out"),
    ],
)
def test_every_cell_of_a_map_is_what_evaluate_says(across: str, down: str, key: str) -> None:
    found = grid(TIGHT, across, down, key)
    own = explore.here(TIGHT, across), explore.here(TIGHT, down)
    assert own[0] in found.columns
    assert own[1] in found.rows
    for y, line in list(zip(found.rows, found.spots, strict=True))[::4]:
        for x, s in list(zip(found.columns, line, strict=True))[::4]:
            if s.plan:
                there = TIGHT.with_changes({across: x, down: y})
                agrees(Spot(**{**_fields(s), "plan": there}), FIGURES[key].path)
    figure = charts.mapped(found, own)
    cells = figure.data[1].customdata
    assert [number for _, number in cells] == list(range(len(found.columns) * len(found.rows)))
    assert [shape.type for shape in figure.layout.shapes].count("rect") == 1, "one is this plan"
    assert len(tables.mapped(found)) == len(cells)


def _fields(s: Spot) -> dict[str, object]:
    return {name: getattr(s, name) for name in Spot.__slots__}


def test_the_frontier_lies_between_what_fits_and_what_does_not() -> None:
    found = grid(TIGHT, "train.seq_len", "train.micro_batch", "tokens")
    edges = [
        shape for shape in charts.mapped(found, (4096, 1)).layout.shapes if shape.type == "line"
    ]
    assert edges
    for edge in edges:
        x, y = max(edge.x0, edge.x1), max(edge.y0, edge.y1)
        upright = edge.x0 == edge.x1
        one = found.spots[int(y - 0.5)][int(x - 0.5)]
        other = (
            found.spots[int(y - 0.5)][int(x + 0.5)]
            if upright
            else found.spots[int(y + 0.5)][int(x - 0.5)]
        )
        assert one.fits != other.fits


def test_what_serves_stands_in_the_order_of_its_rent() -> None:
    """The least rent of each accelerator; every row is what `evaluate` says of its plan."""
    plan = Plan(model="llama-3.3-70b", serve={"prompt_len": 32_768, "concurrency": 50})
    found = shared.servers(plan, False).best
    rows = tables.servers(found)
    rents = [row["USD an hour"] for row in rows]
    assert rents == sorted(rents)
    assert [row["rank"] for row in rows] == sorted(row["rank"] for row in rows)
    assert f"${rents[0]:,.2f}" in tables.server_text_of(found[0])
    for p, row in list(zip(found, rows, strict=True))[:6]:
        priced = p.plan.changed("run.price_per_gpu_hour", p.figures["price_per_gpu_hour"])
        served = evaluate(priced).serve
        assert served
        assert served.fits
        assert (served.replicas, served.tp) == (row["replicas"], row["tensor parallel"])
        assert row["tpot_seconds"] == pytest.approx(served.tpot_seconds)
        assert row["USD a million tokens"] == pytest.approx(served.cost_per_million_out)
        for key, ends in (("ttft", served.ttft_range), ("tpot", served.tpot_range)):
            assert [row[f"{key}_at_least"], row[f"{key}_at_most"]] == pytest.approx(ends)


def test_every_field_that_is_offered_can_be_swept() -> None:
    """None fails, whatever the plan; of each there is a chart and a sentence."""
    for plan, key in ((QLORA, "device"), (Plan(), "sequences")):
        for path in explore.swept_fields(plan, FIGURES[key].serves):
            found = sweep(plan, path, key)
            assert exploring.says(found), path
            assert charts.swept(found, explore.here(plan, path)).data
            assert tables.swept(found)


# --- the page ------------------------------------------------------------------------------------


def test_a_link_says_what_is_explored_and_a_button_takes_the_edge() -> None:
    page = opened({"look": "sweep~device~train.seq_len"}, "explore")
    alive(page)
    before = shown_plan(page)
    edge = sweep(before, "train.seq_len", "device").edge
    assert page.button(key="explore_use").label == f"Use {edge:,} tokens"
    page.button(key="explore_use").click().run()
    alive(page)
    assert shown_plan(page) == before.changed("train.seq_len", edge)
    assert page.button(key="explore_use").disabled
    page.selectbox(key="explore_figure").set_value("step").run()
    page.selectbox(key="explore_across").set_value("train.zero").run()
    alive(page)
    query = page.session_state["memplan"].query
    assert query["look"] == ["sweep~step~train.zero~train.micro_batch"]
    assert "explore_use" not in [b.key for b in page.button]  # words have no edge


@pytest.mark.parametrize(
    "look", ["map~tokens~train.seq_len~train.micro_batch", "map~out", "gpus~~~~all", "~~~~~~~", "%"]
)
def test_every_part_is_drawn_and_a_bad_one_is_as_at_first(look: str) -> None:
    page = opened({"look": look}, "explore")
    alive(page)
    part = page.segmented_control(key="explore_part").value
    serves = look.startswith(("gpus", "map~out"))  # and so does what stands above
    assert serves == ("Serving fits" in verdict(page))
    assert part == (look.partition("~")[0] if look[0] in "mg" else "sweep")


def test_what_is_explored_stays_when_one_comes_back() -> None:
    page = opened({"look": "sweep~step~train.zero"}, "explore")
    page.switch_page("views/time.py").run()
    assert "look" not in page.session_state["memplan"].query
    page.switch_page("views/explore.py").run()
    alive(page)
    assert page.selectbox(key="explore_across").value == "train.zero"


def test_files_carry_their_plan() -> None:
    rows = tables.swept(sweep(Plan(), "train.seq_len", "device"))
    data = tables.csv(rows, tables.context(Plan(), "http://here/?v=1")).decode()
    columns = pd.read_csv(pd.io.common.StringIO(data)).columns
    assert {"plan model", "plan GPU", "plan link", "Memplan version"} <= set(columns)
    assert {"field", "to", "value", "unit", "limit_bytes", "workspace_bytes"} <= set(columns)
