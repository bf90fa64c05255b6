"""Shipped: where the tables lie that come with Memplan."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def _presets() -> Traversable:
    """The folder of presets: beside the engine in a checkout, inside it where a wheel is installed,
    since `presets` is a name that others could take."""
    installed = files("memcore") / "presets"
    return installed if installed.is_dir() else files("presets")


PRESETS = _presets()
