"""How the numbers of serving come about: weights, KV cache, room, first token, next tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from memcore.hardware.kernels import HALVES_SOURCE, ONE
from memcore.quantity.formula import Formula, ceiling, constant, known, largest, total, whichever
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.reading import Read, Terms
from memcore.quantity.shapes import elements, row, shape, sum_of, width
from memcore.report import LedgerRow
from memcore.serving import allocator, time
from memcore.serving.cache import (
    CROSS_CACHE,
    ENTRIES,
    INDEX_KEYS,
    INDEX_SOURCE,
    SERVER,
    STATES,
    attended_bytes,
    copies,
    entries_bytes,
    index_keys,
    state_bytes,
)
from memcore.serving.room import activation_bytes, expert_buffers, widened
from memcore.serving.server import AlikeLayers, Server, one_forward
from memcore.serving.towers import fullest, of_prompt
from memcore.tape.ledger import INFERENCE, Amounts, window
from memcore.tape.tape import Tape
from memcore.timing.roofline import DECLARED, ROOFLINE, product_flops
from memcore.training.memory import listed
from memcore.training.numbers_of_time import (
    FIELDS,
    LABELS,
    PLACE,
    TILES,
    TOUCHED,
    flops,
    place,
    sides,
)
from memcore.words.serving import PREFILLS
from memcore.words.stored import bits, bits_alone

if TYPE_CHECKING:
    from memcore.explain.book import Book

STORED = "the type of what is stored, its share of scales included (words.stored.STORED_BITS)"


def _server(book: Book) -> Server:
    server: Server = Terms(book).server
    return server


def _plan(book: Book, name: str, said: str = "") -> Formula:
    return book.at(f"plan.serve.{name}", said)


@rule("serve.rows.*", "serve.rows.*.bytes|bytes_each|count")
def _row(book: Book, i: str, field: str = "bytes") -> Explanation:
    r: LedgerRow = book.serve.rows[int(i)]
    meaning = f"{r.why.capitalize()}. Alive: {r.lifetime}."
    if field == "count":
        how_many = f"How many of {r.name} there are."
        return about(r.name, "", None, how_many, [r.source], r.certainty, r.count)
    if r.consumer == "kv_cache":
        each = book.at("serve.cross_bytes_per_sequence")
        if r.name != CROSS_CACHE:
            each = book.at("serve.sequence_bytes") - each
            if book.serve.state_bytes_per_sequence:
                each = each - book.at("serve.state_bytes_per_sequence")
            if _server(book).index_bytes:
                keys = index_keys(Terms(book))
                each = keys if r.name == INDEX_KEYS else each - keys
            if _server(book).plan.architecture.entries and r.name != INDEX_KEYS:
                entries = entries_bytes(Terms(book))
                each = entries if r.name == ENTRIES else each - entries
        formula = each * book.at("serve.held") if field == "bytes" else each
    elif r.consumer == STATES:
        each = elements(book, r.shape, serving=True) * width(r.dtype)
        formula = each * book.at("serve.held") if field == "bytes" else each
    elif r.consumer == "workspace":
        formula = activation_bytes(Terms(book))
    else:
        if r.consumer == "rests":
            formula = _unused(book, r)
        elif r.consumer == "tables":
            formula = elements(book, r.shape, serving=True) * width(r.dtype)
        else:
            width_of = known(f"bits of {r.dtype}", bits(r.dtype), source=STORED)
            formula = ceiling(elements(book, r.shape, serving=True) * width_of / 8)
        if field == "bytes" and r.count > 1:
            formula = formula * known("layers", r.count, source="stages of a replica: serve.pp")
    return about(r.name, "bytes", formula, meaning, [r.source], r.certainty)


def _unused(book: Book, r: LedgerRow) -> Formula:
    """What is left of a tensor's segment."""
    alone = known(f"bits of {r.dtype}", bits_alone(r.dtype), source=STORED)
    tensor = elements(book, r.shape, serving=True) * alone / 8
    segment = known("segment", allocator.SEGMENT, "bytes", source=allocator.SOURCE)
    return ceiling(tensor / segment) * segment - tensor


