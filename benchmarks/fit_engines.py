"""Fit the constants of engines to presets/evidence/engines.csv and throughput.csv, and again
without each GPU, each model and each ninth of the cells (engine, GPU, ranks and model):
`python benchmarks/fit_engines.py [--left-out]`. Prints what
memcore/hardware/kernels.py and [engines] of presets/words.toml have (rounded), and the rows of
presets/evidence/engines.toml.

What each point's steps do is asked of the engine once; then seconds are sums of it, and the fit is
a coordinate search that minimizes the mean absolute logarithm of planned over measured, cut off at
0.5 per token and at 0.8, with a weight of 0.3, of the first token; and with a weight of 0.4 that
of the greatest throughput, as a step in which as many prompts are read as answers end. Neither
the ninth in ten nor choices under a target are fitted to: with both in the sum, cells that were
left out were 10.1 and not 8.7 % off a token, and no more choices were right.

Points tell some constants apart badly. So what is LIKELY of two of them weighs a little against the
points, and so do other engines' values of the same constant (TOGETHER). Every fit begins at START,
which no point was asked for: one that began at the fit to all would keep what it should not know
wherever the other points say little.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidence.engines import Point, choosing, greatest, points
from memcore.hardware.accelerator import Accelerator
from memcore.hardware.kernels import WIDENED_4
from memcore.plan.plan import Plan
from memcore.serving import time as served
from memcore.serving.server import Server
from memcore.timing.communication import Links
from memcore.timing.roofline import product_flops

Array = NDArray[Any]
DENSE, GROUPED, ATTENTION, SMALL, WIDE, ROWS = range(6)
ENGINES = ("vllm", "sglang", "tensorrt-llm")
# Held: what the points do not tell apart, or what other rows say.
HELD = {"attention": 0.65}
# No product is known to reach more under load: power is limited.
MOST = {"bf16": 0.75, "fp8": 0.75, "fp8 Blackwell": 0.75, "fp4": 0.75, "widened": 1.0,
        "read": 0.93, "cache": 0.93, "rows": 1.0, "link": 1.0, "alike": 1.0,
        "guessed": 0.95}  # fmt: skip
PRODUCTS = ("bf16", "fp8", "bf16 Blackwell", "fp8 Blackwell", "fp4 Blackwell")
OF_THROUGHPUT = 0.4
SMALL_ERROR = 0.05  # of a logarithm, below which errors count as their squares
PARTS = 9  # of the cells
FEW = 30  # points of an architecture, below which it has no constants of its own
# Not fitted to, though the errors count them: these rows are of the same runs as others that one
# GPU cannot hold, and a token takes as long with 4 sequences as with 20 (docs/accuracy.md). Where
# gpt-oss is left out they would be all that says what experts take vLLM on Hopper.
UNLIKE = ("vllm", "0.12.0", "h200-sxm-141gb", "qwen3-235b-a22b")
TEN = 10  # points of a kind, below which nothing is fitted to it


def operations(server: Server, parts: Sequence[served.Part]) -> list[tuple[float, ...]]:
    """What each does: its kind, FLOPs, bytes of weights and of others."""
    found, small, rows = [], 0.0, 0.0
    for p in parts:
        o = p.time
        if p.kind == served.ATTENTION:
            found.append((ATTENTION, o.flops, 0.0, o.hbm_bytes))
        elif p.execution and p.execution.work.flops:
            amounts = server.amounts(p.batch, p.tokens)
            work, padded = product_flops(p.execution.work, amounts, server.plan.accelerator.sms)
            done = (padded if p.batch * p.tokens >= served.SPLIT_ROWS else work) * o.runs
            kind = GROUPED if served.grouped(p.execution) else DENSE if p.bits < 16 else WIDE
            found.append((kind, done, p.weights, o.hbm_bytes - p.weights))
        elif p.execution and served.moves_rows(p.execution):
            rows += o.hbm_bytes
        elif p.execution:
            small += o.hbm_bytes
    return [*found, (SMALL, 0.0, 0.0, small), (ROWS, 0.0, 0.0, rows)]


@dataclass(frozen=True)
class Row:
    """A server and its steps: their operations, tokens, sequences, and whether they read
    prompts."""

    server: Server
    engine: str
    running: int
    steps: Sequence[tuple[Sequence[served.Part], int, int, bool]]


def products(gpu: Accelerator, dtype: str) -> int:
    """Which of PRODUCTS is meant."""
    return PRODUCTS.index(
        f"{dtype} Blackwell" if gpu.architecture.startswith("Blackwell") else dtype
    )


class Steps:
    """Steps of some servers as columns."""

    def __init__(self, rows: Sequence[Row]) -> None:
        plans: list[Plan] = [r.server.plan for r in rows]
        gpus: list[Accelerator] = [p.accelerator for p in plans]
        models = [p.architecture for p in plans]
        rates = [served.rates_of(r.server) for r in rows]
        bits = [min(r.server.bits.values()) for r in rows]
        every = [[operations(r.server, s[0]) for s in r.steps] for r in rows]
        most = max(len(found) for row in every for found in row)
        self.work = np.zeros((len(rows[0].steps), len(rows), most, 4))
        self.work[..., 0] = SMALL
        for i, row in enumerate(every):
            for k, found in enumerate(row):
                self.work[k, i, : len(found)] = found
        columns = [np.ascontiguousarray(self.work[..., j]) for j in range(4)]
        self.kind, self.flops, self.weights, self.others = columns
        self.tokens = np.array([[s[1] for s in r.steps] for r in rows], float).T
        self.sequences = np.array([[s[2] for s in r.steps] for r in rows], float).T
        self.reads = [s[3] for s in rows[0].steps]
        self.waves = np.array([served.in_waves(r.server) for r in rows])
        self.guesses = np.array([p.serve.draft_tokens for p in plans], float)
        self.drafts = np.array([[drafting(s[0]) for s in r.steps] for r in rows]).T  # as they are
        wide = [r.dtype(16) for r in rates]
        narrow = [r.dtype(b) for r, b in zip(rates, bits, strict=True)]
        self.wide, self.narrow = (
            np.array([products(g, d) for g, d in zip(gpus, dtypes, strict=True)])
            for dtypes in (wide, narrow)
        )
        self.peaks = np.array(
            [(g.peak_flops(w), g.peak_flops(n))
             for g, w, n in zip(gpus, wide, narrow, strict=True)]
        )  # fmt: skip
        self.widens = np.array(
            [w == n and b < 6 for w, n, b in zip(wide, narrow, bits, strict=True)]
        )
        self.blackwell = np.array([g.architecture.startswith("Blackwell") for g in gpus])
        self.engine = np.array([ENGINES.index(r.engine) for r in rows])
        self.running = np.array([r.running for r in rows], float)
        self.bandwidth = np.array([g.memory_bandwidth for g in gpus])
        self.alike = np.array([r.server.alike for r in rows])  # as they are counted now
        self.balanced = np.array([m.traits.router_sigmoid for m in models])
        self.tp = np.array([p.serving_tp for p in plans], float)
        self.peer = np.array([Links.of(p, p.serving_tp).peer or 1.0 for p in plans])
        self.layers = np.array([m.layers for m in models], float)
        self.latent = np.array([bool(m.kv_rank) for m in models])
        self.hidden = np.array([m.hidden_size for m in models], float)
        self.routed = np.array([served.routed_layers(r.steps[0][0]) for r in rows], float)
        self.experts = np.array([m.experts or 0 for m in models], float)
        self.chosen = np.array([m.top_k or 0 for m in models], float)
        self.ring = np.array(
            [[ring(r.server, s[1]) for s in r.steps] for r in rows]
        ).T  # fmt: skip
        self.reductions = np.array(
            [r.server.reductions if p.serving_tp > 1 else 0
             for r, p in zip(rows, plans, strict=True)], float
        )  # fmt: skip

    def seconds(self, k: int, c: dict[str, float]) -> Array:
        """Of one step of each."""
        kind, work, weights, others = self.kind[k], self.flops[k], self.weights[k], self.others[k]
        shares = np.array([c.get(key, c[key.split()[0]]) for key in PRODUCTS])
        wide, narrow = self.peaks[:, 0] * shares[self.wide], self.peaks[:, 1] * shares[self.narrow]
        rate = np.where(kind == WIDE, wide[:, None], narrow[:, None])
        rate = np.where(kind == ATTENTION, (self.peaks[:, 0] * c["attention"])[:, None], rate)
        read = (self.bandwidth * c["read"])[:, None]
        cached = (self.bandwidth * c["cache"])[:, None]
        slow = self.widens[:, None] & (kind == GROUPED)
        weights = np.where(slow, weights / c["widened"], weights)
        others_of = self.tokens[k] - 1
        alike = np.where(self.balanced, 1.0, c["alike"])
        alike = self.touched(1 + others_of * alike) / self.touched(1 + others_of * self.alike)
        weights = np.where(kind == GROUPED, weights * alike[:, None], weights)
        moved = (weights + others) / np.where(kind == ATTENTION, cached, read)
        each = np.maximum(work / rate, moved)
        found = np.where(kind == ROWS, others / (read * c["rows"]), each).sum(1)
        layer = np.array([c[f"layer {e}"] for e in ENGINES])[self.engine]
        if self.reads[k]:
            layer = layer + np.where(self.latent, c["prompts latent"], c["prompts"])
        layer = layer + np.where(self.latent, c["absorbed"], 0.0)
        each = [c.get(f"routed {e}", c["routed"]) for e in ENGINES]
        routed = np.array(each)[self.engine]
        found += 1e-6 * (self.layers * layer + ~self.blackwell * self.routed * routed)
        moved = 2 * self.tokens[k] * self.hidden * 2 * (self.tp - 1) / self.tp / self.peer
        wait = 1e-6 * (c["hop"] + c["rank"] * (self.tp - 1))
        found += self.reductions * np.minimum(wait + moved / c["link"], self.ring[k])
        found += 1e-3 * self.by_engine(c, "step") + self.drafts[k]
        return np.asarray(found + 1e-6 * c["sequence"] * self.sequences[k])

    def of(self, engine: str) -> Array:
        return np.asarray(self.engine == ENGINES.index(engine))

    def by_engine(self, c: dict[str, float], name: str) -> Array:
        """A constant of each engine; TensorRT-LLM's on Blackwell is its own where there is one."""
        found = np.array([c[f"{name} {e}"] for e in ENGINES])[self.engine]
        there = self.of("tensorrt-llm") & self.blackwell
        return np.where(there, c.get(f"{name} tensorrt-llm Blackwell", found), found)

    def touched(self, tokens: Array) -> Array:
        """The share of experts that so many tokens choose at random."""
        left = 1 - self.chosen / np.maximum(1, self.experts)
        return np.where(self.experts > 0, 1 - left**tokens, 1.0)


