"""Files: what somebody drops on the page, uploads or pastes is a model, a plan, or measured."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from app import measured, places, state
from memcore.errors import Issue, PlanError
from memcore.formats import BESIDE, FAILURE, MODEL, Text, kind_of, machines, read_files, text_of
from memcore.formats.benches import is_bench
from memcore.formats.snapshot import is_pickle
from memcore.formats.totals import totals_in
from memcore.models.config import parse_config
from memcore.models.families.drafts import family_of
from memcore.plan.field import described
from memcore.plan.models import NAMED, draft_from
from memcore.units import MiB


def draw() -> None:
    """A box for files, and one for text."""
    with st.expander("Your own files"):
        st.file_uploader(
            "Drop config.json, a job's files or its error",
            type=None,
            accept_multiple_files=True,
            key="config_file",
            on_change=_uploaded,
            max_upload_size=places.MOST_HELD // MiB,
            help="A Hugging Face config.json is a model. What vLLM, SGLang, llama.cpp, a Trainer, "
            "TRL, LLaMA-Factory, axolotl, DeepSpeed, Accelerate, torchtitan or Megatron are given "
            "is a plan: drop the files of one job together, here or anywhere on the page. "
            "A memory snapshot or summary of PyTorch, nvidia-smi's table, or the message that "
            "memory ran out is what a run held, and what vllm bench serve or another benchmark "
            "printed is what a server took, beside the plan. "
            "They stay on this machine; nothing in them is run.",
        )
        st.text_area(
            "or paste it",
            key="config_text",
            height=100,
            placeholder='{"model_type": "llama", ...} or vllm serve ... or CUDA out of memory ...',
            on_change=_text_pasted,
        )


def _uploaded() -> None:
    """Files that are dropped together are of one job. What comes later takes the place of what
    plays the same part: another job that of the job, another config.json that of the model."""
    every = st.session_state.config_file
    files = [file for file in every if not is_pickle(file.getvalue())]
    if len(files) < len(every) and every[-1] not in files:
        measured.snapshot_dropped(every[-1].getvalue())
        return
    seen: dict[str, int] = st.session_state.setdefault("config_files_seen", {})
    turn = 1 + max(seen.values(), default=0)
    turns = [seen.setdefault(file.file_id, turn) for file in files]
    try:
        texts = [text_of(file.name, file.getvalue()) for file in files]
    except PlanError:
        use_config(files[-1].getvalue())  # which says what is wrong with it
        return
    plays = [kind if (kind := kind_of(text)) in BESIDE else "the job" for text in texts]
    last = dict(sorted(zip(plays, turns, strict=True), key=lambda pair: pair[1]))
    every_one = zip(texts, plays, turns, strict=True)
    use_texts([text for text, part, turn in every_one if turn == last[part]])


def dropped(files: Sequence[Sequence[Any]]) -> None:
    """Files that were dropped together on the page, as `places.draw` gives them, are of one job. A
    pickle is what a run held; of a file that is too long only its length is here."""
    if pickles := [base64.b64decode(held) for _, _, held, *_ in files if held]:
        measured.snapshot_dropped(pickles[-1])
        return
    if long := [(name, size) for name, _, _, size in files if size > places.MOST_TEXT]:
        most = f"bytes; read are at most {places.MOST_TEXT:,}"
        use_model(PlanError(Issue(name, f"has {size:,} {most}") for name, size in long))
        return
    try:
        texts = [text_of(name, content.encode()) for name, content, *_ in files]
    except PlanError:
        use_config(files[-1][1])  # which says what is wrong with it
        return
    use_texts(texts)


def _text_pasted() -> None:
    text = st.session_state.config_text
    if not text.strip():
        return
    try:  # the box itself has no limit: it would drop a longer text without a word
        use_texts([Text("what was pasted", text)])
    except PlanError as e:
        use_model(e)


def use_texts(texts: Sequence[Text]) -> None:
    """A config.json is the model of this plan; files of other programs are a plan, and what is no
    JSON at all is refused as one of them. What a run held, and what a benchmark of a server said,
    stand beside the plan."""
    kinds = {kind_of(text) for text in texts}
    own = ("", FAILURE) if kinds <= {"", FAILURE} else ("",)  # beside a job it is the job's
    held = [text for text in texts if kind_of(text) in own and totals_in(text.content)]
    if held:
        measured.snapshot_dropped(held[-1].content.encode())
        if not (texts := [text for text in texts if text not in held]):
            return
    speeds = [text for text in texts if kind_of(text) == "" and is_bench(text.content)]
    if speeds:
        measured.benchmark_given(speeds[-1].content)
        if not (texts := [text for text in texts if text not in speeds]):
            return
    alone = [text for text in texts if not text.name.lower().endswith(".json")]
    others = [text for text in alone if text.content.lstrip()[:1] not in "{["]
    if others or any(kind_of(text) not in ("", MODEL) for text in texts):
        _open(texts)
    elif texts:
        use_config(texts[-1].content, texts[-1].name)


def use_config(text: str | bytes, file: str = "") -> None:
    """A config.json is the model, called as its file is where it does not say; but nearly all of
    them are called config."""
    try:
        config, path = parse_config(text), PurePath(file)
        if path.suffix == ".json" and not path.stem.startswith("config"):
            config.setdefault(NAMED, path.stem)
        use_model(config)
    except PlanError as e:
        use_model(e)


GUESSES = 3  # tokens that a head guesses where nobody says how many


def use_model(config: Mapping[str, Any] | PlanError, near: Sequence[str] = ()) -> None:
    """Switch to a config.json that somebody gave; one that is no model leaves the draft alone, and
    those that are `near` are suggested. That of what guesses tokens for a model guesses them for
    this one."""
    s = state.session()
    before = s.draft
    if isinstance(config, PlanError):
        s.problems, s.suggested = config.issues, near
        return
    changes: dict[str, Any] = {"model": config}
    if family_of(config):
        text = described(config)
        changes = {"serve.draft_model": text, "serve.draft_tokens": _guesses(text)}
    state.change(changes)
    if any(issue.field.startswith(("model", "serve.draft_model")) for issue in s.problems):
        s.draft = before


def _guesses(text: str) -> int:
    """How many tokens a draft guesses: a block, or as many as are asked for."""
    try:
        draft = draft_from(text).draft
    except ValueError:  # is said when it is read
        draft = None
    return (draft.most if draft else 0) or state.drafted("serve.draft_tokens") or GUESSES


def _open(texts: Sequence[Text]) -> None:
    """Show the plan that files of other programs say, where they name no GPU on the chosen one and,
    where they name no model, of the chosen one; and what they do not say. What is no plan leaves
    the draft alone."""
    s = state.session()
    gpu = s.plan.cluster.gpu
    try:
        named = any(machines.asked(text.content)[2] for text in texts)
        chosen = gpu if isinstance(gpu, str) and not named else ""
        job = read_files(texts, gpu=chosen, otherwise=s.plan.model)
    except PlanError as e:
        s.problems = e.issues
        return
    told = (
        *(Issue("", f"Memory ran out: {each}.") for each in job.failures),
        *job.unsure,
        *job.differs,
        *job.decides,
        *(Issue("", f"Not read, since it is not here: {name}.") for name in job.wants),
        *(each for each in job.assumed if each not in job.decides),
        *job.changed,
        *job.left,
    )
    kinds = " and ".join(f"{name} ({kind})" for name, kind in job.kinds.items())
    state.begin_with(job.plan, kinds, told)
    places.lead_to(job.plan, s.page)


def open_link(address: str) -> None:
    """Show what a link says that somebody pasted."""
    link = urlsplit(address.strip())
    state.open_query(link.query)
    view = link.path.rpartition("/")[2]
    if view in places.ADDRESSES:
        places.lead(view)
    else:
        places.lead_to(state.plan(), state.session().page)
