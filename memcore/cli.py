"""The `memplan` command: evaluate plans, list what ships with Memplan, open the app."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import IO, TYPE_CHECKING, Any

from memcore.errors import Issue, PlanError, did_you_mean, fault, shown
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    exact_text,
    money_text,
    rate_text,
    relative_text,
    seconds_text,
    signed_seconds,
)

if TYPE_CHECKING:
    from memcore import Report
    from memcore.plan.plan import Plan
    from memcore.quantity.quantity import Explanation
    from memcore.search.solve import Answer
    from memcore.stream import Load, Spread, Stream

MAX_PLAN_BYTES = 2_000_000  # a plan with a config.json and a GPU inline has about 10,000
BAD_INPUT = 2
CHECKED = {"fits": 0, "tight": 3, "over": 1}  # exit statuses of a check
WORST = (0, 3, 1, BAD_INPUT)  # the best first
FIRST_PORT = 8501
PARTS = 12  # of an explanation that are printed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 (failed) or 2 (bad input); of a check
    those of CHECKED, or 2 where there is no answer."""
    args = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):  # a label may hold what this terminal cannot write
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except PlanError as e:
        status = _fail(*(f"{_source(args)}{issue}" for issue in e.issues))
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _failed(args)
    except KeyboardInterrupt:
        status = 130
    except Exception as e:
        status = _fail(f"{_source(args)}{FAILED} ({fault(e)})", status=_failed(args))
    return status


def _failed(args: argparse.Namespace) -> int:
    """The status of a command that failed; where 1 says that a plan does not fit, it is 2."""
    return BAD_INPUT if _checks(args) else 1


def _checks(args: argparse.Namespace) -> bool:
    return bool(getattr(args, "check", False) or getattr(args, "check_serving", False))


FAILED = "Memplan failed at this, which is Memplan's fault; please report it"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="memplan",
        description="Where every byte of a run goes, and what it costs in time.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], about: str) -> Any:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        return sub

    about = "Say what a plan needs. {} is a plan; `memplan plans NAME` prints another."
    sub = command("evaluate", _evaluate, about)
    sub.add_argument("plan", metavar="PLAN.json|-", help="a file, or - for standard input")
    about = "print the Report as JSON; with -, read one plan a line and print one Report a line"
    sub.add_argument("--json", action="store_true", help=about)
    about = (
        "say by the exit status whether training fits (serving, where training is not planned): 0 "
        "it fits, 1 it does not, 3 it is tight (the range of what it needs goes beyond the "
        "memory), 2 there is no answer; of several plans the worst: 2, then 1, then 3"
    )
    sub.add_argument("--check", action="store_true", help=about)
    about = "the same of the sequences that serving is asked for; with --check, of both"
    sub.add_argument("--check-serving", action="store_true", help=about)
    about = "Say why a number of a plan's report is what it is, down to its factors and sources."
    sub = command("explain", _explain, about)
    sub.add_argument("plan", metavar="PLAN.json|-", help="a file, or - for standard input")
    about = "where the number is in the Report: memory.allocated_bytes; without it, all are listed"
    sub.add_argument("number", nargs="?", metavar="NUMBER", help=about)
    about = (
        "List the changes that make a plan fit or faster, each with its price: single ones, and "
        "two at once where no single one on the same GPUs fits and trains the same."
    )
    sub = command("levers", _levers, about)
    sub.add_argument("plan", metavar="PLAN.json|-", help="a file, or - for standard input")
    sub.add_argument("--json", action="store_true", help="as JSON")
    about = "Send a stream of requests through the plan's server, strategy by strategy."
    sub = command("simulate", _simulate, about)
    sub.add_argument("plan", metavar="PLAN.json|-", help="a file, or - for standard input")
    about = "take prompt and output lengths from this file: two columns, in tokens"
    sub.add_argument("--lengths", metavar="FILE.csv", help=about)
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as JSON")
    form.add_argument("--csv", action="store_true", help="one row for each strategy, or each rate")
    about = "the plan's own cache at one arrival rate after another, to more than it can take"
    sub.add_argument("--rates", action="store_true", help=about)
    about = "Find the longest context, the most sequences or the fewest GPUs that a plan can serve."
    sub = command("solve", _solve, about)
    sub.add_argument("question", choices=("context", "concurrency", "gpus"), help="what to find")
    sub.add_argument("plan", metavar="PLAN.json|-", help="a file, or - for standard input")
    sub.add_argument("--rate", type=_positive, help="requests per second, which gpus needs")
    about = "most seconds to the first token; else the plan's serve.target_ttft"
    sub.add_argument("--ttft", type=_positive, help=about)
    about = "most seconds for each token after it; else the plan's serve.target_tpot"
    sub.add_argument("--tpot", type=_positive, help=about)
    sub.add_argument("--json", action="store_true", help="the answer, its plan and what it serves")
    about = "Open the app in a browser. It serves this machine alone, unless --host says otherwise."
    sub = command("app", _app, about)
    sub.add_argument("--port", type=_port, help=f"default: the first free one from {FIRST_PORT}")
    sub.add_argument("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    about = "a name under which others reach it, where --host serves them; may be repeated"
    sub.add_argument("--allow", metavar="NAME", action="append", default=[], help=about)
    sub.add_argument("--no-browser", action="store_true", help="only print the address")
    sub = command("models", _models, "List the model presets.")
    sub.add_argument("--json", action="store_true", help="as JSON")
    sub = command("gpus", _gpus, "List the accelerator presets.")
    sub.add_argument("--json", action="store_true", help="as JSON")
    about = "List what clouds ask for one GPU for one hour, with date and source."
    sub = command("prices", _prices, about)
    sub.add_argument("gpu", nargs="?", metavar="GPU", help="of this accelerator preset only")
    sub.add_argument("--json", action="store_true", help="as JSON")
    sub = command("plans", _plans, "List the worked plans, or print one as JSON.")
    sub.add_argument("name", nargs="?", help="print this plan")
    sub.add_argument("--json", action="store_true", help="list as JSON")
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from memcore.version import version

        print(f"memplan {version()}")
        parser.exit()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 65_535):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a port from 1 to 65535")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number above 0")
    return value


