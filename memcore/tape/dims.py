"""Named dimensions: the words that every shape is written in.

A shape is a tuple of dimensions, cuts and whole numbers: `(B, S / CP, F / TP)`. A cut divides one
dimension over one axis and rounds up, since padding occupies memory. Cutting KV heads over more
ranks than there are heads therefore replicates them by itself: ceil(8/16) = 1.

Sizes come from one flat mapping {name: int or array}; formulas use + - * // % and the helpers
below and never branch on a size, so the same rows work for one plan and for a million at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from memcore.cache import cached, counted_nowhere, interned

Number = Any  # int, float, or a NumPy array of them: whatever the sizes mapping holds


@counted_nowhere
@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """A way of cutting work over GPUs: its size is the number of ranks; `meaning`: which ranks."""

    name: str
    meaning: str


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Divisible:
    name: str

    def __truediv__(self, axis: Axis) -> Cut:
        return _cut(self, axis)

    def __str__(self) -> str:
        return self.name


@counted_nowhere
@dataclass(frozen=True, slots=True, eq=False)
class Dim(_Divisible):
    """One named dimension; `meaning`: what it counts. A stack's own dimensions mean the same as the
    main one's and have none: they are `of` one of these, in a `stack`."""

    meaning: str = ""
    stack: str = ""
    of: Dim | None = None

    def __post_init__(self) -> None:
        if self.meaning:
            _MEANINGS[self.name] = self.meaning


_MEANINGS: dict[str, str] = {}  # by the name of a dimension, wherever it is declared


def meaning_of(name: str) -> str:
    """What a dimension or an axis is, in words; '' of what is neither."""
    axis = AXES.get(name)
    return _MEANINGS.get(name) or (axis.meaning if axis else "")


@counted_nowhere
@dataclass(frozen=True, slots=True, eq=False)
class Cut(_Divisible):
    """A dimension divided over an axis, rounded up; a cut can be cut again."""

    dim: _Divisible
    axis: Axis


@interned
def _cut(dim: _Divisible, axis: Axis) -> Cut:
    return Cut(f"{dim.name}/{axis.name}", dim, axis)


@counted_nowhere
@dataclass(frozen=True, slots=True, eq=False)
class Share(_Divisible):
    """A count that follows from how many elements a whole shape has."""

    shape: Shape
    rule: Callable[[Number], Number]


@interned
def share(what: str, shape: Shape, rule: Callable[[Number], Number]) -> Share:
    """`rule` of the elements of `shape`, as one factor; `what` says what it counts."""
    return Share(f"{what} of {_text(shape)}", shape, rule)


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a scalar"


@counted_nowhere
@dataclass(frozen=True, slots=True, eq=False)
class Flat(_Divisible):
    """The elements of a whole shape, laid out flat and divided over an axis, rounded up."""

    shape: Shape
    axis: Axis


@interned
def flat(shape: Shape, axis: Axis) -> Flat:
    """What one rank of `axis` has of a tensor of this shape."""
    return Flat(f"1/{axis.name} of {_text(shape)}", shape, axis)


@counted_nowhere
@dataclass(frozen=True, slots=True, eq=False)
class Reckoned(_Divisible):
    """A size that is an expression of a traced model's own dimensions (models.traced)."""

    names: frozenset[str]
    rule: Callable[[Mapping[str, Number]], Number]

    def value(self, sizes: Mapping[str, Number]) -> Number:
        return self.rule({name: sizes[TRACED.get(name, name)] for name in self.names})


@interned
def reckoned(text: str, names: frozenset[str], rule: Callable[..., Number]) -> Reckoned:
    """The factor that an expression's text says; `rule` of its dimensions' values."""
    return Reckoned(f"({text})", names, rule)


TRACED = {"batch": "B", "tokens": "S"}  # dimensions of traced models that every plan has

Factor = Dim | Cut | Share | Flat | Reckoned | int
Shape = tuple[Factor, ...]

