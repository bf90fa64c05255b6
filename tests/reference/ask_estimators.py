"""Ask Megatron-LM's and DeepSpeed's own estimators, run as they are:

    python tests/reference/ask_estimators.py MEGATRON DEEPSPEED [--write]

Both are checkouts. Every plan of presets/evidence/estimators.toml is asked of its estimator and
compared with what the table has; --write keeps what was said. Megatron-LM's module gets stand-ins
for the two helpers that it imports (one tells hybrid models, one prints), since the modules that
they are in want a GPU; of DeepSpeed's two modules, for the same reason, only the functions run.
"""

import ast
import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

from memcore.models.counts import parameters
from memcore.plan.plan import Plan
from memcore.training.steps import training_sizes

TABLE = Path(__file__).parents[2] / "presets" / "evidence" / "estimators.toml"
FILE = "megatron/training/theoretical_memory_usage.py"


def estimator(checkout):
    """Megatron-LM's module, with stand-ins for its two helpers."""
    package, helpers = types.ModuleType("megatron_training"), types.ModuleType("helpers")
    package.__path__ = []
    helpers.is_hybrid_model = lambda args: False
    helpers.print_rank_0 = lambda *_: None
    sys.modules |= {package.__name__: package, f"{package.__name__}.utils": helpers}
    name = f"{package.__name__}.theoretical_memory_usage"
    spec = importlib.util.spec_from_file_location(name, checkout / FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(plan):
    """A plan in the words of Megatron-LM's command line."""
    m, p, t, sizes = plan.architecture, plan.parallel, plan.train, training_sizes(plan)
    latent, layers = m.kv_rank > 0, range(m.layers)
    dense = [bool(m.kinds) and m.kinds[i].endswith("-dense") for i in layers]
    recompute = {"none": None, "selective": "selective", "full": "full"}
    return types.SimpleNamespace(
        num_layers=m.layers,
        hidden_size=m.hidden_size,
        ffn_hidden_size=m.intermediate_size,
        num_attention_heads=m.heads,
        kv_channels=m.head_dim,
        group_query_attention=m.kv_heads < m.heads,
        num_query_groups=m.kv_heads,
        swiglu=m.traits.activation == "silu",
        normalization="LayerNorm" if m.family in ("gpt2", "opt", "starcoder2") else "RMSNorm",
        add_bias_linear=m.traits.mlp_bias,
        untie_embeddings_and_output_weights=not m.traits.tied_embeddings,
        padded_vocab_size=sizes["VOCAB"],
        num_experts=m.experts or None,
        moe_layer_freq=[int(not d) for d in dense],
        moe_ffn_hidden_size=m.expert_size,
        moe_router_topk=m.top_k,
        moe_shared_expert_intermediate_size=m.shared_size or None,
        moe_shared_expert_gate=m.family == "qwen2_moe",
        moe_latent_size=None,
        mtp_num_layers=t.mtp_layers or None,
        multi_latent_attention=latent,
        q_lora_rank=m.query_rank or None,
        kv_lora_rank=m.kv_rank,
        qk_head_dim=m.head_dim - m.rotary_dim if latent else m.head_dim,
        qk_pos_emb_head_dim=m.rotary_dim,
        v_head_dim=m.value_dim or m.head_dim,
        seq_length=t.seq_len,
        micro_batch_size=t.micro_batch,
        world_size=plan.cluster.gpus,
        data_parallel_size=plan.dp,
        tensor_model_parallel_size=p.tp,
        pipeline_model_parallel_size=p.pp,
        virtual_pipeline_model_parallel_size=p.virtual_stages if p.virtual_stages > 1 else None,
        expert_model_parallel_size=p.ep,
        expert_tensor_parallel_size=p.etp,
        sequence_parallel=p.sequence_parallel,
        recompute_granularity=recompute[t.checkpointing],
        use_distributed_optimizer=t.zero == 1,
    )


def megatron(checkout):
    """What Megatron-LM says of a plan, in bytes: states, and activations."""
    module = estimator(checkout)

    def ask(plan):
        with contextlib.redirect_stdout(io.StringIO()):
            said = module.report_theoretical_memory(
                arguments(plan), num_microbatches=plan.train.grad_accumulation
            )
        states, activations = (round(n * module.NUM_BYTES_IN_MEGABYTE) for n in said[:2])
        return {"states": states, "activations": activations}

    return ask


ZERO = {
    2: ("stage_1_and_2.py", "estimate_zero2_model_states_mem_needs"),
    3: ("stage3.py", "estimate_zero3_model_states_mem_needs"),
}


def deepspeed(checkout):
    """What DeepSpeed says of a plan's states, in bytes of one GPU."""
    functions = {}
    for file, name in ZERO.values():
        source = (checkout / "deepspeed/runtime/zero" / file).read_text()
        (found,) = (n for n in ast.parse(source).body if getattr(n, "name", "") == name)
        exec(compile(ast.Module([found], []), file, "exec"), functions)

    def ask(plan):
        t, sizes = plan.train, training_sizes(plan)
        more = {}
        if t.zero == 3:
            more["largest_layer_params"] = sizes["LARGEST"]
            more["cpu_offload_params"] = t.offload_parameters != "none"
        _, gpu, *_ = functions[ZERO[t.zero][1]](
            parameters(plan.architecture),
            num_gpus_per_node=plan.gpus_in_node,
            num_nodes=-(-plan.cluster.gpus // plan.gpus_in_node),
            cpu_offload=t.offload_optimizer != "none",
            **more,
        )
        return {"states": gpu}

    return ask


def main(checkouts, write):
    pairs = zip(ESTIMATORS.items(), checkouts, strict=True)
    ask = {name: made(checkout) for (name, made), checkout in pairs}
    text = TABLE.read_text()
    for checkout in checkouts:
        commit = ["git", "-C", str(checkout), "log", "-1", "--format=%h, %cs"]
        at = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip()
        print(f"{checkout} at {at or 'an unknown commit'}")
    for row in tomllib.loads(text)["plans"]:
        said = ask[row["estimator"]](Plan.of(row["plan"]))
        same = all(row[what] == n for what, n in said.items())
        print(row["name"], *(f"{n:,}" for n in said.values()), "" if same else "  (differs)")
        there = f'name = "{re.escape(row["name"])}"\n'
        for what, n in said.items():
            text = re.sub(rf"({there}(?:.*\n)*?{what} = )\d+\n", rf"\g<1>{n}\n", text, count=1)
    if write:
        TABLE.write_text(text)


ESTIMATORS = {"megatron": megatron, "deepspeed": deepspeed}

if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:3]], "--write" in sys.argv)
