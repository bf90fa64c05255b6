"""Report: a plan on one page, as a file for whoever signs the bill. It prints to PDF, needs no
network, and every figure in it is one of the engine's."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from app import bar, palette
from app.fields import in_words, setting
from app.tables.levers import saved_text
from app.text import VERDICTS, title_of_plan
from memcore.plan.plan import Plan, title_of
from memcore.report import Memory, Report, Run, Serve, Time, TogetherMemory
from memcore.search.change import differences
from memcore.search.levers import Lever
from memcore.search.measured import FIRST, STEP, TOKEN, Calibrated
from memcore.search.prices import own_price
from memcore.serving.notes import serving_notes
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    gib_text,
    hours_text,
    money_text,
    relative_text,
    rent_text,
    seconds_text,
)
from memcore.version import version

Line = tuple[str, str]
LEVERS = 5
LOOK = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.3rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; }
td, th { padding: .15rem .6rem .15rem 0; border-bottom: 1px solid #e3e5e8; vertical-align: top; }
td:first-child:nth-last-child(2) { width: 45%; }
.verdict { font-weight: 600; margin: .6rem 0; }
.fits { color: #0a6b3d; } .tight { color: #8a5200; } .over { color: #b3261e; }
.small-bar { position: relative; display: flex; height: 1.4rem; background: #e6e8eb;
             overflow: hidden; print-color-adjust: exact; }
.small-bar i { position: absolute; top: 0; bottom: 0; border-left: 2px dashed #e5484d; }
.key { font-size: .8rem; display: flex; flex-wrap: wrap; gap: 0 1rem; }
.key b { display: inline-block; width: .7rem; height: .7rem; margin-right: .3rem;
         print-color-adjust: exact; }
.small { font-size: .8rem; overflow-wrap: anywhere; }
@media print { body { margin: 0; } }
"""


TRAINING, SERVING, TOGETHER = "training", "serving", "together"  # what one can be about


def page(
    plan: Plan,
    report: Report,
    levers: Iterable[Lever],
    link: str,
    calibrated: Calibrated | None = None,
    about: str = "",
    beside: Sequence[Mapping[str, object]] = (),
    server: Calibrated | None = None,
) -> str:
    """The report as one HTML file, `about` one of the words above or '' for all that the plan has.
    `link` opens the plan again; `calibrated`: its step beside a measured one; `beside`: a row for
    each field and figure in which it and other plans differ, a column for each plan; `server`: its
    server beside a measured one."""
    title = title_of_plan(plan)
    parts = [f"<h1>{_safe(title)}</h1>"]
    if report.together and about in (TOGETHER, ""):
        parts += _together(report.together)
    trains = about != SERVING or not report.serve
    if trains and report.memory:
        parts += _verdict(report.memory)
    if trains and report.run:
        parts.append(_table("The whole run", _run(plan, report.run)))
    if trains and report.memory:
        parts.append(_table("Memory of a GPU", _memory(report.memory)))
    if trains and report.time:
        again = _calibrated(calibrated) if calibrated else []
        parts.append(_table("Time of a step", [*_time(report.time, report.if_it_fitted), *again]))
    serves = report.serve and not (trains and about and report.memory)
    if serves and report.serve:
        parts += _serve(plan, report.serve, _calibrated(server) if server else ())
    parts += _beside(beside)
    changed = differences(Plan(), plan).items()
    settings = [(title_of(path), setting(plan, path, value)) for path, value in changed]
    parts.append(_table("Settings that are not the default", settings or [("none", "")]))
    if trains and (better := [_lever(lever) for lever in list(levers)[:LEVERS]]):
        parts.append(_table("What could be changed", better))
    of_serving = serving_notes(plan, report.serve) if report.serve and not serves else []
    notes = [note for note in report.notes if note not in of_serving]
    parts += [f'<p class="small">{_safe(note)}</p>' for note in map(in_words, notes)]
    parts.append(
        f'<p class="small">Memplan {_safe(version())}, {date.today().isoformat()}. Bytes of '
        "tensors are counted from shapes; what an allocator keeps and how long a step takes are "
        "intervals between which measured ones lie. "
        f'<a href="{_safe(link)}">Open this plan</a>:<br>{_safe(link)}</p>'
    )
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{_safe(title)}</title><style>{LOOK}</style></head><body>\n{body}\n</body></html>\n"
    )


def _safe(text: str) -> str:
    return html.escape(text, quote=True)


def _table(title: str, lines: Iterable[Line]) -> str:
    rows = "".join(f"<tr><td>{_safe(a)}</td><td>{_safe(b)}</td></tr>" for a, b in lines)
    return f"<h2>{_safe(title)}</h2><table>{rows}</table>"


def _beside(rows: Sequence[Mapping[str, object]]) -> list[str]:
    if not rows:
        return []
    head = "".join(f"<th>{_safe(name)}</th>" for name in rows[0])
    lines = "".join(
        f"<tr>{''.join(f'<td>{_safe(str(cell))}</td>' for cell in row.values())}</tr>"
        for row in rows
    )
    return [f"<h2>Plans side by side</h2><table><tr>{head}</tr>{lines}</table>"]