def _fail(*messages: str, status: int = BAD_INPUT) -> int:
    for message in messages:
        print(f"memplan: {message}", file=sys.stderr)
    return status


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[str]:
    """Columns two spaces apart, the first `left` of them to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = zip(row, widths, strict=True)
        texts = (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(cells))
        yield "  ".join(texts).rstrip()


# ---- evaluate


def _evaluate(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate

    if args.plan == "-" and args.json:
        return _evaluate_lines(sys.stdin.buffer, args)
    plan = _plan(args)
    report = evaluate(plan)
    print(_json(report.to_dict(), indent=1) if args.json else _readable(plan, report))
    return _checked(args, report)


def _checked(args: argparse.Namespace, report: Report) -> int:
    """The exit status of what was asked to be checked, the worst; 0 where nothing was."""
    asked = [report.verdict] * args.check + [report.serving_verdict] * args.check_serving
    return max((CHECKED[verdict] for verdict in asked), key=WORST.index, default=0)


def _evaluate_lines(lines: IO[bytes], args: argparse.Namespace) -> int:
    """One Plan per line in, one Report per line out, in order; a line that is bad, or that Memplan
    fails at, gives an `error`."""
    from memcore.evaluate import evaluate

    status, number = 0, 0
    while line := lines.readline(MAX_PLAN_BYTES + 1):
        number += 1
        rest = line
        while len(rest) > MAX_PLAN_BYTES and not rest.endswith(b"\n"):  # to the end of this line
            rest = lines.readline(MAX_PLAN_BYTES + 1)
        if not line.strip():
            continue
        try:
            report = evaluate(_plan_of(line))
            answer = _json(report.to_dict())
            status = max(status, _checked(args, report), key=WORST.index)
        except PlanError as e:
            status = BAD_INPUT
            issues = [{"field": i.field, "message": i.message} for i in e.issues]
            answer = _json({"error": str(e), "line": number, "issues": issues})
        except Exception as e:  # the lines that follow have their answers all the same
            status = max(status, _failed(args), key=WORST.index)
            error = f"{FAILED} ({fault(e)})"
            answer = _json({"error": error, "line": number, "issues": []})
        print(answer, flush=True)
    return status


def _plan(args: argparse.Namespace) -> Plan:
    """The plan that a command was given. Raises PlanError, which `main` prints with its source."""
    return _plan_of(_read(args.plan))


def _source(args: argparse.Namespace) -> str:
    """Where a command's plan is from, before what is wrong with it; '' of one that takes none."""
    path = getattr(args, "plan", None)
    if path is None:
        return ""
    return f"{'standard input' if path == '-' else shown(path)[1:-1]}: "


