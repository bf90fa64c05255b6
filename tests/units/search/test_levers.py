"""Levers: each is the difference of two evaluations, and the first is what an expert would do."""

import functools
import itertools
import json
import re
import tomllib

import pytest
from drawn import plans
from explored import examples
from hypothesis import given

from app import tables
from memcore import PlanError, cli
from memcore.evaluate import evaluate
from memcore.evidence.comparison import text
from memcore.models import catalog
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan, words_of
from memcore.search.levers import (
    FOLLOWERS,
    KINDS,
    MACHINES,
    OTHER,
    ROUNDED,
    SAME,
    TRAINS,
    headline,
    whole_nodes,
)
from memcore.search.levers import levers as computed
from memcore.timing.certainty import apart
from memcore.training.training import Training

# Plans that run out of memory, and what those who know would change first, with the reason.
FIRST = {row["name"]: row for row in tomllib.loads(text("first_fixes.toml"))["plan"]}
WORKED = {name: entry["plan"] for name, entry in catalog.plan_entries().items()}
TRAINED = (SAME, ROUNDED, MACHINES)  # kinds that leave the training as it is, but for rounding
AS_CHEAP = 0.011  # prices are compared to the per cent
ALL = {**WORKED, **{name: row["plan"] for name, row in FIRST.items()}}


@functools.cache  # many tests ask of the same plans
def levers_of(document):
    return computed(Plan.model_validate_json(document))


def levers(plan):
    return levers_of(plan.model_dump_json())


def checked(plan):
    """Each lever against two whole evaluations."""
    now = evaluate(plan)
    found = levers(plan)
    assert len({lever.name for lever in found}) == len(found)
    for lever in found:
        then = evaluate(lever.plan)
        saved = now.memory.allocated_bytes - then.memory.allocated_bytes
        device = now.memory.device_bytes[1] - then.memory.device_bytes[1]
        assert (lever.saved_bytes, lever.saved_device_bytes) == (saved, device)
        assert lever.verdict == then.memory.verdict
        assert lever.kind in KINDS
        assert lever.trains in TRAINS
        assert (lever.trains == OTHER) == (lever.kind not in TRAINED or not lever.same_batch)
        if lever.kind == SAME:
            assert lever.same_batch
        assert set(lever.fields) <= set(lever.changes)
        assert lever.single == (len(lever.fields) == 1)
        if lever.kind != MACHINES:
            assert lever.plan.cluster == plan.cluster
        document = plan.document()
        for path, value in lever.changes.items():
            *parents, last = path.split(".")
            part = document
            for name in parents:
                part = part[name]
            part[last] = value
        assert Plan.of(document) == lever.plan
        assert decode(encode(lever.plan)) == (lever.plan, [])
        json.dumps(lever.to_dict(), allow_nan=False)
        assert lever.added_seconds == then.time.step_seconds - now.time.step_seconds
        tokens = [p.tokens_per_step for p in (plan, lever.plan)]
        per_token = then.time.step_seconds / tokens[1] - now.time.step_seconds / tokens[0]
        assert lever.added_per_token == per_token
    return found


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_lever_is_the_difference_of_two_evaluations(name):
    checked(Plan.of(ALL[name]))


@given(plans())
@examples(8)
def test_a_lever_of_any_plan_is_the_difference_of_two_evaluations(plan):
    checked(plan)


def test_how_often_is_no_change_where_it_is_said_already():
    """Nothing is recomputed, but every second layer would be."""
    words = {"checkpointing": "none", "checkpoint_every": 2, "micro_batch": 8}
    checked(Plan(cluster={"gpus": 8}, train=words))


