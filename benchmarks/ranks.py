"""Where published configurations stand among all that fit: `python benchmarks/ranks.py [ID...]`.

Writes presets/evidence/ranks.toml, in the checkout, and prints it; with ids of times.toml it only
prints those. About three seconds of processor each. evidence/ranks.py says what stands
beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evidence.ranks import Ranked, jobs, ranked
from memcore.plan.plan import Plan

PATH = Path(__file__).resolve().parents[1] / "presets" / "evidence" / "ranks.toml"
HEAD = """\
# Published configurations among all that fit, by our step time: written by benchmarks/ranks.py.
# share: of what fits, that is faster; told: so much faster that it can be told; fits: how many were
# looked at; slower: times as long as the fastest; fastest: what that has otherwise.
"""


def lines(run: str, found: Ranked) -> str:
    fastest = ", ".join(f"{name} {value}" for name, value in found.fastest.items())
    return (
        f'["{run}"]\nshare = {found.share:.2f}\ntold = {found.told:.2f}\nfits = {found.fits}\n'
        f'slower = {found.slower:.2f}\nfastest = "{fastest}"\n'
    )


def main(asked: list[str]) -> None:
    every, written = jobs(), [HEAD]
    for run in asked or every:
        written.append(lines(run, ranked(Plan.of(every[run]["plan"]))))
        print(f"{every[run]['run']}\n{written[-1]}", flush=True)
    if not asked:
        PATH.write_text("\n".join(written), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
