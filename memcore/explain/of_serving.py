"""How the numbers of serving come about: weights, KV cache, room, first token, next tokens."""

from __future__ import annotations

from memcore import constants, policies, stored
from memcore.dims import HEADS, TP, D
from memcore.explain.book import Book, Explanation, about, rule
from memcore.explain.formula import (
    Formula,
    at_least_zero,
    ceiling,
    known,
    largest,
    nearest,
    smallest,
    total,
    whichever,
    whole,
)
from memcore.explain.of_memory import constant
from memcore.explain.of_time import FIELDS, LABELS, of_execution, operation, ring
from memcore.explain.shapes import row, shape, sum_of, text_shape, width
from memcore.ledger import INFERENCE, Amounts, window
from memcore.memory import listed
from memcore.report import LedgerRow, OperationTime
from memcore.roofline import ATTENTION
from memcore.serving import (
    ATTENTION_OF,
    KV_SOURCE,
    LOGITS,
    LOGITS_COPIES,
    PAGES_SOURCE,
    ROTARY_SOURCE,
    Room,
    Server,
    beside,
    decode_operations,
    one_forward,
    overheads,
    prefill_operations,
    room,
)

SERVER = "how a server lays out one GPU: weights, one forward, overhead, and the rest for the cache"
STORED = "the type of what is stored, its share of scales included (policies.STORED_BITS)"
REPLICA = "Of one replica."


def _server(book: Book) -> Server:
    return book.once("server", lambda: Server.of(book.plan))


def _plan(book: Book, name: str, said: str = "") -> Formula:
    return book.at(f"plan.serve.{name}", said)


# --- memory --------------------------------------------------------------------------------------


@rule("serve.weights_bytes")
def _weights(book: Book) -> Explanation:
    rows = [
        (f"serve.rows.{i}", r) for i, r in enumerate(book.serve.rows) if r.consumer == "parameters"
    ]
    return about("Weights", "bytes", sum_of(book, rows), "On the fullest GPU of a replica.")


@rule("serve.rows.*", "serve.rows.*.bytes|bytes_each|count")
def _row(book: Book, i: str, field: str = "bytes") -> Explanation:
    r: LedgerRow = book.serve.rows[int(i)]
    meaning = f"{r.why.capitalize()}. Alive: {r.lifetime}."
    if field == "count":
        how_many = f"How many of {r.name} there are."
        return about(r.name, "", None, how_many, [r.source], r.certainty, r.count)
    if r.consumer == "kv_cache":
        each = book.at("serve.sequence_bytes")
        formula = each * book.at("serve.held") if field == "bytes" else each
    elif r.consumer == "workspace":
        formula = _activation(book)
    elif r.consumer == "tables":
        each = width(r.dtype)
        formula = text_shape(book, r.shape, serving=True) * each
        if field == "bytes" and r.count > 1:
            formula = formula * known("layers", r.count, source="the plan: parallel.pp")
    else:
        bits = known(f"bits of {r.dtype}", stored.bits(r.dtype), source=STORED)
        formula = ceiling(text_shape(book, r.shape, serving=True) * bits / 8)
        if field == "bytes" and r.count > 1:
            formula = formula * known("layers", r.count, source="the plan: parallel.pp")
    return about(r.name, "bytes", formula, meaning, [r.source], r.certainty)


@rule("serve.held")
def _held(book: Book) -> Explanation:
    running = smallest(_plan(book, "concurrency"), book.at("serve.max_concurrency"))
    meaning = "As many as are asked for, or as fit."
    return about("Sequences held at once", "sequences", running, meaning)


@rule("serve.table_bytes")
def _tables(book: Book) -> Explanation:
    rows = [(f"serve.rows.{i}", r) for i, r in enumerate(book.serve.rows) if r.consumer == "tables"]
    meaning = "What an engine keeps besides weights."
    if not rows:
        return about("Tables", "bytes", None, meaning, [ROTARY_SOURCE], value=0)
    return about("Tables", "bytes", sum_of(book, rows), meaning)


