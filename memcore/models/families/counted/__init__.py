"""Counted: architectures whose parameters are known to the last one, and nothing else of them.

A file for each sort, with COUNTED: the families by model_type. The sources are the modelling files
of transformers 5.23.0, and of flash-linear-attention for what states.py has.
"""

from __future__ import annotations

from memcore.models.families.counted import (
    decoders,
    paired,
    parts,
    speech,
    states,
    text,
    translators,
    vision,
)
from memcore.models.families.counted.family import NAME, WHOLE
from memcore.models.families.family import Family

COUNTED: dict[str, Family] = {
    kind: family
    for sort in (text, decoders, translators, states, speech, vision, paired, parts)
    for kind, family in sort.COUNTED.items()
}

__all__ = ["COUNTED", "NAME", "WHOLE"]
