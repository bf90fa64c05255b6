"""Line: figures in one line of text, each of them a button that says why it is so.

Drawn by one small component, which is one message of each change; as a button of Streamlit's each
figure would be another, and a widget for the server and for the browser.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import streamlit as st

from app import why


@dataclass(frozen=True, slots=True)
class Item:
    """A piece of a line, in plain text: what is `bold` stands first. `path` is where its number is
    in the Report, or '' where nothing explains it; `verdict` is the word that gives it its colour,
    `icon` a name of Material's, `help` what it says besides to whoever points at it or comes to it
    by the keyboard."""

    text: str
    path: str = ""
    bold: str = ""
    verdict: str = ""
    icon: str = ""
    help: str = ""


_OF_ITEM = tuple(field.name for field in fields(Item))

# Not in a shadow: its look is that of the other figures, in why.css.
_component = st.components.v2.component(
    "memplan_line",
    html='<div class="memplan-line"></div>',
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def draw(items: Iterable[Item], key: str) -> None:
    """The line on the page; a click on a figure opens the drawer."""
    said = [{name: text for name in _OF_ITEM if (text := getattr(item, name))} for item in items]
    _component(key=key, data={"items": said}, on_why_change=lambda: why.asked(key))
