"""How the numbers of memory come about: parameters, instants, intervals, tiers, single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcore.hardware import constants
from memcore.hardware.accelerator import FP32_PASSES
from memcore.layers.experts import active
from memcore.models.counts import weights
from memcore.plan.field import facts_of
from memcore.plan.plan import Plan
from memcore.quantity.formula import known, total, whichever
from memcore.quantity.glossary import term
from memcore.quantity.interval import INTERVAL
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.reading import Terms
from memcore.quantity.shapes import elements, row, sum_of
from memcore.report import LedgerRow
from memcore.tape.dims import Extents
from memcore.tape.ledger import AUTOGRAD
from memcore.training.memory import HOST_TIERS, PAGES, left_for_host, rows_at
from memcore.training.overheads import streamed
from memcore.training.steps import step_of, steps_of
from memcore.training.training import trained, undivided
from memcore.units import bytes_text

if TYPE_CHECKING:
    from memcore.explain.book import Book

CONSUMERS = {
    "parameters": "Parameters",
    "gradients": "Gradients",
    "optimizer_states": "Optimizer states",
    "activations": "Activations",
    "workspace": "Workspace",
}
TIERS = {"hbm": "GPU memory"} | HOST_TIERS
MEANINGS = {
    "parameters": "Weights as they live through the step.",
    "gradients": "Gradients of weights, until the optimizer step.",
    "optimizer_states": "What the optimizer keeps between steps, master copies included.",
}


@rule("plan.*", "plan.*.*")
def _given(book: Book, *path: str) -> Explanation:
    part: Any = Plan
    value: Any = book.plan.document()
    for name in path:
        info = part.model_fields[name]
        part, value = info.annotation, value[name]
    if isinstance(value, dict):
        raise LookupError
    source = f"the plan: {'.'.join(path)}"
    unit = facts_of(info).unit
    return about(info.title or path[-1], unit, None, info.description or "", [source], value=value)


# name: (what, unit), in the accelerator's data file and in the node's
OF_GPU = {
    "memory_bandwidth": ("bandwidth of GPU memory", "B/s"),
    "usable_bytes": ("usable GPU memory", "bytes"),
    "l1_bytes_per_sm": ("L1 and shared memory of one multiprocessor", "bytes"),
    "sms": ("multiprocessors", ""),
    "l2_bytes": ("L2 cache", "bytes"),
    "peer_bandwidth": ("bandwidth of all links to the peers, one way", "B/s"),
    "peer_payload": ("share of it that the links' protocol leaves", ""),
    "watts": ("power of one board", "W"),
}
OF_NODE = {
    "pcie_bandwidth": ("bandwidth between one GPU and the host, one way", "B/s"),
    "dram_bytes": ("host DRAM of a node", "bytes"),
    "dram_bandwidth": ("bandwidth of host DRAM", "B/s"),
    "nvme_bytes": ("NVMe of a node", "bytes"),
    "nvme_read_bandwidth": ("NVMe read bandwidth", "B/s"),
    "nvme_write_bandwidth": ("NVMe write bandwidth", "B/s"),
    "network_bandwidth": ("network bandwidth of a node, one way", "B/s"),
    "host_slowness": ("time of its CPU to start a kernel, over a common server's", ""),
}


@rule("hardware.*")
def _hardware(book: Book, name: str) -> Explanation:
    """A figure of the accelerator or of its node, with the source that its data file names."""
    gpu, node = book.plan.accelerator, book.plan.node
    owner: Any = gpu if name in OF_GPU else node
    what, unit = (OF_GPU | OF_NODE)[name]
    certainty: str = "datasheet" if owner is gpu else node.certainty
    if name == "usable_bytes":
        certainty = gpu.usable_certainty
    elif name == "host_slowness":
        certainty = "measured" if name in node.sources else "assumed"
    source = owner.sources.get(name) or owner.sources.get("datasheet", "as the plan describes it")
    return about(
        what, unit, None, f"{owner.label}. {owner.note}".strip(), [f"{owner.label}: {source}"],
        certainty, getattr(owner, name),
    )  # fmt: skip


@rule("hardware.peak_flops.*")
def _peak_flops(book: Book, dtype: str) -> Explanation:
    gpu = book.plan.accelerator
    source = gpu.sources.get("flops") or gpu.sources.get("datasheet", "as the plan describes it")
    runs, meaning = gpu.runs_as(dtype), f"{gpu.label}. {gpu.note}".strip()
    if runs == dtype:
        formula, value = None, gpu.peak_flops(dtype)
    else:
        meaning = f"It has no units for {dtype}: products run in {runs}. {meaning}"
        formula = known(f"dense {runs} peak", gpu.flops.get(runs, 0.0), "FLOP/s", source=source)
        if formula.value != gpu.peak_flops(dtype):
            formula = formula / known("bf16 products for one of fp32", FP32_PASSES,
                                      source="XLA's highest precision")  # fmt: skip
        value = formula.value
    return about(
        f"dense {dtype} peak", "FLOP/s", formula, meaning,
        [f"{gpu.label}: {source}"], "datasheet", value,
    )  # fmt: skip


@rule("trainable_parameters")
def _trainable(book: Book) -> Explanation:
    train = book.plan.train
    if train.adapter == "none" and train.frozen == "none":
        return _parameters(book)
    meaning = "The weights of the adapters; the model's own are frozen."
    if train.adapter == "none":
        meaning = "The weights that are not frozen; tied weights count once."
    of = "trainable_parameters"
    return _counted(book, "Trainable parameters", of, len(_trained(book)), meaning)


def _counted(book: Book, what: str, path: str, count: int, meaning: str) -> Explanation:
    """The sum of so many weights below a path, the largest first."""
    found = sorted((book.at(f"{path}.{i}") for i in range(count)), key=lambda f: -f.value)
    return about(what, "parameters", total(found), meaning, [AUTOGRAD])


def _trained(book: Book) -> list[tuple[str, Extents, int]]:
    """Each trained weight's name, its shape, and how many of it there are."""

    def found() -> list[tuple[str, Extents, int]]:
        extents = undivided(book.plan).extents
        return [(p.name, extents(p.shape), n) for p, n in trained(steps_of(book.plan))]

    return book.once("trained", found)


