"""Twins: names of models that are another family's, with what each does differently, as
presets/families/twins.toml lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memcore.errors import PlanError, shown
from memcore.models.config import Keys
from memcore.models.families.rows import Row, Sizes, classes_of, rows, spelled_out

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Twin:
    """One model_type that is planned as a family of another name.

    of        the family
    classes   that its files name, each with its head; {}: those of the family
    keys      its names of keys, and the family's
    note      what a reader should know of a model that has more than the family
    """

    of: str
    classes: Mapping[str, str]
    keys: Mapping[str, str]
    note: str
    row: Row

    def opened(self, config: Config) -> dict[str, Any]:
        """The config.json of the family's own that describes the same. Raises PlanError."""
        row, k = self.row, Keys(config, {})
        sizes = Sizes({"keys": {}, "parts": {}, **row}, k, written=list(config))
        sizes.check()
        for key in row.get("needs", ()):
            if config.get(key) is None:
                k.fail(key, "missing; there is no default of it")
        for key, values in row.get("one_of", {}).items():
            if config.get(key) not in values:
                k.fail(key, f"{shown(config.get(key))} is not known; {shown(values[0])} is")
        sets = {key: sizes.of(value) for key, value in row.get("sets", {}).items()}
        assumed = {key: sizes.of(value) for key, value in row.get("assumes", {}).items()}
        where = {key for key, of in row.get("drops_where", {}).items() if sizes.of(of)}
        if k.issues:
            raise PlanError(k.issues)
        drops = where.union(row.get("drops", ()))
        own = {key: value for key, value in config.items() if key not in drops}
        own |= {key: value for key, value in sets.items() if value is not None}
        absent = {
            key: value
            for key, value in assumed.items()
            if not any(name in own for name in (key, *self._names(key)))
        }
        return {**own, **absent, "model_type": self.of}

    def _names(self, key: str) -> list[str]:
        return [name for name, stands_for in self.keys.items() if stands_for == key]


def _twin(row: Row) -> Twin:
    note = row.get("note", "")
    if name := row.get("jointly"):
        note = (
            f"{name[0]} is planned as {name[1]}, whose weights are the same: in training its one "
            f"product for queries, keys and values keeps a little more. {note}"
        ).strip()
    return Twin(row["as"], classes_of(row), row.get("names", {}), note, row)


TWINS = {
    kind: _twin(spelled_out(row, "twins"))
    for kind, row in rows("twins").items()
    if not kind.startswith("_")
}
