"""Ask transformers how many parameters its classes have: `python tests/reference/ask_parameters.py
[N]`.

Asks each N-th row of parameters.json anew and compares: of models with a language model inside, and
of those that are served and not trained. Needs torch and transformers (`pip install '.[oracle]'`):
models are real, on the meta device.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import CONFIG_MAPPING

TABLE = Path(__file__).with_name("parameters.json")


def parameters(config):
    kind, named = config["model_type"], config["architectures"][0]
    own = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    made, classes = CONFIG_MAPPING[kind](**own), transformers
    if not hasattr(transformers, named):  # a part, which its file does not offer
        file = type(made).__module__.replace(".configuration_", ".modeling_")
        classes = importlib.import_module(file)
    with torch.device("meta"):
        model = getattr(classes, named)(made)
    return sum(p.numel() for p in model.parameters())


def main(arguments):
    every = int(next(iter(arguments), 1))
    for row in json.loads(TABLE.read_text())[::every]:
        told = parameters(row["config"])
        if told != row["parameters"]:
            sys.exit(f"{row['config']}: {told:,}, not {row['parameters']:,}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
