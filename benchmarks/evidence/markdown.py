"""The tables of figures in README.md and docs/accuracy.md, written from the evidence.

In those files a table stands between `<!-- figures: NAME -->` and `<!-- end -->`;
`python -m evidence.markdown` in the folder benchmarks, writes each of them anew.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from typing import Any

from evidence import calibration, peers
from evidence.calculators import STATES, worked
from evidence.engines import (
    ALIKE,
    LOW_LOAD,
    PointErrors,
    Spread,
    choices,
    engines_table,
    error_of_first,
    error_of_token,
    native,
    point_errors,
    spread,
    throughput,
    versions,
    without_drafts,
)
from evidence.figures import compare
from evidence.fit import PATH as LEFT_OUT
from evidence.fit import source_of
from evidence.measured import compared_runs, left_out_of_rules, measured_table
from evidence.ranks import BEST, jobs, ranks_table
from evidence.times import compared_times, times_table
from memcore.evidence.comparison import (
    AGREEMENT,
    CHECK,
    COMPARED,
    KINDS,
    OUT_OF_MEMORY,
    SPREAD,
    TUNED,
    Comparison,
    by_kind,
    ends_texts,
    off_text,
    relative,
    signed_text,
)
from memcore.models.catalog import accelerator
from memcore.plan.plan import Plan
from memcore.search import measured as servers
from memcore.timing.certainty import like
from memcore.units import bytes_text
from memcore.words.engines import ENGINES
from memcore.words.training import FRAMEWORKS, NEVER

ROOT = Path(__file__).resolve().parents[2]

PER_TOKEN = ("seconds per token", "seconds per token, prompt too")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; its cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(rows: Sequence[Comparison]) -> tuple[str, str, str, str]:
    """How many, how far off the middle one is, how far nine in ten are at most, and the worst."""
    return _line([r.error for r in rows])


def _line(errors: Sequence[float]) -> tuple[str, str, str, str]:
    return (f"{len(errors):,}", *ends_texts(errors), signed_text(max(errors, key=abs)))


def _checks(*what: str, autocast: bool | None = None) -> list[Comparison]:
    return [
        r
        for r in compare()
        if r.what in what and r.used_for == CHECK and autocast in (None, r.regime == "autocast")
    ]


def _kind(plan: Plan) -> tuple[object, ...]:
    """The model and the GPU of a plan, however long its sequences are."""
    m = plan.architecture
    sizes = (m.hidden_size, m.layers, m.intermediate_size, m.experts)
    return m.family, sizes, plan.accelerator.label


TWINS = "checked, twins: this model on this GPU tuned on elsewhere"
SAME = "checked, another model or GPU of a source that was tuned on"
NEW = "checked, of sources that nothing was tuned on"


def steps() -> dict[str, list[Comparison]]:
    """The measured steps, by how far they are from those that the constants were tuned on."""
    runs = [
        (_kind(Plan.of(run["plan"])), source_of(run), run["used_for"])
        for run in times_table()["runs"]
    ]
    kinds = {kind for kind, _, used in runs if used == TUNED}
    sources = {source for _, source, used in runs if used == TUNED}
    found: dict[str, list[Comparison]] = {"tuned on": [], "checked": []}
    found |= {TWINS: [], SAME: [], NEW: []}
    for (kind, source, _), r in zip(runs, compared_times(), strict=True):
        if r.used_for != CHECK:
            found["tuned on"].append(r)
            continue
        found["checked"].append(r)
        found[TWINS if kind in kinds else SAME if source in sources else NEW].append(r)
    return found


def rule() -> str:
    """Ours and the rule's on the same steps, by kind of work and distance."""
    runs = times_table()["runs"]
    rules = {
        run["run"]: relative(peers.ruled(Plan.of(run["plan"])), run["seconds"]) for run in runs
    }
    works = {run["run"]: like(Plan.of(run["plan"]))[2] for run in runs}
    of = steps()
    rows = []
    for words in ("tuned on", TWINS, SAME, NEW):
        for work in dict.fromkeys(works.values()):
            here = [r for r in of[words] if works[r.run] == work]
            if not here:
                continue
            both = [r.error for r in here], [rules[r.run] for r in here]
            rows.append((words, work, f"{len(here)}", *map(", ".join, map(ends_texts, both))))
    head = ("steps", "work", "figures", "ours: half, nine in ten within", "the rule")
    return table(head, rows)