TP = Axis("TP", "ranks of tensor parallelism: a weight is cut along one of its dimensions")
CP = Axis("CP", "ranks of context parallelism: the sequence is cut")
SEQ = Axis(
    "SEQ", "tensor-parallel ranks between which sequence parallelism cuts the tokens; else 1"
)
SHARD = Axis("SHARD", "ranks that share each parameter (FSDP, ZeRO-3), cut along dimension 0")
STATE = Axis("STATE", "ranks that share the optimizer states (ZeRO-1 and higher)")
DP = Axis("DP", "data-parallel ranks, each with samples of its own")
EP = Axis(
    "EP",
    "ranks of expert parallelism, of all that run the same layers: whole experts are shared out",
)
ETP = Axis("ETP", "ranks that share each expert, under Megatron")
EDP = Axis(
    "EDP", "ranks that have the same part of the same experts and share their optimizer states"
)

B = Dim("B", "sequences in a micro-batch")
S = Dim("S", "tokens in a sequence")
D = Dim("D", "hidden size: the width of the residual stream")
F = Dim("F", "intermediate size of the MLP")
HEADS = Dim("HEADS", "query heads")
KV_HEADS = Dim(
    "KV_HEADS", "heads of keys and values; fewer than HEADS under grouped-query attention"
)
HEAD_DIM = Dim("HEAD_DIM", "width of one head")
VOCAB = Dim("VOCAB", "tokens of the vocabulary")
LAYERS = Dim("LAYERS", "layers of the model")
PER_LAYER = Dim("PER_LAYER", "width of the embedding that a token has for each layer")
PER_LAYER_ROWS = Dim("PER_LAYER_ROWS", "tokens that have an embedding for each layer")
PER_LAYERS = Dim("PER_LAYERS", "LAYERS x PER_LAYER: such embeddings of all layers side by side")
POSITIONS = Dim("POSITIONS", "rows of a learned position table")
TABLE = Dim("TABLE", "rows of the same as it is stored, where positions are interpolated")
CONTEXT = Dim(
    "CONTEXT", "positions that a model is made for: rows of a table that it keeps of them"
)
Q = Dim("Q", "HEADS x HEAD_DIM: the width of all queries")
KV = Dim("KV", "KV_HEADS x HEAD_DIM: the width of all keys")
GATED_Q = Dim("GATED_Q", "2 Q: queries, and a gate for each")
QKV = Dim("QKV", "Q + 2 KV: queries, keys and values side by side")
ROTARY = Dim("ROTARY", "dimensions of a head that are rotated")
HALF_ROTARY = Dim("HALF_ROTARY", "ROTARY / 2: sine and cosine each need so many")
EMBED = Dim("EMBED", "width of the token embedding")
FUSED = Dim("FUSED", "2 F: gate and up side by side")
MASKED = Dim("MASKED", "S where a sliding window is shorter than the sequence, else 0")
BIASED_KV = Dim(
    "BIASED_KV",
    "heads of keys and values that SDPA gets under a mask: repeated to every query head",
)
MASKED_KV = Dim(
    "MASKED_KV",
    "heads of keys and values that SDPA gets: BIASED_KV where a sliding window is shorter than "
    "the sequence",
)
COPIED_KV = Dim("COPIED_KV", "BIASED_KV where these are copies, and no view; else 0")
COPIED_MASKED_KV = Dim("COPIED_MASKED_KV", "MASKED_KV where these are copies, and no view; else 0")
BESIDE_V = Dim(
    "BESIDE_V",
    "heads of queries and keys beside the values in a joint projection, where SDPA keeps the "
    "whole of it for the values; else 0",
)
REACH = Dim("REACH", "twice the keys that a token sees on average within its window")
REPEATED = Dim("REPEATED", "heads of keys and values after repeating them for eager attention")
SINKED = Dim("SINKED", "S + 1: every key and the attention sink (gpt-oss)")
KEPT = Dim(
    "KEPT", "width of what eager attention keeps as values, where they are part of a joint tensor"
)
SMS = Dim("SMS", "streaming multiprocessors of the GPU (compute units on AMD)")
CUBLAS = Dim("CUBLAS", "bytes of cuBLAS's workspace for one thread")
TOKENS = Dim("TOKENS", "B x S: tokens in a micro-batch")
DISTINCT = Dim(
    "DISTINCT", "rows of the embedding that a micro-batch reads: its tokens, at most the vocabulary"
)
SUMMED = Dim(
    "SUMMED",
    "rows of fp32 that PyTorch's kernel sums an embedding's gradient in where it sorts the tokens, "
    "as it does with more than 3,072: each row of the table, and one for ten tokens",
)
CHUNK = Dim("CHUNK", "tokens whose logits exist at once in a chunked loss")
LABELS = Dim("LABELS", "int64 elements behind the shifted labels")
V_DIM = Dim("V_DIM", "width of one head's values; HEAD_DIM but under latent attention")
VALUES = Dim("VALUES", "HEADS x V_DIM: the width of all heads' results")
KV_VALUES = Dim("KV_VALUES", "KV_HEADS x V_DIM: the width of all values")
BOTH_DIMS = Dim("BOTH_DIMS", "HEAD_DIM + V_DIM: a key and a value of one head side by side")
NOPE = Dim("NOPE", "dimensions of a head that are not rotated")
Q_RANK = Dim("Q_RANK", "width that latent attention compresses queries to; 0 where it does not")
KV_RANK = Dim(
    "KV_RANK", "width that latent attention compresses keys and values to; 0 where it does not"
)
LATENT = Dim("LATENT", "KV_RANK + ROTARY: what latent attention caches of a token when serving")
EXPANDED = Dim("EXPANDED", "HEADS x (NOPE + V_DIM): keys and values expanded from KV_RANK")
KEPT_V = Dim(
    "KEPT_V",
    "width of what eager latent attention keeps as values: of one sequence a view of EXPANDED",
)
INDEX_HEADS = Dim("INDEX_HEADS", "heads of an indexer, which chooses what is attended to")
INDEX_DIM = Dim("INDEX_DIM", "width of an indexer's head, and of its key of a token")
INDEX_Q = Dim("INDEX_Q", "INDEX_HEADS x INDEX_DIM: the width of an indexer's queries")
INDEX_TOP = Dim("INDEX_TOP", "tokens that each token attends to: an indexer's choice, at most S")
INDEX_BLOCK = Dim("INDEX_BLOCK", "tokens of a block that an indexer chooses")
INDEX_BLOCKS = Dim("INDEX_BLOCKS", "blocks of INDEX_BLOCK tokens in S, the last perhaps not full")
INDEX_PADDED = Dim("INDEX_PADDED", "tokens of INDEX_BLOCKS blocks")
INDEX_MORE = Dim("INDEX_MORE", "INDEX_PADDED where the last block is not full, else 0")
INDEX_CHOSEN = Dim("INDEX_CHOSEN", "blocks that each token attends to: an indexer's choice")
INDEX_COPIES = Dim(
    "INDEX_COPIES",
    "sequences of what is copied only where there are several: of an indexer's keys for each token "
    "(torch.matmul), of a gradient whose channels come first",
)
STREAMS = Dim("STREAMS", "residual streams of a token, which hyper-connections mix")
STREAMED = Dim("STREAMED", "STREAMS x D: all streams of a token side by side")
MIXES = Dim("MIXES", "(2 + STREAMS) x STREAMS: weights that a token's streams are mixed with")
STREAM_PAIRS = Dim("STREAM_PAIRS", "STREAMS x STREAMS: of each stream what each is made from")
LOW_RANK = Dim("LOW_RANK", "width between the two products of a part of low rank")
MIX_KINDS = Dim("MIX_KINDS", "3: kinds of these weights, each with a factor")
# Entries in a cache that stand for several tokens each: of few tokens, of which an indexer chooses,
# and of many, of which all are read.
FINE_RATE = Dim("FINE_RATE", "tokens of an entry, of which an indexer chooses some")
FINE_SPAN = Dim(
    "FINE_SPAN", "2 FINE_RATE: tokens that such an entry is made of, half of them again"
)
FINE_ENTRIES = Dim("FINE_ENTRIES", "entries of FINE_RATE tokens in S; tokens left over have none")
FINE_PLUS = Dim("FINE_PLUS", "FINE_ENTRIES + 1: a place for what is not chosen")
FINE_KEYS = Dim("FINE_KEYS", "S + FINE_ENTRIES: keys that a token meets")
FINE_SINKED = Dim("FINE_SINKED", "FINE_KEYS + 1: with the attention sink")
FINE_TOP = Dim("FINE_TOP", "entries that an indexer chooses for a token")
COARSE_RATE = Dim("COARSE_RATE", "tokens of an entry, all of which are read")
COARSE_ENTRIES = Dim("COARSE_ENTRIES", "entries of COARSE_RATE tokens in S")
COARSE_KEYS = Dim("COARSE_KEYS", "S + COARSE_ENTRIES: keys that a token meets")
COARSE_SINKED = Dim("COARSE_SINKED", "COARSE_KEYS + 1: with the attention sink")
TWO_HEADS = Dim("TWO_HEADS", "2 HEAD_DIM: a token's part of its own entry and of the next")
TWO_INDEX = Dim("TWO_INDEX", "2 INDEX_DIM: the same of an indexer's keys")
VIEWED_KV = Dim(
    "VIEWED_KV",
    "heads of copies of values that are keys too: none of one sequence, whose view serves both",
)
OUT_GROUPS = Dim("OUT_GROUPS", "groups of heads whose results are compressed apart")
OUT_RANK = Dim("OUT_RANK", "width that the results of a group are compressed to")
OUT_LOW = Dim("OUT_LOW", "OUT_GROUPS x OUT_RANK: the compressed results of all groups")
OUT_WIDE = Dim("OUT_WIDE", "Q / OUT_GROUPS: the results of a group")
OF_EXPERTS = Dim("OF_EXPERTS", "ranks that experts are shared out over: EP")
EXPERTS = Dim("EXPERTS", "routed experts of a layer; 0 in a dense model")
TOP_K = Dim("TOP_K", "experts that each token is sent to")
ROUTED = Dim("ROUTED", "rows that this rank's tokens are sent in: tokens x TOP_K")
ARRIVED = Dim("ARRIVED", "rows that come to this rank's experts from all ranks that share them out")
COMPUTED = Dim(
    "COMPUTED", "rows that this rank's experts compute: those of every rank that shares each expert"
)
CHOSEN = Dim(
    "CHOSEN", "experts that get a row at all where routing is balanced: their weights are read"
)
EXPERT_D = Dim("EXPERT_D", "width of what experts read: the hidden size, or one it is made")
EXPERT_F = Dim("EXPERT_F", "intermediate size of one expert")
EXPERT_FUSED = Dim("EXPERT_FUSED", "2 EXPERT_F: gate and up side by side")
EXPERT_ROWS = Dim(
    "EXPERT_ROWS", "EXPERTS x EXPERT_F: a layer's experts one below the other in one matrix"
)
EARLIER = Dim("EARLIER", "rows of all experts but the last two, where routing is balanced")
SECOND = Dim("SECOND", "rows of the last expert but one, where routing is balanced")
LAST = Dim("LAST", "rows of the last expert, where routing is balanced")
JOINED = Dim(
    "JOINED",
    "2 D: two of that width side by side, as an embedding and a hidden state in multi-token "
    "prediction",
)
ONE = Dim("ONE", "1: the width of a gate for a whole token")
SHARED_F = Dim("SHARED_F", "intermediate size of the experts that every token passes, together")
SHARED_FUSED = Dim("SHARED_FUSED", "2 SHARED_F: gate and up side by side")
ROW_MAP = Dim("ROW_MAP", "2 EXPERTS + 1: where the rows of a token are in Megatron, and how many")
# Of a draft, which guesses tokens for another model.
HIDDEN_STATES = Dim(
    "HIDDEN_STATES",
    "hidden states of several layers of the other model side by side: what it joins",
)
GUESSED = Dim("GUESSED", "tokens of the vocabulary that a draft may guess")
CORRECTION = Dim("CORRECTION", "width that a correction of a draft's logits is made from")
CORRECTED = Dim("CORRECTED", "D, and what such a correction reads beside it")
RECURRED = Dim("RECURRED", "width of the state that such a correction has of the tokens before")
RECURRED_GATES = Dim("RECURRED_GATES", "3 RECURRED: two gates, and what they let in")
JUDGED = Dim("JUDGED", "width of what says how likely a guess is to be accepted")
RANK = Dim("RANK", "rank of a low-rank adapter: the width between its two matrices")
BUCKETS = Dim(
    "BUCKETS",
    "buckets of distances between tokens, each with a bias for every head, or an embedding",
)
CLASSES = Dim(
    "CLASSES", "classes that a classifier tells apart: its head makes one number for each"
)
PROJECTED = Dim("PROJECTED", "width that images and texts are compared in")
TYPES = Dim("TYPES", "rows of a table of token types")
MELS = Dim("MELS", "bins of a spectrogram")
FRAMES = Dim("FRAMES", "2 S: frames of a spectrogram, of which an encoder reads every other")
HEIGHT = Dim("HEIGHT", "height of an image, in pixels")
WIDTH = Dim("WIDTH", "width of an image, in pixels")
PATCH_H = Dim("PATCH_H", "height of one patch of an image, in pixels")
PATCH_W = Dim("PATCH_W", "width of one patch of an image, in pixels")
CHANNELS = Dim("CHANNELS", "color channels of an image")
PATCH_VALUES = Dim("PATCH_VALUES", "CHANNELS x PATCH_H x PATCH_W: the numbers of one patch")
PATCHES = Dim("PATCHES", "patches of one image")
MERGED = Dim("MERGED", "tokens of one image that a decoder reads")
MERGED_D = Dim("MERGED_D", "width of the patches side by side that a decoder reads as one token")
PAIRS = Dim("PAIRS", "pairs of patches of one image that lie in the same window")
GROUP = Dim("GROUP", "parameters of one GPU before sharding, all together (DeepSpeed's flat group)")
LARGEST = Dim("LARGEST", "parameters in the largest tensor")
PERSISTENT = Dim(
    "PERSISTENT",
    "parameters in tensors that ZeRO-3 never partitions: at most "
    "stage3_param_persistence_threshold each",
)
LIVE = Dim(
    "LIVE",
    "parameters gathered at once: stage3_max_live_parameters or stage3_max_reuse_distance, the "
    "larger, and one tensor more; at most all that are not persistent; 0 on one GPU, whose part "
    "is the whole",
)
PREFETCH = Dim(
    "PREFETCH",
    "parameters in one all-gather of several tensors: stage3_prefetch_bucket_size, at most GROUP",
)
BUCKET = Dim("BUCKET", "reduce_bucket_size: elements of the buffer that gradients are reduced in")
BUCKETED = Dim("BUCKETED", "gradients in the buffer: BUCKET, at most GROUP")
UNREDUCED = Dim(
    "UNREDUCED", "GROUP - BUCKETED: gradients that wait while the first bucket is reduced"
)
ALLREDUCED = Dim("ALLREDUCED", "gradients that stage 0 reduces at once: 500,000,000, at most GROUP")
SUBGROUP = Dim(
    "SUBGROUP",
    "parameters that an optimizer step takes at once: sub_group_size, at most this GPU's part "
    "of GROUP",
)
HOSTED = Dim(
    "HOSTED",
    "of this GPU's part of GROUP, what DRAM keeps while the rest is on NVMe: offload_param's "
    "max_in_cpu; 0 without",
)
SWAPPED = Dim("SWAPPED", "of this GPU's part of GROUP, what is on NVMe")
PARAMETER_BUFFER = Dim(
    "PARAMETER_BUFFER", "elements of one buffer that weights are swapped in from NVMe; 0 without"
)
ROUNDED = Dim(
    "ROUNDED",
    "bytes that PyTorch adds to one GPU's pinned buffers, each of which it makes a power of two",
)
LOADED = Dim(
    "LOADED",
    "bytes of pinned blocks that one GPU's part of each tensor was loaded into, each a power of "
    "two: free once the weights lie in one buffer, and kept by PyTorch",
)
SLICE = Dim(
    "SLICE",
    "parameters in the largest tensor's part on one GPU, at most what its norm takes at once",
)
# Layers that keep one state of a sequence: state space models, and linear attention, whose values,
# keys and queries are x, B and C of the former.
SSM_HEADS = Dim(
    "SSM_HEADS",
    "heads of values in a layer with a state: a state space model's, or a linear attention's",
)
SSM_DIM = Dim("SSM_DIM", "width of one head of values")
SSM_STATE = Dim("SSM_STATE", "width of a key: what a state remembers of each value")
SSM_GROUPS = Dim(
    "SSM_GROUPS",
    "heads of keys and queries (B and C of a state space model), each for several of values",
)
SSM_INNER = Dim("SSM_INNER", "SSM_HEADS x SSM_DIM: the width of all values")
CONVOLVED = Dim(
    "CONVOLVED", "SSM_INNER + 2 SSM_GROUPS x SSM_STATE: values, keys and queries side by side"
)
SSM_IN = Dim(
    "SSM_IN", "CONVOLVED, gates as wide as the values, and a step for each head: one projection"
)
GATED_IN = Dim("GATED_IN", "CONVOLVED and gates as wide as the values: one projection")
SHORT_IN = Dim(
    "SHORT_IN", "3 SSM_INNER: what a short convolution reads, and gates before and behind it"
)
SSM_PAIRS = Dim("SSM_PAIRS", "2 SSM_HEADS: how much each head forgets, and how much it writes")
STEP_RANK = Dim("STEP_RANK", "width that Mamba's steps of all channels are made from")
SELECTED = Dim("SELECTED", "STEP_RANK + 2 SSM_STATE: steps, B and C of Mamba, of one projection")
CUT = Dim("CUT", "1 where other ranks have parts of the same weights, else 0")
CUT_EXPERTS = Dim("CUT_EXPERTS", "1 where other ranks have parts of the same experts, else 0")
KERNEL = Dim("KERNEL", "tokens that a short convolution sees")
KEPT_TOKENS = Dim(
    "KEPT_TOKENS",
    "of KERNEL, the tokens that a cache keeps of each sequence: one less, in transformers all",
)
SPAN = Dim("SPAN", "tokens that a scan takes at once, as products; of a shorter sequence all")
BETWEEN = Dim("BETWEEN", "states between the spans of a sequence")
CHUNK_TOKENS = Dim("CHUNK_TOKENS", "tokens of a chunk of a scan in training")
CHUNKS = Dim("CHUNKS", "chunks of a sequence in training, the last one padded")
SPLITS = Dim(
    "SPLITS",
    "parts of a group's heads whose gradients of keys and queries are summed last: as many as keep "
    "every multiprocessor busy",
)
NORM_ROWS = Dim("NORM_ROWS", "partial sums of a gated norm's gradient, in mamba_ssm's kernel")

