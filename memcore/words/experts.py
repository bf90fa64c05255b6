"""Backends of experts in MXFP4: what each pads a matrix to, so that its kernel can read it."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.words.word import Word, table


@dataclass(frozen=True, slots=True)
class ExpertBackend(Word):
    """What runs the experts, and how it lays them out.

    inner     what an expert's width on one GPU, after every cut, is a multiple of
    hidden    the same of the hidden size
    outputs   of the values alone: what as many results as they make are a multiple of
    scales    of the scales alone: the same
    bias      dtype of the experts' biases; '' as they are stored
    """

    inner: int = 1
    hidden: int = 1
    outputs: int = 1
    scales: int = 1
    bias: str = ""


AUTO, PLAIN, TRITON, MARLIN, TRTLLM, CUTLASS, AITER = (
    *("auto", "plain", "triton", "marlin", "trtllm", "cutlass", "aiter"),
)
SOURCE = (
    "vLLM's Mxfp4MoEMethod.create_weights (vllm/model_executor/layers/quantization/mxfp4.py), and "
    "for Triton on Hopper the layouts of triton_kernels (tensor_details/layout_details/"
    "hopper_value.py and hopper_scale.py)"
)
BACKENDS = table("backends", ExpertBackend)
CHOICES: dict[str, Word] = {
    AUTO: Word(
        "Auto",
        "As vLLM chooses: Triton on Hopper, TensorRT-LLM's on B200 and its like, AITER on AMD, "
        "Marlin on other NVIDIA GPUs; plain in an engine without a paged cache.",
    ),
    **BACKENDS,
}


def backend_of(vendor: str, architecture: str, stacked: bool) -> str:
    """The word that vLLM chooses on a GPU. `stacked`: its memory is HBM, as on GPUs that are made
    for data centres."""
    if vendor == "amd":
        return AITER
    if vendor != "nvidia":
        return PLAIN
    if architecture == "Hopper":
        return TRITON
    newest = architecture.startswith(("Blackwell", "Rubin")) and stacked
    return TRTLLM if newest else MARLIN
