"""Tables of levers and waterfalls."""

from __future__ import annotations

from collections.abc import Sequence

from app.tables.base import Rows
from app.text import VERDICTS
from memcore.search.levers import Lever
from memcore.search.server_levers import SERVES, ServerLever
from memcore.search.waterfall import Change
from memcore.units import (
    bytes_text,
    relative_text,
    seconds_or_dash,
    seconds_text,
    signed_bytes,
    signed_seconds,
)


def levers(found: Sequence[Lever]) -> Rows:
    """Every lever, the best first."""
    return [
        {
            "rank": lever.rank,
            "change": lever.label,
            "and sets": ", ".join(lever.followers),
            "it": lever.trains_text,
            "verdict": VERDICTS[lever.verdict],
            "saves": bytes_text(lever.saved_bytes),
            "step time": signed_seconds(lever.added_seconds),
            "GPU time per token": relative_text(lever.price),
            "saved_bytes": lever.saved_bytes,
            "saved_device_bytes": lever.saved_device_bytes,
            "added_seconds": lever.added_seconds,
            "added_seconds_per_token": lever.added_per_token,
            "price": lever.price,
            "price_at_least": lever.price_range[0],
            "price_at_most": lever.price_range[1],
            "sets": changes_text(lever),
        }
        for lever in found
    ]


def server_levers(found: Sequence[ServerLever]) -> Rows:
    """Every lever of a server, the best first."""
    return [
        {
            "rank": lever.rank,
            "change": lever.label,
            "and sets": ", ".join(lever.followers),
            "answers": SERVES[lever.serves],
            "verdict": lever.verdict,
            "room for": lever.sequences,
            "first token": seconds_or_dash(lever.first),
            "a token": seconds_or_dash(lever.each),
            "GPU time of a request": seconds_or_dash(lever.cost),
            "against now": "-" if lever.price is None else relative_text(lever.price),
            "first_token_seconds": lever.first,
            "seconds_per_token": lever.each,
            "gpu_seconds_per_request": lever.cost,
            "price": lever.price,
            "sets": changes_text(lever),
        }
        for lever in found
    ]


def server_text(lever: ServerLever) -> str:
    """What a lever of a server comes to, in a line."""
    if lever.cost is None or lever.each is None:
        return "room for none"
    price = "" if lever.price is None else f" ({relative_text(lever.price)})"
    return (
        f"room for {lever.sequences:,} at once, a token every {seconds_text(lever.each)}, "
        f"a request takes {seconds_text(lever.cost)} of a GPU{price}"
    )


def changes_text(lever: Lever | ServerLever) -> str:
    """The fields that a lever sets: 'train.checkpointing = full'."""
    return ", ".join(f"{path} = {value}" for path, value in lever.changes.items())


SAME_TIME = 0.0005  # of a step: what adds less is not told


def saved_text(lever: Lever) -> str:
    if not lever.saved_bytes:
        return "as much memory"
    return f"{'saves' if lever.saved_bytes > 0 else 'adds'} {bytes_text(abs(lever.saved_bytes))}"


def cost_text(lever: Lever) -> str:
    """What a lever costs: seconds of a step, or where those say little GPU time per token."""
    price = relative_text(lever.price)
    if lever.steps_compare and abs(lever.price) < SAME_TIME:
        return "as long a step"
    if lever.steps_compare:
        return f"{signed_seconds(lever.added_seconds)} a step ({price})"
    return f"{price}{' the' if lever.price >= 1 else ''} GPU time per token"


def waterfall(changes: Sequence[Change]) -> Rows:
    """What each change between two plans moved; the columns in numbers add up."""
    return [
        {
            "change": c.label,
            "memory": signed_bytes(c.bytes),
            "device memory": signed_bytes(c.device_bytes),
            "step time": signed_seconds(c.seconds),
            "time per token": signed_seconds(c.per_token),
            "bytes": c.bytes,
            "device_bytes": c.device_bytes,
            "seconds": c.seconds,
            "seconds_per_token": c.per_token,
            "sets": ", ".join(f"{path} = {value}" for path, value in c.fields.items()),
        }
        for c in changes
    ]
