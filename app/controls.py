"""Controls: widgets that show the plan, and whether somebody moved one.

With every message a browser sends what all of its widgets show. It may not have heard yet what the
server changed last, and then it repeats a value that nobody chose. Each message therefore carries
back the number of the newest run that the browser has drawn to its end: a value that a control had
before a later run changed it is a repetition, any other is somebody's choice.

Choices are looked for at the start of every run, and not in callbacks: a run that is stopped for
the next one would lose its callback, and a value that nobody took is still there in the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

Take = Callable[[Any], None]
DRAWN = "drawn"  # the key of the widget that carries the number of the run
_NONE = object()  # no value: a control is not on the page


@dataclass
class Control:
    """A widget: what it shows, what a choice does, what it showed before, each with the run that
    changed it, and the run in which the server last set it."""

    shown: Any
    take: Take
    before: list[tuple[Any, int]] = field(default_factory=list)
    sent: int = 0


@dataclass
class Controls:
    """The widgets of one session, by their keys; `run` is the number of this run."""

    run: int = 0
    all: dict[str, Control] = field(default_factory=dict)

    def show(self, key: str, value: Any, take: Take) -> str:
        """Let the widget with this key show `value`, and call `take` with what is chosen in it.

        A value is sent until the browser has drawn a run that had it: what a run sends that is
        stopped for the next one may never arrive, and the widget would show, and then say, the
        least that it may have. Returns the key.
        """
        control = self.all.setdefault(key, Control(value, take))
        if st.session_state.get(key, _NONE) != value:
            control.sent = self.run
        if control.sent > self.seen():
            st.session_state[key] = value
        if control.shown != value:
            control.before.append((control.shown, self.run))
        control.shown, control.take = value, take
        return key

    def chosen(self, seen: int) -> bool:
        """Take what was chosen since the last run, by somebody who has seen the run `seen`; whether
        anything was."""
        choices = self.moved(seen)
        for control in self.all.values():
            control.before = [(value, run) for value, run in control.before if run > seen]
        for control, value in choices:
            control.take(value)  # where it is stopped, the next run finds the choice again
            control.shown = value
        return bool(choices)

    def moved(self, seen: int) -> list[tuple[Control, Any]]:
        """The controls that show what was chosen, and not what a run later than `seen` changed,
        with what they show."""
        choices, values = [], st.session_state
        for key, control in self.all.items():
            value = values.get(key, _NONE)
            if value is _NONE or value == control.shown:  # not on the page any more, or as it was
                continue
            repeated = any(value == old for old, run in control.before if run > seen)
            if not repeated:
                choices.append((control, value))
        return choices

    def seen(self) -> int:
        """The newest run that the browser has drawn to its end."""
        number = st.session_state.get(DRAWN) or ""
        return int(number) if number.isascii() and number.isdecimal() and len(number) < 12 else 0

    def drawn(self) -> None:
        """Send the number of this run. Call it after everything else: what arrives with it, has
        arrived."""
        with st.container(key="hidden"):
            st.session_state[DRAWN] = str(self.run)
            st.text_input("Drawn", key=DRAWN, label_visibility="collapsed")
