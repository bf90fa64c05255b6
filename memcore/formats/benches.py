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


# --- JSON ----------------------------------------------------------------------------------------


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
    found = filter(None, map(_document, rows))
    return [bench for bench in found if bench.token or bench.first or bench.rate]


def _document(said: Mapping[str, Any]) -> Bench | None:
    if "mean_ttft_ms" in said or "mean_tpot_ms" in said:
        return _flat(said)
    if "performance" in said and "world_info" in said:
        return _trtllm(said)
    if "time_to_first_token" in said or "output_token_throughput" in said:
        return _perf(said)
    return None


def _flat(said: Mapping[str, Any]) -> Bench:
    """vLLM's and SGLang's: milliseconds, and tokens of all requests together."""
    done = _number(said, "completed")
    made = _number(said, "total_output_tokens") or _number(said, "total_generated_tokens")
    read = _number(said, "total_input_tokens")
    token = _number(said, "mean_tpot_ms") or _number(said, "mean_itl_ms")
    at_once = _number(said, "max_concurrency") or _number(said, "concurrency")
    return Bench(
        "SGLang's bench_serving" if "random_range_ratio" in said else "vllm bench serve",
        token / 1e3, _number(said, "mean_ttft_ms") / 1e3, _number(said, "output_throughput"),
        read / done if done else 0.0, made / done if done else 0.0, at_once,
        model=_word(said, "model_id"),
    )  # fmt: skip


def _trtllm(said: Mapping[str, Any]) -> Bench:
    """TensorRT-LLM's --report_json."""
    asked, done, world = (_part(said, n) for n in ("request_info", "performance", "world_info"))
    streamed, engine = _part(said, "streaming_metrics"), _part(said, "engine")
    return Bench(
        "trtllm-bench",
        _number(streamed, "avg_tpot_ms") / 1e3, _number(streamed, "avg_ttft_ms") / 1e3,
        _number(done, "system_output_throughput_tok_s"), _number(asked, "avg_input_length"),
        _number(asked, "avg_output_length"), _number(asked, "avg_num_concurrent_requests"),
        TENSORRT_LLM, _word(engine, "model"), int(_number(world, "tp_size")),
    )  # fmt: skip


def _perf(said: Mapping[str, Any]) -> Bench:
    """genai-perf's and AIPerf's: each figure with its average and its unit."""

    def mean(name: str) -> float:
        figure = _part(said, name)
        return _number(figure, "avg") * _UNITS.get(_word(figure, "unit"), 1.0)

    asked = _part(said, "input_config")
    loads = (asked, _part(asked, "loadgen"), *_parts(asked, "phases"))
    return Bench(
        "AIPerf" if "aiperf_version" in said or "loadgen" in asked else "genai-perf",
        mean("inter_token_latency"), mean("time_to_first_token"), mean("output_token_throughput"),
        mean("input_sequence_length"), mean("output_sequence_length"),
        max((_number(load, "concurrency") for load in loads), default=0.0),
    )  # fmt: skip


_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _part(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = said.get(name)
    return found if isinstance(found, dict) else {}


def _parts(said: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = said.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _number(said: Mapping[str, Any], name: str) -> float:
    """A number above 0, or 0."""
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))


