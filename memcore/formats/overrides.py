"""Overrides: what texts of one job say of each other before any of them is read. A script writes
files of its own, and a command says options in place of the file that it names.

Sources, each of which puts the command's options over its file's: trl 1.16's TrlParser, vLLM 0.33's
utils/argparse_utils.py, torchtitan 0.2.2's config/manager.py, torchtune 0.6.1's config/_parse.py,
LLaMA-Factory 0.9.5's hparams/parser.py, axolotl 0.13's cli/utils, Hydra 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from memcore.formats import accelerate, launchers
from memcore.formats.launchers import LAUNCHERS
from memcore.formats.python import GIVEN
from memcore.formats.texts import Text, options, read_value, written

NAMES_FILE = re.compile(r"-c|--(?:[\w.-]*[._-])?config(?:[_-]?(?:file|path))?")
SETS = re.compile(r"\+{0,2}([A-Za-z][\w.-]*)=(.*)", re.DOTALL)


def applied(texts: Sequence[Text]) -> list[Text]:
    """The texts, those that scripts among them write, and each with what a command says over it."""
    found: list[Text] = []
    names = {PurePath(text.name).name for text in texts}
    for text in texts:
        script, files = written(text) if text.document is None else (text, [])
        found += [script, *(file for file in files if file.name not in names)]
        names |= {file.name for file in files}
    by_name = {
        PurePath(text.name).name: text.name
        for text in found
        if text.document is not None or _parses(text)
    }
    given: dict[str, list[tuple[str, str]]] = {}
    for text in found:
        for command in text.commands if by_name and text.document is None else ():
            for file, pairs in (_over(command, by_name), _launches(command, by_name)):
                given.setdefault(file, []).extend(pairs)
    given.pop("", None)
    return [_with(text, given.get(text.name, [])) for text in found]


def _parses(text: Text) -> bool:
    """Whether a text is a script in Python that takes options."""
    return text.name.endswith(".py") and any(
        mark in text.content for mark in LAUNCHERS.listed("takes_options")
    )


def _with(text: Text, given: list[tuple[str, str]]) -> Text:
    """A text with what a command says over it: over a script's own defaults of its options too."""
    if not given or text.document is not None:
        return Text(text.name, text.content, tuple(given)) if given else text
    told = [f'{GIVEN}("--{name}", default={_constant(value)!r})' for name, value in given]
    return Text(text.name, "\n".join((text.content, *told)))


def _constant(text: str) -> object:
    value = read_value(text)
    return value if isinstance(value, (bool, int, float, list)) else text


def _over(command: Sequence[str], by_name: dict[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """The file that a command reads its options from, and what it says in place of it."""
    for at, word in enumerate(command):
        option, equals, value = word.partition("=")
        before = option if equals else command[at - 1] if at else ""
        file = by_name.get(PurePath(value if equals else word).name, "")
        own = file.endswith(".py")  # a script is named where it stands
        named = before[:1] == "-" and (own or not NAMES_FILE.fullmatch(before))
        if not file or named or before in LAUNCHERS.names["other_files"]:
            continue
        starts = [
            n
            for n, each in enumerate(command[:at])
            if each.endswith(".py")
            or each.rpartition("/")[2] in LAUNCHERS.names["own_words"]
            or (n and command[n - 1] in ("-m", "--module"))
        ]
        if not (starts or own or option == "CONFIG_FILE"):
            return "", []
        words = list(command[at + 1 :])
        if starts and not own:
            words += command[starts[-1] + 1 : at]
        sets = [set_to for each in words if (set_to := SETS.fullmatch(each))]
        rest = options(each for each in words if not SETS.fullmatch(each))[1]
        pairs = {name: _text(value) for name, value in rest.items()}
        pairs |= {set_to[1]: set_to[2] for set_to in sets}
        return file, [(k, v) for k, v in pairs.items() if k not in LAUNCHERS.names["of_launch"]]
    return "", []


def _launches(command: Sequence[str], by_name: dict[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """The same of `accelerate launch` and its own file."""
    words = [word.rpartition("/")[2] for word in command]
    if not {"accelerate", "launch"} <= set(words):
        return "", []
    given = options(launchers.before_program(command[words.index("launch") :]))[1]
    file = by_name.get(PurePath(str(given.pop("config_file", ""))).name, "")
    pairs = {name: _text(value) for name, value in given.items()}
    return file, list(accelerate.in_file(pairs).items()) if file else []


def _text(value: str | bool | list[str]) -> str:
    """An option's value as YAML has it."""
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return value if isinstance(value, str) else "true"
