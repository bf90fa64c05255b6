"""What is said when an input cannot be used: which field, what is wrong, what to change."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 80  # characters of a user's own text that a message repeats


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem: `field` is the dotted path in the Plan, `message` says what to change."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class PlanError(ValueError):
    """A plan, model or hardware description that cannot be used; `issues` lists every reason."""

    def __init__(self, issues: Iterable[Issue]):
        self.issues = tuple(issues)
        super().__init__("\n".join(map(str, self.issues)))


def shown(value: object) -> str:
    """A user's value, short enough and safe to repeat in a message."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text[: SHOWN + 1])
    return f"'{text[:SHOWN]}{'...' if len(text) > SHOWN else ''}'"


def did_you_mean(word: str, known: Iterable[str], listed: int = 12) -> str:
    """'did you mean X?' when something is close, else the known words."""
    names = sorted(known)
    close = difflib.get_close_matches(word[:SHOWN], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    within = [name for name in names if word and word.lower() in name.lower()]
    if within:
        return f"did you mean {' or '.join(repr(name) for name in within[:4])}?"
    more = f", ... ({len(names)} in all)" if len(names) > listed else ""
    return f"choose one of {', '.join(names[:listed])}{more}"