@rule("trainable_parameters.*")
def _trained_weight(book: Book, i: str) -> Explanation:
    return _of_weight(book, *_trained(book)[int(i)])


@rule("parameters")
def _parameters(book: Book) -> Explanation:
    meaning = "Every weight that the operations of the model own; tied weights count once."
    return _counted(book, "Parameters", "parameters", len(_weights(book)), meaning)


@rule("active_parameters")
def _active(book: Book) -> Explanation:
    meaning = "Weights that one token meets: of a layer's experts only those that it is sent to."
    return _counted(book, "Active parameters", "active_parameters", len(_weights(book)), meaning)


def _weights(book: Book) -> list[tuple[str, Extents, Extents, int]]:
    """Each weight's name, its shape, what of it one token meets, and how many of it there are."""

    def found() -> list[tuple[str, Extents, Extents, int]]:
        amounts, tapes = weights(book.plan.architecture)
        every = [(p, n) for tape, n in tapes for p in tape.parameters]
        extents = amounts.extents
        return [(p.name, extents(p.shape), extents(active(p.shape)), n) for p, n in every]

    return book.once("weights", found)


@rule("parameters.*")
def _weight(book: Book, i: str) -> Explanation:
    name, of, _, times = _weights(book)[int(i)]
    return _of_weight(book, name, of, times)


@rule("active_parameters.*")
def _active_weight(book: Book, i: str) -> Explanation:
    name, _, of, times = _weights(book)[int(i)]
    return _of_weight(book, name, of, times)


def _of_weight(book: Book, name: str, of: Extents, times: int) -> Explanation:
    layers = known("layers", times, source=book.plan.architecture.origin)
    one = elements(book, of)
    return about(name, "parameters", layers * one if times > 1 else one, "A weight.")


@rule("memory.ranks.*.allocated_bytes")
def _allocated_on_rank(book: Book, i: str) -> Explanation:
    rank = book.memory.ranks[int(i)]
    if rank.rank == book.stage:
        return _allocated(book)
    return about(
        f"Allocated at the peak of stage {rank.rank}",
        "bytes",
        total([book.at(f"memory.ranks.{i}.consumers.{name}") for name in rank.consumers]),
        f"The fullest instant of that pipeline stage is {rank.instant}; the ledger and the "
        f"timeline are those of stage {book.stage}, which needs the most.",
    )


@rule("memory.allocated_bytes", "memory.tiers.hbm")
def _allocated(book: Book, *_: str) -> Explanation:
    m = book.memory
    peak, others = _peak(book), [i for i in m.timeline if i.id != m.peak.instant]
    next_ = max(others, key=lambda i: i.bytes, default=None)
    then = f" The next fullest is {next_.label} with {bytes_text(next_.bytes)}." if next_ else ""
    return about(
        "Allocated at the peak",
        "bytes",
        total([book.at(f"memory.consumers.{name}") for name in m.consumers]),
        f"What torch.cuda.max_memory_allocated shows: the fullest of {len(m.timeline)} instants of "
        f"the step, {m.timeline[peak].label}.{then}",
    )


