"""Texts of strangers are read in time that grows as their length does, whatever stands in them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest
import strangers

from memcore.errors import PlanError
from memcore.formats import Text, read_files, registry
from memcore.formats.failures import failure
from memcore.formats.reading import DOCUMENTS
from memcore.formats.texts import MAX_JSON, MAX_SCRIPT, MAX_WORDS

# Seconds of a processor, of a text of up to MAX_SCRIPT characters; a longer one has its share more.
# No text takes a fifth of it; where time grows as the square, 20,000 characters take seconds and
# 300,000 minutes. A ratio of two lengths says less: beyond MAX_SCRIPT a text is read as a log.
MOST = 1.0
TRIES = 8  # a busy machine makes some slow; the quickest says what the reader takes
SHORT = 20_000  # characters of the texts that each run tries


@pytest.fixture(autouse=True, scope="module")
def heap_of_its_own() -> Iterator[None]:
    """A collection among all that other tests hold takes some tenths of a second; the app freezes
    what it holds at its start, too."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def taken(read: Callable[[str], object], content: str) -> float:
    """Seconds of a processor that a text takes."""
    start = time.process_time()
    strangers.tried(read, content)
    return time.process_time() - start


def seconds(read: Callable[[str], object], content: str, most: float) -> float:
    """The least that one of some tries takes of a processor, of texts that are one character
    shorter each: what was read once is remembered."""
    least = float("inf")
    for turn in range(TRIES):
        least = min(least, taken(read, content[: len(content) - turn]))
        if least < most:
            break
    return least


def is_linear(reader: str, kind: str, length: int) -> None:
    """Have a text read within its share of seconds."""
    most = MOST * max(1.0, length / MAX_SCRIPT)
    took = seconds(strangers.READERS[reader], strangers.text(kind, length), most)
    assert took < most, f"{reader} of {length:,} {kind}: {took:.2f} s"


# The commands and the names of files read alike what one of them reads; the others are long.
ALIKE = ("a file t.", "a notebook", "a file M", "memplan ", "config.json")


@pytest.mark.parametrize("reader", [r for r in strangers.READERS if not r.startswith(ALIKE)])
def test_a_text_is_read_in_time_that_grows_as_its_length_does(reader: str) -> None:
    strangers.tried(strangers.READERS[reader], "x")  # its tables are read once
    for kind in strangers.TEXTS:
        is_linear(reader, kind, SHORT)


@pytest.mark.parametrize("reader", [r for r in strangers.READERS if r.startswith(ALIKE)])
def test_a_file_is_read_in_that_time_whatever_it_is_called(reader: str) -> None:
    strangers.tried(strangers.READERS[reader], "x")
    for kind in strangers.CLASSES:
        is_linear(reader, kind, SHORT // 4)


LONG = (MAX_SCRIPT, 1_000_000)
EVERY = 12  # of the kinds, one reader after the other begins with the next one; of those alike 40


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize(("turn", "reader"), [*enumerate(strangers.READERS)])
def test_a_long_text_is_read_in_that_time_too(turn: int, reader: str, length: int) -> None:
    strangers.tried(strangers.READERS[reader], "x")
    every = 40 if reader.startswith(ALIKE) else EVERY
    for kind in list(strangers.TEXTS)[turn % every :: every]:
        is_linear(reader, kind, length)


@pytest.mark.thousand
@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("reader", strangers.READERS)
def test_a_long_text_of_any_kind_is(reader: str, length: int) -> None:
    strangers.tried(strangers.READERS[reader], "x")
    for kind in strangers.TEXTS:
        is_linear(reader, kind, length)


IMPORTS = "import vllm\nfrom transformers import Trainer\n# Config( Trainer.Config seq_length\n"
HOSTILE = {
    "constants": IMPORTS + "x = 1\n" * 33_000,
    "constants of constants": IMPORTS + "a = [1]\n" + "a = [a, a, a]\n" * 10_000,
    "options of no program": IMPORTS + f"LLM({','.join(f'a{n}={n}' for n in range(24_000))})\n",
    "functions": IMPORTS + "def f():\n    return ['--x', '--y']\n" * 6_000,
    "lists in a function": IMPORTS + "def f():\n" + "    x = ['-x', '--y']\n" * 9_000,
    "what a recipe sets": IMPORTS + "def f():\n" + "    cfg.model.seq_length = 1\n" * 9_000,
    "nested functions": IMPORTS
    + "".join(f"{' ' * n}def f{n}():\n" for n in range(90))
    + f"{' ' * 90}x = ['a', '--y']\n" * 2_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_module_is_read_in_a_second(kind: str) -> None:
    read = strangers.READERS["a file t.py"]
    strangers.tried(read, "x")
    assert seconds(read, HOSTILE[kind], MOST) < MOST


MERGED = f"a: &a {{{', '.join(f'k{n}: 1' for n in range(3_000))}}}\n" + "".join(
    f"b{n}:\n  <<: *a\n" for n in range(9_000)
)
NESTED = "X=1\n" + "if [ $X = 1 ]\n" * 8_000 + "fi\n" * 8_000
BRANCHES = "X=1\nif [ $X = 2 ]\n" + "elif [ $X = 2 ]\n" * 14_000 + "fi\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.yaml", MERGED),
        ("t.sh", NESTED),
        ("t.sh", BRANCHES),
        ("t.yaml", f'FROM x\nCMD "x8xH100 {"7" * 294_000}'),
    ],
)
def test_what_repeats_itself_is_read_in_a_second(name: str, content: str) -> None:
    read = strangers.READERS[f"a file {name}"]
    strangers.tried(read, "x")
    assert seconds(read, content, MOST) < MOST


