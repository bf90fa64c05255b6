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

from app import failed, front, guard, warm  # noqa: E402

warm.one_heap()
guard.ask_nobody()
front.keep_what_is_unsent()
front.ask_for_one_value()
front.find_the_theme_once()
front.note_what_is_asked()
front.keep_what_may_be_fetched()
front.tell_components_plain_data()
front.look_at_what_components_said()
front.hand_over_together()
front.answer_whoever_asks()
front.send_in_one_piece()
front.copy_places_quickly()
front.let_go_of_what_ran()
front.let_go_of_who_is_gone()
server = st.App(
    Path(__file__).with_name("page.py"),
    lifespan=front.lifespan,
    middleware=[Middleware(guard.KnownHosts), Middleware(front.Base)],
    on_script_error=failed.show,
)
