"""Links: a plan survives the trip, an old link keeps its meaning, damage costs only itself."""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import Any
from urllib.parse import parse_qs

import pytest
from explored import examples
from hypothesis import given
from hypothesis import strategies as some
from tables import each

from memcore import Issue, PlanError, cli
from memcore.models import catalog
from memcore.plan import link
from memcore.plan.keys import BESIDE, FIELDS, KEYS, KNOWN, VERSION
from memcore.plan.link import (
    FAILED,
    MAX_ISSUES,
    MAX_KEYS,
    begun,
    decode,
    decode_measured,
    decode_pin,
    encode,
    encode_measured,
    encode_pin,
    form_of,
    nearest,
    pin_name,
    query_text,
)
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, get, put
from memcore.plan.repair import repair
from memcore.search.change import differences
from memcore.words.precision import PRECISIONS
from memcore.words.serving import KV_CACHES
from memcore.words.training import CHECKPOINTING, FRAMEWORKS, OFFLOAD

INLINE = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}


def read(text: str) -> tuple[Plan, list[str]]:
    plan, issues = decode(parse_qs(text, keep_blank_values=True))
    return plan, [str(issue) for issue in issues]


def leaves(value: Any, path: str = "") -> set[str]:
    if not isinstance(value, dict) or path == "model":
        return {path}
    return {p for k, v in value.items() for p in leaves(v, f"{path}.{k}".strip("."))}


# --- old links: this table only grows ------------------------------------------------------------

FULL = (
    "v=1&model=llama-2-7b~1&gpu=a100-sxm-80gb~1&gpus=16&pernode=8&tp=1&pp=1&cp=1&ep=1&sp=no&vs=1"
    "&mb=3&seq=2048&accum=4&fw=pytorch&zero=1&prec=bf16-pure&opt=adamw&ckpt=none&kernels=hf"
    "&attn=sdpa&loss=eager&offopt=cpu&offpar=none&offact=none&wdtype=fp16&kvdtype=fp8"
    "&kvcache=contiguous&conc=5&prompt=100&output=7&block=32&memutil=0.85&batched=4096"
)
V1 = {  # what an empty link of version 1 means, for ever
    "model": "llama-3-8b",
    "cluster.gpu": "h100-sxm-80gb",
    "cluster.gpus": 8,
    "cluster.gpus_per_node": 8,
    "cluster.node": None,
    "parallel.tp": 1,
    "parallel.pp": 1,
    "parallel.cp": 1,
    "parallel.ep": 1,
    "parallel.sequence_parallel": False,
    "parallel.virtual_stages": 1,
    "train.micro_batch": 1,
    "train.seq_len": 4096,
    "train.grad_accumulation": 1,
    "train.framework": "fsdp2",
    "train.zero": 3,
    "train.precision": "bf16-mixed",
    "train.optimizer": "adamw",
    "train.checkpointing": "full",
    "train.kernels": "hf",
    "train.attention": "flash",
    "train.cross_entropy": "eager",
    "train.offload_optimizer": "none",
    "train.offload_parameters": "none",
    "train.offload_activations": "none",
    "serve.weight_dtype": "bf16",
    "serve.kv_dtype": "bf16",
    "serve.kv_cache": "paged",
    "serve.concurrency": 64,
    "serve.prompt_len": 1024,
    "serve.output_len": 256,
    "serve.block_size": 16,
    "serve.memory_utilization": 0.9,
    "serve.max_batched_tokens": 8192,
    "serve.runtime": "graphs",
    "serve.prefill": "whole",
    "serve.draft_tokens": 0,
    "serve.draft_acceptance": 0.7,
    "serve.draft_model": "none",
    "serve.offload_weights": 0.0,
    "serve.offload_kv": "none",
    "serve.state_dtype": "auto",
}
V2 = V1 | {  # the same of version 2
    "cluster.gpus_per_node": 0,
    "train.overlap_grad_reduce": True,
    "train.overlap_param_gather": True,
    "train.tp_comm_overlap": True,
    "serve.weight_dtype": "auto",
    "serve.memory_utilization": 0.0,
    "serve.max_batched_tokens": 0,
}
GOLDEN: dict[str, dict[str, Any]] = {
    "": {},
    "v=1": {},
    "v=1&model=llama-3-8b~1&gpu=h100-sxm-80gb~1&mb=4": {"train.micro_batch": 4},
    "v=1&size=13B&seq=1000": {"model": {"size": "13B"}, "train.seq_len": 1000},
    "v=1&model=gpt2-xl~1&gpu=rtx-4090-24gb~1&gpus=1&pernode=1&seq=1024&fw=pytorch&zero=0": {
        "model": "gpt2-xl",
        "cluster.gpu": "rtx-4090-24gb",
        "cluster.gpus": 1,
        "cluster.gpus_per_node": 1,
        "train.seq_len": 1024,
        "train.framework": "pytorch",
        "train.zero": 0,
    },
    "v=1&tp=8&gpus=64&node=dgx-a100~1&sp=yes&kvdtype=fp16": {
        "parallel.tp": 8,
        "cluster.gpus": 64,
        "cluster.node": "dgx-a100",
        "parallel.sequence_parallel": True,
        "serve.kv_dtype": "fp16",
    },
    "v=1&mb=2&config=eNo9zEEKgzAQBdC7zDqLKBbEy4TR-eBAMhGdFmzp3RuouH2L96FVRWDp0DdoenR9IDXHXi"
    "DKjsu72A-BShXk5OfWhHLmwhTIniWxO8y1WlrBctA0_v26M5_Ym7biVRee7zTG7w9gLCyF": {
        "model": INLINE,
        "train.micro_batch": 2,
    },
    FULL: {
        "model": "llama-2-7b",
        "cluster.gpu": "a100-sxm-80gb",
        "cluster.gpus": 16,
        "train.micro_batch": 3,
        "train.seq_len": 2048,
        "train.grad_accumulation": 4,
        "train.framework": "pytorch",
        "train.zero": 1,
        "train.precision": "bf16-pure",
        "train.checkpointing": "none",
        "train.attention": "sdpa",
        "train.offload_optimizer": "cpu",
        "serve.weight_dtype": "fp16",
        "serve.kv_dtype": "fp8",
        "serve.kv_cache": "contiguous",
        "serve.concurrency": 5,
        "serve.prompt_len": 100,
        "serve.output_len": 7,
        "serve.block_size": 32,
        "serve.memory_utilization": 0.85,
        "serve.max_batched_tokens": 4096,
    },
    "v=2": {},
    "v=2&model=llama-3-70b~1&gpus=64&memutil=0.9": {
        "model": "llama-3-70b",
        "cluster.gpus": 64,
        "serve.memory_utilization": 0.9,
    },
}


