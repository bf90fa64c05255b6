"""Exported: the plan as the files of a program that would run it, to take away."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

import streamlit as st

from app.text import plain
from memcore.errors import PlanError
from memcore.formats.export import export, programs
from memcore.plan.plan import Plan


def offer(plan: Plan, named: Callable[[str], str]) -> None:
    """A choice of programs, and the files of the chosen one; what of the plan they do not say
    stands below. `named` puts the plan into a file's name."""
    program = st.selectbox(
        "Files for a program",
        programs(plan),
        index=None,
        placeholder="Choose who runs it",
        key="program",
        help="What the program is given, written from the plan: its options, YAML or JSON.",
    )
    if program is None:
        return
    try:
        written = export(plan, program)
    except PlanError as e:
        st.markdown(f":small[{plain('; '.join(map(str, e.issues)))}]")
        return
    st.download_button(
        ", ".join(written.files),
        lambda: _zipped(written.files),
        named(f"memplan-{program}.zip"),
        "application/zip",
        key="program_files",
        on_click="ignore",
        icon=":material/download:",
    )
    for issue in written.left:
        st.markdown(f":small[{plain(str(issue))}]")


def _zipped(files: Mapping[str, str]) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in files.items():
            box.writestr(name, content)
    return found.getvalue()
