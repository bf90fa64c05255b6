"""Models of several stacks: a vision tower or an encoder before a decoder. Each has dimensions of
its own."""

import numpy as np
import pytest
from explained import checked
from swept import peaks

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.serving.server import Server
from memcore.serving.time import of_running, of_tower
from memcore.stream import simulate
from memcore.tape.dims import MAIN, B, D, F, S, of_stack
from memcore.training.memory import rows_at
from memcore.training.steps import training_sizes

LLAVA = {"model": "llava-1.5-7b", "cluster": {"gpus": 8}}


GEMMA = {"model": "gemma-3-4b", "cluster": {"gpus": 8}}
QWEN = {"model": "qwen2.5-vl-7b-vision", "cluster": {"gpus": 8}}
QWEN3 = {"model": "qwen3-vl-8b-vision", "cluster": {"gpus": 8}}


def plan(of=LLAVA, **train):
    return Plan.of(of | {"train": {"seq_len": 2048, "images": 2} | train})


def test_each_stack_has_its_own_sizes():
    sizes = training_sizes(plan(micro_batch=3))
    assert (sizes["B"], sizes["S"], sizes["D"]) == (3, 2048, 4096)
    assert (sizes["vision.B"], sizes["vision.S"], sizes["vision.D"]) == (6, 577, 1024)
    assert sizes["vision.PATCHES"] == 24 * 24


def test_a_dimension_of_a_stack_is_one_object():
    assert of_stack("vision", D) is of_stack("vision", D) is not D
    assert of_stack("vision", of_stack("vision", F)) is of_stack("vision", F)
    assert of_stack("vision", of_stack(MAIN, B)) is B
    assert str(of_stack("vision", S)) == "vision.S"


def test_rows_of_both_stacks_add_up_at_every_instant():
    p = plan(checkpointing="none")
    memory = evaluate(p).memory
    for i, moment in enumerate(memory.timeline):
        rows = rows_at(p, i)
        assert sum(r.bytes for r in rows) == moment.bytes
    names = {r.name.split(".")[0] for r in rows_at(p, len(memory.timeline) - 1)}
    assert {"vision", "bridge", "layers", "head"} <= names


@pytest.mark.parametrize("framework", [{}, {"framework": "pytorch", "precision": "bf16-pure"}])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_more_images_never_need_less(framework, checkpointing):
    words = framework | {"checkpointing": checkpointing, "zero": 0 if framework else 3}
    needs = [evaluate(plan(images=n, **words)).memory.allocated_bytes for n in (1, 2, 3)]
    assert needs == sorted(needs)
    assert needs[0] < needs[2] or checkpointing == "full"


def test_a_sweeps_cell_is_evaluate_of_that_cell():
    p = plan()
    cells = peaks(p, {"train.micro_batch": [1, 2], "train.seq_len": [1200, 4096]})
    for index in np.ndindex(*cells.shape):
        cell = p.changed("train.micro_batch", [1, 2][index[0]])
        cell = cell.changed("train.seq_len", [1200, 4096][index[1]])
        assert cells[index] == evaluate(cell).memory.allocated_bytes


@pytest.mark.parametrize("of", [LLAVA, GEMMA, QWEN, QWEN3], ids=lambda of: of["model"])
def test_every_number_is_explained(of):
    p = plan(of)
    checked(Book(p, evaluate(p)))


def test_images_must_fit_into_the_sequence():
    with pytest.raises(PlanError, match=r"train\.images: 4 of 576 tokens each do not fit"):
        plan(images=4)
    mended, issues = repair(LLAVA | {"train": {"seq_len": 2048, "images": 4}})
    assert mended.train.images == 3
    assert [i.field for i in issues] == ["train.images"]


def test_what_is_not_known_is_refused_or_said():
    with pytest.raises(PlanError, match=r"parallel\.tp: llava is planned with data parallelism"):
        Plan.of(LLAVA | {"parallel": {"tp": 2}, "train": {"seq_len": 2048}})
    config = {"model_type": "llava", "text_config": {"model_type": "bert"}}
    with pytest.raises(PlanError, match="'llava', with 'bert' as its language model, is no family"):
        Plan.of({"model": config})
    with pytest.raises(PlanError, match=r"serve\.weight_dtype: t5 is served in 16 or 32 bits"):
        served(weight_dtype="fp8")
    mended, _ = repair(T5 | {"train": {"attention": "eager"}, "serve": {"weight_dtype": "fp8"}})
    assert mended.serve.weight_dtype == "bf16"


