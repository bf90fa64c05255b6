"""`memplan check`: whether plans fit, for scripts and continuous integration."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memcore.cli.arguments import (
    files_on,
)
from memcore.cli.link import link_to
from memcore.cli.printing import BAD_INPUT, CHECKED, WORST, json_text, printable
from memcore.cli.reading import (
    MAX_TEXT_BYTES,
    chosen_model,
    config_called,
    is_name,
    plan_in,
    plan_of,
    read,
)
from memcore.errors import PlanError, fault, refusal, shown_path
from memcore.report import fields_but
from memcore.units import GiB, bytes_text
from memcore.words.jobs import SERVE

if TYPE_CHECKING:
    from memcore import Report
    from memcore.formats import ReadPlan, Text
    from memcore.plan.plan import Plan

WORDS = {"fits": "fits", "tight": "cannot be judged", "over": "does not fit"}
SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file that a workflow runner shows as its summary
# Of a folder the files that are looked at, and no more of them.
SUFFIXES = {".json", ".yaml", ".yml", ".toml", ".sh", ".slurm", ".sbatch", ".py", ".ini", ".ipynb"}
NAMES = {"Modelfile", "Dockerfile"}
LEFT_OUT = {"node_modules", "venv", "site-packages"}
MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one file; `verdict` and the numbers are None where it could not be read.
    `told`: what of another program's file its plan leaves out, changes or assumes."""

    file: str
    status: int
    message: str
    verdict: str | None = None
    device_bytes: tuple[int, int] | None = None
    capacity_bytes: int | None = None
    title: str = ""
    link: str = ""
    told: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return fields_but(self, "title")


def run(args: argparse.Namespace) -> int:
    checks = [
        _checked(file, args, siblings) for each in args.files for file, siblings in _files(each)
    ]
    status = max((each.status for each in checks), key=WORST.index)
    out = sys.stderr if args.json else sys.stdout
    for each in checks:
        if each.told:  # it may decide the verdict
            print(printable(_warning(each)), file=out)
        if each.status:
            print(printable(_annotation(each)), file=out)
    summary = _markdown(checks)
    if args.json:
        print(json_text({"status": status, "files": [f.to_dict() for f in checks]}, indent=1))
    else:
        print(printable(summary))
    if path := args.summary or os.environ.get(SUMMARY):
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{summary}\n")
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or str(e)
            print(f"memplan: the summary is not in {shown_path(path)}: {why}", file=sys.stderr)
    return status


