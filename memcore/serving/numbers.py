"""How the numbers of serving come about: weights, KV cache, room, first token, next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memcore.hardware import constants, topology
from memcore.quantity.formula import (
    Formula,
    at_least_zero,
    ceiling,
    constant,
    known,
    largest,
    nearest,
    smallest,
    total,
    whichever,
    whole,
)
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.shapes import product_of, row, shape, sum_of, text_shape, width
from memcore.report import LedgerRow
from memcore.serving import allocator, stored
from memcore.serving.cache import (
    ALIGNED_SOURCE,
    CROSS_CACHE,
    KERNEL_BLOCK,
    KV_SOURCE,
    PAGES_SOURCE,
    STATE_SOURCE,
    STATES,
    Room,
    room,
)
from memcore.serving.overheads import beside, overheads
from memcore.serving.serve import LOGITS, LOGITS_COPIES, widened
from memcore.serving.server import Server, kept_by_window, one_forward
from memcore.serving.time import (
    ATTENTION,
    ATTENTION_OF,
    DRAFT,
    HEAD,
    HOST,
    LAUNCH,
    LAYERS,
    LINK,
    SCAN,
    SPLIT_ROWS,
    STATE_READ,
    TOWER,
    Felt,
    Part,
    felt,
    in_window,
    launches,
    seconds,
    seen_share,
    speed_of,
    traffic,
    transfer_rate,
    widening,
)
from memcore.serving.towers import (
    FEATURES_STAY,
    PAGES_OF_ENCODER,
    PROFILED,
    features,
    fullest,
    of_prompt,
    runs_tower,
)
from memcore.serving.weights import ROTARY_SOURCE
from memcore.tape.dims import HEADS, TP
from memcore.tape.ledger import INFERENCE, Amounts, window
from memcore.tape.tape import Tape
from memcore.timing.communication import Links
from memcore.timing.roofline import ATTENTION as ATTENDS
from memcore.timing.roofline import PRODUCT, product_flops
from memcore.training.memory import listed
from memcore.training.numbers_of_time import (
    DECLARED,
    FIELDS,
    LABELS,
    PLACE,
    ROOFLINE,
    TILES,
    TOUCHED,
    fast,
    flops,
    network,
    place,
    reached,
    ring,
    sides,
    whole_fast,
)
from memcore.units import GiB
from memcore.words.serving import PREFILLS, RUNTIMES
from memcore.words.stored import KV_DTYPES

if TYPE_CHECKING:
    from memcore.explain.book import Book

SERVER = "how a server lays out one GPU: weights, one forward, overhead, and the rest for the cache"
STORED = "the type of what is stored, its share of scales included (policies.STORED_BITS)"
REPLICA = "Of one replica."
SCHEDULER = (
    "vLLM has no more sequences than tokens in a step (SchedulerConfig.verify_max_model_len), and "
    "gives generating ones theirs first (vllm/v1/core/sched/scheduler.py)"
)


def _server(book: Book) -> Server:
    return book.once("server", lambda: Server.of(book.plan))


def _plan(book: Book, name: str, said: str = "") -> Formula:
    return book.at(f"plan.serve.{name}", said)


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
        each = book.at("serve.cross_bytes_per_sequence")
        if r.name != CROSS_CACHE:
            each = book.at("serve.sequence_bytes") - each
            if book.serve.state_bytes_per_sequence:
                each = each - book.at("serve.state_bytes_per_sequence")
        formula = each * book.at("serve.held") if field == "bytes" else each
    elif r.consumer == STATES:
        each = text_shape(book, r.shape, serving=True) * width(r.dtype)
        formula = each * book.at("serve.held") if field == "bytes" else each
    elif r.consumer == "workspace":
        formula = _activation(book)
    elif r.consumer == "rests":
        formula = _unused(book, r)
        if field == "bytes" and r.count > 1:
            formula = formula * known("layers", r.count, source="stages of a replica: serve.pp")
    elif r.consumer == "tables":
        each = width(r.dtype)
        formula = text_shape(book, r.shape, serving=True) * each
        if field == "bytes" and r.count > 1:
            formula = formula * known("layers", r.count, source="stages of a replica: serve.pp")
    else:
        bits = known(f"bits of {r.dtype}", stored.bits(r.dtype), source=STORED)
        formula = ceiling(text_shape(book, r.shape, serving=True) * bits / 8)
        if field == "bytes" and r.count > 1:
            formula = formula * known("layers", r.count, source="stages of a replica: serve.pp")
    return about(r.name, "bytes", formula, meaning, [r.source], r.certainty)


def _unused(book: Book, r: LedgerRow) -> Formula:
    """What is left of a tensor's segment."""
    bits = known(f"bits of {r.dtype}", stored.bits_alone(r.dtype), source=STORED)
    tensor = product_of(book, r.shape, serving=True) * bits / 8
    segment = known("segment", allocator.SEGMENT, "bytes", source=allocator.SOURCE)
    return ceiling(tensor / segment) * segment - tensor


