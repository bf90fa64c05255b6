"""What the engine keeps: within a budget of bytes, what was asked for last, and never another
answer than a fresh one."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from itertools import cycle, islice, product
from pathlib import Path

import pytest
from tables import each

from memcore import PlanError, cache
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search.levers import levers
from memcore.search.solve import fewest_gpus, longest_context
from memcore.step.step import Step
from memcore.tape.dims import TP, D, F, share
from memcore.tape.tape import Tape
from memcore.training.over_time import over_time
from memcore.units import MiB

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The engine's own store, empty and with little room."""
    cache.STORE.forget()
    monkeypatch.setattr(cache.STORE, "budget", 6 * MiB)
    yield cache.STORE.budget
    cache.STORE.forget()


def diverse(count: int) -> Iterator[Plan]:
    """Plans of every model in turn, no two alike in structure."""
    words = cycle(product(("none", "full"), ("fsdp2", "pytorch"), ("sdpa", "eager")))
    found = (
        {
            "model": name,
            "train": {
                "checkpointing": checkpointing,
                "framework": framework,
                "zero": 3 if framework == "fsdp2" else 0,
                "attention": attention,
                "seq_len": 512,
            },
        }
        for name, (checkpointing, framework, attention) in zip(
            cycle(catalog.model_names()), words, strict=False
        )
    )
    return islice(filter(None, map(valid, found)), count)


def valid(document: dict[str, object]) -> Plan | None:
    try:
        return Plan.of(document)
    except PlanError:
        return None


# ---- a store


def test_what_is_asked_again_stays_and_what_is_not_goes() -> None:
    store, asked = cache.Store(100_000), []

    @store.cached
    def text(n: int) -> bytes:
        asked.append(n)
        return bytes(1_000)

    for n in range(1_000):
        text(-1)
        text(n)
        assert store.bytes <= store.budget
    assert asked.count(-1) == 1
    assert len(asked) == 1_001
    text(0)
    assert asked.count(0) == 2, "it was not let go"
    text(999)
    assert asked.count(999) == 1, "the last one was let go"


def test_sizes_are_those_of_the_objects() -> None:
    """A part of two answers counts in each; what is owned by another answer in neither."""
    whole = cache.size([bytes(10_000), bytes(10_000)])
    assert 20_000 < whole < 20_500
    assert cache.size(7, bytes(10_000)) > 10_000  # the key counts
    assert cache.size(catalog.model("llama-3-8b")) > 500
    assert cache.size((catalog.model("llama-3-8b"),)) < 100
    assert cache.size((D, F, D / TP, int, re, test_sizes_are_those_of_the_objects)) < 200


def test_a_store_of_many_sizes_is_counted_rightly() -> None:
    """Though a part of the answers alone is measured."""
    store = cache.Store(10**9)
    small = store.cached(lambda n: bytes(100))
    large = store.cached(lambda n: bytes(10_000 + n % 7))
    for n in range(2_000):
        small(n)
        large(n)
    expected = 2_000 * (10_100 + 2 * cache.ENTRY)
    assert store.bytes == pytest.approx(expected, rel=0.1)


def test_words_of_a_question_count() -> None:
    store = cache.Store(10_000)

    @store.cached
    def pair(a: int, b: int = 0) -> tuple[int, int]:
        return a, b

    assert (pair(1, b=2), pair(1, 2), pair(1)) == ((1, 2), (1, 2), (1, 0))


# ---- the engine's


