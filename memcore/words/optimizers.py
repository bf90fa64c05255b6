"""Optimizers: what each keeps per parameter between steps."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.words.word import Word

PAGED = "paged"
AWARE = "adamw-aware"
# Bytes that its step reads and writes of a moment besides the moment itself, read and written: as
# fp32 it is written, read, written and read, and once more in bf16 before it is copied.
WIDENED_TRAFFIC = 4 * 4 + 2 * 2


@dataclass(frozen=True, slots=True)
class State:
    """One tensor that an optimizer keeps for a parameter.

    keeps   'all': as large as the parameter; 'rows', 'columns': one value for each of them;
            'quantized', 'scales', 'small', 'unpaged': see states.QUANTIZED
            PAGED: of a parameter that is large enough, in unified memory
    dtype   '' for the precision's moments
    """

    name: str
    keeps: str = "all"
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Optimizer(Word):
    """What an optimizer keeps for each parameter, in the precision's moment dtype.

    matrices, vectors   for parameters of two dimensions, and of one
    outer               for embedding and head, where it treats them as something else, or None
    temporaries         tensors as large as the parameters that are alive during the step
    step_bytes          of a step counter on the GPU, per parameter tensor
    tables              lookup tables of 256 fp32 values, for all parameters together
    starts              operations that the host starts for each updated tensor; one for many takes
                        36 of them, or more where it reads fewer lists of them (PyTorch:
                        ATen/native/cuda/MultiTensorApply.cuh, depth_to_max_tensors)
    kernel              whose rate its FLOPs are done at, where bytes alone do not bound it
    aware               it reads gradients of any dtype as they are, and keeps of an fp32 master
                        copy only the 16 bits that the weight lacks
    """

    matrices: tuple[State, ...]
    vectors: tuple[State, ...]
    flops_per_parameter: int
    outer: tuple[State, ...] | None = None
    temporaries: tuple[str, ...] = ()
    step_bytes: int = 0
    tables: tuple[str, ...] = ()
    starts: float = 1.0
    kernel: str = "product"
    aware: bool = False

    @property
    def paged(self) -> bool:
        """Whether some of what it keeps lies in unified memory, which the driver moves to the host
        where the GPU has no room for it."""
        return any(state.keeps == PAGED for state in self.matrices)


_ADAM = (State("exp_avg"), State("exp_avg_sq"))
_MOMENTUM = (State("momentum_buffer"),)
_ADAM_8BIT = (
    State("state1", "quantized", "int8"),
    State("state2", "quantized", "int8"),
    State("absmax1", "scales", "fp32"),
    State("absmax2", "scales", "fp32"),
    State("state1 (32 bit)", "small", "fp32"),
    State("state2 (32 bit)", "small", "fp32"),
)
_PAGED_ADAM = (
    State("state1", PAGED, "fp32"),
    State("state2", PAGED, "fp32"),
    State("state1 (on the GPU)", "unpaged", "fp32"),
    State("state2 (on the GPU)", "unpaged", "fp32"),
)
_PAGED_ADAM_8BIT = (
    State("state1", PAGED, "int8"),
    State("state2", PAGED, "int8"),
    State("state1 (on the GPU)", "quantized, unpaged", "int8"),
    State("state2 (on the GPU)", "quantized, unpaged", "int8"),
    *_ADAM_8BIT[2:],
)


def _block_quantized(bits: int, block: int) -> tuple[State, ...]:
    """torchao/optim (0.18): subclass_8bit.py, subclass_4bit.py and adam.py: _new_buffer.

    Each tensor has the values that its codes stand for; one that is small, or no multiple of a
    block, is whole.
    """
    kept = f"codes, {bits} bit", f"scales, {block}", f"values of {bits} bits, {block}"
    names = ("codes", "scale", "qmap")
    of_one = [(n, k, "int8" if n == "codes" else "fp32") for n, k in zip(names, kept, strict=True)]
    return tuple(
        State(f"{moment}.{name}" if name else moment, keeps, dtype)
        for moment in ("exp_avg", "exp_avg_sq")
        for name, keeps, dtype in (*of_one, ("", f"whole, {block}", ""))
    )


_AO_8, _AO_4 = _block_quantized(8, 256), _block_quantized(4, 128)

# What stands here is what `optimizer.state` holds after a step (torch 2.13), and the lists that the
# foreach implementations make (torch/optim/adam.py, _adafactor.py); Lion as in lion-pytorch;
# 8-bit Adam as in bitsandbytes/optim/optimizer.py (0.50): min_8bit_size 4096, blocks of 256.
# What is paged get_state_buffer says there; `starts` of these: two prefetches, step and wait.
# Megatron's precision-aware one: transformer_engine/pytorch/optimizers/fused_adam.py (2.11: step,
# get_unscaled_state, store_param_remainders).
OPTIMIZERS = {
    "adamw": Optimizer(
        "AdamW (fused)",
        "Two moments per parameter; torch.optim.AdamW(fused=True) needs no temporaries.",
        _ADAM,
        _ADAM,
        12,
        step_bytes=4,
        starts=2 / 36,
    ),
    AWARE: Optimizer(
        "AdamW, moments in bf16",
        "Megatron's --use-precision-aware-optimizer: moments in bf16, and of each fp32 master copy "
        "the 16 bits that its bf16 weight lacks. Gradients are read in the dtype that they were "
        "summed in; the moments are fp32 while the step runs.",
        tuple(State(s.name, dtype="bf16") for s in _ADAM),
        tuple(State(s.name, dtype="bf16") for s in _ADAM),
        12,
        temporaries=tuple(f"{s.name}, fp32" for s in _ADAM),
        starts=6 + 2 / 36,  # each moment is widened before it; narrowed and copied behind it
        aware=True,
    ),
    "adamw-foreach": Optimizer(
        "AdamW (foreach)",
        "The same moments; PyTorch's default on GPUs makes one more tensor as large as all "
        "parameters during the step.",
        _ADAM,
        _ADAM,
        12,
        temporaries=("sqrt of exp_avg_sq",),
        starts=9 / 48,
    ),
    "adam8bit": Optimizer(
        "Adam, 8 bit",
        "Both moments in 8 bits with an fp32 scale for each 256 of them (bitsandbytes); a "
        "parameter of fewer than 4,096 elements keeps 32 bits.",
        _ADAM_8BIT,
        _ADAM_8BIT,
        16,
        tables=("qmap1", "qmap2"),
        kernel="8-bit update",
    ),
    "paged-adamw32bit": Optimizer(
        "AdamW, paged",
        "Both moments in fp32, in unified memory (bitsandbytes' PagedAdamW32bit): on the GPU while "
        "it has room, on the host otherwise. A parameter of fewer than 100,000 elements keeps them "
        "on the GPU.",
        _PAGED_ADAM,
        _PAGED_ADAM,
        12,
        starts=4.0,
    ),
    "paged-adamw8bit": Optimizer(
        "AdamW, 8 bit, paged",
        "Moments in 8 bits, in unified memory (bitsandbytes' PagedAdamW8bit); their scales stay on "
        "the GPU.",
        _PAGED_ADAM_8BIT,
        _PAGED_ADAM_8BIT,
        16,
        tables=("qmap1", "qmap2"),
        kernel="8-bit update",
        starts=4.0,
    ),
    "torchao-adamw8bit": Optimizer(
        "AdamW, 8 bit (torchao)",
        "Both moments in 8 bits with an fp32 scale for each 256 of them (torchao.optim.AdamW8bit); "
        "a parameter of fewer than 4,096 elements keeps them whole.",
        _AO_8,
        _AO_8,
        16,
    ),
    "torchao-adamw4bit": Optimizer(
        "AdamW, 4 bit (torchao)",
        "Both moments in 4 bits with an fp32 scale for each 128 of them (torchao.optim.AdamW4bit); "
        "a parameter of fewer than 4,096 elements keeps them whole.",
        _AO_4,
        _AO_4,
        16,
    ),
    "sgd": Optimizer("SGD", "Keeps nothing between steps.", (), (), 2, starts=1 / 64),
    "sgd-momentum": Optimizer(
        "SGD with momentum", "One moment per parameter.", _MOMENTUM, _MOMENTUM, 4, starts=3 / 64
    ),
    "lion": Optimizer(
        "Lion", "One moment per parameter.", (State("exp_avg"),), (State("exp_avg"),), 6, starts=7
    ),
    "adafactor": Optimizer(
        "Adafactor",
        "A value per row and one per column of each matrix instead of moments "
        "(torch.optim.Adafactor); its step makes one tensor as large as all parameters.",
        (State("row_var", "rows"), State("col_var", "columns")),
        (State("variance"),),
        10,
        temporaries=("update",),
        starts=6 + 13 / 48,
    ),
    "muon": Optimizer(
        "Muon",
        "One moment for the matrices of the layers; AdamW for embedding, head and vectors.",
        _MOMENTUM,
        _ADAM,
        40,
        outer=_ADAM,
        starts=23,
    ),
}

# Those that treat each number by itself, or each 256 of them, so that a flat partition will do.
DEEPSPEED_OPTIMIZERS = (
    *("adamw", "adamw-foreach", "adam8bit", "paged-adamw32bit", "paged-adamw8bit"),
    *("sgd", "sgd-momentum", "lion"),
)
