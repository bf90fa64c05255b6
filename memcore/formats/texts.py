"""Texts: a stranger's file as keys and values, and a script as the commands in it.

Nothing is run: of a script the variables that it sets itself are put in, of a YAML file only plain
values are built. Every text is bounded in size, and in depth as a config.json is.
"""

from __future__ import annotations

import ast
import functools
import json
import operator
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from memcore.errors import Issue, PlanError

MAX_CHARACTERS = 300_000
MAX_COMMANDS = 200
MAX_EXPANDED = 20_000  # characters of a command once its variables are put in
ENDS = {";", "&", "&&", "|", "||", ";;", "(", ")"}  # what ends a command

_COMMENT = re.compile(r"^[ \t]*#(?!SBATCH|!).*\n?", re.MULTILINE)
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,}).*$", re.MULTILINE)
_ASSIGNED = re.compile(
    r"""^[ \t]*(?:export[ ]+|local[ ]+|declare[ ]+(?:-\w+[ ]+)*)?([A-Za-z_]\w*)(\+?)=
    (\$\(\([^\n]*?\)\)|\([^()]*\)|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s;"'()#]*)[ \t]*;?""",
    re.MULTILINE | re.VERBOSE,
)
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)",
)
_SUM = re.compile(r"\$\(\(([\w\s+*/()$-]{1,100})\)\)")
_AFTER = re.compile(r"(?<=\s)#\s[^\n\"']*$", re.MULTILINE)  # a comment at a line's end
_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
UNSET = "$"  # what a value begins with that the text does not say


@dataclass(frozen=True)
class Text:
    """A file, or what somebody pasted: what to call it, and what it says."""

    name: str
    content: str

    @functools.cached_property
    def document(self) -> Mapping[str, Any] | None:
        """Its keys and values, where it is JSON, TOML or YAML."""
        return _document(self.content)

    @functools.cached_property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The words of each command in a script, a page with commands in it, or a compose file.

        A variable is what the text sets it to; one that it does not set stays as it is written.
        """
        return _commands(self)

    def __post_init__(self) -> None:
        if len(self.content) > MAX_CHARACTERS:
            most = f"{MAX_CHARACTERS:,}"
            raise PlanError(
                [Issue(self.name, f"has more than {most} characters, so it is not read")]
            )


def text_of(name: str, data: bytes) -> Text:
    """A file's bytes as text. Raises PlanError where they are none."""
    try:
        return Text(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise PlanError([Issue(name, "not a text in UTF-8")]) from None


class _Plain(yaml.SafeLoader):
    """YAML's plain values, with numbers as 1e-4 and without dates, which JSON has not."""


_Plain.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _document(content: str) -> Mapping[str, Any] | None:
    for read in (json.loads, tomllib.loads, _yaml):
        try:
            found = read(content)
        except (ValueError, RecursionError, yaml.YAMLError):
            continue
        if isinstance(found, dict) and all(isinstance(key, str) for key in found):
            return found
    return None


def _yaml(content: str) -> Any:
    return yaml.load(content, _Plain)


def _commands(text: Text) -> tuple[tuple[str, ...], ...]:
    found = text.document
    services = found.get("services") if found else None
    if isinstance(services, Mapping):
        return tuple(_of_service(s) for s in services.values() if isinstance(s, Mapping))
    content = _COMMENT.sub("", _FENCE.sub("\n", text.content)).replace("\\\r\n", "\\\n")
    content = _AFTER.sub("", content)
    content = re.sub(r"[ \t]*\\\n[ \t]*", " ", content)
    variables: dict[str, str] = {}
    for name, more, value in _ASSIGNED.findall(content):
        value = re.sub(r"\s+", " ", value[1:-1] if value[:1] in ('"', "'", "(") else value)
        if own := re.fullmatch(rf"\$\{{{name}:?[-=](.*)\}}", value):  # X="${X:-otherwise}"
            value = own[1]
        before = re.search(rf"\$\{{?{name}\b(\[@\])?\}}?", value)
        if before and name in variables:  # X="$X more"
            value = value.replace(before[0], variables[name])
        variables[name] = f"{variables.get(name, '')} {value}" if more else value
    lines = _split(_expanded(content, variables))
    arrays = [
        tuple(_words(_expanded(value, variables)))
        for value in variables.values()
        if re.match(r"\s*--?[A-Za-z]", value)
    ]
    return (*lines[:MAX_COMMANDS], *arrays)


def _of_service(service: Mapping[str, Any]) -> tuple[str, ...]:
    """What a service of a compose file runs, after the image that runs it."""
    words = [str(service.get("image", ""))]
    for key in ("entrypoint", "command"):
        given = service.get(key)
        if isinstance(given, str):
            words += _words(_expanded(given, {}))
        elif isinstance(given, list):
            words += [word for each in given for word in _inner(_expanded(str(each), {}))]
    return tuple(words)


def _expanded(content: str, variables: Mapping[str, str]) -> str:
    """A script with its variables put in: those of variables too, to a depth."""

    def value(found: re.Match[str]) -> str:
        name, otherwise = found[1] or found[3], found[2]
        if variables.get(name):
            return variables[name]
        return otherwise if otherwise is not None else found[0]

    def total(found: re.Match[str]) -> str:
        """What a sum of whole numbers comes to; in one word as it is written where it is none."""
        said = re.sub(r"\$?([A-Za-z_]\w*)", lambda name: variables.get(name[1], name[0]), found[1])
        try:
            return str(_value(ast.parse(said.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return re.sub(r"\s", "", found[0])

    for _ in range(4):
        put = _SUM.sub(total, _VARIABLE.sub(value, content))
        if put == content or len(put) > 10 * MAX_CHARACTERS:
            break
        content = put
    return content


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return _SUMS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError


def _split(content: str) -> list[tuple[str, ...]]:
    """The words of each command."""
    found: list[tuple[str, ...]] = []
    for line in content.split("\n"):
        words: list[str] = []
        for word in _words(line[:MAX_EXPANDED]):
            if word == "#SBATCH":  # Slurm's options
                continue
            if word in ENDS or word.startswith("#"):
                found.append(tuple(words))
                words = []
                if word.startswith("#"):
                    break
            else:
                words.append(word)
        found.append(tuple(words))
    return [words for words in found if words]


def _words(line: str) -> list[str]:
    """A line's words; quotes hold words together where each has its other."""
    for whole in (line, line.replace('"', " ").replace("'", " ")):
        lexer = shlex.shlex(whole, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError:
            continue
        if len(words) == 1 and " -" in words[0]:  # a command in quotes, as `bash -c` takes it
            return _words(words[0])
        return [inner for word in words for inner in _inner(word)]
    return []


def _inner(word: str) -> Iterable[str]:
    """A quoted command's own words: `bash -c "python -m ... --tp 8"`."""
    return _words(word) if word.count(" --") > 1 else (word,)


def options(words: Iterable[str]) -> tuple[list[str], dict[str, str | bool | list[str]]]:
    """A command's words without a dash, and its options, their names with '_' and without dashes.

    An option without a value is True; with several, they are a list.
    """
    plain: list[str] = []
    found: dict[str, str | bool | list[str]] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            option, given, value = word.partition("=")
            name = option.lstrip("-").replace("-", "_")
            found[name] = value if given else True
            if given:
                name = ""
        elif name:
            before = found[name]
            if before is True:
                found[name] = word
            else:
                found[name] = [*(before if isinstance(before, list) else [str(before)]), word]
        else:
            plain.append(word)
    return plain, found
