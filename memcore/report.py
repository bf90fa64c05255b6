"""The Report: everything `evaluate` says about one plan. Sizes in bytes, times in seconds.

A part that cannot be computed for a plan is None, and `notes` says why; it is never made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from memcore import notebook
from memcore.tape.dims import Extents
from memcore.units import count_text, seconds_text

INSIDE = {"inside": True}  # what the document of a Report lacks: facts for whoever computes with it
CONSUMERS = ("parameters", "gradients", "optimizer_states", "activations", "workspace")


# Not frozen are those of which a report has hundreds: that would take four times as long to make.


@dataclass(slots=True)
class LedgerRow:
    """One kind of tensor at the peak (`hbm`), or at its resting place in another tier.

    name        what it is, dotted: 'layers.mlp.silu(gate)'
    consumer    one of CONSUMERS
    shape       its dimensions with this plan's values; prints as 'B 1 x S 4,096 x F 14,336'
    dtype       as stored
    bytes_each  bytes of one such tensor, on one GPU
    count       how many of them are alive at the peak (in another tier: how many rest there)
    bytes       bytes_each x count: the sum over tier 'hbm' is memory.allocated_bytes
    tier        'hbm' (per GPU), 'dram' or 'nvme' (per node)
    lifetime    from when to when it is alive, in words
    certainty   'exact', 'measured' or 'assumed'
    source      where the knowledge comes from
    why         one sentence: who keeps it and for what
    of_angles   a table of rotary angles
    """

    name: str
    consumer: str
    shape: Extents
    dtype: str
    bytes_each: int
    count: int
    bytes: int
    tier: str
    lifetime: str
    certainty: str
    source: str
    why: str
    of_angles: bool = field(default=False, metadata=INSIDE)


@dataclass(frozen=True, slots=True)
class Peak:
    rank: int
    instant: str


@dataclass(frozen=True, slots=True)
class InstantMemory:
    """Bytes alive on one rank at one instant, by consumer.

    id      stable name, e.g. 'backward-last-layer'
    label   for people, e.g. 'Backward, layer 31 (last)'
    at      the operation inside the instant at which its maximum is reached
    """

    id: str
    label: str
    rank: int
    bytes: int
    consumers: Mapping[str, int]
    at: str


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peak of one pipeline stage: where (id and label of the instant), and of what."""

    rank: int
    allocated_bytes: int
    instant: str
    label: str
    consumers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Overhead:
    """A part of memory that no shape determines: an interval of bytes, with its source.

    counter   the first that counts it: 'reserved' (and so 'device'), or 'device' alone
    """

    name: str
    low: int
    high: int
    counter: str
    certainty: str
    source: str


@dataclass(frozen=True, slots=True)
class Memory:
    allocated_bytes: int
    peak: Peak
    consumers: Mapping[str, int]
    saved_for_backward_bytes: int
    reserved_bytes: tuple[int, int]
    device_bytes: tuple[int, int]
    capacity_bytes: int
    fits: bool
    verdict: str  # 'fits', 'tight' or 'over'
    tiers: Mapping[str, int]
    tier_capacities: Mapping[str, int]
    ranks: tuple[RankMemory, ...]
    timeline: tuple[InstantMemory, ...]
    overheads: tuple[Overhead, ...]


