"""Room: what a server leaves of one GPU for sequences, and how many of them it holds."""

from __future__ import annotations

from typing import Any

from memcore.hardware import constants
from memcore.quantity.reading import (
    Read,
    at_least_zero,
    computed,
    floor,
    largest,
    least,
    no_more,
    quantity,
    total,
    where,
)
from memcore.report import LedgerRow
from memcore.serving.cache import NO_PAGES, SERVER
from memcore.serving.server import Server, one_forward
from memcore.serving.towers import FEATURES_STAY, features, fullest, takes_room
from memcore.serving.weights import ROTARY_SOURCE, held_weights, on_host, table_rows, weight_rows
from memcore.tape.dims import (
    EXPERT_D,
    EXPERT_F,
    EXPERT_FUSED,
    HEADS,
    ROUTED,
    TP,
    VOCAB,
    Extents,
    Factor,
    Shape,
)
from memcore.tape.ledger import INFERENCE, Amounts, window
from memcore.units import GiB, MiB
from memcore.words import engines
from memcore.words.serving import PREFILLS, RUNTIMES
from memcore.words.training import QUANTIZED

LOGITS: Shape = (VOCAB,)
LOGITS_COPIES = 1.5  # in bf16, and copied to fp32
FORWARD_SOURCE = (
    "peak of the transformers layer without saved tensors; an engine's own kernels differ"
)
PREFIX_CACHE = (
    "vLLM's automatic prefix caching, SGLang's RadixAttention: blocks of tokens that were computed "
    "before are found by what they hold; the cache is taken to be large enough to keep them"
)
SECOND_TIER = (
    "vLLM's --kv-offloading-size and LMCache's max_local_cpu_size have sizes that their users say, "
    "SGLang's --hicache-ratio is twice the cache on the GPU; what runs has its cache on the GPU in "
    "all of them, and blocks are looked up in both memories (vllm/v1/kv_offload, SGLang's HiCache "
    "design)"
)
REPLICA = "Of one replica."
SCHEDULER = (
    "vLLM has no more sequences than tokens in a step (SchedulerConfig.verify_max_model_len), and "
    "gives generating ones theirs first (vllm/v1/core/sched/scheduler.py)"
)

EMBEDS_SOURCE = (
    "llama.cpp of October 2026, src/llama-model.cpp: dev_input is the CPU; layers are the last "
    "n_gpu_layers with the output among them (i_gpu_start)"
)
SCORES_SOURCE = (
    "llama.cpp keeps KQ of a whole ubatch without flash attention (src/llama-graph.cpp, "
    "build_attn_mha); of 2,664 MiB of compute buffer in its issue 12369 they and the mask are 2,624"
)
NO_CONTEXT = ("apple", "generic")  # vendors whose drivers keep no context of CUDA's size

SGLANG_LEAVES = (
    "SGLang's mem_fraction_static where it is not given: what forwards, graphs and ranks are taken "
    "to need is left (server_args.py, _handle_gpu_memory_settings)"
)

# --- what loops compute --------------------------------------------------------------------------


@computed("serve.fixed_rows")
def fixed_rows(x: Any) -> tuple[list[LedgerRow], list[LedgerRow]]:
    """Rows of weights, and of what an engine keeps besides them."""
    amounts = one_forward(x.server)
    here = held_weights(x.server, amounts)
    return weight_rows(x.server, here, amounts), table_rows(x.server, here, amounts)


@computed("serve.host_bytes")
def host_bytes(x: Any) -> int:
    """Weights of this GPU's part of the model that lie in the host's memory."""
    if not x.server.embeds_on_host and not x.server.plan.uses_cpu:
        return 0
    found, gpu = on_host(x.server, one_forward(x.server)), x.server.plan.accelerator
    if gpu.unified_memory:  # the CPU's part lies in what the GPU may not take of the one memory
        others = constants.OS_SHARE.middle
        found = min(found, max(0, int(gpu.memory_bytes - gpu.usable_bytes - others)))
    return found


@computed("serve.layer_bytes")
def layer_bytes(x: Any) -> int:
    """The most that one layer needs at once, and the buffers of experts besides."""
    amounts = one_forward(x.server)
    peak = max(int(window(tape, INFERENCE).peak(amounts)[0]) for tape, _ in x.server.layers)
    shapes = expert_buffers(x.server, amounts)
    buffers = sum(int(amounts.bytes(of, x.server.compute)) for of in shapes)
    return peak * int(x.server.widening) + widened(x.server, amounts)[0] + buffers


