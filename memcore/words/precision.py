"""Precision: which copies of a weight exist, and in which dtypes."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.words.word import DTYPE_BYTES, Word, table


@dataclass(frozen=True, slots=True)
class EightBit:
    """How Transformer Engine's linear layers keep what their products read, in 8 bits or in 4.

    dtype     of the values; scales of blocks are in 8 bits
    block     values along a row, or along a column, that share a scale; 0: one for the tensor
    delayed   scales come from a history of largest values, which is kept
    primary   the weights exist so only; else each has a 16-bit one and a cached narrow copy
    """

    block: int = 0
    delayed: bool = False
    primary: bool = False
    dtype: str = "fp8"

    @property
    def bits(self) -> int:
        """Of a value."""
        return int(8 * DTYPE_BYTES[self.dtype])

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
    eight_bit  what the layers' linear products read, where that is 8 bits or 4
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

PRECISIONS = table("precisions", Word)
