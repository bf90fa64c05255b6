"""Texts of strangers are read in time that grows as their length does, whatever stands in them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from memcore.errors import PlanError
from memcore.formats import Text, machines, read_files, registry
from memcore.formats.benches import is_bench
from memcore.formats.failures import failure
from memcore.formats.profile import held_of
from memcore.formats.texts import MAX_JSON, MAX_SCRIPT
from memcore.stream.lengths import read_lengths

READERS: dict[str, Callable[[str], object]] = {
    "read": lambda text: read_files([Text("t", text)], otherwise="qwen3-8b"),
    "json": lambda text: read_files([Text("t.json", text)], otherwise="qwen3-8b"),
    "GPU": machines.asked,
    "benchmark": is_bench,
    "held": lambda text: held_of(text.encode()),
    "lengths": lambda text: read_lengths(text.encode()),
}
# What a text begins with, and what is repeated after it.
TEXTS = {
    "letters": ("", "x"),
    "digits": ("", "7"),
    "blanks": ("", " "),
    "brackets": ("", "["),
    "braces": ("", "{"),
    "quotes": ("", '"'),
    "escaped quotes": ("", '\\"'),
    "base64url": ("", "QmFzZTY0X3VybC1zYWZl"),
    "comments": ("", "/* "),
    "signs": ("", "# "),
    "an option": ("vllm serve m --x ", "7"),
    "out of memory": ("CUDA out of memory. ", "7"),
    "a command's output": ("x=$(", "x"),
    "interpolated": ("x: ", "${x}"),
    "a sum": ("import vllm\nx = ", "--x "),
    "a Modelfile": ("FROM x\nPARAMETER num_ctx 7", " "),
    "variables": ("X=" + "x" * 9_000 + "\n", "$X "),
}
FLOOR = 0.05  # seconds of a processor below which a ratio says nothing


def seconds(read: Callable[[str], object], text: str, most: float) -> float:
    """The least that one of some tries takes of a processor."""
    least = float("inf")
    for _ in range(4):
        start = time.process_time()
        with contextlib.suppress(PlanError):
            read(text)
        least = min(least, time.process_time() - start)
        if least < most:
            break
    return least


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", TEXTS)
def test_twice_the_text_takes_twice_the_time(kind: str, reader: str) -> None:
    head, repeated = TEXTS[kind]
    texts = [(head + repeated * size)[:size] for size in (MAX_SCRIPT // 2, MAX_SCRIPT, 1_000_000)]
    once = seconds(READERS[reader], texts[0], FLOOR)
    twice = seconds(READERS[reader], texts[1], max(FLOOR, 2.5 * once))
    assert twice < 1
    assert twice <= max(FLOOR, 2.5 * once)
    assert seconds(READERS[reader], texts[2], 1) < 1


def test_a_text_over_its_bound_is_refused_with_the_bound() -> None:
    for text in ("x" * (MAX_SCRIPT + 1), "x: 1\n" * MAX_SCRIPT):
        with pytest.raises(PlanError, match=f"characters; read are at most {MAX_SCRIPT:,}"):
            read_files([Text("t.yaml", text)])
    with pytest.raises(PlanError, match=f"at most {MAX_JSON:,}"):
        read_files([Text("t.json", '{"x": "' + "x" * MAX_JSON + '"}')])


@pytest.mark.parametrize("before", [0, 5_000_000])
def test_what_a_long_log_says_of_memory_is_read_wherever_it_stands(before: int) -> None:
    said = "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = failure("step 1\n" * (before // 7) + said + "step 1\n" * 100_000)
    assert found is not None
    assert found.asked == 2 * 2**30


@pytest.mark.parametrize("calls", [5, 6, 40])
def test_functions_that_call_each_other_are_evaluated_only_so_often(calls: int) -> None:
    """Each calls the one before ten times; of a module that would take too long none is read."""
    called = "".join(
        f"def f{n}():\n" + f"    a = f{n - 1}()\n" * 9 + f"    return f{n - 1}()\n"
        for n in range(1, calls)
    )
    content = f"def f0():\n    return Trainer.Config()\n{called}"
    assert len(registry.runs(content)) == (calls if calls <= 5 else 0)
    assert seconds(registry.runs, content, 1) < 1
