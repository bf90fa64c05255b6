"""Kinds: the words for what a layer's attention, state and experts are."""

from __future__ import annotations

FULL, SLIDING, FULL_NOPE, SLIDING_NOPE = "full", "sliding", "full-nope", "sliding-nope"
CHUNKED = "chunked"
EVERY = "every"  # every token sees every other: an encoder
RECURRENT = "recurrent"  # a state of the sequence in place of attention
BESIDE = "full and recurrent"  # both, of the same input
MLP_ALONE, EXPERTS_ALONE = "mlp", "experts"  # layers that mix no tokens


def attends(kind: str) -> bool:
    """Whether a layer of this kind keeps keys and values of tokens."""
    return not kind.startswith((RECURRENT, MLP_ALONE, EXPERTS_ALONE))


def recurs(kind: str) -> bool:
    """Whether a layer of this kind keeps a state of the sequence."""
    return kind.startswith((RECURRENT, BESIDE))


def nope(kind: str) -> str:
    """The kind of a layer like it without positions."""
    return f"{kind}-nope"


def turns(kind: str) -> bool:
    """Whether queries and keys of a layer of this kind are rotated."""
    return "nope" not in kind


def dense(kind: str) -> str:
    """The kind of a layer with an MLP, in a model whose other layers have experts."""
    return f"{kind}-dense"


def is_dense(kind: str) -> bool:
    return kind.endswith("-dense")
