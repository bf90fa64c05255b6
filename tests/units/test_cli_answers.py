"""Commands that answer: check, link, compare, solve, sweep, and tables as CSV."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from allocating import MIB, Allocator

from memcore import Plan, cli, evaluate
from memcore.cli.progress import Progress
from memcore.models import catalog
from memcore.plan.keys import PINS
from memcore.plan.link import decode, decode_measured, decode_pin
from memcore.plan.measured import Measured
from memcore.search.measured import calibrated

OF = {
    "fits": {"train": {"seq_len": 1024}},
    "over": {"train": {"seq_len": 65_536, "checkpointing": "none"}},
    "none": {"train": {"micro_bach": 1}},
}
# Where the range of what it needs straddles the memory: found by its length.
OF["tight"] = next(
    {"train": {"seq_len": n, "checkpointing": "none"}}
    for n in range(4096, 10_240, 512)
    if evaluate(Plan.of({"train": {"seq_len": n, "checkpointing": "none"}})).verdict == "tight"
)


@pytest.fixture
def file(tmp_path: Path):
    def write(name: str) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(OF[name]))
        return path

    return write


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["fits"], 0), (["over"], 1), (["none"], 2), (["tight"], 3), (["fits", "tight"], 3),
        (["tight", "over"], 1), (["over", "none", "fits"], 2),
    ],
)  # fmt: skip
def test_check_ends_with_the_worst(memplan, file, names, status):
    files = [file(name) for name in names]
    ran = memplan("check", *files)
    assert ran.status == status
    marked = [line for line in ran.out.splitlines() if line.startswith("::error ")]
    assert len(marked) == sum(name != "fits" for name in names)
    asked = memplan("check", *files, "--json")
    assert (asked.status, asked.json["status"]) == (status, status)
    assert [f["status"] for f in asked.json["files"]] == [
        {"fits": 0, "over": 1, "none": 2, "tight": 3}[name] for name in names
    ]
    assert "::error" not in asked.out


def test_check_elsewhere_and_below_a_limit(memplan, file):
    fits = file("fits")
    assert memplan("check", fits, "--gpu", "l4-24gb", "--gpus", 1).status == 1
    assert memplan("check", fits, "--gpu", "nix").status == 2
    needed = memplan("check", fits, "--json").json["files"][0]["device_bytes"]
    assert [
        memplan("check", fits, "--max-device-gib", n / 2**30).status
        for n in (needed[0] - 1, sum(needed) / 2, needed[1] + 1)
    ] == [1, 3, 0]
    assert memplan("check", fits, "--max-device-gib", "much").status == 2


def test_check_writes_a_summary_with_a_link(file, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    cli.main(["check", str(file("over"))])
    said = summary.read_text()
    (link,) = [part.split(")")[0] for part in said.split("](")[1:]]
    found, issues = decode(dict(pair.split("=") for pair in link.split("?")[1].split("&")))
    assert not issues
    assert found == Plan.of(OF["over"])


def test_a_name_cannot_break_out_of_an_error_line(memplan, tmp_path):
    path = tmp_path / "a,b%:c.json"
    path.write_text("[")
    ran = memplan("check", path)
    (line,) = [one for one in ran.out.splitlines() if one.startswith("::error")]
    assert "a%2Cb%25%3Ac.json,title=" in line


def test_check_reads_a_long_log_to_its_end(memplan, tmp_path):
    said = "CUDA out of memory. Tried to allocate 2.00 GiB"
    (tmp_path / "run.log").write_text("step 1\n" * 700_000 + said)
    ran = memplan("check", tmp_path / "run.log")
    assert ran.status == 2
    assert "give the files of its job beside it" in ran.out
    assert "2.00 GiB" in ran.out


def test_check_of_a_folder_judges_its_jobs(memplan, tmp_path):
    job = "model_name_or_path: Qwen/Qwen3-0.6B\nper_device_train_batch_size: 1\nmax_length: 128\n"
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "job.yaml").write_text(f"{job}deepspeed: configs/sharded.json\n")
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-0.6B --max-model-len 4096\n")
    (tmp_path / "sharded.json").write_text('{"zero_optimization": {"stage": 3}}')
    (tmp_path / "notes.json").write_text('{"nothing": 1}')
    alone = memplan("check", tmp_path / "deep" / "job.yaml")
    assert "not read, since it is not given: configs/sharded.json" in alone.out
    ran = memplan("check", tmp_path, "--json")
    assert ran.status == 0
    judged = {each["file"].rpartition("/")[2]: each for each in ran.json["files"]}
    assert {*judged} == {"job.yaml", "serve.sh"}
    link = judged["job.yaml"]["link"]  # which leaves out stage 3, the default
    assert "fw=deepspeed" in link
    assert "zero=" not in link


def test_check_of_a_folder_without_a_job_says_so(memplan, tmp_path):
    (tmp_path / "notes.json").write_text('{"nothing": 1}')
    ran = memplan("check", tmp_path)
    assert ran.status == 2
    assert "no file in it describes a job" in ran.out


def test_check_of_a_server(memplan, file):
    assert memplan("check", file("fits"), "--serving").status == 0
    bert = '{"model": "bert-base", "train": {"attention": "sdpa", "seq_len": 512}}'
    assert memplan("check", "-", "--serving", given=bert).status == 2
    crowded = '{"serve": {"concurrency": 100000}}'
    assert memplan("check", "-", "--serving", given=crowded).status == 1


def test_a_link_is_the_plan(memplan, file):
    link = memplan("link", file("over"), "--base", "https://plans.example/").out.strip()
    assert link.startswith("https://plans.example/?v=2&")
    ran = memplan("link", file("over"), "--json")
    assert decode(ran.json["query"])[0] == Plan.of(OF["over"])


def test_a_plan_is_read_beside_a_step_that_was_measured(memplan, file):
    run, plan = file("fits"), file("over")
    report = evaluate(Plan.of(OF["over"]))
    given = f"{run}=2.5,30"
    found = memplan("evaluate", plan, "--measured", given, "--json").json
    assert found["time"]["step_seconds"] == report.time.step_seconds  # as ever
    beside = found["calibrated"]
    measured = Measured(Plan.of(OF["fits"]), 2.5)
    factor = calibrated(Plan.of(OF["over"]), measured, report).step.factor
    assert beside["step"]["calibrated_seconds"] == pytest.approx(report.time.step_seconds * factor)
    assert beside["measured"] == {"seconds": 2.5, "bytes": 30 * 2**30}
    assert "Assumed" in beside["assumed"]
    assert "Calibrated: " in memplan("evaluate", plan, "--measured", given).out
    table = memplan("evaluate", plan, "--measured", given, "--csv", "--table", "breakdown").out
    assert f"calibrated,step,,,{beside['step']['calibrated_seconds']}" in table
    lines = json.dumps(OF["over"]) + "\n" + '{"cluster": {"gpu": "a100-sxm-80gb"}}\n'
    ran = memplan("evaluate", "-", "--json", "--measured", given, given=lines)
    first, second = map(json.loads, ran.out.splitlines())
    assert first["calibrated"] == beside
    assert ran.status == 2
    assert second["issues"][0]["field"] == "cluster.gpu"


def test_compare_and_search_are_read_with_it(memplan, file, tmp_path, monkeypatch):
    from memcore.search import space

    run = Plan.of(OF["fits"])
    factor = calibrated(Plan.of(OF["over"]), Measured(run, 2.5)).step.factor
    given = ("--measured", f"{file('fits')}=2.5")
    other = json.dumps({"train": {"framework": "deepspeed"}})
    figures = memplan("compare", file("over"), "-", *given, "--json", given=other).json["figures"]
    predicted, _ = figures["time.step_seconds"]
    assert figures["calibrated.step.calibrated_seconds"] == [
        pytest.approx(predicted * factor),
        None,
    ]
    refused = memplan("compare", "-", "-", *given, given=other)
    assert refused.status == 2

    monkeypatch.setattr(space.Space, "frameworks", lambda *_: [{"train.framework": "fsdp2"}])
    start = json.dumps({"model": "llama-3.2-1b", "cluster": {"gpus": 1}})
    assert "says nothing of these plans" in memplan("search", start, *given).out
    best = memplan("search", start, "--json").json["best"][0]
    ran = tmp_path / "ran.json"
    ran.write_text(json.dumps(best["plan"]))
    found = memplan("search", start, "--measured", f"{ran}=2.5", "--json").json["best"]
    assert found[0]["figures"] == best["figures"] | {
        "calibrated_seconds": 2.5, "calibrated_interval": [2.5, 2.5],
    }  # fmt: skip
    assert "Calibrated" in memplan("search", start, "--measured", f"{ran}=2.5").out
    assert memplan("search", start, "--serve", *given).status == 2


SERVES = {
    "model": "llama-3.1-8b",
    "serve": {"engine": "vllm", "arrivals": "closed", "concurrency": 16},
}


def test_a_server_is_read_beside_one_that_was_measured(memplan, tmp_path):
    run, bench = tmp_path / "run.json", tmp_path / "bench.json"
    run.write_text(json.dumps(SERVES))
    said = {"mean_tpot_ms": 9.0, "mean_ttft_ms": 120.0, "max_concurrency": 8, "completed": 10}
    bench.write_text(json.dumps(said | {"total_input_tokens": 10240}))
    ran, plan = Plan.of(SERVES).changed("serve.concurrency", 8), Plan.of(SERVES)
    found = calibrated(plan, Measured(ran, token=0.009, first=0.12))
    given = ("evaluate", run, "--measured", f"{run}={bench}")
    told = memplan(*given, "--json")
    assert "8 of the benchmark, in place of 16 of its plan" in told.err
    assert told.json["calibrated"] == json.loads(json.dumps(found.to_dict()))
    assert told.json["serve"]["tpot_seconds"] == evaluate(plan).serve.tpot_seconds  # as ever
    assert f"Calibrated: {found.text}" in memplan(*given, "--job", "serve").out
    table = memplan(*given, "--csv", "--table", "breakdown").out
    assert f"calibrated,a token,,,{found.token.calibrated_seconds}" in table
    figures = ("--measured", f"{run}=tpot:9ms,ttft:0.12")
    own = memplan("evaluate", run, *figures, "--json").json["calibrated"]
    assert own["token"]["calibrated_seconds"] == pytest.approx(0.009)
    assert (own["at"], own["measured"]) == ("own", {"token": 0.009, "first": 0.12})

    other = json.dumps(SERVES | {"model": "llama-3.2-1b"})
    compared = memplan("compare", run, other, *figures, "--json").json["figures"]
    assert compared["calibrated.token.calibrated_seconds"] == [pytest.approx(0.009), None]
    assert memplan("evaluate", other, *figures).status == 2
    assert "--serve" in memplan("search", run, *figures).err
    link = memplan("link", run, *figures, "--json").json
    assert decode_measured("benched", link["query"]["benched"])[0] == Measured(
        plan, token=0.009, first=0.12
    )


def test_a_search_of_servers_has_calibrated_seconds(memplan, tmp_path):
    run = tmp_path / "run.json"
    run.write_text(json.dumps(SERVES))
    given = ("search", run, "--serve", "--gpu", "h100-sxm-80gb", "--engine", "vllm")
    given += ("--measured", f"{run}=tpot:9ms,ttft:0.12")
    ran = memplan(*given, "--json").json["best"]
    own = [p for p in ran if (p["figures"]["tp"], p["figures"]["concurrency"]) == (1, 16)]
    assert own[0]["figures"]["calibrated_tpot_seconds"] == pytest.approx(0.009)
    assert all("calibrated_tpot_seconds" not in p["figures"] for p in ran
               if p["figures"]["tp"] > 1)  # fmt: skip
    assert "Calibrated by what was measured" in memplan(*given).out


@pytest.mark.parametrize("said", ["tpot:0", "tpot:20", "speed:3", "tps:x", "ttft:-1", "tpot:"])
def test_a_servers_figures_that_are_none_are_refused(memplan, tmp_path, said):
    run = tmp_path / "run.json"
    run.write_text(json.dumps(SERVES))
    ran = memplan("evaluate", run, "--measured", f"{run}={said}")
    assert ran.status == 2
    assert "tpot:14ms" in ran.err


def test_a_link_carries_the_step_that_was_measured(memplan, file):
    run, plan = file("fits"), file("over")
    query = memplan("link", plan, "--measured", f"{run}=2.5", "--json").json["query"]
    assert decode(query) == (Plan.of(OF["over"]), [])
    assert decode_measured("measured", query["measured"]) == (
        Measured(Plan.of(OF["fits"]), 2.5),
        [],
    )


@pytest.mark.parametrize("given", ["{}", "{}=", "=2", "{}=x", "{}=0", "{}=2,x", "{}=2,inf", "x=2"])
def test_a_measured_step_that_is_none_is_refused_by_its_option(memplan, file, given):
    ran = memplan("evaluate", file("fits"), "--measured", given.format(file("fits")))
    assert ran.status == 2
    assert ran.err.startswith("memplan: --measured: ")


def test_the_lens_says_of_each_tensor_what_it_is_and_could_be(memplan, file):
    plan = file("over")
    found = memplan("lens", plan, "--json").json
    report = evaluate(Plan.of(OF["over"]))
    here = [row["bytes"] for row in found if row["tier"] == "hbm"]
    assert sum(here) == report.memory.allocated_bytes
    way = next(w for row in found for w in row["ways"] if w["state"] == "recomputed")
    then = evaluate(Plan.of(OF["over"]).with_changes(way["changes"]))
    assert way["freed_bytes"] == report.memory.allocated_bytes - then.memory.allocated_bytes
    assert "if recomputed" in memplan("lens", plan).out
    table = memplan("lens", plan, "--csv").out.splitlines()
    assert len(table) == len(found) + 1
    assert memplan("lens", "-", given='{"model": 3}').status == 2


def test_compare_says_fields_figures_and_what_moved_them(memplan, file):
    a, b = file("fits"), file("over")
    found = memplan("compare", a, b, "--json").json
    assert found["fields"] == {
        "train.seq_len": [1024, 65_536], "train.checkpointing": ["full", "none"],
    }  # fmt: skip
    reports = [evaluate(Plan.of(OF[name])) for name in ("fits", "over")]
    assert found["figures"]["time.step_seconds"] == [r.time.step_seconds for r in reports]
    moved = sum(c["bytes"] for c in found["waterfalls"][0]["changes"])
    assert moved == reports[1].memory.allocated_bytes - reports[0].memory.allocated_bytes
    rows = memplan("compare", a, b, "--csv").csv
    (here,) = [
        row for row in rows if row["name"] == "memory.allocated_bytes" and row["plan"] == str(b)
    ]
    assert int(here["value"]) == reports[1].memory.allocated_bytes
    assert "Checkpointing (train.checkpointing)" in memplan("compare", a, b).out


@pytest.mark.parametrize("n", range(2, 7))
def test_the_link_of_a_comparison_carries_every_plan(memplan, tmp_path, n):
    plans = [Plan.of({"train": {"seq_len": 512 * (i + 1)}}) for i in range(n)]
    files = [tmp_path / f"{i}.json" for i in range(n)]
    for plan, path in zip(plans, files, strict=True):
        path.write_text(plan.model_dump_json())
    link = memplan("compare", *files, "--json").json["link"]
    query = dict(parse_qsl(link.partition("?")[2]))
    assert decode(query) == (plans[0], [])
    assert [decode_pin(query[pin]) for pin in PINS[: n - 1]] == [(p, []) for p in plans[1:]]


def test_compare_wants_two_to_six_plans(memplan, refused, file):
    assert "2 to 6 plans" in refused("compare", file("fits"))
    assert memplan("compare", *[file("fits")] * 7).status == 2
    assert len(memplan("compare", *[file("fits")] * 3, "--json").json["plans"]) == 3


def test_solve_any_field(memplan, refused):
    found = memplan("solve", "train.micro_batch", "-", "--json", given="{}").json
    assert found["value"] == 6
    assert found["plan"] == Plan().changed("train.micro_batch", 6).document()
    said = memplan("solve", "cluster.gpus", "-", given='{"model": "llama-3-70b"}').out
    assert said == "Smallest cluster.gpus that fits: 24; memory forbids anything smaller.\n"
    assert "micro_batch" in refused("solve", "train.micro_bach", "-", given="{}")
    huge = '{"model": {"size": "1T"}, "cluster": {"gpus": 1}}'
    assert memplan("solve", "train.micro_batch", "-", "--json", given=huge).json["value"] is None


def test_sweep_as_a_table_csv_and_json(memplan):
    axes = ("--axis", "train.micro_batch=1:5:2", "--axis", "train.checkpointing=none,full")
    rows = memplan("sweep", "-", *axes, "--csv", given="{}").csv
    assert [row["train.micro_batch"] for row in rows] == ["1", "1", "3", "3", "5", "5"]
    plan = Plan().with_changes({"train.micro_batch": 3, "train.checkpointing": "full"})
    assert int(float(rows[3]["memory.allocated_bytes"])) == evaluate(plan).memory.allocated_bytes
    asked = ("--number", "time.step_seconds", "--json")
    found = memplan("sweep", "-", "--axis", "parallel.tp=1,7", *asked, given="{}").json
    assert found[1] == {"parallel.tp": 7, "time.step_seconds": None}
    by_last_word = memplan("sweep", "-", "--axis", "micro_batch=1", "--json", given="{}").json
    assert by_last_word[0]["train.micro_batch"] == 1
    assert "train.checkpointing" in memplan("sweep", "-", *axes, given="{}").out


@pytest.mark.parametrize(
    "axis",
    [
        *("train.micro_batch", "train.nix=1", "train.micro_batch=1:x", "train.micro_batch=all"),
        *("train.micro_batch=1..4", "train.micro_batch=0,1", "train.checkpointing=fulll", "tp=1"),
        *("train.micro_batch=1.5", "train.micro_batch=5:1", "train.micro_batch=1:5:-1"),
    ],
)
def test_an_axis_that_is_none_is_named(refused, axis):
    said = refused("sweep", "-", "--axis", axis, given="{}")
    assert "train." in said or "parallel.tp" in said


def test_an_axis_of_presets(memplan, refused):
    asked = ("--number", "memory.capacity_bytes", "--json")
    every = memplan("sweep", "-", "--axis", "gpu=all", *asked, given="{}").json
    assert [row["cluster.gpu"] for row in every] == list(catalog.gpu_names())
    for axis, near in (("gpu=h10", "h100-sxm-80gb"), ("model=lama-3-8b", "llama-3-8b")):
        assert near in refused("sweep", "-", "--axis", axis, given="{}")


def test_an_axis_that_is_there_twice_is_refused(refused):
    axes = ("--axis", "train.micro_batch=1", "--axis", "micro_batch=2")
    assert "--axis train.micro_batch: is there twice" in refused("sweep", "-", *axes, given="{}")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("search", "-", "--users", "5"), "--users"),
        (("search", "-", "--tpot", "0.1"), "--tpot"),
        (("search", "-", "--engine", "vllm"), "--engine"),
        (("search", "-", "--serve", "--thorough"), "--thorough"),
        (("solve", "cluster.gpus", "-", "--rate", "5"), "--rate"),
        (("solve", "micro_batch", "-", "--days", "5"), "--days"),
        (("solve", "cluster.gpus", "-", "--cost", "5"), "--cost"),  # no price
        (("evaluate", "-", "--csv", "--json"), "--json"),
        (("evaluate", "-", "--table", "ledger", "--json"), "--table"),
        (("sweep", "-", "--axis", "micro_batch=1", "--json", "--csv"), "--csv"),
        (("search", "-", "--serve", "--users", str(10**14)), "--users"),
        (("search", "-", "--serve", "--users", "0"), "--users"),
    ],
)
def test_an_option_that_says_nothing_here_is_refused(refused, command, option):
    assert option in refused(*command, given="{}")


def test_tables_of_a_report_as_csv(memplan, file):
    rows = memplan("evaluate", file("fits"), "--csv").csv
    report = evaluate(Plan.of(OF["fits"]))
    by = {name: [r for r in rows if r["table"] == name] for name in {r["table"] for r in rows}}
    assert set(by) == {"breakdown", "ledger", "transfers", "timeline"}
    assert len(by["ledger"]) == len(report.ledger)
    assert len(by["transfers"]) == len(report.time.transfers)
    held = sum(int(r["bytes"]) for r in by["breakdown"] if r["part"] == "consumers")
    assert held == report.memory.allocated_bytes
    assert max(int(r["bytes"]) for r in by["timeline"]) == report.memory.allocated_bytes
    took = sum(float(r["seconds"]) for r in by["timeline"])
    assert took == pytest.approx(report.time.step_seconds)
    (alone,) = {r["table"] for r in memplan("evaluate", file("fits"), "--table", "ledger").csv}
    assert alone == "ledger"


def test_progress_is_drawn_on_a_terminal_after_a_second(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("sweep") as progress:
        progress(1, 4)
        assert capsys.readouterr().err == ""
        now[0] = 2.0
        progress(2, 4)
        assert "sweep [" in capsys.readouterr().err
    assert capsys.readouterr().err == "\r\x1b[K"


def test_search_prints_json_csv_and_a_table(memplan, refused, monkeypatch):
    from memcore.search import space

    monkeypatch.setattr(
        space.Space,
        "frameworks",
        lambda self, setup: [{"train.framework": "fsdp2", "train.zero": 3}],
    )
    given = '{"model": "llama-3.2-1b", "cluster": {"gpus": 1}}'
    found = memplan("search", "-", "--json", "--gpus-at-most", 1, given=given).json
    assert {"evaluated", "fits", "excluded", "best", "pareto"} <= set(found)
    assert set(found["best"][0]) >= {"plan", "changes", "figures"}
    rows = memplan("search", "-", "--csv", given=given).csv
    assert {row["list"] for row in rows} == {"best", "pareto"}
    said = memplan("search", "-", "--keep", "training", "--by", "energy", given=given).out
    assert "combinations judged" in said
    assert "no GPU preset" in refused("search", "-", "--gpu", "nix", given=given)


@pytest.mark.parametrize("part", ["gpu", "node"])
def test_an_unknown_gpu_or_host_is_named(refused, part):
    assert f"cluster.{part}: no" in refused(
        "evaluate", "-", given=json.dumps({"cluster": {part: "nix"}})
    )
    said = refused("sweep", "-", "--axis", f"cluster.{part}=nix", "--json", given="{}")
    assert re.search(rf"--axis cluster.{part}: no (GPU )?preset 'nix'", said)


# ---- snapshot


@pytest.fixture
def snapshot(tmp_path):
    """Two steps of one tensor each, as PyTorch writes what a GPU held."""
    gpu = Allocator()
    kept = [{"filename": "torch/nn/modules/module.py", "line": 9, "name": "_apply"}]
    gpu.alloc(30 * MIB, kept)
    for _ in range(2):
        gpu.free(gpu.alloc(2 * MIB))
        gpu.note("Optimizer.step#AdamW.step", "START")
        gpu.time += 2_000_000
        gpu.note("Optimizer.step#AdamW.step", "END")
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(gpu.snapshot()))
    return str(path)


def test_snapshot_says_what_a_run_held(memplan, snapshot):
    said = memplan("snapshot", snapshot).out
    assert "GPU 0: 9 events" in said
    assert re.search(r"allocated peak .*32\.0 MiB", said)
    assert "expandable_segments=False" in said
    found = memplan("snapshot", snapshot, "--json").json
    (device,) = found["devices"]
    assert device["instants"]["allocated peak"]["allocated"] == 32 * MIB
    assert device["categories"] == {"parameters": 30 * MIB, "workspace": 2 * MIB}
    rows = memplan("snapshot", snapshot, "--csv").csv
    (peak,) = [row for row in rows if row["name"] == "allocated peak"]
    assert (peak["table"], peak["allocated"]) == ("instants", str(32 * MIB))
    assert {row["device"] for row in rows} == {"GPU 0"}


def test_snapshot_is_compared_with_a_plan_and_becomes_its_measured_run(memplan, file, snapshot):
    plan = file("fits")
    said = memplan("snapshot", snapshot, plan).out
    assert re.search(r"allocated .* 32\.0 MiB", said)
    found = memplan("snapshot", snapshot, plan, "--json").json
    assert found["measured"] == {"seconds": pytest.approx(2, abs=0.01), "bytes": 32 * MIB}
    row = next(row for row in found["compared"] if row["name"] == "parameters")
    assert row["measured"] == 30 * MIB
    query = parse_qs(urlsplit(found["link"]).query)
    measured, issues = decode_measured("measured", query["measured"][0])
    assert (measured.bytes, issues) == (32 * MIB, [])
    slower = memplan("snapshot", snapshot, plan, "--seconds", 9, "--json").json
    assert slower["measured"]["seconds"] == 9
    beside = memplan("evaluate", plan, "--measured", f"{plan}=2.5,{snapshot}", "--json").json
    assert beside["calibrated"]["measured"] == {"seconds": 2.5, "bytes": 32 * MIB}


def test_snapshot_reads_what_an_allocator_or_nvidia_smi_printed(memplan, file, tmp_path):
    plan, run, smi = file("fits"), tmp_path / "run.json", tmp_path / "smi.txt"
    run.write_text('{"allocated_bytes.all.peak": 21474836480, "num_ooms": 1}')
    said = memplan("snapshot", str(run), plan).out
    assert re.search(r"each at its own peak +20\.0 GiB", said)
    assert "Memory ran out once" in said
    assert re.search(r"allocated +[0-9.]+ GiB +20\.0 GiB +[-+]", said)
    rows = memplan("snapshot", str(run), plan, "--csv").csv
    assert [row["table"] for row in rows] == ["instants", "most", "compared"]
    found = memplan("evaluate", plan, "--measured", f"{plan}=2.5,{run}", "--json").json
    assert found["calibrated"]["measured"] == {"seconds": 2.5, "bytes": 20 * 2**30}
    smi.write_text("Memory-Usage\n| 70W / 400W |   45231MiB / 81559MiB |      0% |\n")
    assert "on the device" in memplan("snapshot", str(smi), plan).out
    ran = memplan("evaluate", plan, "--measured", f"{plan}=2.5,{smi}")
    assert f"--measured: {smi}: does not say what was allocated" in ran.err


def test_what_is_no_snapshot_is_refused(memplan, file, tmp_path):
    path = tmp_path / "weights.pt"
    path.write_bytes(b"PK\x03\x04")
    ran = memplan("snapshot", str(path), file("fits"))
    assert ran.status == 2
    assert ran.err == (
        f"memplan: {path}: no memory snapshot of PyTorch: it is no pickle, as "
        "torch.cuda.memory._dump_snapshot writes, and no text that is read says what was "
        "allocated, or that memory ran out\n"
    )
    ran = memplan("snapshot", str(tmp_path / "none.pickle"))
    assert "none.pickle: no such file" in ran.err
    ran = memplan("evaluate", file("fits"), "--measured", f"{file('fits')}=2.5,{path}")
    assert f"--measured: {path}: no memory snapshot" in ran.err


# ---- read


SERVER = "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ --tensor-parallel-size 2 --max-num-seqs 32\n"


def test_read_says_what_a_file_became(memplan, tmp_path):
    file = tmp_path / "serve.sh"
    file.write_text(SERVER)
    ran = memplan("read", str(file), "--gpu", "rtx-4090-24gb")
    assert ran.status == 0
    assert "serve.tp" in ran.out
    assert "--tensor-parallel-size" in ran.out
    assert "has the shapes of the preset qwen2.5-72b" in ran.out
    assert "v=2&" in ran.out
    plan = memplan("read", str(file), "--plan")
    assert json.loads(plan.out)["serve"]["tp"] == 2
    found = memplan("read", str(file), "--json").json
    assert found["files"] == {"serve.sh": "vllm"}
    assert found["plan"] == json.loads(plan.out)


def test_check_says_what_of_a_file_it_leaves_out(memplan, tmp_path):
    file = tmp_path / "tune.yaml"
    file.write_text("base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nuse_dora: true\n")
    ran = memplan("check", str(file))
    (warning,) = (line for line in ran.out.splitlines() if line.startswith("::warning"))
    assert "not planned: use_dora" in warning
    assert "assumed: cluster.gpu" in warning
    assert len(memplan("check", str(file), "--json").json["files"][0]["told"]) >= 3


def test_read_refuses_what_it_does_not_know(refused, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("buy milk")
    assert "notes.txt: not read, since it is of no known kind; read are" in refused(
        "read", str(file)
    )
    assert "no such file" in refused("read", str(tmp_path / "none.yaml"))


def test_export_writes_what_read_reads(memplan, refused, tmp_path):
    given = json.dumps({"model": "llama-3.1-8b", "serve": {"tp": 2, "max_seq_len": 4096}})
    ran = memplan("export", "-", "--for", "vllm", "--out", str(tmp_path / "new"), given=given)
    assert ran.status == 0
    written = tmp_path / "new" / "serve.sh"
    assert ran.out.split() == [str(written)]
    assert "vllm serve meta-llama/Llama-3.1-8B" in written.read_text()
    plan = memplan("read", str(written), "--plan").json
    assert (plan["serve"]["tp"], plan["serve"]["max_seq_len"]) == (2, 4096)
    found = memplan("export", "-", "--json", given="{}").json
    assert list(found["files"]) == ["train.yaml"]
    assert found["left"] == [
        "train.cross_entropy: Eager is not in the files, which mean Chunked",
        "train.allocator: Expandable segments is not in the files, which mean Native",
    ], "TRL makes no whole logits, and its file sets no environment"
    ran = memplan("export", "-", given=json.dumps({"train": {"ema": "gpu"}}))
    assert "train.ema" in ran.err
    assert "does not run PyTorch FSDP2" in refused("export", "-", "--for", "megatorn", given="{}")
    assert "is not written" in refused("export", "-", "--out", str(written), given="{}")


def test_check_reads_what_other_programs_are_given(memplan, tmp_path):
    file = tmp_path / "serve.sh"
    file.write_text(SERVER)
    assert memplan("check", str(file), "--gpu", "rtx-4090-24gb").status == 1
    ran = memplan("check", str(file), "--gpu", "h200-sxm-141gb")
    assert ran.status == 0
    assert "serving" not in ran.err


def test_gpus_of_a_training_job_are_those_to_train_on(memplan):
    asked = ("1B", "--job", "pretrain", "--set", "tokens=100B", "--days", "7", "--json")
    found = memplan("solve", "gpus", *asked).json
    assert (found["field"], found["value"]) == ("cluster.gpus", 8)
    assert found == memplan("solve", "cluster.gpus", *asked).json
    assert "--rate" in memplan("solve", "gpus", "1B").err


def test_a_report_of_rl_says_each_phase_and_how_long_rollouts_take(memplan):
    out = memplan("evaluate", "llama-3.1-8b", "--job", "rl", "--gpus", "8").out
    assert "Training and serving on the same GPUs, FITS" in out
    assert "Policy update" in out
    assert "A step generates 64 rollouts on each of 8 engines in about" in out


def test_levers_of_a_server(memplan):
    asked = ("llama-3.3-70b", "--job", "serve", "--gpus", "4")
    ran = memplan("levers", *asked)
    assert ran.status == 0
    assert "Tensor parallel, serving: 4" in ran.out
    assert "serves all" in ran.out
    listed = memplan("levers", *asked, "--json").json
    assert listed[0]["changes"] == {"serve.tp": 4}
    assert memplan("levers", "bert-base", "--serving").out.endswith("nothing to change.\n")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("llama-3.3-70b", "--job", "serve"),
            "Next step: Tensor parallel, serving: 4 serves them.",
        ),
        (("llama-3.3-70b", "--job", "pretrain"), "Next step: GPUs: 24 makes it fit."),
        (("llama-3.1-8b", "--job", "serve", "--gpus", "1"), ""),
    ],
)
def test_a_report_says_what_to_change_first(memplan, asked, said):
    out = memplan("evaluate", *asked).out
    assert said in out
    assert ("Next step" in out) == bool(said)
    assert out.count("nothing is left for the KV cache") <= 1
