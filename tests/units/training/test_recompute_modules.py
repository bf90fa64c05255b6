"""Modules that Megatron runs again: what each keeps no longer, by transformer_config.py's list."""

from __future__ import annotations

import pytest
from explained import checked

from memcore import Plan, PlanError, evaluate
from memcore.explain.book import Book
from memcore.words.training import RECOMPUTE_MODULES

LAYERS, SPARSE, ROWS, TOKENS = 27, 26, 2048 * 6, 4096
# Moonlight 16B-A3B on 8 H100 as Megatron-Bridge published it: TP 2, EP 8, one sequence of 4,096
# (skills/nemo-mbridge-perf-activation-recompute/SKILL.md, 067f987).
MOONLIGHT = {
    "model": "moonlight-16b-a3b",
    "cluster": {"gpu": "h100-sxm-80gb", "gpus": 8},
    "parallel": {"tp": 2, "ep": 8, "sequence_parallel": True},
}
TRAIN = {
    "framework": "megatron", "kernels": "megatron", "zero": 1, "attention": "flash",
    "cross_entropy": "fused", "grad_reduce_in_fp32": False, "tp_comm_overlap": False,
}  # fmt: skip


def plan_of(*modules: str, **words: object) -> Plan:
    again = {"checkpointing": "selective" if modules else "none"}
    again |= {"recompute_modules": ",".join(modules)} if modules else {}
    return Plan(**MOONLIGHT, train=TRAIN | again | words)


def saved(*modules: str, **words: object) -> int:
    return evaluate(plan_of(*modules, **words)).memory.saved_for_backward_bytes


# 16-bit tensors that are dropped: of a rank's 8 heads of 192 (128 of values), of rows of experts
# 1,408 wide, of its own 2,048 tokens; the fp32 value that a norm keeps of each token.
HEADS = LAYERS * TOKENS * 8 * (192 + 192 + 128) * 2
NORMED_LATENTS = LAYERS * 2048 * (512 * 2 + 4)
ONE_KEY = LAYERS * TOKENS * 64 * 2  # of all heads, which the checkpoint is given and keeps
OWN = 2048 * (2048 * 2 + 4)
DROPPED = {
    "core_attn": LAYERS * TOKENS * 8 * 4,  # its log-sum-exp
    "moe_act": SPARSE * ROWS * 1408 * 2,
    "mla_up_proj": HEADS + NORMED_LATENTS - ONE_KEY,
    "layernorm": (LAYERS + SPARSE) * OWN,
    # The dense layer's: its norm, gate and up, and their product, 11,264 wide, shared by two.
    "mlp": OWN + TOKENS * 11264 // 2 * 3 * 2,
    # Gate and up and their product of 2 experts of 1,408, shared by two.
    "shared_experts": SPARSE * TOKENS * 1408 * 3 * 2,
}


@pytest.mark.parametrize("module", DROPPED)
def test_a_module_keeps_what_its_boundary_leaves(module):
    assert saved() - saved(module) == DROPPED[module]


def test_modules_add_up_and_a_whole_mixture_has_its_own_inside():
    apart = ("core_attn", "moe_act", "layernorm", "mlp", "shared_experts")
    assert saved() - saved(*apart) == sum(DROPPED[name] for name in apart)
    # The heads are what the core keeps of itself, so that nothing of it is left.
    both = DROPPED["mla_up_proj"] + DROPPED["core_attn"]
    assert saved() - saved("core_attn", "mla_up_proj") == both
    assert saved("moe", "moe_act", "shared_experts") == saved("moe") < saved("moe_act")


