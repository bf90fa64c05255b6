"""Sizes: rules of numbers alone. Plan raises their messages; a sweep uses the same conditions as a
mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue
from memcore.plan.rule import Remedy, broken
from memcore.tape.dims import maximum


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A condition on the flat sizes that must hold; works for numbers and for arrays. What settles
    it is asked of numbers only."""

    field: str
    holds: Callable[[dict[str, Any]], Any]
    why: Callable[[dict[str, Any]], str]
    mends: Callable[[dict[str, Any]], Any]  # what the field is set to
    advice: str = ""
    others: Callable[[dict[str, Any]], tuple[Remedy, ...]] = lambda s: ()  # that leave it alone

    def issue(self, s: dict[str, Any]) -> Issue:
        """What is said of sizes for which it does not hold."""
        mended = {self.field: self.mends(s)}
        return broken(self.field, self.why(s), mended, *self.others(s), advice=self.advice)


def next_multiple(n: int, multiple: int) -> int:
    """A number, or the next multiple above it."""
    return -(-n // multiple) * multiple


def most_fitting(at_most: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits; 1 where none does."""
    return next((n for n in range(at_most, 0, -1) if fits(n)), 1)


def _sharing(s: dict[str, Any]) -> Any:
    """GPUs that share a micro-batch."""
    return s["TP"] * s["PP"] * s["CP"]


def _ranks(s: dict[str, Any], axis: str, divides: int) -> int:
    """The most ranks of an axis, no more than there are, that share out so many things and the
    GPUs; or the things alone, where no number shares out both."""
    others, most = _sharing(s) // s[axis], min(s[axis], divides)
    both = most_fitting(most, lambda n: divides % n == 0 and s["GPUS"] % (n * others) == 0)
    return both if both > 1 else most_fitting(most, lambda n: divides % n == 0)


def _fewer_ranks(s: dict[str, Any]) -> tuple[Remedy, ...]:
    """Ranks of one axis, or of all, that share out the GPUs: divisors of what there are, since
    these share out all else."""
    axes, gpus = ("TP", "PP", "CP"), int(s["GPUS"])
    paths = {axis: f"parallel.{axis.lower()}" for axis in axes}
    found: list[Remedy] = []
    together: dict[str, int] = {}
    for axis in axes:
        others = math.prod(int(s[a]) for a in axes if a != axis)
        if gpus % others == 0:
            found.append({paths[axis]: math.gcd(int(s[axis]), gpus // others)})
        left = gpus // math.prod(together.values())
        together[paths[axis]] = math.gcd(int(s[axis]), left)
    return tuple(found) or (together,)


def _at_most_ranks(s: dict[str, Any], axis: str, things: int) -> int:
    """The most ranks of an axis, at most one for each thing, that share out the GPUs."""
    others = _sharing(s) // s[axis]
    return most_fitting(min(s[axis], things), lambda n: s["GPUS"] % (n * others) == 0)


def _expert_ranks(s: dict[str, Any]) -> int:
    shared = math.gcd(s["GPUS"] // s["PP"], s["EXPERTS"])
    return most_fitting(s["EP"], lambda n: shared % n == 0)


def _expert_tensor_ranks(s: dict[str, Any]) -> int:
    on_stage, wide = s["GPUS"] // s["PP"], s["EXPERT_F"]
    return most_fitting(s["ETP"], lambda n: wide % n == 0 and on_stage % (n * s["EP"]) == 0)


USUAL = "bf16-mixed"  # the precision that every framework has


SIZE_RULES = (
    SizeRule(
        "parallel.shard_group",
        lambda s: s["DP"] * s["CP"] % maximum(s["SHARD_GROUP"], 1) == 0,
        lambda s: (
            f"{s['DP'] * s['CP']:,} ranks that share parameters do not divide by "
            f"{s['SHARD_GROUP']:,}"
        ),
        lambda s: 0,
        "choose a divisor of them",
    ),
    SizeRule(
        "cluster.gpus",
        lambda s: s["GPUS"] % _sharing(s) == 0,
        lambda s: f"{s['GPUS']:,} GPUs do not divide by tp x pp x cp = {_sharing(s):,}",
        lambda s: next_multiple(s["GPUS"], _sharing(s)),
        "choose another multiple of it",
        _fewer_ranks,
    ),
    SizeRule(
        "parallel.tp",
        lambda s: s["HEADS"] % s["TP"] == 0,
        lambda s: f"{s['HEADS']:,} attention heads do not divide by tp {s['TP']:,}",
        lambda s: _ranks(s, "TP", s["HEADS"]),
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.tp",
        lambda s: s.get("SSM_HEADS", 0) % s["TP"] == 0,
        lambda s: f"{s['SSM_HEADS']:,} heads of a layer's state do not divide by tp {s['TP']:,}",
        lambda s: _ranks(s, "TP", s["SSM_HEADS"]),
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.pp",
        lambda s: s["LAYERS"] >= s["PP"],
        lambda s: f"{s['PP']:,} stages for {s['LAYERS']:,} layers",
        lambda s: _at_most_ranks(s, "PP", s["LAYERS"]),
        "use at most one per layer",
    ),
    SizeRule(
        "parallel.virtual_stages",
        lambda s: s["LAYERS"] + s["OUTER"] >= s["PP"] * s["VIRTUAL"],
        lambda s: (
            f"{s['VIRTUAL']:,} virtual stages on each of {s['PP']:,} for {s['LAYERS']:,} layers"
        ),
        lambda s: max(1, s["LAYERS"] // s["PP"]),
        "use at most one per layer",
    ),
    SizeRule(
        "parallel.pp",
        lambda s: (s["OUTER"] == 0) | ((s["LAYERS"] + s["OUTER"]) % (s["PP"] * s["VIRTUAL"]) == 0),
        lambda s: (
            f"{s['LAYERS']:,} layers and {s['OUTER']:,} for embedding and loss do not divide by "
            f"{s['PP'] * s['VIRTUAL']:,} stages"
        ),
        lambda s: most_fitting(
            s["PP"],
            lambda n: (
                (s["LAYERS"] + s["OUTER"]) % (n * s["VIRTUAL"]) == 0
                and s["GPUS"] % (s["TP"] * s["CP"] * n) == 0
            ),
        ),
        "choose another divisor of them, or leave embedding and loss out",
    ),
    SizeRule(
        "parallel.ep",
        lambda s: s["EXPERTS"] % s["EP"] == 0,
        lambda s: f"{s['EXPERTS']:,} experts do not divide by ep {s['EP']:,}",
        _expert_ranks,
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.ep",
        lambda s: s["GPUS"] // s["PP"] % s["EP"] == 0,
        lambda s: (
            f"{s['GPUS'] // s['PP']:,} GPUs on a pipeline stage do not divide by ep {s['EP']:,}"
        ),
        _expert_ranks,
        "choose another divisor of them",
    ),
    SizeRule(
        "train.seq_len",
        lambda s: (s["NARROW"] == 1) | (s["B"] * s["S"] % (s["CP"] * s["TP"] * s["NARROW"]) == 0),
        lambda s: (
            f"{s['B'] * s['S']:,} tokens do not divide by cp x tp x {s['NARROW']} = "
            f"{s['CP'] * s['TP'] * s['NARROW']:,}, as products in 8 bits want"
        ),
        lambda s: next_multiple(s["S"], s["CP"] * s["TP"] * s["NARROW"]),
        "choose another multiple of it",
        lambda s: ({"train.precision": USUAL},),  # where images say how many tokens there are
    ),
    SizeRule(
        "train.precision",
        lambda s: (
            (s["NARROW"] == 1)
            | (s["D"] % s["NARROW"] == 0)
            & (s["F"] % (s["TP"] * s["NARROW"]) == 0)
            & (s["EXPERT_F"] % (s["ETP"] * s["NARROW"]) == 0)
            & (s["HEADS"] * s["HEAD_DIM"] % (s["TP"] * s["NARROW"]) == 0)
        ),
        lambda s: (
            f"products in 8 bits want widths in multiples of {s['NARROW']}, which this model's are "
            "not"
        ),
        lambda s: USUAL,
    ),
    SizeRule(
        "parallel.etp",
        lambda s: s["GPUS"] // s["PP"] % (s["EP"] * s["ETP"]) == 0,
        lambda s: (
            f"{s['GPUS'] // s['PP']:,} GPUs on a pipeline stage do not divide by ep x etp = "
            f"{s['EP'] * s['ETP']:,}"
        ),
        _expert_tensor_ranks,
        "choose another divisor of them",
    ),
    SizeRule(
        "parallel.etp",
        lambda s: s["EXPERT_F"] % s["ETP"] == 0,
        lambda s: f"experts {s['EXPERT_F']:,} wide do not divide by etp {s['ETP']:,}",
        _expert_tensor_ranks,
        "choose another divisor",
    ),
    SizeRule(
        "parallel.cp",
        lambda s: s["S"] >= s["CP"],
        lambda s: f"{s['CP']:,} ranks for {s['S']:,} tokens",
        lambda s: _at_most_ranks(s, "CP", s["S"]),
        "use at most one per token",
    ),
)
