"""Architectures that are counted and not planned: parameters as transformers 5.23.0 counts them
(reference/ask_counted.py), and what a plan of one says."""

import sys

import asked
import pytest
from tables import each

from memcore.errors import PlanError
from memcore.models.counts import active_parameters, parameters
from memcore.models.families import FAMILIES, from_config
from memcore.models.families.counted import every
from memcore.models.families.qwen_vl import WITH_IMAGES
from memcore.models.families.wrappers import KNOWN
from memcore.plan.plan import Plan

ROWS = asked.table("counted")
# What is served and not trained, so that no reference of autograd's counts it.
SERVED = {
    kind: of
    for kind, of in FAMILIES.items()
    if of.untrained and not kind.endswith(WITH_IMAGES)  # a word of this project
}
SWIN = {"model_type": "swin", "architectures": ["SwinForImageClassification"]}


@each("row", ROWS)
def test_parameters_are_those_of_transformers(row):
    model = from_config(row["config"])
    assert parameters(model) + model.left_out == row["parameters"]
    assert active_parameters(model) <= row["parameters"]
    if model.left_out:
        assert any(f"The whole has {row['parameters']:,}." in note for note in model.notes)


def test_every_class_is_asked():
    families = every() | SERVED
    asked_of = {(row["config"]["model_type"], row["config"]["architectures"][0]) for row in ROWS}
    assert asked_of >= {(kind, name) for kind, of in families.items() for name in of.classes}
    towers = {
        kind for kind, row in KNOWN.items() for key in row["keys"].values() if "model" in str(key)
    }
    assert {kind for kind, _ in asked_of} >= towers


def test_a_plan_of_one_says_how_many_it_has_and_is_refused():
    with pytest.raises(
        PlanError, match=r"28,288,354 parameters, 54\.0 MiB in 16 bits.*not known yet"
    ):
        Plan(model={**SWIN, "num_labels": 1000})


def test_what_a_file_leaves_open_is_noted():
    assert any("embed_dim (96)" in note for note in from_config(SWIN).notes)


@pytest.mark.parametrize(
    ("own", "key"),
    [
        ({"depths": [2, "2"]}, "depths"),
        ({"depths": [2, 2, 2], "num_heads": [3, 6]}, "num_heads"),
        ({"mlp_ratio": -1}, "mlp_ratio"),
        ({"architectures": ["SwinBackbone"]}, "architectures"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_its_key(own, key):
    with pytest.raises(PlanError, match=key):
        from_config(SWIN | own)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "seamless_m4t"}, "speech models is not planned"),
        ({"model_type": "aimv2", "architectures": ["Aimv2Model"], "text_config": {}},
         "give its text_config as the config.json"),
        ({"model_type": "blt", "decoder_config": {"model_type": "blt_local_decoder"}},
         "a size such as 7B"),
        ({"model_type": "vision-encoder-decoder", "decoder": {"model_type": {}}},
         "decoder.model_type"),
        ({"model_type": "rembert", "hidden_size": 1152, "num_hidden_layers": 2,
          "add_cross_attention": True}, "add_cross_attention"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(config, said):
    with pytest.raises(PlanError, match=said):
        from_config(config)


@pytest.mark.oracle
def test_transformers_still_counts_so():
    pytest.importorskip("transformers", reason="asks transformers: pip install '.[oracle]'")
    sys.path.insert(0, str(asked.REFERENCE))
    import ask_counted

    ask_counted.main(["20"])