def others() -> str:
    """Ours and other calculators' on the same checked steps, framework by framework."""
    rows = [
        (of.framework, of.other, f"{len(of.theirs)}", off_text(of.half),
         off_text(of.half_of_theirs), f"{of.closer}")
        for of in peers.peer_errors(compared_times())
    ]  # fmt: skip
    head = ("framework", "beside", "figures", "ours: half within", "theirs", "theirs is nearer")
    return table(head, rows)


def left_out_sources() -> str:
    """Each tuned source, with constants that were fitted to the others alone."""
    found = tomllib.loads(LEFT_OUT.read_text(encoding="utf-8"))
    return table(
        ("source", *SPREAD), [(source, *_line(of["errors"])) for source, of in found.items()]
    )


CALIBRATED = ("source", "figures", "predicted: half, nine in ten within", "calibrated")


def calibrated() -> str:
    """Steps as they are predicted, and as each other step of their source and kind has them."""
    steps = calibration.steps()
    groups = {"all": list(steps)}
    for s in steps:
        groups.setdefault(s.source, []).append(s)
    rows = []
    for name, of in groups.items():
        ends = ((off_text(calibration.within(e, share)) for share in (0.5, 0.9))
                for e in calibration.errors(of))  # fmt: skip
        rows.append((name, f"{len(of)}", *(", ".join(e) for e in ends)))
    return table(CALIBRATED, rows)


BENCHED = ("beside a point of", "points", "a token, predicted", "a token, calibrated",
           "first token, predicted", "first token, calibrated")  # fmt: skip


def benched() -> str:
    """Points of servers as they are predicted, and as each other one at a distance has them: half
    of them, and eight in ten, are within. In brackets where that is not used, since it brings them
    no nearer."""
    rows = []
    for at, said in servers.DISTANCE_TEXTS.items():
        of = [servers.common(name, at) for name in (servers.TOKEN, servers.FIRST)]
        cells = []
        for found in of:
            predicted, moved = (
                ", ".join(map(off_text, ends)) for ends in (found.predicted, found.calibrated)
            )
            cells += [predicted, moved if found.share else f"({moved})"]
        rows.append((said, f"{of[0].points}", *cells))
    return table(BENCHED, rows)


def short() -> str:
    """The table of README.md: what nothing was tuned on, and nothing else."""
    of = steps()
    lines = {
        "Parameters, counted by transformers": _checks("parameters"),
        "Bytes saved for backward, by PyTorch's autograd": _checks("saved"),
        "Peak of a step, by PyTorch's memory tracker": _checks("peak", autocast=False),
        "The same under autocast": _checks("peak", autocast=True),
        "Memory allocated in runs on GPUs": _checks("allocated"),
        "Weights of a server, from its log": _checks("weights"),
        "Room for KV cache, in tokens, from its log": _checks("KV tokens"),
        "Time per token of a server": _checks(*PER_TOKEN),
        "Time of a training step": of["checked"],
        "Of these, twins: this model on this GPU tuned on elsewhere": of[TWINS],
        "Of these, other models and GPUs of sources that were tuned on": of[SAME],
        "Of these, of sources that nothing was tuned on": of[NEW],
    }
    rows = [(what, *_spread(found)) for what, found in lines.items()]
    left_out = left_out_steps()
    for what, some in (
        ("Time of a training step, its source left out of the fit", left_out),
        ("Of these, mixtures of experts", [e for e in left_out if e[0] == "mixture"]),
    ):
        rows.append((what, *_line([error for _, error in some])))
    cells = next(r for r in engines_table()["left_out"] if r["name"].startswith("a ninth"))
    what = "Time per token of a server under load, its like left out of the fit"
    ends = off_text(cells["token"]), off_text(cells["nine_in_ten"])
    rows.append((what, f"{cells['points']}", *ends, ""))
    return table(("what", *SPREAD), rows)


