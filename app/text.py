"""Text: what a page may show of text that came from outside, and words that all pages share."""

from __future__ import annotations

import math
import re

from memcore.plan.plan import Plan

# Of a plan, by what it needs: surely less than there is, its interval holds the capacity, or more.
VERDICTS = {"fits": "fits", "tight": "may fit", "over": "does not fit"}


def plain(text: str) -> str:
    """Text as markdown that shows exactly this text: every mark of markdown's is escaped.

    A zero-width space breaks what would become a link by itself.
    """
    text = re.sub(r"(?i)(www|@|:)(?=[./\w])", "\\1\u200b", text)
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def times(text: str) -> str:
    """A product as a page shows it; a terminal and files have an x, which every keyboard has."""
    return text.replace(" x ", " × ")


def counted(text: str, unit: str) -> str:
    """A text about tokens and sequences, as it is of a model that reads samples (Model.unit)."""
    if unit == "tokens":
        return text
    words = re.compile(r"\b(?:([Tt])oken|([Ss])equence)(s?)\b")
    return words.sub(lambda w: f"{'S' if (w[1] or w[2]).isupper() else 's'}ample{w[3]}", text)


def title_of_plan(plan: Plan) -> str:
    """Its model and GPUs, for people; and in how many nodes, if not in one."""
    nodes = math.ceil(plan.cluster.gpus / plan.gpus_per_node)
    within = f", {nodes:,} nodes" if nodes > 1 else ""
    return f"{plan.architecture.label} on {plan.cluster.gpus:,} × {plan.accelerator.label}{within}"
