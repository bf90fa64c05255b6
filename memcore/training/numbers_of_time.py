"""How the numbers of a step's time come about: operations, transfers, resources, rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memcore.hardware import constants
from memcore.quantity.formula import (
    Formula,
    at_least_zero,
    constant,
    decided,
    known,
    largest,
    total,
    whichever,
)
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.reading import Read, Terms
from memcore.quantity.shapes import count, row, shape, sum_of, width
from memcore.report import LedgerRow, OperationTime
from memcore.step.pipeline import idle_chunks
from memcore.tape.dims import SWAPPED
from memcore.tape.ledger import Amounts
from memcore.timing import host
from memcore.timing.communication import (
    NOTHING,
    PIECES_MEANWHILE,
    Beside,
    Move,
    copied,
    group,
    links,
    taken,
    waited,
)
from memcore.timing.pieces import PIECES, STATES, moved
from memcore.timing.roofline import (
    DECLARED,
    PHASES,
    ROOFLINE,
    Execution,
    Speed,
    Work,
    product_flops,
    read_again,
)
from memcore.training.convention import PALM, convention_flops, parts
from memcore.training.executions import (
    peak_dtype,
    speed_of,
    step_executions,
    update,
    updated_dtype,
    whole_graph,
)
from memcore.training.memory import rows_of
from memcore.training.offload import HOST_STEP, of_optimizer, pieces
from memcore.training.transfers import moves, outgrown

if TYPE_CHECKING:
    from memcore.explain.book import Book

TOUCHED = "the tensors that the operation reads and writes"
LABELS = {
    "compute": "Compute",
    "hbm": "HBM",
    "nvlink": "GPU links",  # NVLink, Infinity Fabric, ICI, or PCIe where a node has no other
    "network": "Network",
    "pcie": "PCIe",
    "dram": "Host DRAM",
    "nvme": "NVMe",
    "host": "Host",
}
WAITING = {
    "host": ("host",),
    "communication": ("nvlink", "network"),
    "offload": ("pcie", "dram", "nvme"),
}


def flops(book: Book, work: Work, runs: int, amounts: Amounts) -> Formula:
    """FLOPs of an operation, all its runs together."""
    products = [n * shape(book, s, amounts) for n, s in work.flops]
    if not products:
        return known("no matrix product", 0, "FLOP", source=DECLARED)
    times = known("runs", runs, note="layers of this kind x micro-batches", source="the plan")
    return times * total(products) if runs > 1 else total(products)


def timed_speed(book: Book) -> Speed:
    return book.once("speed", lambda: speed_of(book.plan, book.timed))


def rates(book: Book) -> Speed:
    """The same as terms."""
    return book.once("rates", lambda: speed_of(book.plan, book.timed, Terms(book)))


def traffic(work: Work, runs: int, amounts: Amounts, again: float = 0.0) -> Formula:
    """HBM traffic of an operation, all its runs together. `again`: bytes that attention reads more
    than once."""
    tensors = [
        known(
            f"{n} x {amounts.extents(s)} {dtype}" if n > 1 else f"{amounts.extents(s)} {dtype}",
            int(n * amounts.bytes(s, dtype)),
            "bytes",
            source=TOUCHED,
        )
        for s, dtype, n in work.traffic
    ]
    if again and work.attention:
        note = "beyond what tiles that run side by side find in the L2 cache"
        tensors.append(
            known("keys and values, read again", again, "bytes", source=FLASH, note=note)
        )
    times = known("runs", runs, note="layers of this kind x micro-batches", source="the plan")
    return times * total(tensors) if runs > 1 else total(tensors)


# FLOPs, traffic, whose rate they are done at, and the share of the GPU that its products fill.
Pieces = Callable[[], tuple[Formula, Formula, str, float]]
FLASH = "FlashAttention's tiles, from the SRAM of a streaming multiprocessor: roofline.flash_tile"
TILES = (
    "tiles of a result and waves of them are whole: roofline.TILES; a head's products take longer "
    "where the vocabulary is no multiple of 8: constants.MISALIGNED"
)


def operation(book: Book, o: OperationTime, base: str, field: str, pieces: Pieces) -> Explanation:
    """One number of an operation at `base`."""
    phase = o.phase if o.phase == host.OPTIMIZER else f"{o.name}, {o.phase}"
    if field in ("flops", "hbm_bytes"):
        work, moved, *_ = pieces()
        if field == "flops":
            return about(f"FLOPs of {phase}", "FLOP", work, "Per step, on one GPU.", [DECLARED])
        return about(f"HBM traffic of {phase}", "bytes", moved, "Per step, on one GPU.", [TOUCHED])
    if field == "compute_seconds":
        _, _, kernel, share = pieces()
        formula = book.at(f"{base}.flops", "FLOPs") / rates(book).of_kernel(kernel)
        if share != 1:
            formula = formula / known("share of the GPU that is filled", share, source=TILES)
        return about(f"Arithmetic of {phase}", "seconds", formula, "If only compute limited it.")
    if field == "hbm_seconds":
        rate = book.at("hardware.memory_bandwidth") * constant(constants.HBM_EFFICIENCY)
        formula = book.at(f"{base}.hbm_bytes", "HBM traffic") / rate
        return about(f"HBM traffic of {phase}", "seconds", formula, "If only HBM limited it.")
    if field in PLACE:
        return place(book, phase, base, field)
    longer = largest(*sides(book, base).values())
    if base.startswith("time."):
        runs = known("runs", o.runs, note="of layers x micro-batches", source="the plan")
        longer = longer + runs * constant(constants.LAUNCH)
    return about(phase, "seconds", longer, "Per step, on one GPU.", [ROOFLINE])


PLACE = ("intensity", "rate", "bound_by")


def place(book: Book, name: str, base: str, field: str) -> Explanation:
    """Where an operation at `base`, of training or serving, lies on the roofline."""
    if field == "bound_by":
        return about(f"What bounds {name}", "", whichever(sides(book, base)), "", [ROOFLINE])
    work = book.at(f"{base}.flops", "FLOPs")
    if field == "rate":
        formula = work / book.at(f"{base}.seconds", "seconds")
        return about(f"Rate of {name}", "FLOP/s", formula, "What it achieves.")
    formula = work / book.at(f"{base}.hbm_bytes", "HBM traffic")
    return about(f"Intensity of {name}", "FLOP per byte", formula, "Its place on the roofline.")


def sides(book: Book, base: str) -> dict[str, Formula]:
    """The times of an operation, of which the longer bounds it."""
    return {
        "compute": book.at(f"{base}.compute_seconds", "compute"),
        "hbm": book.at(f"{base}.hbm_seconds", "HBM traffic"),
    }


FIELDS = "seconds|flops|hbm_bytes|compute_seconds|hbm_seconds|bound_by|intensity|rate"


@rule("time.operations.*", f"time.operations.*.{FIELDS}")
def _operation(book: Book, i: str, field: str = "seconds") -> Explanation:
    o = book.time.operations[int(i)]

    def pieces() -> tuple[Formula, Formula, str, float]:
        every = _executions(book)
        if int(i) == len(every):
            return (*_optimizer(book), book.timed.optimizer.kernel, 1.0)
        return of_execution(book, every[int(i)], book.amounts)

    return operation(book, o, f"time.operations.{i}", field, pieces)


@rule("time.operations.*.runs")
def _runs(book: Book, i: str) -> Explanation:
    o = book.time.operations[int(i)]
    formula = known("runs", o.runs, note="of layers x micro-batches", source="the plan")
    return about(f"{o.name}, {o.phase}: how often", "", formula, "In one step.")


def of_execution(book: Book, e: Execution, amounts: Amounts) -> tuple[Formula, Formula, str, float]:
    """What the time of an operation is made of."""
    speed = timed_speed(book)
    work, padded = product_flops(e.work, amounts, speed.sms, speed)
    return (
        flops(book, e.work, e.runs, amounts),
        traffic(e.work, e.runs, amounts, read_again(e.work, amounts, speed)),
        e.work.kernel,
        work / padded if padded else 1.0,
    )


def _executions(book: Book) -> list[Execution]:
    """What each operation of the step is an execution of."""
    batches = book.plan.train.grad_accumulation
    return book.once("executions", lambda: step_executions(book.timed, batches))


def _optimizer(book: Book) -> tuple[Formula, Formula]:
    """FLOPs and traffic of the optimizer step."""
    weights, states = book.at("time.updated.parameters"), book.at("time.updated.bytes")
    buffer = book.at("time.states.gradients") if book.timed.accumulated else 0.0
    return update(book.timed, weights, states, buffer, Terms(book))


@rule("time.updated.parameters")
def _updated_parameters(book: Book) -> Explanation:
    dtype = updated_dtype(book.timed)
    formula = book.at("time.states.updated") / width(dtype)
    return about("Parameters that a GPU updates", "parameters", formula, "Padding included.")


@rule("time.updated.bytes")
def _updated_bytes(book: Book) -> Explanation:
    formula = book.at("time.states.updated") + book.at("time.states.optimizer")
    return about("Weights and states that a GPU updates", "bytes", formula)


def _state_rows(book: Book, name: str) -> Sequence[LedgerRow]:
    _, alive = STATES[name]
    return book.once(f"states {name}", lambda: rows_of(alive(book.timed), book.amounts))


@rule("time.states.*")
def _states(book: Book, name: str) -> Explanation:
    rows = [(f"time.states.{name}.{k}", r) for k, r in enumerate(_state_rows(book, name))]
    return about(STATES[name][0], "bytes", sum_of(book, rows))


@rule("time.states.*.*")
def _state(book: Book, name: str, k: str) -> Explanation:
    return row(book, _state_rows(book, name)[int(k)])


def _moves(book: Book) -> list[tuple[Move, str]]:
    """The move and the link of each transfer."""

    def every() -> list[tuple[Move, str]]:
        found = moves(book.plan, book.timed, book.amounts, list(book.time.operations))
        return [(move, link) for move in found for link in move.seconds]

    return book.once("moves", every)


@rule("time.moved.*")
def _moved(book: Book, name: str) -> Explanation:
    """What one transfer moves; spaces in its name are dashes in the path."""
    name = name.replace("-", " ")
    gpus = known("GPUs in a node", book.plan.gpus_in_node, source="the plan")
    if name in PIECES:
        (formula,) = moved(_beside(book), book.amounts, name).values()
    elif name in (there := pieces(book.plan, book.timed)):
        rows = [(r, times * r.copies) for group, times in there[name] for r in group.rows]
        formula = total([
            width(r.dtype) * shape(book, r.shape, book.amounts) * count(int(times))
            for r, times in rows
            if times
        ])  # fmt: skip
    elif name == "weights on NVMe":
        half = width(book.timed.copies.compute) * shape(book, (SWAPPED,), book.amounts)
        formula = half * gpus
    else:
        weights, states = book.at("time.updated.parameters"), book.at("time.states.optimizer")
        formula = of_optimizer(name, book.timed, weights, gpus, states, Terms(book))
    return about(name.capitalize(), "bytes", formula, "Each time it is moved.")


def _beside(book: Book) -> Beside:
    return Beside(book.plan, book.timed, book.time.operations, Terms(book))


TRANSFERRED = "bytes|seconds|exposed_seconds|hides_at_bandwidth|hides_at_micro_batch"


@rule("time.transfers.*", f"time.transfers.*.{TRANSFERRED}|each_seconds|cover|drawn")
def _transfer(book: Book, i: str, field: str = "seconds") -> Explanation:
    move, link = _moves(book)[int(i)]
    base = f"time.transfers.{i}"
    what = f"{move.name[0].upper()}{move.name[1:]}, over {LABELS[link]}"
    times = known("times in a step", int(move.times), note="layers and micro-batches",
                  source="the schedule of the framework")  # fmt: skip
    pieces = _pieces(book, move)
    if field == "bytes":
        return about(what, "bytes", times * total(pieces), "Bytes in one step.")
    x = Terms(book)
    if field == "each_seconds":
        if move.axis:
            formula = links(book.plan, move.axis, x).of_pieces(move.kind, pieces)[link]
        else:
            formula = copied(book.plan, link, pieces, move.ways, x)
        return about(f"{what}, each", "seconds", formula, "One of them.")
    if field == "cover":
        formula = _cover(book, move)
        return about(f"Hidden behind: {move.hidden_by}", "seconds", formula, "", value=0.0)
    if field == "drawn":
        if not move.drawn:
            raise LookupError
        formula = links(book.plan, move.axis, x).drawn(move.kind, total(pieces))
        return about(f"{what}: of the GPU's own memory", "seconds", formula, "Each time.")
    if field == "seconds":
        formula = times * book.at(f"{base}.each_seconds", "seconds each")
        return about(what, "seconds", formula, "Busy seconds in one step.")
    cover = book.at(f"{base}.cover", str(move.hidden_by))
    if field == "hides_at_bandwidth":
        if move.cover <= 0:
            raise LookupError
        formula = total(pieces) / cover
        meaning = "At this many bytes a second nothing of it would be waited for."
        return about(f"{what}: where it hides", "B/s", formula, meaning)
    if field == "hides_at_micro_batch":
        if not outgrown(move):
            raise LookupError
        each = book.at(f"{base}.each_seconds", "seconds each")
        formula = book.at("plan.train.micro_batch") * each / cover
        meaning = (
            "From this micro-batch on nothing of it would be waited for, if a sequence takes as "
            "long as now: what hides it grows with the batch, what is moved does not."
        )
        return about(f"{what}: the micro-batch that hides it", "sequences", formula, meaning)
    if link != move.slowest:
        formula = known("another link is slower", 0.0, "seconds", source="links work side by side")
    elif not move.cover:
        formula = times * book.at(f"{base}.each_seconds", "seconds each")
    else:
        each = book.at(f"{base}.each_seconds", "seconds each")
        formula = times * waited(each, cover, _lost(book, move, base, each))
    return about(f"{what}, exposed", "seconds", formula, "What the step waits for.")


def _lost(book: Book, move: Move, base: str, each: Formula) -> Formula:
    """What hides a transfer loses by it: multiprocessors and memory bandwidth."""
    found = [taken(book.plan.accelerator, Terms(book))] if move.taken else []
    if move.drawn:
        found.append(book.at(f"{base}.drawn", "of its own memory") / each)
    if not found:
        return known("a copy takes nothing of them", 0.0, "", source="a copy engine does it")
    return total(found)


def _pieces(book: Book, move: Move) -> list[Formula]:
    """Bytes of what a transfer moves each time."""
    if not move.shapes:
        return [book.at(f"time.moved.{name.replace(' ', '-')}", name) for name in move.pieces]
    return [width(dtype) * shape(book, of, book.amounts) for of, dtype in move.shapes]


def _cover(book: Book, move: Move) -> Read:
    """Seconds of one transfer that something else hides."""
    hidden_by = move.hidden_by
    if move.behind:
        flops = total([n * shape(book, of, book.amounts) for n, of in move.behind])
        product = flops / rates(book).of_kernel(move.kernel)
        if hidden_by == PIECES_MEANWHILE:
            ranks, _ = group(book.plan, move.axis)
            product = product * known("of its pieces, all but the first", (ranks - 1) / ranks,
                                      source="the plan: parallel.tp")  # fmt: skip
        return product
    if hidden_by == HOST_STEP:
        i = next(i for i, (_, link) in enumerate(_moves(book)) if link == "dram")
        return book.at(f"time.transfers.{i}.each_seconds")
    if not hidden_by.seconds:
        return known(str(NOTHING), 0.0, "seconds", source=str(hidden_by))
    cover = hidden_by.seconds(_beside(book))
    if move.among:
        own, *others = (book.at(f"time.moved.{n.replace(' ', '-')}", n) for n in move.among)
        cover = cover * (own / sum(others, start=own))
    return cover


@rule("time.layers.forward|backward")
def _in_layers(book: Book, way: str) -> Explanation:
    phases = ("forward",) if way == "forward" else ("backward", "recompute")
    found = _operations(book, "seconds", lambda o: o.phase in phases and o.of_layers)
    return about(f"{way.capitalize()} of all layers", "seconds", _ordered(found))


def _operations(
    book: Book, field: str, holds: Callable[[OperationTime], bool] = lambda o: True
) -> list[Formula]:
    """One number of each operation of which something holds."""
    every = enumerate(book.time.operations)
    return [book.at(f"time.operations.{i}.{field}") for i, o in every if holds(o)]


def _transfers(book: Book, field: str, link: str) -> list[Formula]:
    """One number of each transfer over a link."""
    every = enumerate(book.time.transfers)
    return [book.at(f"time.transfers.{i}.{field}") for i, t in every if t.link == link]


def _ordered(of: list[Formula]) -> Formula:
    return total(sorted(of, key=lambda f: -f.value))


@rule("time.step_seconds")
def _step(book: Book) -> Explanation:
    used = [n for n, s in book.time.exposed.items() if s]
    found = [book.at(f"time.exposed.{name}") for name in used]
    if book.time.bubble_seconds:
        found.append(book.at("time.bubble_seconds"))
    meaning = "One optimizer step of all its micro-batches: what each resource is waited for."
    return about("Step time", "seconds", total(found), meaning)


@rule("time.stage")
def _stage(book: Book) -> Explanation:
    steps = [book.at(f"time.stages.{k}.step") for k in range(len(book.time.stages))]
    formula = decided(book.time.stage, "the stage whose step takes longest", *steps)
    return about("Slowest pipeline stage", "", formula, "The one that a step waits for.")


@rule("time.stages.*.step")
def _stage_step(book: Book, k: str) -> Explanation:
    stage = book.time.stages[int(k)]
    meaning = "Its micro-batches, its waits for the other stages, its gradients and its optimizer."
    if int(k) == book.time.stage:
        formula = book.at("time.step_seconds")
    else:
        formula = known("step", stage.step, "seconds", certainty="measured",
                        source="computed as that of the slowest stage is")  # fmt: skip
    return about(f"Whole step, stage {k}", "seconds", formula, meaning)


@rule("time.stages.*.rank")
def _rank(book: Book, k: str) -> Explanation:
    return about("Pipeline rank", "", known("rank", int(k), source="the plan: parallel.pp"))


@rule("time.stages.*.forward|recompute|backward|communication|host")
def _stage_part(book: Book, k: str, part: str) -> Explanation:
    value = getattr(book.time.stages[int(k)], part)
    source = "the operations of this stage, as those of the slowest are listed"
    if part == "communication":
        source = "what this stage sends for one micro-batch, beyond what hides it"
    if part == "host":
        source = "what its host takes for one micro-batch, beyond what its GPU takes"
    formula = known(f"{part} of one micro-batch", value, "seconds", source=source,
                    certainty="measured")  # fmt: skip
    return about(f"{part.capitalize()}, stage {k}", "seconds", formula)


@rule("time.stages.*.seconds|bubble")
def _stage_seconds(book: Book, k: str, field: str) -> Explanation:
    parts = ("forward", "recompute", "backward", "communication", "host")
    whole = total([book.at(f"time.stages.{k}.{part}") for part in parts])
    if field == "seconds":
        return about(f"One micro-batch, stage {k}", "seconds", whole)
    stage = book.time.stages[int(k)]
    one = book.at(f"time.stages.{k}.seconds")
    if stage.bubble != stage.seconds:
        one = one - known(
            "weights' gradients, moved into the bubble, twice", stage.seconds - stage.bubble,
            "seconds", source="ZB-H1: (p - 1) (F + B - W), Qi et al. 2023", certainty="measured",
        )  # fmt: skip
    meaning = "What every other stage waits for, when a step begins and ends."
    return about(f"Bubble that stage {k} makes", "seconds", one, meaning)


@rule("time.bubble_seconds", "time.phases.bubble")
def _bubble(book: Book) -> Explanation:
    others = [k for k in range(len(book.time.stages)) if k != book.time.stage]
    meaning = "The slowest stage waits: before its first micro-batch and after its last."
    if not others:
        return about("Pipeline bubble", "seconds", known("one stage", 0.0, "seconds",
                     source="the plan: parallel.pp"), meaning)  # fmt: skip
    formula = total([book.at(f"time.stages.{k}.bubble") for k in others])
    if book.plan.parallel.virtual_stages > 1:
        formula = formula * known("chunks that it waits for", idle_chunks(book.plan), source=(
            "interleaved 1F1B, Narayanan et al. 2021: memcore/step/pipeline.py"
        )) / len(others)  # fmt: skip
        formula = formula / book.at("plan.parallel.virtual_stages", "virtual stages")
    return about("Pipeline bubble", "seconds", formula, meaning)


@rule("time.resources|exposed.*")
def _seconds_of(book: Book, kind: str, name: str) -> Explanation:
    return _resource(book, name, exposed=kind == "exposed")


def _resource(book: Book, name: str, exposed: bool) -> Explanation:
    if name == "host":
        return _host_exposed(book) if exposed else _host_busy(book)
    label, found = LABELS[name], []
    if exposed:
        found = _operations(book, "seconds", lambda o: o.bound_by == name)
    elif name in ("compute", "hbm"):
        found = _operations(book, f"{name}_seconds")
    found += _transfers(book, "exposed_seconds" if exposed else "seconds", name)
    if exposed:
        what, meaning = f"{label}, exposed", f"Seconds of a step in which {label} is waited for."
    else:
        what, meaning = f"{label}, busy", f"Seconds of a step in which {label} works."
    return about(what, "seconds", _ordered(found), meaning)


AHEAD = (
    "the host runs ahead of the GPU, which waits only for what has not been started yet: a step "
    "takes the longest way through both, the host up to some point and the GPU from there on"
)


@rule("time.starts.forward|backward|optimizer")
def _starts(book: Book, phase: str) -> Explanation:
    """Operations that the host starts in a step."""
    what = f"Operations that the host starts, {phase}"
    step, amounts = book.timed, book.amounts
    if phase == host.OPTIMIZER:
        if not book.time.starts[phase]:
            formula = known("the host updates itself", 0.0, "", source="the plan: offload")
            return about(what, "", formula)
        each = host.optimizer_starts(step, amounts) / host.tensors(step, amounts)
        formula = known("for each", each, source=f"the step of {step.optimizer.label}")
        weights = known("weights that a GPU updates", host.tensors(step, amounts),
                        source="the weights that are trained, each a tensor")  # fmt: skip
        return about(what, "", weights * formula)
    structure = step.blocks.structure
    if whole_graph(step):
        n = host.REPLAY.middle if phase == host.FORWARD else 0.0
        formula = known("one graph of all of them", n, source="the plan: train.cuda_graphs",
                        certainty="assumed")  # fmt: skip
        return about(what, "", formula, "In all micro-batches of a step.", [host.SOURCE])
    inside, eight = host.captured(step.blocks.layers, structure.graphs), host.eight_of(structure)
    repeats, found = host.repeated(step, amounts), []
    if (replays := host.replayed(step)) and phase != host.OPTIMIZER:
        graphs = known("graphs that are replayed", replays, source="the plan: train.cuda_graphs")
        found.append(graphs * _beside(book).batches * constant(host.REPLAY))
    if nodes := host.scheduled(step):
        parts = known("for the nodes of layers", nodes, certainty="measured",
                      source="the plan: train.overlap_moe_expert_parallel_comm")  # fmt: skip
        found.append(parts * _beside(book).batches)
    for e in _executions(book):
        of = host.left_to_start(e.work, structure.kernels, inside, eight)
        n = e.runs * of.of(*repeats)
        if n and (e.work.phase == host.FORWARD) == (phase == host.FORWARD):
            sure = "exact" if of == (1, 0, 0) else "measured"
            found.append(known(e.work.name, n, certainty=sure, source=f"{e.runs} runs"))
    if phase == host.BACKWARD and (called := host.hooks(step, amounts)):
        source = "the weights that are trained, in each micro-batch"
        found.append(known("hooks of gradients", called, source=source) * _beside(book).batches)
    sent = {id(move): move for move, _ in _moves(book)}.values()
    there = sum(m.times for m in sent if host.in_forward(m) == (phase == host.FORWARD))
    if there:
        times = known("transfers", there, source="what ranks send each other, and offload")
        found.append(times * constant(constants.COLLECTIVE_STARTS))
    return about(what, "", _ordered(found), "In all micro-batches of a step.", [host.SOURCE])


@rule("time.host.forward|backward|optimizer")
def _host_of(book: Book, phase: str) -> Explanation:
    formula = book.at(f"time.starts.{phase}") * host.each_start(book.plan, Terms(book))
    return about(f"Host, {phase}", "seconds", formula, "In one step.")


@rule("time.gpu.forward|backward")
def _gpu_of(book: Book, phase: str) -> Explanation:
    forward = phase == host.FORWARD
    phases = (host.FORWARD,) if forward else (host.BACKWARD, "recompute")
    found = _operations(book, "seconds", lambda o: o.phase in phases)
    for i, (move, link) in enumerate(_moves(book)):
        inside = host.in_forward(move) if forward else host.in_backward(move)
        if inside and link == move.slowest:
            found.append(book.at(f"time.transfers.{i}.exposed_seconds"))
    meaning = "Its operations, and what it waits for others meanwhile."
    return about(f"GPU, {phase}", "seconds", _ordered(found), meaning)


def _host_busy(book: Book) -> Explanation:
    formula = total([book.at(f"time.host.{p}") for p in host.PHASES if book.time.starts[p]])
    meaning = "Seconds of a step in which the host starts operations."
    return about("Host, busy", "seconds", formula, meaning)


def _host_exposed(book: Book) -> Explanation:
    of_host, of_gpu = (
        (book.at(f"time.{whose}.{host.FORWARD}"), book.at(f"time.{whose}.{host.BACKWARD}"))
        for whose in ("host", "gpu")
    )
    formula = host.waited(of_host, of_gpu, _beside(book).batches)
    if book.time.starts[host.OPTIMIZER]:
        step = book.at(f"time.operations.{len(book.time.operations) - 1}.seconds", "optimizer step")
        formula = formula + at_least_zero(book.at("time.host.optimizer") - step)
    meaning = "Seconds of a step in which the GPU waits for the host to start something."
    return about("Host, exposed", "seconds", formula, meaning, [AHEAD])


@rule("time.hidden.*")
def _hidden(book: Book, name: str) -> Explanation:
    formula = at_least_zero(book.at(f"time.resources.{name}") - book.at(f"time.exposed.{name}"))
    return about(f"{LABELS[name]}, hidden", "seconds", formula, "Behind other work.")


@rule("time.phases.*")
def _phase(book: Book, name: str) -> Explanation:
    book.time.phases[name]
    if name in WAITING:
        found = [book.at(f"time.exposed.{link}") for link in WAITING[name]]
    else:
        found = _operations(book, "seconds", lambda o: o.phase == name)
    return about(name.capitalize(), "seconds", _ordered(found), "Seconds of a step.")


@rule("time.bound_by")
def _bound_by(book: Book) -> Explanation:
    every = {name: book.at(f"time.exposed.{name}") for name in book.time.exposed}
    return about("Bound by", "", whichever(every), "The resource that a step waits for longest.")


@rule("time.hardware_flops|recompute_flops")
def _all_flops(book: Book, field: str) -> Explanation:
    phases = PHASES if field == "hardware_flops" else ("recompute",)
    found = _operations(book, "flops", lambda o: o.phase in phases)
    what = "FLOPs that are run" if field == "hardware_flops" else "FLOPs run a second time"
    return about(what, "FLOP", _ordered(found), "In one step, on one GPU.")


@rule("time.traffic.*")
def _traffic(book: Book, link: str) -> Explanation:
    """Bytes that cross a link in one step."""
    hbm = link == "hbm"
    found = _operations(book, "hbm_bytes") if hbm else _transfers(book, "bytes", link)
    return about(f"{LABELS[link]} traffic", "bytes", _ordered(found), "In one step.")


@rule("time.parts.*")
def _part_flops(book: Book, k: str) -> Explanation:
    """Model FLOPs of one kind of block of a model of several stacks, in one micro-batch."""
    part = parts(book.timed, book.amounts)[int(k)]
    formula = part.flops(book.plan, Terms(book))
    return about(f"Model FLOPs: {part.name}", "FLOP", formula, "In one micro-batch, on one GPU.")


@rule("time.model_flops")
def _model_flops(book: Book) -> Explanation:
    meaning = (
        "What the model itself needs in one step on one GPU: the convention that MFU counts by, "
        "with attention of every token to all others, causal or not."
    )
    if book.plan.architecture.tower:
        found = [book.at(f"time.parts.{k}") for k in range(len(parts(book.timed, book.amounts)))]
        of_batch = _ordered(found)
        meaning = "What the model itself needs in one step on one GPU, all stacks together."
    else:
        of_batch = convention_flops(book.plan, book.timed, book.amounts, Terms(book))
    formula = book.at("plan.train.grad_accumulation") * of_batch
    return about("Model FLOPs", "FLOP", formula, meaning, [PALM])


MEANS_UTILIZATION = (
    "Share of the peak that is useful; attention is counted without a causal mask, recompute is"
)


@rule("time.mfu|hfu")
def _utilization(book: Book, which: str) -> Explanation:
    peak = book.at(f"hardware.peak_flops.{peak_dtype(book.timed)}")
    work = book.at("time.model_flops")
    if which == "hfu":
        work = work + book.at("time.recompute_flops")
    name = {"mfu": "Model FLOPs utilization", "hfu": "Hardware FLOPs utilization"}[which]
    counted = "not counted" if which == "mfu" else "counted"
    formula = work / (book.at("time.step_seconds") * peak)
    return about(name, "share", formula, f"{MEANS_UTILIZATION} {counted}.")
