"""Charts as they are placed for the browser: each where its numbers are."""

import pytest

from app import plot
from app.charts.base import bar, figure, scatter


def test_bars_lie_one_behind_the_other() -> None:
    bars = [
        bar("a", "#111111", [1, 2], ["one", "two"], ["a1", "a2"], ["p.a1", "p.a2"]),
        bar("b", "#222222", [3, 0], ["one", "two"], ["b1", "b2"], ["p.b1", ""]),
    ]
    found = plot.data(figure(bars, height=200, xaxis={"range": [0, 8]}, bargap=0.5))
    assert [(b["x"], b["take"]) for b in found["bars"]] == [
        ([0, 0.25], "p.a2"),
        ([0, 0.125], "p.a1"),
        ([0.125, 0.5], "p.b1"),
    ], "a bar of nothing is none"
    assert found["bars"][0]["y"] == [0.625, 0.875]
    assert found["up"]["ticks"] == [(0.25, "one"), (0.75, "two")]
    assert [each["name"] for each in found["legend"]] == ["a", "b"]


def test_names_stand_in_their_order_the_first_on_top() -> None:
    bars = [bar("a", "#111111", [1, 2], ["one", "two"], ["", ""], ["", ""])]
    order = {"categoryorder": "array", "categoryarray": ["two", "one"], "autorange": "reversed"}
    found = plot.data(figure(bars, height=200, yaxis=order))
    assert found["up"]["ticks"] == [(0.75, "two"), (0.25, "one")]


def test_bars_that_hang_begin_at_their_bases() -> None:
    bars = [bar("a", "#111111", [-2], ["one"], [""], [""], base=[6], text=["-2"])]
    found = plot.data(figure(bars, height=200, barmode="overlay", xaxis={"range": [0, 10]}))
    assert [(b["x"], b["text"]) for b in found["bars"]] == [([0.4, 0.6], "-2")]


def test_a_line_on_logarithms_with_its_marks() -> None:
    line = scatter(
        x=[1, 10, 100],
        y=[0, 5, 10],
        mode="lines+markers",
        marker={"symbol": "diamond", "size": [7, 8, 9]},
        customdata=[["<b>a</b> & more<br>x", 1], ["b", 2], ["c", 3]],
        hovertemplate="%{customdata[0]}<br>click: this plan<extra></extra>",
    )
    axis = {"type": "log", "range": [0, 2]}
    notes = [{"x": 1, "y": 5, "text": "at ten"}, {"x": 1, "xref": "paper", "y": 0, "text": "end"}]
    shapes = [{"type": "line", "x0": 10, "x1": 10, "y0": 0, "y1": 1, "yref": "paper"}]
    found = plot.data(
        figure([line], height=200, xaxis=axis, yaxis={"range": [0, 10]}, annotations=notes,
               shapes=shapes)
    )  # fmt: skip
    assert found["lines"][0]["at"] == [[0, 0], [0.5, 0.5], [1, 1]]
    assert [(m["at"], m["size"], m["take"]) for m in found["marks"]] == [
        ([0, 0], 7, 1), ([0.5, 0.5], 8, 2), ([1, 1], 9, 3),
    ]  # fmt: skip
    assert found["marks"][0]["said"] == [
        [(True, "a"), (False, " & more")],
        [(False, "x")],
        [(False, "click: this plan")],
    ]
    assert [(n["x"], n["y"]) for n in found["notes"]] == [(0.5, 0.5), (1, 0)]
    assert (found["shapes"][0]["x"], found["shapes"][0]["y"]) == ([0.5, 0.5], [0, 1])
    assert found["across"]["ticks"] == [(0, "1"), (0.5, "10"), (1, "100")]


def test_areas_stand_on_one_another() -> None:
    areas = [scatter(x=[0, 1], y=y, stackgroup="m", fillcolor="#111111") for y in ([1, 2], [3, 2])]
    found = plot.data(figure(areas, height=200, yaxis={"range": [0, 4]}))
    assert [p[1] for p in found["areas"][1]["at"]] == [1, 1, 0.5, 0.25]


@pytest.mark.parametrize(
    ("low", "high", "round_"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 79.2, [0, 20, 40, 60]),
        (3, 3, [3]),
        (-5, 4, [-4, -2, 0, 2, 4]),
    ],
)
def test_axes_have_round_numbers(low: float, high: float, round_: list[float]) -> None:
    assert plot.nice(low, high, 6) == round_
