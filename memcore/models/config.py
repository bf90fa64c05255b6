"""Config: a config.json read safely, key by key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from memcore.errors import Issue, PlanError, did_you_mean, shown
from memcore.models.model import HARMLESS, UNLIMITED, WEIGHTLESS, Reading, Watched, in_json, text_of
from memcore.tape.structure import CAUSAL

MAX_CONFIG_BYTES = 4_000_000  # one that lists its quantized layers has 3,087,083
MAX_CONFIG_DEPTH = 20


def parse_config(text: str | bytes) -> dict[str, Any]:
    """A config.json's text as a dictionary, bounded in size and depth. Raises PlanError."""
    if len(text) > MAX_CONFIG_BYTES:
        most = f"a config.json has at most {MAX_CONFIG_BYTES:,}. Drop the config, not the weights"
        raise PlanError([Issue("model", f"the file has {len(text):,} bytes; {most}")])
    try:
        value = json.loads(text)
    except RecursionError:
        raise PlanError([Issue("model", "nested too deeply to be a config.json")]) from None
    except (ValueError, UnicodeDecodeError) as e:
        raise PlanError([Issue("model", f"not JSON: {shown(str(e))}")]) from None
    if not isinstance(value, dict):
        raise PlanError([Issue("model", "a config.json is one JSON object, in braces")])
    check_depth(value)
    return in_json(value)


def check_depth(value: Any) -> None:
    """Refuse a value nested deeper than any config.json, or with a number that JSON has not, but
    for the infinity of UNLIMITED.

    Without recursion: the value is a stranger's.
    """
    level, depth = [("model", value)], 0
    while level:
        depth += 1
        if depth > MAX_CONFIG_DEPTH:
            raise PlanError([Issue("model", "nested too deeply to be a config.json")])
        for path, v in level:
            unlimited = v == math.inf and path.rpartition(".")[0].endswith(f".{UNLIMITED}")
            if isinstance(v, float) and not math.isfinite(v) and not unlimited:
                raise PlanError([Issue(shown(path)[1:-1], f"{v} is not a number that JSON has")])
        level = [
            (f"{path}.{key}", child)
            for path, v in level
            if isinstance(v, (dict, list))
            for key, child in (v.items() if isinstance(v, dict) else enumerate(v))
        ]