@pytest.mark.parametrize("text", GOLDEN)
def test_an_old_link_means_what_it_meant(text: str) -> None:
    plan, _ = read(text)
    document = plan.document()
    expected = (V2 if text.startswith("v=2") else V1) | GOLDEN[text]
    assert {path: get(document, path) for path in expected} == expected


def test_todays_form_has_todays_defaults() -> None:
    """Where a default moves, the newest form moves with it, or, once it was published, a new form
    is begun: a link that says two things is a plan with two changes."""
    assert begun(VERSION) == Plan() == decode(encode(Plan(), short=True))[0]
    assert set(encode(Plan(), short=True)) == {"v", "model", "gpu"}


@pytest.mark.parametrize("text", GOLDEN)
def test_a_link_of_each_form_says_as_much_as_was_changed(text: str) -> None:
    plan, _ = read(text)
    form = form_of(parse_qs(text))
    changed = differences(begun(form), plan)
    said = encode(plan, short=True, form=form)
    assert decode(said) == (plan, [])
    assert {path for path in changed if path in FIELDS} == {
        KEYS[name].path for name in said if name in KEYS
    }
    if text != FULL:  # which says what is a default too
        assert changed == GOLDEN[text]


def test_every_field_of_a_plan_has_a_key() -> None:
    """A field added to the Plan needs a key here, or links would lose it."""
    objects = {"version", "model", "cluster.gpu", "cluster.node"}
    assert leaves(Plan().document()) - objects == set(FIELDS)
    assert {path for path in V1 if path in FIELDS} <= set(FIELDS)


def test_keys_are_short_and_few() -> None:
    assert all(len(key) <= 8 for key in KNOWN)
    assert len(KNOWN) <= MAX_KEYS


# --- there and back ------------------------------------------------------------------------------


def words(table: Any) -> some.SearchStrategy[str]:
    return some.sampled_from(sorted(table))