@rule("serve.layer_bytes")
def _layer(book: Book) -> Explanation:
    rows = [(f"serve.layer_rows.{k}", r) for k, r in enumerate(_layer_rows(book))]
    formula = sum_of(book, rows)
    server = _server(book)
    if server.widening > 1:
        formula = formula * known("in fp32", server.widening, source=SERVER)
    _, matrix = widened(server, one_forward(server))
    if matrix:
        dtype = book.plan.weights.compute
        formula = formula + width(dtype) * elements(book, matrix, serving=True)
    amounts = one_forward(server)
    for of in expert_buffers(server, amounts):
        buffer = elements(book, amounts.extents(of), serving=True)
        formula = formula + width(server.compute) * buffer
    return about("Temporaries of the largest layer", "bytes", formula, "At its fullest.")


@rule("serve.layer_rows.*")
def _layer_row(book: Book, k: str) -> Explanation:
    return row(book, _layer_rows(book)[int(k)], serving=True)


def _layer_rows(book: Book) -> tuple[LedgerRow, ...]:
    return _alive(book, [tape for tape, _ in _server(book).layers])


@rule("serve.tower_bytes")
def _tower_bytes(book: Book) -> Explanation:
    rows = [(f"serve.tower_rows.{k}", r) for k, r in enumerate(_tower_rows(book))]
    what, meaning = "Temporaries of the tower", "The most that it needs at once."
    if not rows:
        return about(what, "bytes", None, "Nothing runs before the layers.", [SERVER], value=0)
    return about(what, "bytes", sum_of(book, rows), meaning)


@rule("serve.tower_rows.*")
def _tower_row(book: Book, k: str) -> Explanation:
    return row(book, _tower_rows(book)[int(k)], serving=True)


def _tower_rows(book: Book) -> tuple[LedgerRow, ...]:
    server = _server(book)
    tape = fullest(server, one_forward(server))
    return _alive(book, [tape]) if tape else ()


def _alive(book: Book, tapes: Sequence[Tape]) -> tuple[LedgerRow, ...]:
    """What is alive at the peak of the part that needs the most."""
    amounts = one_forward(_server(book))
    windows = [window(tape, INFERENCE) for tape in tapes]
    peaks = [w.peak(amounts) for w in windows]
    best = max(range(len(windows)), key=lambda i: peaks[i][0])
    chosen, at = windows[best], peaks[best][1]
    rows = [chosen.rows[i] for i in chosen.alive[at]]
    return listed([(r, 1, amounts.bytes(r.shape, r.dtype)) for r in rows], amounts)


def _parts(book: Book, which: str) -> list[time.Part]:
    server = _server(book)
    if not server.numbers.serve.running:
        raise LookupError("nothing fits, so there are no speeds")
    found: list[time.Part] = getattr(server.numbers.serve, which)
    return found


@rule("serve.prefill|decode|joined|tower.*", f"serve.prefill|decode|joined|tower.*.{FIELDS}")
def _operation(book: Book, which: str, i: str, field: str = "seconds") -> Explanation:
    part, base = _parts(book, which)[int(i)], f"serve.{which}.{i}"
    o = part.time
    if part.kind not in (time.LAYERS, time.HEAD, time.ATTENTION, time.INDEX, time.SCAN, time.TOWER):
        if field != "seconds":
            raise LookupError
        return about(o.name, "seconds", _rest(book, part, which), "In one step.")
    attends, reads = part.kind in time.OF_CACHE, {time.ATTENTION: _read, time.INDEX: _scores_read}
    if field == "flops":
        work = {time.ATTENTION: _attended, time.INDEX: _scored}.get(part.kind, _work)(book, part)
        return about(f"FLOPs of {o.name}", "FLOP", work, "In one step, on one GPU.", [DECLARED])
    if field == "hbm_bytes":
        moved = reads.get(part.kind, _touched)(book, part)
        if part.kind == time.SCAN:
            moved = moved + _states_moved(book, part)
        return about(f"HBM traffic of {o.name}", "bytes", moved, "In one step.", [TOUCHED])
    rates = time.rates_of(_server(book))
    if field == "compute_seconds":
        formula = book.at(f"{base}.flops", "FLOPs") / _rate(book, rates, part)
        if o.compute_seconds and not attends and part.batch * part.tokens >= time.SPLIT_ROWS:
            formula = formula / known("share of the GPU that is filled", _filled(book, part),
                                      source=TILES)  # fmt: skip
        return about(f"Arithmetic of {o.name}", "seconds", formula, "If only compute limited it.")
    if field == "hbm_seconds":
        peak, kernels = book.at("hardware.memory_bandwidth"), rates.kernels
        read = peak * constant(kernels.bandwidth)
        if attends:
            formula = book.at(f"{base}.hbm_bytes", "HBM traffic") / (peak * constant(kernels.cache))
        else:
            assert part.execution
            if part.execution.work.flops:
                share = rates.widened(part.bits, time.grouped(part.execution))
                weights = _weights_read(book, part)
                if share is not ONE:
                    weights = weights / constant(share)
                formula = (weights + _others(book, part)) / read
            else:
                every = _weights_read(book, part) + _others(book, part)
                slow = time.moves_rows(part.execution) and kernels.rows is not ONE
                formula = every / (read * constant(kernels.rows) if slow else read)
            if part.kind == time.SCAN:
                formula = formula + _states_moved(book, part) / read
        return about(f"HBM traffic of {o.name}", "seconds", formula, "If only HBM limited it.")
    if field in PLACE:
        return place(book, o.name, base, field)
    longer = largest(*sides(book, base).values())
    return about(o.name, "seconds", longer, "In one step.", [ROOFLINE])


