"""Compare: the pinned plans and this one, side by side."""

from app import compare

compare.draw()
