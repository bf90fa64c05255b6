"""The app without a browser: every view, every preset, every kind of bad input."""

from __future__ import annotations

import io
import json
import re
import tomllib
from typing import Any

import asked
import pandas as pd
import pytest
from pages import (
    APP,
    PROOF,
    VIEWS,
    alive,
    ask_why,
    each_view,
    figures,
    frame,
    frames,
    marks_of,
    metrics,
    opened,
    plots,
    said,
    shown_plan,
    texts,
    verdict,
)
from streamlit.testing.v1 import AppTest
from tables import each

from app import rest, shared
from app.text import times
from memcore.cache import STORE
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.plan.keys import FIELDS
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan, facts
from memcore.report import CONSUMERS
from memcore.search.levers import levers
from memcore.search.phases import reliefs
from memcore.search.server_levers import server_levers
from memcore.units import bytes_text

PLANS = sorted(catalog.plan_entries())
FEW = 20  # requests of a simulated stream, where it is not what a test is about


# --- every view ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_every_view_of_every_worked_example(name: str) -> None:
    from memcore.plan.link import encode

    plan = Plan.of(catalog.plan_entries()[name]["plan"]).changed("serve.requests", FEW)
    report = evaluate(plan)
    for view, at in each_view(encode(plan)):
        assert shown_plan(at) == plan, view
        assert not at.warning or report.memory is not None, view
        assert f"{report.parameters:,} parameters" in figures(at)["parameters"], view


def test_a_view_is_the_same_at_its_address_and_by_way_of_others() -> None:
    for view, led in each_view({"mb": "2"}, proof=True):
        straight = opened({"mb": "2"}, view)
        shown = []
        for at in (straight, led):
            alive(at)
            assert shown_plan(at).train.micro_batch == 2
            shown.append((plots(at), figures(at), [table.to_csv() for table in frames(at)]))
        assert shown[0] == shown[1], view
        nothing = view in ("together", "compare")  # with this plan
        assert shown[0][0] or shown[0][2] or nothing, view


def test_the_accuracy_page_of_one_source_and_one_family() -> None:
    at = opened(view="accuracy")

    def rows() -> pd.DataFrame:
        return frame(at, "error %")

    whole = rows()
    at.selectbox(key="of_source").set_value("PyTorch autograd").run()
    alive(at)
    assert set(rows()["source"]) == {"PyTorch autograd"}
    at.selectbox(key="of_family").set_value("qwen3").run()
    alive(at)
    assert set(rows()["source"]) == {"PyTorch autograd"}
    assert all("qwen3" in model.lower() for model in rows()["model"])
    assert 0 < len(rows()) < len(whole)
    # A family that the next source knows nothing of is let go, not an empty page.
    at.selectbox(key="of_source").set_value("published").run()
    alive(at)
    assert set(rows()["source"]) == {"published"}


def test_every_view_without_training_memory() -> None:
    for view, at in each_view({"ep": "2"}):
        elsewhere = view in ("serve", "stream", "rates")  # nothing of training is said there
        assert evaluate(shown_plan(at)).notes == () or at.info or elsewhere, view


def test_the_server_has_its_own_verdict_and_nothing_of_training() -> None:
    """Whether training fits is another question, for another page."""
    for query, says in (
        ({"model": "llama-3-8b"}, "Serving fits"),
        ({"model": "llama-3-8b", "conc": "10000"}, "Serving does not fit"),
        ({"model": "llama-3-70b", "gpus": "4", "stp": "4"}, "Serving fits"),
    ):
        at = opened(query, "serve")
        alive(at)
        assert not [*at.success, *at.warning, *at.error]
        assert verdict(at).startswith(says)
        assert {path.split(".")[0] for path in figures(at)} == {"serve", "parameters"}


def test_a_server_says_what_its_gpus_cost_a_month() -> None:
    for query in ({"price": "2"}, {"price": "2", "model": "llama-3-70b"}):  # also where none fits
        assert "8 GPUs: $16.0 an hour, $11,680 a month" in texts(opened(query, "serve"))
    assert " a month" in texts(opened({}, "serve"))  # at the least of the price list
    assert " a month" in texts(opened({"look": "gpus"}, "explore"))


def test_where_nothing_fits_the_page_says_why_and_claims_no_speed() -> None:
    at = opened({"model": "llama-3-70b", "gpus": "1"}, "serve")
    alive(at)
    assert "no speeds are known" in verdict(at)
    assert not {"serve.ttft_seconds", "serve.tpot_seconds"} & set(figures(at))


def test_a_token_that_misses_its_target_is_told_so() -> None:
    found = evaluate(Plan()).serve
    assert found
    assert found.tpot_seconds
    for target, missed in ((found.tpot_seconds * 0.9, True), (found.tpot_seconds * 1.1, False)):
        at = opened({"slotpot": f"{target:.9f}"}, "serve")
        assert ("not within" in figures(at)["serve.tpot_seconds"]) is missed
        assert "not within" not in figures(at)["serve.ttft_seconds"]


def test_a_server_s_figures_change_against_the_pinned_plan() -> None:
    at = opened({"model": "llama-3-8b"}, "serve")
    at.button(key="pin_button").click().run()
    at.select_slider(key="serve_tp").set_value(8).run()
    alive(at)
    before, now = (evaluate(Plan(serve={"tp": n})).serve for n in (0, 8))
    assert before
    assert now
    change = f"(+{now.kv_capacity_tokens - before.kv_capacity_tokens:,})"
    assert change in figures(at)["serve.kv_capacity_tokens"]
    assert shown_plan(at).parallel.tp == 1


def test_the_first_view_is_a_real_plan_with_a_verdict_and_a_chart() -> None:
    at = opened()
    alive(at)
    assert verdict(at).startswith("Training fits")
    assert all(trace["y"] for trace in plots(at)[1]["data"] if trace.get("stackgroup"))
    assert not at.warning
    assert not at.error


def test_the_six_sliders_come_first_and_in_order() -> None:
    at = opened()
    keys = [s.key for s in at.sidebar.get("select_slider")][:6]
    assert keys == [
        "model_size",
        "train_micro_batch",
        "train_seq_len",
        "train_precision",
        "train_checkpointing",
        "train_zero",
    ]


