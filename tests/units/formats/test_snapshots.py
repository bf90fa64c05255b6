"""Memory snapshots of PyTorch: read without running anything, replayed, and told."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from allocating import KIB, MIB, Allocator
from hypothesis import given, settings
from hypothesis import strategies as st

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.formats.memory import BEFORE
from memcore.formats.pickled import plain_values
from memcore.formats.snapshot import rounded, snapshot_of
from memcore.formats.stacks import Stacks
from memcore.hardware import constants
from memcore.plan.plan import Plan


def frames(*said: str) -> list[dict[str, Any]]:
    """Frames as file:line:function, the innermost first."""
    split = (each.split(":", 2) for each in said)
    return [{"filename": file, "line": int(line), "name": name} for file, line, name in split]


def read(found: Any, protocol: int = 4) -> Any:
    return snapshot_of(pickle.dumps(found, protocol=protocol))


def peak(device: Any) -> Any:
    """What was there when most was allocated."""
    return device.instants["allocated peak"]


MODULE = "/x/site-packages/torch/nn/modules/module.py"
LOAD = frames(f"{MODULE}:1100:convert", f"{MODULE}:900:_apply", "/me/train.py:5:main")
FORWARD = frames(
    "/x/site-packages/torch/nn/functional.py:2:silu",
    "/x/site-packages/transformers/models/llama/modeling_llama.py:170:forward",
    f"{MODULE}:1700:_call_impl", "/me/train.py:9:main",
)  # fmt: skip
LOSS = frames("/me/train.py:10:loss_of", "/me/train.py:11:main")
BACKWARD = frames("??:0:torch::autograd::generated::MmBackward0::apply(...)",
                  "??:0:torch::autograd::Engine::evaluate_function(...)")  # fmt: skip
STATE = frames("/x/site-packages/torch/optim/adamw.py:140:_init_group",
               "/x/site-packages/torch/optim/adamw.py:200:step")  # fmt: skip
FUSED = frames("/x/site-packages/torch/optim/adamw.py:500:_multi_tensor_adamw",
               "/x/site-packages/torch/optim/adamw.py:210:step")  # fmt: skip
ZERO = frames("/x/site-packages/torch/optim/optimizer.py:900:zero_grad", "/me/train.py:13:main")


def run(steps: int = 2, allocator: Allocator | None = None) -> Allocator:
    """Steps of a training: 3 parameters, a saved tensor of each, gradients, Adam's two states."""
    gpu = allocator or Allocator()
    sizes = (4 * MIB, 8 * MIB, 16 * KIB)
    for size in sizes:
        gpu.alloc(size, LOAD)
    for step in range(steps):
        saved = [gpu.alloc(2 * size, FORWARD) for size in sizes]
        gradients = []
        for size in sizes:
            passing = gpu.alloc(size, BACKWARD)
            gradients.append(gpu.alloc(size, BACKWARD))
            gpu.free(saved.pop() or 0)
            gpu.free(passing or 0)
        gpu.note("Optimizer.step#AdamW.step", "START")
        if not step:
            for size in (*sizes, *sizes):
                gpu.alloc(size, STATE)
        for size in sizes:
            gpu.free(gpu.alloc(size, FUSED) or 0, FUSED)
        gpu.time += 500_000
        gpu.note("Optimizer.step#AdamW.step", "END")
        for gradient in gradients:
            gpu.free(gradient or 0, ZERO)
    return gpu


def test_what_is_held_at_the_peak_is_told_by_its_stacks() -> None:
    gpu = run()
    device = read(gpu.snapshot()).fullest
    parameters = 12 * MIB + 16 * KIB
    assert device.categories["parameters"] == parameters
    assert device.categories["optimizer_states"] == 2 * parameters
    assert device.categories["gradients"] + device.categories["workspace"] > 0
    assert sum(device.categories.values()) == peak(device)["allocated"] == max(gpu.counts)[0]
    (forward,) = [group for group in device.groups if group.category == "activations"]
    assert forward.where == "llama/modeling_llama.py:170 forward"
    assert device.groups[0].bytes >= forward.bytes
    (backward,) = {g.where for g in device.groups if g.category in ("gradients", "workspace")}
    assert backward == "MmBackward0"


