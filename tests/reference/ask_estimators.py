"""Ask Megatron-LM's own estimator: `python tests/reference/ask_estimators.py MEGATRON [--write]`.

MEGATRON is a checkout of Megatron-LM. Its megatron/training/theoretical_memory_usage.py is run as
it is, for every plan of presets/evidence/estimators.toml, and compared with what the table has;
--write keeps what it said. Only the two helpers that it imports are replaced, since the modules
that they are in want a GPU: one that tells hybrid models, and one that prints.
"""

import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

from memcore import Plan
from memcore.memory import training_sizes

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


def asked(module, plan):
    """What it says of a plan, in bytes: states, and activations."""
    with contextlib.redirect_stdout(io.StringIO()):
        said = module.report_theoretical_memory(
            arguments(plan), num_microbatches=plan.train.grad_accumulation
        )
    return [round(n * module.NUM_BYTES_IN_MEGABYTE) for n in said[:2]]


def main(checkout, write):
    module, text = estimator(checkout), TABLE.read_text()
    commit = ["git", "-C", str(checkout), "log", "-1", "--format=%h, %cs"]
    at = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip()
    print(f"{FILE} at {at or 'an unknown commit'}")
    for row in tomllib.loads(text)["plans"]:
        states, activations = asked(module, Plan.of(row["plan"]))
        same = (states, activations) == (row["states"], row["activations"])
        print(f"{states:>18,} {activations:>18,}  {row['name']}", "" if same else "  (differs)")
        there = f'name = "{re.escape(row["name"])}"\n'
        figures = f"states = {states}\nactivations = {activations}\n"
        text = re.sub(rf"({there})states = \d+\nactivations = \d+\n", rf"\1{figures}", text)
    if write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv)
