"""Charts: pure functions from a Report to a Plotly figure.

Heights are fixed and colours are explicit; a figure depends on nothing but what it shows, so that a
chart that has not changed is not drawn again. Every value is also in the hover text, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.tables import COUNTS, PATH, compared_path, figure_text
from memcore import evidence
from memcore.hardware import Accelerator
from memcore.report import Memory, OperationTime, RankMemory, Serve, Time, TogetherMemory
from memcore.together import PARTS
from memcore.units import (
    GiB,
    bytes_text,
    rate_text,
    relative_text,
    seconds_text,
    signed_bytes,
    signed_seconds,
)
from memcore.waterfall import Change

MAX_RANKS = 16  # bars shown when there are more pipeline stages: the fullest ones
LABEL = 34  # characters of a change's name beside a bar; hovering says all of it
HIDDEN = 0.35  # opacity of time that something else hides


def figure(traces: Sequence[Any], height: int, **layout: Any) -> go.Figure:
    for axis in ("xaxis", "yaxis"):  # a chart that can be clicked would also be dragged
        layout[axis] = {"fixedrange": True, **layout.get(axis, {})}
    return go.Figure(
        list(traces),
        layout={
            "height": height,
            "margin": {"l": 8, "r": 16, "t": 40, "b": 8},
            "barmode": "stack",
            "bargap": 0.3,
            "dragmode": False,
            "hovermode": "closest",
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "traceorder": "normal",
                "itemclick": False,
                "itemdoubleclick": False,
            },
            **layout,
        },
    )


def _bar(
    name: str,
    colour: str,
    values: Sequence[float | None],
    labels: Sequence[str],
    texts: Sequence[str],
    paths: Sequence[str],
    **more: Any,
) -> go.Bar:
    """One horizontal series; `texts` is what hovering says about each value, and `paths` where it
    is in the Report, which a click explains."""
    marker = {"color": colour, "line": {"width": 0}, "opacity": 1, **more.pop("marker", {})}
    return go.Bar(
        name=name,
        x=list(values),
        y=list(labels),
        orientation="h",
        marker=marker,
        customdata=list(zip(texts, paths, strict=True)),
        hovertemplate="%{customdata[0]}<extra></extra>",
        unselected={"marker": {"opacity": marker["opacity"]}},  # a click pales no other
        **more,
    )


def _phase_bar(
    part: str,
    values: Sequence[float | None],
    labels: Sequence[str],
    texts: Sequence[str],
    paths: Sequence[str],
) -> go.Bar:
    """A part of a step, in its colour and its pattern."""
    pattern = {
        "shape": palette.PHASE_PATTERNS[part],
        "fillmode": "overlay",
        "fgcolor": "rgba(255, 255, 255, 0.6)",
        "size": 7,
        "solidity": 0.2,
    }
    return _bar(
        palette.phase(part),
        palette.PHASE_COLOURS[part],
        values,
        labels,
        texts,
        paths,
        marker={"pattern": pattern},
    )


def _capacity(bytes_: int, label: str = "Capacity") -> dict[str, Any]:
    """The line at a memory's size, for a horizontal bar chart."""
    return {
        "shapes": [
            {
                "type": "line",
                "x0": bytes_ / GiB,
                "x1": bytes_ / GiB,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": palette.CAPACITY, "width": 2, "dash": "dash"},
            }
        ],
        "annotations": [
            {
                "x": bytes_ / GiB,
                "y": 1,
                "yref": "paper",
                "xanchor": "right",
                "yanchor": "top",
                "xshift": -4,
                "showarrow": False,
                "text": f"{label} {bytes_text(bytes_)}",
                "font": {"color": palette.CAPACITY},
            }
        ],
    }


def _rank_label(rank: int, ranks: int) -> str:
    return "Each GPU" if ranks == 1 else f"Stage {rank}"


def _peaks(memory: Memory) -> list[RankMemory]:
    """Each pipeline rank at its own fullest instant; of many ranks the fullest."""
    fullest = sorted(memory.ranks, key=lambda r: -r.allocated_bytes)[:MAX_RANKS]
    return sorted(fullest, key=lambda r: r.rank)


def _places(memory: Memory) -> dict[tuple[int, str], str]:
    """Where each instant of each rank is in the Report."""
    return {(i.rank, i.id): f"memory.timeline.{n}" for n, i in enumerate(memory.timeline)}