@pytest.mark.parametrize("of", [LLAVA, GEMMA, QWEN], ids=lambda of: of["model"])
def test_a_tower_of_images_stays_in_16_bits(of):
    """In a server of 8-bit weights the text is half as large, the tower as it was."""
    reports = [evaluate(served(of, weight_dtype=w)) for w in ("bf16", "int8")]
    towers = [
        sum(r.bytes for r in report.serve.rows if r.name.startswith(("vision.", "bridge.")))
        for report in reports
    ]
    assert towers[0] == towers[1] > 5e8
    texts = [r.serve.weights_bytes - n for r, n in zip(reports, towers, strict=True)]
    assert texts[0] * 0.45 < texts[1] < texts[0] * 0.65
    assert any("stay in bf16" in note for note in reports[1].notes)
    assert not any("stay in bf16" in note for note in reports[0].notes)


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "ep"])
def test_qwen_with_images_is_planned_on_data_parallel_gpus(axis):
    of = {"model": "qwen3-vl-30b-a3b-vision", "cluster": {"gpus": 8}}
    with pytest.raises(PlanError, match=rf"parallel\.{axis}: qwen3_vl_moe is planned with data"):
        plan(of | {"parallel": {axis: 2}})


GEMMA_VISION = catalog.model_entry("gemma-3-4b")["config"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mm_tokens_per_image": 5000}, r"mm_tokens_per_image: must be at most the 4,096 patches"),
        ({"image_token_index": 262_208}, r"image_token_index: must be one of the 262,208 tokens"),
        ({"vision_config": {}}, r"vision_config\.vision_use_head: a head behind the tower"),
        (
            {"vision_config": GEMMA_VISION["vision_config"] | {"image_size": [896, 448]}},
            r"vision_config\.image_size: images must be as high as wide",
        ),
        ({"text_config": {"model_type": "llama"}}, r"text_config\.model_type: 'llama'"),
    ],
    ids=lambda x: str(x)[:24],
)
def test_a_gemma_that_is_not_known_is_refused(changed, said):
    with pytest.raises(PlanError, match=said):
        Plan.of({"model": GEMMA_VISION | changed})


def test_gemma_reads_fewer_tokens_than_an_image_has_patches():
    sizes = training_sizes(plan(GEMMA))
    assert (sizes["vision.S"], sizes["vision.MERGED"]) == (4096, 256)
    assert plan(GEMMA, images=8).train.images == 8
    with pytest.raises(PlanError, match="9 of 256 tokens each do not fit"):
        plan(GEMMA, images=9)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash"])
def test_a_mask_of_its_own_for_each_sequence(attention):
    """Tokens of an image see each other, so that no causal flag does; flash attention has none."""
    words = {"checkpointing": "none", "attention": attention, "micro_batch": 2}
    p = plan(GEMMA, **words)
    instants = range(len(evaluate(p).memory.timeline))
    masks = {
        r.name: str(r.shape) for i in instants for r in rows_at(p, i) if r.name.endswith(" mask")
    }
    both = dict.fromkeys(("causal mask", "sliding mask"), "B 2 x 1 x S 2,048 x S 2,048")
    assert masks == ({} if attention == "flash" else both)


T5 = {"model": "t5-base", "cluster": {"gpus": 8}}


def served(of=T5, **fields):
    train = {"attention": "eager"} if of is T5 else {"seq_len": 2048, "images": 2}
    return Plan.of(of | {"train": train, "serve": fields})


@pytest.mark.parametrize("of", [LLAVA, GEMMA, T5], ids=lambda of: of["model"])
def test_served_weights_are_all_parameters(of):
    """Of the tower too. vLLM loads no layer behind the one whose result LLaVA reads, nor the norm
    there."""
    report = evaluate(served(of, kv_cache="contiguous"))
    assert report.serve.weights_bytes == 2 * report.parameters
    layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    unread = layer + 2 * 1024 if of is LLAVA else 0
    assert evaluate(served(of)).serve.weights_bytes == 2 * (report.parameters - unread)


