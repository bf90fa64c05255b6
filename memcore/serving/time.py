"""Serving time: one forward of a server, operation by operation, and what a request feels of it.

Decoding reads every weight once for each step, so that bandwidth decides, and after it what lies
between kernels: constants.DECODE_*. They were read off the runs that served.toml marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memcore.hardware import constants
from memcore.quantity.reading import Read, Values, ceil, computed, largest, quantity, where
from memcore.report import OperationTime
from memcore.serving.cache import SERVER
from memcore.serving.room import SCHEDULER
from memcore.serving.towers import of_prompt, rows, runs_tower
from memcore.tape.dims import HEADS, TP
from memcore.tape.ledger import Amounts
from memcore.timing.communication import Links
from memcore.timing.host import each_start
from memcore.timing.roofline import Execution, Speed, product_flops
from memcore.units import GiB
from memcore.words.serving import PREFILLS, RUNTIMES
from memcore.words.stored import STORED_BITS

if TYPE_CHECKING:
    from memcore.plan.plan import Plan
    from memcore.serving.server import Server

SPLIT_ROWS = 256  # products of fewer rows split their sums over the GPU; others come in whole tiles
CACHE_READ = "attention over the cache"
ATTENTION_OF = "new tokens attend to the cache: each reads every key and value once"
LAYERS, ATTENTION, SCAN, HEAD, LINK, LAUNCH, HOST, DRAFT, TOWER = (
    *("layers", "attention", "scan", "head", "link", "launch", "host", "draft", "tower"),
)
LEVIATHAN = "Leviathan et al., Fast inference from transformers via speculative decoding, eq. 1"
STATE_READ = "each step reads and writes every state of each sequence once"


@dataclass(slots=True)  # not frozen, like the times that it is of
class Part:
    """One operation of a forward, and what it is made of.

    kind       one of the words above
    execution  of layers, head and tower
    batch, tokens, context    sequences, new tokens of each, tokens that each sees
    weights    bytes of them that it reads
    states     bytes of its sequences' states, once
    behind     of a copy: the rest of the step hides it
    """

    kind: str
    time: OperationTime
    batch: int = 0
    tokens: int = 0
    context: float = 0
    execution: Execution | None = None
    weights: float = 0.0
    states: float = 0.0
    behind: bool = False


def forward(
    server: Server, batch: int, tokens: int, context: float, logits: int
) -> list[OperationTime]:
    """One forward through all layers: `batch` sequences of `tokens` new tokens at `context`."""
    return [p.time for p in parts(server, batch, tokens, context, logits)]


def seconds(parts: Sequence[Part]) -> float:
    return sum((p.time.seconds for p in parts), 0.0)


def parts(server: Server, batch: int, tokens: int, context: float, logits: int) -> list[Part]:
    """The same, with what each operation is made of."""
    found = of_layers(server, batch, tokens)
    found += mixing(server, batch, tokens, context)
    found += of_head(server, logits)
    return found + between(server, found, batch * tokens)


def mixed(server: Server, running: int, context: float, chunk: int, start: float) -> list[Part]:
    """One step of `running` sequences together with a part of another's prompt, at `start`."""
    found = of_layers(server, 1, running + chunk)
    found += mixing(server, running, 1, context)
    found += mixing(server, 1, chunk, start + chunk / 2)
    found += of_head(server, running + 1)
    return found + between(server, found, running + chunk)


def speed_of(server: Server) -> Speed:
    dtype = server.plan.weights
    return Speed.of(server.plan.accelerator, dtype.product or dtype.compute)


def bandwidth(plan: Plan) -> float:
    """B/s that a kernel which only reads reaches."""
    return plan.accelerator.memory_bandwidth * constants.DECODE_BANDWIDTH.middle


def widening(server: Server) -> constants.Constant:
    """The share of that which a product reaches whose weights are widened first."""
    dtype = server.plan.weights
    bits = STORED_BITS[dtype.matrices]
    native = dtype.product and server.plan.accelerator.flops.get(dtype.product)
    if bits >= 16 or native:
        return constants.AS_STORED
    return constants.WIDENED_8 if bits >= 6 else constants.WIDENED_4


def of_layers(server: Server, batch: int, tokens: int) -> list[Part]:
    amounts = server.amounts(batch, tokens)
    rates = _Rates.of(server)
    return [_part(server, LAYERS, e, amounts, batch, tokens, rates) for e in server.executions[0]]


