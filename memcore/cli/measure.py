"""`memplan measure`: real steps of a plan on this machine, beside what the plan says."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcore.cli.link import link_to
from memcore.cli.printing import answer, fail, table
from memcore.cli.reading import given_plan, print_issues, settled
from memcore.errors import Issue, refusal
from memcore.units import bytes_text, relative_text, seconds_text

if TYPE_CHECKING:
    from memcore import Report
    from memcore.plan.plan import Plan
    from memcore.tracing.measure import Steps

# Fields whose other words are not run here, with the words that are, the usual one first.
RUN = {
    "train.framework": ("pytorch",),
    "train.adapter": ("none",),
    "train.frozen": ("none",),
    "train.precision": ("bf16-pure", "bf16-autocast", "fp32"),
    "train.optimizer": ("adamw", "adamw-foreach", "sgd", "sgd-momentum"),
    "train.checkpointing": ("full", "none"),
    "train.attention": ("sdpa", "eager"),
    "train.kernels": ("hf",),
    "train.cross_entropy": ("eager",),
    "train.outputs": ("freed",),
    "train.gradients": ("freed",),
    "train.offload_optimizer": ("none",),
    "train.offload_parameters": ("none",),
    "train.offload_activations": ("none",),
    "train.ema": ("none",),
    "train.embedding_gradient": ("dense",),
    "together.kind": ("none",),
}
ONE = ("cluster.gpus=1", "train.zero=0", "job=train")
CPU_BANDWIDTH = 1e11  # of which nothing that is printed depends
ROOM = 0.9  # of what is free that a plan may need
# The titles of the issue form's answers (.github/ISSUE_TEMPLATE/measured.yml), which this fills.
FORM = (
    "The plan",
    "Which number",
    "What you measured, with its unit",
    "What Memplan says",
    "How it was measured",
    "Versions",
)
Row = tuple[str, float | int | tuple[float, float] | None, float]  # number, planned, measured


def run(args: argparse.Namespace) -> int:
    try:
        from memcore.tracing import measure
    except ImportError:
        return fail("measuring needs PyTorch and transformers: pip install 'memplan[torch]'")
    from memcore.evaluate import evaluate

    device = args.device or measure.device_here()
    asked = given_plan(args)
    free = measure.free_bytes(device)
    plan = fitting(_runnable(asked, device, free), free)
    print_issues(_changed(asked, plan))
    steps = measure.steps_of(_config(plan), plan.train.model_dump(), device, args.steps)
    report = evaluate(plan)
    rows = list(_rows(report, steps))
    link = link_to([plan], args.base)
    if args.out:
        try:
            Path(args.out).write_text(_case(rows, steps, link), encoding="utf-8")
        except OSError as e:
            return fail(f"--out: {(e.strerror or str(e)).lower()}")

    def document() -> dict[str, Any]:
        listed = [{"number": n, "planned": planned, "measured": had} for n, planned, had in rows]
        return {"plan": plan.document(), "device": steps.device, "versions": steps.versions,
                "allocated": steps.allocated, "rows": listed, "link": link}  # fmt: skip

    def text() -> str:
        return "\n".join(_lines(plan, rows, steps, args.out))

    return answer(args, document, text)


def _runnable(plan: Plan, device: str, free: int) -> Plan:
    """The nearest plan of one GPU that is run here; of a CPU as a card of its memory, which needs
    nothing of CUDA's. Raises PlanError where there is none."""
    from memcore.formats import here
    from memcore.plan.plan import get

    if not plan.architecture.has_dim("tokens") or plan.architecture.traced:
        raise refusal("model", "language models of a config.json are measured")
    chosen = [f"{path}={words[0]}" for path, words in RUN.items() if get(plan, path) not in words]
    if device == "cuda":
        gpu = here.settings()[0]["cluster.gpu"]
    else:
        card = {"label": "CPU", "vendor": "generic", "memory_bytes": free}
        gpu = json.dumps({**card, "memory_bandwidth": CPU_BANDWIDTH})
    chosen.append(f"cluster.gpu={gpu}")
    return settled(plan.document(), [*chosen, *ONE])


