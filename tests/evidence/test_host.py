"""What a step starts and runs again: against PyTorch's dispatcher and its FLOP counter, and laws of
the host that starts it."""

from statistics import median

import asked
import pytest
from drawn import divided
from explored import examples
from hypothesis import given
from hypothesis import strategies as st

from evidence.planned import time_of
from evidence.times import times_table
from memcore.evaluate import evaluate
from memcore.evidence.comparison import TUNED
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.tape.ledger import Amounts
from memcore.timing.host import each_start, operations
from memcore.training.executions import ends_of, run_again
from memcore.training.steps import step_of, training_sizes

TABLE = asked.table("launches")
# Kernels that a layer's forward starts: some are declared as one, such as what turns queries.
STARTED, STARTED_MEDIAN = 0.25, 0.04
# Kernels that backward starts for each operation that is declared (constants.HOST_LAUNCH).
IN_BACKWARD, SPREAD = 1.7, 0.4


def layers_key(config):
    return "n_layer" if "n_layer" in config else "num_hidden_layers"


def per_layer(row):
    """What we say that a layer starts, forward and backward."""
    config = TABLE["configs"][row["model"]]
    key = layers_key(config)

    def starts(layers):
        model = config | {key: layers}
        if "layer_types" in config:
            model["layer_types"] = (config["layer_types"] * 2)[:layers]
        train = {"framework": "pytorch", "precision": "bf16-pure", "zero": 0, "micro_batch": 1,
                 "seq_len": 32, "checkpointing": "none", "attention": row["attention"]}  # fmt: skip
        return evaluate(Plan(model=model, cluster={"gpus": 1}, train=train)).time.starts

    n = config[key]
    more, fewer = starts(2 * n), starts(n)
    return [(more[p] - fewer[p]) / n for p in ("forward", "backward")]


ROWS = asked.rows(TABLE, "launches")


@pytest.mark.parametrize("row", ROWS)
def test_a_layer_starts_what_pytorchs_dispatcher_counts(row):
    forward, backward = per_layer(row)
    assert forward == pytest.approx(row["forward"], rel=STARTED)
    assert IN_BACKWARD * backward == pytest.approx(row["backward"], rel=SPREAD)


def test_starts_are_right_in_the_median():
    rows = [p.values[0] for p in ROWS]
    of = [(per_layer(row), row) for row in rows]
    assert median(abs(f / row["forward"] - 1) for (f, _), row in of) <= STARTED_MEDIAN
    assert median(row["backward"] / b for (_, b), row in of) == pytest.approx(IN_BACKWARD, abs=0.05)


@pytest.mark.parametrize("row", asked.rows(TABLE, "recompute"))
def test_a_checkpoint_runs_again_what_pytorchs_flop_counter_counts(row):
    plan = Plan(
        model=TABLE["configs"][row["model"]],
        cluster={"gpus": 1},
        train={"framework": "pytorch", "precision": "bf16-pure", "zero": 0, "micro_batch": 1,
               "seq_len": 32, "checkpointing": "full", "attention": "eager"},
    )  # fmt: skip
    time = evaluate(plan).time
    forward = sum(o.flops for o in time.operations if o.phase == "forward")
    grouped = forward - row["forward"]  # the counter does not know grouped products
    assert bool(grouped) == bool(plan.architecture.experts)
    assert time.recompute_flops - grouped == row["again"]
    whole = evaluate(plan.changed("train.early_stop", "off")).time.recompute_flops
    assert time.recompute_flops <= whole < forward


SMALL = {
    "model": "gpt2",
    "cluster": {"gpu": "h100-sxm-80gb", "gpus": 1},
    "train": {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "micro_batch": 1,
              "seq_len": 256, "checkpointing": "none"},
}  # fmt: skip


def slower(plan, times):
    """The plan on a host so many times as slow."""
    document = plan.document()
    node = plan.node.model_dump(mode="json") | {"host_slowness": times}
    document["cluster"] |= {"node": node}
    return Plan.of(document)


def test_small_kernels_wait_for_the_host():
    time = evaluate(Plan.of(SMALL)).time
    assert time.bound_by == "host"
    assert time.exposed["host"] > time.step_seconds / 2
    large = evaluate(Plan.of(SMALL).changed("train.micro_batch", 256)).time
    assert large.exposed["host"] < large.step_seconds / 100


