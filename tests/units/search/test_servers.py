"""Of all ways to serve some users, the best: each is a plan as `evaluate` has it."""

import itertools
import json

import pytest

from memcore import Plan, PlanError, cli, evaluate, search_servers
from memcore.search.servers import EACH, FIRST, MORE, fewest_for_users
from memcore.search.solve import Targets, serving_limit
from memcore.timing.certainty import apart_serving

SERVE = {"prompt_len": 32_768, "output_len": 1024, "concurrency": 50}
PLAN = Plan.of({"model": "llama-3.3-70b", "serve": SERVE})
GPUS = ("h100-sxm-80gb", "h200-sxm-141gb", "mi300x-192gb", "rtx-4060-laptop-8gb")


def test_every_point_is_what_evaluate_says():
    found = search_servers(PLAN, gpus=GPUS[1:], keep="rounding")
    assert {p.trains for p in found.best} == {"rounding"}
    for point in (*found.best, *found.pareto[:5]):
        s, figures = evaluate(point.plan).serve, point.figures
        assert s.fits
        assert point.plan.serve.concurrency * figures["replicas"] >= 50
        assert (s.replicas, s.tp) == (figures["replicas"], figures["tp"])
        for name in ("ttft_seconds", "tpot_seconds"):
            assert figures[name] == getattr(s, name)
        assert figures["tpot_range"] == list(s.tpot_range)
        assert figures["ttft_range"] == list(s.ttft_range)
        assert figures["tokens_per_second"] == s.tokens_per_second * s.replicas
        priced = point.plan.changed("run.price_per_gpu_hour", figures["price_per_gpu_hour"])
        cost = evaluate(priced).serve
        assert figures["cost_per_million_out"] == pytest.approx(cost.cost_per_million_out)
        assert figures["cost_per_million_in"] == pytest.approx(cost.cost_per_million_in)
        assert PLAN.with_changes(point.changes) == point.plan
    json.dumps(found.to_dict(), allow_nan=False)


def test_each_accelerator_has_its_best_and_a_reason_where_there_is_none():
    found = search_servers(PLAN, gpus=GPUS)
    assert {p.figures["gpu"] for p in found.best} == set(GPUS[:3])
    assert found.nowhere == {"rtx-4060-laptop-8gb": "memory"}
    assert found.evaluated == found.fits + sum(found.excluded.values())
    assert all(p.trains == "training" for p in found.best)
    scores = [p.figures["cost_per_hour"] for p in found.best]
    assert scores == sorted(scores)


def test_engines_are_those_that_run_there():
    def engines(plan, gpu, users=0):
        found = search_servers(plan, gpus=[gpu], users=users, listed=1000)
        return {p.plan.engine for p in found.best}

    assert engines(PLAN, "h100-sxm-80gb") == {"vllm", "sglang", "tensorrt-llm"}
    assert engines(PLAN, "mi300x-192gb") == {"vllm", "sglang"}
    assert engines(PLAN, "m3-ultra-512gb", 1) == {"llama.cpp", "mlx"}
    assert engines(PLAN.changed("serve.engine", "sglang"), "h100-sxm-80gb") == {"sglang"}


def test_nothing_is_beaten_and_told_apart_from_the_front():
    """Every way on one kind of GPU, against what the front has: the most GPUs, 50 replicas for 50
    users, are a few per cent faster than half as many."""
    every = search_servers(PLAN, gpus=GPUS[:1], listed=10_000)
    assert len(every.best) == every.fits
    assert [p.rank for p in every.best] == sorted(p.rank for p in every.best)

    def of(point):
        names = ("gpus", "tpot_seconds", "cost_per_request")
        return tuple(point.figures[name] for name in names)

    def as_good(one, other):
        told = apart_serving(one.plan, other.plan)
        return all(
            a <= b or (name != "gpus" and told.same(a, b))
            for name, a, b in zip(("gpus", "", ""), of(one), of(other), strict=True)
        )

    front = every.pareto
    assert front[0].figures["gpus"] == min(p.figures["gpus"] for p in every.best)
    for here in every.best:
        assert any(as_good(one, here) for one in front)
    for one, other in itertools.permutations(front, 2):
        assert not as_good(one, other) or of(one)[0] > of(other)[0]
    most = max(p.figures["gpus"] for p in every.best)
    assert max(p.figures["gpus"] for p in front) < most