def memory_by_consumer(memory: Memory) -> go.Figure:
    """Memory at the peak by consumer, per pipeline rank, against the capacity of one GPU."""
    peaks = _peaks(memory)
    labels = [_rank_label(i.rank, len(memory.ranks)) for i in peaks]
    traces = [
        _bar(
            title,
            colour,
            [i.consumers.get(name, 0) / GiB for i in peaks],
            labels,
            [f"{title}: {bytes_text(i.consumers.get(name, 0))}<br>{i.label}" for i in peaks],
            [f"memory.ranks.{i.rank}.consumers.{name}" for i in peaks],
        )
        for name, (title, colour) in palette.CONSUMERS.items()
    ]
    low, high = memory.device_bytes
    title, colour = palette.OVERHEAD
    sure = low - memory.allocated_bytes
    traces.append(
        _bar(
            title,
            colour,
            [sure / GiB] * len(peaks),
            labels,
            [f"{title}: at least {bytes_text(sure)}"] * len(peaks),
            ["memory.overhead_bytes.0"] * len(peaks),
        )
    )
    traces.append(
        _bar(
            "Overhead, at most",
            colour,
            [(high - low) / GiB] * len(peaks),
            labels,
            [f"{title}: up to {bytes_text(high - memory.allocated_bytes)}"] * len(peaks),
            ["memory.overhead_bytes.1"] * len(peaks),
            marker={"pattern": {"shape": "/", "fillmode": "replace", "size": 6}},
        )
    )
    most = max(high, memory.capacity_bytes)
    return figure(
        traces,
        height=155 + 34 * len(peaks),
        bargap=0.5,
        xaxis={"title": "GiB", "range": [0, 1.03 * most / GiB]},
        yaxis={"range": [len(peaks) - 0.5, -0.5 if len(peaks) == 1 else -0.9]},  # room for a word
        **_capacity(memory.capacity_bytes),
    )


def waterfall_bytes(changes: Sequence[Change], before: int, after: int) -> go.Figure:
    """Allocated bytes at the peak, from one plan to another, by the changes that move them."""
    return _waterfall(
        [(c.label, c.bytes / GiB, signed_bytes(c.bytes)) for c in changes if c.bytes],
        (before / GiB, bytes_text(before)),
        (after / GiB, bytes_text(after), "memory.allocated_bytes"),
        "GiB allocated at the peak",
    )


def waterfall_seconds(changes: Sequence[Change], before: float, after: float) -> go.Figure:
    """Seconds of a step, from one plan to another, by the changes that move them."""
    return _waterfall(
        [(c.label, c.seconds, signed_seconds(c.seconds)) for c in changes if c.seconds],
        (before, seconds_text(before)),
        (after, seconds_text(after), "time.step_seconds"),
        "seconds of a step",
    )


def _waterfall(
    changes: Sequence[tuple[str, float, str]],
    before: tuple[float, str],
    after: tuple[float, str, str],
    unit: str,
) -> go.Figure:
    """Bars that hang from one another: (label, value, text) each, between two whole ones."""
    ends = [before[0]]
    for _, value, _ in changes:
        ends.append(ends[-1] + value)
    numbered = [f"{i}. {_short(label)}" for i, (label, _, _) in enumerate(changes, 1)]
    traces = []
    for name, colour, sign in (("more", *palette.MORE), ("less", *palette.LESS)):
        chosen = [i for i, (_, value, _) in enumerate(changes) if sign * value > 0]
        traces.append(
            _bar(
                name.capitalize(),
                colour,
                [changes[i][1] for i in chosen],
                [numbered[i] for i in chosen],
                [f"{changes[i][0]}: {changes[i][2]}" for i in chosen],
                [""] * len(chosen),
                base=[ends[i] for i in chosen],
                text=[changes[i][2] for i in chosen],
                textposition="outside",
                cliponaxis=False,
            )
        )
    wholes = [("Pinned", *before, ""), ("This plan", *after)]
    traces.append(
        _bar(
            "Plan",
            palette.OVERHEAD[1],
            [value for _, value, _, _ in wholes],
            [label for label, _, _, _ in wholes],
            [f"{label}: {text}" for label, _, text, _ in wholes],
            [path for _, _, _, path in wholes],
            text=[text for _, _, text, _ in wholes],
            textposition="outside",
            cliponaxis=False,
        )
    )
    order = ["Pinned", *numbered, "This plan"]
    return figure(
        traces,
        height=110 + 30 * len(order),
        barmode="overlay",
        xaxis={"title": unit, "range": [0, 1.22 * max(*ends, after[0])]},
        yaxis={"categoryorder": "array", "categoryarray": order, "autorange": "reversed"},
    )