def test_diverse_plans_stay_within_the_budget(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was asked before. What the test fills is much more than there is room for."""
    counted, turn = [], cache.Store._turn

    def turned(store: cache.Store) -> None:
        counted.append(store.young_bytes)
        turn(store)

    monkeypatch.setattr(cache.Store, "_turn", turned)
    for plan in diverse(24):
        evaluate(plan)
        assert cache.STORE.bytes <= budget
    assert sum(counted) > 2 * budget
    levers(Plan(train={"checkpointing": "full"}))
    assert cache.STORE.bytes <= budget


def test_a_report_is_the_same_whatever_is_kept(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [
        Plan.of(catalog.plan_entries()[name]["plan"]) for name in list(catalog.plan_entries())[::5]
    ]
    before = [evaluate(plan).to_dict() for plan in plans]
    monkeypatch.setattr(cache.STORE, "budget", 0)  # with each answer the one before is let go
    monkeypatch.setattr(cache, "LATER", 0)
    assert [evaluate(Plan.of(p.document())).to_dict() for p in plans] == before


def test_what_is_let_go_of_is_gone_at_once() -> None:
    """No tape and no schedule that was kept refers to itself: such would wait until all that is old
    is searched for cycles, which is seldom, and takes long."""
    cache.STORE.forget()
    gc.collect()
    gc.disable()
    try:
        there = {id(thing) for thing in _tapes_and_steps()}
        for plan in diverse(6):
            evaluate(plan)
            levers(plan)
        gc.collect()
        made = [weakref.ref(t) for t in _tapes_and_steps() if id(t) not in there]
        cache.STORE.forget()
        left = [type(found).__name__ for ref in made if (found := ref()) is not None]
    finally:
        gc.enable()
    assert len(made) > 20
    assert not left


def _tapes_and_steps() -> list[Tape | Step]:
    return [thing for thing in gc.get_objects() if isinstance(thing, Tape | Step)]


def test_counts_of_whole_shapes_live_as_long_as_somebody_has_them() -> None:
    """And each is one object as long as it lives, in every thread."""

    def rule(n: object) -> object:
        return n

    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(share("a test's", (D, F), rule)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1
    gone = weakref.ref(found[0])
    found.clear()
    gc.collect()
    assert gone() is None


GROWTH = """
import sys
sys.path[:0] = ["tests/units", "tests/helpers"]
from test_cache import diverse
from memcore import evaluate, cache
from memcore.units import MiB

cache.STORE.budget = 6 * MiB

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

for n, plan in enumerate(diverse(144)):
    evaluate(plan)
    if n == 95:
        before = resident()
print((resident() - before) // MiB)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_process_does_not_grow_with_the_plans_that_it_has_seen() -> None:
    """48 more plans after 96, with a budget of 6 MiB. By then what Python itself holds has come to
    rest."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert int(done.stdout) < 8


# Questions without number have a budget. What has an end may be kept without one: what ships with
# Memplan, the fields of a plan, a few sizes of blocks.
FINITE = (
    "plan/keys.py",
    "plan/link.py",
    "models/catalog.py",
    "plan/plan.py",
    "tape/quantized.py",
    "evidence/",
    "formats/servers.py",  # a few servers
    "formats/programs.py",  # tables of presets, as the next two
    "models/families/rows.py",
    "models/unplanned.py",
    "models/formulas.py",  # formulas of those tables
)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@each("path", sorted((ROOT / "memcore").rglob("*.py")), ids=named)
def test_no_other_cache_is_without_a_budget(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name != "cache.py":
        assert "lru_cache" not in text.replace("lru_cache(maxsize=1)", "")  # the last alone
    if not any(part in named(path) for part in FINITE):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.args.args:
                assert "functools.cache" not in map(ast.unparse, node.decorator_list), node.name


def test_cycles_are_looked_for_less_often_until_the_last_is_done():
    before = gc.get_threshold()
    with cache.seldom_collected():
        with cache.seldom_collected():
            assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_figures_are_in_no_cycle() -> None:
    """What a plan's figures were found with goes when nobody has it any more, and not when Python
    looks for cycles: under a crowd that would stop everybody, and meanwhile memory grows."""

    def look(plan: Plan) -> None:
        evaluate(plan)
        over_time(plan)
        levers(plan)
        longest_context(plan)
        fewest_gpus(plan, rate=1.0)

    def plan(batch: int) -> Plan:
        return valid({"train": {"micro_batch": batch}, "serve": {"concurrency": batch}}) or Plan()

    look(plan(2))
    gc.collect()
    gc.disable()
    try:
        look(plan(3))
        assert not gc.collect()
    finally:
        gc.enable()
