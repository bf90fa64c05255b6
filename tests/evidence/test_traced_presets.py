"""Presets that were traced, beside what PyTorch said of them at sizes that were not traced."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from evidence.traced import compared_traced
from memcore.models import catalog
from memcore.models.counts import parameters
from memcore.models.traced.file import BATCH, read
from memcore.models.traced.tuned import LowRank, adapted, tuned

ROOT = Path(__file__).parents[2]
ROWS = catalog.traced_rows()


@pytest.mark.parametrize("name", ROWS)
def test_a_traced_preset_has_a_source_and_checks(name: str) -> None:
    row, file = ROWS[name], catalog.traced_file(name)
    assert row["label"]
    assert row["source"]
    assert row["group"] in ("vision", "diffusion", "science", "recommenders")
    own = {dim for dim in file.dims if dim not in ("batch", "tokens")}
    assert set(row["dims"]) == own
    for check in file.checks:
        variant = file.variant(check.sizes)
        assert check.parameters == file.elements == parameters(catalog.model(name))
        assert variant.saved_bytes(check.sizes) == pytest.approx(check.saved_bytes, rel=0.0001)
        assert file.peak_bytes(check.sizes) == pytest.approx(check.peak_bytes, rel=0.01)


def test_the_engine_has_what_pytorch_said() -> None:
    rows = list(compared_traced())
    assert {row.model for row in rows} >= {"ResNet-50"}
    for row in rows:
        assert abs(row.error) <= row.tolerance, (row.model, row.what, row.remark, row.error)


SMALL = [name for name in ROWS if 0 < catalog.traced_file(name).elements < 300_000_000]


@pytest.mark.oracle
@pytest.mark.parametrize("name", SMALL)
def test_pytorch_says_the_same_today(name: str) -> None:
    """At a size that neither the trace nor its checks had."""
    pytest.importorskip("torch")
    from memcore.tracing.targets import target_of
    from memcore.tracing.trace import totals

    row, file = ROWS[name], catalog.traced_file(name)
    package = str(row["target"]).partition(":")[0]
    if package == "timm" and importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    word = str(ROOT / row["target"]) if ".py:" in row["target"] else row["target"]
    inputs = {k: tuple(dims.split(",")) for k, dims in row.get("inputs", {}).items()}
    sizes = {dim: n if dim == BATCH else 3 * n for dim, n in file.dims.items()} | {BATCH: 4}
    sizes = {dim: n for dim, n in sizes.items() if dim in file.dims}
    try:
        said = totals(target_of(word, inputs), file.dtype, sizes)
    except ModuleNotFoundError as e:
        if e.name != "diffusers":
            raise
        pytest.skip("diffusers is not installed")
    variant = file.variant(sizes)
    assert said["parameters"] == file.elements
    assert variant.saved_bytes(sizes) == pytest.approx(said["saved_bytes"], rel=0.0001)
    assert file.peak_bytes(sizes) == pytest.approx(said["peak_bytes"], rel=0.01)


@pytest.mark.parametrize("name", ROWS)
def test_a_model_file_that_ships_can_be_read_as_a_strangers(name: str) -> None:
    import gzip
    import json

    packed = (ROOT / "presets" / "traced" / f"{name}.json.gz").read_bytes()
    document = json.loads(gzip.decompress(packed))
    assert read(document).elements == catalog.traced_file(name).elements
    assert len(packed) < 400_000


@pytest.mark.parametrize("name", ROWS)
def test_serve_plans_the_forward_of_a_traced_preset(name: str) -> None:
    forward = catalog.traced_file(name).forward
    assert forward
    sizes = catalog.traced_file(name).dims
    assert 0 < forward.peak_bytes(sizes) < catalog.traced_file(name).several.peak_bytes(sizes)


# By reference/ask_traced_adapters.py's nn.Module, on presets: rank and dtype of adapters beside the
# layers of attention, sizes, and PyTorch's bytes saved for backward and peak.
ADAPTED = [
    ("flux-1-dev", 16, "fp32", {"batch": 2, "patches": 256, "text": 96},
     4_772_690_432, 28_707_641_040),
    ("flux-1-dev", 16, "fp32", {"batch": 3, "patches": 64, "text": 128},
     3_689_892_864, 27_616_318_740),
    ("flux-1-dev", 4, "bf16", {"batch": 2, "patches": 256, "text": 96},
     3_585_582_592, 27_455_161_040),
    ("flux-1-dev", 4, "bf16", {"batch": 3, "patches": 64, "text": 128},
     2_878_519_296, 26_739_573_012),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rank", "dtype", "sizes", "saved", "peak"), ADAPTED, ids=str)
def test_lora_of_a_traced_preset_keeps_what_pytorch_keeps(
    name: str, rank: int, dtype: str, sizes: dict[str, int], saved: int, peak: int
) -> None:
    given = catalog.traced_file(name)
    layers = adapted(given, "", ("to_q", "to_k", "to_v", "to_out.0"))
    file = tuned(given, (), LowRank(layers, rank, dtype, False))
    assert file.several.saved_bytes(sizes) == saved
    assert file.peak_bytes(sizes) == peak