@pytest.mark.parametrize(
    ("targets", "why"), [(Targets(tpot=0.02), EACH), (Targets(ttft=2.5), FIRST)]
)
def test_targets_are_kept_and_say_what_they_exclude(targets, why):
    found = search_servers(PLAN, gpus=GPUS[:2], targets=targets, by="time")
    assert found.excluded[why]
    for p in (*found.best, *found.pareto):
        assert not targets.missed(p.figures["ttft_seconds"], p.figures["tpot_seconds"])


def test_where_nothing_is_quick_enough_the_nearest_is_told(capsys):
    first = [search_servers(PLAN, gpus=[gpu], by="time", listed=1).best[0] for gpu in GPUS[:2]]
    quickest = min(p.figures["tpot_seconds"] for p in first)
    target = 0.99 * quickest
    found = search_servers(PLAN, gpus=GPUS[:2], targets=Targets(tpot=target), by="time")
    assert not found.best
    point, misses = found.nearest
    assert point.figures["tpot_seconds"] == quickest
    assert "it may hold" in misses
    command = [PLAN.model_dump_json(), "--tpot", str(target)]
    assert cli.main(["search", *command, "--serve", "--gpu", *GPUS[:2]]) == 0
    assert misses in capsys.readouterr().out
    small = '{"model": "llama-3.1-8b"}'
    assert cli.main(["solve", "concurrency", small, "--tpot", "1e-4"]) == 0
    assert "too slow" in capsys.readouterr().out


def test_what_is_too_slow_is_not_called_too_dear():
    too_fast = Targets(tpot=1e-4)
    found = search_servers(PLAN, gpus=GPUS[:2], targets=too_fast)
    poor = search_servers(PLAN, gpus=GPUS[:2], targets=too_fast, cost_at_most=0.01)
    assert poor.excluded == found.excluded
    assert found.nearest
    assert poor.nearest is None


@pytest.mark.parametrize("users", [-1, 10**14])
def test_more_users_than_a_plan_says_are_refused(users):
    with pytest.raises(PlanError, match="users"):
        search_servers(PLAN, users=users)


def test_no_more_gpus_and_money_than_are_allowed():
    found = search_servers(PLAN, gpus=GPUS[:2], gpus_at_most=8)
    assert found.excluded[MORE]
    assert all(p.figures["gpus"] <= 8 for p in (*found.best, *found.pareto))
    cheap = search_servers(PLAN, gpus=GPUS[:2], cost_at_most=25.0)
    assert cheap.excluded["money"]
    assert all(p.figures["cost_per_hour"] <= 25 for p in (*cheap.best, *cheap.pareto))


def test_of_what_cannot_be_told_apart_the_least_is_taken():
    """The fastest would take 400 GPUs to be a few per cent faster."""
    (best,) = search_servers(PLAN, gpus=GPUS[:2], by="time").best[:1]
    fastest = search_servers(PLAN, gpus=[best.figures["gpu"]], by="time", listed=1).best[0]
    assert best.figures["gpus"] < fastest.figures["gpus"]
    told = apart_serving(fastest.plan, best.plan)
    assert told.same(fastest.figures["tpot_seconds"], best.figures["tpot_seconds"])


def test_one_command_answers(capsys):
    """Llama 3.3 70B, 32k prompt, 50 users: which GPUs serve it?"""
    command = ["search", PLAN.model_dump_json(), "--serve", "--gpu", *GPUS]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "50 users at once" in said
    assert "Not on: rtx-4060-laptop-8gb (memory)" in said
    assert "Fewest GPUs, least time and cost" in said
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {p["figures"]["gpu"] for p in found["best"]} == set(GPUS[:3])
    assert found["pareto"]
    assert cli.main([*command, "--csv"]) == 0
    assert "tpot_range_at_least" in capsys.readouterr().out.splitlines()[0]