@pytest.mark.parametrize("size", ["4b", "12b", "27b"])
def test_a_cache_is_its_text_model_s(size):
    served = [evaluate(Plan.of({"model": f"gemma-3-{size}{kind}"})).serve for kind in ("", "-text")]
    assert served[0].kv_bytes_per_token == served[1].kv_bytes_per_token
    assert served[0].sequence_bytes == served[1].sequence_bytes
    assert served[0].weights_bytes > served[1].weights_bytes


def test_the_link_carries_the_images():
    assert decode(encode(plan(images=3)))[0].train.images == 3
    assert decode(encode(plan(QWEN, image_size=500)))[0].train.image_size == 500


@pytest.mark.parametrize(
    ("of", "asked", "pixels", "patches", "read"),
    [
        (QWEN, 768, 27 * 28, 54 * 54, 27 * 27),  # 27.4 tokens a side
        (QWEN, 252, 252, 18 * 18, 9 * 9),
        (QWEN, 1, 28, 4, 1),
        (QWEN3, 768, 768, 48 * 48, 24 * 24),
        (QWEN3, 790, 800, 50 * 50, 25 * 25),  # 24.7
    ],
)
def test_an_image_of_any_size_is_rounded_to_whole_tokens(of, asked, pixels, patches, read):
    """As Qwen2VLImageProcessor's smart_resize does."""
    sizes = training_sizes(plan(of, image_size=asked))
    assert (sizes["vision.HEIGHT"], sizes["vision.WIDTH"]) == (pixels, pixels)
    assert (sizes["vision.S"], sizes["vision.MERGED"]) == (patches, read)


def test_prompts_have_images_of_their_own_size():
    """And first tokens follow them, whatever training's are."""
    small, large = (
        evaluate(served(QWEN, image_size=n, prompt_len=4096)).serve.tower_seconds
        for n in (300, 1000)
    )
    assert small < large / 4
    with pytest.raises(PlanError, match=r"serve\.images: 1 of 1,298 tokens each do not fit"):
        served(QWEN, image_size=1000, prompt_len=1024)
    p = plan(QWEN, images=1, image_size=1000)
    assert training_sizes(p)["vision.MERGED"] == 36**2


@pytest.mark.parametrize("field", ["train.image_size", "serve.image_size"])
def test_a_sweep_over_sizes_is_evaluate_of_each(field):
    p = plan(QWEN, images=1)
    for n, cell in zip((100, 700), peaks(p, {field: [100, 700]}), strict=True):
        assert cell == evaluate(p.changed(field, n)).memory.allocated_bytes


def test_windows_of_an_image():
    """9 tokens a side in windows of 4: 8, 8 and 2 patches a side."""
    sizes = training_sizes(plan(QWEN, image_size=252))
    assert sizes["vision.PAIRS"] == (8**2 + 8**2 + 2**2) ** 2
    kinds = [kind for kind in plan(QWEN).architecture.tower.kinds if kind == "every"]
    assert len(kinds) == 4


def test_windows_take_fewer_operations_than_whole_images():
    config = catalog.model_entry("qwen2.5-vl-7b-vision")["config"]
    whole = config["vision_config"] | {"fullatt_block_indexes": list(range(32))}
    seconds = [
        evaluate(
            plan({"model": config | {"vision_config": v}}, images=1, image_size=1000)
        ).time.step_seconds
        for v in (config["vision_config"], whole)
    ]
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize("of", [QWEN, QWEN3], ids=lambda of: of["model"])
def test_larger_images_never_need_less(of):
    words = {"checkpointing": "none", "images": 1, "micro_batch": 2}
    reports = [evaluate(plan(of, image_size=n, **words)) for n in (100, 400, 1000)]
    needs = [r.memory.saved_for_backward_bytes for r in reports]
    assert needs == sorted(needs)
    assert needs[0] < needs[-1]
    assert reports[0].time.step_seconds < reports[-1].time.step_seconds


