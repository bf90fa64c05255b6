"""Sidebar: the plan as widgets, with labels, limits, units, words and help from its fields."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from app import files, parts, places, state
from app.controls import Take
from app.fields import Field, field, in_group, setting
from app.text import counted, plain
from memcore.cli.app import LOOPBACK
from memcore.errors import Issue, PlanError, shown
from memcore.formats import Text, here
from memcore.formats.hub import preset, stored
from memcore.models import catalog
from memcore.plan.field import GROUPS, describes
from memcore.plan.keys import VERSION
from memcore.plan.link import begun
from memcore.plan.models import DIMS, dims_of, preset_of
from memcore.plan.plan import (
    Plan,
    change_texts,
    facts,
    field_paths,
    get,
    title_of,
    value_text,
)
from memcore.search.change import differences
from memcore.serving.forward import infers
from memcore.units import count_text, parse_count
from memcore.words.stored import AS_PUBLISHED
from memcore.words.word import Word

SIZES = (
    *("100M", "125M", "160M", "250M", "350M", "500M", "750M", "1B", "1.3B", "1.5B", "2B", "2.7B"),
    *("3B", "4B", "5B", "6B", "7B", "8B", "10B", "13B", "16B", "20B", "27B", "30B", "34B", "40B"),
    *("50B", "65B", "70B", "90B", "110B", "130B", "150B", "175B", "200B", "250B", "300B", "405B"),
    *("500B", "600B", "700B", "850B", "1T", "1.2T", "1.5T", "1.8T", "2T"),
)
STAGES = {
    0: "0: nothing sharded",
    1: "1: optimizer",
    2: "2: + gradients",
    3: "3: + parameters",
}


HERE_HELP = "Asks this machine which GPUs it has, and what other programs hold of them."
NODE = "Host and price"  # a group beside the hardware
JOB = ("train.micro_batch", "train.seq_len")
TRICKS = ("train.precision", "train.checkpointing", "train.zero")
LOAD = ("serve.concurrency", "serve.prompt_len", "serve.output_len")
ENGINE = ("serve.engine", "serve.weight_dtype", "serve.kv_dtype", "serve.tp")
RUN = ("run.price_per_gpu_hour", "run.tokens", "run.target_days")
ABOVE = frozenset((*JOB, *TRICKS, *LOAD, *ENGINE, *RUN))  # stand somewhere of their own
HOMES = {"Train": ("",), "Serve": ("Serve",), "RL": ("", "Serve", "RL")}  # whose groups a page has


def draw(place: str, page: str) -> None:
    """The fields of the question at hand, in the order of a booking: the model, the hardware, the
    job, what saves memory; all others of it in groups, and one search over all fields."""
    _changes()
    _heading("Model")
    model_search()
    _size_slider()
    files.draw()
    _heading("Hardware")
    _hardware()
    alone = place == "Serve" and infers(state.plan().architecture)
    if alone:
        _heading("Batch")
        tokens = () if state.plan().architecture.image else ("serve.prompt_len",)
        _fields(("serve.concurrency", *tokens, "serve.weight_dtype"))
    elif place == "Serve":
        _heading("Load")
        _fields(LOAD)
        _heading("Engine")
        _fields(ENGINE)
    else:
        _heading("Job")
        for path in (*JOB, *(f"{DIMS}{name}" for name in dims_of(state.plan().model))):
            when = facts(path).when
            if when is None or when(state.drafted, state.plan().architecture):
                _number_slider(path)
        _heading("Memory tricks")
        for path in TRICKS:
            OWN.get(path, _field)(path)
    _heading("All settings")
    _find()
    for title, home in GROUPS.items():
        if (home in HOMES[place] and not alone) or home == page:
            parts.folded(title, _group, title, unfolded=home == place == "RL")
    _examples()
    _marks()


def _heading(text: str) -> None:
    st.markdown(f"##### {text}", anchors=False)


def _fields(paths: Sequence[str]) -> None:
    """Those that have a meaning in the plan."""
    for path in paths:
        when = facts(path).when
        if when is None or when(state.drafted, state.plan().architecture):
            OWN.get(path, _field)(path)


def _group(group: str) -> None:
    """The fields of a group that stand nowhere above."""
    _fields([path for path in in_group(group) if path not in ABOVE])


# --- what is not the default ---------------------------------------------------------------------


def _changes() -> None:
    """How many fields are not the default; unfolded, which, and each back at a press."""
    changed = state.changed()
    n = len(changed)
    text = f"{n} change{'s' * (n != 1)} from the default" if n else "No change from the default"
    if st.session_state.get("changes_said") != text:
        # A box with another label is another one to Streamlit, and would be folded.
        st.session_state.changes = bool(st.session_state.get("changes"))
        st.session_state.changes_said = text
    box = st.expander(text, key="changes", on_change="rerun")
    if not box.open:
        return
    default = begun(state.session().form).document()
    with box:
        if not changed:
            parts.small("What you change is listed here, and goes back at a press.")
        for path, value in changed.items():
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                shown = plain(setting(state.plan(), path, value))
                parts.small(f"{title_of(path)}: **{shown}**", "stretch")
                st.button(
                    "Reset",
                    key=f"reset_{path}",
                    on_click=state.change,
                    args=({path: get(default, path)},),
                    help=f"Back to {plain(value_text(path, get(default, path)))}",
                )
        if n > 1:
            st.button("Reset all", key="reset_all", on_click=state.begin_with, args=(Plan(),))
        _old_form()


def _old_form() -> None:
    """That the link of the plan is from when some fields had other defaults, that they still have:
    what they are today, at a press."""
    was, here = differences(state.DEFAULT, begun(state.session().form)), state.plan().document()
    today = state.DEFAULT.document()
    since = {path: get(today, path) for path, v in was.items() if get(here, path) == v}
    if not since:
        return
    parts.small(f"The link is of an older form: {len(since)} defaults are as they were then.")
    st.button(
        "Use today's",
        key="todays_form",
        on_click=_to_todays_form,
        args=(since,),
        help="\n".join(f"- {plain(text)}" for text in change_texts(since, ":")),
    )


def _to_todays_form(changes: Mapping[str, Any]) -> None:
    state.session().form = VERSION
    state.change(changes)


def _marks() -> None:
    """A dot before the label of each field that is not the default."""
    keys = [path.replace(".", "_") for path in state.changed()]
    if keys:
        labels = ", ".join(f'.st-key-{key} [data-testid="stWidgetLabel"]::before' for key in keys)
        dot = "content: '●'; position: absolute; left: -.85rem; font-size: .7rem;"
        places = labels.replace("::before", "")
        st.html(f"<style>{places} {{ position: relative; }} {labels} {{ {dot} }}</style>")


def _find() -> None:
    """A search over all fields, by title, word or name; what is found is drawn below it."""
    path = st.selectbox(
        "Find a setting",
        [path for path in field_paths() if facts(path).group],
        index=None,
        format_func=_searched,
        placeholder="Liger, offload, KV dtype, ...",
        key="find",
    )
    if path:
        _field(path, prefix="found_")


@functools.cache
def _searched(path: str) -> str:
    """What a field is found by: its words too, and what other programs call it."""
    f = field(path)
    words = ", ".join((*(w.label for w in (f.words or {}).values()), *facts(path).names))
    return f"{f.title}: {words}" if words else f"{f.title} ({path.split('.')[0]})"


# --- widgets by kind of field --------------------------------------------------------------------


def _setting(path: str) -> Take:
    """A choice sets this field; a box that is cleared, to what its placeholder says, if to any."""

    def take(value: Any) -> None:
        if value is not None or facts(path).zero:
            state.change({path: 0 if value is None else value})

    return take


def _common(f: Field, take: Take | None = None, prefix: str = "") -> dict[str, Any]:
    """What every widget of a field has: its key, which shows the draft, and its help."""
    key = prefix + f.path.replace(".", "_")
    value = state.drafted(f.path)
    shown = None if facts(f.path).zero and not value else value  # empty: its placeholder says it
    unit = state.plan().architecture.unit
    return {
        "label": counted(f.label, unit),
        "key": state.control(key, shown, take or _setting(f.path)),
        "help": counted(f.full_help, unit),
    }


def _field(
    path: str,
    take: Take | None = None,
    text: Callable[[int], str] | None = None,
    prefix: str = "",
) -> None:
    """The widget of a field: `take` does what a choice does beside setting it, `text` says a step,
    `prefix` tells it from another of the same field. One word alone is nothing to choose, so it is
    only named."""
    f, declared = field(path), facts(path)
    if f.words and len(f.words) == 1:
        (word,) = f.words.values()
        st.markdown(f":small[{f.title}: {word.label}]", help=f.full_help)
        return
    common = _common(f, take, prefix)
    if declared.steps:
        options = _with_own(path, declared.steps)
        st.select_slider(options=options, format_func=text or declared.text, **common)
    elif f.words and declared.slider:
        st.select_slider(options=list(f.words), format_func=_labels(f.words), **common)
        if remark := state.report().remarks.get(path):
            parts.small(plain(remark))
    elif f.words and _is_short(f.words):
        st.segmented_control(
            options=list(f.words), format_func=_labels(f.words), required=True, **common
        )
    elif f.words:
        st.selectbox(options=list(f.words), format_func=_labels(f.words), **common)
    elif f.kind is str:
        st.text_input(**common)
    elif f.kind is bool:
        st.toggle(**common)
    elif f.kind is float and f.high == 1 and not declared.zero:
        st.slider(min_value=0.0, max_value=1.0, step=0.01, **common)
    else:
        _box(f, **common)


LINE = 30  # letters of the words that have room beside each other


def _is_short(words: Mapping[str, Word]) -> bool:
    """Whether all words fit beside each other."""
    return sum(len(word.label) + 3 for word in words.values()) <= LINE


def _number_slider(path: str) -> None:
    """A slider, and beside it the same number to be typed."""
    f = field(path)
    with st.container(key=f"number_{path}", gap=None):
        _field(path)
        key = state.control(f"typed_{f.path}", state.drafted(path), _setting(path))
        _box(f, label=f"{f.title}, typed", key=key, label_visibility="collapsed")


def _box(f: Field, **said: Any) -> None:
    """A box for a number. One that is cleared, and whose 0 says nothing, shows again what it had: a
    browser sends the least for an empty box that begins with a value."""
    of, step = (float, 0.1 if (f.high or 0) > 1 else 0.01) if f.kind is float else (int, 1)
    if of is float:
        said["format"] = "%g"  # 30 and 0.25: no digits that say nothing
    st.number_input(
        min_value=of(f.low or 0),
        max_value=of(f.high or 0),
        step=step,
        value=None,
        placeholder=facts(f.path).zero,
        **said,
    )


def _labels(words: Mapping[str, Word]) -> Callable[[str], str]:
    return lambda word: words[word].label


def _with_own(path: str, steps: Sequence[int]) -> list[int]:
    """Useful steps; whatever other value the plan has is a step of its own."""
    own = st.session_state.setdefault(f"steps_{path}", set())
    own.add(state.drafted(path))
    return sorted({*steps, *own})


def _serving_ranks(path: str) -> None:
    """How many ranks, where none says as many as train."""
    ranks = state.drafted(path.replace("serve.", "parallel."))
    _field(path, text=lambda n: f"{n:,}" if n else f"{ranks:,}, as in training")


def _drafter(path: str) -> None:
    """Words, and the file of a draft, which can be pasted here too."""
    words, here = field(path).words or {}, state.drafted(path)
    st.selectbox(
        options=[*words, *([here] if describes(here) else [])],
        format_func=lambda value: value_text(path, value),
        accept_new_options=True,
        **_common(field(path), _drafter_chosen),
    )


def _drafter_chosen(text: str | None) -> None:
    words = field("serve.draft_model").words or {}
    if text and describes(text.strip()):
        files.use_config(text)
    elif text in words:
        state.change({"serve.draft_model": text})
    elif text:
        label = f"{shown(text)} is no word; paste the config.json of a draft"
        files.use_model(PlanError([Issue("serve.draft_model", label)]))


def _weight_dtype(path: str) -> None:
    _field(path)
    if state.plan().serve.weight_dtype == AS_PUBLISHED:
        parts.small(plain(f"Stored as {state.plan().weights.label}."))


def _engine_ranks(path: str) -> None:
    if state.drafted("serve.tp"):
        parts.small(f"Engine tensor parallel: {state.drafted('serve.tp'):,}, as at Serving.")
    else:
        _field(path)


def _framework(path: str) -> None:
    _field(path, _framework_chosen)


def _zero_slider(path: str) -> None:
    st.select_slider(
        options=list(STAGES), format_func=STAGES.__getitem__, **_common(field(path), _zero_chosen)
    )


def _zero_chosen(stage: int) -> None:
    """A stage, and a framework that has it: the present one if it does."""
    state.change_with_followers({"train.zero": stage})


def _framework_chosen(framework: str) -> None:
    """A framework, with a ZeRO stage, kernels, an optimizer and a precision that it has."""
    state.change_with_followers({"train.framework": framework})


def of_framework(framework: str) -> dict[str, Any]:
    """A framework, and what of the plan must follow it: the present words where it has them."""
    return state.with_followers({"train.framework": framework})


OWN: dict[str, Callable[[str], None]] = {  # widgets that are more than their field
    "train.zero": _zero_slider,
    "train.framework": _framework,
    "serve.tp": _serving_ranks,
    "serve.pp": _serving_ranks,
    "serve.weight_dtype": _weight_dtype,
    "together.engine_tp": _engine_ranks,
    "serve.draft_model": _drafter,
}


# --- the model -----------------------------------------------------------------------------------


def _size_slider() -> None:
    """Moves to a standard model of that size; stands at the size of the present model."""
    here = _size(state.report().parameters)
    seen: set[str] = st.session_state.setdefault("sizes_seen", set(SIZES))
    seen.add(here)  # and stays a step: a browser may still say it when another is here
    st.select_slider(
        "Model size (parameters)",
        sorted(seen, key=parse_count),
        key=state.control("model_size", here, lambda size: state.change({"model": {"size": size}})),
        help="Switches to a standard Llama-shaped model of about this many parameters. It stands "
        "at the size of the model that is chosen below.",
    )


CLOSE = 0.02  # a model that differs less from a size is said to be of it: Llama 3 8B has 8.03B


def _size(parameters: int) -> str:
    """The size of SIZES that a model has, or its own."""
    nearest = min(SIZES, key=lambda size: abs(parse_count(size) / parameters - 1))
    close = abs(parse_count(nearest) / parameters - 1) < CLOSE
    return nearest if close else count_text(parameters)


def model_search() -> None:
    """One box over presets and sizes; a size, a config.json or a link can be typed or pasted."""
    drafted = state.drafted("model")
    chosen = preset_of(drafted) or drafted.get("size")
    st.selectbox(
        "Model",
        [*catalog.model_names(), *SIZES],
        format_func=_model_label,
        key=state.control("model_preset", chosen, _model_chosen),
        placeholder=state.plan().architecture.label,
        accept_new_options=True,
        help=field("model").full_help
        + "\n\nType a size such as 7.5B or a name as on the Hugging Face hub, or paste a "
        "config.json, a link or a command such as vllm serve. Files can be dropped anywhere.",
    )
    if chosen is None:
        for note in state.plan().architecture.notes:
            parts.small(plain(note))


def _model_chosen(text: str | None) -> None:
    """A preset, a size, a config.json or a link."""
    if not text:
        return
    if name := model_named(text):
        dtype = stored(text)  # 'Qwen3-32B-FP8' is served as it is stored
        usual = catalog.traced_usual(name)
        state.change({"model": name, **usual, **({"serve.weight_dtype": dtype} if dtype else {})})
    elif text.lstrip().startswith("{") or " --" in text:
        files.use_texts([Text("what was pasted", text)])
    elif "?" in text:
        files.open_link(text)
    elif _is_size(text):
        files.use_model({"size": text.strip()})
    else:
        words = f"no model is called {shown(text)}"
        near = nearest_models(text)
        if near:
            words += f"; near are {', '.join(map(_model_label, near))}"
        words += "; paste its config.json, or type a size such as 7B"
        files.use_model(PlanError([Issue("model", words)]), near)


def model_named(text: str) -> str:
    """The preset with this name or label, as the Hugging Face hub calls it too, or the only one
    whose label has this in it; '' for whatever else, and for a size."""
    words = text.strip().lower()
    if name := _by_label().get(words):
        return name
    if _is_size(words):
        return ""
    names = {name for label, name in _by_label().items() if words in label}
    return names.pop() if len(names) == 1 else preset(words.replace(" ", "-"))


MOST_NEAR = 4  # models that are suggested
TELLS_NOTHING = frozenset(("instruct", "chat", "it", "hf"))  # how a model was tuned


def nearest_models(text: str) -> list[str]:
    """The presets whose labels have all words of a text, or else are spelled nearly like it; the
    shortest first."""
    words = [w for w in re.split(r"[\s/_:,-]+", text.lower()) if w and w not in TELLS_NOTHING]
    labels = {re.sub(r"[^a-z0-9.]", "", label): name for label, name in _by_label().items()}
    hits = [label for label in labels if words and all(word in label for word in words)]
    near = sorted(hits, key=len) or get_close_matches("".join(words), labels, MOST_NEAR)
    return list(dict.fromkeys(labels[label] for label in near))[:MOST_NEAR]


def _is_size(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+ *[kmbt]?", text.strip().lower()))


@functools.cache
def _by_label() -> Mapping[str, str]:
    """Presets by what people call them, and by their names."""
    names = {name: name for name in catalog.model_names()}
    return {_model_label(name).lower(): name for name in names} | names


def _model_label(name: str) -> str:
    return _model_labels().get(name, name)


@functools.cache
def _model_labels() -> Mapping[str, str]:
    """What the box over presets and sizes calls each."""
    presets = {name: str(catalog.model_entry(name)["label"]) for name in catalog.model_names()}
    for name, row in catalog.traced_rows().items():
        presets[name] = f"{row['label']} ({row['group']})"
    return {size: f"{size}, a standard Llama shape" for size in SIZES} | presets


def _named(path: str) -> Take:
    """A choice of a name sets this field; that nothing is chosen any more does not."""
    return lambda name: state.change({path: name}) if name else None


# --- hardware and examples -----------------------------------------------------------------------


def _hardware() -> None:
    gpu_search(field("cluster.gpu"))
    _field("cluster.gpus")
    if _is_own() and here.is_listed():
        st.button("This machine's GPUs", key="here", on_click=_plan_here, help=HERE_HELP)
    parts.folded(NODE, _node_and_price)


def _is_own() -> bool:
    """Whether the browser is on the machine that serves it."""
    return urlsplit(st.context.url or "").hostname in LOOPBACK


def _plan_here() -> None:
    try:
        fields, _ = here.settings()
    except PlanError as e:
        files.use_model(e)
    else:
        state.change(fields)


def _node_and_price() -> None:
    _preset(field("cluster.node"), catalog.node_names(), _node_label, state.plan().node.label)
    for name in ("gpu_share", "taken_gib", "gpus_per_node", "network_gbits", "dram_gib"):
        _field(f"cluster.{name}")
    price_search()


def gpu_search(f: Field) -> None:
    """A chip, and where it is sold with several sizes of memory, which one: each is a preset."""
    drafted = state.drafted(f.path)
    name = drafted if isinstance(drafted, str) and drafted in catalog.gpu_names() else None
    chips = list(dict.fromkeys(map(catalog.chip_of, catalog.gpu_names())))
    chip = catalog.chip_of(name) if name else None
    gpu = state.plan().accelerator
    st.selectbox(
        f.label,
        chips,
        format_func=_chip_label,
        key=state.control("cluster_gpu", chip, _named(f.path)),
        placeholder=gpu.label,
        help=f.full_help,
    )
    if name and len(catalog.sizes(name)) > 1:
        st.segmented_control(
            "Memory",
            catalog.sizes(name),
            format_func=_memory_label,
            key=state.control("cluster_gpu_memory", name, _named(f.path)),
            help="Sizes that this chip is sold with. A smaller one may have fewer units, too.",
        )
    if gpu.caveat:
        parts.small(f"{gpu.label} is {gpu.caveat}.")


def _preset(f: Field, names: Sequence[str], label: Callable[[str], str], otherwise: str) -> None:
    """A preset's name; `otherwise` is shown while none is chosen."""
    drafted = state.drafted(f.path)
    chosen = drafted if isinstance(drafted, str) else None
    st.selectbox(
        f.label,
        names,
        format_func=label,
        key=state.control(f.path.replace(".", "_"), chosen, _named(f.path)),
        placeholder=otherwise,
        help=f.full_help,
    )


