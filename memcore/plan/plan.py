"""Plan: the one JSON document that a link carries, a preset is and the command line reads.

Validation happens here, before any arithmetic. Each field's title, help, unit and words are data on
the field itself, so that a form can be drawn from them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic.functional_validators import AfterValidator

from memcore.errors import Issue, PlanError, did_you_mean, not_text, shown
from memcore.hardware import topology
from memcore.hardware.accelerator import Accelerator, Node
from memcore.kept import kept
from memcore.models import catalog
from memcore.models.config import check_depth
from memcore.models.families import FAMILIES, from_config
from memcore.models.model import Model, in_json
from memcore.models.standard import standard_config
from memcore.plan.rules import broken_rules
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.precision import PRECISIONS, eight_bit
from memcore.words.serving import (
    ARRIVALS,
    KV_CACHES,
    LENGTHS,
    PREFILLS,
    RUNTIMES,
    SERVE_OFFLOAD,
    STATE_DTYPES,
)
from memcore.words.stored import AS_PUBLISHED, KV_DTYPES, SERVED_DTYPES, WEIGHT_DTYPES, WeightDtype
from memcore.words.together import ASLEEP, FROZEN, TOGETHER, TRAINER
from memcore.words.training import (
    ADAPTER_DTYPES,
    ADAPTERS,
    ALLOCATORS,
    ATTENTION,
    AVERAGES,
    CHECKPOINTING,
    CROSS_ENTROPY,
    EARLY_STOP,
    EMBEDDING_GRADIENTS,
    FRAMEWORKS,
    GRADIENTS,
    KERNELS,
    LORA_TARGETS,
    OFFLOAD,
    OFFLOAD_ACTIVATIONS,
    OVERLAP,
    SCHEDULES,
    UNTRAINED,
)
from memcore.words.word import Word

VERSION = 1


class _Words:
    """Marks a field whose values are the words of one policy table; checks and suggests."""

    def __init__(self, table: Mapping[str, Word]):
        self.table = table

    def __call__(self, value: str) -> str:
        if value not in self.table:
            raise ValueError(f"{shown(value)} is not known; {did_you_mean(value, self.table)}")
        return value


def _words(table: Mapping[str, Any]) -> Any:
    words = _Words(table)
    return Annotated[str, AfterValidator(words), words]


def _field(default: Any, title: str, help: str, unit: str = "", **limits: Any) -> Any:
    return Field(
        default=default,
        title=title,
        description=help,
        json_schema_extra={"unit": unit} if unit else None,
        **limits,
    )


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False)


class Cluster(_Part):
    gpu: str | Accelerator = _field("h100-sxm-80gb", "GPU", "A preset's name, or a description.")
    gpus: int = _field(8, "GPUs", "Accelerators in all.", ge=1, le=1_000_000)
    gpus_per_node: int = _field(
        0, "GPUs per node", "Accelerators in one host. 0: as many as the node has.", ge=0, le=1_000
    )
    node: str | Node | None = _field(
        None, "Node", "Host preset: DRAM, PCIe, NVMe, network. Default: the GPU's usual host."
    )


class Parallel(_Part):
    tp: int = _field(1, "Tensor parallel", "Ranks that share each layer.", ge=1, le=1024)
    pp: int = _field(1, "Pipeline parallel", "Stages that share the layers.", ge=1, le=1024)
    cp: int = _field(1, "Context parallel", "Ranks that share a sequence.", ge=1, le=1024)
    ep: int = _field(
        1,
        "Expert parallel",
        "Ranks that share the experts out, whole: as Megatron-Core does, or under FSDP2 as "
        "transformers' all-to-all.",
        ge=1,
        le=1024,
    )
    etp: int = _field(
        1,
        "Expert tensor parallel",
        "Ranks that share each expert, under Megatron, whose own default is as many as share a "
        "layer.",
        ge=1,
        le=1024,
    )
    shard_group: int = _field(
        0,
        "Shard group",
        "FSDP2: ranks that share each parameter, between which groups replicate it (hybrid "
        "sharding). 0: all ranks share it.",
        "ranks",
        ge=0,
        le=1_000_000,
    )
    sequence_parallel: bool = _field(
        False, "Sequence parallel", "Cut norms and residuals over tensor ranks too."
    )
    virtual_stages: int = _field(
        1, "Virtual stages", "Model chunks per pipeline rank.", ge=1, le=128
    )
    schedule: _words(SCHEDULES) = _field(  # type: ignore[valid-type]
        "1f1b", "Pipeline schedule", "In which order micro-batches pass through the stages."
    )


class Train(_Part):
    micro_batch: int = _field(
        1, "Micro-batch", "Sequences per GPU in one forward.", "sequences", ge=1, le=65_536
    )
    seq_len: int = _field(
        4096, "Sequence length", "Tokens per sequence.", "tokens", ge=1, le=16_777_216
    )
    target_len: int = _field(
        128,
        "Target length",
        "Tokens per sequence of the decoder, where an encoder reads the others.",
        "tokens",
        ge=1,
        le=16_777_216,
    )
    images: int = _field(
        1,
        "Images per sequence",
        "That a vision-language model reads; their tokens are part of the sequence.",
        ge=0,
        le=1_000,
    )
    grad_accumulation: int = _field(
        1, "Gradient accumulation", "Micro-batches per optimizer step.", ge=1, le=1_000_000
    )
    gradients: _words(GRADIENTS) = _field(  # type: ignore[valid-type]
        "freed", "Gradients", "Whether gradients stay allocated between optimizer steps."
    )
    framework: _words(FRAMEWORKS) = _field(  # type: ignore[valid-type]
        "fsdp2", "Framework", "Who owns the training states, and which buffers live around them."
    )
    zero: int = _field(
        3,
        "ZeRO stage",
        "What is sharded over data-parallel GPUs: 1 optimizer states, 2 gradients too, "
        "3 parameters too.",
        ge=0,
        le=3,
    )
    overlap_comm: _words(OVERLAP) = _field(  # type: ignore[valid-type]
        "auto", "overlap_comm", "DeepSpeed: whether reduction overlaps backward."
    )
    reduce_bucket_size: int = _field(
        500_000_000,
        "reduce_bucket_size",
        "DeepSpeed: gradients reduced at a time.",
        "elements",
        ge=1,
        le=10**12,
    )
    stage3_max_live_parameters: int = _field(
        1_000_000_000,
        "stage3_max_live_parameters",
        "DeepSpeed, ZeRO 3: weights gathered at once before prefetching waits.",
        "elements",
        ge=0,
        le=10**12,
    )
    stage3_max_reuse_distance: int = _field(
        1_000_000_000,
        "stage3_max_reuse_distance",
        "DeepSpeed, ZeRO 3: weights that are used again within so many others stay gathered.",
        "elements",
        ge=0,
        le=10**12,
    )
    stage3_prefetch_bucket_size: int = _field(
        50_000_000,
        "stage3_prefetch_bucket_size",
        "DeepSpeed, ZeRO 3: weights gathered ahead in one go.",
        "elements",
        ge=0,
        le=10**12,
    )
    stage3_param_persistence_threshold: int = _field(
        100_000,
        "stage3_param_persistence_threshold",
        "DeepSpeed, ZeRO 3: tensors of at most so many weights stay gathered for good.",
        "elements",
        ge=0,
        le=10**12,
    )
    sub_group_size: int = _field(
        1_000_000_000,
        "sub_group_size",
        "DeepSpeed, ZeRO 3: weights that the optimizer steps at a time.",
        "elements",
        ge=1,
        le=10**12,
    )
    adapter: _words(ADAPTERS) = _field(  # type: ignore[valid-type]
        "none", "Adapter", "Whether small adapters are trained in place of the model's weights."
    )
    lora_rank: int = _field(16, "LoRA rank", "Width of each adapter.", ge=1, le=65_536)
    lora_targets: _words(LORA_TARGETS) = _field(  # type: ignore[valid-type]
        "attention", "LoRA targets", "Which linear layers have an adapter."
    )
    lora_dropout: float = _field(
        0.0, "LoRA dropout", "Before each adapter; above zero its mask is kept.", ge=0, le=1
    )
    adapter_dtype: _words(ADAPTER_DTYPES) = _field(  # type: ignore[valid-type]
        "fp32", "Adapter dtype", "Of the adapters' weights, gradients and moments."
    )
    frozen: _words(UNTRAINED) = _field(  # type: ignore[valid-type]
        "none", "Frozen", "Which of the model's weights are not trained."
    )
    trained_layers: int = _field(
        1,
        "Trained layers",
        "Of all layers the last so many are trained, where the lower ones are frozen.",
        "layers",
        ge=0,
        le=100_000,
    )
    embedding_gradient: _words(EMBEDDING_GRADIENTS) = _field(  # type: ignore[valid-type]
        "dense", "Embedding gradient", "Of the token embedding, and the optimizer that takes it."
    )
    ema: _words(AVERAGES) = _field(  # type: ignore[valid-type]
        "none", "EMA weights", "Whether a moving average of the weights is kept besides."
    )
    precision: _words(PRECISIONS) = _field(  # type: ignore[valid-type]
        "bf16-mixed", "Precision", "Which dtype each copy of a weight has."
    )
    optimizer: _words(OPTIMIZERS) = _field(  # type: ignore[valid-type]
        "adamw", "Optimizer", "What is kept per parameter between steps."
    )
    imbalance: float = _field(
        1.0,
        "Expert imbalance",
        "Rows that come to the fullest expert-parallel rank, over the mean; 1 is balanced. No rank "
        "gets more than all rows.",
        ge=1,
        le=1000,
    )
    mtp_layers: int = _field(
        0,
        "Multi-token prediction",
        "Layers behind the last that each predict a token further, as Megatron-Core runs them on "
        "the last stage; DeepSeek-V3 has one. transformers trains none.",
        "layers",
        ge=0,
        le=8,
    )
    checkpointing: _words(CHECKPOINTING) = _field(  # type: ignore[valid-type]
        "full", "Checkpointing", "Which activations are recomputed instead of kept."
    )
    checkpoint_every: int = _field(
        1,
        "Checkpoint every",
        "Of so many layers one is checkpointed, the last of them; the others keep everything.",
        "layers",
        ge=1,
        le=1_000,
    )
    allocator: _words(ALLOCATORS) = _field(  # type: ignore[valid-type]
        "expandable", "Allocator", "How PyTorch's caching allocator takes memory from the GPU."
    )
    early_stop: _words(EARLY_STOP) = _field(  # type: ignore[valid-type]
        "auto", "Early stop", "Whether a checkpointed layer runs again only as far as it must."
    )
    kernels: _words(KERNELS) = _field(  # type: ignore[valid-type]
        "hf", "Kernels", "Whose layer code runs; it decides which tensors are saved."
    )
    attention: _words(ATTENTION) = _field(  # type: ignore[valid-type]
        "flash", "Attention", "Which attention kernel runs."
    )
    cross_entropy: _words(CROSS_ENTROPY) = _field(  # type: ignore[valid-type]
        "eager", "Cross-entropy", "Whether fp32 logits exist."
    )
    offload_optimizer: _words(OFFLOAD) = _field(  # type: ignore[valid-type]
        "none", "Offload optimizer", "Where the optimizer states live."
    )
    offload_parameters: _words(OFFLOAD) = _field(  # type: ignore[valid-type]
        "none", "Offload parameters", "Where the parameters live."
    )
    offload_activations: _words(OFFLOAD_ACTIVATIONS) = _field(  # type: ignore[valid-type]
        "none", "Offload activations", "Where saved activations live."
    )
    offload_optimizer_buffers: int = _field(
        4,
        "Optimizer buffers",
        "DeepSpeed on NVMe: pinned buffers of a sub-group that states are swapped through "
        "(offload_optimizer.buffer_count).",
        ge=1,
        le=1_000,
    )
    offload_param_buffers: int = _field(
        5,
        "Parameter buffers",
        "DeepSpeed on NVMe: pinned buffers that weights are swapped through "
        "(offload_param.buffer_count).",
        ge=1,
        le=1_000,
    )
    offload_param_buffer_size: int = _field(
        100_000_000,
        "Parameter buffer size",
        "DeepSpeed on NVMe: of one such buffer (offload_param.buffer_size).",
        "elements",
        ge=1,
        le=10**12,
    )
    offload_param_max_in_cpu: int = _field(
        1_000_000_000,
        "Parameters kept in DRAM",
        "DeepSpeed on NVMe: weights of each GPU that stay in DRAM (offload_param.max_in_cpu).",
        "elements",
        ge=0,
        le=10**12,
    )
    loader_workers: int = _field(
        0, "Loader workers", "Processes of each GPU's DataLoader (num_workers).", ge=0, le=1_000
    )
    loader_prefetch: int = _field(
        2,
        "Loader prefetch",
        "Batches that each worker fetches ahead (prefetch_factor).",
        "batches",
        ge=1,
        le=10_000,
    )
    loader_pin_memory: bool = _field(
        False, "Loader pins memory", "Batches are copied to page-locked memory (pin_memory)."
    )


_DRAFTS = {"none": Word("None", "Guessed from the text, by n-grams.")} | {
    name: Word(name, "A preset.") for name in catalog.model_names()
}


class Serve(_Part):
    tp: int = _field(
        0,
        "Tensor parallel, serving",
        "Ranks of a replica that share each layer. 0: as many as in training.",
        ge=0,
        le=1024,
    )
    pp: int = _field(
        0,
        "Pipeline parallel, serving",
        "Stages of a replica that share the layers. 0: as many as in training.",
        ge=0,
        le=1024,
    )
    weight_dtype: _words(SERVED_DTYPES) = _field(  # type: ignore[valid-type]
        "auto", "Weight dtype", "How weights are stored for inference."
    )
    kv_dtype: _words(KV_DTYPES) = _field(  # type: ignore[valid-type]
        "bf16", "KV dtype", "How keys and values are cached."
    )
    state_dtype: _words(STATE_DTYPES) = _field(  # type: ignore[valid-type]
        "auto",
        "State dtype",
        "Of what state space models and linear attention keep of a sequence in vLLM.",
    )
    kv_cache: _words(KV_CACHES) = _field(  # type: ignore[valid-type]
        "paged", "KV cache", "How cache memory is handed to sequences."
    )
    concurrency: int = _field(64, "Concurrency", "Sequences served at once.", ge=1, le=1_000_000)
    prompt_len: int = _field(
        1024, "Prompt length", "Tokens in a prompt.", "tokens", ge=1, le=16_777_216
    )
    output_len: int = _field(
        256, "Output length", "Tokens generated.", "tokens", ge=1, le=16_777_216
    )
    images: int = _field(
        1,
        "Images per prompt",
        "Of a model that reads images; their tokens are part of the prompt.",
        ge=0,
        le=4096,
    )
    block_size: int = _field(16, "Block size", "Tokens in one page of the cache.", ge=1, le=65_536)
    memory_utilization: float = _field(
        0.9, "Memory utilization", "Share of the GPU that the server may use.", gt=0, le=1
    )
    max_batched_tokens: int = _field(
        8192,
        "Batched tokens",
        "Most tokens in one forward; decides the activation peak.",
        "tokens",
        ge=1,
        le=16_777_216,
    )
    runtime: _words(RUNTIMES) = _field(  # type: ignore[valid-type]
        "graphs", "Runtime", "What starts the kernels; it decides what lies between them."
    )
    prefill: _words(PREFILLS) = _field(  # type: ignore[valid-type]
        "whole", "Prefill", "How prompts are read while other sequences generate."
    )
    draft_tokens: int = _field(
        0,
        "Draft tokens",
        "Speculative decoding: tokens guessed for each step; 0 is none.",
        "tokens",
        ge=0,
        le=64,
    )
    draft_acceptance: float = _field(
        0.7, "Draft acceptance", "How often a guessed token is right.", ge=0, le=1
    )
    draft_model: _words(_DRAFTS) = _field(  # type: ignore[valid-type]
        "none", "Draft model", "Who guesses; none: the text itself, which costs nothing."
    )
    offload_weights: float = _field(
        0.0,
        "Weights on the host",
        "Of each GPU's weights; read over PCIe in every forward (vLLM's cpu_offload_gb).",
        "GiB",
        ge=0,
        le=10_000,
    )
    offload_kv: _words(SERVE_OFFLOAD) = _field(  # type: ignore[valid-type]
        "none", "KV cache offload", "Where keys and values live."
    )
    arrivals: _words(ARRIVALS) = _field(  # type: ignore[valid-type]
        "poisson", "Arrivals", "When the requests of the simulated stream come."
    )
    arrival_rate: float = _field(
        12.0, "Arrival rate", "Of one replica.", "requests/s", ge=0.001, le=1_000_000
    )
    requests: int = _field(1000, "Requests", "How many the simulated stream has.", ge=1, le=20_000)
    lengths: _words(LENGTHS) = _field(  # type: ignore[valid-type]
        "lognormal",
        "Lengths",
        "How prompts and outputs of the stream differ; prompt and output length are the means.",
    )
    prompt_cv: float = _field(
        1.0, "Prompt variation", "Standard deviation over mean of the prompts.", ge=0, le=10
    )
    output_cv: float = _field(
        1.0, "Output variation", "Standard deviation over mean of the outputs.", ge=0, le=10
    )
    shared_prefix: int = _field(
        0,
        "Shared prefix",
        "The first tokens of every prompt that are the same for all: a system prompt.",
        "tokens",
        ge=0,
        le=16_777_216,
    )
    max_seq_len: int = _field(
        0,
        "Longest sequence",
        "Prompt and output that the server lets in; a contiguous cache reserves as much for each "
        "sequence. 0: the model's own limit.",
        "tokens",
        ge=0,
        le=16_777_216,
    )
    target_ttft: float = _field(
        0.0,
        "First token within",
        "What a request may wait for its first token at most; 0: as long as it takes.",
        "s",
        ge=0,
        le=1_000_000,
    )
    target_tpot: float = _field(
        0.0,
        "Each token within",
        "How long each next token of a request may take on average; 0: as long as it takes.",
        "s",
        ge=0,
        le=1_000_000,
    )
    seed: int = _field(0, "Seed", "The same seed is the same stream.", ge=0, le=2_147_483_647)


class Together(_Part):
    kind: _words(TOGETHER) = _field(  # type: ignore[valid-type]
        "none", "Together with training", "What else runs on the GPUs that train."
    )
    engine_tp: int = _field(
        1,
        "Engine tensor parallel",
        "GPUs that share one replica of the engine, where serve.tp does not say it.",
        ge=1,
        le=1024,
    )
    asleep: _words(ASLEEP) = _field(  # type: ignore[valid-type]
        "all", "Engine asleep", "What the engine gives up while the trainer computes."
    )
    trainer: _words(TRAINER) = _field(  # type: ignore[valid-type]
        "stays", "Trainer meanwhile", "Where training states are while rollouts are generated."
    )
    reference: _words(FROZEN) = _field(  # type: ignore[valid-type]
        "gpu", "Reference model", "Where the frozen first policy rests."
    )
    reward: _words(FROZEN) = _field(  # type: ignore[valid-type]
        "none", "Reward model", "Where a frozen reward model of the policy's shape rests."
    )
    rollouts: int = _field(
        64, "Rollouts", "Sequences that one GPU keeps of a step.", "sequences", ge=1, le=1_000_000
    )


class Run(_Part):
    tokens: int = _field(
        1_000_000_000, "Tokens to train on", "Of the whole run.", "tokens", ge=1, le=10**15
    )
    price_per_gpu_hour: float = _field(
        0.0, "Price", "Of one GPU for one hour; 0: no cost is computed.", "USD", ge=0, le=10_000
    )
    watts_per_gpu: float = _field(
        0.0, "Power", "Of one GPU; 0: its board's power.", "W", ge=0, le=100_000
    )
    pue: float = _field(
        1.0,
        "Power usage effectiveness",
        "What the data centre draws for each watt of the GPUs, cooling included.",
        ge=1,
        le=10,
    )


class Plan(_Part):
    """What is to be trained or served, on what, and how. `{}` is a valid plan.

    model is a preset's name, {"size": "7B"}, or a whole Hugging Face config.json object.
    """

    version: int = _field(VERSION, "Version", "Of this document's form.", ge=1, le=VERSION)
    model: str | dict[str, Any] = _field(
        "llama-3-8b", "Model", "A preset's name, a size such as 7B, or a config.json."
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
            values["model"] = _model_of(in_json(values["model"]))
        try:
            super().__init__(**values)
        except ValidationError as e:
            errors = e.errors(include_url=False)
            meant = [d for d in errors if not _other_form(d)] or errors
            raise PlanError(map(_issue, meant)) from None
        self._take_the_attention_there_is()
        _check(self)

    def _take_the_attention_there_is(self) -> None:
        """Where the plan names no attention and the model's code has not the default, the best that
        it has (rules.attention_missing says so in a note)."""
        if "attention" in self.train.model_fields_set:
            return
        try:
            runs = FAMILIES[self.architecture.family].attentions
        except PlanError:  # is said with all else that is wrong
            return
        if self.train.attention not in runs:
            train = self.train.model_copy(update={"attention": runs[-1]})
            object.__setattr__(self, "train", train)

    @classmethod
    def of(cls, document: Any) -> Plan:
        """The plan that a parsed JSON document describes. Raises PlanError."""
        if not isinstance(document, Mapping):
            raise PlanError([Issue("", "a plan is one JSON object, in braces")])
        version = document.get("version")
        if isinstance(version, int) and version > VERSION:
            raise PlanError(
                [
                    Issue(
                        "version",
                        f"{version} was made by a later Memplan; this one reads versions up to "
                        f"{VERSION}. Update Memplan, or set version to {VERSION}",
                    )
                ]
            )
        if not all(isinstance(key, str) for key in document):
            raise PlanError([Issue("", "every key of a plan is a word")])
        return cls(**document)

    @functools.cached_property
    def architecture(self) -> Model:
        return resolve_model(self.model)

    @functools.cached_property
    def weights(self) -> WeightDtype:
        """How a server stores the weights: as the plan says, or the model's own config.json."""
        word, said = self.serve.weight_dtype, self.architecture.quantization
        if word == AS_PUBLISHED:
            return said.dtype if said else WEIGHT_DTYPES["bf16"]
        return WEIGHT_DTYPES[word]

    @property
    def weight_dtype(self) -> str:
        """The word for it, of WEIGHT_DTYPES."""
        word: str = self.serve.weight_dtype
        said = self.architecture.quantization
        if word == AS_PUBLISHED:
            return (said.word if said else "") or "bf16"
        return word

    @functools.cached_property
    def accelerator(self) -> Accelerator:
        gpu = self.cluster.gpu
        return catalog.accelerator(gpu) if isinstance(gpu, str) else gpu

    @functools.cached_property
    def node(self) -> Node:
        """The host, as its accelerators have it: unified memory is theirs, and a slot is no faster
        than the card in it."""
        gpu, name = self.accelerator, self.cluster.node or self.accelerator.node
        node = catalog.node(name) if isinstance(name, str) else name
        return node.model_copy(
            update={
                "dram_bandwidth": gpu.memory_bandwidth
                if gpu.unified_memory
                else node.dram_bandwidth,
                "pcie_bandwidth": gpu.pcie_bandwidth
                if gpu.unified_memory
                else min(gpu.pcie_bandwidth, node.pcie_bandwidth),
            }
        )

    @property
    def dp(self) -> int:
        """Data-parallel ranks: gpus / (tp x pp x cp)."""
        p = self.parallel
        return self.cluster.gpus // (p.tp * p.pp * p.cp)

    @property
    def serving_tp(self) -> int:
        """Tensor-parallel ranks of one replica that serves."""
        return self.serve.tp or self.parallel.tp

    @property
    def serving_pp(self) -> int:
        """Pipeline stages of one replica that serves."""
        return self.serve.pp or self.parallel.pp

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
    def network_per_gpu(self) -> float:
        """B/s one way that one GPU has of its host's network, while all that run use it."""
        node = self.node
        return node.network_bandwidth / (node.gpus if node.network_of_each else self.gpus_in_node)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that the server lets in, prompt and output together."""
        s = self.serve
        return s.max_seq_len or max(self.architecture.max_positions, s.prompt_len + s.output_len)

    def sizes(self) -> dict[str, Any]:
        """Every number that a formula reads, flat: {name: int}."""
        p, t = self.parallel, self.train
        how = eight_bit(t.framework, t.precision)
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
            "CP": p.cp,
            "EP": p.ep,
            "ETP": p.etp,
            "IMBALANCE": round(1000 * t.imbalance),
            "RANK": t.lora_rank,
            "NARROW": how.multiple if how else 1,
            "SHARD_GROUP": p.shard_group,
            "BUCKET": t.reduce_bucket_size,
        }

    def document(self) -> dict[str, Any]:
        """This plan as plain JSON types, every field explicit."""
        return self.model_dump(mode="json")

    def changed(self, path: str, value: Any) -> Plan:
        """This plan with one field changed, named as in an error: 'train.micro_batch'."""
        return self.with_changes({path: value})

    def with_changes(self, changes: Mapping[str, Any]) -> Plan:
        """This plan with some fields changed. Raises PlanError. Sections without a change are
        valid already."""
        sections: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name in {path.partition(".")[0] for path in changes}:
            if isinstance(sections[name], BaseModel):
                sections[name] = sections[name].model_dump(mode="json")
        for path, value in changes.items():
            put(sections, path, value)
        return Plan(**sections)


def get(owner: Any, path: str) -> Any:
    """The value at a dotted path of a plan or of its document."""
    for name in path.split("."):
        owner = owner[name] if isinstance(owner, Mapping) else getattr(owner, name)
    return owner


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path of a document."""
    *parents, last = path.split(".")
    for name in parents:
        document = document[name]
    document[last] = value


