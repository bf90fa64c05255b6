"""What PyTorch's allocator and nvidia-smi print of a run, read back."""

from __future__ import annotations

import json

import pytest

from memcore.evaluate import evaluate
from memcore.formats.memory import DEVICE, GpuMemory
from memcore.formats.snapshot import read_memory
from memcore.formats.totals import totals_in
from memcore.plan.plan import Plan
from memcore.units import GiB, KiB, MiB

RULE = "|" + "=" * 75 + "|"


def summary(device: int = 0, **rows: tuple[str, str]) -> str:
    """As torch.cuda.memory_summary prints it, in short: what is there now, and at its peak."""
    titles = {"allocated": "Allocated memory     ", "requested": "Requested memory     ",
              "reserved": "GPU reserved memory  "}  # fmt: skip
    head = f"|{'':17}PyTorch CUDA memory summary, device ID {device:<17}  |"
    failed = "|            CUDA OOMs: 1            |        cudaMalloc retries: 3         |"
    columns = "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |"
    lines = [RULE, head, RULE, failed, RULE, columns]
    for name, (now, peak) in rows.items():
        lines.append(f"| {titles[name]} | {now:>10} | {peak:>10} |   3115 GiB |   3114 GiB |")
        lines.append(
            "|       from large pool |      1 GiB |      1 GiB |   3114 GiB |   3114 GiB |"
        )
    return "\n".join([*lines, RULE, ""])


def only(text: str) -> GpuMemory:
    found = totals_in(text)
    assert found is not None
    (device,) = found.devices
    return device


def test_a_summary_says_what_is_there_and_was_at_its_peak() -> None:
    text = summary(2, allocated=("682537 KiB", "65430 MiB"), reserved=("66984 MiB", "66984 MiB"))
    device = only(text)
    assert device.label == "GPU 2"
    assert device.instants["now"] == {"allocated": 682537 * KiB, "reserved": 66984 * MiB}
    assert device.most == {"allocated": 65430 * MiB, "reserved": 66984 * MiB}
    assert list(device.remarks) == [
        "Memory ran out once, and 3 times the allocator gave back what it kept and asked again.",
        "Figures may be rounded by 1.00 MiB.",
    ]


def test_a_summary_may_stand_in_a_log_whose_lines_have_something_before_them() -> None:
    text = summary(allocated=("1 GiB", "2 GiB"), requested=("0 B  ", "0 B  "))
    device = only("".join(f"trainer-0  | {line}\n" for line in text.splitlines()))
    assert device.most == {"allocated": 2 * GiB}  # no request was counted


def test_of_each_gpu_the_summary_with_the_most_counts() -> None:
    sizes = {0: ("10 GiB", "7 GiB"), 1: ("3 GiB", "12 GiB")}
    texts = [summary(i, allocated=("1 GiB", size)) for i, of in sizes.items() for size in of]
    found = totals_in("\n".join(texts))
    assert found is not None
    assert [d.allocated_bytes for d in found.devices] == [10 * GiB, 12 * GiB]
    assert found.fullest.index == 1


def test_counters_as_json() -> None:
    stats = {"allocated_bytes.all.current": 5, "allocated_bytes.all.peak": 70 * GiB + 1,
             "reserved_bytes.all.current": 6, "reserved_bytes.all.peak": 72 * GiB,
             "requested_bytes.all.peak": "many", "num_ooms": 2, "active.all.peak": 9}  # fmt: skip
    device = only(json.dumps(stats))
    assert device.most == {"allocated": 70 * GiB + 1, "reserved": 72 * GiB}
    assert device.instants["now"]["allocated"] == 5
    assert device.remarks[0].startswith("Memory ran out 2 times")
    assert len(device.remarks) == 1


def test_deepspeeds_lines_say_the_most_since_the_line_before() -> None:
    line = "[INFO] [utils.py:830:see_memory_usage] MA {} GB         Max_MA {} GB         CA {} GB"
    rows = ((1.5, 2.25, 3.0, 3), (20.0, 40.5, 44.75, 45), (18.0, 39.0, 44.0, 45))
    device = only("\n".join(f"{line.format(*r)}         Max_CA {r[3]} GB " for r in rows))
    assert device.instants["now"] == {"allocated": 18 * GiB, "reserved": 44 * GiB}
    assert device.most == {"allocated": 40.5 * GiB, "reserved": 44.75 * GiB}
    lost = line.format(1, 9, 3) + " Max_CA 12 GB"  # more was reserved between the lines
    assert only(lost).most["reserved"] == 12 * GiB
    assert only(lost).remarks == ("Figures may be rounded by 1.00 GiB.",)