def expert_buffers(server: Server, amounts: Amounts) -> list[Shape]:
    """The two buffers that vLLM's experts work in, one after another, and that it keeps while other
    operations run: a row for each expert of each token, as wide as what experts read or as one of
    theirs, in one of them gate and up side by side (vllm 0.33,
    model_executor/layers/fused_moe/experts/triton_moe.py and marlin_moe.py, workspace_shapes;
    modular_kernel.py, _allocate_buffers)."""
    if server.plan.engine != engines.VLLM or not server.plan.architecture.experts:
        return []

    def wider(inner: Factor) -> Factor:
        both: tuple[Factor, ...] = (EXPERT_D, inner)
        return max(both, key=lambda one: amounts.elements((one,)))

    return [(ROUTED, wider(inner / TP)) for inner in (EXPERT_F, EXPERT_FUSED)]


@computed("serve.tower_bytes")
def tower_bytes(x: Any) -> int:
    """The most that a tower needs at once."""
    amounts = one_forward(x.server)
    tape = fullest(x.server, amounts)
    return int(window(tape, INFERENCE).peak(amounts)[0]) if tape else 0


def widened(server: Server, amounts: Amounts) -> tuple[int, Extents | None]:
    """Bytes of the largest matrix as bitsandbytes widens it for a product of several tokens, and
    its shape."""
    dtype = server.plan.weights
    if dtype.matrices not in QUANTIZED:
        return 0, None
    shapes = [p.shape for tape, _ in server.layers for p in tape.parameters if len(p.shape) == 2]
    largest = max(shapes, key=amounts.elements)
    return int(amounts.bytes(largest, dtype.compute)), amounts.extents(largest)


# --- what is taken of one GPU --------------------------------------------------------------------


@quantity("serve.weights_bytes", "Weights", "bytes", "On the fullest GPU of a replica.")
def weights_bytes(x: Any) -> Read:
    return x.sum_of("serve.rows", ("parameters",), lambda: x.serve.fixed_rows[0])


@quantity(
    "serve.offloaded_bytes", "Weights on the host", "bytes", "Read over PCIe in every forward."
)
def offloaded_bytes(x: Any) -> Read:
    gib = x.known("GiB", GiB, "bytes", source="the unit")
    moved = floor(x.plan.serve.offload_weights * gib)
    if n := x.server.numbers.serve.host_bytes:
        said = "the embedding, and layers and experts that the CPU computes"
        moved = moved + x.known(said, n, "bytes", source=EMBEDS_SOURCE)
        meaning = (
            "llama.cpp has the embedding there; the CPU computes with what serve.gpu_layers and "
            "serve.cpu_moe_layers leave there."
        )
        return x.said(least(moved, x.serve.weights_bytes), meaning, [EMBEDS_SOURCE])
    return least(moved, x.serve.weights_bytes)


def _away(x: Any) -> Any:
    """Whether some weights are not on the GPU."""
    return True if x.server.numbers.serve.host_bytes else x.plan.serve.offload_weights > 0


@quantity(
    "serve.table_bytes",
    "Tables",
    "bytes",
    "What an engine keeps besides weights, and what no other tensor can use.",
)
def table_bytes(x: Any) -> Read:
    found = x.sum_of("serve.rows", ("tables", "rests"), lambda: x.serve.fixed_rows[1])
    return found if found > 0 else x.said(0, sources=[ROTARY_SOURCE])


@quantity(
    "serve.loaded_bytes",
    "Loaded",
    "bytes",
    "On each GPU before any request: what an engine's log prints after loading the model.",
)
def loaded_bytes(x: Any) -> Read:
    both = x.serve.weights_bytes + x.serve.table_bytes
    away = _away(x)
    return where(away, both - x.serve.offloaded_bytes, both)


@quantity(
    "serve.feature_bytes", "Results of the tower", "bytes", "They stay while the layers run.",
    [FEATURES_STAY],
)  # fmt: skip
def feature_bytes(x: Any) -> Read:
    if not takes_room(x.server):
        return x.said(0, "Nothing runs before the layers.", [SERVER])
    return x.width(x.server.compute) * x.shape(features(x.server), one_forward(x.server))