def of_head(server: Server, logits: int) -> list[Part]:
    amounts = server.amounts(logits, 1)
    rates = _Rates.of(server)
    return [_part(server, HEAD, e, amounts, logits, 1, rates) for e in server.executions[1]]


class _Rates(NamedTuple):
    """What all operations of a forward have in common."""

    speed: Speed
    widening: float
    bandwidth: float

    @classmethod
    def of(cls, server: Server) -> _Rates:
        return cls(speed_of(server), widening(server).middle, bandwidth(server.plan))


def _part(
    server: Server, kind: str, e: Execution, amounts: Amounts, batch: int, tokens: int,
    rates: _Rates,
) -> Part:  # fmt: skip
    """An operation whose weights are read as they are stored."""
    speed = rates.speed
    work, padded = product_flops(e.work, amounts, speed.sms) if e.work.flops else (0.0, 0.0)
    weights, others = traffic(server, e, amounts)
    compute = (padded if batch * tokens >= SPLIT_ROWS else work) / speed.of_kernel(e.work.kernel)
    hbm = (weights / rates.widening + others) / rates.bandwidth
    runs = e.runs
    time = OperationTime(
        e.work.name, e.work.phase, work * runs, (weights + others) * runs, compute * runs,
        hbm * runs, max(compute, hbm) * runs, "compute" if compute >= hbm else "hbm", runs,
    )  # fmt: skip
    return Part(kind, time, batch, tokens, 0, e, weights * runs)


def of_tower(server: Server) -> list[Part]:
    """What runs once for a prompt: an encoder and the keys and values that layers keep of its
    result, or what makes tokens of a prompt's images."""
    if server.tower is None or not runs_tower(server):
        return []
    amounts, rates = of_prompt(server), _Rates.of(server)
    batch, tokens = rows(server)
    found = [_part(server, TOWER, e, amounts, batch, tokens, rates) for e in server.once]
    return [*found, _between_kernels(server, found, server.tower.layers)]


def traffic(server: Server, e: Execution, amounts: Amounts) -> tuple[float, float]:
    """Bytes of weights, as stored, and of everything else that one run reads and writes."""
    weights = others = 0.0
    for shape, dtype, n in e.work.traffic:
        bits = server.bits.get(shape)
        if bits is None:
            others += n * amounts.bytes(shape, dtype)
        else:
            weights += n * amounts.elements(shape) * bits / 8
    return weights, others


def mixing(server: Server, batch: int, tokens: int, context: float) -> list[Part]:
    """What mixes new tokens with those before: attention, and scans through states."""
    attends = [attention(server, batch, tokens, context)] if server.every.attends else []
    return attends + scans(server, batch, tokens)


def scans(server: Server, batch: int, tokens: int) -> list[Part]:
    """New tokens through the states of their sequences, which each scan reads and writes once; with
    a draft it writes one for each guess."""
    if not server.every.recurrent:
        return []
    amounts, rates = server.amounts(batch, tokens), _Rates.of(server)
    found = []
    for e in server.executions[2]:
        part = _part(server, SCAN, e, amounts, batch, tokens, rates)
        states = float(batch * server.state_bytes(amounts) * e.runs)
        o, moved = part.time, (1 + server.state_copies) * states
        hbm = o.hbm_seconds + moved / rates.bandwidth
        time = OperationTime(
            o.name, o.phase, o.flops, o.hbm_bytes + moved, o.compute_seconds, hbm,
            max(o.compute_seconds, hbm), "compute" if o.compute_seconds >= hbm else "hbm", o.runs,
        )  # fmt: skip
        found.append(replace(part, time=time, states=states))
    return found


def attention(server: Server, batch: int, tokens: int, context: float) -> Part:
    """Attention of new tokens to the cache: it reads every key and value once, of a layer with a
    window no more than that. Of an encoder-decoder each layer attends twice, to other tokens."""
    plan, speed = server.plan, speed_of(server)
    amounts = server.amounts(batch, tokens)
    layers, windowed = server.every.attends, server.every.windowed
    seen, visible = (
        layers - windowed + windowed * share
        for share in (seen_share(plan, tokens, context), in_window(plan, context))
    )
    read = server.cached(amounts) * server.kv_bits / 8
    products = sum(amounts.elements((HEADS / TP, width)) for width in server.widths(tokens))
    share = 0.5 if tokens == context else 1.0  # a prompt's tokens see half of it on average
    flops = 2.0 * batch * tokens * context * products * share * seen
    moved = batch * context * read * visible
    compute, hbm = flops / speed.attention, moved / bandwidth(plan)
    time = OperationTime(
        CACHE_READ, "forward", flops, moved, compute, hbm, max(compute, hbm),
        "compute" if compute >= hbm else "hbm", layers,
    )  # fmt: skip
    return Part(ATTENTION, time, batch, tokens, context)


