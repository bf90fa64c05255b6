"""One measured point says part of what our seconds are off for other points of its server."""

import pytest

from evidence import servers as evidence
from evidence.calibration import within
from evidence.engines import Spread, engines_table
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan
from memcore.search.measured import (
    FIRST,
    GPU,
    LENGTHS,
    LOAD,
    MODEL,
    NEAR,
    OTHER,
    OWN,
    RANKS,
    TOKEN,
    WORDS,
    calibrated,
    distance,
    far,
    in_common,
    server,
    shared,
)

PLAN = Plan.of(
    {
        "model": "llama-3.1-70b",
        "cluster": {"gpu": "h100-sxm-80gb", "gpus": 8},
        "parallel": {"tp": 2},
        "serve": {"engine": "vllm", "weight_dtype": "fp8", "arrivals": "closed", "concurrency": 32},
    }
)
APART = {
    OWN: {},
    NEAR: {"serve.concurrency": 64},
    LOAD: {"serve.concurrency": 65},
    LENGTHS: {"serve.prompt_len": 4096},
    RANKS: {"serve.tp": 4},
    WORDS: {"serve.kv_dtype": "fp8"},
    MODEL: {"model": "llama-3.1-8b"},
    GPU: {"cluster.gpu": "h200-sxm-141gb"},
    OTHER: {"serve.engine": "sglang"},
}


def test_points_that_are_left_out_are_those_of_the_fit() -> None:
    """engines_left_out.csv is of the fit that engines.toml sums up: where this fails, run
    benchmarks/left_out_points.py, and then evidence.intervals."""
    cells = next(r for r in engines_table()["left_out"] if r["what"] == "cells")
    token = Spread.of([1 / off.token - 1 for off in evidence.point_ratios()])
    first = Spread.of([1 / off.first - 1 for off in evidence.point_ratios()])
    assert token.count == cells["points"]
    assert token.median == pytest.approx(cells["token"], abs=0.0011)
    assert token.signed == pytest.approx(cells["signed"], abs=0.0011)
    assert first.median == pytest.approx(cells["first"], abs=0.0011)


@pytest.mark.parametrize("latency", [TOKEN, FIRST])
def test_a_point_of_a_server_brings_its_others_nearer(latency: str) -> None:
    """With a share that was found without their engine, version and GPU."""
    for at in (NEAR, LOAD, LENGTHS):
        plain, moved = evidence.errors(latency, at)
        assert len(plain) >= 700
        for share in (0.5, 0.8):
            assert within(moved, share) < within(plain, share), at
    halves = [within(evidence.errors(latency, at)[1], 0.5) for at in (NEAR, LOAD, LENGTHS)]
    assert halves[0] == min(halves)


@pytest.mark.parametrize("latency", [TOKEN, FIRST])
def test_plans_take_what_all_points_have_in_common(latency: str) -> None:
    """And nothing at distances where that brought them no nearer."""
    assert far(latency) == pytest.approx(evidence.ends(latency), abs=0.0006)
    for at in evidence.DISTANCES:
        common = in_common(latency, at)
        used = evidence.nearer(latency, at)
        assert common is not None
        assert common.points == len(evidence.scaled(latency, at))
        assert common.share == pytest.approx(evidence.share(latency, at) * used, abs=0.006)
        if used:
            assert (common.low, common.high) == pytest.approx(
                evidence.interval(latency, at), abs=6e-4
            )
        for said, off in zip(
            (common.predicted, common.calibrated), evidence.errors(latency, at), strict=True
        ):
            assert said == pytest.approx([within(off, share) for share in (0.5, 0.8)], abs=6e-4)


def test_no_point_calibrates_itself() -> None:
    """Nor one of the same load, measured twice."""
    for at in evidence.DISTANCES:
        for own, others in evidence._others()[at]:
            for other in others:
                assert other.point != own.point
                assert (other.point.engine, other.point.version) == (
                    own.point.engine, own.point.version,
                )  # fmt: skip
                assert other.server != own.server


@pytest.mark.parametrize("at", APART)
def test_how_near_two_servers_are(at: str) -> None:
    other = PLAN.with_changes(APART[at])
    assert distance(server(PLAN), server(other)) == at
    assert distance(server(other), server(PLAN)) == at


def test_what_differs_twice_or_comes_as_it_will_was_never_compared() -> None:
    of = server(PLAN)
    twice = PLAN.with_changes({"cluster.gpu": "h200-sxm-141gb", "serve.tp": 4})
    assert distance(of, server(twice)) == OTHER
    board = PLAN.with_changes({"cluster.gpu": "rtx-6000-ada-48gb", "cluster.node": None})
    assert distance(of, server(board)) == OTHER
    poisson = PLAN.changed("serve.arrivals", "poisson")
    assert distance(server(poisson), server(poisson.changed("serve.concurrency", 64))) == OTHER
    # Room, limits and targets are no other server.
    same = {"serve.max_seq_len": 8192, "serve.target_tpot": 0.02, "serve.memory_utilization": 0.8}
    assert distance(of, server(PLAN.with_changes(same))) == OWN