def _rate(book: Book, rates: time.Rates, part: time.Part) -> Formula:
    """FLOP/s of an operation's arithmetic."""
    if _attends(part):
        share, dtype = time.attention_share(rates.kernels, rates.gpu), rates.compute
    else:
        indexes = part.kind == time.INDEX
        dtype = _server(book).index_dtype if indexes else rates.dtype(part.bits)
        share = time.product_share(rates.kernels, rates.gpu, dtype)
    if part.kind != time.INDEX and time.halved(rates.kernels, rates.gpu, dtype):
        whole = book.at("hardware.peak_flops.int8")
        return whole / known("of int8", 2, source=HALVES_SOURCE) * constant(share)
    return book.at(f"hardware.peak_flops.{dtype}") * constant(share)


def _attends(part: time.Part) -> bool:
    return part.kind == time.ATTENTION or bool(part.execution and part.execution.work.attention)


def _amounts(book: Book, part: time.Part) -> Amounts:
    if part.kind == time.TOWER:
        return of_prompt(_server(book))
    return _server(book).amounts(part.batch, part.tokens)


def _work(book: Book, part: time.Part) -> Formula:
    assert part.execution
    return flops(book, part.execution.work, part.execution.runs, _amounts(book, part))


def _filled(book: Book, part: time.Part) -> float:
    assert part.execution
    sms = book.plan.accelerator.sms
    work, padded = product_flops(part.execution.work, _amounts(book, part), sms)
    return work / padded


def _weights_read(book: Book, part: time.Part) -> Formula:
    note = "as they are stored, of all layers that run it"
    return known("weights", part.weights, "bytes", source=TOUCHED, note=note)


def _others(book: Book, part: time.Part) -> Formula:
    assert part.execution
    _, others, _ = time.traffic(_server(book), part.execution, _amounts(book, part))
    return known("activations", others * part.execution.runs, "bytes", source=TOUCHED)


def _states_moved(book: Book, part: time.Part) -> Formula:
    """Bytes of states that a scan reads and writes."""
    times = copies(Terms(book)) + known("time that it is read", 1, source=time.STATE_READ)
    layers = known("layers with a state", part.time.runs, source="config.json")
    sequences, _, _ = _tokens_of(book, part)
    moved: Formula = times * layers * sequences * state_bytes(Terms(book))
    return moved


def _tokens_of(book: Book, part: time.Part) -> tuple[Formula, Formula, Formula]:
    """Sequences, new tokens of each, and tokens that each sees."""
    source = "the plan, and what fits: serve.running"
    return (
        known("sequences", part.batch, source=source),
        known("new tokens of each", part.tokens, source=source),
        known("tokens that each sees", part.context, source=source, note="on average"),
    )


def _layers_seen(
    book: Book, share: Callable[[AlikeLayers], float], of: Callable[[bool], Formula]
) -> Formula:
    """Layers, each by the share of the context that those like it see, and by a number of its
    heads': of those apart, or of the model's."""
    server, model = _server(book), book.plan.architecture
    config = model.origin
    every: list[tuple[Formula, bool]] = []
    for part in server.parts:
        name = "layers with a window" if part.windowed else "layers"
        layers = known(name, part.count, source=config)
        if part.sight or part.rate > 1:
            what = "a window sees" if part.windowed else "is chosen"
            layers = layers * known(f"share that {what}", share(part), source=config)
        every.append((layers, part.apart))
    if server.uneven:
        return total([layers * of(apart) for layers, apart in every])
    return total([layers for layers, _ in every]) * of(every[0][1])


