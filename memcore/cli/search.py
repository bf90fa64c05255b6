"""`memplan search`: of all ways to do a plan's training, those that fit, the best first; of all
ways to serve its users, those that do."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memcore.cli.link import link_to
from memcore.cli.printing import answer, plan_title, table
from memcore.cli.progress import Progress
from memcore.cli.reading import given_plan, measured_of
from memcore.errors import refusal
from memcore.units import (
    bytes_text,
    count_text,
    money_text,
    seconds_or_dash,
    seconds_text,
    signed_bytes,
    signed_seconds,
)

if TYPE_CHECKING:
    from memcore.plan.plan import Plan
    from memcore.search.result import Point, SearchResult


def run(args: argparse.Namespace) -> int:
    plan, measured = given_plan(args), measured_of(args)
    of_server = bool(measured and measured.of_server)
    if measured and of_server != args.serve:
        what = "a server: add --serve" if of_server else "a step of training, which --serve has not"
        raise refusal("--measured", f"is of {what}")
    _refuse_unread(args)
    plan, args.gpu = _with_card(plan, args.gpu)
    result = _of_serving(plan, args) if args.serve else _of_training(plan, args)
    if measured:
        from memcore.search.measured import with_calibrated

        result = with_calibrated(result, measured)

    def text() -> str:
        from memcore.evaluate import evaluate

        title = _title_of_servers(plan, args) if args.serve else plan_title(plan, evaluate(plan))
        blocks = (_readable_servers if args.serve else _readable)(result, args.base)
        measured_said = [_measured(result, of_server)] if measured and result.best else []
        return "\n\n".join([title, *blocks, *measured_said])

    answer(args, result.to_dict, text, lambda: _rows(result))
    return 130 if result.stopped else 0


def _with_card(plan: Plan, wanted: Sequence[Any]) -> tuple[Plan, list[str]]:
    """The plan with the card of one's own that is among the GPUs asked for, and these by name."""
    cards = [each for each in wanted if not isinstance(each, str)]
    if len(cards) > 1:
        raise refusal("--gpu", "one card of your own is searched at a time, beside presets")
    if cards:
        plan = plan.with_changes({"cluster.gpu": cards[0], "cluster.node": None})
    return plan, [each if isinstance(each, str) else plan.gpu_name for each in wanted]


def _refuse_unread(args: argparse.Namespace) -> None:
    """Raises PlanError for an option that only the other kind of search reads."""
    if args.serve:
        if args.thorough:
            raise refusal("--thorough", "is of training: leave it out with --serve")
        return
    for name in ("users", "engine", "ttft", "tpot"):
        if getattr(args, name):
            raise refusal(f"--{name}", "is of serving: add --serve, or leave it out")


def _title_of_servers(plan: Plan, args: argparse.Namespace) -> str:
    s = plan.serve
    users = f"{args.users or s.concurrency:,} users at once"
    return f"{plan.architecture.label}, {users}, {s.prompt_len:,} + {s.output_len:,} tokens each"


def _of_training(plan: Plan, args: argparse.Namespace) -> SearchResult:
    from memcore.search.result import TIME
    from memcore.search.search import search

    space: dict[str, Any] = {
        "gpus": args.gpu, "gpus_at_most": args.gpus_at_most, "keep": args.keep,
        "thorough": args.thorough,
    }  # fmt: skip
    space |= {"by": args.by or TIME, "cost_at_most": args.cost_at_most}
    with Progress("search") as progress:
        return search(plan, **space, progress=progress)


def _of_serving(plan: Plan, args: argparse.Namespace) -> SearchResult:
    from memcore.search.result import COST
    from memcore.search.servers import search_servers
    from memcore.search.solve import Targets

    space: dict[str, Any] = {
        "users": args.users, "gpus": args.gpu, "engines": args.engine, "keep": args.keep,
    }  # fmt: skip
    with Progress("search") as progress:
        return search_servers(
            plan, **space, targets=Targets.of(plan, args.ttft, args.tpot), by=args.by or COST,
            gpus_at_most=args.gpus_at_most, cost_at_most=args.cost_at_most, progress=progress,
        )  # fmt: skip


