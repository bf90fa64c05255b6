"""Megatron: the arguments of pretrain_gpt.py, which describe the model too.

Source: megatron/training/arguments.py (Megatron-Core 0.14; read again in 0.19).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.formats import hub
from memcore.formats.draft import Draft, Keys, hyphened
from memcore.formats.programs import Program
from memcore.formats.texts import UNSET, options
from memcore.models import catalog
from memcore.words.training import (
    ALL_LINEAR,
    ATTN,
    CORE_ATTN,
    CUDA_GRAPHS,
    FULL_ITERATION,
    MLP,
    RECOMPUTE_MODULES,
)

MEGATRON = Program("megatron")
ENDS = tuple(f"parallel.account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
GPT2_VOCABULARY, LLAMA_VOCABULARY = 50_257, 32_000
# Scripts that are given the same options and train nothing.
OTHERS = re.compile(
    r"(?:generat|evaluat|eval_?harness|inference|mmlu|quantiz|ptq|export|convert|tasks?/main)[\w/-]*\.py$"
)


def recognise(command: Sequence[str]) -> bool:
    """Whether a command's options are Megatron's."""
    _, given = options(command)
    return len(MEGATRON.names["marks"] & given.keys()) >= 3


def trains(command: Sequence[str]) -> bool:
    """Whether a command with Megatron's options trains: a script may convert a checkpoint first."""
    return recognise(command) and not any(OTHERS.search(word) for word in command)


def read(command: Sequence[str], draft: Draft) -> None:
    """What the command says."""
    if other := next((word for word in command if OTHERS.search(word)), ""):
        message = "generates, evaluates or converts, and trains nothing: give a command that trains"
        raise PlanError([Issue(other, message)])
    told(Keys(options(command)[1], hyphened), draft)


def told(keys: Keys, draft: Draft) -> None:
    """What Megatron's options say, and those of which nothing is made."""
    arguments(keys, draft)
    MEGATRON.end(keys, draft)