@pytest.mark.parametrize("of", [QWEN, QWEN3], ids=lambda of: of["model"])
def test_the_text_alone_is_what_it_was(of):
    """A preset without a tower says the tower's size, and has the same cache."""
    alone = Plan.of(of | {"model": of["model"].removesuffix("-vision")})
    whole = Plan.of(of)
    assert alone.architecture.tower is None
    (note,) = (n for n in alone.architecture.notes if "left out" in n)
    more = evaluate(whole).parameters - evaluate(alone).parameters
    assert f" {more:,} parameters" in note
    kept = [evaluate(p).serve.kv_bytes_per_token for p in (alone, whole)]
    assert kept[0] == kept[1]


def test_an_engine_tries_the_largest_image_that_the_processor_lets_through():
    """16,384 tokens, of 16,384 x 28 x 28 pixels, whatever size prompts' images have."""
    small, large = (evaluate(served(QWEN, images=1)).serve.feature_bytes, 16_384 * 3584 * 2)
    assert small == pytest.approx(large, rel=0.05)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"out_hidden_size": 100},
            r"vision_config\.out_hidden_size: must be 3,584, hidden_size of",
        ),
        ({"window_size": 20}, r"vision_config\.window_size: must be at least the 28 pixels"),
        ({"patch_size": [14, 16]}, r"vision_config\.patch_size: must be one number"),
        ({"fullatt_block_indexes": "all"}, r"fullatt_block_indexes: must be a list of the numbers"),
        ({"num_heads": 7}, r"vision_config\.hidden_size: 1,280 does not divide by num_heads 7"),
    ],
    ids=lambda x: str(x)[:24],
)
def test_a_qwen_that_is_not_known_is_refused(changed, said):
    config = catalog.model_entry("qwen2.5-vl-7b-vision")["config"]
    with pytest.raises(PlanError, match=said):
        Plan.of({"model": config | {"vision_config": config["vision_config"] | changed}})


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("words", [{"frozen": "tower"}, {"adapter": "lora"}], ids=str)
@pytest.mark.parametrize("of", [QWEN, QWEN3], ids=lambda of: of["model"])
def test_every_number_of_a_frozen_tower_is_explained(of, words, checkpointing):
    p = plan(of, images=1, checkpointing=checkpointing, **words)
    checked(Book(p, evaluate(p)))


@pytest.mark.parametrize("of", [QWEN, QWEN3], ids=lambda of: of["model"])
def test_a_frozen_tower_takes_less_of_everything(of):
    words = {"images": 1, "checkpointing": "none"}
    whole, frozen = (evaluate(plan(of, frozen=f, **words)) for f in ("none", "tower"))
    alone = evaluate(Plan.of(of | {"model": of["model"].removesuffix("-vision")}))
    assert frozen.trainable_parameters == alone.parameters < whole.trainable_parameters
    assert frozen.memory.saved_for_backward_bytes < whole.memory.saved_for_backward_bytes
    assert frozen.time.step_seconds < whole.time.step_seconds


def test_backward_runs_through_a_frozen_tower_whose_patches_want_a_gradient():
    """With checkpointing, of Qwen2.5-VL; of Qwen3-VL transformers finds no embedding of patches."""

    def passed(of, checkpointing):
        p = plan(of, images=1, frozen="tower", checkpointing=checkpointing)
        names = [r.name for i in range(len(evaluate(p).memory.timeline)) for r in rows_at(p, i)]
        return any(name.startswith("vision.layers") and "grad" in name for name in names)

    assert passed(QWEN, "full")
    assert not passed(QWEN, "none")
    assert not passed(QWEN3, "full")


@pytest.mark.parametrize("words", [{"adapter": "qlora"}, {"frozen": "embeddings"}], ids=str)
def test_what_of_a_frozen_tower_is_not_known_is_refused(words):
    (field,) = words
    with pytest.raises(PlanError, match=rf"train\.{field}: qwen2_5_vl|is not planned for qwen2_5"):
        plan(QWEN, precision="bf16-pure", adapter_dtype="base", **words)


@pytest.mark.parametrize("model", ["llama-3-8b", "llava-1.5-7b"])
def test_a_model_without_such_a_tower_does_not_freeze_it(model):
    with pytest.raises(PlanError, match=r"train\.frozen"):
        plan({"model": model}, images=1, frozen="tower")


