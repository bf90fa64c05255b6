"""What other calculators of step times say of the measured steps that they can express.

`python benchmarks/peers.py CALCULON LLM_ANALYSIS SIMUMAX`, checkouts of the three, writes their
seconds into presets/evidence/peers.toml. Each has its own systems and defaults, and of the plan
what it has words for; the rate between nodes is the plan's. A step that a calculator cannot
express has no figure of it:

Calculon      calculon-ai/calculon at caa4b11: layers of GPT without an embedding or a head, 16
              bits, ZeRO 0 and 1; A100 and H100
llm-analysis  cli99/llm-analysis at d841e40: ZeRO 0 to 3 and one kind of layer; A100, H100 and V100;
              the shares of the peaks that its documentation names for training, 0.5 and 0.9
SimuMax       MooreThreads/SimuMax at 4dcaae5: Megatron's layers, ZeRO 0 and 1; its B200, and its
              A100 with NVLink in place of PCIe
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evidence.times import times_table
from memcore.plan.plan import Plan

PATH = Path(__file__).resolve().parents[1] / "presets" / "evidence" / "peers.toml"
AGAIN = {"none": "none", "selective": "attn_only", "full": "full"}  # Calculon's words


def expressed(plan: Plan) -> bool:
    """Whether it is a dense model in 16 bits whose every weight is trained, on GPUs alone."""
    t, a = plan.train, plan.architecture
    whole = t.adapter == "none" and t.frozen == "none" and t.offload_optimizer == "none"
    sixteen = t.precision in ("bf16-mixed", "fp16-mixed", "bf16-autocast")
    return bool(whole and sixteen and not a.experts and plan.parallel.cp == 1)


def gated(plan: Plan) -> bool:
    return plan.architecture.family not in ("gpt2", "gpt-neox", "mpt", "bloom", "opt")


def calculon(plan: Plan, root: Path) -> float | None:
    from calculon.llm import Llm
    from calculon.system import System

    p, t, a, gpu = plan.parallel, plan.train, plan.architecture, plan.accelerator.label
    of = {"A100": "a100_80e", "H100": "h100_80g_nvl8"}
    system = next((of[name] for name in of if name in gpu), "")
    if not system or gated(plan) or t.zero > 1 or t.checkpointing not in AGAIN:
        return None
    said = json.loads((root / "systems" / f"{system}.json").read_text())
    said["mem1"]["GiB"] = 1e4  # seconds are asked for
    said["networks"][1]["bandwidth"] = plan.node.network_bandwidth / 1e9
    shape = {
        "hidden": a.hidden_size, "feedforward": a.intermediate_size, "seq_size": t.seq_len,
        "attn_heads": a.heads, "attn_size": a.head_dim, "num_blocks": a.layers,
    }  # fmt: skip
    dp = plan.dp
    inside = p.tp * dp <= plan.node.gpus
    execution = {
        "num_procs": plan.cluster.gpus, "tensor_par": p.tp, "pipeline_par": p.pp, "data_par": dp,
        "tensor_par_net": 0, "pipeline_par_net": 0 if plan.cluster.gpus <= plan.node.gpus else 1,
        "data_par_net": 0 if inside else 1,
        "batch_size": dp * t.micro_batch * t.grad_accumulation, "microbatch_size": t.micro_batch,
        "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": AGAIN[t.checkpointing], "pipeline_interleaving": p.virtual_stages,
        "optimizer_sharding": t.zero == 1 and dp > 1,
        "tensor_par_comm_type": "rs_ag" if p.sequence_parallel and p.tp > 1 else "ar",
        "tensor_par_overlap": "none", "seq_par_ag_redo": False,
        "data_par_overlap": bool(t.overlap_grad_reduce) and dp > 1, "weight_offload": False,
        "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip
    model = Llm(Llm.Application(shape), logging.getLogger("calculon"))
    model.compile(System(said), Llm.Execution.from_json(execution))
    model.run(model.sys)
    return float(model.get_total_time())


def llm_analysis(plan: Plan, root: Path) -> float | None:
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name

    p, t, a = plan.parallel, plan.train, plan.architecture
    of = {
        "A100 SXM 80": "a100-sxm-80gb", "A100 SXM 40": "a100-sxm-40gb",
        "H100 SXM": "h100-sxm-80gb", "V100 SXM": "v100-sxm-32gb",
    }  # fmt: skip
    gpu = next((of[name] for name in of if name in plan.accelerator.label), "")
    again = {
        "none": ActivationRecomputation.NONE,
        "selective": ActivationRecomputation.ATTN_COMPUTE,
        "full": ActivationRecomputation.FULL,
    }
    if not gpu or t.checkpointing not in again or p.virtual_stages > 1:
        return None
    config = get_gpu_config_by_name(gpu)
    config.inter_node_bandwidth_in_GB_per_sec = plan.node.network_bandwidth / 1e9
    shape = ModelConfig(
        name="plan", num_layers=a.layers, n_head=a.heads, hidden_dim=a.hidden_size,
        vocab_size=a.vocab_size, max_seq_len=t.seq_len, num_key_value_heads=a.kv_heads,
        ffn_embed_dim=a.intermediate_size, mlp_gated_linear_units=gated(plan),
    )  # fmt: skip
    shards = p.shard_group or plan.dp
    ranks = ParallelismConfig(
        tp_size=p.tp, pp_size=p.pp, dp_size=shards, rdp_size=plan.dp // shards,
        sp_size=p.tp if p.sequence_parallel else 1,
    )  # fmt: skip
    said = LLMAnalysis(
        shape, config, parallelism_config=ranks, flops_efficiency=0.5, hbm_memory_efficiency=0.9
    ).training(
        batch_size_per_gpu=t.micro_batch, gradient_accumulation_steps=t.grad_accumulation,
        seq_len=t.seq_len, activation_recomputation=again[t.checkpointing],
        ds_zero=DSZeRO(t.zero), flash_attn=t.attention != "eager",
    )  # fmt: skip
    return float(said["latency_per_iter"])


def simumax(plan: Plan, root: Path) -> float | None:
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
    from simumax.core.perf_llm import PerfLLM

    p, t, a, gpu = plan.parallel, plan.train, plan.architecture, plan.accelerator
    of = {"A100": "a100_pcie", "B200": "b200_bf16_ceperm"}
    system = next((of[name] for name in of if name in gpu.label), "")
    if not system or t.zero > 1 or t.checkpointing not in AGAIN:
        return None
    said = json.loads((root / "configs" / "system" / f"{system}.json").read_text())
    nets = said["networks"]
    if system == "a100_pcie":
        other = json.loads((root / "configs" / "system" / "b200_bf16_ceperm.json").read_text())
        nets = said["networks"] = other["networks"]
        for where in ("low_intra_node", "high_intra_node"):
            nets[where]["bandwidth"]["gbps"] = gpu.peer_bandwidth / 1e9
    nets["inter_node"]["bandwidth"]["gbps"] = plan.node.network_bandwidth / 1e9
    strategy: dict[str, Any] = {
        "seq_len": t.seq_len, "micro_batch_size": t.micro_batch,
        "micro_batch_num": t.grad_accumulation, "dtype": "bf16",
        "world_size": plan.cluster.gpus, "tp_size": p.tp, "pp_size": p.pp, "ep_size": 1,
        "etp_size": 1, "enable_sequence_parallel": bool(p.sequence_parallel and p.tp > 1),
        "interleaving_size": p.virtual_stages, "zero_state": t.zero,
        "use_math_sdp": t.attention == "eager", "use_flash_sdp": t.attention != "eager",
        "enable_recompute": t.checkpointing != "none", "mem_factor": 0.94,
    }  # fmt: skip
    if t.checkpointing == "full":
        strategy |= {"recompute_granularity": "full_block", "recompute_layer_num": a.layers // p.pp}
    elif t.checkpointing == "selective":
        strategy |= {"recompute_granularity": "selective_recompute", "attn_recompute": True,
                     "recompute_layer_num": a.layers // p.pp}  # fmt: skip
    shape = {
        "model_type": "dense", "model_name": "plan", "hidden_size": a.hidden_size,
        "head_num": a.heads, "kv_head_num": a.kv_heads, "head_size": a.head_dim,
        "intermediate_size": a.intermediate_size, "layer_num": a.layers,
        "vocab_size": a.vocab_size, "use_swiglu": gated(plan),
    }  # fmt: skip
    model = PerfLLM()
    model.configure(
        strategy_config=StrategyConfig.init_from_dict(strategy),
        model_config=ModelConfig.init_from_dict(shape),
        system_config=SystemConfig.init_from_dict(said),
    )
    model.run_estimate()
    found = model.analysis_cost().data
    return seconds_of(found)


def seconds_of(found: Mapping[str, Any]) -> float:
    """SimuMax's seconds of a step, which it prints in milliseconds or in seconds."""
    metric = found.get("metrics", found)
    value = str(metric.get("step_ms", metric.get("duration_time_per_iter", "")))
    number, _, unit = value.partition(" ")
    return float(number) * {"s": 1.0, "ms": 1e-3, "": 1e-3, "us": 1e-6}[unit]


PEERS: Mapping[str, Callable[[Plan, Path], float | None]] = {
    "Calculon": calculon,
    "llm-analysis": llm_analysis,
    "SimuMax": simumax,
}


def main(roots: list[str]) -> int:
    for missing in ("fire", "graphviz", "psutil"):  # what their command lines and pictures need
        sys.modules.setdefault(missing, types.ModuleType(missing))
    sys.path[:0] = roots
    lines = [
        "# Seconds of a step that other calculators say: written by benchmarks/peers.py, whose",
        "# first lines say what each can express. Runs are those of times.toml.",
        "",
    ]
    for (name, of), root in zip(PEERS.items(), roots, strict=True):
        lines.append(f'["{name}"]')
        for run in times_table()["runs"]:
            plan = Plan.of(run["plan"])
            if not expressed(plan):
                continue
            quiet = io.StringIO()
            try:
                with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                    seconds = of(plan, Path(root))
            except Exception:  # a plan that a calculator refuses
                seconds = None
            if seconds:
                lines.append(f'"{run["id"]}" = {seconds:.5g}')
        lines.append("")
    PATH.write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
