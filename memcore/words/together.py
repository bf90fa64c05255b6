"""Words of training and serving on the same GPUs."""

from __future__ import annotations

from memcore.words.word import Word, table

# What else runs on the GPUs that train, and where each part of it rests meanwhile.
TOGETHER = table("together", Word)

ASLEEP = table("asleep", Word)

TRAINER = table("trainer", Word)

FROZEN = table("frozen", Word)
