"""The tables of figures in README.md and docs/accuracy.md, written from the evidence.

In those files a table stands between `<!-- figures: NAME -->` and `<!-- end -->`;
`python -m memcore.evidence.markdown` writes each of them anew, in the checkout.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from memcore import evidence
from memcore.evidence.comparison import CHECK, OUT_OF_MEMORY, TUNED, Comparison
from memcore.plan.plan import Plan
from memcore.units import bytes_text

ROOT = Path(__file__).resolve().parents[2]

SMALL_DIFFERENCE = 1e-5
PER_TOKEN = ("seconds per token", "seconds per token, prompt too")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; its cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _off(error: float) -> str:
    """A relative difference without its sign."""
    error = abs(error)
    if not error:
        return "equal"
    if error < SMALL_DIFFERENCE:
        return "under 0.001 %"
    return f"{error * 100:.2g} %" if error < 0.1 else f"{error:.0%}".replace("%", " %")


def _signed(error: float) -> str:
    sign = "" if abs(error) < SMALL_DIFFERENCE else "+" if error > 0 else "-"
    return sign + _off(error)


def _spread(rows: Sequence[Comparison]) -> tuple[str, str, str, str]:
    """How many, how far off the middle one is, how far nine in ten are at most, and the worst."""
    off = sorted(abs(r.error) for r in rows)
    worst = max(rows, key=lambda r: abs(r.error)).error
    return (
        f"{len(off):,}",
        _off(median(off)),
        _off(off[math.ceil(0.9 * len(off)) - 1]),
        _signed(worst),
    )


def _checks(*what: str, autocast: bool | None = None) -> list[Comparison]:
    return [
        r
        for r in evidence.compare()
        if r.what in what and r.used_for == CHECK and autocast in (None, r.regime == "autocast")
    ]


def _kind(plan: Plan) -> tuple[object, ...]:
    """The model and the GPU of a plan, however long its sequences are."""
    m = plan.architecture
    sizes = (m.hidden_size, m.layers, m.intermediate_size, m.experts)
    return m.family, sizes, plan.accelerator.label


def steps() -> dict[str, list[Comparison]]:
    """The measured steps, by how much of them the constants were tuned on."""
    runs = [(Plan.of(run["plan"]), run) for run in evidence.times_table()["runs"]]
    seen = {_kind(plan) for plan, run in runs if run["used_for"] == TUNED}
    known = [_kind(plan) in seen for plan, _ in runs]
    rows = list(zip(evidence.compared_times(), known, strict=True))
    checks = [(r, k) for r, k in rows if r.used_for == CHECK]
    return {
        "tuned on": [r for r, _ in rows if r.used_for != CHECK],
        "checked": [r for r, _ in checks],
        "checked, this model on this GPU tuned on elsewhere": [r for r, k in checks if k],
        "checked, never this model on this GPU": [r for r, k in checks if not k],
    }


SPREAD = ("figures", "half within", "nine in ten within", "worst")


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
        "Of these, a model on a GPU where it was never tuned on": of[
            "checked, never this model on this GPU"
        ],
    }
    return table(("what", *SPREAD), [(what, *_spread(rows)) for what, rows in lines.items()])


WORDS = {"saved": "bytes saved for backward", "peak": "peak of a step", "figure": "as published"}


def everything() -> str:
    """Each kind of figure, those that were tuned on apart from those that were checked."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for r in evidence.compare():
        what = WORDS.get(r.what, r.what) + (", autocast" if r.regime == "autocast" else "")
        groups.setdefault((what, r.source, r.used_for), []).append(r)
    rows = [(what, source, used, *_spread(found)) for (what, source, used), found in groups.items()]
    return table(("what", "against", "used for", *SPREAD), rows)


def step_times() -> str:
    return table(("steps", *SPREAD), [(name, *_spread(rows)) for name, rows in steps().items()])


def far_off(least: float = 0.1) -> str:
    """Every checked figure that is further off than `least`, the worst first."""
    rows = [
        r
        for r in evidence.compare()
        if abs(r.error) > least and r.used_for == CHECK and r.what != OUT_OF_MEMORY
    ]
    return table(
        ("what", "run", "ours is", "remark"),
        [
            (
                r.what if r.what != "figure" else "as published",
                r.run or r.model,
                _signed(r.error),
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
            for w in evidence.worked()
            if (said := [s.theirs for s in w.said if s.calculator.counts != evidence.STATES])
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


PARTS = {
    "short": short,
    "steps": step_times,
    "everything": everything,
    "far off": far_off,
    "calculators": calculators,
    "small models": small_models,
}
PART = re.compile(r"(<!-- figures: ([a-z ]+) -->\n)(?:(?!<!--).)*(<!-- end -->)", re.S)


def written(text: str) -> str:
    """A page with each of its parts written anew."""
    return PART.sub(lambda m: f"{m[1]}{PARTS[m[2]]()}\n{m[3]}", text)


PAGES = ("README.md", "docs/accuracy.md")


def main() -> int:
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