def _read(path: str, most: int = MAX_PLAN_BYTES) -> bytes:
    """The bytes of a file or of standard input, up to just over the limit. Raises PlanError."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(most + 1)
        with open(path, "rb") as file:
            return file.read(most + 1)
    except OSError as e:
        raise PlanError([Issue("", (e.strerror or str(e)).lower())]) from None
    except ValueError as e:  # a null byte in the name
        raise PlanError([Issue("", str(e))]) from None


def _plan_of(data: bytes) -> Plan:
    """The plan that JSON text describes. Raises PlanError, whatever the bytes are."""
    from memcore.plan.plan import Plan

    if len(data) > MAX_PLAN_BYTES:
        raise PlanError([Issue("", f"more than {MAX_PLAN_BYTES:,} bytes, so not a plan")])
    try:
        text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
        document = json.loads(text, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError:
        raise PlanError([Issue("", "not text, so not a plan in JSON")]) from None
    except RecursionError:
        raise PlanError([Issue("", "nested too deeply to be a plan")]) from None
    except json.JSONDecodeError as e:
        where = f"line {e.lineno}, column {e.colno}"
        raise PlanError([Issue("", f"not JSON: {e.msg} ({where})")]) from None
    except ValueError as e:
        raise PlanError([Issue("", f"not a plan: {e}")]) from None
    return Plan.of(document)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {shown(key)} is there twice")
        values[key] = value
    return values


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        message = "a number in it is not finite; JSON has no NaN and no Infinity"
        raise PlanError([Issue("", message)]) from None


def _readable(plan: Plan, report: Report) -> str:
    """The Report for a terminal."""
    blocks = [
        _headline(plan, report),
        *_memory(report),
        *_time(report),
        *_run(plan, report),
        *_serve(plan, report),
    ]
    notes = [f"Note: {note}" for note in report.notes]
    notes += [f"Note on {path}: {remark}" for path, remark in report.remarks.items()]
    blocks.append("\n".join(notes))
    text = "\n\n".join(filter(None, blocks))
    return _printable(text)


def _headline(plan: Plan, report: Report) -> str:
    model = f"{plan.architecture.label}, {count_text(report.parameters)} parameters"
    return f"{model}, on {plan.cluster.gpus:,} x {plan.accelerator.label}"


def _memory(report: Report) -> Iterable[str]:
    memory = report.memory
    if memory is None:
        return
    low, high = memory.device_bytes
    peak = memory.peak
    label = next(
        (i.label for i in memory.timeline if (i.rank, i.id) == (peak.rank, peak.instant)),
        peak.instant,
    )
    yield (
        f"{memory.verdict.upper()}: {bytes_text(low)} to {bytes_text(high)} of "
        f"{bytes_text(memory.capacity_bytes)} per GPU\nPeak: {label}"
    )

    def row(name: str, size: int, whole: int) -> tuple[str, ...]:
        share = f"{size / whole:.1%}" if whole else ""
        return name.replace("_", " "), f"{size:,}", bytes_text(size), share

    total = memory.allocated_bytes
    rows = [row(name, size, total) for name, size in memory.consumers.items()]
    rows.append(row("allocated", total, total))
    for name, (low, high) in (
        ("reserved", memory.reserved_bytes),
        ("on the device", memory.device_bytes),
    ):
        rows.append((f"{name}, at least", f"{low:,}", bytes_text(low), ""))
        rows.append((f"{name}, at most", f"{high:,}", bytes_text(high), ""))
    yield "\n".join(_table(("Per GPU at the peak", "bytes", "", "share"), rows))
    rows = [
        row(name, size, memory.tier_capacities.get(name, 0))
        for name, size in memory.tiers.items()
        if name != "hbm" and size
    ]
    if rows:
        yield "\n".join(_table(("Per node", "bytes", "", "of all"), rows))


def _time(report: Report) -> Iterable[str]:
    time = report.time
    if time is None:
        return
    yield (
        f"Step: {seconds_text(time.step_seconds)}, bound by {time.bound_by}; "
        f"{time.tokens_per_second:,.0f} tokens/s, MFU {time.mfu:.1%}"
    )
    rows = [
        (name, seconds_text(busy), seconds_text(time.exposed.get(name, 0.0)))
        for name, busy in time.resources.items()
        if busy
    ]
    yield "\n".join(_table(("Resource", "busy", "exposed"), rows))


def _run(plan: Plan, report: Report) -> Iterable[str]:
    run = report.run
    if run is None:
        return
    said = [f"{run.steps:,} steps", seconds_text(run.seconds), f"{run.gpu_hours:,.0f} GPU-hours"]
    if run.cost is not None:
        price = money_text(plan.run.price_per_gpu_hour)
        said.append(f"{money_text(run.cost)} at {price} per GPU-hour")
    yield (
        f"{count_text(plan.run.tokens)} tokens: {', '.join(said)}\n"
        f"Energy at {rate_text(run.watts, 'W')}: {energy_text(run.energy_joules)}, "
        f"{energy_text(run.joules_per_token)} a token"
    )


def _serve(plan: Plan, report: Report) -> Iterable[str]:
    serve = report.serve
    if serve is None:
        return
    from memcore.serving.serve import verdict

    state, concurrency = serve.state_bytes_per_sequence, report.plan["serve"]["concurrency"]
    states = f" and {bytes_text(state)} a sequence" if state else ""
    word = "FITS" if serve.fits else "DOES NOT FIT"
    said = (
        f"Serving {word}: {verdict(serve, concurrency)}\n"
        f"Serving, per GPU: weights {bytes_text(serve.weights_bytes)} ({plan.weights.label}), KV "
        f"cache {bytes_text(serve.kv_bytes_per_token)} a token{states}; room for "
        f"{serve.kv_capacity_tokens:,} tokens, {serve.max_concurrency:,} sequences on the "
        f"{serve.gpus_per_replica:,} GPU{'s' * (serve.gpus_per_replica > 1)} of a replica"
    )
    if serve.ttft_seconds and serve.tpot_seconds and serve.tokens_per_second:
        said += (
            f"\nFirst token after {seconds_text(serve.ttft_seconds)}, then one every "
            f"{seconds_text(serve.tpot_seconds)}; {serve.tokens_per_second:,.0f} tokens/s in all"
        )
    yield said


# ---- solve


def _solve(args: argparse.Namespace) -> int:
    from memcore.search import solve
    from memcore.serving.serve import servable

    plan = _plan(args)
    if not servable(plan.architecture):
        return _fail("this plan cannot be served: `memplan evaluate` says why")
    s = plan.serve
    targets = solve.Targets(args.ttft or s.target_ttft or None, args.tpot or s.target_tpot or None)
    if args.question == "gpus":
        if args.rate is None:
            return _fail("how many requests per second? Say --rate")
        answer = solve.fewest_gpus(plan, args.rate, targets)
    else:
        find = {"context": solve.longest_context, "concurrency": solve.largest_concurrency}
        answer = find[args.question](plan, targets)
    print(_json(answer.to_dict(), indent=1) if args.json else _printable(_solved(answer)))
    return 0


def _solved(answer: Answer) -> str:
    """An answer for a terminal."""
    from memcore.search.solve import LIMITS

    s, p = answer.served, answer.plan
    what = {
        "context": f"Longest context: {answer.value:,} tokens, {p.serve.output_len:,} of them "
        f"generated, for {p.serve.concurrency:,} sequences at once",
        "concurrency": f"Most sequences: {answer.value:,} at once",
        "gpus": f"Fewest GPUs: {answer.value:,}, tensor parallel {p.serving_tp:,}, with "
        f"{p.serve.concurrency:,} sequences at once on each replica",
    }[answer.question]
    if not answer.value:
        return f"Not possible: {LIMITS[answer.limit]} forbids it."
    less = "fewer" if answer.question == "gpus" else "more"
    found = f"{what}; {LIMITS[answer.limit]} forbids {less}."
    if s.ttft_seconds is None or s.tpot_seconds is None:
        return found
    return (
        f"{found}\nFirst token after {seconds_text(s.ttft_seconds)}, then one every "
        f"{seconds_text(s.tpot_seconds)}"
    )


# ---- simulate

WAITS = ("wait", "ttft", "tpot", "latency")


def _simulate(args: argparse.Namespace) -> int:
    from memcore.stream import loads, read_lengths, simulate
    from memcore.stream.lengths import MAX_BYTES

    plan = _plan(args)
    try:
        given = args.lengths is not None
        lengths = read_lengths(_read(args.lengths, MAX_BYTES)) if given else None
    except PlanError as e:
        return _fail(*(f"{shown(args.lengths)[1:-1]}: {i.message}" for i in e.issues))
    if args.rates:
        return _rates(args, loads(plan, lengths))
    stream = simulate(plan, lengths)
    if stream is None:
        return _fail("no stream is simulated for this plan: `memplan evaluate` says why")
    if args.json:
        print(_json(stream.to_dict(), indent=1))
    elif args.csv:
        _write_csv([run.row() for run in stream.runs])
    else:
        print(_printable("\n\n".join(filter(None, _streamed(plan, stream)))))
    return 0


def _rates(args: argparse.Namespace, found: Sequence[Load]) -> int:
    if not found:
        return _fail("no stream is simulated for this plan: `memplan evaluate` says why")
    if args.json:
        print(_json([load.row() for load in found], indent=1))
    elif args.csv:
        _write_csv([load.row() for load in found])
    else:
        head = ("Requests/s", "at once", "tokens/s", *WAITS, "in targets")
        rows = [
            (
                f"{load.rate:,.3g}",
                f"{load.run.concurrency_mean:,.1f}",
                f"{load.run.tokens_per_second:,.0f}",
                *(_spread(getattr(load.run, name)) for name in WAITS),
                "-" if load.run.attained is None else f"{load.run.attained:.1%}",
            )
            for load in found
        ]
        print(_printable("\n".join(_table(head, rows))))
        print("Times: median, 99th percentile.")
    return 0


def _write_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    import csv

    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _streamed(plan: Plan, stream: Stream) -> Iterable[str]:
    """What a simulation says, for a terminal."""
    yield (
        f"{stream.requests:,} requests to {plan.architecture.label}, prompts of "
        f"{stream.prompt_tokens_mean:,.0f} and outputs of {stream.output_tokens_mean:,.0f} tokens "
        f"on average;\nroom for {stream.capacity_tokens:,} tokens in the KV cache of one replica"
    )
    runs = stream.runs
    head = ("At once", "mean", "most", "put out", "refused", "tokens/s", "seconds")
    rows = [
        (
            r.label,
            f"{r.concurrency_mean:,.1f}",
            f"{r.concurrency_peak:,}",
            f"{r.preemptions:,}",
            f"{r.refused:,}",
            f"{r.tokens_per_second:,.0f}",
            f"{r.seconds:,.1f}",
        )
        for r in runs
    ]
    yield "\n".join(_table(head, rows))
    kinds = list(runs[0].memory)
    shares = [(r.label, *(f"{r.memory[kind]:.1%}" for kind in kinds)) for r in runs]
    yield "\n".join(_table(("Share of the cache", *kinds), shares))
    spreads = [
        (r.label, *(_spread(getattr(r, name)) for name in WAITS)) for r in runs if r.completed
    ]
    yield "\n".join(_table(("Median, 99th percentile", *WAITS), spreads))
    aimed = [(r.label, f"{r.attained:.1%}", f"{r.goodput:,.3g}") for r in runs if r.attained]
    yield "\n".join(_table(("Within targets", "of requests", "a second"), aimed)) if aimed else ""
    yield "\n".join(f"Note: {note}" for note in stream.notes)


def _spread(spread: Spread | None) -> str:
    return f"{seconds_text(spread.p50)}, {seconds_text(spread.p99)}" if spread else "-"


# ---- explain


def _explain(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate
    from memcore.explain.book import Book
    from memcore.quantity.quantity import UnknownNumberError

    plan = _plan(args)
    book = Book(plan, evaluate(plan))
    if args.number is None:
        rows = [(path, book.explain(path).text) for path in book.paths()]
        print(_printable("\n".join(_table(("number", "is"), rows, left=2))))
        return 0
    try:
        blocks = [_explained(e) for e in book.chain(args.number)]
    except UnknownNumberError as e:
        return _fail(str(e))
    print(_printable("\n\n".join([blocks[0], *(f"Largest part: {b}" for b in blocks[1:])])))
    return 0


def _explained(e: Explanation) -> str:
    """One explanation for a terminal: its formula, its parts and its sources."""
    lines = [f"{e.what} = {e.text} ({e.certainty})  {e.path}"]
    if e.meaning:
        lines.append(f"  {e.meaning}")
    if e.formula is not None:
        lines += [f"  = {e.formula.words}", f"  = {e.formula.numbers}"]
    shown_parts = e.parts[:PARTS]
    rows = [
        (f"  {t.name}", exact_text(t.value, t.unit), t.certainty, t.path or t.source)
        for t in shown_parts
    ]
    lines += _table(("  part", "is", "certainty", "explained by"), rows) if rows else []
    if len(e.parts) > PARTS:
        lines.append(f"  and {len(e.parts) - PARTS:,} smaller parts")
    return "\n".join([*lines, *(f"  Source: {source}" for source in e.sources)])


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


# ---- levers


def _levers(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate
    from memcore.search.levers import headline, levers

    plan = _plan(args)
    report, found = evaluate(plan), levers(plan)
    if args.json:
        print(_json([lever.to_dict() for lever in found], indent=1))
        return 0
    if report.memory is None:
        print(_printable("\n".join(f"Note: {note}" for note in report.notes)))
        return 0
    rows = [
        (
            lever.label,
            ", ".join(lever.followers),
            lever.trains_text,
            lever.verdict,
            bytes_text(lever.saved_bytes),
            signed_seconds(lever.added_seconds),
            relative_text(lever.price),
        )
        for lever in found
    ]
    head = ("change", "and sets", "it", "then", "saves at the peak", "step", "GPU time per token")
    blocks = [_headline(plan, report), headline(report.memory, found)]
    blocks += ["\n".join(_table(head, rows, left=4))] if rows else []
    print(_printable("\n\n".join(blocks)))
    return 0


# ---- what ships with Memplan


def _models(args: argparse.Namespace) -> int:
    from memcore.models import catalog
    from memcore.models.counts import parameters

    rows: list[dict[str, Any]] = []
    for name in catalog.model_names():
        model = catalog.model(name)
        rows.append({"name": name, "label": model.label, "parameters": parameters(model)})
    texts = [(r["name"], r["label"], count_text(r["parameters"])) for r in rows]
    return _listing(rows, _table(("name", "label", "parameters"), texts, left=2), args.json)


def _gpus(args: argparse.Namespace) -> int:
    from memcore.models import catalog

    rows = []
    texts = []
    for name in catalog.gpu_names():
        gpu = catalog.accelerator(name)
        bf16 = gpu.flops.get("bf16")
        row = {"name": name, "label": gpu.label, "memory_bytes": gpu.memory_bytes}
        row |= {"memory_bandwidth": gpu.memory_bandwidth, "status": gpu.status}
        rows.append(row | ({"bf16_flops": bf16} if bf16 else {}))
        flops = f"{bf16 / 1e12:,.0f}" if bf16 else "-"
        bandwidth = rate_text(gpu.memory_bandwidth, "B/s")
        status = "" if gpu.status == "shipping" else gpu.status
        texts.append((name, gpu.label, bytes_text(gpu.memory_bytes), bandwidth, flops, status))
    head = ("name", "label", "memory", "bandwidth", "bf16 TFLOP/s", "")
    return _listing(rows, _table(head, texts, left=2), args.json)


def _prices(args: argparse.Namespace, today: date | None = None) -> int:
    from memcore.models import catalog

    if args.gpu is not None and args.gpu not in catalog.gpu_names():
        hint = did_you_mean(args.gpu, catalog.gpu_names())
        return _fail(f"no GPU preset {shown(args.gpu)}; {hint}")
    today = today or date.today()
    rows = []
    texts = []
    for name in catalog.priced_gpus() if args.gpu is None else (args.gpu,):
        for cloud, row in catalog.prices(name).items():
            old = catalog.outdated(row["as_of"], today)
            rows.append({**row, "outdated": old})
            dated = f"{row['as_of']}, may be over a year old" if old else row["as_of"]
            texts.append((name, cloud, money_text(row["usd"]), dated))
    if not rows and not args.json:
        print(f"No list price of {args.gpu} is known; set run.price_per_gpu_hour yourself.")
        return 0
    return _listing(
        rows, _table(("gpu", "cloud", "USD an hour", "as of"), texts, left=2), args.json
    )


def _plans(args: argparse.Namespace) -> int:
    from memcore.models import catalog

    entries = catalog.plan_entries()
    if args.name is not None:
        if args.name not in entries:
            return _fail(f"no worked plan {shown(args.name)}; {did_you_mean(args.name, entries)}")
        print(_json(entries[args.name]["plan"], indent=1))
        return 0
    rows = [{"name": name, "label": e["label"], **e} for name, e in entries.items()]
    texts = [(r["name"], r["label"], r["question"]) for r in rows]
    return _listing(rows, _table(("name", "label", "question"), texts, left=3), args.json)


def _listing(rows: Sequence[Mapping[str, Any]], table: Iterable[str], as_json: bool) -> int:
    print(_json(rows, indent=1) if as_json else "\n".join(table))
    return 0


# ---- the app


def _app(args: argparse.Namespace) -> int:
    """Serve app/main.py, which lies beside this package, and open it."""
    import threading
    from pathlib import Path

    try:
        _check_address(args.host, args.port)
    except OSError as e:
        at = f"{args.host} port {args.port}" if args.port else args.host
        return _fail(f"cannot serve on {at}: {e.strerror or e}; try another --port", status=1)
    browser = not args.no_browser and _has_display()
    threading.Thread(target=_announce, args=(args.host, browser), daemon=True).start()

    from streamlit.web import cli

    flags = {
        "server.address": args.host,
        # Without one Streamlit takes the first free port from FIRST_PORT on.
        **({"server.port": args.port} if args.port else {}),
        "server.headless": "true",  # no question about an e-mail address; we open the browser
        "browser.gatherUsageStats": "false",
        "logger.hideWelcomeMessage": "true",
    }
    given = [f"--{k}={v}" for k, v in flags.items()]
    given += [f"--server.allowedHosts={name}" for name in _names(args.host, args.allow)]
    script = Path(__file__).resolve().parents[1] / "app" / "main.py"
    cli.main(["run", str(script), *given], prog_name="memplan")
    return 0


LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _names(host: str, allowed: Sequence[str]) -> list[str]:
    """The names that the server answers to: this machine's own, and those that were allowed. Not
    every name: a page on the internet can have one lead here."""
    import socket

    if host not in ("0.0.0.0", "::"):
        return list(dict.fromkeys((*LOOPBACK, host, *allowed)))
    machine = socket.gethostname()
    return list(dict.fromkeys((*LOOPBACK, machine, f"{machine}.local", *_address(), *allowed)))


def _address() -> Iterable[str]:
    """This machine's address in its network, if it has one. Nothing is sent."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 1))  # an address that is nobody's (RFC 5737)
        except OSError:
            return
        yield probe.getsockname()[0]


def _check_address(host: str, port: int | None) -> None:
    """Raises OSError where nothing can be served on this host, or on this port of it."""
    import socket

    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    socket.create_server((host, port or 0), family=family).close()


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _announce(host: str, open_browser: bool) -> None:
    """Print the address, and open it, as soon as the server answers."""
    import time
    import urllib.request

    from app import front

    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{f'[{here}]' if ':' in here else here}:{front.port()}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            direct.open(f"{url}/_stcore/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    print(f"Memplan is at {url} (Ctrl-C stops it)", flush=True)
    if open_browser:
        import webbrowser

        webbrowser.open(url)


if __name__ == "__main__":
    sys.exit(main())
