"""What other calculators say (presets/evidence/calculators.toml): whole and fairly compared."""

import pytest

from evidence.calculators import COUNTS, STATES, calculators_table, worked
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

TABLE = calculators_table()
SAID = {(s.calculator, w.name): s for w in worked() for s in w.figures}
PLANS = {w.name: w.plan for w in worked()}
ROUNDED = 2**20  # a tool that prints whole MiB


def test_every_figure_belongs_to_a_plan_and_a_calculator_and_there_is_one_of_each():
    pairs = [(f["calculator"], f["plan"]) for f in TABLE["figures"]]
    assert len(set(pairs)) == len(pairs)
    assert set(SAID) == set(pairs)
    assert {c["name"] for c in TABLE["calculators"]} == {name for name, _ in pairs}
    assert {p["name"] for p in TABLE["plans"]} == {name for _, name in pairs}


def test_every_calculator_has_a_source_a_version_and_a_reason():
    for c in TABLE["calculators"]:
        assert c["url"].startswith("https://")
        assert c["version"]
        assert c["counts"] in COUNTS
        assert c["how"] in ("run", "formula")
        assert len(c["remark"]) > 40, c["name"]


def test_every_figure_is_a_size_and_says_what_was_asked():
    for f in TABLE["figures"]:
        assert isinstance(f["bytes"], int)
        assert 2**33 < f["bytes"] < 2**38, "a unit is wrong"
        assert f["inputs"]


@pytest.mark.parametrize("worked", worked(), ids=lambda w: w.name)
def test_each_calculator_is_compared_with_what_it_counts(worked):
    memory = evaluate(worked.plan).memory
    step = next(m for m in memory.timeline if m.id == "optimizer-step")
    kept = sum(step.consumers[c] for c in ("parameters", "gradients", "optimizer_states"))
    for s in worked.figures:
        states_only = s.counts == STATES
        assert s.ours == (kept if states_only else memory.allocated_bytes)


@pytest.mark.parametrize("worked", worked(), ids=lambda w: w.name)
def test_memplan_agrees_with_the_tracker_where_calculators_do_not(worked):
    if worked.name == "gpt2-xl-eager":  # torch.pow is in fp32 under CUDA's autocast alone
        assert worked.tracker < worked.ours < 1.06 * worked.tracker
    else:
        assert worked.ours == pytest.approx(worked.tracker, rel=1e-5)


def sizes(name):
    m = PLANS[name].architecture
    t = PLANS[name].train
    return m.hidden_size, m.layers, m.heads, t.micro_batch * t.seq_len, t.seq_len


@pytest.mark.parametrize("name", [p for c, p in SAID if c == "Korthikanti and ZeRO"])
def test_the_formula_of_korthikanti_is_carried_out_exactly(name):
    h, layers, heads, tokens, s = sizes(name)
    plan = PLANS[name]
    per_token = 2 if plan.train.checkpointing == "full" else 34
    scores = 5 * heads * s * tokens * layers if plan.train.attention == "eager" else 0
    states = 16 * evaluate(plan).parameters / plan.cluster.gpus
    theirs = SAID["Korthikanti and ZeRO", name].theirs
    assert theirs == per_token * tokens * h * layers + scores + states


@pytest.mark.parametrize("name", [p for c, p in SAID if c == "DeepSpeed"])
def test_the_states_of_deepspeed(name):
    plan = PLANS[name]
    n, m = evaluate(plan).parameters, plan.architecture
    if plan.cluster.gpus == 1:
        expected = 20 * n
    else:
        expected = 4 * m.vocab_size * m.hidden_size + 18 * n // plan.cluster.gpus
    assert SAID["DeepSpeed", name].theirs == expected


@pytest.mark.parametrize(("name", "each"), [("llama-3-8b-pure-bf16", 8), ("gpt2-xl-eager", 18)])
def test_gigabytes_per_billion_parameters(name, each):
    assert SAID["LLaMA-Factory", name].theirs == each * evaluate(PLANS[name]).parameters


@pytest.mark.parametrize("name", [p for c, p in SAID if c == "EleutherAI cookbook"])
def test_the_activations_of_the_cookbook_are_between_its_states_and_its_figure(name):
    """34 bytes per token, layer and unit of width, with 5 per score unless it checkpoints."""
    h, layers, heads, tokens, s = sizes(name)
    full = PLANS[name].train.checkpointing == "full"
    activations = layers * tokens * (34 * h + (0 if full else 5 * heads * s))
    rest = SAID["EleutherAI cookbook", name].theirs - activations
    n = evaluate(PLANS[name]).parameters / PLANS[name].cluster.gpus
    buckets = 2 * 1.5e9 if PLANS[name].cluster.gpus > 1 else 0
    assert 15.9 * n < rest - buckets < 19 * n


def test_a_figure_in_whole_mebibytes_is_one():
    found = [f["bytes"] for f in TABLE["figures"] if f["inputs"].endswith("in MiB")]
    assert len(found) >= 4
    assert all(size % ROUNDED == 0 for size in found)


def test_plans_are_what_their_title_says():
    for row in TABLE["plans"]:
        plan = Plan.of(row["plan"])
        assert f"{plan.train.micro_batch} x {plan.train.seq_len:,} tokens" in row["detail"]
        assert f"{plan.cluster.gpus} GPU" in row["label"]
        assert ("ZeRO-3" in row["label"]) == (plan.train.zero == 3)
        assert ("full checkpointing" in row["detail"]) == (plan.train.checkpointing == "full")
        assert ("eager" in row["detail"]) == (plan.train.attention == "eager")
