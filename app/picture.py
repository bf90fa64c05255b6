"""Picture: what components that draw as SVG have in common: how they look, and are saved."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def source(name: str) -> str:
    """A component's own file, plot.css or plot.js, behind what all of them have."""
    files = (HERE / f"picture{Path(name).suffix}", HERE / name)
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