def run_goal() -> None:
    """What the whole run is: so many tokens, within so many days."""
    tokens, days = st.columns(2)
    with tokens:
        steps = _with_own("run.tokens", facts("run.tokens").steps)
        st.selectbox(
            counted(field("run.tokens").label, state.plan().architecture.unit),
            steps,
            format_func=count_text,
            key=state.control("run_tokens", state.drafted("run.tokens"), tokens_typed),
            accept_new_options=True,
            help=f"{field('run.tokens').help} Choose, or type a number such as 15T.",
        )
    with days:
        _field("run.target_days")


def tokens_typed(chosen: int | str | None) -> None:
    """A step, or a number in words; what is none changes nothing."""
    with contextlib.suppress(ValueError):
        if chosen:
            state.change({"run.tokens": parse_count(str(chosen))})


def price_search() -> None:
    """The price of a GPU: one of a cloud's list, or any that is typed."""
    gpu, price = state.drafted("cluster.gpu"), state.drafted("run.price_per_gpu_hour")
    prices = catalog.prices(gpu) if isinstance(gpu, str) else {}
    rows = sorted(prices.values(), key=lambda row: row["usd"])
    usd_by_label = {_price_label(row, date.today()): row["usd"] for row in rows}
    here = next((label for label, usd in usd_by_label.items() if usd == price), f"${price:,.2f}")

    def chosen(text: str | None) -> None:
        if text in usd_by_label:
            state.change({"run.price_per_gpu_hour": usd_by_label[text]})
        else:
            price_typed(text or "0")

    st.selectbox(
        "Price of a GPU for an hour (USD)",
        [*usd_by_label, *([here] if price and here not in usd_by_label else [])],
        key=state.control("price", here if price else None, chosen),
        placeholder="choose or type one",
        accept_new_options=True,
        help="For the cost of the run. "
        + "\n".join(f"\n- **{cloud}**: {row['source']}" for cloud, row in prices.items()),
    )