@functools.cache
def field_of(path: str) -> FieldInfo:
    """What the plan declares about the field at a dotted path."""
    *parents, last = path.split(".")
    part: Any = Plan
    for name in parents:
        part = part.model_fields[name].annotation
    found: FieldInfo = part.model_fields[last]
    return found


@functools.cache
def words_of(path: str) -> Mapping[str, Word] | None:
    """The words that a field takes, if it takes words."""
    return next((m.table for m in field_of(path).metadata if isinstance(m, _Words)), None)


def title_of(path: str) -> str:
    """A field's name for people."""
    return field_of(path).title or path


def value_text(path: str, value: Any) -> str:
    """A field's value for people: the label of a word."""
    words = words_of(path)
    if words and value in words:
        return words[value].label
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _model_of(model: dict[str, Any]) -> dict[str, Any]:
    """A model by size without the blanks around it, as a link writes it; any other as it is."""
    size = model.get("size")
    return {"size": size.strip()} if set(model) == {"size"} and isinstance(size, str) else model


def resolve_model(model: str | Mapping[str, Any]) -> Model:
    """The Model behind a plan's `model`. Raises PlanError."""
    if isinstance(model, str):
        if model not in catalog.model_names():
            known = catalog.model_names()
            raise PlanError(
                [Issue("model", f"no preset {shown(model)}; {did_you_mean(model, known)}")]
            )
        return catalog.model(model)
    if "size" in model and "model_type" not in model:
        extra = [key for key in model if key != "size"]
        if extra or not isinstance(model["size"], str):
            raise PlanError([Issue("model.size", "a model by size is {'size': '7B'} and no more")])
        return from_config(standard_config(model["size"]), f"Standard {model['size'].strip()}")
    check_depth(model)
    return _from_json(json.dumps(model, sort_keys=True))


