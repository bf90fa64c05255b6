"""Accuracy: Memplan's figures with those of others, and what has not been compared yet."""

import streamlit as st

from app import charts, parts, state, tables
from memcore.evidence.comparison import last_compared

BANDS = 12  # of the chart: the kinds of figures with the largest differences


def explained(part: str, name: str) -> None:
    """A part of method.toml: names, and what is said of each."""
    parts.written(tables.method(part), name, "matters" if part == "left_out" else "meaning")


def dimensions() -> None:
    """The names in shapes."""
    parts.table(
        tables.dimensions(state.plan()),
        key="dimensions",
        alt="Dimensions and axes, with their values in this plan",
        height=320,
        columns=("name", "here", "meaning"),
    )


compared = last_compared()
parts.prose(tables.headline(compared))
parts.table(
    tables.agreement(compared),
    key="agreement",
    alt="How far Memplan is from each source, by kind",
    height=360,
)
parts.small(
    f"{tables.tuning(compared)} More is in docs/accuracy.md: other calculators, servers by engine "
    "and version, sources left out of a fit, and every figure that is far off, with its reason. "
    "How a number comes about is in docs/method.md, and behind each figure of the pages."
)
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
parts.chart(
    charts.residuals(shown, BANDS),
    key="residuals",
    alt="Difference between Memplan and each reference in percent, the worst first",
)
parts.small(
    f"The {BANDS} kinds of figures with the largest differences. Each mark is one figure, Memplan "
    "less the reference; how many a kind has is in brackets. A double click shows those further "
    "out. Those of the memory tracker that are clearly left of 0 are peaks under autocast, where "
    "the reference has a limit (below)."
)
rows = tables.accuracy(shown)
parts.table(
    rows,
    key="accuracy",
    alt="Every figure of others with Memplan's own",
    height=320,
    columns=(
        *("model", "what", "error %", "theirs", "ours", "unit", "remark", "run", "regime"),
        *("attention", "checkpointing", "micro-batch", "sequence", "layers", "GPUs", "source"),
        "used for",
    ),
)
parts.download("Accuracy (CSV)", rows, "memplan-accuracy.csv", of_plan=False)

st.markdown("##### More")
parts.folded("What each source is", explained, "sources", "source")
parts.folded("What this does not show", explained, "limits", "limit")
parts.folded(
    "Constants that no shape determines",
    lambda: parts.written(tables.constants_used(), "constant", "value", "certainty", "source"),
)
parts.folded("Names in shapes", dimensions)
parts.folded("Words", explained, "terms", "term")
parts.folded("What is left out, and how much it could matter", explained, "left_out", "what")
