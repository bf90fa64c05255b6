"""How many parameters drafts have, by SpecForge's own classes: writes drafts.json.

Usage: python tests/reference/ask_drafts.py SPECFORGE, a checkout of sgl-project/SpecForge, where
torch and transformers are installed. Only specforge/modeling/draft is run, on the meta device; what
it imports for training is left out.
"""

import importlib
import json
import sys
import types
from pathlib import Path

import torch
from transformers import LlamaConfig, Qwen3Config, modeling_utils  # noqa: F401  before the stand-ins

HERE = Path(__file__).parent
PARTS = ("llama3_eagle", "peagle", "dflash", "domino", "dspark")
LEFT_OUT = ("distributed", "layers", "layers.ring", "core", "core.loss")


class Nothing(types.ModuleType):
    def __init__(self, name: str):
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def registry(checkout: Path) -> dict[str, type]:
    for name in ("specforge", "specforge.modeling", "specforge.modeling.draft"):
        module = types.ModuleType(name)
        module.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = module
    for name in ("specforge.utils", "yunchang", "yunchang.comm"):
        sys.modules[name] = Nothing(name)
    for name in LEFT_OUT:
        sys.modules[f"specforge.{name}"] = Nothing(f"specforge.{name}")
    for part in PARTS:
        importlib.import_module(f"specforge.modeling.draft.{part}")
    return dict(sys.modules["specforge.modeling.draft.registry"].DRAFT_REGISTRY)


def main() -> None:
    classes, path = registry(Path(sys.argv[1])), HERE / "drafts.json"
    rows = json.loads(path.read_text())
    for row in rows:
        given = {k: v for k, v in row["config"].items() if k not in ("model_type", "architectures")}
        of = classes[row["config"]["architectures"][0]]
        with torch.device("meta"):
            row["parameters"] = sum(p.numel() for p in of(of.config_class(**given)).parameters())
    path.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