@rule("serve.held")
def _held(book: Book) -> Explanation:
    running = smallest(_plan(book, "concurrency"), book.at("serve.max_concurrency"))
    meaning = "As many as are asked for, or as fit."
    return about("Sequences held at once", "sequences", running, meaning)


@rule("serve.state_bytes_per_sequence")
def _states(book: Book) -> Explanation:
    what = "State per sequence"
    meaning = (
        "What layers with a state keep of one sequence, however long it is: each that runs at once "
        "has one, from its first token on."
    )
    rows = [i for i, r in enumerate(book.serve.rows) if r.consumer == STATES]
    if not rows:
        return about(what, "bytes", None, "All layers attend.", [SERVER], value=0)
    each = [book.at(f"serve.rows.{i}.bytes_each", book.serve.rows[i].name) for i in rows]
    return about(what, "bytes", total(each), meaning, [STATE_SOURCE])


@rule("serve.table_bytes")
def _tables(book: Book) -> Explanation:
    rows = [
        (f"serve.rows.{i}", r)
        for i, r in enumerate(book.serve.rows)
        if r.consumer in ("tables", "rests")
    ]
    meaning = "What an engine keeps besides weights, and what no other tensor can use."
    if not rows:
        return about("Tables", "bytes", None, meaning, [ROTARY_SOURCE], value=0)
    return about("Tables", "bytes", sum_of(book, rows), meaning)


@rule("serve.kv_bytes_per_token")
def _per_token(book: Book) -> Explanation:
    formula = ceiling(_stage_layers(book) * _of_token(book))
    if _server(book).draft:
        formula = formula + _draft(book)
    meaning = "What one more token adds on one GPU, while no window is full."
    return about("KV cache per token", "bytes", formula, meaning)


def _draft(book: Book) -> Formula:
    """What a token of a draft's model adds."""
    draft = _server(book).draft
    assert draft
    source = f"config.json of {draft.plan.architecture.label}"
    return known("the same of the draft's model", draft.kv_per_token, "bytes", source=source)


def _stage_layers(book: Book) -> Formula:
    server = _server(book)
    source = f"config.json of {book.plan.architecture.label}"
    said = "layers that attend, on this GPU" if server.caches.recurrent else "layers on this GPU"
    return known(said, server.caches.attends, source=source)


def _of_token(book: Book) -> Formula:
    """Bytes that one layer keeps of a token."""
    dtype = KV_DTYPES[book.plan.serve.kv_dtype]
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
    rest = largest(book.at("serve.layer_bytes"), logits * copies)
    if not runs_tower(server):
        return whole(rest)
    return whole(largest(book.at("serve.tower_bytes"), book.at("serve.feature_bytes") + rest))


@rule("serve.activation_bytes")
def _activations(book: Book) -> Explanation:
    r = next(r for r in book.serve.rows if r.consumer == "workspace")
    meaning = "The most that one forward of the batched tokens needs at once."
    return about("Activations", "bytes", _activation(book), meaning, [r.source], r.certainty)


@rule("serve.layer_bytes")
def _layer(book: Book) -> Explanation:
    rows = [(f"serve.layer_rows.{k}", r) for k, r in enumerate(_layer_rows(book))]
    formula = sum_of(book, rows)
    server = _server(book)
    _, matrix = widened(server, one_forward(server))
    if matrix:
        dtype = book.plan.weights.compute
        formula = formula + width(dtype) * text_shape(book, matrix, serving=True)
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


@rule("serve.feature_bytes")
def _features(book: Book) -> Explanation:
    server = _server(book)
    what, source = "Results of the tower", FEATURES_STAY
    if not runs_tower(server):
        return about(what, "bytes", None, "Nothing runs before the layers.", [SERVER], value=0)
    formula = width(server.compute) * shape(book, features(server), one_forward(server))
    return about(what, "bytes", formula, "They stay while the layers run.", [source])


@rule("serve.profiled_images")
def _profiled(book: Book) -> Explanation:
    server, model = _server(book), book.plan.architecture
    what, meaning = "Images of one forward", "As many as it may bring at once."
    image = model.tower.image if model.tower else None
    if not (image and book.plan.serve.images):
        return about(what, "images", None, "Prompts have none.", [SERVER], value=0)
    batched = _plan(book, "max_batched_tokens")
    if not server.manager.pages:
        of_prompts = largest(1, whole(batched / _plan(book, "prompt_len")))
        return about(what, "images", of_prompts * _plan(book, "images"), meaning)
    each = known("tokens of an image", image.prompted, "tokens", source="config.json")
    asked = _plan(book, "concurrency") * _plan(book, "images")
    formula = largest(1, smallest(whole(largest(batched, each) / each), asked))
    return about(what, "images", formula, meaning, [PROFILED])