# Every axis and dimension above, by its name.
AXES = {value.name: value for value in list(globals().values()) if isinstance(value, Axis)}
DIMENSIONS = {value.name: value for value in list(globals().values()) if isinstance(value, Dim)}

STACKS = ("vision", "encoder")  # what runs before a model's main layers, on dimensions of its own

# Layers of the main stack with heads of their own, as Gemma 4's that see all tokens: of all
# dimensions these differ, and have names of their own.
APART = "apart"
OF_HEADS = frozenset({
    HEADS, KV_HEADS, HEAD_DIM, ROTARY, HALF_ROTARY, V_DIM, Q, KV, QKV, VALUES, KV_VALUES, REPEATED,
    KEPT, BIASED_KV, BOTH_DIMS, MASKED_KV, BESIDE_V, COPIED_KV, COPIED_MASKED_KV,
})  # fmt: skip

MAIN = "main"  # in a block of another stack: of the main stack all the same


@cached
def of_stack(stack: str, factor: Factor) -> Factor:
    """A factor as one stack of layers has it: that stack's hidden size, its tokens, ..."""
    if isinstance(factor, Dim):
        if stack == APART and factor not in OF_HEADS:
            return factor
        if factor.of:  # it says itself whose it is
            return factor.of if factor.stack == MAIN else factor
        return _dim(stack, factor)
    if isinstance(factor, Cut):
        assert isinstance(factor.dim, Dim | Cut)
        inner = of_stack(stack, factor.dim)
        assert isinstance(inner, _Divisible)
        return _cut(inner, factor.axis)
    if isinstance(factor, Share):
        what = factor.name.removesuffix(f" of {_text(factor.shape)}")
        return share(what, tuple(of_stack(stack, f) for f in factor.shape), factor.rule)
    assert isinstance(factor, int), "a part of a flat shape belongs to the main stack"
    return factor