@quantity(
    "serve.sequence_limit",
    "Sequences that the engine schedules",
    "sequences",
    "At once at most: what it sizes activations and graphs for.",
)
def sequence_limit(x: Any) -> Read:
    asked, served, n = x.plan.serve.max_num_seqs, x.plan.serve.concurrency, 0
    if n := x.server.plan.own_sequences:
        label = engines.ENGINES[x.server.plan.engine].label
        own = x.known(f"{label}'s own default", n, "sequences", source=engines.LIMIT_SOURCE)
        served = largest(own, served)
    return x.said(
        where(asked > 0, asked, served), sources=[engines.LIMIT_SOURCE] if n else [SERVER]
    )


@quantity("serve.batched_tokens", "Batched tokens", "tokens", "Of one forward at most.")
def batched_tokens(x: Any) -> Read:
    """As the plan says it, or the engine's own."""
    asked, label = x.plan.serve.max_batched_tokens, engines.ENGINES[x.server.plan.engine].label
    n, source = x.server.plan.default_tokens, engines.TOKENS_SOURCE
    own = x.known(f"{label}'s own", n, "tokens", source=source)
    return x.said(where(asked > 0, asked, own), sources=[source])


@quantity(
    "serve.activation_bytes",
    "Activations",
    "bytes",
    "The most that one forward of the batched tokens needs at once.",
    [FORWARD_SOURCE],
    "assumed",
)
def activation_bytes(x: Any) -> Read:
    """In a layer or at the logits, which exist in fp32 while the next tokens are chosen; or scores
    of attention, where they are kept."""
    found = _forward_bytes(x)
    return largest(found, x.serve.score_bytes) if x.server.scores else found


def _forward_bytes(x: Any) -> Read:
    if x.server.manager.pages:
        copies = x.constant(constants.SAMPLER_LOGITS)
    else:
        copies = x.known("in bf16, and copied to fp32", LOGITS_COPIES, source=SERVER)
    rows = x.plan.serve.concurrency
    if x.server.manager.pages:
        rows = least(x.serve.sequence_limit, x.serve.batched_tokens)
    logits = x.width("fp32") * x.shape(LOGITS, one_forward(x.server)) * rows
    rest = largest(x.serve.layer_bytes, logits * copies)
    if not takes_room(x.server):
        return floor(rest)
    return floor(largest(x.serve.tower_bytes, x.serve.feature_bytes + rest))


@quantity(
    "serve.score_bytes",
    "Scores of attention",
    "bytes",
    "In fp32, of all heads, and their mask: each token of a forward with the longest sequence.",
    [SCORES_SOURCE],
)
def score_bytes(x: Any) -> Read:
    if not x.server.scores:
        return x.said(0, "Flash attention keeps none.", [SERVER])
    heads = x.shape((HEADS / TP,), one_forward(x.server)) + x.known("the mask", 1, source=SERVER)
    return x.width("fp32") * heads * x.serve.batched_tokens * x.serve.room_tokens


@quantity(
    "serve.overhead_bytes", "Overhead", "bytes",
    "The middles of intervals that no shape determines.",
)  # fmt: skip
def overhead_bytes(x: Any) -> Read:
    """What occupies a serving GPU within the budget, outside the server's control."""
    ranks = x.server.plan.serving_ranks
    if x.server.manager.pages:
        found = [constants.NON_TORCH if ranks == 1 else constants.NON_TORCH_GROUP]
    else:
        has_context = x.server.plan.accelerator.vendor not in NO_CONTEXT
        found = [constants.CUDA_CONTEXT] * has_context + [constants.NCCL_BUFFERS] * (ranks > 1)
    found += [constants.OS_SHARE] * x.server.plan.accelerator.shared_with_os
    if not found:
        return x.said(0, "The chip has no CUDA, and nothing else is counted.", [SERVER])
    return floor(total(x.constant(c) for c in found))


@quantity(
    "serve.outside_bytes",
    "Beside the budget",
    "bytes",
    "What memory_utilization does not count; it must fit into the rest of the GPU.",
)
def outside_bytes(x: Any) -> Read:
    if not x.server.manager.pages or x.server.plan.share == engines.ALL:
        return x.said(0, sources=[SERVER])
    found = x.constant(constants.CUDA_CONTEXT) + x.constant(constants.CUDA_GRAPHS)
    if x.server.plan.share == engines.POOL:
        found = found + x.serve.activation_bytes + x.serve.overhead_bytes
    return floor(found)


