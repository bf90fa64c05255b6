"""The `memplan` program: reads the command line and runs one command."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from memcore.cli.arguments import TYPES, VALUES
from memcore.cli.printing import FAILED, fail, failed
from memcore.cli.reading import source
from memcore.errors import Issue, PlanError, fault
from memcore.shipped import PRESETS

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 (failed) or 2 (bad input); of a check
    those of printing.CHECKED, or 2 where there is no answer."""
    args = arguments(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a label may hold what this terminal cannot write
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _function(args.run)(args)
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
    table = tomllib.loads(PRESETS.joinpath("commands.toml").read_text(encoding="utf-8"))
    shared = table.pop("shared")
    for name, declared in table.items():
        command = commands.add_parser(name, help=declared["about"], description=declared["about"])
        command.set_defaults(run=declared.get("run", f"{name}.run"))
        several = ([option for used in o["use"] for option in shared[used]] if "use" in o else [o]
                   for o in declared["options"])  # fmt: skip
        _add_options(command, itertools.chain.from_iterable(several))
    return parser, commands


def _add_options(command: argparse.ArgumentParser, options: Iterable[Mapping[str, Any]]) -> None:
    """What a command takes, as presets/commands.toml declares it."""
    groups: dict[str, Any] = {}
    for option in options:
        words = {k: VALUES.get(v, v) if isinstance(v, str) else v for k, v in option.items()}
        if "type" in words:
            words["type"] = TYPES[words["type"]]
        group = words.pop("one_of", "")
        if group and group not in groups:
            groups[group] = command.add_mutually_exclusive_group()
        groups.get(group, command).add_argument(*words.pop("names"), **words)


def _function(name: str) -> Callable[[argparse.Namespace], int]:
    """The function in memcore/cli that runs a command, as 'listing.models'."""
    module, _, function = name.partition(".")
    run: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f"memcore.cli.{module}"), function
    )
    return run


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from memcore.version import version

        print(f"memplan {version()}")
        parser.exit()
