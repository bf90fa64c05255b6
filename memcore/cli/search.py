"""`memplan search`: of all ways to do a plan's training, those that fit, the best first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from memcore.cli.arguments import Commands, command, plan_argument
from memcore.cli.printing import form_options, json_text, plan_title, printable, table, write_csv
from memcore.cli.progress import Progress
from memcore.cli.reading import given_plan
from memcore.units import (
    bytes_text,
    count_text,
    money_text,
    seconds_text,
    signed_bytes,
    signed_seconds,
)

if TYPE_CHECKING:
    from memcore.search.search import Found, Point

LONG = 5.0  # seconds: of what may take longer it is said before


def add(commands: Commands) -> None:
    about = (
        "Search all ways to do a plan's training: parallelism, ZeRO, frameworks, kernels, "
        "recomputation, offload, schedules and micro-batches. Of those that fit, the best first."
    )
    sub = command(commands, "search", _search, about)
    plan_argument(sub)
    about = "try up to so many GPUs; without it as many as the plan has, and fewer"
    sub.add_argument("--gpus-at-most", metavar="N", type=_count, help=about)
    about = "choose from these accelerators; without it the plan's own"
    sub.add_argument("--gpu", metavar="NAME", nargs="+", action="extend", default=[], help=about)
    about = (
        "what may not change: the training (default), all but the rounding of states and products, "
        "or nothing (adapters, other optimizers and batches are tried too)"
    )
    words = ("training", "rounding", "anything")
    sub.add_argument("--keep", choices=words, default="training", help=about)
    about = "what is best: the time, the cost or the energy of the whole run, or memory to spare"
    ways = ("time", "cost", "energy", "headroom")
    sub.add_argument("--by", choices=ways, default="time", help=about)
    about = "leave out what costs more for the whole run"
    sub.add_argument("--cost-at-most", metavar="USD", type=_money, default=0.0, help=about)
    about = "try ways too that hardly anybody takes: much context parallelism, and any pipelines"
    sub.add_argument("--thorough", action="store_true", help=about)
    form_options(sub, "as JSON", "the best and the Pareto front as CSV")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a number of GPUs")
    return int(text)


def _money(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not an amount above 0")
    return value


def _search(args: argparse.Namespace) -> int:
    from memcore.search.search import search, seconds_of

    plan = given_plan(args)
    space: dict[str, Any] = {
        "gpus": args.gpu, "gpus_at_most": args.gpus_at_most, "keep": args.keep,
        "thorough": args.thorough,
    }  # fmt: skip
    seconds = seconds_of(plan, **space)
    if seconds > LONG:
        said = f"this may take about {seconds_text(seconds)}; Ctrl-C stops it and prints the best"
        print(f"memplan: {said} so far", file=sys.stderr, flush=True)
    with Progress("search") as progress:
        found = search(plan, **space, by=args.by, cost_at_most=args.cost_at_most, progress=progress)
    if args.json:
        print(json_text(found.to_dict(), indent=1))
    elif args.csv:
        write_csv(_rows(found))
    else:
        from memcore.evaluate import evaluate

        title = plan_title(plan, evaluate(plan))
        print(printable("\n\n".join([title, *_readable(found)])))
    return 130 if found.stopped else 0


def _rows(found: Found) -> Iterable[dict[str, Any]]:
    for name, points in (("best", found.best), ("pareto", found.pareto)):
        for p in points:
            low, high = p.figures["device_bytes"]
            figures = {k: v for k, v in p.figures.items() if k != "device_bytes"}
            sizes = {"device_bytes_at_least": low, "device_bytes_at_most": high}
            row = {"list": name, "rank": p.rank, "trains": p.trains, "same_batch": p.same_batch}
            yield {**row, **figures, **sizes, "changes": _changes(p)}


def _changes(point: Point) -> str:
    return ", ".join(f"{path} = {value}" for path, value in point.changes.items()) or "nothing"


def _readable(found: Found) -> Iterable[str]:
    excluded = ", ".join(f"{why} {n:,}" for why, n in found.excluded.items())
    yield (
        f"{found.evaluated:,} combinations judged, of which {found.fits:,} fit"
        + (f"; excluded: {excluded}" if excluded else "")
        + (". Stopped: these are the best so far" if found.stopped else "")
    )
    if not found.best:
        yield "Nothing fits. More GPUs (--gpus-at-most), others (--gpu) or a looser --keep may."
        return
    yield "\n".join(_table("Best", found.best))
    yield "\n".join(_table("Fewest GPUs, least time and cost", found.pareto))
    if found.apart:
        yield (
            "Plans of one rank cannot be told apart. Those like the best must differ by "
            f"{found.apart.words}; what all of them are off by is no part of it."
        )
    if found.why:
        rows = [(c.label, signed_bytes(c.bytes), signed_seconds(c.seconds)) for c in found.why]
        yield "\n".join(table(("Why the best one wins: it changes", "peak", "step"), rows))


def _table(title: str, points: Sequence[Point]) -> Iterable[str]:
    head = ("rank", "GPUs", "step", "tokens", "run", "to spare", "cost", f"  {title}: changes")
    rows = [
        (
            str(p.rank),
            f"{p.figures['gpus']:,}",
            seconds_text(p.figures["step_seconds"]),
            count_text(p.figures["tokens_per_step"]) + ("" if p.same_batch else " (other)"),
            seconds_text(p.figures["run_seconds"]),
            bytes_text(p.figures["headroom_bytes"]),
            money_text(p.figures["cost"]) if "cost" in p.figures else "-",
            f"  {_changes(p)}",
        )
        for p in points
    ]
    return (line.rstrip() for line in _left(head, rows))


def _left(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """A table whose last column is to the left, as it is a text."""
    *columns, last = zip(head, *rows, strict=True)
    lines = table([c[0] for c in columns], list(zip(*(c[1:] for c in columns), strict=True)))
    return (f"{line}{text}" for line, text in zip(_even(lines), last, strict=True))


def _even(lines: Iterable[str]) -> Iterable[str]:
    every = list(lines)
    return (line.ljust(max(map(len, every))) for line in every)
