"""Model: what a Hugging Face config.json says, checked and in one vocabulary.

A key that is absent takes the default of its `transformers` configuration class (5.23.0);
a key that is null is not absent. What each architecture reads is in memcore/families.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError, did_you_mean, shown
from memcore.quantization import Quantization
from memcore.units import count_text, parse_count

MAX_CONFIG_BYTES = 1_000_000  # the largest published config.json is far below
MAX_CONFIG_DEPTH = 20
SMALLEST_SIZE, LARGEST_SIZE = 10**8, 2 * 10**12


CAUSAL, MASKED = "causal", "masked"  # a language model: of the next token, of those left out
CLASSIFICATION, EMBEDDING = "classification", "embedding"  # of a whole sequence; no head at all


@dataclass(frozen=True, slots=True)
class Traits:
    """The choices of an architecture that decide which tensors exist. No sizes.

    `*_dropout`: the operation runs in training at all (probability above zero), since only then
    does its mask exist. What a family fixes (Llama's rotary positions) is in its code, not here.
    """

    activation: str = "silu"
    tied_embeddings: bool = False
    attention_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: bool = False
    residual_dropout: bool = False
    embedding_dropout: bool = False
    attention_softcap: bool = False
    attention_clipped: bool = False
    logits_softcap: bool = False
    logits_scaled: bool = False
    embeddings_scaled: bool = False
    residual_scaled: bool = False
    parallel_residual: bool = False
    norm_first: bool = True
    norm_affine: bool = True
    final_norm: bool = True
    residual_after_norm: bool = False
    projected_embeddings: bool = False
    multi_query: bool = False
    grouped_layout: bool = False
    two_norms: bool = False
    query_norm: bool = False
    temperature_tuned: bool = False
    router_jitter: bool = False
    router_normalised: bool = False
    router_grouped: bool = False
    compressed_queries: bool = False
    rotary_interleaved: bool = False
    projector_bias: bool = False
    masked_images: bool = False
    gated: bool = False
    head_scaled: bool = False
    recurrence_bias: bool = False
    recurrence_out_bias: bool = False
    recurrence_normed: bool = True
    convolution_bias: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image as patches: height and width of both in pixels, and its channels.

    extra    tokens beside those of the patches: that of the class
    merged   tokens of it that a decoder reads, where they are fewer than its patches
    around   tokens of text that a prompt has for it besides
    """

    height: int
    width: int
    patch_height: int
    patch_width: int
    channels: int
    extra: int = 0
    merged: int = 0
    around: int = 0

    @property
    def patches(self) -> int:
        return (self.height // self.patch_height) * (self.width // self.patch_width)

    @property
    def read(self) -> int:
        return self.merged or self.patches

    @property
    def prompted(self) -> int:
        """Tokens of a prompt that it takes."""
        return self.read + self.around

    @property
    def tokens(self) -> int:
        return self.patches + self.extra

    @property
    def text(self) -> str:
        return (
            f"{self.height:,} x {self.width:,} pixels in patches of {self.patch_height} x "
            f"{self.patch_width}"
        )

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "PATCH_H": self.patch_height,
            "PATCH_W": self.patch_width,
            "CHANNELS": self.channels,
            "PATCHES": self.patches,
            "MERGED": self.read,
            "IMAGE_TOKENS": self.tokens,
        }


NO_IMAGE = Image(0, 0, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What layers with a state keep of a whole sequence: for each of `heads` values of `head_dim`
    what they left in `state` numbers, and the last tokens that a short convolution sees.

    groups   heads of keys and queries (B and C), each for as many of values
    kernel   tokens that the convolution sees
    chunk    tokens that a scan takes at once
    dtype    of the state as config.json asks for it, or ''
    alone    a layer is a state, attention or an MLP, and nothing else
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    chunk: int
    dtype: str = ""
    alone: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "SSM_HEADS": self.heads,
            "SSM_DIM": self.head_dim,
            "SSM_STATE": self.state,
            "SSM_GROUPS": self.groups,
            "KERNEL": self.kernel,
            "CHUNK_TOKENS": self.chunk,
        }


NAMED = 8  # keys that a note names


def _first(names: Iterable[str]) -> str:
    """The first few of some names, and how many more there are."""
    (*listed,) = map(str, names)
    more = f" and {len(listed) - NAMED:,} more" if len(listed) > NAMED else ""
    return ", ".join(shown(name)[1:-1] for name in listed[:NAMED]) + more


@dataclass(frozen=True, slots=True)
class Reading:
    """What a config.json left open, and what of it is not read.

    assumed   keys that decide sizes and that it has not, each with the default that is taken
    unread    its keys that mean nothing here
    """

    assumed: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The same in sentences."""
        found = []
        if self.assumed:
            listed = _first(f"{key} ({text})" for key, text in self.assumed)
            found.append(f"config.json does not have {listed}: transformers' defaults are taken.")
        if self.unread:
            found.append(f"Of config.json these keys are not read: {_first(self.unread)}.")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer: its sizes, its traits, and the kinds of its layers in order.

    layers             number of layers
    hidden_size, ...   widths and counts as in config.json
    rotary_dim         dimensions of a head that are rotated
    rotary_tables      of each table of their cosines and sines: whose it is ('': every layer's),
                       and its rows; (): one of max_positions
    window             tokens that a sliding layer sees, or of a chunk; 0: it has none
    embedding_size     width of the token embedding, where it differs from the hidden size
    position_rows      rows of a learned position table
    kinds              one word per layer, if they differ; see FULL, SLIDING, FULL_NOPE, dense
    value_dim          width of one head's values, where it differs from head_dim
    query_rank         width that queries are compressed to; 0: they are not
    kv_rank            width that keys and values are compressed to; 0: they are not
    experts            routed experts of a layer; 0: it has none
    top_k              experts that each token is sent to
    expert_size        intermediate size of one expert
    shared_size        intermediate size of the experts that every token passes, together
    type_rows          rows of a table of token types
    buckets            of distances between tokens, that each have a bias for every head
    recurrence         of layers that keep a state of a sequence, not its tokens
    image              what an image model reads: its tokens are one sequence, of a fixed length
    tower              layers that run before these, on dimensions of their own: what looks at
                       images, or the encoder before a decoder
    stack              of a tower: what it is, one of dims.STACKS
    idle               of a tower: layers behind those whose result is read
    notes              what a reader should know of how its config.json was read; two models that
                       differ in it are the same
    head               what comes behind the layers: CAUSAL, MASKED, CLASSIFICATION or EMBEDDING
    classes            that a classifier tells apart; 1: it scores a sequence with a number
    class_name         that its config.json names, in transformers
    quantization       how its config.json says that its weights are stored, if it does
    reading            how its config.json was read; two models that differ in it are the same
    """

    family: str
    label: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    traits: Traits
    rotary_dim: int = 0
    rotary_tables: tuple[tuple[str, int], ...] = ()
    window: int = 0
    embedding_size: int = 0
    position_rows: int = 0
    kinds: tuple[str, ...] = ()
    value_dim: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    shared_size: int = 0
    type_rows: int = 0
    buckets: int = 0
    recurrence: Recurrence | None = None
    image: Image | None = None
    tower: Model | None = None
    stack: str = ""
    idle: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)
    head: str = CAUSAL
    classes: int = 0
    class_name: str = ""
    quantization: Quantization | None = None
    reading: Reading = field(default=Reading(), compare=False)

    @property
    def stack_before(self) -> str:
        """What runs before these layers, one of dims.STACKS, or ''."""
        return self.tower.stack if self.tower else ""

    @property
    def encoder_decoder(self) -> bool:
        """Whether the layers read what an encoder made of another sequence."""
        return self.tower is not None and self.tower.image is None

    @property
    def learned_positions(self) -> bool:
        return self.position_rows > 0

    @property
    def sizes(self) -> dict[str, int]:
        """The model's part of the flat mapping that every formula reads."""
        return {
            "D": self.hidden_size,
            "F": self.intermediate_size,
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD_DIM": self.head_dim,
            "ROTARY": self.rotary_dim,
            "WINDOW": self.window,
            "VOCAB": self.vocab_size,
            "EMBED": self.embedding_size or self.hidden_size,
            "LAYERS": self.layers,
            "POSITIONS": self.position_rows,
            "V_DIM": self.value_dim or self.head_dim,
            "Q_RANK": self.query_rank,
            "KV_RANK": self.kv_rank,
            "EXPERTS": self.experts,
            "TOP_K": self.top_k,
            "EXPERT_F": self.expert_size,
            "SHARED_F": self.shared_size,
            "TYPES": self.type_rows,
            "BUCKETS": self.buckets,
            "CLASSES": self.classes,
            **(self.recurrence.sizes if self.recurrence else {}),
            **(self.image or NO_IMAGE).sizes,
            **(
                {f"{self.tower.stack}.{k}": n for k, n in self.tower.sizes.items()}
                if self.tower
                else {}
            ),
        }