def test_the_measured_server_itself_takes_what_was_measured() -> None:
    found = calibrated(PLAN, Measured(PLAN, token=0.014, first=0.9))
    assert found.at == OWN
    assert found.token is not None
    assert found.first is not None
    assert found.token.interval == pytest.approx((0.014, 0.014))
    assert found.first.calibrated_seconds == pytest.approx(0.9)
    now = evaluate(PLAN).serve
    before = now.ttft_seconds + PLAN.serve.output_len * now.tpot_seconds
    after = 0.9 + PLAN.serve.output_len * 0.014
    assert found.numbers["tokens_per_second"][1] == pytest.approx(
        now.tokens_per_second * before / after
    )


def test_another_load_is_moved_by_what_they_have_in_common() -> None:
    then, other = evaluate(PLAN).serve, PLAN.changed("serve.concurrency", 64)
    found = calibrated(
        other, Measured(PLAN, token=1.2 * then.tpot_seconds, first=1.5 * then.ttft_seconds)
    )
    now = evaluate(other).serve
    for latency, off, seconds in (
        (TOKEN, 1.2, now.tpot_seconds),
        (FIRST, 1.5, now.ttft_seconds),
    ):
        common, moved = in_common(latency, NEAR), getattr(found, latency)
        assert moved.factor == pytest.approx(off**common.share)
        assert moved.calibrated_seconds == pytest.approx(seconds * moved.factor)
        assert moved.interval[0] == pytest.approx(moved.calibrated_seconds * common.low)
        assert f"{common.points:,} points" in found.assumed
    # Beyond all that was measured it is the machine's, and so all in common.
    _, most = far(TOKEN)
    beyond = calibrated(other, Measured(PLAN, token=2 * most * then.tpot_seconds)).token
    assert beyond is not None
    assert beyond.factor == pytest.approx(2 * shared(most, in_common(TOKEN, NEAR).share, (0, most)))


@pytest.mark.parametrize("at", [OWN, NEAR, LOAD, LENGTHS, GPU])
def test_what_is_as_predicted_moves_nothing_and_what_is_slower_slows(at: str) -> None:
    then, other = evaluate(PLAN).serve, PLAN.with_changes(APART[at])
    now, factors = evaluate(other).serve, []
    for off in (0.9, 1.0, 1.1, 1.5, 3.0):
        found = calibrated(other, Measured(PLAN, token=off * then.tpot_seconds))
        assert found.token is not None
        factors.append(found.token.factor)
        if off == 1:
            assert found.token.calibrated_seconds == pytest.approx(now.tpot_seconds)
            assert found.numbers["tokens_per_second"][1] == pytest.approx(now.tokens_per_second)
    assert factors == sorted(factors)
    assert factors[0] < 1 < factors[-1]


def test_on_another_gpu_the_first_token_stays_as_predicted() -> None:
    other = PLAN.with_changes(APART[GPU])
    found = calibrated(other, Measured(PLAN, token=0.014, first=0.9))
    assert found.first is None
    assert found.token is not None
    assert "The first token stays as predicted" in found.assumed
    with pytest.raises(PlanError, match="nothing in common"):
        calibrated(other, Measured(PLAN, first=0.9))


def test_tokens_per_second_alone_are_read_as_time_per_token() -> None:
    then = evaluate(PLAN).serve
    found = calibrated(PLAN, Measured(PLAN, rate=then.tokens_per_second / 1.25))
    assert found.token is not None
    assert found.token.off == pytest.approx(1.25)
    assert "read as its time per token" in found.assumed


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (RANKS, "serve.tp"),
        (WORDS, "serve.kv_dtype"),
        (MODEL, "model"),
        (OTHER, "serve.engine"),
        ("arrivals", "serve.arrivals"),
    ],
)
def test_what_it_says_nothing_of_is_refused_by_name(at: str, field: str) -> None:
    changes = APART.get(at, {"serve.arrivals": "poisson"})
    with pytest.raises(PlanError) as raised:
        calibrated(PLAN.with_changes(changes), Measured(PLAN, token=0.014, first=0.9))
    assert field in [issue.field for issue in raised.value.issues]


@pytest.mark.parametrize(
    "said", [{"token": -1.0}, {"first": float("nan")}, {"rate": float("inf")}, {"token": 1e9}]
)
def test_a_server_takes_some_seconds(said: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="measured server"):
        Measured(PLAN, **said)
