"""What is said when an input cannot be used: which field, what is wrong, what to change."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN = 80  # characters of a user's own text that a message repeats
PART = 3  # letters by which a part of a name may be meant
ALIKE = 0.7  # how alike two words are of which one may be a slip of the other; 1: the same
LISTED = 12  # known words that a message lists
PATH_SHOWN = 200  # characters of a file's path


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem: `field` is the dotted path in the Plan, `message` says what to change, and
    `remedies` are such changes: fields with the values that they are set to, the best first.
    `mended`: that of them which was made already."""

    field: str
    message: str
    remedies: tuple[Mapping[str, Any], ...] = dataclasses.field(default=(), compare=False)
    mended: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class PlanError(ValueError):
    """A plan, model or hardware description that cannot be used; `issues` lists every reason, of
    which there is one at least. Raises ValueError without one: nobody could mend it."""

    def __init__(self, issues: Iterable[Issue]):
        self.issues = tuple(issues)
        if not self.issues:
            raise ValueError("a PlanError without an issue")
        super().__init__("\n".join(map(str, self.issues)))


def refusal(field: str, message: str) -> PlanError:
    """A PlanError of one issue."""
    return PlanError([Issue(field, message)])


def shown(value: object) -> str:
    """A user's value, short enough and safe to repeat in a message."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text[: SHOWN + 1])
    return f"'{text[:SHOWN]}{'...' if len(text) > SHOWN else ''}'"


def shown_path(path: str) -> str:
    """A file's name, safe to repeat in a message; of a long path the end."""
    text = "".join(c if c.isprintable() else "?" for c in path[-PATH_SHOWN:])
    return f"...{text}" if len(path) > PATH_SHOWN else text


def fault(error: BaseException) -> str:
    """An error that is Memplan's own, in a few words for who is to mend it: what, and where."""
    frame, where = error.__traceback__, ""
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in ("memcore", "app"):
            where = f" in {module}, line {frame.tb_lineno}"
        frame = frame.tb_next
    said = f" {shown(str(error))}" if str(error) else ""
    return f"{type(error).__name__}{said}{where}"


def not_text(values: Mapping[str, Any]) -> list[Issue]:
    """An issue for each key and word in a parsed JSON document that is no text: JSON can write half
    of a character (a lone surrogate, such as "\\ud800"), which nothing can store or show.

    Without recursion: the document is a stranger's.
    """
    found: list[Issue] = []
    level: list[tuple[str, Any]] = [("", values)]
    while level:
        below: list[tuple[str, Any]] = []
        for path, value in level:
            if isinstance(value, str):
                if not _is_text(value):
                    found.append(Issue(shown(path)[1:-1], f"{shown(value)} {HALF}"))
            elif isinstance(value, Mapping):
                for key, child in value.items():
                    if isinstance(key, str) and not _is_text(key):
                        found.append(Issue(shown(path)[1:-1], f"its key {shown(key)} {HALF}"))
                    elif isinstance(child, DEEPER):
                        below.append((f"{path}.{key}" if path else str(key), child))
            else:
                below += [(f"{path}.{i}", v) for i, v in enumerate(value) if isinstance(v, DEEPER)]
        level = below
    return found


DEEPER = (str, Mapping, list, tuple)
HALF = "holds half of a character (a lone surrogate), so it is no text; write it anew"


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def plain_name(name: str) -> str:
    """A name without case and separators: people write micro-batch, microBatch and micro_batch."""
    return "".join(c for c in name.lower() if c.isalnum())


def words_text(known: Iterable[str]) -> str:
    """The words that a field takes, as a refusal begins: 'takes cpu or none'."""
    names = sorted(known)
    if len(names) > LISTED:
        return f"takes {', '.join(names[:LISTED])}, ... ({len(names)} in all)"
    *others, last = names
    return f"takes {', '.join(others)} or {last}" if others else f"takes {last}"


def no_word(word: object, known: Iterable[str], why: str) -> str:
    """A refusal of what is none of the words of a field: which it takes, first."""
    names = list(known)
    near = did_you_mean(str(word), names)
    said = f"{words_text(names)}; {shown(word)} {why}"
    return f"{said}; {near}" if near.startswith("did") else said


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'did you mean X?' when something is close, else the known words."""
    names = sorted(known)
    said = word.lower()
    begun = [name for name in names if f"-{said}" in f"-{name.lower()}" and len(word) >= PART]
    close = difflib.get_close_matches(word[:SHOWN], names, n=1, cutoff=ALIKE)
    plain = plain_name(word)
    within = [name for name in names if plain and plain in plain_name(name)]
    if meant := begun or close or within:
        return f"did you mean {' or '.join(map(repr, meant[:4]))}?"
    more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
    return f"choose one of {', '.join(names[:LISTED])}{more}"
