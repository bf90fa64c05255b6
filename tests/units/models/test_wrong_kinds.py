"""Configs with one value of a wrong kind, at any key of every family: a refusal that names the
key, or a model; nothing else. What is tried is drawn with a fixed seed."""

import json
import random

import asked
import pytest

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.models.families import FAMILIES, from_config, wrappers
from memcore.plan.plan import Plan

WRONG = [
    None, True, 1.5, 1e300, "", "x", "7", [], {}, [1, 2], [1, "a", None], [[]], [None], [{}],
    [True], {"a": 1}, {"size": "7B"}, {"model_type": []}, {"model_type": "llama"},
    {"rope_type": []}, {"rope_type": {}, "factor": 2}, {"factor": "x"},
    {"type": "linear", "factor": 1e300},
    {"full_attention": []}, {"partial_rotary_factor": []}, {"quant_method": []},
    {"quant_method": "gptq", "bits": []}, ["full_attention"] * 5, [0] * 200, "A" * 500,
    0, -1, 10**12, 10**400,
]  # fmt: skip
OF_A_WRONG_KIND = (str, list, dict)  # whatever a count, a share or a choice is, it is none of these
ASKED_BESIDES = [
    "architectures", "attn_layer_indices", "auto_map", "head_dim", "hidden_act", "dtype",
    "hybrid_override_pattern", "image_size", "layer_types", "layers_block_type",
    "mlp_only_layers", "moe_layers", "no_rope_layers", "num_experts", "num_local_experts",
    "partial_rotary_factor", "patch_size", "quantization_config", "rope_parameters",
    "rope_scaling", "sliding_window", "text_config", "tie_word_embeddings", "vision_config",
]  # fmt: skip
TRIED = 100  # values a family
COMPUTED = 1  # of the models among them, plans a family


def samples():
    """One config.json for each family and each wrapper."""
    configs = [*asked.table("families")["configs"].values()]
    configs += [catalog.model_entry(name)["config"] for name in catalog.config_names()]
    found = {}
    for config in configs:
        found.setdefault(config["model_type"], config)
    found |= {row["config"]["model_type"]: row["config"] for row in asked.table("parameters")}
    for kind, wrapper in wrappers.KNOWN.items():
        text, vision = found.get(wrapper["text"]) or SIZES, {"hidden_size": 96, "patch_size": 14}
        if kind not in FAMILIES:
            found.setdefault(
                kind, {"model_type": kind, "text_config": text, "vision_config": vision}
            )
    for family in FAMILIES:
        found.setdefault(family, {"model_type": family} | SIZES)
    return dict(sorted(found.items()))


SIZES = {"hidden_size": 640, "num_hidden_layers": 4}
SAMPLES = samples()


def paths(config, before=()):
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths(value, (*before, key))


def with_value(config, path, value):
    config = json.loads(json.dumps(config))
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return config


def drawn(kind):
    """Configs of one family with one value changed: (path, value, config)."""
    config, draw = SAMPLES[kind], random.Random(kind)
    keys = list(paths(config))
    inside = {path[:-1] for path in keys}
    keys += sorted({(*at, key) for at in inside for key in ASKED_BESIDES} - set(keys))
    for _ in range(TRIED):
        path, value = draw.choice(keys), draw.choice(WRONG)
        yield path, value, with_value(config, path, value)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_value_of_a_wrong_kind_is_refused_by_name_or_read(kind):
    refused, accepted = [], []
    for path, value, config in drawn(kind):
        try:
            from_config(config)
        except PlanError as error:
            refused.append((path, value, error))
        else:
            accepted.append(config)
    assert len(refused) > TRIED / 20
    for path, value, error in refused:
        assert error.issues
        assert all(i.field.startswith("model.") and i.message for i in error.issues)
        if isinstance(value, OF_A_WRONG_KIND):
            said = [part for i in error.issues for part in (i.field, i.message)]
            assert any(path[-1] in part for part in said), (path, value, error)
    for config in accepted[:COMPUTED]:
        try:
            report = evaluate(Plan(model=config))
        except PlanError:  # the default sequence is longer than some models take
            continue
        assert json.dumps(report.to_dict(), allow_nan=False)


def test_every_family_and_every_wrapper_is_tried():
    assert set(SAMPLES) >= FAMILIES.keys() | wrappers.KNOWN.keys()
    for kind, config in SAMPLES.items():
        assert from_config(config), kind
