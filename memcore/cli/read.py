"""`memplan read`: files and commands of other programs as one plan."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from memcore.cli.arguments import files_on
from memcore.cli.link import link_to
from memcore.cli.printing import json_text, printable, table
from memcore.cli.reading import (
    MAX_TEXT_BYTES,
    chosen_model,
    config_called,
    modelopt_file,
    named,
    read,
    weights_at,
)
from memcore.units import bytes_text

if TYPE_CHECKING:
    from memcore.formats import ReadPlan
    from memcore.formats.failures import Failure

SHOWN = 12  # keys listed that nothing was made of


def run(args: argparse.Namespace) -> int:
    from memcore.formats import message_in, read_files, text_of

    files = list(args.files)
    files += [near for file in files if (near := modelopt_file(file)) and near not in files]
    texts = [
        text_of("config.json", json.dumps(weights["model"]).encode())
        if (weights := weights_at(file))
        else text_of(PurePath(named(file)).name, read(file, MAX_TEXT_BYTES))
        for file in files
    ]
    model = chosen_model(args)
    messages = [None if args.alone or model else message_in(text) for text in texts]
    if all(messages):
        return _messages(
            {text.name: each for text, each in zip(texts, messages, strict=True) if each}, args.json
        )
    on = {"model": model, "called": args.model or "", **files_on(args)}
    read_plan = read_files(texts, config_of=config_called, **on)
    if args.json:
        print(
            json_text(
                {**read_plan.to_dict(), "link": link_to([read_plan.plan], args.base)}, indent=1
            )
        )
        return 0
    print(printable("\n".join(_lines(read_plan))), file=sys.stderr if args.alone else sys.stdout)
    if args.alone:
        print(json_text(read_plan.plan.document(), indent=1))
    else:
        print(link_to([read_plan.plan], args.base))
    return 0


def _messages(failures: Mapping[str, Failure], as_json: bool) -> int:
    """What messages mean, where no file says of which job they are."""
    if as_json:
        print(json_text({"failures": [each.to_dict() for each in failures.values()]}, indent=1))
        return 0
    for name, each in failures.items():
        print(printable(f"{name}: memory ran out\nMemory ran out: {each}."))
    print("Give the files of its job beside it, and the plan is compared with it.")
    return 0


def _lines(read_plan: ReadPlan) -> Iterator[str]:
    from memcore.plan.plan import get, value_text

    doubts = {issue.field: issue.message for issue in read_plan.unsure}
    for name, kind in sorted(read_plan.kinds.items(), key=lambda each: each[0] not in doubts):
        yield f"{name}: {doubts.get(name, kind)}"
    if read_plan.differs:
        yield "Planned otherwise than the program does it:"
        yield from (f"  {issue}" for issue in read_plan.differs)
    if read_plan.decides:
        yield "What no file says, and what decides whether it fits:"
        yield from (f"  {issue}" for issue in read_plan.decides)
    rows = [
        (
            entry.field,
            value_text(entry.field, get(read_plan.plan, entry.field)),
            entry.key,
            entry.value,
        )
        for entry in read_plan.said
    ]
    yield from table(("field", "is", "by", "which says"), rows, left=4)
    for title, issues in (
        ("Assumed", [each for each in read_plan.assumed if each not in read_plan.decides]),
        ("Changed, since together they are no plan", read_plan.changed),
        ("Not planned", read_plan.left),
    ):
        if issues:
            yield f"{title}:"
            yield from (f"  {issue}" for issue in issues)
    if read_plan.failures:
        yield from (f"Memory ran out: {each}." for each in read_plan.failures)
        yield _compared(read_plan)
    if read_plan.wants:
        yield f"Give beside it: {', '.join(read_plan.wants)}"
    if read_plan.unread:
        more = len(read_plan.unread) - SHOWN
        others = f" and {more} more" if more > 0 else ""
        yield f"Not known here, and so not read: {', '.join(read_plan.unread[:SHOWN])}{others}"


def _compared(read_plan: ReadPlan) -> str:
    """What the plan allocates beside what ran out."""
    from memcore.evaluate import evaluate

    report = evaluate(read_plan.plan)
    served, memory = report.serve, report.memory
    full = next((each for each in read_plan.failures if each.engine), None)
    if full and full.share and full.total:
        return (
            "This plan's GPU is empty, and it takes "
            f"{read_plan.plan.serve.memory_utilization:.0%}: "
            f"serve.memory_utilization {full.free / full.total:.2f} is what was free."
        )
    if full and served and full.asked and full.free and not full.room:
        holds = int(full.free // served.kv_bytes_per_token) if served.kv_bytes_per_token else 0
        return (
            f"{bytes_text(full.free)} hold {holds:,} tokens of this model; this plan's cache holds "
            f"{served.kv_capacity_tokens:,}."
        )
    if full and served and full.room:
        more = served.kv_capacity_tokens / full.room - 1
        return f"This plan's cache holds {served.kv_capacity_tokens:,} tokens: {more:+.0%}."
    if full is None and memory and any(each.allocated for each in read_plan.failures):
        more = memory.allocated_bytes / max(each.needed for each in read_plan.failures) - 1
        return f"This plan allocates {bytes_text(memory.allocated_bytes)} at its peak: {more:+.0%}."
    return "The message says too little to compare it with this plan."