def _rows(result: SearchResult) -> Iterable[dict[str, Any]]:
    for name, points in (("best", result.best), ("pareto", result.pareto)):
        for p in points:
            row = {"list": name, "rank": p.rank, "trains": p.trains, "same_batch": p.same_batch}
            yield {**row, **_flat(p.figures), "changes": _changes(p)}


def _flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """An interval as two columns."""
    columns: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, list):
            columns |= {f"{name}_at_least": value[0], f"{name}_at_most": value[1]}
        else:
            columns[name] = value
    return columns


def _changes(point: Point, shared: Mapping[str, Any] | None = None) -> str:
    """What a plan changes, but for what all of them do."""
    changes = {path: value for path, value in point.changes.items() if path not in (shared or {})}
    text = _settings(changes) or ("nothing else" if shared else "nothing")
    return text + (f" (the same with {_stages(point)})" if point.also else "")


def _settings(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{path} = {value}" for path, value in changes.items())


def _shared(points: Sequence[Point]) -> dict[str, Any]:
    """What several plans all change, in the same way."""
    first, *others = [p.changes for p in points] or [{}]
    same = {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)}
    return same if others else {}


def _stages(point: Point) -> str:
    return " or ".join(f"train.zero = {stage}" for stage in point.also)


def _readable(result: SearchResult, base: str) -> Iterable[str]:
    nothing = "Nothing fits. More GPUs (--gpus-at-most), others (--gpu) or a looser --keep may."
    shared = _shared([*result.best, *result.pareto])
    listed = functools.partial(_plans, shared=shared)
    blocks = iter(_ranked(result, "fit and may be the best", nothing, listed, base))
    yield next(blocks)
    if shared:
        yield f"All of these set {_settings(shared)}."
    yield from blocks
    if result.why:
        rows = [(c.label, signed_bytes(c.bytes), signed_seconds(c.seconds)) for c in result.why]
        yield "\n".join(table(("Why the best one wins: it changes", "peak", "step"), rows))


def _measured(result: SearchResult, of_server: bool) -> str:
    """What the measured step or server says of the plans, and what not."""
    figures = (name for p in (*result.best, *result.pareto) for name in p.figures)
    if any(name.startswith("calibrated_") for name in figures):
        of = "that have something in common with it"
        of = of if of_server else "of its framework, kernels, attention, adapter and GPU"
        return (
            f"Calibrated by what was measured: plans {of}. Ranks{' and targets' * of_server} are "
            "as predicted, since it says nothing of the others."
        )
    why = (
        "each differs from it in more than its load, or its GPU alone, or its arrivals are not "
        "closed"
        if of_server
        else "none has its framework, kernels, attention, adapter and GPU"
    )
    return f"What was measured says nothing of these plans: {why}."


def _ranked(
    result: SearchResult,
    do: str,
    nothing: str,
    listed: Callable[[str, Sequence[Point]], Iterable[str]],
    base: str,
) -> Iterable[str]:
    """What was judged, then the best and the front as tables, or what helps where none is."""
    yield _judged(result, do)
    if not result.best:
        yield "It was stopped before anything was found that fits." if result.stopped else nothing
        return
    yield "\n".join(listed("Best", result.best))
    yield "\n".join(listed("Fewest GPUs, least time and cost", result.pareto))
    if result.apart:
        yield (
            "Plans of one rank cannot be told apart. Those like the best must differ by "
            f"{result.apart.words}; what all of them are off by is no part of it."
        )
    yield f"The best as a link: {link_to([result.best[0].plan], base)}"


def _judged(result: SearchResult, do: str) -> str:
    """How much was judged and what became of it; of a search that was stopped also how much was
    not."""
    from memcore.search.result import RULES

    excluded = ", ".join(f"{why} {n:,}" for why, n in result.excluded.items())
    text = (
        f"{result.evaluated:,} combinations judged, of which {result.fits:,} {do}"
        + (f"; excluded: {excluded}" if excluded else "")
    )  # fmt: skip
    if not result.stopped:
        return text
    ruled = result.excluded.get(RULES, 0)
    if result.evaluated == ruled:
        text = "no combination was judged yet"
        text += f", but {ruled:,} that rules exclude" if ruled else ""
    if result.left:
        text += f". {result.left:,} were left"
    return f"Stopped: {text}" + (". These are the best so far" if result.best else "")


