"""Scripts: a training in Python that gives transformers, TRL, PEFT or Unsloth its settings in the
calls themselves. It is read and never run.

Sources: the calls of transformers 5.23, trl 1.16, peft 0.21 and Unsloth of 2026.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any

from memcore.formats import launchers, python, trainer
from memcore.formats.draft import AUTO, Draft, Keys
from memcore.formats.programs import Program
from memcore.formats.texts import module
from memcore.words.training import EXPANDABLE

# What is called to train, and what sets up the model beside it.
TRAINS = re.compile(
    r"(?:Training(?:Arguments|Args)|(?:[A-Z]\w*PO|SFT|KTO|BCO|RLOO|PRM|GKD|Reward|NashMD)Config)$"
)
RECOMPUTES = ("gradient_checkpointing_enable", "prepare_model_for_kbit_training")
RECOMPUTED = "recomputed by a call"  # the key of which of these is called
CUT = "cut by a tokenizer"  # the key of the tokens that a tokenizer, or a block, leaves
LENGTHS = next(set(r.keys) for r in trainer.HF.rows["read"] if "train.seq_len" in r.to)
SETS_UP = {"from_pretrained", "LoraConfig", "get_peft_model", "BitsAndBytesConfig"}
NAMES = {"r": "lora_r"}  # of PEFT's LoraConfig
MODEL = "model_name_or_path"
COMPUTED = "computed"  # the key of those whose values no constant says
# What loads a model for training, and the keys that say in which dtype.
LOADS = re.compile(r"(?:For\w+|AutoModel|FastLanguageModel|FastModel|FastVisionModel)\.from_pre")
DTYPES = {"dtype", "torch_dtype"}
# A model that starts anew, as transformers' config says its sizes.
CONFIG = re.compile(
    r"^(Llama|Mistral|Qwen2|Qwen3|GPT2|GPTNeoX|Gemma2?|Bert|Roberta|T5|Phi3|OPT)Config$"
)
KINDS = {"gptneo_x": "gpt_neox"}
OF_SIZE = {"hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers"}
SIZES = "the model's config"  # the key of these
HEADS = re.compile(r"AutoModel(For(?:Sequence|Token|Image)Classification|ForQuestionAnswering)\b")
HEAD = "the head"  # the key of what stands in place of the vocabulary
STORED = "loaded as stored"  # the key of a script that says no dtype
AS_STORED = (
    "no dtype: the weights are assumed to be in bf16, as stored, which transformers 5 goes by; "
    "4 loads fp32: then set train.precision to bf16-autocast"
)
FREEZES = re.compile(r"\.requires_grad(?:_\(\s*False\s*\)|\s*=\s*False\b)")
FROZEN = (
    "what the script freezes by itself is not read: all is trained here; set train.frozen, or "
    "train.adapter"
)
UNSLOTH = Program("unsloth")
SHARED = 0.5  # of a GPU, which its vLLM takes where from_pretrained says no gpu_memory_utilization
ONE_COPY = "Unsloth's vLLM has its weights in common with what trains: here each has its own"
LABELS = 2  # of a head where nobody says how many (transformers: PretrainedConfig.num_labels)
OFFLOADED = ("train.offload_activations", "cpu", "use_gradient_checkpointing")


def settings(content: str) -> dict[str, Any]:
    """The settings that the calls of a module say, by their names; {} where none trains."""
    if "TrainingArg" not in content and "Config(" not in content:
        return {}
    tree = module(content)
    constants = python.constants(tree)
    trained, beside = dict[str, Any](), dict[str, Any]()
    computed: list[str] = []
    for node in python.nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        called = python.last_name(node.func)
        given, unknown = python.arguments(node, constants)
        said = {NAMES.get(n, n): v for n, v in given.items() if v is not None}
        if TRAINS.search(called) or called in SETS_UP:
            computed += unknown if TRAINS.search(called) else []
            computed += sorted(
                name
                for name in trainer.HF.names["decide"] & given.keys()
                if given[name] is None and _asks(node, name)
            )
        if (made := CONFIG.search(called)) and OF_SIZE & said.keys():
            kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", made[1]).lower()
            beside.setdefault(SIZES, {"model_type": KINDS.get(kind, kind), **said})
        if {"truncation", "max_length"} <= given.keys() and isinstance(given["max_length"], int):
            beside[CUT] = max(given["max_length"], beside.get(CUT, 0))
        if called in RECOMPUTES and given.get("use_gradient_checkpointing", True):
            beside.setdefault(RECOMPUTED, called)
        if called.endswith("Trainer") and isinstance(said.get("model"), str):
            beside.setdefault(MODEL, said["model"])
        if TRAINS.search(called):
            trained |= said | {"": called}
        elif called in SETS_UP:
            if called == "from_pretrained" and "Tokenizer" not in ast.unparse(node.func):
                first = (
                    python.value(node.args[0], constants) if node.args else said.get("model_name")
                )
                beside.setdefault(MODEL, first)
                if headed := HEADS.search(ast.unparse(node.func)):
                    beside.setdefault(HEAD, headed[1])
                if LOADS.search(ast.unparse(node.func)) and not DTYPES & given.keys():
                    beside.setdefault(STORED, True)
            beside |= {n: v for n, v in said.items() if n != "model_name"}
    if CUT not in beside and isinstance(size := constants.get("block_size"), int):
        beside[CUT] = size
    return {**beside, **trained, COMPUTED: computed} if len(trained) > 1 else {}


def read(content: str, draft: Draft) -> None:
    """What the module says."""
    said = settings(content)
    for key in dict.fromkeys(said.pop(COMPUTED)):
        draft.leave(key, "is computed in the file, so it is not read")
    if "unsloth" in content and said.pop("fast_inference", False):
        said.pop("max_lora_rank", None)
        share = said.pop("gpu_memory_utilization", SHARED)
        said = {"use_vllm": True, "vllm_gpu_memory_utilization": share, **said}
        draft.leave("fast_inference", ONE_COPY)
    if "unsloth" in content:
        said.pop("full_finetuning", None)  # without get_peft_model it is that here
    if "unsloth" in content and said.get("load_in_4bit"):
        said.setdefault(trainer.DOUBLE, True)  # as its loader.py does
    if re.search(r"^(?:from|import) unsloth", content, re.MULTILINE):
        draft.leave("unsloth", "its own kernels are not planned: transformers' are")
        draft.otherwise(launchers.ALLOCATOR, EXPANDABLE, "unsloth_zoo's __init__.py")
    if "unsloth" in content and "get_peft_model" in content:
        UNSLOTH.read(Keys({}), draft)
        if "use_gradient_checkpointing" not in said:
            draft.otherwise(*OFFLOADED)
        draft.put("train.adapter_dtype", "fp32", "Unsloth's get_peft_model")
    if re.search(r"^\s*\w+ = prepare_model_for_kbit_training\(", content, re.MULTILINE):
        draft.put("train.unquantized_dtype", "fp32", "prepare_model_for_kbit_training")
    if FREEZES.search(content) and "lora_r" not in said:
        draft.leave("requires_grad", FROZEN)
    tokens = said.pop(CUT, 0)
    if tokens and said[""].startswith("Training") and not LENGTHS & said.keys():
        draft.put("train.seq_len", tokens, "what the script cuts to", tokens)
    if call := said.pop(RECOMPUTED, ""):  # which the Trainer's own switch does not turn off
        said.pop("gradient_checkpointing", None)
        draft.put("train.checkpointing", "full", f"{call}()", True)
    answers, unit = said.get("num_generations"), "per_device_train_batch_size"
    each = said.get(unit, 1), said.get("gradient_accumulation_steps", 1)
    if "unsloth" in content and isinstance(answers, int) and math.prod(each) % answers:
        said[unit] = answers
        why = (
            f"{answers} is planned, as Unsloth sets it where a batch is no multiple of the answers"
        )
        draft.leave(unit, f"{why} to a prompt")
    sizes = said.pop(SIZES, None)
    if sizes is not None and not said.get(MODEL):
        draft.config = draft.config or sizes
    if head := said.pop(HEAD, ""):
        classes = said.pop("num_labels", None)
        draft.head = head, classes if isinstance(classes, int) else LABELS
        said.pop("problem_type", None)
    if said.pop(STORED, False):
        said["dtype"] = AUTO
        if str(said.get("fp16")).lower() != "true":
            draft.leave("from_pretrained", AS_STORED)
    called = said.pop("")
    started = (called,) if called.startswith("Training") else ("trl", called)
    trainer.read(said, draft, str, started)


def _asks(call: ast.Call, key: str) -> bool:
    """Whether a call gives a key anything but None."""
    return not any(
        each.arg == key and isinstance(each.value, ast.Constant) for each in call.keywords
    )
