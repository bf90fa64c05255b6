"""Fields: what the Plan says about each of its own fields, for a form to be drawn from."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue
from memcore.plan.plan import (
    Plan,
    change_texts,
    facts,
    field_of,
    field_paths,
    get,
    title_of,
    value_text,
)
from memcore.plan.rule import said
from memcore.words.word import Word

PATH = re.compile(r"\b(cluster|parallel|train|serve|together|run)\.[a-z_]+[a-z]\b")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the Plan: `path` as in an error, limits inclusive, words or None."""

    path: str
    title: str
    help: str
    unit: str
    kind: type
    low: float | None
    high: float | None
    words: Mapping[str, Word] | None

    @property
    def label(self) -> str:
        is_named = not self.unit or self.unit in self.title.lower().split()
        return self.title if is_named else f"{self.title} ({self.unit})"

    @property
    def full_help(self) -> str:
        """The field's help, then one line per word."""
        lines = [f"- **{w.label}**: {w.help}" for w in (self.words or {}).values()]
        return "\n".join([self.help, "", *lines])


def field(path: str) -> Field:
    """The field at a dotted path such as 'train.micro_batch' or 'model.dims.height'."""
    info: Any = field_of(path)
    declared = facts(path)
    return Field(
        path=path,
        title=title_of(path),
        help=info.description or "",
        unit=declared.unit,
        kind=info.annotation,
        low=_limit(info.metadata, "ge", "gt"),
        high=_limit(info.metadata, "le", "lt"),
        words=declared.words,
    )


def setting(plan: Plan, path: str, value: Any) -> str:
    """A field's value for people; what the plan itself has of presets by their labels."""
    labels = {"model": plan.architecture.label, "cluster.gpu": plan.accelerator.label}
    labels["cluster.node"] = plan.node.label
    own = path in labels and value == get(plan.document(), path)
    return labels[path] if own else value_text(path, value)


@functools.cache
def titles() -> dict[str, str]:
    """Every field's title by its path."""
    return {path: title_of(path) for path in field_paths()}


def in_words(text: str) -> str:
    """A text of the engine with the title of each field, quoted, in place of its path."""
    named = titles()
    return PATH.sub(lambda found: f'"{named[found[0]]}"' if found[0] in named else found[0], text)


# Words of these fields, as a reason has them: "deepspeed does not have bf16-autocast". Of a word of
# several of them the last says what it is called.
_NAMED = (
    *("train.kernels", "train.precision", "train.adapter", "train.optimizer", "serve.engine"),
    "train.framework",
)


@functools.cache
def _labels() -> Mapping[str, str]:
    """The label of each word of _NAMED that is not English too, as 'none' is."""
    words = {w: word.label for path in _NAMED for w, word in (facts(path).words or {}).items()}
    return {w: label for w, label in words.items() if w != "none"}


def issue_text(issue: Issue) -> str:
    """What is wrong, and what settles it or was done about it, with fields and words as the sidebar
    names them."""
    path = named[0] if (named := PATH.search(issue.field)) else issue.field
    settles = said(issue.remedies, path) if issue.remedies else ""
    why, stated, rest = issue.message.partition(settles) if settles else (issue.message, "", "")
    names = "|".join(sorted(map(re.escape, _labels()), key=len, reverse=True))
    why = re.sub(rf"(?<![\w./-])({names})(?![\w-])", lambda w: _labels()[w[0]], why)
    if stated and issue.mended:
        return in_words(f"{why.rstrip('; ')}. Now {', '.join(change_texts(issue.mended, ':'))}")
    return in_words(why + (said(issue.remedies, path, value_text) if stated else "") + rest)


@functools.cache
def in_group(group: str) -> tuple[str, ...]:
    """The fields that the sidebar draws in a group, in its order."""
    paths = [path for path in field_paths() if facts(path).group == group]
    for path in [path for path in paths if facts(path).after]:
        paths.remove(path)
        paths.insert(paths.index(facts(path).after) + 1, path)
    return tuple(paths)


def _limit(metadata: list[Any], *names: str) -> float | None:
    for mark in metadata:
        for name in names:
            if hasattr(mark, name):
                return float(getattr(mark, name))
    return None
