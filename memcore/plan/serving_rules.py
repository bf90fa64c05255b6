"""Rules of a server: its ranks, its weights, its draft, its requests, and what shares its GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memcore.errors import Issue, shown
from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.plan.rule import broken, only, to
from memcore.plan.sizes import most_fitting, next_multiple
from memcore.tape.kinds import recurs
from memcore.words import engines
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.serving import DRAFT_HEADS, KV_CACHES, MULTI_TOKEN, PREFILLS
from memcore.words.stored import AS_PUBLISHED

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


def prompt_rules(plan: Plan, model: Model) -> Iterator[Issue]:
    """What an encoder, or a vision tower, asks of a prompt."""
    s, tower = plan.serve, model.seeing(plan.serve.image_size).tower
    image = tower.image if tower else None
    if image and s.images * image.prompted > s.prompt_len:
        why = (
            f"{s.images:,} of {image.prompted:,} tokens each do not fit into a prompt of "
            f"{s.prompt_len:,}"
        )
        fewer = to("serve.images", s.prompt_len // image.prompted)
        yield broken("serve.images", why, *fewer, {"serve.prompt_len": s.images * image.prompted})
    if model.encoder_decoder:
        if PREFILLS[s.prefill].chunked:
            why = "an encoder reads prompts whole: every token sees every other"
            yield broken("serve.prefill", why, *to("serve.prefill", "whole"))
        why = "what an encoder makes of a prefix depends on what follows it"
        yield from only(plan, "serve.shared_prefix", [0], why)
        why = "guessed tokens are not planned for encoder-decoders"
        yield from only(plan, "serve.draft_tokens", [0], why)


def together_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """How many GPUs an engine beside the trainer can have, and what leaves it room."""
    t, gpus = plan.together, plan.cluster.gpus
    if t.kind == "none":
        return
    if OPTIMIZERS[plan.train.optimizer].paged:
        why = "how much of the GPU pages leave to an engine beside is not planned"
        alike = ("adam8bit", "adamw") if "8bit" in plan.train.optimizer else ("adamw", "adam8bit")
        others = to("train.optimizer", *alike)
        yield broken("train.optimizer", why, *others, {"together.kind": "none"})
        return
    tp, pp, heads = plan.engine_tp, plan.engine_pp, model.heads if model else 0
    field = "serve.tp" if plan.serve.tp else "together.engine_tp"
    if gpus % (tp * pp):
        why = f"{gpus:,} GPUs do not divide by {tp * pp:,} for each engine"
    elif heads % tp:
        why = f"{heads:,} attention heads do not divide by {tp:,}"
    else:
        return
    fitting = most_fitting(min(tp, gpus), lambda n: gpus % (n * pp) == 0 and heads % n == 0)
    yield broken(field, why, *to(field, fitting), advice="use another divisor of them")


def replica_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """How the ranks of a replica that are not training's share the model and the GPUs."""
    s, gpus, ranks = plan.serve, plan.cluster.gpus, plan.serving_ranks
    as_in_training = "0 is as many as in training"
    if model is not None:
        for what, n in (
            ("attention heads", model.heads),
            ("heads of a layer's state", int(model.sizes.get("SSM_HEADS", 0))),
        ):
            if s.tp and n % s.tp:
                why = f"{n:,} {what} do not divide by {s.tp:,}"
                advice = f"choose a divisor of {n:,}; {as_in_training}"
                yield broken("serve.tp", why, {"serve.tp": 0}, advice=advice)
        if s.pp > model.layers:
            why = f"{s.pp:,} stages for {model.layers:,} layers"
            advice = f"use at most one per layer; {as_in_training}"
            yield broken("serve.pp", why, {"serve.pp": 0}, advice=advice)
    field = "serve.tp" if s.tp else "serve.pp"
    if (s.tp or s.pp) and ranks > gpus:
        why = f"a replica has {ranks:,} ranks, tp x pp, but there are {gpus:,} GPUs"
        more = {"cluster.gpus": next_multiple(ranks, gpus)}
        yield broken(field, why, {field: 0}, more, advice=f"use fewer; {as_in_training}")


def stored_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """A way to store weights that a config.json names and that is not planned."""
    said = model.quantization if model else None
    if plan.serve.weight_dtype != AS_PUBLISHED or said is None or said.word:
        return
    notes = f" ({'; '.join(said.notes)})" if said.notes else ""
    why = f"config.json has its weights as {shown(said.method)}{notes}, which is not planned"
    yield broken("serve.weight_dtype", why, *to("serve.weight_dtype", "bf16", "int4", "fp8"))


BY_CPU = ("gpu_layers", "cpu_moe_layers")  # fields that have the CPU compute


def _of_draft(plan: Plan, draft: Model, model: Model | None) -> Iterator[Issue]:
    """What the file of a draft asks of the model that it guesses for, and of a step."""
    own, asked = draft.draft, plan.serve.draft_tokens
    if not own:
        return
    if model is not None and model.hidden_size != own.target:
        why = (
            f"it reads hidden states of {own.target:,}, and the model's have {model.hidden_size:,}"
        )
        none, advice = to("serve.draft_model", "none"), "give the draft of this model"
        yield broken("serve.draft_model", why, *none, advice=advice)
    if own.most and asked > own.most:
        why = f"its draft guesses a block, of {own.most:,} at most"
        yield broken("serve.draft_tokens", why, *to("serve.draft_tokens", own.most))


