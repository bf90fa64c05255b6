"""What people come for, done by the keyboard alone, in no more actions than an audit needed.

An action is a press of a button, or a choice or a number that is typed and entered. Whatever is
pressed must take the focus and answer to a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import pandas as pd
import pytest
import reading
from playwright.sync_api import Locator, Page, expect

import rig
from app import exploring, shared
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.link import decode_pin, encode
from memcore.plan.plan import Plan, get
from memcore.search.solver import solve

Open = Callable[..., Page]


@dataclass
class Hand:
    """Hands on a keyboard, and how often they did something."""

    page: Page
    actions: int = 0

    def press(self, what: Locator, key: str = "Enter") -> None:
        self.actions += 1
        what.focus()
        assert what.evaluate("e => e.getRootNode().activeElement === e"), "it takes no focus"
        self.page.keyboard.press(key)

    def enter(self, key: str, text: str) -> None:
        """Type into a widget by its key."""
        self.actions += 1
        box = self.page.locator(f".st-key-{key} input").first
        box.focus()
        box.fill(text)
        box.press("Enter")

    def until(self, path: str, value: Any) -> Plan:
        """The plan, once it has this."""

        def has() -> bool:
            return bool(get(reading.addressed(self.page).document(), path) == value)

        rig.eventually(has, lambda: f"{path} is not {value}: {self.page.url}", page=self.page)
        reading.agrees(self.page)
        return reading.addressed(self.page)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def go(self, place: str) -> None:
        links = self.page.get_by_test_id("stHeader")
        with rig.a_run(self.page):
            self.press(links.get_by_role("link", name=place, exact=True))


def opened(open_app: Open, path: str = "/", **options: Any) -> Hand:
    page = open_app(path, **options)
    reading.agrees(page)
    return Hand(page)


def at(view: str, plan: Plan) -> str:
    return f"/{view}?{urlencode(encode(plan, short=True))}"


def cheapest_change_for_70b_on_8_gpus(open_app: Open) -> int:
    hand = opened(open_app)
    hand.enter("model_preset", "Llama 3 70B")
    hand.until("model", "llama-3-70b")
    expect(hand.page.locator(".st-key-verdict_over")).to_be_visible()
    both = hand.page.locator('[class*="st-key-lever_offload_optimizer-cpu-and"]').first
    hand.press(both.get_by_role("button", name="Apply"))
    expect(hand.page.locator(".st-key-verdict_fits")).to_be_visible()
    plan = reading.addressed(rig.settled(hand.page))
    assert (plan.cluster.gpus, plan.train.adapter, plan.train.frozen) == (8, "none", "none")
    return hand.actions


def largest_micro_batch_of_qlora_on_a_4090(open_app: Open) -> int:
    hand = opened(open_app)
    hand.enter("cluster_gpus", "1")
    hand.until("cluster.gpus", 1)
    hand.enter("cluster_gpu", "RTX 4090")
    hand.until("cluster.gpu", "rtx-4090-24gb")
    hand.press(hand.page.locator(".st-key-job").get_by_role("radio", name="QLoRA"), "Space")
    hand.until("train.adapter", "qlora")
    plan = reading.addressed(hand.page)
    expect(hand.page.locator(".st-key-furthest")).to_contain_text(
        f"Largest micro-batch that fits: {solve(plan, 'train.micro_batch').value:,}"
    )
    return hand.actions


def zero_2_against_zero_3(open_app: Open) -> int:
    hand = opened(open_app)
    hand.press(hand.button("Pin this plan"))
    expect(hand.button("Unpin")).to_be_visible()
    hand.press(hand.page.locator('.st-key-train_zero input[type="range"]').first, "ArrowLeft")
    hand.until("train.zero", 2)
    for figure in ("verdict_fits", "why_time-step_seconds"):
        expect(hand.page.locator(f".st-key-{figure}")).to_contain_text("(")
    return hand.actions


def a_link_that_shows_a_teammate_all(open_app: Open) -> int:
    hand = opened(open_app, f"{at('', Plan(train={'zero': 2}))}&pin=zero%3D1")
    hand.press(hand.button("Share"))
    shown = hand.page.locator('[data-testid="stCode"]').first
    hand.press(shown.get_by_role("button", name="Copy to clipboard"))
    link = shown.locator("code").inner_text().strip()
    theirs = open_app(f"/?{urlsplit(link).query}", fresh=True)
    reading.agrees(theirs)
    assert reading.addressed(theirs).train.zero == 2
    assert decode_pin(rig.query(theirs.url)["pin"][0])[0].train.zero == 1
    return hand.actions


def a_table_for_pandas(open_app: Open) -> int:
    hand = opened(open_app)
    button = hand.page.locator(f".st-key-{reading.key_of_name('download_memplan-breakdown.csv')}")
    with hand.page.expect_download() as found:
        hand.press(button.get_by_role("button"))
    assert "llama-3-8b" in found.value.suggested_filename
    table = pd.read_csv(found.value.path()).set_index("kind")
    memory = evaluate(Plan()).memory
    assert memory
    assert table.loc["total", "bytes"] == memory.allocated_bytes
    assert table.loc["capacity", "bytes"] == memory.capacity_bytes
    assert set(table["plan GPUs"]) == {8}
    return hand.actions


def my_own_config(open_app: Open) -> int:
    hand = opened(open_app)
    config = catalog.model_entry("llama-3.2-1b")["config"]
    hand.enter("model_preset", json.dumps(config))
    assert evaluate(hand.until("model", config)).parameters == 1_235_814_400
    return hand.actions


def which_gpus_serve_it(open_app: Open) -> int:
    hand = opened(open_app)
    hand.enter("model_preset", "Llama 3.3 70B")
    hand.until("model", "llama-3.3-70b")
    hand.go("Serve")
    hand.enter("serve_prompt_len", "32768")
    hand.until("serve.prompt_len", 32768)
    hand.enter("serve_concurrency", "50")
    plan = hand.until("serve.concurrency", 50)
    hand.go("Explore")
    hand.press(hand.page.get_by_role("radio", name="On which GPUs"), "Space")
    fit, tried = len(shared.servers(plan, False).best), len(exploring.accelerators(False))
    assert 0 < fit < tried
    expect(hand.page.locator('[data-testid="stMain"]')).to_contain_text(
        f"{fit} of {tried} accelerators serve them"
    )
    return hand.actions


def states_on_nvme(open_app: Open) -> int:
    plan = Plan.of(
        {
            "model": "llama-2-13b",
            "cluster": {"gpu": "a100-sxm-40gb", "gpus": 1},
            "train": {"framework": "pytorch", "zero": 0},
        }
    )
    hand = opened(open_app, at("tiers", plan))
    for name in ("optimizer", "parameters"):
        switch = hand.page.locator(f".st-key-tiers_train-offload_{name}")
        hand.press(switch.get_by_role("radio", name="NVMe"), "Space")
        hand.until(f"train.offload_{name}", "nvme")
    expect(hand.page.locator(".st-key-verdict_fits")).to_contain_text("NVMe")
    return hand.actions


def what_grows_with_the_sequence(open_app: Open) -> int:
    hand = opened(open_app)
    hand.go("Explore")
    expect(hand.page.get_by_text("Fits up to").first).to_be_visible()
    return hand.actions


def which_gpus_serve_fifty_users(open_app: Open) -> int:
    serving = {"prompt_len": 32_768, "concurrency": 50}
    hand = opened(open_app, at("serve", Plan(model="llama-3.3-70b", serve=serving)))
    hand.press(hand.page.get_by_role("link", name="Which GPUs serve 50 at once?"))
    expect(hand.page.get_by_text("accelerators serve them").first).to_be_visible()
    expect(hand.page.get_by_text("Cheapest:").first).to_contain_text(" a month,")
    return hand.actions


def longest_sequence_of_qlora_on_a_4090(open_app: Open) -> int:
    plan = {
        "model": "qwen3-8b",
        "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1},
        "train": {
            "framework": "pytorch",
            "zero": 0,
            "adapter": "qlora",
            "precision": "bf16-autocast",
        },
    }
    hand = opened(open_app, at("", Plan.of(plan)))
    hand.press(hand.page.locator('[class*="st-key-use_with_train-seq_len"] button:visible'))
    there = solve(Plan.of(plan), "train.seq_len").value
    rig.eventually(lambda: reading.addressed(hand.page).train.seq_len > there, page=hand.page)
    reading.agrees(hand.page)
    return hand.actions


def why_is_it_so(open_app: Open) -> int:
    hand = opened(open_app)
    hand.press(hand.page.locator(".st-key-why_memory-allocated_bytes button"))
    expect(hand.page.get_by_role("dialog")).to_contain_text("Sources")
    return hand.actions


TASKS: tuple[tuple[Callable[[Open], int], int], ...] = (  # and how many actions they took before
    (cheapest_change_for_70b_on_8_gpus, 2),
    (largest_micro_batch_of_qlora_on_a_4090, 8),
    (zero_2_against_zero_3, 2),
    (a_link_that_shows_a_teammate_all, 2),
    (a_table_for_pandas, 1),
    (my_own_config, 3),
    (which_gpus_serve_it, 8),
    (states_on_nvme, 2),
    (what_grows_with_the_sequence, 13),
    (which_gpus_serve_fifty_users, 3),
    (longest_sequence_of_qlora_on_a_4090, 3),
    (why_is_it_so, 1),
)


@pytest.mark.parametrize(("task", "most"), TASKS, ids=lambda t: getattr(t, "__name__", ""))
def test_a_task_by_the_keyboard(open_app: Open, task: Callable[[Open], int], most: int) -> None:
    took = task(open_app)
    print(f"{task.__name__}: {took} actions, {most} before")
    assert took <= most
