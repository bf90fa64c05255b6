"""Tables of other programs' keys: of a form that one reader runs, and as the programs have them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from memcore.formats import Text, programs, read_files, servers
from memcore.formats.draft import Around, Draft, Keys, Words
from memcore.formats.programs import Condition, Program, Row
from memcore.formats.servers import SERVERS, told
from memcore.formats.trainer import read
from memcore.models import catalog
from memcore.plan.models import resolve_model
from memcore.plan.plan import field_paths, words_of
from memcore.shipped import PRESETS

FOLDER = PRESETS / "programs"
NAMES = sorted(each.name.removesuffix(".toml") for each in FOLDER.iterdir())
REFERENCE = Path(__file__).parents[2] / "reference" / "arguments.json"
ARGUMENTS = json.loads(REFERENCE.read_text())
NEWEST = {program: list(versions.values())[-1] for program, versions in ARGUMENTS.items()}


def all_of(program: str) -> dict[str, list[str]]:
    """Each argument of the newest version, with its type and its default."""
    return {name: row for rows in NEWEST[program].values() for name, row in rows.items()}


def rows() -> list[tuple[str, Row]]:
    """Each row of each table, with the table's name."""
    tables = (Program(name) for name in NAMES)
    sections = (
        Program(table.name, name)
        for table in list(tables)
        for name in ("", *(n for n, v in table.table.items() if isinstance(v, dict)))
    )
    return [
        (part.name, row)
        for part in sections
        for name, said in part.table.items()
        if isinstance(said, list) and said and isinstance(said[0], dict)
        for row in part.rows[name]
    ]


ROWS = rows()


@pytest.mark.parametrize("name", NAMES)
def test_a_table_says_where_it_is_from(name):
    assert Program(name).table["source"]


def test_rows_are_of_fields_and_words_of_a_plan():
    assert len(ROWS) > 150
    for name, row in ROWS:
        assert row.keys or row.by, name
        for path in row.to:
            assert path in field_paths(), (name, path)
            if isinstance(row.how, Words) and words_of(path):
                assert set(row.how.table.values()) <= set(words_of(path)), (name, path)


def test_what_is_written_is_read_again():
    for name, row in ROWS:
        if isinstance(row.how, Words):
            for ours in set(row.how.table.values()):
                assert row.how(row.written(ours)) == ours, (name, row.keys)


CONDITIONS = [
    ("fp16", {"fp16": True}, True),
    ("fp16", {"fp16": "false"}, False),
    ("!fp16", {}, True),
    ("mode=none", {"mode": "none"}, True),
    ("mode=|full", {}, True),
    ("mode=|full", {"mode": "selective"}, False),
    ("!mode=", {"mode": "selective"}, True),
    ("old|new=a", {"new": "A"}, True),
    ("bf16=|{}", {"bf16": {}}, True),
    ("rank>0", {"rank": "8"}, True),
    ("rank>0", {}, False),
    ("parallel.tp>1", {}, True),
    ("parallel.pp>1", {}, False),
    ("train.zero=3", {}, True),
    ("!train.adapter", {}, True),
]


@pytest.mark.parametrize(("text", "values", "holds"), CONDITIONS)
def test_a_condition_is_of_a_key_or_of_what_the_plan_has_so_far(text, values, holds):
    draft = Draft(fields={"parallel.tp": 2, "train.zero": 3})
    assert Condition.of(text).holds(Keys(values), draft) is holds


def test_what_a_condition_writes_makes_it_hold():
    some = 0
    for name, row in ROWS:
        for each in row.when:
            if said := each.written():
                some += 1
                assert each.holds(Keys(said), Draft()), (name, each)
    assert some > 60


def a_row(**said: object) -> Row:
    """A row of a table that no file has."""
    program = Program("none")
    program.__dict__["table"] = {"read": [said], "words": {"kinds": {"full": "all whole"}}}
    return program.rows["read"][0]


def test_a_row_has_a_section_and_what_is_told_of_other_words():
    row = a_row(
        to="train.checkpointing",
        within="model.ac",
        keys="mode",
        **{"as": "kinds", "why": "is planned as none", "instead": "none"},
    )
    known, other = Draft(), Draft()
    row.read(Keys({"model": {"ac": {"mode": "whole"}}}), known)
    row.read(Keys({"model": {"ac": {"mode": "half"}}}), other)
    assert known.fields == {"train.checkpointing": "full"}
    assert other.fields == {"train.checkpointing": "none"}
    assert [str(each) for each in other.left] == ["model.ac.mode: 'half' is planned as none"]


def test_a_row_tells_what_no_plan_says():
    row, draft = a_row(keys="mode", leave="'{}' is not planned", when="mode=all"), Draft()
    row.read(Keys({"mode": "some"}), draft)
    assert not draft.left
    row.read(Keys({"mode": "all"}), draft)
    assert [str(each) for each in draft.left] == ["mode: 'all' is not planned"]


def test_rows_wait_for_what_is_around_a_file():
    program, keys = Program("none"), Keys({"spreads": True, "off": True})
    rows = [
        {"to": "serve.tp", "is": "around.gpus", "by": "every GPU", "when": "spreads around.gpus>1"},
        {"to": "serve.pp", "is": 2, "by": "no GPU", "when": "around.gpus>8"},
        {"keys": "off", "leave": "is not planned", "told": "x", "when": "!off around.gpus>1"},
    ]
    program.__dict__["table"], draft = {"later": rows}, Draft()
    program.later(keys, draft)
    assert (draft.fields, keys.rest()) == ({}, [])
    around = Around(resolve_model("qwen3-8b"), catalog.accelerator("h100-sxm-80gb"), 8, 8)
    draft.settle(around)
    assert (draft.fields, draft.left) == ({"serve.tp": 8}, [])


