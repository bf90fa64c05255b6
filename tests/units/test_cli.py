"""The command line: what it prints, what it refuses and with which words and status."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import PlanError
from memcore.cli import listing, program, reading
from memcore.evaluate import evaluate
from memcore.models import cards, catalog
from memcore.plan.plan import Plan
from memcore.units import bytes_text, money_text
from memcore.words.serving import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
CONSUMERS = ("parameters", "gradients", "optimizer states", "activations", "workspace")


# --- what a script asks ---------------------------------------------------------------------------


def of_length(tokens, **serve):
    return {"train": {"seq_len": tokens, "checkpointing": "none"}, "serve": serve}


SHORT, LONG = 4096, 10_240


def verdicts():
    """A plan of each verdict, found by its length."""
    found: dict[str, dict[str, Any]] = {}
    for tokens in range(SHORT, LONG + 1, 1024):
        plan = of_length(tokens)
        memory = evaluate(Plan.of(plan)).memory
        assert memory
        found.setdefault(memory.verdict, plan)
    assert set(found) == {"fits", "tight", "over"}
    return found


STATUSES = {"fits": 0, "over": 1, "tight": 3}


@pytest.mark.parametrize("verdict", STATUSES)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_check_says_by_its_status_whether_a_plan_fits(memplan, tmp_path, verdict, form):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(verdicts()[verdict]))
    plain = memplan("evaluate", file, *form)
    checked = memplan("evaluate", file, "--check", *form)
    assert plain.status == 0
    assert (checked.status, checked.out, checked.err) == (STATUSES[verdict], plain.out, "")


@pytest.mark.parametrize("verdict", STATUSES)
def test_seconds_of_a_plan_that_does_not_fit_say_so(memplan, verdict):
    said = memplan("evaluate", "-", given=json.dumps(verdicts()[verdict])).out
    assert ("\nStep, if it fitted: " in said) == (verdict == "over")
    assert ("\nStep: " in said) == (verdict != "over")


def test_the_documentation_names_gpus_that_are_there():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = (page.read_text(encoding="utf-8") for page in pages)
    named = {
        said or word for t in texts for said, word in re.findall(r'--gpu (?:"(.+?)"|([^\s`]+))', t)
    } - {"here"}  # this machine's own
    assert {"h200", "RTX 4090"} <= named
    assert all(map(cards.preset, named))


def test_check_of_what_is_not_a_plan(memplan, tmp_path):
    assert memplan("evaluate", tmp_path / "none.json", "--check").status == 2
    assert memplan("evaluate", "-", "--check", given="{").status == 2
    assert memplan("evaluate", "-", "--check", "--json", given="{\n").status == 2


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["fits", "fits"], 0),
        (["tight", "fits"], 3),
        (["over", "tight", "fits"], 1),
        (["fits", "no plan", "over"], 2),
        ([], 0),
    ],
)
def test_check_of_several_plans_is_that_of_the_worst(memplan, lines, status):
    plans = verdicts() | {"no plan": {"train": {"micro_batch": 0}}}
    given = "".join(f"{json.dumps(plans[word])}\n" for word in lines)
    ran = memplan("evaluate", "-", "--json", "--check", given=given)
    assert ran.status == status
    assert len(ran.lines) == len(lines)


def test_check_of_serving(memplan):
    """Training fits and 100,000 sequences do not; the other way round; and neither is asked."""
    crowded = json.dumps(of_length(SHORT, concurrency=100_000))
    assert memplan("evaluate", "-", "--check", given=crowded).status == 0
    assert memplan("evaluate", "-", "--check-serving", given=crowded).status == 1
    assert memplan("evaluate", "-", "--check-serving", "--check", given=crowded).status == 1
    alone = json.dumps(of_length(LONG, concurrency=1))
    assert memplan("evaluate", "-", "--check-serving", given=alone).status == 0
    assert memplan("evaluate", "-", "--check-serving", "--check", given=alone).status == 1


def test_check_is_serving_where_training_is_not_planned(memplan):
    for concurrency, status in ((1, 0), (10**6, 1)):
        plan = {
            "model": "mamba2-780m",
            "parallel": {"tp": 2},
            "serve": {"concurrency": concurrency},
        }
        assert evaluate(Plan.of(plan)).memory is None
        assert memplan("evaluate", "-", "--check", given=json.dumps(plan)).status == status


def test_check_of_an_engine_beside_the_trainer(memplan):
    """The worse of the two verdicts."""
    found = set()
    for model, gpus in (("llama-3.2-1b", 8), ("llama-3.2-1b", 64), ("llama-3-8b", 64)):
        together = {"kind": "grpo", "asleep": "all" if gpus == 8 else "nothing"}
        few = {"max_num_seqs": 64}
        document = {"model": model, "cluster": {"gpus": gpus}, "together": together, "serve": few}
        plan = Plan.of(document)
        report = evaluate(plan)
        assert report.memory
        assert report.together
        words = {report.memory.verdict, report.together.verdict}
        worst = next(w for w in ("over", "tight", "fits") if w in words)
        found.add(worst)
        ran = memplan("evaluate", "-", "--check", given=json.dumps(plan.document()))
        assert ran.status == STATUSES[worst]
    assert found == {"fits", "tight", "over"}


@pytest.mark.parametrize("command", program.commands().choices)
def test_each_command_has_a_help(memplan, command):
    assert f"usage: memplan {command}" in memplan(command, "--help").out


def test_the_statuses_of_a_check_are_in_the_help(memplan):
    said = " ".join(memplan("evaluate", "--help").out.split())
    for words in ("0 it fits", "1 it does not", "3 it is tight", "2 there is no answer"):
        assert words in said


def in_a_process(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "memcore.cli", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


# ---- a good plan


def test_report_for_people(memplan, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text('{"train": {"offload_optimizer": "cpu"}}')
    ran = memplan("evaluate", file)
    report = evaluate(Plan(train={"offload_optimizer": "cpu"}))
    assert (ran.status, ran.err) == (0, "")
    assert "Llama 3 8B, 8.03B parameters, on 8 x " in ran.out
    assert report.memory
    assert report.time
    assert report.serve
    assert report.memory.verdict.upper() in ran.out
    for consumer in CONSUMERS:
        assert f"\n{consumer}" in ran.out
    assert f"{report.memory.allocated_bytes:,}" in ran.out
    assert bytes_text(report.memory.capacity_bytes) in ran.out
    assert f"bound by {report.time.bound_by}" in ran.out
    assert "\ndram " in ran.out
    assert f"{report.serve.max_concurrency:,} sequences" in ran.out
    for note in report.notes:
        assert note in ran.out


@pytest.mark.parametrize("name", list(catalog.plan_entries()))
def test_worked_plans_print_and_come_back(memplan, name):
    document = memplan("plans", name).out
    ran = memplan("evaluate", "-", given=document)
    assert (ran.status, ran.err) == (0, "")
    assert memplan("evaluate", "-", "--json", given=json.dumps(json.loads(document))).status == 0


def test_json_report_of_a_file(memplan, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("{}")
    ran = memplan("evaluate", file, "--json")
    assert ran.status == 0
    assert ran.json == json.loads(json.dumps(evaluate(Plan()).to_dict()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_any_unicode_file(memplan, tmp_path, encoding):
    """Windows shells write UTF-16 or a byte order mark."""
    file = tmp_path / "plan.json"
    file.write_bytes('{"train": {"micro_batch": 2}}'.encode(encoding))
    assert memplan("evaluate", file).status == 0


# ---- one plan a line


def test_one_report_a_line_in_order(memplan):
    batches = [4, 1, 2]
    given = "".join(json.dumps({"train": {"micro_batch": b}}) + "\n" for b in batches)
    ran = memplan("evaluate", "-", "--json", given=given)
    assert ran.status == 0
    assert [r["plan"]["train"]["micro_batch"] for r in ran.lines] == batches


def test_a_bad_line_is_answered_in_its_place(memplan):
    typo = '{"train": {"micro_bach": 2}}'
    given = f'{{}}\n\n  \r\n{typo}\nno JSON\n{{"model": "gpt2", "train": {{"seq_len": 1024}}}}'
    ran = memplan("evaluate", "-", "--json", given=given)
    assert ran.status == 2
    good, wrong, text, last = ran.lines
    assert good["parameters"] == 8_030_261_248
    assert wrong["line"] == 4
    assert wrong["issues"][0]["field"] == "train.micro_bach"
    assert "did you mean 'micro_batch'" in wrong["error"]
    assert (text["line"], text["error"][:8]) == (5, "not JSON")
    assert last["parameters"] == 124_439_808


def test_nothing_in_nothing_out(memplan):
    ran = memplan("evaluate", "-", "--json", given="\n\n")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_half_a_character_in_a_line_leaves_the_next_its_answer(memplan):
    bad = (
        '{"\\ud800": 1}',
        '{"cluster": {"gpu": {"\\ud800": 1}}}',
        '{"cluster": {"node": {"\\ud800": 1}}}',
    )
    ran = memplan("evaluate", "-", "--json", given="\n".join([*bad, "{}"]))
    assert ran.status == 2
    *refused, good = ran.lines
    assert [line["issues"][0]["field"] for line in refused] == ["", "cluster.gpu", "cluster.node"]
    assert all("half of a character" in line["error"] for line in refused)
    assert "parameters" in good
    assert "half of a character" in memplan("evaluate", "-", given=bad[0]).err


def test_where_memplan_fails_at_a_line_the_next_is_answered(memplan, monkeypatch):
    """And a single plan gives a sentence, not a traceback."""
    real = memcore.evaluate

    def broken(plan):
        if plan.train.micro_batch == 13:
            raise TypeError("on purpose")
        return real(plan)

    monkeypatch.setattr(sys.modules["memcore.evaluate"], "evaluate", broken)
    bad = '{"train": {"micro_batch": 13}}'
    ran = memplan("evaluate", "-", "--json", given=f"{{}}\n{bad}\n{{}}")
    assert ran.status == 1
    assert ["error" in line for line in ran.lines] == [False, True, False]
    assert ran.lines[1]["line"] == 2
    assert "TypeError 'on purpose'" in ran.lines[1]["error"]
    ran = memplan("evaluate", "-", given=bad)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("memplan: standard input: Memplan failed at this")
    assert "Traceback" not in ran.err


def test_an_endless_line_does_not_fill_memory_nor_end_the_rest(memplan):
    given = b"{" + b" " * (3 * reading.MAX_PLAN_BYTES) + b"}\n{}\n"
    ran = memplan("evaluate", "-", "--json", given=given)
    assert ran.status == 2
    assert [("error" in line, "parameters" in line) for line in ran.lines] == [
        (True, False),
        (False, True),
    ]


HOSTILE = (
    "null", "[]", "3", '"x"', "NaN", "{", "}", "{]", "\x00", "\ufeff", "[" * 100_000,
    '{"a":' * 100_000, '{"train": {"micro_batch": NaN}}', '{"train": {"micro_batch": 1e400}}',
    '{"serve": {"memory_utilization": Infinity}}', '{"train": {"micro_batch": %s}}' % ("9" * 400),
    '{"train": {"micro_batch": %s}}' % ("9" * 5000), '{"train": {"micro_batch": -1}}',
    '{"train": {"micro_batch": true}}', '{"train": {"micro_batch": "1"}}', '{"train": null}',
    '{"model": "<script>alert(1)</script>"}', '{"model": "\\u001b[31m"}', '{"model": "\\ud800"}',
    '{"model": {"size": "-7B"}}', '{"model": {"model_type": "perceiver"}}', '{"version": 99}',
    '{"train": {}, "train": {"zero": 0}}', '{"cluster": {"gpu": {"label": "x"}}}',
    '{"cluster": {"gpus": 7}, "parallel": {"tp": 2}}', '{"": 1}',
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: t[:40])
def test_whatever_a_line_holds_the_next_is_answered(memplan, text):
    given = text.encode("utf-8", "surrogatepass") + b"\n{}\n"
    ran = memplan("evaluate", "-", "--json", given=given)
    assert ran.status == 2
    assert ran.err == ""
    bad, good = ran.lines
    assert set(bad) == {"error", "line", "issues"}
    assert len(bad["error"]) < 2_000
    assert bad["error"].isascii() or "\x1b" not in bad["error"]
    assert "parameters" in good


@given(st.binary(max_size=200).filter(lambda b: b.strip() and b"\n" not in b))
def test_no_bytes_break_it(data):
    with contextlib.suppress(PlanError):
        reading.plan_of(data)


# ---- what cannot be read


def test_a_typo_is_answered_with_the_right_name(refused, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text('{"train": {"micro_bach": 2}, "model": "lama-3-8b"}')
    said = refused("evaluate", file)
    assert f"memplan: {file}: train.micro_bach: unknown key; did you mean 'micro_batch'?" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file or directory"),
        (b"", "not JSON"),
        (b"train: 1\n", "not JSON"),
        (b"\x80\x81\xff\x00" * 99, "not text"),
        (b" " * 50_000_000, "bytes, so not a plan"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"zero": 1, "zero": 2}', "'zero' is there twice"),
    ],
)
def test_files_that_are_no_plan(memplan, tmp_path, content, says):
    file = tmp_path / "some plan.json"
    if content is not None:
        file.write_bytes(content)
    for more in ((), ("--json",)):
        ran = memplan("evaluate", file, *more)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"memplan: {file}: ")
        assert says in ran.err
        assert ran.err.count("\n") == 1


def test_a_folder_is_no_plan(memplan, tmp_path):
    ran = memplan("evaluate", tmp_path)
    assert ran.status == 2
    assert ran.err.startswith(f"memplan: {tmp_path}: ")
    assert ran.err.count("\n") == 1


def test_a_models_folder_is_its_config(memplan, tmp_path):
    config = catalog.model_entry("yi-6b")["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = memplan("evaluate", tmp_path, "--json")
    assert ran.json["parameters"] == 6_061_035_520


def test_a_model_by_its_name_on_the_hub(memplan, refused, tmp_path, monkeypatch):
    """A preset, or the config.json that was brought to this machine; else how to bring it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "`hf download some/thing-6B config.json` brings it" in refused(
        "evaluate", "some/thing-6B"
    )
    kept = tmp_path / "models--some--thing-6B"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0123abc")
    (kept / "snapshots" / "0123abc").mkdir(parents=True)
    config = json.dumps(catalog.model_entry("yi-6b")["config"])
    (kept / "snapshots" / "0123abc" / "config.json").write_text(config)
    zero = tmp_path / "zero3.json"
    zero.write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}))
    assert "--model" in memplan("read", zero).err
    for words in (
        ("evaluate", "some/thing-6B", "--json"),
        ("evaluate", "{}", "--set", "model=some/thing-6B", "--json"),
    ):
        assert memplan(*words).json["parameters"] == 6_061_035_520
    for command in ("read", "check"):
        for name, status in (("some/thing-6B", 0), ("01-ai/Yi-6B", 0), ("some/other", 2)):
            assert memplan(command, zero, "--model", name).status == status