@quantity("serve.memory_share", "Share of memory", "", "That the server may take.")
def memory_share(x: Any) -> Read:
    """As the plan says it, or the engine's own."""
    asked, share = x.plan.serve.memory_utilization, x.server.plan.share
    source = engines.SHARE_SOURCE[share]
    if share == engines.POOL:
        own, source = _what_sglang_leaves(x), SGLANG_LEAVES
    else:
        own = x.known("the engine's own share", engines.DEFAULT_SHARE, source=source)
    return x.said(where(asked > 0, asked, own), sources=[source])


def _what_sglang_leaves(x: Any) -> Read:
    """The share of a GPU that SGLang gives to weights and cache where nobody says one."""
    plan, source = x.server.plan, SGLANG_LEAVES
    gpu = plan.accelerator
    _, sequences = engines.sizes_of_sglang(gpu, plan.serving_tp)

    def known(name: str, value: float, unit: str = "") -> Read:
        return x.known(name, value, unit, source=source)

    tokens = largest(x.serve.batched_tokens, known("tokens at least", 2048, "tokens"))
    ranks = plan.serving_ranks
    kept = total(
        [
            known("of metadata", 512 * MiB, "bytes"),
            tokens * known("each", 1.5 * MiB, "bytes"),
            known("sequences of graphs", sequences) * known("each", 2 * MiB, "bytes"),
            known("GPUs", ranks) * known("each", 128 * MiB, "bytes"),
        ]
    )
    if gpu.usable_bytes > 60 * GiB:
        kept = largest(kept, known("at least", 10 * GiB, "bytes"))
    if plan.drafts:
        kept = kept + known("of a draft", 2 * GiB, "bytes")
    left = known("all of it", 1) - kept / x.hardware.usable_bytes
    return largest(left, known("at least", 0.1))


@quantity("serve.budget_bytes", "Budget", "bytes")
def budget_bytes(x: Any) -> Read:
    """What the server may use of one GPU, as its engine reads memory_utilization."""
    share, asked = x.server.plan.share, x.serve.memory_share
    meaning, sources = "What the server may use of one GPU.", [engines.SHARE_SOURCE[share]]
    usable = x.hardware.usable_bytes
    if share == engines.DEVICE:
        if not (taken := x.server.plan.cluster.taken_gib):
            return x.said(floor(usable * asked), meaning)
        held = x.known("held by other programs", round(taken * GiB), "bytes", source="the plan")
        return x.said(least(floor((usable + held) * asked), usable), meaning)
    if share == engines.ALL:
        return x.said(floor(usable * x.known("all of it", 1, source=sources[0])), meaning, sources)
    free = usable - x.constant(constants.CUDA_CONTEXT)
    if share == engines.POOL:
        return x.said(floor(free * asked), "Of one GPU, for weights and cache alone.", sources)
    return x.said(
        floor(free), f"{meaning} Its share is of what weights and a forward leave.", sources
    )


# --- what is left, and who fits ------------------------------------------------------------------


@quantity("serve.kv_budget_bytes", "Room for KV cache", "bytes", "On each GPU.", [SERVER])
def kv_budget_bytes(x: Any) -> Read:
    left = _left(x)
    if not x.server.plan.streams_cache:
        return at_least_zero(left)
    none = x.known("nothing, as the GPU cannot hold the rest", 0, "bytes", source="the plan")
    room = where(left >= 0, x.serve.host_room_bytes, none)
    return x.said(room, "In the host's memory, of each GPU.", ())


@quantity(
    "serve.host_room_bytes",
    "Room for KV cache on the host",
    "bytes",
    "Of each GPU: as much of the host's memory as the server takes of the GPU's.",
    [SECOND_TIER],
    "assumed",
)
def host_room_bytes(x: Any) -> Read:
    if x.server.plan.serve.offload_kv == "none":
        return x.said(0, "The cache is on the GPU alone.", [SERVER])
    ranks = x.known("GPUs in a node", x.server.plan.gpus_in_node, source="the plan")
    return floor(floor(x.hardware.dram_bytes * x.serve.memory_share) / ranks)


