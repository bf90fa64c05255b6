"""The floor of latency.py: as simple a page as can still show what a planner shows.

Ten widgets, a stacked bar, a line, a heat map, a table; no engine. `?charts=N` draws N
charts, of the three kinds in turns.
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

SERIES = ("parameters", "gradients", "optimizer", "activations", "workspace", "cache")

st.set_page_config(page_title="Floor", layout="wide")
with st.sidebar:
    n = st.slider("n", 0, 10_000, 5_000, key="n")
    st.selectbox("model", ["7b", "70b", "moe"], key="a")
    b = st.number_input("batch", 1, 4_096, 8, key="b")
    c = st.slider("seq", 0, 100, 10, key="c")
    st.segmented_control("dtype", ["fp32", "bf16", "fp8"], default="bf16", key="d")
    st.radio("optimizer", ["adamw", "sgd", "lion"], key="e")
    st.toggle("checkpointing", key="f")
    st.multiselect("parallel", ["dp", "tp", "pp"], key="g")
    st.number_input("gpus", 1, 1_024, 8, key="h")
    st.text_input("name", "plan", key="i")

x = np.arange(8)
bars = {s: np.sin(x + i) ** 2 * 10 + n * (i + 1) / 10 for i, s in enumerate(SERIES)}
xs = np.linspace(1, 200, 200)
grid = np.linspace(0, 3, 50)
layout = {"height": 300, "title": {"text": f"n={n}"}}
stacked = go.Figure(
    [go.Bar(name=s, x=x, y=y) for s, y in bars.items()], {"barmode": "stack", **layout}
)
line = go.Figure([go.Scatter(x=xs, y=np.sqrt(xs * (n + 1)) + b, mode="lines")], layout)
heat = go.Figure([go.Heatmap(z=np.sin(grid[:, None] * (n + 1) / 7) * np.cos(grid) + c)], layout)

charts = int(st.query_params.get("charts", 3))
left, right = st.columns(2)
kinds = ((left, stacked), (right, line), (left, heat))
for i in range(charts):
    place, figure = kinds[i % len(kinds)]
    place.plotly_chart(figure, key=f"chart_{i}")
st.dataframe(pd.DataFrame({"part": SERIES, "GiB": [float(y.sum()) for y in bars.values()]}))
