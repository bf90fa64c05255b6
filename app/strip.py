"""Strip: what stays in view on top of a page. The verdict, the main figures and one memory bar; and
above it what of the input was not used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import streamlit as st

from app import bar, charts, line, measured, palette, parts, share, shared, state
from app import report as one_page
from app.fields import in_words
from app.line import Item
from app.text import VERDICTS, plain
from memcore.models import catalog
from memcore.plan.link import NOT_HELD, is_held, nearest
from memcore.plan.plan import Plan, change_texts, get
from memcore.report import Inference, Memory, Report, Run, Serve, TogetherMemory
from memcore.search.prices import own_price
from memcore.serving.forward import forward_notes
from memcore.serving.notes import serving_notes
from memcore.serving.serve import REMEDY, nothing_fits, verdict
from memcore.units import (
    GiB,
    bytes_text,
    count_text,
    gib_text,
    money_text,
    rent_text,
    seconds_text,
)

# Of each verdict: it says without colour what the colour says.
ICONS = {"fits": "check_circle", "tight": "error", "over": "cancel"}
TRAINING, SERVING, TOGETHER = "Training", "Serving", "The fullest phase"

# A figure: where it is in the Report, what follows it, its value now and then, and its text.
Figure = tuple[str, str, Any, Any, Callable[[Any], str]]


def draw(place: str) -> None:
    """On top of every page of a plan: of Serve about the server, of RL about both, of all others
    about training."""
    _link_warnings()
    _problems()
    if not is_held(state.plan()):
        st.warning(f"**No link holds this plan:** {NOT_HELD}.", icon=":material/link_off:")
    report, pinned = state.report(), state.pinned()
    serve = report.serve if place == "Serve" else None
    forward = report.inference if place == "Serve" else None
    together = report.together if place == "RL" else None
    _title(serve, together)
    with st.container(key="strip", gap=None):
        if forward:
            _inference(forward, pinned.inference if pinned else None)
        elif serve:
            _serving(serve, pinned.serve if pinned else None)
        elif together:
            _together(together)
        else:
            _training(report, pinned)
    if forward:
        line.draw([Item(in_words(note)) for note in forward_notes(state.plan(), forward)],
                  "small_print")  # fmt: skip
    elif serve:
        _serving_print(serve)
    else:
        _small_print(report, pinned, "The training step alone:" if together else "")
        if not _is_complete(report):
            for note in report.notes:
                st.info(plain(in_words(note)), icon=":material/info:")


def _memory_bar(drawn: bar.Bar) -> None:
    parts.chart(charts.strip([drawn]), key="bar", alt="Memory of one GPU, part by part")
    st.html(bar.key(drawn))  # a chart's own legend hides on a phone what has no room


def _title(serve: Serve | None, together: TogetherMemory | None) -> None:
    plan = state.plan()
    text = parts.title()
    if serve:
        n, gpus = serve.replicas, f"{serve.gpus_per_replica:,} × {plan.accelerator.label}"
        replicas = "one replica" if n == 1 else f"{n:,} replicas"
        text = f"{plan.architecture.label}, served by {replicas} of {gpus}"
    with st.container(horizontal=True, vertical_alignment="center", key="title"):
        st.markdown(f"#### {plain(text)}", width="stretch", anchors=False)
        parts.pin_button()
        about = one_page.SERVING if serve else one_page.TOGETHER if together else one_page.TRAINING
        share.draw(state.report(), about)


# --- what of the input was not used --------------------------------------------------------------


def _link_warnings() -> None:
    issues = state.session().link_issues
    if issues:
        st.warning(
            "**Part of this link could not be used; the rest of it is shown.**\n"
            + parts.listed(issues),
            icon=":material/link_off:",
        )


def _problems() -> None:
    """Why the widgets do not make a plan, and two ways out."""
    s = state.session()
    if s.adjusted:
        fitted = f"**The plan was fitted to {plain(state.applied())}.**\n"
        st.info(fitted + parts.listed(s.adjusted), icon=":material/tune:")
        st.button("Undo", key="undo_wish", on_click=state.undo, icon=":material/undo:")
    if not s.problems:
        return
    if unchanged := s.draft == s.plan.document():  # what was not valid did not enter it
        text = "That could not be used; the plan is as it was"
    else:
        text = "This combination cannot be run; the last valid plan is shown"
    st.error(f"**{text}.**\n" + parts.listed(s.problems), icon=":material/block:")
    with st.container(horizontal=True):
        if not unchanged:
            _ways_out(s)
        for name in s.suggested if unchanged else ():
            label = str(catalog.model_entry(name)["label"])
            changes = ({"model": name},)
            st.button(label, key=f"near_{name}", on_click=state.change, args=changes)


def _ways_out(s: state.Session) -> None:
    """Back to the last valid plan, or on to the nearest one that keeps what was set last."""
    plan, mended = nearest(s.draft, s.asked)
    wish = " and ".join(change_texts({path: get(plan.document(), path) for path in s.asked}))
    back, near = (s.plan,), (plan, wish, mended)
    st.button(
        "Undo the change", key="undo", on_click=state.replace, args=back, icon=":material/undo:"
    )
    st.button(
        "Use the nearest valid plan",
        key="nearest",
        on_click=state.replace,
        args=near,
        help=parts.listed(mended),
        icon=":material/build:",
    )


# --- the verdict and the figures -----------------------------------------------------------------


def _verdict(word: str, of: str, how: str, path: str) -> Item:
    """In its colour, with an icon."""
    return Item(f": {how}", path, f"{of} {VERDICTS[word]}", word, ICONS[word])


def _figures(figures: Iterable[Figure]) -> Iterator[Item]:
    """Each with its change against the pinned plan."""
    for path, follows, now, then, text in figures:
        changed = f" ({change})" if (change := _change(now, then, text)) else ""
        yield Item(f"{text(now)}{follows}{changed}", path)


def _change(now: Any, then: Any, text: Callable[[Any], str]) -> str:
    """The difference in words, signed; '' when nothing is pinned."""
    if then is None:
        return ""
    if now == then:
        return "as pinned"
    if isinstance(now, str):
        return f"pinned: {text(then)}"
    by = abs(now - then)
    # Of a share in its own points: in percent it could be read as a share of it.
    return f"{'-' if now < then else '+'}{f'{100 * by:.1f} points' if text is _share else text(by)}"


def _share(part: float) -> str:
    return f"{part:.1%}"


def _training(report: Report, pinned: Report | None) -> None:
    memory, time = report.memory, report.time
    before = pinned.time if pinned else None
    items: list[Item] = []
    if memory:
        then = pinned.memory.device_bytes[1] if pinned and pinned.memory else None
        items.append(_verdict(memory.verdict, TRAINING, _room(memory, then), "memory.room_bytes"))
    if time:
        seconds = before.step_seconds if before else None
        tokens = before.tokens_per_second if before else None
        a_step, unit = f" a step{report.if_it_fitted}", state.plan().architecture.unit
        items += _figures(
            (
                ("time.step_seconds", a_step, time.step_seconds, seconds, seconds_text),
                ("time.tokens_per_second", f" {unit}/s", time.tokens_per_second, tokens,
                 count_text),
            )
        )  # fmt: skip
        items += measured.in_strip()
    line.draw(items, "strip_line")
    if memory:
        _memory_bar(bar.of_training(memory))


def _inference(forward: Inference, pinned: Inference | None) -> None:
    """Whether a batch fits, the largest that does, and how fast it is."""
    low, high = forward.device_bytes
    how = f"{_span(low, high)} of {gib_text(forward.capacity_bytes)} per GPU"
    then = pinned and (pinned.latency_seconds, pinned.samples_per_second, pinned.max_batch)
    latency, rate, most = then or (None, None, None)
    items = [
        _verdict(forward.verdict, f"A batch of {forward.batch:,}", how, "inference.device_bytes"),
        *_figures(
            (
                ("inference.max_batch", " samples fit", forward.max_batch, most, count_text),
                ("inference.latency_seconds", " a batch", forward.latency_seconds, latency,
                 seconds_text),
                ("inference.samples_per_second", " samples/s", forward.samples_per_second, rate,
                 count_text),
            )
        ),
    ]  # fmt: skip
    line.draw(items, "strip_line")


def _room(memory: Memory, pinned: int | None) -> str:
    """How much is left of the GPU, or too much on it, and of its host where that holds a part."""
    low, high = memory.device_bytes
    room_low, room_high = memory.capacity_bytes - high, memory.capacity_bytes - low
    if memory.verdict == "fits":
        how = f"at least {bytes_text(room_low)} to spare"
    elif memory.verdict == "tight":
        how = f"from {bytes_text(-room_low)} too much to {bytes_text(room_high)} to spare"
    elif room_high < 0:
        how = f"at least {bytes_text(-room_high)} too much"
    else:
        how = "the GPU would have room, its host does not"
    change = _change(high, pinned, bytes_text)
    against = f" ({change})".replace(" ", NARROW) if change else ""
    device = f"{_span(low, high)} of {gib_text(memory.capacity_bytes)}"
    return f"{how}. {device} per GPU{against}.{_host_room(memory)}"


def _span(low: float, high: float) -> str:
    """Two sizes, with their unit once; of a thousand and more no part of one matters."""
    if high >= 1000 * GiB:
        return f"{low / GiB:,.0f} to {high / GiB:,.0f} GiB"
    return f"{gib_text(low).removesuffix(' GiB')} to {gib_text(high)}"


NARROW = "\N{NO-BREAK SPACE}"  # a change stands in one piece, on the line of what changed
HOST_TIERS = {"dram": "Host DRAM", "nvme": "NVMe"}


def _host_room(memory: Memory) -> str:
    """Where a plan keeps something on the host: how much of it, and whether it has the room."""
    enough = parts.WORTH_SAYING * memory.tier_capacities["dram"]
    kept = {"dram": memory.tiers["dram"] >= enough, "nvme": memory.tiers["nvme"] > 0}
    text = ""
    for tier in (t for t, worth in kept.items() if worth and memory.tiers[t]):
        used, room = memory.tiers[tier], memory.tier_capacities[tier]
        over = f": {bytes_text(used - room)} too much" if used > room else ""
        text += f" {HOST_TIERS[tier]}: {bytes_text(used)} of {bytes_text(room)} per node{over}."
    return text


def _small_print(report: Report, pinned: Report | None, of: str = "") -> None:
    """What a reader checks first: what is allocated, the instant of the peak, the parameters; `of`
    says which step they are of, where the page is about more."""
    m, t = report.memory, report.time
    then, before = (pinned.memory, pinned.time) if pinned else (None, None)
    items = [Item(of)] if of else []
    if m:
        peak = next((i.label for i in m.timeline if i.id == m.peak.instant), m.peak.instant)
        if len(m.ranks) > 1:
            peak += f" (stage {m.peak.rank} of {len(m.ranks)})"
        low, high = m.reserved_bytes
        allocated = then.allocated_bytes if then else None
        items += _figures(
            (
                ("memory.allocated_bytes", " allocated at the peak", m.allocated_bytes,
                 allocated, bytes_text),
            )
        )  # fmt: skip
        items.append(Item(f"peak at: {peak}", "memory.peak.instant"))
        reserved = f"PyTorch reserves {_span(low, high)}"
        items.append(Item(reserved, "memory.reserved_bytes"))
    if t:
        if run := report.run:
            work = f"{count_text(state.plan().run.tokens)} {state.plan().architecture.unit}"
            text = f"{work} take {seconds_text(run.seconds)}"
            items += (Item(text, "run.seconds"), *_bill(run))
        ends = " to ".join(map(seconds_text, t.step_interval))
        items.append(Item(f"{ends} a step (range, 90 %)", "time.step_interval"))
        mfu, bound = (before.mfu, before.bound_by) if before else (None, None)
        items += _figures(
            (
                ("time.mfu", " MFU", t.mfu, mfu, _share),
                ("time.bound_by", "", t.bound_by, bound,
                 lambda name: f"bound by {palette.resource(name)}"),
            )
        )  # fmt: skip
    items.append(Item(f"{report.parameters:,} parameters", "parameters"))
    if _is_complete(report):  # else the notes say what is missing, and have a place of their own
        items += map(Item, map(in_words, _of_training(report)))
    line.draw(items, "small_print")


def _bill(run: Run) -> Iterator[Item]:
    """What the whole run costs: at the plan's price, or else at the least of the price list."""
    if run.cost is not None:
        yield Item(f"and cost {money_text(run.cost)}", "run.cost")
        return
    plan = state.plan()
    price, whose = own_price(plan)
    if price is not None:
        yield Item(
            f"from {money_text(price * run.gpu_hours)} at list prices",
            help=f"At the lowest list price, {money_text(price)} an hour for a GPU "
            f"({whose}). A price of your own is set at Host and price.",
        )


