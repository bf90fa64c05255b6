"""Field: all that is declared about one field of a plan, where the field stands.

The declaration says which values there are, what a link calls the field, where the sidebar draws it
and as which lever it is tried. Validation, links, the sidebar and the levers read it here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic.functional_validators import AfterValidator, BeforeValidator

from memcore.errors import no_word
from memcore.words.word import Word

if TYPE_CHECKING:
    from memcore.models.model import Model

# Groups of the sidebar in its order, and the page on which each is unfolded.
GROUPS = {
    "Training details": "",
    "Offload": "",
    "Parallelism": "",
    "The whole run": "Time",
    "Serving load": "Serve",
    "Serving": "Serve",
    "Serving details": "Serve",
    "Request stream": "Serve",
    "Train and serve together": "RL",
}
DETAILS = frozenset(("Serving details",))  # folded on their page too
TOP = "top"  # above the groups: what matters most
HARDWARE = "hardware"  # beside the GPU and its host

# What a change leaves as it was; search.levers says more of each.
SAME, ROUNDED, MACHINES, OTHER, FROZEN = "same", "rounded", "machines", "other", "frozen"

Drafted = Callable[[str], Any]  # the value at a path, of a plan that may not be valid yet
When = Callable[[Drafted, "Model"], bool]


@dataclass(frozen=True, slots=True)
class Switch:
    """A lever: the field set to one value, which trains the same."""

    to: Any


@dataclass(frozen=True, slots=True)
class EachWord:
    """Levers: each other word of the field. `kind`: what such a change leaves as it was."""

    kind: str = SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a field says besides its type, its title, its help and its limits.

    unit    of its value, or ''
    words   those that it takes, if it takes words
    key     its short name in a link
    names   what other programs and people call it; who types one is led here
    group   of the sidebar, '' where it is not drawn there; None: its section's
    after   the field that it is drawn behind, where that is not the one declared before it
    when    whether it has a meaning in a drafted plan; where it has none, it is not drawn
    steps   values that a slider stops at; () is no slider
    text    one of these values for people
    slider  whether its words are on a slider
    lever   what of it is tried as a lever
    frees   whether more of it needs less memory, so that who solves for it asks for the least
    auto    whether 0 is no number of it, but leaves it to something else
    zero    what 0 stands for, where it is no number of it
    own     of a field of words, what a value is called that is none, but a whole description: JSON
            that begins with a brace. Raises ValueError for what describes nothing
    """

    unit: str = ""
    words: Mapping[str, Word] | None = None
    key: str = ""
    names: Sequence[str] = ()
    group: str | None = None
    after: str = ""
    when: When | None = None
    steps: Sequence[int] = ()
    text: Callable[[int], str] = "{:,}".format
    slider: bool = False
    lever: Switch | EachWord | None = None
    frees: bool = False
    auto: bool = False
    zero: str = ""
    own: Callable[[str], str] | None = None

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add to the field's JSON schema what pydantic does not know."""
        if self.unit:
            schema["unit"] = self.unit
        if self.words:
            schema["enum"] = list(self.words)


def number(
    default: Any,
    title: str,
    help: str,
    unit: str = "",
    *,
    within: tuple[float, float],
    zero: str = "",
    **facts: Any,
) -> Any:
    """A field that takes a number within limits, both of which it may be. `facts` are those of
    Facts."""
    return Field(
        default=default,
        title=title,
        description=f"{help} 0: {zero}." if zero else help,
        ge=within[0],
        le=within[1],
        json_schema_extra=Facts(unit=unit, zero=zero, **facts),
    )


def declare(default: Any, title: str, help: str, **facts: Any) -> Any:
    """A field that is on or off, or that takes a name or a whole description."""
    return Field(default=default, title=title, description=help, json_schema_extra=Facts(**facts))


def choice(table: Mapping[str, Word], default: str, title: str, help: str, **facts: Any) -> Any:
    """A field that takes a word of a table, or what `own` among the facts calls by a name."""
    own = facts.get("own")

    def known(word: str) -> str:
        if own and describes(word):
            own(word)
        elif word not in table:
            raise ValueError(no_word(word, table, "is not known"))
        return word

    info: FieldInfo = declare(default, title, help, words=table, **facts)
    info.metadata += [BeforeValidator(described)] * bool(own) + [AfterValidator(known)]
    return info


def described(value: Any) -> Any:
    """A whole description as the text that a plan has for it."""
    if not isinstance(value, Mapping):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def describes(value: Any) -> bool:
    """Whether a value is a whole description, as text."""
    return isinstance(value, str) and value.startswith("{")


def facts_of(info: FieldInfo) -> Facts:
    """What a field declares."""
    found = info.json_schema_extra
    return found if isinstance(found, Facts) else Facts()


def checked(fields: Mapping[str, tuple[str, Facts]]) -> None:
    """Raises ValueError where two fields of a plan, by their paths with their titles, claim the
    same, or where one is drawn in no place that there is. It names the fields."""
    claimed: dict[tuple[str, str, str], str] = {}
    for path, (title, said) in fields.items():
        if said.group and said.group not in (*GROUPS, TOP, HARDWARE):
            raise ValueError(f"{path}: there is no group {said.group!r} in the sidebar")
        if said.after and (said.after not in fields or fields[said.after][1].group != said.group):
            raise ValueError(f"{path} is drawn behind {said.after}, which is no field of its group")
        claims = (("link key", said.key, ""), ("title", title if said.group else "", said.group))
        for what, name, where in claims:
            other = claimed.setdefault((what, name, where or ""), path)
            if name and other != path:
                raise ValueError(
                    f"{other} and {path} both have the {what} {name!r}; choose another"
                )
