"""Ask PyTorch what a step keeps where weights are frozen: `python tests/reference/ask_frozen.py`.

Asks each N-th row of frozen.json anew and compares, as ask_pytorch.py does for families.json.
Models are transformers' own, with requires_grad_(False) on some of their parameters:

`embeddings`  everything before the first layer
`lower`       that, and all layers but the last `trained_layers`
`tower`       what reads images, and what leads from it to the text

A tied head is the embedding, and so frozen with it. `saved` and `peak` are as in ask_adapters.py.
"""

from pathlib import Path

import ask_adapters
import ask_policies
import ask_pytorch
import torch
from ask_pytorch import FakeTensorMode, peak, saved

TABLE = Path(__file__).with_name("frozen.json")
PACKAGES = "torch", "transformers", "liger-kernel"


def build(config, dtype, words):
    policy = {"cross_entropy": "eager", "checkpoint_every": 1}
    by = ask_pytorch if words["kernels"] == "hf" else ask_policies
    model = by.build(config, dtype, policy | words)
    base = getattr(model, model.base_model_prefix, None) or model.model
    if words["frozen"] == "tower":
        base.visual.requires_grad_(False)
        return model
    base = getattr(base, "decoder", base)
    name, layers = next(
        (name, part)
        for name, part in base.named_children()
        if isinstance(part, torch.nn.ModuleList)
    )
    n = len(layers) - words["trained_layers"] if words["frozen"] == "lower" else 0
    frozen = [part for key, part in base.named_children() if part_of_the_embedding(key, name)]
    for module in (*frozen, *layers[:n]):
        module.requires_grad_(False)
    return model


def part_of_the_embedding(key, layers):
    return key != layers and not key.startswith(("norm", "ln_f", "final", "project_out"))


def ask(config, words):
    if words["kind"] == "parameters":
        with FakeTensorMode():
            model = build(config, torch.bfloat16, words)
            return {"bytes": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    if words["kind"] == "saved":
        return saved(config, words, build)
    sharded = words["regime"].startswith("fsdp2")
    ask_adapters.build = build
    return peak(config, words, build) if sharded else ask_adapters.followed(config, words)


if __name__ == "__main__":
    ask_pytorch.main(TABLE, ask, PACKAGES)