def test_what_a_trace_begins_without_is_held_since_before() -> None:
    gpu = run()
    lost = next(i for i, event in enumerate(gpu.trace) if event["frames"] is STATE)
    found = gpu.snapshot(last=len(gpu.trace) - lost - 20)
    for segment in found["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    device = read(found).fullest
    assert device.instants["start"]["allocated"] == gpu.counts[lost + 20][0]
    assert device.categories[BEFORE] == 3 * (12 * MIB + 16 * KIB)
    assert any("each, without a stack" in g.where for g in device.groups if g.category == BEFORE)


def test_gradients_are_known_by_what_forgets_them() -> None:
    gpu = Allocator()
    gradient = gpu.alloc(4 * MIB)
    seen = len(gpu.trace)
    gpu.alloc(MIB, FORWARD)
    gpu.free(gradient or 0, ZERO)
    device = read(gpu.snapshot(last=len(gpu.trace) - seen)).fullest
    assert device.categories == {"gradients": 4 * MIB, "activations": MIB}


def test_without_any_stack_no_category_is_guessed() -> None:
    gpu = run()
    for event in gpu.trace:
        event["frames"] = []
    for block in gpu.blocks.values():
        block.frames = []
    device = read(gpu.snapshot()).fullest
    assert device.categories == {"other": peak(device)["allocated"]}
    assert device.groups[0].where.endswith("each, without a stack")


ENGINE = "??:0:torch::autograd::Engine::thread_main(...)"
FSDP = "/x/torch/distributed/fsdp/_fully_shard/"


@pytest.mark.parametrize(
    ("kind", "where", "said"),
    [
        ("loads", "me/train.py:5 main", LOAD),
        ("forward", "llama/modeling_llama.py:170 forward", FORWARD),
        ("forward", "me/train.py:8 main", frames("/x/torch/nn/functional.py:2:cross_entropy",
                                                 "/me/train.py:8:main")),
        ("", "me/train.py:10 loss_of", LOSS),
        ("backward", "MmBackward0", BACKWARD),
        ("state", "optim/adamw.py:140 _init_group", STATE),
        ("step", "optim/adamw.py:500 _multi_tensor_adamw", FUSED),
        # What backward runs again is a forward, and so is what an optimizer's closure runs.
        ("forward", "llama/modeling_llama.py:170 forward", [*FORWARD, *frames(ENGINE)]),
        ("forward", "llama/modeling_llama.py:170 forward", [*FORWARD, *STATE]),
        ("divides", "_fully_shard/_fsdp_collectives.py:3 foreach_all_gather",
         [*frames(f"{FSDP}_fsdp_collectives.py:3:foreach_all_gather"), *FORWARD]),
        ("loads", "_fully_shard/_fsdp_param.py:4 _init_sharded_param",
         frames(f"{FSDP}_fsdp_param.py:4:_init_sharded_param", "/me/train.py:8:main")),
        ("", "", []),
        ("", "", ["no frame", {"filename": 3}]),
    ],
)  # fmt: skip
def test_the_innermost_frame_that_decides_says_what_a_tensor_is_for(
    kind: str, where: str, said: list[Any]
) -> None:
    found = Stacks().of(said)
    assert (found.kind, found.where) == (kind, where)


def test_the_seconds_of_a_step_come_from_annotations() -> None:
    gpu = run(steps=3)
    device = read(gpu.snapshot()).fullest
    assert 0.5 < device.step_seconds < 0.51
    assert read(run(steps=1).snapshot()).fullest.step_seconds == 0
    for note in list(gpu.notes):  # another optimizer steps right after each
        time = note["time_us"] + 9
        gpu.notes.append(note | {"name": "Optimizer.step#SGD.step", "time_us": time})
    gpu.notes.sort(key=lambda note: note["time_us"])
    assert 0.5 < read(gpu.snapshot()).fullest.step_seconds < 0.51


def test_what_was_asked_for_when_memory_ran_out() -> None:
    gpu = Allocator(capacity=64 * MIB)
    gpu.alloc(40 * MIB)
    assert gpu.alloc(30 * MIB) is None
    (failure,) = read(gpu.snapshot()).fullest.failures
    assert (failure.asked, failure.allocated, failure.free) == (30 * MIB, 40 * MIB, 24 * MIB)
    assert failure.reserved == 40 * MIB
    assert "at least 70.0 MiB are needed" in str(failure)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.floats(0, 1), st.integers(2, 5))