def _alive(book: Book, tapes: Sequence[Tape]) -> tuple[LedgerRow, ...]:
    """What is alive at the peak of the part that needs the most."""
    amounts = one_forward(_server(book))
    windows = [window(tape, INFERENCE) for tape in tapes]
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


@rule("serve.offloaded_bytes")
def _offloaded(book: Book) -> Explanation:
    what, meaning = "Weights on the host", "Read over PCIe in every forward."
    gib = known("GiB", GiB, "bytes", source="the unit")
    asked = whole(_plan(book, "offload_weights") * gib)
    return about(what, "bytes", smallest(asked, book.at("serve.weights_bytes")), meaning)


@rule("serve.kv_budget_bytes")
def _kv_budget(book: Book) -> Explanation:
    if book.plan.serve.offload_kv == "cpu":
        share = _plan(book, "memory_utilization")
        ranks = known("GPUs in a node", book.plan.gpus_in_node, source="the plan")
        formula = whole(whole(book.at("hardware.dram_bytes") * share) / ranks)
        return about("Room for KV cache", "bytes", formula, "In the host's memory, of each GPU.")
    taken = ("weights_bytes", "table_bytes", "activation_bytes", "overhead_bytes")
    formula = book.at("serve.budget_bytes")
    for name in taken:
        formula = formula - book.at(f"serve.{name}")
    if book.plan.serve.offload_weights:
        formula = formula + book.at("serve.offloaded_bytes")
    return about("Room for KV cache", "bytes", at_least_zero(formula), "On each GPU.", [SERVER])


@rule("serve.block_tokens")
def _block_tokens(book: Book) -> Explanation:
    what, given = "Tokens of a block", _plan(book, "block_size")
    meaning = "Keys and values of so many tokens, in each layer of a group that attends."
    if not _paged(book):
        return about(what, "tokens", None, "The cache has no pages.", [SERVER], value=0)
    held = _server(book).caches
    if not (held.attends and held.recurrent):
        return about(what, "tokens", given, meaning)
    step = largest(given, known("tokens at least", KERNEL_BLOCK, "tokens", source=ALIGNED_SOURCE))
    state = _state_of_a_layer(book)
    formula = step * ceiling(state / (step * _of_token(book)))
    meaning = f"{meaning} As many as make a page hold a layer's state."
    return about(what, "tokens", formula, meaning, [ALIGNED_SOURCE])


def _state_of_a_layer(book: Book) -> Formula:
    server = _server(book)
    amounts = one_forward(server)
    return total([shape(book, of, amounts) * width(dtype) for _, of, dtype in server.states])


@rule("serve.block_bytes")
def _block_bytes(book: Book) -> Explanation:
    r = _room(book)
    meaning = "One block: a page of each layer of a group."
    if not _paged(book):
        return about("Bytes of a block", "bytes", None, meaning, [SERVER], value=0)
    group = known("layers of a group", r.group, source=PAGES_SOURCE)
    formula = group * _page(book)
    if _server(book).draft:
        formula = formula + book.at("serve.block_tokens") * _draft(book)
    return about("Bytes of a block", "bytes", formula, meaning, [PAGES_SOURCE])


def _page(book: Book) -> Formula:
    """Bytes of one layer's page."""
    if not _server(book).caches.attends:
        return _state_of_a_layer(book)
    return ceiling(book.at("serve.block_tokens") * _of_token(book))


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
    length, block = book.at("serve.sequence_tokens"), book.at("serve.block_tokens")
    if book.plan.architecture.encoder_decoder:
        heard, own = (_plan(book, name) for name in ("prompt_len", "output_len"))
        source = [PAGES_SOURCE, PAGES_OF_ENCODER]
        return about(what, "", ceiling(heard / block) + ceiling(own / block), meaning, source)
    if r.recurrent:
        groups = known("groups of layers with a state", r.recurrent, source=PAGES_SOURCE)
        parts.append(groups * _copies(book))
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


def _copies(book: Book) -> Formula:
    one = known("state of a sequence", 1, source=STATE_SOURCE)
    return one + _plan(book, "draft_tokens") if book.plan.serve.draft_tokens else one


def _paged(book: Book) -> bool:
    return _server(book).manager.pages


def _room(book: Book) -> Room:
    return book.once("room", lambda: room(_server(book), one_forward(_server(book))))