def _of_training(report: Report) -> list[str]:
    """Notes that are not about the server alone, which has a page of its own."""
    plan = state.plan()
    served = serving_notes(plan, report.serve, shared.server(plan)) if report.serve else []
    return [note for note in report.notes if note not in served]


def _is_complete(report: Report) -> bool:
    """Whether every part of the report was computed."""
    return None not in (report.memory, report.time, report.serve)


def _together(together: TogetherMemory) -> None:
    """Whether every phase fits, which is the fullest, and what the host holds."""
    low, high = together.device_bytes
    fullest = next(phase.label for phase in together.phases if phase.id == together.peak)
    host = ""
    if together.dram_bytes >= parts.WORTH_SAYING * together.dram_capacity_bytes:
        room = bytes_text(together.dram_capacity_bytes)
        host = f" Host DRAM of a node: {bytes_text(together.dram_bytes)} of {room}."
    text = (
        f"{_span(low, high)} of {gib_text(together.capacity_bytes)} per GPU, in: "
        f"{fullest}. An engine's cache holds {together.kv_capacity_tokens:,} tokens.{host}"
    )
    line.draw([_verdict(together.verdict, TOGETHER, text, "together.fits")], "strip_line")
    _memory_bar(bar.of_together(together))


# --- serving -------------------------------------------------------------------------------------


