"""Measure training steps on the GPU that is here, beside what Memplan says of them.

    python benchmarks/campaign.py OUT.jsonl [--gpu h200-sxm-141gb] [--only TEXT] [--device cuda]

Needs torch with CUDA and transformers, for adapters peft (`pip install torch transformers peft`),
and nothing else; weights are random, nothing is downloaded. One line of JSON for each run and
figure: the plan, the field of the Report, what was measured, what Memplan says, versions and date,
so that a line can become evidence as it is. Each run has a process of its own, so that one that
needs too much memory takes no other with it. `--device cpu` tries the script itself, on the
smallest model and for the seconds alone.

memory.allocated_bytes  torch.cuda.max_memory_allocated over a step after the first two
memory.reserved_bytes   torch.cuda.max_memory_reserved over the same
memory.device_bytes     what the driver says is taken, less what others had taken before
time.step_seconds       median of ten steps, each awaited; `phases`: forward, backward, optimizer
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memcore import Plan, PlanError, evaluate
from memcore.units import GiB

STEPS = 10
WARM = 2  # steps before: the optimizer's states are made in the first
LIMIT = 240  # seconds for one run
WIDTHS = {  # hidden size, layers, heads, KV heads, intermediate size
    "smallest": (64, 2, 4, 2, 128),
    "0.5B": (1024, 24, 16, 8, 4096),
    "1B": (2048, 16, 32, 8, 8192),
    "3B": (3072, 28, 24, 8, 8192),
    "8B": (4096, 32, 32, 8, 14336),
}


def llama(size: str) -> dict[str, Any]:
    """A config.json of Llama's shape."""
    hidden, layers, heads, kv_heads, intermediate = WIDTHS[size]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": 512 if size == "smallest" else 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }


def campaign() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the plan of every run: one thing changes at a time from a usual step."""
    usual = {
        "framework": "pytorch",
        "zero": 0,
        "micro_batch": 2,
        "seq_len": 2048,
        "precision": "bf16-pure",
        "checkpointing": "none",
        "attention": "flash",
    }
    changes: list[dict[str, Any]] = [
        *({"micro_batch": b, "seq_len": s} for b, s in itertools.product((1, 4), (512, 2048))),
        *({"checkpointing": c} for c in ("full",)),
        *({"attention": a} for a in ("eager", "sdpa")),
        *({"precision": p, "attention": "sdpa"} for p in ("fp32", "bf16-autocast")),
        {"micro_batch": 1, "seq_len": 8192, "checkpointing": "full"},
        *({"adapter": "lora", "lora_rank": r, "checkpointing": "full"} for r in (8, 64)),
        {"adapter": "lora", "lora_targets": "all-linear", "lora_rank": 16},
    ]
    for size in list(WIDTHS)[1:]:
        for change in ({}, *changes):
            name = " ".join([size, *(f"{k}={v}" for k, v in change.items())])
            yield name, {"model": llama(size), "train": usual | change}
    yield "smallest", {"model": llama("smallest"), "train": usual | {"seq_len": 128}}


# ---- one run, in a process of its own


def made(plan: Plan, device: str) -> tuple[Any, Any]:
    """The model of a plan on the device, and its optimizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    words = plan.train
    config = AutoConfig.for_model(**plan.document()["model"])
    attention = "eager" if words.attention == "eager" else "sdpa"
    dtype = torch.bfloat16 if words.precision == "bf16-pure" else torch.float32
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    model.to(device).train()
    if words.checkpointing == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if words.adapter != "none":
        import peft

        targets = {
            "attention": ["q_proj", "v_proj"],
            "attention-all": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "all-linear": "all-linear",
        }[words.lora_targets]
        model.enable_input_require_grads()
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=words.lora_rank, target_modules=targets)
        )
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(trained, lr=1e-5)


def measure(plan: Plan, device: str) -> dict[str, Any]:
    """Bytes and seconds of one step."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    cuda = device == "cuda"
    free = torch.cuda.mem_get_info()[0] if cuda else 0  # with this process's context
    context = torch.cuda.mem_get_info()[1] - free if cuda else 0
    model, optimizer = made(plan, device)
    words = plan.train
    shape = words.micro_batch, words.seq_len
    tokens = torch.randint(0, model.config.vocab_size, shape, device=device)
    kernels = (
        [SDPBackend.FLASH_ATTENTION]
        if cuda and words.attention == "flash"
        else [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )

    def awaited() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def step() -> tuple[float, float, float]:
        start = awaited()
        autocast = words.precision == "bf16-autocast"
        with sdpa_kernel(kernels), torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        forward = awaited()
        loss.backward()
        backward = awaited()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return forward - start, backward - forward, awaited() - backward

    for _ in range(WARM):
        step()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    phases = [step() for _ in range(STEPS)]
    found: dict[str, Any] = {
        "time.step_seconds": statistics.median(map(sum, phases)),
        "phases": [statistics.median(p) for p in zip(*phases, strict=True)],
    }
    if cuda:
        found |= {
            "memory.allocated_bytes": torch.cuda.max_memory_allocated(),
            "memory.reserved_bytes": torch.cuda.max_memory_reserved(),
            "memory.device_bytes": free - torch.cuda.mem_get_info()[0] + context,
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
        }
    return found


# ---- all of them


def said(plan: Plan, field: str) -> Any:
    """What Memplan says."""
    value: Any = evaluate(plan)
    for name in field.split("."):
        value = getattr(value, name)
    return value


def line(name: str, plan: Plan, device: str) -> list[dict[str, Any]]:
    """The rows of one run, or the reason that there are none."""
    command = [sys.executable, __file__, "--one", json.dumps(plan.document()), "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return [{"id": name, "failed": f"over {LIMIT} s"}]
    if done.returncode:
        return [{"id": name, "failed": done.stderr.strip().splitlines()[-1][:300]}]
    found = json.loads(done.stdout.splitlines()[-1])
    packages = {p: version(p) for p in ("torch", "transformers")}
    common = {
        "plan": plan.document(),
        "versions": packages | {k: found.pop(k) for k in ("cuda", "gpu") if k in found},
        "date": datetime.now(UTC).date().isoformat(),
        "phases": found.pop("phases"),
    }
    return [
        {"id": name, "field": field, "value": value, "ours": said(plan, field), **common}
        for field, value in found.items()
    ]


def main() -> None:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--gpu", default="h200-sxm-141gb", help="this GPU, as Memplan calls it")
    parser.add_argument("--only", default="", help="runs whose name has this text")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        print(json.dumps(measure(Plan.of(json.loads(words.one)), words.device)))
        return
    if not words.out:
        parser.error("say the file that the rows go to")
    for name, document in campaign():
        if words.only not in name or (words.device == "cpu") != (name == "smallest"):
            continue
        cluster = {"gpu": words.gpu, "gpus": 1}
        try:
            plan = Plan.of(document | {"cluster": cluster})
        except PlanError as e:
            print(f"{name}: not planned: {e}")
            continue
        needs = said(plan, "memory.allocated_bytes")
        if needs > plan.accelerator.usable_bytes:
            print(f"{name}: needs {needs / GiB:.1f} GiB")
            continue
        for row in line(name, plan, words.device):
            with words.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            told = row.get("failed") or f"{row['field']} {row['value']:.6g}, ours {row['ours']}"
            print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main()
