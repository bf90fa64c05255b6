"""Sharding: a tensor's shape as one rank holds it."""

from __future__ import annotations

from memcore.tape.dims import (
    CUT,
    CUT_EXPERTS,
    EDP,
    EP,
    SHARD,
    STATE,
    Axis,
    Cut,
    Dim,
    Factor,
    Shape,
    flat,
)


def cut_shape(shape: Shape, cut: str, sharded: bool) -> Shape:
    """A parameter's shape as one GPU holds it."""
    rows, rest = shape[0], shape[1:]
    if cut == "state" and is_shared_out(shape):
        # Whole experts, the states of each cut: but for one value of each, of a bias's rows.
        return (rows, *(_cut_rows(n, EDP) for n in shape[1:2]), *shape[2:])
    if cut == "state":
        return (_cut_rows(rows, STATE), *rest)
    if not sharded:
        return shape
    if cut == "gathered":
        return (SHARD_COUNT, _cut_rows(rows, SHARD), *rest)
    return (_cut_rows(rows, SHARD), *rest)


def fsdp_cut(shape: Shape, cut: str, sharded: bool) -> Shape:
    """The same under FSDP2, which cuts a rank's experts between the ranks that have the same."""
    if not is_shared_out(shape):
        return cut_shape(shape, cut, sharded)
    return ((HOLDERS,) if cut == "gathered" else ()) + (_cut_rows(shape[0], EDP), *shape[1:])


def is_shared_out(shape: Shape) -> bool:
    """Whether expert-parallel ranks share this weight out."""
    return len(shape) > 0 and isinstance(shape[0], Cut) and shape[0].axis is EP


def flat_cut(shape: Shape, cut: str, sharded: bool) -> Shape:
    """The same where tensors are laid out flat first."""
    if cut == "state":
        return (flat(shape, STATE),)
    return (flat(shape, SHARD),) if sharded and cut == "resident" else shape


def unit_cut(shape: Shape, cut: str, sharded: bool) -> Shape:
    """The same under Megatron-FSDP, where weights of a layer lie flat behind each other; a whole
    one beside its part where other ranks have the rest."""
    experts = is_shared_out(shape)
    if cut == "gathered":
        return (CUT_EXPERTS if experts else CUT, *shape)
    return (flat(shape, EDP if experts else STATE if cut == "state" else SHARD),)


# The ranks themselves, as a factor of what they hold together.
SHARD_COUNT = Dim("SHARD", "ranks that share each parameter")
HOLDERS = Dim("EDP", EDP.meaning)  # the same of those that have the same experts


def _cut_rows(rows: Factor, axis: Axis) -> Cut:
    assert not isinstance(rows, int), "a parameter's first dimension has a name"
    return rows / axis
