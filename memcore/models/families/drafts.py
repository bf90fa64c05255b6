"""Drafts: what guesses tokens for another model, whose hidden states it reads.

EAGLE-3 heads (Li et al. 2025), which guess one token after another, and DFlash, Domino and DSpark,
which guess a block at once. The sources are SpecForge (specforge/modeling/draft: llama3_eagle.py,
peagle.py, dflash.py, domino.py, dspark.py) and SGLang (python/sglang/srt/models: llama_eagle3.py,
dflash.py, dspark.py). They are served beside their model, and trained by nothing that is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memcore.errors import shown
from memcore.layers.ops import (
    HIDDEN,
    TOKENS,
    attended,
    by_heads,
    labelled_loss,
    normed_mlp,
    rms_norm,
    rotary,
    rotary_tables,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families import llama
from memcore.models.families.decoders import llama_like, windowed
from memcore.models.families.family import Family, layer_kinds
from memcore.models.model import Draft, Model
from memcore.tape.dims import (
    CORRECTED,
    CORRECTION,
    GUESSED,
    HIDDEN_STATES,
    JOINED,
    JUDGED,
    KV,
    ONE,
    RECURRED,
    RECURRED_GATES,
    TP,
    VOCAB,
    B,
    D,
    Q,
    S,
)
from memcore.tape.kinds import FULL, Part
from memcore.tape.primitives import add, contiguous, embedding, linear
from memcore.tape.structure import CAUSAL, Structure, Traits
from memcore.tape.tape import Tape, Tensor

EAGLE, BLOCK = "eagle_draft", "block_draft"
FIRST = "-first"  # a layer that reads embeddings too
READ = 3  # hidden states that an EAGLE-3 head joins
PARALLEL = "PEagleDraftModel"
NORMED, UNREAD = "normed", "unread"  # of what a head joins: norms of each; states of no token
GRU, MARKOV, GATED, RNN, JUDGES = "gru", "markov", "gated", "rnn", "judges"
DFLASH, DOMINO, DSPARK = "DFlashDraftModel", "DominoDraftModel", "DSparkDraftModel"
# Each class with the family of its kind, and what people call it.
CLASSES = {
    "LlamaForCausalLMEagle3": (EAGLE, "EAGLE-3 head"),
    "Eagle3LlamaForCausalLM": (EAGLE, "EAGLE-3 head"),
    PARALLEL: (EAGLE, "P-EAGLE head"),
    DFLASH: (BLOCK, "DFlash draft"),
    DOMINO: (BLOCK, "Domino draft"),
    DSPARK: (BLOCK, "DSpark draft"),
}


def _class(config: Mapping[str, Any]) -> str:
    given = config.get("architectures")
    named = given[0] if isinstance(given, list) and given else given
    return named if isinstance(named, str) and named in CLASSES else ""


def family_of(config: Mapping[str, Any]) -> str:
    """The family of a draft's config.json; '' of what is none."""
    return CLASSES[named][0] if (named := _class(config)) else ""


def label_of(config: Mapping[str, Any]) -> str:
    """What a draft is called, with its width."""
    name, width = CLASSES[_class(config)][1], config.get("hidden_size")
    return f"{name}, {width:,} wide" if isinstance(width, int) else name


def head_of(target: Model, vocab: int) -> dict[str, object]:
    """The config.json of an EAGLE-3 head for a model, of the model's own sizes: as SpecForge's and
    EAGLE's published heads are."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": vocab,
        "max_position_embeddings": target.max_positions,
    }


def plain(draft: Model) -> dict[str, object]:
    """A Llama with the layers of a draft, whose plan has the limits of the draft's."""
    return head_of(draft, draft.vocab_size) | {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": draft.layers,
    }  # fmt: skip


