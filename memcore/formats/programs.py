"""Programs: what other programs' keys are, by a table each in presets/programs, and what reads it.

A table is read once, when somebody first needs it. It has

    source    what was read of the program, and its version
    read      rows: a key, and the field of the plan that it is (see Row); other lists of rows have
              names of their own, where code stands between them
    prompt, answer    keys of the tokens of a rollout; usual_tokens: of each where nobody says it
    prompts, answers  keys of the prompts of a step, and of the answers to each; usual_prompts
    words     by name: words of a plan, each with the program's words for it, the usual one first
    renamed   keys of another table, each with this program's names for it; usual: what these are
              where nobody says it; of `names`, dropped: those that mean nothing there
    names     by name: sets of keys
    left      keys that move memory or time and that no plan says, by why
    harmless  names of keys that move neither, and parts that such names contain
    also      other tables whose words, left and harmless count too
    knows     conditions by which a document is its, of a program that has no more than its table;
              label: what it is called
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.formats.draft import (
    Around,
    Draft,
    Keys,
    UnsaidError,
    Words,
    flag,
    number,
    positive,
    share,
    whole,
)
from memcore.plan.plan import Plan, field_paths, get
from memcore.shipped import PRESETS


def _chunk(value: Any) -> int:
    if whole(value) < 1:
        raise UnsaidError("reads prompts whole")
    return whole(value)


def _place(value: Any) -> str:
    if str(value) not in ("cpu", "nvme"):
        raise UnsaidError("is neither cpu nor nvme")
    return str(value)


def _to_host(value: Any) -> str:
    return "cpu" if str(value) in ("legacy", "disk") or flag(value) else "none"


READS: Mapping[str, Callable[[Any], Any]] = {
    "positive": positive,
    "whole": whole,
    "number": number,
    "share": share,
    "nine_tenths": lambda value: 0.9 * share(value),
    "flag": flag,
    "chunk": _chunk,
    "place": _place,
    "to_host": _to_host,
    "on_off": lambda value: "on" if flag(value) else "off",
}
NO_WORD = "has no word in a plan"


FIELDS = frozenset(field_paths())
# What rows that are read once all files are may ask, or have as a value.
FACTS: Mapping[str, Callable[[Around], Any]] = {
    "around.gpus": lambda around: around.gpus,
    "around.gpus_per_node": lambda around: around.gpus_per_node,
    "around.machines": lambda around: math.ceil(around.gpus / around.gpus_per_node),
    "model.layers": lambda around: around.model.layers,
    "model.recurrence": lambda around: around.model.recurrence,
    "model.tower": lambda around: around.model.tower,
    "gpu.unified_memory": lambda around: around.gpu.unified_memory,
}
# A condition of a row: a field of the plan, one of FACTS or a key, or the first of several with
# '|' between that says something; behind it one of some words, or more than.
_CONDITION = re.compile(r"(!?)([^=>]+)(?:([=>])(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a row to count: a field, a fact or a key is on, or says one of some words
    behind '=' ('' among them: nobody says it), or more than what stands behind '>'; `negated`: that
    it does not."""

    negated: bool
    names: tuple[str, ...]
    sign: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Condition:
        """By its text in a table."""
        parts = _CONDITION.fullmatch(text)
        assert parts is not None, text
        negated, names, sign, words = parts.groups()
        return cls(
            bool(negated), tuple(names.split("|")), sign or "", tuple((words or "").split("|"))
        )

    @property
    def of_keys(self) -> bool:
        """Whether it is of keys of the file."""
        return self.names[0] not in FIELDS and self.names[0] not in FACTS

    def holds(self, keys: Keys, draft: Draft, around: Around | None = None) -> bool:
        """Whether it does in a file; a fact's only where that is known which is around it."""
        name = self.names[0]
        said = FACTS[name](around) if name in FACTS and around else draft.fields.get(name)
        if self.sign == "=":
            said = keys.one(*self.names, words=self.words) if self.of_keys else said
            on = ("" if said is None else str(said).lower()) in self.words
            if on and said is not None and self.of_keys:  # a word that is known is not unclear
                keys.neither |= dict.fromkeys(self.names)
        elif self.sign == ">":
            many = draft.count(keys, *self.names) if self.of_keys else int(said or 0)
            on = many > int(self.words[0])
        else:
            on = keys.on(*self.names) if self.of_keys else bool(said)
        return on != self.negated

    def written(self) -> dict[str, Any]:
        """The key that makes it hold, with its value; none where a file need not say it."""
        word = next(filter(None, self.words), "")
        if self.negated or not self.of_keys or self.sign == ">" or (self.sign and not word):
            return {}
        return {self.names[0]: word if self.sign else True}