def _readable_servers(result: SearchResult, base: str) -> Iterable[str]:
    nothing = "Nothing serves them. Other GPUs (--gpu), --keep rounding or looser targets may."
    yield from _ranked(result, "serve them", nothing, _servers, base)
    if result.nearest:
        point, misses = result.nearest
        yield "\n".join(_servers("Nearest", [point]))
        yield f"There {misses}."
    if result.best and result.nowhere:
        without = ", ".join(f"{name} ({why})" for name, why in result.nowhere.items())
        yield f"Not on: {without}"


def _servers(title: str, points: Sequence[Point]) -> Iterable[str]:
    def last(p: Point) -> str:
        dtypes = (f"{k.partition('.')[2]} {v}" for k, v in p.changes.items() if k.endswith("dtype"))
        return ", ".join([p.figures["gpu"], *dtypes])

    def money(name: str) -> Callable[[Point], str]:
        return lambda p: money_text(p.figures[name]) if name in p.figures else "-"

    return _table(
        (
            *(*_FIRST, ("TP", _count("tp")), ("replicas", _count("replicas"))),
            ("users of one", _count("concurrency")),
            *_latency("first token", "ttft"),
            *_latency("a token", "tpot"),
            *(("USD/h", money("cost_per_hour")), ("USD/M out", money("cost_per_million_out"))),
            ("engine", lambda p: p.plan.engine),
        ),
        points,
        f"{title}: GPU, dtypes",
        last,
    )


def _plans(title: str, points: Sequence[Point], shared: Mapping[str, Any]) -> Iterable[str]:
    def tokens(p: Point) -> str:
        return count_text(p.figures["tokens_per_step"]) + ("" if p.same_batch else " (other)")

    return _table(
        (
            *_FIRST,
            ("step", lambda p: seconds_text(p.figures["step_seconds"])),
            ("calibrated", lambda p: _seconds(p, "calibrated_seconds")),
            ("tokens", tokens),
            ("run", lambda p: seconds_text(p.figures["run_seconds"])),
            ("to spare", lambda p: bytes_text(p.figures["headroom_bytes"])),
            ("cost", lambda p: money_text(p.figures["cost"]) if "cost" in p.figures else "-"),
        ),
        points,
        f"{title}: changes",
        lambda p: _changes(p, shared),
    )


def _count(name: str) -> Callable[[Point], str]:
    return lambda p: f"{p.figures[name]:,}"


def _seconds(point: Point, name: str) -> str:
    return seconds_or_dash(point.figures[name]) if name in point.figures else ""


def _latency(title: str, name: str) -> Iterable[Column]:
    yield title, lambda p: seconds_text(p.figures[f"{name}_seconds"])
    yield "calibrated", lambda p: _seconds(p, f"calibrated_{name}_seconds")
    yield "between", lambda p: " to ".join(map(seconds_text, p.figures[f"{name}_range"]))


Column = tuple[str, Callable[["Point"], str]]
_FIRST: tuple[Column, ...] = (("rank", lambda p: str(p.rank)), ("GPUs", _count("gpus")))


def _table(
    columns: Iterable[Column], points: Sequence[Point], title: str, last: Callable[[Point], str]
) -> Iterable[str]:
    """A table of plans, without the columns that none has; its last column is to the left, as it is
    a text."""
    filled = [(head, [text(p) for p in points]) for head, text in columns]
    filled = [(head, [text or "-" for text in of]) for head, of in filled if any(of)]
    rows = list(zip(*(of for _, of in filled), strict=True))
    lines = list(table([head for head, _ in filled], rows))
    width = max(map(len, lines))
    texts = (title, *map(last, points))
    return (f"{a.ljust(width)}  {b}" for a, b in zip(lines, texts, strict=True))
