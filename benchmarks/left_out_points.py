"""Each point of presets/evidence/engines.csv, predicted with constants of engines that were fitted
without its cell (engine, GPU, ranks and model): `python benchmarks/left_out_points.py` writes
presets/evidence/engines_left_out.csv, a row for each row. Takes two minutes. To be run after
benchmarks/fit_engines.py, whose fit it is: the one that `cells` of engines.toml sums up.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from fit_engines import PARTS, Table, parts_of

from evidence.engines import points

PATH = Path(__file__).parents[1] / "presets" / "evidence" / "engines_left_out.csv"


def main() -> None:
    table = Table()
    most, part = np.ones(len(table.per_second), bool), parts_of(table.points)
    off = np.zeros((2, len(part)))
    for k in range(PARTS):
        seconds = table.point_seconds(table.fitted(part != k, most))
        for found, ours, theirs in zip(off, seconds, (table.token, table.first), strict=True):
            found[part == k] = (ours / theirs - 1)[part == k]
    rows = dict(zip(map(id, table.points), off.T, strict=True))
    with PATH.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("token", "first"))
        for point in points():
            found = rows.get(id(point))  # none of what fits nowhere
            out.writerow(("", "") if found is None else [f"{x:.4f}" for x in found])


if __name__ == "__main__":
    main()