def _before(part: time.Part) -> Formula:
    """The share of the context that comes before a new token."""
    if part.tokens == part.context:
        return known("a token sees half of its prompt on average", 0.5, source=time.ATTENTION_OF)
    return known("all of it", 1.0, source=time.ATTENTION_OF)


def _attended(book: Book, part: time.Part) -> Formula:
    """FLOPs of attention of new tokens to the cache."""
    server = _server(book)
    two = known("multiply and add", 2, source=time.ATTENTION_OF)
    batch, tokens, context = _tokens_of(book, part)
    amounts = _amounts(book, part)

    def products(apart: bool) -> Formula:
        scores, values = server.products(part.tokens, apart)
        return shape(book, scores, amounts) + shape(book, values, amounts)

    seen = partial(time.seen_share, tokens=part.tokens, context=part.context)
    return two * batch * tokens * context * _before(part) * _layers_seen(book, seen, products)


def _read(book: Book, part: time.Part) -> Formula:
    """Bytes of the cache that it reads."""
    batch, _, context = _tokens_of(book, part)
    share = partial(time.read_share, tokens=part.tokens, context=part.context)
    return batch * context * _layers_seen(book, share, partial(attended_bytes, Terms(book)))


def _indexers(book: Book) -> Formula:
    return known(
        "layers with an indexer of their own", _server(book).indexers, source=time.INDEX_OF
    )


def _pairs(book: Book, part: time.Part) -> Formula:
    """Scores of one indexer."""
    batch, tokens, context = _tokens_of(book, part)
    pairs = batch * tokens * context * _before(part)
    if (rate := _server(book).index_rate) > 1:
        pairs = pairs / known("tokens of a key", rate, "tokens", source="config.json")
    return pairs


def _scored(book: Book, part: time.Part) -> Formula:
    """FLOPs of an indexer's scores."""
    two = known("multiply and add", 2, source=time.INDEX_OF)
    one = shape(book, _server(book).index_pair, _amounts(book, part))
    return two * _pairs(book, part) * _indexers(book) * one


def _scores_read(book: Book, part: time.Part) -> Formula:
    """Bytes of indexers' keys and of their scores."""
    batch, _, context = _tokens_of(book, part)
    key = known(INDEX_KEYS, _server(book).index_bytes, "bytes", source=INDEX_SOURCE)
    layers = known("layers", book.plan.architecture.layers, source="config.json")
    score = known("of a score, written and read", time.SCORE_BYTES, "bytes", source=time.INDEX_OF)
    keys = batch * context * key * layers
    scores = _pairs(book, part) * _indexers(book)
    if (written := _server(book).index_scores) != 1:
        scores = scores * known("scores of heads for a block, over its tokens", written,
                                source="config.json")  # fmt: skip
    return keys + scores * score


def _touched(book: Book, part: time.Part) -> Formula:
    return _weights_read(book, part) + _others(book, part)


BESIDE = (  # what else a step waits for than layers
    *(time.LINK, time.EXCHANGE, time.HOST, time.LAUNCH, time.DRAFT),
    *(time.STEPS, time.CPU, time.UNPACK, time.SCORES),
)


