"""Draft: what files say of a plan, gathered key by key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, shown
from memcore.formats.texts import UNSET
from memcore.hardware.accelerator import Accelerator
from memcore.models.model import Model
from memcore.plan.plan import limits_of
from memcore.words.training import ALL_LINEAR

if TYPE_CHECKING:
    from memcore.formats.failures import Failure

AUTO = "auto"  # what DeepSpeed and transformers fill in from each other
MOST_KEYS = 1_000  # of a file that no program knows, which are looked at one by one
NOTHING = (None, "", AUTO, "none", "None", "null")
# What vLLM and SGLang take a letter after a number for (human_readable_int).
SCALES = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


MICRO_BATCH = "train.micro_batch"


class UnsaidError(ValueError):
    """A value that no field of a plan says; the text is why."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is known once all files are read: the model, the GPU, and how many, in all and in a
    machine."""

    model: Model
    gpu: Accelerator
    gpus: int
    gpus_per_node: int


@dataclass(frozen=True, slots=True)
class Said:
    """A key of a file, and the field of the plan that it became."""

    key: str
    value: str
    field: str


def whole(value: Any) -> int:
    """A whole number, as files write it: 8, '8', 5e8, '32k', '32K', '2_048'. Raises UnsaidError."""
    if isinstance(value, bool):
        raise UnsaidError("is not a number")
    text = str(value).strip().replace("_", "").replace(",", "")
    if text.startswith(UNSET):
        raise UnsaidError("stands in a variable that the text does not set")
    scale = SCALES.get(text[-1:], 0)
    try:
        number = float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        raise UnsaidError("is not a number") from None
    if number != number // 1 or abs(number) > 1e15:
        raise UnsaidError("is not a whole number")
    return int(number)


def positive(value: Any) -> int:
    """A whole number of at least one. Raises UnsaidError."""
    number = whole(value)
    if number < 1:
        raise UnsaidError("leaves it to the program")
    return number


def number(value: Any) -> float:
    """A number of at least 0. Raises UnsaidError."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise UnsaidError("is not a number") from None
    if not 0 <= found < math.inf:
        raise UnsaidError("is not a number from 0 on")
    return found


def share(value: Any) -> float:
    """A number from 0 to 1. Raises UnsaidError."""
    if number(value) > 1:
        raise UnsaidError("is not a share from 0 to 1")
    return number(value)


def flag(value: Any) -> bool:
    """On or off, as files write it. Raises UnsaidError."""
    if isinstance(value, (bool, int)):
        return bool(value)
    text = str(value).strip().lower()
    if text in ("true", "yes", "on", "1", "y"):
        return True
    if text in ("false", "no", "off", "0", "n", "none", "null", ""):
        return False
    if text.isdecimal():
        return bool(text.strip("0"))
    raise UnsaidError("is neither on nor off")


@dataclass(frozen=True, slots=True)
class Words:
    """Reads one word for another. Raises UnsaidError, with `why`."""

    table: Mapping[str, str]
    why: str

    def __call__(self, value: Any) -> str:
        text = str(value).strip().lower()
        if text not in self.table:
            raise UnsaidError(self.why)
        return self.table[text]


def word(table: Mapping[str, str], why: str = "has no word in a plan") -> Words:
    """What reads one word for another, by a table."""
    return Words(table, why)


def names(value: Any) -> list[str]:
    """A list of names, as YAML, JSON or commas write it."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value.replace("'", '"'))
        except (ValueError, RecursionError):
            value = value.strip("[] ")
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    return [str(v).strip("'\" ") for v in value] if isinstance(value, (list, tuple)) else []


def mixed(half: str, sharded: bool) -> str:
    """The word of train.precision for arithmetic in 'bf16' or 'fp16' beside fp32 weights: what
    shards casts its copies, and without it torch.autocast does."""
    return "bf16-autocast" if half == "bf16" and not sharded else f"{half}-mixed"


def underscored(key: str) -> str:
    """A command's option whose words '_' parts, as Python's own do."""
    return f"--{key}"


def hyphened(key: str) -> str:
    """A command's option whose words '-' parts."""
    return underscored(key.replace("_", "-"))