def _serving(serve: Serve, pinned: Serve | None) -> None:
    """Whether the sequences fit, and what a user of the server feels."""
    plan = state.plan()
    replica = f"{serve.gpus_per_replica:,} GPU" + "s" * (serve.gpus_per_replica > 1)
    nothing = nothing_fits(serve)
    words = f"{nothing or verdict(serve, plan)}. One replica is {replica}."
    items = [_verdict("fits" if serve.fits else "over", SERVING, words, "serve.fits")]
    first = f" to the first token{_late(serve.ttft_seconds, plan.serve.target_ttft)}"
    each = f" a token{_late(serve.tpot_seconds, plan.serve.target_tpot)}"
    figures: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("kv_capacity_tokens", " tokens of cache", "{:,.0f}".format),
        ("ttft_seconds", first, seconds_text),
        ("tpot_seconds", each, seconds_text),
        ("tokens_per_second", " tokens/s a replica", count_text),
    )
    items += _figures(
        (f"serve.{field}", follows, now, getattr(pinned, field) if pinned else None, text)
        for field, follows, text in figures
        if not nothing and (now := getattr(serve, field)) is not None
    )
    items += measured.in_strip(server=True)
    line.draw(items, "strip_line")
    _memory_bar(bar.of_serving(serve, plan.serve.concurrency))


