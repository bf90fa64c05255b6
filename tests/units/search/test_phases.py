"""What frees memory where one trains and serves on the same GPUs."""

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.phases import reliefs

RL = Plan(together={"kind": "grpo"})


def test_each_is_the_difference_of_two_evaluations() -> None:
    before, found = evaluate(RL), reliefs(RL)
    assert before.together
    assert before.time
    assert not before.together.fits
    assert {"together.trainer", "serve.memory_utilization"} <= {r.fields[0] for r in found}
    for r in found:
        after = evaluate(r.plan)
        assert after.together
        assert after.time
        assert r.saved_bytes == before.together.device_bytes[1] - after.together.device_bytes[1]
        assert r.verdict == after.together.verdict
        assert r.cache_tokens == after.together.kv_capacity_tokens
        assert r.added_seconds == after.time.step_seconds - before.time.step_seconds
        assert RL.with_changes(r.changes) == r.plan


def test_what_fits_comes_first_and_a_share_is_no_smaller_than_it_must_be() -> None:
    found = reliefs(RL)
    verdicts = [r.verdict for r in found]
    assert verdicts[0] == "fits"
    assert verdicts == sorted(verdicts, key=("fits", "tight", "over").index)
    share = next(r for r in found if r.fields[0] == "serve.memory_utilization")
    more = RL.with_changes({"serve.memory_utilization": share.plan.serve.memory_utilization + 0.05})
    together = evaluate(more).together
    assert share.verdict == "fits"
    assert together
    assert together.verdict != "fits"


def test_the_training_stays_and_without_a_server_there_is_none() -> None:
    assert not reliefs(Plan())
    scored = {r.plan.together.reference for r in reliefs(RL)}
    assert "none" not in scored
