"""What the commands have in common on the command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from memcore.cli.printing import printable
from memcore.errors import PlanError, shown
from memcore.words.jobs import JOBS

MOST = 1_000_000  # GPUs or users, as a plan allows


def files_on(args: argparse.Namespace) -> dict[str, Any]:
    """The same as `formats.read_files` takes them."""
    return {"gpu": args.gpu or "", "gpus": args.gpus or 0}


def gpu(text: str) -> Any:
    """The accelerator preset that a name means, which is told where it has another name; the text
    itself where it means none, for whoever reads it to refuse. Of a file what it describes."""
    from memcore.formats import here
    from memcore.models import cards, catalog

    if text == here.HERE:
        return here.settings()[0]["cluster.gpu"]
    if text.lstrip().startswith("{") or text.endswith(".json"):
        return card_of(text)
    if text in catalog.gpu_names() or not (preset := cards.preset(text)):
        return text
    print(printable(f"memplan: {cards.taken(text, preset)}"), file=sys.stderr)
    return preset


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


def port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 65_535):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a port from 1 to 65535")
    return int(text)


def path(text: str) -> str:
    """A path of words between slashes, with a slash before and none behind it; '' is the root."""
    words = [word for word in text.split("/") if word]
    if not all(re.fullmatch(r"[A-Za-z0-9._~-]+", w) and w.strip(".") for w in words):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no path such as /memplan")
    return "".join(f"/{word}" for word in words)


HOME = "http://localhost:8501/"  # where `memplan app` serves
TABLES = ("breakdown", "ledger", "transfers", "timeline")  # of a Report, as CSV
# What presets/commands.toml names: how the text of an option is read, and values.
TYPES: dict[str, Callable[[str], Any]] = {
    "gpu": gpu,
    "count": count,
    "positive": positive,
    "size": above_zero("a size in GiB"),
    "money": above_zero("an amount", 1e15),
    "time to first token": latency(60),
    "time per token": latency(5),
    "set gpu": "cluster.gpu={}".format,
    "set gpus": "cluster.gpus={}".format,
    "port": port,
    "path": path,
}
VALUES: dict[str, Any] = {"JOBS": list(JOBS), "HOME": HOME, "TABLES": TABLES}
