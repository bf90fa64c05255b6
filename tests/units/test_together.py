"""Training and serving on the same GPUs: parts are the step's and the server's own, and add up."""

import pytest
from drawn import plans
from explained import checked
from explored import examples
from hypothesis import given
from hypothesis import strategies as st

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.step.step import saved_for_backward
from memcore.stream import simulate
from memcore.tape.ledger import Amounts
from memcore.together.generation import generation
from memcore.together.scene import TRAINERS, Scene, engine_plan
from memcore.training.steps import step_of, training_sizes
from memcore.words.together import ASLEEP, FROZEN, TRAINER

FEW = examples(15)


def plan(kind="grpo", **words):
    return Plan(
        model="llama-3.2-1b",
        cluster={"gpus": 8},
        train={"seq_len": 1024, "micro_batch": 2},
        serve={"memory_utilization": 0.4},
        together={"kind": kind} | words,
    )


def phases(p):
    return {phase.id: phase for phase in evaluate(p).together.phases}


@st.composite
def both(draw):
    """Any plan that trains, with an engine beside it."""
    document = draw(plans()).document()
    document["together"] = {
        "kind": draw(st.sampled_from(["evaluation", "grpo", "ppo"])),
        "engine_tp": draw(st.sampled_from([1, 2, 4])),
        "asleep": draw(st.sampled_from(sorted(ASLEEP))),
        "trainer": draw(st.sampled_from(sorted(TRAINER))),
        "reference": draw(st.sampled_from(sorted(FROZEN))),
        "reward": draw(st.sampled_from(sorted(FROZEN))),
        "rollouts": draw(st.integers(1, 4096)),
    }
    return repair(document)[0]


def test_nothing_together_by_default():
    assert evaluate(Plan()).together is None
    assert "together" not in evaluate(Plan()).to_dict()


@FEW
@given(both())
def test_parts_add_up_and_every_number_is_explained(p):
    report = evaluate(p)
    if report.together is None:
        return
    found = report.together
    for phase in found.phases:
        assert phase.bytes == sum(phase.parts.values())
        assert phase.bytes <= phase.device_bytes[0] <= phase.device_bytes[1]
    assert found.device_bytes[1] == max(phase.device_bytes[1] for phase in found.phases)
    book = Book(p, report)
    for i, phase in enumerate(found.phases):
        assert book.explain(f"together.phases.{i}.bytes").value == phase.bytes
        for part, size in phase.parts.items():
            assert book.explain(f"together.phases.{i}.parts.{part}").value == size
    assert book.explain("together.dram_bytes").value == found.dram_bytes


@pytest.mark.parametrize("kind", ["evaluation", "grpo", "ppo"])
@pytest.mark.parametrize("trainer", ["stays", "host"])
def test_every_number_of_a_report_is_explained(kind, trainer):
    p = plan(kind, trainer=trainer, reference="host", reward="gpu")
    checked(Book(p, evaluate(p)))


def test_parts_are_those_of_the_step_and_of_the_server():
    p = plan(engine_tp=2)
    report, found = evaluate(p), phases(p)
    engine = evaluate(engine_plan(p)).serve
    assert found["update-policy"].parts["policy"] == report.memory.allocated_bytes
    parts = found["generation"].parts
    assert parts["engine_weights"] == engine.weights_bytes < evaluate(p).serve.weights_bytes
    assert parts["kv_cache"] == engine.kv_budget_bytes
    # ZeRO-3 over 8 GPUs: a reference in bf16 beside states of 12 bytes per parameter in fp32.
    assert 6 * parts["reference"] == pytest.approx(parts["policy"], rel=0.001)


