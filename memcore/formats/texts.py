"""Texts: a stranger's file as keys and values, and a script as the commands in it.

Nothing is run: of a script the variables that it sets itself are put in, of a YAML file only plain
values are built. Every text is bounded in size by what it is, and in depth, and is read in time
that grows as its length does: a pattern that is run over one has no unbounded repeat that may
begin at many places and fail at the end of each.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import json
import operator
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from memcore.errors import Issue, PlanError, shown
from memcore.formats import python

MAX_CHARACTERS = 16_000_000  # of a log, in which the message that memory ran out may stand anywhere
MAX_JSON = 4_000_000  # a config.json that lists its quantized layers has three million
MAX_SCRIPT = 300_000  # of a script, a module of Python, a YAML or a TOML
MAX_WORDS = 100_000  # of the same, and signs: each costs as much as ten characters do
MAX_PLAIN_YAML = 30_000  # of a YAML where libyaml is not there: Python takes ten times as long
MAX_COMMANDS = 200
MAX_DEPTH = 24
MAX_NESTED = 100  # lists and objects within each other, and expressions of Python
MAX_VALUES = 200_000  # of a document, with those of its aliases
MAX_EXPANDED = 20_000  # characters of a command once its variables are put in
MAX_PUT_IN = 300_000  # characters that all variables of a text come to, each time they stand there
ENDS = {";", "&", "&&", "|", "||", ";;", "(", ")"}  # what ends a command

_BLOCK = re.compile(
    r"^[ \t]*\{\{-?\s*(?:if|else|end|range|with|define|/\*).*?\}\}[ \t]*\n?", re.MULTILINE
)
_TEMPLATE = re.compile(r"\{\{-?\s*+(?:[.$]?(?:Values)?+\.*+(\w++))?[^{}]*+\}\}")
_ASSIGNED = re.compile(
    r"""^[ \t]*(?:[\w*?|.-]{1,40}\)[ \t]+)?(?:export[ ]+|local[ ]+|declare[ ]+(?:-\w+[ ]+)*)?
    ([A-Za-z_]\w*)(\+?)=
    (\$\(\([^\n]*?\)\)+|\([^()]*\)|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s;"'()#]*)[ \t]*;?""",
    re.MULTILINE | re.VERBOSE,
)
_QUOTED_ARRAY = re.compile(r'"(\$\{[A-Za-z_]\w{0,99}\[@\]\})"')  # a word for each of its words
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?::?([-=+])([^{}]*))?\}|\$([A-Za-z_]\w*)",
)
_SUM = re.compile(r"\$\(\(([\w\s+*/%()$-]{1,100})\)\)")
_MAGIC = re.compile(r"^([ \t]*)[%!](?=\S).*$", re.MULTILINE)  # of a notebook: !pip, %cd
_USED = re.compile(r"(?<=\s)(--?[A-Za-z][\w-]*)[ =][\"']?\$\{?([A-Za-z_]\w*)")
SHORT = {"-c", "-m", "-hf", "-ngl", "-b", "-ub", "-np", "-ctk", "-ctv"}  # llama.cpp's, of sizes
_SERVED = re.compile(r"\bserve[ \t]+[\"']?\$\{?([A-Za-z_]\w*)")
_SET = re.compile(r"[A-Za-z_]\w*\+?=(?:\(| ?-)")  # a variable set to options: no command
_OF_SHELL = re.compile(r"\s*(?:/bin/)?(?:ba|z)?sh\s+-\w*c\s+(['\"])(.*)\1\s*", re.DOTALL)
_TAKES_SCRIPT = re.compile(r"(?:\S*/)?(?:ba|z|da)?sh(?: -[\w-]+| pipefail)*? -\w*c")
_GIVEN = re.compile(r"\$(?:[@*]|(\w+)|\{(\w+)\})")  # what another variable, or who starts it, says
# A line that goes on: some leave a blank behind; the last one may have nothing to go on with.
_CONTINUED = re.compile(r"(?<![ \t])[ \t]*+\\[ \t]*+(?:\n[ \t]*+|\Z)")
_OF_SLURM = re.compile(r"^#SBATCH[ \t]+--([a-z-]+)[ =](\S+)", re.MULTILINE)
_OF_SKYPILOT = re.compile(r"^[ \t]*accelerators:[ \t]*[\"']?[\w-]+:(\d+)", re.MULTILINE)
# Variables that Slurm sets, with the options of a script that say the same.
SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "nodes"),
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_ON_NODE": "gpus-per-node",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
}
_AFTER = re.compile(r"(?<=\s)#\s")  # a comment begins, where no quote follows on its line
UNSET = "$"  # what a value begins with that the text does not say