@rule("serve.kv_capacity_tokens")
def _tokens(book: Book) -> Explanation:
    server = _server(book)
    if server.bounded:
        if server.manager.pages:
            fit = book.at("serve.blocks") / book.at("serve.blocks_per_sequence")
        else:
            fit = book.at("serve.kv_budget_bytes") / book.at("serve.sequence_bytes")
        tokens = whole(fit * book.at("serve.room_tokens"))
    elif server.manager.pages:
        tokens = book.at("serve.blocks") * book.at("serve.block_tokens")
    else:
        tokens = whole(book.at("serve.kv_budget_bytes") / book.at("serve.kv_bytes_per_token"))
    return about("Tokens that fit", "tokens", tokens, f"{REPLICA} In sequences of this length.")


@rule("serve.sequence_tokens")
def _sequence_tokens(book: Book) -> Explanation:
    length = _plan(book, "prompt_len") + _plan(book, "output_len")
    return about("Tokens of a sequence", "tokens", length, "At its end.")


@rule("serve.reserved_tokens")
def _reserved(book: Book) -> Explanation:
    what, meaning = "Tokens reserved", "For which a sequence has memory from its start."
    if not _server(book).reserves:
        return about(what, "tokens", None, "Nothing is reserved.", [SERVER], value=0)
    if book.plan.serve.max_seq_len:
        return about(what, "tokens", _plan(book, "max_seq_len"), meaning)
    config = f"config.json of {book.plan.architecture.label}"
    limit = known("the model's limit", book.plan.architecture.max_positions, "tokens",
                  source=config)  # fmt: skip
    formula = largest(limit, book.at("serve.sequence_tokens"))
    return about(what, "tokens", formula, f"{meaning} serve.max_seq_len sets another limit.")


@rule("serve.room_tokens")
def _room_tokens(book: Book) -> Explanation:
    name = "reserved_tokens" if _server(book).reserves else "sequence_tokens"
    meaning = "That the cache has room for, for each sequence."
    return about("Tokens of a sequence's room", "tokens", book.at(f"serve.{name}"), meaning)


def _layer_tokens(book: Book, tokens: Formula) -> Formula:
    """Tokens that the layers keep of so many, added up: a window keeps no more than it sees."""
    server = _server(book)
    found = known("layers that see all", server.caches.full, source=SERVER) * tokens
    if server.windowed:
        window = known("window", book.plan.architecture.window, "tokens", source="config.json")
        seen = (
            smallest(window - server.manager.dropped, tokens) if kept_by_window(server) else tokens
        )
        found = found + known("with a window", server.windowed, source=SERVER) * seen
    return found


@rule("serve.sequence_bytes")
def _sequence(book: Book) -> Explanation:
    server = _server(book)
    meaning = "At its full length, on each GPU."
    if server.manager.pages:
        formula = book.at("serve.blocks_per_sequence") * book.at("serve.block_bytes")
        return about("KV cache per sequence", "bytes", formula, meaning)
    if server.reserves:
        meaning = "Reserved for the longest sequence that the server lets in, on each GPU."
    tokens = book.at("serve.room_tokens")
    formula = ceiling(_layer_tokens(book, tokens) * _of_token(book))
    if server.draft:
        formula = formula + tokens * _draft(book)
    if book.serve.state_bytes_per_sequence:
        formula = formula + book.at("serve.state_bytes_per_sequence")
    return about("KV cache per sequence", "bytes", formula, meaning)


@rule("serve.cross_bytes_per_sequence")
def _cross(book: Book) -> Explanation:
    what = "Cross-attention cache per sequence"
    if not book.plan.architecture.encoder_decoder:
        return about(what, "bytes", None, "There is no encoder.", [SERVER], value=0)
    meaning = "Keys and values of the encoder's tokens in every decoder layer, made once."
    prompt = _plan(book, "prompt_len")
    if _paged(book):
        blocks = ceiling(prompt / book.at("serve.block_tokens"))
        source = [PAGES_SOURCE, PAGES_OF_ENCODER]
        return about(what, "bytes", blocks * book.at("serve.block_bytes"), meaning, source)
    formula = ceiling(_stage_layers(book) * prompt * _of_token(book))
    return about(what, "bytes", formula, meaning)


