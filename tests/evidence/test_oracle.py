"""Our bytes against PyTorch's own, row by row (presets/evidence/oracle/README.md says what the rows
are; evidence/pytorch.py makes the plans)."""

import pytest
from tables import each

from evidence.pytorch import compared, oracle, preset_parameters
from memcore.models import catalog
from memcore.models.counts import parameters


def kind(name):
    return [
        pytest.param(r, id="-".join(v for k, v in r.items() if k not in ("value", "detail")))
        for r in oracle()
        if r["kind"] == name
    ]


@each("row", kind("params"))
def test_parameters_are_equal(row):
    found = compared(row)
    assert (found.what, found.ours) == ("parameters", int(row["value"]))


@each("row", kind("saved"))
def test_saved_bytes_are_equal(row):
    found = compared(row)
    assert (found.what, found.ours) == ("saved", int(row["value"]))


@each("row", kind("peak"))
def test_peaks_agree(row):
    """The reference leaves out the optimizer step, so that instant is left out here too."""
    found = compared(row)
    assert (found.what, found.theirs) == ("peak", int(row["value"]))
    assert found.tolerance == (0.03 if row["regime"] == "autocast" else 0.0001)
    assert abs(found.error) <= found.tolerance, (
        f"{found.error:+.4%} against a tolerance of {found.tolerance:.2%}"
    )


def test_every_preset_has_its_published_parameters():
    """Counted by transformers on the meta device, for every preset there is."""
    ours = {name: parameters(catalog.model(name)) for name in catalog.config_names()}
    assert ours == preset_parameters()


def test_every_known_row_is_asked():
    """The table cannot shrink unnoticed: eleven models, both checkpointings, both attentions."""
    rows = oracle()
    counts = {kind: sum(r["kind"] == kind for r in rows) for kind in ("params", "saved", "peak")}
    assert counts == {"params": 11, "saved": 212, "peak": 368}
