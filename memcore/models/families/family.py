"""What a family consists of, and what most of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from memcore.errors import shown
from memcore.models.config import Keys
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, KV_HEADS, TP, Shape
from memcore.tape.kinds import FULL, RECURRENT, SLIDING
from memcore.tape.structure import CAUSAL, CLASSIFICATION, EMBEDDING, LABELLED, SPANS, Structure
from memcore.tape.tape import Tape, Tensor

T = TypeVar("T")
ATTENTIONS = ("eager", "sdpa", "flash")
LOSSES = ("eager", "fused", "chunked")
NOTHING, MASK, ALL = "", "mask", "all"
HF_ONLY = ("hf",)  # families whose other kernels are not known yet
HF_OR_COMPILE = ("hf", "compile")
WITH_LIGER = (*HF_OR_COMPILE, "liger")  # liger_kernel/transformers/monkey_patch.py knows them


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture is read and run.

    config             a config.json's keys to a Model
    embed, layer, head forward of each block on a tape; a layer gets its kind
    attentions         the attention words that its code in transformers has
    kernels            the kernel words that it can run with
    cache              what serving keeps of a token in each layer: keys and values
    note               what a reader of its reports should know
    arguments          what of what they read together its layers take by position, so that
                       checkpointing saves it: NOTHING, MASK or ALL
    losses             the words of a plan for its loss (words.training.CROSS_ENTROPY)
    decoder            it generates, token by token; else it has no cache and nothing to serve
    before             what a model with a tower runs before it, which the bridge reads
    bridge             what leads from the tower's last layer to the first of the main stack
    checkpoints        transformers can run its layers again in backward
    shares             several of its layers are one set of weights
    unsharded          why its weights are not planned shared out over ranks
    carries            its layers read tensors together that need a gradient
    aliases            other names that transformers takes for a key, and the key that is read
                       (attribute_map of its configuration class, or what its constructor renames)
    classes            of transformers, each with its head (model.CAUSAL, ...); the first is taken
                       where a config.json names none
    wide               names of what its files keep in 16 bits, whatever they say of the rest
    cuts_experts       tensor-parallel ranks may cut its experts outside Megatron
    untrained          why its training is not planned, of what is planned as a server alone
    alone              tensor, context and pipeline parallelism and adapters are not known for it
    """

    config: Callable[[Keys], Model]
    embed: Callable[[Tape, Structure], Tensor | Sequence[Tensor]]
    layer: Callable[[Tape, Structure, Tensor, str], Tensor | Sequence[Tensor]]
    head: Callable[[Tape, Structure, Tensor], Tensor]
    attentions: tuple[str, ...] = ATTENTIONS
    kernels: tuple[str, ...] = HF_ONLY
    cache: Shape = (2, KV_HEADS / TP, HEAD_DIM)
    note: str = ""
    arguments: str = NOTHING
    losses: tuple[str, ...] = LOSSES
    decoder: bool = True
    untrained: str = ""
    alone: bool = False
    cuts_experts: bool = False
    before: Callable[[Tape, Structure], Tensor] | None = None
    bridge: Callable[[Tape, Structure, Tensor], Tensor | Sequence[Tensor]] | None = None
    checkpoints: bool = True
    shares: bool = False
    unsharded: str = ""
    carries: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    wide: tuple[str, ...] = ()


# Of which decoders transformers finds the ends of an answer, and classifies tokens.
ANSWERING = {
    "Arcee", "Bloom", "Exaone4", "Falcon", "GPT2", "GPTJ", "GPTNeo", "GPTNeoX", "Llama",
    "Ministral", "Ministral3", "Mistral", "Mixtral", "Mpt", "Nemotron", "OPT", "Qwen2", "Qwen2Moe",
    "Qwen3", "Qwen3Moe", "Qwen3Next", "SeedOss", "SmolLM3",
}  # fmt: skip
LABELLING = ANSWERING - {"GPTJ", "OPT"} | {
    "Apertus", "BioGpt", "DeepseekV3", "GPTBigCode", "Gemma", "Gemma2", "Glm", "Glm4", "GptOss",
    "Helium", "Mistral4", "Persimmon", "Phi", "Phi3", "StableLm", "Starcoder2",
}  # fmt: skip