@pytest.mark.parametrize("name", sorted(FIRST))
def test_the_first_lever_is_what_an_expert_would_do(name):
    row = FIRST[name]
    plan = Plan.of(row["plan"])
    assert evaluate(plan).memory.verdict == "over"
    first = levers(plan)[0]
    assert first.fits
    assert first.name in row["first"], [lever.name for lever in levers(plan)][:5]
    assert first.label == row["ours"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_fits_comes_first_and_the_cheapest_of_a_kind_before_the_dearer(name):
    plan = Plan.of(ALL[name])
    memory, found = evaluate(plan).memory, levers(plan)
    if memory is None or memory.fits:
        return
    fitting = [lever for lever in found if lever.fits]
    assert found[: len(fitting)] == tuple(fitting)
    for kind, moves in itertools.product(KINDS, (False, True)):  # settings before other programs
        prices = [v.price for v in fitting if (v.kind, v.moves) == (kind, moves)]
        assert all(a <= b + AS_CHEAP for a, b in itertools.pairwise(prices))


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_adapters_on_whole_models_are_shared_out_too(adapter):
    """Qwen2.5 32B on four A100 of 40 GB: of 61 GiB of weights in 16 bits 15 are on a GPU."""
    precision = {"lora": "bf16-pure", "qlora": "bf16-autocast"}[adapter]
    words = {"framework": "pytorch", "zero": 0, "adapter": adapter, "precision": precision}
    plan = Plan(
        model="qwen2.5-32b",
        cluster={"gpu": "a100-sxm-40gb", "gpus": 4},
        train=words | {"seq_len": 8192, "outputs": "freed"},
    )
    found = checked(plan)
    shared = [v for v in found if v.changes.get("train.zero") == 3]
    assert {v.plan.train.framework for v in shared} == {"deepspeed", "fsdp2"}
    assert any(v.fits and v.plan.train.adapter == adapter for v in shared)
    assert all(v.plan.train.seq_len == 8192 for v in shared)
    alone = plan.changed("cluster.gpus", 1)
    assert not any(v.changes.get("train.zero") == 3 for v in levers(alone))


@pytest.mark.parametrize(
    "path", ["train.checkpointing", "train.cross_entropy", "train.offload_optimizer"]
)
def test_every_word_that_saves_is_a_lever(path):
    """So that a word that a table gets is one too."""
    plan = Plan(model="llama-3-8b", train={"micro_batch": 2, "checkpointing": "none"})
    now = evaluate(plan).memory.device_bytes[1]
    found = {lever.plan for lever in levers(plan) if path in lever.changes}
    for word in words_of(path):
        try:
            changed = plan.changed(path, word)
        except PlanError:
            continue
        report = evaluate(changed)
        if report.memory and now - report.memory.device_bytes[1] > 2**30:
            assert changed in found, word


def test_only_what_must_follow_follows():
    for name in ALL:
        plan = Plan.of(ALL[name])
        for lever in levers(plan):
            others = lever.changes.keys() - set(lever.fields)
            if lever.kind == SAME and "grad_accumulation" not in str(lever.changes):
                every = "train.checkpoint_every" in lever.fields
                assert others <= {*FOLLOWERS, *(["train.checkpointing"] * every)}, lever.name


def test_a_smaller_micro_batch_is_the_largest_that_fits():
    plan = Plan(train={"micro_batch": 12, "checkpointing": "none", "cross_entropy": "chunked"})
    lever = next(lever for lever in levers(plan) if "train.micro_batch" in lever.changes)
    assert lever.fits
    n = lever.plan.train.micro_batch
    larger = [d for d in range(n + 1, 12) if 12 % d == 0]
    for d in larger:
        train = {**lever.plan.document()["train"], "micro_batch": d, "grad_accumulation": 12 // d}
        assert not evaluate(Plan(train=train)).memory.fits


LLAMA_70B = {"model": "llama-3-70b", "cluster": {"gpus": 8}}


def test_a_70b_is_told_the_fewest_whole_nodes():
    """Three of them fit, and two do not: not twice and twice again, which would be four."""
    found = {lever.name: lever for lever in levers(Plan.of(LLAMA_70B))}
    assert [name for name in found if name.startswith("gpus")] == ["gpus-24"]
    assert found["gpus-24"].fits
    verdicts = {n: evaluate(Plan.of(LLAMA_70B | {"cluster": {"gpus": n}})).memory.verdict
                for n in (16, 24)}  # fmt: skip
    assert verdicts == {16: "over", 24: "fits"}


def test_a_70b_fits_eight_gpus_with_optimizer_and_parameters_on_the_host():
    """Which trains the same, as no single change that makes it fit does."""
    found = levers(Plan.of(LLAMA_70B))
    assert not [lever for lever in found if lever.fits and lever.single and lever.trains == SAME]
    first = next(lever for lever in found if lever.trains == SAME)
    assert found[0].name == "gpus-24"  # for 3 % more GPU time, where this takes 71 % more
    assert found[1] == first
    assert first.fields == ("train.offload_optimizer", "train.offload_parameters")
    assert dict(first.changes) == dict.fromkeys(first.fields, "cpu")
    assert (first.trains, first.fits, first.plan.cluster.gpus) == (SAME, True, 8)
    assert "5 changes and 1 pair of changes make it fit" in headline(
        evaluate(Plan.of(LLAMA_70B)).memory, found
    )


def test_a_14b_fits_two_gaming_gpus_with_qlora_and_a_loss_that_is_not_stored():
    """The second change saves nothing of a full fine-tune, whose peak is the optimizer's: it is
    found where the first has been made."""
    found = levers(Plan(model="qwen3-14b", cluster={"gpu": "rtx-4090-24gb", "gpus": 2}))
    assert found[0].label == "Adapter: QLoRA + Cross-entropy: Fused"
    assert found[0].fits
    assert not any(lever.fits for lever in found if lever.single)


def test_where_nothing_fits_what_saves_most_comes_first():
    plan = Plan.of({"model": "llama-3-70b", "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1}})
    found = levers(plan)
    said = headline(evaluate(plan).memory, found)
    assert said.startswith("At least ")
    assert said.endswith("neither one change nor two make it fit: these save the most")
    saved = [lever.saved_device_bytes for lever in found if lever.kind != MACHINES]
    assert saved == sorted(saved, reverse=True)
    assert found[0].changes["train.adapter"] == "qlora"
    assert [lever.kind for lever in found].index(MACHINES) == len(saved)


def test_nobody_with_one_gpu_is_told_first_to_go_to_megatron():
    """Another program, for a user who has nothing to share among GPUs; with eight it may be."""
    train = {"kernels": "liger", "cross_entropy": "fused", "checkpointing": "none"}
    one = {"model": "qwen3-0.6b", "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1}, "train": train}
    found = levers(Plan.of(one))
    last = next(i for i, lever in enumerate(found) if lever.moves)
    assert all(lever.moves for lever in found[last:] if lever.fits)


FEW_NODES = {
    "70b": LLAMA_70B,
    "70b-accumulated": LLAMA_70B | {"train": {"grad_accumulation": 6, "micro_batch": 2}},
    "one-gpu": {"model": "llama-3-8b", "cluster": {"gpus": 1}},
    "two-of-four": {"model": "llama-2-13b", "cluster": {"gpu": "t4-16gb", "gpus": 2}},
    "divided-batch": {
        "model": "llama-3-8b",
        "cluster": {"gpus": 8},
        "train": {"micro_batch": 16, "checkpointing": "none"},
    },
    "divided-by-four": {
        "model": "llama-3-8b",
        "cluster": {"gpus": 8},
        "train": {"micro_batch": 8, "checkpointing": "none"},
    },
    "padded-experts": {"model": "qwen3-30b-a3b", "cluster": {"gpus": 8}},
    "padded-experts-40": {"model": "qwen3-235b-a22b", "cluster": {"gpus": 40}},
    "tensor-parallel": {"model": "llama-3-70b", "cluster": {"gpus": 8}, "parallel": {"tp": 4}},
    "three-ranks": {"model": "llama-3-70b", "cluster": {"gpus": 12}, "parallel": {"pp": 3}},
    "7-of-8": {"model": "llama-3-70b", "cluster": {"gpus": 7}},
    "too-large": {"model": "deepseek-v3", "cluster": {"gpus": 8}},
}


def memory_of(document):
    return Training.of(Plan.of(document), rows=False).memory


@pytest.mark.parametrize("name", FEW_NODES)
def test_gpus_are_the_fewest_that_fit_of_those_that_can_be_booked(name):
    """Against every number of them, one after the other."""
    plan = Plan.of(FEW_NODES[name])
    each, now = plan.gpus_per_node, plan.cluster.gpus
    ranks = plan.parallel.tp * plan.parallel.pp * plan.parallel.cp
    assert not memory_of(FEW_NODES[name]).fits
    for gpus in whole_nodes(plan):
        assert gpus > now
        assert gpus % ranks == 0
        assert gpus % each == 0 or (gpus < each and each % gpus == 0)

    def fits(gpus):
        train = dict(FEW_NODES[name].get("train", {}))
        for field in ("grad_accumulation", "micro_batch"):
            sequences = train.get(field, 1) * now
            if sequences % gpus == 0:
                train[field] = sequences // gpus
                break
        cluster = FEW_NODES[name]["cluster"] | {"gpus": gpus}
        return memory_of(FEW_NODES[name] | {"cluster": cluster, "train": train}).fits

    fewest = next((n for n in whole_nodes(plan) if fits(n)), None)
    found = [lever for lever in levers(plan) if lever.kind == MACHINES]
    assert [lever.plan.cluster.gpus for lever in found if lever.fits] == [fewest] * bool(fewest)


PAIRED = {
    "70b": LLAMA_70B,
    "405b": {"model": "llama-3.1-405b", "cluster": {"gpus": 64}},
    "13b-a100": {"model": "llama-2-13b", "cluster": {"gpu": "a100-sxm-80gb", "gpus": 2}},
    "8b-4090": {"model": "llama-3-8b", "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1}},
}


@pytest.mark.parametrize("name", ["13b-a100", "8b-4090"])  # and the 70B among ALL
def test_a_pair_is_the_difference_of_two_evaluations(name):
    checked(Plan.of(PAIRED[name]))


@pytest.mark.parametrize("name", PAIRED)
def test_pairs_are_tried_only_where_no_single_change_trains_the_same(name):
    """Both are needed, and both are ones that are tried by themselves."""
    plan = Plan.of(PAIRED[name])
    memory, found = memory_of(PAIRED[name]), levers(plan)
    pairs = [lever for lever in found if not lever.single]
    single = [lever for lever in found if lever.single and lever.fits and lever.kind == SAME]
    assert not pairs or not (memory.fits or single)
    assert len(pairs) <= 6
    for pair in pairs:
        assert pair.fits
        assert len(pair.fields) == 2
        for field in pair.fields:
            document = plan.document()
            section, _, leaf = field.partition(".")
            document[section][leaf] = pair.changes[field]
            try:
                alone = memory_of(document)
            except PlanError:  # forbidden by itself
                continue
            assert not alone.fits


@pytest.mark.parametrize("name", PAIRED)
def test_of_fixes_that_cost_the_same_those_that_train_the_same_come_first(name):
    found = [lever for lever in levers(Plan.of(PAIRED[name])) if lever.fits]
    words = list(TRAINS)
    for a, b in itertools.pairwise(found):
        one_kind = a.kind == b.kind and a.single == b.single
        if one_kind and round(a.price, 2) == round(b.price, 2):
            assert words.index(a.trains) <= words.index(b.trains)
    singles = [KINDS[lever.kind].rank for lever in found if lever.single]
    assert singles == sorted(singles)


def test_a_lever_says_what_becomes_of_the_training():
    found = {lever.name: lever for lever in levers(Plan.of(LLAMA_70B))}
    assert found["optimizer-adam8bit"].trains_text == "rounds states"
    assert found["offload_optimizer-cpu"].trains_text == "trains the same"
    assert found["adapter-lora"].trains_text == "changes the training"
    assert found["gpus-24"].trains_text == "changes the training: 98,304 tokens a step"
    accumulated = LLAMA_70B | {"train": {"grad_accumulation": 3}}
    found = {lever.name: lever for lever in levers(Plan.of(accumulated))}
    assert found["gpus-24"].trains_text == "trains the same"


def test_pairs_cost_few_evaluations(monkeypatch):
    """A page waits for this list: at most 24 pairs beside the single changes."""
    asked, whole = [], Training.of.__func__
    counting = classmethod(lambda cls, *a, **k: asked.append(a) or whole(cls, *a, **k))
    monkeypatch.setattr(Training, "of", counting)
    found = computed(Plan.of(LLAMA_70B))
    assert any(not lever.single for lever in found)
    assert 0 < len(asked) < 110


def test_a_plan_that_is_not_computed_has_no_levers():
    plan = Plan.of(WORKED["deepseek-v3-serving-16xh200"])
    assert evaluate(plan).memory is None
    assert levers(plan) == ()


@pytest.mark.parametrize(("framework", "zero"), [("pytorch", 0), ("fsdp2", 3), ("deepspeed", 2)])
def test_expandable_segments_are_a_lever_of_reserved_memory(framework, zero):
    """What is allocated and how long a step takes stay. Under ZeRO 3 it is none: all that was
    measured there had the native allocator, and no more is known of the other."""
    train = {"framework": framework, "zero": zero}
    plan = Plan(model="llama-3.2-1b", cluster={"gpus": 2}, train={"allocator": "native", **train})
    now = evaluate(plan)
    lever = next(found for found in levers(plan) if found.name == "allocator-expandable")
    then = evaluate(lever.plan)
    assert lever.changes == {"train.allocator": "expandable"}
    assert lever.saved_bytes == now.memory.allocated_bytes - then.memory.allocated_bytes == 0
    assert lever.saved_device_bytes == now.memory.device_bytes[1] - then.memory.device_bytes[1] > 0
    assert now.memory.reserved_bytes[0] >= then.memory.reserved_bytes[0]
    assert now.memory.reserved_bytes[1] < 1.6 * then.memory.reserved_bytes[1]
    assert lever.added_seconds == 0
    assert not any(found.name.startswith("allocator") for found in levers(lever.plan))


def test_a_price_of_twice_the_time_is_a_factor_on_page_and_command_line(capsys, tmp_path):
    plan = Plan(model="llama-3-8b", train={"micro_batch": 8, "checkpointing": "none"})
    dear = [lever for lever in levers(plan) if lever.price >= 1]
    assert dear, "some change of this plan doubles the time per token"
    for lever in dear:
        assert "%" not in tables.cost_text(lever)
        assert "times" in tables.cost_text(lever)
    for row in tables.levers(levers(plan)):
        assert (row["price"] >= 1) == row["GPU time per token"].endswith(" times")
    (tmp_path / "plan.json").write_text(json.dumps(plan.document()))
    cli.main(["levers", str(tmp_path / "plan.json")])
    said = capsys.readouterr().out
    assert f"{1 + dear[0].price:.3g} times" in said
    assert not re.search(r"\+[0-9]{3,}\.[0-9]%", said)


@pytest.mark.parametrize("gpus", [8, 64])
def test_a_rank_says_which_levers_cannot_be_told_apart(gpus):
    plan = Plan(model="llama-3-70b", cluster={"gpus": gpus})
    found = levers(plan)
    assert found[0].rank == 1
    assert [lever.rank for lever in found] == sorted(lever.rank for lever in found)
    assert all(lever.rank <= i + 1 for i, lever in enumerate(found))
    for one, other in itertools.combinations([v for v in found if v.fits], 2):
        if one.rank == other.rank:
            assert apart(one.plan, other.plan).same(one.felt_price, other.felt_price)
    for lever in found:
        low, high = lever.price_range
        assert low < lever.price < high