def in_window(plan: Plan, context: float) -> float:
    """The share of its context that a token sees in a layer with a window."""
    return min(1.0, plan.architecture.window / max(1.0, context))


def seen_share(plan: Plan, tokens: float, context: float) -> float:
    """The same of new tokens: those of a whole prompt, by how many they see without a window."""
    if tokens != context:
        return in_window(plan, context)
    return 2 * seen_of_prompt(context, plan.architecture.window) / max(1.0, context) ** 2


def seen_of_prompt(tokens: float, window: int) -> float:
    """Pairs of a prompt's token and one that it sees through a window; without one half of all."""
    most = min(tokens, window)
    return most * (tokens - most / 2)


def between(server: Server, found: Sequence[Part], tokens: int) -> list[Part]:
    """What a forward takes besides its operations: links, the host, launches."""
    plan = server.plan
    rest = []
    if plan.serving_tp > 1:
        link, one = reduction(server, tokens)
        runs = server.reductions
        rest.append(Part(LINK, _only("tensor-parallel all-reduce", runs * one, link, runs),
                         tokens=tokens))  # fmt: skip
    if plan.serve.offload_kv == "cpu":
        read = sum(p.time.hbm_bytes for p in found if p.kind == ATTENTION) / plan.serving_pp
        hidden = sum(p.time.seconds for p in found)
        exposed = max(0.0, read / host_rate(plan) - hidden)
        copied = _only("cache from the host", exposed, "pcie", 1)
        rest.append(Part(HOST, copied, weights=read, behind=True))
    if plan.serve.offload_weights:
        moved = min(plan.serve.offload_weights * GiB, sum(p.weights for p in found))
        rest.append(Part(HOST, _only("weights from the host", moved / host_rate(plan), "pcie", 1),
                         weights=moved))  # fmt: skip
    return [*rest, _between_kernels(server, found, plan.architecture.layers)]


def _between_kernels(server: Server, found: Sequence[Part], layers: int) -> Part:
    """What the host takes to start them, beyond what they take; or a share of each layer."""
    runtime = RUNTIMES[server.plan.serve.runtime]
    if runtime.launches:
        host = each_start(server.plan) * launches(server, found)
        idle = max(0.0, host - sum(p.time.seconds for p in found))
    else:
        idle = runtime.layer.middle * layers
    return Part(LAUNCH, _only("between kernels", idle, "launch", 1))


def _only(name: str, seconds: float, link: str, runs: int) -> OperationTime:
    return OperationTime(name, "forward", 0, 0, 0, 0, seconds, link, runs)


def launches(server: Server, found: Sequence[Part]) -> float:
    """Kernels that the host starts in a forward, where it starts each: one for an operation, and
    more where weights are widened by a kernel of their own."""
    n = float(sum(p.time.runs for p in found))
    dtype = server.plan.weights
    products = sum(p.time.runs for p in found if p.kind == LAYERS and p.weights and p.time.flops)
    more = constants.NF4_LAUNCHES.get(dtype.matrices)
    return n + (products * more.middle if more else 0)


def reduction(server: Server, tokens: int) -> tuple[str, float]:
    """Seconds of one all-reduce of the hidden states, and the link that takes most of them: over
    NVLink in one shot, where that is faster than a ring."""
    plan = server.plan
    ranks = plan.serving_tp
    over = Links.of(plan, ranks)
    moved = 2.0 * tokens * server.plan.architecture.hidden_size
    ring = over.reduce(moved)
    link = max(ring, key=lambda name: ring[name])
    if over.domains > 1 or not over.direct:
        return link, ring[link]
    return link, min(ring[link], one_shot(over, moved))


def one_shot(over: Links, moved: float) -> float:
    """Every GPU reads what the others have."""
    return constants.ONE_SHOT.middle + moved * (over.ranks - 1) / over.peer


def host_rate(plan: Plan) -> float:
    """B/s between one GPU and its host."""
    return plan.node.pcie_bandwidth * constants.LINK_EFFICIENCY.middle