VENDORS = {catalog.accelerator(name).vendor: name for name in catalog.gpu_names()}


@pytest.mark.parametrize("gpu", VENDORS.values())
def test_every_vendor_has_its_pages(gpu: str) -> None:
    """One accelerator of each; of the others what a page draws is drawn without it."""
    at = opened({"gpu": gpu, "reqs": f"{FEW}"})
    alive(at)
    for view in ("time", "tiers", "stream"):
        alive(at.switch_page(f"views/{view}.py").run())


@each("gpu", catalog.gpu_names())
def test_every_accelerator_has_its_charts_and_tables(gpu: str) -> None:
    from app import charts, elements, tables

    plan = Plan(cluster={"gpu": gpu, "gpus": 1})
    report = evaluate(plan)
    drawn = [charts.tiers(tables.tiers(plan, report), tables.in_tiers(report), report.memory)]
    rows: list[Any] = [tables.tiers(plan, report)]
    if report.memory:
        drawn += [charts.memory_by_consumer(report.memory), charts.timeline(report.memory)]
        rows += [tables.consumers(report.memory), tables.breakdown(report.memory)]
        rows += [tables.largest(report.ledger), tables.timeline(report.memory)]
    if report.time:
        drawn += [charts.step_time(report.time), charts.step_phases(report.time)]
        for dtype in ("fp8", "bf16", "fp32"):
            drawn.append(charts.roofline(report.time.operations, plan.accelerator, dtype))
        rows += [tables.phases(report.time), tables.transfers(report.time)]
        rows += [tables.operations(report.time)]
    if report.serve:
        rows.append(elements.figures(Book(plan, report), "serving"))
    assert all(figure.data for figure in drawn)
    for table in filter(None, rows):  # one GPU sends nobody anything
        assert pd.read_csv(io.BytesIO(tables.csv(table))).shape[0] == len(table)


EXTREMES = (
    {"size": "2T", "seq": "16777216", "mb": "65536", "gpus": "1000000", "accum": "1000000"},
    {"size": "2T", "seq": "16777216", "mb": "65536", "ckpt": "none", "attn": "eager"},
    {"size": "100M", "seq": "1", "mb": "1", "gpus": "1", "conc": "1", "prompt": "1", "output": "1"},
    {"gpu": "jetson-orin-nano-8gb", "size": "2T", "memutil": "0.0001", "conc": "1000000"},
    {"gpu": "m2-ultra-192gb", "prec": "fp32", "ckpt": "none", "attn": "eager"},
    {"offopt": "nvme", "gpu": "t4-16gb", "size": "70B", "batched": "16777216"},
    {"model": "deepseek-v3", "gpus": "512", "pp": "16", "ep": "32"}
    | {"fw": "megatron", "zero": "1", "kernels": "megatron"},
    {"model": "bert-large", "seq": "512", "ckpt": "none"},
    {"model": "vit-base", "seq": "197", "mb": "256"},
    {"model": "llava-1.5-7b", "imgs": "3"},
    {"model": "gemma-3-27b", "imgs": "16", "ckpt": "none", "attn": "eager"},
    {"model": "flan-t5-xxl", "tgt": "16777216", "attn": "eager", "seq": "512"},
    {"model": "nemotron-3-nano-30b-a3b", "tp": "4", "state": "bf16", "draft": "3"},
    {"model": "mamba2-780m", "kvcache": "dynamic", "prompt": "16777216", "conc": "100000"},
)


@pytest.mark.long
@pytest.mark.parametrize("query", EXTREMES, ids=lambda q: f"{q}"[:30])
def test_extreme_plans(query: dict[str, str]) -> None:
    for view, at in each_view({"reqs": f"{FEW}", **query}):
        assert "could not be used" not in said(at), view


# --- widgets -------------------------------------------------------------------------------------


def test_each_of_the_six_sliders_changes_the_plan() -> None:
    at = opened()
    for key, value, path in (
        ("model_size", "13B", "model"),
        ("train_micro_batch", 4, "train.micro_batch"),
        ("train_seq_len", 2048, "train.seq_len"),
        ("train_precision", "bf16-pure", "train.precision"),
        ("train_checkpointing", "none", "train.checkpointing"),
        ("train_zero", 2, "train.zero"),
    ):
        at.select_slider(key=key).set_value(value).run()
        alive(at)
        found: Any = shown_plan(at).document()
        for part in path.split("."):
            found = found[part]
        assert found == ({"size": value} if key == "model_size" else value)


def test_a_stage_that_a_framework_lacks_says_what_gave_way_and_is_undone() -> None:
    at = opened({"v": "2", "fw": "megatron", "zero": "1"})
    before = shown_plan(at)
    at.select_slider(key="train_zero").set_value(2).run()
    alive(at)
    assert shown_plan(at).train.zero == 2
    (note,) = [m.value for m in at.info if "was fitted to" in m.value]
    assert "PyTorch FSDP2 is used in place of Megatron" in note
    at.button(key="undo_wish").click().run()
    alive(at)
    assert shown_plan(at) == before


@pytest.mark.parametrize("framework", ["fsdp2", "pytorch"])
def test_every_zero_stage_gives_a_valid_plan(framework: str) -> None:
    at = opened({"fw": framework, "zero": "0"})
    assert shown_plan(at).train.framework == framework
    for stage in (0, 1, 2, 3, 0):
        at.select_slider(key="train_zero").set_value(stage).run()
        alive(at)
        assert not at.error
        assert shown_plan(at).train.zero == stage


def test_any_length_of_a_link_has_a_place_on_the_slider() -> None:
    at = opened({"seq": "5001", "mb": "37"})
    alive(at)
    assert at.select_slider(key="train_seq_len").value == 5001
    assert at.select_slider(key="train_micro_batch").value == 37


