"""`memplan solve`: the longest context, the most sequences or the fewest GPUs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from memcore.cli.arguments import Commands, command, plan_argument
from memcore.cli.printing import fail, json_text, printable
from memcore.cli.reading import given_plan
from memcore.errors import shown
from memcore.units import seconds_text

if TYPE_CHECKING:
    from memcore.search.solve import Answer


def add(commands: Commands) -> None:
    about = "Find the longest context, the most sequences or the fewest GPUs that a plan can serve."
    sub = command(commands, "solve", _solve, about)
    sub.add_argument("question", choices=("context", "concurrency", "gpus"), help="what to find")
    plan_argument(sub)
    sub.add_argument("--rate", type=_positive, help="requests per second, which gpus needs")
    about = "most seconds to the first token; else the plan's serve.target_ttft"
    sub.add_argument("--ttft", type=_positive, help=about)
    about = "most seconds for each token after it; else the plan's serve.target_tpot"
    sub.add_argument("--tpot", type=_positive, help=about)
    sub.add_argument("--json", action="store_true", help="the answer, its plan and what it serves")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number above 0")
    return value


def _solve(args: argparse.Namespace) -> int:
    from memcore.search import solve
    from memcore.serving.serve import servable

    plan = given_plan(args)
    if not servable(plan.architecture):
        return fail("this plan cannot be served: `memplan evaluate` says why")
    s = plan.serve
    targets = solve.Targets(args.ttft or s.target_ttft or None, args.tpot or s.target_tpot or None)
    if args.question == "gpus":
        if args.rate is None:
            return fail("how many requests per second? Say --rate")
        answer = solve.fewest_gpus(plan, args.rate, targets)
    else:
        find = {"context": solve.longest_context, "concurrency": solve.largest_concurrency}
        answer = find[args.question](plan, targets)
    print(json_text(answer.to_dict(), indent=1) if args.json else printable(_solved(answer)))
    return 0


def _solved(answer: Answer) -> str:
    """An answer for a terminal."""
    from memcore.search.solve import LIMITS

    s, p = answer.served, answer.plan
    what = {
        "context": f"Longest context: {answer.value:,} tokens, {p.serve.output_len:,} of them "
        f"generated, for {p.serve.concurrency:,} sequences at once",
        "concurrency": f"Most sequences: {answer.value:,} at once",
        "gpus": f"Fewest GPUs: {answer.value:,}, tensor parallel {p.serving_tp:,}, with "
        f"{p.serve.concurrency:,} sequences at once on each replica",
    }[answer.question]
    if not answer.value:
        return f"Not possible: {LIMITS[answer.limit]} forbids it."
    less = "fewer" if answer.question == "gpus" else "more"
    found = f"{what}; {LIMITS[answer.limit]} forbids {less}."
    if s.ttft_seconds is None or s.tpot_seconds is None:
        return found
    return (
        f"{found}\nFirst token after {seconds_text(s.ttft_seconds)}, then one every "
        f"{seconds_text(s.tpot_seconds)}"
    )
