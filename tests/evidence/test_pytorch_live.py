"""PyTorch and transformers asked anew, where they are installed, as in CI.

Parameters of every preset; what forward saves, for every family at three shapes; and a handful of
rows of each policy, so that the tables cannot drift from what PyTorch says."""

import json
import sys

import asked
import pytest
from drawn import STATES

from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.models.config import Keys, parse_config
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES, TWINS, from_config, qwen_vl, wrappers
from memcore.plan.plan import Plan

pytestmark = pytest.mark.oracle

SAVED_TOLERANCE = 0.001
SHAPES = ((1, 48), (2, 40), (3, 56))  # sequences, tokens
# Whose sequences are as long as their images want, or their encoder.
OF_ONE_LENGTH = ("vit", "deit", "dinov2", "dinov2_with_registers", "clip_vision_model", "llava",
                 "gemma3", "whisper", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
                 "siglip_vision_model", "dinov3_vit")  # fmt: skip
TRAINED = sorted(name for name, family in FAMILIES.items() if not family.untrained)
WHOLE = {"step3p5": "step3p7", "mllama_text_model": "mllama"} | {
    name: name.removesuffix("_text") for name in qwen_vl.TEXTS
}
INSIDE = tuple(WHOLE)  # which no class of transformers with a head has by themselves
SERVED = [
    f
    for f in TRAINED
    if f not in (*STATES, *INSIDE) and FAMILIES[f].decoder and not FAMILIES[f].bridge
]
WHY = "asks PyTorch itself: pip install '.[oracle]'"

TABLES = {"ask_pytorch": asked.table("families"), "ask_policies": asked.table("policies")}
ANSWERS = ("bytes", "at", "detail")


def shapes():
    """For every family one of its models at three shapes, nothing recomputed."""
    table, found = TABLES["ask_pytorch"], {}
    for row in table["rows"]:
        if row["kind"] == "saved" and row["checkpointing"] == "none":
            found.setdefault(asked.family_of(asked.config_of(table, row)), row)
    return [
        pytest.param(
            row | {"batch": batch} | ({} if family in OF_ONE_LENGTH else {"seq": seq}),
            id=f"{family} {batch}x{seq}",
        )
        for family, row in found.items()
        for batch, seq in SHAPES
    ]


def sample():
    """The first llama row of each kind, checkpointing policy and regime, on transformers alone."""
    seen = {}
    for script, table in TABLES.items():
        for row in table["rows"]:
            plain = (
                row.get("kernels", "hf") == "hf" and row.get("cross_entropy", "eager") == "eager"
            )
            if plain and row["kind"] != "optimizer state" and row.get("model") in ("l0", "llama"):
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
    sys.path.insert(0, str(asked.REFERENCE))
    import ask_policies
    import ask_pytorch

    ask_pytorch.install_stand_ins()
    return {"ask_policies": ask_policies.ask, "ask_pytorch": ask_pytorch.ask}


def model_of(config, images=False):
    """The model of its type's task, with its tower where Memplan plans that: the class that a
    preset names may be one with a tower, or not be transformers'."""
    sys.path.insert(0, str(asked.REFERENCE))
    import ask_pytorch

    config.architectures = None
    return ask_pytorch.made(config, images)


@pytest.mark.parametrize("row", shapes())
def test_what_forward_saves(row, ask):
    words = {k: v for k, v in row.items() if k not in ANSWERS}
    import kernels

    family = TABLES["ask_pytorch"]["configs"][row["model"]]["model_type"]
    if family in STATES and not kernels.there():
        pytest.skip("the sources of mamba_ssm, causal_conv1d and fla are not on the path")
    said = ask["ask_pytorch"](TABLES["ask_pytorch"]["configs"][row["model"]], words)["bytes"]
    ours = evaluate(
        asked.plan_of_family(TABLES["ask_pytorch"], row)
    ).memory.saved_for_backward_bytes
    assert ours == pytest.approx(said, rel=SAVED_TOLERANCE)