@some.composite
def plans(draw: some.DrawFn) -> Plan:
    framework = draw(words(FRAMEWORKS))
    gpu: Any = draw(some.sampled_from(catalog.gpu_names()))
    node: Any = draw(some.none() | some.sampled_from(catalog.node_names()))
    if draw(some.booleans()):
        gpu = catalog.accelerator(gpu).model_dump(mode="json") | {"label": draw(labels)}
    if node and draw(some.booleans()):
        node = catalog.node(node).model_dump(mode="json")
    model = draw(
        some.sampled_from([n for n in catalog.model_names() if "gpt2" not in n])
        | some.sampled_from([{"size": "7B"}, {"size": "1.5T"}, {"size": "350m"}])
        | some.just(INLINE)
    )
    plan, _ = repair(
        {
            "model": model,
            "cluster": {"gpu": gpu, "gpus": 8 * draw(some.integers(1, 10**4)), "node": node},
            "parallel": {"cp": draw(some.sampled_from([1, 2])), "sequence_parallel": True},
            "train": {
                "micro_batch": draw(some.integers(1, 65_536)),
                "seq_len": draw(some.integers(2, 1024)),
                "framework": framework,
                "zero": draw(some.sampled_from(FRAMEWORKS[framework].zero)),
                "precision": draw(words(PRECISIONS)),
                "checkpointing": draw(words(CHECKPOINTING)),
                "offload_optimizer": draw(words(OFFLOAD)),
            },
            "serve": {
                "memory_utilization": draw(some.floats(0.0001, 1)),
                "kv_cache": draw(words(KV_CACHES)),
                "block_size": draw(some.integers(1, 65_536)),
            },
        }
    )
    return plan


labels = some.text(some.characters(codec="utf-8"), min_size=1, max_size=80)


@examples(25)
@given(plan=plans(), short=some.booleans())
def test_a_plan_survives_the_trip(plan: Plan, short: bool) -> None:
    query = encode(plan, short=short)
    assert len(query) <= MAX_KEYS
    text = query_text(query)
    assert decode(parse_qs(text)) == (plan, [])
    assert decode_pin(encode_pin(plan)) == (plan, [])


@examples(25)
@given(
    plan=plans(),
    seconds=some.floats(1e-6, 1e6),
    size=some.integers(0, 2**40),
)
def test_a_measured_step_survives_the_trip(plan: Plan, seconds: float, size: int) -> None:
    measured = Measured(plan, seconds, size)
    assert decode_measured(*encode_measured(measured).popitem()) == (measured, [])


@examples(25)
@given(
    plan=plans(),
    token=some.floats(1e-6, 1e3),
    first=some.just(0.0) | some.floats(1e-6, 1e3),
    rate=some.just(0.0) | some.floats(1e-3, 1e8),
)
def test_a_measured_server_survives_the_trip(
    plan: Plan, token: float, first: float, rate: float
) -> None:
    benched = Measured(plan, token=token, first=first, rate=rate)
    assert decode_measured(*encode_measured(benched).popitem()) == (benched, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged"),
        ("v=1&each=0", "damaged"),
        ("v=1&each=nan", "damaged"),
        ("v=1&each=1e300", "measured server"),
        ("v=1&each=2&conc=none", "damaged"),
        (f"v=1&each=2&mb={'9' * 100_000}", "too long"),
    ],
)
def test_a_damaged_measured_server_is_left_out(text: str, says: str) -> None:
    benched, issues = decode_measured("benched", text)
    assert benched is None
    assert says in str(issues[0])
    assert issues[0].field == "benched"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged"),
        ("v=1&mb=2", "damaged"),
        ("v=1&took=nan", "damaged"),
        ("v=1&took=0", "more than 0"),
        ("v=1&took=1e300", "seconds"),
        ("v=1&took=2&peak=-1", "bytes"),
        ("v=1&took=2&peak=x", "damaged"),
        ("v=1&took=2&mb=-4", "damaged"),
        ("v=1&took=2&nothing=1", "damaged"),
        ("v=1&took=2&model=lama-3-8b", "damaged"),
        (f"v=1&took=2&mb={'9' * 100_000}", "too long"),
    ],
)
def test_a_damaged_measured_step_is_left_out(text: str, says: str) -> None:
    """A plan that was mended is not the one that ran."""
    measured, issues = decode_measured("measured", text)
    assert measured is None
    assert says in str(issues[0])
    assert issues[0].field == "measured"


