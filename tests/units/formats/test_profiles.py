"""Traces of torch.profiler with profile_memory=True: what a run held, by them."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from allocating import MIB, Allocator
from hypothesis import given, settings
from hypothesis import strategies as st

from memcore.errors import PlanError
from memcore.formats.profile import held_of
from memcore.formats.snapshot import BEFORE


class Trace:
    """What the profiler writes: operations within each other, and allocations."""

    def __init__(self, kind: int = 1, index: int = 0, allocated: int = 0):
        self.kind, self.index, self.allocated = kind, index, allocated
        self.entries: list[dict[str, Any]] = []
        self.time = 1_000.5

    def ran(self, name: str, *inside: tuple[int, int], cat: str = "cpu_op", tid: int = 1) -> None:
        """An operation, and the bytes and addresses of what it allocated and freed."""
        start = self.time
        for size, address in inside:
            self.time += 1
            self.allocated += size
            args = {"Device Type": self.kind, "Device Id": self.index, "Bytes": size,
                    "Addr": address, "Total Allocated": self.allocated,
                    "Total Reserved": 100 * MIB}  # fmt: skip
            self.entries.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]",
                                 "tid": tid, "ts": self.time, "args": args})  # fmt: skip
        self.time += 1
        self.entries.append({"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": start,
                             "dur": self.time - start})  # fmt: skip
        self.time += 1

    def within(self, name: str, since: int, cat: str) -> None:
        """What began with the entry of this number has ended."""
        start = min(entry["ts"] for entry in self.entries[since:]) - 0.25
        self.entries.append({"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": start,
                             "dur": self.time - start})  # fmt: skip

    def read(self) -> Any:
        return held_of(json.dumps({"traceEvents": self.entries}).encode()).fullest


def trained(**more: int) -> Trace:
    trace = Trace(allocated=10 * MIB, **more)
    for step in range(2):
        trace.ran("aten::addmm", (4 * MIB, 1))
        trace.within("nn.Module: Linear_0", len(trace.entries) - 2, "python_function")
        trace.within("me/train.py(7): main", len(trace.entries) - 3, "python_function")
        trace.ran("autograd::engine::evaluate_function: AddmmBackward0",
                  (3 * MIB, 2), (2 * MIB, 3), (-4 * MIB, 1), (-2 * MIB, 3), tid=2)  # fmt: skip
        first = len(trace.entries)
        if not step:
            trace.ran("aten::zeros_like", (3 * MIB, 4), (3 * MIB, 5))
        trace.ran("aten::sqrt", (3 * MIB, 6), (-3 * MIB, 6))
        trace.time += 1e6
        trace.within("Optimizer.step#AdamW.step", first, "user_annotation")
        first = len(trace.entries)
        trace.ran("aten::detach", (-3 * MIB, 2))
        trace.within("Optimizer.zero_grad#AdamW.zero_grad", first, "user_annotation")
    return trace


def test_what_a_profile_says_was_held() -> None:
    device = trained().read()
    assert (device.label, device.start.allocated) == ("GPU 0", 10 * MIB)
    # The second step's backward has the states of the first.
    assert device.peak.allocated == 10 * MIB + (3 + 2 + 4 + 6) * MIB
    assert device.categories == {
        "gradients": 3 * MIB,
        "optimizer_states": 6 * MIB,
        BEFORE: 10 * MIB,
        "activations": 4 * MIB,
        "workspace": 2 * MIB,
    }
    assert device.reserved_bytes == 100 * MIB
    assert (device.requested_bytes, device.largest_free) == (None, None)
    where = {group.category: group.where for group in device.groups}
    assert where["activations"] == "me/train.py:7 main"
    assert where["workspace"] == "AddmmBackward0"
    assert device.step_seconds == pytest.approx(1, abs=0.01)
    assert [phase.times for phase in device.phases] == [2, 2]


def test_of_a_run_on_gpus_the_cpu_is_left_out() -> None:
    both = trained()
    cpu = trained(kind=0, index=-1)
    assert cpu.read().label == "CPU"
    both.entries += cpu.entries
    found = held_of(json.dumps({"traceEvents": both.entries}).encode())
    assert [device.label for device in found.devices] == ["GPU 0"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_a_random_profile_is_what_the_allocator_counted(seed: int, kept: float) -> None:
    """The peak and both ends; and all categories add up to what is allocated."""
    chance, gpu, trace = random.Random(seed), Allocator(), Trace()
    alive: list[int] = []
    for _ in range(chance.randint(1, 60)):
        if chance.random() < 0.6 or not alive:
            address = gpu.alloc(int(2 ** chance.uniform(4, 25)))
            assert address is not None
            alive.append(address)
            trace.ran("aten::empty", (gpu.blocks[address].size, address))
        else:
            address = alive.pop(chance.randrange(len(alive)))
            trace.ran("aten::empty", (-gpu.blocks[address].size, address))
            gpu.free(address)
    said = [entry for entry in trace.entries if entry["name"] == "[memory]"]
    last = max(1, round(kept * len(said)))
    trace.entries = [e for e in trace.entries if e["ts"] >= said[-last]["ts"]]
    totals = [0, *(entry["args"]["Total Allocated"] for entry in said)][-last - 1 :]
    device = trace.read()
    assert device.peak.allocated == max(totals)
    assert (device.start.allocated, device.end.allocated) == (totals[0], totals[-1])
    assert sum(device.categories.values()) == device.peak.allocated


def test_a_snapshot_is_read_too() -> None:
    gpu = Allocator()
    gpu.alloc(3 * MIB)
    assert held_of(pickle.dumps(gpu.snapshot())).fullest.peak.allocated == 3 * MIB


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("{", "no profile of PyTorch's with profile_memory=True: "),
        ('{"a":' * 100_000, "no profile"),
        ("{}", "it has no traceEvents"),
        ('{"traceEvents": [1, {"name": 3}, {"name": "[memory]", "ts": NaN}]}', "no allocation"),
        ('{"traceEvents": [{"name": "[memory]", "ts": 1e999, "tid": 1}]}', "no allocation"),
        ('{"traceEvents": [{"name": "[memory]", "ts": 1, "tid": [], "args": 3}]}', "no allocation"),
        ("[1]", "no memory snapshot of PyTorch"),
    ],
)
def test_what_is_no_profile_is_refused(said: str, message: str) -> None:
    with pytest.raises(PlanError, match="of PyTorch") as refused:
        held_of(said.encode())
    assert message in str(refused.value)
