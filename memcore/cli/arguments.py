"""What the commands have in common on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

from memcore.errors import shown

PLAN_ABOUT = (
    "a file, - for standard input, a link to the app, the plan itself as JSON, or a name: of a "
    "worked plan, of a model or its size, as llama-3.1-8b and 7B are"
)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], about: str
) -> argparse.ArgumentParser:
    """A command of the program; `run` gives its exit status."""
    sub = commands.add_parser(name, help=about, description=about)
    sub.set_defaults(run=run)
    return sub


def plan_argument(sub: argparse.ArgumentParser, needed: bool = True) -> None:
    sub.add_argument("plan", metavar="PLAN", nargs=None if needed else "?", help=PLAN_ABOUT)
    about = (
        "set a field of the plan, by its path or its last word: --set gpu=h200-sxm-141gb --set "
        "train.zero=3. What must change with it changes, and is told"
    )
    sub.add_argument("--set", metavar="FIELD=VALUE", action="append", default=[], help=about)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number above 0")
    return value


def target_options(sub: argparse.ArgumentParser) -> None:
    """What a request may feel at most."""
    about = "most seconds to the first token; else the plan's serve.target_ttft"
    sub.add_argument("--ttft", type=positive, help=about)
    about = "most seconds for each token after it; else the plan's serve.target_tpot"
    sub.add_argument("--tpot", type=positive, help=about)


def json_option(sub: argparse.ArgumentParser, about: str = "as JSON") -> None:
    sub.add_argument("--json", action="store_true", help=about)


def measured_option(sub: argparse.ArgumentParser) -> None:
    about = (
        "a step that you measured: the plan that ran, its seconds, and its allocated peak in GiB "
        "where you know it. The plan is read beside it, as predicted and scaled by what the "
        "measured step took; both need the same framework, kernels, attention, adapter and GPU"
    )
    sub.add_argument("--measured", metavar="RUN.json=SECONDS[,GIB]", help=about)