def test_a_larger_micro_batch_is_started_once():
    one, two = (evaluate(Plan.of(SMALL).changed("train.micro_batch", n)).time for n in (1, 2))
    assert one.starts == two.starts
    assert two.resources["host"] == one.resources["host"]
    again = evaluate(Plan.of(SMALL).changed("train.grad_accumulation", 2)).time
    assert again.starts["forward"] == 2 * one.starts["forward"]
    assert two.tokens_per_second > again.tokens_per_second


def test_a_slow_host_takes_the_whole_step():
    """Forward and backward of all micro-batches, one after the other; the GPU is never late."""
    time = evaluate(slower(Plan.of(SMALL), 100)).time
    assert time.step_seconds == pytest.approx(time.resources["host"], rel=0.001)


def test_a_compiler_starts_fewer_kernels():
    plan = Plan.of(SMALL).changed("model", "llama-3.2-1b")
    eager, compiled = (
        evaluate(plan.changed("train.kernels", k)).time.starts for k in ("hf", "compile")
    )
    assert compiled["forward"] < 0.7 * eager["forward"]
    assert compiled["backward"] < 0.7 * eager["backward"]


def test_each_expert_of_transformer_engine_is_a_product_of_its_own():
    def starts(ep):
        plan = Plan(
            model="moonlight-16b-a3b",
            cluster={"gpus": 8},
            parallel={"ep": ep},
            train={"framework": "megatron", "kernels": "megatron", "zero": 1, "seq_len": 4096,
                   "checkpointing": "none", "overlap_grad_reduce": False,
                   "overlap_param_gather": False},
        )  # fmt: skip
        return evaluate(plan).time.starts

    layers, experts, products = 26, 64, 2
    replicas = 2 * 2  # with EP 4 experts have replicas, which reduce and gather
    more = {p: starts(4)[p] - starts(8)[p] for p in ("forward", "backward")}
    of_each = layers * products * (experts / 4 - experts / 8)
    assert more["forward"] == pytest.approx(constants.LOOPED.middle * of_each)
    # Both products and what stands in for the weight's gradient, in a loop, and the hook of that.
    looped = 3 * constants.LOOPED.middle
    assert more["backward"] == pytest.approx((looped + 1) * of_each + replicas)


# Transformer Engine 2.9. Kernels that make an operand narrow: one, or four for a scale that is read
# off the tensor (csrc/quantizer.cpp: Float8CurrentScalingQuantizer, and the three of
# common/recipe/current_scaling.cu); for each expert's rows, or one for all with delayed scales
# (csrc/extensions/cast.cpp: multi_tensor_quantize_impl). Scales of blocks are put in order for both
# operands of each product, of all experts together (csrc/extensions/gemm.cpp). They come from C++:
# Python calls once for an operand, which is its first kernel's start where it is not experts'.
NARROW = {"mxfp8": (1, True, 2), "fp8-mixed": (4, True, 0), "fp8-delayed": (1, False, 0)}


@pytest.mark.parametrize("precision", NARROW)
def test_operands_are_made_narrow_by_kernels_of_their_own(precision):
    def starts(precision):
        plan = Plan(
            model="qwen3-30b-a3b",
            cluster={"gpu": "b200-sxm-180gb", "gpus": 8},
            parallel={"ep": 8},
            train={"framework": "megatron", "kernels": "megatron", "zero": 1, "seq_len": 4096,
                   "precision": precision, "checkpointing": "none"},
        )  # fmt: skip
        return evaluate(plan).time.starts

    wide, narrow = starts("bf16-mixed"), starts(precision)
    kernels, of_each, swizzled = NARROW[precision]
    layers, experts, grouped, linears = 48, 128 // 8, 2, 2
    # Backward makes each gradient narrow, and attention's result again: that is kept as it is, but
    # where scales come from a history.
    again = precision != "fp8-delayed"
    for phase, products, operands in (("forward", 1, linears), ("backward", 2, linears + again)):
        looped = (kernels - 1) * operands + swizzled * products * (linears + grouped)
        looped += kernels * experts * grouped if of_each else 0
        more = layers * (operands + grouped + constants.LOOPED.middle * looped)
        assert narrow[phase] - wide[phase] == pytest.approx(more), phase