def test_a_model_brings_its_own_limits() -> None:
    """Whoever chooses GPT-2 wants GPT-2: what it cannot have gives way, and the page says so."""
    at = opened({"mb": "2"})
    at.selectbox(key="model_preset").set_value("gpt2-xl").run()
    alive(at)
    assert "fitted to this model" in at.info[0].value
    assert "learned positions" in at.info[0].value
    assert (shown_plan(at).model, shown_plan(at).train.seq_len) == ("gpt2-xl", 1024)
    assert shown_plan(at).train.micro_batch == 2
    at.selectbox(key="model_preset").set_value("bloom-560m").run()
    alive(at)
    assert shown_plan(at).train.attention == "eager"


def test_an_impossible_combination_keeps_the_last_plan_and_offers_two_ways_out() -> None:
    at = opened({"model": "gpt2-xl", "seq": "512"})
    before = figures(at)
    at.select_slider(key="train_seq_len").set_value(4096).run()
    alive(at)
    assert "train.seq_len" in said(at)
    assert figures(at) == before
    assert shown_plan(at).train.seq_len == 512
    at.button(key="nearest").click().run()
    alive(at)
    assert shown_plan(at).train.seq_len == 1024


def test_what_to_change_is_called_as_the_sidebar_calls_it() -> None:
    at = opened()
    at.select_slider(key="train_precision").set_value("mxfp8").run()
    alive(at)
    assert '"Framework" to Megatron-LM' in said(at)
    assert "train.framework" not in said(at)


def test_the_plan_follows_what_was_just_asked_for_and_undo_takes_it_back() -> None:
    """QLoRA is planned in 16 bits: the precision gives way to it, and the page says what did."""
    at = unfolded({"gpu": "rtx-4090-24gb", "gpus": "1"})
    before = shown_plan(at)
    at.selectbox(key="train_adapter").set_value("qlora").run()
    alive(at)
    t = shown_plan(at).train
    assert (t.adapter, t.framework, t.precision) == ("qlora", "fsdp2", "bf16-pure")
    note = next(info.value for info in at.info if "fitted to Adapter QLoRA" in info.value)
    for word in ("As the weights is used in place of fp32", "bf16 pure is used in place of"):
        assert word in note
    at.button(key="undo_wish").click().run()
    alive(at)
    assert shown_plan(at) == before


def test_a_replica_of_more_ranks_than_gpus_gets_the_gpus() -> None:
    at = opened({"gpus": "8"}, "serve")
    at.select_slider(key="serve_tp").set_value(32).run()
    alive(at)
    plan = shown_plan(at)
    assert (plan.serve.tp, plan.cluster.gpus) == (32, 32)
    assert "32 is used in place of 8" in " ".join(i.value for i in at.info)
    at.button(key="undo_wish").click().run()
    assert shown_plan(at).cluster.gpus == 8


def test_what_was_asked_for_before_gives_way_to_what_is_asked_for_now() -> None:
    at = unfolded({"gpu": "rtx-4090-24gb", "gpus": "1"})
    at.selectbox(key="train_adapter").set_value("qlora").run()
    at.button_group(key="train_offload_optimizer").set_value("cpu").run()
    alive(at)
    assert shown_plan(at).train.offload_optimizer == "cpu"


def test_a_word_that_does_not_do_what_it_is_chosen_for_says_so_beside_it() -> None:
    at = opened({"model": "llama-2-7b", "ckpt": "selective"})
    alive(at)
    assert any("of the allocated peak of" in line.value for line in at.sidebar.markdown)
    at = opened({"model": "llama-2-7b", "ckpt": "full"})
    assert not any("of the allocated peak of" in line.value for line in at.sidebar.markdown)


def test_gpus_that_nobody_can_book_are_said_on_the_page() -> None:
    at = opened({"gpus": "7"})
    alive(at)
    assert "stand idle" in texts(at)


def test_no_gpus_in_a_link_are_told() -> None:
    at = opened({"gpus": "0", "mb": "2"})
    alive(at)
    plan = shown_plan(at)
    assert (plan.cluster.gpus, plan.train.micro_batch) == (8, 2)
    assert "gpus (cluster.gpus)" in said(at)
    assert "must be at least 1, not '0'. Its default, 8, is used" in said(at)


def test_a_second_change_can_settle_the_first() -> None:
    at = opened({"model": "gpt2", "seq": "512"})
    at.select_slider(key="train_seq_len").set_value(4096).run()
    assert "train.seq_len" in said(at)
    at.selectbox(key="model_preset").set_value("llama-3-8b").run()
    alive(at)
    assert (shown_plan(at).model, shown_plan(at).train.seq_len) == ("llama-3-8b", 4096)
    assert "train.seq_len" not in said(at)


def test_undo() -> None:
    at = opened({"model": "gpt2", "seq": "512"})
    at.select_slider(key="train_seq_len").set_value(4096).run()
    at.button(key="undo").click().run()
    alive(at)
    assert at.select_slider(key="train_seq_len").value == 512
    assert not said(at)


def test_a_pinned_plan_is_compared_with() -> None:
    at = opened()
    at.button(key="pin_button").click().run()
    at.select_slider(key="train_micro_batch").set_value(4).run()
    alive(at)
    now, then = evaluate(shown_plan(at)).memory, evaluate(Plan()).memory
    assert now is not None
    assert then is not None
    assert "(+" in figures(at)["time.step_seconds"]
    assert figures(at)["time.mfu"].endswith(" points)")  # of a share, percent would say two things
    at.button(key="pin_button").click().run()
    assert "(" not in figures(at)["time.step_seconds"]


def test_starting_from_a_worked_example() -> None:
    at = opened()
    for name in PLANS:
        at.selectbox(key="example").set_value(name).run()
        alive(at)
        plan = catalog.plan_entries()[name]["plan"]
        assert shown_plan(at) == Plan.of(plan), name
        assert verdict(at).startswith("Serving") is bool(plan.get("serve")), name


# --- links ---------------------------------------------------------------------------------------

