"""Search on Explore: asked for with a button; each row of what is found is a plan."""

from __future__ import annotations

from pages import alive, frame, frames, opened, shown_plan

from app import charts, searching, tables
from memcore.evaluate import evaluate
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan, title_of, value_text
from memcore.search.change import differences
from memcore.search.search import search
from memcore.units import seconds_text

SMALL = Plan(model="gpt2", cluster={"gpus": 1}, train={"seq_len": 1024})
LOOK = "search~device~train.seq_len~train.micro_batch~~training.time.1"


def test_what_is_searched_is_in_the_address_and_a_bad_one_is_as_at_first() -> None:
    asked = searching.Options("rounding", "cost", 32)
    assert searching.options(SMALL, asked.text()) == asked
    first = searching.options(SMALL, "")
    assert first == searching.Options("training", "time", 1)
    for text in ("...", "all.fast.-3", "training.time.99999999999", "training.time.0", "~%"):
        assert searching.options(SMALL, text) == first


def test_a_search_is_found_stays_while_the_plan_moves_and_each_row_is_its_plan() -> None:
    at = opened(encode(SMALL, short=True) | {"look": LOOK}, "explore")
    alive(at)
    assert not any("rank" in found for found in frames(at))  # nobody has asked
    at.button(key="search_go").click().run()
    at.session_state["folded_Why the others do not"] = True
    at.run()
    alive(at)
    found = search(SMALL, gpus_at_most=1)
    table = frame(at, "rank")
    points = found.points
    assert list(table["rank"][: len(found.best)]) == [f"{p.rank:,}" for p in found.best]
    assert any(f"{found.fits:,} of {found.evaluated:,}" in m.value for m in at.markdown)
    assert at.button(key="search_go").disabled
    for row, step in zip(tables.search_results(points, SMALL)[:3], table["step"], strict=False):
        query = row["query"]
        plan, issues = decode(dict(pair.split("=", 1) for pair in query.split("&")))
        time = evaluate(plan).time
        assert not issues
        assert time
        assert step == seconds_text(time.step_seconds)
    assert table["changes"][0] == "as said above"
    for (point, _), said in zip(points, table["changes"], strict=True):
        if said.startswith("as the best, but"):
            for path, value in differences(points[0][0].plan, point.plan).items():
                assert f"{title_of(path)} {value_text(path, value)}" in said
    excluded = frame(at, "combinations")["combinations"]
    assert found.evaluated - found.fits == sum(int(n.replace(",", "")) for n in excluded)
    at.select_slider(key="train_micro_batch").set_value(2).run()
    alive(at)
    assert shown_plan(at).train.micro_batch == 2
    assert any("has moved since" in m.value for m in at.markdown)
    assert not at.button(key="search_go").disabled
    assert {p.plan.model_dump_json() for p, of_front in points if of_front} == {
        p.plan.model_dump_json() for p in found.pareto
    }
    drawn = charts.search_results(found, SMALL).data
    for trace in drawn:
        assert list(trace["x"]) == sorted(trace["x"])
    marks = sum(len(trace["x"]) for trace in drawn)
    assert marks == len(points) == len(tables.search_results(points, SMALL))
