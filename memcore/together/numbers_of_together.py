"""How the numbers of training and serving on the same GPUs come about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcore.quantity.formula import revalued, total
from memcore.quantity.interval import INTERVAL, ends
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.reading import Terms
from memcore.quantity.shapes import row, sum_of
from memcore.report import LedgerRow, Phase
from memcore.serving.serve import serve
from memcore.step.step import Instant
from memcore.together.scene import PARTS, Scene, at_host, cast_of, engine_plan
from memcore.together.together import phase_device
from memcore.training.memory import instant_bytes, listed, rows_alive

if TYPE_CHECKING:
    from memcore.explain.book import Book

OF_ENGINE = "that plan's serving: memplan explain serve.{field} with serve.tp {tp} says more"


def _scene(book: Book) -> Scene:
    def make() -> Scene:
        engine = serve(engine_plan(book.plan))
        return Scene(book.plan, book.step, book.amounts, book.memory, engine)

    return book.once("scene", make)


def _parts(book: Book, i: str) -> dict[str, list[Instant] | str]:
    return book.once("cast", lambda: cast_of(_scene(book)))[_phase(book, i).id]


def _phase(book: Book, i: str) -> Phase:
    phase: Phase = book.together.phases[int(i)]
    return phase


def _alive(book: Book, moments: list[Instant]) -> tuple[LedgerRow, ...]:
    amounts = _scene(book).amounts
    return tuple(
        r
        for m in moments
        for r in listed(rows_alive(m, instant_bytes(m, amounts)[1], amounts), amounts)
    )


@rule("together.phases.*", "together.phases.*.bytes")
def _bytes(book: Book, i: str) -> Explanation:
    phase = _phase(book, i)
    parts = [book.at(f"together.phases.{i}.parts.{p}") for p in PARTS if p in phase.parts]
    return about(phase.label, "bytes", total(parts), "Alive on the fullest GPU in this phase.")


@rule("together.phases.*.parts.*")
def _part(book: Book, i: str, part: str) -> Explanation:
    phase = _phase(book, i)
    size, of, what = phase.parts[part], _parts(book, i)[part], f"{PARTS[part]}, {phase.label}"
    if isinstance(of, str):
        tp = book.plan.engine_tp
        source = OF_ENGINE.format(field=of, tp=tp)
        meaning = f"What the engine says of one of its {tp:,} GPUs for this plan."
        return about(what, "bytes", None, meaning, [source], "assumed", size)
    if part == "policy" and phase.id == "update-policy":
        formula = total([book.at("memory.allocated_bytes")])
        return about(what, "bytes", formula, "The peak of the training step.")
    rows = [
        (f"together.phases.{i}.parts.{part}.rows.{n}", r) for n, r in enumerate(_alive(book, of))
    ]
    return about(what, "bytes", sum_of(book, rows), "Tensor by tensor.")


@rule("together.phases.*.parts.*.rows.*")
def _row(book: Book, i: str, part: str, n: str) -> Explanation:
    of = _parts(book, i)[part]
    assert not isinstance(of, str)
    return row(book, _alive(book, of)[int(n)])


@rule("together.phases.*.device_bytes")
def _phase_device(book: Book, i: str) -> Explanation:
    what = f"{_phase(book, i).label}, device memory"
    return ends(book, f"together.phases.{i}.device_bytes", what, "")


@rule("together.phases.*.device_bytes.0|1")
def _phase_device_end(book: Book, i: str, end: str) -> Explanation:
    phase = _phase(book, i)
    parts = {p: book.at(f"together.phases.{i}.parts.{p}") for p in PARTS if p in phase.parts}
    what = f"{phase.label}, device memory, {INTERVAL[int(end)]}"
    meaning = "The trainer's parts with the allocator's slack, the engine's, and what is outside."
    return about(what, "bytes", phase_device(Terms(book), parts, int(end)), meaning)


@rule("together.peak")
def _peak(book: Book) -> Explanation:
    high = book.at("together.device_bytes.1")
    return about("Fullest phase", "", revalued(high, book.together.peak), "By its device memory.")


@rule("together.capacity_bytes")
def _capacity(book: Book) -> Explanation:
    return book.explain("memory.capacity_bytes")


@rule("together.dram_capacity_bytes")
def _dram_capacity(book: Book) -> Explanation:
    return book.explain("memory.tier_capacities.dram")


@rule("together.host.*")
def _host(book: Book, part: str) -> Explanation:
    moment = at_host(_scene(book))[part]
    rows = [(f"together.host.{part}.rows.{n}", r) for n, r in enumerate(_alive(book, [moment]))]
    return about(f"{PARTS[part]} in host DRAM", "bytes", sum_of(book, rows), "Of one GPU.")


@rule("together.host.*.rows.*")
def _host_row(book: Book, part: str, n: str) -> Explanation:
    return row(book, _alive(book, [at_host(_scene(book))[part]])[int(n)])


@rule("together.kv_capacity_tokens")
def _tokens(book: Book) -> Explanation:
    tp = book.plan.engine_tp
    source = OF_ENGINE.format(field="kv_capacity_tokens", tp=tp)
    meaning = "Tokens that the cache of one engine holds while rollouts are generated."
    value = book.together.kv_capacity_tokens
    return about("Tokens that fit", "tokens", None, meaning, [source], "assumed", value)