def _short(label: str) -> str:
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"


def timeline(memory: Memory) -> go.Figure:
    """What is alive at each instant of the step, first to last, on the rank that has the peak."""
    instants = [i for i in memory.timeline if i.rank == memory.peak.rank]
    places = _places(memory)
    labels = [i.label for i in instants]
    traces = [
        _bar(
            title,
            colour,
            [i.consumers.get(name, 0) / GiB for i in instants],
            labels,
            [
                f"{title}: {bytes_text(i.consumers.get(name, 0))}<br>{i.label}: "
                f"{bytes_text(i.bytes)} in all"
                for i in instants
            ],
            [f"{places[i.rank, i.id]}.consumers.{name}" for i in instants],
        )
        for name, (title, colour) in palette.CONSUMERS.items()
    ]
    most = max([i.bytes for i in instants], default=0)
    totals = [
        {
            "x": i.bytes / GiB,
            "y": i.label,
            "text": f"<b>{bytes_text(i.bytes)}, the peak</b>"
            if i.id == memory.peak.instant
            else bytes_text(i.bytes),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 3,
        }
        for i in instants
    ]
    # A capacity far beyond every bar would only flatten them; the header says how far it is.
    near = memory.capacity_bytes < 2 * most
    reach = max(1.2 * most, 1.03 * memory.capacity_bytes if near else 0)
    if near:
        traces.append(_named_line(f"Capacity {bytes_text(memory.capacity_bytes)}"))
    return figure(
        traces,
        height=100 + 25 * len(instants),
        xaxis={"title": "GiB", "range": [0, reach / GiB]},
        yaxis={"autorange": "reversed"},
        shapes=_capacity(memory.capacity_bytes)["shapes"] if near else [],
        annotations=totals,
    )


def _named_line(name: str) -> go.Scatter:
    """A legend entry for a capacity line, where the chart has no room for a label beside it."""
    line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
    return go.Scatter(name=name, x=[None], y=[None], mode="lines", line=line)


def step_time(time: Time) -> go.Figure:
    """The step as seconds that nothing hides, by resource; below, each resource's own busy time."""
    used = [name for name, busy in time.resources.items() if busy or time.exposed.get(name)]
    rows = ["Step", *(palette.resource(name) for name in used)]
    traces = []
    for name in used:
        title, colour = palette.RESOURCES.get(name, (name, palette.OVERHEAD[1]))
        exposed = time.exposed.get(name, 0.0)
        hidden = max(0.0, time.resources[name] - exposed)
        said = f"{title}: {seconds_text(exposed)} that nothing hides"
        traces.append(
            _bar(
                title,
                colour,
                [exposed, exposed],
                ["Step", title],
                [said, said],
                [f"time.exposed.{name}"] * 2,
                text=[title, ""],
                textposition="inside",
                textangle=0,
                insidetextfont={"color": palette.text_on(colour)},
                insidetextanchor="middle",
            )
        )
        traces.append(
            _bar(
                f"{title}, hidden",
                colour,
                [hidden],
                [title],
                [f"{title}: {seconds_text(hidden)} hidden behind other work"],
                [f"time.hidden.{name}"],
                marker={"opacity": HIDDEN},
            )
        )
    if time.bubble_seconds:
        said = f"{palette.phase('bubble')}: {seconds_text(time.bubble_seconds)}"
        path = "time.bubble_seconds"
        traces.append(_phase_bar("bubble", [time.bubble_seconds], ["Step"], [said], [path]))
    return figure(
        traces,
        height=80 + 34 * len(rows),
        showlegend=False,  # each row is named
        uniformtext={"mode": "hide", "minsize": 11},  # no name where it has no room
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        xaxis={"title": "seconds per step", "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": rows[::-1]},
    )


def step_phases(time: Time) -> go.Figure:
    """The step as one bar: what it does, what it waits for, and the bubble."""
    traces = [
        _phase_bar(
            name,
            [seconds],
            ["Step"],
            [f"{palette.phase(name)}: {seconds_text(seconds)}"],
            [f"time.phases.{name}"],
        )
        for name, seconds in time.phases.items()
        if seconds
    ]
    return figure(
        traces,
        height=190,
        xaxis={"title": "seconds per step", "rangemode": "tozero"},
        yaxis={"showticklabels": False},
    )