@rule("serve.wasted_bytes_per_sequence")
def _wasted(book: Book) -> Explanation:
    server, what = _server(book), "KV cache never used, per sequence"
    if server.reserves:
        reserved = book.at("serve.reserved_tokens")
        used = book.at("serve.sequence_tokens") - _plan(book, "output_len") / 2
        idle = _layer_tokens(book, reserved) - _layer_tokens(book, used)
        unused = idle * _of_token(book)
        if server.draft:
            unused = unused + (reserved - used) * _draft(book)
        meaning = "Of what is reserved, all but a prompt and half of its output, on average."
        return about(what, "bytes", nearest(unused), meaning)
    if not _paged(book):
        return about(what, "bytes", None, "Nothing is reserved.", [SERVER], value=0)
    idle = (book.at("serve.block_tokens") - 1) / 2
    if book.plan.architecture.encoder_decoder:
        idle = known("of the encoder's and of its own", 2, source=PAGES_SOURCE) * idle
    meaning = "Of a sequence's last block half is empty on average."
    formula = nearest(idle * book.at("serve.kv_bytes_per_token"))
    if server.caches.recurrent:
        layers = known("layers with a state", server.caches.recurrent, source=SERVER)
        unfilled = _page(book) - _state_of_a_layer(book)
        formula = formula + layers * _copies(book) * unfilled
        meaning += " A state does not fill its page."
    return about(what, "bytes", formula, meaning)


@rule("serve.asked_bytes|asked_state_bytes|asked_kv_bytes|replica_bytes|wasted_bytes")
def _asked(book: Book, which: str) -> Explanation:
    sequences = _plan(book, "concurrency")
    if which == "asked_state_bytes":
        formula = sequences * book.at("serve.state_bytes_per_sequence")
        return about("States of these sequences", "bytes", formula, "On each GPU, at any length.")
    if which == "asked_kv_bytes":
        formula = book.at("serve.asked_bytes") - book.at("serve.asked_state_bytes")
        meaning = "With what pads their pages, and those of states."
        return about("Keys and values of these sequences", "bytes", formula, meaning)
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
    meaning = f"{REPLICA} Each at full length."
    if _server(book).reserves:
        meaning = f"{REPLICA} Each with room for the longest that the server lets in."
    return about("Sequences that fit", "sequences", formula, meaning)


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


@rule("serve.tp|pp")
def _ranks(book: Book, which: str) -> Explanation:
    own, what = (
        getattr(book.plan.serve, which),
        {"tp": "Tensor parallel", "pp": "Pipeline parallel"},
    )
    meaning = "Of one replica." if own else f"As in training: serve.{which} sets another."
    formula = book.at(f"plan.serve.{which}" if own else f"plan.parallel.{which}")
    return about(f"{what[which]} of serving", "", formula, meaning)


@rule("serve.gpus_per_replica")
def _gpus(book: Book) -> Explanation:
    formula = book.at("serve.tp") * book.at("serve.pp")
    return about("GPUs of a replica", "GPUs", formula, "One copy of the model.")


@rule("serve.replicas")
def _replicas(book: Book) -> Explanation:
    found = whole(book.at("plan.cluster.gpus") / book.at("serve.gpus_per_replica"))
    return about("Replicas", "", largest(1, found), "Copies of the model.")


def _felt(book: Book) -> Felt:
    running = int(book.explain("serve.running").value)
    if not running:
        raise LookupError("nothing fits, so there are no speeds")
    return book.once("felt", lambda: felt(_server(book), running))


def _parts(book: Book, which: str) -> list[Part]:
    felt = _felt(book)
    return {"tower": felt.tower, "prefill": felt.prefill, "decode": felt.decode}[which]


@rule("serve.running")
def _running(book: Book) -> Explanation:
    held = smallest(_plan(book, "concurrency"), book.at("serve.max_concurrency"))
    formula = smallest(held, book.at("serve.step_sequences"))
    meaning = "Asked for, with room, and in one step. The speeds are of these."
    return about("Sequences that run at once", "sequences", formula, meaning)


@rule("serve.step_sequences")
def _at_once(book: Book) -> Explanation:
    s = book.plan.serve
    each: Formula = known("token of a sequence in a step", 1, "tokens", source=SCHEDULER)
    if s.draft_tokens:
        each = each + _plan(book, "draft_tokens")
    meaning = "Each takes a token of every step, and with a draft its guesses."
    if PREFILLS[s.prefill].chunked and not book.plan.architecture.encoder_decoder:
        out = _plan(book, "output_len") / book.at("serve.tokens_per_step")
        each = each + _plan(book, "prompt_len") / out
        meaning += " In the long run prompts take as many for each as a request has of them."
    formula = largest(1, whole(_plan(book, "max_batched_tokens") / each))
    return about("Sequences of one step", "sequences", formula, meaning, [SCHEDULER])


