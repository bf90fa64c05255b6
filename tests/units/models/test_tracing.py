"""Tracing of modules as people write them (benchmarks/own_modules.py), against PyTorch's own totals
at sizes that were not traced. Needs PyTorch, so that these run with `-m oracle`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from memcore.errors import PlanError
from memcore.models.traced.file import read

pytestmark = pytest.mark.oracle
OWN = Path(__file__).parents[3] / "benchmarks" / "own_modules.py"


def traced(function: str, **dims: str) -> dict[str, Any]:
    pytest.importorskip("torch")
    from memcore.tracing.targets import target_of
    from memcore.tracing.trace import trace

    named = {name.replace("__", "."): tuple(said.split(",")) for name, said in dims.items()}
    return trace(target_of(f"{OWN}:{function}", named))


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        ("fno", {"field": "batch,3,height,width"}),
        ("graph", {"x": "nodes,16", "edges": "2,edges", "graph": "nodes"}),
        ("pinn", {"points": "points,2"}),
        ("several", {"parts__left": "batch,64", "parts__right": "batch,32"}),
        ("mixture", {"x": "batch,tokens,256"}),
        ("gpt", {"ids": "batch,tokens"}),
    ],
)
def test_what_is_saved_is_what_pytorch_saves(function: str, dims: dict[str, str]) -> None:
    file = read(traced(function, **dims))
    assert len(file.checks) == 3
    for check in file.checks:
        variant = file.variant(check.sizes)
        assert check.parameters == file.elements
        assert variant.saved_bytes(check.sizes) == check.saved_bytes
        assert file.peak_bytes(check.sizes) == pytest.approx(check.peak_bytes, rel=0.01)


def test_a_choice_by_values_is_a_dimension_and_is_told() -> None:
    document = traced("mixture", x="batch,tokens,256")
    assert "chosen" in document["dims"]
    assert any("own_modules.py" in where for where in document["stand_ins"])


def test_a_module_that_cannot_run_says_where_and_why() -> None:
    with pytest.raises(PlanError, match=r"own_modules.py, line \d+ .*give fitting sizes"):
        traced("several", parts__left="batch,63", parts__right="batch,32")  # it takes 64


def test_blocks_are_alike_only_where_all_but_their_places_are() -> None:
    torch = pytest.importorskip("torch")
    from memcore.tracing.folding import shorten

    def block(width: int, rate: float = 0.0) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Dropout(rate))

    alike = torch.nn.ModuleList(block(8) for _ in range(8))
    model = torch.nn.Sequential(alike)
    assert shorten(model)
    assert len(alike) == 1
    rates = torch.nn.ModuleList(block(8, rate) for rate in [0.0, 0.1, 0.2, 0.3] * 2)
    assert shorten(torch.nn.Sequential(rates))
    assert len(rates) == 2  # without dropout, and with it
    widths = torch.nn.ModuleList(block(n) for n in range(1, 9))
    assert not shorten(torch.nn.Sequential(widths))
    assert len(widths) == 8


def test_inputs_of_a_signature_have_the_configs_sizes() -> None:
    pytest.importorskip("torch")
    from memcore.tracing.inputs import Input
    from memcore.tracing.signatures import alternatives, inputs_of

    def forward(self: Any, hidden_states: Any, timestep: Any, guidance: Any = None) -> None:
        """Runs.

        hidden_states (`Tensor` of shape `(batch_size, num_channels, num_frames, height, width)`):
            Input.
        """

    found = inputs_of(forward, {"in_channels": 16})
    assert found["hidden_states"].dims == ("batch", "16", "frames", "height", "width")
    assert found["timestep"].dims == ("batch",)
    image = Input(("batch", "3", "height", "width"))
    *_, last = alternatives({"x": image}, {"image_size": [192, 224]})
    assert last["x"] == dataclasses.replace(image, dims=("batch", "3", "192", "224"))
