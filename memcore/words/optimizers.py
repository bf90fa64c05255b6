"""Optimizers: what each keeps per parameter between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memcore.words.word import Word, rows

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
    starts              operations that the host starts for each updated tensor
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


STATES: dict[str, tuple[State, ...]] = {
    "none": (),
    "adam": _ADAM,
    "bf16": tuple(State(s.name, dtype="bf16") for s in _ADAM),
    "momentum": (State("momentum_buffer"),),
    "one": (State("exp_avg"),),
    "factored": (State("row_var", "rows"), State("col_var", "columns")),
    "variance": (State("variance"),),
    "8 bit": _ADAM_8BIT,
    "paged": _PAGED_ADAM,
    "paged 8 bit": _PAGED_ADAM_8BIT,
    "torchao 8 bit": _block_quantized(8, 256),
    "torchao 4 bit": _block_quantized(4, 128),
}


def _optimizer(
    matrices: str,
    vectors: str,
    outer: str = "",
    starts: float = 1.0,
    lists: Sequence[int] = (),
    **facts: Any,
) -> Optimizer:
    """An optimizer by its row of presets/words.toml."""
    return Optimizer(
        matrices=STATES[matrices],
        vectors=STATES[vectors],
        outer=STATES[outer] if outer else None,
        starts=starts + lists[0] / lists[1] if lists else starts,
        **facts,
    )


OPTIMIZERS = {name: _optimizer(**row) for name, row in rows("optimizers").items()}

# Those that treat each number by itself, or each 256 of them, so that a flat partition will do.
DEEPSPEED_OPTIMIZERS = (
    *("adamw", "adamw-foreach", "adam8bit", "paged-adamw32bit", "paged-adamw8bit"),
    *("sgd", "sgd-momentum", "lion"),
)
