"""Formats: files and commands of other programs, read as plans."""

from memcore.formats.reading import Found, is_other, read_files
from memcore.formats.texts import Text, text_of

__all__ = ["Found", "Text", "is_other", "read_files", "text_of"]
