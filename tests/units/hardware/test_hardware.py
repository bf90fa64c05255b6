"""Hardware presets: figures follow from what a chip is made of, and every chip can be planned."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from tables import each

from memcore.evaluate import evaluate
from memcore.hardware import constants
from memcore.models import catalog
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan
from memcore.shipped import PRESETS

FACTS = tomllib.loads(PRESETS.joinpath("architectures.toml").read_text(encoding="utf-8"))
CORES, CHIPS = FACTS["core"], FACTS["chip"]
ROUNDED = 0.025  # what makers' roundings come to: 6.144 TB/s is sold as 6.0, 40.96 TOPS as 40
LANE = {3: 1e9, 4: 2e9, 5: 4e9, 6: 8e9}  # bytes per second of one PCIe lane one way, by generation
# What is left to programs, of what was sold: firmware and ECC keep little, Apple's system a quarter
# to a third, a phone's half.
USABLE = {"apple": (0.6, 0.95), "generic": (0.45, 0.6)}


def apart(value: float, expected: float) -> bool:
    return abs(value - expected) > ROUNDED * expected


def faults(name: str, gpu: dict[str, Any]) -> list[str]:
    """What in a preset does not follow from the chip's own make-up."""
    chip = CHIPS[name]
    unknown, core = chip.get("unknown", {}), CORES.get(chip.get("core"))
    found = []
    if core and "flops" not in unknown:
        for dtype, rate in gpu["flops"].items():
            if dtype in unknown:
                continue
            clock = chip["mhz"] if dtype == "fp32" else chip.get("matrix_mhz", chip["mhz"])
            if apart(rate, gpu["sms"] * core["per_clock"][dtype] * clock * 1e6):
                found.append(f"flops.{dtype}")
    if core and gpu["l1_bytes_per_sm"] != core["l1"]:
        found.append("l1_bytes_per_sm")
    if "memory" not in unknown and apart(
        gpu["memory_bandwidth"], chip["bits"] * chip["gbps"] * 1e9 / 8
    ):
        found.append("memory_bandwidth")
    sold = int(re.findall(r"(\d+) GB", gpu["label"])[-1])
    if all(apart(gpu["memory_bytes"], sold * unit) for unit in (1e9, 2**30)):
        found.append("memory_bytes")
    low, high = USABLE.get(gpu["vendor"], (0.9, 1.0))
    if not low <= gpu["usable_bytes"] / gpu["memory_bytes"] <= high:
        found.append("usable_bytes")
    host = chip.get("host", gpu["memory_bandwidth"] / 1e9)  # unified: the memory itself
    into = LANE[host[0]] * host[1] if isinstance(host, list) else host * 1e9
    if apart(gpu["pcie_bandwidth"], into):
        found.append("pcie_bandwidth")
    links, each = chip.get("links", (0, 0))
    peers = {"pcie": into, "none": 0.0}.get(gpu["peer_link"], links * each * 1e9)
    if apart(gpu["peer_bandwidth"], peers):
        found.append("peer_bandwidth")
    return found


def preset(name: str) -> dict[str, Any]:
    return catalog.accelerator(name).model_dump()


@each("name", catalog.gpu_names())
def test_a_presets_figures_follow_from_what_the_chip_is_made_of(name: str) -> None:
    assert faults(name, preset(name)) == []


def test_every_preset_has_its_make_up_or_says_why_not() -> None:
    assert set(CHIPS) == set(catalog.gpu_names())
    for name, chip in CHIPS.items():
        unknown = chip.get("unknown", {})
        assert ("core" in chip and "mhz" in chip) or "flops" in unknown, name
        assert ("bits" in chip and "gbps" in chip) or "memory" in unknown, name
        assert all(len(why) > 10 for why in unknown.values()), name
    assert all(len(core["source"]) > 20 for core in CORES.values())


def misread(value: float) -> list[float]:
    """A value with a digit too many, doubled, halved, and with its first two digits swapped."""
    wrong = [10 * value, 2 * value, value / 2]
    digits, exponent = f"{value:.6e}".split("e")
    digits = digits.replace(".", "")
    at = next(i for i in range(6) if digits[i] != digits[i + 1])
    swapped = digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :]
    wrong.append(float(f"{swapped[0]}.{swapped[1:]}e{exponent}"))
    return [w for w in wrong if w and apart(w, value)]


