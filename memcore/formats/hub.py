"""Hub: the preset behind a model's name, as the Hugging Face hub and people's folders write it."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path, PurePosixPath

from memcore.formats.draft import Draft
from memcore.formats.programs import Program
from memcore.models import catalog
from memcore.words import engines
from memcore.words.stored import WEIGHT_DTYPES

BARE = "nf4-double"  # of a name that says 4bit and no more
BITS = "[-_]?bits?"
LLAMA_CPP = sorted(  # the longest first, which begin as others do
    (word for word, dtype in WEIGHT_DTYPES.items() if dtype.engine == engines.LLAMA_CPP),
    key=len,
    reverse=True,
)
HUB = Program("hub")
STORED = tuple(
    (pattern.replace("{BITS}", BITS).replace("{GGUF}", re.sub("[-_]", "[-_]", word)),
     said.replace("{GGUF}", word))
    for pattern, said in HUB.table["stored"]
    for word in (LLAMA_CPP if "{GGUF}" in pattern else ("",))
)  # fmt: skip
NEAR = tuple(map(tuple, HUB.table["near"]))
SPLIT = re.compile(r"-\d{5}-of-\d{5}$")  # of a file in parts: llama-gguf-split's names
OWNER = re.compile(r"[a-z][a-z-]*_(?=[a-z])")  # whose model it is, in names such as google_gemma-3
PUBLISHED = re.compile(r"huggingface\.co/([\w.-]+/([\w.-]+))")  # where a preset's shapes are from
NAME = re.compile(r"([\w-][\w.-]*)/([\w-][\w.-]*)")  # of a model on the hub, after its owner's
MOST_LETTERS = 500  # of a name and the folders before it
TEXT = "-text"  # ends the presets of language models without their towers
IMAGES = "-vision"  # ends those with them, of models whose other presets have none


def stored(name: str) -> str:
    """The word of serve.weight_dtype that a model's name says, or ''; of a type of llama.cpp's
    that no plan has, the nearest (see `unplanned`)."""
    name = name[-MOST_LETTERS:].lower()
    if of_mlx := _of_mlx(name):
        return of_mlx
    found = (word for pattern, word in (*STORED, *NEAR) if _says(pattern).search(name))
    return next(found, "")


def _of_mlx(said: str) -> str:
    """The word for what mlx-lm stored, where a name says that it did and in how many bits."""
    ours = said.startswith("mlx-community/") or _says("mlx").search(said)
    values = _says(rf"(?P<bits>[34568]){BITS}|q(?P<q>[34568])").search(said) if ours else None
    return f"mlx-{values['bits'] or values['q']}bit" if values else ""


def unplanned(name: str) -> str:
    """The type of llama.cpp's that a model's name says and that no plan has, or ''."""
    if any(_says(pattern).search(name.lower()) for pattern, _ in STORED):
        return ""
    found = (said for pattern, _ in NEAR if (said := _says(pattern).search(name.lower())))
    return next((said[0][1:].upper() for said in found), "")


def tell_type(draft: Draft, said: str, name: str) -> None:
    """Tells of a file whose type no plan has, or whose bytes differ by model."""
    if other := unplanned(name):
        draft.leave(other, f"a type of llama.cpp's that is not planned: {said} is the nearest")
    elif said and (dynamic := WEIGHT_DTYPES[said].dynamic):
        draft.leave(WEIGHT_DTYPES[said].label.removeprefix("GGUF "), dynamic.spread)


def _says(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"[-_.:](?:{pattern})(?=$|[-_.:])")


def preset(name: str) -> str:
    """The preset whose shapes a model of this name has, or ''."""
    if len(name) > MOST_LETTERS:
        return ""
    plain = PurePosixPath(name.strip().rstrip("/").replace("\\", "/")).name.lower()
    plain = SPLIT.sub("", plain.partition(":")[0].removesuffix(".gguf"))
    if plain in catalog.model_names():  # a word that tells no shapes apart elsewhere may do so here
        return plain
    found = _known().get(_parts(plain), "")
    return found or _known().get(_parts(OWNER.sub("", plain, count=1)), "")


def cached(name: str) -> str:
    """The config.json of a model, as text, where programs of Hugging Face keep what they brought
    from the hub to this machine; '' where it is not there. Nothing is fetched."""
    if (parts := NAME.fullmatch(name.strip())) is None:
        return ""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    folder = hub / f"models--{parts[1]}--{parts[2]}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="ascii").strip()
        return (folder / "snapshots" / revision / "config.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def published(name: str) -> str:
    """What the hub calls a preset's model, where that name leads back to the preset; else its
    own."""
    found = PUBLISHED.search(catalog.model_entry(name)["source"])
    plain = name.removesuffix(IMAGES)
    return found[1] if found and preset(found[1]) == plain else name


def _parts(name: str) -> tuple[str, ...]:
    """What of a name tells shapes apart."""
    for pattern, _ in (*STORED, *NEAR):
        name = _says(pattern).sub("", name)
    name = re.sub(r"[.](?=(?:i1|imat|imatrix)$)", "-", name)
    parts = re.split(r"[-_]", re.sub(r"^((?:meta-)?[a-z]+)(?=\d)", r"\1-", name))
    return tuple(part for part in parts if part and part not in HUB.names["tuned"])


@functools.cache
def _known() -> dict[tuple[str, ...], str]:
    """Presets by the parts of names: their own, those on the hub, those of the same shapes."""
    found: dict[tuple[str, ...], str] = {}
    for one in catalog.model_names():
        at = PUBLISHED.search(catalog.model_entry(one)["source"])
        # A language model taken out of a wrapper is not what the hub calls by that name.
        for each in (one, at[2] if at and not one.endswith((TEXT, IMAGES)) else one):
            found.setdefault(_parts(each.lower()), one)
    for other, name in catalog.same_shapes().items():
        found.setdefault(_parts(other), name)
    return found
