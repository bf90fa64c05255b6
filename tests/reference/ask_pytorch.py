"""Ask PyTorch what it keeps: `python tests/reference/ask_pytorch.py [N] [--new] [--write]`.

Asks each N-th row of families.json anew and compares; --new: only those that it was never asked;
--write keeps what PyTorch said. Needs torch and transformers (`pip install '.[oracle]'`), for
models with a state what kernels.py says, and no GPU: models are real, autograd is real, FSDP2 is
real, only the storage is fake. Nothing here knows a formula.

`saved`  bytes of every distinct storage that one forward with labels packs for its backward, and
         that is there when it returns: what leads to no gradient is gone by then
`peak`   most bytes alive in forward and backward of a second step, AdamW states resident; `at` is
         where the tracker then was (the operation it had just seen), `detail` bytes by its names

Three CPU kernels keep something else than the GPU's; stand-ins keep what derivatives.yaml says of
the CUDA kernels: attention (q, k, v, out, log-sum-exp, and the mask as a bias where there is one),
dropout (a mask of bytes), layer norm (mean and reciprocal deviation in fp32). As on a GPU,
attention is on autocast's list of operations that run in bf16. Fake tensors know the grouped
product of experts in bf16 only; in fp32, where autocast leaves it, a stand-in does as
derivatives.yaml says.
"""

import contextlib
import copy
import json
import sys
import warnings
import weakref
from importlib.metadata import version
from pathlib import Path

import kernels
import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools import mod_tracker
from transformers import AutoConfig, masking_utils
from transformers.integrations.moe import grouped_mm_experts_forward
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.clip.modeling_clip import CLIPTextModelOutput, CLIPVisionModelOutput
from transformers.models.dbrx.modeling_dbrx import DbrxExperts
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llava import modeling_llava
from transformers.models.mpnet.modeling_mpnet import MPNetLayer
from transformers.models.nemotron import modeling_nemotron
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

TABLE = Path(__file__).with_name("families.json")
REGIMES = ("pure-bf16", "autocast", "fsdp2-reshard", "fsdp2-no-reshard")
RANKS = 4  # of the FSDP2 regimes

# What a model of this type is trained to do: its class in transformers; the others generate text.
TASKS = {
    "bert": transformers.AutoModelForMaskedLM,
    "roberta": transformers.AutoModelForMaskedLM,
    "xlm-roberta": transformers.AutoModelForMaskedLM,
    "camembert": transformers.AutoModelForMaskedLM,
    "distilbert": transformers.AutoModelForMaskedLM,
    "modernbert": transformers.AutoModelForMaskedLM,
    "electra": transformers.AutoModelForMaskedLM,
    "nomic_bert": transformers.AutoModelForMaskedLM,
    "mpnet": transformers.AutoModelForMaskedLM,
    "esm": transformers.AutoModelForMaskedLM,
    "eurobert": transformers.AutoModelForMaskedLM,
    "deberta-v2": transformers.AutoModelForMaskedLM,
    "albert": transformers.AutoModelForMaskedLM,
    "vit": transformers.AutoModelForImageClassification,
    "deit": transformers.AutoModelForImageClassification,
    "dinov2": transformers.AutoModelForImageClassification,
    "dinov2_with_registers": transformers.AutoModelForImageClassification,
    "clip_vision_model": transformers.AutoModel,
    "clip_text_model": transformers.AutoModel,
    "clip": transformers.AutoModel,
    "siglip_vision_model": transformers.AutoModel,
    "siglip_text_model": transformers.AutoModel,
    "dinov3_vit": transformers.AutoModel,
    "t5": transformers.AutoModelForSeq2SeqLM,
    "mt5": transformers.AutoModelForSeq2SeqLM,
    "bart": transformers.AutoModelForSeq2SeqLM,
    "mbart": transformers.AutoModelForSeq2SeqLM,
    "pegasus": transformers.AutoModelForSeq2SeqLM,
    "marian": transformers.AutoModelForSeq2SeqLM,
    "m2m_100": transformers.AutoModelForSeq2SeqLM,
    "plbart": transformers.AutoModelForSeq2SeqLM,
    "blenderbot": transformers.AutoModelForSeq2SeqLM,
    "blenderbot-small": transformers.AutoModelForSeq2SeqLM,
    "umt5": transformers.AutoModelForSeq2SeqLM,
    "whisper": transformers.AutoModelForSpeechSeq2Seq,
    "llava": transformers.AutoModelForImageTextToText,
    "gemma3": transformers.AutoModelForImageTextToText,
}
# Whose language model is asked alone: no images, and no tower.
TOWERLESS = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "step3p7", "gemma4", "kimi_k25",
    "mllama",
)  # fmt: skip
TOWERS = ("visual", "vision_model", "vision_tower", "multi_modal_projector", "mm_projector",
          "embed_vision")  # fmt: skip
