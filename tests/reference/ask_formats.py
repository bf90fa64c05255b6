"""Ask transformers, TRL, PEFT, DeepSpeed and Accelerate what small files of theirs mean to them:
`python tests/reference/ask_formats.py` writes formats.json, which test_resolved.py compares with
what is read. `pip install transformers trl peft accelerate deepspeed` besides; no GPU is needed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import yaml
from accelerate.commands.config import load_config_from_file
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from peft import LoraConfig
from transformers import LlamaConfig, TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from trl import DPOConfig, GRPOConfig, ModelConfig, SFTConfig

WORLD = 8
ARGUMENTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"),
    *("bf16", "fp16", "optim", "max_length", "max_completion_length", "dataloader_num_workers"),
    *("dataloader_pin_memory", "use_liger_kernel", "torch_compile", "num_generations"),
)
ZERO = (
    *("stage", "reduce_bucket_size", "sub_group_size", "overlap_comm", "prefetch_bucket_size"),
    *("param_persistence_threshold", "max_live_parameters", "max_reuse_distance"),
    *("offload_optimizer", "offload_param"),
)
TRAINER = (
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True},
    {"gradient_accumulation_steps": 2, "gradient_checkpointing": True},
    {"per_device_train_batch_size": 1, "fp16": True, "optim": "adafactor",
     "gradient_accumulation_steps": 1, "dataloader_num_workers": 4},
)  # fmt: skip
SFT = (
    {"use_peft": True, "gradient_accumulation_steps": 4},
    {"packing": True, "gradient_checkpointing": False, "max_length": 4096, "fp16": True},
    {"packing": False, "bf16": False, "gradient_accumulation_steps": 1},
)
GRPO = ({"num_generations": 8, "gradient_accumulation_steps": 2},)
DPO = ({"max_length": 2048, "use_peft": False, "gradient_accumulation_steps": 2},)
DEEPSPEED = (
    {"train_batch_size": 64, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    {"train_batch_size": 64, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1},
     "fp16": {"enabled": True}},
    {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
     "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
                           "offload_param": {"device": "cpu", "buffer_count": 6}},
     "bf16": {"enabled": True}},
    {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}},
)  # fmt: skip
AUTO = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
}
HIDDEN = 1024
ACCELERATE = (
    {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 4},
    {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 16,
     "num_machines": 2, "mixed_precision": "bf16",
     "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_offload_params": True}},
    {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 8,
     "mixed_precision": "fp16",
     "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 8,
                          "offload_optimizer_device": "cpu", "offload_param_device": "none"}},
)  # fmt: skip


class Ranks:
    """As many as DeepSpeed thinks it runs on."""

    def get_data_parallel_world_size(self):
        return WORLD


def plain(value):
    """As JSON has it."""
    if hasattr(value, "model_dump"):
        return {k: plain(v) for k, v in value.model_dump().items() if v is not None}
    return getattr(value, "value", value)


def arguments(kind, own):
    names = {field.name for field in dataclasses.fields(kind)}
    on_cpu = {"output_dir": tempfile.gettempdir(), "use_cpu": True, "report_to": [], "bf16": False}
    found = kind(**{**on_cpu, **own, "bf16": False})
    resolved = {name: plain(getattr(found, name)) for name in ARGUMENTS if name in names}
    # On a machine without a GPU bf16 and pinned memory are turned off: these are what they were.
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    pinned = defaults["dataloader_pin_memory"]
    bf16 = own.get("bf16", defaults["bf16"])
    bf16 = not own.get("fp16", False) if bf16 is None else bf16
    return resolved | {"dataloader_pin_memory": pinned, "bf16": bf16}


def rows():
    for given in TRAINER:
        yield "transformers", given, arguments(TrainingArguments, given)
    for kind, files in ((SFTConfig, SFT), (GRPOConfig, GRPO), (DPOConfig, DPO)):
        for given in files:
            resolved = arguments(kind, {k: v for k, v in given.items() if k != "use_peft"})
            if given.get("use_peft"):
                of_model = ModelConfig(model_name_or_path="x", use_peft=True)
                resolved |= {k: getattr(of_model, k) for k in ("lora_r", "lora_dropout", "dtype")}
            yield kind.__name__, given, resolved
    lora = LoraConfig()
    yield "peft", {}, {"r": lora.r, "lora_dropout": lora.lora_dropout}
    for given in DEEPSPEED:
        with patch("deepspeed.comm.get_rank", return_value=0):
            config = DeepSpeedConfig(dict(given), mpu=Ranks())
        zero = DeepSpeedZeroConfig(**given["zero_optimization"])
        yield (
            "deepspeed",
            given,
            {
                "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
                "gradient_accumulation_steps": config.gradient_accumulation_steps,
                "bf16": bool(given.get("bf16")),
                "fp16": bool(given.get("fp16")),
                **{name: plain(getattr(zero, name)) for name in ZERO},
            },
        )
    filled = HfTrainerDeepSpeedConfig(json.loads(json.dumps(AUTO)))
    args = TrainingArguments(
        output_dir=tempfile.gettempdir(), use_cpu=True, per_device_train_batch_size=2, report_to=[]
    )
    args.bf16 = True
    filled.trainer_config_process(args)
    model = type("Sized", (), {"config": LlamaConfig(hidden_size=HIDDEN)})
    filled.trainer_config_finalize(args, model, 10)
    yield "transformers, deepspeed", AUTO, filled.config["zero_optimization"]
    for given in ACCELERATE:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(yaml.safe_dump(given))
            file.flush()
            config = load_config_from_file(file.name)
        names = ("distributed_type", "num_processes", "num_machines", "mixed_precision")
        yield "accelerate", given, {name: plain(getattr(config, name)) for name in names}


def main():
    packages = ("transformers", "trl", "peft", "deepspeed", "accelerate")
    found = {
        "source": "ask_formats.py",
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "ranks": WORLD,
        "hidden_size": HIDDEN,
        "rows": [{"by": by, "file": file, "resolved": said} for by, file, said in rows()],
    }
    path = Path(__file__).with_name("formats.json")
    lines = [json.dumps(row) for row in found.pop("rows")]
    head = json.dumps(found, indent=1)[:-2]
    text = head + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