def _rent(plan: Plan) -> Iterator[Item]:
    """What all GPUs of the plan cost as long as they serve."""
    price, whose = own_price(plan)
    if price is not None:
        n = plan.cluster.gpus
        rent = rent_text(price * n)
        yield Item(
            f"{n:,} GPU{'s' * (n > 1)}: {rent}",
            help=f"At {money_text(price)} an hour for a GPU ({whose}), all hours of a month. A "
            "price of your own is set at Host and price.",
        )


def _token_costs(plan: Plan, serve: Serve) -> Iterator[Item]:
    """What a million tokens cost, at the plan's price or else at the least of the price list."""
    price, whose = own_price(plan)
    if serve.cost_per_million_out is None and price is not None:
        priced = shared.report(plan.changed("run.price_per_gpu_hour", price)).serve
        serve = priced or serve
    for path, cost, what in (
        ("serve.cost_per_million_in", serve.cost_per_million_in, "prompt"),
        ("serve.cost_per_million_out", serve.cost_per_million_out, "output"),
    ):
        if cost is not None:
            text = f"{money_text(cost)} a million {what} tokens"
            mine = plan.run.price_per_gpu_hour
            yield Item(text, path if mine else "", help="" if mine else f"At {whose}.")


def _late(seconds: float | None, target: float) -> str:
    """Said of what takes longer than the plan's target; 0: there is none."""
    missed = target and seconds is not None and seconds > target
    return f", not within {seconds_text(target)}" if missed else ""


def _note_text(note: str) -> str:
    """A note on the page that it is about."""
    text = in_words(note.removeprefix(f"{SERVING}: "))
    return text[:1].upper() + text[1:]


def _serving_print(serve: Serve) -> None:
    """What a reader should know of the figures."""
    plan = state.plan()
    text = verdict(serve, plan)
    items = [
        *_rent(plan),
        *_token_costs(plan, serve),
        Item(f"{state.report().parameters:,} parameters", "parameters"),
    ]
    if nothing_fits(serve):
        items.append(Item(f"{REMEDY}."))
    for path, ends, what in (
        ("serve.ttft_range", serve.ttft_range, "to the first token"),
        ("serve.tpot_range", serve.tpot_range, "a token"),
    ):
        if ends:
            low, high = map(seconds_text, ends)
            items.append(Item(f"{low} to {high} {what} (range, 80 %)", path))
    if serve.prefill_bound_by and serve.decode_bound_by:
        before = ""
        if serve.tower_seconds:
            before = f" ({seconds_text(serve.tower_seconds)} of it before the layers)"
        whole = serve.running >= plan.serve.concurrency  # else a note says so
        speeds = f"Speeds are of {serve.running:,} that generate at once. " if whole else ""
        speeds += (
            f"The first token{before} is bound by {palette.resource(serve.prefill_bound_by)}, "
            f"each later one by {palette.resource(serve.decode_bound_by)}; {serve.replicas:,} "
            f"{'replicas fit' if serve.replicas > 1 else 'replica fits'} on the GPUs."
        )
        items.append(Item(speeds))
    notes = (*plan.architecture.notes, *serving_notes(plan, serve))
    items += (Item(_note_text(note)) for note in notes if text not in note)  # the verdict says it
    line.draw(items, "small_print")
