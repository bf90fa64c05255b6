"""What reads texts of strangers, and texts that are long to look through.

READERS take a text; each is called with new ones, as what was read once is remembered.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from memcore import cli
from memcore.errors import PlanError
from memcore.formats import (
    hub,
    machines,
    ollama,
    read_files,
    recipes,
    registry,
    scripts,
    servers,
    text_of,
)
from memcore.formats.benches import bench_of, is_bench
from memcore.formats.draft import Draft
from memcore.formats.failures import failure
from memcore.formats.reading import DOCUMENTS
from memcore.formats.snapshot import read_memory
from memcore.formats.totals import totals_in
from memcore.models import unplanned
from memcore.plan.link import decode, decode_pin
from memcore.stream.lengths import read_lengths

HERE = "HERE"  # where a text stands in a document
# Of each program a document that is one of its files, with a text at each place that takes one.
DOCUMENTS_OF: Mapping[str, Mapping[str, Any]] = {
    "GPT-NeoX": {"num_layers": 2, "hidden_size": 64, "pos_emb": HERE, "seq_length": HERE,
                 "train_micro_batch_size_per_gpu": HERE, "optimizer": {"type": HERE}},
    "DeepSpeed": {"zero_optimization": {"stage": HERE, "offload_param": {"device": HERE}},
                  "optimizer": {"type": HERE}, "train_batch_size": HERE},
    "Accelerate": {"distributed_type": HERE, "mixed_precision": HERE, "num_processes": HERE,
                   "fsdp_config": {"fsdp_sharding_strategy": HERE}},
    "verl": {"actor_rollout_ref": {"model": {"path": HERE}, "actor": {"strategy": HERE},
                                   "rollout": {"name": HERE, "n": HERE}}},
    "NeMo": {"model": {"micro_batch_size": HERE, "name": HERE, "precision": HERE},
             "trainer": {"devices": HERE, "precision": HERE, "num_nodes": HERE}},
    "torchtitan": {"training": {"seq_len": HERE, "dtype": HERE}, "model": {"name": HERE},
                   "parallelism": {"tensor_parallel_degree": HERE},
                   "activation_checkpoint": {"mode": HERE}, "optimizer": {"name": HERE}},
    "torchtune": {"model": {"_component_": "torchtune.models.llama3.llama3_8b", "x": HERE},
                  "optimizer": {"_component_": HERE}, "batch_size": HERE, "dtype": HERE},
    "ms-swift": {"model": HERE, "train_type": HERE, "tuner_type": HERE, "torch_dtype": HERE,
                 "target_modules": HERE},
    "LLaMA-Factory": {"model_name_or_path": HERE, "template": HERE, "infer_backend": HERE},
    "Trainer": {"model_name_or_path": HERE, "per_device_train_batch_size": HERE, "optim": HERE,
                "lora_target_modules": HERE, "max_length": HERE, "bf16": HERE, "fsdp": HERE},
    "TensorRT-LLM": {"architecture": HERE, "mapping": {"tp_size": HERE}, "dtype": HERE,
                     "kv_cache_config": {"dtype": HERE}},
    "SGLang": {"model-path": HERE, "tp-size": HERE, "mem-fraction-static": HERE, "dtype": HERE},
    "vLLM": {"model": HERE, "tensor-parallel-size": HERE, "quantization": HERE, "dtype": HERE,
             "max-model-len": HERE},
    "config.json": {"model_type": HERE, "architectures": [HERE], "hidden_size": HERE,
                    "torch_dtype": HERE, "quantization_config": {"quant_method": HERE}},
}  # fmt: skip


def _placed(document: Any, text: str) -> Any:
    """A document with a text where one stands."""
    if isinstance(document, Mapping):
        return {key: _placed(value, text) for key, value in document.items()}
    if isinstance(document, list):
        return [_placed(value, text) for value in document]
    return text if document == HERE else document


def _of_document(name: str) -> Callable[[str], object]:
    """What reads a text in a document of this program, by the document itself."""
    kinds = {known: (recognise, read) for known, recognise, read in DOCUMENTS}

    def read(text: str) -> None:
        values = _placed(DOCUMENTS_OF[name], text)
        if name in kinds:
            kinds[name][0](values)
            kinds[name][1](values, Draft())
        else:
            _read("config.json")(json.dumps(values))

    return read


def _read(name: str) -> Callable[[str], object]:
    """What reads a text as a file of this name."""
    return lambda text: read_files([text_of(name, text.encode())], otherwise="qwen3-8b")


def _command(*words: str, name: str = "t.txt") -> Callable[[str], object]:
    """What runs a command on a text in a file. Raises AssertionError where it fails by itself."""

    def run(text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
                cli.main([words[0], str(path), *words[1:]])
        said = out.getvalue() + err.getvalue()
        assert "Traceback" not in said, said
        assert "Memplan failed at this" not in said, said

    return run


def _notebook(text: str) -> None:
    cells = [{"cell_type": "code", "source": [text]}]
    read_files([text_of("t.ipynb", json.dumps({"cells": cells}).encode())], otherwise="qwen3-8b")


READERS: dict[str, Callable[[str], object]] = {
    **{f"a file {name}": _read(name)
       for name in ("t", "t.json", "t.yaml", "t.toml", "t.sh", "t.py", "t.ini", "Modelfile")},
    "a notebook": _notebook,
    **{f"{name}'s document": _of_document(name) for name in DOCUMENTS_OF},
    "settings of a script": scripts.settings,
    "runs of torchtitan": registry.runs,
    "jobs of NeMo": recipes.jobs,
    "presets of llama.cpp": servers.presets,
    "calls of an engine": servers.called,
    "a Modelfile": lambda text: ollama.recognise(text) and ollama.read(text, Draft()),
    "a failure": failure,
    "a benchmark": lambda text: is_bench(text) or bench_of(text.encode()),
    "totals": totals_in,
    "what a run held": lambda text: read_memory(text.encode()),
    "lengths": lambda text: read_lengths(text.encode()),
    "a name on the hub": lambda text: [hub.preset(text), hub.stored(text), hub.unplanned(text)],
    "a preset's name": lambda text: hub.cached(text),
    "machines": lambda text: [machines.asked(text), machines.counted(text)],
    "what is not planned": lambda text: [unplanned.command(text), unplanned.document(text)],
    "a link": lambda text: decode(parse_qs(text, keep_blank_values=True)),
    "a link's values": lambda text: decode({"model": text, "gpu": text, "mb": text, "zero": text}),
    "a pinned plan": decode_pin,
    "memplan read": _command("read"),
    "memplan check": _command("check"),
    "memplan snapshot": _command("snapshot"),
}  # fmt: skip

# What a text begins with, and what is repeated after it.
CLASSES = {
    "letters": ("", "x"),
    "digits": ("", "7"),
    "blanks": ("", " "),
    "lines": ("", "\n"),
    "brackets": ("", "["),
    "braces": ("", "{"),
    "parentheses": ("", "("),
    "pairs of brackets": ("", "[]"),
    "quotes": ("", '"'),
    "single quotes": ("", "'"),
    "escaped quotes": ("", '\\"'),
    "backslashes": ("", "\\"),
    "dots": ("", "x."),
    "dashes": ("", "x-"),
    "slashes": ("", "x/"),
    "words": ("", "x "),
    "numbers": ("", "7 "),
    "base64": ("", "QmFzZTY0X3VybC1zYWZl"),
    "padded base64": ("", "QmFzZTY0+/=="),
    "bars": ("", "|"),
    "letters beyond ASCII": ("", "é"),
}
KEYWORDS = {
    "comments": ("", "/* "),
    "signs": ("", "# "),
    "variables in each other": ("", "${x"),
    "interpolated": ("x: ", "${x}"),
    "commands within": ("", "$("),
    "a command's output": ("x=$(", "x"),
    "templates": ("", "{{ "),
    "fences": ("", "```\n"),
    "an option": ("vllm serve m --x ", "7"),
    "options": ("vllm serve m", " --x 7"),
    "options on lines": ("vllm serve m", " \\\n  --x"),
    "assignments": ("", "X=1\n"),
    "an assignment": ("X=(", "x "),
    "variables": ("X=" + "x" * 9_000 + "\n", "$X "),
    "out of memory": ("CUDA out of memory. ", "7"),
    "messages": ("", "CUDA out of memory. Tried to allocate 2.00 GiB "),
    "a sum": ("import vllm\nx = ", "--x "),
    "sums": ("", "$((1+"),
    "a function": ("from transformers import Trainer\n", "f("),
    "functions": ("", "def f():\n    return f()\n"),
    "constants": ("import vllm\n", "x = 1\n"),
    "a Modelfile": ("FROM x\nPARAMETER num_ctx 7", " "),
    "a Modelfile's lines": ("FROM x\n", "PARAMETER num_ctx 7\n"),
    "sections": ("", "[x]\n"),
    "settings": ("[x]\n", "x = 7\n"),
    "keys": ("", "x: 7\n"),
    "a list": ("x:\n", "- x\n"),
    "anchors": ("", "- &x *x\n"),
    "objects": ("", '{"x":'),
    "summaries": ("PyTorch CUDA memory summary, device ID 0\n", "| Allocated memory |   7 GiB "),
    "nvidia-smi": ("", "| 7MiB / 7MiB | NVIDIA-SMI "),
    "see_memory_usage": ("", "MA 7 GB  Max_MA 7 GB "),
    "a benchmark": ("Mean TPOT (ms): ", "7"),
    "benchmarks": ("", "Mean TTFT (ms): 7 "),
    "GPUs": ("", "8xH100 "),
    "Slurm": ("", "#SBATCH --nodes=7\n"),
    "a compose file": ("services:\n  x:\n    image: vllm\n    command: ", "--x 7 "),
    "a Dockerfile": ("FROM x\nCMD ", "[x "),
    "runs of torchtitan": ("", "Trainer.Config("),
    "recipes": ("", "run.Partial("),
    "links": ("", "mb=7&"),
    "escaped links": ("", "%7B"),
    "lengths": ("prompt,output\n", "7,7\n"),
    "a name": ("Qwen/Qwen3", "-8B"),
    "a quantized name": ("Qwen3", "-Q4_K_M"),
}
TEXTS = {**CLASSES, **KEYWORDS}


def text(kind: str, length: int) -> str:
    """A text of a kind, so long."""
    head, repeated = TEXTS[kind]
    return (head + repeated * (length // len(repeated) + 1))[:length]


def tried(read: Callable[[str], object], content: str) -> None:
    """Have a text read, whether it is refused or not."""
    with suppress(PlanError):
        read(content)