HEADS = ("Model", "ForSequenceClassification")  # of embedding models and rerankers
OURS = "_with_images"  # ends our names of models that have another without its tower


@pytest.mark.parametrize("name", catalog.config_names())
def test_parameters_of_presets(name):
    torch = pytest.importorskip("torch", reason=WHY)
    transformers = pytest.importorskip("transformers", reason=WHY)
    config = dict(catalog.model_entry(name)["config"])
    called = config.pop("model_type")
    kind = called.removesuffix(OURS)
    if kind in TWINS:
        config = TWINS[kind].opened(config)
        kind = config.pop("model_type")
    if kind in WHOLE and "text_config" not in config:
        tied = config.get("tie_word_embeddings", False)
        kind, config = WHOLE[kind], {"text_config": config, "tie_word_embeddings": tied}
    made = transformers.AutoConfig.for_model(kind, **config)
    head = config.get("architectures", [""])[0]
    named = getattr(transformers, head, None) if head.endswith(HEADS) else None
    with torch.device("meta"):
        if called.endswith(OURS):
            own = transformers.AutoModelForImageTextToText.from_config(made)
        else:
            own = named(made) if named else model_of(made, catalog.model(name).tower is not None)
    assert parameters(catalog.model(name)) == sum(p.numel() for p in own.parameters())


TIED = "qwen3_vl_moe_text"  # by default, as no wrapper of it is
# By default 14 patches on a side are to be 16 tokens, embeddings are of each layer, and
# attn_config has no rope_theta: refused. transformers itself stops at a head_dim of null, and at
# num_key_value_heads of null; LFM2-MoE's at no layer_types, ESM's at no vocab_size; DeBERTa's
# default has no distances. AutoModel has no tower of texts of SigLIP, DINOv3's files say their
# width, which is not guessed, and Qwen-VL's default tower makes tokens of another width than the
# text's.
UNREADABLE = (
    "gemma3", "dbrx", "dots1", "ministral", "hunyuan_v1_dense", "nemotron", "lfm2_moe",
    "hunyuan_v1_moe", "esm", "deberta-v2", "siglip_text_model", "dinov3_vit",
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
)  # fmt: skip


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f not in UNREADABLE and not f.endswith(OURS)]
)
def test_parameters_of_a_family_s_default(family):
    """What is taken for every key that a config.json has not."""
    torch = pytest.importorskip("torch", reason=WHY)
    transformers = pytest.importorskip("transformers", reason=WHY)
    config = transformers.AutoConfig.for_model(family)
    with torch.device("meta"):
        if family in INSIDE:
            whole = WHOLE[family]
            of = {"text_config": config.to_dict(), "tie_word_embeddings": family == TIED}
            config = transformers.AutoConfig.for_model(whole, **of)
        own = FAMILIES[family].config(Keys({"model_type": family}, FAMILIES[family].aliases))
        model = model_of(config, own.tower is not None)
    assert parameters(own) == sum(p.numel() for p in model.parameters())


def saved_anew(config, folder):
    """The config.json that transformers writes of one that it has read."""
    transformers = pytest.importorskip("transformers", reason=WHY)
    words = {k: v for k, v in config.items() if k != "model_type"}
    transformers.AutoConfig.for_model(config["model_type"], **words).save_pretrained(folder)
    return parse_config((folder / "config.json").read_bytes())


PRESETS = {name: catalog.model_entry(name)["config"] for name in catalog.config_names()}
PRESETS = {name: c for name, c in PRESETS.items() if c["model_type"] not in TWINS}
PRESETS = {name: c for name, c in PRESETS.items() if not c["model_type"].endswith(OURS)}


@pytest.mark.parametrize("name", [*PRESETS, *TABLES["ask_pytorch"]["configs"]])
def test_a_config_that_transformers_saved_is_the_same_model(name, tmp_path):
    """Every preset, and small models of every family whose sizes are no defaults."""
    config = PRESETS.get(name) or TABLES["ask_pytorch"]["configs"][name]
    saved = from_config(saved_anew(config, tmp_path), "of one name")
    assert saved == from_config(config, "of one name")
    assert parameters(saved) == parameters(from_config(config))


