"""Texts by chance, read by everything that reads texts of strangers:
`python benchmarks/fuzz_texts.py [TEXTS] [SEED] [LENGTH]`, of up to LENGTH characters each.

Each text is pieces, one after another: a keyword of a program, a class of characters, brackets,
quotes, repeated by chance. Each reader takes one text after the other in turns. Prints the slowest,
by the processor's time, each read a second time at the end, since a busy machine makes any one
longer; and each error that is no refusal, with the text's number: the same seed draws the same
texts. Target: none over 1 s when it is read again, no error.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).parents[1] / "tests" / "helpers"),
    str(Path(__file__).parents[1]),
]

import strangers  # noqa: E402

TEXTS, SEED, LENGTH = 10_000, 1, 300_000
SLOWEST = 10
PIECES = [piece for pair in strangers.TEXTS.values() for piece in pair if piece]
PIECES += ["\n", " ", "]", "}", ")", "'", '"', ":", "=", ",", "--", "\\\n", "$", "import vllm\n"]


def drawn(rng: random.Random, most: int) -> str:
    """A text of up to so many characters."""
    left = rng.randint(1, most)
    found = []
    while left > 0:
        piece = rng.choice(PIECES)
        times = rng.choice((1, 1, 1, 3, 100, 1 + left // len(piece)))
        found.append((piece * times)[:left])
        left -= len(found[-1])
    return "".join(found)


def seconds_of(read: Callable[[str], object], text: str) -> float:
    """Of the processor, to read a text or to refuse it."""
    start = time.process_time()
    strangers.tried(read, text)
    return time.process_time() - start


def main(texts: int = TEXTS, seed: int = SEED, length: int = LENGTH) -> None:
    rng = random.Random(seed)
    readers = list(strangers.READERS.items())
    slowest: list[tuple[float, int, str]] = []
    errors = 0
    for number in range(texts):
        name, read = readers[number % len(readers)]
        text = drawn(rng, length)
        try:
            seconds = seconds_of(read, text)
        except Exception:
            errors += 1
            print(f"text {number}, {len(text):,} characters: {name}\n{traceback.format_exc()}")
            continue
        slowest = heapq.nlargest(SLOWEST, [*slowest, (seconds, number, text)])
    print(f"{texts:,} texts of seed {seed}, {errors} errors. The slowest, and when read again:")
    for seconds, number, text in slowest:
        name, read = readers[number % len(readers)]
        again = seconds_of(read, text)
        print(f"{seconds:6.2f} {again:6.2f} s  text {number}, {len(text):,} characters: {name}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
