"""The plan that a command is given: by a name, a link, a config.json, with fields that are set."""

from __future__ import annotations

import json

import pytest

from memcore import cli
from memcore.cli.app import opened_at
from memcore.cli.link import link_to
from memcore.cli.program import parser
from memcore.errors import PlanError
from memcore.models import catalog
from memcore.plan.plan import Plan, get
from memcore.words.jobs import JOBS


def told(capsys, *arguments):
    """The plan that `memplan link` was given, and what it said beside it."""
    assert cli.main(["link", "--json", "--long", *arguments]) == 0
    out, err = capsys.readouterr()
    link = json.loads(out)["link"]
    assert cli.main(["evaluate", "--json", link]) == 0
    return Plan.of(json.loads(capsys.readouterr().out)["plan"]), err


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ("qwen3-32b", "qwen3-32b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("https://huggingface.co/Qwen/Qwen3-32B", "qwen3-32b"),
        ("7B", {"size": "7B"}),
    ],
)
def test_a_name_is_the_default_plan_of_a_model(capsys, given, model):
    assert told(capsys, given) == (Plan(model=model), "")


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "electra-small"])
def test_a_model_by_its_name_has_no_more_than_it_can(name, capsys):
    """The default plan's 4,096 tokens are more than its positions."""
    positions = catalog.model(name).max_positions
    assert positions is not None
    assert cli.main(["evaluate", name, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["parameters"]
    assert f"train.seq_len: {positions:,} is used in place of 4,096" in err


def test_a_name_is_a_worked_plan(capsys):
    for name, entry in list(catalog.plan_entries().items())[:3]:
        assert told(capsys, name) == (Plan.of(entry["plan"]), "")


def test_a_file_goes_before_a_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7B").write_text('{"model": "qwen3-32b"}')
    assert told(capsys, "7B")[0].model == "qwen3-32b"


def test_a_link_is_its_plan(capsys):
    plan = Plan(model="qwen3-32b", cluster={"gpus": 4}, train={"seq_len": 2048})
    assert told(capsys, link_to([plan], "https://plans.example/train")) == (plan, "")


def test_what_a_link_says_wrongly_is_told(capsys):
    plan, err = told(capsys, "https://plans.example/?model=qwen3-32b&train.zero=9")
    assert plan.model == "qwen3-32b"
    assert "train.zero" in err


def test_a_config_json_is_the_default_plan_of_its_model(capsys, tmp_path):
    config = catalog.model_entry("qwen3-32b")["config"]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert told(capsys, str(file)) == (Plan(model=config), "")


def test_fields_are_set_by_path_and_by_last_word(capsys):
    settings = ("gpu=h200-sxm-141gb", "cluster.gpus=4", "seq_len=2048", "zero=2")
    plan, err = told(capsys, "7B", *(word for text in settings for word in ("--set", text)))
    assert plan == Plan(
        model={"size": "7B"},
        cluster={"gpu": "h200-sxm-141gb", "gpus": 4},
        train={"seq_len": 2048, "zero": 2},
    )
    assert err == ""


@pytest.mark.parametrize("text", ["100000000000", "100e9", "100B", "0.1T", "1e5m"])
def test_whole_numbers_are_written_as_people_write_them(capsys, text):
    assert told(capsys, "7B", "--set", f"run.tokens={text}")[0].run.tokens == 100 * 10**9


@pytest.mark.parametrize(
    ("asked", "gpu"),
    [
        (("--gpu", "h100"), "h100-sxm-80gb"),
        (("--set", "gpu=RTX 4090"), "rtx-4090-24gb"),
        (("--gpu", "A100 80GB"), "a100-sxm-80gb"),
    ],
)
def test_a_gpu_is_called_as_people_call_it(capsys, asked, gpu):
    plan, err = told(capsys, "7B", *asked, "--gpus", "4")
    assert (plan.cluster.gpu, plan.cluster.gpus) == (gpu, 4)
    assert f"is taken for {gpu}" in err


@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_where_the_plan_begins(capsys, job):
    plan, _ = told(capsys, "7B", "--job", job, "--set", "gpus=1")
    assert plan.cluster.gpus == 1
    assert {path: get(plan, path) for path in JOBS[job]} == JOBS[job]


@pytest.mark.parametrize(
    ("job", "trained", "served"),
    [("lora", True, False), ("serve", False, True), ("rl", True, False), (None, True, True)],
)
def test_a_report_says_what_the_job_is_about(capsys, job, trained, served):
    asked = ["--job", job] if job else []
    assert cli.main(["evaluate", "llama-3.1-8b", *asked]) == 0
    said = capsys.readouterr().out
    assert (("Step: " in said), ("First token after" in said)) == (trained, served)
    assert ("\nServing " in said) == served


def test_a_server_s_job_is_checked_as_a_server(capsys):
    """8B serves on one GPU, on which it is not trained."""
    asked = ["evaluate", "llama-3.1-8b", "--set", "gpus=1", "--set", "zero=0", "--check"]
    assert cli.main([*asked, "--job", "serve"]) == 0
    assert cli.main([*asked, "--job", "fine-tune"]) == 1


def test_what_is_set_goes_before_the_job(capsys):
    plan, _ = told(capsys, "7B", "--job", "lora", "--set", "framework=fsdp2", "--set", "zero=3")
    assert (plan.train.adapter, plan.train.framework, plan.train.zero) == ("lora", "fsdp2", 3)


@pytest.mark.parametrize(("word", "on"), [("on", True), ("true", True), ("no", False)])
def test_switches_are_set_by_words(capsys, word, on):
    plan, _ = told(capsys, "7B", "--set", "parallel.tp=2", "--set", f"sequence_parallel={word}")
    assert plan.parallel.sequence_parallel is on


def test_what_changes_with_a_field_is_told(capsys):
    plan, err = told(capsys, "llama-3-8b", "--set", "adapter=qlora")
    with pytest.raises(PlanError):  # the default plan with this one change is no plan
        Plan(model="llama-3-8b").changed("train.adapter", "qlora")
    assert plan.train.adapter == "qlora"
    assert f"train.precision: bf16 pure is used in place of {'bf16 mixed'}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-3-8c"], "did you mean 'llama-3-8b'?"),
        (["plans/a.json"], "no such file or directory"),
        (["http://localhost:8501/"], "the link: says no plan"),
        (["7B", "--gpu", "h10"], "cluster.gpu: no GPU preset 'h10'; near it are h100-"),
        (
            ["7B", "--gpu", "rtx 6000"],
            "cluster.gpu: no GPU preset 'rtx 6000'; near it are rtx-6000",
        ),
        (["7B", "--gpus", "two"], "--set cluster.gpus: 'two' is no number"),
        (["7B", "--set", "model=lama"], "--set model: no preset 'lama'; did you mean"),
        (["7B", "--set", "zero=9"], "--set train.zero: '9' is not from 0 to 3"),
        (["7B", "--set", "zero=two"], "--set train.zero: 'two' is no number"),
        (["7B", "--set", "precision=fp8"], "none of its words; did you mean 'fp8-"),
        (["7B", "--set", "batch=3"], "--set batch: is no field of a plan; did you mean 'train."),
        (["7B", "--set", "tp=2"], "last word of parallel.tp and serve.tp"),
        (["7B", "--set", "zero"], "--set: 'zero' is no field with a value"),
    ],
)
def test_what_is_wrong_is_named(refused, arguments, message):
    assert message in refused("evaluate", *arguments)


