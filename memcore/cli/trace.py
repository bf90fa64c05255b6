"""`memplan trace`: a PyTorch model becomes a model file, which every other command plans."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from memcore.cli.printing import fail, printable, table
from memcore.errors import refusal, shown
from memcore.models.traced.file import ModelFile, read
from memcore.units import bytes_text

AFTER = 1.0  # seconds before what is being done is told


def run(args: argparse.Namespace) -> int:
    try:
        import torch
    except ImportError:
        return fail("tracing needs PyTorch, which the extra [trace] brings; plans do not")
    del torch  # what it is needed for imports it
    from memcore.tracing.targets import target_of
    from memcore.tracing.trace import trace

    began = time.monotonic()

    def say(doing: str) -> None:
        seconds = time.monotonic() - began
        if seconds > AFTER:
            print(printable(f"memplan: {seconds:,.0f} s: {doing}"), file=sys.stderr)

    target = target_of(args.target, _dims(args.dims))
    document = trace(target, args.dtype, _sizes(args.at), say, args.checks)
    file = read(document)  # what is written can be read
    out = Path(args.out or f"{target.label.split()[0].replace('/', '-')}.json")
    try:
        out.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    except OSError as e:
        return fail(f"--out: {(e.strerror or str(e)).lower()}")
    print(printable("\n".join(_told(file, out))))
    return 0


def _told(file: ModelFile, out: Path) -> Iterator[str]:
    """What was traced, beside PyTorch's own totals."""
    sizes = ", ".join(f"{name} {n:,}" for name, n in file.dims.items())
    yield f"{file.label}: {file.elements:,} parameters; traced at {sizes or 'fixed sizes'}"
    rows = [
        (
            ", ".join(f"{name} {n:,}" for name, n in check.sizes.items()),
            bytes_text(check.saved_bytes),
            f"{file.variant(check.sizes).saved_bytes(check.sizes) - check.saved_bytes:+,}",
            bytes_text(check.peak_bytes),
            f"{file.peak_bytes(check.sizes) / check.peak_bytes - 1:+.2%}",
        )
        for check in file.checks
    ]
    if rows:
        head = ("PyTorch itself at", "saved", "file, bytes", "peak", "file")
        yield from table(head, rows)
    if file.stand_ins:
        yield f"Stand-ins for CUDA's kernels: {', '.join(file.stand_ins)}"
    yield f"{out}: memplan evaluate {out}"


def _dims(given: list[str]) -> dict[str, tuple[str, ...]]:
    """What --dims says of inputs: image=batch,3,height,width."""
    found = {}
    for text in given:
        name, equals, dims = text.partition("=")
        words = tuple(word.strip() for word in dims.split(","))
        if not equals or not all(_is_dim(word) for word in words):
            raise refusal(
                "--dims",
                f"{shown(text)}: say INPUT=DIM,DIM,...; each is a whole number, a name of small "
                "letters, or a number times a name, as 8*height is",
            )
        found[name] = words
    return found


def _is_dim(word: str) -> bool:
    factor, star, name = word.partition("*")
    if star and not factor.isdigit():
        return False
    rest = name if star else word
    return (rest.isdigit() and not star) or (rest.isidentifier() and rest == rest.lower())


def _sizes(given: list[str]) -> dict[str, int]:
    """What --at says of dimensions: height=256."""
    found = {}
    for text in given:
        name, _, size = text.partition("=")
        if not size.isdigit() or int(size) < 2:
            raise refusal("--at", f"{shown(text)}: say NAME=SIZE, 2 or more")
        found[name] = int(size)
    return found
