"""NeMo: the YAML of NeMo's recipes, Megatron-Bridge, NeMo RL and Automodel, with Megatron's own
options under their names there.

Sources: NeMo 1.23's megatron_gpt_config.yaml, Megatron-Bridge 0.2's ConfigContainer, NeMo RL 0.7's
grpo_math_1B.yaml, Automodel 0.2's recipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memcore.errors import shown
from memcore.formats import megatron
from memcore.formats.draft import Draft, Keys, UnsaidError, flag, names, sections
from memcore.formats.methods import reference
from memcore.formats.programs import Program
from memcore.formats.texts import overridden

NEMO = Program("nemo")
SHARDED = {"dtensor_cfg", "step_scheduler"}  # of what trains with FSDP2
MAX_DEPTH = 6


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    named = {name for name, value in values.items() if isinstance(value, Mapping)}
    known = _flat(values).keys()
    return bool(
        ({"model", "trainer"} <= named and "micro_batch_size" in known)
        or ({"model", "train"} <= named and "tensor_model_parallel_size" in known)
        or ("policy" in named and {"megatron_cfg", "dtensor_cfg"} & known)
        or {"distributed", "step_scheduler"} <= named
    )


def starts(command: Sequence[str]) -> bool:
    """Whether a command's words change such a file."""
    said = _changes(command)
    return {"trainer", "model"} <= said.keys() and recognise(said)


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says in place of a file that is not read."""
    read(_changes(command), draft)
    draft.leave(
        "the command", "changes a file of NeMo's, of which what it does not say is not read"
    )


def _changes(command: Sequence[str]) -> dict[str, Any]:
    pairs = (word.lstrip("+").partition("=") for word in command if word[:1] != "-")
    return overridden({}, [(key, value) for key, is_set, value in pairs if is_set and "." in key])


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says."""
    flat = _flat(values)
    of_tuning = _section(_section(_section(values, "model"), "data"), "train_ds")
    if "max_seq_length" in of_tuning:  # NeMo 1.23: megatron_gpt_finetuning_config.yaml
        flat["max_seq_length"] = of_tuning["max_seq_length"]
    states = values.get("optimizer")
    if isinstance(states, Mapping):
        aware = megatron.MEGATRON.listed("aware")
        flat |= {name: states[name] for name in aware if name in states}
    if base := values.get("defaults"):
        named = shown(base if isinstance(base, str) else ", ".join(map(str, base)))
        draft.leave("defaults", f"what {named} sets, which is not in the file, is not read")
    keys = Keys({NEMO.renamed.get(name, name): value for name, value in reversed(flat.items())})
    NEMO.begin(keys, draft)
    draft.model = draft.model.removesuffix(".nemo")
    if isinstance(values.get("grpo"), Mapping):
        _rollouts(values, draft)
    half = str(keys.take("precision", "mixed_precision") or "bf16").lower()
    sharded = bool(SHARDED & flat.keys())
    if not (sharded or "16" in half or "32" in half or "8" in half):
        draft.leave("precision", f"{shown(half)} is no precision that is read here")
    _adapter(values, sharded, draft)
    if sharded:
        _sharded(keys, half, draft)
        _forget(draft, _sections(values))
        return
    given = {
        n: v
        for n, v in keys.values.items()
        if _is_plain(v) or (isinstance(v, list) and n == megatron.MODULES)
    }
    whole, fp16 = "32" in half, half in ("16", "fp16", "16-mixed", "fp16_mixed")
    given |= {"bf16": not (whole or fp16), "fp16": fp16}
    if "fp8" in half:
        recipe = "mxfp8" if "mx" in half else "delayed" if half.endswith("ds") else "tensorwise"
        given |= {"fp8": "hybrid", "fp8_recipe": recipe}
    if given.get("activation_checkpointing") is True:
        given |= {"recompute_granularity": "full", "recompute_method": "uniform"}
    given.setdefault("use_distributed_optimizer", True)
    given.setdefault("group_query_attention", "num_query_groups" in given)
    gated = str(given.get("activation", "")).endswith("swiglu") or given.get("gated_linear_unit")
    given |= {"swiglu": bool(gated), "disable_bias_linear": given.get("bias") is False}
    if given.get("share_embeddings_and_output_weights") is False:
        given["untie_embeddings_and_output_weights"] = True
    megatron.told(Keys(given), draft)
    _forget(draft, keys.taken | _sections(values))


def _forget(draft: Draft, read: set[str]) -> None:
    """Of what nothing was made, that which is a section, or was read as something else."""
    draft.unread = [key for key in draft.unread if key not in {*read, "enabled"}]


