"""Cost: what a million tokens are charged with, of prompts and of outputs apart: each by the time
that a full replica works on it."""

from __future__ import annotations

from typing import Any

from memcore.quantity.reading import Read, quantity
from memcore.serving.time import closed, joins
from memcore.serving.towers import runs_tower
from memcore.units import HOUR, MILLION

SHARED = (
    "a replica that is busy all along: a prompt is charged with what it adds to the steps of those "
    "that generate; an output token with its share of all else, so that "
    "both together are the replica's time"
)


@quantity(
    "serve.prompt_token_seconds", "Time of a prompt's token", "seconds",
    "Of the replica, for each token of a prompt that it reads.", [SHARED],
)  # fmt: skip
def prompt_token_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if joins(x.server):
        return x.serve.interruption_seconds / x.plan.serve.prompt_len
    read = x.serve.prefill_steps * x.serve.prefill_step
    if runs_tower(x.server):
        read = x.serve.tower_seconds + read
    return read / x.plan.serve.prompt_len


@quantity(
    "serve.output_token_seconds", "Time of an output token", "seconds",
    "Of the replica, for each token that comes out of it.", [SHARED],
)  # fmt: skip
def output_token_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if not closed(x.server):
        return x.serve.tpot_seconds / x.serve.running
    every = x.serve.request_seconds / x.serve.running
    if joins(x.server):
        every = every - x.serve.interruption_seconds
    return every / x.plan.serve.output_len


def _million(x: Any, each: Read) -> Read:
    """USD of a million tokens that each take a replica so long."""
    hour = x.known("seconds of an hour", HOUR, "seconds", source="the unit")
    many = x.known("tokens", MILLION, "tokens", source="the unit")
    return x.plan.run.price_per_gpu_hour * x.serve.gpus_per_replica / hour * each * many


@quantity(
    "serve.cost_per_million_in", "Cost per million prompt tokens", "USD",
    "At the price per GPU-hour that the plan says; what it lies idle is not in it.", [SHARED],
)  # fmt: skip
def cost_per_million_in(x: Any) -> Read | None:
    if not (x.plan.run.price_per_gpu_hour and x.serve.running):
        return None
    return _million(x, x.serve.prompt_token_seconds)


@quantity(
    "serve.cost_per_million_out", "Cost per million output tokens", "USD",
    "At the price per GPU-hour that the plan says; what it lies idle is not in it.", [SHARED],
)  # fmt: skip
def cost_per_million_out(x: Any) -> Read | None:
    if not (x.plan.run.price_per_gpu_hour and x.serve.running):
        return None
    return _million(x, x.serve.output_token_seconds)
