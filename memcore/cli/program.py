"""The `memplan` program: reads the command line and runs one command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from memcore.cli import (
    app,
    check,
    compare,
    evaluate,
    explain,
    export,
    lens,
    levers,
    link,
    listing,
    read,
    search,
    simulate,
    snapshot,
    solve,
    sweep,
)
from memcore.cli.arguments import Commands
from memcore.cli.printing import FAILED, fail, failed
from memcore.cli.reading import source
from memcore.errors import Issue, PlanError, fault

COMMANDS = (
    *(evaluate, check, explain, levers, lens, solve, search, sweep, compare, link, read),
    *(export, snapshot, simulate, app, listing),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 (failed) or 2 (bad input); of a check
    those of printing.CHECKED, or 2 where there is no answer."""
    args = arguments(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a label may hold what this terminal cannot write
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except PlanError as e:
        status = fail(*(f"{_from(issue, args)}{issue}" for issue in e.issues))
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = failed(args)
    except KeyboardInterrupt:
        status = 130
    except Exception as e:
        status = fail(f"{source(args)}{FAILED} ({fault(e)})", status=failed(args))
    return status


def _from(issue: Issue, args: argparse.Namespace) -> str:
    """Where the plan is from that an issue is of; '' of an issue of an option."""
    return "" if issue.field.startswith("--") else source(args)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """What a command line asks for. The options of a command stand anywhere among its words."""
    of = commands()
    if words and words[0] in of.choices:
        args: argparse.Namespace = of.choices[words[0]].parse_intermixed_args(words[1:])
        return args
    return parser().parse_args(words)


def parser() -> argparse.ArgumentParser:
    """Every command, with its words and options."""
    parser, _ = _parsers()
    return parser


def commands() -> Commands:
    """The commands by their names."""
    _, commands = _parsers()
    return commands


def _parsers() -> tuple[argparse.ArgumentParser, Commands]:
    parser = argparse.ArgumentParser(
        prog="memplan",
        description="Where every byte of a run goes, and what it costs in time.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser, commands


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from memcore.version import version

        print(f"memplan {version()}")
        parser.exit()
