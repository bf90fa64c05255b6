"""A search on a cluster gives the same table in the same order."""

import json
import pickle
import sys
import types

import pytest

from memcore import Plan, PlanError, cli, search, search_servers
from memcore.search import cluster
from memcore.search.cluster import workers
from memcore.search.search import Chunk, Standing, _Search, judged
from memcore.search.solve import Targets
from memcore.search.space import Space

PLAN = Plan.of({"model": "llama-3.2-1b", "cluster": {"gpu": "l4-24gb", "gpus": 2}})


@pytest.fixture(scope="module")
def alone():
    return search(PLAN)


def test_chunks_are_pure_and_can_be_sent():
    """Sent there and back, in parts and in any order; all together they are the search."""
    groups = tuple(_Search(PLAN, "time", 0.0, 10).groups(Space(PLAN)))[::3]
    assert len({group.plan.train.framework for group in groups}) > 3
    given = PLAN, "time", 10, Standing()
    whole = judged(Chunk(*given, groups))
    sent = pickle.loads(pickle.dumps(Chunk(*given, groups)))
    assert judged(sent) == whole
    again = [judged(Chunk(*given, groups[i : i + 3])) for i in range(0, len(groups), 3)]
    assert sum(part.evaluated for part in again) == whole.evaluated
    fitting = [(3 * i + n, c) for i, part in enumerate(again) for n, c in part.fitting]
    assert sorted(fitting, key=repr) == sorted(whole.fitting, key=repr)


def test_who_judges_does_not_matter(alone):
    def backwards(judge, chunks):
        """The last chunk first, as a cluster may."""
        return reversed([judge(chunk) for chunk in reversed(chunks)])

    spread = search(PLAN, spread=backwards)
    assert alone.to_dict() == spread.to_dict()
    assert [p.plan for p in alone.best] == [p.plan for p in spread.best]


SERVED = Plan.of({"model": "llama-3.1-8b", "serve": {"concurrency": 64}})


@pytest.mark.long
@pytest.mark.parametrize("targets", [{}, {"tpot": 0.0001}], ids=["any", "none keeps to"])
def test_who_judges_servers_does_not_matter(targets):
    """The run and its kinds go to a worker and what it found comes back, as bytes."""

    def sent(judge, chunks):
        for chunk in pickle.loads(pickle.dumps(chunks)):
            yield pickle.loads(pickle.dumps(judge(chunk)))

    asked = {
        "gpus": ["l4-24gb", "h100-sxm-80gb"],
        "keep": "rounding",
        "targets": Targets(**targets),
    }
    done = []
    found = search_servers(SERVED, **asked, spread=sent, progress=lambda *at: done.append(at))
    assert found.to_dict() == search_servers(SERVED, **asked).to_dict()
    assert (found.nearest is None) == (not targets)
    assert done[-1][0] == done[-1][1] == len(done)


def test_two_workers_give_the_same_table(alone, capsys, monkeypatch):
    distributed = pytest.importorskip("distributed")
    # A process that starts runs anew what is the main module here; tests of the app leave a page.
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setattr(cluster, "TIMEOUT", 300.0)  # a busy machine is no fault
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as two:
        command = ["search", PLAN.model_dump_json(), "--json"]
        assert cli.main([*command, "--scheduler", two.scheduler_address]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(alone.to_dict()))
        command = ["search", SERVED.model_dump_json(), "--serve", "--gpu", "l4-24gb", "--json"]
        assert cli.main([*command, "--scheduler", two.scheduler_address]) == 0
    there = search_servers(SERVED, gpus=["l4-24gb"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(there.to_dict()))


def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "TIMEOUT", 0.5)
    with pytest.raises(PlanError, match="no Dask scheduler answers"), workers("tcp://[::1]:1"):
        pass
