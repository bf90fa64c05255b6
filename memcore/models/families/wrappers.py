"""Wrappers: models whose config.json has a language model of a known family inside, as text_config.

The language model is planned as if it stood alone. What reads images, sound or video before it is
left out: its weights are counted where its own config.json is known, as
presets/families/wrappers.toml says, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.models import unplanned
from memcore.models.config import Keys
from memcore.models.families.rows import Row, Sizes, rows, spelled_out
from memcore.units import bytes_text

TEXT, VISION = "text_config", "vision_config"
# Where a language model stands in a wrapper: as transformers has it, in InternVL's own code, in
# DeepSeek-VL2's, in VibeVoice's.
PLACES = (TEXT, "llm_config", "language_config", "decoder_config")
# What a wrapper says for its whole checkpoint, and its text_config does not say again.
OF_THE_WHOLE = (
    "quantization_config",
    "hf_quant_config",
    "compression_config",
    "quantization",
    "dtype",
    "torch_dtype",
)
# Of those whose tower is not known: whose head is the embedding where either says so.
EITHER = ("video_llama_3", "fast_vlm")
# Classes that write text.
SUFFIXES = (
    *("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "InternVLChatModel"),
    *("H2OVLChatModel", "NVLM_D_Model", "Ovis", "UltravoxModel"),
)


_ROWS = {kind: spelled_out(row) for kind, row in rows("wrappers").items() if kind[0] != "_"}
# Those whose tower is known, by model_type.
KNOWN: Mapping[str, Row] = {kind: row for kind, row in _ROWS.items() if "text" in row}
# What has parameters and runs before a text, by model_type.
TOWERS: Mapping[str, Row] = {kind: row for kind, row in _ROWS.items() if "text" not in row}


# Qwen's Omni models: one that reads and thinks, and others that speak.
THINKER = "thinker_config"
NO_TALKER = "What speaks (its talker, and what makes sound of that) is left out, its weights too."


def thinker(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the model that thinks. Raises PlanError."""
    inner = config[THINKER]
    if not isinstance(inner, Mapping):
        message = f"must be a config.json of its own, in braces, not {shown(inner)}"
        raise PlanError([Issue(f"model.{THINKER}", message)])
    whole = {key: config[key] for key in OF_THE_WHOLE if key in config}
    own = {key: value for key, value in inner.items() if key != "architectures"}
    if isinstance(own.get(TEXT), Mapping):  # whose head is tied or not as the whole says
        own[TEXT] = {**own[TEXT], "tie_word_embeddings": own.get("tie_word_embeddings") or False}
    return {"model_type": f"{config['model_type']}_thinker", **whole, **own}


def is_wrapper(config: Mapping[str, Any]) -> bool:
    return place(config) in config or _known(config) is not None


def _known(config: Mapping[str, Any]) -> Row | None:
    return KNOWN.get(config["model_type"])


def place(config: Mapping[str, Any]) -> str:
    """The key that the language model stands under."""
    return next((key for key in PLACES if key in config), TEXT)


def opened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the language model inside, by itself. Raises PlanError."""
    if MIXED in config:
        return _of_llava(config)
    known, where = _known(config), place(config)
    text = config.get(where)
    if text is None:
        flat = known is not None and known.get("flat")
        beside = ("model_type", VISION)
        text = {k: v for k, v in config.items() if k not in beside} if flat else {}
    if not isinstance(text, Mapping):
        message = f"must be a config.json of its own, in braces, not {shown(text)}"
        raise PlanError([Issue(f"model.{where}", message)])
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else []:
        if not isinstance(name, str) or not name.endswith(SUFFIXES):
            message = f"{shown(name)} is not planned by hand: {unplanned.HOW}. Of a model with a "
            message += f"{where}, those that end in {' or '.join(SUFFIXES)} are. To plan the "
            message += f"language model in this {shown(config['model_type'])}, give its {where} "
            message += "as the config.json"
            raise PlanError([Issue("model.architectures", message)])
    usual = {"model_type": known["text"], **known.get("assumes", {})} if known else {}
    inner = {**usual, **text}
    for key in OF_THE_WHOLE:
        if key in config:
            inner.setdefault(key, config[key])
    if config["model_type"] == "paligemma":  # of a prompt with its image, which is left out
        inner.pop("use_bidirectional_attention", None)
    if classes:  # the whole has a head, whatever the part in it is called
        inner.pop("architectures", None)
    tied = config.get("tie_word_embeddings")
    either = known.get("either") if known else config["model_type"] in EITHER
    if known and known.get("ties"):
        inner["tie_word_embeddings"] = False if tied is None else tied
    elif tied is not None and not (either and inner.get("tie_word_embeddings")):
        inner["tie_word_embeddings"] = tied
    elif known and known.get("tied"):
        inner.setdefault("tie_word_embeddings", True)
    return inner


# LLaVA's own files (github.com/haotian-liu/LLaVA) have the language model's keys beside those of
# its tower, and say by their class which model that is.
MIXED = "mm_vision_tower"
MIXTURES = {"Llama": "llama", "Mistral": "mistral", "Qwen": "qwen2", "Mpt": "mpt"}


def _of_llava(config: Mapping[str, Any]) -> dict[str, Any]:
    listed = config.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else ""
    word = named.removeprefix("Llava").removesuffix("ForCausalLM")
    if word not in MIXTURES or not named.startswith("Llava"):
        known = ", ".join(f"Llava{key}ForCausalLM" for key in MIXTURES)
        message = f"{shown(named)} is not known of a file with {MIXED}; {known} are"
        raise PlanError([Issue("model.architectures", message)])
    own = {k: v for k, v in config.items() if not k.startswith(("mm_", "tune_mm", "unfreeze_mm"))}
    del own["architectures"]
    return {**own, "model_type": MIXTURES[word]}


def kinds_of_towers(config: Mapping[str, Any]) -> Iterator[str]:
    """The model_type that the file names for each model before its language model."""
    for key, part in (_known(config) or {"keys": {}})["keys"].items():
        given = config.get(key)
        kind = given.get("model_type") if isinstance(given, Mapping) else None
        if isinstance(part, Mapping) and "model" in part and isinstance(kind, str):
            yield kind


def beside(config: Mapping[str, Any], hidden: int) -> int | None:
    """Parameters of the part that is not planned; None where nobody knows, 0 where there is none.
    Raises PlanError.

    hidden   width of the language model
    """
    known = _known(config)
    if known is None:
        return None
    if known.get("towerless") and config.get(VISION) is None:
        return 0
    keys = Keys(config, {})
    weights: int = Sizes(known, keys, hidden=hidden)["parameters"]
    if keys.issues:
        raise PlanError(keys.issues)
    return weights


def note(config: Mapping[str, Any], weights: int | None, text: int) -> str:
    """What a reader should know about the part that is not planned.

    weights   its parameters, as `beside` has them
    text      those of the language model
    """
    kind, known = config["model_type"], _known(config)
    said = f"Of {kind} the language model is planned, as its config.json describes it. "
    if known is None or weights is None:
        return said + "What reads images or sound before it is left out, its weights too."
    if not weights:
        return f"{said}It has no vision_config, and so nothing that reads images."
    hears, counted = config.get("audio_config"), "audio_config" in known["keys"]
    reads = "hears sound" if hears and counted else "reads images"
    whole = f" The whole has {text + weights:,}."
    if hears and not counted:
        whole = " What hears sound is left out too, its weights not counted."
    return (
        f"{said}What {reads} before it is left out: {weights:,} parameters, "
        f"{bytes_text(2 * weights)} in 16 bits, and what they compute.{whole}"
    )
