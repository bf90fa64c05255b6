"""Text: what a page may show of text that came from outside."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """Text as markdown that shows exactly this text: every mark of markdown's is escaped.

    A zero-width space breaks what would become a link by itself.
    """
    text = re.sub(r"(?i)(www|@|:)(?=[./\w])", "\\1\u200b", text)
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
