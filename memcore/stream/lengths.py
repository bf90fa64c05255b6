"""Lengths: when requests come, and how long their prompts and outputs are.

Everything is drawn from one seed with `random.Random`, whose sequence Python keeps from version to
version, so that a link means the same stream next year.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from memcore.errors import PlanError, refusal, shown
from memcore.plan.plan import Plan
from memcore.plan.sections import Serve

MAX_BYTES = 4_000_000  # of an uploaded file
MAX_ROWS = 100_000
MAX_LENGTH = 16_777_216  # tokens, as for a plan's own lengths
COLUMNS = {  # what a file may call its columns
    "prompt": ("prompt", "prompt_len", "prompt_tokens", "num_prefill_tokens", "input", "input_len",
               "input_tokens", "input_toks", "request tokens", "contexttokens"),
    "output": ("output", "output_len", "output_tokens", "num_decode_tokens", "output_toks",
               "response tokens", "generatedtokens"),
}  # fmt: skip
FORM = "two columns of whole numbers, prompt and output tokens, with or without a header"

Lengths = tuple[tuple[int, int], ...]  # (prompt, output) tokens
Refuse = Callable[[str], PlanError]


@dataclass(frozen=True, slots=True)
class Requests:
    """A stream of requests, the first to come first.

    arrivals   seconds; of a closed loop nan for whoever comes when another ends
    prompts    in tokens, as are outputs; shared: of every prompt's first tokens, so many are the
               same for all
    """

    arrivals: tuple[float, ...]
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    shared: int = 0

    @property
    def count(self) -> int:
        return len(self.arrivals)

    def first(self, count: int) -> Requests:
        """Those that come first."""
        return Requests(
            self.arrivals[:count], self.prompts[:count], self.outputs[:count], self.shared
        )

    def prompts_alone(self) -> Requests:
        """The same, which end with their first token."""
        return replace(self, outputs=(1,) * self.count)


def draw(plan: Plan, lengths: Lengths | None = None) -> Requests:
    """The plan's stream; with `lengths`, pairs from there at random in place of its own."""
    s, most = plan.serve, plan.longest_sequence
    random = Random(s.seed)
    arrivals = tuple(itertools.islice(_arrivals(s, random), s.requests))
    prompts, outputs = [], []
    for _ in range(s.requests):
        if lengths:
            prompt, output = lengths[int(random.random() * len(lengths))]
        else:
            prompt = s.shared_prefix + _length(
                s.lengths, s.prompt_len - s.shared_prefix, s.prompt_cv, random
            )
            output = _length(s.lengths, s.output_len, s.output_cv, random)
        prompt = max(min(prompt, most - 1), min(s.shared_prefix + 1, most - 1), 1)
        prompts.append(prompt)
        outputs.append(max(1, min(output, most - prompt)))
    return Requests(arrivals, tuple(prompts), tuple(outputs), s.shared_prefix)


def _arrivals(s: Serve, random: Random) -> Iterator[float]:
    now = 0.0
    for i in itertools.count():
        if s.arrivals == "burst":
            yield 0.0
        elif s.arrivals == "closed":
            yield 0.0 if i < s.concurrency else math.nan
        elif s.arrivals == "regular":
            yield i / s.arrival_rate
        else:
            now -= math.log1p(-random.random()) / s.arrival_rate
            yield now


def _length(distribution: str, mean: int, cv: float, random: Random) -> int:
    """Tokens: the mean itself, or log-normal with this mean and standard deviation cv x mean."""
    if distribution == "fixed" or cv == 0:
        return max(1, mean)
    variance = math.log1p(cv * cv)
    # Box and Muller's; the second of the pair is not used.
    u, v = 1 - random.random(), random.random()
    normal = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
    exponent = math.log(max(1, mean)) - variance / 2 + math.sqrt(variance) * normal
    return max(1, min(MAX_LENGTH, round(math.exp(min(exponent, 40.0)))))


# --- a file of lengths ---------------------------------------------------------------------------


def read_lengths(data: bytes, field: str = "lengths") -> Lengths:
    """The pairs in a CSV file. Raises PlanError naming the line and what to change."""

    def refuse(why: str) -> PlanError:
        return refusal(field, why)

    if len(data) > MAX_BYTES:
        raise refuse(
            f"the file has {len(data):,} bytes; at most {MAX_BYTES:,} and {MAX_ROWS:,} rows. "
            "A sample of its rows says as much"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refuse(f"not text in UTF-8; it must be a CSV of {FORM}") from None
    if "\0" in text:
        raise refuse(f"holds null bytes; it must be a CSV of {FORM}")
    rows = _rows(text, refuse)
    if not rows:
        raise refuse(f"the file is empty; it must have {FORM}")
    where, first = rows[0]
    columns = _columns(first)
    if columns is not None:
        rows = rows[1:]
        if not rows:
            raise refuse("there is a header and no row below it")
    elif all(_number(cell) is None for cell in first):
        raise refuse(
            f"line {where}: no column called prompt and none called output in "
            f"{shown(', '.join(first))}; it must have {FORM}"
        )
    elif len(first) != 2:
        raise refuse(f"line {where}: {len(first):,} columns and no header; it must have {FORM}")
    if len(rows) > MAX_ROWS:
        raise refuse(f"{len(rows):,} rows; at most {MAX_ROWS:,}. A sample of them says as much")
    prompt, output = columns or (0, 1)
    return tuple(
        (_tokens(row, prompt, "prompt", line, refuse), _tokens(row, output, "output", line, refuse))
        for line, row in rows
    )


def _rows(text: str, refuse: Refuse) -> list[tuple[int, list[str]]]:
    """Rows that are not blank, each with its line; split at commas, semicolons or tabs."""
    head = text[:4096].partition("\n")[0]
    mark = max(",;\t", key=head.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        return [
            (reader.line_num, [cell.strip() for cell in row])
            for row in reader
            if any(cell.strip() for cell in row)
        ]
    except csv.Error as e:
        raise refuse(f"not a CSV: {e}; it must have {FORM}") from None


def _columns(head: Sequence[str]) -> tuple[int, int] | None:
    """Which columns are prompt and output, if this is a header that names both."""
    names = [cell.lower() for cell in head]
    found = [next(filter(names.__contains__, known), "") for known in COLUMNS.values()]
    return (names.index(found[0]), names.index(found[1])) if all(found) else None


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell.isascii() and len(cell) <= 40 and "_" not in cell else None
    except ValueError:
        return None


def _tokens(row: Sequence[str], column: int, name: str, line: int, refuse: Refuse) -> int:
    if column >= len(row) or not row[column]:
        raise refuse(f"line {line}: no {name} tokens; every row has both, prompt and output")
    cell = row[column]
    value = _number(cell)
    if value is None or not math.isfinite(value) or value != int(value):
        raise refuse(f"line {line}: {shown(cell)} is not a whole number of {name} tokens")
    if not 1 <= value <= MAX_LENGTH:
        raise refuse(
            f"line {line}: {shown(cell)} {name} tokens; each must be from 1 to {MAX_LENGTH:,}"
        )
    return int(value)