def _eagle(k: Keys) -> Model:
    model = llama_like(k, EAGLE)
    k.refuse("attention_bias", False, None)
    k.refuse("mlp_bias", False, None)
    k.refuse("bias", False, None)
    _reads_three(k)
    if _class(k.config) != PARALLEL and model.layers != 1:
        k.fail(
            "num_hidden_layers",
            f"must be 1, not {model.layers:,}: SpecForge makes one, others more",
        )
    target = k.count_or("target_hidden_size", model.hidden_size)
    k.flag("norm_output", True)
    parts = [NORMED] if k.flag("fc_norm", False) else []
    parts += [UNREAD] if _class(k.config) == PARALLEL else []
    k.flag("norm_output", True)
    guessed, at_once = k.count_or("draft_vocab_size", model.vocab_size), UNREAD in parts
    draft = Draft(READ * target, target, guessed, at_once, whole=at_once)
    kinds = (FULL + FIRST, *(FULL for _ in range(model.layers - 1)))
    return replace(model, kinds=kinds, draft=draft, traits=_traits(model, parts))


def _traits(model: Model, parts: Sequence[str]) -> Traits:
    return replace(model.traits, tied_embeddings=False, draft=tuple(parts))


def _reads_three(k: Keys) -> None:
    """Refuses a head that joins other than three hidden states."""
    own = k.config.get("eagle_config")
    if own is None:
        return
    if not isinstance(own, Mapping):
        k.fail("eagle_config", f"must be an object, in braces, not {shown(own)}")
        return
    read = own.get("eagle_aux_hidden_state_layer_ids", [0] * READ)
    if not isinstance(read, list) or len(read) != READ:
        k.fail("eagle_config.eagle_aux_hidden_state_layer_ids", f"must name {READ} layers")
    if own.get("use_aux_hidden_state", True) is not True:
        k.fail("eagle_config.use_aux_hidden_state", "a head that joins no states is not known yet")


def _block(k: Keys) -> Model:
    model = llama_like(k, BLOCK)
    k.refuse("hidden_act", "silu")
    kinds = layer_kinds(k, model.layers, lambda i: False)
    inner, named = k.within("dflash_config"), _class(k.config)
    hidden = model.hidden_size
    read, block = _layers_read(inner, model), k.count("block_size", 16, 10**4)
    if block < 2:
        k.fail("block_size", f"must be above 1, not {block}: the first token of a block is sure")
    draft = Draft(read * hidden, hidden, at_once=True, block=block)
    parts: list[str] = []
    if named == DOMINO:
        draft, parts = _domino(inner, draft, hidden)
    elif named == DSPARK:
        draft, parts = _dspark(inner, draft, hidden)
    k.absorb("dflash_config", inner)
    if kinds:
        model = windowed(model, k.count("sliding_window", 1), kinds)
    return replace(model, draft=draft, traits=_traits(model, parts))


def _layers_read(k: Keys, model: Model) -> int:
    """How many layers of its model it reads: those that it names, else as many as it has."""
    named = k.config.get("target_layer_ids")
    if named is None:
        return model.layers
    if not isinstance(named, list) or not named:
        k.fail("target_layer_ids", f"must be a list of layers, not {shown(named)}")
        return 1
    return len(named)


def _domino(k: Keys, draft: Draft, hidden: int) -> tuple[Draft, list[str]]:
    """Corrected by what a GRU makes of the tokens before."""
    for key in ("emb_dim", "gru_hidden_dim"):
        if k.config.get(key) is None:
            k.fail(key, "missing")
    low, state = k.count_or("emb_dim", 1), k.count_or("gru_hidden_dim", 1)
    return replace(draft, low=low, recurred=state, corrected=hidden + state), [GRU]


def _dspark(k: Keys, draft: Draft, hidden: int) -> tuple[Draft, list[str]]:
    """Corrected by what the token before makes likely (a Markov head of low rank), and a predictor
    of how likely a guess is to be accepted. All tokens of its block are guesses."""
    low, parts, seen = k.count_or_zero("markov_rank", 0), [], 0
    if low:
        words = {"vanilla": 0, GATED: hidden + low, RNN: hidden + 2 * low}
        how = k.word("markov_head_type", "vanilla", {word: word for word in words})
        parts, seen = [MARKOV, how], words[how]
    alpha = k.config.get("confidence_head_alpha")
    judged, beside = 0, k.flag("confidence_head_with_markov", False)
    if beside and not low:
        k.fail("confidence_head_with_markov", "needs a markov_rank above 0")
    if k.flag("enable_confidence_head", isinstance(alpha, (int, float)) and alpha > 0):
        judged, parts = hidden + (low if beside else 0), [*parts, JUDGES]
    found = replace(draft, whole=True, low=low, recurred=low, corrected=seen, judged=judged)
    return found, parts