def test_each_step_of_a_ring_is_started_by_python():
    """Transformer Engine 2.5, AttnFuncWithCPAndKVP2P: in each step room for keys, a copy of half a
    tensor, attention and two corrections; backward copies, attends and adds both gradients."""

    def starts(cp):
        plan = Plan(
            model="llama-3.2-1b",
            cluster={"gpus": 8},
            parallel={"cp": cp},
            train={"framework": "megatron", "kernels": "megatron", "zero": 1, "seq_len": 8192,
                   "checkpointing": "none"},
        )  # fmt: skip
        step = step_of(plan)
        return operations(step, Amounts(training_sizes(plan)), ends_of(step), run_again(step))

    layers, each = 16, 5
    alone, two, four = starts(1), starts(2), starts(4)
    for phase in (0, 1):
        assert two[phase] - alone[phase] == pytest.approx(layers * each * 2)
        assert four[phase] - two[phase] == pytest.approx(layers * each * 2)


@pytest.mark.parametrize("times", [1.0, 2.75])
def test_a_slower_hosts_operation_is_longer_by_what_one_alone_is(times):
    """37.08 us for a linear layer on Grace, 13.48 on a Xeon (TransformerEngine issue 2053)."""
    plan = slower(Plan.of(SMALL), times)
    more = (times - 1) * constants.HOST_ALONE.middle
    assert each_start(plan) == pytest.approx(constants.HOST_TRAINING.middle + more)


def test_layers_that_run_in_nodes_take_more_of_the_host():
    """Beside another micro-batch each layer is five nodes, in both directions, each of which waits
    for an event, records one and begins (megatron/core/pipeline_parallel/utils.py)."""
    plan = Plan(
        model="qwen3-30b-a3b",
        cluster={"gpu": "b200-sxm-180gb", "gpus": 8},
        parallel={"ep": 8},
        train={"framework": "megatron", "kernels": "megatron", "zero": 1, "seq_len": 4096,
               "checkpointing": "none", "grad_accumulation": 4},
    )  # fmt: skip
    beside = plan.changed("train.overlap_moe_expert_parallel_comm", True)
    layers, nodes, each, batches = 48, 5, 3, 4
    for phase in ("forward", "backward"):
        more = evaluate(beside).time.starts[phase] - evaluate(plan).time.starts[phase]
        assert more == layers * nodes * each * batches, phase


# Steps that wait for the host, of two sources; five of them are fitted.
WAIT = (
    "bridge25.11-qwen3-30b-b200-mb1", "bridge25.11-qwen3-235b-b200-mxfp8",
    "bridge1760-qwen3-235b-b200-mxfp8", "nemo-gb200-70b-64", "TT0324", "TT0326", "TT0327",
)  # fmt: skip


def test_megatrons_steps_that_wait_for_the_host_take_as_long_as_measured():
    runs = [r for r in times_table()["runs"] if r["id"] in WAIT]
    times = [time_of(Plan.of(r["plan"])) for r in runs]
    assert len(runs) == len(WAIT)
    assert all(t.exposed["host"] > 0.2 * t.step_seconds for t in times)
    errors = [abs(t.step_seconds / r["seconds"] - 1) for t, r in zip(times, runs, strict=True)]
    assert median(errors) <= 0.06
    assert max(errors) <= 0.1
    assert sum(r["used_for"] == TUNED for r in runs) >= 5
    assert constants.HOST_MEGATRON.middle > constants.HOST_LAUNCH.middle


@examples(10)
@given(plan=divided(), times=st.sampled_from([0.1, 1.0, 30.0]))
def test_the_gpu_waits_for_the_host_as_long_as_that_takes_or_less(plan, times):
    time = evaluate(slower(plan, times)).time
    if time is None:
        return
    assert 0 <= time.exposed["host"] <= time.resources["host"] * (1 + 1e-9)
    assert time.resources["host"] <= time.step_seconds * (1 + 1e-9)
    assert all(s.host >= 0 for s in time.stages)