@rule("serve.kv_bytes_per_token")
def _per_token(book: Book) -> Explanation:
    formula = ceiling(_stage_layers(book) * _of_token(book))
    meaning = "What one more token adds on one GPU, while no window is full."
    return about("KV cache per token", "bytes", formula, meaning)


def _stage_layers(book: Book) -> Formula:
    server = _server(book)
    source = f"config.json of {book.plan.architecture.label}"
    return known("layers on this GPU", server.stage_layers, source=source)


def _of_token(book: Book) -> Formula:
    """Bytes that one layer keeps of a token."""
    dtype = policies.KV_DTYPES[book.plan.serve.kv_dtype]
    bits = known(f"bits of {dtype.label}", dtype.bits, source="the dtype")
    server = _server(book)
    return _cached(book, server, one_forward(server)) * bits / 8


def _cached(book: Book, server: Server, amounts: Amounts) -> Formula:
    """Numbers that one layer keeps of a token."""
    first, *rest = server.cache
    if isinstance(first, int):
        return known("keys and values", first, source=KV_SOURCE) * shape(book, (*rest,), amounts)
    return shape(book, server.cache, amounts)


def _activation(book: Book) -> Formula:
    server = _server(book)
    if server.manager.pages:
        copies = constant(constants.SAMPLER_LOGITS)
    else:
        copies = known("in bf16, and copied to fp32", LOGITS_COPIES, source=SERVER)
    four = known("bytes of fp32", 4, "bytes", source="the dtype")
    logits = four * shape(book, LOGITS, one_forward(server)) * _plan(book, "concurrency")
    return whole(largest(book.at("serve.layer_bytes"), logits * copies))


@rule("serve.activation_bytes")
def _activations(book: Book) -> Explanation:
    r = next(r for r in book.serve.rows if r.consumer == "workspace")
    meaning = "The most that one forward of the batched tokens needs at once."
    return about("Activations", "bytes", _activation(book), meaning, [r.source], r.certainty)


@rule("serve.layer_bytes")
def _layer(book: Book) -> Explanation:
    rows = [(f"serve.layer_rows.{k}", r) for k, r in enumerate(_layer_rows(book))]
    return about("Temporaries of the largest layer", "bytes", sum_of(book, rows), "At its fullest.")


@rule("serve.layer_rows.*")
def _layer_row(book: Book, k: str) -> Explanation:
    return row(book, _layer_rows(book)[int(k)], serving=True)


def _layer_rows(book: Book) -> tuple[LedgerRow, ...]:
    server = _server(book)
    amounts = one_forward(server)
    windows = [window(tape, INFERENCE) for tape, _ in server.layers]
    peaks = [w.peak(amounts) for w in windows]
    best = max(range(len(windows)), key=lambda i: peaks[i][0])
    chosen, at = windows[best], peaks[best][1]
    rows = [chosen.rows[i] for i in chosen.alive[at]]
    return listed([(r, 1, amounts.bytes(r.shape, r.dtype)) for r in rows], amounts)


@rule("serve.overhead_bytes|outside_bytes")
def _overhead(book: Book, which: str) -> Explanation:
    found = overheads(book.plan) if which == "overhead_bytes" else beside(book.plan)
    what, meaning = {
        "overhead_bytes": ("Overhead", "The middles of intervals that no shape determines."),
        "outside_bytes": (
            "Beside the budget",
            "What memory_utilization does not count; it must fit into the rest of the GPU.",
        ),
    }[which]
    if not found:
        return about(what, "bytes", None, meaning, [SERVER], value=0)
    return about(what, "bytes", whole(total([constant(c) for c in found])), meaning)


@rule("serve.budget_bytes")
def _budget(book: Book) -> Explanation:
    formula = whole(book.at("hardware.usable_bytes") * _plan(book, "memory_utilization"))
    return about("Budget", "bytes", formula, "What the server may use of one GPU.")


@rule("serve.kv_budget_bytes")
def _kv_budget(book: Book) -> Explanation:
    taken = ("weights_bytes", "table_bytes", "activation_bytes", "overhead_bytes")
    formula = book.at("serve.budget_bytes")
    for name in taken:
        formula = formula - book.at(f"serve.{name}")
    return about("Room for KV cache", "bytes", at_least_zero(formula), "On each GPU.", [SERVER])


