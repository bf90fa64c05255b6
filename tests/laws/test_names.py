"""Names are for people: no number of a Report follows from what a thing is called."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from memcore import Plan, evaluate
from memcore.timing.communication import Move

PLANS = {
    "FSDP2 on two nodes": {
        "model": "llama-3.1-8b",
        "cluster": {"gpu": "h100-sxm-80gb", "gpus": 16},
        "train": {"framework": "fsdp2", "micro_batch": 1},
    },
    "Megatron, interleaved": {
        "model": "mixtral-8x7b",
        "cluster": {"gpu": "h100-sxm-80gb", "gpus": 16},
        "parallel": {"tp": 2, "pp": 2, "ep": 2, "virtual_stages": 2, "sequence_parallel": True},
        "train": {
            "framework": "megatron",
            "kernels": "megatron",
            "zero": 1,
            "grad_accumulation": 4,
        },
    },
    "DeepSpeed, offloaded to NVMe": {
        "model": "llama-3.1-8b",
        "cluster": {"gpu": "a100-sxm-80gb", "gpus": 8},
        "train": {"framework": "deepspeed", "zero": 3, "offload_optimizer": "nvme"},
    },
}


def numbers(value: object) -> Iterator[float]:
    """Every number of a Report, in order."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key != "plan":
                yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int | float):
        yield value


def report(document: dict) -> list[float]:
    return list(numbers(evaluate(Plan.of(document)).to_dict()))


@pytest.mark.parametrize("name", PLANS)
def test_what_a_transfer_is_called_moves_no_number(name, monkeypatch):
    document = PLANS[name]
    before = report(document)
    made, count = Move.__init__, itertools.count()

    def renamed(self, name, pieces, seconds, times, cover, hidden_by, *rest, **named):
        pieces = {f"piece {next(count)}": n for n in pieces.values()}
        made(self, f"move {next(count)}", pieces, seconds, times, cover, hidden_by, *rest, **named)

    monkeypatch.setattr(Move, "__init__", renamed)
    monkeypatch.setattr("memcore.timing.communication.Cover.__str__", lambda self: "something")
    assert evaluate(Plan.of(document)).time.transfers[0].name.startswith("move ")
    assert report(document) == before
