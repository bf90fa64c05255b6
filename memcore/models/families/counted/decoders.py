"""Decoders, most of Llama's form with something of their own in each layer."""

from __future__ import annotations

from collections.abc import Callable

from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.counted.family import counted
from memcore.models.families.family import Family, decoder_classes, labels
from memcore.models.sizes import attention, encoder_layer, linear, mlp, norm
from memcore.tape.structure import CAUSAL, CLASSIFICATION, EMBEDDING, LABELLED, SPANS

FULL, STATE, DENSE, SPARSE = "full", "state", "dense", "sparse"
MIXERS = {"full_attention": FULL, "sliding_attention": FULL, "linear_attention": STATE}
FEEDS = {"dense": DENSE, "sparse": SPARSE}


def _kinds(
    k: Keys, key: str, layers: int, known: dict[str, str], usual: Callable[[int], str]
) -> list[str]:
    """Of each layer its kind: as a list in the file says, else as `usual` of its number."""
    given = k.config.get(key)
    if given is None:
        return [usual(i) for i in range(layers)]
    if (
        not isinstance(given, list)
        or len(given) < layers
        or any(not isinstance(g, str) or g not in known for g in given)
    ):
        k.fail(key, f"must be a list of {', '.join(known)}, one for each layer")
        return [usual(i) for i in range(layers)]
    return [known[g] for g in given[:layers]]


