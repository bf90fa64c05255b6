"""Course: memory over one step, stage by stage, from the first on down, with the line of what one
GPU has.

Drawn by a small component, which changes in place: a Plotly chart would be made anew at every
change of the plan, and took half of what a change cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from app import palette, picture, why
from memcore.report import Memory
from memcore.training.over_time import Course, Slot
from memcore.units import GiB, bytes_text

FAR = 2.5  # times what is needed: a capacity beyond would flatten all else
STAGES = 8  # that are drawn: the fullest ones
SLOTS = 240  # of one stage; where there are more, neighbours are drawn as the fullest of them

_component = st.components.v2.component(
    "memplan_course",
    html='<div class="memplan-course"><div class="head"><div class="legend"></div>'
    '<button class="save" type="button">Save image</button></div>'
    '<div class="picture" role="group" tabindex="0"><svg aria-hidden="true"></svg>'
    '<div class="said" role="status" hidden></div></div></div>',
    css=picture.source("course.css"),
    js=picture.source("course.js"),
)


def draw(
    memory: Memory, courses: Sequence[Course], key: str, alt: str, file: str, title: str
) -> None:
    """The chart on the page; `file` is the name of its image, without an ending, and `title` stands
    above it there."""
    more = {
        "alt": alt,
        "file": file,
        "title": title,
        "format": st.session_state.get("image_format") or "png",
    }
    _component(key=key, data=data(memory, courses) | more, on_why_change=lambda: why.asked(key))


def which(courses: Sequence[Course]) -> str:
    """Which stages are drawn, where not all are."""
    n = len(courses)
    return f"The {STAGES} fullest of {n} stages; the CSV has all. " if n > STAGES else ""


def data(memory: Memory, courses: Sequence[Course]) -> dict[str, Any]:
    """What the component draws: sizes in GiB, times in `unit`."""
    shown = sorted(sorted(courses, key=lambda c: -c.peak.bytes)[:STAGES], key=lambda c: c.rank)
    whole = max(c.slots[-1].end for c in shown)
    scale, unit = (1e3, "ms") if whole < 10 else (1.0, "s")
    sure = memory.device_bytes[0] - memory.allocated_bytes
    most = max(c.peak.bytes for c in shown) + sure
    near = memory.capacity_bytes < FAR * most
    places = {(i.rank, i.id, i.bytes): n for n, i in enumerate(memory.timeline)}
    words: dict[tuple[str, str], int] = {}
    text = functools.cache(bytes_text)  # most parts are as large in most slots
    stages, peak = [], (0, 0)
    for row, course in enumerate(shown):
        slots = course.fullest(SLOTS)
        parts = [[round(s.consumers[key] / GiB, 4) for s in slots] for key in palette.CONSUMERS]
        full = course.peak
        if full.bytes == memory.allocated_bytes:
            sizes = [s.bytes for s in slots]
            peak = (row, sizes.index(max(sizes)))
        at = [places.get((course.rank, s.instant, s.bytes)) for s in slots]
        stages.append(
            {
                "name": f"Stage {course.rank}" if len(courses) > 1 else "GiB",
                "edges": [round(scale * t, 3) for t in (*(s.start for s in slots), slots[-1].end)],
                "sizes": [part if any(part) else None for part in parts]
                + [[round(sure / GiB, 4)] * len(slots) if sure else None],
                "words": [words.setdefault(_said(s, text), len(words)) for s in slots],
                # Of what is no instant of the Report nothing more is known.
                "paths": ["" if n is None else f"memory.timeline.{n}" for n in at],
                "peak": (
                    scale * (full.start + full.seconds / 2),
                    full.bytes / GiB,
                    f"{bytes_text(full.bytes)}, the peak",
                )
                if full.bytes == memory.allocated_bytes or len(shown) == 1
                else None,
            }
        )
    return {
        "unit": unit,
        "end": scale * whole,
        "top": max(1.25 * most, 1.08 * memory.capacity_bytes if near else 0) / GiB,
        "height": 300 if len(shown) == 1 else 70 + 105 * len(shown),
        "parts": [*palette.CONSUMERS.values(), palette.OVERHEAD],
        "limit": memory.capacity_bytes / GiB if near else 0,
        "limit_text": f"Capacity {bytes_text(memory.capacity_bytes)}",
        "limit_colour": palette.CAPACITY,
        "stages": stages,
        "words": list(words),
        "peak": peak,
    }


def _said(s: Slot, text: Callable[[float], str]) -> tuple[str, str]:
    """What is said of a slot: in bold, and below; `text` says a size."""
    alive = [
        f"{title}: {text(s.consumers[key])}"
        for key, (title, _) in palette.CONSUMERS.items()
        if s.consumers[key]
    ]
    batch = f", micro-batch {s.micro_batch}" if s.micro_batch else ""
    return f"{text(s.bytes)}, {s.label}{batch}", "\n".join(alive)