@dataclass(frozen=True)
class Text:
    """A file, or what somebody pasted: what to call it, and what it says. given: what the command
    that names the file says in place of it, by dotted keys."""

    name: str
    content: str
    given: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def document(self) -> Mapping[str, Any] | None:
        """Its keys and values, where it is JSON, TOML or YAML."""
        found = _document(self.content)
        return found if found is None or not self.given else overridden(found, self.given)

    @functools.cached_property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The words of each command in a script, a page with commands in it, or a compose file.

        A variable is what the text sets it to; one that it does not set stays as it is written.
        What is only printed comes last.
        """
        return tuple(sorted(_commands(self), key=prints))

    @functools.cached_property
    def is_long(self) -> bool:
        """Whether it has more than any script, module, YAML or TOML: only JSON and a message that
        memory ran out are looked for."""
        return bool(over(self.content))

    def __post_init__(self) -> None:
        if len(self.content) > MAX_CHARACTERS:
            raise PlanError([Issue(self.name, too_long(len(self.content), MAX_CHARACTERS))])


def too_long(length: int, most: int) -> str:
    """That a text is not read for its length."""
    return f"has {length:,} characters; read are at most {most:,}"


_WORD = re.compile(r"\w+|[^\w\s]+")


@functools.lru_cache(maxsize=1)  # each reader asks for the same one
def over(content: str) -> str:
    """Why a text is too long to be read as a script, a module, a YAML or a TOML; '' where it is
    not."""
    if len(content) > MAX_SCRIPT:
        return too_long(len(content), MAX_SCRIPT)
    if len(content) > MAX_WORDS and (words := len(_WORD.findall(content))) > MAX_WORDS:
        return f"has {words:,} words and signs; read are at most {MAX_WORDS:,}"
    return ""


def text_of(name: str, data: bytes) -> Text:
    """A file's bytes as text, of a notebook its code. Raises PlanError where they are none."""
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        known = next((what for start, what in BINARY.items() if data.startswith(start)), "")
        raise PlanError([Issue(name, f"not a text in UTF-8{known}")]) from None
    return Text(name, _code(content) if name.lower().endswith(".ipynb") else content)


# What begins a file that is no text, and what to give in its place.
BINARY = {
    b"\x80": ": a pickle says no job; memplan snapshot reads a memory snapshot of PyTorch's",
    b"GGUF": ": weights say no job; give the command that serves them",
    b"PK\x03\x04": ": an archive is not opened; give the files in it",
}