@quantity(
    "serve.free_bytes", "Left for caches and scores", "bytes",
    "Of the budget; below 0 where the rest does not fit.", [SERVER],
)  # fmt: skip
def free_bytes(x: Any) -> Read:
    """Bytes of the budget that all but the cache, and scores as long as it, leaves."""
    left = x.serve.budget_bytes - x.serve.weights_bytes - x.serve.table_bytes
    if x.server.plan.share != engines.POOL:
        left = left - _forward_bytes(x) - x.serve.overhead_bytes
    away = _away(x)
    left = where(away, left + x.serve.offloaded_bytes, left)
    return floor(left * x.serve.memory_share) if x.server.plan.share == engines.LEFT else left


def _left(x: Any) -> Read:
    """Bytes that are left for the cache, below 0 where the rest does not fit."""
    return x.serve.free_bytes - x.serve.score_bytes if x.server.scores else x.serve.free_bytes


@quantity("serve.blocks", "Blocks", "", "Pages of the whole cache.")
def blocks(x: Any) -> Read:
    if not x.server.manager.pages:
        return x.said(0, NO_PAGES, [SERVER])
    return floor(x.serve.kv_budget_bytes / x.serve.block_bytes)


def _fit(x: Any) -> Read:
    """Sequences of the plan's length, whole or in part."""
    if x.server.layout:
        return _with_a_reader(x)
    if x.server.manager.pages:
        return x.serve.blocks / x.serve.blocks_per_sequence
    return x.serve.kv_budget_bytes / x.serve.sequence_bytes


@quantity(
    "serve.kv_capacity_tokens", "Tokens that fit", "tokens",
    f"{REPLICA} In sequences of this length.",
)  # fmt: skip
def kv_capacity_tokens(x: Any) -> Read:
    """Where layers keep no more however long a sequence is, as vLLM prints it: a sequence's
    tokens, as often as it fits. Of compressed entries vLLM prints less: it counts as if all
    sequences were read at once."""
    if x.server.bounded:
        return floor(_fit(x) * x.serve.room_tokens)
    if x.server.manager.pages:
        return x.serve.blocks * x.serve.block_tokens
    return floor(x.serve.kv_budget_bytes / x.serve.kv_bytes_per_token)


@quantity("serve.max_concurrency", "Sequences that fit", "sequences")
def max_concurrency(x: Any) -> Read:
    each = "with room for the longest that the server lets in" if x.server.reserves else (
        "at full length"
    )  # fmt: skip
    if x.server.layout:
        return x.said(floor(_fit(x)), f"{REPLICA} One that is read, others generate.")
    return x.said(floor(_fit(x)), f"{REPLICA} Each {each}.")


def _with_a_reader(x: Any) -> Read:
    """Sequences that generate, and one whose prompt is read, which takes more: windows of few
    tokens a block keep all of a forward's."""
    reading = x.serve.blocks_per_sequence * x.serve.block_bytes - x.serve.sequence_bytes
    left = at_least_zero(x.serve.blocks * x.serve.block_bytes - reading)
    return left / x.serve.sequence_bytes


def starts_by_states(server: Server) -> bool:
    """Whether the engine starts only if each sequence that it schedules has a block for a state."""
    by_graphs = not RUNTIMES[server.plan.runtime].launches
    return bool(server.plan.engine == engines.VLLM and by_graphs and server.manager.pages
                and server.caches.recurrent)  # fmt: skip


STARTS = (
    "vLLM with CUDA graphs raises an error at its start where max_num_seqs is more than the blocks "
    "of the cache, since each sequence that generates needs one for its state "
    "(vllm/config/compilation.py of 0.33)"
)


@quantity(
    "serve.sequences_short", "Sequences without a block for a state", "sequences",
    "Of those that the engine schedules: with any it does not start.", [STARTS],
)  # fmt: skip
def sequences_short(x: Any) -> Read:
    if not starts_by_states(x.server):
        return x.said(0, "It starts with any.", [SERVER])
    return at_least_zero(x.serve.sequence_limit - x.serve.blocks)


@quantity("serve.fits", "Serving fits", "", "Whether every sequence asked for has its room.")
def fits(x: Any) -> Read:
    room = x.serve.max_concurrency
    if starts_by_states(x.server):
        none = x.known("none, as it does not start", 0, "sequences", source=STARTS)
        room = where(x.serve.sequences_short > 0, none, room)
    return no_more(x.plan.serve.concurrency, room)


