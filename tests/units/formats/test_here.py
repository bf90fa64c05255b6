"""The GPUs of this machine, as programs of their makers list them; these stand on a PATH of their
own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from memcore import PlanError
from memcore.cli import main
from memcore.formats import here

Programs = Callable[[Mapping[str, str]], None]
HOST = {"SPHardwareDataType": [{"chip_type": "Apple M3 Max", "physical_memory": "64 GB"}]}
CARD = {
    "Card Series": "AMD Instinct MI300X OAM",
    "Card Model": "0x74a1",
    "VRAM Total Memory (B)": "206141652992",
    "VRAM Total Used Memory (B)": "4294967296",
}
TWO = "NVIDIA GeForce RTX 4090, 24564, 1536\nNVIDIA GeForce RTX 4090, 24564, 512\n"
SLICES = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
  MIG 3g.40gb     Device  0: (UUID: MIG-1)
  MIG 3g.40gb     Device  1: (UUID: MIG-2)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Puts programs on a PATH without any other, each with what it prints; one of '!' fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(printed: Mapping[str, str]) -> None:
        for name, text in printed.items():
            called, _, option = name.partition(" ")
            path = folder / called
            before = path.read_text() if path.exists() else "#!/bin/sh\n"
            printed = folder / f"{called}{option}.txt"
            printed.write_text(f"{text}\n")
            lines = f'while IFS= read -r line; do printf "%s\\n" "$line"; done < {printed}'
            says = "exit 9" if text == "!" else f"{lines}; exit 0"
            path.write_text(f'{before}case "$*" in *{option}*) {says};; esac\n')
            path.chmod(0o755)

    return put


def test_nvidia_s_gpus_and_the_fullest_of_them(programs: Programs) -> None:
    programs({"nvidia-smi --query-gpu": TWO, "nvidia-smi -L": "GPU 0: ...\nGPU 1: ...\n"})
    fields, (told,) = here.settings()
    assert fields == {
        "cluster.gpu": "rtx-4090-24gb",
        "cluster.gpus": 2,
        "cluster.gpu_share": 1.0,
        "cluster.taken_gib": 1.5,
    }
    assert "RTX 4090" in told.message


def test_slices_of_mig_are_shares(programs: Programs) -> None:
    programs(
        {"nvidia-smi --query-gpu": "NVIDIA H100 80GB HBM3, 81559, 90\n", "nvidia-smi -L": SLICES}
    )
    fields, _ = here.settings()
    assert fields["cluster.gpu"] == "h100-sxm-80gb"
    assert (fields["cluster.gpus"], fields["cluster.gpu_share"]) == (2, 0.5)


def test_memory_that_is_not_printed_is_the_preset_s(programs: Programs) -> None:
    programs({"nvidia-smi --query-gpu": "NVIDIA GB10, [N/A], [N/A]\n"})
    fields, _ = here.settings()
    assert (fields["cluster.gpu"], fields["cluster.taken_gib"]) == ("dgx-spark-gb10-128gb", 0)


def test_gpus_of_amd(programs: Programs) -> None:
    listed = json.dumps({"card0": CARD, "card1": CARD, "system": {"Driver version": "6.8"}})
    programs({"nvidia-smi": "!", "rocm-smi --json": listed})
    fields, _ = here.settings()
    assert (fields["cluster.gpu"], fields["cluster.gpus"]) == ("mi300x-192gb", 2)
    assert fields["cluster.taken_gib"] == 4


def test_a_chip_of_apple_by_the_machine_s_memory(programs: Programs) -> None:
    programs({"system_profiler": json.dumps(HOST)})
    assert here.settings()[0]["cluster.gpu"] == "m3-max-64gb"


@pytest.mark.parametrize(
    "printed",
    [{}, {"nvidia-smi": "!"}, {"nvidia-smi": "No devices were found\n"}, {"rocm-smi": "[1, 2"},
     {"rocm-smi": "[]"}, {"system_profiler": '{"SPHardwareDataType": []}'}],
)  # fmt: skip
def test_where_none_is_found_it_says_who_was_asked(
    printed: Mapping[str, str], programs: Programs
) -> None:
    programs(printed)
    with pytest.raises(PlanError, match=r"no GPU is found here: nvidia-smi, rocm-smi, system_prof"):
        here.settings()


def test_a_gpu_that_no_preset_describes_is_named(programs: Programs) -> None:
    programs({"nvidia-smi --query-gpu": "Matrox G400, 32, 1\n"})
    with pytest.raises(PlanError, match=r"this machine has 'Matrox G400', and no GPU preset"):
        here.settings()


def test_the_command_line_plans_on_this_machine(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs({"nvidia-smi --query-gpu": TWO})
    assert main(["here"]) == 0
    assert "rtx-4090-24gb" in capsys.readouterr().out
    assert main(["here", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["taken_bytes"] == 2**29
    assert (
        main(["levers", "llama-3.2-1b", "--job", "lora", "--gpu", "here", "--gpus", "1", "--json"])
        == 0
    )
    assert main(["link", "llama-3.2-1b", "--gpu", "here", "--gpus", "1"]) == 0
    link = capsys.readouterr().out
    assert "taken=1.5" in link
    assert "gpu=rtx-4090-24gb" in link
    assert "gpus=1" in link