def _rollouts(values: Mapping[str, Any], draft: Draft) -> None:
    """What NeMo RL's policy makes rollouts with: an engine on the same GPUs, which sleeps while it
    trains, as the policy rests in host memory while the engine runs (policy.offload_after_refit,
    and its reference at all times)."""
    steps = Keys(values["grpo"], "grpo.{}".format)
    policy = values.get("policy")
    made = Keys(policy if isinstance(policy, Mapping) else {}, "policy.{}".format).inner(
        "generation"
    )
    NEMO.rollouts(steps, draft)
    NEMO.read(made, draft, "generation")
    for section in ("vllm_cfg", "sglang_cfg", "trtllm_cfg"):
        NEMO.read(made.inner(section), draft, "engine")
    apart = made.inner("colocated")
    if apart.take("enabled") is not None and not apart.on("enabled"):
        others = apart.inner("resources")
        each, nodes = (draft.count(others, name) for name in ("gpus_per_node", "num_nodes"))
        theirs = each * max(1, nodes)
        if theirs < draft.ranks:  # grpo.py, setup: what is left of the cluster trains
            draft.ranks -= theirs
            draft.nodes = max(1, draft.nodes - nodes)
        why = f"{theirs or 'some'} GPUs make rollouts alone; their engine is planned on those that"
        draft.differ(apart.written("enabled"), f"{why} train")
    loss = Keys(_section(values, "loss_fn"), "loss_fn.{}".format)
    reference(loss, draft, "host", "reference_policy_kl_penalty")


def _adapter(values: Mapping[str, Any], sharded: bool, draft: Draft) -> None:
    """LoRA, as Megatron-Bridge's, NeMo RL's, Automodel's and NeMo 1's files have it."""
    section = _section(values, "peft")
    inner = section.get("lora_tuning")
    said = Keys({**section, **(inner if isinstance(inner, Mapping) else {})})
    named = "peft_scheme", "_target_", "scheme"
    scheme = str(said.one(*named) or ("lora" if section else "none")).rpartition(".")[2].lower()
    if scheme in ("none", "null"):
        return
    if scheme not in ("lora", "peftconfig"):
        draft.leave("peft", f"{shown(scheme)} is not planned; LoRA is")
        return
    draft.put("train.adapter", "lora", "peft", scheme)
    NEMO.read(said, draft, "adapter")
    targets = {each.rpartition(".")[2] for each in names(said.take("target_modules") or [])}
    if sharded and targets and not said.on("match_all_linear") and "*_proj" not in targets:
        draft.put("train.lora_modules", ",".join(sorted(targets)), "peft.target_modules")
        return
    megatron.adapt(draft, targets, "peft.target_modules")


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The section of this name that lies least deep and is switched on, or an empty one."""
    within = sections(values, MAX_DEPTH)
    return next((s for path, s in within if _last(path) == name and _is_on(s)), {})


def _last(path: str) -> str:
    """The name of a section, by its path."""
    return path.removesuffix(".").rpartition(".")[2]


def _sharded(keys: Keys, half: str, draft: Draft) -> None:
    """What Automodel and NeMo RL's DTensor policies do: FSDP2."""
    NEMO.read(keys, draft, "sharded")
    if keys.on("sequence_parallel") and draft.fields.get("parallel.tp", 1) > 1:
        draft.put("parallel.sequence_parallel", True, "sequence_parallel", True)
    draft.share_out(keys, "global_batch_size")
    if "bf" not in half and "32" not in half:
        draft.leave("precision", f"{shown(half)} is planned in fp32")
    draft.put("train.precision", "bf16-mixed" if "bf" in half else "fp32", "precision", half)
    NEMO.end(keys, draft)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, (Mapping, list)) and value is not None


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of all sections, by their last names; of two the one that lies less deep. A section
    that is switched off says nothing."""
    found: dict[str, Any] = {}
    for _, section in sections(values, MAX_DEPTH, _counts):
        for name, value in section.items():
            if not isinstance(value, Mapping):
                found.setdefault(str(name), value)
            elif _counts(str(name), value):
                found.setdefault(str(name), True)
    return found


def _counts(name: str, section: Mapping[str, Any]) -> bool:
    return name not in NEMO.names["others"] and _is_on(section)


def _sections(values: Mapping[str, Any]) -> set[str]:
    """The names of sections at any depth."""
    return {_last(path) for path, _ in sections(values, MAX_DEPTH)}


def _is_on(section: Mapping[str, Any]) -> bool:
    try:
        return flag(section.get("enabled", True))
    except UnsaidError:
        return True