@pytest.mark.parametrize("read", [[40], list(range(27))])
def test_a_deepstack_of_layers_that_there_are_not_is_refused(read):
    config = catalog.model_entry("qwen3-vl-8b-vision")["config"]
    text = config["text_config"] | {"num_hidden_layers": 8}
    vision = config["vision_config"] | {"deepstack_visual_indexes": read}
    with pytest.raises(PlanError, match=r"vision_config\.deepstack_visual_indexes: names"):
        Plan.of({"model": config | {"text_config": text, "vision_config": vision}})


def translating(**train):
    return Plan.of(
        T5 | {"train": {"attention": "eager", "seq_len": 512, "target_len": 114} | train}
    )


def test_encoder_and_decoder_have_lengths_of_their_own():
    sizes = training_sizes(translating(micro_batch=3))
    assert (sizes["encoder.B"], sizes["encoder.S"], sizes["encoder.D"]) == (3, 512, 768)
    assert (sizes["B"], sizes["S"], sizes["D"]) == (3, 114, 768)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("field", ["seq_len", "target_len"])
def test_longer_sequences_on_either_side_never_need_less(field, checkpointing):
    plans = [translating(**{field: n, "checkpointing": checkpointing}) for n in (64, 512, 2048)]
    needs = [evaluate(p).memory.allocated_bytes for p in plans]
    saved = [evaluate(p).memory.saved_for_backward_bytes for p in plans]
    assert needs == sorted(needs)
    assert saved[0] < saved[1] < saved[2]


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_rows_of_encoder_and_decoder_add_up_at_every_instant(checkpointing):
    p = translating(checkpointing=checkpointing)
    for i, moment in enumerate(evaluate(p).memory.timeline):
        assert sum(r.bytes for r in rows_at(p, i)) == moment.bytes


def test_a_sweep_over_both_lengths_is_evaluate_of_each_cell():
    p = translating(checkpointing="none")
    cells = peaks(p, {"train.target_len": [32, 600], "train.seq_len": [100, 1024]})
    for index in np.ndindex(*cells.shape):
        cell = p.changed("train.target_len", [32, 600][index[0]])
        cell = cell.changed("train.seq_len", [100, 1024][index[1]])
        assert cells[index] == evaluate(cell).memory.allocated_bytes


def test_gradients_that_stay_are_counted_once():
    """Accumulating, the weights' gradients are there before backward: that of a table which encoder
    and decoder both read is one of them."""
    for model in ("t5-base", "flan-t5-base"):
        plan = Plan.of(
            {"model": model, "cluster": {"gpus": 1}}
            | {
                "train": {"attention": "eager", "framework": "pytorch", "precision": "bf16-pure"}
                | {"grad_accumulation": 2, "zero": 0, "seq_len": 64, "target_len": 32}
            }
        )
        report = evaluate(plan)
        last = next(i for i, m in enumerate(report.memory.timeline) if m.id == "optimizer-step")
        rows = [r for r in rows_at(plan, last) if r.consumer == "gradients"]
        assert sum(r.bytes for r in rows) == 2 * report.parameters


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_every_number_of_an_encoder_decoder_is_explained(checkpointing):
    p = translating(checkpointing=checkpointing)
    checked(Book(p, evaluate(p)))


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("train.attention", "sdpa"),
        ("train.attention", "flash"),
        ("train.checkpointing", "selective"),
        ("train.checkpoint_every", 2),
        ("train.precision", "fp16-mixed"),
        ("train.kernels", "compile"),
        ("train.adapter", "lora"),
        ("parallel.tp", 2),
    ],
)
def test_what_is_not_known_of_an_encoder_decoder_is_refused(path, word):
    part, field = path.split(".")
    document = translating().document()
    document[part][field] = word
    with pytest.raises(PlanError, match=path.replace(".", r"\.")):
        Plan.of(document)
    mended, _ = repair(document)
    assert evaluate(mended).memory


def test_the_link_carries_the_target_s_length():
    assert decode(encode(translating(target_len=77)))[0].train.target_len == 77


# -- served ---------------------------------------------------------------------------------------