def _word(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else ""


# --- lines of a log ------------------------------------------------------------------------------

_LINE = re.compile(
    r"^[ \t]*([A-Za-z][^:\n]{2,70}):[ \t]+([\d.]{1,20}(?:e[+-]?\d{1,3})?)[ \t\r]*$", re.M | re.I
)
# How vLLM and SGLang, and TensorRT-LLM, call the same.
_CALLED = {
    "token": ("Mean TPOT (ms)", "Mean ITL (ms)", "Average time-per-output-token [TPOT] (ms)"),
    "first": ("Mean TTFT (ms)", "Average time-to-first-token [TTFT] (ms)"),
    "rate": ("Output token throughput (tok/s)", "Total Output Throughput (tokens/sec)"),
    "done": ("Successful requests",),
    "read": ("Total input tokens",),
    "made": ("Total generated tokens",),
    "prompt": ("Average Input Length (tokens)",),
    "output": ("Average Output Length (tokens)",),
    "at_once": ("Maximum request concurrency", "Max request concurrency",
                "Number of concurrent requests", "Concurrency"),
    "tp": ("TP Size",),
}  # fmt: skip
_MEASURED = {name for names in ("token", "first", "rate") for name in _CALLED[names]}


def _lines(content: str) -> list[Bench]:
    """Results that vLLM, SGLang or TensorRT-LLM printed, each a figure a line."""
    found: list[dict[str, float]] = [{}]
    for before, number in _LINE.findall(content):
        name, value = before.rpartition("|")[2].strip(), _plain(number)
        if name in found[-1] and name in _MEASURED and found[-1][name] != value:
            found.append({})  # another result
        found[-1][name] = value
    return [b for said in found if _MEASURED & said.keys() and (b := _printed(said)) is not None]


def _printed(said: Mapping[str, float]) -> Bench | None:
    def of(name: str) -> float:
        return next((said[key] for key in _CALLED[name] if said.get(key)), 0.0)

    if not (of("token") or of("first") or of("rate")):
        return None
    native = "Total Output Throughput (tokens/sec)" in said
    done = of("done")
    return Bench(
        "trtllm-bench" if native else "vllm bench serve or SGLang's bench_serving",
        of("token") / 1e3, of("first") / 1e3, of("rate"),
        of("prompt") or (of("read") / done if done else 0.0),
        of("output") or (of("made") / done if done else 0.0),
        of("at_once"), TENSORRT_LLM if native else "", "", int(of("tp")),
    )  # fmt: skip


def _plain(number: str) -> float:
    """A number as it is written, also with commas; 0 of what is none."""
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


# --- tables --------------------------------------------------------------------------------------

_PERF = {
    "token": "Inter Token Latency",
    "first": "Time To First Token",
    "rate": "Output Token Throughput",
    "prompt": "Input Sequence Length",
    "output": "Output Sequence Length",
}
# Of CSV, which has a number with commas in quotes; of a table.
_CELL = r'(?:,"([\d.,]{1,20})"|,([\d.]{1,20})|\s*[│┃|]\s*([\d.,]{1,20}))'


def _perf_table(content: str) -> list[Bench]:
    """genai-perf's or AIPerf's table, or its CSV: the average stands first."""
    said: dict[str, float] = {}
    for name, title in _PERF.items():
        row = rf'^[ "│┃|]*{title}(?: \(([a-z/ ]{{1,20}})\))?"?{_CELL}'
        if match := re.search(row, content, re.M | re.I):
            unit, *cells = (group or "" for group in match.groups())
            said[name] = _plain("".join(cells)) * _UNITS.get(unit.lower(), 1.0)
    if not (said.get("token") or said.get("first")):
        return []
    token, first, rate, prompt, output = (said.get(name, 0.0) for name in _PERF)
    return [Bench("genai-perf or AIPerf", token, first, rate, prompt, output)]


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
        _Row(int(n) * (kind == "pp"), int(n) * (kind == "tg"), int(depth or 0), _plain(rate))
        for kind, n, depth, rate in _LLAMA.findall(content)
    ]
    if not rows and "n_gen" in content and "avg_ts" in content:
        start = content[: content.index("n_gen")].rfind("\n") + 1
        rows = [
            _llama_row({name: _plain(value or "") for name, value in row.items() if name})
            for row in _csv_rows(content[start:])
        ]
    return _llama(rows)


MOST_ROWS = 200  # of a table, and columns of one


def _csv_rows(content: str) -> Iterator[Mapping[str | None, Any]]:
    """The rows of a CSV with a header; none of what is no such table."""
    lines = content.splitlines()
    if lines[0].count(",") < MOST_ROWS:
        with contextlib.suppress(csv.Error):
            yield from itertools.islice(csv.DictReader(lines), MOST_ROWS)


def _llama_row(row: Mapping[str, Any]) -> _Row:
    prompt, output, depth = (int(_number(row, f"n_{name}")) for name in ("prompt", "gen", "depth"))
    return _Row(prompt, output, depth, _number(row, "avg_ts"))


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