# Whose images may have any size: their patches come one below the other, with a grid of each image.
GRIDS = (modeling_qwen2_vl, modeling_qwen2_5_vl, modeling_qwen3_vl, modeling_qwen3_vl_moe)
PLACED = ("get_vision_position_ids", "get_vision_attention_seqlens", "get_vision_window_index",
          "get_vision_interpolation_indices_and_weights")  # fmt: skip
TASKS |= dict.fromkeys(TOWERLESS, transformers.AutoModelForImageTextToText)
LAYERS = (GradientCheckpointingLayer, MPNetLayer)  # what FSDP2 wraps
COMPARED = (CLIPTextModelOutput, CLIPVisionModelOutput)  # embeddings, of whole texts or images
IMAGES = (
    "vit",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "clip_vision_model",
    "siglip_vision_model",
    "dinov3_vit",
)  # what reads images alone
LOOPED = ("dbrx",)  # whose code asks which experts get a row: their tensors are real


def task(model_type):
    return TASKS.get(model_type, transformers.AutoModelForCausalLM)


def embeds(config):
    """Whether the class that a config names is an embedding model, with no loss of its own."""
    return bool(config.architectures) and config.architectures[0].endswith(("Model", "Projection"))


def named(config):
    """The class that a config names, where that is not its type's task."""
    return getattr(transformers, config.architectures[0]) if config.architectures else None


