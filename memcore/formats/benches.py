"""Benches: what a benchmark of a server printed or wrote, as figures of that server.

vLLM's `vllm bench serve`, SGLang's `bench_serving` and TensorRT-LLM's `trtllm-bench`, each as text
or JSON; genai-perf's and AIPerf's JSON, CSV or table; llama-bench's table, JSON, JSON lines or CSV.
They say how long tokens took, most of them the load too, and some which engine it was.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, PlanError, refusal
from memcore.formats import hub
from memcore.formats.programs import Program
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, get
from memcore.words.engines import ENGINES, LLAMA_CPP, TENSORRT_LLM
from memcore.words.serving import CLOSED

MOST_BYTES = 64_000_000  # with every request's own figures; more is no benchmark's output
LLAMA_BENCH = "llama-bench"
SAME = 0.02  # share by which a load may differ from the plan's: tokenizers add some tokens
KNOWN = (
    "read are what vllm bench serve, SGLang's bench_serving, trtllm-bench, genai-perf, AIPerf and "
    "llama-bench print or write"
)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark says; 0 or '' where it does not.

    program        whose output it is; '' of figures that somebody says
    token, first   mean seconds per output token, and to the first one
    rate           output tokens per second of all requests
    prompt, output    mean tokens of a request; at_once: requests at all times
    engine, model     which served; tp: on how many tensor-parallel ranks
    """

    program: str
    token: float = 0.0
    first: float = 0.0
    rate: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    at_once: float = 0.0
    engine: str = ""
    model: str = ""
    tp: int = 0

    def of(self, plan: Plan) -> tuple[Measured, list[Issue]]:
        """The plan's server as it was measured, and what of the plan's load was changed to that of
        the benchmark, or is taken since that does not say it. Requests are taken to be as many at
        all times. Raises PlanError where it says that another model, engine or number of ranks was
        measured, or a load that no plan has."""
        if wrong := list(self._others(plan)):
            raise PlanError(wrong)
        load = {"serve.prompt_len": self.prompt, "serve.output_len": self.output}
        load["serve.concurrency"] = self.at_once
        changes: dict[str, Any] = {
            path: max(1, round(value))
            for path, value in load.items()
            if value and abs(value / get(plan, path) - 1) > SAME
        }
        ran = closed(plan).with_changes(changes) if changes else closed(plan)
        told = [
            Issue(path, f"{value:,} of the benchmark, in place of {get(plan, path):,} of its plan")
            for path, value in changes.items()
        ]
        if self.program:
            told += [
                Issue(path, f"{get(plan, path):,} of the plan, since the benchmark does not say it")
                for path, value in load.items()
                if not value
            ]
        if self.program == LLAMA_BENCH and self.token and self.first:
            said = "llama-bench measures prompt and tokens each by itself: read as of one request"
            told.append(Issue("serve.prompt_len", said))
        rate = 0.0 if self.token else self.rate
        return Measured(ran, token=self.token, first=self.first, rate=rate), told

    def _others(self, plan: Plan) -> Iterator[Issue]:
        """Where another server was measured than the plan's."""
        if self.engine and plan.engine != self.engine:
            one, other = ENGINES[self.engine].label, ENGINES[plan.engine].label
            yield Issue("serve.engine", f"{self.program} measures {one}, and the plan has {other}")
        if self.tp and plan.serving_tp != self.tp:
            ranks = f"{self.tp:,} ranks were measured, and the plan has {plan.serving_tp:,}"
            yield Issue("serve.tp", ranks)
        named = hub.preset(self.model)
        if named and isinstance(plan.model, str) and named != plan.model:
            said = f"{self.model} was measured, which is {named}, and the plan has {plan.model}"
            yield Issue("model", said)


def closed(plan: Plan) -> Plan:
    """The plan with as many requests at all times, as benchmarks have. Raises PlanError."""
    return plan if plan.serve.arrivals == CLOSED else plan.changed("serve.arrivals", CLOSED)


def bench_in(content: str) -> Bench | None:
    """What a text says that was measured; None where it says nothing of a server's speed. Raises
    PlanError where it has several results."""
    for read in (_documents, _lines, _perf_table, _llama_rows):
        if found := read(content):
            if len(found) > 1:
                said = f"it has {len(found)} results: give the one of the plan's load"
                raise refusal("", said)
            return found[0]
    return None


