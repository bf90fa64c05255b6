"""Forward: a model that generates nothing, as transformers or PyTorch runs it to be asked: in eval
mode, under torch.no_grad. One forward of a batch on each GPU, without a cache, and nothing that a
backward would read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from memcore.hardware import constants
from memcore.hardware.accelerator import Accelerator
from memcore.models.blocks import Blocks, build, structure_of
from memcore.models.families import FAMILIES
from memcore.models.families.traced import as_forward
from memcore.models.model import Model
from memcore.models.stack import Layers, layers_of
from memcore.models.traced.tables import shape_of
from memcore.plan.plan import Plan
from memcore.quantity.interval import fitting, interval
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.reading import Read, Values, ceil, filled, largest, quantity, total
from memcore.quantity.shapes import row
from memcore.report import Inference, Overhead
from memcore.serving.serve import servable
from memcore.tape.derived import derive
from memcore.tape.dims import Number
from memcore.tape.ledger import INFERENCE, Amounts, Template, shared, window
from memcore.tape.tape import Storage, Tape
from memcore.timing import host
from memcore.timing.roofline import ROOFLINE, Speed, executions, run, seconds
from memcore.training.memory import listed
from memcore.training.overheads import context

# Families whose peaks were held against PyTorch's (tests/reference/inference.json), within 0.2 %.
COMPARED = (
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert"),
    *("nomic_bert", "mpnet", "eurobert", "t5_encoder", "vit", "deit", "dinov2", "dinov3_vit"),
    "traced",
    *("clip_text_model", "clip_vision_model", "siglip_text_model", "siglip_vision_model"),
)
OFF = ("deberta-v2",)  # which were 13 to 37 % below them: names of its modules hold more
MOST = 2**24  # samples of a batch, at most
SDPA, EAGER = "sdpa", "eager"
HELD = (
    "births and deaths of the forward's tensors on a tape; who calls a module holds what it gave, "
    "and the model its embeddings, until they return (modelling files of transformers 5.23.0)"
)


OF_A_TRACE = "the forward of the model file, in eval mode under torch.no_grad"


def _dtype(plan: Plan) -> str:
    """What the weights are, and products run in."""
    traced = plan.architecture.traced
    return traced.dtype if traced else plan.weights.compute


def _held(s: Storage) -> Template:
    return Template(
        s.name, "activations", s.shape, s.dtype, "one forward",
        "held by who calls the model, or by the model itself", HELD,
    )  # fmt: skip


def _overheads(gpu: Accelerator) -> Iterator[Overhead]:
    """What no shape determines: cuBLAS's workspace and the CUDA context."""
    if gpu.vendor == "nvidia":
        c = constants.cublas_workspace(gpu.architecture)
        yield Overhead(c.name, int(c.low), int(c.high), "reserved", c.certainty, c.source)
    c = constants.CUDA_CONTEXT
    yield Overhead(c.name, *context(gpu), "device", c.certainty, c.source)


def infers(model: Model) -> bool:
    """Whether one forward is all that such a model is asked for, and is known."""
    if model.traced:
        return model.traced.forward is not None
    return not (servable(model) or model.tower or model.draft or model.family in OFF)


