"""Accuracy: Memplan's figures with those of others, and what has not been compared yet."""

import streamlit as st

from app import charts, parts, state, tables
from memcore.evidence.last import last_compared

SOURCES = """
##### What each source is

- **transformers parameter count**: the model as `transformers` 5.23 builds it from its
  `config.json`, without memory for its weights; counted for every preset.
- **PyTorch autograd**: PyTorch 2.13 runs one forward with labels, in bf16, at full width on
  tensors without data. `saved_tensors_hooks` lists every tensor that backward will need;
  parameters and buffers are left out.
- **PyTorch memory tracker**: PyTorch's own `MemTracker` and `FSDPMemTracker` follow a forward and
  backward with AdamW states resident. The optimizer step is not part of it. The ranks of FSDP2
  are those of a simulated process group.
- **measured on GPUs**: what runs of torchtitan, torchtune, litgpt, vLLM and more printed, by
  others. Reserved memory is an interval of ours: a difference of 0 means that their figure lies in
  it, else it is how far the nearer end is off. Out of memory: 0 means that Memplan says so too.
- **published**: figures of papers and datasheets. They are rounded as printed, so that a
  difference within their rounding says nothing.
"""
LIMITS = """
##### What this does not show

- **The reference under autocast is too high.** It runs without a GPU, so its attention is a
  stand-in, and that is not on autocast's list of operations to cast: it keeps fp32 queries and
  keys where a GPU keeps bf16. Memplan's figures are the GPU's and lie up to 3% below. With the
  stand-in put on the list, the reference gives 20,212,974,244 bytes for Llama 2 7B, 4 layers,
  1 × 4,096 tokens, where these rows have 20,749,845,156.
- **Models are cut to few layers** in the rows of autograd and of the tracker (2, 4 or 8), at full
  width. A further layer of the same kind adds the same bytes again. The tracker was also asked
  about models at their full depth, of up to 80 layers.
- **What was measured on GPUs was measured by others**, most of it with Llama, Qwen and GPT shapes.
  Device memory, with CUDA's context and NCCL's buffers, rests on the constants below.
- **Room for KV cache is what is left of a server's budget.** Of what is taken from it, weights,
  rotary tables and the rests of the allocator's blocks follow from shapes. Two parts were measured,
  and are among the constants below: what starting adds outside PyTorch, and the fp32 logits that a
  sampler holds. The activations of a forward are those of the transformers layer, and assumed.
  CUDA graphs are captured outside the budget; late versions of vLLM take an estimate of them
  from it.
- **Times are less certain than bytes.** They follow from datasheet rates and from the shares
  below, which were fitted on the step times marked as tuned. A share is one number for all sizes
  of an architecture; FlashAttention 4, and collectives that are cut into pieces of a product are
  not modelled. What the host takes to start a kernel is that of a common server. Rows of the step
  time say where that shows.
"""
BANDS = 12  # of the chart: the kinds of figures with the largest differences


def sources() -> None:
    """What each source is, and what is not shown by them."""
    left, right = st.columns(2, gap="large")
    left.markdown(SOURCES)
    right.markdown(LIMITS)


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
parts.folded("What each source is, and what this does not show", sources)
parts.folded(
    "Constants that no shape determines",
    lambda: parts.written(tables.constants_used(), "constant", "value", "certainty", "source"),
)
parts.folded("Names in shapes", dimensions)
parts.folded("Words", lambda: parts.written(tables.terms(), "term", "meaning"))
parts.folded(
    "What is left out, and how much it could matter",
    lambda: parts.written(tables.left_out(), "what", "matters"),
)