@dataclass(frozen=True, slots=True)
class Row:
    """What one key says, or what a program does by itself.

    to      fields of the plan
    keys    the program's names, of which the first that says something counts
    how     how its value is read (`as`): one of READS, or a table of words (`of` another program),
            with `why` of a word that is not there; instead: what the fields are then
    on, off what the fields are where a switch of these is on, and where none is; usual: it is on
            where nobody says it
    sets    what the fields are at any rate (`is`), by name one of FACTS; told: what is told as the
            value then, where it is not the key's
    usually what they are where no file says it (`else`)
    by      what is told as the key, where it is none of the keys
    write   the key that is written of a plan: the first, if nothing is said
    within  the section of the file that the keys are in, by its path
    when    conditions, which all must hold, or the row says nothing
    leave   what is told of the key as what no plan says; {} stands for its value
    refuse  why no plan is made of a file with the key
    """

    to: tuple[str, ...]
    keys: tuple[str, ...]
    how: Callable[[Any], Any] | None
    instead: Any
    on: Any
    off: Any
    usual: bool
    sets: Any
    told: Any
    usually: Any
    by: str
    write: str
    within: tuple[str, ...]
    when: tuple[Condition, ...]
    leave: str
    refuse: str

    def asks(self, keys: Keys, draft: Draft) -> bool:
        """Whether its conditions of keys hold; all its keys count as read."""
        for section in self.within:
            keys = keys.inner(section)
        keys.take(*self.keys)
        holds = [each.holds(keys, draft) for each in self.when if each.of_keys]
        return all(holds)

    def read(self, keys: Keys, draft: Draft, around: Around | None = None) -> None:
        """What the keys of a file say by this row. Raises PlanError where it refuses them."""
        for section in self.within:
            keys = keys.inner(section)
        # all their keys count as read
        holds = [each.holds(keys, draft, around) for each in self.when]
        if not all(holds):
            return
        key = self.by or (keys.named(*self.keys) if self.keys else "")
        given = None
        if self.how is not None:
            for path in self.to:
                meant = draft.read(keys, path, self.how, *self.keys)
                if meant is None and keys.take(*self.keys) is not None:
                    self._put(draft, self.instead, key)
        elif self.on is not None or self.off is not None:
            states = {keys.written(each): keys.on(each) for each in self.keys}
            on = any(states.values()) or (self.usual and keys.take(*self.keys) is None)
            key = self.by or next((each for each in states if states[each]), key)
            value = self.on if on else self.off
            said = any(key in keys.values for key in self.keys)
            self._put(draft, value, key, on if said else f"not said: {value}")
        elif self.keys:
            given = keys.one(*self.keys)
        value, usually = (
            FACTS[each](around) if around and each in FACTS else each
            for each in (self.sets, self.usually)
        )
        self._put(draft, value, key, given if self.told is None else self.told)
        for path in self.to if usually is not None else ():
            draft.otherwise(path, usually, self.by or keys.written(self.keys[0]))
        if self.leave:
            draft.leave(key, self.leave.replace("{}", shown(given)[1:-1]))
        if self.refuse:
            raise PlanError([Issue(key, self.refuse.replace("{}", shown(given)[1:-1]))])

    @property
    def is_read(self) -> bool:
        """Whether its keys have a value that is read."""
        return self.how is not None or self.on is not None or self.off is not None

    def written(self, value: Any) -> Any:
        """What the first of the keys says of a field's value; None where the program has no word
        for it."""
        if isinstance(self.how, Words):
            return next((theirs for theirs, ours in self.how.table.items() if ours == value), None)
        if self.how is _to_host:
            return value == "cpu"
        if self.on is not None or self.off is not None:
            return value == self.on if self.on is not None else value != self.off
        return value

    def _put(self, draft: Draft, value: Any, key: str, given: Any = None) -> None:
        for path in self.to if value is not None else ():
            draft.put(path, value, key, given)


