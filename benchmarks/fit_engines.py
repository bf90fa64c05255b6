"""Fit the constants of engines to presets/evidence/engines.csv, and again without each GPU and each
model: `python benchmarks/fit_engines.py [full]`. Prints what memcore/hardware/kernels.py and
memcore/words/engines.py have (rounded), and the rows of presets/evidence/engines.toml.

What each point's steps do is asked of the engine once; then seconds are sums of it, and the fit is
a coordinate search that minimizes the mean absolute logarithm of planned over measured, cut off at
0.5 per token and at 0.8, with a weight of 0.3, of the first token.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcore.evidence.engines import points
from memcore.serving import time as served
from memcore.serving.server import Server
from memcore.tape.ledger import Amounts
from memcore.timing.communication import Links
from memcore.timing.roofline import product_flops

Array = NDArray[Any]
DENSE, GROUPED, ATTENTION, SMALL, WIDE = range(5)
ENGINES = ("vllm", "sglang", "tensorrt-llm")
STEPS = ("decode", "joined", "prompt")
# Held: what the points do not tell apart, or what other rows say.
HELD = {"read": 0.93, "attention": 0.65, "sequence": 4.0}
MOST = {"bf16": 0.8, "fp8": 0.8, "fp4": 0.8, "grouped": 1.0, "widened": 1.0}


def operations(server: Server, parts: list[served.Part]) -> list[tuple[float, ...]]:
    """What each does: its kind, FLOPs, bytes of weights and of others."""
    found, small = [], 0.0
    for p in parts:
        o = p.time
        if p.kind == served.ATTENTION:
            found.append((ATTENTION, o.flops, 0.0, o.hbm_bytes))
        elif p.execution and p.execution.work.flops:
            amounts: Amounts = server.amounts(p.batch, p.tokens)
            work, padded = product_flops(p.execution.work, amounts, server.plan.accelerator.sms)
            done = (padded if p.batch * p.tokens >= served.SPLIT_ROWS else work) * o.runs
            kind = GROUPED if served.grouped(p.execution) else DENSE if p.bits < 16 else WIDE
            found.append((kind, done, p.weights, o.hbm_bytes - p.weights))
        elif p.execution:
            small += o.hbm_bytes
    return [*found, (SMALL, 0.0, 0.0, small)]


class Table:
    """The points as columns."""

    def __init__(self) -> None:
        rows = []
        for p in points():
            server = Server.of(p.plan)
            s = server.numbers.serve
            if not s.running:
                continue
            n = int(s.running)
            rates = served.rates_of(server)
            lists = [s.decode, s.joined, s.prefill]
            tokens = [n, n + served.joining(server, n), p.prompt]
            gpu = server.plan.accelerator
            wide = rates.dtype(16)
            narrow = rates.dtype(min(server.bits.values()))
            over = Links.of(server.plan, p.tp)
            routed = served.routed_layers(s.decode)
            blackwell = gpu.architecture.startswith("Blackwell")
            rows.append(
                {
                    "point": p, "running": n, "tokens": tokens, "joining": tokens[1] - n,
                    "operations": [operations(server, found) for found in lists],
                    "wide": wide, "narrow": narrow, "peaks": (gpu.peak_flops(wide),
                    gpu.peak_flops(narrow)), "read": gpu.memory_bandwidth,
                    "peer": over.peer or 1.0, "layers": server.plan.architecture.layers,
                    "routed": 0 if blackwell else routed,
                    "reductions": server.reductions if p.tp > 1 else 0,
                    "hidden": server.plan.architecture.hidden_size,
                    "widens": narrow == wide and min(server.bits.values()) < 6,
                }
            )  # fmt: skip
        self.rows = rows
        most = max(len(found) for r in rows for found in r["operations"])
        self.work = np.zeros((3, len(rows), most, 4))
        self.work[..., 0] = SMALL
        for i, r in enumerate(rows):
            for k, found in enumerate(r["operations"]):
                self.work[k, i, : len(found)] = found
        self.tokens = np.array([r["tokens"] for r in rows], float).T
        for name in ("running", "joining", "read", "peer", "layers", "routed", "reductions"):
            setattr(self, name, np.array([r[name] for r in rows], float))
        self.hidden = np.array([r["hidden"] for r in rows], float)
        self.widens = np.array([r["widens"] for r in rows])
        self.peaks = np.array([r["peaks"] for r in rows], float)
        self.dtypes = [(r["wide"], r["narrow"]) for r in rows]
        point = [r["point"] for r in rows]
        self.engine = np.array([ENGINES.index(p.engine) for p in point])
        for name in ("tp", "prompt", "output", "at_once", "first", "token"):
            setattr(self, name, np.array([getattr(p, name) for p in point], float))
        self.gpu = np.array([p.gpu for p in point])
        self.model = np.array([p.model for p in point])

    def step(self, k: int, c: dict[str, float]) -> Array:
        """Seconds of a step of each point."""
        kind, work, weights, others = (self.work[k, :, :, j] for j in range(4))
        wide = self.peaks[:, 0] * np.array([c[d] for d, _ in self.dtypes])
        narrow = self.peaks[:, 1] * np.array([c[d] for _, d in self.dtypes])
        rate = np.where(kind == WIDE, wide[:, None], narrow[:, None])
        rate = np.where(kind == GROUPED, (narrow * c["grouped"])[:, None], rate)
        rate = np.where(kind == ATTENTION, (self.peaks[:, 0] * c["attention"])[:, None], rate)
        read = (self.read * c["read"])[:, None]
        weights = np.where(self.widens[:, None] & (kind != WIDE), weights / c["widened"], weights)
        each = np.maximum(work / rate, (weights + others) / read)
        found = np.where(kind == SMALL, others / (read * c["small"]), each).sum(1)
        layer = np.array([c[f"layer {e}"] for e in ENGINES])[self.engine]
        found += 1e-6 * (self.layers * layer + self.routed * c["routed"])
        moved = 2 * self.tokens[k] * self.hidden * 2 * (self.tp - 1) / self.tp / self.peer
        found += self.reductions * (1e-6 * (c["hop"] + c["rank"] * (self.tp - 1)) + moved)
        found += 1e-3 * np.array([c[f"step {e}"] for e in ENGINES])[self.engine]
        return np.asarray(found + 1e-6 * c["sequence"] * self.running)

    def felt(self, c: dict[str, float]) -> tuple[Array, Array]:
        """Seconds per token, and of the first one (memcore/serving/time.py has the same)."""
        decode, joined, prompt = (self.step(k, c) for k in range(3))
        more = np.maximum(0, joined - decode) * self.prompt / self.joining
        queue = decode + c["queue"] * (np.sqrt(self.running) - 1) * prompt
        own = 1e-3 * np.array([c[f"first {e}"] for e in ENGINES])[self.engine] * self.layers
        first = own + prompt + queue
        request = np.maximum(self.output * decode + self.running * more,
                             first + self.output * decode)  # fmt: skip
        wait = np.maximum(0, self.at_once - self.running) / self.running * request
        return (request - first) / self.output, first + wait

    def loss(self, c: dict[str, float], chosen: Array) -> float:
        token, first = self.felt(c)
        a = np.minimum(np.abs(np.log(token / self.token)), 0.5)
        b = np.minimum(np.abs(np.log(first / self.first)), 0.8)
        return float((a + 0.3 * b)[chosen].mean())

    def fitted(self, c: dict[str, float], chosen: Array, rounds: int) -> dict[str, float]:
        """A coordinate search from `c`."""
        best, size = self.loss(c, chosen), dict.fromkeys(c, 0.25)
        for _ in range(rounds):
            for name in c.keys() - HELD.keys():
                for factor in (1 + size[name], 1 / (1 + size[name])):
                    tried = c | {name: min(c[name] * factor, MOST.get(name, math.inf))}
                    loss = self.loss(tried, chosen)
                    if loss < best - 1e-6:
                        best, c, size[name] = loss, tried, size[name] * 1.2
                        break
                else:
                    size[name] *= 0.6
        return c

    def off(self, c: dict[str, float], chosen: Array) -> tuple[int, float, float, float, float]:
        token, first = self.felt(c)
        e, f = (token / self.token - 1)[chosen], (first / self.first - 1)[chosen]
        nine = float(np.percentile(np.abs(e), 90))
        return (
            len(e), float(np.median(e)), float(np.median(np.abs(e))), nine,
            float(np.median(np.abs(f))),
        )  # fmt: skip


START = {
    "bf16": 0.75, "fp8": 0.65, "fp4": 0.6, "grouped": 0.9, "small": 0.3, "widened": 0.7,
    "routed": 20.0, "hop": 5.0, "rank": 0.8, "queue": 0.5, **HELD,
    **{f"layer {e}": 50.0 for e in ENGINES}, **{f"step {e}": 0.5 for e in ENGINES},
    **{f"first {e}": 1.0 for e in ENGINES},
}  # fmt: skip


def main() -> int:
    table = Table()
    every = np.ones(len(table.rows), bool)
    start = table.fitted(START, every, 24)
    print({k: round(v, 3) for k, v in sorted(start.items())})
    print("all", [round(x, 4) for x in table.off(start, every)])
    for what, column in (("GPU", table.gpu), ("model", table.model)):
        for name in sorted(set(column)):
            without = table.fitted(start, column != name, 12)
            n, signed, token, nine, first = table.off(without, column == name)
            print(f'[[left_out]]\nwhat = "{what}"\nname = "{name}"\npoints = {n}')
            print(f"signed = {signed:.3f}\ntoken = {token:.3f}\nnine_in_ten = {nine:.3f}")
            print(f"first = {first:.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