@dataclass(frozen=True, slots=True)
class Forward:
    """The blocks of a model's forward, and its stack of layers."""

    plan: Plan
    blocks: Blocks
    layers: Layers

    @classmethod
    def of(cls, plan: Plan) -> Forward:
        model = plan.architecture
        traits = replace(
            model.traits, attention_dropout=False, residual_dropout=False,
            embedding_dropout=False, activation_dropout=False, label_dropout=False,
        )  # fmt: skip
        quiet = as_forward(model) if model.traced else replace(model, traits=traits)
        kinds, layers = layers_of(quiet)
        words = FAMILIES[model.family].attentions
        structure = structure_of(
            quiet, dtype=_dtype(plan), infers=True,
            attention=SDPA if SDPA in words else EAGER,
        )  # fmt: skip
        return cls(plan, build(structure, kinds), layers)

    @property
    def tokens(self) -> int:
        """Of a sample that is asked; 0 of a model that reads no tokens."""
        model, asked = self.plan.architecture, self.plan.serve.prompt_len
        return 0 if model.image or not model.has_dim("tokens") else min(asked, model.max_positions)

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """Every kind of block."""
        return self.blocks.embed, *self.blocks.layers, self.blocks.head

    def amounts(self, batch: int) -> Amounts:
        """Amounts of a forward of so many samples."""
        image = self.plan.architecture.image
        sizes: dict[str, Any] = {**self.plan.sizes(), "B": batch, "TP": 1, "CP": 1, "PP": 1}
        sizes["S"] = image.tokens if image else self.tokens or 1
        derive(sizes)
        return Amounts(sizes)

    def weights(self, amounts: Amounts) -> int:
        """Bytes of the weights and of what modules keep besides."""
        found: Number = 0
        for tape, times in self.blocks.counted(self.layers.counts):
            own = (*tape.parameters, *tape.buffers)
            found += times * sum(amounts.bytes(s.shape, s.dtype) for s in own)
        return int(found)

    def alive(self, amounts: Amounts) -> tuple[int, list[tuple[Template, int, int]], str]:
        """The most bytes that are alive at once besides the weights, their rows, and what was made
        last then."""
        if self.blocks.structure.traced:
            return self._alive_of_a_trace(amounts)
        batch, embedded, tables = self._around
        best: tuple[int, list[tuple[Template, int, int]], str] = 0, [], ""
        for tape in self.tapes:
            at = window(tape, INFERENCE)
            inside, step = at.peak(amounts)
            beside = [] if tape is self.blocks.embed else [*batch, *tables]
            beside += embedded if tape in self.blocks.layers else []
            n = int(inside + sum(amounts.bytes(r.shape, r.dtype) for r in beside))
            if n > best[0]:
                rows = [*beside, *(at.rows[k] for k in at.alive[step])]
                sized = [(r, 1, int(amounts.bytes(r.shape, r.dtype))) for r in rows]
                best = n, sized, at.names[step].removesuffix(" (forward)")
        return best

    def _alive_of_a_trace(
        self, amounts: Amounts
    ) -> tuple[int, list[tuple[Template, int, int]], str]:
        """The same of a trace, which says when each tensor is made and gone."""
        (variant,) = self.blocks.structure.traced.variants
        model, batch = self.plan.architecture, amounts.sizes["B"]
        sizes = {**dict(model.traced_sizes), "batch": batch, "tokens": amounts.sizes["S"]}
        most, at = variant.peak(sizes)
        rows: list[tuple[Template, int, int]] = []
        last = ""
        for _, s, birth, death in variant.spans():
            if birth <= at and (death is None or at < death):
                name = f"{s.module} {s.made_by}".strip(" .")
                last = name if birth == at else last
                row = Template(name, "activations", shape_of(s.shape), s.dtype, "one forward",
                               "births and deaths in the trace", OF_A_TRACE)  # fmt: skip
                rows.append((row, 1, int(s.bytes.value(sizes))))
        return most, rows, last

    @property
    def _around(self) -> tuple[list[Template], list[Template], list[Template]]:
        """What stays while other blocks run: the batch; while layers do, what was embedded; and
        what all of them read."""
        embed = self.blocks.embed
        inputs = [s for s in embed.storages if s.kind == "input"]
        given = [*inputs, *(s for s in embed.named if s not in inputs)]
        made = [embed.handed_on] if embed.handed_on and self.layers.count > 1 else []
        tables = [row for group in shared(self.tapes, False) for row in group.rows]
        return [*map(_held, given)], [*map(_held, made)], tables

    def seconds(self, amounts: Amounts) -> tuple[float, float, float, str]:
        """Of the GPU and of the host, with the FLOPs and which of the GPU's bounds it."""
        ends = (self.blocks.embed, self.blocks.head)
        every = [
            e
            for tapes, counts in ((ends, (1, 1)), (self.blocks.layers, self.layers.counts))
            for e in executions(tapes, counts)
            if e.work.phase == "forward"
        ]
        speed = Speed.of(
            self.plan.accelerator, _dtype(self.plan), constants.LAUNCH.middle, "hf",
            self.blocks.structure.attention,
        )  # fmt: skip
        operations = run(every, amounts, speed)
        started = sum(e.work.started * e.runs for e in every)
        by: dict[str, float] = {}
        for o in operations:
            by[o.bound_by] = by.get(o.bound_by, 0.0) + float(o.seconds)
        each = float(host.each_of(constants.HOST_LAUNCH, self.plan))
        flops = float(sum(o.flops for o in operations))
        return seconds(operations), started * each, flops, max(by, key=lambda word: by[word])

    def values(self, batch: int, timed: bool = True) -> Values:
        """The quantities of a forward of so many samples on each GPU; `timed`: with its times."""
        amounts = self.amounts(batch)
        activations, rows, at = self.alive(amounts)
        gpu, started, flops, bound_by = self.seconds(amounts) if timed else (0.0, 0.0, 0.0, "")
        given = SimpleNamespace(
            batch=batch,
            tokens=self.tokens,
            weights_bytes=self.weights(amounts),
            activation_bytes=activations,
            overheads=tuple(_overheads(self.plan.accelerator)),
            capacity_bytes=self.plan.accelerator.usable_bytes,
            peak_at=at,
            gpu_seconds=gpu,
            host_seconds=started,
            flops=flops,
            bound_by=bound_by if gpu >= started else "host",
            rows=listed(rows, amounts),
        )
        return Values(plan=self.plan, inference=given)

    def fits(self, batch: int) -> bool:
        """Whether so many samples are sure to fit."""
        return bool(self.values(batch, timed=False).inference.fits)

    @property
    def most(self) -> int:
        """Samples of the largest batch that is sure to fit."""
        low, high = 0, 1
        while high <= MOST and self.fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low