def test_the_published_peak_without_attentions_core():
    """36.618 GB, and 36.614 with core_attn: all that flash attention has to give."""
    peaks = [evaluate(plan_of(*again)).memory.allocated_bytes for again in ((), ("core_attn",))]
    assert (peaks[0] - peaks[1]) / 1e9 == pytest.approx(36.618 - 36.614, abs=0.0005)


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp8-mixed", "mxfp8"])
def test_what_runs_again_takes_time_and_no_more_memory(module, precision):
    gpu = {"cluster.gpu": "b200-sxm-180gb"} if precision == "mxfp8" else {}
    plans = (
        plan_of(*again).with_changes(gpu | {"train.precision": precision})
        for again in ((), (module,))
    )
    kept, again = (evaluate(plan) for plan in plans)
    assert again.memory.saved_for_backward_bytes < kept.memory.saved_for_backward_bytes
    assert again.memory.allocated_bytes <= kept.memory.allocated_bytes
    assert again.time.step_seconds > kept.time.step_seconds
    assert again.parameters == kept.parameters
    assert again.memory.consumers["parameters"] == kept.memory.consumers["parameters"]
    products = {"core_attn", "mla_up_proj", "mlp", "moe", "shared_experts"}
    assert (again.time.recompute_flops > 0) == (module in products)


def test_a_norm_that_is_part_of_a_product_stays():
    dense = MOONLIGHT | {"model": "llama-3-8b", "parallel": {"tp": 8}}
    plans = [
        Plan(**dense, train=TRAIN | words)
        for words in (
            {"checkpointing": "none"},
            {"checkpointing": "selective", "recompute_modules": "layernorm"},
        )
    ]
    first, second = (evaluate(p).memory.saved_for_backward_bytes for p in plans)
    assert first == second


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("moe_act, core_attn,moe_act", "core_attn,moe_act"),
        ("layernorm", "layernorm"),
    ],
)
def test_the_list_has_one_spelling(given, read):
    assert plan_of(given).train.recompute_modules == read


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"recompute_modules": "moe_akt"}, r"recompute_modules: 'moe_akt' is not known; .*moe_act"),
        ({"recompute_modules": "none"}, r"no module is named; use core_attn"),
        (
            {"recompute_modules": "moe_act", "precision": "fp8-delayed"},
            r"delayed scales.*fp8-mixed",
        ),
        (
            {"recompute_modules": "moe", "overlap_moe_expert_parallel_comm": True},
            r"recompute_modules.*moe.*run again.*overlap_moe_expert_parallel_comm",
        ),
    ],
)
def test_what_cannot_be_says_what_to_change(words, said):
    with pytest.raises(PlanError, match=said):
        Plan(**MOONLIGHT, train=TRAIN | {"checkpointing": "selective"} | words)


def test_a_model_without_the_module_and_another_framework_are_told():
    words = {"checkpointing": "selective", "recompute_modules": "mla_up_proj"}
    with pytest.raises(PlanError, match=r"no latent attention.*core_attn"):
        Plan(model="llama-3-8b", cluster={"gpus": 8}, train=TRAIN | words)
    with pytest.raises(PlanError, match=r"Megatron alone"):
        Plan(model="llama-3-8b", cluster={"gpus": 8}, train=words | {"recompute_modules": "mlp"})


@pytest.mark.parametrize(
    "modules", [("core_attn", "mla_up_proj"), ("moe_act", "layernorm"), tuple(RECOMPUTE_MODULES)]
)
def test_every_number_is_explained(modules):
    plan = plan_of(*modules)
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize("modules", [("mlp",), ("core_attn", "mlp")])
@pytest.mark.parametrize("model", ["llama-3-8b", "gpt2-xl", "starcoder2-3b"])
def test_a_dense_mlp_keeps_its_layers_input_alone(model, modules):
    """Its norm is part of it, whatever the family; what is kept of a layer is attention's."""
    plans = [
        Plan(model=model, cluster={"gpus": 1}, train=TRAIN | {"seq_len": 1024} | words)
        for words in (
            {"checkpointing": "none"},
            {"checkpointing": "selective", "recompute_modules": ",".join(modules)},
        )
    ]
    kept, again = (evaluate(plan) for plan in plans)
    model = plans[0].architecture
    less = kept.memory.saved_for_backward_bytes - again.memory.saved_for_backward_bytes
    products = 3 if model.traits.activation == "silu" else 2
    wide = 1024 * model.intermediate_size * 2 * products
    assert less >= model.layers * wide
    assert again.time.recompute_flops > 0