@torch.library.custom_op("memplan::attention", mutates_args=())
def attention_core(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, empty; an operation of its own, so that policies see it."""
    batch, heads, tokens, _ = q.shape
    out = q.new_empty(batch, tokens, heads, v.shape[-1]).transpose(1, 2)
    return out, q.new_empty(batch, heads, tokens, dtype=torch.float32)


@torch.library.custom_op("memplan::attention_backward", mutates_args=())
def attention_core_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output, inputs[3])
    ctx.set_materialize_grads(False)  # the log-sum-exp has none


attention_core.register_fake(attention_core._init_fn)
attention_core_backward.register_fake(attention_core_backward._init_fn)
attention_core.register_autograd(
    lambda ctx, grad, _: (*attention_core_backward(grad, *ctx.saved_tensors), None),
    setup_context=keep,
)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        if torch.is_autocast_enabled("cpu"):  # as CUDA's autocast does
            x = x.float()
        rows = (*x.shape[:-1], 1)
        stats = [x.new_empty(rows, dtype=torch.float32), x.new_empty(rows, dtype=torch.float32)]
        ctx.save_for_backward(x, weight, bias, *stats)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, _):
        return tuple(None if t is None else torch.empty_like(t) for t in ctx.saved_tensors[:3])


class MaskedScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, source):
        ctx.save_for_backward(mask)
        ctx.shape = source.shape
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(grad), None, grad.new_empty(ctx.shape)


class Deepened(torch.autograd.Function):
    """x[mask] = x[mask] + more, in place: both indexings keep the mask."""

    @staticmethod
    def forward(ctx, x, mask, more):
        ctx.save_for_backward(mask)
        ctx.shape = more.shape
        ctx.mark_dirty(x)
        more.new_empty(more.shape), more + more
        return x

    @staticmethod
    def backward(ctx, grad):
        zeroed, rows = grad.clone(), grad.new_empty(ctx.shape)
        return zeroed + torch.empty_like(grad), None, rows


class GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, offsets):
        ctx.save_for_backward(x, weight, offsets)
        return x.new_empty(x.shape[0], weight.shape[-1])

    @staticmethod
    def backward(ctx, _):
        x, weight, _ = ctx.saved_tensors
        of_weight = torch.empty_like(weight)
        return torch.empty_like(x), of_weight, None


def attention(q, k, v, attn_mask=None, **_):
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
    bias = None if attn_mask is None else attn_mask.new_empty(attn_mask.shape, dtype=q.dtype)
    return attention_core(q, k, v, bias)[0]


def in_fp32(function):
    """The function with its first argument in fp32 where autocast is on."""
    return lambda x, *args, **words: function(
        x.float() if torch.is_autocast_enabled("cpu") else x, *args, **words
    )


def install_stand_ins():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    # A fake tensor cannot be asked whether several sequences are packed into it.
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    # Nor whether a mask of ones, which some decoders make for themselves, masks anything.
    ignores = masking_utils._ignore_causal_mask_sdpa
    masking_utils._ignore_causal_mask_sdpa = lambda _, *rest, **words: ignores(None, *rest, **words)
    # Nor does it have values to start with, which some vision models check.
    transformers.initialization.trunc_normal_ = lambda tensor, *_, **__: tensor
    # How many rows a mask picks is known on a GPU only, and no size depends on it.
    torch.Tensor.masked_scatter = lambda x, mask, source: MaskedScatter.apply(x, mask, source)
    for module in (modeling_llava, modeling_gemma3, *GRIDS):
        module.torch_compilable_check = lambda *_, **__: None
    for module in GRIDS:
        for name in (name for name in PLACED if hasattr(module, name)):
            setattr(module, name, placed(getattr(module, name)))
    for model in (modeling_qwen3_vl.Qwen3VLTextModel, modeling_qwen3_vl_moe.Qwen3VLMoeTextModel):
        model._deepstack_process = deepened
    modeling_nemotron._cast_if_autocast_enabled = cast_where_autocast_is_on
    DbrxExperts.forward = balanced(DbrxExperts.forward)
    group(Step3p7Experts)
    functional = torch.nn.functional
    functional.scaled_dot_product_attention = attention
    functional.layer_norm = lambda x, shape, weight=None, bias=None, eps=0: LayerNorm.apply(
        x, weight, bias
    )
    grouped = functional.grouped_mm
    functional.grouped_mm = lambda x, weight, offs: (
        GroupedProduct.apply(x, weight, offs)
        if weight.dtype == torch.float32
        else grouped(x, weight, offs=offs)
    )
    # These are on the list of CUDA's autocast of what runs in fp32, not on a CPU's.
    for name in ("cross_entropy", "softmax"):
        setattr(functional, name, in_fp32(getattr(functional, name)))
    torch.expm1 = in_fp32(torch.expm1)
    mod_tracker.register_multi_grad_hook = once_all_are_there
    functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, True)[0] if training and p else x
    )


def listed(found):
    return found if isinstance(found, tuple) else (found,)


def ends_in(x):
    return isinstance(x, Tensor) and x.dtype == torch.int32


def placed(function):
    """What follows from the grids of images alone, computed from their values. Ends of sequences
    stay numbers, since sequences are cut there; of all else only the shape matters."""

    def run(grids, *args, kwargs=None, **words):
        with unset_fake_temporarily():
            found = function(torch.from_numpy(grids), *args, **words)
            ends = [x.numpy().copy() if ends_in(x) else x for x in listed(found)]
        kept = [torch.empty_like(x) if isinstance(x, Tensor) else x for x in ends]
        return tuple(kept) if isinstance(found, tuple) else kept[0]

    return run


def deepened(self, hidden_states, visual_pos_masks, visual_embeds):
    """The rows of a mask and what is added to them: how many there are is known on a GPU only."""
    hidden_states = hidden_states.clone()
    return Deepened.apply(hidden_states, visual_pos_masks, visual_embeds)


def cast_where_autocast_is_on(device, *tensors):
    """Nemotron asks for the GPU's autocast, which a CPU's leaves off."""
    if not torch.is_autocast_enabled(device):
        return tensors
    return torch.amp.autocast_mode._cast(tensors, device, torch.get_autocast_dtype(device))


def balanced(forward):
    """Experts' forward with as many rows for each of them."""

    def run(self, x, index, weights):
        turns = torch.arange(index.numel()) % self.num_experts
        index.data.copy_(turns.view_as(index))  # nothing is computed from them but places
        return forward(self, x, index, weights)

    return run


def group(experts):
    """Experts that transformers runs one after another, in one product as those of all others."""
    experts.has_gate, experts.has_bias, experts.has_post_expert_norm = True, False, False
    experts.is_transposed = experts._is_expert_parallel = False
    experts.forward = grouped_mm_experts_forward


def kind_of_tensors(config):
    """What the tensors of a model are: without values, but where its code asks for them."""
    # Which of its tokens has a label, or ends a sequence.
    asks = config.get("architectures") in (["DebertaV2ForSequenceClassification"],
                                           ["BartForSequenceClassification"],
                                           ["MBartForSequenceClassification"])  # fmt: skip
    looped = asks or config["model_type"] in LOOPED
    return contextlib.nullcontext() if looped else FakeTensorMode(allow_non_fake_inputs=True)


def once_all_are_there(tensors, call, *, mode="all"):
    """register_multi_grad_hook, but that it does not keep the gradients that came first."""
    waiting = [len(tensors) if mode == "all" else 1]

    def arrived(_):
        waiting[0] -= 1
        if waiting[0] == 0:
            call()

    for tensor in tensors:
        tensor.register_hook(arrived)


RECOMPUTING = []  # not empty while a checkpointed part runs for the second time


class Recomputing(contextlib.ExitStack):
    """What a recomputation runs under; it ends with an exception once it has all that it needs."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or contextlib.nullcontext()

    def __enter__(self):
        RECOMPUTING.append(True)
        self.callback(RECOMPUTING.pop)
        return self.enter_context(self.inner)


def noting():
    return contextlib.nullcontext(), Recomputing()


NOTING = {"context_fn": noting}


def recompute(model, words=NOTING):
    """Checkpoint each layer; a context_fn gives what its forward and recomputation run under."""
    words = {"use_reentrant": False, **words}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=words)


def made(config, images=False, **words):
    """The model as it comes from a checkpoint, its tower too where there are images. Of mT5, of
    UMT5 and of T5 1.1 (Flan-T5), whose config.json says that nothing is tied, head and embedding
    differ there, and from_pretrained leaves the head by itself (modeling_utils.tie_weights: "we
    will NOT tie them"); from_config ties it all the same."""
    own = named(config)
    if own:
        return own._from_config(config, **words)
    config.architectures = []  # of a task that several classes do, the first does it
    model = task(config.model_type).from_config(config, **words)
    if config.model_type in ("mt5", "umt5") or not getattr(config, "scale_decoder_outputs", True):
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    if config.model_type in TOWERLESS and not images:
        for name in (name for name in TOWERS if hasattr(model.model, name)):
            setattr(model.model, name, None)
    return model


def build(config, dtype, words):
    if config["model_type"] in kernels.STATES:
        kernels.load()
    own = copy.deepcopy({k: v for k, v in config.items() if k != "model_type"})  # which it changes
    config = AutoConfig.for_model(config["model_type"], **own)
    config._attn_implementation, config.use_cache = words["attention"], False
    model = made(config, "images" in words, dtype=dtype).train()
    for module in model.modules():  # the memory tracker wants a gradient of each parameter
        for name in [n for n, p in module.named_parameters(recurse=False) if not p.requires_grad]:
            value = getattr(module, name).data
            delattr(module, name)
            module.register_buffer(name, value)
    if words["checkpointing"] == "full":
        recompute(model)
    return model


def step(model, words, autocast):
    cast = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    with cast:
        given = inputs(model.config, words)
        for name in ("input_features", "labels"):  # which nothing casts
            if name in given and given[name].is_floating_point():
                given[name] = given[name].to(model.dtype)
        said = model(**given)
        if isinstance(said, COMPARED):
            return said[0].sum()
        return said.last_hidden_state.sum() if embeds(model.config) else said.loss


def inputs(config, words):
    """What one forward is called with, its labels among them."""
    batch = words["batch"]
    if config.model_type in IMAGES:
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        pixels = torch.randn(batch, config.num_channels, height, width)
        if embeds(config):
            return {"pixel_values": pixels}
        return {"pixel_values": pixels, "labels": torch.randint(0, config.num_labels, (batch,))}
    if config.model_type == "clip":
        said, vision = config.text_config, config.vision_config
        ids = torch.randint(0, said.vocab_size, (batch, words["seq"]))
        pixels = torch.randn(batch, vision.num_channels, vision.image_size, vision.image_size)
        return {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
    text = config.get_text_config()
    ids = torch.randint(0, text.vocab_size, (batch, words["seq"]))
    if "image_size" in words:
        vision, images = config.vision_config, batch * words["images"]
        side = words["image_size"] // vision.patch_size
        values = (
            getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
        )
        return {
            "input_ids": ids, "labels": ids, "use_cache": False,
            "pixel_values": torch.randn(images * side**2, values),
            "image_grid_thw": np.array([[1, side, side]] * images),
            "position_ids": torch.zeros((3, *ids.shape), dtype=torch.long),
        }  # fmt: skip
    if "images" in words:
        vision, images = config.vision_config, batch * words["images"]
        pixels = torch.randn(images, vision.num_channels, vision.image_size, vision.image_size)
        said = {"input_ids": ids, "pixel_values": pixels, "labels": ids, "use_cache": False}
        # Which tokens are of images, as Gemma's processor says: they see each other.
        kinds = {"token_type_ids": torch.zeros_like(ids)} if config.model_type == "gemma3" else {}
        return said | kinds
    if config.model_type == "whisper":
        features = torch.randn(batch, config.num_mel_bins, 2 * words["seq"])
        labels = torch.randint(0, config.vocab_size, (batch, words["target_len"]))
        return {"input_features": features, "labels": labels, "use_cache": False}
    if config.is_encoder_decoder and config.architectures:  # each sequence ends once
        ids = ids.clamp(min=config.eos_token_id + 1)
        ids[:, -1] = config.eos_token_id
        return {"input_ids": ids, "labels": torch.randint(0, config.num_labels, (batch,))}
    if config.is_encoder_decoder:
        labels = torch.randint(0, config.vocab_size, (batch, words["target_len"]))
        return {"input_ids": ids, "labels": labels, "use_cache": False}
    name = config.architectures[0] if config.architectures else ""
    if name and not name.endswith("ForCausalLM"):
        if embeds(config):
            return {"input_ids": ids}
        if name.endswith("ForQuestionAnswering"):
            places = torch.randint(0, words["seq"], (batch,))
            return {"input_ids": ids, "start_positions": places, "end_positions": places}
        shape = ids.shape if name.endswith("ForTokenClassification") else (batch,)
        if config.num_labels == 1:  # a number, in the dtype of the model's own
            return {"input_ids": ids, "labels": torch.rand(batch)}
        return {"input_ids": ids, "labels": torch.randint(0, config.num_labels, shape)}
    if task(config.model_type) is transformers.AutoModelForMaskedLM:
        return {"input_ids": ids, "labels": torch.randint_like(ids, config.vocab_size)}
    return {"input_ids": ids, "labels": ids, "use_cache": False}


class Kept:
    """A saved tensor, for as long as the operation that saved it is part of the graph."""

    def __init__(self, tensor):
        self.tensor = tensor


def saved(config, words, build=build, cached=lambda: (), mode=None):
    """Bytes packed by autograd, or `cached` for a recomputation, each storage once."""
    with mode or kind_of_tensors(config):
        model = build(config, torch.bfloat16, words)
        known = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        packed = weakref.WeakSet()

        def pack(t):
            # Without its history, which would keep what nobody reads alive in a cycle.
            packed.add(kept := Kept(t.detach()))
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            loss = step(model, words, autocast=False)
        tensors = [*(kept.tensor for kept in packed), *cached()]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        del loss
        return {"bytes": sum(n for key, n in storages.items() if key not in known)}


class Place:
    """Where a tracker sits, and which operation it has just seen, whenever it sees a new peak."""

    def __init__(self, tracker):
        self.tracker, self.modules, self.entered, self.at = tracker, tracker._mod_tracker, [], {}
        self.again = []  # modules that run again in this backward
        self.update, tracker._update_peak_stats = tracker._update_peak_stats, self.updated
        self.enter, self.modules._get_append_fn = self.modules._get_append_fn, self.entering

    def entering(self, module, name, is_backward):
        enter = self.enter(module, name, is_backward)

        def entered(*args):
            self.entered.append(name)
            if is_backward:
                self.again = []
            elif self.modules.is_bw:
                self.again.append(name)
            enter(*args)

        return entered

    def updated(self, state):
        before = dict(self.tracker._peak_mem)
        self.update(state)
        if self.tracker._peak_mem != before:
            op = sys._getframe(1).f_locals["func"]  # of the tracker's __torch_dispatch__
            self.at = {"module": self.module(), "phase": self.phase(), "op": str(op)}

    def module(self):
        """The deepest module at work, of several the one entered last; "" is the model."""
        last = {name: i for i, name in enumerate(self.entered)}
        names = self.modules.parents - {"Global"}
        if RECOMPUTING and self.again:  # others are at work too: those whose backward waits for it
            outermost = min(self.again, key=lambda n: n.count("."))
            names = names.intersection(self.again) or {outermost.rpartition(".")[0]}
        deepest = max(names, key=lambda n: (n.count("."), last.get(n, -1)), default="")
        return deepest.partition(".")[2]

    def phase(self):
        if self.modules.is_bw:
            return "recompute" if RECOMPUTING else "backward"
        return "forward" if self.modules.parents - {"Global"} else "between"


def peak(config, words, build=build):
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    regime = words["regime"]
    sharded = regime.startswith("fsdp2")
    if sharded:
        dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (RANKS,)) if sharded else None
        with kind_of_tensors(config):
            dtype = torch.bfloat16 if regime == "pure-bf16" else torch.float32
            model = build(config, dtype, words)
            if sharded:
                policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
                reshard = regime == "fsdp2-reshard"
                layers = (m for m in model.modules() if isinstance(m, LAYERS))
                for module in (*layers, model):
                    fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            tracker = FSDPMemTracker(model, optimizer) if sharded else MemTracker()
            if sharded:
                tracker.track_inputs(())
            else:
                tracker.track_external(model, optimizer)
            place = Place(tracker)
            with tracker:
                step(model, words, regime == "autocast").backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
                tracker._peak_mem, tracker._peak_mem_snap = {}, {}
                step(model, words, regime == "autocast").backward()
            (snapshot,) = tracker.get_tracker_snapshot("peak").values()
            snapshot = {getattr(k, "value", k): int(v) for k, v in snapshot.items() if v}
            return {"bytes": snapshot.pop("Total"), "at": place.at, "detail": snapshot}
    finally:
        if sharded:
            dist.destroy_process_group()


def main(path, ask, packages=("torch", "transformers")):
    """Ask each N-th row of a table anew and print it; --new: only rows without an answer; --write
    puts what was said into the table."""
    install_stand_ins()
    table = json.loads(path.read_text())
    every = next((int(a) for a in sys.argv[1:] if a.isdigit()), 1)
    never = [row for row in table["rows"] if "bytes" not in row]
    for row in (never if "--new" in sys.argv else table["rows"])[::every]:
        said, stood = ask(table["configs"].get(row.get("model")), row), row.get("bytes", 0)
        words = " ".join(str(v) for k, v in row.items() if k not in said)
        same = said["bytes"] == stood
        print(f"{said['bytes']:>16,}  {words}", "" if same else f"  (the table has {stood:,})")
        row |= said
    if "--write" in sys.argv:
        table["versions"] = {package: version(package) for package in packages}
        path.write_text(as_text(table))


def as_text(table):
    """The table with a line for each model and each row, so that a change of one is seen."""
    configs = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table["configs"].items())
    rows = ",\n".join(map(json.dumps, table["rows"]))
    versions = json.dumps(table["versions"])
    return f'{{"versions": {versions},\n"configs": {{\n{configs}}},\n"rows": [\n{rows}]}}\n'


def ask(config, words):
    return (peak if words["kind"] == "peak" else saved)(config, words)


if __name__ == "__main__":
    main(TABLE, ask)
