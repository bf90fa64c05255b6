"""Trace models of many kinds, each in a process of its own, and print a table of what came out.

python benchmarks/traces.py [WORD ...]     # only the targets that have one of the words
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memcore.models.traced.file import read

OWN = f"{Path(__file__).with_name('own_modules.py')}:"
TARGETS = {
    f"{OWN}unet_3d": ("image=batch,1,depth,height,width", "labels=batch,depth,height,width"),
    f"{OWN}fno": ("field=batch,3,height,width",),
    f"{OWN}graph": ("x=nodes,16", "edges=2,edges", "graph=nodes"),
    f"{OWN}pinn": ("points=points,2",),
    f"{OWN}convlstm": ("clip=batch,8,3,height,width",),
    f"{OWN}gpt": ("ids=batch,tokens",),
    f"{OWN}several": ("parts.left=batch,64", "parts.right=batch,32"),
    f"{OWN}mixture": ("x=batch,tokens,256",),
    f"{OWN}recurrent": ("x=batch,50,64",),
    **dict.fromkeys(
        (
            *(f"transformers:{name}" for name in (
                "ViTForImageClassification", "SwinForImageClassification", "CLIPModel",
                "Sam2Model", "WhisperForConditionalGeneration", "Wav2Vec2Model",
                "DetrForObjectDetection", "RTDetrForObjectDetection", "DINOv3ViTModel",
                "Mask2FormerForUniversalSegmentation", "T5ForConditionalGeneration",
                "BertForSequenceClassification", "MambaForCausalLM", "MixtralForCausalLM",
            )),
            *(f"diffusers:{name}" for name in (
                "FluxTransformer2DModel", "SD3Transformer2DModel", "WanTransformer3DModel",
                "LTXVideoTransformer3DModel", "HunyuanVideoTransformer3DModel", "AutoencoderKL",
            )),
            "timm:resnet18", "timm:resnet50", "timm:efficientnet_b0", "timm:convnext_tiny",
            "timm:swin_tiny_patch4_window7_224", "timm:maxvit_tiny_tf_224",
            "torchvision:resnet152", "torchvision:deeplabv3_resnet50", "torchvision:r3d_18",
        ),
        (),
    ),
}  # fmt: skip
LONGEST = 600  # seconds that one trace may take


def row(target: str, dims: tuple[str, ...], folder: Path) -> str:
    """A line of the table: seconds, dimensions, and the largest differences from PyTorch."""
    out = folder / "model.json"
    words = [word for dim in dims for word in ("--dims", dim)]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memcore.cli", "trace", target, *words, "--out", str(out)],
            capture_output=True, text=True, timeout=LONGEST, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"| {target} | more than {LONGEST} s | | | |"
    seconds = time.monotonic() - began
    name = target.removeprefix(str(Path(__file__).parent) + "/")
    if done.returncode:
        return f"| {name} | {seconds:.0f} | no: {done.stderr.strip().splitlines()[-1]} | | |"
    file = read(json.loads(out.read_text()))
    saved = max(
        abs(file.variant(c.sizes).saved_bytes(c.sizes) - c.saved_bytes) for c in file.checks
    )
    peak = max(abs(file.peak_bytes(c.sizes) / c.peak_bytes - 1) for c in file.checks)
    return f"| {name} | {seconds:.0f} | {', '.join(file.dims)} | {saved:,} | {peak:.2%} |"


def main() -> None:
    """Print the table."""
    print("| target | s | dimensions | saved bytes, most off | peak, most off |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for target, dims in TARGETS.items():
            if not sys.argv[1:] or any(word in target for word in sys.argv[1:]):
                print(row(target, dims, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