def test_an_encoder_s_tokens_are_kept_by_every_decoder_layer():
    """T5 11B: 24 layers of 128 heads of 128, two bytes, keys and values of 512 and of 64 tokens."""
    of = {"model": "t5-11b", "cluster": {"gpus": 1}, "train": {"attention": "eager"}}
    s = evaluate(Plan.of(of | {"serve": {"prompt_len": 512, "output_len": 64}})).serve
    per_token = 24 * 2 * 128 * 128 * 2
    assert s.kv_bytes_per_token == per_token
    assert s.cross_bytes_per_sequence == 512 * per_token
    assert s.sequence_bytes == (512 + 64) * per_token
    caches = {r.name: r.bytes_each for r in s.rows if r.consumer == "kv_cache"}
    assert caches == {"kv cache": 64 * per_token, "cross-attention cache": 512 * per_token}


def test_pages_of_an_encoder_are_its_own():
    """17 and 9 tokens take two blocks and one; in one row they would take two."""
    s = evaluate(served(prompt_len=17, output_len=9)).serve
    assert s.blocks_per_sequence == 3
    assert s.cross_bytes_per_sequence == 2 * s.block_bytes
    assert s.wasted_bytes_per_sequence == 15 * s.kv_bytes_per_token


def encoded(plan):
    """FLOPs of what runs once for a prompt of T5, counted by hand: its encoder, and keys and values
    of the decoder's layers."""
    m, n = plan.architecture, plan.serve.prompt_len
    inner = m.heads * m.head_dim
    mlp = (3 if m.traits.gated else 2) * m.hidden_size * m.intermediate_size
    layer = 2 * n * (4 * m.hidden_size * inner + mlp) + 4 * n * n * inner
    return m.tower.layers * layer + m.layers * 2 * 2 * n * m.hidden_size * inner


@pytest.mark.parametrize("model", ["t5-base", "flan-t5-large"])
@pytest.mark.parametrize("n", [1, 300, 2048])
def test_what_runs_once_for_a_prompt(model, n):
    of = {"model": model, "cluster": {"gpus": 1}, "train": {"attention": "eager"}}
    p = Plan.of(of | {"serve": {"prompt_len": n}})
    server = Server.of(p)
    once = of_tower(server)
    assert sum(o.time.flops for o in once) == encoded(p)
    first = of_running(server, 1).serve
    assert first.ttft_seconds == pytest.approx(
        first.first_seconds + first.tower_seconds + sum(o.time.seconds for o in first.prefill)
    )
    # A decoder's step makes no keys and values of the encoder's tokens again.
    names = {o.time.name for o in first.decode}
    assert "layers.EncDecAttention.q.matmul" in names
    assert "layers.EncDecAttention.k.matmul" not in names
    assert "layers.EncDecAttention.k.matmul" in {o.time.name for o in once}


@pytest.mark.parametrize("of", [LLAVA, GEMMA, T5], ids=lambda of: of["model"])
@pytest.mark.parametrize(
    ("runtime", "cache", "prefill", "images"),
    [
        ("graphs", "paged", "whole", 1),
        ("eager", "dynamic", "disaggregated", 1),
        ("graphs", "contiguous", "chunked", 0),
    ],
)
def test_every_number_of_a_served_tower_is_explained(of, runtime, cache, prefill, images):
    words = {"images": images} | ({} if of is T5 else {"prefill": prefill})
    p = served(of, runtime=runtime, kv_cache=cache, **words)
    checked(Book(p, evaluate(p)))


@pytest.mark.parametrize("field", ["prompt_len", "output_len", "concurrency"])
def test_more_of_a_prompt_never_takes_less(field):
    found = [evaluate(served(**{field: n})).serve for n in (1, 100, 1000)]
    for what in ("sequence_bytes", "ttft_seconds", "tpot_seconds"):
        values = [getattr(s, what) for s in found]
        assert values == sorted(values), what