def left_out_steps() -> list[tuple[str, float]]:
    """Steps of the sources that were tuned on: the kind of work, and how far off each is with
    constants that were fitted to the other sources."""
    found = tomllib.loads(LEFT_OUT.read_text(encoding="utf-8"))
    errors = {source: iter(of["errors"]) for source, of in found.items()}
    runs = ((run, source_of(run)) for run in times_table()["runs"])
    return [(like(Plan.of(run["plan"]))[2], next(errors[of])) for run, of in runs if of in errors]


def everything() -> str:
    """Each kind of figure, those that were tuned on apart from those that were checked."""
    rows = [(*key, *_spread(group)) for key, group in by_kind(compare()).items()]
    return table(AGREEMENT, rows)


def memory_intervals() -> str:
    """Reserved and device memory by framework and allocator: how many runs are inside our interval,
    and how wide it is."""
    found: dict[tuple[str, ...], list[tuple[str, Comparison]]] = {}
    for run, c in zip(measured_table()["runs"], compared_runs(), strict=True):
        if c.what in ("reserved", "device"):
            plan = Plan.of(run["plan"])
            framework = FRAMEWORKS[plan.train.framework]
            how = [framework.label, *["pipelines"] * (plan.parallel.pp > 1)]
            if framework.shards < NEVER and plan.train.zero >= framework.shards:
                how.append("parameters shared out")
            key: tuple[str, ...] = (c.what, ", ".join(how), plan.train.allocator)
            found.setdefault(key, []).append((run["source"], c))
    lines = []
    for key, rows in sorted(found.items()):
        of = [c for _, c in rows]
        inside = sum(c.low <= c.theirs <= c.high for c in of)
        width = off_text(median(c.high / c.low - 1 for c in of))
        worst = signed_text(max((c.error for c in of), key=abs))
        sources = len({source for source, _ in rows})
        lines.append((*key, str(sources), str(len(of)), str(inside), width, worst))
    head = ("what", "framework", "allocator", "sources", "runs", "inside", "half as wide", "worst")
    return table(head, lines)


def native_rules() -> str:
    """The native allocator's rules, each source left out of the interval around them."""
    lines = [
        (source.removeprefix("https://github.com/"), str(runs), str(inside), f"{low:.2f}",
         f"{high:.2f}")
        for source, (runs, inside, low, high) in left_out_of_rules().items()
    ]  # fmt: skip
    return table(("source left out", "runs", "inside", "others, from", "to"), lines)


def step_times() -> str:
    return table(("steps", *SPREAD), [(name, *_spread(rows)) for name, rows in steps().items()])


def far_off(least: float = 0.1) -> str:
    """Every checked figure that is further off than `least`, the worst first."""
    rows = [
        r
        for r in compare()
        if abs(r.error) > least and r.used_for == CHECK and r.what != OUT_OF_MEMORY
    ]
    return table(
        ("what", "run", "ours is", "remark"),
        [
            (
                KINDS["figure"] if r.what == "figure" else r.what,
                r.run or r.model,
                signed_text(r.error),
                r.remark,
            )
            for r in sorted(rows, key=lambda r: -abs(r.error))
        ],
    )


def calculators() -> str:
    """What other calculators say for the same plans."""
    return table(
        ("plan", "calculators say", "PyTorch's tracker", "Memplan"),
        [
            (
                f"{w.label}, {w.detail}",
                f"{bytes_text(min(said))} to {bytes_text(max(said))}",
                bytes_text(w.tracker),
                bytes_text(w.ours),
            )
            for w in worked()
            if (said := [s.theirs for s in w.figures if s.counts != STATES])
        ],
    )


