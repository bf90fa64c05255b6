"""Precision: which copies of a weight exist, and in which dtypes."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.words.word import Word


@dataclass(frozen=True, slots=True)
class EightBit:
    """How Transformer Engine's linear layers keep what their products read, in 8 bits.

    block     values along a row, or along a column, that share a scale; 0: one for the tensor
    delayed   scales come from a history of largest values, which is kept
    primary   the weights exist in 8 bits only; else each has a 16-bit one and a cached 8-bit copy
    """

    block: int = 0
    delayed: bool = False
    primary: bool = False

    @property
    def multiple(self) -> int:
        """Tokens of one product come in multiples of this (transformer_engine/pytorch/utils.py:
        assert_dim_for_fp8_exec, of the weight gradient's operands; tensor/mxfp8_tensor.py)."""
        return self.block or 16


@dataclass(frozen=True, slots=True)
class Precision:
    """Which dtype each copy of a weight has, of one precision in one framework.

    resident   the parameters that live through the step (sharded, under ZeRO-3)
    compute    the copy the operations read
    gradient   what backward produces for a weight; under autocast it is cast back to `resident`
    reduced    what the gradient reduction sends, and what stays until the optimizer step
    master     an fp32 copy that the optimizer keeps besides, or ''
    moment     the optimizer's moments
    autocast   whether operations run under torch.autocast, with bf16 copies of the weights
    scaled     whether the loss is scaled, so that fp16 gradients do not vanish
    eight_bit  what the layers' linear products read, where that is 8 bits
    float8     '' or how torchao scales what they read: BY_TENSOR, whose weights are gathered in 8
               bits, or BY_ROW. Weights and what is kept for backward stay in 16 bits
    """

    resident: str
    compute: str
    gradient: str
    reduced: str
    master: str
    moment: str
    autocast: bool = False
    scaled: bool = False
    eight_bit: EightBit | None = None
    float8: str = ""


BY_TENSOR, BY_ROW = "tensor", "row"

# Copies without a master, which PyTorch's own frameworks have alike.
UNMASTERED = {
    "fp32": Precision("fp32", "fp32", "fp32", "fp32", "", "fp32"),
    "bf16-autocast": Precision("fp32", "fp32", "fp32", "fp32", "", "fp32", autocast=True),
    "bf16-pure": Precision("bf16", "bf16", "bf16", "bf16", "", "bf16"),
    "fp16-pure": Precision("fp16", "fp16", "fp16", "fp16", "", "fp16"),
}
PURE = ("bf16-pure", "fp16-pure")  # one 16-bit dtype for every copy

PRECISIONS = {
    "fp32": Word("fp32", "Everything in fp32: 16 bytes per parameter with AdamW."),
    "fp16-mixed": Word(
        "fp16 mixed",
        "fp16 arithmetic with a scaled loss, fp32 master weights and fp32 Adam moments.",
    ),
    "bf16-mixed": Word(
        "bf16 mixed", "bf16 arithmetic with fp32 master weights and fp32 Adam moments."
    ),
    "bf16-autocast": Word(
        "bf16 autocast",
        "fp32 parameters under torch.autocast, which casts weights and inputs to bf16 as it goes.",
    ),
    "bf16-pure": Word(
        "bf16 pure", "Everything in bf16, moments included: 8 bytes per parameter with AdamW."
    ),
    "fp16-pure": Word(
        "fp16 pure",
        "Everything in fp16, moments included, with no scaled loss: for adapters on GPUs without "
        "bf16.",
    ),
    "fp8-mixed": Word(
        "fp8 mixed",
        "Transformer Engine's products read fp8, one scale for each tensor, found as it goes: bf16 "
        "weights with cached fp8 copies beside them, which take memory to save time; attention, "
        "norms, embedding and head in bf16.",
    ),
    "fp8-delayed": Word(
        "fp8, delayed scaling",
        "The same with scales from a history of largest values: Megatron's default recipe.",
    ),
    "fp8-params": Word(
        "fp8 parameters",
        "fp8 with one scale for each tensor, and no bf16 copy of the layers' matrices "
        "(Megatron's --fp8-param-gather).",
    ),
    "mxfp8": Word(
        "MXFP8",
        "Transformer Engine's products read fp8 with a scale for each 32 values, on Blackwell: "
        "bf16 weights with cached fp8 copies along rows and along columns.",
    ),
    "mxfp8-params": Word(
        "MXFP8 parameters",
        "MXFP8 without a bf16 copy of the layers' matrices (Megatron's --fp8-param-gather with "
        "--reuse-grad-buf-for-mxfp8-param-ag).",
    ),
    "float8-tensorwise": Word(
        "float8, tensorwise",
        "torchao's float8 (torchtitan's default recipe): the layers' linear products read fp8, one "
        "scale for each tensor. Weights are gathered in fp8; fp32 shards and the head stay.",
    ),
    "float8-rowwise": Word(
        "float8, rowwise",
        "torchao's float8 with a scale for each row; weights are gathered in bf16.",
    ),
}