def test_merges_of_too_many_values_are_refused_with_the_bound() -> None:
    with pytest.raises(PlanError, match="its merges come to more than 200,000 values"):
        read_files([Text("t.yaml", MERGED)])


@pytest.mark.parametrize("line", ["ENV  ", "ARG \t", "x \\\nFROM y"])
def test_a_dockerfile_that_says_nothing_is_read(line: str) -> None:
    for content in (f"FROM x\nCMD vllm serve m\n{line}\n", f"{line}\nCMD vllm serve m\n"):
        assert Text("Dockerfile", content).commands


LOG = 16_000_000  # characters: a quiet machine takes half a second, a busy one twice as long
MOST_OF_A_LOG = 3.0  # seconds


def test_a_long_log_is_looked_through_in_seconds() -> None:
    """What two letters are made of in small letters moves nothing."""
    for repeated in ("step 1 loss 2.0\n", "out of ", "memory İ ", "failed to allocate "):
        content = (repeated * LOG)[:LOG]
        assert seconds(failure, content, MOST_OF_A_LOG) < MOST_OF_A_LOG, repeated
    said = "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = failure("İ" * 600_000 + said + "İ" * 600_000)
    assert found is not None
    assert found.asked == 2 * 2**30


def test_a_text_of_too_many_words_is_refused_with_the_bound() -> None:
    for name in ("t.yaml", "t.toml", "t.py"):
        with pytest.raises(PlanError, match=f"words and signs; read are at most {MAX_WORDS:,}"):
            read_files([Text(name, "x = 1\n" * 40_000)])


def test_each_program_has_a_document_that_is_its_own() -> None:
    """Else its reader would not be tried."""
    for name, recognise, _ in DOCUMENTS:
        assert recognise(strangers.DOCUMENTS_OF[name]), name


def test_a_value_that_is_nested_deep_is_told() -> None:
    deep = "[" * 20_000
    text = Text("t.yaml", f"model: Qwen/Qwen3-8B\ntrain_type: lora\ntarget_modules: '{deep}'\n")
    assert read_files([text]).plan.model == "qwen3-8b"


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


def test_a_loop_over_a_commands_words_is_read_at_once() -> None:
    words = "--host 0.0.0.0 --port 8080 --model /models/gemma-3-12b-it/gemma-3-12b-it-Q4_K_M.gguf"
    text = f"for word in {words} --spec ngram:n=64; do\n  echo $word\ndone\nllama-server {words}\n"
    start = time.process_time()
    assert read_files([Text("run.sh", text)]).plan.model == "gemma-3-12b-text"
    assert time.process_time() - start < 5
