"""What PyTorch says of traced presets at sizes not traced: the `checks` of their files."""

from __future__ import annotations

from collections.abc import Iterator

from evidence.planned import memory_of, of_training
from evidence.pytorch import PEAK_TOLERANCE, dispatched_peak
from memcore.evidence.comparison import AUTOGRAD, TRACKER, Comparison
from memcore.models import catalog
from memcore.models.traced.file import BATCH, Check
from memcore.plan.plan import Plan
from memcore.tape.dims import TRACED

ALONE = {"gpus": 1, "gpus_per_node": 8}
PRECISIONS = {"bf16": "bf16-pure", "fp16": "fp16-pure", "fp32": "fp32"}
# A kernel of a GPU may keep other indices than the CPU's, of a few bytes.
TOLERANCE = 0.0001


def plan_of(name: str, check: Check) -> Plan:
    """The plan that PyTorch's totals of a traced preset are about: one GPU, nothing run again."""
    train = {
        "framework": "pytorch", "zero": 0, "checkpointing": "none",
        "precision": PRECISIONS[catalog.traced_file(name).dtype],
        "micro_batch": check.sizes.get(BATCH, 1),
    }  # fmt: skip
    if tokens := check.sizes.get("tokens"):
        train["seq_len"] = tokens
    dims = {dim: n for dim, n in check.sizes.items() if dim not in TRACED}
    return Plan.of({"model": {"preset": name, "dims": dims}, "train": train, "cluster": ALONE})


def compared_traced() -> Iterator[Comparison]:
    """Saved bytes and the peak of each check of each traced preset. The engine has no variant for
    a batch of one, and cuts and caches tables of embeddings, which PyTorch alone does not."""
    for name in catalog.traced_names():
        file = catalog.traced_file(name)
        for check in () if file.tables else file.checks:
            if check.sizes.get(BATCH) != 1:
                yield from _compared(name, check)


def _compared(name: str, check: Check) -> Iterator[Comparison]:
    plan = plan_of(name, check)
    memory = memory_of(plan)
    states = memory.consumers["optimizer_states"]  # of which PyTorch's totals have none
    pairs = (
        (AUTOGRAD, "saved", check.saved_bytes, memory.saved_for_backward_bytes, TOLERANCE),
        (TRACKER, "peak", check.peak_bytes, dispatched_peak(plan) - states, PEAK_TOLERANCE),
    )
    sizes = ", ".join(f"{dim} {n:,}" for dim, n in check.sizes.items())
    for source, what, theirs, ours, tolerance in pairs:
        yield Comparison(
            source, plan.architecture.label, what, theirs, ours, "bytes",
            tolerance=tolerance, gpus=1, family="traced", remark=sizes, **of_training(plan),
        )  # fmt: skip