def test_a_measured_step_of_a_corrected_preset_is_kept_and_says_so() -> None:
    measured, issues = decode_measured("measured", "v=1&model=llama-3-8b~999&took=2")
    assert measured
    assert measured.seconds == 2
    assert "corrected since" in issues[0].message


def test_what_a_link_says_beside_its_plan_is_no_part_of_the_plan() -> None:
    query = encode(Plan(train={"micro_batch": 2}), short=True)
    assert decode(query | dict.fromkeys(BESIDE, "mb=64&x=1")) == decode(query)
    assert set(BESIDE) >= {"pin", "pin5", "name", "look", "measured", "benched"}


@examples(25)
@given(name=labels)
def test_a_pinned_plan_keeps_its_name_as_one_short_line(name: str) -> None:
    plan = Plan(train={"micro_batch": 2})
    text = encode_pin(plan, name)
    assert decode_pin(text) == (plan, [])
    assert len(pin_name(text)) <= 40
    assert pin_name(text).isprintable()
    assert pin_name(encode_pin(plan, pin_name(text))) == pin_name(text)


def test_a_name_that_is_cut_at_a_space_ends_with_its_word() -> None:
    assert pin_name(encode_pin(Plan(), "0" * 39 + " 0")) == "0" * 39


def test_a_pinned_plan_of_an_old_link_has_no_name() -> None:
    assert pin_name("v=1&mb=2") == ""
    assert pin_name(encode_pin(Plan(), "ZeRO-2, half")) == "ZeRO-2, half"


def test_a_link_by_presets_fits_every_proxy_and_chat() -> None:
    for entry in catalog.plan_entries().values():
        plan = Plan.of(entry["plan"])
        assert len(query_text(encode(plan))) < 2000  # what old browsers and proxies take
        assert len(query_text(encode(plan, short=True))) < 200


def test_a_corrected_preset_says_so() -> None:
    plan, issues = read("v=1&model=llama-3-8b~999&mb=2")
    assert plan.train.micro_batch == 2
    assert "corrected since" in issues[0]


# --- damaged and hostile links -------------------------------------------------------------------


def packed(value: Any) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(value).encode())).decode().rstrip("=")


def nested(depth: int) -> str:
    text = '{"a":' * depth + "1" + "}" * depth
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode().rstrip("=")


BOMB = base64.urlsafe_b64encode(zlib.compress(b" " * 10**7)).decode().rstrip("=")

# link -> what the message must name
HOSTILE = {
    "nonsense=1": "nonsense",
    "mbb=4": "did you mean 'mb'",
    "mb=four": "train.micro_batch",
    "mb=4.5": "train.micro_batch",
    "mb=": "mb",
    "mb=-3": "train.micro_batch",
    "mb=99999999999": "train.micro_batch",
    f"mb={10**30}": "train.micro_batch",
    "mb=1&mb=2": "mb",
    "mb=%EF%BC%91": "train.micro_batch",
    "mb=1_000": "train.micro_batch",
    "seq=NaN": "train.seq_len",
    "seq=1e400": "train.seq_len",
    f"seq={'9' * 400}": "train.seq_len",
    "seq=0": "train.seq_len",
    "memutil=nan": "serve.memory_utilization",
    "memutil=inf": "serve.memory_utilization",
    "memutil=1e400": "serve.memory_utilization",
    "memutil=-0.1": "serve.memory_utilization",
    "memutil=7": "serve.memory_utilization",
    "sp=maybe": "parallel.sequence_parallel",
    "prec=bf16-mixd": "did you mean 'bf16-mixed'",
    "prec=%3Cscript%3Ealert(1)%3C/script%3E": "train.precision",
    "fw=torch": "train.framework",
    "zero=9": "train.zero",
    "gpu=h100-sxm-80": "h100-sxm-80gb",
    "gpu=%00": "cluster.gpu",
    "node=nowhere": "cluster.node",
    "model=lama-3-8b": "did you mean 'llama-3-8b'",
    "model=[x](javascript:alert(1))": "model",
    "size=7Q": "model.size",
    "size=-7B": "model.size",
    "size=999T": "model.size",
    f"model={'a' * 5000}": "model",
    "config=!!!!": "config",
    "config=abc": "config",
    f"config={packed(INLINE)[:-9]}": "config",
    f"config={BOMB}": "config",
    f"config={'A' * 50_000}": "config",
    f"config={packed([1, 2])}": "config",
    f"config={packed({'model_type': 'perceiver'})}": "perceiver",
    f"config={packed({**INLINE, 'num_attention_heads': 7})}": "num_attention_heads",
    f"config={packed({**INLINE, 'hidden_size': float('nan')})}": "config",
    f"config={packed({**INLINE, 'hidden_size': 10**400})}": "model.hidden_size",
    f"config={nested(30)}": "deeply",
    f"config={nested(5000)}": "config",
    f"gpudef={packed({'label': '<b>x</b>'})}": "cluster.gpu",
    f"nodedef={packed({'label': 'x'})}": "cluster.node",
    "v=3": "later Memplan",
    "v=99999999999999999999": "later Memplan",
    "v=0": "not a version",
    "v=one": "not a version",
    "tp=3": "parallel.tp",
    "tp=16": "cluster.gpus",
    "gpus=3&tp=2": "cluster.gpus",
    "cp=64&gpus=64&seq=8": "parallel.cp",
    "pp=64&gpus=64": "parallel.pp",
    "zero=1": "framework",
    "fw=pytorch": "1 is used",
    "model=gpt2": "learned positions",
}


