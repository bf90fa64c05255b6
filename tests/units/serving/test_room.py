"""The quantities of a server's room read arrays as they read numbers."""

import dataclasses
import itertools

import numpy as np
import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.quantity.reading import Either, Values
from memcore.report import Serve
from memcore.search.sweep import Swept
from memcore.serving.server import Server

AXES = {
    "serve.concurrency": [1, 7, 300],
    "serve.prompt_len": [16, 500, 6000],
    "serve.output_len": [1, 129, 2048],
    "serve.memory_utilization": [0.02, 0.5, 0.93],
    "serve.block_size": [8, 16, 48],
}
TIMES = {f.name for f in dataclasses.fields(Serve) if "None" in str(f.type)}
ROOM = [f.name for f in dataclasses.fields(Serve) if f.name not in {*TIMES, "rows"}]
PLANS = {
    "pages": {},
    "a window": {"model": "gemma-3-1b"},
    "states": {"model": "qwen3-next-80b-a3b", "serve": {"tp": 4, "max_batched_tokens": 777}},
    "states alone": {"model": "mamba-codestral-7b", "serve": {"kv_cache": "contiguous"}},
    "reserved": {"serve": {"kv_cache": "contiguous", "max_seq_len": 9000, "offload_weights": 2.5}},
    "a window without pages": {"model": "gemma-3-1b", "serve": {"kv_cache": "contiguous"}},
    "on the host": {"serve": {"offload_kv": "cpu", "kv_cache": "contiguous"}},
    "a draft": {
        "model": "llama-3-70b",
        "serve": {"tp": 4, "draft_model": "llama-3.2-1b", "draft_tokens": 3},
    },
    "chunked": {"serve": {"prefill": "chunked", "draft_tokens": 2, "draft_acceptance": 0.6}},
    "latent": {"model": "deepseek-v3", "serve": {"tp": 8}},
}


@pytest.mark.parametrize("document", PLANS.values(), ids=PLANS)
def test_each_cell_is_that_of_evaluate(document):
    """Every number of the room over five fields at once; ten of the cells each."""
    plan = Plan.of(document)
    grid = np.meshgrid(*AXES.values(), indexing="ij")
    arrays = {name: of.ravel() for name, of in zip(AXES, grid, strict=True)}
    hardware = Either(plan.accelerator, plan.node)
    x = Values(plan=Swept(plan, arrays), hardware=hardware, server=Server.of(plan))
    columns = {name: np.broadcast_to(getattr(x.serve, name), grid[0].size) for name in ROOM}
    cells = list(itertools.product(*AXES.values()))
    compared = 0
    for i in range(0, len(cells), len(cells) // 10 - 1):
        given = plan.document()
        for name, value in zip(AXES, cells[i], strict=True):
            given["serve"][name.removeprefix("serve.")] = value
        try:
            report = evaluate(Plan.of(given))
        except PlanError:  # a rule of words or sizes forbids this cell
            continue
        for name in ROOM:
            assert columns[name][i] == getattr(report.serve, name), (name, cells[i])
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize(("tp", "fits"), [(1, False), (4, True)])
def test_a_cache_on_the_host_does_not_make_room_for_weights(tp, fits):
    """131 GiB of weights on a GPU of 80 GB: they stay on it, wherever the cache is."""
    served = evaluate(
        Plan(
            model="llama-3.3-70b",
            cluster={"gpus": 4},
            serve={"tp": tp, "offload_kv": "cpu"},
        )
    ).serve
    assert (served.fits, bool(served.kv_budget_bytes), bool(served.max_concurrency)) == (fits,) * 3
