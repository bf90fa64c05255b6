"""Training of models whose layers keep a state: laws of their bytes, their FLOPs and their time,
and what is refused. families.json holds their bytes against PyTorch and their kernels' own code."""

import pytest
from explained import checked

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.models.families import FAMILIES
from memcore.plan.plan import Plan
from memcore.timing.roofline import SCANNED
from memcore.training.training import Training

PRESETS = [
    name
    for name in catalog.model_names()
    if (model := catalog.model(name)).recurrence and not FAMILIES[model.family].untrained
]
SCANNING = [n for n in PRESETS if catalog.model(n).recurrence.scans]
PROJECTING = [n for n in PRESETS if catalog.model(n).recurrence.projects]
GPU = {"gpu": "h100-sxm-80gb", "gpus": 8}


def plan_of(name, parallel=None, **train):
    return Plan(
        model=name,
        cluster=GPU,
        parallel=parallel or {},
        train={"checkpointing": "none"} | train,
    )


def saved(name, tokens, **train):
    plan = plan_of(name, seq_len=tokens, **train)
    return Training.of(plan, rows=False).memory.saved_for_backward_bytes


def ops(name, **train):
    return evaluate(plan_of(name, **train)).time.operations


@pytest.mark.parametrize("name", PRESETS)
def test_saved_bytes_grow_linearly_with_the_sequence(name):
    """No matrix of all tokens by all tokens: attention is FlashAttention's. Labels have a pad."""
    one, two, four = (saved(name, n * 4096, micro_batch=2) for n in (1, 2, 4))
    fixed = 2 * one - two
    assert four - two == 2 * (two - one)
    assert abs(fixed) < one / 500  # of the weights: A of every head or channel, norms in fp32


@pytest.mark.parametrize("name", PRESETS)
def test_forward_of_a_scan_grows_linearly(name):
    """Whole chunks: as many FLOPs for each token."""
    of = [
        sum(o.flops for o in ops(name, seq_len=n) if o.kernel == SCANNED and o.phase == "forward")
        for n in (4096, 16_384)
    ]
    assert of[1] == pytest.approx(4 * of[0])


@pytest.mark.parametrize("name", SCANNING)
def test_a_chunk_that_is_not_full_is_padded(name):
    """One token more than whole chunks starts another, for which forward has whole scores."""
    chunk = catalog.model(name).recurrence.chunk

    def scans(tokens):
        found = (o for o in ops(name, seq_len=tokens) if o.kernel == SCANNED)
        return [o.flops for o in found if "conv" not in o.name]

    full, begun, two = (sum(scans(n)) for n in (chunk, chunk + 1, 2 * chunk))
    assert full < begun == two


@pytest.mark.parametrize("name", PRESETS)
def test_checkpointing_keeps_inputs_alone(name):
    less, more = (saved(name, 4096, checkpointing=word) for word in ("full", "none"))
    assert less < more / 3


@pytest.mark.parametrize("name", ["bamba-9b", "falcon-h1-7b", "qwen3.5-4b-text"])
def test_every_number_of_training_is_explained(name):
    plan = plan_of(name, seq_len=1000)
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize("name", SCANNING)
def test_what_was_assumed_is_said(name):
    notes = " ".join(evaluate(plan_of(name)).notes)
    recurrence = catalog.model(name).recurrence
    scans = recurrence.projects or recurrence.step_rank  # Mamba's
    package = "mamba_ssm" if scans else "flash-linear-attention"
    assert f"run the kernels of {package} and causal-conv1d" in notes
    assert "no measured step was held against it" in notes


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("axis", ["tp", "cp"])
def test_scans_are_not_shared_out(name, axis):
    report = evaluate(plan_of(name, {axis: 2}))
    assert report.memory is None
    assert any("tensor and context parallelism of layers with a state" in n for n in report.notes)


@pytest.mark.parametrize(
    ("name", "train", "why"),
    [
        ("bamba-9b", {"lora_targets": "all-linear"}, "out_proj itself, past an adapter"),
        ("bamba-9b", {"adapter": "qlora", "framework": "pytorch", "zero": 0}, "in 4 bits"),
        ("mamba2-780m", {}, "has no attention for adapters"),
    ],
)
def test_adapters_that_the_kernel_passes_by_are_refused(name, train, why):
    given = {"adapter": "lora", "precision": "bf16-pure", "adapter_dtype": "base"} | train
    report = evaluate(plan_of(name, **given))
    assert report.memory is None
    assert why in report.notes[0]


@pytest.mark.parametrize(
    ("name", "targets", "adapter"),
    [
        ("bamba-9b", "attention", "lora"),
        ("falcon-h1-7b", "attention-all", "lora"),
        ("qwen3.5-4b-text", "all-linear", "lora"),
        ("qwen3.5-4b-text", "all-linear", "qlora"),
    ],
)
def test_adapters_are_planned_where_they_are_run(name, targets, adapter):
    more = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}
    train = {"adapter": adapter, "lora_targets": targets} | more
    with_it, without = (evaluate(plan_of(name, **t)) for t in (train, more))
    assert with_it.memory.allocated_bytes < without.memory.allocated_bytes
    assert 0 < with_it.trainable_parameters < without.trainable_parameters / 20


def test_mfu_counts_attention_where_there_is_some():
    """Of a model that never attends, two FLOPs for each weight and token, three times over."""
    plan = plan_of("mamba-codestral-7b", seq_len=8192, zero=3)
    one = Training.of(plan).time().model_flops
    plan = plan_of("mamba-codestral-7b", seq_len=16_384, zero=3)
    assert Training.of(plan).time().model_flops == pytest.approx(2 * one)


def test_a_scan_by_itself_is_not_run_under_autocast():
    """csrc/selective_scan/selective_scan.cpp asks for B in the dtype of the values; Jamba's norms
    have fp32 weights there, and so has what they make."""
    report = evaluate(plan_of("jamba-1.5-mini", precision="bf16-autocast"))
    assert report.memory is None
    assert any("Training is not computed: mamba_ssm's scan takes" in n for n in report.notes)
    assert evaluate(plan_of("jamba-1.5-mini")).memory
