"""Rows: what the tables of presets/families say of architectures, and how their keys are read."""

from __future__ import annotations

import functools
import tomllib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from memcore.errors import PlanError, shown
from memcore.models import families
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import (
    decoder_classes,
    labels,
    listed,
    numbers_of_layers,
)
from memcore.models.formulas import value_of
from memcore.shipped import PRESETS

T = TypeVar("T")
MOST = 1000  # things of a list that a formula reads
Row = Mapping[str, Any]


@functools.cache
def rows(name: str) -> dict[str, Any]:
    """The rows of one file of presets/families."""
    file = PRESETS.joinpath("families", f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def spelled_out(row: Row, name: str = "wrappers") -> Row:
    """The row with what the row that it is like, of the file of this name, says besides."""
    if "of" not in row:
        return row
    whole = dict(spelled_out(rows(name)[row["of"]], name))
    if "stem" in row:
        whole.pop("classes", None)
    for key, value in row.items():
        merges = isinstance(value, dict) and isinstance(whole.get(key), dict) and value
        whole[key] = whole[key] | value if merges and key != "classes" else value
    whole.pop("of", None)
    return whole


def classes_of(row: Row) -> dict[str, str]:
    """The classes of a row, each with its head: as it lists them, by what their names begin and end
    with, or those of a decoder."""
    if "ends" in row:
        return {row["stem"] + end: head for end, head in row["ends"].items()}
    found: dict[str, str] = dict(row.get("classes", {}))
    for stem in row.get("stem", "").split():
        found |= decoder_classes(stem, classifier=row.get("classifier", True))
    return found


class Sizes(Mapping[str, Any]):
    """What the names in a row's formulas stand for: what is known beforehand, what the row names
    itself, and keys of a config, read as the row says."""

    def __init__(self, row: Row, keys: Keys, **known: Any):
        self.row, self.k = spelled_out(row), keys
        self.known = {"head": keys.head, **known}
        self.inside: dict[str, Sizes] = {}

    def __iter__(self) -> Iterator[str]:
        return iter({**self.known, **self.row.get("let", {}), **self.row["keys"]})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name not in self.known:
            self.known[name] = self._found(name)
        return self.known[name]

    def _found(self, name: str) -> Any:
        if name == "labels":
            return labels(self.k)
        if name == "given":
            return self.k.given
        if name == "parameters":
            return self._parameters()
        if name in self.row.get("let", {}):
            return self.of(self.row["let"][name])
        return self._read(name, self.row["keys"][name])

    def of(self, formula: Any) -> Any:
        """What a formula comes to; anything else is itself."""
        return value_of(formula, self) if isinstance(formula, str) else formula

    def _parameters(self) -> int:
        row, k = self.row, self.k
        try:
            self.check()
            found = sum(int(self.of(part)) for part in row["parts"].values() if part)
        except PlanError:
            raise
        except (ArithmeticError, IndexError, TypeError, ValueError):
            found = 0  # what is wrong with the keys is an issue of theirs
        self.absorb()
        if found < 1 and not k.issues:
            k.fail(next(iter(row["keys"])), "and the other sizes together make no model")
        return max(1, found)

    def absorb(self) -> None:
        """What is wrong with configs inside is wrong here."""
        for place, inner in self.inside.items():
            self.k.absorb(place, inner.k)

    def check(self) -> None:
        """What must be so of several keys together."""
        k = self.k
        let = self.row.get("let", {})
        for key, value in self.row.get("divides", {}).items():
            many, by, *name = value if isinstance(value, list) else (key, value)
            called = name[0] if name else let.get(by, by)
            k.divides(let.get(key, key), self.of(many), called, self.of(by))
        for key, value in self.row.get("only", {}).items():
            k.refuse(key, self.of(value), None)

    def _read(self, key: str, usual: Any) -> Any:
        k = self.k
        none = k.config.get(key) is None
        many = 10**5 if "layer" in key or "depth" in key else 10**6 if "head" in key else 10**8
        match usual:
            case bool():
                return k.flag(key, usual)
            case int():
                return k.count(key, usual, many)
            case float():
                return _number(k, key, usual)
            case str():
                value = self.of(usual)
                if none:
                    return value
                return k.flag(key, value) if isinstance(value, bool) else k.count(key, value, many)
            case {"absent": value, "null": other}:
                missing = key not in k.config
                return self.of(other) if none and not missing else k.count(key, value, many)
            case {"zero": value}:
                return 0 if k.config.get(key) == 0 else self._read(key, str(value))
            case {"numbered": _}:
                return numbers_of_layers(k, key) or []
            case {"there": value}:
                return not none if key in k.config else value
            case {"activation": value}:
                known = usual.get("of", ACTIVATIONS)
                return k.word(key, value, {word: ACTIVATIONS[word] for word in known})
            case {"rope": value}:
                return k.rope(key, value, usual.get("before", ""))
            case {"auto": formula}:
                said = k.config.get(key, "auto") != "auto"
                return k.count(key, 1) if said else self.of(formula)
            case {"dropout": value}:
                return k.dropout(key, value)
            case {"integer": value}:
                return value if none else _integer(k, key, value)
            case {"pair": side}:
                return k.pair(key, side)
            case {"words": words}:
                return k.word(key, words[0], {word: word for word in words})
            case {"word": word}:
                value = k.config.get(key, word)
                return (
                    value
                    if isinstance(value, str)
                    else ""
                    if none
                    else _fail(k, key, "a word", word)
                )
            case {"several": usual}:
                value = k.config.get(key)
                return len(value) if isinstance(value, (list, tuple)) else usual if none else 1
            case {"things": things}:
                return [] if none and key in k.config else _things(k, key, things)
            case {"each": words, "layers": layers, "usual": formula}:
                n = self[layers]
                words = {int(w) if w.isdigit() else w: kind for w, kind in words.items()}
                every = (value_of(formula, ChainMap({"i": i}, self)) for i in range(n))  # type: ignore[arg-type]
                return listed(k, key, n, words) or list(every)
        return self._inside(key, usual)

    def _inside(self, place: str, row: Row) -> Sizes:
        """A config inside this one: as a row says, or as the family of its own model_type does."""
        given = self.k.config.get(place)
        named = dict(given) if isinstance(given, Mapping) else {}
        row = spelled_out(row)
        usual = {key: self.of(value) for key, value in row.get("usual", {}).items()}
        own = {key: self.of(value) for key, value in row.get("own", {}).items()}
        inner = {**(usual if given is None else named), **own}
        if given is not None and not isinstance(given, Mapping):
            self.k.within(place)  # which says what is wrong
        known = {}
        if model := row.get("model"):
            known["parameters"], keys = families.inside({"model_type": model, **inner})
        else:
            keys = Keys(inner, row.get("aliases", {}))
        self.inside[place] = Sizes({"keys": {}, "parts": {}, **row}, keys, **known)
        return self.inside[place]


def _fail(k: Keys, key: str, what: str, usual: T) -> T:
    k.fail(key, f"must be {what}, not {shown(k.config.get(key))}")
    return usual


def _number(k: Keys, key: str, usual: float) -> float:
    value = k.config.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1000:
        return _fail(k, key, "a number above 0 and below 1,000", usual)
    return value


def _integer(k: Keys, key: str, usual: int) -> int:
    value = k.config.get(key, usual)
    if type(value) is int and abs(value) <= 10**8:
        return value
    return _fail(k, key, "a whole number", usual)


def _things(k: Keys, key: str, usual: list[Any]) -> list[Any]:
    value = k.config.get(key, usual)
    if isinstance(value, (list, tuple)) and len(value) <= MOST:
        return list(value)
    return _fail(k, key, f"a list of at most {MOST:,} things", usual)