class Sizes:
    """What decoders of Llama's form have in common; defaults of one."""

    def __init__(
        self,
        k: Keys,
        hidden: int,
        layers: int,
        heads: int,
        kv_heads: int | None,
        vocab: int,
        dim: int | None = None,
    ):
        self.width, self.heads = (
            k.count("hidden_size", hidden),
            k.count("num_attention_heads", heads),
        )
        absent = "num_key_value_heads" not in k.config
        usual = kv_heads if absent and kv_heads else self.heads
        self.kv = k.count_or("num_key_value_heads", usual)
        self.dim = k.count_or("head_dim", dim or self.width // self.heads)
        k.divides("num_attention_heads", self.heads, "num_key_value_heads", self.kv)
        self.layers = k.count("num_hidden_layers", layers, 100_000)
        self.vocab = k.count("vocab_size", vocab)
        k.word("hidden_act", "silu", ACTIVATIONS)

    def attends(self, bias: bool = False, out_bias: bool | None = None) -> int:
        """Queries, keys, values and output of one layer."""
        into = (self.heads + 2 * self.kv) * self.dim
        out_bias = bias if out_bias is None else out_bias
        return linear(self.width, into, bias) + linear(self.heads * self.dim, self.width, out_bias)

    def gated(self, inner: int, bias: bool = False) -> int:
        return 2 * linear(self.width, inner, bias) + linear(inner, self.width, bias)

    def ends(self, k: Keys, tied: bool = False) -> int:
        """The embedding, the last norm, and the head."""
        found = self.vocab * self.width + self.width
        if k.head == CAUSAL and not k.flag("tie_word_embeddings", tied):
            found += self.vocab * self.width
        if k.head == CLASSIFICATION:
            found += self.width * labels(k)
        if k.head in (LABELLED, SPANS):
            found += linear(self.width, 2 if k.head == SPANS else labels(k))
        return found


def _diffllama(k: Keys) -> int:
    """Attention that takes one map from another, by a share that is learned."""
    s = Sizes(k, 2048, 16, 32, None, 32_000)
    layer = s.attends(k.flag("attention_bias", False)) + 4 * s.dim + 2 * s.width
    return s.layers * (layer + s.gated(k.count("intermediate_size", 8192))) + s.ends(k)


def _mellum(k: Keys) -> int:
    """Experts behind attention with norms of heads."""
    s = Sizes(k, 2304, 28, 32, 4, 98_304, 128)
    experts, inner = k.count("num_local_experts", 64), k.count("moe_intermediate_size", 896)
    dense = s.gated(k.count("intermediate_size", 7168))
    kinds = _kinds(k, "mlp_layer_types", s.layers, FEEDS, lambda i: SPARSE)
    layer = s.attends(k.flag("attention_bias", False)) + 2 * s.dim + 2 * s.width
    routed = experts * (3 * s.width * inner + s.width)
    fed = sum(dense if kind == DENSE else routed for kind in kinds)
    k.refuse("num_nextn_predict_layers", None, 0)
    return s.layers * layer + fed + s.ends(k)


def _aria(k: Keys) -> int:
    s = Sizes(k, 4096, 32, 32, None, 32_000)
    experts, inner = k.count("moe_num_experts", 8), k.count("intermediate_size", 4096)
    shared = k.count("moe_num_shared_experts", 2) * inner
    layer = s.attends(k.flag("attention_bias", False)) + 2 * s.width
    layer += experts * (s.width + 3 * s.width * inner)
    layer += s.gated(shared, k.flag("mlp_bias", False))
    return s.layers * layer + s.ends(k)


def _jetmoe(k: Keys) -> int:
    """Experts of attention too: of queries and output, with keys and values of all."""
    width, layers = k.count("hidden_size", 2048), k.count("num_hidden_layers", 12, 100_000)
    experts, inner = k.count("num_local_experts", 8), k.count("intermediate_size", 5632)
    wide = k.count("num_key_value_heads", 16) * k.count("kv_channels", 128)
    vocab = k.count("vocab_size", 32_000)
    layer = width + experts * (3 * width * inner + width)
    layer += width + experts * (2 * width * wide + width) + 2 * width * wide + 2 * width
    found = vocab * width + width + layers * layer
    if k.head == CAUSAL and not k.flag("tie_word_embeddings", True):
        found += vocab * width
    return found + (width * labels(k) if k.head == CLASSIFICATION else 0)


def _latent(k: Keys, width: int, heads: int, low: int | None, queries: str = "") -> int:
    """Latent attention: queries, keys and values through narrow layers. `low`: of queries."""
    nope, rope = k.count("qk_nope_head_dim", 128), k.count("qk_rope_head_dim", 64)
    rank, value = k.count("kv_lora_rank", 512), k.count("v_head_dim", 128)
    bias = k.flag("attention_bias", False)
    asks = heads * (nope + rope)
    found = linear(width, low, bias) + low + low * asks if low else width * asks
    found += linear(width, rank + rope, bias) + rank + rank * heads * (nope + value)
    return found + linear(heads * value, width, bias)


def _longcat(k: Keys) -> int:
    """Each layer attends twice, with an MLP behind each, and experts beside, some of which give
    back what they read."""
    width, layers = k.count("hidden_size", 6144), k.count("num_layers", 28, 100_000)
    heads, experts = k.count("num_attention_heads", 64), k.count("n_routed_experts", 512)
    none, inner = k.count("zero_expert_num", 256), k.count("expert_ffn_hidden_size", 2048)
    wide, vocab = k.count("ffn_hidden_size", 12_288), k.count("vocab_size", 131_072)
    given = k.config.get("q_lora_rank", 1536)
    low = None if given is None else k.count("q_lora_rank", 1536)
    router = linear(width, experts + none, k.flag("router_bias", False))
    # The first product is made for experts that give back too, the second is not.
    mixture = (experts + none) * 2 * inner * width + experts * inner * width
    layer = 2 * (_latent(k, width, heads, low) + 3 * width * wide + 2 * width) + router + mixture
    found = vocab * width + width + layers * layer
    tied = k.flag("tie_word_embeddings", False)
    return found + (0 if tied or k.head != CAUSAL else vocab * width)


def _olmo_hybrid(k: Keys) -> int:
    """OLMo's layers, three of four with a gated delta net."""
    s = Sizes(k, 3840, 32, 30, None, 100_352)
    keys = k.count_or("linear_num_key_heads", s.heads)
    values = k.count_or("linear_num_value_heads", s.heads)
    of_key = keys * k.count_or("linear_key_head_dim", int(0.75 * s.width / keys))
    dim = k.count_or("linear_value_head_dim", 2 * int(0.75 * s.width / keys))
    of_value, kernel = values * dim, k.count("linear_conv_kernel_dim", 4)
    state = (
        s.width * (2 * of_key + 2 * of_value + 2 * values)
        + 2 * values
        + (2 * of_key + of_value) * kernel
        + dim
        + of_value * s.width
    )
    bias = k.flag("attention_bias", False)
    full = s.attends(bias) + s.heads * s.dim + s.kv * s.dim
    last = min(3, s.layers - 1)  # one layer sees all tokens, of however few
    kinds = _kinds(k, "layer_types", s.layers, MIXERS,
                   lambda i: FULL if i % 4 == 3 or i == last else STATE)  # fmt: skip
    mixes = sum(full if kind == FULL else state for kind in kinds)
    layer = s.gated(k.count("intermediate_size", 11_008)) + 2 * s.width
    return mixes + s.layers * layer + s.ends(k)


def _recurrent_gemma(k: Keys) -> int:
    """Gates and a linear recurrence, and every third layer attention in a window."""
    s = Sizes(k, 2560, 26, 10, None, 256_000)
    inner = k.count("intermediate_size", 7680) // 2
    wide, kernel = k.count_or("lru_width", s.width), k.count("conv1d_width", 4)
    blocks = k.config.get("block_types", ["recurrent", "recurrent", "attention"])
    known = ("recurrent", "attention")
    if not isinstance(blocks, list) or not blocks or any(b not in known for b in blocks):
        k.fail("block_types", "must be a list of recurrent, attention")
        blocks = ["recurrent"]
    of_head = wide // s.heads
    state = (
        2 * linear(s.width, wide) + linear(wide, s.width) + wide * kernel + wide
        + wide + 2 * s.heads * (of_head * of_head + of_head)
    )  # fmt: skip
    full = s.attends(k.flag("attention_bias", False), out_bias=True)
    kinds = [blocks[i % len(blocks)] for i in range(s.layers)]
    mixes = sum(full if kind == "attention" else state for kind in kinds)
    return mixes + s.layers * (s.gated(inner, bias=True) + 2 * s.width) + s.ends(k, True)


def _neox_japanese(k: Keys) -> int:
    width, layers = k.count("hidden_size", 2560), k.count("num_hidden_layers", 32, 100_000)
    inner = k.count("intermediate_multiple_size", 4) * width
    vocab = k.count("vocab_size", 32_000)
    layer = 4 * width * width + mlp(width, inner, bias=False) + 2 * norm(width)
    found = vocab * width + layers * layer + norm(width)
    found += width if layers else 0  # the last layer's bias behind attention
    tied = k.head != CAUSAL or k.flag("tie_word_embeddings", True)
    return found + (0 if tied else vocab * width)


def _zamba2(k: Keys) -> int:
    """Mamba-2, and every few layers one of few attention layers that all of these share, each with
    a part of its own."""
    width, layers = k.count("hidden_size", 2560), k.count("num_hidden_layers", 54, 100_000)
    vocab, blocks = k.count("vocab_size", 32_000), k.count("num_mem_blocks", 1)
    inner, heads = k.count_or("intermediate_size", 4 * width), k.count("num_attention_heads", 32)
    wide = k.count("mamba_expand", 2) * width
    groups, state = k.count("mamba_ngroups", 1), k.count("mamba_d_state", 64)
    of_state, bias = k.count("n_mamba_heads", 8), k.flag("add_bias_linear", False)
    mixed = wide + 2 * groups * state
    mamba = (
        linear(width, wide + mixed + of_state, bias) + mixed * k.count("mamba_d_conv", 4)
        + (mixed if k.flag("use_conv_bias", True) else 0)
        + 3 * of_state + wide + linear(wide, width, bias) + width
    )  # fmt: skip
    usual = [i in (6, 12, 18, 24, 30, 36, 42, 47, 51) for i in range(layers)]
    known = {"linear_attention": STATE, "mamba": STATE, "hybrid": FULL}
    kinds = _kinds(k, "layers_block_type", layers, known, lambda i: FULL if usual[i] else STATE)
    hybrid = kinds.count(FULL)
    if "hybrid_layer_ids" in k.config and k.config.get("layers_block_type") is None:
        k.fail("hybrid_layer_ids", "write layers_block_type, a word for each layer, in its place")
    both, kv = 2 * width, k.count_or("num_key_value_heads", heads)
    dim = k.count_or("attention_head_dim", both // heads)
    rank = k.count("adapter_rank", 128)
    shared = (
        both * (heads + 2 * kv) * dim + heads * dim * width
        + 3 * width * inner + (2 * inner + width if bias else 0) + both + width
    )  # fmt: skip
    adapted = width * rank + rank * 2 * inner
    found = vocab * width + width + layers * mamba + hybrid * width * width
    found += min(blocks, hybrid) * shared
    # Each of the shared layers has a part for those places alone that are its own.
    found += hybrid * adapted
    if k.flag("use_shared_attention_adapter", False):
        found += hybrid * 3 * (both * rank + rank * both)
    tied = k.head != CAUSAL or k.flag("tie_word_embeddings", True)
    found += 0 if tied else vocab * width
    return found + (width * labels(k) if k.head == CLASSIFICATION else 0)


def _openai(k: Keys) -> int:
    width, layers = k.count("n_embd", 768), k.count("n_layer", 12, 100_000)
    vocab, rows = k.count("vocab_size", 40_478), k.count("n_positions", 512)
    found = (vocab + rows) * width + layers * encoder_layer(width, 4 * width)
    if k.head == CAUSAL and not k.flag("tie_word_embeddings", True):
        found += vocab * width
    return found + (width * labels(k) if k.head == CLASSIFICATION else 0)


def _ctrl(k: Keys) -> int:
    width, layers = k.count("n_embd", 1280), k.count("n_layer", 48, 100_000)
    vocab, inner = k.count("vocab_size", 246_534), k.count("dff", 8192)
    found = vocab * width + layers * encoder_layer(width, inner) + norm(width)
    if k.head == CAUSAL:
        found += vocab + (0 if k.flag("tie_word_embeddings", True) else vocab * width)
    return found + (width * labels(k) if k.head == CLASSIFICATION else 0)


def _xglm(k: Keys) -> int:
    """Positions are computed. `add_cross_attention`: layers that read an encoder too."""
    width, layers = k.count("d_model", 1024), k.count("num_layers", 24, 100_000)
    vocab, inner = k.count("vocab_size", 256_008), k.count("ffn_dim", 4096)
    layer = encoder_layer(width, inner)
    layer += attention(width) + norm(width) if k.flag("add_cross_attention", False) else 0
    found = vocab * width + layers * layer + norm(width)
    tied = k.head != CAUSAL or k.flag("tie_word_embeddings", True)
    return found + (0 if tied else vocab * width)


def _rwkv(k: Keys) -> int:
    """RWKV-4."""
    width, layers = k.count("hidden_size", 4096), k.count("num_hidden_layers", 32, 100_000)
    wide = k.count_or("attention_hidden_size", width)
    inner, vocab = k.count_or("intermediate_size", 4 * width), k.count("vocab_size", 50_277)
    layer = 2 * wide + 3 * width + 4 * width * wide + 2 * width
    layer += 2 * width * inner + width * width + 2 * norm(width)
    found = vocab * width + norm(width) + layers * layer + norm(width)
    tied = k.head != CAUSAL or k.flag("tie_word_embeddings", False)
    return found + (0 if tied else vocab * width)


def _xlnet(k: Keys) -> int:
    """Attention to tokens and to how far they lie apart, in any order."""
    width, layers = k.count("d_model", 1024), k.count("n_layer", 24, 100_000)
    heads, inner, vocab = (
        k.count("n_head", 16),
        k.count("d_inner", 4096),
        k.count("vocab_size", 32_000),
    )
    dim = k.count_or("d_head", width // heads)
    wide = heads * dim
    layer = 5 * width * wide + 3 * wide + 2 * wide + mlp(width, inner) + 2 * norm(width)
    found = vocab * width + width + layers * layer
    if k.head == CAUSAL:
        found += vocab + (0 if k.flag("tie_word_embeddings", True) else vocab * width)
    if k.head == CLASSIFICATION:
        found += linear(width, width) if k.flag("summary_use_proj", True) else 0
        found += linear(width, labels(k))
    return found + (linear(width, labels(k)) if k.head == LABELLED else 0)


def _xlm(k: Keys) -> int:
    width, layers = k.count("emb_dim", 2048), k.count("n_layers", 12, 100_000)
    vocab, languages = k.count("vocab_size", 30_145), k.count("n_langs", 1)
    rows = k.count("max_position_embeddings", 512)
    rows += languages if languages > 1 and k.flag("use_lang_emb", True) else 0
    found = (vocab + rows) * width + norm(width) + layers * encoder_layer(width, 4 * width)
    if k.head == CAUSAL:
        k.refuse("asm", False, None)
        found += vocab + (0 if k.flag("tie_word_embeddings", True) else vocab * width)
    return found + (linear(width, labels(k)) if k.head in (CLASSIFICATION, LABELLED) else 0)


def _generation(k: Keys) -> int:
    """BERT as a decoder, or as the encoder before one."""
    width, layers = k.count("hidden_size", 1024), k.count("num_hidden_layers", 24, 100_000)
    vocab, rows = k.count("vocab_size", 50_358), k.count("max_position_embeddings", 512)
    layer = encoder_layer(width, k.count("intermediate_size", 4096))
    layer += attention(width) + norm(width) if k.flag("add_cross_attention", False) else 0
    found = (vocab + rows) * width + norm(width) + layers * layer
    if k.head == CAUSAL:
        found += vocab + (0 if k.flag("tie_word_embeddings", True) else vocab * width + vocab)
    return found


def _trocr(k: Keys) -> int:
    """The decoder that reads what an encoder of images makes."""
    width, layers = k.count("d_model", 1024), k.count("decoder_layers", 12, 100_000)
    vocab, read = k.count("vocab_size", 50_265), k.count_or("cross_attention_hidden_size", width)
    layer = encoder_layer(width, k.count("decoder_ffn_dim", 4096)) + norm(width)
    layer += 2 * linear(width, width) + 2 * linear(read, width)
    found = vocab * width + layers * layer
    if k.flag("use_learned_position_embeddings", True):
        found += (k.count("max_position_embeddings", 512) + 2) * width
    found += norm(width) if k.flag("layernorm_embedding", True) else 0
    tied = k.flag("tie_word_embeddings", True)
    return found + (0 if tied else vocab * width)


def _imagegpt(k: Keys) -> int:
    """GPT-2 on pixels, with norms that have no bias."""
    width, layers = k.count("n_embd", 512), k.count("n_layer", 24, 100_000)
    vocab, rows = k.count("vocab_size", 513), k.count("n_positions", 1024)
    inner = k.count_or("n_inner", 4 * width)
    found = (vocab + rows) * width + width
    layer = encoder_layer(width, inner) - 2 * width
    layer += attention(width) + width if k.flag("add_cross_attention", False) else 0
    found += layers * layer
    if k.head == CAUSAL:  # one word begins an image, and is none of it
        found += (vocab - 1) * width
    return found + (width * labels(k) if k.head == CLASSIFICATION else 0)


def _decoder(
    count: Callable[[Keys], int], stem: str, base: str = "Model", classifier: bool = False
) -> Family:
    return counted(count, decoder_classes(stem, base, classifier), decoder=True)


COUNTED: dict[str, Family] = {
    "diffllama": counted(
        _diffllama,
        {**decoder_classes("DiffLlama"), "DiffLlamaForTokenClassification": LABELLED,
         "DiffLlamaForQuestionAnswering": SPANS},
        decoder=True,
    ),
    "mellum": _decoder(_mellum, "Mellum"),
    "aria_text": _decoder(_aria, "AriaText"),
    "jetmoe": _decoder(_jetmoe, "JetMoe", classifier=True),
    "longcat_flash": _decoder(_longcat, "LongcatFlash"),
    "olmo_hybrid": _decoder(_olmo_hybrid, "OlmoHybrid"),
    "recurrent_gemma": _decoder(_recurrent_gemma, "RecurrentGemma"),
    "gpt_neox_japanese": _decoder(_neox_japanese, "GPTNeoXJapanese"),
    "zamba2": _decoder(_zamba2, "Zamba2", classifier=True),
    "openai-gpt": counted(
        _openai,
        {"OpenAIGPTLMHeadModel": CAUSAL, "OpenAIGPTModel": EMBEDDING,
         "OpenAIGPTForSequenceClassification": CLASSIFICATION},
        decoder=True,
    ),
    "ctrl": counted(
        _ctrl,
        {"CTRLLMHeadModel": CAUSAL, "CTRLModel": EMBEDDING,
         "CTRLForSequenceClassification": CLASSIFICATION},
        decoder=True,
    ),
    "xglm": _decoder(_xglm, "XGLM"),
    "rwkv": _decoder(_rwkv, "Rwkv"),
    "xlnet": counted(
        _xlnet,
        {"XLNetLMHeadModel": CAUSAL, "XLNetModel": EMBEDDING,
         "XLNetForSequenceClassification": CLASSIFICATION, "XLNetForTokenClassification": LABELLED},
    ),
    "xlm": counted(
        _xlm,
        {"XLMWithLMHeadModel": CAUSAL, "XLMModel": EMBEDDING,
         "XLMForTokenClassification": LABELLED},
    ),
    "bert-generation": counted(
        _generation, {"BertGenerationDecoder": CAUSAL, "BertGenerationEncoder": EMBEDDING}
    ),
    "trocr": counted(_trocr, {"TrOCRForCausalLM": CAUSAL}, decoder=True),
    "imagegpt": counted(
        _imagegpt,
        {"ImageGPTForCausalImageModeling": CAUSAL, "ImageGPTModel": EMBEDDING,
         "ImageGPTForImageClassification": CLASSIFICATION},
        decoder=True,
    ),
}  # fmt: skip