@each("name", catalog.gpu_names())
def test_a_slip_of_the_pen_in_a_preset_is_seen(name: str) -> None:
    gpu, unknown = preset(name), CHIPS[name].get("unknown", {})
    checked = ["memory_bytes", "pcie_bandwidth"]
    checked += [] if "memory" in unknown else ["memory_bandwidth"]
    checked += [] if "core" not in CHIPS[name] else ["l1_bytes_per_sm"]
    checked += [] if "flops" in unknown else ["sms"]
    checked += ["peer_bandwidth"] if gpu["peer_bandwidth"] else []
    for field in checked:
        for wrong in misread(gpu[field]):
            assert faults(name, gpu | {field: wrong}), (field, wrong)
    for dtype, rate in gpu["flops"].items():
        for wrong in misread(rate) if not {"flops", dtype} & set(unknown) else ():
            assert faults(name, gpu | {"flops": gpu["flops"] | {dtype: wrong}}), (dtype, wrong)
    for wrong in misread(gpu["usable_bytes"]):
        if not 0.6 < wrong / gpu["usable_bytes"] < 1.4:  # a Mac's share is not known closer
            assert faults(name, gpu | {"usable_bytes": wrong}), wrong


# --- every chip can be planned -------------------------------------------------------------------


@each("name", catalog.gpu_names())
def test_every_chip_trains_and_serves_a_small_plan(name: str) -> None:
    network = catalog.node(catalog.accelerator(name).node).network_bandwidth
    for gpus in (1, 2) if network else (1,):
        document = {
            "model": "gpt2",
            "cluster": {"gpu": name, "gpus": gpus},
            "train": {"seq_len": 512},
            "serve": {"prompt_len": 512, "output_len": 64, "concurrency": 1},
        }
        report = evaluate(Plan.of(document))
        assert report.time is not None
        assert report.serve is not None
        assert 0 < report.time.step_seconds < 600
        assert report.serve.tpot_seconds > 0
        assert json.dumps(report.to_dict())


# --- what a preset says of itself ----------------------------------------------------------------


def test_a_size_of_memory_is_a_preset_of_the_same_chip() -> None:
    found = [name for name in catalog.gpu_names() if len(catalog.sizes(name)) > 1]
    assert catalog.sizes("m3-ultra-512gb") == ("m3-ultra-96gb", "m3-ultra-256gb", "m3-ultra-512gb")
    assert {"h20-141gb", "m4-max-36gb", "strix-halo-64gb", "rtx-5060-ti-8gb"} <= set(found)
    for name in found:
        same = catalog.sizes(name)
        assert name in same
        assert catalog.chip_of(name) in same
        memory = [catalog.accelerator(n).memory_bytes for n in same]
        assert len(set(memory)) == len(memory)
        assert {catalog.accelerator(n).architecture for n in same} == {
            catalog.accelerator(name).architecture
        }


def test_a_size_changes_what_depends_on_it_and_keeps_the_rest() -> None:
    small, large = map(catalog.accelerator, ("m4-max-36gb", "m4-max-128gb"))
    assert small.memory_bandwidth == 410e9  # with 32 GPU cores of 40
    assert small.sms == 32
    assert small.sources.keys() == large.sources.keys()
    assert small.node == large.node
    h20, h20e = map(catalog.accelerator, ("h20-96gb", "h20-141gb"))
    assert h20.flops == h20e.flops
    assert h20e.memory_bandwidth == 4.8e12


ANNOUNCED = {"mi455x-432gb", "mi440x-432gb", "tpu-8t-216gb", "tpu-8i-288gb"}


def test_chips_that_nobody_can_have_yet_are_marked() -> None:
    by = {name: catalog.accelerator(name).status for name in catalog.gpu_names()}
    assert {name for name, status in by.items() if status == "announced"} == ANNOUNCED
    assert by["vr200-288gb"] == "preliminary"
    assert by["h100-sxm-80gb"] == "shipping"
    assert all(len(catalog.accelerator(n).sources.get("usable_bytes", "")) > 5 for n in by)


@pytest.mark.parametrize("name", sorted(ANNOUNCED | {"vr200-288gb", "h100-sxm-80gb"}))
def test_a_report_says_that_a_chip_is_not_yet_sold(name: str) -> None:
    gpu = catalog.accelerator(name)
    said = [note for note in evaluate(Plan(cluster={"gpu": name})).notes if gpu.label in note]
    assert bool(said) == (name != "h100-sxm-80gb")
    assert all("nobody can have it yet" in note or "preliminary" in note for note in said)


def test_a_link_carries_a_size_of_memory_by_name() -> None:
    plan = Plan(cluster={"gpu": "m3-ultra-256gb"})
    query = encode(plan)
    assert query["gpu"] == "m3-ultra-256gb~2"  # the revision of the chip's own preset
    assert decode(query) == (plan, [])


def test_every_constant_of_the_engine_is_listed_on_the_accuracy_page() -> None:
    every = {c for c in vars(constants).values() if isinstance(c, constants.Constant)}
    assert constants.NATIVE_RULES in every
    assert every <= set(constants.ALL)