def serving_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What reads prompts, what the CPU computes, and who has a prefix cache."""
    s, ranks = plan.serve, plan.serving_ranks
    if PREFILLS[s.prefill].elsewhere and plan.cluster.gpus < 2 * ranks:
        why = (
            f"prompts are read on another replica, but {plan.cluster.gpus:,} GPUs have one of "
            f"{ranks:,}"
        )
        others = to("serve.prefill", "whole", "chunked")
        yield broken("serve.prefill", why, *others, {"cluster.gpus": 2 * ranks})
    if not plan.runs(plan.engine):
        why = f"{engines.ENGINES[plan.engine].label} does not run on {plan.accelerator.label}"
        others = {"serve.engine": engines.LLAMA_CPP}, {"serve.engine": engines.AUTO}
        yield broken("serve.engine", why, *others)
    other = plan.engine != engines.LLAMA_CPP
    for name in BY_CPU:
        path = f"serve.{name}"
        if getattr(s, name) and other:
            why = "the CPU computes layers or experts in llama.cpp alone"
            yield broken(path, why, {path: 0}, {"serve.engine": engines.LLAMA_CPP})
        elif getattr(s, name) and plan.serving_tp > 1:
            why = f"with the CPU layers are shared out, not cut over {plan.serving_tp:,} GPUs"
            yield broken(path, why, {path: 0}, {"serve.tp": 1})
    if s.gpu_layers == 1 and not other:
        why = "one is the output alone: no layer with its cache would be the GPU's"
        yield broken("serve.gpu_layers", why, *to("serve.gpu_layers", 2, 0))
    if model is not None and (model.recurrence or model.encoder_decoder):
        why = "layers with a state, and encoders, have no prefix cache here"
        yield from only(plan, "serve.prefix_hits", [0.0], why)
        yield from only(plan, "serve.turns", [1], why)


def _no_head(word: str, model: Model) -> str:
    """Why a head that guesses for a model is not planned, or ''."""
    if model.entries:
        return "heads for models with compressed entries are not planned"
    if word == MULTI_TOKEN:
        states = any(map(recurs, model.kinds[-1:]))  # its layer is of the model's last kind
        return "its head would keep states, which is not planned" if states else ""
    if model.recurrence or model.tower:
        return "heads for models with states or towers are not planned"
    return ""


def draft_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """Who can guess tokens for the model."""
    field = "serve.draft_model"
    none = to(field, "none")
    if plan.drafts and plan.serve.draft_model in DRAFT_HEADS:
        why = "" if model is None else _no_head(plan.serve.draft_model, model)
        if why:
            yield broken(field, why, *none)
    elif draft := plan.draft:
        yield from _of_draft(plan, draft, model)
        why = ""
        if not FAMILIES[draft.family].decoder or draft.tower:
            why = "it cannot be served"
        elif draft.recurrence:
            why = "a model that keeps states cannot take back its guesses here"
        elif draft.heads % plan.serving_tp:
            why = f"its {draft.heads:,} attention heads do not divide by tp {plan.serving_tp:,}"
        if why:
            yield broken(field, why, *none, advice="choose another")


def state_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """Where states of sequences are, and in which dtype."""
    if model is None or not model.recurrence:
        return
    asked, state = plan.serve.state_dtype, KV_CACHES[plan.cache_manager].state
    why = "states of sequences on the host are not planned"
    yield from only(plan, "serve.offload_kv", ["none"], why)
    if asked != "auto" and state not in ("", asked):
        ways = {"serve.state_dtype": "auto"}, {"serve.kv_cache": "paged"}
        yield broken("serve.state_dtype", f"there states are {state}", *ways)


def memory_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What a host without memory of its own has no place for."""
    try:
        node = plan.node
    except KeyError:  # an unknown preset, which is reported on its own
        return
    if not node.dram_bytes:
        one = f"{node.label} has one memory for CPU and GPU, so there is nowhere to offload to"
        yield from only(plan, "serve.offload_weights", [0], one)
        yield from only(plan, "serve.offload_kv", ["none"], one)
        if not node.dram_bandwidth:  # a card in a host whose only memory is another chip's
            idle = f"{node.label} has no memory that its CPU could read layers from"
            for name in BY_CPU:
                yield from only(plan, f"serve.{name}", [0], idle)


def stream_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """Lengths of requests that contradict each other."""
    s = plan.serve
    long = s.prompt_len + s.output_len
    if s.shared_prefix >= s.prompt_len:
        why = f"{s.shared_prefix:,} tokens, but a prompt has {s.prompt_len:,}"
        fewer, advice = (
            to("serve.shared_prefix", s.prompt_len - 1),
            "use fewer than serve.prompt_len",
        )
        yield broken("serve.shared_prefix", why, *fewer, advice=advice)
    if 0 < s.max_seq_len < long:
        why = (
            f"{s.max_seq_len:,} tokens for a prompt of {s.prompt_len:,} and an output of "
            f"{s.output_len:,}"
        )
        yield broken("serve.max_seq_len", why, *to("serve.max_seq_len", 0, long), advice="use more")
