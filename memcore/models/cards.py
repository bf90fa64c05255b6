"""GPUs by name: the preset that people, programs, clouds and schedulers mean by what they call it.

One reader of names for everybody: the command line, files of other programs, and links.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from memcore.errors import shown
from memcore.hardware.accelerator import Accelerator
from memcore.models import catalog

FORMS = frozenset(("sxm", "pcie", "nvl"))
SIZE = re.compile(r"\d+gb")


def preset(name: str) -> str:
    """The accelerator that a name means, or ''. A name means a card if it says all that tells the
    card from its maker's others, and no word that the card's own description lacks: a 4070 is no
    4070 Ti, and a 4080 laptop no 4080. Of several memories that it leaves open it is the smallest,
    since what fits there fits the others too; of forms the SXM one. An instance of a cloud means
    the card that it has."""
    if instance := catalog.instances().get(name.lower()):
        return str(instance["gpu"])
    fitting = [
        (card.name == name, len(card.chip), -card.memory, "sxm" in card.forms, card.name)
        for card in _meant(name)
    ]
    return max(fitting)[-1] if fitting else ""


def _meant(name: str) -> list[Card]:
    """The cards that a name may mean."""
    words = _words(name)
    sizes = {word for word in words if SIZE.fullmatch(word)}
    forms = words & FORMS
    rest = words - sizes - FORMS
    return [
        card
        for card in _cards()
        if card.chip - BRANDS <= rest <= card.described and forms <= card.forms
        if not sizes or sizes == {f"{card.memory}gb"}
    ]


def taken(name: str, found: str) -> str:
    """That a name is taken for a preset, and which other memories the same card has; how many an
    instance has."""
    if instance := catalog.instances().get(name.lower()):
        return f"{shown(name)} is taken for {found}, of which it has {instance['gpus']}"
    cards = _meant(name)
    chip = next((card.chip for card in cards if card.name == found), frozenset())
    sizes = sorted({card.memory for card in cards if card.chip == chip})
    others = [f"{size}" for size in sizes if f"-{size}gb" not in found]
    more = f", the one with the least memory: others have {', '.join(others)} GB" if others else ""
    return f"{shown(name)} is taken for {found}{more}"


def near(name: str, most: int = 5) -> list[str]:
    """The presets whose names are most like one that means none: those that share the rarest
    words with it, and of these the most alike letter by letter."""
    words, cards = _words(name), _cards()
    count = Counter(word for card in cards for word in card.chip | card.forms)

    def likeness(card: Card) -> tuple[float, float]:
        shared = words & (card.chip | card.forms | {f"{card.memory}gb"})
        alike = SequenceMatcher(None, name.lower()[:80], card.name).ratio()
        return sum(1 / count.get(word, len(cards)) for word in shared), alike

    return [card.name for card in sorted(cards, key=likeness, reverse=True)[:most]]


OF_ONES_OWN = (
    "or describe a card of your own, in a file for --gpu or as cluster.gpu in the plan's JSON, by "
    "its label, memory_bytes and memory_bandwidth at least"
)


def no_preset(name: str) -> str:
    """What to tell of a name that means no preset: those near it, and how to describe another."""
    return f"no GPU preset {shown(name)}; near it are {', '.join(near(name))}; {OF_ONES_OWN}"


# Words of a name that tell no card from another: makers, product lines, and what stands around.
LINES = "rtx gtx rx geforce radeon arc tpu jetson dgx gb10"
BESIDE = (
    "nvidia amd intel apple google aws huawei tesla quadro instinct gpu gpus graphics card tensor "
    "core accelerator vram generation gen edition workstation desktop chip memory unified mega soc "
    "hbm hbm2 hbm2e hbm3 hbm3e gddr5 gddr5x gddr6 gddr6x gddr7 500w"
)
BRANDS, AROUND = frozenset(LINES.split()), frozenset(BESIDE.split())
# Other names that makers, clouds and programs give to a card of the presets.
CALLED = {
    r"mac ?book (?:pro|air)|mac (?:mini|studio|pro)|imac": " ",
    r"\bgb10\b|\bproject digits\b": " dgx spark ",
    r"\bryzen ai max ?\+?(?: pro)? ?395\b|\bai max\+? ?395\b": " strix halo ",
    r"\bgh200[- ]480gb": " gh200 ",  # the host's memory, which NVIDIA's driver names
    r"\bv5 ?lite(?: ?pod(?:slice)?)?\b|\bv5litepod\b": " v5e ",
    r"\bv5p slice\b": " v5p ",
    r"\btrn([123])\b": r" trainium-\1 ",
    r"\btrainium\b(?!-)": " trainium-1 ",
    r"\binf2\b": " inferentia-2 ",
    r"\b(?:mobile|notebook)\b": " laptop ",
    r"\b(\d{3,4}) ?ti ?s(?:uper)?\b": r" \1 ti super ",
    r"\b(\d{3,4})d\b": r" \1 d ",
    r"\b(\d{3,4})s\b": r" \1 super ",
    r"\b(\d{3,4})m\b": r" \1 laptop ",
    r"\b(\d{3,4})(ti|super|xtx|xt|gre)\b": r" \1 \2 ",
    r"\b(m[1-9])(pro|max|ultra)\b": r" \1 \2 ",
    r"\brtx ?(?=[a-z]?\d{4})|\bgtx ?(?=\d{3,4})": " rtx ",
}


def _words(name: str) -> frozenset[str]:
    """The words of a name that tell cards apart: of NVIDIA-A100-SXM4-80GB a100, sxm and 80gb."""
    plain = " ".join(re.split(r"[^a-z0-9+]+", name.lower()[:200]))
    plain = re.sub(r"\b(geforce|radeon|quadro|tesla|instinct) ?(?=[a-z]*\d)", r"\1 ", plain)
    plain = re.sub(r"\b(rtx|gtx|rx)(?=[a-z]?\d)", r"\1 ", plain)
    plain = re.sub(r"\b(mi|gaudi|trainium|inferentia) ?(?=\d)", r"\1-", plain)
    plain = re.sub(r"\btpu(?=v?\d)", "tpu ", plain)
    for pattern, means in CALLED.items():
        plain = re.sub(pattern, means, plain)
    plain = re.sub(r"\b(sxm|pcie)[\d.]*\b", r"\1", plain)
    plain = re.sub(r"\b(\d{1,3}) ?gi?b?\b", r"\1gb", plain)
    return frozenset(re.findall(r"[a-z0-9-]+", plain))


@dataclass(frozen=True, slots=True)
class Card:
    """A preset as names tell it from others.

    chip       words of its name that are no size and no form
    described  all words that may stand in a name of it
    memory     in GB, as sold
    """

    name: str
    chip: frozenset[str]
    forms: frozenset[str]
    described: frozenset[str]
    memory: int


@functools.cache
def _cards() -> tuple[Card, ...]:
    cards = []
    for name in catalog.gpu_names():
        gpu, words = catalog.accelerator(name), _words(name)
        size = next(word for word in words if SIZE.fullmatch(word))
        chip = words - {size} - FORMS - {"500w"}
        label = _words(gpu.label) | _words(gpu.architecture)
        brands = {"rtx"} if gpu.vendor == "nvidia" and gpu.node.startswith("workstation") else set()
        described = chip | label | AROUND | brands
        cards.append(Card(name, chip, (words | label) & FORMS, described, int(size[:-2])))
    return tuple(cards)


# Words of a label that say whose a card is; of any other it is NVIDIA's.
MAKERS = {
    "amd": "amd",
    "radeon": "amd",
    "rx": "amd",
    "instinct": "amd",
    "intel": "intel",
    "arc": "intel",
    "tpu": "google",
}
NEEDED = ("label", "memory_bytes", "memory_bandwidth")
OPTIONAL = {name for name, f in Accelerator.model_fields.items() if not f.is_required()}


def completed(given: dict[str, Any]) -> dict[str, Any]:
    """A card of one's own that is described by its memory and bandwidth alone, with the rest:
    of the preset whose memory is about as fast, of its architecture where that is named, else of
    its maker's, whose rates go with the bandwidth. What is assumed stands in its note."""
    numbers: list[Any] = [given.get(name) for name in ("memory_bytes", "memory_bandwidth")]
    if not {*NEEDED} <= given.keys() or given.keys() >= Accelerator.model_fields.keys() - OPTIONAL:
        return given
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and n > 0 for n in numbers):
        return given
    memory, bandwidth = numbers
    presets = map(catalog.accelerator, catalog.gpu_names())
    every = [gpu for gpu in presets if not gpu.caveat]
    same = [gpu for gpu in every if gpu.architecture == given.get("architecture")]
    words = _words(str(given["label"]))
    maker = given.get("vendor") or next((MAKERS[w] for w in MAKERS if w in words), "nvidia")
    loose = [gpu for gpu in every if gpu.vendor == maker and not gpu.unified_memory] or every
    alike = min(same or loose, key=lambda gpu: abs(math.log(gpu.memory_bandwidth / bandwidth)))
    scale = bandwidth / alike.memory_bandwidth
    rest = alike.model_dump(exclude={"note", "sources", "revision", "status"})
    rest |= {
        "usable_bytes": int(memory * alike.usable_bytes / alike.memory_bytes),
        "usable_certainty": "assumed",
        "flops": {dtype: rate * scale for dtype, rate in alike.flops.items()},
        "sms": max(1, round(alike.sms * scale)),
        "status": "described",
    }
    assumed = ", ".join(sorted(rest.keys() - given.keys() - {"status", "usable_certainty"}))
    rest["note"] = f"Assumed as of {alike.label}, its rates and units by the bandwidth: {assumed}."
    return rest | given