@rule("serve.prefill|decode|tower.*", f"serve.prefill|decode|tower.*.{FIELDS}")
def _operation(book: Book, which: str, i: str, field: str = "seconds") -> Explanation:
    part, base = _parts(book, which)[int(i)], f"serve.{which}.{i}"
    o = part.time
    if part.kind not in (LAYERS, HEAD, ATTENTION, SCAN, TOWER):
        if field != "seconds":
            raise LookupError
        return about(o.name, "seconds", _rest(book, part, which), "In one step.")
    attends = part.kind == ATTENTION
    if field == "flops":
        work = _attended(book, part) if attends else _work(book, part)
        return about(f"FLOPs of {o.name}", "FLOP", work, "In one step, on one GPU.", [DECLARED])
    if field == "hbm_bytes":
        moved = _read(book, part) if attends else _weights_read(book, part) + _others(book, part)
        if part.kind == SCAN:
            moved = moved + _states_moved(book, part)
        return about(f"HBM traffic of {o.name}", "bytes", moved, "In one step.", [TOUCHED])
    if field == "compute_seconds":
        dtype = book.plan.weights
        kernel = ATTENDS if attends else part.execution.work.kernel if part.execution else PRODUCT
        rate = reached(book, dtype.product or dtype.compute, kernel, serving=True)
        formula = book.at(f"{base}.flops", "FLOPs") / rate
        if o.compute_seconds and not attends and part.batch * part.tokens >= SPLIT_ROWS:
            formula = formula / known("share of the GPU that is filled", _filled(book, part),
                                      source=TILES)  # fmt: skip
        return about(f"Arithmetic of {o.name}", "seconds", formula, "If only compute limited it.")
    if field == "hbm_seconds":
        rate = book.at("hardware.memory_bandwidth") * constant(constants.DECODE_BANDWIDTH)
        share = widening(_server(book))
        if attends or not part.weights:
            formula = book.at(f"{base}.hbm_bytes", "HBM traffic") / rate
        else:
            read = _weights_read(book, part) / constant(share)
            formula = (read + _others(book, part)) / rate
            if part.kind == SCAN:
                formula = formula + _states_moved(book, part) / rate
        return about(f"HBM traffic of {o.name}", "seconds", formula, "If only HBM limited it.")
    if field in PLACE:
        return place(book, o.name, base, field)
    longer = largest(*sides(book, base).values())
    return about(o.name, "seconds", longer, "In one step.", [ROOFLINE])


def _amounts(book: Book, part: Part) -> Amounts:
    if part.kind == TOWER:
        return of_prompt(_server(book))
    return _server(book).amounts(part.batch, part.tokens)


def _work(book: Book, part: Part) -> Formula:
    assert part.execution
    return flops(book, part.execution.work, part.execution.runs, _amounts(book, part))


def _filled(book: Book, part: Part) -> float:
    assert part.execution
    speed = speed_of(_server(book))
    work, padded = product_flops(part.execution.work, _amounts(book, part), speed.sms)
    return work / padded


def _weights_read(book: Book, part: Part) -> Formula:
    note = "as they are stored, of all layers that run it"
    return known("weights", part.weights, "bytes", source=TOUCHED, note=note)


def _others(book: Book, part: Part) -> Formula:
    assert part.execution
    _, others = traffic(_server(book), part.execution, _amounts(book, part))
    return known("activations", others * part.execution.runs, "bytes", source=TOUCHED)


def _states_moved(book: Book, part: Part) -> Formula:
    """Bytes of states that a scan reads and writes."""
    times = _copies(book) + known("time that it is read", 1, source=STATE_READ)
    layers = known("layers with a state", part.time.runs, source="config.json")
    sequences = known("sequences", part.batch, source="the plan, and what fits: serve.running")
    return times * layers * sequences * _state_of_a_layer(book)


def _tokens_of(book: Book, part: Part) -> tuple[Formula, Formula, Formula]:
    """Sequences, new tokens of each, and tokens that each sees."""
    source = "the plan, and what fits: serve.running"
    return (
        known("sequences", part.batch, source=source),
        known("new tokens of each", part.tokens, source=source),
        known("tokens that each sees", part.context, source=source, note="on average"),
    )


def _layers_seen(book: Book, part: Part, share: float) -> Formula:
    """Layers, each by the share of the context that it sees."""
    server, model = _server(book), book.plan.architecture
    config = f"config.json of {model.label}"
    layers = known("layers", server.every.full, source=config)
    if not server.every.windowed:
        return layers
    windowed = known("layers with a window", server.every.windowed, source=config)
    return layers + windowed * known("share that a window sees", share, source=config)


def _attended(book: Book, part: Part) -> Formula:
    """FLOPs of attention of new tokens to the cache."""
    server = _server(book)
    two = known("multiply and add", 2, source=ATTENTION_OF)
    batch, tokens, context = _tokens_of(book, part)
    half = known("a token sees half of its prompt on average", 0.5, source=ATTENTION_OF)
    share = half if part.tokens == part.context else known("all of it", 1.0, source=ATTENTION_OF)
    amounts = _amounts(book, part)
    scores, values = (
        shape(book, (HEADS / TP, width), amounts) for width in server.widths(part.tokens)
    )
    work = two * batch * tokens * context * (scores + values)
    return work * share * _layers_seen(book, part, seen_share(book.plan, part.tokens, part.context))


