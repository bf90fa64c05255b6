"""Notes: what is to be said beside the figures of serving."""

from __future__ import annotations

from memcore.errors import shown
from memcore.plan.model_rules import served_positions
from memcore.plan.plan import Plan
from memcore.report import Serve
from memcore.serving.cache import room
from memcore.serving.serve import REMEDY, load_of, nothing_fits, of_fewer, saturation, serve
from memcore.serving.server import Server, one_forward
from memcore.serving.time import host_rate
from memcore.serving.towers import tries_images
from memcore.serving.weights import on_host, scales_more
from memcore.tape.dims import ceil_div
from memcore.units import bytes_text, rate_text, seconds_text
from memcore.words.engines import ENGINES, LLAMA_CPP, POOL, other_versions, sizes_of_sglang
from memcore.words.stored import AS_PUBLISHED, KV_DTYPES

ENCODER_NOTE = (
    "Serving: the encoder reads the prompt, once; every decoder layer keeps keys and values of all "
    "of its tokens, and of those that are generated. Streams of requests are not simulated."
)
WIDE = 16  # bits
UNSERVED_NOTE = "A paged cache is planned as vLLM has it for Whisper, since it serves no T5."


def serving_notes(plan: Plan, served: Serve, server: Server | None = None) -> list[str]:
    """What a reader of a report should know of its serving."""
    s, notes = plan.serve, _stored(plan)
    if plan.weights.dynamic:
        notes.insert(0, f"Serving: {plan.weights.label}: {plan.weights.dynamic.spread}.")
    notes[:0] = _of_versions(plan, served)
    rest = plan.accelerator.usable_bytes - served.budget_bytes
    if served.outside_bytes > rest:
        notes.append(
            f"Serving: the CUDA context and graphs take about {bytes_text(served.outside_bytes)} "
            f"beside the budget, which leaves {bytes_text(rest)}; lower serve.memory_utilization."
        )
    chunk, _ = sizes_of_sglang(plan.accelerator, plan.serving_tp)
    if plan.share == POOL and not s.memory_utilization and served.batched_tokens > chunk:
        notes.append(
            f"Serving: for forwards of {served.batched_tokens:,} tokens SGLang leaves "
            f"{served.memory_share:.0%} of the GPU to weights and cache. Where nobody asks for "
            f"more it reads {chunk:,} tokens at once on this GPU (serve.max_batched_tokens)."
        )
    if reason := nothing_fits(served):
        notes.append(f"Serving: {reason}. {REMEDY}.")
    elif served.running < s.concurrency:
        notes.append(of_fewer(plan, served))
    as_usual = type(s).model_fields["arrival_rate"].default  # which nobody said
    if s.arrival_rate != as_usual and (why := saturation(plan, load_of(plan, served))):
        notes.append(f"Serving: {why}; a time to first token is of a request that need not wait.")
    model = plan.architecture
    notes += (f"Serving: {issue.message}." for issue in served_positions(plan, model))
    if model.encoder_decoder:
        notes.append(ENCODER_NOTE if model.heard else f"{ENCODER_NOTE} {UNSERVED_NOTE}")
    elif model.tower and plan.weights.compute != plan.weight_dtype:
        notes.append(
            "Serving: the tower of images, and what leads from it to the text, stay in "
            f"{plan.weights.compute}, as published files in fewer bits have them."
        )
    server = server or Server.of(plan)
    if model.tower and model.tower.image and not s.images:
        tried = "count, and the room for images of the largest size that the engine tries first"
        counts = tried if tries_images(server) else "alone count"
        notes.append(
            "Serving: prompts have no images (serve.images); of what makes tokens of them the "
            f"weights {counts}."
        )
    if server.reserves:
        own = "what serve.max_seq_len says" if s.max_seq_len else "the model's own limit"
        if (
            not s.max_seq_len
            and server.fits_context
            and served.reserved_tokens < (model.max_positions)
        ):
            own = "to which llama.cpp shortens the context by itself (--fit)"
        spare = served.reserved_tokens - server.length
        notes.append(
            f"Serving: a contiguous cache reserves {served.reserved_tokens:,} tokens for each "
            f"sequence from its start, {own}; a prompt and its output take {server.length:,} of "
            "them." + " Lower serve.max_seq_len where no request is longer." * bool(spare)
        )
    if server.layout:
        most = served.blocks_per_sequence * served.block_bytes
        notes.append(
            f"Serving: while a prompt is read its sequence takes {bytes_text(most)}, as vLLM asks "
            f"for, since windows of a few tokens keep all of a forward's "
            f"({served.batched_tokens:,}, serve.max_batched_tokens); while it generates it holds "
            f"{bytes_text(served.sequence_bytes)}. Room is counted for one of the former."
        )
    elif server.windowed and server.manager.pages:
        pages = room(server)
        seen = min(plan.architecture.window, server.length)
        blocks = pages.full * ceil_div(server.length, pages.tokens)
        blocks += pages.windowed * (ceil_div(seen, pages.tokens) + 1)
        notes.append(
            "Serving: a sequence counts with all that its prompt needs while it is read, as vLLM "
            f"prints it ({bytes_text(served.sequence_bytes)}); while it generates, its layers with "
            f"a window let go of what they no longer see, and it holds "
            f"{bytes_text(blocks * pages.block_bytes)}."
        )
    if plan.architecture.recurrence:
        notes.append(_of_states(server, served))
    if s.gpu_layers or s.cpu_moe_layers:
        notes.append(_on_host(server))
    if model.kv_rank and model.experts and 1 < plan.serving_tp <= plan.parallel.ep:
        notes.append(
            f"Serving: each of the {plan.serving_tp} ranks keeps all latents of every sequence. "
            "Servers of many sequences have attention apart on each rank and experts shared out "
            "(enable_attention_dp, --enable-dp-attention), which keeps each once: that is "
            f"serve.tp=1 with parallel.ep={plan.parallel.ep}."
        )
    if plan.second_tier:
        notes.append(_of_second_tier(server, served))
    elif plan.streams_cache:
        notes.append(
            "Serving: two layers' share of the cache stays on the GPU while it is fetched; that is "
            "not counted."
            + " llama.cpp's CPU attends to it where it lies, which is not planned."
            * (plan.engine == LLAMA_CPP)
        )
    return notes


