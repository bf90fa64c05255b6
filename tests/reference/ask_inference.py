"""Ask PyTorch for the peak of a forward: `python tests/reference/ask_inference.py [N] [--write]`.

Asks each N-th row of inference.json anew and compares; --write keeps what PyTorch said. A model of
transformers in eval mode under torch.no_grad, on fake tensors; the operations that keep something
else on a CPU than on a GPU are replaced as a trace replaces them (memcore/tracing/stand_ins.py).
Needs torch and transformers (`pip install '.[oracle]'`), and no GPU. Nothing here knows a formula.

`peak`   most bytes alive besides weights and buffers, the batch among them
"""

import json
import sys
import weakref
from pathlib import Path

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from memcore.tracing.stand_ins import stand_ins
from memcore.tracing.trace import _placed

TABLE = Path(__file__).with_name("inference.json")


class Peak(TorchDispatchMode):
    """The most bytes of storages that are alive at once, but for `own`."""

    def __init__(self, own):
        super().__init__()
        self.own, self.alive, self.now, self.most = own, {}, 0, 0
        self.detail = []

    def born(self, t):
        storage = t.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.own or key in self.alive:
            return

        def died(_):
            self.now -= size
            del self.alive[key]

        self.alive[key] = weakref.ref(storage, died), tuple(t.shape), t.dtype
        self.now += size
        if self.now > self.most:
            self.most, self.detail = self.now, [a[1:] for a in self.alive.values()]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_iter(out):
            if isinstance(t, torch.Tensor):
                self.born(t)
        return out


def asked(row):
    """The peak of one forward, and what was alive then."""
    config = row["config"]
    words = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    kind = transformers.CONFIG_MAPPING[config["model_type"]](**words)
    kind._attn_implementation = row.get("attention", "sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(kind).eval()
    with stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
        _placed(model)
        own = [*model.parameters(), *model.buffers()]
        own += [t for m in model.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]
        if "tokens" in row:
            ids = torch.zeros(row["batch"], row["tokens"], dtype=torch.long)
            given = {"input_ids": ids}
        else:
            side = kind.image_size
            image = torch.zeros(row["batch"], 3, side, side, dtype=torch.float32)
            given = {"pixel_values": image}
        peak = Peak({t.untyped_storage()._cdata for t in own})
        for t in given.values():
            peak.born(t)
        with torch.no_grad(), peak:
            out = model(**given)
        del out
    return peak.most, peak.detail


def main(arguments):
    rows = json.loads(TABLE.read_text())
    every = int(next((a for a in arguments if a.isdigit()), 1))
    for row in rows[::every]:
        told, _ = asked(row)
        if "--write" in arguments:
            row["peak"] = told
        elif told != row["peak"]:
            sys.exit(f"{row}: {told:,}")
    if "--write" in arguments:
        lines = ",\n".join(map(json.dumps, rows))
        TABLE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