@pytest.mark.parametrize("of", [LLAVA, GEMMA], ids=lambda of: of["model"])
def test_more_images_never_take_less(of):
    found = [evaluate(served(of, images=n, prompt_len=2048)).serve for n in (0, 1, 2, 3)]
    for what in ("ttft_seconds", "tower_seconds", "activation_bytes", "profiled_images"):
        values = [getattr(s, what) for s in found]
        assert values == sorted(values), what
    assert found[0].tower_seconds == found[0].tower_bytes == 0 < found[1].tower_seconds
    assert len({s.tpot_seconds for s in found}) == 1  # decoding sees no image


def test_images_of_one_forward_are_those_that_vllm_profiles():
    """Gemma 3 on an MI300X with 8,192 batched tokens: "profiled with 31 image items", since a
    prompt has 260 tokens for each."""
    serve = {"images": 2, "max_batched_tokens": 8192, "prompt_len": 4095, "output_len": 1}
    p = Plan.of({"model": "gemma-3-27b", "serve": serve})
    assert evaluate(p).serve.profiled_images == 31
    few = evaluate(p.changed("serve.max_num_seqs", 3)).serve
    assert few.profiled_images == 6
    small = evaluate(p.changed("serve.max_batched_tokens", 100)).serve
    assert small.profiled_images == 1


def test_a_tower_s_flops_while_serving():
    """CLIP ViT-L/14 at 336 pixels, 23 of its 24 layers, and the projector."""
    server = Server.of(served(images=2, of=LLAVA, prompt_len=2048))
    flops = sum(o.time.flops for o in of_tower(server))
    layer = 2 * 577 * (4 * 1024 * 1024 + 2 * 1024 * 4096) + 4 * 577 * 577 * 1024
    patches = 2 * 576 * 3 * 14 * 14 * 1024
    projector = 2 * 576 * (1024 * 4096 + 4096 * 4096)
    assert flops == 2 * (23 * layer + patches + projector)


def test_what_an_encoder_cannot_do_is_refused():
    for field, word in (("prefill", "chunked"), ("shared_prefix", 5), ("draft_tokens", 2),
                        ("weight_dtype", "fp8"), ("weight_dtype", "fp16")):  # fmt: skip
        with pytest.raises(PlanError, match=rf"serve\.{field}"):
            served(**{field: word})
        document = served().document()
        document["serve"][field] = word
        mended, issues = repair(document)
        assert evaluate(mended).serve
        assert [i.field for i in issues] == [f"serve.{field}"]
    assert simulate(served()) is None
    assert any("not simulated" in note for note in evaluate(served()).notes)


def test_a_prompt_too_short_for_an_image_has_none():
    with pytest.raises(PlanError, match=r"serve\.images: 1 of 576 tokens each do not fit"):
        served(LLAVA, prompt_len=100)
    document = served(LLAVA).document()
    document["serve"]["prompt_len"] = 100
    mended, issues = repair(document)
    assert (mended.serve.images, mended.serve.prompt_len) == (0, 100)
    assert [i.field for i in issues] == ["serve.images"]
    assert any("no images" in note for note in evaluate(mended).notes)


# -- time of a step -------------------------------------------------------------------------------


def forward_flops(m, batch, read, written):
    """FLOPs of one forward of T5, counted by hand as PaLM does: each stack on its own tokens."""
    d, inner = m.hidden_size, m.heads * m.head_dim
    mlp = (3 if m.traits.gated else 2) * d * m.intermediate_size
    encoder = m.tower.layers * read * (2 * (4 * d * inner + mlp) + 4 * inner * read)
    own = 2 * (6 * d * inner + mlp) + 4 * inner * (written + read)  # q and o twice, k and v once
    decoder = m.layers * (written * own + read * 2 * 2 * d * inner)
    return batch * (encoder + decoder + written * 2 * d * m.vocab_size)


@pytest.mark.parametrize("model", ["t5-base", "flan-t5-large"])
def test_model_flops_of_an_encoder_decoder(model):
    words = {"attention": "eager", "seq_len": 300, "target_len": 70, "micro_batch": 2}
    p = Plan.of({"model": model, "train": words | {"grad_accumulation": 3}})
    time = evaluate(p).time
    assert time.model_flops == 3 * 3 * forward_flops(p.architecture, 2, 300, 70)