@rule("serve.block_bytes")
def _block_bytes(book: Book) -> Explanation:
    r = _room(book)
    meaning = "One block: a page of each layer of a group."
    if not _paged(book):
        return about("Bytes of a block", "bytes", None, meaning, [SERVER], value=0)
    group = known("layers of a group", r.group, source=PAGES_SOURCE)
    formula = group * ceiling(_plan(book, "block_size") * _of_token(book))
    return about("Bytes of a block", "bytes", formula, meaning, [PAGES_SOURCE])


@rule("serve.blocks")
def _blocks(book: Book) -> Explanation:
    if not _paged(book):
        return about("Blocks", "", None, "The cache has no pages.", [SERVER], value=0)
    formula = whole(book.at("serve.kv_budget_bytes") / book.at("serve.block_bytes"))
    return about("Blocks", "", formula, "Pages of the whole cache.")


@rule("serve.blocks_per_sequence")
def _blocks_per_sequence(book: Book) -> Explanation:
    what, meaning = "Blocks of a sequence", "At its longest."
    if not _paged(book):
        return about(what, "", None, "The cache has no pages.", [SERVER], value=0)
    server, r, parts = _server(book), _room(book), []
    length, block = book.at("serve.sequence_tokens"), _plan(book, "block_size")
    if r.full:
        groups = known("groups of layers that see all", r.full, source=PAGES_SOURCE)
        parts.append(groups * ceiling(length / block))
    if r.windowed:
        groups = known("groups of layers with a window", r.windowed, source=PAGES_SOURCE)
        window = known("window", book.plan.architecture.window, "tokens", source="config.json")
        more = 0 if server.chunked else 1
        seen = smallest(window - more + _plan(book, "max_batched_tokens"), length)
        parts.append(groups * (ceiling(seen / block) + more))
    return about(what, "", total(parts), meaning, [PAGES_SOURCE])


def _paged(book: Book) -> bool:
    return _server(book).manager.pages


def _room(book: Book) -> Room:
    return book.once("room", lambda: room(_server(book), one_forward(_server(book))))


@rule("serve.kv_capacity_tokens")
def _tokens(book: Book) -> Explanation:
    server = _server(book)
    if server.windowed:
        if server.manager.pages:
            fit = book.at("serve.blocks") / book.at("serve.blocks_per_sequence")
        else:
            fit = book.at("serve.kv_budget_bytes") / book.at("serve.sequence_bytes")
        tokens = whole(fit * book.at("serve.sequence_tokens"))
    elif server.manager.pages:
        tokens = book.at("serve.blocks") * _plan(book, "block_size")
    else:
        tokens = whole(book.at("serve.kv_budget_bytes") / book.at("serve.kv_bytes_per_token"))
    return about("Tokens that fit", "tokens", tokens, f"{REPLICA} In sequences of this length.")


@rule("serve.sequence_tokens")
def _sequence_tokens(book: Book) -> Explanation:
    length = _plan(book, "prompt_len") + _plan(book, "output_len")
    return about("Tokens of a sequence", "tokens", length, "At its end.")


@rule("serve.sequence_bytes")
def _sequence(book: Book) -> Explanation:
    server = _server(book)
    meaning = "At its full length, on each GPU."
    if server.manager.pages:
        formula = book.at("serve.blocks_per_sequence") * book.at("serve.block_bytes")
        return about("KV cache per sequence", "bytes", formula, meaning)
    layers = known("layers that see all", server.stage_layers - server.windowed, source=SERVER)
    tokens = layers * book.at("serve.sequence_tokens")
    if server.windowed:
        window = known("window", book.plan.architecture.window, "tokens", source="config.json")
        seen = smallest(window - server.manager.dropped, book.at("serve.sequence_tokens"))
        tokens = tokens + known("with a window", server.windowed, source=SERVER) * seen
    return about("KV cache per sequence", "bytes", ceiling(tokens * _of_token(book)), meaning)