def is_bench(content: str) -> bool:
    """Whether a text says of a server how quick it was."""
    try:
        return bench_in(content) is not None
    except PlanError:  # several times
        return True


def bench_of(data: bytes) -> Bench:
    """The same of a file. Raises PlanError where it is none."""
    if len(data) > MOST_BYTES:
        raise refusal("", f"more than {MOST_BYTES:,} bytes, so no benchmark's result")
    found = bench_in(data.decode(errors="replace"))
    if found is None:
        raise refusal("", f"says no seconds per token and none to the first; {KNOWN}")
    return found


# --- what each program calls a figure -------------------------------------------------------------

BENCHMARKS = Program("benchmarks")
FIGURES: Mapping[str, Sequence[str]] = BENCHMARKS.table["figures"]
PROGRAMS: Mapping[str, str] = BENCHMARKS.table["programs"]
SPEEDS = BENCHMARKS.listed("speeds")
AVERAGES = [name for figure in BENCHMARKS.listed("averages") for name in FIGURES[figure]]
MEASURED = {name for figure in SPEEDS for name in FIGURES[figure]}
_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Said = dict[str, float | str]  # what a program says, by its own names


def _bench(said: Mapping[str, float | str]) -> Bench | None:
    """The figures of one result; None where no speed is among them."""

    def of(figure: str) -> float:
        values = (said.get(name) for name in FIGURES[figure])
        return next((value for value in values if value and isinstance(value, float)), 0.0)

    if not any(map(of, SPEEDS)):
        return None
    token, first = (of(name) or of(f"{name}_ms") / 1e3 for name in ("token", "first"))
    usual = "vllm bench serve or SGLang's bench_serving"
    program = next((program for name, program in PROGRAMS.items() if name in said), usual)
    done = of("done")
    model = said.get("model id") or said.get("engine.model")
    return Bench(
        program, token, first, of("rate"),
        of("prompt") or (of("prompts") / done if done else 0.0),
        of("output") or (of("outputs") / done if done else 0.0),
        of("at_once"), TENSORRT_LLM if program == "trtllm-bench" else "",
        model if isinstance(model, str) else "", int(of("tp")),
    )  # fmt: skip


def _number(value: Any) -> float:
    """A number above 0, also one that is written with commas; 0 of what is none."""
    if isinstance(value, str):
        try:
            value = float(value.replace(",", ""))
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))


# --- JSON ----------------------------------------------------------------------------------------

DEEPEST = 3  # parts of a document within each other