def test_model_flops_of_a_tower():
    """CLIP ViT-L/14, its last layer forward alone, the projector, and the text model's own."""
    words = {"seq_len": 2048, "micro_batch": 2, "attention": "flash"}
    both = evaluate(plan(images=3, **words)).time
    text = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32064}  # fmt: skip
    alone = evaluate(Plan.of({"model": text, "cluster": {"gpus": 8}, "train": words})).time
    layer = 2 * 577 * (4 * 1024 * 1024 + 2 * 1024 * 4096) + 4 * 577 * 577 * 1024
    patches = 2 * 576 * 3 * 14 * 14 * 1024
    projector = 2 * 576 * (1024 * 4096 + 4096 * 4096)
    tower = 6 * (3 * (23 * layer + patches + projector) + layer)
    assert both.model_flops == pytest.approx(alone.model_flops + tower, rel=1e-12)


def test_layers_of_the_main_stack_take_as_long_as_in_a_model_of_their_own():
    words = {"seq_len": 2048, "micro_batch": 2, "attention": "flash"}
    text = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32064}  # fmt: skip
    alone = evaluate(Plan.of({"model": text, "cluster": {"gpus": 8}, "train": words})).time
    both = evaluate(plan(**words)).time

    def layers(time):
        return {(o.name, o.phase): o for o in time.operations if o.name.startswith("layers.")}

    assert layers(both) == layers(alone)
    stacks = {o.name.partition(".")[0] for o in both.operations}
    assert stacks == {"vision", "bridge", "layers", "head", "optimizer step"}


def test_a_step_is_the_sum_of_its_stacks():
    """On one GPU, with nothing sent and nothing waited for."""
    for of in (LLAVA, GEMMA):
        time = evaluate(plan(of | {"cluster": {"gpus": 1}}, micro_batch=4)).time
        by_stack = {}
        for o in time.operations:
            stack = o.name.partition(".")[0]
            by_stack[stack] = by_stack.get(stack, 0) + o.seconds
        assert min(by_stack.values()) > 0
        waited = time.exposed["host"]
        assert sum(by_stack.values()) + waited == pytest.approx(time.step_seconds)


def test_fsdp_s_groups_are_layers_of_both_stacks():
    """24 layers of the tower, of which the last is not reached by backward, and 32 of the text:
    each gathered once in forward but the first, which the root is gathered with."""
    time = evaluate(plan(grad_accumulation=1)).time
    moved = {t.name: t for t in time.transfers}
    book = Book(plan(grad_accumulation=1), evaluate(plan(grad_accumulation=1)))
    each = book.explain("time.moved.weights-of-a-layer").value
    assert moved["all-gather layers, forward"].bytes == pytest.approx(55 * each)
    whole = 56 * each + book.explain("time.moved.weights-of-the-root").value
    assert whole == pytest.approx(2 * evaluate(plan()).parameters, rel=1e-3)
    backward = moved["all-gather and reduce-scatter layers, backward"].bytes
    grads = book.explain("time.moved.gradients-of-a-layer").value
    assert backward == pytest.approx(54 * (each + grads))


def test_whisper_reads_as_many_positions_as_it_has():
    """Half a minute of sound is 1,500 positions, whatever is said of them; the server keeps keys
    and values of all of them for every decoder layer (in whole blocks of 16 tokens)."""
    found = Plan.of({"model": "whisper-large-v3", "train": {"target_len": 448}})
    assert (found.train.seq_len, found.serve.prompt_len) == (1500, 1500)
    assert Plan.of(found.document()) == found
    report = evaluate(found)
    assert not any("was made for" in note for note in report.notes)
    blocks = -(-1500 // 16)
    assert report.serve.cross_bytes_per_sequence == 32 * blocks * 16 * 2 * 1280 * 2
    for wrong, field in (
        ({"train": {"seq_len": 512}}, "train.seq_len"),
        ({"serve": {"prompt_len": 512}}, "serve.prompt_len"),
        ({"train": {"target_len": 449}}, "train.target_len"),
    ):
        with pytest.raises(PlanError, match=field.replace(".", r"\.")):
            Plan.of({"model": "whisper-large-v3"} | wrong)
        fitted, _ = repair({"model": "whisper-large-v3"} | wrong)
        assert evaluate(fitted).memory.allocated_bytes > 0