def _of_versions(plan: Plan, served: Serve) -> list[str]:
    """What other versions of the engine load in place of this one, where that is much."""
    notes, loaded = [], served.loaded_bytes
    in_mxfp4 = any(row.dtype == "mxfp4" for row in served.rows)
    for word in other_versions(plan.engine) if in_mxfp4 else ():
        other = plan.changed("serve.engine", word)
        if scales_more(other) == scales_more(plan):
            continue
        then = serve(other)
        if abs(then.loaded_bytes - loaded) > MUCH * loaded:
            verdict = " and has no room for a sequence" * bool(nothing_fits(then))
            notes.append(
                f"Serving: {ENGINES[plan.engine].versions} loads {bytes_text(loaded)} on each GPU; "
                f"{ENGINES[word].versions} {bytes_text(then.loaded_bytes)}{verdict}: that is "
                f"serve.engine={word}."
            )
    return notes


MUCH = 0.05  # of what is loaded


def _of_second_tier(server: Server, served: Serve) -> str:
    """What a second tier holds, and what comes back from it."""
    plan, room = server.plan, served.host_room_bytes
    each = server.kv_per_token
    said = (
        "Serving: what runs has its cache on the GPU; a second tier in the host's memory "
        f"(serve.offload_kv) holds {room // each:,} tokens more, if it takes "
        f"{bytes_text(room)} for each GPU, the share that the server has of the GPU's memory. "
    )
    before = plan.serve.prompt_len - served.computed_tokens
    if not before:
        return said + (
            "Nothing is computed less for it while no prompt is in it: serve.prefix_hits and "
            "serve.turns say how much is; who is put out comes back from it."
        )
    return said + (
        f"The {before:,} tokens of a prompt that were computed before are all taken to lie there, "
        f"and come back in {seconds_text(before * each / host_rate(plan))} before its forward; "
        "less where the GPU still has them, and where others go on meanwhile (vLLM) or layers hide "
        "it (SGLang)."
    )