def _documents(content: str) -> list[Bench]:
    """A JSON document, or one a line."""
    if content.lstrip()[:1] not in ("{", "["):
        return []
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        try:
            said = [json.loads(line) for line in content.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return []
    rows = [row for row in (said if isinstance(said, list) else [said]) if isinstance(row, dict)]
    if any("n_gen" in row for row in rows):
        return _llama([_llama_row(row) for row in rows])
    return [bench for row in rows if (bench := _bench(_flat(row)))]


def _flat(said: Mapping[str, Any], within: str = "", depth: int = 0) -> Said:
    """What a document says, by its keys; a figure with its unit in seconds."""
    flat: Said = {}
    for key, value in said.items():
        name = within + str(key).lower().replace("_", " ")
        parts = [p for p in value if isinstance(p, dict)] if isinstance(value, list) else []
        if isinstance(value, dict) and "avg" in value:
            flat[name] = _number(value["avg"]) * _UNITS.get(str(value.get("unit")), 1.0)
        elif depth < DEEPEST and (isinstance(value, dict) or parts):
            for part in parts or [value]:
                flat |= _flat(part, f"{name}.", depth + 1)
        else:
            flat[name] = value if isinstance(value, str) else _number(value)
    return flat


# --- lines of a log, and tables ------------------------------------------------------------------

_LINE = re.compile(
    r"^[ \t]*([A-Za-z][^:\n]{2,70}):[ \t]+([\d.]{1,20}(?:e[+-]?\d{1,3})?)[ \t\r]*$", re.M | re.I
)


def _lines(content: str) -> list[Bench]:
    """Results that vLLM, SGLang or TensorRT-LLM printed, each a figure a line."""
    results: list[Said] = [{}]
    for before, number in _LINE.findall(content):
        name, value = before.rpartition("|")[2].strip().lower(), _number(number)
        if name in MEASURED and results[-1].get(name, value) != value:
            results.append({})  # another result
        results[-1][name] = value
    return [bench for said in results if (bench := _bench(said))]


# Of CSV, which has a number with commas in quotes; of a table.
_CELL = r'(?:,"([\d.,]{1,20})"|,([\d.]{1,20})|\s*[│┃|]\s*([\d.,]{1,20}))'


def _perf_table(content: str) -> list[Bench]:
    """genai-perf's or AIPerf's table, or its CSV: the average stands first."""
    said: Said = {}
    for title in AVERAGES:
        row = rf'^[ "│┃|]*{re.escape(title)}(?: \(([a-z/ ]{{1,20}})\))?"?{_CELL}'
        if match := re.search(row, content, re.M | re.I):
            unit, *cells = (group or "" for group in match.groups())
            said[title] = _number("".join(cells)) * _UNITS.get(unit.lower(), 1.0)
    bench = _bench(said)
    return [bench] if bench and (bench.token or bench.first) else []


_LLAMA = re.compile(
    r"\|\s*(pp|tg)(\d{1,9})(?:\s*@\s*d(\d{1,9}))?\s*\|\s*([\d.]{1,20})\s*(?:±\s*[\d.]{1,20})?\s*\|"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of llama-bench: tokens read, or generated, after so many, a second."""

    prompt: int
    output: int
    depth: int
    rate: float


def _llama_rows(content: str) -> list[Bench]:
    """llama-bench's table, or its CSV."""
    rows = [
        _Row(int(n) * (kind == "pp"), int(n) * (kind == "tg"), int(depth or 0), _number(rate))
        for kind, n, depth, rate in _LLAMA.findall(content)
    ]
    if not rows and "n_gen" in content and "avg_ts" in content:
        start = content[: content.index("n_gen")].rfind("\n") + 1
        rows = [_llama_row(row) for row in _csv_rows(content[start:])]
    return _llama(rows)


MOST_ROWS = 200  # of a table, and columns of one


def _csv_rows(content: str) -> Iterator[Mapping[str | None, Any]]:
    """The rows of a CSV with a header; none of what is no such table."""
    lines = content.splitlines()
    if lines[0].count(",") < MOST_ROWS:
        with contextlib.suppress(csv.Error):
            yield from itertools.islice(csv.DictReader(lines), MOST_ROWS)


def _llama_row(row: Mapping[Any, Any]) -> _Row:
    prompt, output, depth = (int(_number(row.get(f"n_{n}"))) for n in ("prompt", "gen", "depth"))
    return _Row(prompt, output, depth, _number(row.get("avg_ts")))


def _llama(rows: Sequence[_Row]) -> list[Bench]:
    """One sequence: its prompt's seconds, and those of a token. Several of one kind are several
    results; a prompt that is as long as tokens are deep is of the same request."""
    reads = [r for r in rows if r.prompt and not r.output and not r.depth and r.rate]
    makes = [r for r in rows if r.output and not r.prompt and r.rate]
    reads, makes = reads[:MOST_ROWS], makes[:MOST_ROWS]
    if not makes:
        return [_of_llama(read, _Row(0, 1, 0, 0.0)) for read in reads]
    nothing = _Row(0, 0, 0, 0.0)
    pairs = [
        (read, make)
        for make in makes
        for read in [r for r in reads if make.depth in (0, r.prompt)] or [nothing]
    ]
    return [_of_llama(read, make) for read, make in pairs]


def _of_llama(read: _Row, make: _Row) -> Bench:
    return Bench(
        LLAMA_BENCH,
        1 / make.rate if make.rate else 0.0,
        read.prompt / read.rate if read.rate else 0.0,
        prompt=read.prompt or make.depth or 1,
        output=make.output,
        at_once=1,
        engine=LLAMA_CPP,
    )