@each("text", HOSTILE, ids=lambda text: text[:40])
def test_a_damaged_link_names_the_field_and_keeps_the_rest(text: str) -> None:
    plan, issues = read(text + "&accum=5&conc=77&bogus~=1")
    assert any(HOSTILE[text] in issue for issue in issues), issues
    assert plan.train.grad_accumulation == 5
    assert plan.serve.concurrency == 77
    assert len(issues) <= MAX_ISSUES + 1
    assert all(len(issue) < 700 for issue in issues)
    assert Plan.of(plan.document()) == plan


def test_where_fields_conflict_the_chosen_ones_are_kept() -> None:
    assert read("zero=1")[0].train.framework == "pytorch"
    assert read("fw=pytorch")[0].train.zero <= 1
    assert read("model=gpt2")[0].train.seq_len == 1024
    assert read("gpus=3&tp=2")[0].cluster.gpus == 4
    assert read("tp=16")[0].cluster.gpus == 16


def test_too_many_keys() -> None:
    plan, issues = read("&".join(f"k{i}=1" for i in range(900)) + "&mb=2")
    assert f"at most {MAX_KEYS}" in issues[0]
    assert len(issues) <= MAX_ISSUES + 1
    assert isinstance(plan, Plan)


def test_a_hostile_link_is_read_quickly() -> None:
    start = time.process_time()
    for text in HOSTILE:
        read(text)
    assert time.process_time() - start < 5


def failed(issues: list[Issue]) -> bool:
    """Whether Memplan itself did, which `decode` survives."""
    return any(FAILED in issue.message for issue in issues)


HALF = "\ud800"  # a lone surrogate
GPU, NODE = (
    part.model_dump(mode="json")
    for part in (Plan().accelerator, Plan(cluster={"gpu": "h100-sxm-80gb"}).node)
)
NO_TEXT: tuple[tuple[dict[str, Any], str, str], ...] = (  # a plan, the field at fault, and the key
    ({HALF: 1}, "", ""),
    ({HALF: 1, "train": {"micro_batch": 0}}, "", ""),
    ({"train": {HALF: 1}}, "train", ""),
    ({"train": {"precision": HALF}}, "train.precision", ""),
    ({"cluster": {"gpu": HALF}}, "cluster.gpu", ""),
    ({"cluster": {"gpu": {HALF: 1}}}, "cluster.gpu", "gpudef"),
    ({"cluster": {"gpu": {**GPU, HALF: 1}}}, "cluster.gpu", "gpudef"),
    ({"cluster": {"gpu": {**GPU, "label": f"x{HALF}"}}}, "cluster.gpu.label", "gpudef"),
    ({"cluster": {"node": {**NODE, HALF: 1}}}, "cluster.node", "nodedef"),
    ({"model": {**INLINE, HALF: 1}}, "model", "config"),
    ({"model": {**INLINE, "x": [{"y": HALF}]}}, "model.x.0.y", "config"),
    ({"model": {"size": HALF}}, "model.size", ""),
)


