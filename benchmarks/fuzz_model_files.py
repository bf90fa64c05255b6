"""Model files changed by chance, planned as a stranger's:
`python benchmarks/fuzz_model_files.py [FILES] [SEED]`.

Each is a file of tests/units/models with one to three places changed: another value there, nothing
there, a row twice, or the value of another place. What is a plan all the same is evaluated. Prints
how many were refused, each error that is no refusal with the file's number (the same seed draws the
same files), and the slowest and largest. Target: no error, none over 1 s of the processor's time or
200 MB more than before it.
"""

from __future__ import annotations

import heapq
import json
import random
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from hostile_files import mutated  # noqa: E402

from memcore.errors import PlanError  # noqa: E402
from memcore.evaluate import evaluate  # noqa: E402
from memcore.plan.plan import Plan  # noqa: E402

FILES, SEED = 100_000, 1
SLOWEST = 10
MB = 1_000_000
LONGEST = 1500  # characters of a refusal


def main(files: int = FILES, seed: int = SEED) -> None:
    """Plan so many files and print what came of them."""
    rng = random.Random(seed)
    texts = [
        (ROOT / "tests" / "units" / "models" / f"traced_{name}.json").read_text()
        for name in ("net", "unet")
    ]
    took: list[tuple[float, int]] = []
    grew: list[tuple[int, int]] = []
    refused = errors = 0
    evaluate(Plan(model=json.loads(texts[0])))  # tables are read before the clock runs
    for number in range(files):
        document: Any = mutated(json.loads(texts[number % len(texts)]), rng)
        before, start = _most_bytes(), time.process_time()
        try:
            evaluate(Plan(model=document))
        except PlanError as e:
            refused += 1
            if len(str(e)) > LONGEST:
                errors += 1
                print(f"file {number}: a refusal of {len(str(e)):,} characters")
        except Exception:
            errors += 1
            print(f"file {number}:\n{traceback.format_exc()}")
        took.append((time.process_time() - start, number))
        grew.append((_most_bytes() - before, number))
    print(f"{files:,} files of seed {seed}, {refused:,} refused, {errors} errors")
    for seconds, number in heapq.nlargest(SLOWEST, took):
        print(f"{seconds:6.2f} s   file {number}")
    for size, number in heapq.nlargest(3, grew):
        print(f"{size / MB:6.0f} MB  file {number}")


def _most_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