class Keys:
    """Typed reads from a config that collect what is wrong instead of stopping at the first.

    asked     every key that was looked for
    assumed   of those that decide sizes and are not there, what was taken instead
    inside    the keys of the configs inside this one
    head      of the class that the config names
    """

    def __init__(self, config: Mapping[str, Any], aliases: Mapping[str, str]):
        """aliases   other names of keys, and the key that each stands for (Family.aliases)"""
        self.issues: list[Issue] = []
        self.notes: list[str] = []  # for Model.notes
        self.written: dict[str, str] = {}  # key -> the other name that this file has for it
        self.asked: set[str] = {"model_type", "architectures"}
        self.assumed: dict[str, Any] = {}
        self.inside: dict[str, Keys] = {}
        self.head = CAUSAL
        self._given = {k: aliases.get(k, k) for k in config if isinstance(k, str)}
        self._config = Watched(self._by_own_names(config, aliases), self.asked)

    def _by_own_names(
        self, config: Mapping[str, Any], aliases: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """The config with each key under the name that its family reads. A null leaves the word to
        the other name; two names with different values are an issue."""
        own = {key: value for key, value in config.items() if key not in aliases}
        for alias, key in aliases.items():
            if alias not in config:
                continue
            value = config[alias]
            if own.get(key) is None:
                own[key], self.written[key] = value, alias
            elif value is not None and value != own[key]:
                known = self.written.get(key, key)
                self.issues.append(
                    Issue(
                        f"model.{known}",
                        f"{shown(own[key])}, but {alias}, another name of the same, is "
                        f"{shown(value)}; keep the one that is so",
                    )
                )
        return own

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @config.setter
    def config(self, config: Mapping[str, Any]) -> None:
        self._config = Watched(config, self.asked)

    def assume(self, key: str, default: Any) -> None:
        """Note the value that is assumed for a missing key that decides sizes."""
        if key not in self.config and key not in WEIGHTLESS:
            self.assumed[key] = default

    def within(self, place: str, aliases: Mapping[str, str] | None = None) -> Keys:
        """The keys of a config inside this one, or of an empty one; `absorb` it when it is read."""
        given = self.config.get(place)
        if given is not None and not isinstance(given, Mapping):
            self.fail(place, f"must be an object, in braces, not {shown(given)}")
        return Keys(given if isinstance(given, Mapping) else {}, aliases or {})

    def absorb(self, place: str, keys: Keys) -> None:
        """What is wrong with a config inside this one is wrong here, with its place."""
        self.inside[place] = keys
        for issue in keys.issues:
            self.fail(f"{place}.{issue.field.removeprefix('model.')}", issue.message)

    def take(self, keys: Keys) -> None:
        """What was read of a part of this config, whose keys stand here, not inside."""
        self.asked |= keys.asked
        self.assumed |= keys.assumed
        self.notes += keys.notes
        for issue in keys.issues:
            self.fail(issue.field.removeprefix("model."), issue.message)

    @property
    def unread(self) -> tuple[str, ...]:
        """Keys that nobody asked for, as they are written; what is null, or off, says nothing."""
        return tuple(
            key
            for key, name in self._given.items()
            if name not in self.asked and self._config.peek(name)
        )

    @property
    def given(self) -> list[str]:
        """Keys that are there and not null."""
        return [key for key in self._config if self._config.peek(key) is not None]

    def reading(self) -> Reading:
        """What was assumed and what was not read, of the configs inside this one too."""
        assumed = [(key, text_of(value)) for key, value in self.assumed.items()]
        unread = [key for key in self.unread if key not in HARMLESS]
        for place, keys in self.inside.items():
            own = keys.reading()
            assumed += [(f"{place}.{key}", text) for key, text in own.assumed]
            unread += [f"{place}.{key}" for key in own.unread]
        return Reading(tuple(assumed), tuple(unread))

    def fail(self, key: str, message: str) -> None:
        issue = Issue(f"model.{self.written.get(key, key)}", message)
        if issue not in self.issues:  # some keys are read more than once
            self.issues.append(issue)

    def count(self, key: str, default: int, most: int = 10**8) -> int:
        self.assume(key, default)
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be a whole number, not {shown(value)}")
            return default
        if not 1 <= value <= most:
            self.fail(key, f"must lie between 1 and {most:,}, not {shown(value)}")
            return default
        return value

    def pair(self, key: str, default: int, most: int = 100_000) -> tuple[int, int]:
        """Height and width: one number for both, or a list of two."""
        self.assume(key, default)
        value = self.config.get(key, default)
        both = value if isinstance(value, list) else [value, value]
        if len(both) != 2 or any(type(n) is not int or not 1 <= n <= most for n in both):
            self.fail(key, f"must be a whole number up to {most:,} or two, not {shown(value)}")
            return default, default
        return both[0], both[1]

    def count_or(self, key: str, when_null: int, most: int = 10**8) -> int:
        """A count for which null and absence both mean `when_null`."""
        return when_null if self.config.get(key) is None else self.count(key, when_null, most)

    def count_or_zero(self, key: str, default: int) -> int:
        return 0 if self.config.get(key) == 0 else self.count_or(key, default)

    def rope(self, key: str, default: float, alias: str = "") -> float:
        """A share from `rope_parameters` (or `rope_scaling`), or from the key or its old name."""
        for place in ("rope_parameters", "rope_scaling", ""):
            for name in (key, alias):
                value = self._rotary(place, name)
                if value is not None:
                    if not 0 <= value <= 1:
                        self.fail(name, f"must lie between 0 and 1, not {shown(value)}")
                        return default
                    return value
        return default

    @property
    def stretch(self) -> float:
        """Positions of a rotary table over those that the model was trained with: the factor of
        linear scaling, which an engine's table is longer by."""
        for place in ("rope_parameters", "rope_scaling"):
            given = self._rotary_words(place)
            if "linear" in (given.get("rope_type"), given.get("type")):
                factor = self._rotary(place, "factor")
                if factor is not None:
                    return min(max(1.0, factor), 1e6)
        return 1.0

    def _rotary_words(self, place: str) -> Mapping[str, Any]:
        """What one of the keys about rotary positions says, for the layers that see all tokens."""
        given = self.config.get(place) if place else self.config
        if isinstance(given, Mapping) and place and "full_attention" in given:
            place, given = f"{place}.full_attention", given["full_attention"]
        if given is None or isinstance(given, Mapping):
            return given or {}
        self.fail(place, f"must be an object, in braces, not {shown(given)}")
        return {}

    def _rotary(self, place: str, name: str) -> float | None:
        """A number about rotary positions, or None where there is none."""
        value = self._rotary_words(place).get(name) if name else None
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
            field = f"{place}.{name}" if place else name
            self.fail(field, f"must be a number, not {shown(value)}")
            return None
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key, default)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {shown(value)}")
            return default
        return value

    def dropout(self, key: str, default: float) -> bool:
        """Whether dropout runs in training: a probability above zero."""
        value = self.config.get(key, default)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            self.fail(key, f"must be a probability from 0 to below 1, not {shown(value)}")
            return False
        return value > 0

    def word(self, key: str, default: str, known: Mapping[str, str]) -> str:
        value = self.config.get(key, default)
        if not isinstance(value, str) or value not in known:
            self.fail(key, f"{shown(value)} is not known; {did_you_mean(str(value), known)}")
            return known[default]
        return known[value]

    def refuse(self, key: str, *harmless: Any) -> None:
        """A key whose other values change the tensors in a way that is not modelled."""
        value = self.config.get(key, harmless[0])
        if value not in harmless:
            planned = "" if harmless[0] is None else f"; {shown(harmless[0])} is planned"
            why = "changes the model in a way that is not known yet"
            self.fail(key, f"{shown(value)} {why}{planned}")

    def divides(self, key: str, value: int, by_key: str, by: int) -> None:
        if not self.issues and value % by:
            self.fail(
                key, f"{value:,} does not divide by {by_key} {by:,}; choose a multiple of {by:,}"
            )


# Spelling in a config -> the operation that runs (transformers' ACT2FN).
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}