def test_a_critic_is_the_policy_with_a_head_of_one_number():
    """PPO keeps four models (Ouyang et al. 2022): two are trained and two are not."""
    p = plan("ppo", reward="gpu")
    parts = phases(p)["generation"].parts
    assert {"policy", "critic", "reference", "reward"} <= set(parts)
    # Llama 3.2 1B shares its embedding with its head, so that the critic has 2,049 weights more.
    more = 12 * (2048 + 1) / 8
    assert parts["critic"] - parts["policy"] == pytest.approx(more, abs=12 * 2048)
    assert parts["reward"] * 6 == pytest.approx(parts["critic"], rel=0.001)
    update = phases(p)
    logits = 4 * 2 * 1024 * 128_256
    critic, policy = (update[f"update-{who}"].parts[who] for who in ("critic", "policy"))
    assert policy - critic > logits  # the critic has none


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 4}, 576_000),
        (
            {
                "model_type": "qwen2",
                "num_hidden_layers": 3,
                "num_key_value_heads": 2,
                "tie_word_embeddings": True,
            },
            819_456,
        ),
    ],
)
def test_a_critic_keeps_what_transformers_does(config, said):
    """saved_tensors_hooks on AutoModelForTokenClassification (5.23, one label, no dropout) and the
    mean of (values.float() - returns)**2: 2 x 48 tokens in bf16, SDPA, nothing recomputed."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 8}
    train = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "attention": "sdpa"}
    shape = {"micro_batch": 2, "seq_len": 48, "checkpointing": "none"}
    model = config | sizes | {"vocab_size": 128}
    p = Plan(model=model, cluster={"gpus": 1}, train=train | shape)
    amounts = Amounts(training_sizes(p))
    critic = Scene(p, step_of(p), amounts, None, None).critic
    assert amounts.alive(saved_for_backward(critic)) == said


def test_what_sleeps_makes_room_for_the_update():
    sizes = [
        phases(plan(asleep=word))["update-policy"].bytes for word in ("all", "cache", "nothing")
    ]
    assert sizes[0] < sizes[1] < sizes[2]


def test_what_leaves_for_the_host_is_counted_there():
    stays, leaves = plan("ppo"), plan("ppo", trainer="host")
    here, there = phases(stays)["generation"], phases(leaves)["generation"]
    gone = sum(here.parts[p] for p in ("policy", "critic"))
    assert here.bytes - there.bytes == gone
    batches = evaluate(stays).together.dram_bytes  # of the data loaders
    assert evaluate(leaves).together.dram_bytes - batches == 8 * gone
    resting = phases(plan())["generation"].parts["reference"]
    assert evaluate(plan(reference="host")).together.dram_bytes - batches == 8 * resting


def test_each_kind_needs_no_less_than_the_one_before():
    sizes = [
        max(sum(n for part, n in phase.parts.items() if part in TRAINERS)
            for phase in evaluate(plan(kind)).together.phases)
        for kind in ("evaluation", "grpo", "ppo")
    ]  # fmt: skip
    assert sizes == sorted(set(sizes))


def test_adapters_are_their_own_reference():
    train = {"adapter": "lora", "adapter_dtype": "base", "precision": "bf16-pure"}
    p = Plan(together={"kind": "grpo"}, train=train)
    assert all("reference" not in phase.parts for phase in evaluate(p).together.phases)


def test_engines_divide_the_gpus():
    with pytest.raises(PlanError, match=r"together\.engine_tp"):
        plan(engine_tp=3)


@pytest.mark.parametrize(
    ("rollouts", "engine_tp", "output"), [(8, 1, 256), (64, 1, 1024), (256, 1, 2048), (16, 2, 512)]
)
def test_generation_takes_what_a_simulated_burst_takes(rollouts, engine_tp, output):
    """All rollouts of an engine at once, all of one length; more than have room come in turns."""
    p = Plan(
        model="llama-3-8b",
        serve={"prompt_len": 512, "output_len": output},
        together={"kind": "grpo", "rollouts": rollouts, "engine_tp": engine_tp},
    )
    found = generation(p)
    assert found.engines == 8 // engine_tp
    alone = engine_plan(p)
    burst = {"arrivals": "burst", "lengths": "fixed", "requests": found.rollouts}
    serve = alone.serve.model_copy(update=burst | {"concurrency": found.rollouts})
    runs = simulate(alone.model_copy(update={"serve": serve})).runs
    paged = next(run for run in runs if run.strategy == "paged")
    assert found.seconds == pytest.approx(paged.seconds, rel=0.12)


def test_nothing_is_generated_where_no_rollouts_are():
    assert generation(Plan()) is None
    assert generation(Plan(together={"kind": "evaluation"})) is None
    assert generation(Plan(model="llama-3-70b", together={"kind": "grpo"})) is None