def _read(book: Book, part: Part) -> Formula:
    """Bytes of the cache that it reads."""
    batch, _, context = _tokens_of(book, part)
    seen = _layers_seen(book, part, in_window(book.plan, part.context))
    return batch * context * _of_token(book) * seen


def _rest(book: Book, part: Part, which: str) -> Formula:
    """Seconds of what is not an operation on the GPU."""
    plan, o = book.plan, part.time
    if part.kind == LINK:
        return _reductions(book, part)
    if part.kind == DRAFT:
        times = _plan(book, "draft_tokens")
        one = o.seconds / plan.serve.draft_tokens
        source = f"a step of {plan.serve.draft_model} with the same sequences"
        return times * known("a step of the draft's model", one, "seconds", source=source,
                             certainty="assumed")  # fmt: skip
    of_layers = [p for p in _parts(book, which) if p.kind not in (LINK, HOST, LAUNCH, DRAFT)]
    busy = known("the rest of the step", seconds(of_layers), "seconds", source=ROOFLINE,
                 certainty="assumed")  # fmt: skip
    if part.kind == HOST:
        rate = book.at("hardware.pcie_bandwidth") * constant(constants.LINK_EFFICIENCY)
        source = "as many as serve.offload_weights says, or the keys and values of all"
        moved = known("bytes", part.weights, "bytes", source=source) / rate
        return at_least_zero(moved - busy) if "cache" in o.name else moved
    runtime = RUNTIMES[plan.serve.runtime]
    if not runtime.launches:
        tower = _server(book).tower
        n = tower.layers if which == "tower" and tower else plan.architecture.layers
        return constant(runtime.layer) * known("layers", n, source="config.json")
    kernels = launches(_server(book), of_layers)
    started = known("kernels", kernels, source="operations of the layers and the head") * constant(
        constants.HOST_LAUNCH
    )
    if plan.node.host_slowness != 1:
        started = started * book.at("hardware.host_slowness")
    return at_least_zero(started - busy)


def _reductions(book: Book, part: Part) -> Formula:
    """All-reduces of the hidden state: two in every layer, or one of each part that it has."""
    plan, o = book.plan, part.time
    source = "Megatron, Shoeybi et al. 2019"
    if plan.architecture.recurrence:
        named = known("after attention, states and MLPs of all layers", o.runs, source=source)
    else:
        twice = known("after attention and after the MLP", 2, source=source)
        named = twice * known("layers", plan.architecture.layers, source="config.json")
    both = known("reduce-scatter and all-gather", 2, source="a ring all-reduce")
    width = known("hidden size", plan.architecture.hidden_size, source="config.json")
    tokens = known("new tokens", part.tokens, source="the plan, and what fits")
    moved = known("bytes of a value", 2.0, "bytes", source="the dtype") * tokens * width
    ring_of = both * ring(book, moved, o.bound_by, plan.serving_tp)
    over = Links.of(plan, plan.serving_tp)
    if over.domains > 1 or not over.direct:
        return named * ring_of
    others = known("other ranks", over.ranks - 1, source="ranks of a replica: serve.tp")
    shot = constant(constants.ONE_SHOT) + moved * others / fast(book, over.inside, 1)
    return named * smallest(ring_of, shot)


def _sum(book: Book, which: str) -> Formula:
    """Seconds of one step."""
    every = enumerate(p.time for p in _parts(book, which))
    ordered = sorted(every, key=lambda item: -item[1].seconds)
    return total([book.at(f"serve.{which}.{i}.seconds") for i, _ in ordered])


@rule("serve.prefill_step|decode_step")
def _step(book: Book, which: str) -> Explanation:
    what = "A step of the prompt" if which == "prefill_step" else "A step of all that run"
    return about(what, "seconds", _sum(book, which.removesuffix("_step")), "On one replica.")


@rule("serve.prefill_steps")
def _chunks(book: Book) -> Explanation:
    _felt(book)
    meaning = "In which a prompt is read."
    if not PREFILLS[book.plan.serve.prefill].chunked:
        return about("Steps of a prompt", "", None, meaning, [SERVER], value=1)
    theirs = book.at("serve.running")
    if book.plan.serve.draft_tokens:
        own = known("token of a step", 1, source=SCHEDULER)
        theirs = theirs * (own + _plan(book, "draft_tokens"))
    room = largest(1, _plan(book, "max_batched_tokens") - theirs)
    return about("Steps of a prompt", "", ceiling(_plan(book, "prompt_len") / room), meaning)


