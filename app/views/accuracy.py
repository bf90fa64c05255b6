"""Accuracy: Memplan's figures beside those of others, and what has not been compared yet."""

import streamlit as st

from app import charts, parts, tables
from memcore import evidence

compared = evidence.compare()

st.markdown(tables.headline(compared))
parts.table(
    tables.agreement(compared), key="agreement", alt="How far Memplan is from each source, by kind"
)
parts.small(
    "This page is about Memplan, not about the plan above. Every row is a check: nothing in "
    "Memplan was tuned on any of them. Lowest and highest: the least and the greatest of "
    "(Memplan less the reference) as a share of the reference."
)
st.markdown("##### Every difference")
parts.chart(
    charts.residuals(compared),
    key="residuals",
    alt="Difference between Memplan and each reference in percent, by model",
)
parts.small(
    "Each mark is one figure. Those of the memory tracker that are clearly left of 0 are peaks "
    "under autocast, where the reference has a limit (below)."
)
st.markdown("##### Every figure, the largest difference first")
rows = tables.accuracy(compared)
parts.table(
    rows,
    key="accuracy",
    alt="Every figure of others beside Memplan's own",
    height=320,
    columns=(
        "model",
        "what",
        "error %",
        "theirs",
        "ours",
        "unit",
        "regime",
        "attention",
        "checkpointing",
        "micro-batch",
        "sequence",
        "layers",
        "GPUs",
        "source",
        "used for",
    ),
)
parts.download("Accuracy (CSV)", rows, "memplan-accuracy.csv")

left, right = st.columns(2, gap="large")
with left:
    st.markdown(
        """
##### What each source is

- **transformers parameter count**: the model as `transformers` 5.23 builds it from its
  `config.json`, without memory for its weights; counted for every preset.
- **PyTorch autograd**: PyTorch 2.13 runs one forward with labels, in bf16, at full width on
  tensors without data. `saved_tensors_hooks` lists every tensor that backward will need;
  parameters and buffers are left out.
- **PyTorch memory tracker**: PyTorch's own `MemTracker` and `FSDPMemTracker` follow a forward and
  backward with AdamW states resident. The optimizer step is not part of it. The ranks of FSDP2
  are those of a simulated process group.
- **published**: figures of papers and datasheets. They are rounded as printed, so that a
  difference within their rounding says nothing. The Method page has each with its source.
"""
    )
with right:
    st.markdown(
        """
##### What this does not show

- **The reference under autocast is too high.** It runs without a GPU, so its attention is a
  stand-in, and that is not on autocast's list of operations to cast: it keeps fp32 queries and
  keys where a GPU keeps bf16. Memplan's figures are the GPU's and lie up to 3 % below. With the
  stand-in put on the list, the reference gives 20,212,974,244 bytes for Llama 2 7B, 4 layers,
  1 x 4,096 tokens, where these rows have 20,749,845,156.
- **Models are cut to few layers** in the rows of autograd and of the tracker (2, 4 or 8), at full
  width. A further layer of the same kind adds the same bytes again.
- **No row was measured on a GPU.** Reserved and device memory rest on the constants below.
- **Times have not been compared with measured runs yet.** They follow from datasheet rates and
  from the assumed shares below: trust them less than the bytes.
"""
    )
st.markdown("##### Constants that no shape determines")
st.markdown(
    tables.markdown(
        tables.constants_used(), ("constant", "value", "certainty", "source"), parts.plain
    )
)
