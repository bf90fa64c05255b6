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


STATES = {word: tuple(State(*state) for state in row["of"]) for word, row in rows("states").items()}


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
