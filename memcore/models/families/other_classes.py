"""Classes that no family plans, and whose parameters are those of others of its architecture, as
presets/families/classes.toml says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memcore.models import families
from memcore.models.config import Keys
from memcore.models.families.counted import of_parameters
from memcore.models.families.family import labels
from memcore.models.families.rows import rows
from memcore.models.formulas import value_of
from memcore.models.model import Model


@dataclass(frozen=True, slots=True)
class Class:
    """One class of the architecture that a config is of, in a formula: by a number with so many
    labels, by a word as that says."""

    stem: str
    end: str
    config: Mapping[str, Any]

    def model(self, end: str = "", **own: Any) -> Model:
        named = {"architectures": [self.stem + (end or self.end)]}
        return families.from_config({**self.config, **named, **own})

    def __getitem__(self, how: int | str) -> int:
        if isinstance(how, int):
            return families.weights_of(self.model(num_labels=how))
        if how in ("width", "words"):
            read = self.model()
            return read.hidden_size * (read.vocab_size if how == "words" else 1)
        own = {"tie_word_embeddings": True} if how == "tied" else {}
        return families.weights_of(self.model("Model" if how == "bare" else "", **own))


def of_another_class(
    config: Mapping[str, Any], named: str, classes: Mapping[str, str], label: str
) -> Model | None:
    """The model of a class that its family, which has `classes`, does not plan; None where its
    parameters are not known either. Raises PlanError."""
    table = rows("classes")
    for end, usual in table["ends"].items():
        if named in classes or not named.endswith(end):
            continue
        formula, stem = table["apart"].get(named, usual), named.removesuffix(end)
        words = [w for w in re.findall(r"(?<!\.)\b[a-z]+\b", formula) if w in table["names"]]
        if not all(stem + table["names"][word] in classes for word in words):
            continue
        known: dict[str, Any] = {w: Class(stem, table["names"][w], config) for w in words}
        read = known[words[0]].model()
        if read.counted and words[0] in ("writes", "marian"):  # whose width is not known here
            return None
        known["labels"] = labels(Keys(config, {}))
        found = of_parameters(value_of(formula, known), label)
        return replace(found, notes=read.notes, reading=read.reading)
    return None