def test_settings_that_no_plan_keeps_together_are_refused(refused):
    err = refused("evaluate", "7B", "--set", "gpus=2", "--set", "parallel.tp=3")
    assert "--set parallel.tp" in err or "--set cluster.gpus" in err


def test_every_line_has_what_is_set(capsys, tmp_path, monkeypatch):
    import io
    import sys

    lines = b'{"model": "qwen3-32b"}\n{"train": {"seq_len": 1024}}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert cli.main(["evaluate", "-", "--json", "--set", "gpus=16"]) == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["plan"]["cluster"]["gpus"] for r in reports] == [16, 16]
    assert reports[1]["plan"]["train"]["seq_len"] == 1024


def test_check_and_compare_take_names_too(capsys):
    assert cli.main(["check", "qwen3-32b", "--gpus", "64"]) == 0
    assert "64 x NVIDIA" in capsys.readouterr().out
    assert cli.main(["compare", "qwen3-32b", "qwen3-14b"]) == 0
    assert "qwen3-14b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        ([], ""),
        (["qwen3-32b"], "/?v=2&model=qwen3-32b~"),
        (["7B", "--set", "gpus=4"], "gpus=4"),
        (["--set", "gpus=4"], "gpus=4"),
    ],
)
def test_the_app_opens_at_a_plan(arguments, query):
    opened = opened_at(parser().parse_args(["app", *arguments]))
    assert query in opened if query else opened == ""