SMALL_TEXTS = {
    "qwen3_5": {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96},
    "qwen3_5_moe": {"num_hidden_layers": 4, "hidden_size": 64, "num_experts": 8},
    "gemma4": {"num_hidden_layers": 2, "hidden_size": 64, "hidden_size_per_layer_input": 0},
    "llama4": {"num_hidden_layers": 2, "hidden_size": 64, "num_local_experts": 2},
    "step3p7": {"num_hidden_layers": 2, "hidden_size": 64},
    "kimi_k25": {"num_hidden_layers": 2, "hidden_size": 128, "n_routed_experts": 16},
    "minimax_m3_vl": {"num_hidden_layers": 2, "hidden_size": 64, "num_local_experts": 8,
                      "mlp_layer_types": ["dense", "sparse"],
                      "layer_types": ["full_attention", "minimax_m3_sparse"]},
    "mllama": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
               "num_key_value_heads": 2, "cross_attention_layers": [1], "pad_token_id": 0},
    "qwen2_vl": {"num_hidden_layers": 2, "hidden_size": 128},
    "qwen2_5_vl": {"num_hidden_layers": 2, "hidden_size": 128},
    "qwen3_vl": {"num_hidden_layers": 2, "hidden_size": 64},
    "qwen3_vl_moe": {"num_hidden_layers": 2, "hidden_size": 64, "num_experts": 8},
}  # fmt: skip
PLAIN_TEXT = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
              "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
PLAIN_TOWER = {"num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 160,
               "num_attention_heads": 4, "image_size": 56, "patch_size": 7}  # fmt: skip
PLAIN = {"mistral3": "pixtral", "llava_next": "clip_vision_model",
         "paligemma": "siglip_vision_model", "idefics3": "idefics3_vision",
         "smolvlm": "smolvlm_vision", "internvl": "internvl_vision"}  # fmt: skip
SMALL_TEXTS |= dict.fromkeys(PLAIN, PLAIN_TEXT)
SMALL_TOWERS = {  # no size is another's, and each appears in one of the products
    "qwen3_5": {"depth": 3, "hidden_size": 96, "intermediate_size": 160, "num_heads": 4,
                "patch_size": 8, "num_position_embeddings": 64, "out_hidden_size": 64},
    "gemma4": {"num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 160,
               "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
               "patch_size": 8, "position_embedding_size": 72},
    "llama4": {"num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 160,
               "image_size": 56, "projector_input_dim": 72, "projector_output_dim": 72,
               "vision_output_dim": 72, "num_attention_heads": 4},
    "step3p7": {"num_hidden_layers": 3, "hidden_size": 96, "mlp_ratio": 2.0, "image_size": 56,
                "num_attention_heads": 4},
    "kimi_k25": {"num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 160,
                 "patch_size": 7, "pos_emb_height": 8, "pos_emb_width": 8,
                 "num_attention_heads": 4},
    "minimax_m3_vl": {"num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 160,
                      "patch_size": 7, "num_attention_heads": 4},
    "mllama": {"num_hidden_layers": 3, "hidden_size": 96, "intermediate_size": 160,
               "image_size": 56, "patch_size": 7, "attention_heads": 4, "num_global_layers": 2,
               "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
               "intermediate_layers_indices": [0, 2],
               "vision_output_dim": 288},
}  # fmt: skip
SMALL_TOWERS |= {kind: PLAIN_TOWER | {"model_type": of} for kind, of in PLAIN.items()}
SMALL_TOWERS["qwen3_5_moe"] = SMALL_TOWERS["qwen3_5"]
SMALL_TOWERS["qwen2_5_vl"] = SMALL_TOWERS["qwen3_5"] | {"out_hidden_size": 72}
SMALL_TOWERS["qwen2_vl"] = {"depth": 3, "embed_dim": 96, "hidden_size": 72, "mlp_ratio": 2,
                            "num_heads": 4, "patch_size": 8}  # fmt: skip
