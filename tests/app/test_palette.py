"""Colours: each means one thing on a page, is seen on both themes and without colour vision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from app import charts, palette, stream
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

RESOURCES = {name: colour for name, (_, colour) in palette.RESOURCES.items()}
BACKGROUNDS = {
    "light": "#ffffff",
    "dark": "#171614",
}  # Streamlit's own; a browser's test reads them
# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
VISIONS = {
    "all colours": np.eye(3),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# Oklab (Ottosson, 2020): linear RGB to the cones' answers, and their cube roots to the space.
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
SPACE = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
APART = 0.07  # in Oklab; 0.02 is just seen side by side


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def seen(colour: str, vision: str) -> np.ndarray:
    rgb = np.clip(VISIONS[vision] @ linear(colour), 0, 1)
    return SPACE @ np.cbrt(CONES @ rgb)


def contrast(one: str, other: str) -> float:
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


POINTS = {
    *stream.COLOURS.values(),
    *palette.SOURCE_COLOURS,
    *(colour for colour, _ in (palette.MORE, palette.LESS)),
    palette.CAPACITY,
    palette.TIGHT,
    palette.OURS,
}


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("colour", sorted(POINTS))
def test_lines_and_points_have_contrast_in_both_themes(colour: str, theme: str) -> None:
    assert contrast(colour, BACKGROUNDS[theme]) >= 3  # WCAG 2.2, 1.4.11


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("colour", [*RESOURCES.values(), *palette.PHASE_COLOURS.values()])
def test_marks_of_time_have_contrast_in_both_themes(colour: str, theme: str) -> None:
    assert contrast(colour, BACKGROUNDS[theme]) >= 3  # WCAG 2.2, 1.4.11


@pytest.mark.parametrize("colour", RESOURCES.values())
def test_a_name_on_a_mark_can_be_read(colour: str) -> None:
    assert contrast(colour, palette.text_on(colour)) >= 4.5  # WCAG 2.2, 1.4.3


def test_no_colour_is_a_resource_and_a_phase() -> None:
    assert not set(RESOURCES.values()) & set(palette.PHASE_COLOURS.values())
    for one, other in itertools.product(RESOURCES.values(), palette.PHASE_COLOURS.values()):
        difference = seen(one, "all colours") - seen(other, "all colours")
        assert np.linalg.norm(difference) > APART, (one, other)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("table", [RESOURCES, palette.PHASE_COLOURS], ids=["resources", "phases"])
def test_colours_of_one_chart_stay_apart(table: dict[str, str], vision: str) -> None:
    for one, other in itertools.combinations(table, 2):
        if "bubble" in (one, other):  # grey, which the pattern tells apart
            continue
        difference = seen(table[one], vision) - seen(table[other], vision)
        assert np.linalg.norm(difference) > APART, (one, other)


def test_every_phase_has_a_pattern_of_its_own_and_shows_it() -> None:
    patterns = palette.PHASE_PATTERNS
    assert patterns.keys() == palette.PHASE_COLOURS.keys()
    assert len(set(patterns.values())) == len(patterns)
    megatron = {"framework": "megatron", "zero": 1, "kernels": "megatron", "grad_accumulation": 8}
    time = evaluate(Plan(parallel={"pp": 2}, train=megatron)).time
    assert time
    for chart in (charts.step_phases(time), charts.stages(time)):
        for bar in chart.data:
            part = next(p for p in patterns if palette.phase(p) == bar["name"])
            assert bar["marker"]["color"] == palette.PHASE_COLOURS[part]
            assert bar["marker"]["pattern"]["shape"] == patterns[part]
            assert bar["marker"]["pattern"]["fillmode"] == "overlay"  # else the colour is not seen
