"""How fast many plans are answered: `python benchmarks/answers.py`. Prints figures, never fails.

All in one process and in its own CPU time, so that what else runs on the machine matters little,
and each beside one `evaluate` in the same run: what counts is the ratio.

sweep()     10^6 micro-batches x lengths of a 70B plan: memory, and with time; target: 10^6 a second
search()    all ways to train a 70B model on up to 8 and 64 GPUs; target: 10^6 combinations in 3 s
solve()     the largest micro-batch, and the fewest GPUs
"""

from __future__ import annotations

import time
from collections.abc import Callable

from memcore import Plan, evaluate, search, solve, sweep

BIG = {"model": "llama-3-70b", "cluster": {"gpus": 8}}
AXES = {
    "train.micro_batch": list(range(1, 1025)),
    "train.seq_len": [128 * i for i in range(1, 1025)],
}
PEAK, STEP = "memory.allocated_bytes", "time.step_seconds"


def seconds(call: Callable[[], object], times: int = 3) -> float:
    """CPU seconds, the least of a few: what is interned is there after the first."""
    took = []
    for _ in range(times):
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return min(took)


def main() -> None:
    plan = Plan.of(BIG)
    one = seconds(lambda: evaluate(Plan.of(BIG)), 20)
    print(f"evaluate: {1000 * one:.2f} ms, {1 / one:,.0f} plans a second")
    n = len(AXES["train.micro_batch"]) * len(AXES["train.seq_len"])
    for name, numbers in (("memory", [PEAK]), ("memory and time", [PEAK, STEP])):
        took = seconds(lambda numbers=numbers: sweep(plan, AXES, numbers))  # type: ignore[misc]
        print(
            f"sweep, {name}: {n / took:,.0f} plans a second, {n / took * one:,.0f} times evaluate"
        )
    for field in ("train.micro_batch", "cluster.gpus"):
        took = seconds(lambda field=field: solve(plan, field))  # type: ignore[misc]
        print(f"solve {field}: {1000 * took:.0f} ms, {took / one:,.0f} times evaluate")
    for gpus, batches in ((8, 1), (64, 4)):
        asked = Plan.of(BIG).with_changes(
            {"cluster.gpus": gpus, "train.grad_accumulation": batches}
        )
        start = time.process_time()
        found = search(asked)
        took = time.process_time() - start
        rate = found.evaluated / took
        print(
            f"search, {gpus} GPUs: {found.evaluated:,} combinations in {took:.1f} s "
            f"{rate:,.0f} a second, {rate * one:,.0f} times evaluate"
        )


if __name__ == "__main__":
    main()