def _files(name: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """A file with those that lie beside it, or those of a folder that describe a job by themselves,
    each with the others that lie in it, by name; a model's folder is one."""
    if not os.path.isdir(name):
        yield name, _in_folder(os.path.dirname(name) or ".")
        return
    if os.path.exists(os.path.join(name, "config.json")):
        yield name, {}
        return
    files = list(itertools.islice(_within(name), MOST_FILES))
    jobs = [path for _, path in files if _is_job(path)]
    for path in jobs:
        yield path, dict(files)
    if not jobs:
        yield name, {}


def _in_folder(folder: str) -> dict[str, str]:
    """The files that lie in a folder and may describe a job, by name; none where it cannot be
    read."""
    try:
        names = sorted(os.listdir(folder))[:MOST_FILES]
    except OSError:
        return {}
    suffixed = (name for name in names if os.path.splitext(name)[1].lower() in SUFFIXES)
    return {name: os.path.join(folder, name) for name in suffixed}


def _within(folder: str) -> Iterator[tuple[str, str]]:
    """The files of a folder that may describe a job, by name."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(
            each for each in folders if each[0] not in "._" and each not in LEFT_OUT
        )
        for name in sorted(names):
            if name in NAMES or os.path.splitext(name)[1].lower() in SUFFIXES:
                yield name, os.path.join(at, name)


def _is_job(path: str) -> bool:
    """Whether a file is a plan, or describes a job by itself."""
    from memcore.formats import BESIDE, kind_of, text_of
    from memcore.formats.reading import PLAN

    try:
        text = text_of(path, read(path))
        kind = kind_of(text)
    except PlanError:
        return False
    plans = text.document is not None and {"model", "version"} <= text.document.keys() <= PLAN
    return plans or (bool(kind) and kind not in BESIDE)


def _checked(file: str, args: argparse.Namespace, siblings: Mapping[str, str]) -> Checked:
    """One file, judged; whatever is wrong with it, the others are judged too."""
    from memcore.evaluate import evaluate

    name = "standard input" if file == "-" else file
    try:
        plan, read_plan = _plan_in(name, file, args, siblings)
        report = evaluate(plan)
    except PlanError as e:
        return Checked(name, BAD_INPUT, "; ".join(map(str, e.issues)))
    except Exception as e:
        return Checked(name, BAD_INPUT, f"Memplan failed at this ({fault(e)})")
    judged = _judged(name, plan, report, args.serving or plan.about == SERVE, args)
    return replace(judged, told=_remarks(read_plan)) if read_plan else judged


def _remarks(read_plan: ReadPlan) -> tuple[str, ...]:
    """What of a file of another program is not in its plan, or not in the file."""
    kinds = (
        ("not certain", read_plan.unsure),
        ("planned otherwise than the program does it", read_plan.differs),
        ("decides whether it fits, and no file says it", read_plan.decides),
        ("not read, since it is not given", read_plan.wants),
        ("not planned", read_plan.left),
        ("changed", read_plan.changed),
        ("assumed", [each for each in read_plan.assumed if each not in read_plan.decides]),
    )
    return tuple(f"{title}: {each}" for title, those in kinds for each in those)


def _plan_in(
    name: str, file: str, args: argparse.Namespace, siblings: Mapping[str, str]
) -> tuple[Plan, ReadPlan | None]:
    """The plan in a file, or behind a name or a link. A file of another program is read as
    `memplan read` reads it, with those beside it that it names, and what was found in it is given
    besides."""
    from memcore.formats import kind_of, read_files, text_of

    if is_name(file):
        return _elsewhere(plan_in(file), args), None
    if os.path.isdir(file) and not os.path.exists(os.path.join(file, "config.json")):
        raise refusal("", "is a folder, and no file in it describes a job")
    data = read(file, MAX_TEXT_BYTES)
    try:
        text = text_of(name, data)
    except PlanError:
        text = None
    if text is None or (_in_json(text) and not kind_of(text)):
        return _elsewhere(plan_of(data), args), None
    on = {"model": chosen_model(args), "called": args.model or "", **files_on(args)}
    read_plan = read_files([text], config_of=config_called, **on)
    near = [path for want in read_plan.wants if (path := siblings.get(os.path.basename(want)))]
    if near:
        more = [text_of(os.path.basename(path), read(path, MAX_TEXT_BYTES)) for path in near]
        read_plan = read_files([text, *more], config_of=config_called, **on)
    return read_plan.plan, read_plan


def _in_json(text: Text) -> bool:
    """Whether a text is a document, or begins as one in JSON does."""
    return text.document is not None or text.content.lstrip().startswith("{")


def _elsewhere(plan: Plan, args: argparse.Namespace) -> Plan:
    """The plan of the model and on the GPUs that were asked for, in their usual host."""
    model = chosen_model(args)
    changes: dict[str, Any] = {"model": model} if model else {}
    if args.gpu:
        changes |= {"cluster.gpu": args.gpu, "cluster.node": None}
    if args.gpus:
        changes["cluster.gpus"] = args.gpus
    return plan.with_changes(changes) if changes else plan


def _judged(
    name: str, plan: Plan, report: Report, serves: bool, args: argparse.Namespace
) -> Checked:
    from memcore.serving.serve import does_not_start

    serving = serves or report.memory is None
    if serving and report.serve is None:
        message = f"{plan.architecture.label} cannot be served, and nothing else is asked"
        return Checked(name, BAD_INPUT, message)
    verdict = report.serving_verdict if serving else report.verdict
    needed, capacity = _needed(report, serving), plan.accelerator.usable_bytes
    most = None if args.max_device_gib is None else int(args.max_device_gib * GiB)
    if most is not None and needed and verdict != "over":
        if needed[1] > most:
            verdict = "over" if needed[0] > most else "tight"
        capacity = min(capacity, most)
    what = "serving" if serving else "training"
    said = f"{what} {WORDS[verdict]}"
    if needed:
        said += f": {bytes_text(needed[0])} to {bytes_text(needed[1])} of {bytes_text(capacity)}"
    on = f"{plan.cluster.gpus:,} x {plan.accelerator.label}"
    starts_not = does_not_start(report.serve) if serving and report.serve else ""
    return Checked(
        file=name,
        status=CHECKED[verdict],
        message=f"{said} on each of {on}{f'; {starts_not}' if starts_not else ''}",
        verdict=verdict,
        device_bytes=needed,
        capacity_bytes=capacity,
        title=f"{plan.architecture.label} on {on}",
        link=link_to([plan], args.base),
    )


def _needed(report: Report, serving: bool) -> tuple[int, int] | None:
    """Device memory of one GPU, at least and at most."""
    if serving:
        if report.serve is None:
            return None
        taken = sum(report.served_parts.values())
        return taken, taken
    assert report.memory
    both = report.together.device_bytes if report.together else (0, 0)
    low, high = report.memory.device_bytes
    return max(low, both[0]), max(high, both[1])


def _annotation(checked: Checked) -> str:
    """A line by which a workflow runner marks the file."""
    title = "no plan" if checked.status == BAD_INPUT else WORDS[checked.verdict or "over"]
    message = checked.message if checked.status != 3 else f"{checked.message}; it may or may not"
    return f"::error file={_escaped(checked.file, ':,')},title=memplan {title}::{_escaped(message)}"


def _warning(checked: Checked) -> str:
    """A line that says what the answer leaves out of the file, or takes beside it."""
    text = _escaped("; ".join(checked.told))
    file = _escaped(checked.file, ":,")
    return f"::warning file={file},title=memplan read another program's file::{text}"


def _escaped(text: str, more: str = "") -> str:
    """Text as a workflow command carries it."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)


def _markdown(checks: list[Checked]) -> str:
    rows = ["| file | plan | device memory | of | |", "|---|---|---|---|---|"]
    for each in checks:
        if each.verdict is None:
            rows.append(f"| {_cell(each.file)} | {_cell(each.message)} | | | no plan |")
            continue
        size = " to ".join(map(bytes_text, each.device_bytes)) if each.device_bytes else ""
        of = bytes_text(each.capacity_bytes or 0)
        plan = f"[{_cell(each.title)}]({each.link})"
        rows.append(f"| {_cell(each.file)} | {plan} | {size} | {of} | {WORDS[each.verdict]} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    """Text in a cell of a table."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"\\{c}" if c in "|[]<`\\" else c for c in plain)
