"""A handful of reference rows asked of PyTorch anew, so that the tables cannot drift from it."""

import json
import sys
from pathlib import Path

import pytest

WHY = "asks PyTorch itself: pip install '.[oracle]'"
REFERENCE = Path(__file__).parent / "reference"
TABLES = {
    "ask_pytorch": json.loads((REFERENCE / "families.json").read_text()),
    "ask_policies": json.loads((REFERENCE / "policies.json").read_text()),
}
ANSWERS = ("bytes", "at", "detail")


def sample():
    """The first llama row of each kind, checkpointing policy and regime, on transformers alone."""
    seen = {}
    for script, table in TABLES.items():
        for row in table["rows"]:
            plain = (
                row.get("kernels", "hf") == "hf" and row.get("cross_entropy", "eager") == "eager"
            )
            if plain and row.get("model") in ("l0", "llama"):
                words = script, row["kind"], row["checkpointing"], row.get("regime")
                seen.setdefault(words, (script, row))
    return [pytest.param(*v, id=" ".join(map(str, k[1:]))) for k, v in seen.items()]


@pytest.fixture(scope="module")
def ask():
    torch = pytest.importorskip("torch", reason=WHY)
    pytest.importorskip("transformers", reason=WHY)
    stood = TABLES["ask_policies"]["versions"]["torch"]
    if torch.__version__.split("+")[0] != stood.split("+")[0]:
        pytest.skip(f"the tables are of PyTorch {stood}, here is {torch.__version__}")
    sys.path.insert(0, str(REFERENCE))
    import ask_policies
    import ask_pytorch

    ask_pytorch.install_stand_ins()
    return {"ask_policies": ask_policies.ask, "ask_pytorch": ask_pytorch.ask}


@pytest.mark.parametrize(("script", "row"), sample())
def test_pytorch_says_what_the_table_has(script, row, ask):
    words = {k: v for k, v in row.items() if k not in ANSWERS}
    said = ask[script](TABLES[script]["configs"][row["model"]], words)
    assert said["bytes"] == row["bytes"]