def _code(content: str) -> str:
    """The code of a notebook's cells; what is no notebook as it is."""
    try:
        cells = json.loads(content)["cells"]
        sources = [each["source"] for each in cells if each.get("cell_type") == "code"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return content
    lines = ["".join(map(str, each)) if isinstance(each, list) else str(each) for each in sources]
    return "\n\n".join(lines)


_LIBYAML = hasattr(yaml, "CSafeLoader")  # which most builds have


class _Plain(yaml.CSafeLoader if _LIBYAML else yaml.SafeLoader):  # type: ignore[misc]
    """YAML's plain values, with numbers as 1e-4 and without dates, which JSON has not."""

    merged = 0  # values that other mappings gave to those that merge them

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        before = len(node.value)
        super().flatten_mapping(node)
        self.merged += max(0, len(node.value) - before)
        if self.merged > MAX_VALUES:
            why = f"its merges come to more than {MAX_VALUES:,} values"
            raise yaml.constructor.ConstructorError(problem=why, problem_mark=node.start_mark)


_Plain.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _of_tag(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Any:
    """What stands behind a tag of somebody's own, as if it had none; nothing is built."""
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return None


_Plain.add_multi_constructor("!", _of_tag)


def _read_as(read: Callable[[str], Any], content: str) -> Any:
    """What one reader of documents makes of a text. Raises ValueError of what is none."""
    try:
        found = read(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{getattr(e, 'problem', None) or 'not readable'}") from None
    _check_size(found)
    return found


_NOTED = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


def _json(content: str) -> Any:
    """JSON, in which people write comments, and a comma after the last value."""
    if len(content) > MAX_JSON:
        raise ValueError(too_long(len(content), MAX_JSON))
    try:
        return json.loads(content)
    except ValueError:
        if content.lstrip()[:1] not in ("{", "[", "/"):
            raise
        bare = _NOTED.sub(lambda found: found[0] if found[0][0] == '"' else "", content)
        if bare == content and not re.search(r",\s*[}\]]", bare):
            raise
        return json.loads(re.sub(r",(?=\s*[}\]])", "", bare))


def _document(content: str) -> Mapping[str, Any] | None:
    for read in (_json, _toml, _yaml):
        try:
            found = _read_as(read, content)
        except ValueError:
            continue
        if isinstance(found, dict) and all(isinstance(key, str) for key in found):
            return _resolved(found) if "${" in content else found
    return None


def overridden(document: Mapping[str, Any], given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """A document with other values at some dotted keys, each read as YAML has it."""
    found = copy.deepcopy(dict(document))
    for path, value in given:
        inner, (*sections, last) = found, path.split(".")[:MAX_DEPTH]
        for name in sections:
            key = _spelled(inner, name)
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[_spelled(inner, last)] = read_value(value)
    return found


def _spelled(section: Mapping[str, Any], name: str) -> str:
    """A key as a section writes it: with '-' or with '_'."""
    plain = name.replace("-", "_")
    return next((key for key in section if str(key).replace("-", "_") == plain), name)


def read_value(text: str) -> Any:
    """A value as YAML has it; a text where it is none."""
    try:
        return _read_as(_yaml, text)
    except ValueError:
        return text


# What a file's name ends in, how it is read, and what it is called.
ENDS_IN: dict[str, tuple[Callable[[str], Any], str]] = {
    ".json": (_json, "JSON"),
    ".toml": (lambda content: _toml(content), "TOML"),
    **dict.fromkeys((".yaml", ".yml"), (lambda content: _yaml(content), "YAML")),
}


def broken(text: Text) -> str:
    """What is wrong with a document that its name says it is; '' where nothing is."""
    suffix = PurePosixPath(text.name.lower()).suffix
    if suffix not in ENDS_IN:
        return ""
    read, label = ENDS_IN[suffix]
    try:
        _read_as(read, text.content)
    except ValueError as e:
        return f"is no {label}: {shown(str(e))[1:-1]}"
    return ""


def _check_size(found: Any) -> None:
    """Raises ValueError of a document that has more values than a file may, those of its aliases
    each time, or that is nested deeper."""
    level, left = [found], MAX_VALUES
    for _ in range(MAX_NESTED + 1):
        inner = (
            each.values() if isinstance(each, Mapping) else each
            for each in level
            if isinstance(each, (Mapping, list))
        )
        left -= len(level)
        level = list(itertools.islice(itertools.chain.from_iterable(inner), max(0, left) + 1))
        if left < len(level):
            more = "with those that its anchors repeat"
            raise ValueError(f"it has more than {MAX_VALUES:,} values, {more}")
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_NESTED} deep")


_INTERPOLATED = re.compile(
    r"\$\{(?:(oc\.env|env|oc\.select):)?([\w.-]{1,200})(?:[,:-]([^${}]{0,1000}))?\}"
)


def _resolved(found: dict[str, Any]) -> dict[str, Any]:
    """A document with what OmegaConf puts in: a value that stands elsewhere in it, or the default
    of a variable; what nobody says stays as it is written."""

    def at(path: str) -> Any:
        value: Any = found
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def said(match: re.Match[str]) -> Any:
        kind, name, otherwise = match.groups()
        value = None if kind in ("oc.env", "env") else at(name)
        value = otherwise if value is None else value
        return match[0] if value is None or isinstance(value, (Mapping, list)) else value

    left = MAX_PUT_IN

    def text(match: re.Match[str]) -> str:
        nonlocal left
        new = str(said(match))
        left -= len(new)
        return new if left >= 0 else match[0]

    def put(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict):
            return {key: put(inner, depth) for key, inner in value.items()}
        if isinstance(value, list):
            return [put(inner, depth) for inner in value]
        if not isinstance(value, str) or "${" not in value or depth > 4:
            return value
        if whole := _INTERPOLATED.fullmatch(value):
            new = said(whole)
            if new == whole[3]:  # a default is plain YAML: 4 is a number there
                plain = read_value(new)
                new = new if isinstance(plain, (dict, list)) else plain
        else:
            new = _INTERPOLATED.sub(text, value)
        return value if new == value else put(new, depth + 1)

    return {key: put(value) for key, value in found.items()}


def _documents(content: str) -> list[Any]:
    """A stream of YAML documents, a chart's templates among them."""
    plain = _TEMPLATE.sub(lambda found: f"${found[1] or 'template'}", _BLOCK.sub("", content))

    def every(content: str) -> list[Any]:
        _bounded_yaml(content)
        return list(yaml.load_all(content, _Plain))

    try:
        return list(_read_as(every, plain))
    except ValueError:
        return []


def _yaml(content: str) -> Any:
    """YAML, in which people write comments as DeepSpeed's JSON has them."""
    _bounded_yaml(content)
    bare = re.sub(r"^[ \t]*//.*$", "", content, flags=re.MULTILINE)
    return yaml.load(re.sub(r"(?<=\w:)\t+", " ", bare), _Plain)


def _bounded_yaml(content: str) -> None:
    """Raises ValueError of a text that is too long to be read as YAML, or too deep where libyaml,
    which looks itself, is not there."""
    if why := over(content):
        raise ValueError(why)
    if not _LIBYAML and len(content) > MAX_PLAIN_YAML:
        raise ValueError(too_long(len(content), MAX_PLAIN_YAML))
    if not _LIBYAML and _brackets(content) > MAX_NESTED:
        raise ValueError("it is nested too deep")


def _brackets(content: str) -> int:
    """How deep the brackets of a text stand in each other, wherever they are."""
    depth = most = 0
    for bracket in re.findall(r"[][(){}]", content):
        depth = depth + 1 if bracket in "[({" else max(0, depth - 1)
        most = max(most, depth)
    return most


def _toml(content: str) -> Any:
    """TOML, whose reader goes as deep as a text does and takes longer for long keys."""
    if why := over(content):
        raise ValueError(why)
    if _brackets(content) > MAX_NESTED or _DOTTED.search(content):
        raise ValueError("it is nested too deep")
    return tomllib.loads(content)


# A key of so many parts; looked for from its dots on, of which a text has fewer than words.
_DOTTED = re.compile(r"""(?:\.[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+){24}""")


def _commands(text: Text) -> tuple[tuple[str, ...], ...]:
    if text.is_long:
        return ()
    if built := _of_dockerfile(text.content):
        return tuple(built)
    manifest = any(word in text.content for word in ("image", "modelFormat", '"args"'))
    containers = _containers(_documents(text.content)) if manifest else []
    found = [command for each in containers for command in _of_container(each)]
    if found:
        return tuple(found[:MAX_COMMANDS])
    given, content = _environment(text, "envs"), text.content
    if macros := _environment(text, "macros"):  # of llama-swap, whose names may have dashes
        given = {name.replace("-", "_"): " ".join(value.split()) for name, value in macros.items()}
        content = _MACRO.sub(lambda found: found[0].replace("-", "_"), content)
    return (*_of_python(content), *_script(content, given))


_MACRO = re.compile(r"\$\{[\w-]{1,80}\}")


def _environment(text: Text, key: str) -> dict[str, str]:
    """Variables that a document sets for what it runs, as those of SkyPilot and dstack do."""
    return _pairs((text.document or {}).get(key)) if f"{key}:" in text.content else {}


_FROM = re.compile(r"^FROM[ \t]+(?:--\S+[ \t]+)?(\S+)", re.MULTILINE | re.IGNORECASE)
_ENV = re.compile(r"^(?:ENV|ARG)[ \t]+(\S.*)$", re.MULTILINE)
_RUNS = re.compile(r"^(ENTRYPOINT|CMD)[ \t]+(.+)$", re.MULTILINE)


def _of_dockerfile(content: str) -> list[tuple[str, ...]]:
    """What a container of a Dockerfile runs, after the image that it is built from."""
    if not (_FROM.search(content) and _RUNS.search(content)):
        return []
    content = _continued(content)
    images = _FROM.findall(content)  # of which lines that go on may leave none
    sets = [
        _words(line) if "=" in line.split()[0] else [line.strip().replace(" ", "=", 1)]
        for line in _ENV.findall(content)
    ]
    runs = {name.lower(): _json_list(line) or line for name, line in _RUNS.findall(content)}
    container = {"environment": list(itertools.chain(*sets)), "command": runs.get("cmd")}
    container |= {"entrypoint": runs.get("entrypoint"), "image": images[-1] if images else None}
    return _of_container(container) if images else []


def _json_list(line: str) -> list[Any]:
    """A list in JSON; [] of what is none."""
    try:
        found = json.loads(line) if line.startswith("[") else None
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _of_python(content: str) -> list[tuple[str, ...]]:
    """Commands that a module of Python has as lists of words, each alone and those of one function
    together; what is no constant is a variable that nobody sets."""
    if "--" not in content:
        return []
    tree, found = module(content), []
    known = python.constants(tree)
    every = (
        (each.lineno, tuple(_literal(word, known) for word in each.elts))
        for each in python.nodes(tree)
        if isinstance(each, (ast.List, ast.Tuple))
    )
    dashed = (each for each in every if any(word.startswith("-") for word in each[1]))
    placed = list(itertools.islice(dashed, MAX_COMMANDS))
    found += [words for _, words in placed]
    scopes = (each for each in python.nodes(tree) if isinstance(each, ast.FunctionDef))
    for scope in itertools.islice(scopes, MAX_COMMANDS if placed else 0):
        last = scope.end_lineno or scope.lineno
        lists = [words for line, words in placed if scope.lineno <= line <= last]
        programs = [words for words in lists if not words[0].startswith("-")]
        found += lists
        if len(programs) == 1 and lists[1:]:
            found.append((*programs[0], *(w for ws in lists if ws is not programs[0] for w in ws)))
    # A docstring shows commands line by line, as a script does, and is none itself.
    notes = {id(each.value) for each in python.nodes(tree) if isinstance(each, ast.Expr)}
    texts = (each for each in python.nodes(tree) if isinstance(each, (ast.Constant, ast.JoinedStr)))
    spoken = (each for each in texts if id(each) not in notes)
    lines = (line for each in spoken if " --" in (line := _line(each, known)))
    found += [tuple(_words(line)) for line in itertools.islice(lines, MAX_COMMANDS)]
    return found[:MAX_COMMANDS]


def _line(node: ast.expr, known: Mapping[str, Any]) -> str:
    """A text in Python on one line, with the constants that it has in braces."""
    if isinstance(node, ast.JoinedStr):
        inner = (
            each.value if isinstance(each, ast.FormattedValue) else each for each in node.values
        )
        text = "".join(_literal(each, known) for each in inner)
    else:
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return _CONTINUED.sub(" ", text).replace("\n", " ")[:MAX_EXPANDED]


def _literal(node: ast.expr, known: Mapping[str, Any]) -> str:
    said = python.value(node, known)
    if isinstance(said, (str, int, float)):
        return str(said)
    inner = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node  # str(x)
    return f"{UNSET}{re.sub(r'[^A-Za-z0-9_.]', '', ast.unparse(inner))[:40]}"


def _own_lines(assigned: re.Match[str]) -> str:
    """What is left of an assignment once lists of words over several lines are taken out, of which
    none is a command."""
    return "" if assigned[3][:1] == "(" or "\n" in assigned[3] else assigned[0]


def _unsaid(value: str, variables: Mapping[str, Any]) -> bool:
    """Whether a value is a variable that the script does not set."""
    found = _GIVEN.fullmatch(value)
    return found is not None and (found[1] or found[2] or "") not in variables


def several(text: Text) -> dict[str, tuple[str, ...]]:
    """Options of a script's commands whose value is a variable that it sets to several values, a
    branch each: nobody knows which is taken. Of variables that hold options, their names."""
    content = _continued(text.content)
    found: dict[str, dict[str, None]] = {}
    for name, more, value in _ASSIGNED.findall(content):
        plain = re.sub(r"\s+", " ", value.strip("\"'")).strip()
        if more or ("$" in value and re.search(rf"\$\{{?{name}\b", value)):
            found[name] = {}
        elif "$" not in plain:
            found.setdefault(name, {})[plain] = None
    for name, values in _LOOPS.findall(content):
        found.setdefault(name, {}).update(dict.fromkeys(values.split()))
    for name, value in _perhaps(content):
        found.setdefault(name, {}).update({"": None, value: None})
    used: dict[str, list[str]] = {}
    for option, name in _USED.findall(content):
        if option.startswith("--") or option in SHORT:
            used.setdefault(name, []).append(option)
    for name in _SERVED.findall(content):
        used.setdefault(name, []).append("model")
    options: dict[str, tuple[str, ...]] = {}
    for name, values in found.items():
        texts = tuple(filter(None, values))
        if len(texts) > 1:
            options |= dict.fromkeys(used.get(name, ()), texts)
        if len(values) > 1 and all(value.startswith("-") for value in texts):
            options[name] = tuple(value or "nothing" for value in values)
    return options


def _perhaps(content: str) -> list[tuple[str, str]]:
    """Variables to which a branch adds options, and these."""
    found, depth = [], 0
    for line in content.split("\n"):
        begins = _BRANCH.match(line)
        if begins and begins[1] == "if" and not re.search(r"\bfi\b", line):
            depth += 1
        elif begins and begins[1] == "fi":
            depth -= 1
        for name, more, value in _ASSIGNED.findall(line) if depth > 0 else ():
            plain = " ".join(value.strip("()\"'").split())
            if more and plain.startswith("-"):
                found.append((name, plain))
    return found


Rule = tuple[str, str | Callable[[re.Match[str]], str]]  # a pattern, and what stands in its place


def _rewritten(content: str, rules: Iterable[Rule]) -> str:
    for pattern, new in rules:
        content = re.sub(pattern, new, content, flags=re.MULTILINE)
    return content


def _assignment(found: re.Match[str]) -> str:
    """A shell's assignment."""
    return f'{found[1]}="{found[2].strip().strip(chr(34))}"'


def _without_quotes(found: re.Match[str]) -> str:
    """What a variable is taken to be where nobody sets it, in quotes around it where it is of
    several words."""
    value = found[2] if found[3] is None else found[3]
    around = '"' if " " in value and found.string[found.start() - 1 : found.start()] != '"' else ""
    return f"{around}{found[1]}{value}}}{around}"


# How others than a shell set variables and use them; the first of each is what tells them.
DIALECTS: tuple[tuple[Rule, ...], ...] = (
    (  # of a batch file
        (r"^[ \t]*@?[sS][eE][tT][ \t]+\"?(\w{1,80})=([^\n\"]*)\"?[ \t]*$", _assignment),
        (r"%(\w{1,80})%", r"${\1}"),
    ),
    (  # of a Makefile and a justfile
        (r"^([A-Za-z_]\w*)[ \t]*[?:]=(.*)$", _assignment),
        (r"\$\((\w+)\)|\{\{ *(\w+) *\}\}", r"${\1\2}"),
    ),
)
# A script as a shell has it, without comments.
PLAIN: tuple[Rule, ...] = (
    (r"^Environment=(.*)$", lambda found: "\n".join(_words(found[1]))),  # of a systemd unit
    (
        r"(?:\$\(|`)[ \t]*expr[ \t]+([\w \t+*/%$\\-]{1,100})(?:\)|`)",
        lambda found: f"$(({found[1].replace(chr(92), '')}))",
    ),
    (r"(?<=[\w.:])\\(?=[\w.])", "/"),  # folders of Windows
    # what a command prints, of which nothing is known, as one word
    (r"\$\((?!\()([\w./-]*+)[^()\n]*+\)|(?<=[ =])`([\w./-]++)[ |][^`\n]*+`", r"$(\1\2)"),
    (r"^[ \t>]*(`{3,}|~{3,}).*$", "\n"),  # fences of a page
    (r"^[ \t]*#(?!SBATCH|!).*\n?", ""),
    (r"\r\n", "\n"),
    (r"^[ \t]*!(?=\S)", ""),  # a notebook's commands
)
_OTHERWISE: tuple[Rule, ...] = (
    (r"""(?<!\\)(\$\{\w{1,80}:?[-=])(?:"([^"'{}\n]*)"|'([^"'{}\n]*)')\}""", _without_quotes),
)
# Each command, and each variable that is set, on a line.
ONE_A_LINE: tuple[Rule, ...] = (
    (  # variables that one line sets, before the last of them
        r"^[ \t]*+(?:[A-Za-z_]\w{0,80}=[^\s;\"'()#`]*+;[ \t]*+)++(?=[A-Za-z_]\w{0,80}=)",
        lambda found: found[0].replace(";", "\n"),
    ),
    (  # what a branch has before one: `then`, `else`, a label of `case`
        (
            r"(?:(?<=[;\s])(?:then|else)[ \t]++|^[ \t]*+[\w*?|.\"'-]{1,80}\)[ \t]++)"
            r"(?=[A-Za-z_]\w{0,80}\+?=)"
        ),
        "\n",
    ),
    (_CONTINUED.pattern, " "),
    # options on lines of their own, where somebody forgot to say that the line goes on
    (r"(?<=[^\s>])(?:[ \t]*+\n)++[ \t]++(?=--?[A-Za-z][\w-]*(?:[ =\n]|$))", " "),
)


def _continued(content: str) -> str:
    """A script without comments, each command on one line."""
    content = re.sub(r"[ \t]{100,}", " ", content)  # no indentation, and long to look through
    for rules in DIALECTS:
        if re.search(rules[0][0], content, re.MULTILINE):
            content = _rewritten(content, rules)
    lines = _rewritten(content, PLAIN).split("\n")
    content = _rewritten("\n".join(map(_without_comment, lines)), _OTHERWISE)
    return _rewritten(_taken(content), ONE_A_LINE)


# A variable that is set to a constant, or to what it is where nobody gives another.
_CONSTANT = re.compile(
    r"(?:export[ ]+)?([A-Za-z_]\w*)="
    r"[\"']?(?:\$\{[A-Za-z_]\w{0,80}:?[-=]([\w./-]{0,80})\}|([\w./-]{0,80}))[\"']?;?[ \t]*"
)
_SET_ANY = re.compile(r"\b([A-Za-z_]\w*)\+?=|\b(?:for|read)[ \t]++(?:-\w+[ \t]++)*+([A-Za-z_]\w*)")
_BRANCH = re.compile(r"\s*(if|elif|else|fi)\b")
_ASKS = re.compile(
    r"\s*(?:el)?if\s+\[\[?\s+(?:(-[nz])\s+)?[\"']?\$\{?([A-Za-z_]\w*)(:?-[\w./-]*)?\}?[\"']?\s*"
    r"(?:(==?|!=|-[egnl][qte])\s*[\"']?([\w./-]*)[\"']?)?\s+\]\]?\s*(?:;\s*then)?\s*"
)
# What is done, or not, by what stands before it on its line.
_AND = re.compile(r"([ \t]*+\[\[?[ \t][^\n&|;]{1,200}[ \t]\]\]?)[ \t]*+&&[ \t]*+(?=\S)")
_ORDERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def _taken(content: str) -> str:
    """A script without the branches of `if` that are not taken, where it sets what they ask for
    itself, once and whatever it is given."""
    if not re.search(r"^[ \t]*fi\b|\][ \t]*&&", content, re.MULTILINE):
        return content
    times = Counter(name or looped for name, looped in _SET_ANY.findall(content))
    constants: dict[str, str] = {}
    branches: list[list[bool | None]] = []  # of each `if` that is open: which branches are taken
    lines: list[str] = []
    for line in content.split("\n"):
        begins = _BRANCH.match(line)
        word = begins[1] if begins else ""
        if does := _AND.match(line):
            condition, rest = f"if {does[1].strip()}", line[does.end() :]
            holds = _holds(condition, constants, times)
            line = f"{condition}; then\n{rest}\nfi" if holds is None else rest * holds
        if word == "if" and not re.search(r"\bfi\b", line):
            branches.append([_holds(line, constants, times)])
            if len(branches) > MAX_DEPTH:
                return content
        elif word in ("elif", "else", "fi") and not branches:
            return content
        elif word == "fi":
            branches.pop()
        elif word in ("elif", "else"):
            before = branches[-1]
            if len(before) > MAX_COMMANDS:
                return content
            other = None if None in before else True
            if word == "elif":
                other = _holds(line, constants, times)
            before.append(False if True in before else other)
        elif not branches and (set_to := _CONSTANT.fullmatch(line)) and times[set_to[1]] == 1:
            constants[set_to[1]] = set_to[2] if set_to[3] is None else set_to[3]
        if all(each[-1] is not False for each in branches):
            lines.append(line)
    return content if branches else "\n".join(lines)


def _holds(line: str, constants: Mapping[str, str], times: Mapping[str, int]) -> bool | None:
    """Whether a branch of `if` is taken, of a variable that the script sets, or that it says the
    value of where nobody else does; None where it does not settle it."""
    asked = _ASKS.fullmatch(line[:400])
    if not asked or bool(asked[1]) == bool(asked[4]):
        return None
    empty, name, otherwise, sign, other = asked.groups()
    value = constants.get(name)
    if value is None and otherwise and not times.get(name):
        value = otherwise.lstrip(":")[1:]
    if value is None:
        return None
    if empty:
        return bool(value) == (empty == "-n")
    if sign not in _ORDERS:
        return (value == other) == (sign != "!=")
    whole = value.isdecimal() and other.isdecimal() and len(value + other) <= 40
    return _ORDERS[sign](int(value), int(other)) if whole else None


def _without_comment(line: str) -> str:
    """A line without the comment at its end; a sign before a quote may be in a text."""
    begins = _AFTER.search(line, max(line.rfind('"'), line.rfind("'")) + 1) if "#" in line else None
    return line[: begins.start()] if begins else line


def _script(content: str, given: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """The commands of a script, with the variables that it sets itself and those that are given."""
    content = _continued(content)
    variables = _variables(content, given)
    lines = _split(_expanded(_ASSIGNED.sub(_own_lines, content), variables))
    commands = itertools.islice(lines, MAX_COMMANDS)
    arrays = [
        tuple(_words(_expanded(value, variables)))
        for value in variables.values()
        if re.match(r"\s*--?[A-Za-z]", value)
    ]
    return (*commands, *arrays)


# A loop over constants.
_LOOPS = re.compile(
    r"^[ \t]*+for[ \t]+([A-Za-z_]\w{0,80})[ \t]+in[ \t]++((?:[\w./:-]++[ \t]*+){1,50}+)(?:;|$)",
    re.MULTILINE,
)


def _variables(content: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variables that a script sets itself, and those that are given."""
    asked = dict(_OF_SLURM.findall(content))
    variables = {name: asked[option] for name, option in SLURM.items() if option in asked}
    if placed := _OF_SKYPILOT.search(content):
        variables["SKYPILOT_NUM_GPUS_PER_NODE"] = placed[1]
    variables |= given
    variables |= {name: values.split()[-1] for name, values in _LOOPS.findall(content)}
    for name, more, value in _ASSIGNED.findall(content):
        value = re.sub(r"\s+", " ", value[1:-1] if value[:1] in ('"', "'", "(") else value)
        if variables.get(name) and _unsaid(value, variables):
            continue  # what is taken where nobody gives another
        if "$" in value:
            if own := re.fullmatch(rf"\$\{{{name}:?[-=](.*)\}}", value):  # X="${X:-otherwise}"
                value = own[1]
            before = re.search(rf"\$\{{?{name}\b(\[@\])?\}}?", value)
            if before and name in variables:  # X="$X more"
                value = value.replace(before[0], variables[name])
        variables[name] = f"{variables.get(name, '')} {value}" if more else value
    return variables


_WRITES = re.compile(
    r"^[ \t]*+(?:cat|tee)\b[^\n<]{0,200}<<-?[ \t]*([\"'\\]?)(\w{1,40})[\"']?([^\n]{0,200})\n"
    r"(.*?)\n[ \t]*+\2[ \t]*+$",
    re.MULTILINE | re.DOTALL,
)
_WRITTEN = re.compile(
    r"(?<![&\d>])>[ \t]*([^\s>|;&]{1,200})|\btee[ \t]+([^\s<>|;&-][^\s<>|;&]{0,200})"
)


def written(text: Text) -> tuple[Text, list[Text]]:
    """A script without the documents that it writes to files (`cat > ds.json <<EOF`), and those."""
    if "<<" not in text.content or text.is_long:
        return text, []
    variables = _variables(_continued(text.content), {})
    found: list[Text] = []

    def taken(match: re.Match[str]) -> str:
        quoted, _, after, body = match.groups()
        named = _WRITTEN.search(match[0].split("<<")[0]) or _WRITTEN.search(after)
        if named is None:
            return match[0]
        name = _expanded((named[1] or named[2]).strip("\"'"), variables)
        one = Text(PurePosixPath(name).name, body if quoted else _expanded(body, variables))
        if one.document is None:
            return match[0]
        found.append(one)
        return ""

    rest = _WRITES.sub(taken, text.content)
    return (Text(text.name, rest), found) if found else (text, [])


def _containers(documents: Sequence[Any]) -> list[Mapping[str, Any]]:
    """What runs an image in a compose file, a Kubernetes manifest or the like, at any depth."""
    found: list[Mapping[str, Any]] = []
    level = list(documents)
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                runs = {"command", "args", "arguments", "entrypoint"} & each.keys()
                if runs or ("image" in each and {"environment", "env"} & each.keys()):
                    found.append(each)
                below += each.values()
            elif isinstance(each, list):
                below += each
        level = below[:MAX_EXPANDED]
    return found


def _of_container(container: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What a container runs, after the image that runs it, with its own environment put in; a
    script among its words is commands of its own."""
    # Who starts the container puts in his own variables, of which no text says one.
    environment = _pairs(container.get("environment", container.get("env")))
    variables = {name: _expanded(value, {}) for name, value in environment.items()}
    words: list[str] = []
    scripts: list[str] = []
    named = False  # whether the next word is the name of a script that stands among the words
    for key in ("entrypoint", "command", "args", "arguments"):
        said = container.get(key)
        for each in said if isinstance(said, list) else [said]:
            if each is None or isinstance(each, (Mapping, list)):
                continue
            # Kubernetes writes a variable as $(NAME), compose files a sign of the shell as $$.
            text = re.sub(r"\$\((\w+)\)", r"${\1}", str(each)).replace("$$", "$")
            if text.lstrip().startswith("--") and not isinstance(said, list):
                words += _words(_expanded(" ".join(text.split()), variables))
            elif "\n" in text.strip() or (isinstance(said, list) and _takes_script(words)):
                inner_of = _OF_SHELL.fullmatch(text)
                scripts.append(inner_of[2] if inner_of else text)
                if _takes_script(words):
                    words, named = [], True  # what follows is the script's: its $0 first
            elif named:
                named = False
            elif isinstance(said, list):
                words += _inner(_expanded(text, variables))
            else:
                words += _words(_expanded(text, variables))
    served = "huggingfaceserver" if "modelFormat" in container else ""  # which KServe runs then
    runs = (container.get(name) for name in ("image", "module", "program"))
    image = str(next((each for each in runs if each), served))
    words += _of_environment(image, variables)
    others = shlex.join(words)  # which a script of `bash -c` has as its own
    inner = [re.sub(r'"?\$@"?', lambda _: others, text) for text in scripts]
    commands = [command for text in inner for command in _script(text, variables)]
    given = {key: value for key, value in variables.items() if key.startswith(_OF_ENGINES)}
    ours = tuple(f"{key}={value}" for key, value in given.items())
    if words:
        return [(*ours, image, *words), *commands]
    return [ours, *commands] if ours and commands else commands


def _takes_script(words: Sequence[str]) -> bool:
    """Whether the next word is a script: `sh -c`."""
    return bool(words) and _TAKES_SCRIPT.fullmatch(" ".join(words)) is not None


# What variables begin with that servers go by.
_OF_ENGINES = ("VLLM_", "SGLANG_", "OLLAMA_", "LLAMA_ARG_", "CUDA_VISIBLE_DEVICES")


def _of_environment(image: str, variables: Mapping[str, str]) -> list[str]:
    """Options that an image takes from its environment, as words: all of TGI's have their own name
    there, llama.cpp's one that begins with LLAMA_ARG_."""
    found = []
    for variable, value in variables.items():
        start, own, option = variable.partition("LLAMA_ARG_")
        if start or not own:
            option = variable if "text-generation-inference" in image else ""
        if option:
            option = option.lower().replace("_", "-")
            found += [f"--{OF_LLAMA.get(option, option)}", value]
    return found


# Options of llama.cpp's whose variables are called otherwise.
OF_LLAMA = {"n-parallel": "parallel", "ubatch": "ubatch-size", "batch": "batch-size"}


def _pairs(given: Any) -> dict[str, str]:
    """An environment by its names, also where it is a list of 'NAME=value', or of a name and a
    value."""
    pairs: Iterable[tuple[Any, Any]] = given.items() if isinstance(given, Mapping) else ()
    if isinstance(given, list):
        pairs = (
            (each.get("name"), each.get("value"))
            if isinstance(each, Mapping)
            else str(each).partition("=")[::2]
            for each in given
        )
    return {str(name): str(value) for name, value in pairs if value is not None}


def _expanded(content: str, variables: Mapping[str, str]) -> str:
    """A script with its variables put in: those of variables too, to a depth."""

    content = _QUOTED_ARRAY.sub(r"\1", content)
    left = MAX_PUT_IN

    def value(found: re.Match[str]) -> str:
        nonlocal left
        name, sign, otherwise = found[1] or found[4], found[2], found[3]
        if sign == "+":  # ${X:+word}: the word where X is set
            return otherwise if variables.get(name) else ""
        if variables.get(name):
            left -= len(variables[name])
            return variables[name] if left >= 0 else found[0]
        return otherwise if otherwise is not None else found[0]

    def total(found: re.Match[str]) -> str:
        """What a sum of whole numbers comes to; in one word as it is written where it is none."""
        said = found[1]
        for _ in range(4):  # a sum may be of variables that are sums themselves
            said = re.sub(r"\$?([A-Za-z_]\w*)", lambda name: variables.get(name[1], name[0]), said)
            said = said.replace("$((", "((")[:MAX_EXPANDED]
        try:  # a shell divides whole numbers
            whole = python.value(ast.parse(said.strip().replace("/", "//"), mode="eval").body, {})
        except (SyntaxError, ValueError, RecursionError):
            whole = None
        return str(whole) if isinstance(whole, int) else re.sub(r"\s", "", found[0])

    for _ in range(4):
        put = _sums(_VARIABLE.sub(value, content), total)
        if put == content or left < 0:
            break
        content = put
    return content


def _sums(content: str, total: Callable[[re.Match[str]], str]) -> str:
    """A script with the sums in it worked out, each to the bracket that closes it."""
    pieces = content.split("$((")
    found = pieces[:1]
    for piece in pieces[1:]:
        depth, end = 2, 0
        while depth and end < len(piece):
            depth += {"(": 1, ")": -1}.get(piece[end], 0)
            end += 1
        whole = f"$(({piece[:end]}"
        found += [_SUM.sub(total, whole) if _SUM.fullmatch(whole) else whole, piece[end:]]
    return "".join(found)


@functools.lru_cache(maxsize=1)  # each reader of modules asks for the same one
def module(content: str) -> ast.Module:
    """A text as a module of Python, of a notebook without its commands; one without a line, if it
    is none."""
    nothing = ast.Module(body=[], type_ignores=[])
    if over(content):
        return nothing
    try:
        tree = ast.parse(_MAGIC.sub(r"\1pass", content))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return nothing
    return tree if python.depth(tree) <= MAX_NESTED else nothing


def _split(content: str) -> Iterator[tuple[str, ...]]:
    """The words of each command; a variable that is set to options is none."""
    for line in filter(str.strip, content.split("\n")):
        words: list[str] = []
        commands = [words]
        for word in _words(line[:MAX_EXPANDED]):
            if word == "#SBATCH":  # Slurm's options
                words.append("sbatch")
            elif word in ENDS or word.startswith("#"):
                words = []
                commands.append(words)
                if word.startswith("#"):
                    break
            else:
                words.append(word)
        for each in commands:
            if each and not _SET.match(" ".join(each[:2])):
                yield tuple(each)


_SIGNS = re.compile(r"""["'\\;&|]""")  # what means more than itself to a shell
_BETWEEN = re.compile(r"[ \t\r\n]+")
_NO_WORD = re.compile(r"[^ \t\r\n]{50000}")  # no shell's: a lexer takes it letter by letter


def _words(line: str) -> list[str]:
    """A line's words; quotes hold words together where each has its other."""
    if not _SIGNS.search(line) or _NO_WORD.search(line):
        return [word for word in _BETWEEN.split(line) if word]
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


def prints(command: Sequence[str]) -> bool:
    """Whether a command prints what may be another."""
    return command[:1] in (("echo",), ("printf",))


def adds(command: Sequence[str], chosen: Sequence[str]) -> bool:
    """Whether a command says an option otherwise than one that was chosen, or has one more, and is
    no copy of one that is printed."""
    if prints(command):
        return False
    own, others = options(command)[1], options(chosen)[1]
    return any(others.get(name) != value for name, value in own.items())
