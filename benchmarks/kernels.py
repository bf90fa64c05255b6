"""Measure what a GPU's kernels reach, alone: the ceilings and curves that steps are made of.

    python benchmarks/kernels.py OUT.jsonl

Needs torch with CUDA and no Memplan. Each line is one figure: `what`, its shape, `seconds` (median
of repeated runs by CUDA events, over inputs that rotate so that the L2 cache holds none of them),
and versions. The inputs are random numbers: zeros run faster.

copy        one tensor to another in HBM; bytes read and written
matmul      bf16, M x K by K x N
matmul_fp8  the same in float8 with one scale for each tensor (torch._scaled_mm)
attention   causal SDPA, forward, and forward with backward; B, S, heads, KV heads, head size
adamw       torch's fused AdamW over n bf16 parameters
launch      an addition of one element: eager, and from a CUDA graph
link        host to GPU and back, pinned and pageable memory
decode      attention of one new token against a cache
"""

# Each function is called before its loop goes on.
# ruff: noqa: B023

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

Row = dict[str, Any]
MATRICES = ((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (28672, 4096))
MATRICES += ((2048, 2048), (8192, 2048), (2048, 8192), (1024, 1024), (8192, 8192))
MATRICES += ((1280, 8192), (8192, 1024), (128256, 4096), (512, 2048), (2048, 768))
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CACHE = 256 * 2**20  # bytes of inputs to rotate over: five times the L2 of an H100


def timed(run: Callable[[int], Any], least: float = 0.004, turns: int = 7) -> float:
    """Seconds of one run, the median of several stretches of at least `least` seconds."""
    import torch

    def stretch(n: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for i in range(n):
            run(i)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    stretch(3)
    one = max(stretch(3) / 3, 1e-7)
    n = max(1, min(1000, int(least / one)))
    return statistics.median(stretch(n) for _ in range(turns)) / n


def graphed(run: Callable[[int], Any], n: int = 40, turns: int = 7) -> float:
    """Seconds of one run within a CUDA graph of n: no time of the host in it."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(3):
            run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n):
            run(i)
    return timed(lambda _: graph.replay(), turns=turns) / n


def copies() -> Iterator[Row]:
    import torch

    for size in (2**20, 2**24, 2**26, 2**28, 2**30, 2**32):
        a, b = (torch.randn(size // 4, device="cuda") for _ in range(2))
        yield {"what": "copy", "bytes": 2 * size, "seconds": timed(lambda _: b.copy_(a))}


def matmuls() -> Iterator[Row]:
    import torch

    for n, k in MATRICES:
        turns = max(1, min(64, CACHE // (2 * n * k)))
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(turns)]
        eights = [w.to(torch.float8_e4m3fn).t() for w in weights]
        one = torch.ones((), device="cuda")
        for m in ROWS:
            if m * n > 2**31 // 2:
                continue
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            count = 3 if m * n * k > 2**37 else 40

            def product(i: int) -> None:
                torch.mm(x, weights[i % turns].t(), out=out)

            row = {"m": m, "n": n, "k": k}
            yield {"what": "matmul", "seconds": graphed(product, count, 3), **row}
            if m >= 16:
                eight = x.to(torch.float8_e4m3fn)

                def product8(i: int) -> None:
                    torch._scaled_mm(eight, eights[i % turns], one, one, out_dtype=torch.bfloat16)

                yield {"what": "matmul_fp8", "seconds": graphed(product8, count, 3), **row}


def attentions() -> Iterator[Row]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    for b, s, h, kv, d in (
        (1, 512, 32, 8, 64),
        (1, 1024, 32, 8, 128),
        (2, 2048, 32, 8, 64),
        (2, 2048, 32, 8, 128),
        (1, 4096, 32, 8, 128),
        (1, 8192, 32, 8, 128),
        (1, 16384, 32, 8, 128),
        (16, 512, 16, 16, 64),
        (64, 197, 16, 16, 64),
        (2, 2048, 4, 1, 256),
    ):
        q, k, v = (
            torch.randn(b, n, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for n in (h, kv, kv)
        )
        row = {"b": b, "s": s, "heads": h, "kv_heads": kv, "head_size": d}
        g = torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16)

        def forward(_: int) -> Any:
            return attend(q, k, v, is_causal=True, enable_gqa=h != kv)

        def both(i: int) -> None:
            torch.autograd.grad(forward(i), (q, k, v), g)

        with torch.no_grad():
            yield {"what": "attention", "pass": "forward", "seconds": timed(forward), **row}
        yield {"what": "attention", "pass": "both", "seconds": timed(both), **row}


def decodes() -> Iterator[Row]:
    """Attention of one token for each sequence, from a graph, cold caches."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    for b, s in ((1, 512), (1, 4096), (16, 512), (16, 4096), (64, 1024), (64, 4096)):
        h, kv, d = 32, 8, 128
        turns = max(1, min(8, CACHE // (4 * b * kv * s * d)))
        caches = [
            torch.randn(2, b, kv, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(turns)
        ]
        q = torch.randn(b, h, 1, d, device="cuda", dtype=torch.bfloat16)

        def one(i: int) -> Any:
            return attend(q, *caches[i % turns], enable_gqa=True)

        row = {"b": b, "s": s, "heads": h, "kv_heads": kv, "head_size": d}
        with torch.no_grad():
            yield {"what": "decode", "seconds": graphed(one, 16, 3), **row}


def optimizers() -> Iterator[Row]:
    import torch

    for n in (2**26, 2**29):
        parameter = torch.nn.Parameter(torch.randn(n, device="cuda", dtype=torch.bfloat16))
        parameter.grad = torch.randn_like(parameter)
        for name, words in (("fused", {"fused": True}), ("foreach", {"foreach": True})):
            optimizer = torch.optim.AdamW([parameter], lr=1e-5, **words)
            optimizer.step()
            seconds = timed(lambda _, o=optimizer: o.step())
            yield {"what": "adamw", "kind": name, "parameters": n, "seconds": seconds}
        del parameter


def launches() -> Iterator[Row]:
    import torch

    x = torch.zeros(1, device="cuda")
    yield {"what": "launch", "kind": "eager", "seconds": timed(lambda _: x.add_(1))}
    yield {"what": "launch", "kind": "graph", "seconds": graphed(lambda _: x.add_(1), 1000)}
    many = [torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    with torch.no_grad():
        layer = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
        few = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
        yield {"what": "launch", "kind": "linear", "seconds": timed(lambda _: layer(few))}
    yield {"what": "launch", "kind": "matmul", "seconds": graphed(lambda _: many[0] @ many[1], 20)}

    def autograd(_: int) -> None:
        y = few
        for _ in range(20):
            y = layer(y)
        y.sum().backward()

    seconds = timed(autograd) / 20
    yield {"what": "launch", "kind": "linear with its backward", "seconds": seconds}


def links() -> Iterator[Row]:
    import torch

    for size in (2**20, 2**26, 2**30):
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        for pinned in (True, False):
            here = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
            row = {"what": "link", "bytes": size, "pinned": pinned}
            up = timed(lambda _: there.copy_(here, non_blocking=True), turns=3)
            yield {**row, "way": "host to GPU", "seconds": up}
            down = timed(lambda _: here.copy_(there, non_blocking=True), turns=3)
            yield {**row, "way": "GPU to host", "seconds": down}
    start = time.perf_counter()
    torch.empty(2**32, dtype=torch.uint8, pin_memory=True)
    yield {"what": "pin", "bytes": 2**32, "seconds": time.perf_counter() - start}


def main() -> None:
    import torch

    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    common = {
        "gpu": torch.cuda.get_device_name(),
        "versions": versions,
        "date": datetime.now(UTC).date().isoformat(),
    }
    parts = (copies, launches, links, optimizers, attentions, decodes, matmuls)
    with open(sys.argv[1], "a") as out:
        for part in parts:
            start = time.perf_counter()
            try:
                for row in part():
                    out.write(json.dumps(row | common) + "\n")
                    out.flush()
            except Exception as e:
                print(f"{part.__name__}: {type(e).__name__}: {e}"[:500])
            with contextlib.suppress(Exception):
                torch.cuda.empty_cache()
            print(f"{part.__name__}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
