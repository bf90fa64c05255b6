"""Pages of the app without a browser."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from streamlit.testing.v1 import AppTest

from app import rest
from memcore.plan.plan import Plan

PROOF = ("accuracy",)  # about Memplan, and no plan: without sidebar
VIEWS = (
    "train",
    "time",
    "tiers",
    "ledger",
    "serve",
    "stream",
    "rates",
    "together",
    "explore",
    "compare",
    *PROOF,
)
rest.QUIET = 0  # nothing waits
APP = Path(importlib.import_module("app").__file__ or "").parent


def opened(
    query: dict[str, str] | None = None, view: str = "train", unfolded: Sequence[str] = ()
) -> AppTest:
    """A view at its own address, as from a link, with some groups of it unfolded."""
    at = AppTest.from_file(str(APP / "page.py"), default_timeout=300)
    for title in unfolded:
        at.session_state[f"folded_{title}"] = True
    for key, value in (query or {}).items():
        at.query_params[key] = value
    if view != "train":
        at.switch_page(f"views/{view}.py")
    return at.run()


def each_view(
    query: dict[str, str] | None = None, proof: bool = False
) -> Iterator[tuple[str, AppTest]]:
    """One person who opens a link and goes through every view of the plan, and with `proof` to
    those that are of no plan."""
    at = opened(query)
    for view in VIEWS if proof else (v for v in VIEWS if v not in PROOF):
        if view != VIEWS[0]:
            at.switch_page(f"views/{view}.py").run()
        alive(at)
        assert bool(at.sidebar.get("select_slider")) == (view not in PROOF), view
        yield view, at


def alive(at: AppTest) -> None:
    assert not at.exception, [e.message for e in at.exception]
    assert at.main.children


def shown_plan(at: AppTest) -> Plan:
    plan: Plan = at.session_state["memplan"].plan
    return plan


def metrics(at: AppTest) -> dict[str, str]:
    return {m.label: m.value for m in at.metric}


def figures(at: AppTest) -> dict[str, str]:
    """What can be asked why, by its path in the Report."""
    asked = {b.key: b.label for b in at.button if (b.key or "").startswith("why_")}
    return {_path(key): _plain(label) for key, label in asked.items()}


def _path(key: str) -> str:
    return key.removeprefix("why_").removeprefix("figure_")


def texts(at: AppTest) -> str:
    """What the page says, in markdown and in lines of figures."""
    return "\n".join([*(_plain(m.value, "\\") for m in at.markdown), *figures(at).values()])


def _plain(text: str, marks: str = r"\\*") -> str:
    """Markdown's text without its escapes, and without what makes it bold."""
    return text.translate(dict.fromkeys(map(ord, f"{marks}\u200b")))


def ask_why(at: AppTest, path: str) -> None:
    """Press a figure."""
    key = next(b.key for b in at.button if b.key and _path(b.key) == path)
    at.button(key=key).click().run()


def verdict(at: AppTest) -> str:
    """What the strip on top says first."""
    paths = ("memory.room_bytes", "serve.fits", "together.fits")
    return next(text for path, text in figures(at).items() if path in paths)


def said(at: AppTest) -> str:
    """The text of warnings and errors, without markdown's escapes."""
    text = "\n".join(m.value for m in [*at.warning, *at.error])
    return text.replace("\\", "").replace("\u200b", "")


def plots(at: AppTest) -> list[dict[str, Any]]:
    """Each Plotly chart of the page: its figure, with how it is drawn under `config`."""
    return [
        json.loads(c.proto.spec) | {"config": json.loads(c.proto.config)}
        for c in at.get("plotly_chart")
    ]


def marks_of(chart: dict[str, Any]) -> list[Any]:
    """What stands behind each mark of a chart."""
    customs = (trace.get("customdata") or () for trace in chart["data"])
    pairs = (custom for each in customs for custom in each if isinstance(custom, list))
    return [value for _, value in pairs if value != ""]


def drawn(at: AppTest, key: str) -> dict[str, Any]:
    """What a component of the page draws."""
    (found,) = [c.proto for c in at.get("bidi_component") if c.proto.id.endswith(f"-{key}")]
    data: dict[str, Any] = json.loads(found.json)
    return data


def frames(at: AppTest) -> list[pd.DataFrame]:
    """The tables of a page, as people read them: words under the titles of their columns."""
    return [_titled(d, _words(d)) for d in at.dataframe]


def _words(d: Any) -> pd.DataFrame:
    """A table's cells in the words that it shows."""
    styler = d.proto.arrow_data.styler
    if not styler.display_values:
        return d.value
    shown = pa.ipc.open_stream(styler.display_values).read_pandas()
    shown.columns = d.value.columns
    return shown


def _titled(d: Any, frame: pd.DataFrame) -> pd.DataFrame:
    config = json.loads(d.proto.columns).items()
    titles = {name: c["label"] for name, c in config if c.get("label", " ").strip()}
    return frame.rename(columns=titles)


def numbers(at: AppTest, head: str) -> list[Any]:
    """The numbers that the words of a column stand for, of the one table that has it."""
    titled = [_titled(d, d.value) for d in at.dataframe]
    (found,) = [f[head] for f in titled if head in f.columns]
    return list(found)


def frame(at: AppTest, head: str) -> pd.DataFrame:
    """The one table of a page that has such a column."""
    (found,) = [f for f in frames(at) if head in f.columns]
    return found