STAGE_PARTS = ("forward", "recompute", "backward", "communication", "host")


def stages(time: Time) -> go.Figure:
    """One micro-batch on every pipeline stage."""
    labels = [f"Stage {s.rank}" for s in time.stages]
    traces = []
    for part in STAGE_PARTS:
        values = [getattr(s, part) for s in time.stages]
        if any(values):
            said = [
                f"{label}, {palette.phase(part).lower()}: {seconds_text(value)}"
                for label, value in zip(labels, values, strict=True)
            ]
            paths = [f"time.stages.{s.rank}.{part}" for s in time.stages]
            traces.append(_phase_bar(part, values, labels, said, paths))
    return figure(
        traces,
        height=min(640, 150 + 26 * len(labels)),
        xaxis={"title": "seconds per micro-batch", "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": labels[::-1]},
    )


DECADES = range(6, 19)  # of FLOP/s
PREFIXES = ("", "K", "M", "G", "T", "P", "E")


def roofline(operations: Sequence[OperationTime], gpu: Accelerator, dtype: str) -> go.Figure:
    """Operations by arithmetic intensity and achieved FLOP/s, under the two ceilings of the GPU."""
    shown = [
        (i, o)
        for i, o in enumerate(operations)
        if o.flops > 0 and o.hbm_bytes > 0 and o.seconds > 0
    ]
    peak, bandwidth = gpu.peak_flops(dtype), gpu.memory_bandwidth
    intensities = [o.flops / o.hbm_bytes for _, o in shown] or [1.0]
    low = min(*intensities, 0.1 * peak / bandwidth, 1.0) / 2
    high = max(*intensities, 10 * peak / bandwidth) * 2
    ridge = peak / bandwidth
    roof = go.Scatter(
        name="Roof",
        x=[low, ridge, high],
        y=[low * bandwidth, peak, peak],
        mode="lines",
        line={"color": palette.OVERHEAD[1], "width": 2},
        hovertemplate=(
            f"{rate_text(peak, 'FLOP/s')} ({dtype}), {rate_text(bandwidth, 'B/s')}: they meet at "
            f"{ridge:,.0f} FLOP per byte<extra></extra>"
        ),
        showlegend=False,
    )
    traces = [roof]
    for phase, (title, symbol) in palette.PHASES.items():
        of_phase = [(i, o) for i, o in shown if o.phase == phase]
        if not of_phase:
            continue
        traces.append(
            go.Scatter(
                name=title,
                x=[o.flops / o.hbm_bytes for _, o in of_phase],
                y=[o.flops / o.seconds for _, o in of_phase],
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": 10,
                    "color": palette.PHASE_COLOURS[phase],
                    "line": {"width": 1, "color": "white"},
                },
                customdata=[(_placed(o), f"time.operations.{i}.rate") for i, o in of_phase],
                hovertemplate="%{customdata[0]}<extra></extra>",
                unselected={"marker": {"opacity": 1}},
            )
        )
    return figure(
        traces,
        height=360,
        xaxis={
            "title": "FLOP per byte of HBM traffic",
            "type": "log",
            "dtick": 1,
            "fixedrange": False,  # operations lie close to each other
        },
        yaxis={
            "title": "FLOP/s",
            "type": "log",
            "tickvals": [10.0**n for n in DECADES],
            "ticktext": [f"{10 ** (n % 3)}{PREFIXES[n // 3]}" for n in DECADES],
            "fixedrange": False,
        },
        annotations=[
            {
                "x": 1,
                "xref": "paper",
                "y": _log10(peak),
                "text": f"{dtype} peak {rate_text(peak, 'FLOP/s')}",
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "bottom",
            }
        ],
    )


def _placed(o: OperationTime) -> str:
    """What hovering over an operation on the roofline says."""
    return (
        f"<b>{o.name}</b> ({palette.phase(o.phase).lower()})<br>{o.flops / o.hbm_bytes:,.1f} FLOP "
        f"per byte, {rate_text(o.flops / o.seconds, 'FLOP/s')}<br>"
        f"{seconds_text(o.seconds)} per step, bound by {palette.resource(o.bound_by)}"
    )


def _log10(value: float) -> float:
    return math.log10(value)