for of_qwen3 in ("qwen3_vl", "qwen3_vl_moe"):
    SMALL_TOWERS[of_qwen3] = SMALL_TOWERS["qwen3_5"] | {"deepstack_visual_indexes": [0, 2]}


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in wrappers.KNOWN if kind in SMALL_TEXTS])
def test_parameters_of_a_tower_that_is_left_out(kind, small):
    """The whole model as its class has it, less the language model inside."""
    torch = pytest.importorskip("torch", reason=WHY)
    transformers = pytest.importorskip("transformers", reason=WHY)
    text = {"model_type": wrappers.KNOWN[kind]["text"], **SMALL_TEXTS[kind]}
    tower = SMALL_TOWERS[kind] if small else {}
    config = {"text_config": text}
    if small or wrappers.KNOWN[kind].get("towerless"):
        config["vision_config"] = tower
    words = {"projection_hidden_size": 96} if kind == "kimi_k25" and small else {}
    made = transformers.AutoConfig.for_model(kind, **config, **words, tie_word_embeddings=False)
    with torch.device("meta"):
        whole = transformers.AutoModelForImageTextToText.from_config(made)
    if kind in FAMILIES:  # which is planned whole, and so its language model alone is asked for
        config = text | {"vision_config": tower}
        kind = config["model_type"]
    model = from_config({"model_type": kind, **config, "tie_word_embeddings": False})
    left_out = sum(p.numel() for p in whole.parameters()) - parameters(model)
    assert any(f" {left_out:,} parameters" in note for note in model.notes)


def test_every_tower_is_asked_here_or_stands_in_the_table():
    rows = json.loads((asked.REFERENCE / "parameters.json").read_text())
    told = {row["config"].get("model_type") for row in rows}
    known = pytest.importorskip("transformers", reason=WHY).CONFIG_MAPPING
    # EXAONE 4.5 as a whole is counted in tests/field/servers.toml.
    theirs = {kind for kind in wrappers.KNOWN if kind in known} - {"exaone4_5"}
    assert theirs <= told | SMALL_TEXTS.keys()


@pytest.mark.parametrize("family", [f for f in FAMILIES if not f.endswith(OURS)])
def test_other_names_of_keys_are_those_of_transformers(family):
    transformers = pytest.importorskip("transformers", reason=WHY)
    names = transformers.CONFIG_MAPPING[family].attribute_map
    ours = FAMILIES[family].aliases
    assert [(a, b) for a, b in names.items() if ours.get(a, a) != ours.get(b, b)] == []


def test_every_family_is_asked_at_three_shapes():
    table = TABLES["ask_pytorch"]
    families = [asked.family_of(asked.config_of(table, p.values[0])) for p in shapes()]
    assert {f: families.count(f) for f in TRAINED} == dict.fromkeys(TRAINED, 3)


@pytest.mark.parametrize(("script", "row"), sample())
def test_pytorch_says_what_the_table_has(script, row, ask):
    words = {k: v for k, v in row.items() if k not in ANSWERS}
    said = ask[script](TABLES[script]["configs"][row["model"]], words)
    assert said["bytes"] == row["bytes"]