def drafting(parts: Sequence[served.Part]) -> float:
    """Seconds of a draft's own model, with the constants of now."""
    return served.seconds([p for p in parts if p.kind == served.DRAFT])


def ring(server: Server, tokens: int) -> float:
    """Seconds of an all-reduce as rings are elsewhere, which engines need not exceed."""
    plan = server.plan
    moved = 2.0 * tokens * plan.architecture.hidden_size
    over = Links.of(plan, plan.serving_tp)
    return max(over.reduce(moved).values()) if plan.serving_tp > 1 else 0.0


def closed(server: Server, engine: str) -> Row:
    """A closed loop: a step of all, one with prompts, and a prompt alone."""
    s, plan = server.numbers.serve, server.plan.serve
    n, now = int(s.running), int(s.joining_tokens)
    rows, prompts = n * (1 + plan.draft_tokens), max(1, round(now / plan.prompt_len))
    beside, who = (rows, n) if served.mixes(server) else (0, prompts)
    return Row(server, engine, n, [
        (s.decode, rows, n, False),
        (s.joined, beside + now, who, True),
        (s.prefill, plan.prompt_len, 1, True),
    ])  # fmt: skip


def steady(server: Server) -> Row:
    """A step of the greatest throughput."""
    s = server.plan.serve
    each = s.prompt_len / s.output_len
    fit = int(server.numbers.serve.max_concurrency)
    n = min(s.concurrency, fit, int(server.plan.batched_tokens / (1 + each)))
    prompts = max(1, round(n / s.output_len))
    now = round(n * each)
    found = served.of_layers(server, 1, n + now)
    found += served.mixing(server, n, 1, served.context_of(server))
    part = max(1, now // prompts)
    found += served.mixing(
        server, prompts, part, part if part >= s.prompt_len else s.prompt_len / 2
    )
    found += served.of_head(server, n + prompts)
    return Row(server, "tensorrt-llm", n, [(found, n + now, n, True)])


class Table:
    """All points."""

    def __init__(self) -> None:
        kept = [(p, s) for p in points() if (s := Server.of(p.plan)).numbers.serve.running]
        self.steps = Steps([closed(s, p.engine) for p, s in kept])
        rows = [(Server.of(plan), value) for plan, _, value in greatest()]
        self.most = Steps([steady(s) for s, _ in rows])
        self.per_second = np.array([value for _, value in rows])
        self.points = point = [p for p, _ in kept]
        loops = [s.numbers.serve for _, s in kept]
        self.joining = np.array([n.joining_tokens for n in loops], float)
        self.again = np.array([n.again_tokens or 0 for n in loops], float)
        self.together = np.array([served.ends_together(p.plan) for p, _ in kept])
        self.out = np.array([n.out_sequences or 0 for n in loops], float)
        for name in ("prompt", "output", "at_once", "first", "token"):
            setattr(self, name, np.array([getattr(p, name) for p in point], float))
        self.gpu = np.array([p.gpu for p in point])
        self.alike = np.array([p.varies < 1 for p in point])  # else how they differ is not known
        self.model = np.array([p.model for p in point])
        self.unlike = np.array([(p.engine, p.version, p.gpu, p.model) == UNLIKE for p in point])
        self.of_most = {
            "GPU": np.array([s.plan.cluster.gpu for s, _ in rows]),
            "model": np.array([s.plan.model for s, _ in rows]),
        }

    def point_seconds(self, c: dict[str, float]) -> tuple[Array, Array]:
        """Seconds per token, and of the first one (memcore/serving/time.py has the same)."""
        n = self.steps.running
        decode, joined, prompt = (self.steps.seconds(k, c) for k in range(3))
        read, waves = self.prompt + self.again, self.steps.waves
        reading = n * np.maximum(0, joined - np.where(waves, 0, decode)) * read / self.joining
        right = c["guessed"]
        a_step = (1 - right ** (self.steps.guesses + 1)) / (1 - right)
        steps = self.output / a_step * decode
        before = c["wave"] * (n - 1) + c["prompts before"] * reading / (steps + reading)
        others = self.together * np.maximum(0, 0.5 * (reading + joined) - prompt)
        mixed = before * prompt + c["steps before"] * decode
        queue = np.where(waves, np.maximum(others, c["wave"] * (n - 1) * prompt), mixed)
        first = 1e-3 * self.steps.by_engine(c, "first") + prompt + queue
        request = np.maximum(steps + reading, first + steps)
        wait = np.maximum(0, self.at_once - n - self.out) / n * request
        return (request - first + self.out / n * request) / self.output, first + wait

    def loss(self, c: dict[str, float], chosen: Array, most: Array) -> float:
        token, first = self.point_seconds(c)
        a = np.minimum(sized(np.log(token / self.token)), 0.5)
        b = np.where(self.alike, np.minimum(sized(np.log(first / self.first)), 0.8), 0.0)
        ours = self.most.running / self.most.seconds(0, c)
        d = np.minimum(sized(np.log(ours / self.per_second)), 0.5)
        more = OF_THROUGHPUT * d[most].mean() if most.any() else 0.0
        return float((a + 0.3 * b)[chosen].mean() + more + unlikely(c) / chosen.sum())

    def fitted(self, chosen: Array, most: Array) -> dict[str, float]:
        """A coordinate search from START, less what UNLIKE says. What too few points tell is not
        taken from others."""
        chosen, c = chosen & ~self.unlike, START
        if (chosen & self.steps.latent).sum() < TEN:
            c = c | {"absorbed": 0.0}
        held = [*HELD, "guessed"] if (chosen & (self.steps.guesses > 0)).sum() < TEN else HELD
        routed = chosen & ~self.steps.blackwell & (self.steps.routed > 0)
        few = [f"routed {e}" for e in ENGINES if (routed & self.steps.of(e)).sum() < TEN]
        if (chosen & self.steps.blackwell).sum() < FEW:
            few += [name for name in c if name.endswith("Blackwell")]
        c = {k: v for k, v in c.items() if k not in few}
        best, size = self.loss(c, chosen, most), dict.fromkeys(c, 0.25)
        for _ in range(ROUNDS):
            for name in [name for name in c if name not in held]:
                for factor in (1 + size[name], 1 / (1 + size[name])):
                    tried = c | {name: min(c[name] * factor, MOST.get(name, math.inf))}
                    loss = self.loss(tried, chosen, most)
                    if loss < best - 1e-7:
                        best, c, size[name] = loss, tried, size[name] * 1.2
                        break
                else:
                    size[name] *= 0.6
        return c

    def off(self, c: dict[str, float], chosen: Array) -> tuple[int, float, float, float, float]:
        return self.beside(*self.point_seconds(c), chosen)

    def beside(
        self, token: Array, first: Array, chosen: Array
    ) -> tuple[int, float, float, float, float]:
        e, f = (token / self.token - 1)[chosen], (first / self.first - 1)[chosen]
        nine = float(np.percentile(np.abs(e), 90))
        return (
            len(e), float(np.median(e)), float(np.median(np.abs(e))), nine,
            float(np.median(np.abs(f))),
        )  # fmt: skip


def sized(off: Array) -> Array:
    """The size of each error, small ones by their squares."""
    return np.asarray(np.sqrt(off**2 + SMALL_ERROR**2) - SMALL_ERROR)


def unlikely(c: dict[str, float]) -> float:
    """How unlikely constants are: half the squares of how many times further than is likely their
    logarithms are off. One that is as far off as is likely weighs as much as a point can."""
    off = [math.log(c[name] / START[name]) / apart for name, apart in LIKELY.items()]
    for kind, apart in TOGETHER.items():
        each = [math.log(v) for name, v in c.items() if name.split()[0] == kind]
        off += [(x - sum(each) / len(each)) / apart for x in each]
    return 0.5 * sum(x * x for x in off)


# How far these are likely to be from START, in logarithms.
LIKELY = {
    "widened": 0.5,  # what products that are no experts' reach, from other measurements
    "prompts latent": 1.2,  # an order of magnitude: 90 to 1,000 microseconds
}
# How far engines are likely to be from their mean: by a third, by half. Orders of magnitude too.
TOGETHER = {"routed": 0.4, "step": 0.7}
ROUNDS = 40
# Shares that kernels reach elsewhere, and else orders of magnitude; alike for all engines.
START = {
    "read": 0.9, "cache": 0.9,
    "bf16": 0.7, "fp8": 0.65, "fp8 Blackwell": 0.6, "fp4": 0.5, "widened": WIDENED_4.middle,
    "routed": 30.0, "hop": 1.0, "rank": 0.5, "link": 0.6, "alike": 0.7, "rows": 0.7,
    "wave": 0.1, "prompts before": 1.0, "steps before": 1.0, "prompts": 30.0,
    "prompts latent": 300.0, "absorbed": 30.0, "guessed": 0.7, "sequence": 5.0,
    **HELD,
    **{f"routed {e}": 30.0 for e in ("vllm", "sglang")},
    **{f"layer {e}": 50.0 for e in ENGINES},
    **{f"step {e}": 1.0 for e in (*ENGINES, "tensorrt-llm Blackwell")},
    **{f"first {e}": 50.0 for e in (*ENGINES, "tensorrt-llm Blackwell")},
}  # fmt: skip


def main() -> int:
    table = Table()
    every, most = np.ones(len(table.gpu), bool), np.ones(len(table.per_second), bool)
    fit = table.fitted(every, most)
    print({k: float(f"{v:.4g}") for k, v in sorted(fit.items())})
    print("all", [round(x, 4) for x in table.off(fit, every)])
    ours = table.most.running / table.most.seconds(0, fit)
    print("throughput", np.median(np.abs(table.per_second / ours - 1)).round(4))
    if "--left-out" not in sys.argv:
        return 0
    for what, column in (("GPU", table.gpu), ("model", table.model)):
        for name in sorted(set(column)):
            chosen, others = column != name, table.of_most[what] != name
            without = table.fitted(chosen, others)
            said(what, name, table.off(without, ~chosen))
    token, first = np.zeros(len(table.gpu)), np.zeros(len(table.gpu))
    part = parts_of(table.points)
    for k in range(PARTS):
        without = table.fitted(part != k, most)
        for found, of in zip((token, first), table.point_seconds(without), strict=True):
            found[part == k] = of[part == k]
    said("cells", CELLS, table.beside(token, first, every))
    made = choosing(zip(table.points, token, strict=True))
    print(f"# of {made.count} choices {made.best} are the measured best, {made.slow} too slow")
    return 0


CELLS = "a ninth of the cells (engine, GPU, ranks, model), each in turn"


def parts_of(every: Sequence[Point]) -> Array:
    """Which of PARTS each point's cell is in."""
    cells = [f"{p.engine}|{p.gpu}|{p.tp}.{p.ep}|{p.model}" for p in every]
    order = {cell: i % PARTS for i, cell in enumerate(sorted(set(cells)))}
    return np.array([order[cell] for cell in cells])


def said(what: str, name: str, off: tuple[int, float, float, float, float]) -> None:
    """A row of engines.toml."""
    n, signed, token, nine, first = off
    print(f'[[left_out]]\nwhat = "{what}"\nname = "{name}"\npoints = {n}')
    print(f"signed = {signed:.3f}\ntoken = {token:.3f}\nnine_in_ten = {nine:.3f}")
    print(f"first = {first:.3f}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
