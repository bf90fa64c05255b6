"""The evidence behind the Accuracy page: whole, honest, and the same as the reports."""

import csv
import io
from dataclasses import replace

import pytest

from app import charts, tables
from evidence.calculators import compared_tracker
from evidence.figures import compare
from evidence.links import links_table
from evidence.measured import measured_table
from evidence.papers import published_table
from evidence.pytorch import oracle, preset_parameters
from evidence.served import served_table
from evidence.times import times_table
from evidence.traced import compared_traced
from memcore.evidence.comparison import CHECK, MEASURED, SOURCES, TUNED, relative, signed_text
from memcore.hardware import constants, kernels
from memcore.models import catalog
from memcore.models.families import FAMILIES
from memcore.plan.plan import Plan
from memcore.shipped import PRESETS
from memcore.tape import dims
from memcore.words import engines

PLANS = [Plan.of(e["plan"]) for e in catalog.plan_entries().values()]
GEMMA = Plan(model="gemma-2-9b", train={"grad_accumulation": 3, "checkpointing": "none"})


def test_every_row_of_every_table_is_compared_once():
    found = compare()
    assert len(found) == sum(
        map(
            len,
            (
                oracle(),
                preset_parameters(),
                compared_tracker(),
                measured_table()["runs"],
                times_table()["runs"],
                served_table()["runs"],
                links_table()["runs"],
                published_table(),
                tuple(compared_traced()),
            ),
        )
    )
    assert {r.source for r in found} == set(SOURCES)
    assert {r.used_for for r in found} == {CHECK, TUNED}
    assert all(r.source == MEASURED for r in found if r.used_for == TUNED)
    assert compare() is found


def test_every_difference_is_within_its_tolerance():
    """What misses a measured run has its reason beside it (tests/evidence/test_measured.py)."""
    for row in compare():
        assert abs(row.error) <= row.tolerance or row.remark, row


def test_a_difference_is_relative_and_signed():
    assert relative(110, 100) == pytest.approx(0.1)
    assert relative(90, 100) == pytest.approx(-0.1)
    assert relative(0, 0) == 0
    assert relative(1, 0) == float("inf")


def test_the_tables_are_in_the_package_that_is_installed():
    folder = PRESETS.joinpath("evidence")
    for name in ("published.toml", "method.toml", "calculators.toml"):
        assert folder.joinpath(name).is_file()
    for name in ("figures.csv", "configs.json", "preset_parameters.csv", "README.md"):
        assert folder.joinpath("oracle", name).is_file()


def test_published_figures_are_told_apart_and_have_sources():
    figures = published_table()
    assert len({f["what"] for f in figures}) == len(figures) >= 16
    assert all(f["source"] for f in figures)


# ---- words


def test_every_dimension_and_axis_is_explained():
    """Each says what it is, where it is declared, and the page Accuracy lists it."""
    known = {
        name: value for name, value in vars(dims).items() if isinstance(value, dims.Dim | dims.Axis)
    }
    assert {name for name, value in known.items() if not value.meaning} == set()
    assert known == dims.DIMENSIONS | dims.AXES
    listed = {row["name"]: row["meaning"] for row in tables.dimensions(Plan())}
    assert listed == {name: value.meaning for name, value in known.items()}
    assert dims.meaning_of("B") == listed["B"]


def test_dimensions_outside_the_tape_say_what_they_are():
    """Those of serving and of rollouts, and the ranks that are factors of a shape."""
    assert dims.meaning_of("STAGE_LAYERS") == "layers on the fullest pipeline stage"
    assert dims.meaning_of("ROLLOUTS") == "sequences that one GPU keeps of a step"
    assert dims.meaning_of("SHARD") == "ranks that share each parameter"


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.architecture.label)  # one trains nothing
def test_every_dimension_has_a_value_under_every_plan(plan):
    assert all(row["here"] and row["meaning"] for row in tables.dimensions(plan))


# ---- tables and the chart


def test_the_worst_come_first_and_no_value_is_rounded():
    rows = tables.accuracy(compare())
    errors = [abs(r["error %"]) for r in rows]
    assert errors == sorted(errors, reverse=True)
    read = list(csv.DictReader(io.StringIO(tables.csv(rows).decode())))
    assert len(read) == len(rows)
    for row in read:
        ours, theirs = float(row["our_value"]), float(row["their_value"])
        if row["our_low"] == row["our_high"] and row["what"] != "out of memory":
            assert float(row["error %"]) == pytest.approx(100 * relative(ours, theirs))


