"""Accuracy: Memplan's figures with those of others, and what has not been compared yet."""

import streamlit as st

from app import charts, elements, parts, state, tables
from memcore.evidence.comparison import last_compared

BANDS = 12  # of the chart: the kinds of figures with the largest differences


def explained(part: str, name: str) -> None:
    """A part of method.toml: names, and what is said of each."""
    parts.written(tables.method(part), name, "matters" if part == "left_out" else "meaning")


compared = last_compared()
parts.prose(tables.headline(compared))
elements.table("agreement", tables.agreement(compared))
parts.small(f"{tables.tuning(compared)} {elements.text('accuracy')}")
st.markdown("##### Every difference, the largest first")
with st.container(horizontal=True):
    source = st.selectbox(
        "Source", tables.sources(compared), index=None, placeholder="every source", key="of_source"
    )
    family = st.selectbox(
        "Family",
        tables.families(tables.matching(compared, source, None)),
        index=None,
        placeholder="every family",
        key="of_family",
    )
shown = tables.matching(compared, source, family)
elements.chart("residuals", charts.residuals(shown, BANDS))
elements.caption("residuals", bands=BANDS)
elements.table("accuracy", tables.accuracy(shown))

st.markdown("##### More")
parts.folded("What each source is", explained, "sources", "source")
parts.folded("What this does not show", explained, "limits", "limit")
parts.folded(
    "Constants that no shape determines",
    lambda: parts.written(tables.constants_used(), "constant", "value", "certainty", "source"),
)
parts.folded(
    "Names in shapes", lambda: elements.table("dimensions", tables.dimensions(state.plan()))
)
parts.folded("Words", explained, "terms", "term")
parts.folded("What is left out, and how much it could matter", explained, "left_out", "what")