HOSTILE = (
    {"nonsense": "1"},
    {"mb": "-1"},
    {"seq": "1" + "0" * 400},
    {"memutil": "NaN"},
    {"prec": "<script>alert(1)</script>"},
    {"size": "[x](javascript:alert(1))"},
    {"config": "eNqrVkpUslIy"},
    {"gpudef": "eNqrVspJTErNUbJSskmyU6oFACa9BJc"},
    {"pin": "%%%" * 1000},
    {"v": "99"},
    {"model": "www.example.com"},
    {"tp": "3"},
    {"config": "A" * 40_000},
)
AT_ONCE = (  # what damages nothing that another of the same link is about
    {key: value for query in HOSTILE[:10] for key, value in query.items()},
    {key: value for query in HOSTILE[10:] for key, value in query.items()},
)


def complaints(at: AppTest) -> list[str]:
    """What is said of each part of a link that could not be used."""
    for box in [*at.warning, *at.error]:
        assert not re.search(r"(?<!\\)[<\]]", box.value)  # every mark is escaped
    first, *lines = said(at).split("\n- ")
    assert first.startswith("**Part of this link could not be used")
    return lines


@pytest.mark.parametrize("query", HOSTILE, ids=lambda q: f"{q}"[:30])
def test_a_hostile_link_opens_with_a_message(query: dict[str, str]) -> None:
    at = opened({"accum": "3", **query})
    alive(at)
    assert shown_plan(at).train.grad_accumulation == 3
    assert len(complaints(at)) == 1


@pytest.mark.parametrize("query", AT_ONCE, ids=["fields", "models"])
def test_a_hostile_link_opens_every_view(query: dict[str, str]) -> None:
    for view, at in each_view({"accum": "3", **query}, proof=True):
        assert shown_plan(at).train.grad_accumulation == 3
        assert view in PROOF or len(complaints(at)) == len(query)


def test_an_inline_gpu_s_words_are_shown_as_they_are() -> None:
    from memcore.plan.link import encode

    gpu = catalog.accelerator("h100-sxm-80gb").model_dump(mode="json") | {
        "label": "<b>[x](http://a.b)</b> :red[x]",
        "memory_kind": "<a href='http://a.b'>HBM</a>" * 2,
    }
    for view, at in each_view(encode(Plan.of({"cluster": {"gpu": gpu}}))):
        title = next(m.value for m in at.markdown if m.value.startswith("####"))
        assert "\\<b\\>" in title, view
        assert not re.search(r"(?<!\\)[<\[\]]", title)


# --- config.json ---------------------------------------------------------------------------------


def dropped(content: bytes, at: AppTest | None = None) -> AppTest:
    at = at or opened({"mb": "2"})
    at.file_uploader(key="config_file").upload("config.json", content, "application/json").run()
    alive(at)
    assert shown_plan(at).train.micro_batch == 2
    return at


@pytest.mark.parametrize("name", ["llama-2-13b", "tinyllama-1.1b", "llama-3-70b"])
def test_a_dropped_config_gives_the_preset_s_parameter_count(name: str) -> None:
    config = catalog.model_entry(name)["config"]
    at = dropped(json.dumps(config).encode())
    count = evaluate(Plan(model=name)).parameters
    assert figures(at)["parameters"] == f"{count:,} parameters"
    assert shown_plan(at).model == config


def test_a_pasted_config() -> None:
    config = catalog.model_entry("llama-2-13b")["config"]
    at = opened()
    at.text_area(key="config_text").set_value(json.dumps(config)).run()
    alive(at)
    assert shown_plan(at).model == config


SERVER = "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ --tensor-parallel-size 2 --enable-lora"


def test_a_pasted_draft_guesses_for_the_model() -> None:
    files = {row["name"]: row["config"] for row in asked.table("drafts")}
    at = opened({"model": "qwen3-8b"}, "serve")
    at.session_state["folded_Serving details"] = True
    at.text_area(key="config_text").set_value(json.dumps(files["qwen3-8b-domino"])).run()
    alive(at)
    plan = shown_plan(at)
    assert (plan.model, plan.serve.draft_tokens) == ("qwen3-8b", 15)
    box = at.selectbox(key="serve_draft_model")
    assert box.options[-1] == "Domino draft, 4,096 wide"
    at.text_area(key="config_text").set_value(json.dumps(files["qwen3-4b-dspark"])).run()
    alive(at)
    assert shown_plan(at) == plan
    assert "reads hidden states of 2,560" in said(at)


def test_a_pasted_command_is_a_plan() -> None:
    at = opened({"gpu": "rtx-4090-24gb"})
    at.text_area(key="config_text").set_value(SERVER).run()
    alive(at)
    plan = shown_plan(at)
    assert (plan.model, plan.serve.tp, plan.cluster.gpu) == ("qwen2.5-72b", 2, "rtx-4090-24gb")
    told = next(i.value for i in at.info if "fitted to" in i.value)
    assert "what was pasted" in told
    assert "adapters of a server are not planned" in told
    at.button(key="undo_wish").click().run()
    assert shown_plan(at).model == "llama-3-8b"


def test_dropped_files_of_one_job_are_a_plan() -> None:
    at = opened()
    files = (
        ("train.yaml", "model_name_or_path: gpt2\nper_device_train_batch_size: 3\nbf16: true\n"),
        ("zero.json", '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'),
    )
    at.file_uploader(key="config_file").set_value([(n, c.encode(), "text/plain") for n, c in files])
    at.run()
    alive(at)
    plan = shown_plan(at)
    assert (plan.model, plan.train.micro_batch, plan.train.zero) == ("gpt2", 3, 2)
    assert plan.train.framework == "deepspeed"


def test_a_dropped_file_may_name_the_gpu_and_a_broken_one_says_where() -> None:
    def drop(at: AppTest, name: str, content: str) -> None:
        at.file_uploader(key="config_file").set_value([(name, content.encode(), "text/plain")])
        at.run()

    at = opened({})
    drop(at, "broken.yaml", "model_name_or_path: x\n\tmax_length: 2\n")
    assert "no YAML: line 2" in said(at)
    script = "#SBATCH --gres=gpu:l40s:2\nvllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n"
    drop(at, "job.sh", script)
    plan = shown_plan(at)
    assert (plan.cluster.gpu, plan.serve.tp, plan.model) == ("l40s-48gb", 2, "qwen3-8b")
    job = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\ndeepspeed: zero2.json\n"
    drop(at, "job.yaml", job)
    told = "".join(each.value for each in at.info).replace("\\", "")
    assert "Not read, since it is not here: zero2.json" in told


