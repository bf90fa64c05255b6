"""Encoders of a sequence and the decoders that read what they make: kin of BART and T5."""

from __future__ import annotations

from collections.abc import Callable

from memcore.models.config import Keys
from memcore.models.families.counted.family import counted
from memcore.models.families.family import Family
from memcore.models.sizes import attention, convolution, encoder_layer, linear, mlp, norm
from memcore.tape.structure import CAUSAL, EMBEDDING


def _widths(
    k: Keys, width: int, layers: int, inner: int
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Width, and of encoder and decoder their layers and MLPs' widths."""
    _tied(k)
    hidden = k.count("d_model", width)
    depths = k.count("encoder_layers", layers, 100_000), k.count("decoder_layers", layers, 100_000)
    return hidden, depths, (k.count("encoder_ffn_dim", inner), k.count("decoder_ffn_dim", inner))


def _tied(k: Keys) -> None:
    """One table of words for encoder, decoder and head."""
    if not k.flag("tie_word_embeddings", True):
        k.fail("tie_word_embeddings", "only true is counted, as published models have it")


def _reading(width: int, inner: int) -> int:
    """A layer of a decoder, which attends to the encoder's tokens too."""
    return encoder_layer(width, inner) + attention(width) + norm(width)


def _led(k: Keys) -> int:
    """Longformer's encoder, BART's decoder."""
    width, (read, written), (one, other) = _widths(k, 1024, 12, 4096)
    vocab = k.count("vocab_size", 50_265)
    rows = k.count("max_encoder_position_embeddings", 16_384)
    rows += k.count("max_decoder_position_embeddings", 1024)
    return (
        (vocab + rows) * width + 2 * norm(width)
        + read * (encoder_layer(width, one) + 3 * linear(width, width))
        + written * _reading(width, other)
    )  # fmt: skip


def _mvp(k: Keys) -> int:
    """BART, with prompts before keys and values if it has any."""
    width, (read, written), (one, other) = _widths(k, 1024, 12, 4096)
    vocab, rows = k.count("vocab_size", 50_267), k.count("max_position_embeddings", 1024) + 2
    k.refuse("use_prompt", False, None)
    return (
        (vocab + 2 * rows) * width + 2 * norm(width) + read * encoder_layer(width, one)
        + written * _reading(width, other)
    )  # fmt: skip


def _bigbird(k: Keys) -> int:
    """No biases in attention, unless `use_bias`."""
    width, (read, written), (one, other) = _widths(k, 1024, 16, 4096)
    vocab, rows = k.count("vocab_size", 96_103), k.count("max_position_embeddings", 4096)
    none = 0 if k.flag("use_bias", False) else 4 * width
    return (
        (vocab + 2 * rows) * width + 2 * norm(width)
        + read * (encoder_layer(width, one) - none)
        + written * (_reading(width, other) - 2 * none)
    )  # fmt: skip


def _pegasus_x(k: Keys) -> int:
    """Tokens of its own that all blocks see."""
    width, (read, written), (one, other) = _widths(k, 1024, 16, 4096)
    vocab, own = k.count("vocab_size", 96_103), k.count("num_global_tokens", 32)
    none = 4 * width
    return (
        (vocab + own) * width + 2 * norm(width)
        + read * (encoder_layer(width, one) - none + norm(width))
        + written * (_reading(width, other) - 2 * none)
    )  # fmt: skip


def _speech(k: Keys) -> int:
    """Convolutions of a spectrogram; positions are computed."""
    width, (read, written), (one, other) = _widths(k, 256, 12, 2048)
    other = k.count("decoder_ffn_dim", 2048)
    if "decoder_layers" not in k.config:
        written = 6
    vocab, channels = k.count("vocab_size", 10_000), k.count("conv_channels", 1024)
    kernels = k.config.get("conv_kernel_sizes", (5, 5))
    number = k.count("num_conv_layers", 2)
    if (
        not isinstance(kernels, (list, tuple))
        or len(kernels) != number
        or any(type(n) is not int for n in kernels)
    ):
        k.fail("conv_kernel_sizes", "must be a list of whole numbers, one for each of them")
        kernels = (5,) * number
    bins = k.count("input_feat_per_channel", 80) * k.count("input_channels", 1)
    found, before = 0, bins
    for i, side in enumerate(kernels):  # half of what each makes are gates
        into = channels if i < number - 1 else 2 * width
        found += convolution(before, into, side)
        before = channels // 2
    return (
        found + vocab * width + 2 * norm(width) + read * encoder_layer(width, one)
        + written * _reading(width, other)
    )  # fmt: skip


def _nllb_moe(k: Keys) -> int:
    """M2M-100 with experts in every few layers; positions are computed."""
    width, depths, inners = _widths(k, 1024, 12, 4096)
    vocab, experts = k.count("vocab_size", 128_112), k.count("num_experts", 128)
    bias = k.flag("router_bias", False)
    found = vocab * width + 2 * norm(width)
    for place, layers, inner, reads in zip(
        ("encoder", "decoder"), depths, inners, (False, True), strict=True
    ):
        step = k.count_or_zero(f"{place}_sparse_step", 4)
        sparse = sum((i + 1) % step == 0 for i in range(layers)) if step else 0
        layer = _reading(width, inner) if reads else encoder_layer(width, inner)
        found += layers * layer
        found += sparse * ((experts - 1) * mlp(width, inner) + linear(width, experts, bias))
    return found


def _prophetnet(k: Keys) -> int:
    """A decoder that guesses several tokens ahead."""
    _tied(k)
    width, vocab = k.count("hidden_size", 1024), k.count("vocab_size", 30_522)
    read = k.count("num_encoder_layers", 12, 100_000)
    written = k.count("num_decoder_layers", 12, 100_000)
    rows, ahead = k.count("max_position_embeddings", 512), k.count("ngram", 2)
    buckets = k.count("num_buckets", 32) * k.count("num_decoder_attention_heads", 16)
    one, other = k.count("encoder_ffn_dim", 4096), k.count("decoder_ffn_dim", 4096)
    crossed = k.flag("add_cross_attention", True)
    layer = _reading(width, other) if crossed else encoder_layer(width, other)
    return (
        (vocab + 2 * rows + ahead) * width + 2 * norm(width) + read * encoder_layer(width, one)
        + written * (layer + linear(width, buckets))
    )  # fmt: skip


def _t5(sparse: bool, far: bool, width: int, heads: int, layers: int) -> Callable[[Keys], int]:
    """T5 with experts in some layers, or with an encoder of long texts. Its head is apart where the
    file says so, as in published files, though transformers 5 ties it."""

    def count(k: Keys) -> int:
        hidden, inner = k.count("d_model", width), k.count("d_ff", 2048)
        many, dim = k.count("num_heads", heads), k.count("d_kv", 64)
        read = k.count("num_layers", layers, 100_000)
        written = k.count_or("num_decoder_layers", read)
        vocab = k.count("vocab_size", 32_128)
        buckets = k.count("relative_attention_num_buckets", 32) * many
        attends, gated = 4 * hidden * many * dim, False
        if far:
            words = {"relu": "", "gated-gelu": "gated", "gated-silu": "gated", "gelu": ""}
            gated = bool(k.word("feed_forward_proj", "relu", words))
        fed = (3 if gated else 2) * hidden * inner
        found = vocab * hidden + 2 * buckets + 2 * hidden
        found += read * (attends + fed + 2 * hidden)
        found += written * (2 * attends + fed + 3 * hidden)
        if far:
            kinds = {"local": "", "transient-global": "far"}
            if k.word("encoder_attention_type", "local", kinds):
                found += read * hidden + buckets
        if sparse:
            experts, bias = k.count("num_experts", 8), k.flag("router_bias", False)
            more = (experts - 1) * fed + linear(hidden, experts, bias)
            for place, deep, usual in (("encoder", read, 3), ("decoder", written, 3)):
                some = k.count_or_zero(f"num_sparse_{place}_layers", usual)
                step = k.count_or_zero(f"{place}_sparse_step", deep // some if some else deep)
                found += more * sum(_is_sparse(i, step) for i in range(deep))
        tied = k.head != CAUSAL or k.flag("tie_word_embeddings", True)
        return found + (0 if tied else vocab * hidden)

    return count


def _is_sparse(i: int, step: int) -> bool:
    """Whether a layer of Switch has experts: of every `step` layers the second."""
    return step > 0 and (i % step == 1 or step == 1)


def _classes(stem: str) -> dict[str, str]:
    return {f"{stem}ForConditionalGeneration": CAUSAL, f"{stem}Model": EMBEDDING}


COUNTED: dict[str, Family] = {
    "led": counted(_led, _classes("LED")),
    "mvp": counted(_mvp, _classes("Mvp")),
    "bigbird_pegasus": counted(_bigbird, _classes("BigBirdPegasus")),
    "pegasus_x": counted(_pegasus_x, _classes("PegasusX")),
    "speech_to_text": counted(_speech, _classes("Speech2Text")),
    "nllb-moe": counted(_nllb_moe, _classes("NllbMoe")),
    "prophetnet": counted(_prophetnet, _classes("ProphetNet")),
    "switch_transformers": counted(_t5(True, False, 768, 12, 12), _classes("SwitchTransformers")),
    "longt5": counted(_t5(False, True, 512, 8, 6), _classes("LongT5")),
}
