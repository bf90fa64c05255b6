"""Method: how a number comes about, in what words, and what is left out."""

import streamlit as st

from app import grid, parts, state, tables

report, plan = state.report(), state.plan()

parts.prose(
    """
##### How a number comes about

**A ledger, not a formula.** Every operation of a model is declared once: the weights it owns, what
it saves for backward, what it needs while it runs, its FLOPs and its traffic. Each tensor is a row,
and every size on every page is a sum of rows, so that it can be taken apart down to one tensor.

**Named dimensions.** A shape is written in names, such as B × S × F/TP, and only then in numbers.
A cut rounds up, since padding occupies memory. Nothing is fitted: bytes are elements times the size
of the dtype.

**Autograd, on names.** Each kind of layer is run once, forward and backward, with PyTorch's own
rules: which operation saves which tensor, in which order backward runs, and when each tensor is
freed. Checkpointing, autocast and kernels change what is run, and the bytes follow.

**Instants.** A peak is a place in the step, not a sum of worst cases. The same rows are added up
for each instant at which the step can be fullest: forward, the loss, backward of the last and the
first layer, the optimizer step. The largest is the peak, and Memory shows them all.

**Intervals.** What shapes determine is one number, *allocated*. What the allocator, CUDA and NCCL
add is not determined by any shape, so *reserved* and *device* are intervals, with their sources on
the Accuracy page. A plan fits when the upper end fits.

**Times.** An operation takes the longer of its arithmetic and its HBM traffic. Products fill whole
tiles and waves of tiles; FlashAttention keeps the scores of a tile in the SRAM of a streaming
multiprocessor, so that quadratic scores never reach HBM, and reads keys and values again only where
more tiles wait than there are multiprocessors; eager attention reads and writes every score. What
ranks send each other is declared by the operation that waits for it, and takes its volume over the
link that its group really has, and a latency; what hides it loses a share of that time. A pipeline
takes its slowest stage for every micro-batch, and the others once: the bubble.

**Streams.** Every iteration of a simulated stream is one forward on the roofline, of the sequences
that run and the parts of prompts that it has room for; iterations between two events are done in
one go. Blocks are handed out and let go of as vLLM does it, by groups of layers; reservations are
those of the systems before it. Arrivals, lengths and a draft's luck come from the plan's seed.
Sequences that run together share that luck: of each alone it is as it would be, but a batch's
varies more.

**Levers.** A lever is one change that somebody would really make, with what must follow it: fewer
sequences at a time and as many more times, the smallest number of GPUs that is enough, a word of a
policy. Its bytes and seconds are the difference of two evaluations. Those that fit come first, of
them those that train the same, and of these the cheapest in GPU time per token; adding GPUs and
changing the training come after.
"""
)

st.markdown("##### The operations of this plan's model")
if report.time:
    operations = tables.one_block(plan)
    parts.table(
        operations,
        key="one_block",
        alt="Operations of one block of each kind, with formula, FLOPs, traffic and saved tensors",
        height=420,
        by={"saves": grid.PLAIN},
        columns=(
            "block",
            "operation",
            "formula",
            "FLOPs, forward",
            "HBM, forward",
            "adds to saved",
            "saves",
            "HBM, backward",
        ),
    )
    parts.small(
        "One block of each kind, one micro-batch, one GPU, before checkpointing. The FLOPs of an "
        "operation's forward are its formula; one without a formula has no matrix product and is "
        "bound by HBM. A tensor that several operations save is added at the first of them. One "
        "without a forward copies a view in backward."
    )
    parts.download("Operations of one block (CSV)", operations, "memplan-method.csv")
else:
    parts.absent("Training")


def by_hand() -> None:
    parts.prose(
        """
Adam in mixed precision keeps 16 bytes per parameter: 2 of bf16 weights, 2 of bf16 gradients, 4 of
fp32 master copy and 8 of fp32 moments. The moments of 7 billion parameters are therefore 56 GB by
themselves, 84 GB with the master copy and 112 GB with weights and gradients. One widely read
article splits 56 GB into "14 parameters + 14 master copy + 28 moments"; **that split is wrong.**
"""
    )
    published = tables.published()
    parts.written(published, "figure", "published", "Memplan", "difference", "source and remark")
    parts.download("Published figures (CSV)", published, "memplan-published.csv", of_plan=False)


def first_fixes() -> None:
    first = tables.first_fixes()
    parts.written(first, "plan", "Memplan's first lever", "what others would do, and why")
    parts.download("First fixes (CSV)", first, "memplan-first-fixes.csv", of_plan=False)


def dimensions() -> None:
    parts.table(
        tables.dimensions(plan),
        key="dimensions",
        alt="Dimensions and axes, with their values in this plan",
        height=320,
        columns=("name", "here", "meaning"),
    )


parts.folded("Figures that can be checked by hand", by_hand)
parts.folded("What to change first: plans that are known to run out of memory", first_fixes)
parts.folded("Names in shapes", dimensions)
parts.folded("Words", lambda: parts.written(tables.terms(), "term", "meaning"))
parts.folded(
    "What is left out, and how much it could matter",
    lambda: parts.written(tables.left_out(), "what", "matters"),
)