@interned
def _dim(stack: str, of: Dim) -> Dim:
    return Dim(f"{stack}.{of.name}", stack=stack, of=of)


def size(factor: _Divisible | int, sizes: MutableMapping[str, Number]) -> Number:
    """The value of one factor of a shape. A cut's value is computed once and kept in `sizes`."""
    if isinstance(factor, int):
        return factor
    value = sizes.get(factor.name)
    if value is None:
        if isinstance(factor, Share):
            value = factor.rule(elements(factor.shape, sizes))
        elif isinstance(factor, Flat):
            value = ceil_div(elements(factor.shape, sizes), sizes[factor.axis.name])
        elif isinstance(factor, Reckoned):
            value = factor.value(sizes)
        else:
            assert isinstance(factor, Cut), f"no size for {factor.name}"
            value = ceil_div(size(factor.dim, sizes), sizes[factor.axis.name])
        sizes[factor.name] = value
    return value


def elements(shape: Shape, sizes: MutableMapping[str, Number]) -> Number:
    """Elements in a tensor of this shape."""
    n: Number = 1
    for factor in shape:
        # The usual case without a call: this runs for every shape of a plan.
        value = factor if isinstance(factor, int) else sizes.get(factor.name)
        n = n * (size(factor, sizes) if value is None else value)
    return n


