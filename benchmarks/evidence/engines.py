"""Speeds of engines under load that others measured, beside ours.

presets/evidence/engines.csv    time to first token and per output token in a closed loop: vLLM,
                                SGLang and TensorRT-LLM on H100, H200 and B200, 2025 and 2026.
                                Prompts and outputs may run up to 20 % short. The constants of
                                engines were fitted to nearly all (benchmarks/fit_engines.py).
                                varies: InferenceX draws lengths between 0.8 of those said and
                                all, evenly: a deviation of 0.064 of the mean. Written down for
                                SGLang alone, of whose times it decides; 1 of its version
                                0.5.6.post2, whose first tokens come sooner than of equal lengths
presets/evidence/native.jsonl   llama.cpp's tables, one sequence at a time
presets/evidence/throughput.csv   TensorRT-LLM's greatest output tokens per second
presets/evidence/engines.toml   errors where a GPU or a model was left out of the fit; what other
                                estimators reach
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from memcore.evidence.comparison import text
from memcore.hardware.constants import Constant
from memcore.plan.plan import Plan
from memcore.serving.cache import places
from memcore.serving.serve import serve
from memcore.stream.clock import Clock
from memcore.stream.lengths import draw
from memcore.stream.simulation import run
from memcore.words.engines import LLAMA_CPP, TENSORRT_LLM
from memcore.words.serving import MULTI_TOKEN

TARGETS = (0.010, 0.015, 0.020, 0.030)  # seconds per token
LOW_LOAD = 8  # at once
# memory_utilization of points that the engine's own share would not have let start
HIGHER_UTILIZATION = 0.95
# What the points do not say, and is read off them.
GUESSED = Constant(
    "guesses that are right, of points that seem to have a draft", 0.7768, 0.7768, "ratio",
    "assumed",
    "fitted, with the engines' constants, to the 31 points of DeepSeek-V3 under TensorRT-LLM "
    "1.2.0rc6.post3, which take 0.6 times as long for a token as the same loads two weeks before: "
    "as with multi-token prediction",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One measured point of a closed loop; first and token in seconds.

    guessed   tokens that a step seems to have guessed (GUESSED); 0: none
    varies    standard deviation over mean of its lengths, where they are not all alike
    """

    engine: str
    version: str
    gpu: str
    tp: int
    ep: int
    model: str
    weights: str
    cache: str
    prompt: int
    output: int
    at_once: int
    first: float
    token: float
    guessed: int = 0
    varies: float = 0.0

    @property
    def plan(self) -> Plan:
        words = {
            "engine": self.engine,
            "arrivals": "closed",
            "weight_dtype": self.weights,
            "prompt_len": self.prompt,
            "output_len": self.output,
            "concurrency": self.at_once,
        }
        if self.varies:
            words |= {"prompt_cv": self.varies, "output_cv": self.varies}
        if self.guessed:
            words |= {"draft_model": MULTI_TOKEN, "draft_tokens": self.guessed}
            words |= {"draft_acceptance": GUESSED.middle}
        return Plan.of(
            {
                "model": self.model,
                "cluster": {"gpu": self.gpu, "gpus": self.tp},
                "parallel": {"tp": self.tp, "ep": self.ep},
                "serve": words | ({"kv_dtype": self.cache} if self.cache else {}),
            }
        )


@dataclass(frozen=True, slots=True)
class PointErrors:
    """A point beside ours: relative errors, planned over measured less one; None where nothing
    fits."""

    point: Point
    experts: bool
    token: float | None
    first: float | None


def _rows(name: str) -> Iterator[Mapping[str, str]]:
    yield from csv.DictReader(io.StringIO(text(name)))


@functools.cache
def points() -> tuple[Point, ...]:
    """Every measured point."""
    return tuple(
        Point(
            r["engine"], r["version"], r["gpu"], int(r["tp"]), int(r["ep"]), r["model"],
            r["weights"], r["cache"], int(r["prompt"]), int(r["output"]), int(r["at_once"]),
            float(r["first_ms"]) / 1e3, float(r["token_ms"]) / 1e3, int(r["guessed"] or 0),
            float(r["varies"] or 0),
        )
        for r in _rows("engines.csv")
    )  # fmt: skip


@functools.cache
def point_errors() -> tuple[PointErrors, ...]:
    """All of them beside ours. Takes three seconds or so, once per process."""
    return tuple(map(_errors_of, points()))


@functools.cache
def without_drafts() -> tuple[PointErrors, ...]:
    """The same, where no point has a draft, since none names one."""
    return tuple(
        _errors_of(replace(f.point, guessed=0)) if f.point.guessed else f for f in point_errors()
    )