@rule("serve.wasted_bytes_per_sequence")
def _wasted(book: Book) -> Explanation:
    if book.plan.serve.kv_cache == "paged":
        idle = (_plan(book, "block_size") - 1) / 2
        meaning = "Of a sequence's last block half is empty on average."
    elif not _server(book).manager.reserves:
        meaning = "Nothing is reserved."
        return about("KV cache never used, per sequence", "bytes", None, meaning, [SERVER], value=0)
    else:
        idle = _plan(book, "output_len") / 2
        meaning = "Room for what a sequence will still say: half of its output on average."
    formula = nearest(idle * book.at("serve.kv_bytes_per_token"))
    return about("KV cache never used, per sequence", "bytes", formula, meaning)


@rule("serve.asked_bytes|replica_bytes|wasted_bytes")
def _asked(book: Book, which: str) -> Explanation:
    sequences = _plan(book, "concurrency")
    if which == "wasted_bytes":
        formula = sequences * book.at("serve.wasted_bytes_per_sequence")
        return about(
            "KV cache never used", "bytes", formula, "Of the sequences that are asked for."
        )
    if which == "replica_bytes":
        formula = book.at("serve.asked_bytes") * book.at("serve.gpus_per_replica")
        return about("KV cache of the whole replica", "bytes", formula, "Over all its GPUs.")
    formula = sequences * book.at("serve.sequence_bytes")
    return about("KV cache of these sequences", "bytes", formula, "On each GPU.")


@rule("serve.max_concurrency")
def _concurrency(book: Book) -> Explanation:
    if _paged(book):
        formula = whole(book.at("serve.blocks") / book.at("serve.blocks_per_sequence"))
    else:
        formula = whole(book.at("serve.kv_budget_bytes") / book.at("serve.sequence_bytes"))
    return about("Sequences that fit", "sequences", formula, f"{REPLICA} Each at full length.")


@rule("serve.fits")
def _fits(book: Book) -> Explanation:
    room, asked = book.at("serve.max_concurrency"), _plan(book, "concurrency")
    formula = Formula(
        room.value >= asked.value,
        f"{asked.words} is no more than {room.words}",
        f"{asked.numbers} against {room.numbers}",
        (*asked.terms, *room.terms),
    )
    return about("Serving fits", "", formula, "Whether every sequence asked for has its room.")


@rule("serve.gpus_per_replica")
def _gpus(book: Book) -> Explanation:
    formula = book.at("plan.parallel.tp") * book.at("plan.parallel.pp")
    return about("GPUs of a replica", "GPUs", formula, "One copy of the model.")


@rule("serve.replicas")
def _replicas(book: Book) -> Explanation:
    found = whole(book.at("plan.cluster.gpus") / book.at("serve.gpus_per_replica"))
    return about("Replicas", "", largest(1, found), "Copies of the model.")


# --- time ----------------------------------------------------------------------------------------


def _operations(book: Book, which: str) -> list[OperationTime]:
    if which == "prefill":
        return book.once(which, lambda: prefill_operations(_server(book)))
    running = int(book.explain("serve.running").value)
    return book.once(which, lambda: decode_operations(_server(book), running))


@rule("serve.running")
def _running(book: Book) -> Explanation:
    formula = largest(1, smallest(_plan(book, "concurrency"), book.at("serve.max_concurrency")))
    return about("Sequences that run at once", "sequences", formula, REPLICA)


@rule("serve.prefill|decode.*", f"serve.prefill|decode.*.{FIELDS}")
def _operation(book: Book, which: str, i: str, field: str = "seconds") -> Explanation:
    o = _operations(book, which)[int(i)]
    server, s = _server(book), book.plan.serve
    dtype = policies.WEIGHT_DTYPES[s.weight_dtype].compute
    running = 1 if which == "prefill" else int(book.explain("serve.running").value)
    tokens = s.prompt_len if which == "prefill" else 1
    layers, head = book.once("served", lambda: server.executions)
    if o.bound_by in ("nvlink", "network") and int(i) == len(layers) + 1 + len(head):
        if field != "seconds":
            raise LookupError
        moved = 2 * shape(book, (running, tokens, D), server.amounts(running, tokens))
        return about(o.name, "seconds", _all_reduces(book, moved, o.bound_by))

    def pieces() -> tuple[Formula, Formula, str, float]:
        if int(i) == len(layers):
            return (*_attention(book, server, which, running), ATTENTION, 1.0)
        inside = int(i) < len(layers)
        e = layers[int(i)] if inside else head[int(i) - len(layers) - 1]
        return of_execution(book, e, server.amounts(running, tokens if inside else 1))

    return operation(book, o, f"serve.{which}.{i}", field, dtype, pieces)


