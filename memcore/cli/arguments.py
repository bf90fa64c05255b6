"""What the commands have in common on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], about: str
) -> argparse.ArgumentParser:
    """A command of the program; `run` gives its exit status."""
    sub = commands.add_parser(name, help=about, description=about)
    sub.set_defaults(run=run)
    return sub


def plan_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("plan", metavar="PLAN.json|-", help="a file, or - for standard input")


def json_option(sub: argparse.ArgumentParser, about: str = "as JSON") -> None:
    sub.add_argument("--json", action="store_true", help=about)


def measured_option(sub: argparse.ArgumentParser) -> None:
    about = (
        "a step that you measured: the plan that ran, its seconds, and its allocated peak in GiB "
        "where you know it. The plan is read beside it, as predicted and scaled by what the "
        "measured step took; both need the same framework, kernels, attention, adapter and GPU"
    )
    sub.add_argument("--measured", metavar="RUN.json=SECONDS[,GIB]", help=about)