def _errors_of(point: Point) -> PointErrors:
    plan = point.plan
    s = serve(plan)
    experts = bool(plan.architecture.experts)
    if not s.max_concurrency:
        s = serve(plan.changed("serve.memory_utilization", HIGHER_UTILIZATION))
    if s.tpot_seconds is None or s.ttft_seconds is None:
        return PointErrors(point, experts, None, None)
    return PointErrors(
        point, experts, s.tpot_seconds / point.token - 1, s.ttft_seconds / point.first - 1
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """How far some errors are off: how many, the middle with its sign, the middle and the ninth of
    ten without."""

    count: int
    signed: float
    median: float
    nine_in_ten: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Spread:
        if not errors:
            return cls(0, math.nan, math.nan, math.nan)
        off = sorted(map(abs, errors))
        return cls(len(off), median(errors), median(off), off[-(-9 * len(off) // 10) - 1])


def spread(
    what: Callable[[PointErrors], float | None],
    chosen: Callable[[PointErrors], bool],
    of: Sequence[PointErrors] | None = None,
) -> Spread:
    """Of all points, or of some."""
    every = point_errors() if of is None else of
    return Spread.of([e for f in every if chosen(f) and (e := what(f)) is not None])


def versions(least: int) -> tuple[tuple[str, str], ...]:
    """Engines and their versions of which so many points have figures."""
    known = Counter(
        (f.point.engine, f.point.version) for f in point_errors() if f.token is not None
    )
    return tuple(sorted(key for key, n in known.items() if n >= least))


def error_of_token(f: PointErrors) -> float | None:
    return f.token


def error_of_first(f: PointErrors) -> float | None:
    return f.first


# --- choices under a target ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices of ranks and load under a target for each token, beside those that measurements make.

    best         how many are the measured best one; alike: these, and those that were measured to
                 keep to the target with a throughput that comes within ALIKE of the best one's
    slow         how many were measured to miss the target
    nearest      how many were made where nothing kept to the target by our times: the one that
                 misses it least, as searches answer
    none         how many had no answer at all
    throughput   of each GPU under ours over the best one's, in the median
    """

    count: int
    best: int
    alike: int
    slow: int
    nearest: int
    none: int
    throughput: float


ALIKE = 0.05


@functools.cache
def choices() -> Choices:
    """Those that our times make."""
    return choosing(
        (f.point, None if f.token is None else (1 + f.token) * f.point.token)
        for f in point_errors()
    )


def choosing(every: Iterable[tuple[Point, float | None]]) -> Choices:
    """For each engine, version, GPU, model, dtype and lengths with several tensor parallelisms: the
    ranks and the load with the most tokens per second and GPU whose tokens come within a target, of
    points and how long a token takes by some estimate."""
    groups: dict[tuple[object, ...], list[tuple[Point, float | None]]] = {}
    for p, ours in every:
        key = p.engine, p.version, p.gpu, p.model, p.weights, p.prompt, p.output
        groups.setdefault(key, []).append((p, ours))
    count = best = alike = slow = nearest = none = 0
    shares = []
    for found in groups.values():
        if len({(p.tp, p.ep) for p, _ in found}) < 2:
            continue
        for target in TARGETS:
            theirs = [p for p, _ in found if p.token <= target]
            if not theirs:
                continue
            count += 1
            timed = [(p, t) for p, t in found if t is not None]
            if not timed:
                none += 1
                continue
            kept = [(_each(p, t), p) for p, t in timed if t <= target]
            nearest += not kept
            top = max(theirs, key=lambda p: _each(p, p.token))
            if kept:
                _, chosen = max(kept, key=lambda pair: pair[0])
            else:
                chosen, _ = min(timed, key=lambda pair: pair[1])
            same = (top.tp, top.ep, top.at_once) == (chosen.tp, chosen.ep, chosen.at_once)
            share = _each(chosen, chosen.token) / _each(top, top.token)
            keeps = chosen.token <= target
            best += same
            alike += same or (keeps and share >= 1 - ALIKE)
            slow += not keeps
            shares.append(share)
    return Choices(count, best, alike, slow, nearest, none, median(shares))


def _each(point: Point, token: float) -> float:
    """Tokens per second of each GPU."""
    return point.at_once / token / point.tp


# --- llama.cpp, and the greatest throughput ------------------------------------------------------


@functools.cache
def native() -> tuple[tuple[str, float], ...]:
    """llama.cpp's tables: 'token' or 'first', and how far ours is off."""
    found: list[tuple[str, float]] = []
    for line in text("native.jsonl").splitlines():
        r = json.loads(line)
        plan = Plan.of(
            {
                "model": r["model"],
                "cluster": {"gpu": r["gpu"], "gpus": 1},
                "serve": {
                    "engine": LLAMA_CPP,
                    "weight_dtype": r["weights"],
                    "kv_dtype": r["cache"],
                    "concurrency": 1,
                    "prompt_len": r["prompt"],
                    "output_len": r["output"],
                },
            }
        )
        s = serve(plan)
        ours = s.tpot_seconds if r["what"] == "token" else s.ttft_seconds
        if ours is not None:
            found.append((r["what"], ours / (r["ms"] / 1e3) - 1))
    return tuple(found)


def greatest() -> Iterator[tuple[Plan, bool, float]]:
    """TensorRT-LLM's greatest output as plans: whether of a mixture, and tokens per second."""
    for r in _rows("throughput.csv"):
        plan = Plan.of(
            {
                "model": r["model"],
                "cluster": {"gpu": r["gpu"], "gpus": int(r["tp"])},
                "parallel": {"tp": int(r["tp"])},
                "serve": {
                    "engine": TENSORRT_LLM,
                    "weight_dtype": r["weights"],
                    "kv_dtype": r["cache"],
                    "prompt_len": int(r["prompt"]),
                    "output_len": int(r["output"]),
                    "concurrency": 2048,
                    "memory_utilization": 0.95,
                    "prefill": "chunked",
                    "arrivals": "burst",
                    "lengths": "fixed",
                    "requests": int(r["requests"]),
                    "max_seq_len": int(r["prompt"]) + int(r["output"]),
                },
            }
        )
        yield plan, bool(plan.architecture.experts), float(r["tokens_per_second"])


@functools.cache
def throughput() -> tuple[tuple[bool, float], ...]:
    """Whether of a mixture, and how far our seconds are off. Takes some seconds: each is a stream
    of up to 3,000 requests."""
    found = []
    for plan, experts, measured in greatest():
        s = serve(plan)
        ours = run(plan, "paged", draw(plan), Clock.of(plan), places(plan, s)).tokens_per_second
        found.append((experts, measured / ours - 1))
    return tuple(found)


@functools.cache
def engines_table() -> Mapping[str, Any]:
    """`left_out` and `others`, as the file has them."""
    return tomllib.loads(text("engines.toml"))
