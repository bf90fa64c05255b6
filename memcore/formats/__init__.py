"""Formats: files and commands of other programs, read as plans."""

from memcore.formats.reading import MODEL, Found, kind_of, read_files
from memcore.formats.texts import Text, text_of

__all__ = ["MODEL", "Found", "Text", "kind_of", "read_files", "text_of"]