@quantity(
    "serve.held", "Sequences held at once", "sequences", "As many as are asked for, or as fit."
)
def held(x: Any) -> Read:
    return least(x.plan.serve.concurrency, x.serve.max_concurrency)


@quantity(
    "serve.computed_tokens",
    "Tokens of a prompt that are computed",
    "tokens",
    "The others are in the prefix cache.",
    [PREFIX_CACHE],
)
def computed_tokens(x: Any) -> Read:
    """Of equal turns, a tokens each and o generated, the k-th prompt has k a + (k - 1) o: on
    average over all n (n + 1) / 2 a + (n - 1) / 2 o, which the plan gives; a is what is new."""
    s, whole = x.server.plan.serve, x.plan.serve.prompt_len
    if not (s.prefix_hits or s.turns > 1):
        return x.said(whole, "All of it.", [SERVER])
    new = whole
    if s.turns > 1:
        two = x.known("both ends of the conversation, on average", 2, source=PREFIX_CACHE)
        one = x.known("turn that has no history", 1, source=PREFIX_CACHE)
        turns = x.plan.serve.turns
        said = x.plan.serve.output_len * (turns - one)
        new = largest(1, floor((two * whole - said) / (turns + one)))
    if s.prefix_hits:
        new = largest(1, new - floor(new * x.plan.serve.prefix_hits))
    return new


BATCHES = (
    "as many batches are under way as the pipeline has stages, one in each (vLLM's "
    "max_concurrent_batches, SGLang's event_loop_pp, TensorRT-LLM's num_micro_batches)"
)


def batches(server: Server) -> int:
    """Batches of sequences that are under way at once, in the stages of a pipeline."""
    return int(server.plan.serving_pp) if server.engine.pipelines else 1


@quantity("serve.step_sequences", "Sequences of one step", "sequences", sources=[SCHEDULER])
def step_sequences(x: Any) -> Read:
    """That can generate at once in steps of max_batched_tokens, as memory alone would not say.
    Each takes a token of every step, and its draft's guesses. Where chunks of prompts are read in
    the same steps, those that end make room for others: for each token that comes out as many of
    prompts go in as a request has for one of its output."""
    s = x.plan.serve
    each = x.known("token of a sequence in a step", 1, "tokens", source=SCHEDULER)
    each = where(s.draft_tokens > 0, each + s.draft_tokens, each)
    meaning = "Each takes a token of every step, and with a draft its guesses."
    mixes = PREFILLS[s.prefill].chunked and s.arrivals != "closed"
    mixes = mixes and not x.server.engine.alternates
    if mixes and not x.server.plan.architecture.encoder_decoder:
        each = each + x.serve.computed_tokens / (s.output_len / x.serve.tokens_per_step)
        meaning += " In the long run prompts take as many for each as a request has of them."
    found = largest(1, floor(x.serve.batched_tokens / each))
    if batches(x.server) > 1:
        meaning += " Each stage of a pipeline has a batch of its own."
        found = x.known("batches under way", batches(x.server), source=BATCHES) * found
    return x.said(found, meaning)


LETS_IN = (
    "vLLM and SGLang let a sequence in as soon as its prompt has room, and put the last one out "
    "where those that generate need more: in a closed loop as many run as fit at half of their "
    "output (vllm/v1/core/sched/scheduler.py, preempted; sglang's retract_decode)"
)


@quantity(
    "serve.running",
    "Sequences that run at once",
    "sequences",
    "Asked for, with room, in one step, and scheduled. The speeds are of these.",
    [LETS_IN],
)
def running(x: Any) -> Read:
    fit = least(x.plan.serve.concurrency, _let_in(x))
    return least(fit, x.serve.step_sequences, x.serve.sequence_limit)


def _let_in(x: Any) -> Read:
    """Sequences that generate at once as far as memory goes: with room for their whole length, or,
    in a loop under an engine that lets in more, for half of their output."""
    server, s, fit = x.server, x.server.plan.serve, x.serve.max_concurrency
    grows = server.manager.pages and not (server.bounded or server.layout)
    if s.arrivals != "closed" or server.engine.sure or not grows:
        return fit
    return where(fit > 0, floor(_fit(x) * x.serve.room_tokens / _half_way(x)), 0)


def _half_way(x: Any) -> Read:
    """Tokens of a sequence at half of its output."""
    half = x.known("of the output, on average", 0.5, source=LETS_IN)
    return x.plan.serve.prompt_len + half * x.plan.serve.output_len


