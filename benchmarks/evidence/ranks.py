"""Where the configurations that people published stand among all that fit, by our step time.

Of each job (a model on so many GPUs, with so many tokens a step, under a framework) that several
ran, the configuration that was fastest when measured. It stands beside others of the same job on
the same GPUs: every way to cut model and batch, every ZeRO stage and every recomputation that the
framework has; its kernels, attention, precision and optimizer are theirs, and nothing is offloaded.
Of many, as many are drawn by chance as say to a few per cent which share is faster.

`python benchmarks/ranks.py` writes presets/evidence/ranks.toml; docs/accuracy.md has its table.
"""

from __future__ import annotations

import functools
import itertools
import random
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evidence.times import times_table
from memcore.evidence.comparison import text
from memcore.plan.plan import Plan
from memcore.search.space import OVERLAP, Changes, Space, allowed, changed, undivided
from memcore.timing.certainty import apart
from memcore.training.training import Pool, Training
from memcore.words.training import CHECKPOINTING, FRAMEWORKS

# Whose configurations were chosen to be fast; the others vary one thing at a time, or measured what
# a GPU at hand could do.
CHOSEN = (
    "NVIDIA/Megatron-LM", "NVIDIA/NeMo", "NVIDIA-NeMo/Megatron-Bridge", "nemo-framework",
    "calculon-ai/calculon", "pytorch/torchtitan", "mosaicml/llm-foundry", "SimuMax",
)  # fmt: skip
BEST = 0.1  # the share of what fits that they should be among
DRAWN = 100  # that fit
TRIED = 8000  # at most


@dataclass(frozen=True, slots=True)
class Ranked:
    """A published configuration among what fits.

    share    of what fits, that is faster than it; told: so much faster that it can be told
    fits     how many were looked at
    slower   times as long as the fastest of them
    fastest  what that has otherwise
    """

    share: float
    told: float
    fits: int
    slower: float
    fastest: Changes


@functools.cache
def jobs() -> dict[str, Mapping[str, Any]]:
    """Of each job the run that was fastest when measured, by its id."""
    best: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for run in times_table()["runs"]:
        if not any(name in run["source"] for name in CHOSEN):
            continue
        plan = Plan.of(run["plan"])
        t = plan.train
        job = (
            plan.architecture, plan.accelerator.label, plan.cluster.gpus, plan.tokens_per_step,
            t.seq_len, t.framework, t.precision, t.adapter,
        )  # fmt: skip
        if plan.cluster.gpus > 1 and (job not in best or run["seconds"] < best[job]["seconds"]):
            best[job] = run
    return {run["id"]: run for run in best.values()}


def ranked(plan: Plan, drawn: int = DRAWN, tried: int = TRIED, seed: int = 0) -> Ranked:
    """Where a plan stands among what fits."""
    pool: Pool = {}
    own = _seconds(plan, pool)
    found: list[tuple[float, Plan]] = []
    for other in itertools.islice(_drawn(plan, seed), tried):
        training = Training.of(other, rows=False, pool=pool)
        if training is None or not training.memory.fits:
            continue
        found.append((training.time().step_seconds, other))
        if len(found) >= drawn:
            break
    faster = [(s, p) for s, p in found if s < own]
    told = sum(not apart(plan, p).same(own, s) for s, p in faster)
    least, fastest = min(found, key=lambda pair: pair[0], default=(own, plan))
    n = max(1, len(found))
    changes = {} if least >= own else differing(plan, fastest)
    return Ranked(len(faster) / n, told / n, len(found), own / min(own, least), changes)


def _seconds(plan: Plan, pool: Pool) -> float:
    training = Training.of(plan, rows=False, pool=pool)
    assert training
    return training.time().step_seconds


FIELDS = (
    *(f"parallel.{axis}" for axis in ("tp", "pp", "cp", "ep", "virtual_stages")),
    *("train.zero", "train.checkpointing", "train.checkpoint_every", "train.micro_batch", OVERLAP),
)


def differing(plan: Plan, other: Plan) -> Changes:
    """What another plan has otherwise."""
    found = {}
    for path in FIELDS:
        section, _, name = path.partition(".")
        value = getattr(getattr(other, section), name)
        if value != getattr(getattr(plan, section), name):
            found[name] = value
    return found


def _drawn(plan: Plan, seed: int) -> Iterator[Plan]:
    """Ways to do the same job, each once, by chance."""
    ways = list(_ways(plan))
    random.Random(seed).shuffle(ways)
    for way in ways:
        other = changed(undivided(plan), way)
        if allowed(other):
            yield other


def _ways(plan: Plan) -> Iterator[Changes]:
    """All of them, allowed or not."""
    space, start, t = Space(plan), undivided(plan), plan.train
    again = [{"train.checkpointing": w, "train.checkpoint_every": 1} for w in CHECKPOINTING]
    if t.checkpoint_every > 1:
        mine = {"train.checkpointing": t.checkpointing}
        again.append(mine | {"train.checkpoint_every": t.checkpoint_every})
    for layout in space.layouts(start):
        if layout.get("parallel.schedule", "1f1b") != "1f1b":  # no framework of these had another
            continue
        if layout[OVERLAP] and not FRAMEWORKS[t.framework].own:
            continue
        interleaved = layout.get("parallel.virtual_stages", 1) > 1
        for v in {2, plan.parallel.virtual_stages} - {1} if interleaved else {1}:
            cut = layout | {"parallel.virtual_stages": v}
            batches, same = space.batches(changed(start, cut))
            if not same:
                continue
            for (micro, times), words, zero in itertools.product(
                batches, again, FRAMEWORKS[t.framework].zero
            ):
                yield (
                    cut
                    | words
                    | {
                        "train.micro_batch": micro,
                        "train.grad_accumulation": times,
                        "train.zero": zero,
                    }
                )


@functools.cache
def ranks_table() -> Mapping[str, Any]:
    """What the last run of the benchmark found, by a run's id."""
    return tomllib.loads(text("ranks.toml"))