def inference(plan: Plan) -> Inference:
    """Memory and speed of a forward of the plan's batch (serve.concurrency), on each GPU."""
    forward = Forward.of(plan)
    x = forward.values(plan.serve.concurrency).inference
    x.__dict__["max_batch"] = forward.most
    return filled(Inference, x)


def forward_notes(plan: Plan, forward: Inference) -> Iterator[str]:
    """What a reader should know of the forward that is planned in place of a server."""
    by = "PyTorch" if plan.architecture.traced else "transformers"
    yield (
        f"{plan.architecture.label} generates nothing: in place of a server one forward of "
        f"{forward.batch:,} samples at once is planned (serve.concurrency), on each GPU, by "
        f"{by} in eval mode under torch.no_grad, without a cache."
    )
    if plan.architecture.family not in COMPARED:
        yield (
            f"The peak of {plan.architecture.family} in such a forward was not held against "
            "PyTorch's: what its modules hold by name may make it some percent more."
        )
    if 0 < forward.tokens < plan.serve.prompt_len:
        yield (
            f"Samples are planned with {forward.tokens:,} tokens, as many as the model takes, and "
            f"not {plan.serve.prompt_len:,} (serve.prompt_len)."
        )
    if _dtype(plan) != plan.weight_dtype:
        yield (
            f"Weights of {plan.architecture.label} are planned in {_dtype(plan)}: "
            f"{plan.weights.label} (serve.weight_dtype) is of engines that generate."
        )


PER_GPU = "On each GPU, which has all of the model."
HOW = ("PyTorch in eager mode, with transformers' modules where it has them",)


@rule("inference.weights_bytes")
def _weights(book: Any) -> Explanation:
    meaning = "Parameters, and what modules keep besides (buffers), in the dtype of the weights."
    n = book.report.inference.weights_bytes
    return about("Weights", "bytes", None, meaning, ["the model's own shapes"], "exact", n)


