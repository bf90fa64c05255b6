"""Share: the plan as a link and as files, to take away."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Mapping

import streamlit as st

from app import compare, given, parts, shared, state
from app import report as one_page
from app.text import plain
from memcore.errors import PlanError
from memcore.formats.export import export, programs
from memcore.plan.plan import Plan
from memcore.report import Report


def draw(report: Report, about: str) -> None:
    """The plan as a link, and as files. `about`: what the page is about, in the words of
    report.py."""
    box = st.popover("Share", icon=":material/share:", key="share", on_change="rerun")
    if not box.open:
        return
    plan, beside, server = state.plan(), given.step(), given.server()
    by = beside or server
    link = parts.addressing(st.context.url or "")
    with box:
        st.markdown("**Copy link**: what you see, with all that is pinned.")
        st.code(link(), language=None)
        levers, others = functools.partial(shared.levers, plan), compare.side_by_side()
        parts.save(
            "Report on one page (HTML)",
            lambda: one_page.page(
                plan,
                report,
                levers() if report.memory else (),
                link(),
                beside,
                about,
                others(),
                server,
            ),
            "memplan-report.html",
            "report_html",
            "print",
            "What this page is about, with its bill, and beside the pinned plans, for whoever "
            "signs it. It prints to PDF.",
        )
        parts.save(
            "Plan (JSON)",
            lambda: json.dumps(plan.document(), indent=1),
            "memplan-plan.json",
            "plan_json",
            help="Every setting, so that it means the same next year, too.",
        )
        parts.save(
            "Report (JSON)",
            lambda: json.dumps(by.with_report(report) if by else report.to_dict(), indent=1),
            "memplan-report.json",
            "report_json",
        )
        _for_a_program(plan)
        st.segmented_control(
            "Charts are saved as",
            ("png", "svg"),
            format_func=str.upper,
            default=st.session_state.get("image_format") or "png",
            key="image_choice",
            on_change=_choose_format,
        )


def _choose_format() -> None:
    """Kept apart from the control, which is not on every page."""
    st.session_state.image_format = st.session_state.image_choice or "png"


def _for_a_program(plan: Plan) -> None:
    """A choice of programs, and the files of the chosen one; what of the plan they do not say
    stands below."""
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
        parts.small(plain("; ".join(map(str, e.issues))))
        return
    files = written.files
    parts.save(", ".join(files), lambda: _zipped(files), f"memplan-{program}.zip", "program_files")
    for issue in written.left:
        parts.small(plain(str(issue)))


def _zipped(files: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in files.items():
            box.writestr(name, content)
    return file.getvalue()