def test_the_summary_counts_every_row_and_says_the_worst():
    found = compare()
    summary = tables.agreement(found)
    assert sum(r["figures"] for r in summary) == len(found)
    worst = max(found, key=lambda r: abs(r.error))
    (line,) = (r for r in summary if (r["what"], r["used for"]) == (worst.kind, worst.used_for))
    assert line["worst"] == signed_text(worst.error)
    assert f"{len(found):,} figures" in tables.headline(found)


def test_the_chart_shows_every_row_once_and_the_worst_band_first():
    found = compare()
    figure = charts.residuals(found)
    band_of_worst = max(found, key=lambda r: abs(r.error)).kind
    assert figure.layout.yaxis.ticktext[0].startswith(f"{band_of_worst} (")
    worst = {}
    for trace in figure.data:
        for x, y in zip(trace.x, trace.y, strict=True):
            worst[round(y)] = max(worst.get(round(y), 0), abs(x))
    assert list(dict(sorted(worst.items())).values()) == sorted(worst.values(), reverse=True)
    assert sorted(x for trace in figure.data for x in trace.x) == pytest.approx(
        sorted(100 * r.error for r in found)
    )
    places = [y for trace in figure.data for y in trace.y]
    assert len(set(places)) == len(found), "one point hides another"


def test_what_was_tuned_on_is_kept_apart_from_what_was_only_checked():
    found = [r for r in compare() if r.used_for == CHECK]
    assert "nothing in Memplan was tuned" in tables.tuning(found)
    tuned = [replace(r, used_for="allocator slack") for r in found[-3:]]
    mixed = found[:-3] + tuned
    assert f"{len(mixed) - 3:,} rows are checks" in tables.tuning(mixed)
    lines = [r for r in tables.agreement(mixed) if r["used for"] == "allocator slack"]
    assert [r["figures"] for r in lines] == [3]
    assert sum(r["figures"] for r in tables.agreement(mixed)) == len(mixed)
    symbols = {t.name: t.marker.symbol for t in charts.residuals(mixed).data}
    tuned_on = [n for n in symbols if "allocator slack" in n]
    assert len(tuned_on) == 1
    assert symbols.pop(tuned_on[0]) not in symbols.values()


NO_PRESET = {
    "afmoe",
    "laguna",
    "qwen3_5_moe_with_images",
    "qwen3_5_with_images",
    "albert",
    "clip",
    "cohere2_moe",
    "deit",
    "dinov2_with_registers",
    "dinov3_vit",
    "mllama_text_model",
    "siglip_text_model",
    "siglip_vision_model",
    "umt5",
}  # families whose figures are those of small models alone


def test_rows_of_a_source_and_of_a_family():
    found = compare()
    assert len(tables.matching(found, None, None)) == len(found)
    for source in tables.sources(found):
        rows = tables.matching(found, source, None)
        assert {r.source for r in rows} == {source}
        for family in tables.families(rows):
            both = tables.matching(found, source, family)
            assert {(r.source, r.family) for r in both} == {(source, family)}
    assert set(tables.families(found)) >= set(FAMILIES) - NO_PRESET
    assert all(FAMILIES[family] for family in tables.families(found)), "one that there is not"


def test_every_constant_is_shown_with_its_certainty_and_source():
    rows = tables.constants_used()
    assert [r["constant"] for r in rows] == [
        c.name for c in (*constants.ALL, *kernels.ALL, *engines.CONSTANTS)
    ]
    assert {r["certainty"] for r in rows} <= {"measured", "assumed"}
    assert all(r["value"] and r["source"] for r in rows)


def test_a_table_of_sentences_shows_every_cell_as_it_is():
    text = tables.written([{"a": "x|<y>", "b": "*z*"}], ("a", "b"))
    assert text == (
        '<table class="written"><thead><tr><th>a</th><th>b</th></tr></thead><tbody>'
        '<tr><td data-head="a">x|&lt;y&gt;</td><td data-head="b">*z*</td></tr></tbody></table>'
    )
    for table, columns in (
        (tables.method("left_out"), ("what", "matters")),
        (tables.method("terms"), ("term", "meaning")),
        (tables.constants_used(), ("constant", "value", "certainty", "source")),
    ):
        assert tables.written(table, columns).count("<tr>") == len(table) + 1