def test_a_replay_of_a_random_trace_is_what_the_allocator_counted(
    seed: int, expandable: bool, kept: float, protocol: int
) -> None:
    """To the byte, however much of the trace's beginning is lost: at its start, at its end, at each
    peak."""
    chance, gpu = random.Random(seed), Allocator(expandable, capacity=200 * MIB)
    alive: list[int] = []
    waiting: list[int] = []
    for _ in range(chance.randint(1, 120)):
        what = chance.random()
        if what < 0.55 or not alive:
            size = int(2 ** chance.uniform(4, 25))
            alive += [found] if (found := gpu.alloc(size)) is not None else []
        elif what < 0.9:
            address, wait = alive.pop(chance.randrange(len(alive))), chance.random() < 0.2
            gpu.free(address, wait=wait)
            waiting += [address] * wait
        elif what < 0.95 and waiting:
            gpu.complete(waiting.pop(chance.randrange(len(waiting))))
        else:
            gpu.empty_cache()
    last = max(1, round(kept * len(gpu.trace)))
    counts = gpu.counts[len(gpu.counts) - 1 - last :]
    device = read(gpu.snapshot(last), protocol).fullest
    assert device.events == last
    for at, counted in (("start", counts[0]), ("end", counts[-1])):
        assert tuple(device.instants[at].values()) == counted[:3]
    most = max(counts, key=lambda count: count[0])
    assert (peak(device)["allocated"], peak(device)["reserved"]) == (most[0], most[2])
    assert tuple(device.most.values()) == tuple(max(c[i] for c in counts) for i in range(3))


def test_older_snapshots_are_read() -> None:
    """Without a trace, settings, requested sizes or frames; blocks with a history."""
    block = {"size": 2 * MIB, "state": "active_allocated",
             "history": [{"addr": 1, "real_size": 2 * MIB - 100, "frames": FORWARD}]}  # fmt: skip
    rest = {"size": 18 * MIB, "state": "inactive"}
    old = [{"device": 1, "address": 512, "total_size": 20 * MIB, "blocks": [block, rest]}]
    for found in (old, {"segments": old}, {"segments": old, "device_traces": [[], []]}):
        device = read(found).fullest
        assert device.index == 1
        assert device.events == 0
        assert tuple(peak(device).values()) == (2 * MIB, 2 * MIB - 100, 20 * MIB)
        assert device.categories == {"activations": 2 * MIB}
    modern = run().snapshot()
    whole = read(modern).fullest
    for event in modern["device_traces"][0]:
        for key in ("time_us", "stream", "frames"):
            event.pop(key)
    for segment in modern["segments"]:
        for key in ("segment_type", "is_expandable", "stream", "device"):
            segment.pop(key)
    for key in ("allocator_settings", "external_annotations"):
        modern.pop(key)
    bare = read(modern).fullest
    assert peak(bare)["allocated"] == peak(whole)["allocated"]
    assert bare.most == whole.most
    assert bare.seconds == 0


def test_sizes_are_rounded_as_the_allocator_is_told() -> None:
    divided = {"roundup_power2_divisions": {"1": 0, "2": 4, "1024": 8}}
    assert rounded(1, {}) == 512
    assert rounded(513, divided) == 1024
    assert rounded(2 * MIB + 1, divided) == 2 * MIB + MIB // 2
    assert rounded(2 * MIB, divided) == 2 * MIB
    assert rounded(1025 * MIB, divided) == 1152 * MIB