@pytest.mark.parametrize(("document", "field", "key"), NO_TEXT)
def test_half_a_character_is_refused_by_name(
    document: dict[str, Any], field: str, key: str
) -> None:
    """Anywhere in a plan, as a key or as a word; a link loses that field alone."""
    with pytest.raises(PlanError) as refused:
        Plan.of(document)
    assert [(i.field, "half of a character" in i.message) for i in refused.value.issues] == [
        (field, True)
    ]
    mended, issues = repair(document)
    assert mended == Plan()
    assert issues[0].field == field
    if key:
        value = document["model"] if key == "config" else document["cluster"][key[:-3]]
        plan, issues = decode({"mb": "2", key: packed(value)})
        assert plan == decode({"mb": "2"})[0]
        assert "half of a character" in str(issues)


def test_a_pair_of_surrogates_is_a_character() -> None:
    config = json.loads(json.dumps({**INLINE, "x": "\U0001f600"}))
    assert Plan.of({"model": config}).model["x"] == "\U0001f600"


def test_an_error_names_at_least_one_issue() -> None:
    with pytest.raises(ValueError, match="without an issue") as refused:
        PlanError([])
    assert not isinstance(refused.value, PlanError)


def test_where_memplan_fails_at_a_link_the_default_plan_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise TypeError("on purpose")

    monkeypatch.setattr(link, "repair", broken)
    plan, issues = decode({"mb": "2"})
    assert plan == Plan()
    assert failed(issues)
    assert "TypeError 'on purpose' in memcore.plan.link, line " in str(issues[0])


any_text = some.text(max_size=60)
any_key = any_text | some.sampled_from(KNOWN)
any_value = any_text | some.integers().map(str) | some.floats().map(str) | some.just(packed(INLINE))


@examples(40)
@given(some.dictionaries(any_key, any_value | some.lists(any_value, max_size=3), max_size=12))
def test_nothing_makes_decode_raise(query: dict[str, Any]) -> None:
    plan, issues = decode(query)
    assert Plan.of(plan.document()) == plan
    assert not failed(issues)
    for issue in issues:
        assert str(issue).isprintable()


@examples(30)
@given(some.binary(max_size=200) | some.text(max_size=200).map(lambda t: zlib.compress(t.encode())))
def test_no_payload_makes_decode_raise(payload: bytes) -> None:
    text = base64.urlsafe_b64encode(payload).decode().rstrip("=")
    for key in ("config", "gpudef", "nodedef"):
        plan, issues = decode({key: text, "mb": "2"})
        assert plan.train.micro_batch == 2
        assert issues or not text
        assert not failed(issues)


half_text = some.text(some.characters(exclude_categories=()), max_size=20)  # surrogates too
json_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | half_text,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(half_text, inner, max_size=3),
    max_leaves=8,
)


@examples(30)
@given(some.sampled_from(sorted(INLINE)), json_values)
def test_no_inline_model_makes_decode_raise(key: str, value: Any) -> None:
    plan, issues = decode({"config": packed({**INLINE, key: value})})
    assert Plan.of(plan.document()) == plan
    assert not failed(issues)


def test_repair_finds_a_valid_plan() -> None:
    broken = Plan().document() | {"model": "gpt2"}
    with pytest.raises(PlanError):
        Plan.of(broken)
    plan, issues = repair(broken)
    assert (plan.model, plan.train.seq_len) == ("gpt2", 1024)
    assert issues[0].field == "train.seq_len"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"model": "gpt2", "train": {"seq_len": 4096}}, "train.seq_len"),
        ({"train": {"zero": 1}}, "train.zero"),
        ({"train": {"framework": "megatron"}}, "train.kernels"),
        ({"train": {"framework": "pytorch"}}, "train.zero"),
        ({"cluster": {"gpus": 12}, "parallel": {"tp": 8}}, "cluster.gpus"),
        ({"train": 3, "cluster": {"gpus": 0}}, "train"),
        ({"cluster": {"gpus": 7}, "parallel": 5}, "parallel"),
        ({"model": "bloom-560m", "train": {"attention": "flash"}}, "train.attention"),
    ],
    ids=str,
)
def test_repair_of_a_document_that_leaves_things_out(document: Any, field: str) -> None:
    """What a hand-made document does not say is its default; what it says is kept if it can be."""
    plan, issues = repair(document)
    assert issues[0].field == field
    assert Plan.of(plan.document()) == plan
    if "model" in document:
        assert plan.model == document["model"]