@dataclass(slots=True)
class OperationTime:
    """One operation of a step, all its executions together, on one GPU.

    phase    'forward', 'recompute', 'backward', 'optimizer'
    flops, hbm_bytes            work and traffic
    seconds                     the slower of compute and HBM, and what each launch takes
    bound_by                    'compute' or 'hbm'
    runs                        how often it is executed
    kernel                      whose rate its FLOPs are done at (roofline.PRODUCT, ...)
    of_layers                   of a layer, not of what comes before, between or behind layers
    """

    name: str
    phase: str
    flops: float
    hbm_bytes: float
    compute_seconds: float
    hbm_seconds: float
    seconds: float
    bound_by: str
    runs: int = 1
    kernel: str = field(default="product", metadata=INSIDE)
    of_layers: bool = field(default=False, metadata=INSIDE)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that cross one link in a step, per GPU (nvlink, pcie) or per node (network, nvme)."""

    name: str
    link: str  # 'nvlink', 'network', 'pcie', 'dram', 'nvme'
    bytes: float
    seconds: float
    exposed_seconds: float
    hidden_by: str
    hides_at_bandwidth: float | None  # bytes/s at which nothing of it would be exposed
    # the same of the micro-batch, where what hides it grows with the batch and it does not
    hides_at_micro_batch: float | None = None


@dataclass(frozen=True, slots=True)
class StageTime:
    """One pipeline stage, one micro-batch: arithmetic by phase, what its transfers and its host are
    waited for, and all of it. `bubble`: what of it every other stage waits for when a step begins
    and ends. `step`: the whole optimizer step as this stage sees it, with its waits for the others,
    its gradients and its optimizer."""

    rank: int
    forward: float
    recompute: float
    backward: float
    communication: float
    host: float
    seconds: float
    bubble: float
    step: float


@dataclass(frozen=True, slots=True)
class Time:
    """Of the pipeline stage whose step takes longest: `stage` is its rank. step_seconds are what
    its resources are waited for (`exposed`), and `bubble_seconds`, in which it waits for other
    stages. starts: the operations that its host starts, by phase.

    step_interval   seconds that 9 of 10 steps that were measured of the like lie between, if they
                    were as far off ours; compared: what those were, and how many
    """

    step_seconds: float
    step_interval: tuple[float, float]
    compared: str
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    mfu: float
    hfu: float
    bound_by: str
    resources: Mapping[str, float]
    exposed: Mapping[str, float]
    phases: Mapping[str, float]
    model_flops: float
    hardware_flops: float
    recompute_flops: float
    operations: tuple[OperationTime, ...]
    transfers: tuple[Transfer, ...]
    stage: int
    bubble_seconds: float
    stages: tuple[StageTime, ...]
    starts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A whole training run.

    steps             whole optimizer steps
    seconds           of these steps alone; GPU-hours, cost and energy are theirs
    cost              in the price's currency; None where the plan has no price
    watts             of all GPUs, with what the power usage effectiveness adds
    weights_bytes     of one saved checkpoint, of all ranks together
    checkpoint_bytes  the same with what the optimizer keeps
    disk_bytes        of the checkpoints that are kept at once
    save_seconds      while which steps wait for a save
    save_every        steps from one save to the next
    interruptions     expected in the time that passes
    elapsed_seconds   that pass: steps, saves, restarts and steps done again
    """

    steps: int
    seconds: float
    gpu_hours: float
    cost: float | None
    watts: float
    energy_joules: float
    joules_per_token: float
    weights_bytes: int
    checkpoint_bytes: int
    disk_bytes: int
    save_seconds: float
    save_every: int
    saves: int
    interruptions: float
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class Serve:
    """On the fullest GPU of one replica. Where not even one sequence fits there are no speeds: the
    steps and seconds of a request and what bounds them are None (serving.nothing_fits says why).

    Each field is a quantity of `serving/`, where its title, its unit and what it means stand;
    `memplan explain PLAN serve.FIELD` says them.
    """

    weights_bytes: int
    offloaded_bytes: int
    table_bytes: int
    loaded_bytes: int
    kv_bytes_per_token: int
    sequence_limit: int
    activation_bytes: int
    tower_bytes: int
    feature_bytes: int
    profiled_images: int
    overhead_bytes: int
    outside_bytes: int
    batched_tokens: int
    memory_share: float
    budget_bytes: int
    kv_budget_bytes: int
    host_room_bytes: int
    block_tokens: int
    block_bytes: int
    blocks: int
    blocks_per_sequence: int
    kv_capacity_tokens: int
    sequence_bytes: int
    cross_bytes_per_sequence: int
    state_bytes_per_sequence: int
    reserved_tokens: int
    wasted_bytes_per_sequence: int
    max_concurrency: int
    fits: bool
    computed_tokens: int
    step_sequences: int
    running: int
    sequences_short: int
    prefill_steps: int | None
    transfer_seconds: float | None
    tower_seconds: float | None
    first_seconds: float | None
    wait_seconds: float | None
    joining_tokens: int | None
    interruption_seconds: float | None
    request_seconds: float | None
    ttft_seconds: float | None
    tpot_seconds: float | None
    ttft_range: tuple[float, float] | None
    tpot_range: tuple[float, float] | None
    stall_seconds: float | None
    tokens_per_step: float
    tokens_per_second: float | None
    decode_tokens_per_second: float | None
    prompt_token_seconds: float | None
    output_token_seconds: float | None
    cost_per_million_in: float | None
    cost_per_million_out: float | None
    prefill_bound_by: str | None
    decode_bound_by: str | None
    tp: int
    pp: int
    gpus_per_replica: int
    replicas: int
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True)
class Inference:
    """One forward of a model that generates nothing, on each GPU. Each field is a quantity of
    serving/forward.py, where its title, its unit and what it means stand.

    tokens   of a sample; 0 where it has none. rows: what is alive at the peak besides the weights,
             when `peak_at` was made
    """

    batch: int
    tokens: int
    weights_bytes: int
    activation_bytes: int
    allocated_bytes: int
    overheads: tuple[Overhead, ...]
    device_bytes: tuple[int, int]
    capacity_bytes: int
    max_batch: int
    fits: bool
    verdict: str
    peak_at: str
    flops: float
    gpu_seconds: float
    host_seconds: float
    latency_seconds: float
    samples_per_second: float
    tokens_per_second: float | None
    bound_by: str
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step that trains and serves on the same GPUs: bytes on the fullest GPU.

    parts          by what holds them (together.PARTS)
    device_bytes   with the allocator's slack on the trainer's parts, CUDA's context and NCCL
    """

    id: str
    label: str
    parts: Mapping[str, int]
    bytes: int
    device_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TogetherMemory:
    """phases in their order; `peak` is the fullest one's id. host: bytes of one GPU in host DRAM,
    by part; dram_bytes: per node."""

    phases: tuple[Phase, ...]
    peak: str
    device_bytes: tuple[int, int]
    capacity_bytes: int
    host: Mapping[str, int]
    dram_bytes: int
    dram_capacity_bytes: int
    kv_capacity_tokens: int
    fits: bool
    verdict: str  # 'fits', 'tight' or 'over'


VERDICTS = ("fits", "tight", "over")  # the best first


@dataclass(frozen=True, slots=True)
class Report:
    """active_parameters: those that one token meets, of a layer's experts only its own; remarks:
    by a field of the plan, what its word does here that it is not chosen for"""

    plan: Mapping[str, Any]
    parameters: int
    trainable_parameters: int
    active_parameters: int
    memory: Memory | None
    time: Time | None
    run: Run | None
    serve: Serve | None
    inference: Inference | None
    together: TogetherMemory | None
    ledger: tuple[LedgerRow, ...]
    notes: tuple[str, ...]
    remarks: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """The worse of training's verdict and, with an engine on the same GPUs, theirs together;
        of a plan whose training is not computed, serving's. 'fits', 'tight' or 'over'."""
        if self.memory is None:
            return self.serving_verdict
        found = [self.memory.verdict, *([self.together.verdict] if self.together else [])]
        return max(found, key=VERDICTS.index)

    @property
    def if_it_fitted(self) -> str:
        """What follows the seconds of a step in words: nobody waits for one that does not fit."""
        return ", if it fitted" if self.memory and self.memory.verdict == "over" else ""

    @property
    def serving_verdict(self) -> str:
        """Whether the sequences that serving is asked for fit; what is not served does not."""
        if self.inference:
            return self.inference.verdict
        return "fits" if self.serve and self.serve.fits else "over"

    def to_dict(self) -> dict[str, Any]:
        """The Report as plain JSON types; parts that were not computed are left out."""
        found: dict[str, Any] = plain(self)
        return found

    @property
    def served_parts(self) -> Mapping[str, int]:
        """Bytes on the fullest GPU of a server with as many sequences as are asked for, by what
        holds them; nothing where no engine serves."""
        if (s := self.serve) is None:
            return {}
        return {
            "weights": s.weights_bytes - s.offloaded_bytes + s.table_bytes,
            "activations": s.activation_bytes,
            "cache": s.sequence_bytes * self.plan["serve"]["concurrency"],
            "overhead": s.overhead_bytes,
            "outside the engine's budget": s.outside_bytes,
        }

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, a bar and a table of what was computed."""
        about, blocks = self.plan["job"], []
        if (m := self.memory) and about != "serve":
            t, figures = self.time, dict[str, str]()
            if t:
                low, high = map(seconds_text, t.step_interval)
                figures = {
                    "a step": f"{seconds_text(t.step_seconds)} ({low} to {high})",
                    "speed": f"{t.tokens_per_second:,.0f} tokens/s",
                    "bound by": t.bound_by,
                }
            args = m.consumers, m.device_bytes, m.capacity_bytes, figures
            blocks.append(notebook.memory("Training", m.verdict, *args))
        if both := self.together:
            peak = next(phase for phase in both.phases if phase.id == both.peak)
            args = peak.parts, both.device_bytes, both.capacity_bytes, {"fullest in": peak.label}
            blocks.append(notebook.memory("Both on the same GPUs", both.verdict, *args))
        if (s := self.serve) and about != "train":
            parts = dict(list(self.served_parts.items())[:-1])
            figures = {"room for sequences": f"{s.max_concurrency:,}"}
            for name, seconds, ends in (
                ("first token", s.ttft_seconds, s.ttft_range),
                ("each token", s.tpot_seconds, s.tpot_range),
            ):
                if seconds and ends:
                    low, high = map(seconds_text, ends)
                    figures[name] = f"{seconds_text(seconds)} ({low} to {high})"
            taken = sum(parts.values())
            args = parts, (taken, taken), s.budget_bytes, figures
            verdict = self.serving_verdict
            blocks.append(notebook.memory("Serving, of the engine's budget", verdict, *args))
        if i := self.inference:
            parts = {"weights": i.weights_bytes, "activations": i.activation_bytes}
            figures = {"a batch": seconds_text(i.latency_seconds), "largest": f"{i.max_batch:,}"}
            args = parts, i.device_bytes, i.capacity_bytes, figures
            blocks.append(notebook.memory("A forward", i.verdict, *args))
        gpus = f"{self.plan['cluster']['gpus']:,} x {named(self.plan['cluster']['gpu'])}"
        title = f"{named(self.plan['model'])}, {count_text(self.parameters)} parameters, on {gpus}"
        return notebook.document(notebook.heading(title), *blocks, notebook.notes(self.notes))


def named(value: Any) -> str:
    """What a plan's model or GPU is called: its preset, or what its description calls it."""
    if isinstance(value, str):
        return value
    names = (value.get(key) for key in ("label", "size", "_name_or_path", "model_type"))
    return next((name for name in names if isinstance(name, str) and name), "its own")


def fields_but(value: Any, *left_out: str) -> dict[str, Any]:
    """The fields of a dataclass as they are, by name, but for some."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in left_out}


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as dicts and lists, shapes as text; what is None is left
    out."""
    if isinstance(value, Extents):
        return str(value)
    if is_dataclass(value):
        own = (f.name for f in fields(value) if "inside" not in f.metadata)
        pairs = ((name, getattr(value, name)) for name in own)
        return {k: plain(v) for k, v in pairs if v is not None}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value