def fitting(plan: Plan, free: int) -> Plan:
    """The plan with as many layers, and then as many sequences, as fit in so many bytes. Raises
    PlanError where one layer and one sequence do not."""
    from memcore.evaluate import evaluate

    while True:
        memory = evaluate(plan).memory
        if memory is None:
            raise refusal("train", "no training is planned, or it cannot be computed")
        if memory.device_bytes[1] <= ROOM * free:
            return plan
        config, batch = _config(plan), plan.train.micro_batch
        layers = config.get("num_hidden_layers", 1)
        if isinstance(layers, int) and layers > 1 and not plan.architecture.kinds:
            plan = plan.changed("model", {**config, "num_hidden_layers": layers // 2})
        elif batch > 1:
            plan = plan.changed("train.micro_batch", batch // 2)
        else:
            message = f"needs {bytes_text(memory.device_bytes[1])}, and {bytes_text(free)} are free"
            raise refusal(
                "train", f"{message}: set fewer tokens (train.seq_len), or a smaller model"
            )


def _config(plan: Plan) -> dict[str, Any]:
    """The config.json of a plan's model."""
    from memcore.models import catalog
    from memcore.models.standard import standard_config

    model = plan.model
    if isinstance(model, str):
        return dict(catalog.model_entry(model)["config"])
    return standard_config(model["size"]) if set(model) == {"size"} else dict(model)


def _changed(asked: Plan, plan: Plan) -> Iterator[Issue]:
    """What of a plan is run otherwise than it says."""
    from memcore.plan.plan import get, value_text
    from memcore.search.change import differences

    for path, now in differences(asked, plan).items():
        if path == "model":
            layers = plan.architecture.layers
            yield Issue(path, f"{layers} layers of {asked.architecture.layers} are run, which fit")
        elif path == "cluster.gpu":
            labels = plan.accelerator.label, asked.accelerator.label
            yield Issue(path, f"{labels[0]} is run in place of {labels[1]}")
        else:
            was = value_text(path, get(asked, path))
            yield Issue(path, f"{value_text(path, now)} is run in place of {was}")


def _rows(report: Report, steps: Steps) -> Iterator[Row]:
    memory, spent = report.memory, report.time
    assert memory is not None
    yield "memory.allocated_bytes", memory.allocated_bytes, max(steps.allocated.values())
    if steps.device_bytes:
        yield "memory.reserved_bytes", memory.reserved_bytes, steps.reserved_bytes
        yield "memory.device_bytes", memory.device_bytes, steps.device_bytes
    planned: Mapping[str, float] = {}
    interval = None
    if spent and steps.device_bytes:  # a CPU's time is no GPU's
        phases = spent.phases
        backward = phases["recompute"] + phases["backward"]
        planned = {**phases, "backward": backward}
        interval = spent.step_interval
    yield "time.step_seconds", interval, sum(steps.seconds.values())
    yield from ((f"time.phases.{n}", planned.get(n), took) for n, took in steps.seconds.items())


def _text(number: str, value: Any) -> str:
    show = seconds_text if number.startswith("time.") else bytes_text
    if value is None:
        return "-"
    return " to ".join(map(show, value)) if isinstance(value, tuple) else show(value)


def _off(planned: Any, had: float) -> str:
    """How far a plan is from what was measured."""
    if planned is None or not had:
        return ""
    if isinstance(planned, tuple):
        low, high = planned
        return "within" if low <= had <= high else "below" if had < low else "above"
    return relative_text(planned / had - 1)


def _lines(plan: Plan, rows: Sequence[Row], steps: Steps, out: str) -> Iterator[str]:
    cells = [(n, _text(n, planned), _text(n, had), _off(planned, had)) for n, planned, had in rows]
    title = f"{plan.architecture.label}, on {steps.device}"
    yield from table((title, "planned", "measured", "plan"), cells)
    peaks = ", ".join(f"{phase} {bytes_text(n)}" for phase, n in steps.allocated.items())
    yield f"Allocated at most, by phase: {peaks}"
    if not steps.device_bytes:
        yield "A CPU has no caching allocator, and its seconds are no GPU's: bytes alone compare."
    if out:
        yield f"{out} has what an issue 'My run held X, Memplan says Y' asks for."


def _case(rows: Sequence[Row], steps: Steps, link: str) -> str:
    """A measured run as the answers of the issue form."""
    from memcore.version import version

    compared = [row for row in rows if row[1] is not None]
    versions = ", ".join(f"{n} {v}" for n, v in {"Memplan": version(), **steps.versions}.items())
    answers = (
        link,
        "\n".join(n for n, *_ in compared),
        "\n".join(_text(n, had) for n, _, had in compared),
        "\n".join(_text(n, planned) for n, planned, _ in compared),
        "memplan measure, after two steps: PyTorch's own counters on a GPU, its profiler on a CPU.",
        f"{versions}, {steps.device}",
    )
    return "\n".join(f"### {title}\n\n{said}\n" for title, said in zip(FORM, answers, strict=True))
