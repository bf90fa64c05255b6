"""Hardware presets: figures follow from what a chip is made of, and every chip can be planned."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any

import pytest

from memcore import catalog

FACTS = tomllib.loads(files("presets").joinpath("architectures.toml").read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("name", catalog.gpu_names())
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


@pytest.mark.parametrize("name", catalog.gpu_names())
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