def test_a_name_that_no_file_can_have(memplan):
    ran = memplan("evaluate", "a\x00b")
    assert ran.status == 2
    assert ran.err.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error():
    process = in_a_process("evaluate", "-", "--json")
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"{}\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith(b"{")
    process.stdout.close()
    process.stdin.write(b"{}\n" * 3)
    process.stdin.close()
    assert process.wait(300) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


# ---- lists


def test_models(memplan):
    table = memplan("models").out
    for row in memplan("models", "--json").json:
        assert row["name"] in table
        assert row["parameters"] > 10**6
    assert "llama-3-8b" in table
    assert "8.03B" in table


def test_gpus(memplan):
    table = memplan("gpus").out
    rows = {row["name"]: row for row in memplan("gpus", "--json").json}
    assert rows["h100-sxm-80gb"]["memory_bandwidth"] == 3.35e12
    assert all(row["memory_bytes"] > 0 for row in rows.values())
    line = next(line for line in table.splitlines() if line.startswith("h100-sxm-80gb"))
    assert "3.35 TB/s" in line
    assert line.endswith(" 989")


def test_gpus_says_what_is_not_yet_sold(memplan):
    lines = {line.split()[0]: line for line in memplan("gpus").out.splitlines()}
    assert lines["mi455x-432gb"].endswith("announced")
    assert lines["vr200-288gb"].endswith("preliminary")
    rows = {row["name"]: row for row in memplan("gpus", "--json").json}
    assert rows["h100-sxm-80gb"]["status"] == "shipping"


def test_prices(memplan, capsys):
    rows = memplan("prices", "h100-sxm-80gb", "--json").json
    assert {"AWS p5.48xlarge", "Nebius", "CoreWeave"} <= {row["cloud"] for row in rows}
    assert all(row["source"] for row in rows)
    args = argparse.Namespace(gpu="h100-sxm-80gb", json=False)
    assert listing.prices(args, date(2026, 11, 22)) == 0
    lines = {line.split("  ")[1].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["Nebius"].endswith("2025, may be over a year old")
    assert lines["AWS p5.48xlarge"].endswith("2026-03")
    assert "no GPU preset" in memplan("prices", "h1000").err
    assert "set run.price_per_gpu_hour yourself" in memplan("prices", "phone-8gb").out


def test_plans(memplan, refused):
    rows = memplan("plans", "--json").json
    assert [row["name"] for row in rows] == list(catalog.plan_entries())
    assert "did you mean 'llama-3-8b-fsdp2-8xh100'" in refused("plans", "lama-3-8b-fsdp2-8xh100")


# ---- the rest


def test_help_and_version(memplan):
    assert "evaluate" in memplan("--help").out
    assert memplan("--version").out.startswith("memplan ")
    assert memplan().status == 2
    assert memplan("evalute", "x").status == 2


@pytest.mark.parametrize("port", ["0", "-1", "65536", "9" * 5000, "x", "८५०१"])
def test_ports_that_are_none(refused, port):
    assert "is not a port" in refused("app", "--port", port)


def test_a_busy_port_is_named(memplan):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = memplan("app", "--port", port)
    assert ran.status == 1
    assert f"cannot serve on 127.0.0.1 port {port}" in ran.err


def test_a_host_that_is_none(memplan):
    ran = memplan("app", "--host", "no.such.host.invalid")
    assert ran.status == 1
    assert "cannot serve on no.such.host.invalid" in ran.err


def test_evaluate_imports_neither_pandas_nor_streamlit():
    code = (
        "import sys; from memcore import cli; cli.main(['evaluate', '-']); "
        "print({'numpy', 'pandas', 'plotly', 'streamlit'} & set(sys.modules), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"{}", capture_output=True, env=environment
    )
    assert done.stderr.strip() == b"set()"


# --- explain -------------------------------------------------------------------------------------


def test_explain_prints_the_formula_the_parts_and_a_source(memplan):
    report = evaluate(Plan())
    ran = memplan("explain", "-", "memory.allocated_bytes", given="{}")
    assert (ran.status, ran.err) == (0, "")
    assert report.memory is not None
    for n in report.memory.consumers.values():
        assert f"{n:,} B" in ran.out
    assert "Source: torch.nn.Module.parameters" in ran.out  # at the end of the largest part
    assert "F/STATE" in ran.out


def test_explain_lists_every_number_and_explains_each(memplan):
    listed = memplan("explain", "-", given="{}").out.splitlines()[1:]
    paths = [line.split()[0] for line in listed]
    assert {"parameters", "time.mfu", "serve.ttft_seconds", "ledger.0.bytes"} <= set(paths)
    for path in paths[::150]:
        ran = memplan("explain", "-", path, given="{}")
        assert (ran.status, ran.err) == (0, "")
        assert f"  {path}" in ran.out


@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("memory.alocated_bytes", "did you mean 'memory.allocated_bytes'?"),
        ("memory", "it has memory.allocated_bytes"),
        ("ledger.0.name", "did you mean 'ledger.0.count'?"),
        ("no such thing", "choose one of active_parameters"),
        ("", "choose one of"),
    ],
)
def test_explain_refuses_what_is_no_number(refused, number, says):
    assert says in refused("explain", "-", number, given="{}")


