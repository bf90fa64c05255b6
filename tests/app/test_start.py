"""The first screen and the sidebar: what somebody wants to run, how far it can go, what is not the
default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pages import alive, frame, opened, said, shown_plan, texts, verdict

from app import sidebar, start
from memcore.evaluate import evaluate
from memcore.plan import link
from memcore.plan.keys import VERSION
from memcore.plan.plan import Plan, get


def keys(at: object) -> set[str]:
    return {b.key for b in at.button if b.key}  # type: ignore[attr-defined]


def test_the_first_screen_asks_and_answers_and_a_link_goes_straight_to_its_plan() -> None:
    at = opened()
    alive(at)
    assert at.button_group(key="job").value == "Fine-tune"
    linked = opened({"mb": "2"})
    assert "job" not in linked.session_state


@pytest.mark.parametrize("job", start.JOBS)
def test_each_job_leads_to_a_plan_or_to_its_place(job: str) -> None:
    at = opened()
    if at.button_group(key="job").value != job:
        at.button_group(key="job").set_value(job).run()
    alive(at)
    plan = shown_plan(at)
    for path, value in start.JOBS[job].items():
        if path != "run.tokens":
            assert get(plan, path) == value
    says = {"Serve": "Serving", "RL": "The fullest phase"}.get(job, "Training")
    assert verdict(at).startswith(says)
    assert not said(at)
    assert not [m for m in at.info if "was fitted to" in m.value]  # nobody asked for what follows


def test_what_lora_brought_goes_with_it() -> None:
    at = opened()
    before = shown_plan(at)
    at.button_group(key="job").set_value("LoRA").run()
    at.button_group(key="job").set_value("Fine-tune").run()
    alive(at)
    assert shown_plan(at).train == before.train


def test_a_run_with_a_deadline_says_how_many_gpus_it_needs() -> None:
    asked = {"tokens": "1000000000000", "within": "30"}
    at = opened(asked)
    assert "Fewest GPUs within 30 days" in texts(at)
    at.button(key="use_cluster.gpus").click().run()
    alive(at)
    plan = shown_plan(at)
    run = evaluate(plan).run
    fewer = evaluate(plan.changed("cluster.gpus", plan.cluster.gpus - 8)).run
    assert run
    assert fewer
    assert run.seconds <= 30 * 86_400 < fewer.seconds
    assert "Fewest GPUs" not in texts(opened({"tokens": "1000000000000"}))


@pytest.mark.parametrize("path", ["train.micro_batch", "train.seq_len"])
def test_what_is_largest_fits_and_one_more_does_not(path: str) -> None:
    at = opened({"model": "llama-3-8b"})
    at.button(key=f"use_{path}").click().run()
    alive(at)
    plan = shown_plan(at)
    assert verdict(at).startswith("Training fits")
    name = path.split(".")[1]
    more = evaluate(plan.with_changes({path: getattr(plan.train, name) + 1})).memory
    assert more
    assert more.verdict != "fits"
    assert f"use_{path}" not in keys(at)


def test_a_worked_plan_leads_to_the_page_that_it_is_about() -> None:
    at = opened()
    at.selectbox(key="example").set_value("deepseek-v3-serving-16xh200").run()
    alive(at)
    assert shown_plan(at) == sidebar.example("deepseek-v3-serving-16xh200")
    assert verdict(at).startswith("Serving fits")


def test_one_box_takes_a_preset_and_a_size() -> None:
    """Also what is typed or pasted: test_the_box_of_models_takes_what_is_pasted, in a browser."""
    at = opened()
    for text, plan in (
        ("gpt2", Plan(model="gpt2", train={"seq_len": 1024})),
        ("13B", Plan(model={"size": "13B"}, train={"seq_len": 1024})),
    ):
        at.selectbox(key="model_preset").set_value(text).run()
        alive(at)
        shown = shown_plan(at)
        assert (shown.model, shown.train) == (plan.model, plan.train)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama 3.3 70B", "llama-3.3-70b"),
        ("llama 3 70b", "llama-3-70b"),
        ("gpt2", "gpt2"),
        ("405B", ""),
        ("llama", ""),
        ("no such thing", ""),
        ("llama 3.1 8b instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("https://huggingface.co/mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ],
)
def test_a_model_is_found_by_what_people_call_it(text: str, name: str) -> None:
    assert sidebar.model_named(text) == name


def test_what_is_not_the_default_is_listed_and_goes_back_at_a_press() -> None:
    at = opened({"v": "2", "mb": "4", "ckpt": "none", "seq": "2048"})
    at.session_state["changes"] = True
    at.run()
    assert "3 changes from the default" in [e.label for e in at.expander]
    assert "todays_form" not in keys(at)
    at.button(key="reset_train.micro_batch").click().run()
    alive(at)
    assert shown_plan(at).train.micro_batch == 1
    at.button(key="reset_all").click().run()
    assert shown_plan(at) == Plan()
    assert any(e.label == "No change from the default" for e in at.expander)


def test_of_an_old_link_the_changes_are_what_it_says_and_its_defaults_can_be_todays() -> None:
    at = opened({"v": "1", "mb": "4", "ckpt": "none"})
    at.session_state["changes"] = True
    at.run()
    assert "2 changes from the default" in [e.label for e in at.expander]
    assert shown_plan(at).serve.memory_utilization == 0.9
    at.button(key="todays_form").click().run()
    alive(at)
    wanted = Plan().with_changes({"train.micro_batch": 4, "train.checkpointing": "none"})
    assert shown_plan(at) == wanted
    assert "2 changes from the default" in [e.label for e in at.expander]
    assert "todays_form" not in keys(at)
    assert link.form_of(at.query_params) == VERSION


def test_a_setting_is_found_by_any_of_its_words() -> None:
    at = opened()
    find = at.selectbox(key="find")
    (liger,) = [o for o in find.options if "Liger" in o]
    find.select(liger).run()
    alive(at)
    at.selectbox(key="found_train_kernels").set_value("liger").run()
    alive(at)
    assert shown_plan(at).train.kernels == "liger"


def test_a_number_is_typed_beside_its_slider() -> None:
    at = opened()
    at.number_input(key="typed_train.seq_len").set_value(5001).run()
    alive(at)
    assert shown_plan(at).train.seq_len == 5001
    assert at.select_slider(key="train_seq_len").value == 5001


def test_what_runs_with_training_is_asked_by_cards() -> None:
    at = opened(view="together")
    at.button(key="together_grpo").click().run()
    alive(at)
    plan = shown_plan(at)
    assert (plan.together.kind, plan.serve.memory_utilization) == ("grpo", 0.5)  # as the job does
    assert "together_grpo" not in keys(at)
    assert any("generates 64 rollouts on each of 8 engines in" in m.value for m in at.markdown)


def test_a_zero_that_is_no_number_is_empty_and_said() -> None:
    at = opened(view="serve")
    at.session_state["folded_Serving details"] = True
    at.run()
    box = at.number_input(key="serve_max_num_seqs")
    assert box.value is None
    assert "engine's default" in box.placeholder
    box.set_value(7).run()
    assert shown_plan(at).serve.max_num_seqs == 7
    at.number_input(key="serve_max_num_seqs").set_value(None).run()
    alive(at)
    assert shown_plan(at).serve.max_num_seqs == 0


def test_a_run_is_asked_for_at_time_and_priced_beside_the_hardware() -> None:
    at = opened({}, "time", unfolded=["Host and price"])
    at.selectbox(key="run_tokens").set_value(10**12).run()
    assert shown_plan(at).run.tokens == 10**12
    at.number_input(key="run_target_days").set_value(30.0).run()
    alive(at)
    assert "Fewest GPUs within 30 days" in texts(at)
    price = at.selectbox(key="price")
    usd = [float(said.split()[0].removeprefix("$")) for said in price.options]
    assert usd == sorted(usd)
    assert usd
    price.set_value(price.options[0]).run()
    alive(at)
    assert shown_plan(at).run.price_per_gpu_hour == usd[0]


@pytest.mark.parametrize(
    ("typed", "tokens", "price"),
    [("15T", 15 * 10**12, 0.0), ("many", 10**9, 0.0), ("2.25", 2, 2.25), ("$1,250", 10**9, 1250.0)],
)
def test_tokens_and_a_price_can_be_typed(typed: str, tokens: int, price: float) -> None:
    changed: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sidebar.state, "change", changed.update)
        sidebar.tokens_typed(typed)
        sidebar.price_typed(typed)
    assert changed.get("run.tokens", 10**9) == tokens
    assert changed.get("run.price_per_gpu_hour", 0.0) == price


def test_a_plan_that_nothing_mends_leads_to_gpus_that_train_it() -> None:
    at = opened({"model": "llama-3-70b~1", "gpu": "rtx-4090-24gb~2", "gpus": "1"})
    alive(at)
    assert "Where it fits as it is" in texts(at)
    gpus = frame(at, "GPU")["GPU"]
    assert any(name.startswith("NVIDIA H100") for name in gpus)
    fine = opened({"mb": "1"})
    assert "Where it fits as it is" not in texts(fine)


def test_the_change_with_which_more_fits_is_set_at_a_press() -> None:
    for name, before in (("micro_batch", 6), ("seq_len", 27_611)):
        at = opened({"mb": "1"})
        at.button(key=f"use_with_train.{name}").click().run()
        alive(at)
        t = shown_plan(at).train
        assert t.cross_entropy != Plan().train.cross_entropy
        assert getattr(t, name) > before


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("glm 4.5", "glm-4.5"),
        ("Mixtral", "mixtral-8x7b"),
        ("70b llama 3.3", "llama-3.3-70b"),
        ("qwn2.5-7b", "qwen2.5-7b"),
        ("gpt-oss", "gpt-oss-20b"),
    ],
)
def test_the_nearest_models_are_suggested(typed: str, first: str) -> None:
    assert sidebar.nearest_models(typed)[0] == first
    assert len(sidebar.nearest_models(typed)) <= sidebar.MOST_NEAR


@pytest.mark.parametrize(
    ("listed", "expected"),
    [("NVIDIA GeForce RTX 4090, 24564, 1536", "rtx-4090-24gb"), ("Matrox G400, 32, 1", "")],
)
def test_ones_own_machine_is_planned_on_at_a_press(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, expected: str
) -> None:
    """By the browser that runs on it, where its maker's program lists its GPUs; what that lists and
    no preset has is told, and the plan stays."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{listed}'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "here" not in keys(opened({"mb": "2"}))
    monkeypatch.setattr(sidebar, "_is_own", lambda: True)
    at = opened({"mb": "2"})
    before = shown_plan(at).cluster
    at.button(key="here").click().run()
    alive(at)
    cluster = shown_plan(at).cluster
    if expected:
        assert (cluster.gpu, cluster.gpus, cluster.taken_gib) == (expected, 1, 1.5)
    else:
        assert cluster == before
        assert "Matrox G400" in said(at)
