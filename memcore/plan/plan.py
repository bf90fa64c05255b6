"""Plan: the one JSON document that a link carries, a preset is and the command line reads.

Validation happens here, before any arithmetic. The fields are those of sections.py.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from memcore import notebook
from memcore.errors import (
    ALIKE,
    SHOWN,
    Issue,
    PlanError,
    did_you_mean,
    not_text,
    plain_name,
    refusal,
    shown,
    words_text,
)
from memcore.hardware import topology
from memcore.hardware.accelerator import Accelerator, Node
from memcore.models import cards, catalog
from memcore.models.families import FAMILIES
from memcore.models.families.qwen_tower import SIDE
from memcore.models.model import Model, in_json
from memcore.models.traced.tables import PARTS
from memcore.plan.field import Facts, checked, choice, declare, describes, facts_of, number
from memcore.plan.model_rules import length_rules, served_positions, traced_rules
from memcore.plan.models import (
    DIMS,
    dims_of,
    draft_from,
    preset_of,
    resolve_model,
    trimmed,
    with_dim,
)
from memcore.plan.rule import Remedy
from memcore.plan.rules import OF_HARDWARE, broken_rules, readers_of
from memcore.plan.sections import (
    Cluster,
    Parallel,
    Run,
    Section,
    Serve,
    Together,
    Train,
    dim_field,
)
from memcore.units import Gbit, GiB, bytes_text
from memcore.words import engines, experts, serving, stored, training
from memcore.words.jobs import ABOUT, ANY, RL, SERVE
from memcore.words.word import Word

VERSION = 1


class Plan(Section):
    """What is to be trained or served, on what, and how. `{}` is a valid plan.

    model is a preset's name, {"size": "7B"}, or a whole Hugging Face config.json object.
    """

    version: int = number(VERSION, "Version", "Of this document's form.", within=(1, VERSION))
    model: str | dict[str, Any] = declare(
        "llama-3-8b", "Model", "A preset's name, a size such as 7B, or a config.json."
    )
    job: str = choice(
        ABOUT, ANY, "Job", "What the plan is about, which is answered first.", key="job", group=""
    )
    cluster: Cluster = Cluster()
    parallel: Parallel = Parallel()
    train: Train = Train()
    serve: Serve = Serve()
    together: Together = Together()
    run: Run = Run()

    def __init__(self, **values: Any):
        if issues := not_text(values):
            raise PlanError(issues)
        if isinstance(values.get("model"), Mapping):
            values["model"] = trimmed(in_json(values["model"]))
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise PlanError(_issues(e)) from None
        self._take_what_the_model_has()
        self._take_what_a_loop_has()
        _check(self)

    def _take_what_a_loop_has(self) -> None:
        """Fixed lengths, as benchmarks send them, where a closed loop says nothing of how they
        differ."""
        says = {"lengths", "prompt_cv", "output_cv"} & self.serve.model_fields_set
        if self.serve.arrivals == "closed" and not says:
            self._take({"serve.lengths": "fixed"})

    def _take_what_the_model_has(self) -> None:
        """In fields that the plan does not name: the best attention, where the model's code has not
        the default (rules.attention_missing says so in a note); no checkpointing, where it has
        none; as many tokens as it takes; and of a traced model the precision that it was traced
        in."""
        try:
            model = self.architecture
        except PlanError:  # is said with all else that is wrong
            return
        family, own = FAMILIES[model.family], catalog.traced_usual(preset_of(self.model))
        if self.train.attention not in family.attentions:
            own["train.attention"] = family.attentions[-1]
        if not family.checkpoints:
            own["train.checkpointing"] = "none"
        named = {f"{name}.{f}" for name in SECTIONS for f in getattr(self, name).model_fields_set}
        self._take({path: value for path, value in own.items() if path not in named})
        before = list[Remedy]()
        while remedy := next(
            (
                remedy
                for issue in (
                    *length_rules(self, model),
                    *served_positions(self, model),
                    *traced_rules(self, model),
                )
                for remedy in issue.remedies
                if named.isdisjoint(remedy)
                and remedy.keys() <= {*OF_THE_MODEL}
                and remedy not in before
            ),
            None,
        ):
            self._take(remedy)
            before.append(remedy)

    def _take(self, changes: Mapping[str, Any]) -> None:
        for section, fields in by_section(changes).items():
            part = getattr(self, section).model_copy(update=fields)
            object.__setattr__(self, section, part)

    @classmethod
    def of(cls, document: Any) -> Plan:
        """The plan that a parsed JSON document describes. Raises PlanError."""
        if not isinstance(document, Mapping):
            raise refusal("", "a plan is one JSON object, in braces")
        version = document.get("version")
        if isinstance(version, int) and version > VERSION:
            later = (
                f"{version} was made by a later Memplan; this one reads versions up to {VERSION}"
            )
            raise refusal("version", f"{later}. Update Memplan, or set version to {VERSION}")
        if not all(isinstance(key, str) for key in document):
            raise refusal("", "every key of a plan is a word")
        return cls(**{key: value for key, value in document.items() if key != "$schema"})

    @property
    def about(self) -> str:
        """What the plan is about: a word of jobs.ABOUT, or RL where it trains beside an engine."""
        beside = self.together.kind != "none"
        return RL if beside and self.job != SERVE else self.job

    @functools.cached_property
    def architecture(self) -> Model:
        return self._seeing(self.train.image_size)

    def _seeing(self, side: int) -> Model:
        """Its model with images of so many pixels a side; as config.json has them with the default,
        where they are all that it reads."""
        model = resolve_model(self.model)
        return model.seeing(side) if side == SIDE else model.resized(side).seeing(side)

    @functools.cached_property
    def weights(self) -> stored.WeightDtype:
        """How a server stores the weights: as the plan says, or the model's own config.json."""
        word, said = self.serve.weight_dtype, self.architecture.quantization
        if word == stored.AS_PUBLISHED and said and said.files:
            return said.dtype
        if self.engine == engines.LLAMA_CPP and self.weight_dtype == "mxfp4":
            return stored.GGUF_MXFP4
        if self.engine == engines.LLAMA_CPP and said and said.word == "mxfp4":
            return stored.around_mxfp4(stored.WEIGHT_DTYPES[word])
        if word == stored.AS_PUBLISHED:
            return said.dtype if said else stored.WEIGHT_DTYPES["bf16"]
        return stored.WEIGHT_DTYPES[word]

    @property
    def weight_dtype(self) -> str:
        """The word for it, of WEIGHT_DTYPES."""
        word: str = self.serve.weight_dtype
        said = self.architecture.quantization
        if word == stored.AS_PUBLISHED:
            return (said.word if said else "") or "bf16"
        return word

    @functools.cached_property
    def accelerator(self) -> Accelerator:
        return self.accelerator_called(self.gpu_name)

    @property
    def gpu_name(self) -> str:
        """The preset of its accelerators, or what a card of the user's own is called."""
        gpu = self.cluster.gpu
        return gpu if isinstance(gpu, str) else gpu.label

    def accelerator_called(self, name: str) -> Accelerator:
        """What the plan has of a preset's accelerator, or of its own that is called so."""
        gpu, share = self.card(name), self.cluster.gpu_share
        taken = round(self.cluster.taken_gib * GiB)
        if share == 1 and not taken:
            return gpu
        usable = int(gpu.usable_bytes * share)
        whole = ("memory_bytes", "l2_bytes", "sms")
        rates = ("memory_bandwidth", "peer_bandwidth", "watts")
        parts: dict[str, Any] = {n: max(1, int(getattr(gpu, n) * share)) for n in whole}
        parts |= {n: getattr(gpu, n) * share for n in rates}
        parts["flops"] = {dtype: rate * share for dtype, rate in gpu.flops.items()}
        parts["usable_bytes"] = max(1, usable - taken)
        if share < 1:
            parts["label"] = f"{share:g} of {gpu.label}"
        has = f"of which the plan has {share:g}, without {bytes_text(taken)} that others hold"
        published = gpu.sources.get("datasheet", "as the plan describes it")
        said = {n: f"{gpu.sources.get(n, published)}; {has}" for n in parts}
        return gpu.model_copy(update={**parts, "sources": {**gpu.sources, **said}})

    def card(self, name: str) -> Accelerator:
        """A preset's accelerator, or the plan's own that is called so: a whole one, and empty."""
        gpu = self.cluster.gpu
        return catalog.accelerator(name) if isinstance(gpu, str) or name != gpu.label else gpu

    @functools.cached_property
    def node(self) -> Node:
        """The host, as its accelerators have it: unified memory is theirs, and a slot is no faster
        than the card in it. What the plan says of its network and DRAM takes the place of its own.
        """
        gpu, name = self.accelerator, self.cluster.node or self.accelerator.node
        node = catalog.node(name) if isinstance(name, str) else name
        slots = min(self.cluster.gpus_per_node or node.gpus, self.cluster.gpus)
        said = {
            "network_bandwidth": self.cluster.network_gbits * Gbit,
            "dram_bytes": node.dram_bytes and round(self.cluster.dram_gib * GiB),
        }
        own = {name: value for name, value in said.items() if value}
        return node.model_copy(
            update={
                **own,
                "sources": {**node.sources, **dict.fromkeys(own, "as the plan says")},
                "dram_bandwidth": gpu.memory_bandwidth
                if gpu.unified_memory
                else node.dram_bandwidth,
                "pcie_bandwidth": gpu.pcie_bandwidth
                if gpu.unified_memory
                else min(gpu.pcie_bandwidth, node.slot_bandwidth(slots)),
            }
        )

    @property
    def sharing(self) -> int:
        """GPUs that share a micro-batch: tp x pp x cp."""
        p = self.parallel
        return p.tp * p.pp * p.cp

    @property
    def dp(self) -> int:
        """Data-parallel ranks: gpus / (tp x pp x cp)."""
        return self.cluster.gpus // self.sharing

    @property
    def megatron_deepspeed(self) -> bool:
        """Whether DeepSpeed runs Megatron's layers (Megatron-DeepSpeed): those from before
        Transformer Engine, with ZeRO 1, which Megatron had none of then.

        What it keeps and sends is in frameworks/megatron_deepspeed.py; each tensor-parallel rank
        sends its part of what goes to the next stage (runtime/pipe/engine.py: pipe_partitioned)."""
        t = self.train
        return bool(t.kernels == "megatron" and t.attention == "eager" and t.zero == 1)

    @property
    def named_engine(self) -> str:
        """The word for what serves, where the plan names it, its weights are that engine's own
        files, or nothing else runs on its chip; else ''."""
        word: str = self.serve.engine
        if word != engines.AUTO:
            return word
        alone = self.serve.runtime == "graphs" and not self.runs(engines.VLLM)
        return stored.WEIGHT_DTYPES[self.weight_dtype].engine or engines.LLAMA_CPP * alone

    def runs(self, engine: str) -> bool:
        """Whether an engine runs on this chip; of an unknown one, which is reported on its own."""
        try:
            return engines.ENGINES[engine].runs(self.accelerator.vendor)
        except KeyError:
            return True

    @property
    def engine(self) -> str:
        """The word for what serves, of words.engines.ENGINES."""
        return self.named_engine or engines.OF_RUNTIME.get(self.serve.runtime, engines.VLLM)

    @property
    def runtime(self) -> str:
        """What starts the kernels of what serves: an engine that was named has its own, but that
        graphs can be left out."""
        word: str = self.serve.runtime
        own = not self.named_engine or word == "eager"
        return word if own else engines.ENGINES[self.engine].runtime

    @property
    def cache_manager(self) -> str:
        """The word for how cache memory is handed out, of KV_CACHES: an engine that was named and
        has no pages hands it out in its own way."""
        word: str = self.serve.kv_cache
        own = engines.ENGINES[self.engine].cache if self.named_engine else ""
        return own if own and serving.KV_CACHES[word].pages else word

    @property
    def second_tier(self) -> bool:
        """Whether the host's memory has what the cache of pages was made for and does not run."""
        return self.serve.offload_kv == "cpu" and serving.KV_CACHES[self.cache_manager].pages

    @property
    def streams_cache(self) -> bool:
        """Whether all of the cache lies in the host's memory, and comes over for each step."""
        return self.serve.offload_kv == "cpu" and not serving.KV_CACHES[self.cache_manager].pages

    @property
    def value_dtype(self) -> str:
        """How values are cached, of KV_DTYPES: latents and compressed tokens are one vector for
        both."""
        word: str = self.serve.value_dtype
        model = self.architecture
        own = word == stored.AS_KEYS or model.kv_rank or model.entries
        return self.serve.kv_dtype if own else word

    @property
    def host_layers(self) -> int:
        """How many layers, the first ones, lie in the host's memory with their cache. What is on
        the GPU counts the output among them (llama.cpp's src/llama-model.cpp, i_gpu_start)."""
        asked, layers = self.serve.gpu_layers, self.architecture.layers
        return layers + 1 - min(asked, layers + 1) if asked and self.uses_cpu else 0

    @property
    def expert_layers(self) -> int:
        """How many layers, the first ones, have their experts in the host's memory."""
        return max(self.host_layers, self.serve.cpu_moe_layers if self.uses_cpu else 0)

    @property
    def uses_cpu(self) -> bool:
        """Whether layers or experts are the CPU's."""
        return bool(self.serve.gpu_layers or self.serve.cpu_moe_layers)

    @property
    def share(self) -> str:
        """What serve.memory_utilization is a share of, of words.engines: of an engine that was not
        named, of the device."""
        return engines.ENGINES[self.engine].share if self.named_engine else engines.DEVICE

    @property
    def drafts(self) -> bool:
        """Whether a model or a head guesses tokens."""
        return bool(self.serve.draft_tokens) and self.serve.draft_model != serving.NO_DRAFT

    @property
    def draft(self) -> Model | None:
        """What guesses tokens, where it is a model or a file of its own."""
        word = self.serve.draft_model
        if not self.drafts or word in serving.DRAFT_HEADS:
            return None
        return draft_from(word) if describes(word) else catalog.model(word)

    @property
    def default_tokens(self) -> int:
        """Tokens of one forward at most, where the plan does not say how many."""
        return engines.default_tokens(self.engine, self.accelerator, self.serving_tp)

    @property
    def batched_tokens(self) -> int:
        """Tokens of one forward at most."""
        return self.serve.max_batched_tokens or self.default_tokens

    @property
    def as_served(self) -> Plan:
        """This plan with the images that prompts have, where training's have another size."""
        model = self.architecture.seeing(self.serve.image_size)
        return self if model == self.architecture else self.of_model(model)

    def of_model(self, model: Model) -> Plan:
        """This plan with a model that no config.json describes."""
        other = self.model_copy()
        other.__dict__["architecture"] = model
        return other

    @property
    def own_sequences(self) -> int:
        """Sequences that the engine schedules at once where the plan does not say; 0: as many as
        are served. One that was not named has no more on a large GPU: not all do."""
        engine, gpu = engines.ENGINES[self.engine], self.accelerator
        if not serving.KV_CACHES[self.cache_manager].pages:
            return 0
        if not self.named_engine:
            return engine.limit
        return engine.large if engine.large and engines.roomy(gpu) else engine.limit

    @property
    def expert_backend(self) -> str:
        """The word for what runs a server's experts in MXFP4, of words.experts.BACKENDS."""
        word: str = self.serve.moe_backend
        if word != experts.AUTO:
            return word
        if not serving.KV_CACHES[self.cache_manager].pages:
            return experts.PLAIN
        gpu = self.accelerator
        return experts.backend_of(gpu.vendor, gpu.architecture, gpu.memory_kind.startswith("HBM"))

    @property
    def serving_tp(self) -> int:
        """Tensor-parallel ranks of one replica that serves."""
        return self.serve.tp or self.parallel.tp

    @property
    def serving_pp(self) -> int:
        """Pipeline stages of one replica that serves."""
        return self.serve.pp or self.parallel.pp

    @property
    def serving_ranks(self) -> int:
        """GPUs of one replica that serves."""
        return self.serving_tp * self.serving_pp

    @property
    def engine_tp(self) -> int:
        """Tensor-parallel ranks of one replica of the engine beside a trainer."""
        return self.serve.tp or self.together.engine_tp

    @property
    def engine_pp(self) -> int:
        """Pipeline stages of the same; as many as serve.pp says, and not the trainer's."""
        return self.serve.pp or 1

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step sees, over all GPUs."""
        t = self.train
        return t.micro_batch * t.seq_len * t.grad_accumulation * self.dp

    @property
    def gpus_per_node(self) -> int:
        """Accelerators in one host: as the plan says, or as the node has."""
        return self.cluster.gpus_per_node or self.node.gpus

    @property
    def gpus_in_node(self) -> int:
        """GPUs of this plan that share one host."""
        return min(self.gpus_per_node, self.cluster.gpus)

    @property
    def gpus_per_domain(self) -> int:
        """Accelerators that fast links join: of a rack, of a slice, of the host, or one alone."""
        return topology.domain(self.accelerator, self.node, self.gpus_per_node)

    @property
    def gpus_in_domain(self) -> int:
        """GPUs of this plan that fast links join."""
        return min(self.gpus_per_domain, self.cluster.gpus)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that the server lets in, prompt and output together."""
        s = self.serve
        return s.max_seq_len or max(self.architecture.max_positions, s.prompt_len + s.output_len)

    @property
    def table_hits(self) -> float:
        """Share of a table's rows that a step reads and that the GPU has: as the plan says, or by
        Zipf's law, where the row read n-th most is read 1/n as often as the first."""
        t = self.train
        if t.table_cache == 1 or t.table_hits:
            return 1.0 if t.table_cache == 1 else t.table_hits
        traced = self.architecture.traced
        rows = [p.shape[0] for p in traced.parameters if p.path in traced.tables] if traced else []
        most = max(rows, default=1)
        return math.log1p(most * t.table_cache) / math.log1p(most)

    def sizes(self) -> dict[str, Any]:
        """Every number that a formula reads, flat: {name: int}."""
        p, t = self.parallel, self.train
        return {
            **self.architecture.sizes,
            "B": t.micro_batch,
            "S": t.seq_len,
            "IMAGES": t.images,
            "TARGET": t.target_len,
            "ACCUMULATION": t.grad_accumulation,
            "GPUS": self.cluster.gpus,
            "GPUS_PER_NODE": self.gpus_in_node,
            "DP": self.dp,
            "TP": p.tp,
            "PP": p.pp,
            "VIRTUAL": p.virtual_stages,
            "OUTER": sum(p.outer),
            "CP": p.cp,
            "EP": p.ep,
            "OF_EXPERTS": p.ep,
            "ETP": p.etp,
            "IMBALANCE": round(1000 * t.imbalance),
            "RANK": t.lora_rank,
            "NARROW": training.multiple(t.framework, t.precision),
            "SHARD_GROUP": p.shard_group,
            "BUCKET": t.reduce_bucket_size,
            "CACHED": round(PARTS * t.table_cache),
            "MISSED": round(PARTS * (1 - self.table_hits)),
        }

    def document(self) -> dict[str, Any]:
        """This plan as plain JSON types, every field explicit."""
        return self.model_dump(mode="json")

    def _repr_html_(self) -> str:
        """What a notebook shows: the model, the GPUs, and each field that is not at its default."""
        title = f"{self.architecture.label} on {self.cluster.gpus:,} x {self.accelerator.label}"
        rows = [
            (f"{section}.{field}", str(value)[:80])
            for section in SECTIONS
            for field, value in getattr(self, section).model_dump(exclude_defaults=True).items()
        ]
        return notebook.document(notebook.heading(title), notebook.table(rows))

    def changed(self, path: str, value: Any) -> Plan:
        """This plan with one field changed, named as in an error: 'train.micro_batch'."""
        return self.with_changes({path: value})

    def with_changes(self, changes: Mapping[str, Any]) -> Plan:
        """This plan with some fields changed, and the sequence that its images are with their size.
        Raises PlanError. What does not change is valid: new values alone are read, and rules that
        read one of these fields."""
        side = changes.get("train.image_size")
        if isinstance(side, int) and "train.seq_len" not in changes and self.architecture.image:
            changes = {**changes, "train.seq_len": self._seeing(side).max_positions}
        if issues := not_text(changes):
            raise PlanError(issues)
        sections = by_section(changes)
        if not sections.keys() <= SECTIONS.keys():
            return self._checked_whole(sections.keys(), changes)
        parts: dict[str, Any] = {}
        for section, fields in sections.items():
            try:
                read = SECTIONS[section].model_validate(fields)
            except ValidationError as e:
                issues += _issues(e, section)
                continue
            update = {name: getattr(read, name) for name in fields}
            parts[section] = getattr(self, section).model_copy(update=update)
        if issues:
            raise PlanError(issues)
        other = self.model_copy(update=parts)
        if not OF_HARDWARE.isdisjoint(changes):
            for name in ("accelerator", "node"):
                other.__dict__.pop(name, None)
            if issues := _unknown_hardware(other):
                raise PlanError(issues)
        readers = set().union(*(self.readers.get(path, ()) for path in changes))
        if issues := broken_rules(other, other.architecture, readers):
            raise PlanError(issues)
        return other

    def _checked_whole(self, changed: Collection[str], changes: Mapping[str, Any]) -> Plan:
        sections: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name in changed:
            if isinstance(sections[name], BaseModel):
                sections[name] = sections[name].model_dump(mode="json")
        for path, value in changes.items():
            put(sections, path, value)
        return Plan(**sections)

    @functools.cached_property
    def readers(self) -> Mapping[str, set[int]]:
        """Which rules read a field of this plan."""
        return readers_of(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Plan:
        """A copy with other sections, on the same hardware and of the same model. Nothing is
        checked."""
        other = super().model_copy(update=update, deep=deep)
        found = ["weights", "readers"]  # what was found out of other sections
        if other.train.image_size != self.train.image_size:
            found.append("architecture")
        for name in found:
            other.__dict__.pop(name, None)
        return other


# Sections that hold fields.
SECTIONS: dict[str, type[Section]] = {
    name: info.annotation
    for name, info in Plan.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
}


# Fields that follow the model where a plan does not name them.
OF_THE_MODEL = (
    *(f"train.{name}" for name in ("attention", "checkpointing", "seq_len", "target_len")),
    *(f"train.{name}" for name in ("precision", "framework", "zero")),
    *(f"serve.{name}" for name in ("prompt_len", "output_len")),
)


def by_section(changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields of each section by their names, of fields by their paths."""
    found: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        section, _, name = path.partition(".")
        found.setdefault(section, {})[name] = value
    return found


def get(owner: Any, path: str) -> Any:
    """The value at a dotted path of a plan or of its document."""
    if path.startswith(DIMS):
        return dims_of(get(owner, "model"))[path.removeprefix(DIMS)]
    for name in path.split("."):
        owner = owner[name] if isinstance(owner, Mapping) else getattr(owner, name)
    return owner


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path of a document."""
    if path.startswith(DIMS):
        document["model"] = with_dim(document["model"], path.removeprefix(DIMS), value)
        return
    *parents, last = path.split(".")
    for name in parents:
        document = document[name]
    document[last] = value


def field_of(path: str) -> FieldInfo:
    """What the plan declares about the field at a dotted path."""
    return dim_field(path.removeprefix(DIMS)) if path.startswith(DIMS) else _field_of(path)


@functools.cache
def _field_of(path: str) -> FieldInfo:
    *parents, last = path.split(".")
    part: Any = Plan
    for name in parents:
        part = part.model_fields[name].annotation
    found: FieldInfo = part.model_fields[last]
    return found


# The groups of the sidebar in which fields of a section are drawn that name none.
GROUP_OF = {
    "parallel": "Parallelism",
    "train": "Training details",
    "serve": "Serving details",
    "together": "Train and serve together",
    "run": "The whole run",
}


def facts(path: str) -> Facts:
    """All else that it declares."""
    return facts_of(field_of(path)) if path.startswith(DIMS) else _facts(path)


@functools.cache
def _facts(path: str) -> Facts:
    said = facts_of(field_of(path))
    section, _, _ = path.partition(".")
    return said if said.group is not None else replace(said, group=GROUP_OF.get(section, ""))


def words_of(path: str) -> Mapping[str, Word] | None:
    """The words that a field takes, if it takes words."""
    return facts(path).words


def limits_of(path: str) -> tuple[float, float]:
    """The least and the greatest number that a field takes."""
    least, most = -math.inf, math.inf
    for limit in field_of(path).metadata:
        least, most = getattr(limit, "ge", least), getattr(limit, "le", most)
    return least, most


@functools.cache
def field_paths() -> tuple[str, ...]:
    """Every field of a plan, those of a section by their dotted paths, as they are declared."""
    found: list[str] = []
    for name, info in Plan.model_fields.items():
        part = getattr(info.annotation, "model_fields", None)
        found += [f"{name}.{last}" for last in part] if part else [name]
    return tuple(found)


@functools.cache
def _called() -> Mapping[str, tuple[str, ...]]:
    """Fields by all that they are called."""
    found: dict[str, tuple[str, ...]] = {}
    for path in field_paths():
        for name in {
            *map(plain_name, (path.rpartition(".")[2], title_of(path), *facts(path).names))
        }:
            found[name] = (*found.get(name, ()), path)
    return found


def meant(path: str, short: bool = False) -> str:
    """What somebody may mean by a field that no plan has: one of its section by another name, else
    one of another section, else one that takes such a word, else one that is written alike; else
    which fields there are. `short`: those of its section without the section."""
    section, _, name = path.rpartition(".")
    section = section if section in SECTIONS else ""
    plain, called = plain_name(name), _called()
    inside = [field for field in field_paths() if field.startswith(section)]

    def one_of(fields: Iterable[str], more: str = "") -> str:
        here = [f for f in fields if section and f in inside]
        names = [f.rpartition(".")[2] if short else f for f in here] or fields
        return f"did you mean {' or '.join(map(repr, names))}{more}?"

    if plain in called:
        return one_of(called[plain])
    for field in inside:
        if word := next((w for w in words_of(field) or () if plain_name(w) == plain), None):
            return one_of([field], f", which takes '{word}'")
    near = [name for name, fields in called.items() if any(f in inside for f in fields)]
    if close := difflib.get_close_matches(plain[:SHOWN], near, n=1, cutoff=ALIKE):
        return one_of([f for f in called[close[0]] if f in inside])
    return did_you_mean(name, (f.rpartition(".")[2] for f in inside) if section else SECTIONS)


def title_of(path: str) -> str:
    """A field's name for people."""
    return field_of(path).title or path


def value_text(path: str, value: Any) -> str:
    """A field's value for people: the label of a word, and what 0 stands for."""
    if not value and (zero := facts(path).zero):
        return zero
    words, own = words_of(path), facts(path).own
    if words and value in words:
        return words[value].label
    if own and describes(value):
        return own(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def change_texts(changes: Mapping[str, Any], colon: str = "") -> list[str]:
    """What each change sets, for people: 'Micro-batch 4', or with a colon 'Micro-batch: 4'."""
    return [f"{title_of(path)}{colon} {value_text(path, value)}" for path, value in changes.items()]


def _check(plan: Plan) -> None:
    """What no single field can say: presets that do not exist, impossible combinations."""
    issues = _unknown_hardware(plan)
    try:
        model: Model | None = plan.architecture
    except PlanError as e:
        issues += e.issues
        model = None
    issues += broken_rules(plan, model)
    if issues:
        raise PlanError(issues)


def _unknown_hardware(plan: Plan) -> list[Issue]:
    """Presets of GPUs and hosts that do not exist."""
    issues = []
    node = plan.cluster.node
    for what, name, known in (
        ("GPU", plan.cluster.gpu, catalog.gpu_names()),
        ("node", node, catalog.node_names()),
    ):
        if isinstance(name, str) and name not in known:
            message = f"no {what} preset {shown(name)}; {did_you_mean(name, known)}"
            if what == "GPU":
                message = cards.no_preset(name)
            issues.append(Issue(f"cluster.{what.lower()}", message))
    if not issues and node is None and plan.accelerator.node not in catalog.node_names():
        hint = did_you_mean(plan.accelerator.node, catalog.node_names())
        issues.append(Issue("cluster.gpu.node", f"no node preset of that name; {hint}"))
    return issues


def _other_form(error: Mapping[str, Any]) -> bool:
    """Whether an error is about a form that the value does not have: a name against an object."""
    form, given = error["loc"][-1], error.get("input")
    if form == "str":
        return isinstance(given, Mapping)
    return form in FORMS and not isinstance(given, Mapping)


OBJECTS = ("model", "gpu", "node")  # fields that take a name or a whole description
FORMS = ("Accelerator", "Node", "dict[str,any]")


def _issues(error: ValidationError, *section: str) -> list[Issue]:
    """What pydantic found wrong, with the plan or with a section of it, in our words."""
    errors = error.errors(include_url=False)
    meant = [d for d in errors if not _other_form(d)] or errors
    return [_issue(d | {"loc": (*section, *d["loc"])}) for d in meant]


def _issue(error: Mapping[str, Any]) -> Issue:
    """One pydantic error in our words."""
    path = [p for p in error["loc"] if p not in ("str", *FORMS)]
    field = ".".join(map(str, path))
    kind, value = error["type"], error.get("input")
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        told = (
            meant(field, short=True)
            if len(path) < 3
            else did_you_mean(str(path[-1]), _siblings(path))
        )
        return Issue(field, f"unknown key; {told}")
    if kind == "missing":
        return Issue(field, "missing; a description of hardware needs it")
    if kind == "value_error":
        return Issue(field, str(context["error"]))
    wanted = WANTED.get(kind)
    if kind == "string_type" and len(path) < 3 and path[-1] in OBJECTS:
        wanted = "a name or an object"
    if wanted is None:
        return Issue(field, f"{error['msg'][:200]} (got {shown(value)})")
    said = f"must be {wanted.format(**context)}, not {shown(value)}"
    words = words_of(field) if kind == "string_type" and field in field_paths() else None
    return Issue(field, f"{words_text(words)}; {said}" if words else said)


WANTED = {  # by the kind of a pydantic error
    **dict.fromkeys(
        ("int_type", "int_from_float", "int_parsing", "int_parsing_size"), "a whole number"
    ),
    **dict.fromkeys(("float_type", "finite_number"), "a finite number"),
    "bool_type": "true or false",
    **dict.fromkeys(("model_type", "dict_type"), "an object, in braces"),
    "string_type": "a word",
    "greater_than_equal": "at least {ge:,}",
    "less_than_equal": "at most {le:,}",
    "greater_than": "more than {gt:,}",
    "less_than": "less than {lt:,}",
}


def _siblings(path: list[Any]) -> Iterable[str]:
    """The keys that exist where an unknown one was given."""
    part: Any = Plan
    for name in path[:-1]:
        field = getattr(part, "model_fields", {}).get(name)
        if field is None:
            return ()
        part = Accelerator if (name == "gpu") else Node if name == "node" else field.annotation
    return list(getattr(part, "model_fields", {}))


checked({path: (title_of(path), facts(path)) for path in field_paths()})