OF_INDEXERS = ("indexer_keys", "idx_keys")
# Of DeepSeek-V4, by what each is of: entries, and tokens that make none yet.
OF_ENTRIES = ("compressed_kv", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")


def of_layer(one):
    """Every tensor that a layer's cache holds, each once: keys may be values too."""
    parts = [one.keys, one.values, *(getattr(one, name, None) for name in OF_INDEXERS)]
    parts += [t for name in OF_ENTRIES for t in getattr(one, name, {}).values()]
    return {id(t): t for t in parts if t is not None}.values()


@pytest.mark.parametrize(("tokens", "window"), [(3, 16), (40, 16), (40, 1)])
@pytest.mark.parametrize("family", SERVED)
def test_a_cache_after_a_prefill(family, tokens, window):
    """Two sequences through a small model of each family; windows are shorter than the longer. Of a
    window of one token a DynamicCache drops nothing."""
    torch = pytest.importorskip("torch", reason=WHY)
    transformers = pytest.importorskip("transformers", reason=WHY)
    small = next(c for c in TABLES["ask_pytorch"]["configs"].values() if c["model_type"] == family)
    config = {k: window if k == "sliding_window" and v else v for k, v in small.items()}
    words = {k: v for k, v in config.items() if k != "model_type"}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(family, **words)
    ).eval()
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.zeros((2, tokens), dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(
        t.numel() * t.element_size()
        for one in cache.layers
        if one.is_initialized
        for t in of_layer(one)
    )
    served = {"kv_cache": "dynamic", "kv_dtype": "fp32", "prompt_len": tokens - 1, "output_len": 1}
    train = {"attention": FAMILIES[family].attentions[0], "seq_len": 3}
    plan = Plan(model=config, train=train, serve=served)
    assert 2 * evaluate(plan).serve.sequence_bytes == held


@pytest.mark.parametrize(("prompt", "generated"), [(1, 1), (7, 1), (40, 3), (23, 12)])
@pytest.mark.parametrize(("family", "tied"), [("t5", True), ("t5", False), ("mt5", False)])
def test_caches_of_an_encoder_decoder(prompt, generated, family, tied):
    """transformers' EncoderDecoderCache after `generate`: of every decoder layer keys and values of
    the encoder's tokens, and those of the decoder's: a start token, and all that are generated but
    the last, which nobody reads."""
    torch = pytest.importorskip("torch", reason=WHY)
    transformers = pytest.importorskip("transformers", reason=WHY)
    configs = TABLES["ask_pytorch"]["configs"].values()
    small = next(c for c in configs if c["model_type"] == family)
    config = small | {"num_decoder_layers": 3, "tie_word_embeddings": tied}
    words = {k: v for k, v in config.items() if k != "model_type"}
    model = model_of(transformers.AutoConfig.for_model(family, **words)).eval()
    said = model.generate(
        torch.ones((2, prompt), dtype=torch.long), max_new_tokens=generated,
        min_new_tokens=generated, return_dict_in_generate=True, decoder_start_token_id=0,
    ).past_key_values  # fmt: skip

    def held(cache):
        return sum(
            t.nbytes for one in cache.layers if one.is_initialized for t in (one.keys, one.values)
        )

    plan = Plan(
        model=config,
        train={"attention": "eager", "seq_len": 3},
        serve={"kv_cache": "dynamic", "kv_dtype": "fp32", "weight_dtype": "fp32"}
        | {"prompt_len": prompt, "output_len": generated},
    )
    served = evaluate(plan).serve
    assert 2 * served.cross_bytes_per_sequence == held(said.cross_attention_cache)
    assert 2 * served.sequence_bytes == held(said.self_attention_cache) + held(
        said.cross_attention_cache
    )
    assert served.weights_bytes == sum(p.nbytes for p in model.parameters())


FROZEN = asked.table("frozen")


@pytest.mark.parametrize("model", ["l-tied", "gemma2"])
@pytest.mark.parametrize(
    ("checkpointing", "frozen", "trained_layers"),
    [
        ("none", "embeddings", 1),
        ("none", "lower", 0),
        ("none", "lower", 1),
        ("full", "lower", 1),
        ("full", "embeddings", 1),
        ("none", "none", 1),
    ],
)
def test_flops_of_frozen_weights(model, checkpointing, frozen, trained_layers, ask):
    """Those that PyTorch counts in a forward and its backward: no product for the gradient of a
    frozen weight, none at all where backward does not come. torch.utils.checkpoint stops running a
    layer again once it has what backward reads: not the product that a Llama layer ends in, which
    ours counts."""
    counter = pytest.importorskip("torch.utils.flop_counter", reason=WHY)
    import ask_pytorch
    import torch

    config = FROZEN["configs"][model]
    words = {"checkpointing": checkpointing, "attention": "eager", "batch": 2, "seq": 24}
    built = ask_pytorch.build(config, torch.bfloat16, words | {"cross_entropy": "eager"})
    layers = built.model.layers
    held = len(layers) - trained_layers if frozen == "lower" else 0
    for part in (built.model.embed_tokens, *layers[:held]) if frozen != "none" else ():
        part.requires_grad_(False)
    with counter.FlopCounterMode(display=False) as said:
        ask_pytorch.step(built, words, autocast=False).backward()
    train = {
        "framework": "pytorch", "zero": 0, "precision": "bf16-pure", "micro_batch": 2,
        "seq_len": 24, "attention": "eager", "checkpointing": checkpointing, "frozen": frozen,
        "trained_layers": trained_layers,
    }  # fmt: skip
    time = evaluate(Plan(model=config, cluster={"gpus": 1}, train=train)).time
    ours = sum(o.flops for o in time.operations if o.phase != "optimizer")
    spared = sum(
        o.flops
        for o in time.operations
        if o.phase == "recompute" and o.name == "layers.mlp.down_proj.matmul" and model == "l-tied"
    )
    assert ours == said.get_total_flops() + spared


# The products that layers of each end in, which torch.utils.checkpoint does not run again: behind
# those of T5 comes a dropout, behind those of Gemma a norm, which save something.
STACKS = {
    "t5": (), "t5-gated": (), "mt5": (), "llava": ("down_proj.matmul", "fc2.matmul"),
    "llava-last": ("down_proj.matmul", "fc2.matmul"), "gemma3-vision": ("fc2.matmul",),
}  # fmt: skip


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", STACKS)
def test_flops_of_several_stacks(model, checkpointing, ask):
    """Those that PyTorch counts in a forward and its backward, over all stacks together."""
    counter = pytest.importorskip("torch.utils.flop_counter", reason=WHY)
    import ask_pytorch
    import torch

    table = TABLES["ask_pytorch"]
    row = next(r for r in table["rows"] if r["model"] == model and r["kind"] == "saved")
    row |= {"attention": "eager", "checkpointing": checkpointing}
    words = {k: v for k, v in row.items() if k not in ANSWERS}
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        built = ask_pytorch.build(table["configs"][model], torch.bfloat16, words)
        with counter.FlopCounterMode(display=False) as said:
            ask_pytorch.step(built, words, autocast=False).backward()
    time = evaluate(asked.plan_of_family(TABLES["ask_pytorch"], row)).time
    ours = sum(o.flops for o in time.operations if o.phase != "optimizer")
    again = [o for o in time.operations if o.phase == "recompute"]
    spared = sum(o.flops for o in again if o.name.endswith(STACKS[model]))
    assert said.get_total_flops() == ours - spared


def test_flops_of_compressed_attention(ask):
    """Those of DeepSeek-V4 that PyTorch counts in a forward and its backward: all but the grouped
    products of experts, which its counter does not know."""
    counter = pytest.importorskip("torch.utils.flop_counter", reason=WHY)
    import ask_pytorch
    import torch

    table = TABLES["ask_pytorch"]
    row = next(r for r in table["rows"] if r["model"] == "dsv4" and r["kind"] == "saved")
    words = {k: v for k, v in row.items() if k not in ANSWERS}
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        built = ask_pytorch.build(table["configs"]["dsv4"], torch.bfloat16, words)
        with counter.FlopCounterMode(display=False) as said:
            ask_pytorch.step(built, words, autocast=False).backward()
    time = evaluate(asked.plan_of_family(table, row)).time
    ours = sum(o.flops for o in time.operations if not o.name.endswith("grouped_mm"))
    ours -= sum(o.flops for o in time.operations if o.phase == "optimizer")
    assert said.get_total_flops() == ours
