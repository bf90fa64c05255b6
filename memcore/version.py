"""Version: which Memplan this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The version of Memplan that is installed; of a checkout that is not, words that say so."""
    try:
        return metadata.version("memplan")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"
