"""What a command is given: a plan in a file or on standard input."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, PlanError, shown, shown_path
from memcore.units import GiB

if TYPE_CHECKING:
    import argparse

    from memcore.plan.measured import Measured
    from memcore.plan.plan import Plan

MAX_PLAN_BYTES = 2_000_000  # a plan with a config.json and a GPU inline has about 10,000


def given_plan(args: argparse.Namespace) -> Plan:
    """The plan that a command was given. Raises PlanError, which `main` prints with its source."""
    return plan_of(read(args.plan))


def source(args: argparse.Namespace) -> str:
    """Where a command's plan is from, before what is wrong with it; '' of one that takes none."""
    path = getattr(args, "plan", None)
    if path is None:
        return ""
    return f"{named(path)}: "


def named(path: str) -> str:
    """What a plan that was given is called."""
    if path.lstrip().startswith("{"):
        return "the plan"
    return "standard input" if path == "-" else shown_path(path)


def read(path: str, most: int = MAX_PLAN_BYTES) -> bytes:
    """The bytes of a file or of standard input, up to just over the limit; of what begins as a JSON
    object, its own. Raises PlanError."""
    if path.lstrip().startswith("{"):
        return path.encode(errors="replace")
    try:
        if path == "-":
            return sys.stdin.buffer.read(most + 1)
        with open(path, "rb") as file:
            return file.read(most + 1)
    except OSError as e:
        raise PlanError([Issue("", (e.strerror or str(e)).lower())]) from None
    except ValueError as e:  # a null byte in the name
        raise PlanError([Issue("", str(e))]) from None


def plan_of(data: bytes) -> Plan:
    """The plan that JSON text describes. Raises PlanError, whatever the bytes are."""
    from memcore.plan.plan import Plan

    if len(data) > MAX_PLAN_BYTES:
        raise PlanError([Issue("", f"more than {MAX_PLAN_BYTES:,} bytes, so not a plan")])
    try:
        text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
        document = json.loads(text, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError:
        raise PlanError([Issue("", "not text, so not a plan in JSON")]) from None
    except RecursionError:
        raise PlanError([Issue("", "nested too deeply to be a plan")]) from None
    except json.JSONDecodeError as e:
        where = f"line {e.lineno}, column {e.colno}"
        raise PlanError([Issue("", f"not JSON: {e.msg} ({where})")]) from None
    except ValueError as e:
        raise PlanError([Issue("", f"not a plan: {e}")]) from None
    return Plan.of(document)


def measured_of(args: argparse.Namespace) -> Measured | None:
    """The step that --measured says; None where it says none. Raises PlanError, under the option's
    name."""
    from memcore.plan.measured import Measured

    if args.measured is None:
        return None
    path, found, numbers = args.measured.rpartition("=")
    seconds, _, gib = numbers.partition(",")
    try:
        if not found or not path:
            raise ValueError
        took, peak = float(seconds), float(gib or 0) * GiB
        whole = round(peak) if math.isfinite(peak) else -1
    except ValueError:
        said = f"must be a plan's file, = and seconds, as run.json=9.5, not {shown(args.measured)}"
        raise PlanError([Issue("--measured", said)]) from None
    try:
        return Measured(plan_of(read(path)), took, whole)
    except PlanError as e:
        issues = (Issue("--measured", f"{shown_path(path)}: {issue}") for issue in e.issues)
        raise PlanError(issues) from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {shown(key)} is there twice")
        values[key] = value
    return values
