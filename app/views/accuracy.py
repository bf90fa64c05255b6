"""Accuracy: Memplan's figures beside those of others, and what has not been compared yet."""

from itertools import cycle

import streamlit as st

from app import charts, parts, tables
from memcore import evidence


def calibrated() -> None:
    """How much nearer a measured step of the same kind comes."""
    parts.prose(
        "Each measured step as it is predicted with constants that were fitted to other sources "
        "alone, and as every other step of its source, framework, kernels, attention, adapter and "
        "GPU scales that, in turn. Half of the errors lie within the first figure, nine in ten "
        "within the second."
    )
    parts.table(
        tables.calibrations(),
        key="calibrations",
        alt="Errors of steps, predicted and calibrated by another step of their kind",
    )


def benched() -> None:
    """How much nearer a measured point of a server comes."""
    parts.prose(
        "Each measured point of a server as it is predicted with its engine, GPU, ranks and model "
        "left out of the fit, and as every other point that differs from it so moves that, in "
        "turn. Half of the errors lie within the first figure, eight in ten within the second. In "
        "brackets it is not done, since it brings them no nearer."
    )
    parts.table(
        tables.benchmarks(),
        key="benchmarks",
        alt="Errors of servers, predicted and calibrated by another point",
    )


def of_others() -> None:
    """Other calculators of step times."""
    parts.prose(
        "The same measured steps, none of which Memplan was tuned on, as other calculators and a "
        "rule of one line (45% of the peak, and the pipeline's bubble) have them, as far as each "
        "can express them. Half of the errors lie within the figure."
    )
    parts.table(
        tables.other_steps(),
        key="other_steps",
        alt="Errors of steps, Memplan's and those of other calculators, by framework",
    )


def of_memory() -> None:
    """Other calculators of memory."""
    st.markdown(tables.spread())
    for worked, place in zip(evidence.worked(), cycle(st.columns(2, gap="medium")), strict=False):
        with place:
            st.markdown(f"**{worked.label}**  \n{worked.detail}")
            parts.chart(
                charts.calculators(worked),
                key=worked.name,
                alt=f"What other calculators say of {worked.label}, {worked.detail}",
            )
    parts.small(
        "One mark per calculator: a disc counts states and activations, a square some overhead as "
        "well, a ring states only. The thin line leads to the blue tick: what Memplan says of the "
        f"same. A plan that a calculator cannot express has no mark of it. {tables.tracker()}."
    )
    calculators = tables.calculators()
    parts.table(
        calculators,
        key="calculators",
        alt="What each calculator says of each plan, beside Memplan and PyTorch's tracker",
        height=320,
        columns=(
            "plan",
            "calculator",
            "says",
            "Memplan",
            "against Memplan",
            "PyTorch's tracker",
            "counts",
            "job",
            "remark",
            "inputs",
            "how",
            "version",
            "source",
        ),
    )
    parts.download("Other calculators (CSV)", calculators, "memplan-calculators.csv", of_plan=False)
    with st.expander("Why each of them differs"):
        parts.written(tables.why_they_differ(), "calculator", "counts", "what makes the difference")


def of_frameworks() -> None:
    """What the frameworks estimate themselves."""
    st.markdown(tables.estimated())
    estimators = tables.estimators()
    parts.table(
        estimators,
        key="estimators",
        alt="What Megatron-LM's and DeepSpeed's estimators say, beside Memplan, and why",
        height=320,
        columns=(
            "plan",
            "estimator",
            "counts",
            "says",
            "Memplan",
            "against Memplan",
            "what makes the difference",
            "pipeline stage",
            "version",
            "source",
        ),
    )
    parts.download(
        "Frameworks' estimators (CSV)", estimators, "memplan-estimators.csv", of_plan=False
    )


def sources() -> None:
    """What each source is, and what is not shown by them."""
    left, right = st.columns(2, gap="large")
    left.markdown(EACH_SOURCE)
    right.markdown(NOT_SHOWN)


