"""Rule: a combination that cannot exist, why, and what settles it.

What settles it is data: the sentence that people read is printed from it, and whoever mends a plan
(a link, the sidebar, a lever, a button) follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from memcore.errors import Issue

Remedy = Mapping[str, Any]  # fields, by their paths, and the values that they are set to


def broken(field: str, why: str, *remedies: Remedy, advice: str = "") -> Issue:
    """What is said of a plan that breaks a rule.

    field     what the message belongs to
    why       what is wrong with it
    remedies  what settles it, what changes least first
    advice    what else would, where no list of values can say it: 'another divisor of 32'
    """
    ways = [said(remedies, field)] if remedies else []
    ways += [advice] if advice else []
    return Issue(field, f"{why}; {', or '.join(ways)}", remedies)


def to(field: str, *values: Any) -> tuple[Remedy, ...]:
    """Remedies that set one field, each to another value."""
    return tuple({field: value} for value in values)


def only(plan: Any, field: str, words: Iterable[Any], why: str, *others: Remedy) -> Iterator[Issue]:
    """That a field of a plan has one of these, which settle it."""
    words = tuple(words)
    if attrgetter(field)(plan) not in words:
        yield broken(field, why, *to(field, *words), *others)


def said(
    remedies: Iterable[Remedy], field: str, text: Callable[[str, Any], str] | None = None
) -> str:
    """Remedies as people read them: 'set it to none, or train.kernels to hf or liger'. `text`: a
    value of a field as it is written; as a file of a plan has it where that is left out."""
    text = text or (lambda path, value: _text(value))
    alone: dict[str, list[Any]] = {}
    ways: list[tuple[str, Any] | str] = []
    for remedy in remedies:
        if len(remedy) == 1:
            ((path, value),) = remedy.items()
            if path not in alone:
                ways.append((path, alone.setdefault(path, [])))
            alone[path].append(value)
        else:
            ways.append(_together(remedy, field, text))
    texts = [w if isinstance(w, str) else _set(w[0], w[1], field, text) for w in ways]
    return f"set {', or '.join(texts)}"


def _set(path: str, values: list[Any], field: str, text: Callable[[str, Any], str]) -> str:
    name = "it" if path == field else path
    return f"{name} to {_listed([text(path, v) for v in values], 'or')}"


def _together(remedy: Remedy, field: str, text: Callable[[str, Any], str]) -> str:
    """Several fields at once; those of one section that are set to one value are named together."""
    sections = {path.partition(".")[0] for path in remedy}
    values = {text(path, value) for path, value in remedy.items()}
    if len(sections) == len(values) == 1:
        section, value = sections.pop(), values.pop()
        names = [path.partition(".")[2] for path in remedy]
        return f"{section}.{_listed(names, 'and')} to {value}"
    return " and ".join(_set(path, [value], field, text) for path, value in remedy.items())


def _listed(texts: list[str], last: str) -> str:
    return f" {last} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def done(remedy: Remedy, field: str) -> str:
    """What following a remedy did: 'hf is used', or 'train.zero is set to 3'."""
    if list(remedy) == [field]:
        return f"{_text(remedy[field])} is used"
    return " and ".join(f"{path} is set to {_text(value)}" for path, value in remedy.items())
