"""Measured figures of steps and servers in a file of cases, beside ours:
`python benchmarks/compare_cases.py CASES [--by kind|group|source|gpu] [--only TEXT] [--rows]`.

CASES is a .jsonl whose lines have `plan`, `field`, `value`, `group` and `source`, and may have
`kind`, else the first two words of the group (a `field` is of the Report, `time.step_seconds`, or
of a simulated stream, `simulate: runs[paged].ttft.p50`, with `lengths` a path from the file), or a
.csv with the columns of presets/evidence/engines.csv.
Prints, by group, how many, the signed median, the median and the ninth of ten of the errors of
seconds and bytes, planned over measured less one; speeds are turned into seconds first.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from evidence.engines import Point, Spread
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.serving.cache import places
from memcore.stream.clock import Clock
from memcore.stream.lengths import draw, read_lengths
from memcore.stream.simulation import run

SIMULATED = "simulate: runs["
ENGINES = {"trtllm": "tensorrt-llm"}
Case = dict[str, Any]


def cases(path: Path) -> Iterator[Case]:
    """Every case of a file, but other readings of the same figure."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield from of_row(row, path.stem)
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if not case.get("variant"):
            case.setdefault("kind", " ".join(case["group"].split()[:2]))
            case["gpu"] = case["plan"].get("cluster", {}).get("gpu", "")
            yield case


def of_row(row: dict[str, str], source: str) -> Iterator[Case]:
    """A row of a closed loop: a token, and the first one."""
    point = Point(
        ENGINES.get(row["engine"], row["engine"]), row["engine_version"], row["gpu"],
        int(row["tp"]), int(row["ep"]), row["model"], row["weight_dtype"], row["kv_dtype"],
        int(row["prompt_len"]), int(row["output_len"]), int(row["concurrency"]),
        float(row["ttft_seconds"]), float(row["tpot_seconds"]),
    )  # fmt: skip
    name = f"{point.engine} {point.model} {point.gpu} {point.prompt}/{point.output}"
    for field, value in (("tpot", point.token), ("ttft", point.first)):
        yield {
            "id": f"{name} x{point.at_once} {field}", "field": f"serve.{field}_seconds",
            "value": value, "plan": point.plan, "group": f"{name} {field}", "source": source,
            "kind": f"{point.engine} {field}", "confidence": "medium", "gpu": point.gpu,
        }  # fmt: skip


class Answers:
    """What the engine says, each plan's stream simulated once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.streams: dict[tuple[str, str, str], Any] = {}

    def of(self, case: Case) -> float | None:
        plan = case["plan"] if isinstance(case["plan"], Plan) else Plan.of(case["plan"])
        field = case["field"]
        if not field.startswith(SIMULATED):
            return value_at(evaluate(plan), field)
        name, _, rest = field.removeprefix(SIMULATED).partition("].")
        key = json.dumps(case["plan"], sort_keys=True), name, case.get("lengths", "")
        if key not in self.streams:
            lengths = None
            if case.get("lengths"):
                lengths = read_lengths((self.folder / case["lengths"]).read_bytes())
            served = evaluate(plan).serve
            assert served is not None
            slots = places(plan, served)
            self.streams[key] = run(plan, name, draw(plan, lengths), Clock.of(plan), slots)
        return value_at(self.streams[key], rest)


def value_at(found: Any, path: str) -> float | None:
    value = reduce(lambda of, name: getattr(of, name, None), path.split("."), found)
    return None if value is None else float(value)


def error(case: Case, ours: float) -> float:
    """Of seconds or bytes, planned over measured less one."""
    speed = "per_second" in case["field"]
    return float(case["value"] / ours if speed else ours / case["value"]) - 1


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("cases", type=Path)
    reader.add_argument("--by", default="kind", choices=("kind", "group", "source", "gpu"))
    reader.add_argument("--only", default="", help="cases whose id, kind or group has this text")
    reader.add_argument("--sure", action="store_true", help="only of high or medium confidence")
    reader.add_argument("--rows", action="store_true", help="each case too")
    words = reader.parse_args()
    answers, errors = Answers(words.cases.parent), defaultdict(list)
    for case in cases(words.cases):
        if words.only not in f"{case['id']} {case['kind']} {case['group']}":
            continue
        if words.sure and case.get("confidence") == "low":
            continue
        try:
            ours = answers.of(case)
        except ValueError as e:
            ours = None
            print(case["id"], "refused:", e)
        if not ours:
            errors[f"no answer: {case[words.by]}"].append(0.0)
            continue
        off = error(case, ours)
        name = " ".join(filter(None, (case[words.by], case["field"].split("]")[-1])))
        errors[name].append(off)
        if words.rows:
            print(f"{off:+8.1%}  {ours:12.5g} {case['value']:12.5g}  {case['id']}", flush=True)
    print(f"\n{'of':70} count  signed  median  nine in ten")
    for name, each in sorted(errors.items()):
        s = Spread.of(each)
        print(f"{name[:70]:70} {s.count:5} {s.signed:+7.1%} {s.median:7.1%} {s.nine_in_ten:7.1%}")


if __name__ == "__main__":
    main()