def _rest(book: Book, part: time.Part, which: str) -> Read:
    """Seconds of what is not an operation on the GPU."""
    plan, o, x, server = book.plan, part.time, Terms(book), _server(book)
    if part.kind == time.LINK:
        return _reductions(book, part)
    if part.kind == time.CPU:
        return time.of_cpu(plan, part.tokens, part.weights, part.context, x)
    if part.kind in (time.UNPACK, time.SCORES):
        return time.of_memory(server, part.weights, x)
    if part.kind == time.EXCHANGE:
        routed = known("layers with experts", o.runs // 2, source="config.json")
        return routed * time.exchange(server, part.tokens, x)[1]
    if part.kind == time.DRAFT:
        assert server.draft
        draft, one = server.draft.plan.architecture, o.seconds / o.runs
        label, at_once = draft.label, draft.draft and draft.draft.at_once
        times = _plan(book, "draft_tokens")
        if at_once:
            times = known("for all guesses at once", o.runs, source=f"config.json of {label}")
        source = f"a step of {label} with the same sequences"
        return times * known("a step of the draft's model", one, "seconds", source=source,
                             certainty="assumed")  # fmt: skip
    if part.kind == time.STEPS:
        return time.of_scheduler(server, part.batch, x)
    found = [p for p in _parts(book, which) if p.kind not in BESIDE]
    busy = known("the rest of the step", time.seconds(found), "seconds", source=ROOFLINE,
                 certainty="assumed")  # fmt: skip
    if part.kind == time.HOST:
        return time.of_host(plan, part.weights, busy if part.behind else None, x)
    layers = plan.architecture.layers
    if which == "tower" and server.tower:
        layers = server.tower.layers
    return time.idle(server, found, layers, part.reads, busy, x)


def _reductions(book: Book, part: time.Part) -> Read:
    """All-reduces of the hidden state: two in every layer, or one of each part that it has."""
    plan, source = book.plan, "Megatron, Shoeybi et al. 2019"
    if plan.architecture.recurrence:
        name = "after attention, states and MLPs of all layers"
        times = known(name, part.time.runs, source=source)
    else:
        twice = known("after attention and after the MLP", 2, source=source)
        times = twice * known("layers", plan.architecture.layers, source="config.json")
    return times * time.reduction(_server(book), part.tokens, Terms(book))[1]


def _sum(book: Book, which: str) -> Formula:
    """Seconds of one step."""
    every = enumerate(p.time for p in _parts(book, which))
    ordered = sorted(every, key=lambda item: -item[1].seconds)
    return total([book.at(f"serve.{which}.{i}.seconds") for i, _ in ordered])


_STEPS = {
    "prefill_step": "A step of the prompt",
    "decode_step": "A step of all that run",
    "joined_step": "A step that reads prompts, where many come",
}


@rule("serve.prefill_step|decode_step|joined_step")
def _step(book: Book, which: str) -> Explanation:
    what = _STEPS[which]
    return about(what, "seconds", _sum(book, which.removesuffix("_step")), "On one replica.")


@rule("serve.tower_seconds")
def _once(book: Book) -> Explanation:
    what, meaning = "What runs once for a prompt", "Before its first step, on one replica."
    if not _parts(book, "tower"):
        nothing = "Nothing runs before the layers."
        return about(what, "seconds", None, nothing, [SERVER], value=0.0)
    return about(what, "seconds", _sum(book, "tower"), meaning)


@rule("serve.transfer_seconds")
def _transfer(book: Book) -> Explanation:
    if not _server(book).numbers.serve.running:
        raise LookupError("nothing fits, so there are no speeds")
    what, meaning = "Sending the cache over", "Of one prompt, to the GPUs that generate."
    if not PREFILLS[book.plan.serve.prefill].elsewhere:
        return about(what, "seconds", None, "It stays where it is.", [SERVER], value=0.0)
    moved = _plan(book, "prompt_len") * book.at("serve.kv_bytes_per_token")
    held = _server(book).caches.recurrent
    if held:
        moved = moved + known("layers with a state", held, source=SERVER) * state_bytes(Terms(book))
    return about(what, "seconds", moved / time.transfer_rate(book.plan, Terms(book)), meaning)


def _bounds(book: Book, which: str) -> list[tuple[str, str]]:
    """Where the seconds of a step's parts are, and what bounds each; of a prompt's step also those
    of what runs once before it."""
    return [
        (f"serve.{of}.{i}.seconds", part.time.bound_by)
        for of in (("tower", which) if which == "prefill" else (which,))
        for i, part in enumerate(_parts(book, of))
    ]


@rule("serve.prefill|decode.bound.*")
def _bound(book: Book, which: str, name: str) -> Explanation:
    found = [path for path, by in _bounds(book, which) if by == name]
    what = f"Operations that {LABELS.get(name, name)} bounds"
    return about(what, "seconds", total(list(map(book.at, found))))


@rule("serve.prefill_bound_by|decode_bound_by")
def _bound_by(book: Book, field: str) -> Explanation:
    which = field.removesuffix("_bound_by")
    names = dict.fromkeys(by for _, by in _bounds(book, which))
    every = {name: book.at(f"serve.{which}.bound.{name}") for name in names}
    return about(f"What bounds {which}", "", whichever(every), "Where most of its seconds go.")