def arguments(keys: Keys, draft: Draft) -> None:
    """What Megatron's options say."""
    if any(str(word).startswith(UNSET) for word in keys.values.values()):
        draft.otherwise("train.precision", "bf16-mixed", "--bf16")
    MEGATRON.read(keys, draft)
    draft.keeps_checkpoints(0, "--save-interval")
    if draft.count(keys, "num_experts"):
        tp = draft.fields.get("parallel.tp", 1)
        draft.otherwise("parallel.etp", tp, "--expert-tensor-parallel-size")
    _recomputation(keys, draft)
    _graphs(keys, draft)
    layers = draft.count(keys, "num_layers")
    apart = draft.count(keys, "num_layers_per_virtual_pipeline_stage")
    stages = draft.fields.get("parallel.pp", 1)
    all_of = layers + sum(draft.fields[path] for path in ENDS)
    if apart and layers and all_of % (stages * apart) == 0:
        key = "--num-layers-per-virtual-pipeline-stage"
        draft.put("parallel.virtual_stages", all_of // stages // apart, key, apart)
    draft.share_out(keys, "global_batch_size")
    draft.config = draft.config or _config(keys, layers, draft)


def adapt(draft: Draft, targets: set[str], key: str) -> None:
    """What adapters are put on: every linear layer where nothing less is named."""
    known = {word: MEGATRON.names[word] for word in ("attention", "attention-all")}
    within = next((word for word, of in known.items() if targets and targets <= of), ALL_LINEAR)
    draft.put("train.lora_targets", within, key, sorted(targets) or "all")
    if targets - MEGATRON.names["everywhere"].union(*known.values()):
        draft.leave(key, f"{', '.join(sorted(targets))}: planned as {within}")


def _graphs(keys: Keys, draft: Draft) -> None:
    """What is replayed as CUDA graphs. Of the older options, enable_cuda_graph and
    external_cuda_graph are implementations, and a scope of full is a whole layer; with local the
    scope may be full_iteration (transformer_config.py: __post_init__)."""
    older = {name: keys.on(name) for name in ("enable_cuda_graph", "external_cuda_graph")}
    said = keys.take("cuda_graph_impl")
    scope, modules = keys.take("cuda_graph_scope"), keys.take("cuda_graph_modules")
    for name in ("cuda_graph_warmup_steps", "cuda_graph_use_single_mempool"):
        keys.take(name)  # which change no step that is planned
    implementation = "none" if said is None else shown(said)[1:-1]
    if implementation == "none" and not any(older.values()):
        return
    key = keys.written("cuda_graph_impl")
    given = modules if modules is not None else scope
    names = given if isinstance(given, list) else [] if given is None else [given]
    named = [word for name in names for word in shown(name)[1:-1].split(",")]
    named = [name.strip().rpartition(".")[2] for name in named]
    if implementation == FULL_ITERATION or FULL_ITERATION in named:
        named = [FULL_ITERATION]
    elif set(named) <= {"", "full"}:
        named = [ATTN, MLP]
    found = [name for name in named if name in CUDA_GRAPHS]
    if found:
        draft.put("train.cuda_graphs", ",".join(found), key, found)
    if others := [name for name in named if name not in found]:
        draft.leave(key, f"{', '.join(others)}: is not planned")


def _recomputation(keys: Keys, draft: Draft) -> None:
    """What a selective recomputation runs again; nothing where none of it is known."""
    if draft.fields["train.checkpointing"] == "selective":
        named = _modules(keys)
        modules = [name for name in named if name in RECOMPUTE_MODULES]
        if modules:
            draft.put("train.recompute_modules", ",".join(modules), keys.written(MODULES), modules)
        else:
            draft.fields["train.checkpointing"] = "none"
        if others := [name for name in named if name not in modules]:
            draft.leave(keys.written(MODULES), f"{', '.join(others)}: is not planned")
    keys.take(MODULES)  # which nothing but a selective recomputation reads


MODULES = "recompute_modules"


def _modules(keys: Keys) -> list[str]:
    """What is run again selectively: attention's core where nothing is named
    (transformer_config.py)."""
    named = keys.take(MODULES)
    names = [CORE_ATTN] if named is None else named if isinstance(named, list) else [named]
    more = [module for option, module in MEGATRON.table["older_modules"].items() if keys.on(option)]
    return [*(shown(name)[1:-1] if named else name for name in names), *more]


def _config(keys: Keys, layers: int, draft: Draft) -> dict[str, Any] | None:
    """The model as a config.json. Raises PlanError where the arguments are no model known here."""
    hidden, heads = (draft.count(keys, k) for k in ("hidden_size", "num_attention_heads"))
    if not (layers and hidden and heads):
        return None
    MEGATRON.read(keys, draft, "described")
    where = keys.take("position_embedding_type", words=("none",))
    rotary = keys.on("use_rotary_position_embeddings") or where == "rope"
    own = keys.take("untie_embeddings_and_output_weights") is not None
    positions = draft.count(keys, "max_position_embeddings", "seq_length") or 4096
    kind = str(keys.take("tokenizer_type") or "")
    vocabulary = draft.count(keys, "vocab_size", "padded_vocab_size")
    if not vocabulary:
        vocabulary = GPT2_VOCABULARY if "GPT2" in kind or not rotary else LLAMA_VOCABULARY
        taken = "the kind of tokenizer"
        patched = str(keys.take("patch_tokenizer_type") or "").lower()
        more = draft.count(keys, "extra_vocab_size")
        if words := MEGATRON.table["patched_tokenizers"].get(patched):
            vocabulary, taken = words + more, f"--patch-tokenizer-type and {more:,} more"
        named = str(keys.values.get("tokenizer_model") or "")
        if "HuggingFace" in kind and (found := hub.preset(named)):
            config = catalog.model_entry(found)["config"]
            size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
            vocabulary, taken = int(size or vocabulary), f"the preset {found}"
        draft.leave("--vocab-size", f"not said; {vocabulary:,} is taken from {taken}")
    if not rotary:
        return {
            "model_type": "gpt2",
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads,
            "n_positions": positions,
            **(
                {"position_embedding_type": "none"}
                if str(where).lower() in MEGATRON.names["unlearned"]
                else {}
            ),
            "vocab_size": vocabulary,
            "n_inner": draft.count(keys, "ffn_hidden_size") or 4 * hidden,
            "resid_pdrop": 0.0 if str(keys.take("hidden_dropout")) in ("0", "0.0") else 0.1,
            "attn_pdrop": 0.0 if str(keys.take("attention_dropout")) in ("0", "0.0") else 0.1,
            "tie_word_embeddings": not own,
        }
    MEGATRON.read(keys, draft, "of_llama")
    experts = draft.count(keys, "num_experts")
    grouped = keys.on("group_query_attention")
    groups = draft.count(keys, "num_query_groups") or 1 if grouped else heads
    widths = ("moe_ffn_hidden_size",) if experts else ()
    inner = draft.count(keys, *widths, "ffn_hidden_size")
    latent = keys.on("multi_latent_attention")
    normed = keys.on("qk_layernorm") and not latent  # latent attention has norms of its own
    config = {
        "model_type": "qwen3" if normed else "qwen2" if keys.on("add_qkv_bias") else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner or 4 * hidden * 2 // 3 // 64 * 64,
        "max_position_embeddings": positions,
        "vocab_size": vocabulary,
        "tie_word_embeddings": not own,
    }
    channels = draft.count(keys, "kv_channels")
    if channels or normed:
        config["head_dim"] = channels or hidden // heads
    if latent:
        config |= {"model_type": "deepseek_v3", "num_key_value_heads": heads}
        for mine, (theirs, size) in MEGATRON.table["latent"].items():
            config[mine] = draft.count(keys, theirs) or size
    return config | _experts(keys, config, draft) if experts or latent else config


def _experts(keys: Keys, config: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """What a mixture has besides, in the words of its family. Raises PlanError where options say
    what no family has."""
    experts, chosen = draft.count(keys, "num_experts"), draft.count(keys, "moe_router_topk") or 2
    dense, family = draft.count(keys, "ffn_hidden_size"), config["model_type"]
    width = draft.count(keys, "moe_ffn_hidden_size") or dense
    common = draft.count(keys, "moe_shared_expert_intermediate_size")
    before = _dense_before(keys, config["num_hidden_layers"])
    if family == "deepseek_v3":
        return {
            "intermediate_size": dense or width,
            "moe_intermediate_size": width,
            "n_routed_experts": experts,
            "num_experts_per_tok": chosen,
            "n_shared_experts": common // width if width else 0,
            "first_k_dense_replace": before if experts else config["num_hidden_layers"],
        }
    if common or before:
        key = "moe_shared_expert_intermediate_size" if common else "moe_layer_freq"
        message = "no family of its kind has it in arguments; give the config.json beside them"
        raise PlanError([Issue(keys.written(key), message)])
    if family == "qwen3":
        return {
            "model_type": "qwen3_moe",
            "moe_intermediate_size": width,
            "num_experts": experts,
            "num_experts_per_tok": chosen,
            "norm_topk_prob": True,
        }
    return {
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
    }


def _dense_before(keys: Keys, layers: int) -> int:
    """Layers without experts before those with them. Raises PlanError for others between them."""
    said = str(keys.take("moe_layer_freq") or "1").replace(" ", "").strip("()'\"")
    found = re.fullmatch(r"(?:\[0\](?:\*(\d+))?\+)?\[1\](?:\*(\d+))?", said)
    before = int(found[1] or 1) if found and "[0]" in said else 0
    if said == "1" or (found and before + int(found[2] or 1) == layers):
        return before
    message = f"{shown(said)}: layers without experts between them; give the config.json"
    raise PlanError([Issue(keys.written("moe_layer_freq"), message)])
