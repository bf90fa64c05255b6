"""`memplan solve`: the largest or the smallest value of any number of a plan that still fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from memcore.cli.printing import answer as told
from memcore.cli.printing import fail
from memcore.cli.reading import given_plan
from memcore.errors import PlanError
from memcore.units import seconds_text
from memcore.words.jobs import TRAIN

if TYPE_CHECKING:
    from memcore.plan.plan import Plan
    from memcore.search.solve import Answer, Targets
    from memcore.search.solver import Solved


QUESTIONS = ("context", "concurrency", "gpus")


def run(args: argparse.Namespace) -> int:
    from memcore.search import solve
    from memcore.serving.serve import servable

    if args.question == "gpus" and args.users:
        return _searched(args)
    plan = given_plan(args)
    if args.question == "gpus" and _trains(plan, args):
        args.question = "cluster.gpus"
    if unread := _unread(args):
        return fail(unread)
    if args.question not in QUESTIONS:
        return _solve_field(plan, args)
    if not servable(plan.architecture):
        return fail("this plan cannot be served: `memplan evaluate` says why")
    targets = _targets(plan, args)
    if args.question == "gpus":
        if args.rate is None:
            return fail(
                "how many requests per second? Say --rate, or --users for users at once; for GPUs "
                "to train on ask `memplan solve cluster.gpus`"
            )
        answer = solve.fewest_gpus(plan, args.rate, targets)
    else:
        find = {"context": solve.longest_context, "concurrency": solve.largest_concurrency}
        answer = find[args.question](plan, targets)
    return told(args, answer.to_dict, lambda: _solved(answer, targets))


def _searched(args: argparse.Namespace) -> int:
    """The fewest GPUs for users at once are what a search of servers finds."""
    from memcore.cli.program import main

    words = ["search", args.plan, "--serve", "--users", str(args.users)]
    for setting in args.set:
        name, _, value = setting.partition("=")
        words += ["--gpu", value] if name == "cluster.gpu" else ["--set", setting]
    for name in ("job", "ttft", "tpot"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name}", str(value)]
    return main([*words, "--json"] if args.json else words)


def _trains(plan: Plan, args: argparse.Namespace) -> bool:
    """Whether GPUs to train on are asked for, as the job or a limit of the run says."""
    return bool(plan.about == TRAIN or args.days or args.cost) and args.rate is None


def _unread(args: argparse.Namespace) -> str:
    """What is wrong with an option that the question does not read; '' of none."""
    if args.question != "gpus" and args.rate:
        return f"--rate is read by `memplan solve gpus`, and not by {args.question}"
    if args.users:
        return f"--users is read by `memplan solve gpus`, and not by {args.question}"
    for name in ("days", "cost"):
        if args.question != "cluster.gpus" and getattr(args, name):
            return f"--{name} is read by `memplan solve cluster.gpus`, and not by {args.question}"
    return ""


def _nearest(plan: Plan, targets: Targets, gpu: str) -> str:
    """What comes nearest to the targets on a kind of GPU: one user alone."""
    from memcore.search.servers import search_servers

    result = search_servers(plan, users=1, targets=targets, gpus=[gpu], engines=[plan.engine])
    if not result.nearest:
        return ""
    point, misses = result.nearest
    return f"The nearest: one user alone on {point.figures['gpus']:,} {gpu}, where {misses}."


def _targets(plan: Plan, args: argparse.Namespace) -> Targets:
    from memcore.search.solve import Targets

    return Targets.of(plan, args.ttft, args.tpot)


def _solve_field(plan: Plan, args: argparse.Namespace) -> int:
    from memcore.plan.model_rules import SIZES, one_size
    from memcore.search.solver import smallest_gpu, solve

    if args.question in SIZES:
        for issue in one_size(args.question, 0, plan.architecture):
            return fail(str(issue))
    try:
        if args.question == "cluster.gpu":
            solved = smallest_gpu(plan, args.serving)
        else:
            serves = True if args.serving else None
            limits = {f"run.target_{name}": getattr(args, name) for name in ("days", "cost")}
            plan = plan.with_changes({path: value for path, value in limits.items() if value})
            if args.cost and not plan.run.price_per_gpu_hour:
                return fail("--cost wants a price: --set price_per_gpu_hour=2.5, say")
            solved = solve(plan, args.question, args.goal or "", _targets(plan, args), serves)
    except PlanError as e:
        return fail(*(f"{i.field}: {i.message}" for i in e.issues))
    return told(args, solved.to_dict, lambda: _of_field(solved))


def _of_field(solved: Solved) -> str:
    """The value of a field for a terminal."""
    from memcore.search.solve import LIMITS

    limit = LIMITS[solved.limit]
    if solved.value is None:
        return f"No value of {solved.field} fits: {limit} forbids it."
    value = f"{solved.value:,}" if isinstance(solved.value, int | float) else solved.value
    then = "anything smaller" if solved.goal == "smallest" else "more"
    return f"{solved.goal.capitalize()} {solved.field} that fits: {value}; {limit} forbids {then}."


def _solved(answer: Answer, targets: Targets) -> str:
    """An answer for a terminal."""
    from memcore.search.solve import LATE, LIMITS

    s, p = answer.served, answer.plan
    what = {
        "context": f"Longest context: {answer.value:,} tokens, {p.serve.output_len:,} of them "
        f"generated, for {p.serve.concurrency:,} sequences at once",
        "concurrency": f"Most sequences: {answer.value:,} at once",
        "gpus": f"Fewest GPUs: {answer.value:,}, tensor parallel {p.serving_tp:,}, with "
        f"{p.serve.concurrency:,} sequences at once on each replica",
    }[answer.question]
    if not answer.value:
        text = f"Not possible: {LIMITS[answer.limit]} forbids it."
        return f"{text} {_nearest(p, targets, p.gpu_name)}" if answer.limit in LATE else text
    less = "fewer" if answer.question == "gpus" else "more"
    text = f"{what}; {LIMITS[answer.limit]} forbids {less}."
    if s.ttft_seconds is None or s.tpot_seconds is None:
        return text
    return (
        f"{text}\nFirst token after {seconds_text(s.ttft_seconds)}, then one every "
        f"{seconds_text(s.tpot_seconds)}"
    )
