"""`memplan formula`: the allocated peak of one GPU in words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memcore.cli.arguments import Commands, command, json_option, plan_argument
from memcore.cli.printing import answer
from memcore.cli.reading import given_plan
from memcore.cli.sweep import axis_of

if TYPE_CHECKING:
    from memcore.search.formulas import Formula

USUAL = ["train.micro_batch", "train.seq_len"]


def add(commands: Commands) -> None:
    about = (
        "Print the allocated peak of one GPU as a formula, and which instant of the step is the "
        "peak where."
    )
    sub = command(commands, "formula", _formula, about)
    plan_argument(sub)
    about = (
        "a field that varies: train.micro_batch, train.seq_len or cluster.gpus, or with its values "
        f"as of a sweep: train.micro_batch=1:64; may be repeated. Without it: {', '.join(USUAL)}"
    )
    sub.add_argument("--over", metavar="FIELD[=VALUES]", action="append", help=about)
    json_option(sub)


def _formula(args: argparse.Namespace) -> int:
    from memcore.search.formulas import formulas, usual

    plan, over = given_plan(args), {}
    for text in args.over or USUAL:
        field, values = axis_of(text, "--over") if "=" in text else (text, usual(plan, text))
        over[field] = values
    found = formulas(plan, over)
    head = "Allocated peak of one GPU, the largest of:"
    return answer(
        args, lambda: [one.to_dict() for one in found], lambda: "\n".join([head, *_lines(found)])
    )


def _lines(found: tuple[Formula, ...]) -> Iterator[str]:
    for one in found:
        stage = f" of stage {one.stage}" if any(f.stage for f in found) else ""
        ends = (
            f"{name.rpartition('.')[2]} {low:,} to {one.last[name]:,}"
            for name, low in one.first.items()
        )
        yield f"  {one.text}"
        yield f"      {one.instant}{stage}: the peak at {one.share:.2%}, {', '.join(ends)}"