def _on_host(server: Server) -> str:
    """What the CPU computes with, and where that lies."""
    plan = server.plan
    if plan.accelerator.unified_memory:
        return (
            "Serving: CPU and GPU have one memory, so that layers and experts on the CPU "
            "(serve.gpu_layers, serve.cpu_moe_layers) save no byte of it, only of the GPU's share; "
            "they are timed as on the GPU."
        )
    every = range(server.stack.count)
    there, dram = on_host(server, one_forward(server), every), plan.node.dram_bytes
    said = (
        f"Serving: {bytes_text(there)} of weights lie in the host's memory, whose channels "
        f"{'are assumed' if plan.cluster.node is None else 'are'} those of cluster.node, "
        f"{plan.node.label}: the CPU reads {rate_text(plan.node.dram_bandwidth, 'B/s')} at most, "
        "which decides the speed; what it computes meanwhile is not counted."
    )
    return said + f" They do not fit: it has {bytes_text(dram)}." * (there > dram)


def _of_states(server: Server, served: Serve) -> str:
    """What states mean for how many sequences run at once."""
    plan = server.plan
    held, layers = server.caches, server.every
    dtypes = " and ".join(dict.fromkeys(dtype for _, _, dtype in server.states))
    said = (
        f"Serving: {layers.recurrent:,} of {plan.architecture.layers:,} layers keep a state of "
        f"each sequence ({dtypes}), {bytes_text(served.state_bytes_per_sequence)} on each GPU "
        "however long it is; "
    )
    said += (
        f"the {layers.attends:,} that attend add {bytes_text(served.kv_bytes_per_token)} a token. "
        if layers.attends
        else "no layer keeps tokens. "
    )
    least, room_for = served.state_bytes_per_sequence, served.kv_budget_bytes
    if server.manager.pages and held.attends:
        pages = room(server)
        blocks = pages.full + pages.windowed + pages.recurrent * server.state_copies
        least, room_for = blocks * pages.block_bytes, served.blocks * pages.block_bytes
        said += (
            f"vLLM has pages of one size, so a block holds {pages.tokens:,} tokens, and even a "
            f"sequence of one token needs {blocks:,} of them, {bytes_text(least)}. "
        )
    return f"{said}No more than {room_for // least:,} sequences fit, however short."


def _stored(plan: Plan) -> list[str]:
    """How weights and the cache are stored, where config.json has a word of its own for it."""
    said, s = plan.architecture.quantization, plan.serve
    if said is None:
        return _of_checkpoints(plan)
    name, planned, notes = shown(said.method)[1:-1], plan.weights.label, []
    if s.weight_dtype == AS_PUBLISHED and said.files:
        notes.append("Serving: each weight has the type that the headers on disk say.")
    elif s.weight_dtype == AS_PUBLISHED:
        notes.append(f"Serving: weights are {planned}, as config.json has them ({name}).")
        if said.notes:
            notes.append(f"Serving: of that, {'; '.join(said.notes)}.")
    elif s.weight_dtype != said.word:
        notes.append(
            f"Serving: config.json has its weights as {name}; the plan's word, {planned}, is kept. "
            "Set serve.weight_dtype to auto to plan them as published."
        )
    if said.cache and said.cache != s.kv_dtype:
        notes.append(
            f"Serving: config.json asks for a cache in {said.cache}; that of the plan is in "
            f"{s.kv_dtype} (serve.kv_dtype)."
        )
    return notes


def _of_checkpoints(plan: Plan) -> list[str]:
    """Of a model without a config.json: how checkpoints of its dtype have the cache."""
    kept, engine = plan.serve.kv_dtype, ENGINES[plan.engine]
    # What makes NVFP4 checkpoints quantizes the cache to fp8 unless it is told not to (ModelOpt's
    # hf_ptq.py, --kv_cache_qformat).
    wide = plan.weights.matrices == "nvfp4" and KV_DTYPES[kept].bits == WIDE
    if not (wide and plan.named_engine and engine.follows):
        return []
    return [
        (
            "Serving: most checkpoints in NVFP4 ask for a cache in fp8, and "
            f"{engine.label} follows its checkpoint where nobody says a dtype; that of the plan is "
            f"in {kept} (serve.kv_dtype)."
        )
    ]