def test_nvidia_smi_says_what_is_on_the_device() -> None:
    row = "| N/A   35C    P0             70W / 400W |   {}MiB / 81559MiB |      0%      Default |"
    table = "\n".join(["| NVIDIA-SMI 580.00    Memory-Usage |", row.format(45231), row.format(3)])
    found = totals_in(table)
    assert found is not None
    assert [d.most for d in found.devices] == [{DEVICE: 45231 * MiB}, {DEVICE: 3 * MiB}]
    assert "all programs" in " ".join(found.fullest.remarks)


def test_a_plan_is_compared_with_what_was_counted() -> None:
    memory = evaluate(Plan()).memory
    assert memory is not None
    text = summary(allocated=("1 GiB", "20 GiB"), reserved=("1 GiB", "24 GiB"))
    rows = {row.name: row for row in only(text).compared(memory)}
    assert list(rows) == ["allocated", "reserved"]
    assert rows["allocated"].planned == memory.allocated_bytes
    assert (rows["reserved"].planned, rows["reserved"].at_most) == memory.reserved_bytes
    assert rows["reserved"].measured == 24 * GiB


@pytest.mark.parametrize(
    "text",
    [
        "see_memory_usage(msg, force=True)",
        "MA ... GB Max_MA 1..2 GB CA 1 GB Max_CA 1 GB",
        summary(),
        '{"allocated_bytes.all.peak": true}',
        '{"allocated_bytes.all.peak": 1e999}',
        '{"allocated_bytes.all.peak"' + '{"a":' * 100_000,
        "| 45231MiB / 81559MiB |",
    ],
)
def test_what_counts_nothing_is_none(text: str) -> None:
    assert totals_in(text) is None


def test_what_ran_out_says_what_it_needed_at_the_least() -> None:
    """A message of PyTorch 2.2, as its forums have it."""
    message = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacty of 23.65 GiB of which 1.00 GiB is free. Of the allocated memory 21.00 GiB "
        "is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
    )
    found = totals_in(message)
    assert found
    one = found.fullest
    assert one.most == {"allocated": 23 * GiB}
    assert one.allocated_bytes == 0  # no peak of a step that ran
    assert "at least 23.0 GiB are needed" in str(one.failures[0])
    memory = evaluate(Plan()).memory
    assert memory
    assert [row.name for row in one.compared(memory)] == ["allocated"]
    alone = totals_in("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert alone
    assert str(alone.fullest.failures[0]) == "2.00 GiB were asked for"


def test_what_a_run_held_is_read_by_whichever_says_it() -> None:
    found = read_memory(summary(allocated=("1 GiB", "2 GiB")).encode())
    assert found.to_dict()["devices"][0]["most"] == {"allocated": 2 * GiB}


@pytest.mark.oracle
def test_torchs_own_summary_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("torch.cuda.memory")
    counts = ("allocation", "active", "segment", "inactive_split")
    kinds = ("allocated", "active", "requested", "reserved", "inactive_split")
    keys = (*(f"{kind}_bytes" for kind in kinds), *counts)
    stats = {
        f"{key}.{pool}.{what}": size + 1_234_567 * i
        for i, key in enumerate(keys)
        for pool in ("all", "large_pool", "small_pool")
        for what, size in (("current", 3 * GiB), ("peak", 41 * GiB), ("allocated", 0), ("freed", 0))
    }
    stats |= {f"oversize_{of}.{what}": 0 for of in ("allocations", "segments")
              for what in ("current", "peak", "allocated", "freed")}  # fmt: skip
    stats |= {"num_ooms": 4, "num_alloc_retries": 5}
    monkeypatch.setattr(memory, "memory_stats", lambda device: stats)
    device = only(memory.memory_summary(3))
    assert device.index == 3
    assert device.remarks[0].startswith("Memory ran out 4 times, and 5 times")
    for name in ("allocated", "requested", "reserved"):
        for told, what in ((device.instants["now"], "current"), (device.most, "peak")):
            assert 0 <= stats[f"{name}_bytes.all.{what}"] - told[name] < MiB
    assert only(json.dumps(stats)).most["reserved"] == stats["reserved_bytes.all.peak"]