@kept
def _from_json(text: str) -> Model:
    return from_config(json.loads(text))


def _check(plan: Plan) -> None:
    """What no single field can say: presets that do not exist, impossible combinations."""
    issues = []
    gpu, node = plan.cluster.gpu, plan.cluster.node
    if isinstance(gpu, str) and gpu not in catalog.gpu_names():
        hint = did_you_mean(gpu, catalog.gpu_names())
        issues.append(Issue("cluster.gpu", f"no GPU preset {shown(gpu)}; {hint}"))
    if isinstance(node, str) and node not in catalog.node_names():
        hint = did_you_mean(node, catalog.node_names())
        issues.append(Issue("cluster.node", f"no node preset {shown(node)}; {hint}"))
    elif not issues and node is None and plan.accelerator.node not in catalog.node_names():
        hint = did_you_mean(plan.accelerator.node, catalog.node_names())
        issues.append(Issue("cluster.gpu.node", f"no node preset of that name; {hint}"))
    try:
        model: Model | None = plan.architecture
    except PlanError as e:
        issues += e.issues
        model = None
    issues += broken_rules(plan, model)
    if issues:
        raise PlanError(issues)


def _other_form(error: Mapping[str, Any]) -> bool:
    """Whether an error is about a form that the value does not have: a name against an object."""
    form, given = error["loc"][-1], error.get("input")
    if form == "str":
        return isinstance(given, Mapping)
    return form in FORMS and not isinstance(given, Mapping)


