"""Offload: where states, weights and activations live, as switches beside the picture of tiers.

A switch brings with it what it needs: sharded weights leave the GPU with their optimizer, and each
framework has its own places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app import state
from app.controls import Take
from app.fields import field
from app.sidebar import of_framework
from memcore.words.word import Word

FIELDS = ("train.offload_optimizer", "train.offload_parameters", "train.offload_activations")


def draw() -> None:
    """One switch for each of them; the plan, and so the address, follows."""
    for column, path in zip(st.columns(3), FIELDS, strict=True):
        f = field(path)
        words = f.words or {}
        column.segmented_control(
            f.title,
            list(words),
            format_func=_labels(words),
            key=state.control(f"tiers_{path}", state.drafted(path), _choosing(path)),
            help=f.full_help,
        )


def _labels(words: Mapping[str, Word]) -> Callable[[str], str]:
    return lambda word: "GPU" if word == "none" else words[word].label


def _choosing(path: str) -> Take:
    """A place; chosen twice it is left as it is."""

    def take(place: str | None) -> None:
        if place is not None:
            state.change({path: place} | _with(path, place))

    return take


def _with(path: str, place: str) -> dict[str, Any]:
    """What else must follow."""
    framework, zero = state.drafted("train.framework"), state.drafted("train.zero")
    if path == FIELDS[0]:
        changes: dict[str, Any] = {} if place != "none" else {FIELDS[1]: "none"}
        if framework == "deepspeed" and place == "nvme":
            changes["train.zero"] = 3
        elif framework == "deepspeed" and place == "cpu":
            changes["train.zero"] = max(zero, 1)
        elif place == "nvme" and state.drafted(FIELDS[1]) != "none":
            changes |= of_framework("deepspeed") | {"train.zero": 3}
        return changes
    if path == FIELDS[1] and place != "none":
        chosen = "deepspeed" if place == "nvme" or framework == "deepspeed" else "fsdp2"
        kept = state.drafted(FIELDS[0])
        states = "cpu" if kept == "none" or (chosen == "fsdp2" and kept == "nvme") else kept
        return of_framework(chosen) | {"train.zero": 3, FIELDS[0]: states}
    return {}