SMALL = {
    "families": "all families that train, with every flag that they read",
    "policies": "every policy, with Liger's, bitsandbytes' and the compiler's code",
    "adapters": "LoRA and QLoRA, with PEFT's code",
    "frozen": "frozen embeddings and lower layers, with transformers' code",
    "experts": "expert parallelism under FSDP2, with transformers' code",
    "launches": "kernels that a layer starts, by PyTorch's dispatcher",
    "deepspeed": "DeepSpeed's partitions, buckets and host buffers, on two CPU ranks",
}


def small_models() -> str:
    """How many rows of small models the tests hold, by what they are about."""
    rows = []
    for name, about in SMALL.items():
        path = ROOT / "tests" / "reference" / f"{name}.json"
        kinds: dict[str, int] = {}
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            kind = row.get("kind", "runs")
            kinds[kind] = kinds.get(kind, 0) + 1
        counts = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
        rows.append((f"[{name}](../tests/reference/{name}.json)", about, counts))
    return table(("table", "about", "rows"), rows)


LATENCIES = ("points", "token, signed", "token, half within", "nine in ten within",
        f"first token, {LOW_LOAD} at once or fewer", "first token, any load")  # fmt: skip


def _latencies(
    name: str, chosen: Callable[[PointErrors], bool], of: Sequence[PointErrors] | None = None
) -> tuple[str, ...]:
    token = spread(error_of_token, chosen, of)
    first = spread(error_of_first, lambda f: chosen(f) and f.point.at_once <= LOW_LOAD, of)
    of_any = spread(error_of_first, chosen, of)
    return (
        name,
        f"{token.count:,}",
        signed_text(token.signed),
        off_text(token.median),
        off_text(token.nine_in_ten),
        off_text(first.median) if first.count else "",
        off_text(of_any.median),
    )


def engines() -> str:
    """Engines under load: by engine, by GPU, and by kind of model; others' estimators below."""
    every = point_errors()
    rows = [_latencies("all", lambda f: True)]
    rows.append(_latencies("all, none of them with a draft", lambda f: True, without_drafts()))
    rows += [
        _latencies(ENGINES[e].label, lambda f, e=e: f.point.engine == e)  # type: ignore[misc]
        for e in dict.fromkeys(f.point.engine for f in every)
    ]
    rows += [
        _latencies(accelerator(g).label, lambda f, g=g: f.point.gpu == g)  # type: ignore[misc]
        for g in dict.fromkeys(f.point.gpu for f in every)
    ]
    rows += [
        _latencies("dense", lambda f: not f.experts),
        _latencies("mixtures", lambda f: f.experts),
    ]
    for o in engines_table()["others"]:
        nine = off_text(o["nine_in_ten"]) if "nine_in_ten" in o else ""
        first = off_text(o["first"]) if "first" in o else ""
        rows.append((o["name"], "1,827", "", off_text(o["token"]), nine, "", first))
    return table(("points of", *LATENCIES), rows)


def by_version() -> str:
    """The same by version of an engine, of which there are ten points and more."""

    def row(engine: str, version: str) -> tuple[str, ...]:
        name = f"{ENGINES[engine].label} {version or '(not named)'}"
        return _latencies(name, lambda f: (f.point.engine, f.point.version) == (engine, version))

    return table(
        ("version", *LATENCIES), [row(engine, version) for engine, version in versions(10)]
    )


def left_out() -> str:
    """The same, of a GPU or a model that the constants were fitted without."""
    return table(
        ("fitted without", "points", "token, signed", "token, half within", "nine in ten within",
         "first token, half within"),
        [
            (r["name"], f"{r['points']:,}", signed_text(r["signed"]), off_text(r["token"]),
             off_text(r["nine_in_ten"]), off_text(r["first"]))
            for r in engines_table()["left_out"]
        ],
    )  # fmt: skip


