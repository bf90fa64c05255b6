"""Asks DeepSpeed itself which buffers it makes, on two CPU ranks. Prints what deepspeed.json has.

    DS_ACCELERATOR=cpu torchrun --nproc_per_node=2 tests/reference/ask_deepspeed.py 3 cpu cpu

Arguments: the ZeRO stage, where the optimizer lives, where parameters live. Needs deepspeed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

ASKED = json.loads(Path(__file__).with_name("deepspeed.json").read_text())
STEPS = 4  # the trace of modules is complete after the second


def configured(stage: int, optimizer: str, parameters: str) -> dict[str, object]:
    names = {"zero": "stage"}
    zero = {names.get(k, k): v for k, v in (ASKED["train"] | {"zero": stage}).items()}
    for name, place in (("offload_optimizer", optimizer), ("offload_param", parameters)):
        if place != "none":
            zero[name] = {"device": place, "pin_memory": False}
    adam = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": adam,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }


def elements(value: object) -> object:
    if torch.is_tensor(value):
        return value.numel()
    if isinstance(value, list) and value and torch.is_tensor(value[0]):
        return sum(t.numel() for t in value)
    return None


def main(stage: int, optimizer: str = "none", parameters: str = "none") -> None:
    config = LlamaConfig(**{k: v for k, v in ASKED["config"].items() if k != "model_type"})
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    settings = configured(stage, optimizer, parameters)
    engine, wrapper, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    gathered = []
    if stage == 3:
        coordinator = wrapper.parameter_offload.get_param_coordinator()
        fetch = coordinator.fetch_sub_module

        def watched(module: torch.nn.Module, forward: bool) -> None:
            fetch(module, forward)
            there = (p for p in engine.module.parameters() if not p.ds_persist)
            gathered.append(sum(p.ds_numel for p in there if p.ds_status.name != "NOT_AVAILABLE"))

        coordinator.fetch_sub_module = watched
    ids = torch.randint(0, config.vocab_size, (1, 64))
    found: dict[str, object] = {}
    for _ in range(STEPS):
        gathered.clear()
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        found = {k: n for k, v in vars(wrapper).items() if (n := elements(v)) is not None}
        engine.step()
    if dist.get_rank() == 0:
        print(json.dumps(found | {"gathered": max(gathered, default=0)}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