def test_explain_says_why_a_part_is_not_there(refused):
    assert "time is not computed for this plan" in refused(
        "explain", "-", "time.mfu", given='{"parallel": {"ep": 2}}'
    )
    assert "parallel.tp" in refused("explain", "-", "time.mfu", given='{"parallel": {"tp": 0}}')


def test_levers_for_people_and_as_json(memplan, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text('{"train": {"micro_batch": 4, "checkpointing": "none"}}')
    ran = memplan("levers", file)
    assert ran.status == 0
    assert "changes make it fit" in ran.out
    assert ran.out.index("Micro-batch: 1") < ran.out.index("Checkpointing: Full")
    (found,) = [memplan("levers", file, "--json").json]
    first = found[0]
    assert first["changes"] == {"train.micro_batch": 1, "train.grad_accumulation": 4}
    assert first["saved_bytes"] > 0
    assert first["verdict"] == "fits"


def test_levers_of_what_is_no_plan_or_not_computed(memplan, refused):
    assert "train.zerro" in refused("levers", "-", given='{"train": {"zerro": 3}}')
    ran = memplan("levers", "-", given='{"model": "qwen3-30b-a3b", "parallel": {"ep": 2}}')
    assert ran.status == 0
    assert "Note:" in ran.out or "fit" in ran.out


# --- simulate ------------------------------------------------------------------------------------

STREAM = '{"model": "llama-3.2-1b", "serve": {"requests": 40, "shared_prefix": 64}}'


def test_simulate_prints_a_line_for_each_strategy(memplan):
    ran = memplan("simulate", "-", given=STREAM)
    assert (ran.status, ran.err) == (0, "")
    for strategy in STRATEGIES.values():
        assert ran.out.count(f"{strategy.label}  ") == 3


def test_simulate_as_json_and_as_csv_says_the_same(memplan):
    document = memplan("simulate", "-", "--json", given=STREAM).json
    ran = memplan("simulate", "-", "--csv", given=STREAM)
    rows = ran.csv
    assert [r["strategy"] for r in rows] == list(STRATEGIES)
    for row, run in zip(rows, document["runs"], strict=True):
        assert float(row["ttft.p90"]) == run["ttft"]["p90"]
        assert float(row["memory.used"]) == run["memory"]["used"]


def test_simulate_against_the_rate(memplan):
    given = '{"model": "llama-3.2-1b", "serve": {"requests": 40, "target_ttft": 0.2}}'
    ran = memplan("simulate", "-", "--rates", given=given)
    assert (ran.status, ran.err) == (0, "")
    assert "in targets" in ran.out
    document = memplan("simulate", "-", "--rates", "--json", given=given).json
    ran = memplan("simulate", "-", "--rates", "--csv", given=given)
    rows = ran.csv
    assert [float(r["rate"]) for r in rows] == [r["rate"] for r in document]
    assert [float(r["attained"]) for r in rows] == [r["attained"] for r in document]
    refused = memplan(
        "simulate", "-", "--rates", given='{"train": {"seq_len": 512}, "model": "bert-base"}'
    )
    assert refused.status == 2
    assert "Within targets" in memplan("simulate", "-", given=given).out


def test_solve_keeps_to_the_plans_targets(memplan):
    plain, own, asked = (
        memplan("solve", "concurrency", "-", *more, given=json.dumps({"serve": serve})).out
        for serve, more in (
            ({}, ()),
            ({"target_tpot": 0.02}, ()),
            ({}, ("--tpot", "20ms")),
        )
    )
    assert own == asked != plain


@pytest.mark.parametrize(("option", "given"), [("--tpot", "20"), ("--ttft", "500")])
def test_milliseconds_are_not_taken_for_seconds(memplan, refused, option, given):
    assert f"write {given}ms or {int(given) / 1000:g}, or {given}s if" in refused(
        "solve", "concurrency", "{}", option, given
    )
    assert memplan("solve", "concurrency", "{}", option, f"{given}s").status == 0


def test_simulate_takes_lengths_from_a_file(memplan, tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,output\n300,7\n")
    ran = memplan("simulate", "-", "--lengths", file, "--json", given=STREAM)
    document = ran.json
    assert (document["prompt_tokens_mean"], document["output_tokens_mean"]) == (300, 7)
    assert any("not part of the plan" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "empty"), ("a,b\n1,2\n", "prompt"), ("1,-2\n", "'-2'"), ("1,2\n" * 1_100_000, "at most")],
)
def test_simulate_refuses_a_file_that_holds_no_lengths(memplan, refused, tmp_path, text, said):
    file = tmp_path / "lengths.csv"
    file.write_text(text)
    said = refused("simulate", "-", "--lengths", file, given=STREAM)
    assert "lengths.csv: " in said
    assert said in said
    missing = memplan("simulate", "-", "--lengths", tmp_path / "none.csv", given=STREAM)
    assert (missing.status, missing.out) == (2, "")