@dataclass(frozen=True, slots=True)
class Extent:
    """One factor of a shape in one plan; prints as 'F/TP 7,168'.

    size   after every cut, rounded up
    of     the dimension; words where no dimension counts it; '' for a plain number
    axes   what cuts it, without the axes that have one rank
    """

    size: Number
    of: _Divisible | Axis | str = ""
    axes: tuple[Axis, ...] = ()

    @property
    def whole(self) -> str:
        """What it is called before it is cut."""
        return self.of if isinstance(self.of, str) else self.of.name

    @property
    def name(self) -> str:
        return "/".join((self.whole, *(axis.name for axis in self.axes)))

    def __str__(self) -> str:
        return f"{self.name} {self.size:,}".lstrip()


@dataclass(frozen=True, slots=True)
class Extents:
    """The shape of a tensor in one plan, or of several that are counted together; prints as
    'B 1 x S 4,096 x F/TP 7,168', tensors with ' + ' between them."""

    tensors: tuple[tuple[Extent, ...], ...]

    @classmethod
    def of(cls, *factors: Extent) -> Extents:
        return cls((factors,))

    def __str__(self) -> str:
        return " + ".join(" x ".join(map(str, each)) or "scalar" for each in self.tensors)


def extent(factor: Factor, sizes: MutableMapping[str, Number]) -> Extent:
    """A factor of a shape with its value."""
    whole: _Divisible | int = factor
    cuts: list[Axis] = []
    while isinstance(whole, Cut):
        cuts.append(whole.axis)
        whole = whole.dim
    axes = tuple(axis for axis in reversed(cuts) if sizes[axis.name] != 1)
    return Extent(size(factor, sizes), "" if isinstance(whole, int) else whole, axes)


