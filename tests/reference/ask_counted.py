"""Ask transformers how many parameters its classes have: `python tests/reference/ask_counted.py
[N] [--write]`.

Asks each N-th row of counted.json anew and compares; --write asks what counted_cases.py names and
counted.json has not, and keeps what it is told. Needs torch and transformers (`pip install
'.[oracle]'`): models are real, on the meta device. Of flash-linear-attention its own code says it,
where that is on the path.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import counted_cases
import torch
import transformers
from transformers import CONFIG_MAPPING

OF_FLA = dict(counted_cases.OF_FLA)
TABLE = Path(__file__).with_name("counted.json")
# A file without these is refused: each case has them, at their default where it says nothing.
SIZES = ("hidden_size", "d_model", "n_embd", "dim", "num_hidden_layers", "encoder_layers",
         "num_layers", "n_layer", "n_layers")  # fmt: skip


def counted(config):
    kind, named = config["model_type"], config["architectures"][0]
    own = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    if kind in OF_FLA:
        from fla import models as classes

        made = getattr(classes, f"{OF_FLA[kind]}Config")(**own)
    else:
        made, classes = CONFIG_MAPPING[kind](**own), transformers
        if not hasattr(transformers, named):  # a part, which its file does not offer
            file = type(made).__module__.replace(".configuration_", ".modeling_")
            classes = importlib.import_module(file)
    with torch.device("meta"):
        model = getattr(classes, named)(made)
    return sum(p.numel() for p in model.parameters())


def there(config):
    """Whether the code of a config's class is there to be asked."""
    return config["model_type"] not in OF_FLA or importlib.util.find_spec("fla") is not None


def written(kind, named, own):
    """The config.json of a case."""
    usual = CONFIG_MAPPING[kind]().to_dict() if kind not in OF_FLA else {}
    sizes = {key: usual[key] for key in SIZES if isinstance(usual.get(key), int)}
    return {"model_type": kind, "architectures": [named], **sizes, **own}


def main(arguments):
    stood = json.loads(TABLE.read_text()) if TABLE.exists() else []
    if "--write" in arguments:
        rows = []
        for kind, named, own in counted_cases.cases():
            config = written(kind, named, own)
            told = [row["parameters"] for row in stood if row["config"] == config]
            rows.append({"config": config, "parameters": told[0] if told else counted(config)})
        lines = ",\n".join(map(json.dumps, rows))
        TABLE.write_text(f"[\n{lines}\n]\n")
        return
    every = int(next(iter(a for a in arguments if a.isdigit()), 1))
    for row in stood[::every]:
        told = counted(row["config"]) if there(row["config"]) else row["parameters"]
        if told != row["parameters"]:
            sys.exit(f"{row['config']}: {told:,}, not {row['parameters']:,}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