def runs() -> None:
    """Measured runs that cannot be compared."""
    parts.written(tables.not_compared(), "what", "runs", "why")


def constants() -> None:
    """Constants that no shape determines."""
    parts.written(tables.constants_used(), "constant", "value", "certainty", "source")


EACH_SOURCE = """
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
  difference within their rounding says nothing. The Method page has each with its source.
"""
NOT_SHOWN = """
##### What this does not show

- **The reference under autocast is too high.** It runs without a GPU, so its attention is a
  stand-in, and that is not on autocast's list of operations to cast: it keeps fp32 queries and
  keys where a GPU keeps bf16. Memplan's figures are the GPU's and lie up to 3% below. With the
  stand-in put on the list, the reference gives 20,212,974,244 bytes for Llama 2 7B, 4 layers,
  1 × 4,096 tokens, where these rows have 20,749,845,156.
- **Models are cut to few layers** in the rows of autograd and of the tracker (2, 4 or 8), at full
  width. A further layer of the same kind adds the same bytes again. The tracker was also asked
  about whole models, of up to 80 layers: those that other calculators are asked about above.
- **What was measured on GPUs was measured by others**, most of it with Llama, Qwen and GPT shapes.
  Device memory, with CUDA's context and NCCL's buffers, rests on the constants below.
- **Room for KV cache is what is left of a server's budget.** Of what is taken from it, weights,
  rotary tables and the rests of the allocator's blocks follow from shapes. Two parts were measured,
  and are among the constants below: what starting adds outside PyTorch, and the fp32 logits that a
  sampler holds. The activations of a forward are those of the transformers layer, and assumed.
  CUDA graphs are captured beside the budget; late versions of vLLM take an estimate of them
  from it.
- **Times are less certain than bytes.** They follow from datasheet rates and from the shares
  below, which were fitted on the step times marked as tuned. A share is one number for all sizes
  of an architecture; FlashAttention 4, and collectives that are cut into pieces of a product are
  not modelled. What the host takes to start a kernel is that of a common server. Rows of the step
  time say where that shows.
"""

LIMIT = (
    "Those of the memory tracker that are clearly left of 0 are peaks under autocast, where the "
    "reference has a limit (below)."
)
FIRST = 12  # bands of the chart that are shown before somebody asks for more

compared = evidence.last_compared()

parts.prose(tables.headline(compared))
parts.table(
    tables.agreement(compared),
    key="agreement",
    alt="How far Memplan is from each source, by kind",
    height=360,
)
parts.small(
    f"{tables.tuning(compared)} Lowest and highest: of Memplan less the reference, as a share of "
    "the reference."
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
    by = st.selectbox(
        "One band per", charts.GROUPS, format_func=charts.GROUPS.__getitem__, key="band"
    )
shown = tables.matching(compared, source, family)
bands = charts.bands(shown, by)
most = FIRST
if bands > FIRST and st.toggle(f"All {bands} bands", key="every_band"):
    most = bands
parts.chart(
    charts.residuals(shown, by, most),
    key="residuals",
    alt="Difference between Memplan and each reference in percent, the worst first",
)
most = min(most, bands)
parts.small(
    f"{'' if most == bands else f'The {most} bands of {bands} with the largest differences. '}"
    "Each mark is one figure, Memplan less the reference; how many a band has is in brackets. A "
    f"double click shows those further out. {LIMIT if most == bands else ''}"
)
rows = tables.accuracy(shown)
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
        "remark",
        "run",
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
parts.download("Accuracy (CSV)", rows, "memplan-accuracy.csv", of_plan=False)

st.markdown("##### More")
for title, content in (
    ("What each source is, and what this does not show", sources),
    ("What other calculators say of memory", of_memory),
    ("What other calculators say of steps", of_others),
    ("What the frameworks' own estimators say", of_frameworks),
    ("Steps that are read beside a measured one", calibrated),
    ("Servers that are read beside a benchmarked one", benched),
    ("Measured runs that no plan can say yet", runs),
    ("Constants that no shape determines", constants),
):
    parts.folded(title, content)
