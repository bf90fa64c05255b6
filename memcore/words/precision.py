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
class Precision(Word):
    """Which dtype each copy of a weight has.

    resident   the parameters that live through the step (sharded, under ZeRO-3)
    compute    the copy the operations read
    gradient   what backward produces for a weight; under autocast it is cast back to `resident`
    reduced    what the gradient reduction sends, and what stays until the optimizer step
    master     an fp32 copy that the optimizer keeps besides, or ''
    moment     the optimizer's moments
    autocast   whether operations run under torch.autocast, with bf16 copies of the weights
    scaled     whether the loss is scaled, so that fp16 gradients do not vanish
    eight_bit  what the layers' linear products read, where that is 8 bits
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


_FP16 = "fp16 arithmetic with a scaled loss, fp32 master weights and fp32 Adam moments."
_MIXED = "bf16 arithmetic with fp32 master weights and fp32 Adam moments."
_PURE = "Everything in bf16, moments included: 8 bytes per parameter with AdamW."
_PURE_FP16 = (
    "Everything in fp16, moments included, with no scaled loss: for adapters on GPUs without bf16."
)
_AUTOCAST = (
    "fp32 parameters under torch.autocast, which casts weights and inputs to bf16 as it goes."
)
_FP32 = "Everything in fp32: 16 bytes per parameter with AdamW."
_FP8 = (
    "Transformer Engine's products read fp8, one scale for each tensor, found as it goes: bf16 "
    "weights with cached fp8 copies beside them, which take memory to save time; attention, norms, "
    "embedding and head in bf16."
)
_FP8_DELAYED = "The same with scales from a history of largest values: Megatron's default recipe."
_FP8_PARAMS = (
    "fp8 with one scale for each tensor, and no bf16 copy of the layers' matrices "
    "(Megatron's --fp8-param-gather)."
)
_MXFP8 = (
    "Transformer Engine's products read fp8 with a scale for each 32 values, on Blackwell: bf16 "
    "weights with cached fp8 copies along rows and along columns."
)
_MXFP8_PARAMS = (
    "MXFP8 without a bf16 copy of the layers' matrices (Megatron's --fp8-param-gather with "
    "--reuse-grad-buf-for-mxfp8-param-ag)."
)

# (framework, precision) -> the copies that exist. Sources: torch.distributed.fsdp.fully_shard's
# MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32); torch.autocast; Rajbhandari et al.,
# "ZeRO", section 3.1 (2 + 2 + 12 bytes) for bf16-mixed without sharding.
COPIES = {
    ("pytorch", "fp32"): Precision("fp32", _FP32, "fp32", "fp32", "fp32", "fp32", "", "fp32"),
    ("pytorch", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp16", "fp16", "fp16", "fp16", "fp32", "fp32", scaled=True
    ),
    ("pytorch", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "bf16", "bf16", "bf16", "bf16", "fp32", "fp32"
    ),
    ("pytorch", "bf16-autocast"): Precision(
        "bf16-autocast", _AUTOCAST, "fp32", "fp32", "fp32", "fp32", "", "fp32", autocast=True
    ),
    ("pytorch", "bf16-pure"): Precision(
        "bf16-pure", _PURE, "bf16", "bf16", "bf16", "bf16", "", "bf16"
    ),
    ("pytorch", "fp16-pure"): Precision(
        "fp16-pure", _PURE_FP16, "fp16", "fp16", "fp16", "fp16", "", "fp16"
    ),
    ("megatron", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "bf16", "bf16", "bf16", "fp32", "fp32", "fp32"
    ),
    ("megatron", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp16", "fp16", "fp16", "fp32", "fp32", "fp32", scaled=True
    ),
    **{
        ("megatron", word): Precision(
            word, text, "bf16", "bf16", "bf16", "fp32", "fp32", "fp32", eight_bit=how
        )
        for word, text, how in (
            ("fp8-mixed", _FP8, EightBit()),
            ("fp8-delayed", _FP8_DELAYED, EightBit(delayed=True)),
            ("fp8-params", _FP8_PARAMS, EightBit(primary=True)),
            ("mxfp8", _MXFP8, EightBit(block=32)),
            ("mxfp8-params", _MXFP8_PARAMS, EightBit(block=32, primary=True)),
        )
    },
    ("deepspeed", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "bf16", "bf16", "bf16", "bf16", "fp32", "fp32"
    ),
    ("deepspeed", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp16", "fp16", "fp16", "fp16", "fp32", "fp32"
    ),
    ("fsdp2", "fp32"): Precision("fp32", _FP32, "fp32", "fp32", "fp32", "fp32", "", "fp32"),
    ("fsdp2", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp32", "fp16", "fp16", "fp32", "", "fp32", scaled=True
    ),
    ("fsdp2", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "fp32", "bf16", "bf16", "fp32", "", "fp32"
    ),
    ("fsdp2", "bf16-autocast"): Precision(
        "bf16-autocast", _AUTOCAST, "fp32", "fp32", "fp32", "fp32", "", "fp32", autocast=True
    ),
    ("fsdp2", "bf16-pure"): Precision(
        "bf16-pure", _PURE, "bf16", "bf16", "bf16", "bf16", "", "bf16"
    ),
    ("fsdp2", "fp16-pure"): Precision(
        "fp16-pure", _PURE_FP16, "fp16", "fp16", "fp16", "fp16", "", "fp16"
    ),
}


PURE = ("bf16-pure", "fp16-pure")  # one 16-bit dtype for every copy


def eight_bit(framework: str, precision: str) -> EightBit | None:
    """What linear products read, where that is 8 bits."""
    copies = COPIES.get((framework, precision))
    return copies.eight_bit if copies else None


PRECISIONS = {
    "fp32": Word("fp32", _FP32),
    "fp16-mixed": Word("fp16 mixed", _FP16),
    "bf16-mixed": Word("bf16 mixed", _MIXED),
    "bf16-autocast": Word("bf16 autocast", _AUTOCAST),
    "bf16-pure": Word("bf16 pure", _PURE),
    "fp16-pure": Word("fp16 pure", _PURE_FP16),
    "fp8-mixed": Word("fp8 mixed", _FP8),
    "fp8-delayed": Word("fp8, delayed scaling", _FP8_DELAYED),
    "fp8-params": Word("fp8 parameters", _FP8_PARAMS),
    "mxfp8": Word("MXFP8", _MXFP8),
    "mxfp8-params": Word("MXFP8 parameters", _MXFP8_PARAMS),
}
