"""Report: a plan on one page, as a file for whoever signs the bill. It prints to PDF, needs no
network, and every figure in it is one of the engine's."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from app import bar
from app.elements import figures
from app.fields import in_words, setting
from app.tables.levers import saved_text
from app.tables.measured import calibrated as calibrated_rows
from app.text import VERDICTS, title_of_plan
from memcore.explain.book import Book
from memcore.plan.plan import Plan, title_of
from memcore.report import Report, Run, TogetherMemory
from memcore.search.change import differences
from memcore.search.levers import Lever
from memcore.search.measured import Calibrated
from memcore.search.prices import own_price
from memcore.serving.notes import serving_notes
from memcore.units import bytes_text, gib_text, money_text, relative_text, rent_text, seconds_text
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
    title, book = title_of_plan(plan), Book(plan, report)
    parts = [f"<h1>{_safe(title)}</h1>"]
    if report.together and about in (TOGETHER, ""):
        parts += _together(report.together)
    trains = about != SERVING or not report.serve
    if trains and report.memory:
        m = report.memory
        parts += _verdict("Training", m.verdict, m.device_bytes, bar.of_training(m))
    if trains and report.run:
        cost = ("Cost", _cost(plan, report.run))
        parts.append(_table("The whole run", [cost, *_figures(book, "run")]))
    if trains and report.memory:
        parts.append(_table("Memory of a GPU", _figures(book, "memory")))
    if trains and report.time:
        step = (f"Step{report.if_it_fitted}", seconds_text(report.time.step_seconds))
        lines = [step, *_figures(book, "time"), *_calibrated(calibrated)]
        parts.append(_table("Time of a step", lines))
    serves = report.serve and not (trains and about and report.memory)
    if serves and report.serve:
        s, n = report.serve, plan.serve.concurrency
        word = "fits" if s.fits else "over"
        parts.append(_verdict_line(f"Serving {n:,} sequences at once {VERDICTS[word]}.", word))
        parts.append(_bar(bar.of_serving(s, n)))
        rent = ("Rent of all GPUs", _rent(plan))
        lines = [rent, *_figures(book, "serving"), *_calibrated(server)]
        parts.append(_table("Serving", lines))
    parts += _side_by_side(beside)
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


def _side_by_side(rows: Sequence[Mapping[str, object]]) -> list[str]:
    if not rows:
        return []
    head = "".join(f"<th>{_safe(name)}</th>" for name in rows[0])
    lines = "".join(
        f"<tr>{''.join(f'<td>{_safe(str(cell))}</td>' for cell in row.values())}</tr>"
        for row in rows
    )
    return [f"<h2>Plans side by side</h2><table><tr>{head}</tr>{lines}</table>"]


def _bar(drawn: bar.Bar) -> str:
    return f'{bar.small(drawn)}{bar.key(drawn)}<p class="small">{drawn.limit_text}</p>'


def _verdict_line(verdict: str, word: str) -> str:
    return f'<p class="verdict {word}">{_safe(verdict)}</p>'


def _verdict(what: str, word: str, device: Sequence[int], drawn: bar.Bar) -> list[str]:
    low, high = map(gib_text, device)
    text = f"{what} {VERDICTS[word]}: {low} to {high} of {gib_text(drawn.limit)} per GPU."
    return [_verdict_line(text, word), _bar(drawn)]


def _together(together: TogetherMemory) -> list[str]:
    lines = [(p.label, " to ".join(map(bytes_text, p.device_bytes))) for p in together.phases]
    drawn = bar.of_together(together)
    return [
        *_verdict("The fullest phase", together.verdict, together.device_bytes, drawn),
        _table("Memory of a GPU in each phase", lines),
    ]


def _figures(book: Book, section: str) -> list[Line]:
    """The numbers of a section, as their explanations have them."""
    return [(row["what"], row["is"]) for row in figures(book, f"report_{section}")]


def _calibrated(of: Calibrated | None) -> list[Line]:
    if of is None:
        return []
    lines = [(f"{row['figure']}, calibrated", row["calibrated"]) for row in calibrated_rows(of)]
    return [*lines, ("What that rests on", of.assumed)]


def _cost(plan: Plan, run: Run) -> str:
    price, whose = own_price(plan)
    if price is None:
        return "no price is known"
    at = "at" if run.cost is not None else f"at the lowest list price ({whose}),"
    return f"{money_text(price * run.gpu_hours)} {at} ${price:,.2f} an hour for a GPU"


def _rent(plan: Plan) -> str:
    price, whose = own_price(plan)
    if price is None:
        return "no price is known"
    return f"{rent_text(price * plan.cluster.gpus)}, at {money_text(price)} each ({whose})"


def _lever(lever: Lever) -> Line:
    cost = f"{relative_text(lever.price)} GPU time per token"
    return lever.label, f"{saved_text(lever)}, {cost}; {VERDICTS[lever.verdict]}"