def test_simulate_refuses_what_is_no_plan(refused):
    assert "serve.seed" in refused("simulate", "-", given='{"serve": {"seed": -1}}')


def test_solve_answers_three_questions(memplan):
    assert "Longest context: 7,024 tokens" in memplan("solve", "context", "-", given="{}").out
    assert "memory forbids more" in memplan("solve", "concurrency", "-", given="{}").out
    ran = memplan("solve", "gpus", "-", "--rate", "5", "--tpot", "0.05", "--json", given="{}")
    answer = ran.json
    assert answer["value"] == answer["plan"]["cluster"]["gpus"] >= 1


BERT = '{"model": "bert-base", "train": {"attention": "sdpa", "seq_len": 512}}'


def test_solve_refuses_what_it_cannot_answer(refused):
    assert "--rate" in refused("solve", "gpus", "-", given="{}")
    assert "cannot be served" in refused("solve", "context", "-", given=BERT)


def test_evaluate_says_whether_the_server_fits(memplan):
    """Its verdict is its own; where nothing fits no speed is printed, and none is in the Report."""
    small = memplan("evaluate", "-", given="{}")
    assert "Serving FITS: 64 sequences need 10.0 GiB" in small.out
    assert "First token after" in small.out
    crowded = memplan("evaluate", "-", given='{"serve": {"concurrency": 10000}}')
    assert "Serving DOES NOT FIT: 10,000 sequences need" in crowded.out
    large = '{"model": "llama-3-70b", "cluster": {"gpus": 1}}'
    printed = memplan("evaluate", "-", given=large)
    assert "Serving DOES NOT FIT: weights" in printed.out
    assert "First token after" not in printed.out
    (report,) = memplan("evaluate", "-", "--json", given=large).lines
    assert "ttft_seconds" not in report["serve"]


def test_of_a_long_path_the_end_is_shown(memplan, tmp_path):
    path = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 9, "plan.json")
    ran = memplan("evaluate", str(path))
    assert ran.status == 2
    assert "plan.json: no such file or directory" in ran.err
    assert len(ran.err) < 300


def test_evaluate_says_what_a_million_tokens_cost(memplan):
    priced = memplan("evaluate", "-", given='{"run": {"price_per_gpu_hour": 2.5}}').out
    serve = evaluate(Plan.of({"run": {"price_per_gpu_hour": 2.5}})).serve
    for cost in (serve.cost_per_million_in, serve.cost_per_million_out):
        assert money_text(cost) in priced
    assert "A million tokens cost" not in memplan("evaluate", "-", given="{}").out