def _bar(drawn: bar.Bar) -> str:
    key = "".join(
        f'<span><b style="background:{bar.fill(p.colour, p.hatched)}"></b>'
        f"{_safe(p.name)} {bytes_text(p.bytes)}</span>"
        for p in drawn.parts
        if p.bytes
    )
    limit = f"<span>{_safe(drawn.limit_text)}</span>"
    return f'{bar.small(drawn)}<div class="key">{key}{limit}</div>'


def _verdict(m: Memory) -> list[str]:
    low, high = m.device_bytes
    said = (
        f"Training {VERDICTS[m.verdict]}: {gib_text(low)} to {gib_text(high)} of "
        f"{gib_text(m.capacity_bytes)} per GPU."
    )
    return [f'<p class="verdict {m.verdict}">{_safe(said)}</p>', _bar(bar.of_training(m))]


def _memory(m: Memory) -> list[Line]:
    low, high = m.device_bytes
    return [
        ("Allocated at the peak", bytes_text(m.allocated_bytes)),
        ("Reserved by the allocator", " to ".join(map(bytes_text, m.reserved_bytes))),
        ("Device memory", f"{bytes_text(low)} to {bytes_text(high)}"),
        ("Capacity of a GPU", bytes_text(m.capacity_bytes)),
    ]


def _together(found: TogetherMemory) -> list[str]:
    low, high = found.device_bytes
    said = (
        f"The fullest phase {VERDICTS[found.verdict]}: {gib_text(low)} to {gib_text(high)} of "
        f"{gib_text(found.capacity_bytes)} per GPU."
    )
    lines = [(p.label, " to ".join(map(bytes_text, p.device_bytes))) for p in found.phases]
    return [
        f'<p class="verdict {found.verdict}">{_safe(said)}</p>',
        _bar(bar.of_together(found)),
        _table("Memory of a GPU in each phase", lines),
    ]


def _time(t: Time, if_it_fitted: str) -> list[Line]:
    low, high = t.step_interval
    return [
        (f"Step{if_it_fitted}", seconds_text(t.step_seconds)),
        ("Nine of ten measured steps of the like", f"{seconds_text(low)} to {seconds_text(high)}"),
        ("Tokens a second, all GPUs", count_text(t.tokens_per_second)),
        ("Model FLOPs utilization", f"{t.mfu:.1%}"),
        ("Waits longest for", palette.resource(t.bound_by)),
    ]


MOVED = {
    STEP: "Step, calibrated by a measured one",
    FIRST: "Time to the first token, calibrated",
    TOKEN: "Time per output token, calibrated",
}


def _calibrated(of: Calibrated) -> list[Line]:
    lines = [(what, of.moved[name].text) for name, what in MOVED.items() if name in of.moved]
    if "run_seconds" in of.numbers:
        lines.append(("The whole run, calibrated", seconds_text(of.numbers["run_seconds"][1])))
    if "cost" in of.numbers:
        lines.append(("The whole run's cost, calibrated", money_text(of.numbers["cost"][1])))
    return [*lines, ("What that rests on", of.assumed)]


def _run(plan: Plan, run: Run) -> list[Line]:
    price, whose = own_price(plan)
    cost = "no price is known"
    if price is not None:
        at = "at" if run.cost is not None else f"at the lowest list price ({whose}),"
        cost = f"{money_text(price * run.gpu_hours)} {at} ${price:,.2f} an hour for a GPU"
    return [
        ("Cost", cost),
        ("Tokens", count_text(plan.run.tokens)),
        ("Time", seconds_text(run.seconds)),
        ("Time with saves and failures", seconds_text(run.elapsed_seconds)),
        ("GPU-hours", hours_text(run.gpu_hours)),
        ("Energy", energy_text(run.energy_joules)),
        ("Disk for checkpoints", bytes_text(run.disk_bytes)),
    ]


def _serve(plan: Plan, s: Serve, calibrated: Iterable[Line]) -> list[str]:
    word = "fits" if s.fits else "over"
    said = f"Serving {plan.serve.concurrency:,} sequences at once {VERDICTS[word]}."
    gpus = f"{s.gpus_per_replica:,} GPU" + "s" * (s.gpus_per_replica > 1)
    price, whose = own_price(plan)
    rent = "no price is known"
    if price is not None:
        rent = f"{rent_text(price * plan.cluster.gpus)}, at {money_text(price)} each ({whose})"
    lines = [
        ("Rent of all GPUs", rent),
        ("Replicas", f"{s.replicas:,} of {gpus} each"),
        ("Sequences that fit on a replica", f"{s.max_concurrency:,}"),
    ]
    if s.ttft_seconds is not None and s.tpot_seconds is not None:
        lines += [
            ("Time to the first token", seconds_text(s.ttft_seconds)),
            ("Time per output token", seconds_text(s.tpot_seconds)),
        ]
    if s.cost_per_million_in is not None and s.cost_per_million_out is not None:
        lines += [
            ("A million tokens in", money_text(s.cost_per_million_in)),
            ("A million tokens out", money_text(s.cost_per_million_out)),
        ]
    return [
        f'<p class="verdict {word}">{_safe(said)}</p>',
        _bar(bar.of_serving(s, plan.serve.concurrency)),
        _table("Serving", [*lines, *calibrated]),
    ]


def _lever(lever: Lever) -> Line:
    cost = f"{relative_text(lever.price)} GPU time per token"
    return lever.label, f"{saved_text(lever)}, {cost}; {VERDICTS[lever.verdict]}"
