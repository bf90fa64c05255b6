"""Parameters as transformers 5.23.0 counts them (reference/ask_parameters.py): of models with a
language model inside, and of those that are served and not trained."""

import sys

import asked
import pytest
from tables import each

from memcore.errors import PlanError
from memcore.models.counts import active_parameters, parameters
from memcore.models.families import FAMILIES, from_config
from memcore.models.families.qwen_vl import WITH_IMAGES
from memcore.models.families.wrappers import KNOWN

ROWS = asked.table("parameters")
# What is served and not trained, so that no reference of autograd's counts it.
SERVED = {
    kind: of
    for kind, of in FAMILIES.items()
    if of.untrained and not kind.endswith(WITH_IMAGES)  # a word of this project
}


@each("row", ROWS)
def test_parameters_are_those_of_transformers(row):
    model = from_config(row["config"])
    assert parameters(model) + model.left_out == row["parameters"]
    assert active_parameters(model) <= row["parameters"]
    if model.left_out:
        assert any(f"The whole has {row['parameters']:,}." in note for note in model.notes)


def test_every_class_is_asked():
    asked_of = {(row["config"]["model_type"], row["config"]["architectures"][0]) for row in ROWS}
    assert asked_of >= {(kind, name) for kind, of in SERVED.items() for name in of.classes}
    towers = {
        kind for kind, row in KNOWN.items() for key in row["keys"].values() if "model" in str(key)
    }
    assert {kind for kind, _ in asked_of} >= towers


TEXT = {"model_type": "llama", "hidden_size": 640, "num_hidden_layers": 2}


def test_a_tower_that_is_not_known_leaves_its_weights_unknown():
    model = from_config({"model_type": "llava", "text_config": TEXT,
                         "vision_config": {"model_type": "swin"}})  # fmt: skip
    assert model.left_out == 0
    assert any("left out, its weights too" in note for note in model.notes)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "swin"}, "model_type: architecture 'swin' is no family"),
        ({"model_type": "zamba2", "hidden_size": 640}, "such as .*mamba2"),
        ({"model_type": "seamless_m4t"}, "architecture 'seamless_m4t' is no family"),
        ({"model_type": "blt", "decoder_config": {"model_type": "blt_local_decoder"}},
         "with 'blt_local_decoder' as its language model"),
        ({"model_type": "aimv2", "architectures": ["Aimv2Model"], "text_config": {}},
         "give its text_config as the config.json"),
        ({"model_type": "bert", "architectures": ["BertForPreTraining"], "hidden_size": 768,
          "num_hidden_layers": 12}, "BertForMaskedLM"),
        ({"_class_name": "UNet2DConditionModel"}, "'UNet2DConditionModel' of diffusers"),
    ],
)  # fmt: skip
def test_what_is_no_family_is_to_be_traced(config, said):
    with pytest.raises(PlanError, match=said) as refused:
        from_config(config)
    assert "`memplan trace " in str(refused.value)
    assert "[trace]" in str(refused.value)


@pytest.mark.oracle
def test_transformers_still_counts_so():
    pytest.importorskip("transformers", reason="asks transformers: pip install '.[oracle]'")
    sys.path.insert(0, str(asked.REFERENCE))
    import ask_parameters

    ask_parameters.main(["20"])