LLAMA: dict[str, Any] = catalog.model_entry("llama-2-7b")["config"]
UNNAMED = {key: value for key, value in LLAMA.items() if key != "architectures"}  # its class
BAD_CONFIGS = {
    "not JSON": (b"hello", "not JSON"),
    "not text": (b"\x80\x81\x00", "not JSON"),
    "empty": (b"", "not JSON"),
    "a list": (b"[1, 2]", "braces"),
    "50 MB": (b" " * 50_000_000, "bytes"),
    "nested": (b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested"),
    "nested lists": (b"[" * 100_000, "nested"),
    "architecture": (json.dumps(UNNAMED | {"model_type": "perceiver"}).encode(), "perceiver"),
    "heads": (json.dumps(LLAMA | {"num_attention_heads": 7}).encode(), "num_attention_heads"),
    "markup": (json.dumps(UNNAMED | {"model_type": "<b>x</b>"}).encode(), "<b>x</b>"),
}


def test_a_bad_config_is_refused_and_nothing_is_lost() -> None:
    """One after another."""
    at = opened({"mb": "2"})
    for kind, (content, message) in BAD_CONFIGS.items():
        assert message not in said(at), kind
        dropped(content, at)
        assert message in said(at), kind
        assert shown_plan(at).model == "llama-3-8b"
        for batch in (3, 2):
            at.select_slider(key="train_micro_batch").set_value(batch).run()
            alive(at)
            assert shown_plan(at).train.micro_batch == batch
            assert message not in said(at), kind


# --- tables and downloads ------------------------------------------------------------------------


def test_the_ledger_as_csv_adds_up_to_what_is_allocated() -> None:
    from app import tables

    for name in PLANS:
        report = evaluate(Plan.of(catalog.plan_entries()[name]["plan"]))
        if report.memory is None:
            continue
        ledger = pd.read_csv(io.BytesIO(tables.csv(tables.ledger(report.ledger))))
        assert ledger["bytes"].dtype == "int64"
        on_gpu = ledger[ledger["tier"] == "hbm"]
        assert on_gpu["bytes"].sum() == report.memory.allocated_bytes
        consumers = pd.read_csv(io.BytesIO(tables.csv(tables.consumers(report.memory))))
        assert consumers["bytes"].sum() == report.memory.allocated_bytes
        assert len(consumers) == len(CONSUMERS)


def test_no_cell_runs_as_a_formula() -> None:
    from app import tables

    rows = [{"text": text, "bytes": -1} for text in ("=1+1", "+1", "-1", "@x", "\t=1", "fine")]
    read = pd.read_csv(io.BytesIO(tables.csv(rows)))
    assert all(text[0] in "'f" for text in read["text"])
    assert read["bytes"].sum() == -6


def test_the_breakdown_goes_from_the_consumers_to_the_capacity() -> None:
    from app import tables

    for name in PLANS:
        plan = Plan.of(catalog.plan_entries()[name]["plan"])
        memory = evaluate(plan).memory
        if memory is None:
            continue
        about = tables.context(plan, "http://127.0.0.1/?v=1")
        read = pd.read_csv(io.BytesIO(tables.csv(tables.breakdown(memory), about)))
        kinds = read.groupby("kind")
        sizes = {kind: kinds.get_group(kind) for kind in kinds.groups}
        assert sizes["consumer"]["bytes"].sum() == memory.allocated_bytes
        assert list(sizes["total"]["bytes"]) == [memory.allocated_bytes]
        assert list(sizes["capacity"]["bytes"]) == [memory.capacity_bytes]
        for end, column in enumerate(("low_bytes", "high_bytes")):
            assert read[column].dtype == "int64"
            overheads = [(o.low, o.high)[end] for o in memory.overheads]
            assert list(sizes["overhead"][column]) == overheads
            of = sizes["interval"].set_index("part")[column]
            assert of["Device memory"] == memory.device_bytes[end]
            assert of["Reserved by PyTorch"] == memory.reserved_bytes[end]
        assert set(read["plan model"]) == {plan.architecture.label}
        assert set(read["plan GPU"]) == {plan.accelerator.label}
        assert set(read["plan GPUs"]) == {plan.cluster.gpus}
        assert set(read["plan link"]) == {"http://127.0.0.1/?v=1"}


def test_what_a_file_says_of_its_plan_is_no_formula() -> None:
    from app import tables

    config = {**catalog.model_entry("gpt2")["config"], "_name_or_path": "=1+1"}
    gpu = {**catalog.accelerator("h100-sxm-80gb").model_dump(), "label": "=HYPERLINK(1)"}
    plan = Plan.of({"model": config, "cluster": {"gpu": gpu}, "train": {"seq_len": 512}})
    read = pd.read_csv(io.BytesIO(tables.csv([{"bytes": 2**60}], tables.context(plan, "@x"))))
    texts = read.select_dtypes(exclude="number").iloc[0]
    assert "'=HYPERLINK(1)" in set(texts)
    assert not any(str(text).startswith(tuple("=+-@")) for text in texts)
    assert read["bytes"][0] == 2**60


def test_whole_numbers_stay_whole_where_some_rows_have_none() -> None:
    from app import tables

    rows = [{"n": 2**53 + 1, "x": 0.1}, {"n": None, "x": None}]
    assert tables.csv(rows).decode().splitlines()[1:] == ["9007199254740993,0.1", ","]


# --- why -----------------------------------------------------------------------------------------


def drawer(at: AppTest) -> str:
    """What the drawer says, without markdown's escapes."""
    texts = [e.value for e in [*at.markdown, *at.code]]
    return "\n".join(texts).replace("\\", "").replace("\u200b", "")


FIGURES = (
    "memory.room_bytes",
    "memory.allocated_bytes",
    "time.step_seconds",
    "time.step_interval",
    "time.tokens_per_second",
    "time.mfu",
    "time.bound_by",
    "parameters",
    "memory.peak.instant",
    "memory.reserved_bytes",
    "run.seconds",
)
WHOLE = ("seconds", "gpu_hours", "energy_joules", "disk_bytes")
SERVED = (
    *("fits", "kv_capacity_tokens"),
    *("ttft_seconds", "tpot_seconds", "tokens_per_second", "ttft_range", "tpot_range"),
)


@pytest.mark.parametrize("view", VIEWS)
def test_one_click_on_a_figure_says_why(view: str) -> None:
    """Its formula, with the value that the report has; its parts; where it comes from."""
    from memcore.explain.book import Book

    at = opened({"mb": "2", "ckpt": "none"}, view)
    book = Book(shown_plan(at), evaluate(shown_plan(at)))
    more = [f"serve.{name}" for name in SERVED] if view in ("serve", "stream", "rates") else []
    more += ["memory.tiers.hbm"] if view == "ledger" else []
    more += [f"run.{name}" for name in WHOLE] if view == "time" else []
    paths = list(figures(at))
    served = view in ("serve", "stream", "rates")  # about the server alone
    common = [] if view in PROOF else ["parameters"] if served else list(FIGURES)
    assert sorted(paths) == sorted({*common, *more})
    for path in paths if view == "serve" else paths[::2] if view == "train" else paths[::4]:
        ask_why(at, path)
        alive(at)
        said, e = drawer(at), book.explain(path)
        assert f"### {e.what}: {e.text}" in said
        assert e.formula
        assert times(e.formula.numbers) in said
        assert "**Sources**\n- " in said
        assert len(frames(at)[-1]) == len(e.parts)


def test_the_drawer_opens_once_and_shows_the_pinned_plan() -> None:
    at = opened()
    at.button(key="pin_button").click().run()
    at.select_slider(key="train_micro_batch").set_value(4).run()
    ask_why(at, "memory.allocated_bytes")
    then = evaluate(Plan()).memory
    assert then
    assert f"In the pinned plan: **{bytes_text(then.allocated_bytes)}**" in drawer(at)
    at.select_slider(key="train_micro_batch").set_value(3).run()
    assert "In the pinned plan" not in drawer(at)


def tables_of_evidence() -> list[Any]:
    """They are about no plan."""
    from app import tables
    from evidence.figures import compare

    return [tables.accuracy(compare())]


def every_table(plan: Plan) -> list[Any]:
    from app import elements, tables

    report = evaluate(plan)
    found: list[Any] = [tables.tiers(plan, report), tables.dimensions(plan)]
    if report.serve:
        found.append(elements.figures(Book(plan, report), "serving"))
    if report.memory:
        found += [tables.consumers(report.memory), tables.overheads(report.memory)]
        found += [tables.timeline(report.memory), tables.largest(report.ledger)]
        found.append(tables.ledger(report.ledger))
    if report.time:
        found += [tables.phases(report.time), tables.operations(report.time)]
        found.append(tables.transfers(report.time))
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", PLANS)
def test_every_row_of_every_table_is_explained(name: str) -> None:
    from app import tables
    from memcore.explain.book import Book

    plan = Plan.of(catalog.plan_entries()[name]["plan"])
    book = Book(plan, evaluate(plan))
    for rows in every_table(plan) + (tables_of_evidence() if name == PLANS[0] else []):
        for row in rows:
            e = book.explain(row[tables.PATH])
            assert e.formula is not None or e.sources
            assert tables.parts(book, e) or not e.parts


@pytest.mark.parametrize("query", [{"with": "grpo"}, {"offopt": "nvme", "gpus": "16"}, {"tp": "2"}])
def test_every_mark_of_every_chart_is_explained(query: dict[str, str]) -> None:
    """And where there is a together, every view offers its CSV."""
    from memcore.explain.book import Book

    together = "with" in query
    for view, at in each_view({"reqs": f"{FEW}", **query}, proof=together):
        names = [b.proto.label for b in at.get("download_button")]
        # Of one plan there is nothing to compare.
        assert not together or view == "compare" or any("CSV" in name for name in names), view
        book = Book(shown_plan(at), evaluate(shown_plan(at)))
        if view not in ("explore", *PROOF):  # a point there is a plan, or a figure of others
            paths = [path for chart in plots(at) for path in marks_of(chart)]
            assert paths or not plots(at), view
            assert all(book.explained(path) for path in paths), view


# --- the frame -----------------------------------------------------------------------------------


def test_the_settings_that_speed_and_privacy_need() -> None:
    config = tomllib.loads((APP / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert config["runner"]["postScriptGC"] is False
    assert config["browser"]["gatherUsageStats"] is False


def test_text_from_outside_is_never_markup() -> None:
    from app import parts

    for text in ("<b>", "[x](y)", "www.a.b", "https://a.b", ":red[x]", "$x$", "`x`", "a@b.c"):
        escaped = parts.plain(text)
        assert escaped.replace("\\", "").replace("\u200b", "") == text
        assert "://" not in escaped.replace("\\", "")
        assert "www." not in escaped.replace("\\", "")


def test_what_takes_long_to_find_waits_until_the_plan_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest, "QUIET", 0.01)
    monkeypatch.setattr(rest, "draw_later", lambda: None)  # somebody goes on before
    at = opened({"mb": "2"})
    alive(at)

    def offered() -> list[str]:
        return [b.key for b in at.button if b.key and b.key.startswith("apply_")]

    assert verdict(at)
    assert len(plots(at)) == 2, "the bar, and memory over the step"
    assert not offered()
    assert any("comes when you pause" in m.value for m in at.markdown)
    monkeypatch.undo()
    monkeypatch.setattr(rest, "QUIET", 0.01)
    at.run()
    assert offered()
    assert not any("comes when you pause" in m.value for m in at.markdown)


# --- levers --------------------------------------------------------------------------------------


def test_a_lever_is_applied_and_taken_back() -> None:
    at = opened({"mb": "4", "ckpt": "none"})
    before = shown_plan(at)
    lever = levers(before)[0]
    assert "changes make it fit" in "".join(m.value for m in at.markdown)
    at.button(key=f"apply_{lever.name}").click().run()
    alive(at)
    assert shown_plan(at) == lever.plan
    assert decode(at.query_params)[0] == lever.plan
    at.button(key="undo_lever").click().run()
    alive(at)
    assert shown_plan(at) == before
    assert decode(at.query_params)[0] == before


def test_what_frees_memory_of_the_fullest_phase_is_applied() -> None:
    at = opened({"with": "grpo"}, "together")
    best = reliefs(shown_plan(at))[0]
    assert best.verdict == "fits"
    at.button(key="apply_phase_0").click().run()
    alive(at)
    assert shown_plan(at) == best.plan
    assert any("Every phase fits" in m.value for m in at.markdown)


def test_undo_is_not_offered_for_what_was_changed_since() -> None:
    at = opened({"mb": "4", "ckpt": "none"})
    at.button(key=f"apply_{levers(shown_plan(at))[0].name}").click().run()
    at.select_slider(key="train_seq_len").set_value(2048).run()
    assert "undo_lever" not in [b.key for b in at.button]


def test_a_chip_is_chosen_once_and_its_memory_beside_it() -> None:
    at = opened()
    chips = at.selectbox(key="cluster_gpu")
    assert "Apple M3 Ultra" in chips.options
    assert "AMD Instinct MI455X 432 GB (Helios), announced" in chips.options
    assert "cluster_gpu_memory" not in at.session_state  # an H100 SXM has 80 GB
    chips.set_value("m3-ultra-512gb").run()
    alive(at)
    assert shown_plan(at).cluster.gpu == "m3-ultra-512gb"
    sizes = at.segmented_control(key="cluster_gpu_memory")
    assert sizes.options == ["96 GB", "256 GB", "512 GB"]
    sizes.set_value("m3-ultra-96gb").run()
    alive(at)
    assert shown_plan(at).cluster.gpu == "m3-ultra-96gb"
    assert at.selectbox(key="cluster_gpu").value == "m3-ultra-512gb"


def test_a_chip_that_is_not_yet_sold_says_so_where_it_is_chosen() -> None:
    at = opened({"gpu": "tpu-8t-216gb"})
    assert any("nobody can have it yet" in m.value for m in at.sidebar.markdown)
    assert not any("nobody can have it yet" in m.value for m in opened().sidebar.markdown)


def test_a_list_price_gives_the_run_its_cost() -> None:
    at = unfolded({}, "time")
    assert "Cost" not in metrics(at)
    price = at.selectbox(key="price")
    price.set_value(next(said for said in price.options if "AWS p5.48xlarge" in said)).run()
    alive(at)
    assert shown_plan(at).run.price_per_gpu_hour == 6.88
    assert metrics(at)["Cost"].startswith("$")


# --- serve: how far it can go, and the stream ----------------------------------------------------


def test_an_answer_can_be_used_that_the_plan_is_not_yet() -> None:
    from memcore.search import solve

    at = opened(view="serve")
    at.number_input(key="tpot").set_value(20.0).run()
    alive(at)
    asked = Plan(serve={"target_tpot": 0.02})
    assert shown_plan(at) == asked
    found = solve.largest_concurrency(asked, solve.Targets(tpot=0.02))
    assert found.limit == "tpot"
    assert frame(at, "question")["use"].iloc[1] == "Use"
    used = opened(encode(found.plan), "serve")
    assert frame(used, "question")["use"].iloc[1] != "Use"


def test_a_stream_that_nobody_has_set_says_so_and_offers_the_users() -> None:
    """70B on 4 H100 serves 50 users at once, and not 12 requests a second."""
    at = opened(
        {"model": "llama-3.3-70b", "stp": "4", "gpus": "4", "conc": "50", "slottft": "2"}, "stream"
    )
    assert "too slow" in texts(at)
    assert "12 requests a second are only an example" in texts(at)
    at.button(key="closed_loop").click().run()
    alive(at)
    assert shown_plan(at).serve.arrivals == "closed"
    assert "only an example" not in texts(at)
    slow = texts(opened({"rate": "3", "slottft": "900"}, "stream"))
    assert "as asked" in slow
    assert "only an example" not in slow


def test_rates_say_where_the_plans_own_is() -> None:
    small, large = ({"rate": "1", "slottft": "2"}, {"rate": "900"})
    assert "the dotted line is 1 a second, the plan's own" in texts(opened(small, "rates"))
    assert "the dotted line is 12 a second, which is only an example" in texts(opened({}, "rates"))
    assert "own, is more than one replica serves" in texts(opened(large, "rates"))


def test_a_product_has_one_sign_on_a_page() -> None:
    shapes = frame(opened(view="ledger"), "shape").astype(str).to_numpy().ravel()
    assert any(" × " in text for text in shapes)
    assert not any(" x " in text for text in shapes)


def test_gpus_are_for_the_users_until_somebody_says_a_rate() -> None:
    """12 requests a second are nobody's, while nobody has said them."""

    def asked(query: dict[str, str]) -> list[str]:
        return list(frame(opened(query, "serve"), "question")["question"])

    assert asked({})[-1] == "Fewest GPUs for 64 at once"
    assert asked({"conc": "9"})[-1] == "Fewest GPUs for 9 at once"
    assert asked({"rate": "3"})[-1] == "Fewest GPUs for 3 requests/s"


def test_a_server_that_cannot_is_told_what_to_change() -> None:
    at = opened({"model": "llama-3-70b"}, "serve")
    asked = shown_plan(at)
    first, *_ = server_levers(asked)
    every = frame(opened({"model": "llama-3-70b"}, "serve", ("All changes",)), "change")
    assert {"the answers", "verdict"} <= set(every.columns)  # nobody trains here
    at.button(key=f"apply_serve_{first.name}").click().run()
    alive(at)
    assert shown_plan(at) == first.plan != asked
    assert evaluate(shown_plan(at)).serve.fits


def test_what_the_stream_does_not_depend_on_does_not_simulate_it_again() -> None:
    at = opened({"reqs": "50"}, view="stream", unfolded=["Request stream"])
    before = shared.stream(shown_plan(at), None)
    find = at.selectbox(key="find")
    find.select(next(o for o in find.options if o.startswith("Micro-batch"))).run()
    at.select_slider(key="found_train_micro_batch").set_value(4).run()
    assert shown_plan(at).train.micro_batch == 4
    assert shared.stream(shown_plan(at), None) is before
    at.number_input(key="serve_seed").set_value(5).run()
    assert shared.stream(shown_plan(at), None) is not before
    alive(at)


# --- what is folded ------------------------------------------------------------------------------

GROUPS = (
    "Host and price",
    "Training details",
    "Offload",
    "Parallelism",
    "The whole run",
    "Serving load",
    "Serving",
    "Serving details",
    "Request stream",
    "Train and serve together",
    "All changes",
    "Overhead outside the allocator",
)
# Between them they show every widget that depends on another.
UNFOLDED: tuple[dict[str, str], ...] = (
    {},
    {"fw": "deepspeed", "zero": "3", "offopt": "nvme", "offpar": "nvme"},
    {"fw": "deepspeed", "zero": "1"},
    {"kernels": "compile", "tp": "2"},
    {"fw": "megatron", "kernels": "megatron", "zero": "1", "ckpt": "selective"},
    {"model": "mixtral-8x7b", "fw": "megatron", "kernels": "megatron", "zero": "1", "pp": "2"},
    {"with": "grpo", "adapter": "qlora", "fw": "pytorch", "zero": "0", "prec": "bf16-pure"},
    {"model": "qwen2.5-vl-7b-vision"},
    {"model": "flan-t5-xl", "seq": "512", "attn": "eager"},
    {"model": "bamba-9b"},
    {"v": "1", "model": "gpt-oss-20b", "engine": "llama.cpp", "wdtype": "mxfp4"},
    {"arrive": "burst", "lengths": "fixed", "draft": "4", "frozen": "lower"},
    {"model": "dlrm-dcnv2", "fw": "pytorch", "zero": "0", "prec": "fp32", "tcache": "0.2"},
    {
        "model": "resnet-50",
        "fw": "pytorch",
        "zero": "0",
        "prec": "bf16-pure",
        "frozen": "modules",
        "still": "conv1",
    },
    {"draft": "4", "drafter": "llama-3.2-1b"},
)


def unfolded(query: dict[str, str], view: str = "train") -> AppTest:
    return opened(query, view, GROUPS)


def widgets(at: AppTest) -> dict[str, Any]:
    kinds = (
        *("selectbox", "number_input", "toggle", "slider", "select_slider", "button_group"),
        "text_input",
    )
    return {w.key: w for kind in kinds for w in at.get(kind) if w.key}


def unfolds(query: dict[str, str], view: str) -> set[str]:
    """The widgets of a view with its groups unfolded, which show the plan."""
    at = unfolded(query, view)
    alive(at)
    assert "could not be used" not in said(at)
    found = widgets(at)
    document: Any = shown_plan(at).document()
    for path in FIELDS:
        section, _, name = path.partition(".")
        if (widget := found.get(f"{section}_{name}")) and isinstance(document[section], dict):
            value = document[section][name]
            empty = facts(path).zero and not value  # its placeholder says what zero stands for
            assert widget.value == (None if empty else value) or isinstance(value, dict), path
    if view == "train" and evaluate(shown_plan(at)).memory:
        assert "Memory that no shape determines" in [d.proto.alt for d in at.dataframe]
    return set(found)


def test_every_group_unfolds_and_every_field_of_a_plan_has_a_widget() -> None:
    views = ("train", "time", "serve", "together")
    shown = {key for query in UNFOLDED for view in views for key in unfolds(query, view)}
    keys = {"serve.target_ttft": "ttft", "serve.target_tpot": "tpot"}
    keys |= {"run.price_per_gpu_hour": "price"}
    missing = {p for p in FIELDS if keys.get(p, p.replace(".", "_")) not in shown}
    assert not missing


def test_a_page_has_the_fields_of_its_question_alone() -> None:
    of_training, of_serving = (unfolds({"v": "2"}, view) for view in ("train", "serve"))
    assert not [key for key in of_training if key.startswith(("serve_", "together_"))]
    assert not [key for key in of_serving if key.startswith(("train_", "together_", "run_"))]


# --- many who look at the same -------------------------------------------------------------------

LONG = {
    "reqs": "20000", "rate": "0.001", "pcv": "10", "ocv": "10", "prompt": "100000",
    "output": "100000",
}  # fmt: skip


def test_a_link_cannot_ask_for_minutes_of_work() -> None:
    """The page simulates the first requests, and says so, and why not all."""
    at = opened(LONG, "stream")
    alive(at)
    text = "\n".join(m.value for m in at.markdown) + "\n".join(c.value for c in at.caption)
    assert re.search(r"Of 20\\,000 requests the first .* which is long for a page", text)
    found = shared.stream(shown_plan(at), None)
    assert sum(run.events for run in found.runs) < 2 * shared.STEPS


def test_what_one_has_found_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions with one plan: what takes long is found once. A file of lengths is somebody's
    own."""
    asked: list[Plan] = []
    real = shared.simulate

    def counted(plan: Plan, *more: Any, **words: Any) -> Any:
        asked.append(plan)
        return real(plan, *more, **words)

    monkeypatch.setattr(shared, "simulate", counted)
    STORE.forget()
    ends = [opened({"seed": "77", "reqs": "50"}, "stream") for _ in range(3)]
    assert len(asked) == 1
    kept = [shared.stream(shown_plan(at), None) for at in ends]
    assert kept[0] is kept[1] is kept[2]
    opened({"seed": "78", "reqs": "50"}, "stream")
    assert len(asked) == 2
    assert STORE.bytes <= STORE.budget


def test_what_is_said_of_the_server_stands_on_its_own_page() -> None:
    query = {"model": "llama-3-70b"}  # nothing is left for a cache on one GPU
    assert "nothing is left for the KV cache" not in texts(opened(query))
    assert "nothing is left for the KV cache" in texts(opened(query, "serve"))


def test_time_says_what_passes_with_failures_where_that_is_more() -> None:
    def said(**query: str) -> bool:
        at = opened(query, "time")
        return any("with saves and failures" in text.value for text in at.markdown)

    assert said(fails="500")
    assert not said()
