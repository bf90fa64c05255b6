"""Pictures of what is no Plotly chart."""

from __future__ import annotations

from xml.etree import ElementTree

from app import bar, exploring, heat, svg
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

SVG = "{http://www.w3.org/2000/svg}"


def test_the_bar_as_a_file_has_every_part_to_scale() -> None:
    memory = evaluate(Plan()).memory
    assert memory
    of = bar.of_training(memory)
    drawn = ElementTree.fromstring(svg.memory_bar(of, "A & B <c>"))
    words = [node.text or "" for node in drawn.iter(f"{SVG}text")]
    assert words[0] == "A & B <c>"
    shown = of.data()["parts"]
    for part in shown:
        assert f"{part['name']} {part['text']}" in words
    widths = {n.get("fill"): float(n.get("width", 0)) for n in drawn.iter(f"{SVG}rect")
              if n.get("height") == "28.0"}  # fmt: skip
    for part in shown[:3]:
        expected = (svg.WIDTH - 40) * part["bytes"] / of.end
        assert abs(widths[part["colour"]] - expected) < 0.1


def test_the_map_as_a_file_has_every_cell() -> None:
    plan = Plan()
    found = exploring.grid(plan, "train.seq_len", "train.micro_batch", "tokens")
    data = heat.data(found, (4096, 1))
    drawn = ElementTree.fromstring(svg.heat_map(data, "title"))
    words = [node.text or "" for node in drawn.iter(f"{SVG}text")]
    assert set(data["columns"]) <= set(words)
    assert set(data["rows"]) <= set(words)
    before = 2 + len(data["columns"]) + len(data["rows"])
    assert [c["text"] for c in data["cells"]] == words[before:-1]
