"""How long the engine takes: `python benchmarks/engine.py [ROUNDS]`. Prints figures, never fails.

evaluate()      one full evaluation, over plans that differ in everything; target: 2 ms
levers()        every single change to a 70B plan, ranked; target: 50 ms
import          of the engine, `from memcore import evaluate`, in a fresh process; target: 250 ms
                (`import memcore` alone loads none of it)
run()           10,000 requests through a server, by strategy; target: 1 s
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.levers import levers
from memcore.stream import Clock, draw, run
from memcore.words.serving import STRATEGIES

MODELS = ("llama-3-8b", "llama-2-70b", "llama-3.2-1b", "gpt2-xl", {"size": "7B"}, {"size": "1T"})
TRAINING = (
    {"framework": ["fsdp2", "pytorch"], "zero": [0, 2, 3]},
    {"checkpointing": ["none", "full"], "attention": ["eager", "flash"]},
    {"precision": ["bf16-mixed", "bf16-autocast"], "micro_batch": [1, 4]},
)
STREAMS = {
    "paced": {"serve": {"arrival_rate": 20.0}},
    "all at once": {"serve": {"arrivals": "burst", "concurrency": 256, "shared_prefix": 256}},
    "with windows": {"model": "gemma-3-1b", "serve": {"arrival_rate": 20.0, "prefill": "chunked"}},
    "with a draft": {"serve": {"arrival_rate": 20.0, "draft_tokens": 3}},
    "read elsewhere": {"serve": {"arrival_rate": 20.0, "prefill": "disaggregated"}},
}
SLOTS = 50_000  # tokens of the cache, so that sequences put each other out
ROUNDS = 3
IMPORTS = 15


def plans() -> list[Plan]:
    words = {key: values for part in TRAINING for key, values in part.items()}
    found = []
    for model in MODELS:
        for values in itertools.product(*words.values()):
            train = dict(zip(words, values, strict=True), seq_len=1024)
            try:
                found.append(Plan.of({"model": model, "train": train}))
            except PlanError:  # a combination that does not exist
                continue
    return found


LEVERS = {
    "that fits": {"cluster": {"gpus": 64}},
    "on too few GPUs": {"cluster": {"gpus": 8}},
    "with too large a batch": {
        "cluster": {"gpus": 64},
        "train": {"micro_batch": 8, "checkpointing": "none"},
    },
    "under Megatron": {
        "cluster": {"gpus": 64},
        "parallel": {"tp": 4, "pp": 4},
        "train": {
            "framework": "megatron",
            "kernels": "megatron",
            "zero": 1,
            "checkpointing": "none",
            "grad_accumulation": 16,
        },
    },
}


def milliseconds(call: object, argument: object) -> float:
    start = time.perf_counter()
    call(argument)  # type: ignore[operator]
    return 1000 * (time.perf_counter() - start)


def show(name: str, figures: list[float], target: float) -> None:
    figures = sorted(figures)
    p95 = figures[int(0.95 * (len(figures) - 1))]
    print(
        f"{name:<44} median {statistics.median(figures):7.2f} ms   p95 {p95:7.2f} ms   "
        f"target {target:g} ms"
    )


def import_milliseconds(statement: str, times: int) -> list[float]:
    """In fresh processes, with bytecode as an installed package has it: where Python is told not to
    write any, each process would compile every file again."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    with tempfile.TemporaryDirectory() as folder:
        words = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        found = [
            subprocess.run(
                [sys.executable, "-c", code], env=words, capture_output=True, text=True, check=True
            ).stdout
            for _ in range(times + 1)
        ]
    return [1000 * float(text) for text in found[1:]]


def main(rounds: int) -> None:
    documents = [plan.document() for plan in plans()]
    evaluate(Plan())  # presets are read once
    evaluated = []
    validated = []
    for _ in range(rounds):
        for document in documents:
            validated.append(milliseconds(Plan.of, document))
            # A new Plan each time: nothing that an earlier call kept may help.
            evaluated.append(milliseconds(evaluate, Plan.of(document)))
    show(f"evaluate(plan), {len(documents)} plans", evaluated, 2)
    show("Plan.of(document)", validated, 2)
    for name, document in LEVERS.items():
        plan = {"model": "llama-3-70b", **document}
        found = [milliseconds(levers, Plan.of(plan)) for _ in range(IMPORTS)]
        show(f"levers(plan), a 70B plan {name}", found, 50)
    show(
        "from memcore import evaluate, fresh process",
        import_milliseconds("from memcore import evaluate", IMPORTS),
        250,
    )
    for name, words in STREAMS.items():
        plan = Plan.of({**words, "serve": {"requests": 10_000, **words["serve"]}})
        requests, clock = draw(plan), Clock.of(plan)
        for strategy in STRATEGIES:
            took = [
                milliseconds(lambda s: run(plan, s, requests, clock, SLOTS), strategy)  # noqa: B023
                for _ in range(rounds)
            ]
            show(f"10,000 requests, {name}, {strategy}", took, 1000)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