FULL, SLIDING, FULL_NOPE, SLIDING_NOPE = "full", "sliding", "full-nope", "sliding-nope"
CHUNKED = "chunked"
EVERY = "every"  # every token sees every other: an encoder
RECURRENT = "recurrent"  # a state of the sequence in place of attention
BESIDE = "full and recurrent"  # both, of the same input
MLP_ALONE, EXPERTS_ALONE = "mlp", "experts"  # layers that mix no tokens


def attends(kind: str) -> bool:
    """Whether a layer of this kind keeps keys and values of tokens."""
    return not kind.startswith((RECURRENT, MLP_ALONE, EXPERTS_ALONE))


def recurs(kind: str) -> bool:
    """Whether a layer of this kind keeps a state of the sequence."""
    return kind.startswith((RECURRENT, BESIDE))


def nope(kind: str) -> str:
    """The kind of a layer like it without positions."""
    return f"{kind}-nope"


def turns(kind: str) -> bool:
    """Whether queries and keys of a layer of this kind are rotated."""
    return "nope" not in kind


def dense(kind: str) -> str:
    """The kind of a layer with an MLP, in a model whose other layers have experts."""
    return f"{kind}-dense"


def is_dense(kind: str) -> bool:
    return kind.endswith("-dense")


def parse_config(text: str | bytes) -> dict[str, Any]:
    """A config.json's text as a dictionary, bounded in size and depth. Raises PlanError."""
    if len(text) > MAX_CONFIG_BYTES:
        raise PlanError(
            [
                Issue(
                    "model",
                    f"the file has {len(text):,} bytes; a config.json has at most "
                    f"{MAX_CONFIG_BYTES:,}. Drop the config, not the weights",
                )
            ]
        )
    try:
        value = json.loads(text)
    except RecursionError:
        raise PlanError([Issue("model", "nested too deeply to be a config.json")]) from None
    except (ValueError, UnicodeDecodeError) as e:
        raise PlanError([Issue("model", f"not JSON: {shown(str(e))}")]) from None
    if not isinstance(value, dict):
        raise PlanError([Issue("model", "a config.json is one JSON object, in braces")])
    check_depth(value)
    return in_json(value)