def _literal(text: str) -> str:
    """Text that came from outside, so that Plotly does not read its tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


# The picture of the hierarchy: from the fastest tier at the top to the slowest at the bottom, with
# what is beside them at the right. Each box is as wide as what its tier can hold.
BOXES = ("l2", "hbm", "dram", "nvme")  # l2 stands for all that is on the chip
BESIDE = {"peers": "hbm", "network": "dram"}
BETWEEN = (("l2", "hbm", "hbm"), ("hbm", "dram", "dram"), ("dram", "nvme", "nvme"))
BOX = 0.46  # height of a box
FURTHER = 1.35  # left end of the boxes beside, in widths of a box
DOWN = 0.7  # where links run down


def tiers(
    rows: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]], memory: Memory | None
) -> go.Figure:
    """What lives in each tier, as a share of what it can hold, and what crosses each link in a
    step. `rows` of tables.tiers, `held` of tables.in_tiers."""
    by_name = {row[PATH].removeprefix("tiers."): row for row in rows}
    heights = {name: len(BOXES) - i for i, name in enumerate(BOXES)}
    full: dict[str, float] = dict.fromkeys(("hbm", "dram", "nvme"), 0.0)
    for h in held:
        full[h["tier"]] += h["share"]
    overhead = memory.device_bytes[0] - memory.allocated_bytes if memory else 0
    more = overhead / memory.capacity_bytes if memory else 0.0
    full["hbm"] += more
    # A box is as wide as what its tier can hold; of one that is too full, a line says how much.
    widths = {name: max(1.0, share) for name, share in full.items()}
    traces: list[Any] = [
        _bar(
            title,
            colour,
            [h["share"] / widths[h["tier"]] for h in mine],
            [heights[h["tier"]] for h in mine],  # type: ignore[misc]
            [f"{title}: {h['size']} ({h['share']:.1%})" for h in mine],
            [h[PATH] for h in mine],
            width=BOX,
        )
        for name, (title, colour) in palette.CONSUMERS.items()
        if (mine := [h for h in held if h["consumer"] == name])
    ]
    if memory:
        title, colour = palette.OVERHEAD
        text = f"{title} {bytes_text(overhead)}"
        at = [heights["hbm"]]
        more_path = ["memory.overhead_bytes.0"]
        traces.append(_bar(title, colour, [more / widths["hbm"]], at, [text], more_path, width=BOX))  # type: ignore[arg-type]
    shapes, notes, links = [], [], []
    for name, y in heights.items():
        shapes.append(_box(0, 1, y))
        if widths.get(name, 1.0) > 1:
            end = 1 / widths[name]
            shapes.append(_line(end, end, y - 0.6 * BOX, y + BOX / 2, palette.CAPACITY))
            notes.append(_note("capacity", end, y - 0.6 * BOX, "center", "top", palette.CAPACITY))
        text = _on_chip(by_name) if name == "l2" else _tier_text(by_name[name])
        notes.append(_note(text, 0, y + BOX / 2, "left", "bottom"))
    for name, near in BESIDE.items():
        y, row = heights[near], by_name[name]
        shapes += [_box(FURTHER, FURTHER + 0.4, y), _line(1, FURTHER, y, y)]
        notes.append(_note(_tier_text(row), FURTHER, y + BOX / 2, "left", "bottom"))
        middle = (1 + FURTHER) / 2
        notes.append(_note(_crossing(row, "<br>"), middle, y + 0.02, "center", "bottom"))
        links.append((middle, float(y), row))
    for upper, lower, of in BETWEEN:
        top, bottom = heights[upper] - BOX / 2, heights[lower] + BOX / 2
        shapes.append(_line(DOWN, DOWN, top, bottom))
        middle = (top + bottom) / 2
        notes.append(_note(_crossing(by_name[of]), DOWN + 0.015, middle, "left", "middle"))
        links.append((DOWN, middle, by_name[of]))
    traces.append(_links(links))
    return figure(
        traces,
        height=500,
        xaxis={"range": [-0.01, FURTHER + 0.42], "visible": False},
        yaxis={"range": [0.6, len(BOXES) + 0.65], "visible": False},
        shapes=shapes,
        annotations=notes,
    )


def _links(links: Sequence[tuple[float, float, dict[str, Any]]]) -> go.Scatter:
    """A mark on each link, which a click explains: its traffic, or its rate where nothing goes."""
    ends = [f"{r[PATH]}.{'traffic' if r['traffic_bytes'] else 'bandwidth'}" for *_, r in links]
    return go.Scatter(
        name="Traffic in a step",
        x=[x for x, *_ in links],
        y=[y for _, y, _ in links],
        mode="markers",
        marker={"symbol": "diamond", "size": 11, "color": palette.OVERHEAD[1], "opacity": 1},
        customdata=list(zip([_crossing(r) for *_, r in links], ends, strict=True)),
        hovertemplate="%{customdata[0]}<extra></extra>",
        unselected={"marker": {"opacity": 1}},
    )


def _box(x0: float, x1: float, y: float) -> dict[str, Any]:
    """The outline of a tier."""
    line = {"color": palette.OVERHEAD[1], "width": 1.5}
    return {"type": "rect", "line": line, "x0": x0, "x1": x1, "y0": y - BOX / 2, "y1": y + BOX / 2}


def _line(
    x0: float, x1: float, y0: float, y1: float, colour: str = palette.OVERHEAD[1]
) -> dict[str, Any]:
    line = {"color": colour, "width": 2}
    return {"type": "line", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": line}


def _note(
    text: str, x: float, y: float, xanchor: str, yanchor: str, colour: str = ""
) -> dict[str, Any]:
    place = {"x": x, "y": y, "xanchor": xanchor, "yanchor": yanchor}
    font = {"size": 13, **({"color": colour} if colour else {})}
    return {"text": text, "showarrow": False, "align": "left", "font": font, **place}


def _on_chip(rows: dict[str, dict[str, Any]]) -> str:
    return f"<b>On the chip</b>  L1 {rows['l1']['capacity']}, L2 {rows['l2']['capacity']} per GPU"


def _tier_text(row: dict[str, Any]) -> str:
    """A tier's name and what of it is used."""
    name = f"<b>{_literal(row['tier'])}</b>"
    size, used = row["capacity_bytes"], row["used_bytes"]
    if not size:
        return name
    if not used:
        return f"{name}  {bytes_text(size)}"
    share = f"{used / size:.0%}" if used > size / 100 else "under 1%"
    text = f"{name}  {bytes_text(used)}, {share} of {bytes_text(size)} {row['per']}"
    return f"{text}, <b>too much</b>" if used > size else text


