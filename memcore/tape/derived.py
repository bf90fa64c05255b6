"""Derived: the sizes of dimensions that follow from others."""

from __future__ import annotations

from collections.abc import MutableMapping

from memcore.tape.dims import (
    APART,
    STACKS,
    Number,
    ceil_div,
    maximum,
    minimum,
    next_power_of_2,
    where,
)

Sizes = MutableMapping[str, Number]


def derive(sizes: Sizes) -> None:
    """Add the dimensions that follow from others, once, in place."""
    for stack in (*STACKS, APART):
        if f"{stack}.HEADS" in sizes:
            _stack(stack, sizes)
    for axis in ("SEQ", "EP", "ETP", "EDP"):
        sizes.setdefault(axis, 1)
    sizes.setdefault("SUMMED", 0)
    sizes.setdefault("IMBALANCE", 1000)
    if "SSM_HEADS" in sizes:
        _states(sizes)
    _widths(sizes)
    _heads(sizes)
    _copies_of_heads(sizes)
    _latent(sizes)
    _chosen(sizes)
    if "FINE_RATE" in sizes:
        _entries(sizes)
    _experts(sizes)
    _tokens(sizes)


def _widths(sizes: Sizes) -> None:
    """Of MLPs, streams, images and drafts."""
    tp = sizes["TP"]
    sizes["ONE"] = 1
    sizes["JOINED"] = 2 * sizes["D"]
    sizes["FUSED"] = 2 * sizes["F"]
    sizes["FUSED/TP"] = 2 * ceil_div(sizes["F"], tp)
    sizes["SHARED_FUSED"] = 2 * sizes["SHARED_F"]
    sizes["SHARED_FUSED/TP"] = 2 * ceil_div(sizes["SHARED_F"], tp)
    sizes["EXPERT_FUSED"] = 2 * sizes["EXPERT_F"]
    sizes["PATCH_VALUES"] = sizes["CHANNELS"] * sizes["PATCH_H"] * sizes["PATCH_W"]
    sizes["MERGED_D"] = sizes["MERGE"] * sizes["D"]
    if "STREAMS" in sizes:
        streams = sizes["STREAMS"]
        sizes["STREAMED"] = streams * sizes["D"]
        sizes["MIXES"] = (2 + streams) * streams
        sizes["STREAM_PAIRS"] = streams * streams
        sizes["MIX_KINDS"] = 3
    if "RECURRED" in sizes:
        sizes["RECURRED_GATES"] = 3 * sizes["RECURRED"]


def _heads(sizes: Sizes) -> None:
    """Of all heads side by side. Heads are cut whole: with fewer KV heads than ranks, each rank has
    one."""
    tp, dim = sizes["TP"], sizes["HEAD_DIM"]
    sizes["HALF_ROTARY"] = sizes["ROTARY"] // 2
    sizes["Q"] = sizes["HEADS"] * dim
    sizes["KV"] = sizes["KV_HEADS"] * dim
    sizes["Q/TP"] = ceil_div(sizes["HEADS"], tp) * dim
    sizes["KV/TP"] = ceil_div(sizes["KV_HEADS"], tp) * dim
    for end in ("", "/TP"):
        sizes["QKV" + end] = sizes["Q" + end] + 2 * sizes["KV" + end]
        sizes["GATED_Q" + end] = 2 * sizes["Q" + end]