def test_experts_on_tensor_parallel_ranks_get_sequence_parallelism() -> None:
    document = Plan(model="mixtral-8x7b", cluster={"gpus": 8}).document()
    document["parallel"] |= {"tp": 2, "ep": 8}
    document["train"] |= {"framework": "megatron", "kernels": "megatron", "zero": 1}
    plan, _ = repair(document)
    assert (plan.parallel.tp, plan.parallel.ep, plan.parallel.sequence_parallel) == (2, 8, True)


ASKED = {
    ("train.adapter", "qlora"): {},
    ("train.offload_parameters", "cpu"): {},
    ("train.offload_optimizer", "cpu"): {"train.adapter": "lora"},
    ("train.precision", "fp8-mixed"): {},
    ("train.framework", "megatron"): {},
    ("train.framework", "pytorch"): {},
    ("train.kernels", "megatron"): {},
    ("train.zero", 1): {},
    ("parallel.tp", 4): {"cluster.gpus": 6},
    ("cluster.gpus", 7): {"parallel.tp": 2},
    ("cluster.gpus", 1): {"parallel.tp": 2, "parallel.cp": 4},
    ("parallel.virtual_stages", 2): {"parallel.pp": 8, "parallel.schedule": "gpipe"},
    ("train.early_stop", "on"): {"train.framework": "megatron", "train.kernels": "megatron",
                                 "train.zero": 1},
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), ASKED)
def test_the_nearest_plan_keeps_what_was_asked_for(field, value):
    """And says each field that gave way to it, with what it was and what it is."""
    document = Plan.of({}).document()
    for path, other in ASKED[field, value].items():
        put(document, path, other)
    Plan.of(document)
    put(document, field, value)
    with pytest.raises(PlanError):
        Plan.of(document)
    plan, said = nearest(document, [field])
    assert get(plan, field) == value
    differing = {p for p in FIELDS if get(plan, p) != get(document, p)}
    assert {issue.field for issue in said} == differing
    assert all("in place of" in issue.message for issue in said)


@pytest.mark.parametrize(
    ("ranks", "gpus", "fewer"),
    [
        ({"tp": 4}, 1, {"tp": 1}),
        ({"tp": 8}, 12, {"tp": 4}),
        ({"tp": 4, "cp": 2}, 12, {"tp": 2}),
        ({"tp": 4, "cp": 2}, 3, {"tp": 1, "cp": 1}),
    ],
)
def test_fewer_gpus_are_followed_by_ranks(ranks, gpus, fewer):
    """The most ranks that share out the GPUs, of one axis where that is enough."""
    document = Plan.of({"cluster": {"gpus": 16}, "parallel": ranks}).document()
    put(document, "cluster.gpus", gpus)
    plan, _ = nearest(document, ["cluster.gpus"])
    assert plan.cluster.gpus == gpus
    assert {axis: getattr(plan.parallel, axis) for axis in ("tp", "cp")} == {
        "tp": 1, "cp": 1, **ranks, **fewer
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [("parallel.tp", 3), ("parallel.tp", 7), ("train.precision", "mxfp8")]
)
def test_what_no_other_field_can_make_possible_gives_way(field, value):
    """32 heads do not divide by 3, and an H100 has no MXFP8."""
    document = Plan.of({}).document()
    put(document, field, value)
    plan, said = nearest(document, [field])
    assert get(plan, field) != value
    assert said[0].field == field


@pytest.mark.parametrize("size", ["7b ", " 7B", "\t7 b\n", "1.5T\u00a0"])
def test_blanks_around_a_size_are_no_other_plan(size: str) -> None:
    plan = Plan.of({"model": {"size": size}})
    assert plan == Plan.of({"model": {"size": size.strip()}})
    text = query_text(encode(plan))
    assert decode(parse_qs(text)) == (plan, [])


def test_a_config_json_that_no_link_holds_is_told(tmp_path, capsys):
    config = dict(catalog.model_entry("llama-2-13b")["config"])
    assert link.is_held(Plan(model=config))
    names = [f"model.layers.{n}.mlp.up_proj" for n in range(98_000)]
    dense = [n * 7_919_999_983 % 1_000_000_007 for n in range(9_000)]  # short, and hard to compress
    for layers in (names, dense):
        plan = Plan(model=config | {"layers": layers})
        assert not link.is_held(plan)
        assert decode(encode(plan))[1]
        file = tmp_path / "plan.json"
        file.write_text(json.dumps({"model": plan.model}))
        assert cli.main(["link", str(file)]) != 0
        assert "too long for a link" in capsys.readouterr().err
