"""No figure of README.md and docs/accuracy.md is written by hand: both are as the evidence is."""

from __future__ import annotations

import pytest

from memcore.evidence import markdown


@pytest.mark.parametrize("page", markdown.PAGES)
def test_a_page_says_what_the_evidence_says(page: str) -> None:
    """When this fails: python -m memcore.evidence.markdown"""
    text = (markdown.ROOT / page).read_text(encoding="utf-8")
    assert text.count("<!-- figures: ") == len(markdown.PART.findall(text)) > 0
    assert markdown.written(text) == text


def test_every_table_of_figures_stands_in_a_page() -> None:
    text = "".join((markdown.ROOT / page).read_text(encoding="utf-8") for page in markdown.PAGES)
    assert {name for _, name, _ in markdown.PART.findall(text)} == set(markdown.PARTS)


def test_a_figure_that_has_moved_is_written_anew() -> None:
    stale = "<!-- figures: steps -->\n| steps |\n<!-- end -->\nafter"
    assert "tuned on" in markdown.written(stale)
    assert markdown.written(stale).endswith("<!-- end -->\nafter")


def test_steps_are_divided_by_what_was_tuned() -> None:
    """No step of the last group has a tuned twin, and the checked ones are the last two groups."""
    steps = markdown.steps()
    tuned, checked, known, unknown = steps.values()
    assert len(known) + len(unknown) == len(checked)
    assert not {r.run for r in tuned} & {r.run for r in checked}
    assert any("Moonlight" in r.run for r in unknown)
    assert not any("Moonlight" in r.run for r in known)
