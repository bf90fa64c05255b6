"""Laws of step times, whatever the plan is."""

import itertools
import math

import pytest
from drawn import ANY
from explored import examples
from hypothesis import given
from hypothesis import strategies as st

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.tape.structure import CLASSIFICATION, EMBEDDING

ROUNDING = 1e-9
PALM = 0.01  # FLOPs per token against the formula, which leaves out nothing but norms


@examples(15)
@given(ANY)
def test_no_resource_is_busy_longer_than_the_step(plan):
    time = evaluate(plan).time
    if time is None:
        return
    for name, busy in time.resources.items():
        assert busy <= time.step_seconds * (1 + ROUNDING), name
        assert 0 <= time.exposed[name] <= time.step_seconds * (1 + ROUNDING), name


@examples(15)
@given(ANY)
def test_overlap_lies_between_the_longest_and_the_sum(plan):
    time = evaluate(plan).time
    if time is None:
        return
    assert max(time.resources.values()) <= time.step_seconds * (1 + ROUNDING)
    launches = sum(o.runs for o in time.operations) * 5e-6
    whole = sum(time.resources.values()) + time.bubble_seconds + launches
    assert time.step_seconds <= whole * (1 + ROUNDING)
    for t in time.transfers:
        assert 0 <= t.exposed_seconds <= t.seconds * (1 + ROUNDING), t.name
    assert sum(time.phases.values()) == pytest.approx(time.step_seconds)
    assert time.stages[time.stage].step == time.step_seconds == max(s.step for s in time.stages)
    assert time.bubble_seconds >= 0
    assert 0 < time.mfu <= time.hfu + ROUNDING


FASTER = {
    "compute": lambda gpu, node: gpu["flops"].update({k: 2 * v for k, v in gpu["flops"].items()}),
    "memory": lambda gpu, node: gpu.update(memory_bandwidth=2 * gpu["memory_bandwidth"]),
    "nvlink": lambda gpu, node: gpu.update(peer_bandwidth=2 * gpu["peer_bandwidth"]),
    "network": lambda gpu, node: node.update(network_bandwidth=2 * node["network_bandwidth"]),
    "host": lambda gpu, node: node.update(host_slowness=node["host_slowness"] / 2),
    "watts": lambda gpu, node: gpu.update(watts=2 * gpu["watts"]),
}


@pytest.mark.parametrize("what", FASTER)
@examples(8)
@given(plan=ANY)
def test_faster_hardware_is_never_slower(what, plan):
    document = plan.document()
    gpu = plan.accelerator.model_dump(mode="json")
    node = catalog.node(plan.accelerator.node).model_dump(mode="json")
    document["cluster"] |= {"gpu": gpu, "node": node}
    before = evaluate(Plan.of(document)).time
    if before is None:
        return
    FASTER[what](gpu, node)
    after = evaluate(Plan.of(document)).time
    assert after.step_seconds <= before.step_seconds * (1 + ROUNDING)


@pytest.mark.parametrize("field", ["micro_batch", "seq_len", "grad_accumulation"])
@examples(8)
@given(plan=ANY, more=st.integers(1, 3))
def test_more_work_never_takes_less_time(field, plan, more):
    """Twice as many are divided by the same ranks."""
    before = evaluate(plan).time
    if before is None:
        return
    try:
        bigger = plan.changed(f"train.{field}", getattr(plan.train, field) * 2**more)
    except PlanError:  # more tokens than the model has positions
        return
    assert evaluate(bigger).time.step_seconds >= before.step_seconds * (1 - ROUNDING)


def doubled(document):
    """Step times of one sequence at once, of two, four ... sixty-four."""
    plan = Plan.of(document)
    batches = (plan.changed("train.micro_batch", n) for n in (1, 2, 4, 8, 16, 32, 64))
    return [evaluate(p).time.step_seconds for p in batches]


def never_falls(seconds):
    return all(b >= a * (1 - ROUNDING) for a, b in itertools.pairwise(seconds))


@pytest.mark.parametrize(
    ("layers", "wide", "attention", "every", "batches"),
    [(14, True, "eager", 3, 1), (24, True, "sdpa", 3, 2), (38, False, "flash", 1, 3)],
)
def test_two_sequences_take_no_less_than_one_where_stages_are_equal(
    layers, wide, attention, every, batches
):
    """The stages' micro-batches take the same but for rounding, and their optimizers do not: the
    first has an embedding. (Two of a fuzzer's Falcon took 33.50 ms, and one 33.76.)"""
    model = {"model_type": "falcon", "vocab_size": 1, "hidden_size": 16, "num_attention_heads": 8,
             "num_hidden_layers": layers, "new_decoder_architecture": wide,
             "parallel_attn": wide, "bias": not wide}  # fmt: skip
    train = {
        "framework": "fsdp2", "zero": 0, "precision": "bf16-autocast", "optimizer": "adafactor",
        "checkpointing": "full", "checkpoint_every": every, "seq_len": 1, "attention": attention,
        "cross_entropy": "chunked", "grad_accumulation": batches,
    }  # fmt: skip
    parallel = {"tp": 2, "pp": 2}
    assert never_falls(doubled({"model": model, "parallel": parallel, "train": train}))


@pytest.mark.parametrize(
    ("model", "gpu", "tokens"),
    [
        ("olmoe-1b-7b", "a100-sxm-80gb", 5),  # 0.06 % faster with two sequences
        ("gpt-oss-20b", "h100-sxm-80gb", 5),
        ("granite-3.1-1b-a400m", "v100-sxm-32gb", 2),
    ],
)
def test_two_sequences_take_no_less_than_one_where_experts_have_few_rows(model, gpu, tokens):
    """Rows of an expert are a mean, which need not be whole."""
    train = {"seq_len": tokens, "checkpointing": "none", "optimizer": "sgd"}
    plan = {"model": model, "cluster": {"gpu": gpu, "gpus": 1}, "train": train}
    assert never_falls(doubled(plan))