def _joined(t: Tape, s: Structure) -> Tensor:
    """The hidden states of a model's layers as one of the draft's width."""
    states = t.new("hidden states of the model", (*TOKENS, HIDDEN_STATES), t.parameter_dtype)
    return linear(t, "fc", states, HIDDEN_STATES, D, bias=False)


def _eagle_embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    t.use(embedding(t, "embed_tokens", ids, VOCAB / TP, D, tied=False))
    for part, name in ((NORMED, "fc_norm.weight"), (UNREAD, "mask_hidden")):
        if part in s.traits.draft:
            t.parameter(name, (HIDDEN_STATES,))
    return _joined(t, s)


def _eagle_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    first = kind.endswith(FIRST)
    if not first:
        return llama.layer(t, s, x, kind)
    e = t.shared("embeddings", HIDDEN, t.parameter_dtype)
    e, h = rms_norm(t, e, "input_layernorm"), rms_norm(t, x, "hidden_norm")
    both = contiguous(t, e, (B, S, JOINED), "both", other=h)
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = (
            linear(t, f"{name}_proj", both, JOINED, width / TP, bias=False)
            for name, width in (("q", Q), ("k", KV), ("v", KV))
        )
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = rotary(t, q, k, rotary_tables(t))
        out = attended(t, s, q, k, value_heads(t, s, v), FULL, "o_proj", bias=False)
    x = add(t, x, out, "residual")
    return add(t, x, normed_mlp(t, s, x, "post_attention_layernorm"), "residual")


def _eagle_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = rms_norm(t, x, "norm")
    return labelled_loss(t, linear(t, "lm_head", x, D, GUESSED / TP, bias=False))


def _block_embed(t: Tape, s: Structure) -> Tensor:
    """The tokens of a block by its model's table; what it joins becomes keys and values."""
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "embed_tokens", ids, VOCAB / TP, D, tied=False, owner=False)
    t.use(rms_norm(t, _joined(t, s), "hidden_norm"))
    return x


def _block_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Logits by its model's head, corrected by its own."""
    x = rms_norm(t, x, "norm")
    logits = linear(t, "lm_head", x, D, VOCAB / TP, bias=False, tied=True)
    parts = s.traits.draft
    if GRU in parts:
        with t.scope("prefix_gru"):
            t.parameter("weight_ih", (RECURRED_GATES, D))
            t.parameter("weight_hh", (RECURRED_GATES, RECURRED))
        seen = t.new("corrected", (*TOKENS, CORRECTED), x.dtype)
        low = linear(t, "embed_proj.0", seen, CORRECTED, CORRECTION, bias=False)
        t.use(linear(t, "embed_proj.2", low, CORRECTION, VOCAB, bias=False))
    if MARKOV in parts:
        with t.scope("markov_head"):
            ids = t.new("tokens before", TOKENS, "int64")
            low = embedding(t, "markov_w1", ids, VOCAB, CORRECTION, tied=False)
            seen = t.new("corrected", (*TOKENS, CORRECTED), x.dtype)
            if GATED in parts:
                t.use(linear(t, "gate_proj", seen, CORRECTED, CORRECTION, bias=True))
            if RNN in parts:
                t.use(linear(t, "joint_proj", seen, CORRECTED, RECURRED_GATES, bias=True))
            t.use(linear(t, "markov_w2", low, CORRECTION, VOCAB, bias=False))
    if JUDGES in parts:
        judged = t.new("judged", (*TOKENS, JUDGED), x.dtype)
        t.use(linear(t, "confidence_head.proj", judged, JUDGED, ONE, bias=True))
    return labelled_loss(t, logits)


def _classes(kind: str) -> dict[str, str]:
    return {name: CAUSAL for name, (of, _) in CLASSES.items() if of == kind}


DRAFTS = {
    EAGLE: Family(_eagle, _eagle_embed, _eagle_layer, _eagle_head, classes=_classes(EAGLE)),
    BLOCK: Family(_block, _block_embed, llama.layer, _block_head, classes=_classes(BLOCK)),
}