@rule("serve.tower_seconds")
def _once(book: Book) -> Explanation:
    what, meaning = "What runs once for a prompt", "Before its first step, on one replica."
    if not _parts(book, "tower"):
        nothing = "Nothing runs before the layers."
        return about(what, "seconds", None, nothing, [SERVER], value=0.0)
    return about(what, "seconds", _sum(book, "tower"), meaning)


@rule("serve.transfer_seconds")
def _transfer(book: Book) -> Explanation:
    _felt(book)
    what, meaning = "Sending the cache over", "Of one prompt, to the GPUs that generate."
    if not PREFILLS[book.plan.serve.prefill].elsewhere:
        return about(what, "seconds", None, "It stays where it is.", [SERVER], value=0.0)
    link, _ = transfer_rate(book.plan)
    moved = _plan(book, "prompt_len") * book.at("serve.kv_bytes_per_token")
    held = _server(book).caches.recurrent
    if held:
        moved = moved + known("layers with a state", held, source=SERVER) * _state_of_a_layer(book)
    rate = network(book)
    if link != "network":
        rate = whole_fast(book)
        joined = topology.inside(book.plan.node, 2, 1, book.plan.cluster.gpus)
        if joined.next != joined.links:
            links = known("links of one GPU, of which one is used", joined.links,
                          source=book.plan.node.label)  # fmt: skip
            rate = rate * joined.next / links
    return about(what, "seconds", moved / (rate * constant(constants.LINK_EFFICIENCY)), meaning)


@rule("serve.tokens_per_step")
def _per_step(book: Book) -> Explanation:
    what, n = "Tokens of a step", book.plan.serve.draft_tokens
    right = book.plan.serve.draft_acceptance
    if not n or right == 1:
        meaning = "Every guess is right." if n else "One each."
        return about(what, "", None, meaning, [SERVER], value=float(n + 1))
    accepted = _plan(book, "draft_acceptance")
    left = known("that all are right", right ** (n + 1), source="serve.draft_acceptance, each")
    source = "Leviathan et al., Fast inference from transformers via speculative decoding, eq. 1"
    one = known("certainty", 1, source=source)
    return about(
        what, "", (one - left) / (one - accepted), "Of one sequence, on average.", [source]
    )


@rule("serve.stall_seconds")
def _stall(book: Book) -> Explanation:
    words = PREFILLS[book.plan.serve.prefill]
    meaning = "Between two tokens of a sequence while another's prompt is read."
    formula = book.at("serve.prefill_step" if words.chunked else "serve.decode_step")
    if not words.chunked and not words.elsewhere:
        formula = formula + book.at("serve.prefill_step")
    if not words.elsewhere and _parts(book, "tower"):
        formula = formula + book.at("serve.tower_seconds")
    return about("Longest gap", "seconds", formula, meaning)


@rule("serve.ttft_seconds|tpot_seconds")
def _latency(book: Book, field: str) -> Explanation:
    if field == "ttft_seconds":
        formula = book.at("serve.prefill_steps") * book.at("serve.prefill_step")
        formula = formula + book.at("serve.transfer_seconds")
        if _parts(book, "tower"):
            formula = book.at("serve.tower_seconds") + formula
        return about("Time to first token", "seconds", formula, "Of one prompt that need not wait.")
    formula = book.at("serve.decode_step") / book.at("serve.tokens_per_step")
    meaning = "A step of all that run at once, at half of their output."
    return about("Time per output token", "seconds", formula, meaning)


def _with_tower(which: str) -> tuple[str, ...]:
    """A prompt's step, and what runs once before it."""
    return ("tower", which) if which == "prefill" else (which,)


@rule("serve.prefill|decode.bound.*")
def _bound(book: Book, which: str, name: str) -> Explanation:
    found = [
        book.at(f"serve.{of}.{i}.seconds")
        for of in _with_tower(which)
        for i, p in enumerate(_parts(book, of))
        if p.time.bound_by == name
    ]
    return about(f"Operations that {LABELS.get(name, name)} bounds", "seconds", total(found))


@rule("serve.prefill_bound_by|decode_bound_by")
def _bound_by(book: Book, field: str) -> Explanation:
    which = field.removesuffix("_bound_by")
    every_part = (p for of in _with_tower(which) for p in _parts(book, of))
    names = dict.fromkeys(p.time.bound_by for p in every_part)
    every = {name: book.at(f"serve.{which}.bound.{name}") for name in names}
    return about(f"What bounds {which}", "", whichever(every), "Where most of its seconds go.")


@rule("serve.tokens_per_second")
def _tokens_per_second(book: Book) -> Explanation:
    formula = book.at("serve.running") / book.at("serve.tpot_seconds")
    return about("Output tokens per second", "tokens/s", formula, REPLICA)
