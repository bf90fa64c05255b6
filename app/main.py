"""What `memplan app` and `streamlit run app/main.py` start: a server of page.py that keeps to
itself. It asks nobody anything, and it answers only to the names in `server.allowedHosts`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # `streamlit run app/main.py` knows only this file's folder
    sys.path.insert(0, ROOT)

import streamlit as st  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402

from app import failed, guard, warm  # noqa: E402

warm.one_heap()
server = st.App(
    Path(__file__).with_name("page.py"),
    lifespan=warm.lifespan,
    middleware=[Middleware(guard.KnownHosts), Middleware(guard.Elsewhere)],
    on_script_error=failed.show,
)