def _crossing(row: dict[str, Any], between: str = " ") -> str:
    """What crosses a link in a step, and how fast the link is."""
    traffic = row["traffic_bytes"]
    crosses = f"{bytes_text(traffic)} a step" if traffic else "nothing crosses"
    return f"{crosses}{between}({row['bandwidth']})"


def serving(serve: Serve, concurrency: int) -> go.Figure:
    """The memory of one serving GPU, part by part, against its budget."""
    kv = serve.sequence_bytes * concurrency
    states = serve.state_bytes_per_sequence * concurrency
    cached: tuple[tuple[str, str, int, str], ...] = (
        ("KV cache of these sequences", palette.KV_CACHE[1], kv, "serve.asked_bytes"),
    )
    if states:
        cached = (
            ("Keys and values of these sequences", palette.KV_CACHE[1], kv - states,
             "serve.asked_kv_bytes"),
            ("States of these sequences", palette.STATES[1], states, "serve.asked_state_bytes"),
        )  # fmt: skip
    parts = (
        ("Weights", palette.CONSUMERS["parameters"][1], serve.weights_bytes, "serve.weights_bytes"),
        *cached,
        ("Activations", palette.CONSUMERS["activations"][1], serve.activation_bytes,
         "serve.activation_bytes"),
        ("Overhead", palette.OVERHEAD[1], serve.overhead_bytes, "serve.overhead_bytes"),
    )  # fmt: skip
    most = max(sum(size for _, _, size, _ in parts), serve.budget_bytes)
    bars = [
        _bar(name, colour, [size / GiB], ["Each GPU"], [f"{name}: {bytes_text(size)}"], [path])
        for name, colour, size, path in parts
    ]
    return figure(
        bars,
        height=189,
        bargap=0.5,
        xaxis={"title": "GiB", "range": [0, 1.03 * most / GiB]},
        **_capacity(serve.budget_bytes, "Budget"),
    )


