"""States: parameters, gradients and optimizer states, and the buffers that a framework adds.

Every parameter tensor of every block becomes a row of each kind of copy. Sharding cuts a
parameter's first dimension and rounds up, as FSDP2 does; padding is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memcore.cache import cached, counted_apart
from memcore.tape.dims import DISTINCT, Number, Shape, ceil_div, share, where
from memcore.tape.kinds import Part as Scope
from memcore.tape.ledger import Group, Template
from memcore.tape.quantized import parts, parts_in_8_bits
from memcore.tape.sharding import cut_shape, flat_cut, fsdp_cut, is_shared_out, unit_cut
from memcore.tape.tape import Storage, Tape
from memcore.words.optimizers import PAGED, Optimizer, State
from memcore.words.precision import Precision
from memcore.words.training import DENSE, FUSED_ROWS, SPARSE, TABLE_OPTIMIZERS

FSDP = "torch.distributed.fsdp.fully_shard: shards dimension 0, pads to the group"
UNITS = "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py"
DEEPSPEED = "deepspeed/runtime/zero (0.19.2): stage_1_and_2.py, stage3.py, partition_parameters.py"
TORCH = "torch.nn.Module.parameters and torch.optim.Optimizer.state"
DDP = "torch.nn.parallel.DistributedDataParallel: gradient_as_bucket_view=False"
MANAGED = "bitsandbytes/optim/optimizer.py: get_state_buffer, by cudaMallocManaged"
BITSANDBYTES = "bitsandbytes/optim/optimizer.py: Optimizer2State.init_state"
PARAMS_4BIT = "bitsandbytes/functional.py: quantize_4bit, blocks of 64"
SPARSE_ADAM = "torch/optim/_functional.py: sparse_adam"
FBGEMM = "fbgemm_gpu: split_table_batched_embeddings_ops_training.py, EmbeddingLocation"
TE_WEIGHTS = "transformer_engine/pytorch/module/base.py: quantize_weight, cached for micro-batches"


@counted_apart
@dataclass(frozen=True, slots=True, eq=False)
class BlockStates:
    """Groups of one block's states, on one GPU.

    resident     parameters as they live through the step (a shard, where sharded), and buffers
    movable      of them, those that offload of parameters takes to the host
    scales       the others: scales of 4-bit weights, which are no parameters
    trained      of them, those that are trained
    updated      those that this GPU's optimizer step updates
    gradients    reduced gradients, until the optimizer step
    moments      what the optimizer remembers of each parameter, on the GPU
    paged        the same in unified memory
    temporaries  what its step needs while it runs
    widened      fp32 copies of gradients of fewer bits, for an optimizer that makes them
    master       the optimizer's fp32 copy, if the precision has one
    steps        the optimizer's step counters, one per parameter tensor
    average      an fp32 moving average of each, which the optimizer keeps
    second       a moving average that is a second model
    reference    a frozen copy of the model, if there is one
    gathered     a layer's whole parameters, as its operations read them
    reduction    the buffer that a gradient reduction sends
    buckets      DistributedDataParallel's gradient buckets
    hosted       tables that rest on the host with what their optimizer keeps of each weight
    missed       their rows that a step reads and the GPU has not cached
    """

    resident: Group
    movable: Group
    scales: Group
    trained: Group
    updated: Group
    gradients: Group
    moments: Group
    paged: Group
    temporaries: Group
    widened: Group
    master: Group
    steps: Group
    average: Group
    second: Group
    reference: Group
    gathered: Group
    reduction: Group
    buckets: Group
    hosted: Group
    missed: Group


@cached
def block_states(
    tape: Tape,
    copies: Precision,
    optimizer: Optimizer,
    sharded: bool,
    outer: bool,
    flattened: bool = False,
    units: bool = False,
    reference: str = "",
) -> BlockStates:
    """The states of one block. `sharded`: FSDP or ZeRO-3 owns the parameters; else every GPU has
    them all. `outer`: the block is the embedding or the head, not a layer. `flattened`: tensors are
    laid out flat before they are cut (DeepSpeed), and the optimizer sees one tensor. `units`: flat
    within each layer, whose experts are gathered with it (Megatron-FSDP). `reference`: the dtype of
    a frozen copy of the model, '' where there is none.
    """
    parameters = [p for p in tape.parameters if p.trained]
    dense = [p for p in parameters if p.table == DENSE]
    # What backward updates by itself has no gradient, and is no part of the optimizer's step.
    stepped = [p for p in parameters if p.table not in IN_BACKWARD]
    source = DEEPSPEED if flattened else UNITS if units else FSDP if sharded else TORCH
    part = flat_cut if flattened else unit_cut if units else fsdp_cut if sharded else cut_shape
    one_group = [p for p in tape.parameters if units or not is_shared_out(p.shape)]

    def group(
        suffix: str,
        consumer: str,
        dtype: str,
        lifetime: str,
        why: str,
        cut: str = "resident",
        of: list[Storage] = stepped,
        whole: bool = False,
    ) -> Group:
        return Group.of(
            Template(
                p.name + suffix, consumer, part(p.shape, cut, sharded),
                (whole and p.gathered) or (p.dtype if p.own else dtype), lifetime, why, source,
            )
            for p in of
        )  # fmt: skip

    def remembered(paged: bool) -> Group:
        """What the optimizer keeps of each parameter: where its own memory is, or unified."""
        return Group.of(
            Template(
                f"{p.name}.{kept.name}", "optimizer_states", _kept(p.shape, kept, part),
                kept.dtype or (p.dtype if p.own else copies.moment), always,
                "what the optimizer remembers",
                MANAGED if paged else source if flattened else TORCH,
            )
            for p in parameters
            for kept in (_of_table(p) if p.table != DENSE else _states(
                optimizer, 1 if flattened else len(p.shape), outer and Scope.DEPTH not in p.parts
            ))
            if (kept.keeps == PAGED) == paged and not _on_host(p, kept)
        )  # fmt: skip

    always = "always"
    quantized = [p for p in tape.parameters if p.quantized]
    narrow = [(p, p.narrow) for p in tape.parameters if p.narrow]
    primary = [p for p, how in narrow if how.how.primary]
    whole = [p for p in tape.parameters if not p.quantized and p not in primary]
    resident = group(
        "", "parameters", copies.resident, always, "a weight",
        of=[p for p in whole if not p.cached],
    )  # fmt: skip
    tables = [p for p in tape.parameters if p.cached]
    in_cache = [row for p in tables for row in _cached(p)]
    # What is cut are the 4-bit values, stored as floating-point numbers (bnb_4bit_quant_storage);
    # their scales are no parameters, so that every GPU has them all (QuantState), on the GPU where
    # parameters are offloaded too: its kernels read them there (bitsandbytes 0.50: nn/modules.py,
    # Linear4bit.forward; functional.py, dequantize_4bit).
    in_4_bits = [
        Template(
            p.name + piece, "parameters",
            shape if i else part(shape, "resident", sharded), dtype, always,
            "a frozen weight in 4 bits", PARAMS_4BIT,
        )
        for p in quantized
        for i, (piece, shape, dtype) in enumerate(parts(p.shape, p.quantized))
    ]  # fmt: skip
    each = [len(parts(p.shape, p.quantized)) for p in quantized]
    firsts = {sum(each[:n]) for n in range(len(each))}
    values, scales = (
        [row for i, row in enumerate(in_4_bits) if (i in firsts) == first]
        for first in (True, False)
    )
    buffers = [
        Template(b.name, "workspace", b.shape, b.dtype, always, "a buffer of the model", TORCH)
        for b in tape.buffers
    ]
    gathered_4_bits = (
        Template(
            f"{p.name}{piece} (gathered)", "workspace", part(shape, "gathered", sharded), dtype,
            "all-gather to reshard", "whole weights of a layer in flight", PARAMS_4BIT,
        )
        for p in quantized
        for piece, shape, dtype in parts(p.shape, p.quantized)[:1]
    )  # fmt: skip
    in_8_bits = (
        Template(
            p.name + piece, "parameters", shape, dtype, always, "a weight as products read it",
            TE_WEIGHTS,
        )
        for p, how in narrow
        for piece, shape, dtype in parts_in_8_bits(p.shape, how)
    )  # fmt: skip
    gathered = group(
        " (gathered)",
        "workspace",
        copies.compute,
        "all-gather to reshard",
        "whole weights of a layer in flight",
        "gathered",
        [p for p in one_group if not p.quantized],
        whole=True,
    )
    return BlockStates(
        resident=Group((*resident.rows, *in_4_bits, *in_8_bits, *in_cache, *buffers)),
        movable=Group((*resident.rows, *values, *in_8_bits, *buffers)),
        scales=Group(tuple(scales)),
        trained=group(
            "", "parameters", copies.resident, always, "a trained weight", of=parameters
        ),
        updated=group("", "parameters", copies.resident, always, "a trained weight", "state"),
        gradients=group(
            ".grad",
            "gradients",
            copies.reduced,
            "backward to optimizer step",
            "the reduced gradient",
        ),
        moments=remembered(paged=False),
        paged=remembered(paged=True),
        temporaries=Group.of(
            [
                *(
                    row
                    for name in optimizer.temporaries
                    for row in group(
                        f" ({name})", "workspace", copies.moment, "optimizer step",
                        "temporary of the optimizer's step", "state", dense,
                    ).rows
                ),
                *(
                    Template(
                        f"{p.name} ({name})", "workspace", (DISTINCT, *p.shape[1:]),
                        copies.resident, "optimizer step", "temporary of SparseAdam's step",
                        SPARSE_ADAM,
                    )
                    for p in stepped
                    if p.table == SPARSE
                    for name in SPARSE_TEMPORARIES
                ),
            ]
        ),
        widened=group(
            ".grad (fp32)", "gradients", "fp32", "optimizer step",
            "the reduced gradient, as the optimizer reads it", "state",
            stepped if copies.reduced != "fp32" and not optimizer.aware else [],
        ),
        master=group(
            ".master, remainder", "optimizer_states", "int16", always,
            "what its bf16 weight lacks of an fp32 master copy", "state",
        )
        if optimizer.aware
        else group(
            ".master", "optimizer_states", copies.master, always, "fp32 master copy", "state"
        )
        if copies.master
        else Group(()),
        steps=Group.of(
            Template(
                f"{p.name}.step", "optimizer_states", (), "fp32", always, "step count", TORCH,
            )
            for p in dense
            if optimizer.step_bytes and not flattened
        ),
        average=group(
            ".average", "optimizer_states", "fp32", always, "moving average of the weight", "state"
        ),
        second=group(
            ".average", "optimizer_states", copies.resident, always,
            "moving average of the weight, in a second model", of=tape.parameters,
        ),
        reference=group(
            ".reference", "parameters", reference, always,
            "a weight of the frozen reference", of=tape.parameters if reference else [],
        ),
        gathered=Group((*gathered.rows, *gathered_4_bits)),
        reduction=group(
            ".grad (reduce-scatter input)",
            "workspace",
            copies.reduced,
            "one layer's backward",
            "buffer that the reduce-scatter sends",
            "gathered",
            [p for p in one_group if p in stepped],
        ),
        buckets=Group.of(
            Template(
                f"{p.name}.grad (bucket)", "workspace", p.shape,
                p.dtype if p.own else copies.gradient, always,
                "DDP's bucket for the all-reduce", DDP,
            )
            for p in stepped
        ),
        hosted=Group.of(
            [
                *(Template(p.name, "parameters", p.shape, p.dtype, always, "a table", FBGEMM)
                  for p in tables),
                *(Template(f"{p.name}.{kept.name}", "optimizer_states", _kept(p.shape, kept, part),
                           kept.dtype, always, "what the optimizer remembers", FBGEMM)
                  for p in tables for kept in _of_table(p) if _on_host(p, kept)),
            ]
        ),
        missed=Group.of(
            Template(f"{p.name} (missed)", "workspace", p.cached[1], p.dtype, "a step",
                     "rows that come from the host", FBGEMM)
            for p in tables if p.cached
        ),
    )  # fmt: skip


def _on_host(p: Storage, kept: State) -> bool:
    """Whether a state rests on the host beside its table: one value for each row does not."""
    return p.cached is not None and kept.keeps != "rows"


def _cached(p: Storage) -> list[Template]:
    """What a GPU has of a table that rests on the host: rows, and what finds them (FBGEMM's
    lxu_cache_weights, lxu_cache_state, lxu_state, cache_index_table_map)."""
    assert p.cached
    slots, why = p.cached[0], "a cache's rows, and what finds them"
    each = (
        ("cached rows", "parameters", slots, p.dtype),
        ("cache state", "workspace", slots[:1], "int64"),
        ("time of use", "workspace", slots[:1], "int64"),
        ("table of each row", "workspace", p.shape[:1], "int32"),
    )
    return [
        Template(f"{p.name} ({name})", consumer, shape, dtype, "always", why, FBGEMM)
        for name, consumer, shape, dtype in each
    ]


SMALLEST_QUANTIZED = 4_096  # elements of a parameter (bitsandbytes: min_8bit_size)
QUANTIZED_BLOCK = 256  # values that share a scale
SMALLEST_PAGED = 100_000  # elements of a parameter (get_state_buffer: p.numel() < 1e5)

# What an 8-bit optimizer keeps, by how many elements of a parameter this GPU updates.
QUANTIZED: dict[str, tuple[str, Callable[[Number], Number]]] = {
    "quantized": ("8-bit values", lambda n: where(n >= SMALLEST_QUANTIZED, n, 0 * n)),
    "scales": (
        "scales",
        lambda n: where(n >= SMALLEST_QUANTIZED, ceil_div(n, QUANTIZED_BLOCK), 0 * n),
    ),
    "small": ("32-bit values", lambda n: where(n < SMALLEST_QUANTIZED, n, 0 * n)),
    PAGED: ("paged values", lambda n: where(n >= SMALLEST_PAGED, n, 0 * n)),
    "unpaged": ("values on the GPU", lambda n: where(n < SMALLEST_PAGED, n, 0 * n)),
    "quantized, unpaged": (
        "8-bit values on the GPU",
        lambda n: where((n >= SMALLEST_QUANTIZED) & (n < SMALLEST_PAGED), n, 0 * n),
    ),
}


def _in_blocks(bits: int, block: int) -> dict[str, tuple[str, Callable[[Number], Number]]]:
    """torchao quantizes what has whole blocks (torchao/optim/adam.py: _new_buffer)."""

    def if_quantized(n: Number, yes: Number, no: Number) -> Number:
        return where((n >= SMALLEST_QUANTIZED) & (n % block == 0), yes, no)

    return {
        f"codes, {bits} bit": (
            f"{bits}-bit codes",
            lambda n: if_quantized(n, n * bits // 8, 0 * n),
        ),
        f"scales, {block}": (f"scales of {block}", lambda n: if_quantized(n, n // block, 0 * n)),
        f"values of {bits} bits, {block}": (
            f"values of {bits}-bit codes",
            lambda n: if_quantized(n, 0 * n + 2**bits, 0 * n),
        ),
        f"whole, {block}": (
            f"values without blocks of {block}",
            lambda n: if_quantized(n, 0 * n, n),
        ),
    }


QUANTIZED |= _in_blocks(8, 256) | _in_blocks(4, 128)


@cached
def lookup_tables(optimizer: Optimizer) -> Group:
    """The values that 8-bit codes stand for, once for all parameters."""
    why = "the values that 8-bit codes stand for"
    return Group.of(
        Template(name, "optimizer_states", (QUANTIZED_BLOCK,), "fp32", "always", why, BITSANDBYTES)
        for name in optimizer.tables
    )


SPARSE_TEMPORARIES = (
    "coalesced", "old exp_avg", "update", "old exp_avg_sq", "update of squares", "scaled update",
)  # fmt: skip


IN_BACKWARD = {FUSED_ROWS, *TABLE_OPTIMIZERS}  # words of what backward updates by itself


def _of_table(p: Storage) -> tuple[State, ...]:
    """What the optimizer of a table of rows keeps."""
    if p.table == SPARSE:
        return tuple(State(name, dtype=p.dtype) for name in ("exp_avg", "exp_avg_sq"))
    how = TABLE_OPTIMIZERS["rowwise-adagrad" if p.table == FUSED_ROWS else p.table]
    return tuple(State(f"momentum{i}", keeps, "fp32") for i, keeps in enumerate(how.states, 1))


def _states(optimizer: Optimizer, dimensions: int, outer: bool) -> tuple[State, ...]:
    """What the optimizer keeps for a parameter of so many dimensions."""
    if dimensions < 2:
        return optimizer.vectors
    return optimizer.outer if outer and optimizer.outer is not None else optimizer.matrices


Part = Callable[[Shape, str, bool], Shape]


def _kept(shape: Shape, state: State, part: Part) -> Shape:
    """The shape of one optimizer state on one GPU."""
    if state.keeps == "columns":  # of one matrix every rank has them all
        stacked = (*shape[:-2], shape[-1])
        return stacked if len(shape) == 2 else part(stacked, "state", True)
    if state.keeps in QUANTIZED:
        what, rule = QUANTIZED[state.keeps]
        return (share(what, part(shape, "state", True), rule),)
    return part(shape[:-1] if state.keeps == "rows" else shape, "state", True)
