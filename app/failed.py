"""Failed: what a page says when Memplan itself went wrong, and the way back."""

from __future__ import annotations

import streamlit as st

from app.text import plain
from memcore.errors import fault

# Another session under another address: nothing of what failed is left in it. Streamlit's own links
# would open a new tab.
WAY_BACK = '<a href="./" id="way-back">Open the default plan</a>'


def show(error: Exception) -> bool:
    """Say in a sentence what happened, and lead to the default plan; the traceback is in the
    server's log. Streamlit calls it for whatever a page or a callback raises."""
    st.error(
        "**Memplan could not show this plan.** The fault is Memplan's "
        f"({plain(fault(error))}). If you report it, send the address of this page with it.",
        icon=":material/error:",
    )
    st.html(WAY_BACK)
    return True