def of_running(server: Server, running: int) -> Values:
    """Its quantities while so many sequences generate, each at half of its output."""
    return server.numbers.where_is("serve.running", running)


def at_once(server: Server) -> int:
    """Sequences that generate at once in steps of max_batched_tokens, as memory alone would not
    say."""
    return int(server.numbers.serve.step_sequences)


def prompts_beside(server: Server, running: int) -> float:
    """Tokens of prompts that a step reads on average, where as many come as `running` end."""
    s = server.plan.serve
    return float(running * s.prompt_len / (s.output_len / server.numbers.serve.tokens_per_step))


def prompt(server: Server, running: int, chunks: int, left: int) -> list[Part]:
    """The parts of the middle one of the steps that a prompt is read in: with its own part, or as
    much of all prompts as such a step, with tokens `left` for them, reads on average, whichever is
    more."""
    s = server.plan.serve
    n = s.prompt_len
    if server.plan.architecture.encoder_decoder:  # the first token, with the whole prompt in reach
        return parts(server, 1, 1, n + 1, 1)
    if not PREFILLS[s.prefill].chunked:
        return parts(server, 1, n, n, 1)
    chunk = -(-n // chunks)
    step = min(left, max(chunk, round(prompts_beside(server, running))))
    return mixed(server, running, context_of(server), step, (n - chunk) / 2)


def context_of(server: Server) -> int:
    """Tokens that a sequence has at half of its output."""
    return server.plan.serve.prompt_len + server.plan.serve.output_len // 2


def decoding(server: Server, running: int) -> list[Part]:
    """One step: a token of each sequence, or a check of those that a draft guessed."""
    s = server.plan.serve
    new = 1 + s.draft_tokens
    found = parts(server, running, new, context_of(server), running * new)
    if s.draft_tokens and (draft := server.draft):
        one = seconds(parts(draft, running, 1, context_of(server), running))
        time = _only(f"draft by {draft.plan.architecture.label}", s.draft_tokens * one, "hbm",
                     s.draft_tokens)  # fmt: skip
        found.append(Part(DRAFT, time, running))
    return found


def transfer(server: Server) -> float:
    """Seconds to send a prompt's cache to other GPUs: over the network where there are several
    nodes, else between peers."""
    plan = server.plan
    if not PREFILLS[plan.serve.prefill].elsewhere:
        return 0.0
    return sent(server, plan.serve.prompt_len) / transfer_rate(plan)[1]


def sent(server: Server, tokens: int) -> int:
    """Bytes of the cache of so many tokens, with the states after them."""
    states = server.caches.recurrent * server.state_bytes(server.amounts(1, 1))
    return tokens * server.kv_per_token + states


def transfer_rate(plan: Plan) -> tuple[str, float]:
    """The link that a cache is sent over, and B/s that one GPU has of it."""
    share = constants.LINK_EFFICIENCY.middle
    if plan.cluster.gpus > plan.gpus_per_domain:
        return "network", plan.network_per_gpu * share
    name = "peer" if plan.accelerator.peer_bandwidth else "pcie"
    return name, Links.of(plan, 2).next / constants.COLLECTIVE_EFFICIENCY.middle * share


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency: tokens per second of a replica, and seconds per token of a sequence."""

    running: int
    tokens_per_second: float
    tpot_seconds: float
    bound_by: str
    fits: bool


def points(server: Server, most: int) -> tuple[Point, ...]:
    """Throughput and latency against how many sequences run, a few sizes for each power of two up
    to four times what fits, so that what memory forbids is seen too."""
    sizes = sorted({round(2 ** (k / 2)) for k in range(2 * max(1, 4 * most).bit_length())})
    found = []
    for n in [s for s in sizes if s <= max(1, 4 * most)]:
        step = decoding(server, n)
        each = seconds(step) / server.numbers.serve.tokens_per_step
        found.append(Point(n, n / each, each, bound(step), n <= most))
    return tuple(found)


def compute_bound_from(server: Server, most: int = 1 << 14) -> int | None:
    """The fewest sequences at which arithmetic takes most of a step's products, or None."""

    def compute(n: int) -> bool:
        products = [p.time for p in of_layers(server, n, 1) if p.time.flops]
        slow = sum(o.seconds for o in products if o.bound_by == "compute")
        return slow > sum(o.seconds for o in products) / 2

    if not compute(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute(middle) else (middle, high)
    return high


def bound(parts: Sequence[Part]) -> str:
    """What takes most of some parts' seconds."""
    sums: dict[str, float] = {}
    for o in (p.time for p in parts):
        sums[o.bound_by] = sums.get(o.bound_by, 0.0) + o.seconds
    return max(sums, key=lambda k: sums[k])


# --- what the report says of it ------------------------------------------------------------------


@computed("serve.tower")
def tower(x: Any) -> list[Part]:
    """What runs once for a prompt, in the first of its steps."""
    return of_tower(x.server)


@computed("serve.prefill")
def prefill(x: Any) -> list[Part]:
    """One of the steps that a prompt is read in."""
    return prompt(x.server, x.serve.running, x.serve.prefill_steps, _left(x))


@computed("serve.decode")
def decode(x: Any) -> list[Part]:
    """One step of all that run."""
    return decoding(x.server, x.serve.running)


def _sum_of(path: str, parts: str) -> None:
    computed(path)(lambda x: seconds(getattr(x.serve, parts)) if x.serve.running else None)


_sum_of("serve.tower_seconds", "tower")
_sum_of("serve.prefill_step", "prefill")
_sum_of("serve.decode_step", "decode")


@computed("serve.transfer_seconds")
def transfer_seconds(x: Any) -> float | None:
    return transfer(x.server) if x.serve.running else None


@computed("serve.prefill_bound_by")
def prefill_bound_by(x: Any) -> str | None:
    return bound([*x.serve.tower, *x.serve.prefill]) if x.serve.running else None


@computed("serve.decode_bound_by")
def decode_bound_by(x: Any) -> str | None:
    return bound(x.serve.decode) if x.serve.running else None


@quantity(
    "serve.tokens_per_step", "Tokens of a step", "", "Of one sequence, on average.", [LEVIATHAN]
)
def tokens_per_step(x: Any) -> Read:
    """Each guess is right as often as the others."""
    n, right = x.server.plan.serve.draft_tokens, x.server.plan.serve.draft_acceptance
    if not n or right == 1:
        return x.said(float(n + 1), "Every guess is right." if n else "One each.", [SERVER])
    source = "serve.draft_acceptance, each"
    every = x.known("that all are right", right ** (n + 1), source=source)
    one = x.known("certainty", 1, source=LEVIATHAN)
    return (one - every) / (one - x.plan.serve.draft_acceptance)


def _left(x: Any) -> Read:
    """Tokens of prompts that a step has room for beside those of the sequences that run."""
    guesses, theirs = x.plan.serve.draft_tokens, x.serve.running
    own = x.known("token of a step", 1, source=SCHEDULER)
    theirs = where(guesses > 0, theirs * (own + guesses), theirs)
    return largest(1, x.plan.serve.max_batched_tokens - theirs)


@quantity("serve.prefill_steps", "Steps of a prompt", "", "In which a prompt is read.")
def prefill_steps(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if x.server.plan.architecture.encoder_decoder or not PREFILLS[x.plan.serve.prefill].chunked:
        return x.said(1, sources=[SERVER])
    return ceil(x.plan.serve.prompt_len / _left(x))


@quantity(
    "serve.ttft_seconds", "Time to first token", "seconds", "Of one prompt that need not wait."
)
def ttft_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    read = x.serve.prefill_steps * x.serve.prefill_step
    if runs_tower(x.server):
        read = x.serve.tower_seconds + read
    return read + x.serve.transfer_seconds


@quantity(
    "serve.tpot_seconds",
    "Time per output token",
    "seconds",
    "A step of all that run at once, at half of their output.",
)
def tpot_seconds(x: Any) -> Read | None:
    return x.serve.decode_step / x.serve.tokens_per_step if x.serve.running else None


@quantity(
    "serve.stall_seconds",
    "Longest gap",
    "seconds",
    "Between two tokens of a sequence while another's prompt is read.",
)
def stall_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    words = PREFILLS[x.plan.serve.prefill]
    if words.elsewhere:
        return x.serve.decode_step
    read = x.serve.prefill_step
    if runs_tower(x.server):
        read = read + x.serve.tower_seconds
    return read if words.chunked else x.serve.decode_step + read


@quantity("serve.tokens_per_second", "Output tokens per second", "tokens/s", "Of one replica.")
def tokens_per_second(x: Any) -> Read | None:
    return x.serve.running / x.serve.tpot_seconds if x.serve.running else None
