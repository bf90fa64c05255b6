"""Undecided: what decides much of a plan's memory and stands in no file.

A field that neither a file nor a person sets, and that no program's default was cited for, has the
plan's own default. The plan is evaluated with the field's other words, and where the memory moves
by more than a twentieth the answer says so. What is off stays off where nobody turns it on, and the
load is the user's: neither is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue
from memcore.plan.plan import Plan, facts, field_paths, get, limits_of, value_text, words_of
from memcore.plan.repair import planned, settled
from memcore.serving.serve import servable, serve
from memcore.training.training import Training
from memcore.units import bytes_text
from memcore.words.engines import ENGINES, other_versions
from memcore.words.jobs import SERVE
from memcore.words.stored import AS_KEYS

MUCH = 0.05  # of the memory
MOST = 6  # lines
OFF = ("none", "auto", AS_KEYS, False, 0, None)  # what stays so where nobody says else
NUMBERED = ("train.zero",)  # numbers with a meaning each, as words have it
# What every program that is read here does alike: servers page their cache, loops free gradients
# (set_to_none of PyTorch's zero_grad, on since 2.0), and embeddings' gradients are dense.
ALIKE = ("serve.kv_cache", "train.gradients", "train.embedding_gradient")
ENGINE = "serve.engine"  # of whose words those of other versions of its program count
SINCE = "since no file says it"


@dataclass(frozen=True, slots=True)
class Undecided:
    """A field that no file says and that decides much. `decides`: whether with another of its
    values the plan fits and does not fit."""

    issue: Issue
    decides: bool


def undecided(plan: Plan, told: Collection[str]) -> list[Undecided]:
    """The fields that decide most of what a plan is about and that are not among `told`: those that
    decide whether it fits first, then the largest."""
    now = _memory(plan)
    if now is None:
        return []
    rows = [row for path in _open(plan, told) if (row := _row(plan, path, told, now))]
    rows.sort(key=lambda row: (not row[1].decides, -row[0]))
    return [row for _, row in rows[:MOST]]


def with_fullest_version(plan: Plan) -> Plan:
    """A plan of a server with the version of its engine's program that takes the most memory, where
    versions differ by much: what fits in it fits in all of them."""
    now = _memory(plan)
    for other in other_versions(plan.serve.engine) if now else ():
        changed = _with(plan, ENGINE, other)
        then = _memory(changed) if changed else None
        if changed and then and now and then[0] > (1 + MUCH) * now[0]:
            plan, now = changed, then
    return plan


def _open(plan: Plan, told: Collection[str]) -> Iterator[str]:
    """Fields of words that have a meaning in the plan and stand open."""
    section = "serve." if plan.about == SERVE else "train."
    for path in field_paths():
        when = facts(path).when
        if (
            path.startswith(section)
            and path not in told
            and path not in ALIKE
            and (words_of(path) or path in NUMBERED)
            and get(plan, path) not in OFF
            and (when is None or when(lambda other: get(plan, other), plan.architecture))
        ):
            yield path


def _row(
    plan: Plan, path: str, told: Collection[str], now: tuple[int, bool]
) -> tuple[int, Undecided] | None:
    """How many bytes another value of a field moves, and what is said of it; None where it is
    little."""
    size, fits = now
    value = get(plan, path)
    least, most = limits_of(path) if path in NUMBERED else (0, -1)
    moved: dict[Any, tuple[int, bool]] = {}
    words = other_versions(value) if path == ENGINE else words_of(path)
    for other in words or range(int(least), int(most) + 1):
        changed = _with(plan, path, other) if other not in (value, "auto") else None
        if changed is None or any(get(changed, each) != get(plan, each) for each in told):
            continue
        if then := _memory(changed):
            moved[other] = (then[0] - size, then[1])
    if not moved:
        return None
    ends = {
        min(moved, key=lambda each: moved[each][0]),
        max(moved, key=lambda each: moved[each][0]),
    }
    ends = {each for each in ends if abs(moved[each][0]) > MUCH * size}
    texts = [_end(path, each, *moved[each], fits) for each in moved if each in ends]
    if not texts:
        return None
    fullest = " and it takes the most" * all(other[0] < 0 for other in moved.values())
    since = f"since no file says its version{fullest}" if path == ENGINE else SINCE
    said = f"{value_text(path, value)}, {since}; {', '.join(texts)}"
    decides = any(moved[each][1] != fits for each in ends)
    return max(abs(moved[each][0]) for each in ends), Undecided(Issue(path, said), decides)


def _with(plan: Plan, path: str, other: Any) -> Plan | None:
    """The plan with another value of a field; a ZeRO stage brings its framework."""
    return (settled if path in NUMBERED else planned)(plan, {path: other})


def _end(path: str, other: Any, moved: int, fits: bool, before: bool) -> str:
    more = "more" if moved > 0 else "less"
    verdict = "" if fits == before else " (which fits)" if fits else " (which does not fit)"
    name = ENGINES[other].versions if path == ENGINE else value_text(path, other)
    return f"{name} would be {bytes_text(abs(moved))} {more}{verdict}"


def _memory(plan: Plan) -> tuple[int, bool] | None:
    """Bytes of a GPU that a plan's words decide, and whether it may fit: what training allocates,
    or a server's weights with the cache that is asked for. None where nothing is planned."""
    if plan.about == SERVE:
        if not servable(plan.architecture):
            return None
        served = serve(plan)
        return served.weights_bytes + served.sequence_bytes * plan.serve.concurrency, served.fits
    training = Training.of(plan, rows=False)
    if training is None:
        return None
    return training.memory.allocated_bytes, training.memory.verdict != "over"