def test_bad_words_are_named():
    with pytest.raises(PlanError, match="near it are h100-sxm-80gb"):
        search_servers(PLAN, gpus=["h100-sxm-80g"])
    with pytest.raises(PlanError, match="engines"):
        search_servers(PLAN, engines=["vlm"])
    with pytest.raises(PlanError, match="model"):
        search_servers(
            Plan.of({"model": "bert-base", "train": {"attention": "sdpa", "seq_len": 512}})
        )


def test_a_search_can_be_stopped():
    def progress(done, of):
        if done == 3:
            raise KeyboardInterrupt

    found = search_servers(PLAN, gpus=GPUS, progress=progress)
    assert found.stopped
    assert {p.figures["gpu"] for p in found.best} == {GPUS[0]}


OWN = Plan.of(
    {
        "model": "llama-3.1-70b",
        "serve": {"prompt_len": 2048, "output_len": 512, "concurrency": 48},
        "run": {"price_per_gpu_hour": 2.5},
    }
)


@pytest.mark.parametrize("targets", [Targets(), Targets(tpot=0.02)], ids=["any", "tpot"])
def test_no_fewer_replicas_would_do(targets):
    """Each number of replicas of each number of ranks, one by one."""
    found = search_servers(
        OWN, gpus=["h100-sxm-80gb"], engines=["vllm"], targets=targets, listed=99
    )
    least = {}
    for point in found.best:
        tp, replicas = point.figures["tp"], point.figures["replicas"]
        least[tp] = min(replicas, least.get(tp, replicas))
    assert least
    for tp, fewest in least.items():
        for n in range(1, fewest):
            changes = {"cluster.gpus": n * tp, "serve.tp": tp, "serve.concurrency": -(-48 // n)}
            plan = OWN.with_changes(changes | {"serve.arrivals": "closed"})
            assert serving_limit(plan, targets)


def test_of_the_plan_s_own_gpu_the_price_is_the_plan_s():
    (own, *_) = search_servers(OWN, gpus=["h100-sxm-80gb"]).best
    assert (own.figures["price_per_gpu_hour"], own.figures["price_source"]) == (2.5, "the plan")


@pytest.mark.parametrize("tpot", [None, 0.02])
@pytest.mark.parametrize("users", [4, 300])
def test_fewest_gpus_for_users(users, tpot):
    targets = Targets(tpot=tpot)
    plan = Plan.of({"model": "llama-3-70b", "serve": {"concurrency": users}})
    found = fewest_for_users(plan, targets)
    asked = {"gpus": ["h100-sxm-80gb"], "engines": [plan.engine], "listed": 999}
    every = search_servers(plan, targets=targets, **asked).best
    assert found.value == found.plan.cluster.gpus == min(p.figures["gpus"] for p in every)
    assert not serving_limit(found.plan, targets)
    assert found.limit == ("tpot" if tpot else "memory")


def test_fewest_gpus_for_users_where_none_do_say_why():
    found = fewest_for_users(Plan.of({"model": "llama-3-8b"}), Targets(tpot=1e-6))
    assert (found.value, found.limit) == (0, "tpot")


def test_a_million_tokens_cost_what_the_replica_costs_meanwhile():
    s = evaluate(OWN.changed("serve.tp", 4)).serve
    hour = 2.5 * s.gpus_per_replica
    assert s.cost_per_million_out == pytest.approx(hour / 3600 / s.decode_tokens_per_second * 1e6)
    read = s.prompt_token_seconds * 2048
    assert read <= s.ttft_seconds
    assert s.cost_per_million_in == pytest.approx(hour / 3600 * s.prompt_token_seconds * 1e6)
    for arrivals in ("poisson", "closed"):  # a request in and out is the rent of its share
        s = evaluate(OWN.changed("serve.tp", 4).changed("serve.arrivals", arrivals)).serve
        each = 2048 * s.prompt_token_seconds + OWN.serve.output_len * s.output_token_seconds
        assert each * s.tokens_per_second / OWN.serve.output_len == pytest.approx(1)
    s = evaluate(OWN.changed("serve.tp", 4)).serve
    free = evaluate(OWN.changed("serve.tp", 4).changed("run.price_per_gpu_hour", 0.0)).serve
    assert free.cost_per_million_in is free.cost_per_million_out is None
    assert free.output_token_seconds == s.output_token_seconds