def price_typed(text: str) -> None:
    """USD; what is no number changes nothing."""
    with contextlib.suppress(ValueError):
        usd = float(text.lstrip("$ ").replace(",", ""))
        state.change({"run.price_per_gpu_hour": usd})


def _price_label(row: Mapping[str, Any], today: date) -> str:
    old = ", perhaps outdated" if catalog.outdated(row["as_of"], today) else ""
    return f"${row['usd']:,.2f} {row['cloud']} ({row['as_of']}{old})"


@functools.cache
def _chip_label(name: str) -> str:
    """A chip's name: without its memory where that is a choice, and with what is not yet sold."""
    gpu = catalog.accelerator(name)
    one_size = len(catalog.sizes(name)) == 1
    label = gpu.label if one_size else gpu.label.replace(f" {_memory_label(name)}", "")
    return label if gpu.status == "shipping" else f"{label}, {gpu.status}"


@functools.cache
def _memory_label(name: str) -> str:
    """As the label has it: '36 GB'."""
    sizes: list[str] = re.findall(r"[0-9]+ GB", catalog.accelerator(name).label)
    return sizes[-1]


def _node_label(name: str) -> str:
    return catalog.node(name).label


def _examples() -> None:
    """Worked plans to start from; shows which one is on the page, if one is."""
    entries = catalog.plan_entries()
    here = next((name for name in entries if example(name) == state.plan()), None)
    st.selectbox(
        "Start from",
        list(entries),
        format_func=lambda name: entries[name]["label"],
        key=state.control("example", here, _example_chosen),
        placeholder="a worked example",
        help="\n".join(f"- **{e['label']}**: {e['question']}" for e in entries.values()),
    )


@functools.cache
def example(name: str) -> Plan:
    """A worked plan by its name."""
    entry: Mapping[str, Any] = catalog.plan_entries()[name]
    return Plan.of(entry["plan"])


def _example_chosen(name: str | None) -> None:
    """It becomes the plan, on a view of what it is about."""
    if not name:
        return
    places.lead_to(example(name), state.session().page)
    state.begin_with(example(name))