# What Python writes into the config.json of every model with Mamba-2 layers as [0.0, Infinity],
# which JSON has not, and transformers 5 as the second form.
UNLIMITED = "time_step_limit"
INFINITY = {"__float__": "Infinity"}


def in_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with its UNLIMITED, its own or that of a config inside it, in JSON's words."""
    return {key: _spelled(key, value) for key, value in config.items()}


def _spelled(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) if k == UNLIMITED else v for k, v in value.items()}
    return _finite(value) if key == UNLIMITED else value


def _finite(limits: Any) -> Any:
    if not isinstance(limits, (list, tuple)):
        return limits
    return [INFINITY if x == math.inf else x for x in limits]


def check_depth(value: Any) -> None:
    """Refuse a value nested deeper than any config.json, or with a number that JSON has not, but
    for the infinity of UNLIMITED.

    Without recursion: the value is a stranger's.
    """
    level, depth = [("model", value)], 0
    while level:
        depth += 1
        if depth > MAX_CONFIG_DEPTH:
            raise PlanError([Issue("model", "nested too deeply to be a config.json")])
        for path, v in level:
            unlimited = v == math.inf and path.rpartition(".")[0].endswith(f".{UNLIMITED}")
            if isinstance(v, float) and not math.isfinite(v) and not unlimited:
                raise PlanError([Issue(shown(path)[1:-1], f"{v} is not a number that JSON has")])
        level = [
            (f"{path}.{key}", child)
            for path, v in level
            if isinstance(v, (dict, list))
            for key, child in (v.items() if isinstance(v, dict) else enumerate(v))
        ]