def together(found: TogetherMemory) -> go.Figure:
    """Each phase of a step that trains and serves on the same GPUs, against one GPU's capacity."""
    phases = list(enumerate(found.phases))
    labels = [phase.label for _, phase in phases]
    bars = [
        _bar(
            title,
            palette.TOGETHER[part],
            [phase.parts.get(part, 0) / GiB for _, phase in phases],
            labels,
            [f"{title}: {bytes_text(phase.parts.get(part, 0))}" for _, phase in phases],
            [f"together.phases.{i}.parts.{part}" for i, _ in phases],
        )
        for part, title in PARTS.items()
        if any(part in phase.parts for _, phase in phases)
    ]
    title, colour = palette.OVERHEAD
    more = [phase.device_bytes[0] - phase.bytes for _, phase in phases]
    bars.append(
        _bar(
            title,
            colour,
            [n / GiB for n in more],
            labels,
            [f"{title}: {bytes_text(n)}" for n in more],
            [f"together.phases.{i}.device_bytes" for i, _ in phases],
        )
    )
    most = max(found.capacity_bytes, found.device_bytes[1])
    return figure(
        bars,
        height=110 + 38 * len(phases),
        xaxis={"title": "GiB", "range": [0, 1.03 * most / GiB]},
        yaxis={"autorange": "reversed"},
        **_capacity(found.capacity_bytes),
    )


SOURCES = dict(zip(evidence.SOURCES, palette.SOURCE_COLOURS, strict=False))
SPREAD = 0.7  # of a band's height, over which its points are spread so that none hides another
OUTLIERS = 0.004  # share of the points that may lie outside the part of the axis that is shown
GROUPS = {"model": "Model", "family": "Family", "source": "Source"}  # what a band can stand for


def _band(row: evidence.Comparison, by: str) -> str:
    """The band of the chart that a comparison is in."""
    if by == "model" and row.source == evidence.COUNTED:
        return "all presets"  # one row each
    if by == "model" and row.what == "figure":
        return "published figures"
    return getattr(row, by) or "no family"


def residuals(rows: Sequence[evidence.Comparison], by: str = "model") -> go.Figure:
    """How far each figure of ours is from theirs, in percent; the band with the worst first, and in
    it the worst on top. What a constant was tuned on has marks of its own."""
    bands: dict[str, list[evidence.Comparison]] = {}
    for row in sorted(rows, key=lambda row: -abs(row.error)):
        bands.setdefault(_band(row, by), []).append(row)
    places: dict[tuple[str, str], list[tuple[evidence.Comparison, float]]] = {}
    for band, members in enumerate(bands.values()):
        for i, row in enumerate(members):
            place = band + SPREAD * ((i + 0.5) / len(members) - 0.5)
            places.setdefault((row.source, row.used_for), []).append((row, place))
    traces = [
        go.Scatter(
            name=source if used_for == evidence.CHECK else f"{source} ({used_for})",
            x=[100 * row.error for row, _ in found],
            y=[place for _, place in found],
            mode="markers",
            marker={
                "symbol": "circle" if used_for == evidence.CHECK else "x",
                "size": 6,
                "color": SOURCES[source],
            },
            customdata=[(_compared(row), compared_path(row)) for row, _ in found],
            hovertemplate="%{customdata[0]}<extra></extra>",
            unselected={"marker": {"opacity": 1}},
        )
        for (source, used_for), found in sorted(places.items(), key=_legend_order)
    ]
    near, far = _near_and_far([100 * row.error for row in rows])
    return figure(
        traces,
        height=120 + 32 * len(bands),
        xaxis={
            "range": near,
            "title": "Memplan less the reference, % of the reference" + far,
            "ticksuffix": " %",
            "zeroline": True,
            "zerolinecolor": palette.OVERHEAD[1],
        },
        yaxis={
            "tickvals": list(range(len(bands))),
            "ticktext": [f"{_literal(band)} ({len(members)})" for band, members in bands.items()],
            "range": [len(bands) - 0.5, -0.5],
            "zeroline": False,
        },
    )


def _near_and_far(errors: Sequence[float]) -> tuple[list[float], str]:
    """The part of the axis that holds all but a few outliers, and a word about those. They would
    squeeze everything else together; the table has them first, and a double click shows all."""
    kept = sorted(errors, key=abs)[: math.ceil((1 - OUTLIERS) * len(errors))] or [0.0]
    room = 0.1 * (max(kept) - min(kept)) + 0.01
    outside = [e for e in errors if not min(kept) - room <= e <= max(kept) + room]
    if not outside:
        return [min(kept) - room, max(kept) + room], ""
    worst = max(outside, key=abs)
    more = f" · {len(outside)} further out, up to {worst:+.0f} %: double-click shows all"
    return [min(kept) - room, max(kept) + room], more


