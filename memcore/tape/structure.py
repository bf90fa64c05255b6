"""Structure: everything that decides which tensors exist, and no size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcore.words.precision import EightBit

CAUSAL, MASKED = "causal", "masked"  # a language model: of the next token, of those left out
CLASSIFICATION, EMBEDDING = "classification", "embedding"  # of a whole sequence; no head at all
REPLACED = "replaced"  # of each token whether it is another's (ELECTRA's discriminator)
ALIKE = "alike"  # which images and texts belong together
LABELLED, SPANS = "labelled", "spans"  # a class of each token; where an answer begins and ends

TOWER, IDLE, BRIDGE, MAIN = "tower", "idle", "bridge", ""
TENSOR, SEQUENCE = "tensor", "sequence"
OWN, FIRST, HEAD = "own", "first", "head"


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters beside linear layers whose own weights are frozen, as in PEFT's LoRA.

    targets    which layers have them (words.training.LORA_TARGETS)
    modules    the names of these layers, where a plan lists them
    dtype      of their weights and of what they compute
    own        they have that dtype in every copy, whatever the precision says of other weights
    dropout    runs before them
    quantized  '' or how the layers' frozen matrices are kept (words.training.QUANTIZED)
    computes   the dtype that these are widened to for their products
    inputs     the embedding's result needs a gradient (PEFT asks for it with checkpointing)
    reentrant  checkpointed layers run without a graph first (torch.utils.checkpoint, use_reentrant)
    """

    targets: str
    dtype: str
    own: bool
    dropout: bool
    quantized: str
    computes: str
    inputs: bool
    modules: tuple[str, ...] = ()
    reentrant: bool = False


@dataclass(frozen=True, slots=True)
class Narrow:
    """What of the linear layers is in 8 bits (words.precision.EightBit), on the plan's GPU.

    both   weights and results exist twice: as they are, and along columns. So it is where each has
           scales of its own (MXFP8), and where tensor cores multiply by rows only (before B200).
    """

    how: EightBit
    both: bool


@dataclass(frozen=True, slots=True)
class Depths:
    """Layers behind the last one that each predict a token further (Megatron-Core's MTP).

    kind    of attention in them, as in LayerKind
    again   which part of them is run again in backward, as in LayerKind
    table   the embedding they read: a copy (OWN), the first block's (FIRST), the head's (HEAD)
    """

    count: int
    kind: str
    again: str
    table: str


@dataclass(frozen=True, slots=True)
class Tables:
    """A recommender's embedding tables, which ranks share out and backward updates by itself.

    sharding   how (words.training.TABLE_SHARDING)
    optimizer  what updates them (words.training.TABLE_OPTIMIZERS)
    cached     they rest in host DRAM, and the GPU has some of their rows
    """

    sharding: str
    optimizer: str
    cached: bool


