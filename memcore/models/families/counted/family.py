"""What a counted architecture is: its parameters are known, and nothing else of it is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memcore.errors import shown
from memcore.layers.ops import TOKENS
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family
from memcore.models.model import Model
from memcore.tape.dims import COUNTED, D
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor

NAME = "counted"


def _config(k: Keys) -> Model:
    raise NotImplementedError("a counted architecture has a config of its own")


def _embed(t: Tape, s: Structure) -> Tensor:
    t.parameter("weights", (COUNTED,), idle=True)
    return t.input("hidden states", (*TOKENS, D), s.dtype, needs_grad=False)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return x


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return x


# What all of them are built as: all their weights in one piece.
WHOLE = Family(_config, _embed, _layer, _head, kernels=HF_ONLY, decoder=False)


def of_parameters(number: int, label: str = "") -> Model:
    """A model of which nothing but its parameters is known."""
    return Model(
        family=NAME, label=label, layers=1, hidden_size=1, intermediate_size=1, heads=1,
        kv_heads=1, head_dim=1, vocab_size=1, max_positions=1, traits=Traits(),
        counted=max(1, number),
    )  # fmt: skip


def counted(
    count: Callable[[Keys], int],
    classes: Mapping[str, str],
    aliases: Mapping[str, str] | None = None,
    decoder: bool = False,
) -> Family:
    """The family of an architecture of which only the parameters are known.

    count      parameters of a config's keys, with the head that `k.head` names
    classes, aliases, decoder    as in Family
    """

    def config(k: Keys) -> Model:
        return of_parameters(count(k))

    return Family(config, _embed, _layer, _head, kernels=HF_ONLY, decoder=decoder, classes=classes,
                  aliases=aliases or {})  # fmt: skip


def counts(k: Keys, key: str, usual: Sequence[int], most: int = 10**8) -> list[int]:
    """A list of whole numbers, at least one."""
    k.assume(key, list(usual))
    given = k.config.get(key, usual)
    if (
        not isinstance(given, (list, tuple))
        or not given
        or any(type(n) is not int or not 1 <= n <= most for n in given)
    ):
        k.fail(key, f"must be a list of whole numbers from 1 to {most:,}, not {shown(given)}")
        return list(usual)
    return list(given)


def depths_of(k: Keys, *usual: int) -> list[int]:
    """Layers of each stage."""
    return counts(k, "depths", usual, 10_000)


def as_many(k: Keys, **lists: list[int]) -> bool:
    """Whether lists of a config are as long as the first: an issue else."""
    (first, one), *others = lists.items()
    for key, other in others:
        if len(other) < len(one):
            k.fail(key, f"has {len(other)} numbers, but {first} {len(one)}; name as many")
    return not k.issues


def share(k: Keys, key: str, usual: float) -> float:
    """A number above 0."""
    value = k.config.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1000:
        k.fail(key, f"must be a number above 0, not {shown(value)}")
        return usual
    return value