def _peak(book: Book) -> int:
    m = book.memory
    return next(i for i, moment in enumerate(m.timeline) if moment.id == m.peak.instant)


@rule("memory.consumers.*")
def _consumer(book: Book, name: str) -> Explanation:
    book.memory.consumers[name]
    formula = sum_of(book, _listed(book, "hbm", name))
    at = book.memory.timeline[_peak(book)].label
    return about(CONSUMERS[name], "bytes", formula, f"{_meaning(name)} At the peak: {at}.")


def _listed(book: Book, tier: str, consumer: str = "") -> list[tuple[str, LedgerRow]]:
    """Rows of the ledger in a tier, all or a consumer's, with their paths."""
    every = enumerate(book.report.ledger)
    return [(f"ledger.{i}", r) for i, r in every if r.tier == tier and consumer in ("", r.consumer)]


def _meaning(name: str) -> str:
    return MEANINGS.get(name) or term(name)


@rule("memory.ranks.*.consumers.*")
def _consumer_on_rank(book: Book, i: str, name: str) -> Explanation:
    rank = book.memory.ranks[int(i)]
    rank.consumers[name]
    if rank.rank == book.stage:
        return _consumer(book, name)
    rows = [
        known(f"{tensor.name} ({tensor.shape})", tensor.bytes, "bytes", source=tensor.source)
        for tensor in _rows_of_stage(book, int(i))
        if tensor.consumer == name
    ]
    what = f"{CONSUMERS.get(name, name)} of stage {rank.rank}"
    return about(what, "bytes", total(rows), _meaning(name))


def _rows_of_stage(book: Book, i: int) -> tuple[LedgerRow, ...]:
    """What is alive at the peak of another pipeline stage than the fullest."""
    rank = book.memory.ranks[i]
    ids = [instant.id for instant in step_of(book.plan, rank.rank).instants]
    at = ids.index(rank.instant)
    return book.once(f"stage {rank.rank}", lambda: rows_at(book.plan, at, rank.rank))


@rule("memory.ranks.*.instant")
def _instant_of_rank(book: Book, i: str) -> Explanation:
    rank = book.memory.ranks[int(i)]
    if rank.rank == book.stage:
        return _peak_instant(book)
    return about(
        f"Instant of the peak of stage {rank.rank}", "", None, term("instant"),
        ["the schedule of that stage"], value=rank.instant,
    )  # fmt: skip


@rule("memory.peak.instant")
def _peak_instant(book: Book, *_: str) -> Explanation:
    every = {
        moment.id: book.at(f"memory.timeline.{i}.bytes", moment.label)
        for i, moment in enumerate(book.memory.timeline)
    }
    return about("Instant of the peak", "", whichever(every), term("instant"))


@rule("memory.peak.rank", "memory.timeline.*.rank")
def _rank(book: Book, *_: str) -> Explanation:
    return _pipeline_rank(book.stage)


@rule("memory.ranks.*.rank")
def _rank_of(book: Book, i: str) -> Explanation:
    return _pipeline_rank(book.memory.ranks[int(i)].rank)


def _pipeline_rank(rank: int) -> Explanation:
    return about(
        "Pipeline rank", "", None, "Which stage of a pipeline; a step without one has rank 0.",
        ["the plan: parallel.pp"], value=rank,
    )  # fmt: skip


@rule("memory.timeline.*", "memory.timeline.*.bytes")
def _moment(book: Book, i: str) -> Explanation:
    moment = book.memory.timeline[int(i)]
    names = [f"memory.timeline.{i}.consumers.{name}" for name in moment.consumers]
    at = f" Fullest at {moment.at}." if moment.at else ""
    return about(
        moment.label, "bytes", total([book.at(n) for n in names]), f"{term('instant')}{at}"
    )


@rule("memory.timeline.*.consumers.*")
def _moments_consumer(book: Book, i: str, name: str) -> Explanation:
    moment = book.memory.timeline[int(i)]
    moment.consumers[name]
    rows = [
        (f"memory.timeline.{i}.rows.{k}", r)
        for k, r in enumerate(book.rows(int(i)))
        if r.consumer == name
    ]
    return about(
        CONSUMERS[name], "bytes", sum_of(book, rows), f"{_meaning(name)} At: {moment.label}."
    )


@rule("memory.saved_for_backward_bytes")
def _saved(book: Book) -> Explanation:
    rows = [(f"memory.saved.{k}", r) for k, r in enumerate(book.saved)]
    return about(
        "Saved for backward", "bytes", sum_of(book, rows), term("saved for backward"), [AUTOGRAD]
    )


@rule("ledger.*", "ledger.*.bytes|bytes_each|count")
def _row(book: Book, i: str, field: str = "bytes") -> Explanation:
    return row(book, book.report.ledger[int(i)], field)