@quantity("serve.waiting", "Sequences that wait", "sequences", "Asked for, beyond those that run.")
def waiting(x: Any) -> Read:
    return at_least_zero(x.plan.serve.concurrency - x.serve.running)


def puts_out(server: Server) -> bool:
    """Whether it is a closed loop whose engine puts sequences out again and again: memory is full
    at all times, since others wait for it."""
    n, s = server.numbers.serve, server.plan.serve
    if s.arrivals != "closed" or not n.running or server.engine.sure:
        return False
    most = min(s.concurrency, n.step_sequences, n.sequence_limit)
    return bool(n.max_concurrency < n.running < most)


PUTS_OUT = (
    "an engine that lets prompts in as soon as they have room keeps its memory full, so that each "
    "token that is generated takes the place of one of a sequence that is put out, and read again "
    "later (vllm/v1/core/sched/scheduler.py, preempted; simulated: within a tenth where O is from "
    "an eighth to 8 times P)"
)


@quantity(
    "serve.again_tokens",
    "Tokens read again",
    "tokens",
    "Of a request in a closed loop, since it was put out; from a second tier, if there is one.",
    [PUTS_OUT],
)
def again_tokens(x: Any) -> Read | None:
    """As many as it generates, if as many prompts wait as the room of one that ends has place for
    beside its successor's; else as many of them as wait."""
    if not puts_out(x.server):
        return None
    return least(x.plan.serve.output_len, x.serve.waiting * x.plan.serve.prompt_len)


@quantity(
    "serve.out_sequences",
    "Sequences that are put out",
    "sequences",
    "At a time, on average: what those that run have generated was their room.",
    [PUTS_OUT],
)
def out_sequences(x: Any) -> Read | None:
    """Each as long as others on average; of those that wait no more than half, which is where new
    ones are let in as often."""
    if not puts_out(x.server):
        return None
    half = x.known("of the output, on average", 0.5, source=LETS_IN)
    generated = x.serve.running * half * x.plan.serve.output_len
    return least(generated / _half_way(x), half * x.serve.waiting)


# --- what all of them take -----------------------------------------------------------------------


@quantity("serve.asked_bytes", "KV cache of these sequences", "bytes", "On each GPU.")
def asked_bytes(x: Any) -> Read:
    return x.plan.serve.concurrency * x.serve.sequence_bytes


@quantity(
    "serve.asked_state_bytes", "States of these sequences", "bytes", "On each GPU, at any length."
)
def asked_state_bytes(x: Any) -> Read:
    return x.plan.serve.concurrency * x.serve.state_bytes_per_sequence


@quantity(
    "serve.asked_kv_bytes",
    "Keys and values of these sequences",
    "bytes",
    "With what pads their pages, and those of states.",
)
def asked_kv_bytes(x: Any) -> Read:
    return x.serve.asked_bytes - x.serve.asked_state_bytes


@quantity("serve.replica_bytes", "KV cache of the whole replica", "bytes", "Over all its GPUs.")
def replica_bytes(x: Any) -> Read:
    return x.serve.asked_bytes * x.serve.gpus_per_replica


@quantity(
    "serve.wasted_bytes", "KV cache never used", "bytes", "Of the sequences that are asked for."
)
def wasted_bytes(x: Any) -> Read:
    return x.plan.serve.concurrency * x.serve.wasted_bytes_per_sequence


def _ranks(x: Any, which: str) -> Read:
    own, training = (getattr(part, which) for part in (x.plan.serve, x.plan.parallel))
    return x.said(
        where(own > 0, own, training),
        where(own > 0, REPLICA, f"As in training: serve.{which} sets another."),
    )


@quantity("serve.tp", "Tensor parallel of serving", "")
def tp(x: Any) -> Read:
    return _ranks(x, "tp")


@quantity("serve.pp", "Pipeline parallel of serving", "")
def pp(x: Any) -> Read:
    return _ranks(x, "pp")


@quantity("serve.gpus_per_replica", "GPUs of a replica", "GPUs", "One copy of the model.")
def gpus_per_replica(x: Any) -> Read:
    return x.serve.tp * x.serve.pp


@quantity("serve.replicas", "Replicas", "", "Copies of the model.")
def replicas(x: Any) -> Read:
    return largest(1, floor(x.plan.cluster.gpus / x.serve.gpus_per_replica))