def choosing() -> str:
    """Choices of ranks and load under a target for each token."""
    c = choices()
    return table(
        ("choices", "the measured best", f"it, or within {off_text(ALIKE)} of it",
         "measured as too slow", "the nearest, since none keeps to it", "no answer",
         "throughput of the choice, in the median"),
        [(f"{c.count:,}", f"{c.best:,}", f"{c.alike:,}", f"{c.slow:,}", f"{c.nearest:,}",
          f"{c.none:,}", f"{off_text(c.throughput)} of the best")],
    )  # fmt: skip


def loads() -> str:
    """llama.cpp's tables and TensorRT-LLM's greatest throughput."""
    lines = {
        "llama.cpp, a token": [e for what, e in native() if what == "token"],
        "llama.cpp, a prompt": [e for what, e in native() if what == "first"],
        "TensorRT-LLM, greatest throughput, dense": [e for of, e in throughput() if not of],
        "TensorRT-LLM, greatest throughput, mixtures": [e for of, e in throughput() if of],
    }
    rows = []
    for name, errors in lines.items():
        s = Spread.of(errors)
        rows.append(
            (
                name,
                f"{s.count:,}",
                signed_text(s.signed),
                off_text(s.median),
                off_text(s.nine_in_ten),
            )
        )
    return table(("seconds of", "figures", "signed", "half within", "nine in ten within"), rows)


def published_ranks() -> str:
    """Where published configurations stand among what fits, by who published them."""
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for run, found in ranks_table().items():
        by_source.setdefault(source_of(jobs()[run]), []).append(found)
    rows = [
        (
            source, f"{len(of):,}",
            *(f"{sum(f[how] <= BEST for f in of):,}" for how in ("share", "told")),
            f"{median(f['slower'] for f in of):.2f}",
        )
        for source, of in sorted(by_source.items())
    ]  # fmt: skip
    head = ("published by", "jobs", "among the best tenth", "as far as can be told",
            "times the fastest's step, median")  # fmt: skip
    return table(head, rows)


def published_behind() -> str:
    """Those that are not among the best tenth."""
    rows = [
        (jobs()[run]["run"], f"{f['share']:.0%}", f"{f['told']:.0%}", f"{f['slower']:.2f}",
         f["fastest"])
        for run, f in ranks_table().items()
        if f["told"] > BEST
    ]  # fmt: skip
    head = ("run", "faster of what fits", "and can be told", "times the fastest's step",
            "which has")  # fmt: skip
    return table(head, rows)


PARTS = {
    "ranks": published_ranks,
    "ranks behind": published_behind,
    "engines": engines,
    "versions": by_version,
    "left out": left_out,
    "choosing": choosing,
    "loads": loads,
    "short": short,
    "steps": step_times,
    "rule": rule,
    "others": others,
    "sources left out": left_out_sources,
    "calibrated": calibrated,
    "calibrated servers": benched,
    "everything": everything,
    "far off": far_off,
    "memory intervals": memory_intervals,
    "native rules": native_rules,
    "calculators": calculators,
    "small models": small_models,
}
PART = re.compile(r"(<!-- figures: ([a-z ]+) -->\n)(?:(?!<!--).)*(<!-- end -->)", re.S)


def written(text: str) -> str:
    """A page with each of its parts written anew."""
    return PART.sub(lambda m: f"{m[1]}{PARTS[m[2]]()}\n{m[3]}", text)


PAGES = ("README.md", "docs/accuracy.md")
COMPARED_PATH = ROOT / "presets" / "evidence" / COMPARED
DEFAULTS = {f.name: f.default for f in fields(Comparison)}


def lines(rows: Iterable[Comparison]) -> str:
    """Comparisons as a file that `last_compared` reads: of each what is not its default."""
    changed = (
        {name: value for name, value in asdict(row).items() if value != DEFAULTS[name]}
        for row in rows
    )
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in changed)


def main() -> int:
    COMPARED_PATH.write_text(lines(compare()), encoding="utf-8")
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
