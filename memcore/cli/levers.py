"""`memplan levers`: the changes that make a plan fit, or faster."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from memcore.cli.printing import answer, plan_title, table
from memcore.cli.reading import given_plan
from memcore.units import bytes_text, relative_text, seconds_or_dash, signed_seconds
from memcore.words.jobs import SERVE

if TYPE_CHECKING:
    from memcore.plan.plan import Plan
    from memcore.report import Memory, Report
    from memcore.search.levers import Lever
    from memcore.search.server_levers import ServerLever

SAME_RANK = (
    "{} Changes of one rank cannot be told apart by their GPU time; in brackets what eight of ten "
    "pairs of measured plans leave possible."
)

SAME_COST = (
    "Changes of one rank cannot be told apart by the GPU time of a request. Guesses of a draft are "
    "taken at the plan's share (serve.draft_acceptance), and a head as one that exists."
)


def run(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate
    from memcore.search.levers import levers
    from memcore.search.server_levers import server_levers

    plan = given_plan(args)
    serving = args.serving or plan.about == SERVE
    changes: Sequence[Lever | ServerLever] = server_levers(plan) if serving else levers(plan)

    def text() -> str:
        report = evaluate(plan)
        if serving:
            blocks = _of_serving(plan, report, cast("Sequence[ServerLever]", changes))
        elif report.memory is None:
            blocks = ["\n".join(f"Note: {note}" for note in report.notes)]
        else:
            trained = cast("Sequence[Lever]", changes)
            blocks = _of_training(report.memory, trained)
            if not report.memory.fits and not any(lever.fits for lever in trained):
                blocks.insert(1, _of_more(plan, args))
        return "\n\n".join([plan_title(plan, report), *blocks])

    return answer(args, lambda: [lever.to_dict() for lever in changes], text)


def _of_training(memory: Memory, levers: Sequence[Lever]) -> list[str]:
    from memcore.search.levers import ORDER, headline

    rows = [
        (
            str(lever.rank),
            lever.label,
            ", ".join(lever.followers),
            lever.trains_text,
            lever.verdict,
            bytes_text(lever.saved_bytes),
            signed_seconds(lever.added_seconds),
            f"{relative_text(lever.price)} ({' to '.join(map(relative_text, lever.price_range))})",
        )
        for lever in levers
    ]
    head = ("rank", "change", "and sets", "it", "then", "saves at the peak", "step",
            "GPU time per token")  # fmt: skip
    listed = ["\n".join(table(head, rows, left=5)), SAME_RANK.format(ORDER)] if rows else []
    return [headline(memory, levers), *listed]


SOON = 20.0  # seconds that a search may take which nobody asked for


def _of_more(plan: Plan, args: argparse.Namespace) -> str:
    """What more than two changes at once do, as a search finds in SOON seconds."""
    from memcore.plan.plan import change_texts
    from memcore.search.search import search

    settings = [f"--set {shlex.quote(text)}" for text in args.set]
    job = [f"--job {args.job}"] if args.job else []
    name = "PLAN" if args.plan.lstrip().startswith("{") else shlex.quote(args.plan)
    command = " ".join(["memplan search", name, *job, *settings])
    until = time.monotonic() + SOON

    def stop_when_late(*_: int) -> None:
        if time.monotonic() > until:
            raise KeyboardInterrupt

    result = search(plan, progress=stop_when_late)
    if result.stopped and not result.best:
        return f"More changes at once may: `{command}` looks for them."
    if not result.best:
        return f"Nor do more changes at once: none of {result.evaluated:,} that `{command}` judges."
    best = result.best[0]
    return (
        f"More changes at once do: {', '.join(change_texts(best.changes, ':'))}. `{command}` lists "
        f"{result.fits:,} ways that fit and may be the best."
    )


def _of_serving(plan: Plan, report: Report, levers: Sequence[ServerLever]) -> list[str]:
    from memcore.search.server_levers import SERVES
    from memcore.search.solve import Targets
    from memcore.serving.serve import verdict

    if report.serve is None:
        return ["It is not served, so there is nothing to change."]
    headline = verdict(report.serve, plan)
    headline = f"{headline[:1].upper()}{headline[1:]}"
    if miss := Targets.of(plan).miss(report.serve):
        headline += f".\n{miss.text[:1].upper()}{miss.text[1:]}"
    if not levers:
        return [
            headline,
            "No single change leaves more room or takes less of the GPUs for a request.",
        ]
    rows = [
        (
            str(lever.rank),
            lever.label,
            ", ".join(lever.followers),
            SERVES[lever.serves],
            lever.verdict,
            f"{lever.sequences:,}",
            seconds_or_dash(lever.first),
            seconds_or_dash(lever.each),
            seconds_or_dash(lever.cost),
            "" if lever.price is None else relative_text(lever.price),
        )
        for lever in levers
    ]
    head = ("rank", "change", "and sets", "it", "and", "room for", "first token", "a token",
            "GPU time of a request", "")  # fmt: skip
    return [headline, "\n".join(table(head, rows, left=5)), SAME_COST]