def test_a_program_may_have_no_more_than_its_table():
    program, draft = Program("none"), Draft()
    program.__dict__["table"] = {
        "knows": "!steps_at_once= mode=|train",
        "model": "weights",
        "each": "cards",
        "read": [{"to": "train.micro_batch", "keys": "steps_at_once", "as": "positive"}],
        "left": {"is not planned": "extra"},
    }
    assert not program.knows({"mode": "train"})
    assert not program.knows({"steps_at_once": 2, "mode": "serve"})
    values = {"steps_at_once": 2, "weights": "qwen3-8b", "cards": 4, "extra": 1, "other": 1}
    assert program.knows(values)
    program.document(values, draft)
    assert (draft.fields, draft.model, draft.ranks) == ({"train.micro_batch": 2}, "qwen3-8b", 4)
    assert ([str(each) for each in draft.left], draft.unread) == (
        ["extra: is not planned"],
        ["other"],
    )


@pytest.mark.parametrize("program", ["transformers", "trl", "peft"])
def test_every_argument_of_the_trainers_is_known(program):
    draft = Draft()
    given = dict.fromkeys(all_of(program), "x") | {"model_init_kwargs": {}}
    read(given | {"model_name_or_path": "x"}, draft)
    assert draft.unread == []


@pytest.mark.parametrize("program", ["vllm", "sglang"])
def test_every_argument_of_a_server_is_known(program):
    draft = Draft()
    given = dict.fromkeys(all_of(program).keys() - {"speculative_config"}, "x")
    told(next(each for each in SERVERS if each.label == program), given, draft)
    assert draft.unread == []


# What a program has where nobody says an argument, and what is planned then. 'auto' is as the
# model computes; what optim and bf16 are follows from others.
USUAL = {
    "transformers": {
        "per_device_train_batch_size": ("8", 8),
        "optim": ("default_optim", "adamw"),
        "dataloader_pin_memory": ("True", True),
        "gradient_checkpointing": ("None", "none"),
        "bf16": ("False", "fp32"),
        "use_liger_kernel": ("False", "hf"),
    },
    "trl": {
        "max_length": ("1024", 1024),
        "gradient_checkpointing": ("True", "full"),
        "loss_type": ("'nll'", "chunked"),
    },
    "vllm": {"gpu_memory_utilization": ("0.92", 0.92), "kv_cache_dtype": ("'auto'", "bf16")},
    "sglang": {"kv_cache_dtype": ("'auto'", "bf16")},
}


@pytest.mark.parametrize("name", USUAL)
def test_a_default_is_the_programs_own(name):
    said, table = all_of(name), Program(name)
    if name == "trl":
        said |= NEWEST[name]["SFTConfig"]
    found: dict[str, tuple[str, object]] = {}
    for row in table.rows["defaults" if "defaults" in table.rows else "read"]:
        for key in row.keys[:1] if row.usually is not None else ():
            if key in said:
                found.setdefault(key, (said[key][1], row.usually))
    assert found == USUAL[name]


# Of the keys that are read, what older versions had otherwise: where a plan of such a version is
# another.
MOVED = {
    ("transformers", "4.57.6"): {"gradient_checkpointing": "False"},
    ("transformers", "5.23.0"): {},
    ("trl", "0.24.0"): {"max_completion_length": "256"},
    ("trl", "1.14.0"): {"loss_type": "None"},
}


@pytest.mark.parametrize(("program", "version"), MOVED)
def test_defaults_that_moved_are_known(program, version):
    known = {key for name, row in ROWS if name in (program, "transformers") for key in row.keys}
    moved = {
        name: then[1]
        for class_, rows_of in ARGUMENTS[program][version].items()
        for name, then in rows_of.items()
        if then and name in known and (now := NEWEST[program][class_].get(name))
        if then[1] != now[1]
    }
    assert moved == MOVED[program, version]


OF_A_NEW_SERVER = """
source = "made up"
also = "servers_words"
engine = "vllm"
label = "Made Up"
command = "\\\\bmadeup-serve\\\\b"
model = "weights"
read = [
  { to = "serve.tp", keys = "cards", as = "positive" },
  { to = "serve.max_seq_len", keys = "longest", as = "positive" },
  { to = "serve.kv_dtype", keys = "cache", as = "caches", else = "bf16" },
  { to = "serve.runtime", keys = "slow", on = "eager" },
]

[harmless]
names = "port"

[left]
"adapters of a server are not planned" = "adapters"
"""


def test_a_new_server_needs_a_table_alone(tmp_path, monkeypatch):
    """Its commands are read with nothing of it in Python."""
    shutil.copytree(str(FOLDER), tmp_path, dirs_exist_ok=True)
    (tmp_path / "madeup.toml").write_text(OF_A_NEW_SERVER)
    monkeypatch.setattr(programs, "FOLDER", tmp_path)
    names = programs.tables_with("engine", "command")
    assert set(names) == {"madeup", *(each.name for each in SERVERS)}
    monkeypatch.setattr(servers, "SERVERS", tuple(map(servers.Server, names)))
    command = (
        "madeup-serve --weights Qwen/Qwen3-8B --cards 2 --longest 4k --slow --cache fp8 "
        "--port 80 --adapters a --strange 1"
    )
    read = read_files([Text("start.sh", command)], gpu="h100-sxm-80gb")
    serve = read.plan.serve
    assert read.kinds == {"start.sh": "Made Up"}
    assert read.plan.model == "qwen3-8b"
    assert (serve.engine, serve.tp, serve.max_seq_len) == ("vllm", 2, 4000)
    assert (serve.runtime, serve.kv_dtype) == ("eager", "fp8")
    assert [issue.field for issue in read.left] == ["Made Up", "--adapters"]
    assert read.unread == ("--strange",)
