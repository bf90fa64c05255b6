"""Models: standard sizes, and what a config.json may not say."""

import pytest
from tables import each

from memcore import PlanError
from memcore.models.config import Keys, parse_config
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES, from_config
from memcore.models.standard import standard_config
from memcore.units import count_text, parse_count

SIZE_TOLERANCE = 0.015  # of a standard model's parameters, against the size asked for
SIZES = ("100M", "350M", "1B", "1.3B", "3B", "7B", "13B", "34B", "70B", "175B", "405B", "1T", "2T")


@pytest.mark.parametrize("size", SIZES)
def test_a_standard_model_has_its_size(size):
    model = from_config(standard_config(size))
    assert parameters(model) == pytest.approx(parse_count(size), rel=SIZE_TOLERANCE)
    assert model.hidden_size == model.heads * model.head_dim
    assert 1.25 < model.intermediate_size / model.hidden_size < 4.5


def test_standard_models_grow_with_their_size():
    shapes = [standard_config(size) for size in SIZES]
    widths = [s["hidden_size"] for s in shapes]
    assert widths == sorted(widths)


@pytest.mark.parametrize("size", ["", "7", "99M", "3T", "7X", "-7B", "7B; drop", "1e3B"])
def test_a_size_that_is_none_is_named(size):
    with pytest.raises(PlanError, match=r"model\.size"):
        standard_config(size)


UNREADABLE = {"gemma3"}  # by default 14 patches on a side are to be 16 tokens: refused


@each("family", sorted(FAMILIES.keys() - UNREADABLE))
def test_the_defaults_of_every_family_are_a_model(family):
    """A key that is absent takes the default of its transformers configuration class."""
    model = FAMILIES[family].config(Keys({"model_type": family}, FAMILIES[family].aliases))
    assert parameters(model) > 0


OWN_WORDS = {
    ("vit", "vocab_size"): "patch_size",
    ("mamba2", "num_attention_heads"): "num_heads",
}


TEXTS = {"clip": "clip_text_model"}


@each("family", sorted(FAMILIES))
@each("key", ["vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads"])
@each("value", [0, -1, 1.5, "8", True, [], 10**400])
def test_a_bad_count_is_named(family, key, value):
    key = OWN_WORDS.get((family, key), key)
    config = {key: value}
    if FAMILIES[family].before or family == "clip":  # its sizes are those of the models in it
        config = {"text_config": {"model_type": TEXTS.get(family, "llama")} | config}
    with pytest.raises(PlanError) as caught:
        from_config({"model_type": family} | config)
    assert any(issue.field.startswith("model.") for issue in caught.value.issues)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "not JSON"),
        ("[1]", "one JSON object"),
        ('{"model_type": "llama", "rms_norm_eps": Infinity}', "model.rms_norm_eps"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        (" " * 4_000_001, "bytes"),
        (b"\xff\xfe{", "not JSON"),
    ],
    ids=["text", "list", "infinity", "deep", "deeper", "large", "binary"],
)
def test_what_is_no_config_is_said(text, says):
    with pytest.raises(PlanError, match=says):
        parse_config(text)


def test_an_unknown_architecture_is_refused_by_name():
    with pytest.raises(
        PlanError, match="'perceiver' is no family that Memplan has by hand: trace it"
    ):
        from_config({"model_type": "perceiver"})


def test_heads_that_do_not_divide_are_named():
    with pytest.raises(PlanError, match="num_key_value_heads 7"):
        from_config({"model_type": "llama", "num_key_value_heads": 7})


def test_null_is_not_absent():
    """Absent, Mistral's window is 4,096; null, there is none."""
    sizes = {"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2}
    assert from_config(sizes).window == 4096
    assert from_config(sizes | {"sliding_window": None}).window == 0


def test_counts_read_as_they_are_written():
    assert [parse_count(s) for s in ("7B", "1.5T", " 350m ")] == [
        7 * 10**9,
        15 * 10**11,
        35 * 10**7,
    ]
    assert count_text(8_030_261_248) == "8.03B"