# Keys that decide no tensor's size and no operation: names, tokens, how weights begin, how text is
# generated, epsilons and factors, and what every library that trains or serves adds for itself.
_HARMLESS = """
cache_implementation sliding_window_size predict_special_tokens output_past _num_labels ignore_index
image_seq_length projection_dim mamba_hidden_act mamba_expand expand n_group topk_group
partial_rotary_factor full_attn_mod interpolate_factor is_llama_config activation_function
encoder_stride hidden_act
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path
_sliding_window_pattern add_cross_attention architectures attention_multiplier
attention_softmax_in_fp32 attn_implementation attn_implementation_autoset attn_logit_softcapping
audio_token_id auto_map aux_loss_alpha aux_loss_coef bad_words_ids base_model_tp_plan
begin_of_text_id begin_suppress_tokens bias_dropout_fusion boi_token_id boi_token_index bos_token
bos_token_id chunk_size_feed_forward classifier_dropout cls_token_id cross_attention_hidden_size
decoder_start_token_id default_theta dense_act_fn diversity_penalty do_sample dtype early_stopping
embedding_initializer_range embedding_multiplier encoder_no_repeat_ngram_size eoi_token_id
eoi_token_index eos_token eos_token_id ep_size experts_per_token exponential_decay_length_penalty
final_logit_softcapping finetuning_task forced_bos_token_id forced_eos_token_id
gradient_checkpointing hf_quant_config id2label im_end_id im_start_id image_token_id
image_token_index init_method_std init_std initial_context_length initializer_cutoff_factor
initializer_factor initializer_range initializer_std is_decoder is_encoder_decoder is_gated_act
label2id layer_norm_eps layer_norm_epsilon layernorm_epsilon length_penalty logits_scaling
mask_token_id masked_softmax_fusion max_length max_sequence_length max_window_layers min_length
model_name model_type moe_router_topk_scaling_factor move_model_to_device n_ctx
no_repeat_ngram_size norm_eps norm_epsilon norm_topk_prob num_beam_groups num_beams num_labels
num_return_sequences offset_alibi onnx_config original_max_position_embeddings output_attentions
output_hidden_states output_router_logits output_scores pad_token pad_token_id prefix
pretraining_tp problem_type pruned_heads quantization_config query_pre_attn_scalar
relative_attention_max_distance remove_invalid_values reorder_and_upcast_attn repetition_penalty
rescale_layernorm rescale_prenorm_residual residual_in_fp32 residual_multiplier return_dict
return_dict_in_generate rms_norm_eps rope_interleave rope_local_base_freq rope_parameters
rope_scaling rope_theta rotary_base rotary_emb_base routed_scaling_factor router_aux_loss_coef
router_dtype router_z_loss_coef scale_attention_softmax_in_fp32 scale_attn_by_inverse_layer_idx
scale_attn_weights scoring_func selective_checkpoint_enabled sep_token_id seq_aux
sequence_parallel_enabled skip_bias_add skip_bias_add_qkv slow_but_exact summary_activation
summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
swiglu_limit task_specific_params temperature tie_encoder_decoder time_step_floor time_step_limit
time_step_max time_step_min time_step_rank tokenizer_class top_k top_p topk_method torch_dtype
torchscript transformers_version transformers_weights typical_p unk_token_id unsloth_fixed
unsloth_version use_cache use_flash_attention use_flash_attn use_mamba_kernels use_sliding_window
video_token_id vision_end_token_id vision_start_token_id
"""
HARMLESS = frozenset(_HARMLESS.split())


WEIGHTLESS = (
    "max_position_embeddings",
    "n_positions",
    "num_channels",
    "no_rope_layer_interval",
    "sliding_window_pattern",
)  # counts whose usual value makes no weight larger