def _legend_order(item: tuple[tuple[str, str], Any]) -> tuple[int, str]:
    (source, used_for), _ = item
    return evidence.SOURCES.index(source), used_for


def _compared(row: evidence.Comparison) -> str:
    """A comparison in words."""
    words = [
        row.regime,
        f"{row.attention} attention" if row.attention else "",
        f"checkpointing {row.checkpointing}" if row.checkpointing else "",
    ]
    shape = [
        f"{row.batch:,} x {row.seq_len:,} tokens" if row.batch else "",
        f"{row.layers:,} layers" if row.layers else "",
        f"{row.gpus:,} GPUs" if row.gpus else "",
    ]
    details = [", ".join(filter(None, line)) for line in (words, shape)]
    return "<br>".join(
        filter(
            None,
            (
                f"<b>{_literal(row.model)}</b>: {row.what}",
                *details,
                f"{row.source}: {figure_text(row.theirs)} {row.unit}",
                f"Memplan: {figure_text(row.ours)} {row.unit} ({row.error:+.4%})",
                f"used for: {row.used_for}",
            ),
        )
    )


TRACKER_ROW, OUR_ROW = "PyTorch's tracker", "Memplan"
COUNTED_SYMBOLS = {  # by what a calculator counts
    evidence.STATES: "circle-open",
    evidence.STEP: "circle",
    evidence.DEVICE: "square",
}
LEAST_ROWS = 8  # so that charts beside each other are equally high


def calculators(worked: evidence.Worked) -> go.Figure:
    """What each calculator says of one plan, the most first, under PyTorch's figure and ours.

    A thin line leads from each mark to Memplan's figure for what that calculator counts.
    """
    colour, names = palette.OVERHEAD[1], [s.calculator.name for s in worked.said]
    sizes = [worked.tracker, worked.ours, *(s.theirs for s in worked.said)]
    order = [TRACKER_ROW, OUR_ROW, *names]
    reach = 1.35 * max(sizes) / GiB  # room for the column of sizes
    apart: list[float | None] = []
    rows: list[str | None] = []
    for said in worked.said:
        apart += [said.ours / GiB, said.theirs / GiB, None]
        rows += [said.calculator.name, said.calculator.name, None]
    traces = [
        go.Scatter(
            x=apart, y=rows, mode="lines", line={"color": colour, "width": 1}, hoverinfo="skip"
        ),
        go.Scatter(
            x=[s.ours / GiB for s in worked.said],
            y=names,
            mode="markers",
            marker={"symbol": "line-ns", "size": 9, "line": {"width": 2, "color": palette.OURS}},
            hoverinfo="skip",
        ),
        go.Scatter(
            x=[size / GiB for size in sizes],
            y=order,
            mode="markers",
            marker={
                "symbol": ["diamond"] * 2
                + [COUNTED_SYMBOLS[s.calculator.counts] for s in worked.said],
                "size": 9,
                "color": [SOURCES[evidence.TRACKER], palette.OURS] + [colour] * len(names),
            },
            customdata=[
                *(f"{row}: {size:,} bytes" for row, size in zip(order[:2], sizes, strict=False)),
                *map(_of_calculator, worked.said),
            ],
            hovertemplate="%{customdata}<extra></extra>",
        ),
        go.Scatter(
            x=[reach] * len(order),
            y=order,
            mode="text",
            text=[bytes_text(size) for size in sizes],
            textposition="middle left",
            hoverinfo="skip",
        ),
    ]
    high = max(LEAST_ROWS, len(order))
    return figure(
        traces,
        height=60 + 22 * high,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        showlegend=False,  # each row is named
        xaxis={"title": "GiB per GPU", "range": [0, reach]},
        yaxis={
            "categoryorder": "array",
            "categoryarray": order,
            "range": [high - 0.5, -0.5],
            "showgrid": False,
        },
    )


def _of_calculator(said: evidence.Said) -> str:
    by = said.calculator
    return (
        f"<b>{_literal(by.name)}</b>, {COUNTS[by.counts]}: {bytes_text(said.theirs)}<br>"
        f"Memplan for the same: {bytes_text(said.ours)} ({relative_text(said.excess, 0)})"
    )
