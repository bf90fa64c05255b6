"""How much faster plans are answered than by Calculon: `python benchmarks/beside_calculon.py
CHECKOUT`, a checkout of github.com/calculon-ai/calculon (which needs the package psutil). Prints
figures, never fails; target: 1,000 times as many plans a second on one core.

Calculon's own search goes through 3,232,128 ways to train GPT-3 175B on 64 A100 80 GB with 64
sequences a step (3 words of recomputation, 3 of tensor parallelism, 8 of offload, 8 of networks):
SAMPLED of them are asked, drawn at random. Ours: the same model on the same GPUs, memory with step
time over micro-batches and lengths, and all ways to train it. CPU seconds of one process each.
Calculon says more of a plan than two numbers, and neither has all the words of the other: this is a
ratio of rates, not of the same answers.

Then what fits in Calculon of the plans that both have: where the best of each stands in the other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memcore import Plan, PlanError, search, sweep
from memcore.training.training import Training

SAMPLED = 2_100
GPUS, BATCH = 64, 64
OURS: dict[str, Any] = {
    "model": {
        "model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "vocab_size": 51200,
        "n_positions": 2048,
    },
    "cluster": {"gpu": "a100-sxm-80gb", "gpus": GPUS},
    "parallel": {"tp": 8, "pp": 8},
    "train": {
        "framework": "megatron", "kernels": "megatron", "zero": 0, "seq_len": 2048,
        "grad_accumulation": BATCH,
    },
}  # fmt: skip
AXES = {
    "train.micro_batch": list(range(1, 1025)),
    "train.seq_len": [64 * i for i in range(1, 1025)],
}


RECOMPUTED = {"full": "full", "attn_only": "selective", "none": "none"}
Way = dict[str, Any]


class Calculon:
    """A checkout of it."""

    def __init__(self, checkout: Path):
        sys.path.insert(0, str(checkout))
        from calculon.llm.llm import Llm  # type: ignore[import-not-found]
        from calculon.system import System  # type: ignore[import-not-found]

        self.llm = Llm
        self.app = Llm.Application(json.loads((checkout / "models/gpt3-175B.json").read_text()))
        self.system = System(json.loads((checkout / "systems/a100_80g.json").read_text()))

    def asked(self, way: Way) -> dict[str, Any] | None:
        """What it says of a way, or None where that does not fit or is none."""
        try:
            model = self.llm(self.app, logging.Logger("calculon"))
            model.compile(self.system, self.llm.Execution.from_json(way))
            model.run(self.system)
        except self.llm.Error:
            return None
        return dict(model.get_stats_json(False))

    def ways(self, shared: bool) -> Iterator[Way]:
        """Those of its search (OptimalExecution.search); `shared`: those that Memplan has too, each
        on the fastest network that it fits on."""
        llm, app = self.llm, self.app
        either = (False,) if shared else (True, False)
        for tp in llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads):
            for pp in llm.get_all_pipeline_parallelisms(GPUS, tp, app.num_blocks):
                dp = llm.get_data_parallelism(GPUS, tp, pp)
                batch = BATCH // dp * dp
                kinds = ("ar", "rs_ag") if shared else ("ar", "p2p_rs_ag", "rs_ag")
                sent = ("none",) if shared or tp == 1 else ("none", "ring", "pipe")
                nets: Any = ((0, 1) if n > 1 else (0,) for n in (tp, pp, dp))
                if shared:
                    nets = ((int(tp > 8),), (int(tp * pp > 8),), (int(dp > 1),))
                words = itertools.product(
                    llm.get_valid_pipeline_interleavings(app.num_blocks, pp), RECOMPUTED,
                    (True, False) if dp > 1 else (False,), kinds, sent,
                    (dp > 1,) if shared or dp == 1 else (True, False), either, either, either,
                    llm.get_valid_microbatch_sizes(app.seq_size, tp, dp, batch, pp), *nets,
                )  # fmt: skip
                for (
                    interleaved, again, sharded, kind, ring, hidden, weights, left, states, micro,
                    *net,
                ) in words:  # fmt: skip
                    if again == "full" and left:
                        continue
                    redo = not shared and llm.can_redo_ag(kind, again)
                    for gathered in (True, False) if redo else (False,):
                        yield {
                            "num_procs": GPUS, "tensor_par": tp, "pipeline_par": pp,
                            "data_par": dp, "tensor_par_net": net[0], "pipeline_par_net": net[1],
                            "data_par_net": net[2], "batch_size": batch, "microbatch_size": micro,
                            "datatype": "float16", "fused_activation": True,
                            "attention_type": "multihead", "activation_recompute": again,
                            "pipeline_interleaving": interleaved, "optimizer_sharding": sharded,
                            "tensor_par_comm_type": kind, "tensor_par_overlap": ring,
                            "seq_par_ag_redo": gathered, "data_par_overlap": hidden,
                            "weight_offload": weights, "activations_offload": left,
                            "optimizer_offload": states, "training": True,
                        }  # fmt: skip


def ours(way: Way) -> Plan | None:
    """One of its ways as a plan; None where a rule forbids that."""
    tp, micro = way["tensor_par"], way["microbatch_size"]
    changes = {
        "parallel.tp": tp,
        "parallel.pp": way["pipeline_par"],
        "parallel.virtual_stages": way["pipeline_interleaving"],
        "parallel.sequence_parallel": tp > 1 and way["tensor_par_comm_type"] == "rs_ag",
        "train.zero": int(way["optimizer_sharding"]),
        "train.micro_batch": micro,
        "train.grad_accumulation": way["batch_size"] // (micro * way["data_par"]),
        "train.checkpointing": RECOMPUTED[way["activation_recompute"]],
        "train.attention": "eager",  # as Calculon's has scores
    }
    try:
        return Plan.of(OURS).with_changes(changes)
    except PlanError:
        return None


def agreement(theirs: Calculon) -> str:
    """Where the best of each stands in the other, of what fits in both."""
    times: dict[str, tuple[float, float]] = {}  # by plan
    for way in theirs.ways(shared=True):
        said, plan = theirs.asked(way), ours(way)
        if said and plan:
            training = Training.planned(plan, rows=False)
            if training.room.fits:
                times[plan.model_dump_json()] = said["total_time"], training.seconds
    best = [min(times.values(), key=lambda of: of[i]) for i in (0, 1)]
    places = [1 + sum(of[1 - i] < best[i][1 - i] for of in times.values()) for i in (0, 1)]
    return (
        f"of {len(times)} plans that fit in both, its best is number {places[0]} here, and the "
        f"best here its number {places[1]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    calculon = Calculon(parser.parse_args().checkout)
    every = sum(1 for _ in calculon.ways(shared=False))
    drawn = set(random.Random(0).sample(range(every), SAMPLED))
    sample = [way for n, way in enumerate(calculon.ways(shared=False)) if n in drawn]
    start = time.process_time()
    fitting = sum(calculon.asked(way) is not None for way in sample)
    theirs = len(sample) / (time.process_time() - start)
    print(f"Calculon: {theirs:,.0f} plans a second, {fitting} of {len(sample)} of {every:,} fit")
    plan = Plan.of(OURS)
    start = time.process_time()
    rows = len(sweep(plan, AXES, ["memory.allocated_bytes", "time.step_seconds"]))
    rate = rows / (time.process_time() - start)
    print(f"sweep, memory and time: {rate:,.0f} plans a second, {rate / theirs:,.0f} times")
    start = time.process_time()
    rate = search(plan).evaluated / (time.process_time() - start)
    print(f"search: {rate:,.0f} combinations a second, {rate / theirs:,.0f} times")
    print(agreement(calculon))


if __name__ == "__main__":
    main()
