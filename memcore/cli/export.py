"""`memplan export`: a plan as the files of the program that would run it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memcore.cli.printing import json_text, printable
from memcore.cli.reading import given_plan
from memcore.errors import refusal


def run(args: argparse.Namespace) -> int:
    from memcore.formats.export import export, programs
    from memcore.formats.schedulers import SCHEDULERS, scheduled

    plan = given_plan(args)
    program = args.program or programs(plan)[0]
    written = (scheduled if program in SCHEDULERS else export)(plan, program)
    if args.json:
        left = [str(issue) for issue in written.left]
        print(json_text({"files": dict(written.files), "left": left}, indent=1))
        return 0
    for issue in written.left:
        print(printable(f"memplan: {issue}"), file=sys.stderr)
    for name, content in written.files.items():
        if args.out:
            _write(Path(args.out), name, content)
        else:
            print(f"# {name}\n{content}")
    return 0


def _write(folder: Path, name: str, content: str) -> None:
    """One file in the folder. Raises PlanError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_text(content, encoding="utf-8")
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or str(e)
        raise refusal("--out", f"{name} is not written: {why.lower()}") from None
    print(folder / name)
