"""Scripts: a training in Python that gives transformers, TRL, PEFT or Unsloth its settings in the
calls themselves. It is read and never run.

Sources: the calls of transformers 5.23, trl 1.16, peft 0.21 and Unsloth of 2026.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memcore.formats import trainer
from memcore.formats.found import Draft
from memcore.formats.texts import module

# What is called to train, and what sets up the model beside it.
TRAINS = re.compile(
    r"(?:Training(?:Arguments|Args)|(?:SFT|GRPO|DPO|ORPO|KTO|CPO|Reward|PPO)Config)$"
)
SETS_UP = {"from_pretrained", "LoraConfig", "get_peft_model", "BitsAndBytesConfig"}
NAMES = {"r": "lora_r"}  # of PEFT's LoraConfig
MODEL = "model_name_or_path"
COMPUTED = "computed"  # the key of those whose values no constant says
DECIDE = {
    *trainer.BATCH,
    *trainer.LENGTH,
    *("gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "optim"),
    *("deepspeed", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit", "r", "target_modules"),
}


def settings(content: str) -> dict[str, Any]:
    """The settings that the calls of a module say, by their names; {} where none trains."""
    if "TrainingArg" not in content and "Config(" not in content:
        return {}
    tree = module(content)
    constants = dict(_constants(tree))
    trained, beside = dict[str, Any](), dict[str, Any]()
    computed: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        given = {k.arg: _value(k.value, constants) for k in node.keywords if k.arg}
        said = {NAMES.get(n, n): v for n, v in given.items() if v is not None}
        if TRAINS.search(called) or called in SETS_UP:
            computed += sorted(
                name for name in DECIDE & given.keys() if given[name] is None and _asks(node, name)
            )
        if TRAINS.search(called):
            trained |= said | {"": called}
        elif called in SETS_UP:
            if called == "from_pretrained" and "Tokenizer" not in ast.unparse(node.func):
                first = _value(node.args[0], constants) if node.args else said.get("model_name")
                beside.setdefault(MODEL, first)
            beside |= {n: v for n, v in said.items() if n != "model_name"}
    return {**beside, **trained, COMPUTED: computed} if len(trained) > 1 else {}


def read(content: str, draft: Draft) -> None:
    """What the module says."""
    said = settings(content)
    for key in dict.fromkeys(said.pop(COMPUTED)):
        draft.leave(key, "is computed in the file, so it is not read")
    trl = not said.pop("").startswith("Training")
    trainer.read(said, draft, str, ("trl",) if trl else ())


def _asks(call: ast.Call, key: str) -> bool:
    """Whether a call gives a key anything but None."""
    return not any(
        each.arg == key and isinstance(each.value, ast.Constant) for each in call.keywords
    )


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Constants that the module gives a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _value(node.value, {})
            if value is not None:
                yield node.targets[0].id, value


def _value(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """A constant, what a name stands for, the last word of torch.bfloat16; None for all else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Attribute):
        return node.attr if ast.unparse(node.value) == "torch" else None
    if isinstance(node, (ast.List, ast.Tuple)):
        found = [_value(each, constants) for each in node.elts]
        return found if found and None not in found else None
    if isinstance(node, ast.Dict):
        keys = [_value(each, constants) if each else None for each in node.keys]
        values = [_value(each, constants) for each in node.values]
        return {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, str)}
    return None
