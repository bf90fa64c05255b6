"""Megatron's recomputation of n layers (transformer_block.py: _checkpointed_forward), counted by
hand from what one layer keeps and what its input weighs."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.training.memory import saved_rows

LAYERS, WIDTH, S = 32, 4096, 2048
INPUT = 2 * S * WIDTH


def plan_of(checkpointing="full", parallel=(), **words):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "cross_entropy": "fused",
        "checkpointing": checkpointing, "micro_batch": 1, "seq_len": S, "grad_accumulation": 16,
    }  # fmt: skip
    return Plan(
        model="llama-2-7b", cluster={"gpus": 8}, parallel=dict(parallel), train=train | words
    )


def saved(plan, stage=0):
    return sum(row.bytes for row in saved_rows(plan, stage))


def uniform(n, **words):
    return plan_of(recompute_num_layers=n, **words)


def block(n, **words):
    return plan_of(recompute_method="block", recompute_num_layers=n, **words)


ANGLES = 4 * S * 128  # of the rotary embedding, which layers that stay read
EACH = (saved(plan_of("none")) - ANGLES - saved(plan_of())) / LAYERS + INPUT  # of a layer


@pytest.mark.parametrize("n", [2, 3, 8, 32, 100])
def test_uniform_keeps_one_input_for_n_layers(n):
    assert saved(uniform(1)) - saved(uniform(n)) == (LAYERS - -(-LAYERS // n)) * INPUT


@pytest.mark.parametrize("n", [1, 5, 31])
def test_block_keeps_all_of_the_layers_behind(n):
    every = saved(block(LAYERS))
    assert every == saved(uniform(1))
    assert saved(block(n)) - every == (LAYERS - n) * (EACH - INPUT) + ANGLES


def test_block_counts_in_each_virtual_stage():
    """32 layers over 4 stages of 2 virtual ones: two of each four layers run again."""
    cut = {"pp": 4, "virtual_stages": 2}
    parallel = {"parallel": cut}
    none, two, all_ = (
        saved(plan_of(**words), stage=1)
        for words in (
            {"checkpointing": "none", **parallel},
            {"recompute_method": "block", "recompute_num_layers": 2, **parallel},
            parallel,
        )
    )
    assert two - all_ - ANGLES == (none - all_ - ANGLES) / 2


def test_backward_begins_with_the_layers_that_share_its_checkpoint():
    """Three layers as they are beside the one that runs, less the inputs that are not kept."""

    def at_backward(n):
        found = evaluate(uniform(n)).memory.timeline
        return next(i.bytes for i in found if i.id == "backward-last-layer")

    assert at_backward(4) - at_backward(1) == 3 * EACH - (LAYERS - 1 - (LAYERS // 4 - 1)) * INPUT


def test_recomputed_work():
    """Uniform runs all again, whatever shares a checkpoint; block its share."""
    seconds = [
        sum(o.seconds for o in evaluate(p).time.operations if o.phase == "recompute")
        for p in (uniform(1), uniform(4), block(8))
    ]
    assert seconds[1] == pytest.approx(seconds[0])
    assert seconds[2] == pytest.approx(seconds[0] / 4)


@pytest.mark.parametrize(
    "words", [{"framework": "pytorch", "kernels": "hf"}, {"checkpoint_every": 2}]
)
def test_what_it_does_not_go_with(words):
    for plan in (uniform, block):
        with pytest.raises(PlanError, match="Megatron"):
            plan(2, **words)


@pytest.mark.parametrize("make", [uniform, block])
def test_every_number_is_explained(make):
    plan = make(3, parallel={"pp": 2})
    checked(Book(plan, evaluate(plan)))