class _Watched(dict[str, Any]):
    """A config that notes which keys it was asked for, there or not."""

    def __init__(self, config: Mapping[str, Any], asked: set[str]):
        super().__init__(config)
        self.asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def peek(self, key: str) -> Any:
        return super().get(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


class Keys:
    """Typed reads from a config that collect what is wrong instead of stopping at the first.

    asked     every key that was looked for
    assumed   of those that decide sizes and are not there, what was taken instead
    inside    the keys of the configs inside this one
    head      of the class that the config names
    """

    def __init__(self, config: Mapping[str, Any], aliases: Mapping[str, str]):
        """aliases   other names of keys, and the key that each stands for (Family.aliases)"""
        self.issues: list[Issue] = []
        self.notes: list[str] = []  # for Model.notes
        self.written: dict[str, str] = {}  # key -> the other name that this file has for it
        self.asked: set[str] = {"model_type", "architectures"}
        self.assumed: dict[str, Any] = {}
        self.inside: dict[str, Keys] = {}
        self.head = CAUSAL
        self._given = {k: aliases.get(k, k) for k in config if isinstance(k, str)}
        self._config = _Watched(self._by_own_names(config, aliases), self.asked)

    def _by_own_names(
        self, config: Mapping[str, Any], aliases: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """The config with each key under the name that its family reads. A null leaves the word to
        the other name; two names with different values are an issue."""
        own = {key: value for key, value in config.items() if key not in aliases}
        for alias, key in aliases.items():
            if alias not in config:
                continue
            value = config[alias]
            if own.get(key) is None:
                own[key], self.written[key] = value, alias
            elif value is not None and value != own[key]:
                known = self.written.get(key, key)
                self.issues.append(
                    Issue(
                        f"model.{known}",
                        f"{shown(own[key])}, but {alias}, another name of the same, is "
                        f"{shown(value)}; keep the one that is so",
                    )
                )
        return own

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @config.setter
    def config(self, config: Mapping[str, Any]) -> None:
        self._config = _Watched(config, self.asked)

    def assume(self, key: str, default: Any) -> None:
        """Note what is taken for a key that decides sizes, where it is not there."""
        if key not in self.config and key not in WEIGHTLESS:
            self.assumed[key] = default

    @property
    def unread(self) -> tuple[str, ...]:
        """Keys that nobody asked for, as they are written; what is null, or off, says nothing."""
        return tuple(
            key
            for key, name in self._given.items()
            if name not in self.asked and self._config.peek(name)
        )

    def reading(self) -> Reading:
        """What was assumed and what was not read, of the configs inside this one too."""
        assumed = [(key, _text_of(value)) for key, value in self.assumed.items()]
        unread = [key for key in self.unread if key not in HARMLESS]
        for place, keys in self.inside.items():
            own = keys.reading()
            assumed += [(f"{place}.{key}", text) for key, text in own.assumed]
            unread += [f"{place}.{key}" for key in own.unread]
        return Reading(tuple(assumed), tuple(unread))

    def fail(self, key: str, message: str) -> None:
        issue = Issue(f"model.{self.written.get(key, key)}", message)
        if issue not in self.issues:  # some keys are read more than once
            self.issues.append(issue)

    def count(self, key: str, default: int, most: int = 10**8) -> int:
        self.assume(key, default)
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be a whole number, not {shown(value)}")
            return default
        if not 1 <= value <= most:
            self.fail(key, f"must lie between 1 and {most:,}, not {shown(value)}")
            return default
        return value

    def pair(self, key: str, default: int, most: int = 100_000) -> tuple[int, int]:
        """Height and width: one number for both, or a list of two."""
        self.assume(key, default)
        value = self.config.get(key, default)
        both = value if isinstance(value, list) else [value, value]
        if len(both) != 2 or any(type(n) is not int or not 1 <= n <= most for n in both):
            self.fail(key, f"must be a whole number up to {most:,} or two, not {shown(value)}")
            return default, default
        return both[0], both[1]

    def count_or(self, key: str, when_null: int, most: int = 10**8) -> int:
        """A count for which null and absence both mean `when_null`."""
        return when_null if self.config.get(key) is None else self.count(key, when_null, most)

    def count_or_zero(self, key: str, default: int) -> int:
        return 0 if self.config.get(key) == 0 else self.count_or(key, default)

    def rope(self, key: str, default: float, alias: str = "") -> float:
        """A share from `rope_parameters` (or `rope_scaling`), or from the key or its old name."""
        for place in ("rope_parameters", "rope_scaling", ""):
            for name in (key, alias):
                value = self._rotary(place, name)
                if value is not None:
                    if not 0 <= value <= 1:
                        self.fail(name, f"must lie between 0 and 1, not {shown(value)}")
                        return default
                    return value
        return default

    @property
    def stretch(self) -> float:
        """Positions of a rotary table over those that the model was trained with: the factor of
        linear scaling, which an engine's table is longer by."""
        for place in ("rope_parameters", "rope_scaling"):
            given = self._rotary_words(place)
            if "linear" in (given.get("rope_type"), given.get("type")):
                factor = self._rotary(place, "factor")
                if factor is not None:
                    return min(max(1.0, factor), 1e6)
        return 1.0

    def _rotary_words(self, place: str) -> Mapping[str, Any]:
        """What one of the keys about rotary positions says, for the layers that see all tokens."""
        given = self.config.get(place) if place else self.config
        if isinstance(given, Mapping) and place and "full_attention" in given:
            place, given = f"{place}.full_attention", given["full_attention"]
        if given is None or isinstance(given, Mapping):
            return given or {}
        self.fail(place, f"must be an object, in braces, not {shown(given)}")
        return {}

    def _rotary(self, place: str, name: str) -> float | None:
        """A number about rotary positions, or None where there is none."""
        value = self._rotary_words(place).get(name) if name else None
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
            field = f"{place}.{name}" if place else name
            self.fail(field, f"must be a number, not {shown(value)}")
            return None
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key, default)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {shown(value)}")
            return default
        return value

    def dropout(self, key: str, default: float) -> bool:
        """Whether dropout runs in training: a probability above zero."""
        value = self.config.get(key, default)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            self.fail(key, f"must be a probability from 0 to below 1, not {shown(value)}")
            return False
        return value > 0

    def word(self, key: str, default: str, known: Mapping[str, str]) -> str:
        value = self.config.get(key, default)
        if not isinstance(value, str) or value not in known:
            self.fail(key, f"{shown(value)} is not known; {did_you_mean(str(value), known)}")
            return known[default]
        return known[value]

    def refuse(self, key: str, *harmless: Any) -> None:
        """A key whose other values change the tensors in a way that is not modelled."""
        value = self.config.get(key, harmless[0])
        if value not in harmless:
            self.fail(key, f"{shown(value)} changes the model in a way that is not known yet")

    def divides(self, key: str, value: int, by_key: str, by: int) -> None:
        if not self.issues and value % by:
            self.fail(
                key, f"{value:,} does not divide by {by_key} {by:,}; choose a multiple of {by:,}"
            )


def _text_of(value: Any) -> str:
    """A default for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) else str(value)


# Spelling in a config -> the operation that runs (transformers' ACT2FN).
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}


# Width and depth of published Llama models, by parameters: SmolLM2-135M, TinyLlama-1.1B, Llama 2
# 7B, 13B and 70B, Llama 3.1 405B; the last row continues the trend. A standard model lies between.
STANDARD_PARAMETERS = (134_515_008, 1.1e9, 6_738_415_616, 13.0e9, 68_976_648_192, 405.9e9, 2.1e12)
STANDARD_HIDDEN = (576, 2_048, 4_096, 5_120, 8_192, 16_384, 28_672)
STANDARD_LAYERS = (30, 22, 32, 40, 80, 126, 192)
STANDARD_VOCAB = 32_000
GROUPED_QUERIES_FROM = 30 * 10**9  # Llama 2 groups queries from its 34B model on, over 8 KV heads


def standard_config(size: str) -> dict[str, Any]:
    """A Llama-shaped config.json with about `size` parameters, e.g. '7B'. Raises PlanError.

    Width and depth are interpolated between published Llama models (logarithmically in the
    parameter count); the feed-forward width, in multiples of 64, then takes up what is left,
    which brings the count within 1.5 % of `size`.
    """
    try:
        wanted = parse_count(size)
    except ValueError as e:
        raise PlanError([Issue("model.size", str(e))]) from None
    if not SMALLEST_SIZE <= wanted <= LARGEST_SIZE:
        low, high = count_text(SMALLEST_SIZE), count_text(LARGEST_SIZE)
        raise PlanError(
            [Issue("model.size", f"{shown(size)} must lie between {low} and {high} parameters")]
        )
    step = 1_024 if wanted > 5e9 else 256 if wanted > 5e8 else 64
    hidden = max(1, round(_between(wanted, STANDARD_HIDDEN) / step)) * step
    layers = round(_between(wanted, STANDARD_LAYERS))
    head_dim = 128 if hidden % 128 == 0 and wanted >= 1e9 else 64
    heads = hidden // head_dim
    kv_heads = 8 if wanted >= GROUPED_QUERIES_FROM and heads % 8 == 0 else heads
    attention = 2 * hidden * (heads + kv_heads) * head_dim
    left = wanted - 2 * STANDARD_VOCAB * hidden - layers * (attention + 2 * hidden)
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": max(1, round(left / (3 * hidden * layers) / 64)) * 64,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": STANDARD_VOCAB,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


def _between(parameters: float, values: tuple[int, ...]) -> float:
    """`values` at STANDARD_PARAMETERS, interpolated logarithmically in both."""
    known = STANDARD_PARAMETERS
    i = min(max(bisect.bisect(known, parameters), 1), len(known) - 1)
    share = math.log(parameters / known[i - 1]) / math.log(known[i] / known[i - 1])
    return float(values[i - 1] * (values[i] / values[i - 1]) ** share)