OBJECTS = ("model", "gpu", "node")  # fields that take a name or a whole description
FORMS = ("Accelerator", "Node", "dict[str,any]")


def _issue(error: Mapping[str, Any]) -> Issue:
    """One pydantic error in our words."""
    path = [p for p in error["loc"] if p not in ("str", *FORMS)]
    field = ".".join(map(str, path))
    kind, value = error["type"], error.get("input")
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        return Issue(field, f"unknown key; {did_you_mean(str(path[-1]), _siblings(path))}")
    if kind == "missing":
        return Issue(field, "missing; a description of hardware needs it")
    if kind == "value_error":
        return Issue(field, str(context["error"]))
    if kind in ("int_type", "int_from_float", "int_parsing", "int_parsing_size"):
        return Issue(field, f"must be a whole number, not {shown(value)}")
    if kind in ("float_type", "finite_number"):
        return Issue(field, f"must be a finite number, not {shown(value)}")
    if kind == "bool_type":
        return Issue(field, f"must be true or false, not {shown(value)}")
    if kind == "string_type":
        form = "a name or an object" if len(path) < 3 and path[-1] in OBJECTS else "a word"
        return Issue(field, f"must be {form}, not {shown(value)}")
    bounds = {
        "greater_than_equal": "at least {ge:,}",
        "less_than_equal": "at most {le:,}",
        "greater_than": "more than {gt:,}",
        "less_than": "less than {lt:,}",
    }
    if kind in bounds:
        return Issue(field, f"must be {bounds[kind].format(**context)}, not {shown(value)}")
    return Issue(field, f"{error['msg'][:200]} (got {shown(value)})")


def _siblings(path: list[Any]) -> Iterable[str]:
    """The keys that exist where an unknown one was given."""
    part: Any = Plan
    for name in path[:-1]:
        field = getattr(part, "model_fields", {}).get(name)
        if field is None:
            return ()
        part = Accelerator if (name == "gpu") else Node if name == "node" else field.annotation
    return list(getattr(part, "model_fields", {}))