def _copies_of_heads(sizes: Sizes) -> None:
    """Keys and values as kernels of attention get them: copies for every query head, or views."""
    s, window, tp = sizes["S"], sizes["WINDOW"], sizes["TP"]
    heads, local = ceil_div(sizes["HEADS"], tp), ceil_div(sizes["KV_HEADS"], tp)
    # Repeating K and V to every query head copies them; one head of one sequence stays a view.
    view = (local == 1) & (sizes["B"] == 1)
    sizes["REPEATED"] = where(view, local, heads)
    # Of one sequence, V stays a view of the joint projection, kept whole; else it is copied.
    joint = (sizes["B"] == 1) & ((local == 1) | (sizes["KV_HEADS"] == sizes["HEADS"]))
    copied_v = sizes["REPEATED"] * sizes["HEAD_DIM"] * tp
    sizes["KEPT"] = ceil_div(where(joint, sizes["QKV"], copied_v), tp)
    # transformers passes SDPA a mask once the sequence reaches the window, and then repeats K and V
    # to every query head; a single head stays a view.
    sizes["MASKED"] = where(s >= window, s, 0 * s)
    sizes["BIASED_KV"] = where(local != 1, heads, local)
    sizes["MASKED_KV"] = where(s >= window, sizes["BIASED_KV"], local)
    for copied, of in (("COPIED_KV", "BIASED_KV"), ("COPIED_MASKED_KV", "MASKED_KV")):
        sizes[copied] = where(sizes[of] != local, sizes[of], 0 * s)
    # V that is not repeated stays a view of a joint projection, which is kept whole for it.
    view = (s < window) | (local == 1) | (local == heads)
    sizes["BESIDE_V"] = where(view, heads + local, 0 * s)
    sizes["REACH"] = where(s > window, 2 * window - window * window // s, s)
    sizes["SINKED"] = s + 1


def _latent(sizes: Sizes) -> None:
    """Of latent attention, whose values have a width of their own: a part of what was expanded, of
    one sequence, or of one token, a view of it."""
    b, s, tp, heads = sizes["B"], sizes["S"], sizes["TP"], sizes["HEADS"]
    sizes["NOPE"] = sizes["HEAD_DIM"] - sizes["ROTARY"]
    sizes["VALUES"] = heads * sizes["V_DIM"]
    sizes["KV_VALUES"] = sizes["KV_HEADS"] * sizes["V_DIM"]
    sizes["KV_VALUES/TP"] = ceil_div(sizes["KV_HEADS"], tp) * sizes["V_DIM"]
    sizes["BOTH_DIMS"] = sizes["HEAD_DIM"] + sizes["V_DIM"]
    sizes["LATENT"] = sizes["KV_RANK"] + sizes["ROTARY"]
    sizes["EXPANDED"] = heads * (sizes["NOPE"] + sizes["V_DIM"])
    kept = where((b == 1) | (s == 1), sizes["EXPANDED"], sizes["VALUES"])
    sizes["KEPT_V"] = ceil_div(kept, tp)


def _chosen(sizes: Sizes) -> None:
    """Of an indexer, and of the tokens or blocks that it chooses."""
    b, s, heads, dim = sizes["B"], sizes["S"], sizes["INDEX_HEADS"], sizes["INDEX_DIM"]
    sizes["INDEX_Q"] = heads * dim
    sizes["INDEX_Q/TP"] = ceil_div(heads, sizes["TP"]) * dim
    sizes["INDEX_TOP"] = minimum(sizes["INDEX_TOP_K"], s)
    sizes.setdefault("INDEX_BLOCK", 1)
    block = maximum(sizes["INDEX_BLOCK"], 1)
    blocks = sizes["INDEX_BLOCKS"] = ceil_div(s, block)
    sizes["INDEX_PADDED"] = blocks * block
    sizes["INDEX_MORE"] = where(blocks * block == s, 0 * s, blocks * block)
    sizes["INDEX_CHOSEN"] = minimum(ceil_div(sizes["INDEX_TOP_K"], block), blocks)
    sizes["INDEX_COPIES"] = where(b > 1, b, 0 * b)


def _experts(sizes: Sizes) -> None:
    """Rows that are sent to experts, and that come to a rank's."""
    experts = sizes["EXPERTS"]
    # Ranks that each route tokens of their own; outside Megatron all of a group route all of them.
    routers = sizes.get("ROUTERS", sizes["SEQ"])
    own = ceil_div(ceil_div(sizes["S"], sizes["CP"]), routers)
    rows = sizes["ROUTED"] = sizes["B"] * own * sizes["TOP_K"]
    # Rounded so that more tokens never leave fewer rows to the experts before any of them.
    every = maximum(experts, 1)
    before_last = rows * (every - 1) // every
    sizes["EARLIER"] = rows * maximum(every - 2, 0) // every
    sizes["SECOND"] = before_last - sizes["EARLIER"]
    sizes["LAST"] = rows - before_last
    sizes["EXPERT_ROWS"] = experts * sizes["EXPERT_F"]
    # No rank can get more than all rows, which are EP times the mean.
    fullest = minimum(sizes["IMBALANCE"], 1000 * sizes["EP"])
    sizes["ARRIVED"] = ceil_div(rows * fullest, 1000)
    sizes["COMPUTED"] = sizes["ARRIVED"] * sizes["ETP"]
    sizes["ROW_MAP"] = 2 * experts + 1
    sizes["CHOSEN"] = minimum(experts, rows)


def _tokens(sizes: Sizes) -> None:
    """Of a micro-batch, its labels and its logits."""
    b, s = sizes["B"], sizes["S"]
    sizes["FRAMES"] = 2 * s
    # Shifting the labels pads them by one. For one sequence `.contiguous()` is then a view of the
    # padded tensor (S + 1 elements); for more it is a copy of B x S.
    sizes["LABELS"] = where(b == 1, s + 1, b * s)
    tokens = sizes["TOKENS"] = b * s
    sizes["DISTINCT"] = minimum(tokens, sizes["VOCAB"])
    # Liger's chunks: about as many bytes of logits as the hidden states have.
    rows = next_power_of_2(ceil_div(tokens, ceil_div(sizes["VOCAB"], sizes["D"])))
    sizes["CHUNK"] = where(rows < tokens, rows, tokens)


def _stack(stack: str, sizes: Sizes) -> None:
    """The dimensions of a stack before the main one. A vision tower reads every image apart, with
    as many tokens as an image has; an encoder reads the sequence, and what follows the target."""
    start = f"{stack}."
    own = {k.removeprefix(start): n for k, n in sizes.items() if k.startswith(start)}
    sub = {k: n for k, n in sizes.items() if "." not in k} | own
    if stack == "vision":
        sub |= {"B": sizes["B"] * sizes.get("IMAGES", 1), "S": own["IMAGE_TOKENS"]}
    elif stack == "encoder":
        sizes["S"] = sizes.get("TARGET", sizes["S"])
    derive(sub)
    sizes.update({start + k: n for k, n in sub.items()})


def _states(sizes: Sizes) -> None:
    """The dimensions of layers that keep a state. Heads are cut whole; with fewer groups than
    ranks, each rank has one (vllm/model_executor/layers/mamba/mamba_utils.py)."""
    heads, groups, tp = sizes["SSM_HEADS"], sizes["SSM_GROUPS"], sizes["TP"]
    for end, h, g in (("", heads, groups), ("/TP", ceil_div(heads, tp), ceil_div(groups, tp))):
        inner = sizes["SSM_INNER" + end] = h * sizes["SSM_DIM"]
        convolved = sizes["CONVOLVED" + end] = inner + 2 * g * sizes["SSM_STATE"]
        sizes["SSM_IN" + end] = inner + convolved + h
        sizes["GATED_IN" + end] = inner + convolved
        sizes["SHORT_IN" + end] = 3 * inner
        sizes["SSM_PAIRS" + end] = 2 * h
    sizes["SELECTED"] = sizes["STEP_RANK"] + 2 * sizes["SSM_STATE"]
    sizes.setdefault("KEPT_TOKENS", sizes["KERNEL"] - 1)
    sizes["SPAN"] = minimum(sizes["S"], sizes["CHUNK_TOKENS"])
    sizes["BETWEEN"] = ceil_div(sizes["S"], sizes["SPAN"]) - 1
    chunks = sizes["CHUNKS"] = ceil_div(sizes["S"], sizes["CHUNK_TOKENS"])
    # mamba_ssm/ops/triton/ssd_chunk_state.py: _chunk_state_bwd_db; layernorm_gated.py:
    # _layer_norm_bwd.
    own, sms = ceil_div(heads, tp), sizes.get("SMS", 1)
    of_rank = maximum(ceil_div(groups, tp), 1)  # Mamba's channels have no groups
    shared = own // of_rank
    each = maximum(minimum(ceil_div(sizes["B"] * chunks * own, sms), shared), 1)
    sizes["SPLITS"] = ceil_div(shared, each)
    width = next_power_of_2(shared * sizes["SSM_DIM"])
    warps = minimum(maximum(width // 256, 1), 8)
    sizes["NORM_ROWS"] = ceil_div(sms * ceil_div(4, warps), of_rank)


def _entries(sizes: Sizes) -> None:
    """The dimensions of attention to entries that stand for several tokens each."""
    s, tp = sizes["S"], sizes["TP"]
    for name in ("FINE", "COARSE"):
        entries = sizes[f"{name}_ENTRIES"] = s // sizes[f"{name}_RATE"]
        sizes[f"{name}_KEYS"] = s + entries
        sizes[f"{name}_SINKED"] = s + entries + 1
    sizes["FINE_SPAN"] = 2 * sizes["FINE_RATE"]
    sizes["FINE_PLUS"] = sizes["FINE_ENTRIES"] + 1
    sizes["FINE_TOP"] = minimum(sizes["INDEX_TOP_K"], sizes["FINE_ENTRIES"])
    sizes["TWO_HEADS"] = 2 * sizes["HEAD_DIM"]
    sizes["TWO_INDEX"] = 2 * sizes["INDEX_DIM"]
    heads = ceil_div(sizes["HEADS"], tp)
    sizes["VIEWED_KV"] = where(sizes["B"] == 1, 0 * s, heads + 0 * s)
    sizes["OUT_LOW"] = sizes["OUT_GROUPS"] * sizes["OUT_RANK"]
    sizes["OUT_LOW/TP"] = ceil_div(sizes["OUT_GROUPS"], tp) * sizes["OUT_RANK"]
    sizes["OUT_WIDE"] = sizes["Q"] // sizes["OUT_GROUPS"]
