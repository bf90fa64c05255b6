"""Kinds: the words for what a layer's attention, state and experts are."""

from __future__ import annotations

from enum import Enum

from memcore.cache import counted_nowhere


@counted_nowhere
class Part(Enum):
    """What a scope of a tape is, where something follows from it."""

    LAYER = "layer"  # of the main stack or of a tower; not what comes before, between and behind
    DEPTH = "depth"  # of multi-token prediction
    ATTENTION = "attention"  # with the products before and behind its core
    CORE = "core"  # attention from its heads to their results
    CHOICE = "choice"  # scores of an indexer for all that is in the cache
    SCAN = "scan"  # over the states of a sequence
    LOSS = "loss"


@counted_nowhere
class Role(Enum):
    """What a tensor is for, where something follows from it."""

    ANGLES = "angles"  # a table of rotary angles: cosines, or cosines and sines together
    CAUSAL_MASK = "causal mask"
    KERNEL = "kernel"  # allocated by one kernel's own code, which PyTorch's dispatcher does not see
    BIAS = "bias"  # of a stack of experts, whose shape is that of a matrix


@counted_nowhere
class Module(Enum):
    """Whose kernel an operation is, where its rate or what the host starts for it depends on it:
    FlashAttention's, or one of Transformer Engine's modules, or a scan over states."""

    ATTENTION = "attention"
    LINEAR = "linear"
    NORM = "norm"
    GROUPED = "grouped linear"  # one product for each expert
    PERMUTE = "permute"  # rows into the order that they are sent to experts in
    WIDENED = "widened"  # weights of 4 bits are made 16 bits before the product (bitsandbytes)
    INTEGER = "integer"  # 8-bit inputs times 8-bit weights; backward widens the weight (the same)
    SCAN = "scan"  # Triton's, over the chunks of a sequence


FULL, SLIDING, FULL_NOPE, SLIDING_NOPE = "full", "sliding", "full-nope", "sliding-nope"
CHUNKED = "chunked"
EVERY = "every"  # every token sees every other: an encoder
SLIDING_EVERY = "sliding-every"  # those in a window on both sides
IN_WINDOWS = "every-in-windows"  # of an image cut into windows, those of the same one
RECURRENT = "recurrent"  # a state of the sequence in place of attention
BESIDE = "full and recurrent"  # both, of the same input
MLP_ALONE, EXPERTS_ALONE = "mlp", "experts"  # layers that mix no tokens
SKIPPED = "skipped"  # a layer that does not run


def attends(kind: str) -> bool:
    """Whether a layer of this kind keeps keys and values of tokens."""
    return not kind.startswith((RECURRENT, MLP_ALONE, EXPERTS_ALONE, SKIPPED))


def recurs(kind: str) -> bool:
    """Whether a layer of this kind keeps a state of the sequence."""
    return kind.startswith((RECURRENT, BESIDE))


def nope(kind: str) -> str:
    """The kind of a layer like it without positions."""
    return f"{kind}-nope"


def apart(kind: str) -> str:
    """The kind of a layer like it whose heads are others than the model's (dims.APART)."""
    return f"{kind}-apart"


def is_apart(kind: str) -> bool:
    return "-apart" in kind


def turns(kind: str) -> bool:
    """Whether queries and keys of a layer of this kind are rotated."""
    return "nope" not in kind


def shared(kind: str) -> str:
    """The kind of a layer like it that attends to the tokens that a layer before it chose."""
    return f"{kind}-shared"


def is_shared(kind: str) -> bool:
    return "-shared" in kind


def whole(kind: str) -> str:
    """The kind of a layer like it that attends to all tokens, in a model whose others choose."""
    return f"{kind}-whole"


def is_whole(kind: str) -> bool:
    return "-whole" in kind


def fine(kind: str) -> str:
    """The kind of a layer like it that attends to a few compressed entries besides, which an
    indexer chooses."""
    return f"{kind}-fine"


def is_fine(kind: str) -> bool:
    return "-fine" in kind


def coarse(kind: str) -> str:
    """The kind of a layer like it that attends to all of its compressed entries besides."""
    return f"{kind}-coarse"


def is_coarse(kind: str) -> bool:
    return "-coarse" in kind


def hashed(kind: str) -> str:
    """The kind of a layer like it whose experts follow from a token's number, by a table."""
    return f"{kind}-hashed"


def is_hashed(kind: str) -> bool:
    return kind.endswith("-hashed")


def stored(kind: str) -> str:
    """The kind of a layer like it whose keys and values layers behind it read too."""
    return f"{kind}-stored"


def is_stored(kind: str) -> bool:
    return "-stored" in kind


def reused(kind: str) -> str:
    """The kind of a layer like it that reads the keys and values of a layer before it."""
    return f"{kind}-reused"


def is_reused(kind: str) -> bool:
    return "-reused" in kind


def tied(kind: str) -> str:
    """The kind of a layer like it whose weights are those of a layer behind it."""
    return f"{kind}-tied"


def is_tied(kind: str) -> bool:
    return kind.endswith("-tied")


def first(kind: str) -> str:
    """The kind of the first layer, whose input has another dtype than those of the others."""
    return f"{kind}-first"


def is_first(kind: str) -> bool:
    return kind.endswith("-first")


def wide(kind: str, i: int) -> str:
    """The kind of a layer like it whose MLP has the i-th of the model's widths."""
    return f"{kind}-wide{i}"


def width_of(kind: str) -> str:
    """What the width of such a layer's MLP is called, 'wide0', ...; '' for any other layer."""
    return f"wide{kind.rpartition('-wide')[2]}" if "-wide" in kind else ""


def thinned(kind: str) -> str:
    """The kind of a layer like it whose MLP reads only the largest of its gates."""
    return f"{kind}-thinned"


def is_thinned(kind: str) -> bool:
    return "-thinned" in kind


def deep(kind: str) -> str:
    """The kind of a layer like it whose result has more of an image's tokens added to it."""
    return f"{kind}-deep"


def is_deep(kind: str) -> bool:
    return "-deep" in kind


def dense(kind: str) -> str:
    """The kind of a layer with an MLP, in a model whose other layers have experts."""
    return f"{kind}-dense"


def is_dense(kind: str) -> bool:
    return kind.endswith("-dense")
