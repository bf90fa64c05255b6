"""Model: what a Hugging Face config.json says, checked and in one vocabulary.

A key that is absent takes the default of its `transformers` configuration class (5.23.0);
a key that is null is not absent. What each architecture reads is in memcore/families.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memcore.cache import counted_apart
from memcore.errors import shown
from memcore.models.quantization import Quantization
from memcore.models.traced.file import ModelFile
from memcore.shipped import PRESETS
from memcore.tape.dims import APART
from memcore.tape.structure import CAUSAL, Traits


@dataclass(frozen=True, slots=True)
class Image:
    """An image as patches: height and width of both in pixels, and its channels.

    extra    tokens beside those of the patches: that of the class
    merged   tokens of it that a decoder reads, where they are fewer than its patches
    around   tokens of text that a prompt has for it besides
    merge    patches that are side by side in one of these tokens
    unit     pixels that height and width are multiples of, where an image may have any size
    window   patches of a window's side, in layers that cut an image into windows; 0: none does
    most     tokens of the largest image that its processor lets through; 0: all are alike
    free     an image may have any size too, to which learned positions are interpolated
    """

    height: int
    width: int
    patch_height: int
    patch_width: int
    channels: int
    extra: int = 0
    merged: int = 0
    around: int = 0
    merge: int = 1
    unit: int = 0
    window: int = 0
    most: int = 0
    free: bool = False

    def of_side(self, side: int) -> Image:
        """The image that a square of so many pixels a side becomes: sides to the nearest multiple
        of `unit` (transformers' smart_resize), or as they are. One of a fixed size stays as it is.
        """
        if self.free:
            return replace(self, height=side, width=side)
        if not self.unit:
            return self
        pixels = max(1, round(side / self.unit)) * self.unit
        patches = (pixels // self.patch_height) * (pixels // self.patch_width)
        return replace(self, height=pixels, width=pixels, merged=patches // self.merge)

    @property
    def pairs(self) -> int:
        """Pairs of patches in the same window; the last window of a row may be narrower."""
        if not self.window:
            return self.patches**2
        down, across = (
            self._in_windows(n)
            for n in (self.height // self.patch_height, self.width // self.patch_width)
        )
        return down * across

    def _in_windows(self, patches: int) -> int:
        whole, rest = divmod(patches, self.window)
        return int(whole * self.window**2 + rest**2)

    @property
    def patches(self) -> int:
        return (self.height // self.patch_height) * (self.width // self.patch_width)

    @property
    def read(self) -> int:
        return self.merged or self.patches

    @property
    def prompted(self) -> int:
        """Tokens of a prompt that it takes."""
        return self.read + self.around

    @property
    def tokens(self) -> int:
        return self.patches + self.extra

    @property
    def text(self) -> str:
        return (
            f"{self.height:,} x {self.width:,} pixels in patches of {self.patch_height} x "
            f"{self.patch_width}"
        )

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "PATCH_H": self.patch_height,
            "PATCH_W": self.patch_width,
            "CHANNELS": self.channels,
            "PATCHES": self.patches,
            "MERGED": self.read,
            "IMAGE_TOKENS": self.tokens,
            "MERGE": self.merge,
            "PAIRS": self.pairs,
        }


NO_IMAGE = Image(0, 0, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What layers with a state keep of a whole sequence: for each of `heads` values of `head_dim`
    what they left in `state` numbers, and the last tokens that a short convolution sees.

    groups   heads of keys and queries (B and C), each for as many of values
    kernel   tokens that the convolution sees
    chunk    tokens that a scan takes at once
    dtype    of the state as config.json asks for it, or ''
    alone    a layer is a state, attention or an MLP, and nothing else
    projects    training's kernel makes the layer's last product too, with its weight as it is
    step_rank   width that the steps of all channels are made from (Mamba's; its heads are channels)
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    chunk: int
    dtype: str = ""
    alone: bool = False
    projects: bool = True
    step_rank: int = 0

    @property
    def package(self) -> str:
        """Whose kernels scan in training."""
        return "mamba_ssm" if self.projects or self.step_rank else "flash-linear-attention"

    @property
    def scans(self) -> bool:
        """Whether there is more than a short convolution."""
        return self.state > 0

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "SSM_HEADS": self.heads,
            "SSM_DIM": self.head_dim,
            "SSM_STATE": self.state,
            "SSM_GROUPS": self.groups,
            "KERNEL": self.kernel,
            "STEP_RANK": self.step_rank,
            "CHUNK_TOKENS": self.chunk,
        }


@dataclass(frozen=True, slots=True)
class Indexer:
    """What chooses the tokens that each token attends to: its heads, how wide one is, and how many
    tokens it chooses: one by one, all heads together; or in blocks of so many, each head its own
    for the queries of one key, and in a server its keys are in 16 bits."""

    heads: int
    dim: int
    top_k: int
    block: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        return {"INDEX_HEADS": self.heads, "INDEX_DIM": self.dim, "INDEX_TOP_K": self.top_k,
                "INDEX_BLOCK": self.block}  # fmt: skip


NO_INDEXER = Indexer(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entries:
    """Compressed keys and values that layers with a window see beyond it.

    fine       tokens of an entry in layers whose indexer chooses some (kinds.fine)
    coarse     the same in layers that see all of them (kinds.coarse)
    groups     of heads whose results are compressed apart
    rank       width that the results of a group are compressed to
    """

    fine: int
    coarse: int
    groups: int
    rank: int

    @property
    def sizes(self) -> dict[str, int]:
        return {"FINE_RATE": self.fine, "COARSE_RATE": self.coarse,
                "OUT_GROUPS": self.groups, "OUT_RANK": self.rank}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of attention: how many, and how wide; as Model's fields of the same names."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    value_dim: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD_DIM": self.head_dim,
            "ROTARY": self.rotary_dim,
            "V_DIM": self.value_dim or self.head_dim,
        }


@dataclass(frozen=True, slots=True)
class Draft:
    """What a model that guesses tokens for another reads of it, and what corrects its guesses.

    reads      width of the other's hidden states that it joins
    target     hidden size of the other
    guessed    tokens of its own head; 0: it has none, and takes the other's
    at_once    all guesses of a step are made in one forward, else each in its own
    block      tokens of a forward at most; 0: as many as are asked for
    whole      each of them is a guess; else the first is the last that is sure
    low, recurred, corrected, judged    widths of its correction (dims.CORRECTION, ...)
    """

    reads: int
    target: int
    guessed: int = 0
    at_once: bool = False
    block: int = 0
    whole: bool = False
    low: int = 0
    recurred: int = 0
    corrected: int = 0
    judged: int = 0

    @property
    def most(self) -> int:
        """Guesses of a step at most; 0: as many as are asked for."""
        return self.block - (not self.whole) if self.block else 0

    def tokens(self, guesses: int) -> int:
        """Of a sequence in one forward, to guess so many."""
        return guesses + (not self.whole) if self.at_once else 1

    @property
    def sizes(self) -> dict[str, int]:
        return {"HIDDEN_STATES": self.reads, "GUESSED": self.guessed, "CORRECTION": self.low,
                "RECURRED": self.recurred, "CORRECTED": self.corrected,
                "JUDGED": self.judged}  # fmt: skip


NAMED = 8  # keys that a note names


def _first(names: Iterable[str]) -> str:
    """The first few of some names, and how many more there are."""
    (*listed,) = map(str, names)
    more = f" and {len(listed) - NAMED:,} more" if len(listed) > NAMED else ""
    return ", ".join(shown(name)[1:-1] for name in listed[:NAMED]) + more


@dataclass(frozen=True, slots=True)
class Reading:
    """What a config.json left open, and what of it is not read.

    assumed   keys that decide sizes and that it has not, each with the default that is taken
    unread    its keys that mean nothing here
    """

    assumed: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The same in sentences."""
        found = []
        if self.assumed:
            listed = _first(f"{key} ({text})" for key, text in self.assumed)
            found.append(f"config.json does not have {listed}: transformers' defaults are taken.")
        if self.unread:
            found.append(f"Of config.json these keys are not read: {_first(self.unread)}.")
        return tuple(found)


@counted_apart
@dataclass(frozen=True, slots=True)
class Model:
    """A transformer: its sizes, its traits, and the kinds of its layers in order.

    layers             number of layers
    hidden_size, ...   widths and counts as in config.json
    label              what people call it; '' of a tower
    rotary_dim         dimensions of a head that are rotated
    rotary_tables      of each table of their cosines and sines: whose it is ('': every layer's),
                       and its rows; (): one of max_positions
    window             tokens that a sliding layer sees, or of a chunk; 0: it has none
    embedding_size     width of the token embedding, where it differs from the hidden size
    layer_embedding    width of a token's embedding for each layer; 0: it has none
    layer_rows         tokens that have one, where not all of the vocabulary do
    position_rows      rows of a learned position table
    table_rows         of it as it is stored, where images of another size are interpolated to
    kinds              one word per layer, if they differ; see FULL, SLIDING, FULL_NOPE, dense
    widths             of MLPs, of a model whose layers have several (kinds.wide)
    value_dim          width of one head's values, where it differs from head_dim
    heads_apart        heads of layers that have others than the model's (kinds.apart)
    query_rank         width that queries are compressed to; 0: they are not
    indexer            of latent attention to few tokens
    kv_rank            width that keys and values are compressed to; 0: they are not
    entries            of attention to compressed tokens
    streams            of the residual, which hyper-connections mix; 0: one, and nothing is mixed
    low_rank           width of a part of low rank beside attention; 0: there is none
    experts            routed experts of a layer; 0: it has none
    top_k              experts that each token is sent to
    expert_size        intermediate size of one expert
    expert_width       width of what routed experts read, where it is not the hidden size
    shared_size        intermediate size of the experts that every token passes, together
    type_rows          rows of a table of token types
    mels               bins of the spectrogram that an encoder reads
    buckets            of distances between tokens, that each have a bias for every head
    recurrence         of layers that keep a state of a sequence, not its tokens
    image              what an image model reads: its tokens are one sequence, of a fixed length
    tower              layers that run before these, on dimensions of their own: what looks at
                       images, or the encoder before a decoder
    stack              of a tower: what it is, one of dims.STACKS
    idle               of a tower: layers behind those whose result is read
    projection         width that a model of images and texts compares them in
    draft              of a model that guesses tokens for another
    left_out           parameters of the file's model that are known and not planned; two models
                       that differ in it are the same
    notes              what a reader should know of how its config.json was read; two models that
                       differ in it are the same
    head               what comes behind the layers: CAUSAL, MASKED, CLASSIFICATION, EMBEDDING,
                       REPLACED, LABELLED, SPANS or ALIKE
    classes            that a classifier tells apart; 1: it scores a sequence with a number
    quantization       how its config.json says that its weights are stored, if it does
    reading            how its config.json was read; two models that differ in it are the same
    traced             the model file that its tapes come from, if there is one
    traced_sizes       of its dimensions that are neither batch nor tokens: the name and the size
    """

    family: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    traits: Traits
    label: str = ""
    rotary_dim: int = 0
    rotary_tables: tuple[tuple[str, int], ...] = ()
    window: int = 0
    embedding_size: int = 0
    layer_embedding: int = 0
    layer_rows: int = 0
    position_rows: int = 0
    table_rows: int = 0
    kinds: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    value_dim: int = 0
    heads_apart: Heads | None = None
    query_rank: int = 0
    kv_rank: int = 0
    indexer: Indexer | None = None
    entries: Entries | None = None
    streams: int = 0
    low_rank: int = 0
    experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    expert_width: int = 0
    shared_size: int = 0
    type_rows: int = 0
    mels: int = 0
    buckets: int = 0
    recurrence: Recurrence | None = None
    image: Image | None = None
    tower: Model | None = None
    stack: str = ""
    idle: int = 0
    projection: int = 0
    draft: Draft | None = None
    left_out: int = field(default=0, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    head: str = CAUSAL
    classes: int = 0
    quantization: Quantization | None = None
    reading: Reading = field(default=Reading(), compare=False)
    traced: ModelFile | None = None
    traced_sizes: tuple[tuple[str, int], ...] = ()

    def seeing(self, side: int) -> Model:
        """This model with images of so many pixels a side, if it takes any size."""
        if not (self.tower and self.tower.image and self.tower.image.unit):
            return self
        image = self.tower.image.of_side(side)
        return replace(self, tower=replace(self.tower, image=image))

    def resized(self, side: int) -> Model:
        """This model of images with those of so many pixels a side, if it takes any size."""
        if not (self.image and self.image.free):
            return self
        image, rows = self.image.of_side(side), self.position_rows
        seen = rows + image.tokens - self.image.tokens
        traits = replace(self.traits, interpolated=seen != rows)
        return replace(self, image=image, max_positions=image.tokens, position_rows=seen,
                       table_rows=rows, traits=traits)  # fmt: skip

    def has_dim(self, name: str) -> bool:
        """Whether a dimension of inputs, 'batch' or 'tokens', is one of this model's: a traced one
        has those that its file names."""
        return self.traced is None or name in self.traced.dims

    @property
    def origin(self) -> str:
        """What its sizes are read from."""
        return f"{'trace' if self.traced else 'config.json'} of {self.label}"

    @property
    def unit(self) -> str:
        """What a step's work is counted in: a model without tokens reads samples, of which each
        counts as a sequence of one."""
        return "tokens" if self.has_dim("tokens") else "samples"

    @property
    def recommends(self) -> bool:
        """Whether it is a recommender, whose embedding tables ranks may share out."""
        return self.traced is not None and self.traced.recommends

    @property
    def stack_before(self) -> str:
        """What runs before these layers, one of dims.STACKS, or ''."""
        return self.tower.stack if self.tower else ""

    @property
    def encoder_decoder(self) -> bool:
        """Whether the layers read what an encoder made of another sequence."""
        return self.tower is not None and self.tower.image is None

    @property
    def heard(self) -> int:
        """Positions that an encoder of a spectrogram always reads; 0 where it reads text."""
        return self.tower.position_rows if self.tower and self.tower.mels else 0

    @property
    def learned_positions(self) -> bool:
        return self.position_rows > 0

    @property
    def sizes(self) -> dict[str, int]:
        """The model's part of the flat mapping that every formula reads."""
        return {
            **{f"wide{i}.F": n for i, n in enumerate(self.widths)},
            "D": self.hidden_size,
            "F": self.intermediate_size,
            **self._heads.sizes,
            **_in_stack(APART, self.heads_apart.sizes if self.heads_apart else {}),
            "WINDOW": self.window,
            "VOCAB": self.vocab_size,
            "EMBED": self.embedding_size or self.hidden_size,
            "LAYERS": self.layers,
            "PER_LAYER": self.layer_embedding,
            "PER_LAYERS": self.layers * self.layer_embedding,
            "PER_LAYER_ROWS": self.layer_rows or self.vocab_size,
            "POSITIONS": self.position_rows,
            "TABLE": self.table_rows or self.position_rows,
            "CONTEXT": self.max_positions,
            "Q_RANK": self.query_rank,
            "KV_RANK": self.kv_rank,
            **(self.indexer or NO_INDEXER).sizes,
            **(self.entries.sizes if self.entries else {}),
            **({"STREAMS": self.streams} if self.streams else {}),
            **({"LOW_RANK": self.low_rank} if self.low_rank else {}),
            "EXPERTS": self.experts,
            "TOP_K": self.top_k,
            "EXPERT_F": self.expert_size,
            "EXPERT_D": self.expert_width or self.hidden_size,
            "SHARED_F": self.shared_size,
            "TYPES": self.type_rows,
            "MELS": self.mels,
            "BUCKETS": self.buckets,
            "CLASSES": self.classes,
            "PROJECTED": self.projection,
            **(self.recurrence.sizes if self.recurrence else {}),
            **(self.image or NO_IMAGE).sizes,
            **(self.draft.sizes if self.draft else {}),
            **dict(self.traced_sizes),
            **(_in_stack(self.tower.stack, self.tower.sizes) if self.tower else {}),
        }

    @property
    def _heads(self) -> Heads:
        return Heads(self.heads, self.kv_heads, self.head_dim, self.rotary_dim, self.value_dim)


def _in_stack(stack: str, sizes: Mapping[str, int]) -> dict[str, int]:
    return {f"{stack}.{name}": n for name, n in sizes.items()}


# What Python writes into the config.json of every model with Mamba-2 layers as [0.0, Infinity],
# which JSON has not, and transformers 5 as the second form.
UNLIMITED = "time_step_limit"
INFINITY = {"__float__": "Infinity"}


def in_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with its UNLIMITED, its own or that of a config inside it, in JSON's words."""
    return {key: _spelled(key, value) for key, value in config.items()}


def _spelled(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) if k == UNLIMITED else v for k, v in value.items()}
    return _finite(value) if key == UNLIMITED else value


def _finite(limits: Any) -> Any:
    if not isinstance(limits, (list, tuple)):
        return limits
    return [INFINITY if x == math.inf else x for x in limits]


HARMLESS = frozenset(  # keys that decide no tensor's size and no operation
    tomllib.loads(PRESETS.joinpath("families", "harmless.toml").read_text(encoding="utf-8"))[
        "keys"
    ].split()
)

WEIGHTLESS = (
    "max_position_embeddings",
    "n_positions",
    "num_channels",
    "no_rope_layer_interval",
    "sliding_window_pattern",
)  # counts whose usual value makes no weight larger


class Watched(dict[str, Any]):
    """A config that notes which keys it was asked for, there or not."""

    def __init__(self, config: Mapping[str, Any], asked: set[str]):
        super().__init__(config)
        self.asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def peek(self, key: str) -> Any:
        return super().get(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def text_of(value: Any) -> str:
    """A default for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) else str(value)