@pytest.mark.parametrize(
    "alone",
    [
        {"sequence_parallel": True},
        {"schedule": "gpipe"},
        {"schedule": "zero-bubble"},
    ],
)
def test_an_axis_of_one_rank_changes_nothing(alone):
    train = {"framework": "megatron", "kernels": "megatron", "zero": 1}
    plain = Plan(model="llama-3-8b", train=train)
    fitted, _ = repair(plain.document() | {"parallel": plain.document()["parallel"] | alone})
    ours, theirs = evaluate(fitted).time, evaluate(plain).time
    assert ours.step_seconds == theirs.step_seconds
    assert ours.bubble_seconds == 0


def test_each_axis_divides_the_work():
    """Of a model whose dimensions all divide, FLOPs of all GPUs together stay the same."""
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none",
        "micro_batch": 4, "seq_len": 8192, "grad_accumulation": 8, "cross_entropy": "fused",
    }  # fmt: skip

    def flops(**parallel):
        plan = Plan(model="llama-3-8b", cluster={"gpus": 8}, parallel=parallel, train=train)
        return evaluate(plan).time.model_flops * 8

    whole = flops()
    for axis in ("tp", "cp", "pp"):
        assert flops(**{axis: 8}) * 8 == pytest.approx(whole, rel=PALM), axis


ENCODERS = [
    name
    for name in catalog.config_names()
    if catalog.model(name).head in (EMBEDDING, CLASSIFICATION) and not catalog.model(name).image
]


@pytest.mark.parametrize("model", ENCODERS)
@pytest.mark.parametrize("tokens", [8, 77])
def test_a_model_without_a_vocabulary_behind_it_counts_no_more_than_runs(model, tokens):
    """Who attends to all tokens runs what the convention counts, and a few classes more."""
    train = {"seq_len": tokens, "micro_batch": 8, "checkpointing": "none"}
    time = evaluate(Plan(model=model, cluster={"gpus": 1}, train=train)).time
    most = time.hardware_flops * (1 + PALM)  # CLIP reads text under a causal mask, counted whole
    assert 0.9 * time.hardware_flops <= time.model_flops <= most


def test_flops_per_token_are_palms():
    """6 N + 12 L H Q T (Chowdhery et al. 2022, appendix B), N without the embedding."""
    for model in ("llama-2-7b", "llama-3-70b", "gpt2-xl"):
        plan = Plan(model=model, cluster={"gpus": 1}, train={"seq_len": 1024})
        time, of = evaluate(plan).time, plan.architecture
        tied = of.traits.tied_embeddings
        n = evaluate(plan).parameters - (0 if tied else of.sizes["VOCAB"] * of.hidden_size)
        attention = 12 * of.layers * of.sizes["HEADS"] * of.sizes["HEAD_DIM"] * 1024
        assert time.model_flops / 1024 == pytest.approx(6 * n + attention, rel=PALM), model


@pytest.mark.parametrize(
    ("schedule", "virtual", "share"),
    [("1f1b", 1, 7 / 16), ("gpipe", 1, 7 / 16), ("1f1b", 4, 7 / 64)],
)
def test_the_bubble_of_equal_stages(schedule, virtual, share):
    """(p - 1) / (v m) of the time of the micro-batches (Narayanan et al. 2021), with stages made
    equal: the ends of the model are small beside 64 wide layers."""
    model = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 64,
             "intermediate_size": 28_672, "num_attention_heads": 64, "vocab_size": 64}  # fmt: skip
    plan = Plan(
        model=model,
        cluster={"gpus": 8},
        parallel={"pp": 8, "schedule": schedule, "virtual_stages": virtual},
        train={"framework": "megatron", "kernels": "megatron", "zero": 1, "grad_accumulation": 16},
    )
    time = evaluate(plan).time
    work = sum(time.phases[p] for p in ("forward", "recompute", "backward"))
    assert time.bubble_seconds / work == pytest.approx(share, rel=0.02)


ROUNDED_BATCH = 0.05  # a sequence does not take quite as long in another batch


@pytest.mark.parametrize(
    "train",
    [
        {"framework": "fsdp2", "offload_optimizer": "cpu", "offload_parameters": "cpu"},
        {"framework": "deepspeed", "offload_optimizer": "nvme", "offload_parameters": "cpu"},
        {"framework": "fsdp2"},
    ],
    ids=lambda t: "-".join(t.values()),
)
def test_micro_batch_that_hides_a_transfer(train):
    """At the micro-batch that a report names nothing of the transfer is waited for; at half of it
    something is. What a larger batch does not hide has none."""

    def transfers(batch):
        plan = {"cluster": {"gpus": 16}, "train": {"zero": 3, "micro_batch": batch, **train}}
        return evaluate(Plan.of({"model": "llama-3-8b", **plan})).time.transfers

    def short(t):
        """Share of what is moved that nothing hides, contention with what hides it left out."""
        return max(0.0, 1 - 1 / (t.hides_at_micro_batch / batch))

    named = {(t.name, t.link): t.hides_at_micro_batch for t in transfers(1)}
    assert any(named.values())
    for key, at in named.items():
        if at is None:
            continue
        for batch in (math.ceil(at * (1 + ROUNDED_BATCH)), math.floor(at / 2)):
            if batch < 1:
                continue
            then = next(t for t in transfers(batch) if (t.name, t.link) == key)
            assert (short(then) == 0) == (batch > at), (key, at, batch)
            if not short(then) and then.link == "pcie":
                assert then.exposed_seconds == 0
    assert all(at is None for (name, _), at in named.items() if "NVMe" in name)