def ceil_div(a: Number, b: Number) -> Number:
    """a / b rounded up, exact for whole numbers."""
    return -(-a // b)


def next_power_of_2(n: Number) -> Number:
    """The least power of two that is not below a positive whole number."""
    if not is_array(n):
        return 1 << (n - 1).bit_length()
    import numpy as np

    return np.left_shift(1, np.ceil(np.log2(n)).astype(np.int64))


def where(condition: Any, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`; plain values stay plain."""
    if isinstance(condition, bool):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def each_alone(sizes: Mapping[str, Number], of: Callable[[dict[str, Number]], Number]) -> Number:
    """What a function that takes plain sizes says of each of a sweep's: an array."""
    import numpy as np

    arrays = {name: n for name, n in sizes.items() if is_array(n)}
    plain = {name: n for name, n in sizes.items() if name not in arrays}
    every = np.broadcast(*arrays.values())
    known: dict[tuple[int, ...], Number] = {}
    found = []
    for values in every:
        key = tuple(map(int, values))
        if key not in known:
            known[key] = of({**plain, **dict(zip(arrays, key, strict=True))})
        found.append(known[key])
    return np.array(found).reshape(every.shape)


def maximum(a: Number, b: Number) -> Number:
    """The larger, element by element for arrays."""
    first = a >= b
    if isinstance(first, bool):
        return a if first else b
    import numpy as np

    return np.maximum(a, b)


def minimum(a: Number, b: Number) -> Number:
    """The smaller, element by element for arrays."""
    first = a <= b
    if isinstance(first, bool):
        return a if first else b
    import numpy as np

    return np.minimum(a, b)


def whole(n: Number) -> Number:
    """Without its fraction, as int() does for a number that is not negative."""
    return n // 1 if is_array(n) else int(n)


def real(n: Number) -> Number:
    """As a floating-point number, so that products of large ones do not overflow."""
    return n * 1.0 if is_array(n) else float(n)


def positive(n: Number) -> bool:
    """Whether a number, or any of an array's, is above zero."""
    return bool((n > 0).any()) if is_array(n) else bool(n > 0)


def is_array(value: Number) -> bool:
    """Whether a size is an array (a sweep), not one number (a plan)."""
    return not isinstance(value, (int, float))