@rule("inference.overheads.*.low|high")
def _overhead(book: Any, i: str, end: str) -> Explanation:
    o = book.inference.overheads[int(i)]
    meaning = "No shape determines it: an interval."
    return about(o.name, "bytes", None, meaning, [o.source], o.certainty, getattr(o, end))


@rule("inference.rows.*", "inference.rows.*.bytes|bytes_each|count")
def _row(book: Any, i: str, field: str = "bytes") -> Explanation:
    return row(book, book.inference.rows[int(i)], field, serving=True)


@rule("inference.activation_bytes")
def _activations(book: Any) -> Explanation:
    found = book.report.inference
    meaning = f"The most that is alive at once besides the weights, at {found.peak_at}: the rows."
    n = found.activation_bytes
    return about("Activations", "bytes", None, meaning, [HELD], "exact", n)


@rule("inference.gpu_seconds|host_seconds|flops|max_batch|capacity_bytes|batch|tokens")
def _given(book: Any, name: str) -> Explanation:
    what, unit, meaning, source, certainty = {
        "gpu_seconds": ("Kernels", "seconds", "Of one forward.", ROOFLINE, "assumed"),
        "host_seconds": ("Kernels started by the host", "seconds", "Of one forward.",
                         constants.HOST_LAUNCH.source, "measured"),
        "flops": ("FLOPs of a forward", "FLOP", PER_GPU, "the model's own shapes", "exact"),
        "max_batch": ("Largest batch", "", "Of which the high end of device memory fits.",
                      "asked of one batch after another", "assumed"),
        "capacity_bytes": ("Memory of the GPU", "bytes", "", "datasheet", "datasheet"),
        "batch": ("Batch", "", "Samples of one forward.", "the plan: serve.concurrency", "exact"),
        "tokens": ("Tokens of a sample", "tokens", "As many as the model takes, at most.",
                   "the plan: serve.prompt_len", "exact"),
    }[name]  # fmt: skip
    n = getattr(book.report.inference, name)
    return about(what, unit, None, meaning, [source], certainty, n)


@quantity(
    "inference.allocated_bytes", "Allocated, peak", "bytes", "Of a forward under torch.no_grad."
)
def allocated_bytes(x: Any) -> Read:
    return x.inference.weights_bytes + x.inference.activation_bytes


@interval(
    "inference.device_bytes", "Device memory", "bytes",
    "With the allocator's slack, cuBLAS's workspace and the CUDA context.",
)  # fmt: skip
def device_bytes(x: Any, end: int) -> Read:
    found = ceil(x.inference.allocated_bytes * x.constant(constants.ALLOCATOR_SLACK, end))
    of = x.inference.overheads
    return total([found, *((o.low, o.high)[end] for o in of)])


@quantity("inference.fits", "Verdict", "", "Whether device memory is no more than the GPU has.")
def fits(x: Any) -> Read:
    return fitting(x.inference.device_bytes, x.inference.capacity_bytes)[0]


@quantity("inference.verdict", "Verdict", "", "Whether device memory is no more than the GPU has.")
def verdict(x: Any) -> Read:
    return fitting(x.inference.device_bytes, x.inference.capacity_bytes)[1]


@quantity(
    "inference.latency_seconds", "Latency", "seconds",
    "Of one batch: kernels, or the host that starts them, whichever takes longer.", HOW, "assumed",
)  # fmt: skip
def latency_seconds(x: Any) -> Read:
    return largest(x.inference.gpu_seconds, x.inference.host_seconds)


@quantity(
    "inference.samples_per_second", "Throughput", "samples/s", "Of all GPUs, each with a batch.",
    HOW, "assumed",
)  # fmt: skip
def samples_per_second(x: Any) -> Read:
    return x.inference.batch * x.plan.cluster.gpus / x.inference.latency_seconds


@quantity(
    "inference.tokens_per_second", "Throughput", "tokens/s", "Of all GPUs, each with a batch.",
    HOW, "assumed",
)  # fmt: skip
def tokens_per_second(x: Any) -> Read:
    if not x.inference.tokens:
        return None
    return x.inference.samples_per_second * x.inference.tokens
