"""Line: figures in one line of text, each of them a button that says why it is so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import streamlit as st

from app import why
from app.text import plain


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


def draw(items: Iterable[Item], key: str) -> None:
    """The line on the page; a click on a figure opens the drawer."""
    with st.container(horizontal=True, vertical_alignment="center", key=key):
        for item in items:
            text = f"**{plain(item.bold)}**{plain(item.text)}" if item.bold else plain(item.text)
            if item.path:
                _button(item, text)
            else:
                st.markdown(f":small[{text}]", help=item.help or None, width="content")


def _button(item: Item, text: str) -> None:
    icon = f":material/{item.icon}:" if item.icon else None
    if not item.verdict:
        why.link(text, item.path, icon=icon)
        return
    with st.container(key=f"verdict_{item.verdict}", width="content"):
        why.link(text, item.path, icon=icon)