def _all_reduces(book: Book, moved: Formula, link: str) -> Formula:
    """Two all-reduces of the hidden state in every layer."""
    twice = known("after attention and after the MLP", 2, source="Megatron, Shoeybi et al. 2019")
    both = known("reduce-scatter and all-gather", 2, source="a ring all-reduce")
    layers = known(
        "layers",
        book.plan.architecture.layers,
        source=f"config.json of {book.plan.architecture.label}",
    )
    return twice * layers * (both * ring(book, moved, link, book.plan.parallel.tp))


def _attention(book: Book, server: Server, which: str, running: int) -> tuple[Formula, Formula]:
    """FLOPs and traffic of attention of new tokens to the cache."""
    s, model = book.plan.serve, book.plan.architecture
    amounts = server.amounts(running, 1)
    layers = known("layers", model.layers, source=f"config.json of {model.label}")
    two = known("multiply and add", 2, source=ATTENTION_OF)
    prompt = _plan(book, "prompt_len")
    half = known("a token sees half of its prompt on average", 0.5, source=ATTENTION_OF)
    if which == "prefill":
        batch, tokens, context, share = (
            known("prompt", 1, source=ATTENTION_OF),
            prompt,
            prompt,
            half,
        )
    else:
        batch, tokens = book.at("serve.running"), known("new token", 1, source=ATTENTION_OF)
        context = prompt + whole(_plan(book, "output_len") / 2)
        share = (
            half
            if s.prompt_len + s.output_len // 2 == 1
            else known("all of it", 1.0, source=ATTENTION_OF)
        )
    of = server.widths(s.prompt_len if which == "prefill" else 1)
    scores, values = (shape(book, (HEADS / TP, width), amounts) for width in of)
    work = two * batch * tokens * context * (scores + values) * share * layers
    return work, batch * context * _of_token(book) * layers


@rule("serve.ttft_seconds|tpot_seconds")
def _latency(book: Book, field: str) -> Explanation:
    which, what, meaning = {
        "ttft_seconds": ("prefill", "Time to first token", "One forward of one prompt."),
        "tpot_seconds": (
            "decode",
            "Time per output token",
            "One forward of all that run at once, one new token each, at half of their output.",
        ),
    }[field]
    every = enumerate(_operations(book, which))
    ordered = sorted(every, key=lambda item: -item[1].seconds)
    formula = total([book.at(f"serve.{which}.{i}.seconds") for i, _ in ordered])
    return about(what, "seconds", formula, meaning)


@rule("serve.prefill|decode.bound.*")
def _bound(book: Book, which: str, name: str) -> Explanation:
    found = [
        book.at(f"serve.{which}.{i}.seconds")
        for i, o in enumerate(_operations(book, which))
        if o.bound_by == name
    ]
    return about(f"Operations that {LABELS[name]} bounds", "seconds", total(found))


@rule("serve.prefill_bound_by|decode_bound_by")
def _bound_by(book: Book, field: str) -> Explanation:
    which = field.removesuffix("_bound_by")
    names = dict.fromkeys(o.bound_by for o in _operations(book, which))
    every = {name: book.at(f"serve.{which}.bound.{name}") for name in names}
    return about(f"What bounds {which}", "", whichever(every), "Where most of its seconds go.")


@rule("serve.tokens_per_second")
def _tokens_per_second(book: Book) -> Explanation:
    formula = book.at("serve.running") / book.at("serve.tpot_seconds")
    return about("Output tokens per second", "tokens/s", formula, REPLICA)