@rule("memory.timeline.*.rows.*")
def _moments_row(book: Book, i: str, k: str) -> Explanation:
    return row(book, book.rows(int(i))[int(k)])


@rule("memory.saved.*")
def _saved_row(book: Book, k: str) -> Explanation:
    return row(book, book.saved[int(k)])


@rule("memory.overheads.*", "memory.overheads.*.low|high")
def _overhead(book: Book, i: str, end: str = "high") -> Explanation:
    o = book.memory.overheads[int(i)]
    name, source = f"{o.name}, {INTERVAL[end == 'high']}", f"{o.name}: {o.source}"
    meaning = "No shape determines it: an interval."
    if o.name == constants.STREAM_POOLS.name:
        formula = streamed(Terms(book), book.amounts, int(end == "high"))
        return about(name, "bytes", formula, meaning, [source], o.certainty)
    if o.name == PAGES:
        meaning = (
            "What the others leave room for, at the same end of theirs; the rest is on the host."
        )
    return about(name, "bytes", None, meaning, [source], o.certainty, getattr(o, end))


@rule("memory.capacity_bytes", "memory.tier_capacities.hbm")
def _capacity(book: Book) -> Explanation:
    gpu = book.explain("hardware.usable_bytes")
    note = f"What a program can allocate of {book.plan.accelerator.memory_bytes:,} bytes as sold."
    return about("Capacity of one GPU", "bytes", None, note, gpu.sources, gpu.certainty, gpu.value)


@rule("memory.tier_capacities.dram|nvme")
def _tier_capacity(book: Book, tier: str) -> Explanation:
    book.memory.tier_capacities[tier]
    if tier == "dram" and book.plan.accelerator.unified_memory:
        meaning = "Memory is unified: the host has what the GPU leaves of it."
        return about("Left for the host", "bytes", left_for_host(Terms(book)), meaning)
    return book.explain(f"hardware.{tier}_bytes")


@rule("memory.tiers.dram|nvme")
def _in_tier(book: Book, tier: str) -> Explanation:
    book.memory.tiers[tier]
    formula = sum_of(book, _listed(book, tier))
    return about(f"Kept in {TIERS[tier]}", "bytes", formula, OF_NODE_KEPT)


OF_NODE_KEPT = "Per node: what every GPU in it keeps there."


@rule("tiers.*.consumers.*")
def _consumer_in_tier(book: Book, tier: str, name: str) -> Explanation:
    """What one consumer keeps in host DRAM or on NVMe; in GPU memory, at the peak."""
    if tier == "hbm":
        return _consumer(book, name)
    rows = _listed(book, tier, name)
    if not rows:
        raise LookupError
    return about(f"{CONSUMERS[name]} in {TIERS[tier]}", "bytes", sum_of(book, rows), OF_NODE_KEPT)


L1, L2, PEERS = "l1", "l2", "peers"
HOLDS = {"hbm": "hbm", "dram": "dram", "nvme": "nvme"}
CROSSES = {"hbm": "hbm", PEERS: "nvlink", "dram": "pcie", "nvme": "nvme", "network": "network"}
CAPACITY = {L2: "l2_bytes", "hbm": "usable_bytes", "dram": "dram_bytes", "nvme": "nvme_bytes"}
BANDWIDTH = {
    "hbm": "memory_bandwidth",
    PEERS: "peer_bandwidth",
    "dram": "pcie_bandwidth",
    "nvme": "nvme_read_bandwidth",
    "network": "network_bandwidth",
}


@rule("tiers.*", "tiers.*.capacity|bandwidth|holds|traffic")
def _tier(book: Book, name: str, field: str = "") -> Explanation:
    """What a tier can hold, how fast it is, what the plan keeps there and what crosses to it."""
    if field == "holds":
        return book.explain(f"memory.tiers.{HOLDS[name]}")
    if field == "traffic":
        return book.explain(f"time.traffic.{CROSSES[name]}")
    if field == "bandwidth" or (not field and name == "network"):
        return book.explain(f"hardware.{BANDWIDTH[name]}")
    if name == L1:
        formula = book.at("hardware.sms") * book.at("hardware.l1_bytes_per_sm")
        return about("L1 and shared memory", "bytes", formula, "Of one GPU, on the chip.")
    if name == PEERS:
        others = known("other GPUs of the fast domain", book.plan.gpus_in_domain - 1,
                       source=book.plan.node.label)  # fmt: skip
        formula = others * book.at("hardware.usable_bytes")
        return about("Memory of the peers", "bytes", formula, "Over the link between them.")
    return book.explain(f"hardware.{CAPACITY[name]}")
