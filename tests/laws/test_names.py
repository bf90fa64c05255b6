"""Names are for people: no number of a Report follows from what a thing is called."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from memcore import Plan, evaluate
from memcore.cache import STORE
from memcore.tape.tape import Tape
from memcore.timing.communication import Move

PLANS: dict[str, dict] = {
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
    "LoRA, whose base is stored in 4 bits": {
        "model": "llama-3.1-8b",
        "train": {
            "framework": "pytorch",
            "zero": 0,
            "precision": "bf16-pure",
            "adapter": "qlora",
            "checkpointing": "none",
            "attention": "eager",
        },
        "serve": {"weight_dtype": "q4_k_m", "runtime": "native"},
    },
    "a tower, shared masks": {"model": "gemma-3-4b", "train": {"attention": "eager"}},
    "an encoder": {"model": "t5-base"},
    "a state": {"model": "bamba-9b"},
    "experts of a group of their own": {
        "model": "mixtral-8x7b",
        "cluster": {"gpu": "h100-sxm-80gb", "gpus": 16},
        "parallel": {"ep": 2},
        "train": {"framework": "fsdp2", "optimizer": "muon"},
    },
    "multi-token prediction": {
        "model": "deepseek-v3",
        "cluster": {"gpu": "h100-sxm-80gb", "gpus": 64},
        "parallel": {"ep": 64},
        "train": {"framework": "megatron", "kernels": "megatron", "zero": 1, "mtp_layers": 1},
    },
}


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a Report, by its path."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key != "plan":
                yield from numbers(part, f"{path}.{key}")
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from numbers(part, f"{path}.{i}")
    elif isinstance(value, int | float):
        yield path, value


def report(document: dict) -> dict[str, float]:
    return dict(numbers(evaluate(Plan.of(document)).to_dict()))


@pytest.mark.parametrize("name", list(PLANS)[:3])
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


@pytest.fixture
def renamed_tapes(monkeypatch):
    """Every operation and tensor is called by a number, the same for the same name."""
    STORE.forget()
    numbered: dict[str, str] = {}
    named = Tape._named

    def number(self, name):
        return numbered.setdefault(named(self, name), f"thing {len(numbered)}")

    with monkeypatch.context() as patch:
        patch.setattr(Tape, "_named", number)
        yield
    STORE.forget()


@pytest.fixture(scope="module")
def reports():
    return {name: report(document) for name, document in PLANS.items()}


@pytest.mark.parametrize("name", PLANS)
def test_what_an_operation_or_a_tensor_is_called_moves_no_number(name, reports, renamed_tapes):
    found = evaluate(Plan.of(PLANS[name]))
    for o in found.time.operations if found.time else ():
        assert o.name.startswith(("thing", "optimizer"))
    after = dict(numbers(found.to_dict()))
    assert {k: v for k, v in after.items() if reports[name].get(k) != v} == {}
    assert len(after) == len(reports[name])