def sections(
    values: Mapping[str, Any],
    depth: int,
    enters: Callable[[str, Mapping[str, Any]], bool] = lambda name, section: True,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A document and the sections in it that it `enters`, each with its path, a dot behind each
    name; those that lie less deep come first."""
    level = [("", values)]
    for _ in range(depth):
        yield from level
        level = [
            (f"{path}{name}.", value)
            for path, section in level
            for name, value in section.items()
            if isinstance(value, Mapping) and enters(str(name), value)
        ]


class Keys:
    """The keys of one file, or of one section of it. What is taken was read; the rest is told.

    form: how the file writes a key; inside: the sections that were opened, by their keys; neither:
    those that were asked whether they are on and say neither; several: those that say several
    values, of which one was read; told: whether the rest was told.
    """

    def __init__(self, values: Mapping[str, Any], form: Callable[[str], str] = str):
        self.values = dict(values)
        self.form = form
        self.taken: set[str] = set()
        self.inside: dict[str, Keys] = {}
        self.neither: dict[str, Any] = {}
        self.several: dict[str, list[Any]] = {}
        self.told = False

    def take(self, *keys: str, words: Container[str] = ()) -> Any:
        """The value of the first of these keys that says something; None where none does. All count
        as read. `words`: those that the key may have, of which 'none' may be one and says something
        then."""
        self.taken.update(keys)
        found = (self.values.get(key) for key in keys)
        return next((v for v in found if _says(v, words)), None)

    def one(self, *keys: str, words: Container[str] = ()) -> Any:
        """The same of what has one value: of several words after an option the first is its."""
        value = self.take(*keys, words=words)
        if not (isinstance(value, list) and value):
            return value
        self.several |= dict.fromkeys((k for k in keys if self.values.get(k) is value), value)
        return value[0]

    def on(self, *keys: str) -> bool:
        """Whether one of these keys is on; what is neither on nor off is a name of something, and
        on."""
        value = self.one(*keys)
        try:
            return value is not None and flag(value)
        except UnsaidError:
            self.neither.setdefault(next(key for key in keys if key in self.values), value)
            return True

    def named(self, *keys: str) -> str:
        """The first of these keys that the file has."""
        return self.written(next((key for key in keys if key in self.values), (*keys, "")[0]))

    def written(self, key: str) -> str:
        """A key as the file writes it."""
        return self.form(key)

    def inner(self, key: str) -> Keys:
        """The keys inside one key; none where it is no object."""
        self.taken.add(key)
        value = self.values.get(key)
        if key not in self.inside:
            form = f"{self.written(key)}.{{}}".format
            self.inside[key] = Keys(value if isinstance(value, Mapping) else {}, form)
        return self.inside[key]

    def without(self, start: str) -> Keys:
        """The same without what their names begin with; they are told in place of these."""
        self.told = True
        values = {key.removeprefix(start): value for key, value in self.values.items()}
        return Keys(values, f"{start}{{}}".format)

    def rest(self) -> list[str]:
        """Keys that say something and were not taken."""
        return [
            key
            for key, value in self.values.items()
            if key not in self.taken
            and value is not False
            and value not in ("False", "false", *NOTHING)
        ]


@dataclass
class Draft:
    """A plan as far as files say it.

    fields    by dotted path; said: the keys they are from
    model     what the files call the model, and its config.json where they hold one
    towers    what reads images before the model is loaded with it, as servers do
    of_text   it is not, though the file's model may have it
    frozen_tower  the key that keeps it from training, of a program that loads it to train; '' of
              any other
    quantized  what an hf_quant_config.json says beside the model's config.json
    head      what stands in place of the vocabulary in the names of classes, as
              'ForSequenceClassification', and of how many classes; '' where nobody says it
    guesser   what the files call the draft, and its config.json (drafted) where they hold one
    served    what it is called by those who ask it
    left      keys that move memory or time and that no plan says, with why; differs: those whose
              plan is of something else than the program does, which come first
    unread    all other keys: nothing is known of them
    keys      how many keys were looked at, in all files
    unsure    why the file that was read last may be of another program, or ''
    wants     other files that these name, by name what they are
    ranks     processes that a launcher starts, in all; nodes: on so many machines; 0: nobody says
    noted     what a comment says of GPUs, which is told where nothing else says them
    batch     sequences of a step over all ranks; 0: nobody says
    each      sequences of one example: two of a pair
    defaults  by field what a program does where no file says it, and the key that would
    later     what a program decides by itself once it knows what is around it
    failures  what programs said when memory ran out
    places    what moves layers to the CPU where they do not fit, of formats/placement.py
    """

    fields: dict[str, Any] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    model: str = ""
    served: str = ""
    config: Mapping[str, Any] | None = None
    quantized: Mapping[str, Any] | None = None
    towers: bool = False
    frozen_tower: str = ""
    of_text: bool = False
    head: tuple[str, int] = ("", 0)
    guesser: str = ""
    drafted: Mapping[str, Any] | None = None
    left: list[Issue] = field(default_factory=list)
    differs: list[Issue] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    keys: int = 0
    unsure: str = ""
    wants: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    noted: str = ""
    nodes: int = 0
    batch: int = 0
    each: int = 1
    defaults: dict[str, tuple[Any, str]] = field(default_factory=dict)
    later: list[Callable[[Draft, Around], None]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    places: str = ""

    def tell(self, path: str, key: str, text: str) -> None:
        """What a program does by itself to a field, once it knows what is around it."""
        self.said = [said for said in self.said if said.field != path]
        self.said.append(Said(key, text, path))

    def put(self, path: str, value: Any, key: str, given: Any = None) -> None:
        """What a key says of a field; the first file that says it counts."""
        if path not in self.fields:
            self.fields[path] = value
            text = value if given is None else given
            self.said.append(Said(key, shown(text)[1:-1], path))

    def forget(self, path: str) -> Any:
        """Takes back what was said of a field, and returns it."""
        self.said = [said for said in self.said if said.field != path]
        return self.fields.pop(path, None)

    def otherwise(self, path: str, value: Any, key: str) -> None:
        """What a program does where no file says a key; the first program that is asked counts."""
        self.defaults.setdefault(path, (value, key))

    def keeps_checkpoints(self, usual: int, key: str) -> None:
        """How many saved checkpoints a program keeps that was told when to save and not how many:
        `usual`; 0: all."""
        if "run.save_steps" in self.fields:
            self.otherwise("run.save_total_limit", usual, key)

    def settle(self, around: Around) -> None:
        """What the programs do where no file said it."""
        for decide in self.later:
            decide(self, around)
        if self.batch:  # what follows from the batch of all ranks is no program's default
            steps = (MICRO_BATCH, "train.grad_accumulation")
            for path, other in (steps, steps[::-1]):
                if other in self.fields and path not in self.fields:
                    self.defaults.pop(path, None)
        for path, (value, key) in self.defaults.items():
            self.put(path, value, key, f"not said: {value}")
        if self.each > 1:
            self.batch *= self.each
            pairs = self.fields.get(MICRO_BATCH, 1)
            self.fields[MICRO_BATCH] = pairs * self.each
            self.said = [
                replace(said, value=f"{pairs} pairs") if said.field == MICRO_BATCH else said
                for said in self.said
            ]

    def rollouts(self, prompts: int, answers: int, key: str) -> None:
        """Rollouts of a GPU, once it is known how many there are: so many answers to each of so
        many prompts, shared out; nothing where there are no prompts."""

        def shared_out(draft: Draft, around: Around) -> None:
            mine = max(1, prompts * answers // around.gpus)
            draft.put("together.rollouts", mine, key, f"{prompts} x {answers}")

        if prompts:
            self.later.append(shared_out)

    def share_out(self, keys: Keys, *named: str, usual: int = 0) -> None:
        """The sequences of a step over all ranks, as the first of some keys says; the first file
        that says it counts."""
        said = self.count(keys, *named)
        self.batch = self.batch or said or usual

    def leave(self, key: str, why: str) -> None:
        """A key that moves memory or time, and that no plan says; once."""
        if (issue := Issue(key, why)) not in self.left:
            self.left.append(issue)

    def differ(self, key: str, why: str) -> None:
        """A key that places the model elsewhere than the plan does."""
        self.differs.append(Issue(key, why))

    def chosen(self, one: str, what: str, known: Iterable[str]) -> None:
        """That of several in a file one is read."""
        others = [name for name in known if name != one]
        if others:
            listed = ", ".join(others[:6]) + (f" and {len(others) - 6} more" if others[6:] else "")
            self.leave(one, f"is the {what} that is read; the file has others: {listed}")

    def adapt(self, targets: Sequence[str], key: str) -> None:
        """What adapters are put on: every linear layer where nothing else is named."""
        if list(targets) in ([], ["all"], [ALL_LINEAR]):
            self.put("train.lora_targets", ALL_LINEAR, key)
        else:
            self.put("train.lora_modules", ",".join(targets), key)

    def end(self, keys: Keys, left: Mapping[str, str], harmless: Iterable[str] = ()) -> None:
        """The keys of a file that nothing was made of: those of `left`, by why they are, and the
        others. Names there have blanks between, and '*' in one stands for anything; its keys are
        told together, but for one that says what stands after '=' in its name (words with '|'
        between), which is what the program does anyway. What is called as one of `harmless`, or
        turns it off, moves neither memory nor time, and is not told. Of more than MOST_KEYS the
        others are told as unread: no program has so many."""
        why, usual = dict[str, str](), dict[str, list[str]]()
        for reason, names in left.items():
            for each in names.split():
                pattern, _, own = each.partition("=")
                why[pattern], usual[pattern] = reason, own.lower().split("|") if own else []
        told: dict[str, list[str]] = {}
        self.keys += len(keys.values)
        keys.told = True
        for key, value in keys.neither.items():
            if isinstance(value, str) and not value.startswith(UNSET):
                unclear = "is neither on nor off: on is planned"
                self.leave(keys.written(key), f"{shown(value)} {unclear}")
        for key, (first, *more) in keys.several.items():
            if more:
                others = ", ".join(shown(each) for each in more[:4])
                self.leave(keys.written(key), f"{shown(first)} is read, and not {others}")
        rest = keys.rest()
        self.unread += map(keys.written, rest[MOST_KEYS:])
        for key in rest[:MOST_KEYS]:
            name = next((name for name in why if _is(key, name)), "")
            if not name:
                either = (key, key.removeprefix("no_"))
                if not any(_is(one, each) for each in harmless for one in either):
                    self.unread.append(keys.written(key))
            elif str(keys.one(key)).lower() not in usual[name]:
                told.setdefault(name, []).append(keys.written(key))
        for name, same in told.items():
            self.leave(", ".join(same), why[name])
        for section in keys.inside.values():
            if not section.told:
                self.end(section, left, harmless)

    def read(self, keys: Keys, path: str, how: Callable[[Any], Any], *named: str) -> Any:
        """What the first of some keys says of a field, if anything; what it says is returned."""
        value = keys.one(*named, words=how.table if isinstance(how, Words) else ())
        if value is None:
            return None
        key = keys.named(*named)
        try:
            meant = how(value)
        except UnsaidError as e:
            self.leave(key, f"{shown(value)} {e}")
            return None
        least, most = limits_of(path)
        if isinstance(meant, (int, float)) and not least <= meant <= most:
            self.leave(key, f"{meant:,} is not from {least:,} to {most:,}, which a plan takes")
            return None
        self.put(path, meant, key, value)
        return meant

    def count(self, keys: Keys, *named: str) -> int:
        """A number of something that is no field by itself; 0 where nothing says it."""
        value = keys.one(*named)
        try:
            return positive(value) if value is not None else 0
        except UnsaidError as e:
            if isinstance(value, str) and not re.fullmatch(r"[-+]?[\d.]+", value.strip()):
                self.leave(keys.named(*named), f"{shown(value)} {e}")
            return 0


def _says(value: Any, words: Container[str]) -> bool:
    """Whether a value says something, where these words do."""
    if value is False or value == 0 or value not in NOTHING:
        return True
    return isinstance(value, str) and value.lower() in words


def _is(key: str, pattern: str) -> bool:
    """Whether a key is one of a pattern's, in which '*' stands for anything."""
    return fnmatchcase(key, pattern) if "*" in pattern else key == pattern