def decoder_classes(
    stem: str, base: str = "Model", classifier: bool = True, causal: str = "ForCausalLM"
) -> dict[str, str]:
    """The classes of a decoder by what its names begin with: with a language model's head
    (`causal`), with none (`base`), and, where there are such, with a classifier's."""
    found = {f"{stem}{causal}": CAUSAL, f"{stem}{base}": EMBEDDING}
    if classifier:
        found[f"{stem}ForSequenceClassification"] = CLASSIFICATION
    if stem in LABELLING:
        found[f"{stem}ForTokenClassification"] = LABELLED
    if stem in ANSWERING:
        found[f"{stem}ForQuestionAnswering"] = SPANS
    return found


def image_classes(stem: str) -> dict[str, str]:
    """The classes of what classifies images, and reads them otherwise."""
    return {f"{stem}ForImageClassification": CLASSIFICATION, f"{stem}Model": EMBEDDING}


def labels(k: Keys) -> int:
    """Classes of a classifier: as many as `id2label` names, else `num_labels`."""
    named = k.config.get("id2label")
    if isinstance(named, dict) and "num_labels" not in k.config:
        return max(1, len(named))
    return k.count_or("num_labels", 2)


def heads_of(k: Keys, hidden: int, heads: int, kv_heads: int) -> None:
    """What every model's heads must satisfy."""
    k.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    if k.config.get("head_dim") is None:
        k.divides("hidden_size", hidden, "num_attention_heads", heads)


def listed(
    k: Keys, key: str, layers: int, known: Mapping[Any, T], between: str = " or "
) -> list[T] | None:
    """What a list of words or whole numbers says of each layer; None where there is no list, the
    first of `known` where it is wrong."""
    given = k.config.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or any(
        type(g) not in (str, int) or g not in known for g in given
    ):
        words = between.join(map(str, known))
        k.fail(key, f"must be a list of {words}, not {shown(given)}")
    elif len(given) < layers:
        k.fail(key, f"names {len(given):,} layers, but there are {layers:,}; name each")
    else:
        return [known[g] for g in given[:layers]]
    return [next(iter(known.values()))] * layers


def numbers_of_layers(k: Keys, key: str) -> list[int] | None:
    """The layers that a key names by their numbers; None where it names none."""
    given = k.config.get(key)
    if given is not None and (
        not isinstance(given, list) or any(type(i) is not int for i in given)
    ):
        k.fail(key, "must be a list of the numbers of layers")
        return None
    return given


def layer_kinds(k: Keys, layers: int, default: Callable[[int], bool]) -> tuple[str, ...]:
    """Kinds from `layer_types`, or sliding where `default(index)` says so; () if all are full."""
    known = {"full_attention": FULL, "sliding_attention": SLIDING}
    kinds = listed(k, "layer_types", layers, known)
    if kinds is None:
        kinds = [SLIDING if default(i) else FULL for i in range(layers)]
    return tuple(kinds) if SLIDING in kinds else ()


MIXERS = {  # transformers' words, and those that it had before (configuration_utils.py)
    "full_attention": FULL,
    "linear_attention": RECURRENT,
    "attention": FULL,
    "mamba": RECURRENT,
}


def mixed_kinds(
    k: Keys,
    key: str,
    layers: int,
    default: Callable[[int], bool],
    known: Mapping[str, str] = MIXERS,
) -> tuple[str, ...]:
    """Kinds of layers with a state and with attention, as `key` lists them; else those with a state
    where `default(index)` says so."""
    kinds = listed(k, key, layers, known, ", ")
    if kinds is None:
        kinds = [RECURRENT if default(i) else FULL for i in range(layers)]
    return tuple(kinds)


def state_dtype(k: Keys, key: str, default: str = "") -> str:
    """The dtype that a config asks for its states, as vLLM reads it; '' for the weights' own."""
    words = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": "", "": ""}
    return words[default] if k.config.get(key) is None else k.word(key, default, words)


def encoder(
    config: Callable[[Keys], Model],
    embed: Callable[[Tape, Structure], Tensor | Sequence[Tensor]],
    layer: Callable[[Tape, Structure, Tensor, str], Tensor],
    head: Callable[[Tape, Structure, Tensor], Tensor],
    classes: Mapping[str, str],
    **own: Any,
) -> Family:
    """A family that reads whole sequences and generates nothing; `own`: what else it has of a
    Family's."""
    return Family(
        config, embed, layer, head, losses=("eager",), decoder=False, alone=True, classes=classes,
        **own,
    )  # fmt: skip
