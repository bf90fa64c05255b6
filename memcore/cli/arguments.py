"""What the commands have in common on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from memcore.cli.printing import printable
from memcore.errors import PlanError, shown
from memcore.words.jobs import JOBS

PLAN_ABOUT = (
    "a file, - for standard input, a link to the app, the plan itself as JSON, or a name: of a "
    "worked plan, of a model or its size, as llama-3.1-8b and 7B are"
)

ON_GPU = (
    "on this GPU, called as its preset or as people do: h200-sxm-141gb, h100, 'RTX 4090'; or a "
    "file of JSON that describes a card of your own, by its label, memory_bytes and "
    "memory_bandwidth at least"
)
SHORT: dict[str, Any] = {"dest": "set", "action": "append"}
MOST = 1_000_000  # GPUs or users, as a plan allows

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], about: str
) -> argparse.ArgumentParser:
    """A command of the program; `run` gives its exit status."""
    sub = commands.add_parser(name, help=about, description=about)
    sub.set_defaults(run=run)
    return sub


def plan_argument(sub: argparse.ArgumentParser, needed: bool = True, several: bool = False) -> None:
    """The plan of a command and what is set in it. `several`: the command chooses among GPUs, by
    options of its own."""
    sub.add_argument("plan", metavar="PLAN", nargs=None if needed else "?", help=PLAN_ABOUT)
    about = (
        "set a field of the plan, by its path or its last word: --set micro_batch=4 --set "
        "train.zero=3. What must change with it changes, and is told"
    )
    sub.add_argument("--set", metavar="FIELD=VALUE", action="append", default=[], help=about)
    if not several:
        about = f"{ON_GPU}: short for --set gpu=NAME"
        sub.add_argument("--gpu", metavar="NAME", help=about, **SHORT, type="cluster.gpu={}".format)
        about = "on so many GPUs: short for --set gpus=N"
        sub.add_argument("--gpus", metavar="N", help=about, **SHORT, type="cluster.gpus={}".format)
    about = (
        "begin as the first screen of the app does for this job; --set changes it further, and "
        "evaluate prints what the job is about"
    )
    sub.add_argument("--job", choices=JOBS, help=about)


def gpu_options(sub: argparse.ArgumentParser) -> None:
    """The GPUs in place of those that files say."""
    sub.add_argument("--gpu", metavar="NAME", type=gpu, help=ON_GPU)
    sub.add_argument("--gpus", metavar="N", type=count, help="on so many GPUs")


def model_option(sub: argparse.ArgumentParser) -> None:
    """The model of files that are read; `reading.chosen_model` gives it."""
    about = "the model, in place of theirs: a preset, or a name on the Hugging Face hub"
    sub.add_argument("--model", metavar="NAME", help=about)


def files_on(args: argparse.Namespace) -> dict[str, Any]:
    """The same as `formats.read_files` takes them."""
    return {"gpu": args.gpu or "", "gpus": args.gpus or 0}


def gpu(text: str) -> Any:
    """The accelerator preset that a name means, which is told where it has another name; the text
    itself where it means none, for whoever reads it to refuse. Of a file what it describes."""
    from memcore.models import cards, catalog

    if text.lstrip().startswith("{") or text.endswith(".json"):
        return card_of(text)
    if text in catalog.gpu_names() or not (found := cards.preset(text)):
        return text
    print(printable(f"memplan: {cards.taken(text, found)}"), file=sys.stderr)
    return found


def card_of(text: str) -> Mapping[str, Any]:
    """What a file, or a text that begins with a brace, describes as a card of one's own."""
    from memcore.cli.reading import card

    try:
        return card(text)
    except PlanError as e:
        raise argparse.ArgumentTypeError("; ".join(issue.message for issue in e.issues)) from None


def count(text: str) -> int:
    """How many: GPUs, users."""
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MOST):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no whole number from 1 to {MOST:,}")
    return int(text)


def above_zero(what: str, below: float = 1e9) -> Callable[[str], float]:
    """What reads a number above 0; `what` it is called where it is none."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < below:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {what} above 0")
        return value

    return number


positive = above_zero("a number")


def latency(most: float) -> Callable[[str], float]:
    """What reads a time as seconds, from `0.02`, `0.02s` or `20ms`. A bare number above `most`
    seconds is taken for one of milliseconds, and refused."""

    def seconds(text: str) -> float:
        if text.endswith("ms"):
            return positive(text[:-2]) / 1000
        value = positive(text.removesuffix("s"))
        if value > most and not text.endswith("s"):
            meant = f"write {text}ms or {value / 1000:g}, or {text}s if they are seconds"
            raise argparse.ArgumentTypeError(f"{shown(text)} would be seconds; {meant}")
        return value

    return seconds


def target_options(sub: argparse.ArgumentParser) -> None:
    """The longest that a request may wait for a token."""
    about = "most time to the first token, as 0.5 (seconds) or 500ms; else serve.target_ttft"
    sub.add_argument("--ttft", metavar="SECONDS", type=latency(60), help=about)
    about = "most time for each token after it, as 0.02 or 20ms; else serve.target_tpot"
    sub.add_argument("--tpot", metavar="SECONDS", type=latency(5), help=about)


def json_option(sub: argparse.ArgumentParser, about: str = "as JSON") -> None:
    sub.add_argument("--json", action="store_true", help=about)


def measured_option(sub: argparse.ArgumentParser) -> None:
    about = (
        "a step that you measured: the plan that ran, its seconds, and its allocated peak in GiB "
        "or a file that says it. The plan is compared with it: as predicted, and moved towards "
        "what the measured step took; both need the same framework, kernels, attention, adapter "
        "and GPU. Or a server: RUN.json=FILE, what a benchmark of it printed, or "
        "RUN.json=tpot:14ms,ttft:0.9"
    )
    sub.add_argument("--measured", metavar="RUN.json=SECONDS[,PEAK]", help=about)