FOLDER = PRESETS / "programs"


def tables_with(*keys: str) -> list[str]:
    """The tables that say each of some keys, by their names."""
    texts = {each.name: each.read_text(encoding="utf-8") for each in FOLDER.iterdir()}
    return sorted(
        name.removesuffix(".toml")
        for name, text in texts.items()
        if all(re.search(rf"^{key} = ", text, re.MULTILINE) for key in keys)
    )


@functools.cache
def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


class Program:
    """One program's table, or a section of it."""

    def __init__(self, name: str, section: str = ""):
        self.name, self.section = name, section

    @functools.cached_property
    def table(self) -> Mapping[str, Any]:
        """What the file has."""
        found: Mapping[str, Any] = _table(self.name)
        return found[self.section] if self.section else found

    @functools.cached_property
    def also(self) -> tuple[Program, ...]:
        """Other tables that count too."""
        return tuple(map(Program, self.table.get("also", "").split()))

    @functools.cached_property
    def words(self) -> Mapping[str, Mapping[str, str]]:
        """By what they are for, the program's words with those of a plan."""
        found = {name: words for each in self.also for name, words in each.words.items()}
        for name, mine in self.table.get("words", {}).items():
            pairs = ((theirs, ours) for ours, several in mine.items() for theirs in several.split())
            found[name] = {**found.get(name, {}), **dict(pairs)}
        return found

    @functools.cached_property
    def names(self) -> Mapping[str, frozenset[str]]:
        """Sets of keys."""
        mine = self.table.get("names", {}).items()
        return {name: frozenset(several.split()) for name, several in mine}

    def listed(self, name: str) -> tuple[str, ...]:
        """Keys that stand by themselves under one name, in their order."""
        return tuple(self.table.get(name, "").split())

    @functools.cached_property
    def renamed(self) -> Mapping[str, str]:
        """The program's names of another table's keys."""
        mine = self.table.get("renamed", {}).items()
        return {theirs: ours for ours, several in mine for theirs in several.split()}

    def rename(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by the names of another table's keys, and those that are usual; not those that
        mean nothing there."""
        means = {n: v for n, v in values.items() if n not in self.names.get("dropped", ())}
        own = {self.renamed.get(name, name): value for name, value in means.items()}
        return {**self.table.get("usual", {}), **own}

    @functools.cached_property
    def left(self) -> Mapping[str, str]:
        """Keys that no plan says, by why."""
        found = dict(self.table.get("left", {}))
        for each in self.also:
            for why, several in each.left.items():
                found[why] = f"{found[why]} {several}" if why in found else several
        return found

    @property
    def left_names(self) -> set[str]:
        """The keys that no plan says."""
        several = " ".join(self.left.values()).split()
        return {each.partition("=")[0] for each in several}

    @functools.cached_property
    def harmless(self) -> tuple[str, ...]:
        """Patterns of keys that move neither memory nor time."""
        mine = self.table.get("harmless", {})
        within = (f"*{part}*" for part in mine.get("containing", "").split())
        others = (name for each in self.also for name in each.harmless)
        return (*mine.get("names", "").split(), *within, *others)

    @functools.cached_property
    def rows(self) -> Mapping[str, tuple[Row, ...]]:
        """Its lists of rows."""
        lists = ((name, said) for name, said in self.table.items() if isinstance(said, list))
        return {
            name: tuple(map(self._row, said))
            for name, said in lists
            if all(isinstance(each, Mapping) for each in said)
        }

    def _row(self, said: Mapping[str, Any]) -> Row:
        how = said.get("as")
        words = (Program(said["of"]) if "of" in said else self).words
        return Row(
            tuple(said.get("to", "").split()),
            tuple(said.get("keys", "").split()),
            None if how is None else READS.get(how) or Words(words[how], said.get("why", NO_WORD)),
            said.get("instead"),
            said.get("on"),
            said.get("off"),
            said.get("usual", False),
            said.get("is"),
            said.get("told"),
            said.get("else"),
            said.get("by", ""),
            said.get("write", said.get("keys", "").partition(" ")[0]),
            tuple(filter(None, said.get("within", "").split("."))),
            tuple(map(Condition.of, said.get("when", "").split())),
            said.get("leave", ""),
            said.get("refuse", ""),
        )

    def knows(self, values: Mapping[str, Any]) -> bool:
        """Whether a document is of the program: the conditions of `knows` hold."""
        conditions = map(Condition.of, self.listed("knows"))
        return all(each.holds(Keys(values), Draft()) for each in conditions)

    def document(self, values: Mapping[str, Any], draft: Draft) -> None:
        """What a document says, of a program whose table says all."""
        keys = Keys(values)
        self.begin(keys, draft)
        self.read(keys, draft)
        self.later(keys, draft)
        self.end(keys, draft)

    def begin(self, keys: Keys, draft: Draft) -> None:
        """The model, the machines and their GPUs, and the batch of all ranks, by the keys of
        `model`, `nodes`, `each` and `batch`."""
        model, nodes, each, batch = map(self.listed, ("model", "nodes", "each", "batch"))
        draft.model = draft.model or str(keys.one(*model) or "")
        draft.share_out(keys, *batch, usual=self.table.get("usual_batch", 0))
        machines = draft.count(keys, *nodes) or 1
        of_each = draft.count(keys, *each) or self.table.get("usual_each", 0)
        draft.nodes = max(draft.nodes, machines)
        draft.ranks = max(draft.ranks, machines * of_each)

    def lengths(self, keys: Keys, draft: Draft) -> int:
        """Tokens of a prompt and of the answer after it, by the keys of `prompt` and `answer`; both
        together are returned."""
        names = [keys.written(self.table[end]) for end in ("prompt", "answer")]
        prompt, answer = (
            draft.count(keys, self.table[end]) or self.table["usual_tokens"]
            for end in ("prompt", "answer")
        )
        draft.put("train.seq_len", prompt + answer, " + ".join(names), f"{prompt} + {answer}")
        draft.put("serve.prompt_len", prompt, names[0])
        draft.put("serve.output_len", answer, names[1])
        return prompt + answer

    def rollouts(self, keys: Keys, draft: Draft) -> int:
        """Rollouts of a GPU, by the keys of `prompts` and `answers`; the answers to a prompt are
        returned."""
        answers = draft.count(keys, self.table["answers"]) or 1
        prompts = draft.count(keys, self.table["prompts"]) or self.table.get("usual_prompts", 0)
        draft.rollouts(prompts, answers, keys.written(self.table["prompts"]))
        return answers

    def read(self, keys: Keys, draft: Draft, name: str = "read") -> None:
        """What the keys of a file say by the rows of one list, if the table has it."""
        for row in self.rows.get(name, ()):
            row.read(keys, draft)

    def later(self, keys: Keys, draft: Draft, name: str = "later") -> None:
        """Reads the rows of one list once the model and the GPUs are known, and all files read.
        What they ask of keys is asked now."""
        rows = [row for row in self.rows.get(name, ()) if row.asks(keys, draft)]

        def decide(draft: Draft, around: Around) -> None:
            for row in rows:
                row.read(keys, draft, around)

        draft.later.append(decide)

    def written(self, plan: Plan, name: str = "read") -> dict[str, Any]:
        """What the rows of one list say of a plan, by the key of each that is written; of rows that
        decide a field, the conditions of the first one that has its value."""
        found: dict[str, Any] = {}
        decided: set[tuple[str, ...]] = set()
        for row in self.rows[name]:
            value = get(plan, row.to[0]) if row.to else None
            if row.sets is not None and row.sets == value and row.to not in decided:
                decided.add(row.to)
                for each in row.when:
                    found |= each.written()
            elif row.to and row.is_read:
                found[row.write] = row.written(value)
        return found

    def end(self, keys: Keys, draft: Draft) -> None:
        """Tells of the keys that nothing was made of."""
        draft.end(keys, self.left, self.harmless)
