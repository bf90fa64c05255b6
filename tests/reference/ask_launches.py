"""Ask PyTorch what a layer starts, and what it runs again: `ask_launches.py [--write]`.

Of one model of each family, in bf16 with its own code from transformers: the operations that the
dispatcher saw in a forward and a backward with twice the layers, less those with the layers that
the model has, for each layer that came. What only looks at memory another way starts nothing and is
not counted. And under gradient checkpointing as transformers has it by default, the FLOPs that
torch.utils.flop_counter counts in a backward beyond those without it. Runs on a CPU with real
tensors; needs torch and transformers.
"""

import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

TABLE = Path(__file__).with_name("launches.json")
FAMILIES = Path(__file__).with_name("families.json")
# One model of each family that is made of equal layers and generates text.
MODELS = (
    "l0", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "neox", "olmo2", "starcoder2", "granite",
    "g-nodrop", "opt", "bloom", "seed-nodrop", "mixtral", "qwen3moe", "olmoe", "deepseek3",
)  # fmt: skip
ATTENTION = ("eager", "sdpa")
EAGER_ONLY = ("gemma2", "bloom")
TOKENS = 32
# Views, and what allocates without starting a kernel.
NO_KERNEL = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "empty",
    "empty_like", "empty_strided", "expand", "lift_fresh", "narrow", "new_empty",
    "new_empty_strided", "permute", "reshape", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_local_scalar_dense", "unfold",
    "is_nonzero", "item", "view_as_real", "view_as_complex",
}  # fmt: skip


class Started(TorchDispatchMode):
    """Counts what the dispatcher is asked for."""

    def __init__(self):
        super().__init__()
        self.kernels = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        if name not in NO_KERNEL:
            self.kernels[name] += 1
        return func(*args, **(kwargs or {}))


def built(config, layers, attention):
    """A model of so many layers, and tokens for it."""
    words = dict(config)
    words["n_layer" if "n_layer" in config else "num_hidden_layers"] = layers
    if "layer_types" in words:
        words["layer_types"] = (words["layer_types"] * 2)[:layers]
    made = AutoConfig.for_model(**words)
    model = transformers.AutoModelForCausalLM.from_config(
        made, attn_implementation=attention, dtype=torch.bfloat16
    )
    return model.train(), torch.randint(0, made.vocab_size, (1, TOKENS))


def started(config, layers, attention):
    """Kernels of a forward with its loss, and of its backward."""
    model, ids = built(config, layers, attention)
    with Started() as forward:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    with Started() as backward:
        loss.backward()
    return forward.kernels, backward.kernels


def asked(config, attention):
    layers = config.get("num_hidden_layers") or config["n_layer"]
    more, fewer = (started(config, n, attention) for n in (2 * layers, layers))
    return [sum((a - b).values()) / layers for a, b in zip(more, fewer, strict=True)]


def run_again(config):
    """FLOPs of one forward with eager attention, and those that its backward runs again."""
    flops = []
    for checkpointing in (False, True):
        model, ids = built(config, config.get("num_hidden_layers") or config["n_layer"], "eager")
        if checkpointing:
            model.gradient_checkpointing_enable()
        with FlopCounterMode(display=False) as forward:
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        flops.append((forward.get_total_flops(), backward.get_total_flops()))
    (forward, without), (_, again) = flops
    return forward, again - without


def main():
    configs = json.loads(FAMILIES.read_text())["configs"]
    rows = []
    for name in MODELS:
        for attention in ATTENTION[:1] if name in EAGER_ONLY else ATTENTION:
            forward, backward = asked(configs[name], attention)
            rows.append(
                {"kind": "launches", "model": name, "attention": attention, "forward": forward,
                 "backward": backward}
            )  # fmt: skip
            print(rows[-1], flush=True)
        forward, again = run_again(configs[name])
        rows.append({"kind": "recompute", "model": name, "forward": forward, "again": again})
        print(rows[-1], flush=True)
    if "--write" in sys.argv:
        versions = {name: version(name) for name in ("torch", "transformers")}
        used = {name: configs[name] for name in MODELS}
        lines = [f'{{"versions": {json.dumps(versions)},', '"configs": {']
        lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in used.items()))
        lines += ["},", '"rows": [', ",\n".join(map(json.dumps, rows)), "]}"]
        TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