@dataclass(frozen=True, slots=True)
class Structure:
    """A family with its traits, and the words of a plan that choose kernels.

    dtype      of the weights that the operations read; autocast: cast to bf16 as they go
    served     as an inference engine runs it, where transformers' training code does more
    infers     a forward alone, in eval mode under torch.no_grad, which ends with the logits
    pooled     experts work in buffers that the engine keeps (serving.room.expert_buffers)
    parallel   '' or how tensor-parallel ranks share a layer: TENSOR, or SEQUENCE where norms and
               residuals are cut over them too
    exchanges  expert-parallel ranks send each other the rows of their experts
    gathers    ranks that share each expert gather the rows of all of them
    adapters   they are all that is trained, if there are any
    narrow     what Transformer Engine's linear layers have in 8 bits
    frozen     '' or of words.training EMBEDDINGS, or LOWER where no layer is trained either
    table      the gradient of the token embedding (words.training.EMBEDDING_GRADIENTS)
    reached    the frozen embedding's result needs a gradient all the same
    regathers  the dtype in which FSDP2 reduces the gradients of experts that are a group of their
               own, gathered for their products and freed after them; else ''
    again      layers are run again in backward, which changes what T5 wants a gradient of
    keeps      the training loop keeps the logits through backward
    buffers    the dtype that a model's buffers have: that in which its weights are kept
    unfused    Megatron's linear layers as Megatron-DeepSpeed has them: autograd makes a gradient of
               each weight, which kernels of their own add to those before it, and ranks wait for
               the input's to be summed
    depths     multi-token prediction behind the last layer, if there is any
    stack      of a tower: whose dimensions it has (dims.STACKS)
    tower      the layers before these
    head       what comes behind them, as in Model; one_class: a classifier's is one number
    float8     as in precision.Precision
    modules    of layers that are not run again whole: what backward runs again
               (words.training.RECOMPUTE_MODULES)
    graphs     what is replayed as CUDA graphs (words.training.CUDA_GRAPHS)
    holds_rows one of them has the rows that are sent to experts as a result
    traced     of a traced model: its model file (models.traced.file.ModelFile)
    tables     how its ranks share out embedding tables, if they do
    main_grad  the dtype of the buffer that Megatron's linear layers add a weight's gradient to
    """

    family: str
    traits: Traits
    attention: str = "flash"
    kernels: str = "hf"
    cross_entropy: str = "eager"
    dtype: str = "bf16"
    autocast: bool = False
    served: bool = False
    infers: bool = False
    pooled: bool = False
    parallel: str = ""
    exchanges: bool = False
    gathers: bool = False
    adapters: Adapters | None = None
    narrow: Narrow | None = None
    depths: Depths | None = None
    frozen: str = ""
    reached: bool = False
    regathers: str = ""
    table: str = "dense"
    again: bool = False
    keeps: bool = False
    buffers: str = ""
    unfused: bool = False
    stack: str = ""
    tower: Structure | None = None
    head: str = CAUSAL
    one_class: bool = False
    float8: str = ""
    main_grad: str = "fp32"
    modules: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    holds_rows: bool = False
    traced: Any = None
    tables: Tables | None = None

    @property
    def untold(self) -> bool:
        """Whether nobody wants a gradient of the text's embedding."""
        return self.adapters is not None and not (self.reached or self.adapters.inputs)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells layers of one model apart: its attention (model.FULL, SLIDING, ...), and which
    part of it is run again in backward (words.training.Checkpointing.recompute).

    leads   its input needs no gradient, since nothing before it is trained
    frozen  its weights are not trained
    place   '' for a layer of the main stack, or TOWER, IDLE (a layer of the tower whose result
            nobody reads), BRIDGE (what leads from the tower to the main stack, which is no layer)
    begins  backward begins its stack here: of what several layers read, no gradient is there yet
    """

    attention: str
    recompute: str = ""
    leads: bool = False
    frozen: bool = False
    place: str = ""
    begins: bool = False

    @property
    def label(self) -> str:
        words = [*filter(None, (self.place, self.attention))]
        words += ["recomputed"] if self.recompute else []
        words += ["frozen"] if self.frozen else ["first"] if self.leads else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Traits:
    """The choices of an architecture that decide which tensors exist. No sizes.

    `*_dropout`: the operation runs in training at all (probability above zero), since only then
    does its mask exist. What a family fixes (Llama's rotary positions) is in its code, not here.

    positions       how they are known, where a family has several ways (families.bart)
    streams         the residual is several streams, mixed by hyper-connections
    projected_streams   of them, those that are projections of the first
    balanced        rounds of rescaling the weights that mix them, each with tensors of its own
    draft           what a draft has besides its layers (families.drafts)
    interpolated    learned positions are interpolated to those of an image of another size
    deepstack       layers of a tower that the text reads besides the last
    gates_heads     what weights attention's results is one number for each head (families.laguna)
    patches_reached of a tower's frozen patches a gradient is wanted where the text's embedding is
                    asked for one (transformers' enable_input_require_grads)
    residual_16     under autocast the residual has 16 bits, as products have, whatever weights have
    """

    activation: str = "silu"
    tied_embeddings: bool = False
    attention_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: bool = False
    residual_dropout: bool = False
    embedding_dropout: bool = False
    activation_dropout: bool = False
    label_dropout: bool = False
    deepstack: int = 0
    gates_heads: bool = False
    patches_reached: bool = False
    residual_16: bool = False
    positions: str = ""
    embedding_normed: bool = False
    embedding_masked: bool = False
    interpolated: bool = False
    attention_softcap: bool = False
    attention_clipped: bool = False
    logits_softcap: bool = False
    logits_scaled: bool = False
    embeddings_scaled: bool = False
    residual_scaled: bool = False
    parallel_residual: bool = False
    norm_first: bool = True
    norm_affine: bool = True
    norm_centred: bool = True
    final_norm: bool = True
    residual_after_norm: bool = False
    projected_embeddings: bool = False
    multi_query: bool = False
    grouped_layout: bool = False
    two_norms: bool = False
    query_norm: bool = False
    norm_after_rotary: bool = False
    temperature_tuned: bool = False
    router_jitter: bool = False
    router_normalised: bool = False
    router_grouped: bool = False
    router_sigmoid: bool = False
    router_fp32: bool = False
    compressed_queries: bool = False
    indexed: bool = False
    rotary_interleaved: bool = False
    rotary_partial: bool = False
    rotary_own: bool = False
    rotary_fp32: bool = False
    rotary_widened: bool = False
    projector_bias: bool = False
    masked_images: bool = False
    pooled: bool = False
    gated: bool = False
    head_scaled: bool = False
    head_bias: bool = False
    recurrence_bias: bool = False
    recurrence_out_bias: bool = False
    recurrence_normed: bool = True
    recurrence_scaled: bool = False
    recurrence_split: bool = False
    recurrence_grouped: bool = False
    residual_fp32: bool = False
    keys_scaled: bool = False
    keys_as_values: bool = False
    keys_repeated: bool = False
    doubled_mlp: bool = False
    experts_beside: bool = False
    experts_averaged: bool = False
    experts_latent: bool = False
    convolution_bias: bool = False
    streams: bool = False
    projected_streams: int = 0
    balanced: int = 0
    draft: tuple[str, ...] = ()
