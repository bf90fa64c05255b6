"""Formats: files and commands of other programs, read as plans."""

from memcore.formats.reading import (
    BESIDE,
    FAILURE,
    MODEL,
    ReadPlan,
    kind_of,
    message_in,
    read_files,
)
from memcore.formats.texts import Text, text_of

__all__ = [
    "BESIDE",
    "FAILURE",
    "MODEL",
    "ReadPlan",
    "Text",
    "kind_of",
    "message_in",
    "read_files",
    "text_of",
]
