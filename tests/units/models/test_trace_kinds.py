"""Kinds of code that a trace must hold, each as a small module: what PyTorch's totals say at sizes
that were not traced, the file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memcore.models.traced.file import read  # noqa: E402
from memcore.tracing.targets import target_of  # noqa: E402
from memcore.tracing.trace import trace  # noqa: E402

NETS = Path(__file__).parents[2] / "helpers" / "traced_kinds.py"
IMAGE = ("batch", "3", "height", "width")


def traced(kind: str, **dims: tuple[str, ...]) -> Any:
    return read(trace(target_of(f"{NETS}:{kind}", dims), "fp32"))


@pytest.mark.parametrize(
    ("kind", "dims", "free"),
    [
        ("resized", {"x": IMAGE}, {"batch", "height", "width"}),
        ("half_steps", {"x": IMAGE}, {"batch", "height", "width"}),
        ("cached_by_size", {"x": IMAGE}, {"batch", "height", "width"}),
        ("tied_tables", {"ids": ("batch", "tokens")}, {"batch", "tokens"}),
        ("condition_on_values", {"x": IMAGE}, {"batch", "height", "width"}),
        ("unused_branch", {"x": IMAGE}, {"batch", "height", "width"}),
        ("numbers_for_width", {"x": IMAGE}, {"batch", "height"}),
    ],
)
def test_what_pytorch_says_at_other_sizes_a_file_says(
    kind: str, dims: dict[str, tuple[str, ...]], free: set[str]
) -> None:
    file = traced(kind, **dims)
    assert set(file.dims) == free
    assert len(file.checks) == 3
    for check in file.checks:
        variant = file.variant(check.sizes)
        assert file.elements == check.parameters
        assert variant.saved_bytes(check.sizes) == check.saved_bytes
        assert file.peak_bytes(check.sizes) == pytest.approx(check.peak_bytes, rel=1e-3)