def test_a_plan_is_compared_with_what_was_measured() -> None:
    report = evaluate(Plan())
    assert report.memory
    device = read(run().snapshot()).fullest
    rows = {row.name: row for row in device.compared(report.memory)}
    assert rows["allocated"].planned == report.memory.allocated_bytes
    assert rows["allocated"].measured == peak(device)["allocated"]
    assert (rows["reserved"].planned, rows["reserved"].at_most) == report.memory.reserved_bytes
    for name, size in report.memory.consumers.items():
        assert rows[name].planned == size
    assert rows["states"].measured == 3 * (12 * MIB + 16 * KIB) + device.categories["gradients"]
    assert (rows["states"].planned or 0) + (rows["all else"].planned or 0) == rows[
        "allocated"
    ].planned


# ---- hostile and damaged files


class Harm:
    def __reduce__(self) -> Any:
        return (print, ("run",))


ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w") as archive:
    archive.writestr("a", "b")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is no pickle"),
        (ZIPPED.getvalue(), "it is no pickle"),
        (b"\x80\x04\x95\xff", "it is damaged"),
        (pickle.dumps(run(1).snapshot())[:-200], "it is damaged"),
        (pickle.dumps({"segments": [Harm()]}), "it would build more than plain values"),
        (pickle.dumps({"segments": [{1}]}), "it would build more than plain values"),
        (b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00echotR.", "plain values (GLOBAL)"),
        (b"\x80\x02]X\xff\xff\xff\x7fa.", "it is damaged"),
        (b"\x80\x04}(" + b")\x85" * 100_000 + b"Nu.", "it is damaged"),
        (b"\x80\x04}" + b")" + b"\x85" * 1_000_000 + b"Ns.", "it is damaged"),
        (b"\x80\x04" + b"]" * 5_000_000, "more than 4,000,000 lists"),
        (pickle.dumps(3), "it has no segments"),
        (pickle.dumps({"segments": 3}), "its segments are no list"),
        (pickle.dumps({"segments": []}), "nothing was recorded"),
        (pickle.dumps({"segments": [1]}), "no number for 'device'"),
        (pickle.dumps({"segments": [{"device": 0}]}), "no number for 'total_size'"),
        (pickle.dumps({"segments": [], "device_traces": [[{}]]}), "has no action"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 2**200}]]}),
         "no number for 'addr'"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": -1}]]}),
         "a size below 0"),
        (pickle.dumps({"segments": [], "device_traces": [[None] * 3] * 400_000}),
         "more than 1,000,000 events"),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused_with_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        snapshot_of(data)
    assert message in str(refused.value)


def test_a_memo_takes_no_room_that_the_file_does_not_fill() -> None:
    assert plain_values(b"\x80\x02]r\xff\xff\xff\xffj\xff\xff\xff\xff.") == []


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_is_damaged_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(run(1).snapshot(), protocol=data.draw(st.integers(2, 5))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = snapshot_of(bytes(whole))
    except PlanError:
        return
    assert found.to_dict()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner)
        | st.lists(inner).map(tuple)
    ),
    max_leaves=30,
)  # fmt: skip


@given(VALUES, st.integers(2, 5))
def test_plain_values_are_those_that_were_written(value: Any, protocol: int) -> None:
    assert plain_values(pickle.dumps(value, protocol=protocol)) == value


REAL = Path(__file__).resolve().parents[2] / "reference" / "h100_snapshot.pickle.gz"


def test_a_snapshot_of_a_real_gpu_says_what_its_counters_said():
    """Two steps of a small Llama on an H100 under PyTorch 2.11; torch.cuda.max_memory_allocated,
    max_memory_reserved and memory_allocated behind them. The files' folders were renamed."""
    (device,) = snapshot_of(gzip.decompress(REAL.read_bytes())).devices
    assert peak(device)["allocated"] == 1_104_028_160
    end = device.instants["end"]
    assert (peak(device)["reserved"], end["reserved"]) == (1_218_445_312, 1_218_445_312)
    assert end["allocated"] == 606_651_904
    assert sum(device.categories.values()) == peak(device)["allocated"]
    # Two bf16 moments of 90 million weights. cuBLAS's two workspaces stay, and are no gradients.
    kept = device.categories
    assert kept["optimizer_states"] == pytest.approx(2 * kept["parameters"], rel=0.01)
    assert kept["workspace"] > 2 * constants.CUBLAS_WORKSPACE_HOPPER.middle
    assert "gradients" not in kept
    assert device.step_seconds > 0
